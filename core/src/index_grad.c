/* index_grad.c - the KL loss of indexer scores and its gradients. See kvlab/index_grad.h.
 *
 * The work is cut into tasks (batch item, strip of queries); each strip has gradients of the keys
 * of its own, added at the end in the order of the strips. Inside a task, for a tile of queries
 * (one query, with a pool, whose keys are gathered), in three passes:
 *   1. Z = Q K^T by tiles of keys; I = sum over heads of w * max(0, Z)
 *   2. the softmax over the set: loss, and dI in the place of I
 *   3. Z again; d_w += max(0, Z) . dI;  Z = [Z > 0] * w * dI;  d_q += Z K;  d_key += Z^T Q
 */
#include "kvlab/index_grad.h"

#include "kvlab/blas.h"
#include "kvlab/parallel.h"
#include "kvlab/vmath.h"
#include "sizes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    QUERY_ROWS = 128,             /* heads x queries of a tile, when there are so many */
    MIN_QUERIES = 4,              /* fewer would spoil the reuse of the keys */
    TILE_KEYS = 128,              /* keys per product */
    MAX_SCORES = 4 * 1024 * 1024, /* floats of I for one tile, unless one query needs more */
    STRIPS = 16,
    MIN_STRIP = 32, /* strips of all batch items at most; queries of one at least */
    REDUCE_ROWS = 256
};

typedef struct plan {
    const kvl_index_grad_args *args;
    const kvl_index_args *a;
    int64_t n;  /* entries per query: rows or pool_size */
    int64_t nt; /* queries of a tile */
    int64_t strip, strips;
    float *partial; /* d_key [strips, B, rows, width], when strips > 1 */
} plan;

/* Keys in memory, and where their gradients go (NULL: nowhere). */
typedef struct keys {
    const float *p;
    float *d;
    int64_t step, d_step, n;
} keys;

/* Queries t0 .. t0 + nt of batch item b; logit row (t - t0) * heads + head. */
typedef struct tile {
    const plan *p;
    int64_t b, t0, nt;
    float *q, *d_q;               /* [nt * heads, width] */
    float *d_w;                   /* [nt * heads] */
    float *z;                     /* [nt * heads, TILE_KEYS] */
    float *scores;                /* I, then dI [nt, n] */
    float *target;                /* of the keys of a pool [n] */
    float *gathered, *d_gathered; /* keys of a pool [n, width] */
    int32_t *names;               /* [n] */
    bool whole;                   /* z still holds all products */
} tile;

static int64_t visible(const kvl_index_args *a, int64_t t) {
    return min((a->q_pos0 + t + 1) / a->ratio, a->rows);
}

static const float *weights_of(const tile *x, int64_t t) {
    return x->p->a->w + x->b * x->p->a->w_step_b + (x->t0 + t) * x->p->a->w_step_t;
}

/* --- elementwise ------------------------------------------------------------------------------ */

/* z = max(0, z); a NaN stays one. */
KVL_CLONES
static void relu(float *z, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        z[i] = z[i] < 0.0f ? 0.0f : z[i];
}

/* z [n], after ReLU, becomes its gradient [z > 0] * w * d. */
KVL_CLONES
static void relu_grad(float *z, const float *d, float w, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        z[i] = z[i] > 0.0f ? w * d[i] : 0.0f;
}

/* d [n] = (e / sum * total - p) * factor, where d holds e */
KVL_CLONES
static void score_grad(float *d, const float *p, float total_over_sum, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        d[i] = (d[i] * total_over_sum - p[i]) * factor;
}

/* --- passes ----------------------------------------------------------------------------------- */

static void products(tile *x, const keys *k, int64_t at, int64_t n) {
    int64_t width = x->p->a->width, m = x->nt * x->p->a->heads;
    kvl_gemm_tile(x->z, n, (kvl_mat){x->q, width, false, 0},
                  (kvl_mat){k->p + at * k->step, k->step, true, 0}, 1.0f, 0.0f, m, n, width);
    for (int64_t i = 0; i < m; i++)
        relu(x->z + i * n, n);
}

