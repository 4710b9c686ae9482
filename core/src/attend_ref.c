/* attend_ref.c - what attention means: checked arguments, who sees what,
 * the definition in double. */
#include "attend.h"

#include <math.h>
#include <string.h>

kvl_status kvl_attend_bad_row(const kvl_source *s, int64_t row, kvl_error *err) {
    return kvl_fail(
        err, KVL_EINVAL,
        "attend: a list names row %lld, but its source has rows 0 .. %lld (-1 for none)",
        (long long)row, (long long)s->rows - 1);
}

static kvl_status check_source(const kvl_attend_args *a, const kvl_source *s, int64_t i,
                               kvl_error *err) {
#define BAD(...) return kvl_fail(err, KVL_EINVAL, __VA_ARGS__)
    long long n = (long long)i;
    if (s->rows < 0 || s->rows > INT32_MAX || s->kv_heads < 1 || a->heads % s->kv_heads != 0)
        BAD("attend: source %lld has %lld rows of %lld kv heads, which must divide %lld heads", n,
            (long long)s->rows, (long long)s->kv_heads, (long long)a->heads);
    if (s->read) {
        if (s->width < 1 || s->width > INT32_MAX)
            BAD("attend: source %lld reads rows of %lld columns", n, (long long)s->width);
        int64_t last = s->kv_heads - 1, key_end, value_end;
        if (s->key0 < 0 || !kvl_mul(&key_end, last, s->key_step) ||
            key_end > s->width - a->key_width - s->key0 || s->value0 < 0 ||
            !kvl_mul(&value_end, last, s->value_step) ||
            value_end > s->width - a->value_width - s->value0)
            BAD("attend: %lld heads with keys of %lld from column %lld, %lld apart, and values of "
                "%lld from column %lld, %lld apart, leave the %lld columns of source %lld",
                (long long)s->kv_heads, (long long)a->key_width, (long long)s->key0,
                (long long)s->key_step, (long long)a->value_width, (long long)s->value0,
                (long long)s->value_step, (long long)s->width, n);
    } else if (s->rows > 0) {
        if (!s->key.p || !s->value.p) BAD("attend: source %lld has neither rows nor a reader", n);
        if (s->rows > 1 && (s->key.step_s < a->key_width || s->key.step_s > INT32_MAX ||
                            s->value.step_s < a->value_width || s->value.step_s > INT32_MAX))
            BAD("attend: rows of source %lld are %lld and %lld apart, with keys of %lld and values "
                "of "
                "%lld",
                n, (long long)s->key.step_s, (long long)s->value.step_s, (long long)a->key_width,
                (long long)a->value_width);
    }
    switch (s->see) {
    case KVL_SEE_ALL:
    case KVL_SEE_CAUSAL: break;
    case KVL_SEE_WINDOW:
        if (s->window < 1)
            BAD("attend: window %lld of source %lld must be >= 1", (long long)s->window, n);
        break;
    case KVL_SEE_BLOCKS:
        if (s->ratio < 1)
            BAD("attend: ratio %lld of source %lld must be >= 1", (long long)s->ratio, n);
        break;
    case KVL_SEE_LIST:
        if (s->k < 0 || s->k > INT32_MAX || (s->k > 0 && !s->list))
            BAD("attend: source %lld has a list of %lld rows per query", n, (long long)s->k);
        break;
    default: BAD("attend: source %lld has an unknown rule %d", n, (int)s->see);
    }
    if (s->pos0 < 0 || s->pos0 > INT64_MAX / 4)
        BAD("attend: row 0 of source %lld at position %lld", n, (long long)s->pos0);
    if (s->ring != 0) {
        if (s->see != KVL_SEE_WINDOW || s->ring < 1 || s->ring > s->rows)
            BAD("attend: source %lld with %lld rows has a ring of %lld slots; a ring needs a "
                "window",
                n, (long long)s->rows, (long long)s->ring);
        /* The first query's oldest position must not have been written over. */
        int64_t newest = a->q_pos0 + a->queries - 1;
        int64_t first = a->q_pos0 - s->window + 1;
        if (first < s->pos0) first = s->pos0;
        if (newest - first >= s->ring)
            BAD("attend: %lld queries with window %lld need a ring of %lld slots, source %lld has "
                "%lld",
                (long long)a->queries, (long long)s->window, (long long)(newest - first + 1), n,
                (long long)s->ring);
    }
    return KVL_OK;
#undef BAD
}

kvl_status kvl_attend_check(const kvl_attend_args *a, kvl_error *err) {
    int64_t size = 1;
    if (a->batch < 0 || a->queries < 0 || a->heads < 1 || a->heads > INT32_MAX ||
        a->key_width < 1 || a->key_width > INT32_MAX || a->value_width < 1 ||
        a->value_width > INT32_MAX || a->queries > INT32_MAX ||
        !kvl_mul(&size, a->batch, a->queries) || !kvl_mul(&size, size, a->heads) ||
        !kvl_mul(&size, size, 8) || !kvl_mul(&size, size, a->key_width + a->value_width))
        return kvl_fail(err, KVL_EINVAL, "attend: q [%lld, %lld, %lld, %lld] and values of %lld",
                        (long long)a->batch, (long long)a->queries, (long long)a->heads,
                        (long long)a->key_width, (long long)a->value_width);
    if (a->n_sources < 0 || a->n_sources > KVL_MAX_SOURCES)
        return kvl_fail(err, KVL_EINVAL, "attend: %lld sources, at most %d",
                        (long long)a->n_sources, KVL_MAX_SOURCES);
    if (a->q_pos0 < 0 || a->q_pos0 > INT64_MAX / 4)
        return kvl_fail(err, KVL_EINVAL, "attend: query 0 at position %lld", (long long)a->q_pos0);
    for (int64_t i = 0; i < a->n_sources; i++) {
        kvl_status status = check_source(a, &a->sources[i], i, err);
        if (status) return status;
    }
    return KVL_OK;
}

