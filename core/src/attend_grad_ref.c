/* attend_grad_ref.c - what the gradients of attention mean: one query and head at a time, in
 * double.
 */
#include "kvlab/attend_grad.h"

#include "attend.h"

#include <math.h>
#include <string.h>

/* One row that a query sees. */
typedef struct seen {
    int64_t source, row;
    double logit, d_weight; /* d_weight = d_out . value */
} seen;

/* Head h of query (b, t). */
typedef struct query {
    const kvl_attend_args *a;
    const float *q, *d_out;
    int64_t b, t, h;
    seen *list;
    int64_t n;
} query;

static const float *row_of(const query *x, const kvl_source *s, const kvl_rows *of, int64_t row) {
    int64_t g = x->h / (x->a->heads / s->kv_heads);
    return of->p + x->b * of->step_b + row * of->step_s + g * of->step_h;
}

static void see_row(query *x, int64_t source, int64_t row) {
    const kvl_attend_args *a = x->a;
    const kvl_source *s = &a->sources[source];
    const float *key = row_of(x, s, &s->key, row), *value = row_of(x, s, &s->value, row);
    seen *to = &x->list[x->n++];
    *to = (seen){source, row, 0.0, 0.0};
    for (int64_t c = 0; c < a->key_width; c++)
        to->logit += (double)a->scale * (double)x->q[c] * (double)key[c];
    for (int64_t c = 0; c < a->value_width; c++)
        to->d_weight += (double)x->d_out[c] * (double)value[c];
}

static kvl_status see_all(query *x, kvl_error *err) {
    const kvl_attend_args *a = x->a;
    for (int64_t i = 0; i < a->n_sources; i++) {
        const kvl_source *s = &a->sources[i];
        if (s->see == KVL_SEE_LIST) {
            const int32_t *list = s->list + (x->b * a->queries + x->t) * s->k;
            for (int64_t j = 0; j < s->k; j++) {
                if (list[j] == -1) continue;
                if (list[j] < 0 || list[j] >= s->rows) return kvl_attend_bad_row(s, list[j], err);
                see_row(x, i, list[j]);
            }
            continue;
        }
        interval see = kvl_attend_sees(s, a->q_pos0 + x->t, a->q_pos0 + a->queries - 1);
        for (int64_t p = see.lo; p < see.hi; p++)
            see_row(x, i, kvl_attend_row(s, p));
    }
    return KVL_OK;
}

static void add(double *to, double factor, const float *x, int64_t n) {
    for (int64_t c = 0; c < n; c++)
        to[c] += factor * (double)x[c];
}

kvl_status kvl_attend_grad_ref(double *d_q, double *d_sink, double *const *d_key,
                               double *const *d_value, const kvl_attend_grads *grads,
                               const kvl_attend_args *a, kvl_error *err) {
    kvl_status status = kvl_attend_check(a, err);
    if (status) return status;
    int64_t most = 1;
    for (int64_t i = 0; i < a->n_sources; i++) {
        const kvl_source *s = &a->sources[i];
        if (s->read)
            return kvl_fail(err, KVL_EINVAL, "attend_grad_ref: source %lld has a reader",
                            (long long)i);
        most += s->see == KVL_SEE_LIST ? s->k : s->rows;
    }
    seen *list = kvl_alloc((size_t)most * sizeof *list);
    if (!list) return kvl_fail(err, KVL_ENOMEM, "attend_grad_ref: no memory for one query");
    for (int64_t i = 0; i < a->batch * a->queries * a->heads && !status; i++) {
        query x = {.a = a, .list = list};
        x.h = i % a->heads, x.t = i / a->heads % a->queries, x.b = i / a->heads / a->queries;
        x.q = a->q + x.b * a->q_step_b + x.t * a->q_step_t + x.h * a->q_step_h;
        x.d_out = grads->d_out + x.b * grads->d_out_step_b + x.t * grads->d_out_step_t +
                  x.h * grads->d_out_step_h;
        status = see_all(&x, err);
        if (status) break;
        double top = a->sink ? (double)a->sink[x.h] : -INFINITY, sum = 0.0, delta = 0.0;
        for (int64_t j = 0; j < x.n; j++)
            top = fmax(top, list[j].logit);
        if (top == -INFINITY) continue; /* nothing seen: zeros, whatever the inputs */
        if (a->sink) sum = exp((double)a->sink[x.h] - top);
        for (int64_t j = 0; j < x.n; j++)
            sum += exp(list[j].logit - top);
        for (int64_t j = 0; j < x.n; j++)
            delta += exp(list[j].logit - top) / sum * list[j].d_weight;
        if (d_sink && a->sink) d_sink[x.h] -= exp((double)a->sink[x.h] - top) / sum * delta;
        for (int64_t j = 0; j < x.n; j++) {
            int64_t source = list[j].source, row = list[j].row;
            const kvl_source *s = &a->sources[source];
            int64_t g = x.h / (a->heads / s->kv_heads);
            int64_t at = (x.b * s->rows + row) * s->kv_heads + g;
            double p = exp(list[j].logit - top) / sum, dl = p * (list[j].d_weight - delta);
            dl *= (double)a->scale;
            if (d_q) add(d_q + i * a->key_width, dl, row_of(&x, s, &s->key, row), a->key_width);
            if (d_key && d_key[source])
                add(d_key[source] + at * a->key_width, dl, x.q, a->key_width);
            if (d_value && d_value[source])
                add(d_value[source] + at * a->value_width, p, x.d_out, a->value_width);
        }
    }
    kvl_free(list);
    return status;
}