static void make_scores(tile *x, const keys *k) {
    int64_t heads = x->p->a->heads;
    memset(x->scores, 0, (size_t)(x->nt * k->n) * sizeof *x->scores);
    for (int64_t at = 0; at < k->n; at += TILE_KEYS) {
        int64_t n = min(TILE_KEYS, k->n - at);
        products(x, k, at, n);
        for (int64_t t = 0; t < x->nt; t++)
            for (int64_t j = 0; j < heads; j++)
                kvl_axpy(x->scores + t * k->n + at, weights_of(x, t)[j], x->z + (t * heads + j) * n,
                         n);
    }
    x->whole = k->n <= TILE_KEYS;
}

/* The scores of query t become dI; those after the first `see` are not in the set. */
static void softmax_query(tile *x, int64_t t, int64_t n, int64_t see, const float *target) {
    const kvl_index_grad_args *args = x->p->args;
    int64_t row = x->b * x->p->a->queries + x->t0 + t;
    float *scores = x->scores + t * n;
    double total = 0.0, loss = 0.0;
    for (int64_t i = 0; i < see; i++)
        total += (double)target[i];
    if (total > 0.0) {
        float top = kvl_max(scores, see);
        for (int64_t i = 0; i < see; i++)
            if (target[i] > 0.0f)
                loss += (double)target[i] * (log((double)target[i]) - (double)(scores[i] - top));
        float sum = kvl_exp_sum(scores, scores, 1.0f, top, see);
        loss += total * log((double)sum);
        score_grad(scores, target, (float)(total / (double)sum),
                   args->factor ? args->factor[row] : 1.0f, see);
    } else if (!(total == 0.0)) {
        loss = (double)NAN; /* a NaN or a negative target is not passed over */
    } else {
        see = 0;
    }
    memset(scores + see, 0, (size_t)(n - see) * sizeof *scores);
    if (args->loss) args->loss[row] = (float)loss;
}

static void make_gradients(tile *x, const keys *k) {
    const kvl_index_grad_args *args = x->p->args;
    int64_t heads = x->p->a->heads, width = x->p->a->width, m = x->nt * heads;
    for (int64_t at = 0; at < k->n; at += TILE_KEYS) {
        int64_t n = min(TILE_KEYS, k->n - at);
        if (!x->whole) products(x, k, at, n);
        for (int64_t i = 0; i < m; i++) {
            const float *d = x->scores + i / heads * k->n + at;
            if (args->d_w) x->d_w[i] += kvl_dot(x->z + i * n, d, n);
            relu_grad(x->z + i * n, d, weights_of(x, i / heads)[i % heads], n);
        }
        if (args->d_q)
            kvl_gemm_tile(x->d_q, width, (kvl_mat){x->z, n, false, 0},
                          (kvl_mat){k->p + at * k->step, k->step, false, 0}, 1.0f, 1.0f, m, width,
                          n);
        if (k->d)
            kvl_gemm_tile(k->d + at * k->d_step, k->d_step, (kvl_mat){x->z, n, true, 0},
                          (kvl_mat){x->q, width, false, 0}, 1.0f, 1.0f, n, width, m);
    }
}

/* --- one task --------------------------------------------------------------------------------- */

static void pack(tile *x) {
    const kvl_index_args *a = x->p->a;
    for (int64_t t = 0; t < x->nt; t++)
        for (int64_t j = 0; j < a->heads; j++)
            memcpy(x->q + (t * a->heads + j) * a->width,
                   a->q + x->b * a->q_step_b + (x->t0 + t) * a->q_step_t + j * a->q_step_h,
                   (size_t)a->width * sizeof(float));
    memset(x->d_q, 0, (size_t)(x->nt * a->heads * a->width) * sizeof(float));
    memset(x->d_w, 0, (size_t)(x->nt * a->heads) * sizeof(float));
}

