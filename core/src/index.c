/* index.c - indexer scores by tiles of keys, on all threads. See index.h.
 *
 * Queries are taken in spans whose scores [span, entries] fit into a buffer. For a span:
 *   1. units = tiles of keys (or, with a pool, tiles of one query's pool): the keys are loaded once
 * and multiplied with all heads of a few queries at a time, ReLU and weights reduce the heads;
 *   2. for every query: top-k and candidate pool from its scores (select.c).
 * Spans, tiles and units are cut by size, so no bit depends on the number of threads.
 */
#include "kvlab/index.h"

#include "kvlab/blas.h"
#include "kvlab/parallel.h"
#include "kvlab/vmath.h"
#include "select.h"
#include "sizes.h"

#include <math.h>
#include <string.h>

enum {
    LANES = 16,
    TILE_KEYS = 512,               /* keys per unit */
    TILE_LOGITS = 256,             /* heads x queries per product */
    SPAN_SCORES = 16 * 1024 * 1024 /* floats of the score buffer, unless one query needs more */
};

typedef struct span {
    const kvl_index_args *a;
    const kvl_index_out *out;
    int64_t b, t0, nt;
    int64_t n;     /* scores per query: rows, or pool_size */
    int64_t sub;   /* queries per product */
    int64_t units; /* tiles of keys; per query, with a pool */
    float *scores; /* [nt, n] */
    int64_t key_floats, select_bytes;
} span;

static int64_t visible(const kvl_index_args *a, int64_t t) {
    return min((a->q_pos0 + t + 1) / a->ratio, a->rows);
}

/* --- scores ----------------------------------------------------------------------------------- */

/* out [n] = sum over heads of w[j] * max(0, s[j, :]); s [heads, n]. A NaN stays one. */
KVL_CLONES
static void reduce_heads(float *out, const float *w, const float *s, int64_t heads, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = 0.0f;
    for (int64_t j = 0; j < heads; j++, s += n) {
        float weight = w[j];
        for (int64_t i = 0; i < n; i++)
            out[i] += weight * (s[i] < 0.0f ? 0.0f : s[i]);
    }
}

/* The same of s [n, heads], whose rows are ld apart. */
KVL_CLONES
static void reduce_rows(float *out, const float *w, const float *s, int64_t ld, int64_t heads,
                        int64_t n) {
    for (int64_t i = 0; i < n; i++, s += ld) {
        float lane[LANES] = {0.0f};
        int64_t j = 0;
        for (; j + LANES <= heads; j += LANES)
            for (int l = 0; l < LANES; l++)
                lane[l] += w[j + l] * (s[j + l] < 0.0f ? 0.0f : s[j + l]);
        for (; j < heads; j++)
            lane[0] += w[j] * (s[j] < 0.0f ? 0.0f : s[j]);
        for (int half = LANES / 2; half > 0; half /= 2)
            for (int l = 0; l < half; l++)
                lane[l] += lane[l + half];
        out[i] = lane[0];
    }
}

/* Scores of queries t .. t + nt (of the span) for `count` keys in memory, to out + t * step; of the
 * keys from entry `first` on, a product leaves out those that none of its queries sees. first is
 * -1 when all are seen. */
