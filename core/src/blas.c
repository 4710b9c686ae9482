/* blas.c - matrix products over OpenBLAS: cutting, guards, thin products. See blas.h. */
#include "kvlab/blas.h"

#include "kvlab/bench.h"
#include "kvlab/parallel.h"
#include "kvlab/vmath.h"

#include <cblas.h>
#include <string.h>

/* Tiles of the output. BLAS packs both operands again in every call, so tiles are as tall as the
 * threads allow (at 1024 with AVX-512: one call is 1, two tiles 0.96, four 0.92). They are cut
 * between units of rows, so that every row goes through the same code of BLAS however many tiles
 * there are: no bit of c depends on the number of threads (the unit suits the kernels for x86-64,
 * which take 4 or 12 rows at a time, and a tile is never so small that BLAS takes others).
 * Columns are cut alike for any number of threads.
 */
enum {
    UNIT_M = 12,
    UNIT_N = 16,
    TILE_M = 96,             /* at least */
    TILE_N = 2048,           /* at most */
    TILE_N_FEW = 256,        /* when m < 2 * TILE_M: only the columns are cut */
    THIN = 8,                /* below this many rows or columns: matrix-vector code */
    THIN_ELEMENTS = 1 << 16, /* elements of the large operand per tile: 256 KiB, half an L2 cache */
    DEEP_ELEMENTS = 1 << 17, /* elements of a c that is cut along k, at most: few tiles */
    DEEP_PARTS = 8,
    DEEP_K = 512,         /* k of a part at least; */
    DEEP_SMALL = 1 << 15, /* but when c has fewer elements, one tile: */
    DEEP_SMALL_K = 192,
    PANEL_N = 64, /* columns and k of a panel, rows multiplied with it at a time */
    PANEL_K = 128,
    PANEL_M = 96,
    PANELS = 1 << 18 /* elements of b at most, which stays in a second-level cache */
};
/* Multiply-adds of a tile: at most, to be stopped within 0.05 s with AVX2, 0.15 s with SSE; and at
 * least, because BLAS has other code for small products, below 10^6. */
static const int64_t TILE_MOST = (int64_t)1 << 31, TILE_LEAST = 1 << 20;

void kvl_blas_single_thread(void) {
    openblas_set_num_threads(1);
}

int kvl_blas_threads(void) {
    return openblas_get_parallel() ? openblas_get_num_threads() : 1; /* 0: built without threads */
}

const char *kvl_blas_core(void) {
    return openblas_get_corename();
}

const char *kvl_blas_better_core(void) {
#if defined(__x86_64__)
    if (strcmp(openblas_get_corename(), "Prescott") != 0) return NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
    return NULL;
}

static kvl_mat submatrix(kvl_mat a, int64_t row, int64_t col) {
    a.p += a.trans ? col * a.ld + row : row * a.ld + col;
    return a;
}

/* c [m, n] *= beta, where beta = 0 forgets what was there, NaN included. */
static void scale_rows(float *c, int64_t ldc, float beta, int64_t m, int64_t n) {
    for (int64_t i = 0; i < m; i++) {
        float *row = c + i * ldc;
        if (beta == 0.0f)
            memset(row, 0, (size_t)n * sizeof *row);
        else if (beta != 1.0f)
            for (int64_t j = 0; j < n; j++)
                row[j] *= beta;
    }
}

/* y [n] (stride incy) += alpha * A [n, k] x [k] (stride incx). */
static void gemv_add(float *y, int64_t incy, kvl_mat a, const float *x, int64_t incx, float alpha,
                     int64_t n, int64_t k) {
    int64_t rows = a.trans ? k : n, cols = a.trans ? n : k;
    cblas_sgemv(CblasRowMajor, a.trans ? CblasTrans : CblasNoTrans, (int)rows, (int)cols, alpha,
                a.p, (int)a.ld, x, (int)incx, 1.0f, y, (int)incy);
}

void kvl_gemm_tile(float *c, int64_t ldc, kvl_mat a, kvl_mat b, float alpha, float beta, int64_t m,
                   int64_t n, int64_t k) {
    if (m <= 0 || n <= 0) return;
    if (k <= 0 || alpha == 0.0f) {
        scale_rows(c, ldc, beta, m, n);
    } else if (m < THIN) {
        /* c[i,:] = B^T a[i,:]: the transpose of b [k, n] is [n, k]. */
        scale_rows(c, ldc, beta, m, n);
        kvl_mat bt = {b.p, b.ld, !b.trans, 0};
        for (int64_t i = 0; i < m; i++)
            gemv_add(c + i * ldc, 1, bt, submatrix(a, i, 0).p, a.trans ? a.ld : 1, alpha, n, k);
    } else if (n < THIN) {
        scale_rows(c, ldc, beta, m, n);
        for (int64_t j = 0; j < n; j++)
            gemv_add(c + j, ldc, a, submatrix(b, 0, j).p, b.trans ? 1 : b.ld, alpha, m, k);
    } else {
        cblas_sgemm(CblasRowMajor, a.trans ? CblasTrans : CblasNoTrans,
                    b.trans ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a.p,
                    (int)a.ld, b.p, (int)b.ld, beta, c, (int)ldc);
    }
}

