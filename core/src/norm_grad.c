/* norm_grad.c - gradients of the norms, a tile of rows per thread. See kvlab/norm_grad.h. */
#include "kvlab/norm_grad.h"

#include "kvlab/vmath.h"
#include "norm_sums.h"
#include "parts.h"

#include <math.h>
#include <stdlib.h>

enum { TILE_FLOATS = 16 * 1024, LANES = KVL_SUM_LANES };

typedef struct job {
    const kvl_norm_grad_args *a;
    bool centred; /* layer_norm */
    double *part; /* [tiles, 2, n]: d_weight and d_bias, or NULL */
    int64_t per_tile;
} job;

/* Sum of d * w (w NULL: 1). */
KVL_CLONES
static double sum_of_grads(const float *d, const float *w, int64_t n) {
    if (!w) return kvl_row_sum(d, n);
    double lane[LANES] = {0.0}, sum = 0.0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += (double)(d[i + l] * w[i + l]);
    for (; i < n; i++)
        sum += (double)(d[i] * w[i]);
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

/* Sum of d * w * (x - mean). */
KVL_CLONES
static double sum_of_products(const float *d, const float *w, const float *x, double mean,
                              int64_t n) {
    double lane[LANES] = {0.0}, sum = 0.0;
    int64_t i = 0;
    for (; w && i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += (double)(d[i + l] * w[i + l]) * ((double)x[i + l] - mean);
    for (; !w && i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += (double)d[i + l] * ((double)x[i + l] - mean);
    for (; i < n; i++)
        sum += (double)(d[i] * (w ? w[i] : 1.0f)) * ((double)x[i] - mean);
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

/* d_x += r * (d * w - shift) - (x - mean) * slope */
KVL_CLONES
static void input_grad(float *d_x, const float *d, const float *w, const float *x, float mean,
                       float r, float shift, float slope, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        d_x[i] += r * (d[i] * (w ? w[i] : 1.0f) - shift) - (x[i] - mean) * slope;
}

/* part [2, n] += d * (x - mean) * r, d */
KVL_CLONES
static void weight_grad(double *part, const float *d, const float *x, float mean, float r,
                        int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        part[i] += (double)(d[i] * ((x[i] - mean) * r));
        part[n + i] += (double)d[i];
    }
}

static void row_grad(const job *j, int64_t row, double *part) {
    const kvl_norm_grad_args *a = j->a;
    const float *x = a->x + row * a->x_step, *d = a->d_out + row * a->d_out_step;
    double count = (double)a->n, mean = j->centred ? kvl_row_sum(x, a->n) / count : 0.0;
    double r = 1.0 / sqrt(kvl_row_squares(x, mean, a->n) / count + (double)a->eps);
    if (part) weight_grad(part, d, x, (float)mean, (float)r, a->n);
    if (!a->d_x) return;
    double shift = j->centred ? sum_of_grads(d, a->weight, a->n) / count : 0.0;
    double slope = r * r * r * sum_of_products(d, a->weight, x, mean, a->n) / count;
    input_grad(a->d_x + row * a->d_x_step, d, a->weight, x, (float)mean, (float)r, (float)shift,
               (float)slope, a->n);
}

static kvl_status run_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const job *j = ctx;
    int64_t from = tile * j->per_tile, left = j->a->rows - from;
    for (int64_t i = 0; i < (left < j->per_tile ? left : j->per_tile); i++)
        row_grad(j, from + i, j->part ? j->part + tile * 2 * j->a->n : NULL);
    return KVL_OK;
}

static kvl_status run(const kvl_norm_grad_args *a, bool centred, const char *what, kvl_error *err) {
    int64_t size;
    if (a->rows < 0 || a->n < 1 || !kvl_mul(&size, a->rows, 4 * a->n) ||
        !kvl_mul(&size, a->n, KVL_PARTS * 32))
        return kvl_fail(err, KVL_EINVAL, "%s: %lld rows of %lld channels", what, (long long)a->rows,
                        (long long)a->n);
    if (a->d_x && a->rows > 1 && llabs(a->d_x_step) < a->n)
        return kvl_fail(err, KVL_EINVAL, "%s: rows of d_x are %lld apart, with %lld channels", what,
                        (long long)a->d_x_step, (long long)a->n);
    job j = {.a = a, .centred = centred, .per_tile = TILE_FLOATS / a->n + 1};
    bool sums = a->rows > 0 && (a->d_weight || a->d_bias);
    if (sums) j.per_tile = kvl_part_rows(a->rows, j.per_tile);
    int64_t tiles = kvl_tiles(a->rows, j.per_tile);
    if (sums) {
        j.part = kvl_alloc((size_t)(tiles * 2 * a->n) * sizeof(double));
        if (!j.part)
            return kvl_fail(err, KVL_ENOMEM, "%s: no memory for %lld parts of %lld weights", what,
                            (long long)tiles, (long long)a->n);
    }
    kvl_status status = kvl_parallel_for(tiles, 0, run_tile, &j, err);
    if (!status && sums) {
        kvl_add_parts(a->d_weight, j.part, tiles, 2 * a->n, 0, a->n);
        kvl_add_parts(a->d_bias, j.part, tiles, 2 * a->n, a->n, a->n);
    }
    kvl_free(j.part);
    return status;
}

kvl_status kvl_rms_norm_grad(const kvl_norm_grad_args *args, kvl_error *err) {
    if (args->d_bias) return kvl_fail(err, KVL_EINVAL, "rms_norm_grad: there is no bias");
    return run(args, false, "rms_norm_grad", err);
}

kvl_status kvl_layer_norm_grad(const kvl_norm_grad_args *args, kvl_error *err) {
    return run(args, true, "layer_norm_grad", err);
}