static void score_tile(const span *x, float *out, int64_t step, const float *key, int64_t key_step,
                       int64_t first, int64_t count, int64_t t, int64_t nt, float *q, float *s) {
    const kvl_index_args *a = x->a;
    float *panels = q + x->sub * a->heads * a->width;
    for (int64_t at = t; at < t + nt; at += x->sub) {
        int64_t sub = min(x->sub, t + nt - at), n = count;
        if (first >= 0) n = min(n, visible(a, x->t0 + at + sub - 1) - first);
        for (int64_t i = 0; i < sub; i++)
            for (int64_t j = 0; j < a->heads; j++)
                memcpy(q + (i * a->heads + j) * a->width,
                       a->q + x->b * a->q_step_b + (x->t0 + at + i) * a->q_step_t + j * a->q_step_h,
                       (size_t)a->width * sizeof *q);
        int64_t m = sub * a->heads;
        const float *w = a->w + x->b * a->w_step_b + (x->t0 + at) * a->w_step_t;
        if (a->heads >= LANES) { /* key by key: the heads of one are enough for vectors */
            kvl_make_panels(panels, (kvl_mat){q, a->width, true, 0}, m, a->width);
            kvl_gemm_panels(s, m, key, key_step, panels, 1.0f, 0.0f, n, m, a->width);
            for (int64_t i = 0; i < sub; i++)
                reduce_rows(out + (at + i) * step, w + i * a->w_step_t, s + i * a->heads, m,
                            a->heads, n);
            continue;
        }
        kvl_gemm_tile(s, n, (kvl_mat){q, a->width, false, 0}, (kvl_mat){key, key_step, true, 0},
                      1.0f, 0.0f, m, n, a->width);
        for (int64_t i = 0; i < sub; i++)
            reduce_heads(out + (at + i) * step, w + i * a->w_step_t, s + i * a->heads * n, a->heads,
                         n);
    }
}

static kvl_status load_keys(const span *x, const float **key, int64_t *step, const int32_t *names,
                            int64_t first, int64_t n, float *buffer, kvl_error *err) {
    const kvl_index_args *a = x->a;
    if (a->read) {
        *key = buffer, *step = a->width;
        return a->read(a->read_ctx, x->b, names, first, n, buffer, err);
    }
    const float *rows = a->key.p + x->b * a->key.step_b;
    *key = rows + first * a->key.step_s;
    *step = a->key.step_s > a->width ? a->key.step_s : a->width;
    if (!names) return KVL_OK;
    for (int64_t i = 0; i < n; i++)
        memcpy(buffer + i * a->width, rows + names[i] * a->key.step_s,
               (size_t)a->width * sizeof(float));
    *key = buffer, *step = a->width;
    return KVL_OK;
}

/* Tile number `unit` of the keys, for all queries of the span that see any of it. */
static kvl_status score_keys(const span *x, int64_t unit, float *keys, float *q, float *s,
                             kvl_error *err) {
    int64_t first = unit * TILE_KEYS, n = min(TILE_KEYS, x->n - first), step, t = 0;
    n = min(n, visible(x->a, x->t0 + x->nt - 1) - first);
    if (n <= 0) return KVL_OK;
    while (visible(x->a, x->t0 + t) <= first)
        t++;
    const float *key;
    kvl_status status = load_keys(x, &key, &step, NULL, first, n, keys, err);
    if (!status) score_tile(x, x->scores + first, x->n, key, step, first, n, t, x->nt - t, q, s);
    return status;
}

/* A tile of one query's pool; entries that it cannot see are not read. */
static kvl_status score_pool(const span *x, int64_t unit, float *keys, float *q, float *s,
                             kvl_error *err) {
    const kvl_index_args *a = x->a;
    int64_t t = unit / x->units, first = unit % x->units * TILE_KEYS;
    int64_t count = min(TILE_KEYS, x->n - first), n = 0, step, see = visible(a, x->t0 + t);
    const int32_t *pool = a->pool + ((x->b * a->queries + x->t0 + t) * x->n + first);
    float *out = x->scores + t * x->n + first;
    int32_t names[TILE_KEYS];
    for (int64_t i = 0; i < count; i++) {
        if (pool[i] < -1 || pool[i] >= a->rows)
            return kvl_fail(err, KVL_EINVAL,
                            "index: the pool names entry %d, there are 0 .. %lld (-1 for none)",
                            (int)pool[i], (long long)a->rows - 1);
        if (pool[i] >= 0 && pool[i] < see) names[n++] = pool[i];
    }
    if (n > 0) {
        const float *key;
        kvl_status status = load_keys(x, &key, &step, names, 0, n, keys, err);
        if (status) return status;
        score_tile(x, out - t * x->n, x->n, key, step, -1, n, t, 1, q, s);
    }
    for (int64_t i = count - 1; i >= 0; i--) /* from the end: the scores move up to their places */
        out[i] = pool[i] >= 0 && pool[i] < see ? out[--n] : -INFINITY;
    return KVL_OK;
}