/* --- panels ----------------------------------------------------------------------------------- */

/* For AVX-512, OpenBLAS has code for products below 10^6 multiply-adds that packs nothing and does
 * not clear c first. It is the fastest that there is when b is narrow and lies without gaps: a tall
 * product with a small b, as layers have it, gains a quarter from a copy of b in panels
 * (4096 x 352 x 128: 154 instead of 125 GFLOP/s) that small products take one after the other. */
static bool has_small_kernels(void) {
    static const char *const CORES[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    const char *core = openblas_get_corename();
    for (size_t i = 0; i < sizeof CORES / sizeof *CORES; i++)
        if (strcmp(core, CORES[i]) == 0) return true;
    return false;
}

/* Panels are [k, PANEL_N], one after the other; the last one is as wide as what is left. */
void kvl_make_panels(float *panels, kvl_mat b, int64_t n, int64_t k) {
    for (int64_t j = 0; j < n; j += PANEL_N, panels += k * PANEL_N) {
        int64_t width = n - j < PANEL_N ? n - j : PANEL_N;
        const float *from = submatrix(b, 0, j).p;
        if (b.trans) kvl_transpose(panels, width, from, b.ld, width, k);
        for (int64_t l = 0; l < k && !b.trans; l++)
            memcpy(panels + l * width, from + l * b.ld, (size_t)width * sizeof *panels);
    }
}

void kvl_gemm_panels(float *c, int64_t ldc, const float *a, int64_t lda, const float *panels,
                     float alpha, float beta, int64_t m, int64_t n, int64_t k) {
    if (k <= 0) scale_rows(c, ldc, beta, m, n);
    bool small = has_small_kernels(); /* else BLAS had better pack as few times as possible */
    int64_t most_m = small ? PANEL_M : m, most_k = small ? PANEL_K : k;
    for (int64_t i = 0; i < m; i += most_m)
        for (int64_t j = 0; j < n; j += PANEL_N)
            for (int64_t l = 0; l < k; l += most_k) {
                int64_t rows = m - i < most_m ? m - i : most_m;
                int64_t width = n - j < PANEL_N ? n - j : PANEL_N;
                int64_t depth = k - l < most_k ? k - l : most_k;
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)width,
                            (int)depth, alpha, a + i * lda + l, (int)lda,
                            panels + j * k + l * width, (int)width, l > 0 ? 1.0f : beta,
                            c + i * ldc + j, (int)ldc);
            }
}

/* --- products in tiles ------------------------------------------------------------------------ */

/* One product or a batch of them, cut into tiles_m x tiles_n tiles: those of the last row of tiles
 * have the rest of the rows, and the columns are the same number in all, give or take a unit. A
 * narrow rest would be a small product, for which BLAS has other code. */
typedef struct product {
    float *c;
    int64_t ldc, c_step;
    kvl_mat a, b;
    float *panels; /* of b, or NULL */
    float alpha, beta;
    int64_t m, n, k;
    int64_t tile_m, tiles_m, tiles_n;
} product;

/* Where tile number `tile` of the columns begins; n for the one after the last. */
static int64_t first_column(const product *p, int64_t tile) {
    int64_t first = kvl_tiles(p->n, UNIT_N) * tile / p->tiles_n * UNIT_N;
    return first < p->n ? first : p->n;
}

static kvl_status product_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const product *p = ctx;
    int64_t row = tile % p->tiles_m, i = row * p->tile_m;
    int64_t column = tile / p->tiles_m % p->tiles_n, j = first_column(p, column);
    int64_t batch = tile / p->tiles_m / p->tiles_n;
    int64_t m = row == p->tiles_m - 1 ? p->m - i : p->tile_m;
    int64_t n = first_column(p, column + 1) - j;
    kvl_mat a = p->a, b = p->b;
    a.p += batch * a.step;
    b.p += batch * b.step;
    float *c = p->c + batch * p->c_step + i * p->ldc + j;
    if (p->panels)
        kvl_gemm_panels(c, p->ldc, a.p + i * a.ld, a.ld, p->panels, p->alpha, p->beta, m, n, p->k);
    else
        kvl_gemm_tile(c, p->ldc, submatrix(a, i, 0), submatrix(b, 0, j), p->alpha, p->beta, m, n,
                      p->k);
    return KVL_OK;
}