static void store(const tile *x) {
    const kvl_index_args *a = x->p->a;
    const kvl_index_grad_args *g = x->p->args;
    for (int64_t t = 0; t < x->nt; t++) {
        int64_t at = x->t0 + t;
        for (int64_t j = 0; j < a->heads && g->d_q; j++)
            kvl_axpy(g->d_q + x->b * g->d_q_step_b + at * g->d_q_step_t + j * g->d_q_step_h, 1.0f,
                     x->d_q + (t * a->heads + j) * a->width, a->width);
        if (g->d_w)
            kvl_axpy(g->d_w + x->b * g->d_w_step_b + at * g->d_w_step_t, 1.0f,
                     x->d_w + t * a->heads, a->heads);
    }
}

/* Where the strip adds the gradients of the keys of its batch item. */
static kvl_rows_grad target_rows(const plan *p, int64_t b, int64_t strip) {
    kvl_rows_grad to = p->args->d_key;
    int64_t width = p->a->width, rows = p->a->rows;
    if (!to.p) return to;
    if (p->strips > 1)
        return (kvl_rows_grad){p->partial + (strip * p->a->batch + b) * rows * width, 0, width, 0};
    to.p += b * to.step_b;
    to.step_s = max(to.step_s, width);
    return to;
}

static void learn_all(tile *x, const kvl_rows_grad *d_key) {
    const kvl_index_args *a = x->p->a;
    keys k = {a->key.p + x->b * a->key.step_b, d_key->p, max(a->key.step_s, a->width),
              d_key->step_s, visible(a, x->t0 + x->nt - 1)};
    make_scores(x, &k);
    for (int64_t t = 0; t < x->nt; t++)
        softmax_query(x, t, k.n, visible(a, x->t0 + t),
                      x->p->args->target + (x->b * a->queries + x->t0 + t) * a->rows);
    make_gradients(x, &k);
}

static kvl_status learn_pool(tile *x, const kvl_rows_grad *d_key, kvl_error *err) {
    const kvl_index_args *a = x->p->a;
    int64_t row = x->b * a->queries + x->t0, n = 0, width = a->width;
    for (int64_t i = 0; i < a->pool_size; i++) {
        int32_t name = a->pool[row * a->pool_size + i];
        if (name < -1 || name >= a->rows)
            return kvl_fail(err, KVL_EINVAL,
                            "index_grad: the set names entry %d, there are 0 .. %lld (-1 for none)",
                            (int)name, (long long)a->rows - 1);
        if (name == -1 || name >= visible(a, x->t0)) continue;
        memcpy(x->gathered + n * width, a->key.p + x->b * a->key.step_b + name * a->key.step_s,
               (size_t)width * sizeof(float));
        x->target[n] = x->p->args->target[row * a->pool_size + i];
        x->names[n++] = name;
    }
    keys k = {x->gathered, d_key->p ? x->d_gathered : NULL, width, width, n};
    memset(x->d_gathered, 0, (size_t)(n * width) * sizeof(float));
    make_scores(x, &k);
    softmax_query(x, 0, n, n, x->target);
    make_gradients(x, &k);
    for (int64_t i = 0; i < n && k.d; i++)
        kvl_axpy(d_key->p + x->names[i] * d_key->step_s, 1.0f, k.d + i * width, width);
    return KVL_OK;
}

static size_t scratch_bytes(const plan *p) {
    int64_t m = p->nt * p->a->heads, width = p->a->width, set = p->a->pool ? p->n : 0;
    return (size_t)(2 * pad(m * width) + pad(m) + pad(m * TILE_KEYS) + pad(p->nt * p->n) +
                    2 * pad(set) + 2 * pad(set * width)) *
           sizeof(float);
}

