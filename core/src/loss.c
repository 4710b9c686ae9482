/* loss.c - cross-entropy a tile of rows per thread; the head by blocks of rows. See kvlab/loss.h.
 */
#include "kvlab/loss.h"

#include "kvlab/blas.h"
#include "kvlab/parallel.h"
#include "kvlab/vmath.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE_FLOATS = 16 * 1024,        /* logits of a tile */
    BLOCK_FLOATS = 2 * 1024 * 1024, /* logits of a block of the head */
    MIN_BLOCK = 64,
    MAX_BLOCK = 8192 /* rows of it */
};

typedef struct job {
    const kvl_cross_entropy_args *a;
    int64_t per_tile;
} job;

static kvl_status loss_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)err;
    const job *j = ctx;
    const kvl_cross_entropy_args *a = j->a;
    int64_t n = a->vocabulary, end = (tile + 1) * j->per_tile;
    for (int64_t i = tile * j->per_tile; i < (end < a->rows ? end : a->rows); i++) {
        const float *x = a->logits + i * a->logits_step;
        float *d = a->d_logits ? a->d_logits + i * a->d_logits_step : scratch;
        float factor = a->factor ? a->factor[i] * a->scale : a->scale;
        if (a->labels[i] == -1) {
            if (a->loss) a->loss[i] = 0.0f;
            if (a->d_logits) memset(d, 0, (size_t)n * sizeof *d);
            continue;
        }
        /* d may be x: what is needed of x is read first. */
        float top = kvl_max(x, n), hit = x[a->labels[i]];
        float sum = kvl_exp_sum(d, x, 1.0f, top, n);
        if (a->loss) a->loss[i] = logf(sum) - (hit - top);
        if (!a->d_logits) continue;
        kvl_scale_by(d, factor / sum, n);
        d[a->labels[i]] -= factor;
    }
    return KVL_OK;
}

static kvl_status check_labels(const char *what, const int32_t *labels, int64_t rows, int64_t n,
                               kvl_error *err) {
    int64_t size;
    if (rows < 0 || n < 1 || n > INT32_MAX || !kvl_mul(&size, rows, 4 * n))
        return kvl_fail(err, KVL_EINVAL, "%s: %lld rows over a vocabulary of %lld", what,
                        (long long)rows, (long long)n);
    for (int64_t i = 0; i < rows; i++)
        if (labels[i] < -1 || labels[i] >= n)
            return kvl_fail(err, KVL_EINVAL,
                            "%s: label %d of row %lld must be 0 .. %lld, or -1 to leave it out",
                            what, (int)labels[i], (long long)i, (long long)n - 1);
    return KVL_OK;
}

kvl_status kvl_cross_entropy(const kvl_cross_entropy_args *a, kvl_error *err) {
    kvl_status status = check_labels("cross_entropy", a->labels, a->rows, a->vocabulary, err);
    if (status) return status;
    if (a->d_logits && a->rows > 1 && llabs(a->d_logits_step) < a->vocabulary)
        return kvl_fail(err, KVL_EINVAL,
                        "cross_entropy: rows of d_logits are %lld apart, with %lld "
                        "columns",
                        (long long)a->d_logits_step, (long long)a->vocabulary);
    job j = {a, TILE_FLOATS / a->vocabulary + 1};
    size_t scratch = a->d_logits ? 0 : (size_t)a->vocabulary * sizeof(float);
    return kvl_parallel_for(kvl_tiles(a->rows, j.per_tile), scratch, loss_tile, &j, err);
}

double kvl_cross_entropy_ref(const float *logits, int32_t label, int64_t vocabulary) {
    double top = -INFINITY, sum = 0.0;
    if (label == -1) return 0.0;
    for (int64_t i = 0; i < vocabulary; i++)
        top = fmax(top, (double)logits[i]);
    for (int64_t i = 0; i < vocabulary; i++)
        sum += exp((double)logits[i] - top);
    return top + log(sum) - (double)logits[label];
}

/* --- the head --------------------------------------------------------------------------------- */

/* Some rows of the head, gathered. */
typedef struct block {
    float *x, *d_x, *logits; /* [n, width], [n, width], [n, vocabulary] */
    float *loss, *factor;    /* [n] */
    int32_t *labels;         /* [n] */
    int64_t *rows;           /* [n] where they come from */
    int64_t n;
} block;