static kvl_status check_ld(const char *name, int64_t ld, int64_t rows, int64_t cols,
                           kvl_error *err) {
    int64_t count;
    if (rows == 0 || cols == 0) return KVL_OK; /* nothing is there to be addressed */
    if (ld < cols || ld < 1 || ld > INT32_MAX)
        return kvl_fail(err, KVL_EINVAL,
                        "gemm: leading dimension %lld of %s must be %lld (its row) .. %d",
                        (long long)ld, name, (long long)(cols > 1 ? cols : 1), INT32_MAX);
    if (!kvl_mul(&count, rows, ld) || !kvl_mul(&count, count, (int64_t)sizeof(float)))
        return kvl_fail(err, KVL_EINVAL, "gemm: %s of %lld rows of %lld overflows", name,
                        (long long)rows, (long long)ld);
    return KVL_OK;
}

/* Columns of a tile at most. Deep products (k is a vocabulary) have narrower tiles: at full width
 * even the lowest ones would take a second. */
static int64_t most_columns(int64_t m, int64_t k) {
    int64_t most = TILE_MOST / (TILE_M * (k + 1));
    if (m < 2 * TILE_M || most < TILE_N_FEW) return TILE_N_FEW;
    return most < TILE_N ? most : TILE_N;
}

/* Tiles of rows: as many as leave every thread one, and none of them too much or too little. */
static void cut_rows(product *p, int64_t batch) {
    double row = (double)first_column(p, 1) * (double)p->k, all = row * (double)p->m;
    int64_t threads = kvl_loop_threads();
    int64_t tiles = batch * p->tiles_n >= 4 * threads ? 1 : threads;
    while (all / (double)tiles > (double)TILE_MOST)
        tiles *= 2;
    if (tiles > p->m / TILE_M) tiles = p->m / TILE_M;
    while (tiles > 1 && row * (double)(p->m / tiles - UNIT_M) < (double)TILE_LEAST)
        tiles--;
    p->tile_m = tiles > 1 ? p->m / UNIT_M / tiles * UNIT_M : p->m;
    p->tiles_m = tiles;
}

/* With panels, tiles cost nothing: several for each thread, so that all end together. */
static void cut_panels(product *p) {
    int64_t threads = kvl_loop_threads();
    int64_t units = kvl_tiles(p->m, PANEL_M), most = TILE_MOST / (PANEL_M * p->n * p->k);
    int64_t per_tile = threads > 1 ? kvl_tiles(units, 4 * threads) : units;
    p->tile_m = (per_tile < most ? per_tile : most) * PANEL_M;
    p->tiles_m = kvl_tiles(p->m, p->tile_m);
}

kvl_status kvl_gemm_batched(float *c, int64_t ldc, int64_t c_step, kvl_mat a, kvl_mat b,
                            float alpha, float beta, int64_t batch, int64_t m, int64_t n, int64_t k,
                            kvl_error *err) {
    if (batch < 0 || m < 0 || n < 0 || k < 0 || k > INT32_MAX)
        return kvl_fail(err, KVL_EINVAL, "gemm: sizes %lld x [%lld, %lld] x [%lld, %lld]",
                        (long long)batch, (long long)m, (long long)k, (long long)k, (long long)n);
    kvl_status status = check_ld("a", a.ld, a.trans ? k : m, a.trans ? m : k, err);
    if (!status) status = check_ld("b", b.ld, b.trans ? n : k, b.trans ? k : n, err);
    if (!status) status = check_ld("c", ldc, m, n, err);
    if (status) return status;
    if (m == 0 || n == 0) return KVL_OK;
    product p = {c, ldc, c_step, a, b, NULL, alpha, beta, m, n, k, m, 1, 1};
    /* A thin product reads its large operand once and is bound by memory: its tiles are cut by the
     * elements of that operand, so that the thin side finds them in the cache. */
    int64_t thin = k > 0 ? THIN_ELEMENTS / k : THIN_ELEMENTS;
    if (thin < 16) thin = 16;
    if (m < THIN) {
        p.tiles_n = kvl_tiles(n, thin);
    } else if (n < THIN) {
        p.tile_m = thin;
        p.tiles_m = kvl_tiles(m, thin);
    } else if (m >= 2 * TILE_M && k > 0 && n <= PANELS / k && !a.trans &&
               (batch == 1 || b.step == 0) && has_small_kernels()) {
        p.panels = kvl_alloc_raw((size_t)(n * k) * sizeof(float));
        if (!p.panels)
            return kvl_fail(err, KVL_ENOMEM, "gemm: no memory for a copy of [%lld, %lld]",
                            (long long)k, (long long)n);
        kvl_make_panels(p.panels, b, n, k);
        cut_panels(&p);
    } else {
        p.tiles_n = kvl_tiles(n, most_columns(m, k));
        if (m >= 2 * TILE_M) cut_rows(&p, batch);
    }
    int64_t tiles;
    if (kvl_mul(&tiles, p.tiles_m, p.tiles_n) && kvl_mul(&tiles, tiles, batch))
        status = kvl_parallel_for(tiles, 0, product_tile, &p, err);
    else
        status = kvl_fail(err, KVL_EINVAL, "gemm: batch of %lld overflows", (long long)batch);
    kvl_free(p.panels);
    return status;
}

