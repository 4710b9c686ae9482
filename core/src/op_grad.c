/* op_grad.c - gradients of activations and of the embedding. See kvlab/op_grad.h. */
#include "kvlab/op_grad.h"

#include "kvlab/parallel.h"
#include "vexp.h"

#include <stdlib.h>

enum { TILE = 16 * 1024, EMBED_COLUMNS = 32 };

/* --- activations ------------------------------------------------------------------------------ */

KVL_CLONES
static void relu_grad(float *restrict d, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        d[i] = x[i] > 0.0f ? d[i] : 0.0f;
}

KVL_CLONES
static void sigmoid_grad(float *restrict d, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float s = 1.0f / (1.0f + kvl_exp_any(-x[i]));
        d[i] = d[i] * s * (1.0f - s);
    }
}

/* (x s)' = s (1 + x (1 - s)) with s = sigmoid(x). Far out, 0 * inf is not the limit: x is cut. */
KVL_INLINE float silu_slope(float x, float s) {
    float y = x < -100.0f ? -100.0f : x > 100.0f ? 100.0f : x;
    return s * (1.0f + y * (1.0f - s));
}

KVL_CLONES
static void silu_grad(float *restrict d, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        d[i] *= silu_slope(x[i], 1.0f / (1.0f + kvl_exp_any(-x[i])));
}

/* (x Phi(x))' = Phi(x) + x phi(x) */
KVL_CLONES
static void gelu_grad(float *restrict d, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float density, p = kvl_normal(&density, x[i]);
        d[i] *= p + x[i] * density * 0.398942280f;
    }
}

typedef void grad_fn(float *d, const float *x, int64_t n);

typedef struct unary_job {
    grad_fn *fn;
    float *d;
    const float *x;
    int64_t n;
} unary_job;

static kvl_status unary_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const unary_job *j = ctx;
    int64_t at = tile * TILE, n = j->n - at < TILE ? j->n - at : TILE;
    j->fn(j->d + at, j->x + at, n);
    return KVL_OK;
}

kvl_status kvl_unary_grad(float *d, kvl_unary_op op, const float *x, int64_t n, kvl_error *err) {
    grad_fn *fn = op == KVL_RELU      ? relu_grad
                  : op == KVL_SIGMOID ? sigmoid_grad
                  : op == KVL_SILU    ? silu_grad
                  : op == KVL_GELU    ? gelu_grad
                                      : NULL;
    if (!fn)
        return kvl_fail(err, KVL_EINVAL,
                        "unary_grad: relu, sigmoid, silu and gelu have a gradient "
                        "here, %s has not",
                        op >= 0 && op < KVL_UNARY_OPS ? kvl_unary_name(op) : "an unknown function");
    if (n < 0) return kvl_fail(err, KVL_EINVAL, "unary_grad: %lld elements", (long long)n);
    unary_job j = {fn, d, x, n};
    return kvl_parallel_for(kvl_tiles(n, TILE), 0, unary_tile, &j, err);
}

double kvl_unary_grad_ref(kvl_unary_op op, double x) {
    double s = 1.0 / (1.0 + exp(-x));
    switch (op) {
    case KVL_RELU: return x > 0.0 ? 1.0 : 0.0;
    case KVL_SIGMOID: return s * (1.0 - s);
    case KVL_SILU: return s * (1.0 + x * (1.0 - s));
    case KVL_GELU:
        return 0.5 * erfc(-x * 0.70710678118654752440) +
               x * exp(-0.5 * x * x) * 0.39894228040143267794;
    default: return (double)NAN;
    }
}

/* --- SwiGLU ----------------------------------------------------------------------------------- */

KVL_CLONES
static void swiglu_row(float *out, const float *gate, const float *up, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = gate[i] / (1.0f + kvl_exp_any(-gate[i])) * up[i];
}

KVL_CLONES
static void swiglu_grad(float *restrict d, float *restrict d_up, const float *restrict gate,
                        const float *restrict up, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float g = d[i], s = 1.0f / (1.0f + kvl_exp_any(-gate[i]));
        d[i] = g * up[i] * silu_slope(gate[i], s);
        d_up[i] = g * (gate[i] * s);
    }
}

typedef struct swiglu_job {
    const kvl_swiglu_args *a;
    bool grad;
    int64_t per_tile;
} swiglu_job;

static kvl_status swiglu_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const swiglu_job *j = ctx;
    const kvl_swiglu_args *a = j->a;
    int64_t from = tile * j->per_tile, left = a->rows - from;
    for (int64_t i = from; i < from + (left < j->per_tile ? left : j->per_tile); i++) {
        const float *gate = a->gate + i * a->gate_step, *up = a->up + i * a->up_step;
        if (j->grad)
            swiglu_grad(a->d + i * a->d_step, a->d_up + i * a->d_up_step, gate, up, a->n);
        else
            swiglu_row(a->out + i * a->out_step, gate, up, a->n);
    }
    return KVL_OK;
}

static kvl_status swiglu(const kvl_swiglu_args *a, bool grad, kvl_error *err) {
    if (a->rows < 0 || a->n < 1)
        return kvl_fail(err, KVL_EINVAL, "swiglu: %lld rows of %lld", (long long)a->rows,
                        (long long)a->n);
    swiglu_job j = {a, grad, TILE / a->n + 1};
    return kvl_parallel_for(kvl_tiles(a->rows, j.per_tile), 0, swiglu_tile, &j, err);
}

kvl_status kvl_swiglu(const kvl_swiglu_args *args, kvl_error *err) {
    return swiglu(args, false, err);
}

kvl_status kvl_swiglu_grad(const kvl_swiglu_args *args, kvl_error *err) {
    return swiglu(args, true, err);
}

/* --- embedding -------------------------------------------------------------------------------- */

/* Some columns of all rows: two threads never add to one place, and each adds in order. */
typedef struct embed_job {
    float *d_weight;
    const int32_t *ids;
    const float *d_out;
    int64_t d_weight_step, d_out_step, n, width;
} embed_job;

static kvl_status embed_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)scratch;
    const embed_job *j = ctx;
    int64_t at = tile * EMBED_COLUMNS;
    int64_t width = j->width - at < EMBED_COLUMNS ? j->width - at : EMBED_COLUMNS;
    for (int64_t i = 0; i < j->n; i++) {
        if (i % 65536 == 0 && kvl_cancelled()) return kvl_fail(err, KVL_ECANCEL, "cancelled");
        kvl_axpy(j->d_weight + j->ids[i] * j->d_weight_step + at, 1.0f,
                 j->d_out + i * j->d_out_step + at, width);
    }
    return KVL_OK;
}

kvl_status kvl_embedding_grad(float *d_weight, int64_t d_weight_step, const int32_t *ids,
                              const float *d_out, int64_t d_out_step, int64_t n, int64_t vocabulary,
                              int64_t width, kvl_error *err) {
    if (n < 0 || width < 1 || vocabulary < 0 || d_weight_step < width)
        return kvl_fail(
            err, KVL_EINVAL, "embedding_grad: %lld ids, a table [%lld, %lld] with rows %lld apart",
            (long long)n, (long long)vocabulary, (long long)width, (long long)d_weight_step);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocabulary)
            return kvl_fail(err, KVL_EINVAL, "embedding_grad: id %d of %lld must be 0 .. %lld",
                            (int)ids[i], (long long)i, (long long)vocabulary - 1);
    embed_job j = {d_weight, ids, d_out, d_weight_step, d_out_step, n, width};
    return kvl_parallel_for(kvl_tiles(width, EMBED_COLUMNS), 0, embed_tile, &j, err);
}