static kvl_status run_task(void *ctx, int64_t number, void *scratch, kvl_error *err) {
    const plan *p = ctx;
    const kvl_index_args *a = p->a;
    int64_t m = p->nt * a->heads, width = a->width, set = a->pool ? p->n : 0;
    int64_t strip = p->strips - 1 - number / a->batch; /* the last see most */
    tile x = {.p = p, .b = number % a->batch};
    float *at = scratch;
    x.q = at, at += pad(m * width);
    x.d_q = at, at += pad(m * width);
    x.d_w = at, at += pad(m);
    x.z = at, at += pad(m * TILE_KEYS);
    x.scores = at, at += pad(p->nt * p->n);
    x.target = at, at += pad(set);
    x.gathered = at, at += pad(set * width);
    x.d_gathered = at, at += pad(set * width);
    x.names = (int32_t *)(void *)at;
    kvl_rows_grad d_key = target_rows(p, x.b, strip);
    int64_t end = min((strip + 1) * p->strip, a->queries);
    for (x.t0 = strip * p->strip; x.t0 < end; x.t0 += p->nt) {
        if (kvl_cancelled()) return kvl_fail(err, KVL_ECANCEL, "cancelled");
        x.nt = min(p->nt, end - x.t0);
        pack(&x);
        kvl_status status = KVL_OK;
        if (a->pool)
            status = learn_pool(&x, &d_key, err);
        else
            learn_all(&x, &d_key);
        if (status) return status;
        store(&x);
    }
    return KVL_OK;
}

static kvl_status reduce_rows(void *ctx, int64_t number, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const plan *p = ctx;
    const kvl_rows_grad *to = &p->args->d_key;
    int64_t tiles = kvl_tiles(p->a->rows, REDUCE_ROWS), b = number / tiles, width = p->a->width;
    int64_t row = number % tiles * REDUCE_ROWS;
    for (int64_t end = min(row + REDUCE_ROWS, p->a->rows); row < end; row++)
        for (int64_t i = 0; i < p->strips; i++)
            kvl_axpy(to->p + b * to->step_b + row * to->step_s, 1.0f,
                     p->partial + ((i * p->a->batch + b) * p->a->rows + row) * width, width);
    return KVL_OK;
}

/* --- all -------------------------------------------------------------------------------------- */

static kvl_status check(const kvl_index_grad_args *g, kvl_error *err) {
    const kvl_index_args *a = g->index;
    const kvl_rows_grad *d = &g->d_key;
    if (a->read)
        return kvl_fail(err, KVL_EINVAL,
                        "index_grad: gradients need the keys of a tensor, not a "
                        "reader");
    /* The forward with nothing wanted checks the rest, and does nothing. */
    kvl_index_args empty = *a;
    empty.batch = 0;
    kvl_index_out none = {0};
    kvl_status status = kvl_index(&none, &empty, err);
    int64_t size, n = a->pool ? a->pool_size : a->rows;
    if (status) return status;
    if (a->batch < 0 || !kvl_mul(&size, a->batch, a->queries) ||
        !kvl_mul(&size, size, a->heads * a->width) || !kvl_mul(&size, a->batch, a->queries) ||
        !kvl_mul(&size, size, 4 * n) || !kvl_mul(&size, n, 4 * a->width))
        return kvl_fail(err, KVL_EINVAL, "index_grad: %lld x %lld queries over %lld entries",
                        (long long)a->batch, (long long)a->queries, (long long)n);
    if (!g->target && size > 0) return kvl_fail(err, KVL_EINVAL, "index_grad: target is missing");
    if (d->p && ((a->rows > 1 && (d->step_s < a->width || d->step_s > INT32_MAX)) ||
                 (a->batch > 1 && llabs(d->step_b) < a->width)))
        return kvl_fail(err, KVL_EINVAL,
                        "index_grad: d_key has %lld columns, but rows %lld and batch items %lld "
                        "apart: gradients must not share places",
                        (long long)a->width, (long long)d->step_s, (long long)d->step_b);
    return KVL_OK;
}