static kvl_status score_unit(void *ctx, int64_t unit, void *scratch, kvl_error *err) {
    const span *x = ctx;
    float *keys = scratch, *q = keys + x->key_floats;
    float *s = q + 2 * x->sub * x->a->heads * x->a->width; /* after the panels of q */
    return x->a->pool ? score_pool(x, unit, keys, q, s, err) : score_keys(x, unit, keys, q, s, err);
}

/* --- selection -------------------------------------------------------------------------------- */

static kvl_status select_query(void *ctx, int64_t t, void *scratch, kvl_error *err) {
    (void)err;
    const span *x = ctx;
    const kvl_index_args *a = x->a;
    const kvl_index_out *out = x->out;
    int64_t row = x->b * a->queries + x->t0 + t, see = visible(a, x->t0 + t);
    const int32_t *pool = a->pool ? a->pool + row * a->pool_size : NULL;
    float *scores = x->scores + t * x->n;
    if (out->scores) {
        float *to = out->scores + row * a->rows;
        for (int64_t i = 0; i < a->rows; i++)
            to[i] = !pool && i < see ? scores[i] : -INFINITY;
        for (int64_t i = 0; pool && i < a->pool_size; i++)
            if (pool[i] >= 0) to[pool[i]] = scores[i];
    }
    if (out->top) {
        int32_t *top = out->top + row * out->k;
        kvl_select_top(top, scores, pool ? a->pool_size : see, out->k, scratch);
        for (int64_t i = 0; pool && i < out->k; i++)
            if (top[i] >= 0) top[i] = pool[top[i]];
    }
    if (out->pool)
        kvl_select_blocks(out->pool + row * out->blocks * out->block, scores, see, out->block,
                          out->blocks, scratch);
    return KVL_OK;
}

/* --- all -------------------------------------------------------------------------------------- */

static kvl_status check(const kvl_index_out *out, const kvl_index_args *a, kvl_error *err) {
    int64_t size = 1, floats;
    if (a->batch < 0 || a->queries < 0 || a->heads < 1 || a->width < 1 ||
        a->heads > INT32_MAX / 64 || a->width > INT32_MAX / 64 || a->rows < 0 ||
        a->rows > INT32_MAX || a->ratio < 1 || a->q_pos0 < 0 || a->q_pos0 > INT64_MAX / 4 ||
        a->pool_size < 0 || a->pool_size > INT32_MAX || !kvl_mul(&floats, a->heads, a->width) ||
        floats > INT32_MAX || !kvl_mul(&size, a->batch, a->queries) ||
        !kvl_mul(&size, size, floats))
        return kvl_fail(
            err, KVL_EINVAL,
            "index: q [%lld, %lld, %lld, %lld], %lld entries of ratio %lld, position %lld, "
            "pool of %lld",
            (long long)a->batch, (long long)a->queries, (long long)a->heads, (long long)a->width,
            (long long)a->rows, (long long)a->ratio, (long long)a->q_pos0, (long long)a->pool_size);
    if (!a->read && a->rows > 0 &&
        (!a->key.p || a->key.step_s > INT32_MAX || (a->rows > 1 && a->key.step_s < a->width)))
        return kvl_fail(err, KVL_EINVAL, "index: keys of %lld channels are %lld apart",
                        (long long)a->width, (long long)a->key.step_s);
    if (out && out->top && (out->k < 0 || out->k > INT32_MAX))
        return kvl_fail(err, KVL_EINVAL, "index: k = %lld must be >= 0", (long long)out->k);
    if (out && out->pool && a->pool)
        return kvl_fail(err, KVL_EINVAL, "index: a pool is made from all entries, not from a pool");
    if (out && out->pool &&
        (out->block < 1 || out->blocks < 1 || out->block > INT32_MAX || out->blocks > INT32_MAX))
        return kvl_fail(err, KVL_EINVAL, "index: a pool of %lld blocks of %lld entries",
                        (long long)out->blocks, (long long)out->block);
    return KVL_OK;
}

