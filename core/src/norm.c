/* norm.c - normalisations and the Hadamard rotation, a tile of rows per thread. See norm.h. */
#include "kvlab/norm.h"

#include "kvlab/parallel.h"
#include "kvlab/vmath.h"
#include "norm_sums.h"

#include <math.h>
#include <string.h>

enum { TILE_FLOATS = 16 * 1024, LANES = KVL_SUM_LANES };

typedef struct job {
    float *out;
    const float *x, *weight, *bias;
    int64_t out_step, x_step, rows, n, per_tile;
    float eps;
    void (*row)(const struct job *j, float *out, const float *x);
} job;

static kvl_status run_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const job *j = ctx;
    int64_t from = tile * j->per_tile;
    int64_t to = j->rows - from < j->per_tile ? j->rows : from + j->per_tile;
    for (int64_t i = from; i < to; i++)
        j->row(j, j->out + i * j->out_step, j->x + i * j->x_step);
    return KVL_OK;
}

static kvl_status run(job *j, const char *what, kvl_error *err) {
    if (j->rows < 0 || j->n < 1)
        return kvl_fail(err, KVL_EINVAL, "%s: %lld rows of %lld channels", what, (long long)j->rows,
                        (long long)j->n);
    j->per_tile = TILE_FLOATS / j->n + 1;
    return kvl_parallel_for(kvl_tiles(j->rows, j->per_tile), 0, run_tile, j, err);
}

KVL_CLONES
double kvl_row_squares(const float *x, double mean, int64_t n) {
    double lane[LANES] = {0.0}, sum = 0.0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            double d = (double)x[i + l] - mean;
            lane[l] += d * d;
        }
    for (; i < n; i++)
        sum += ((double)x[i] - mean) * ((double)x[i] - mean);
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

KVL_CLONES
double kvl_row_sum(const float *x, int64_t n) {
    double lane[LANES] = {0.0}, sum = 0.0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += (double)x[i + l];
    for (; i < n; i++)
        sum += (double)x[i];
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

/* out = (x - mean) * factor * weight + bias */
KVL_CLONES
static void apply(float *out, const float *x, float mean, float factor, const float *weight,
                  const float *bias, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = (x[i] - mean) * factor * (weight ? weight[i] : 1.0f) + (bias ? bias[i] : 0.0f);
}

static void rms_row(const job *j, float *out, const float *x) {
    double mean = kvl_row_squares(x, 0.0, j->n) / (double)j->n;
    apply(out, x, 0.0f, (float)(1.0 / sqrt(mean + (double)j->eps)), j->weight, NULL, j->n);
}

static void layer_row(const job *j, float *out, const float *x) {
    double mean = kvl_row_sum(x, j->n) / (double)j->n;
    double var = kvl_row_squares(x, mean, j->n) / (double)j->n;
    apply(out, x, (float)mean, (float)(1.0 / sqrt(var + (double)j->eps)), j->weight, j->bias, j->n);
}

KVL_CLONES
static void butterfly(float *a, float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float sum = a[i] + b[i], difference = a[i] - b[i];
        a[i] = sum;
        b[i] = difference;
    }
}

static void hadamard_row(const job *j, float *out, const float *x) {
    if (out != x) memcpy(out, x, (size_t)j->n * sizeof *out);
    for (int64_t half = 1; half < j->n; half *= 2)
        for (int64_t i = 0; i < j->n; i += 2 * half)
            butterfly(out + i, out + i + half, half);
    kvl_scale_by(out, (float)(1.0 / sqrt((double)j->n)), j->n);
}

kvl_status kvl_rms_norm(float *out, int64_t out_step, const float *x, int64_t x_step,
                        const float *weight, float eps, int64_t rows, int64_t n, kvl_error *err) {
    job j = {.out = out, .x = x, .weight = weight, .out_step = out_step, .x_step = x_step};
    j.rows = rows, j.n = n, j.eps = eps, j.row = rms_row;
    return run(&j, "rms_norm", err);
}

kvl_status kvl_layer_norm(float *out, int64_t out_step, const float *x, int64_t x_step,
                          const float *weight, const float *bias, float eps, int64_t rows,
                          int64_t n, kvl_error *err) {
    job j = {
        .out = out, .x = x, .weight = weight, .bias = bias, .out_step = out_step, .x_step = x_step};
    j.rows = rows, j.n = n, j.eps = eps, j.row = layer_row;
    return run(&j, "layer_norm", err);
}

kvl_status kvl_hadamard(float *out, int64_t out_step, const float *x, int64_t x_step, int64_t rows,
                        int64_t n, kvl_error *err) {
    if (n < 1 || (n & (n - 1)) != 0)
        return kvl_fail(err, KVL_EINVAL, "hadamard: %lld channels, must be a power of two",
                        (long long)n);
    job j = {.out = out, .x = x, .out_step = out_step, .x_step = x_step};
    j.rows = rows, j.n = n, j.row = hadamard_row;
    return run(&j, "hadamard", err);
}

void kvl_rms_norm_ref(double *out, const double *x, const double *weight, double eps, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] / sqrt(sum / (double)n + eps) * (weight ? weight[i] : 1.0);
}

void kvl_layer_norm_ref(double *out, const double *x, const double *weight, const double *bias,
                        double eps, int64_t n) {
    double mean = 0.0, var = 0.0;
    for (int64_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        out[i] = (x[i] - mean) / sqrt(var + eps) * (weight ? weight[i] : 1.0) +
                 (bias ? bias[i] : 0.0);
}

/* Entry (i, j) of the matrix is (-1)^(bits that i and j share) / sqrt(n). */
void kvl_hadamard_ref(double *out, const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < n; j++)
            sum += __builtin_popcountll((unsigned long long)(i & j)) % 2 ? -x[j] : x[j];
        out[i] = sum / sqrt((double)n);
    }
}