static kvl_status run_block(const kvl_head_loss_args *a, block *k, kvl_error *err) {
    int64_t v = a->vocabulary, w = a->width;
    bool grad = a->d_x || a->d_weight;
    kvl_mat x = {k->x, w, false, 0}, weight = {a->weight, a->weight_step, true, 0};
    kvl_mat d = {k->logits, v, false, 0}, dt = {k->logits, v, true, 0};
    kvl_cross_entropy_args loss = {
        k->loss, grad ? k->logits : NULL, v, k->logits, v, k->labels, k->factor, 1.0f, k->n, v};
    kvl_status status = kvl_gemm(k->logits, v, x, weight, 1.0f, 0.0f, k->n, v, w, err);
    if (!status) status = kvl_cross_entropy(&loss, err);
    if (!status && a->d_x) {
        weight.trans = false;
        status = kvl_gemm(k->d_x, w, d, weight, 1.0f, 0.0f, k->n, w, v, err);
    }
    if (!status && a->d_weight)
        status = kvl_gemm_deep(a->d_weight, a->d_weight_step, dt, x, 1.0f, v, w, k->n, err);
    for (int64_t i = 0; i < k->n && !status; i++) {
        if (a->loss) a->loss[k->rows[i]] = k->loss[i];
        if (a->d_x) kvl_axpy(a->d_x + k->rows[i] * a->d_x_step, 1.0f, k->d_x + i * w, w);
    }
    return status;
}

static kvl_status run_head(const kvl_head_loss_args *a, block *k, int64_t most, kvl_error *err) {
    kvl_status status = KVL_OK;
    for (int64_t i = 0; i < a->rows && !status; i++) {
        float factor = a->factor ? a->factor[i] * a->scale : a->scale;
        if (a->loss) a->loss[i] = 0.0f;
        if (a->labels[i] != -1 && factor != 0.0f) {
            memcpy(k->x + k->n * a->width, a->x + i * a->x_step, (size_t)a->width * sizeof(float));
            k->labels[k->n] = a->labels[i];
            k->factor[k->n] = factor;
            k->rows[k->n++] = i;
        }
        if (k->n == most || (i + 1 == a->rows && k->n > 0)) {
            status = run_block(a, k, err);
            k->n = 0;
        }
    }
    return status;
}

kvl_status kvl_head_loss(const kvl_head_loss_args *a, kvl_error *err) {
    kvl_status status = check_labels("head_loss", a->labels, a->rows, a->vocabulary, err);
    int64_t size, v = a->vocabulary, w = a->width;
    if (status) return status;
    if (w < 1 || w > INT32_MAX || a->weight_step < w || !kvl_mul(&size, v, 4 * w) ||
        !kvl_mul(&size, a->rows, 4 * w) || (a->d_weight && a->d_weight_step < w) ||
        (a->d_x && a->rows > 1 && llabs(a->d_x_step) < w))
        return kvl_fail(err, KVL_EINVAL,
                        "head_loss: rows of %lld columns are %lld apart in the weight, %lld in its "
                        "gradient, %lld in d_x",
                        (long long)w, (long long)a->weight_step, (long long)a->d_weight_step,
                        (long long)a->d_x_step);
    int64_t used = 0, most = BLOCK_FLOATS / v;
    for (int64_t i = 0; i < a->rows; i++)
        used += a->labels[i] != -1;
    most = most < MIN_BLOCK ? MIN_BLOCK : most > MAX_BLOCK ? MAX_BLOCK : most;
    if (most > used) most = used > 0 ? used : 1;
    int64_t floats = most * (2 * w + v + 5);
    block k = {.rows = kvl_alloc((size_t)floats * sizeof(float))};
    if (!k.rows)
        return kvl_fail(err, KVL_ENOMEM, "head_loss: no memory for a block of %lld rows",
                        (long long)most);
    k.labels = (int32_t *)(k.rows + most);
    k.factor = (float *)(void *)(k.labels + most);
    k.loss = k.factor + most;
    k.x = k.loss + most;
    k.d_x = k.x + most * w;
    k.logits = k.d_x + most * w;
    status = run_head(a, &k, most, err);
    kvl_free(k.rows);
    return status;
}