kvl_status kvl_index(const kvl_index_out *out, const kvl_index_args *a, kvl_error *err) {
    kvl_status status = check(out, a, err);
    if (status || a->batch == 0 || a->queries == 0) return status;
    span x = {.a = a, .out = out, .n = a->pool ? a->pool_size : a->rows};
    int64_t per_span = x.n > 0 ? SPAN_SCORES / x.n : a->queries;
    per_span = per_span < 1 ? 1 : min(per_span, a->queries);
    x.sub = TILE_LOGITS / a->heads < 1 ? 1 : min(TILE_LOGITS / a->heads, per_span);
    x.units = kvl_tiles(x.n, TILE_KEYS);
    x.key_floats = a->read || a->pool ? TILE_KEYS * a->width : 0;
    size_t unit_bytes = (size_t)(x.key_floats + x.sub * a->heads * (2 * a->width + TILE_KEYS)) *
                        sizeof(float);
    x.scores = kvl_alloc_raw((size_t)(x.n > 0 ? per_span * x.n : 1) * sizeof(float));
    if (!x.scores)
        return kvl_fail(err, KVL_ENOMEM, "index: no memory for %lld x %lld scores",
                        (long long)per_span, (long long)x.n);
    for (x.b = 0; x.b < a->batch && !status; x.b++)
        for (x.t0 = 0; x.t0 < a->queries && !status; x.t0 += per_span) {
            x.nt = min(per_span, a->queries - x.t0);
            int64_t units = a->pool ? x.units * x.nt : x.units;
            status = kvl_parallel_for(units, unit_bytes, score_unit, &x, err);
            if (!status)
                status = kvl_parallel_for(x.nt, kvl_select_bytes(x.n), select_query, &x, err);
        }
    kvl_free(x.scores);
    return status;
}

kvl_status kvl_index_ref(double *out, const kvl_index_args *a, kvl_error *err) {
    kvl_status status = check(NULL, a, err);
    if (status) return status;
    float *buffer = kvl_alloc((size_t)a->width * sizeof *buffer);
    if (!buffer) return kvl_fail(err, KVL_ENOMEM, "index_ref: no memory for one key");
    for (int64_t b = 0; b < a->batch && !status; b++)
        for (int64_t t = 0; t < a->queries && !status; t++)
            for (int64_t s = 0; s < a->rows && !status; s++) {
                int64_t row = b * a->queries + t;
                bool allowed = s < (a->q_pos0 + t + 1) / a->ratio, pooled = a->pool == NULL;
                for (int64_t i = 0; i < a->pool_size && !pooled; i++)
                    pooled = a->pool[row * a->pool_size + i] == s;
                out[row * a->rows + s] = -INFINITY;
                if (!allowed || !pooled) continue;
                const float *key = buffer;
                if (a->read)
                    status = a->read(a->read_ctx, b, NULL, s, 1, buffer, err);
                else
                    key = a->key.p + b * a->key.step_b + s * a->key.step_s;
                double score = 0.0;
                for (int64_t j = 0; j < a->heads; j++) {
                    const float *q = a->q + b * a->q_step_b + t * a->q_step_t + j * a->q_step_h;
                    double dot = 0.0;
                    for (int64_t c = 0; c < a->width; c++)
                        dot += (double)q[c] * (double)key[c];
                    score += (double)a->w[b * a->w_step_b + t * a->w_step_t + j] *
                             (dot < 0 ? 0 : dot);
                }
                out[row * a->rows + s] = score;
            }
    kvl_free(buffer);
    return status;
}