static int64_t clamp(int64_t x, interval to) {
    return x < to.lo ? to.lo : x > to.hi ? to.hi : x;
}

interval kvl_attend_sees(const kvl_source *s, int64_t pos, int64_t newest) {
    interval there = {s->pos0, s->pos0 + s->rows};
    if (s->ring) {
        there.lo = newest + 1 - s->ring > s->pos0 ? newest + 1 - s->ring : s->pos0;
        there.hi = newest + 1 > s->pos0 ? newest + 1 : s->pos0;
    }
    interval see = there;
    if (s->see == KVL_SEE_CAUSAL || s->see == KVL_SEE_WINDOW) see.hi = pos + 1;
    if (s->see == KVL_SEE_WINDOW) see.lo = pos + 1 - s->window;
    if (s->see == KVL_SEE_BLOCKS) see.hi = (pos + 1) / s->ratio;
    return (interval){clamp(see.lo, there), clamp(see.hi, there)};
}

/* One query head: logits first, then weights. row() is read one at a time. */
typedef struct query {
    const kvl_attend_args *a;
    int64_t b, t, h;
    double max, sum; /* of e^(logit - max) */
    double *out;     /* [value_width], unnormalised */
} query;

static kvl_status see_row(query *x, const kvl_source *s, int64_t row, float *buffer,
                          kvl_error *err) {
    const kvl_attend_args *a = x->a;
    int64_t g = x->h / (a->heads / s->kv_heads);
    const float *key, *value;
    if (row < 0 || row >= s->rows) return kvl_attend_bad_row(s, row, err);
    if (s->read) {
        kvl_status status = s->read(s->read_ctx, x->b, NULL, row, 1, buffer, err);
        if (status) return status;
        key = buffer + g * s->key_step + s->key0;
        value = buffer + g * s->value_step + s->value0;
    } else {
        key = s->key.p + x->b * s->key.step_b + row * s->key.step_s + g * s->key.step_h;
        value = s->value.p + x->b * s->value.step_b + row * s->value.step_s + g * s->value.step_h;
    }
    const float *q = a->q + x->b * a->q_step_b + x->t * a->q_step_t + x->h * a->q_step_h;
    double logit = 0.0;
    for (int64_t c = 0; c < a->key_width; c++)
        logit += (double)q[c] * (double)key[c];
    logit *= (double)a->scale;
    if (logit == -INFINITY) return KVL_OK;
    double max = logit > x->max ? logit : x->max;
    double keep = x->max == -INFINITY ? 0.0 : exp(x->max - max), p = exp(logit - max);
    x->max = max;
    x->sum = x->sum * keep + p;
    for (int64_t c = 0; c < a->value_width; c++)
        x->out[c] = x->out[c] * keep + p * (double)value[c];
    return KVL_OK;
}

kvl_status kvl_attend_ref(double *out, double *lse, const kvl_attend_args *a, kvl_error *err) {
    kvl_status status = kvl_attend_check(a, err);
    if (status) return status;
    int64_t largest = 1;
    for (int64_t i = 0; i < a->n_sources; i++)
        if (a->sources[i].read && a->sources[i].width > largest) largest = a->sources[i].width;
    float *buffer = kvl_alloc((size_t)largest * sizeof *buffer);
    if (!buffer) return kvl_fail(err, KVL_ENOMEM, "attend_ref: no memory for one row");
    for (int64_t b = 0; b < a->batch && !status; b++)
        for (int64_t t = 0; t < a->queries && !status; t++)
            for (int64_t h = 0; h < a->heads && !status; h++) {
                int64_t n = (b * a->queries + t) * a->heads + h;
                query x = {a, b, t, h, -INFINITY, 0.0, out + n * a->value_width};
                memset(x.out, 0, (size_t)a->value_width * sizeof *x.out);
                if (a->sink) x.max = a->sink[h], x.sum = 1.0;
                for (int64_t i = 0; i < a->n_sources && !status; i++) {
                    const kvl_source *s = &a->sources[i];
                    if (s->see == KVL_SEE_LIST) {
                        const int32_t *list = s->list + (b * a->queries + t) * s->k;
                        for (int64_t j = 0; j < s->k && !status; j++)
                            if (list[j] != -1) status = see_row(&x, s, list[j], buffer, err);
                        continue;
                    }
                    interval see = kvl_attend_sees(s, a->q_pos0 + t, a->q_pos0 + a->queries - 1);
                    for (int64_t p = see.lo; p < see.hi && !status; p++)
                        status = see_row(&x, s, kvl_attend_row(s, p), buffer, err);
                }
                for (int64_t c = 0; c < a->value_width && x.sum > 0.0; c++)
                    x.out[c] /= x.sum;
                if (lse) lse[n] = x.sum > 0.0 ? x.max + log(x.sum) : -INFINITY;
            }
    kvl_free(buffer);
    return status;
}