kvl_status kvl_index_grad(const kvl_index_grad_args *g, kvl_error *err) {
    kvl_status status = check(g, err);
    const kvl_index_args *a = g->index;
    if (status || a->batch == 0 || a->queries == 0) return status;
    plan p = {.args = g, .a = a, .n = a->pool ? a->pool_size : a->rows};
    p.nt = max(QUERY_ROWS / a->heads, MIN_QUERIES);
    p.nt = a->pool ? 1 : max(min(p.nt, MAX_SCORES / max(p.n, 1)), 1);
    p.strips = max(1, min(STRIPS / a->batch, a->queries / MIN_STRIP));
    p.strip = kvl_tiles(a->queries, p.strips);
    p.strips = kvl_tiles(a->queries, p.strip);
    if (p.strips > 1 && g->d_key.p && a->rows > 0) {
        int64_t floats;
        if (kvl_mul(&floats, p.strips * a->batch, a->rows * a->width) && floats < INT64_MAX / 8)
            p.partial = kvl_alloc((size_t)floats * sizeof(float));
        if (!p.partial)
            return kvl_fail(err, KVL_ENOMEM,
                            "index_grad: no memory for %lld gradients of %lld keys",
                            (long long)p.strips, (long long)a->rows);
    }
    status = kvl_parallel_for(a->batch * p.strips, scratch_bytes(&p), run_task, &p, err);
    if (!status && p.partial)
        status = kvl_parallel_for(a->batch * kvl_tiles(a->rows, REDUCE_ROWS), 0, reduce_rows, &p,
                                  err);
    kvl_free(p.partial);
    return status;
}

/* --- the definition --------------------------------------------------------------------------- */

static double dot(const float *x, const float *y, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

kvl_status kvl_index_grad_ref(double *loss, double *d_q, double *d_w, double *d_key,
                              const kvl_index_grad_args *g, kvl_error *err) {
    kvl_status status = check(g, err);
    if (status) return status;
    const kvl_index_args *a = g->index;
    int64_t n = a->pool ? a->pool_size : a->rows;
    double *score = kvl_alloc((size_t)(n + 1) * sizeof *score);
    if (!score) return kvl_fail(err, KVL_ENOMEM, "index_grad_ref: no memory for one query");
    for (int64_t i = 0; i < a->batch * a->queries; i++) {
        int64_t b = i / a->queries, t = i % a->queries;
        const float *q = a->q + b * a->q_step_b + t * a->q_step_t, *target = g->target + i * n;
        const float *w = a->w + b * a->w_step_b + t * a->w_step_t, *key0 = a->key.p;
        double top = -INFINITY, sum = 0.0, total = 0.0,
               factor = g->factor ? (double)g->factor[i] : 1;
        key0 += b * a->key.step_b;
        for (int64_t k = 0; k < n; k++) {
            int64_t s = a->pool ? a->pool[i * n + k] : k;
            score[k] = -INFINITY;
            if (s < 0 || s >= visible(a, t)) continue;
            score[k] = 0.0;
            for (int64_t j = 0; j < a->heads; j++) {
                double z = dot(q + j * a->q_step_h, key0 + s * a->key.step_s, a->width);
                score[k] += (double)w[j] * fmax(z, 0.0);
            }
            top = fmax(top, score[k]);
            total += (double)target[k];
        }
        for (int64_t k = 0; k < n; k++)
            if (score[k] != -INFINITY) sum += exp(score[k] - top);
        if (loss) loss[i] = 0.0;
        for (int64_t k = 0; k < n && total > 0.0; k++) {
            if (score[k] == -INFINITY) continue;
            double p = (double)target[k], soft = exp(score[k] - top) / sum;
            if (loss && p > 0.0) loss[i] += p * (log(p) - (score[k] - top - log(sum)));
            int64_t s = a->pool ? a->pool[i * n + k] : k;
            double d = (soft * total - p) * factor;
            const float *key = key0 + s * a->key.step_s;
            for (int64_t j = 0; j < a->heads; j++) {
                const float *qj = q + j * a->q_step_h;
                double z = dot(qj, key, a->width), dz = z > 0.0 ? d * (double)w[j] : 0.0;
                if (d_w) d_w[i * a->heads + j] += d * fmax(z, 0.0);
                for (int64_t c = 0; c < a->width; c++) {
                    if (d_q) d_q[(i * a->heads + j) * a->width + c] += dz * (double)key[c];
                    if (d_key) d_key[(b * a->rows + s) * a->width + c] += dz * (double)qj[c];
                }
            }
        }
    }
    kvl_free(score);
    return KVL_OK;
}