/* A product cut along k: part number i is a [m, k_part] b [k_part, n], on one thread. */
typedef struct deep {
    float *parts; /* [parts, m, n] */
    kvl_mat a, b;
    float alpha;
    int64_t m, n, k, k_part, parts_n;
    float *c;
    int64_t ldc;
} deep;

static kvl_status deep_part(void *ctx, int64_t i, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const deep *p = ctx;
    int64_t at = i * p->k_part, k = p->k - at < p->k_part ? p->k - at : p->k_part;
    kvl_gemm_tile(p->parts + i * p->m * p->n, p->n, submatrix(p->a, 0, at), submatrix(p->b, at, 0),
                  p->alpha, 0.0f, p->m, p->n, k);
    return KVL_OK;
}

static kvl_status deep_row(void *ctx, int64_t i, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const deep *p = ctx;
    float *row = p->c + i * p->ldc;
    for (int64_t part = 0; part < p->parts_n; part++) {
        const float *from = p->parts + (part * p->m + i) * p->n;
        for (int64_t j = 0; j < p->n; j++)
            row[j] += from[j];
    }
    return KVL_OK;
}

kvl_status kvl_gemm_deep(float *c, int64_t ldc, kvl_mat a, kvl_mat b, float alpha, int64_t m,
                         int64_t n, int64_t k, kvl_error *err) {
    /* Few tiles of the output (kvl_gemm_batched) and a k that is worth cutting. */
    int64_t least = n > 0 && m < DEEP_SMALL / n ? DEEP_SMALL_K : DEEP_K;
    int64_t parts = k / least < DEEP_PARTS ? k / least : DEEP_PARTS;
    if (m < 1 || n < 1 || parts < 2 || m > DEEP_ELEMENTS / n)
        return kvl_gemm(c, ldc, a, b, alpha, 1.0f, m, n, k, err);
    if (k > INT32_MAX) return kvl_fail(err, KVL_EINVAL, "gemm: k = %lld", (long long)k);
    kvl_status status = check_ld("a", a.ld, a.trans ? k : m, a.trans ? m : k, err);
    if (!status) status = check_ld("b", b.ld, b.trans ? n : k, b.trans ? k : n, err);
    if (!status) status = check_ld("c", ldc, m, n, err);
    if (status) return status;
    deep p = {NULL, a, b, alpha, m, n, k, kvl_tiles(k, parts), 0, c, ldc};
    p.parts_n = kvl_tiles(k, p.k_part);
    p.parts = kvl_alloc_raw((size_t)(p.parts_n * m * n) * sizeof(float));
    if (!p.parts)
        return kvl_fail(err, KVL_ENOMEM, "gemm: no memory for %lld parts of [%lld, %lld]",
                        (long long)p.parts_n, (long long)m, (long long)n);
    status = kvl_parallel_for(p.parts_n, 0, deep_part, &p, err);
    if (!status) status = kvl_parallel_for(m, 0, deep_row, &p, err);
    kvl_free(p.parts);
    return status;
}

kvl_status kvl_gemm(float *c, int64_t ldc, kvl_mat a, kvl_mat b, float alpha, float beta, int64_t m,
                    int64_t n, int64_t k, kvl_error *err) {
    return kvl_gemm_batched(c, ldc, 0, a, b, alpha, beta, 1, m, n, k, err);
}

kvl_status kvl_bench_sgemm(float *c, const float *a, const float *b, int64_t n, kvl_error *err) {
    if (n < 1 || n > INT32_MAX)
        return kvl_fail(err, KVL_EINVAL, "sgemm: matrices of %lld rows", (long long)n);
    if (openblas_get_num_threads() != 1)
        return kvl_fail(err, KVL_EINVAL, "sgemm: BLAS has %d threads, expected 1",
                        openblas_get_num_threads());
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n, (int)n, (int)n, 1.0f, a, (int)n,
                b, (int)n, 0.0f, c, (int)n);
    return KVL_OK;
}

void kvl_gemm_ref(double *c, int64_t ldc, kvl_mat a, kvl_mat b, double alpha, double beta,
                  int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t l = 0; l < k; l++)
                sum += (double)*submatrix(a, i, l).p * (double)*submatrix(b, l, j).p;
            double *out = &c[i * ldc + j];
            *out = alpha * sum + (beta == 0.0 ? 0.0 : beta * *out);
        }
}
