/* test_blas.c - loops over tiles, matrix products and vector functions against
 * libm and plain sums. */
#include "check.h"
#include "rand.h"

#include "kvlab/blas.h"
#include "kvlab/parallel.h"
#include "kvlab/vmath.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- loops ------------------------------------------------------------------------------------ */

typedef struct tally {
    int seen[1000];  /* times each tile ran */
    int64_t fail_at; /* and every 300 tiles after it */
    int inner;
} tally;

static kvl_status inner_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)tile, (void)scratch, (void)err;
    ++*(int *)ctx; /* a data race, unless the nested loop is serial */
    return KVL_OK;
}

static kvl_status count_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    tally *t = ctx;
    int inner = 0;
    memset(scratch, (int)(tile & 127), 100);
    if (t->inner) kvl_parallel_for(50, 0, inner_tile, &inner, err);
    t->seen[tile] += 1 + (inner != (t->inner ? 50 : 0));
    for (int i = 0; i < 100; i++)
        if (((char *)scratch)[i] != (char)(tile & 127)) t->seen[tile] += 100;
    if (t->fail_at >= 0 && tile % 300 == t->fail_at)
        return kvl_fail(err, KVL_EFULL, "tile %d", (int)tile);
    return KVL_OK;
}

static void test_loops(void) {
    for (int threads = 1; threads <= 3; threads++) {
        kvl_set_threads(threads, NULL);
        tally t = {.fail_at = -1, .inner = threads > 1};
        CHECK(kvl_parallel_for(1000, 100, count_tile, &t, NULL) == KVL_OK, "loop failed");
        int wrong = 0;
        for (int i = 0; i < 1000; i++)
            wrong += t.seen[i] != 1;
        CHECK(wrong == 0, "%d tiles did not run exactly once on %d threads", wrong, threads);

        tally f = {.fail_at = 7};
        kvl_error err;
        CHECK(kvl_parallel_for(1000, 100, count_tile, &f, &err) == KVL_EFULL, "status lost");
        CHECK(strcmp(err.msg, "tile 7") == 0, "not the failure of the lowest tile: '%s'", err.msg);
        CHECK(f.seen[999] == 0, "a failure did not stop the loop");

        kvl_cancel();
        tally c = {.fail_at = -1};
        CHECK(kvl_parallel_for(1000, 100, count_tile, &c, &err) == KVL_ECANCEL, "not cancelled");
        kvl_cancel_clear();
        kvl_alloc_fail_after(0);
        CHECK(kvl_parallel_for(10, 100, count_tile, &c, &err) == KVL_ENOMEM, "no memory, no error");
        kvl_alloc_fail_after(-1);
    }
    CHECK(kvl_set_threads(-1, NULL) == KVL_EINVAL, "-1 threads accepted");
    kvl_set_threads(0, NULL);
    CHECK(kvl_threads() >= 1, "%d threads", kvl_threads());
}

/* --- matrix products -------------------------------------------------------------------------- */

/* Largest |kvl_gemm - kvl_gemm_ref| / sqrt(k + 1) on normal inputs; c is compared bit by bit
 * between one thread and more. */
static double gemm_error(int64_t batch, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                         float beta, int pad) {
    int64_t lda = (ta ? m : k) + pad, ldb = (tb ? k : n) + pad, ldc = n + pad;
    int64_t na = (ta ? k : m) * lda + pad, nb = (tb ? n : k) * ldb + pad, nc = m * ldc;
    float *a = rand_floats(batch * na), *b = rand_floats(batch * nb), *c = rand_floats(batch * nc);
    float *c2 = malloc((size_t)(batch * nc) * sizeof *c2);
    double *ref = malloc((size_t)nc * sizeof *ref);
    double worst = 0.0;
    float *before = malloc((size_t)(batch * nc) * sizeof *before);
    memcpy(before, c, (size_t)(batch * nc) * sizeof *before);
    if (beta == 0.0f)
        for (int64_t i = 0; i < batch * nc; i++)
            if (i % nc % ldc < n) c[i] = NAN; /* must not be read */
    kvl_mat ma = {a, lda, ta, na}, mb = {b, ldb, tb, nb};
    kvl_set_threads(1, NULL);
    CHECK(!kvl_gemm_batched(c, ldc, nc, ma, mb, 0.5f, beta, batch, m, n, k, NULL), "failed");
    for (int threads = 2; threads <= 5; threads += 3) {
        kvl_set_threads(threads, NULL);
        memcpy(c2, before, (size_t)(batch * nc) * sizeof *c2);
        CHECK(!kvl_gemm_batched(c2, ldc, nc, ma, mb, 0.5f, beta, batch, m, n, k, NULL), "failed");
        CHECK(memcmp(c, c2, (size_t)(batch * nc) * sizeof *c) == 0,
              "%ldx%ldx%ld: 1 and %d threads differ", (long)m, (long)n, (long)k, threads);
    }
    for (int64_t i = 0; i < batch; i++) {
        for (int64_t j = 0; j < nc; j++)
            ref[j] = before[i * nc + j];
        kvl_mat ra = {a + i * na, lda, ta, 0}, rb = {b + i * nb, ldb, tb, 0};
        kvl_gemm_ref(ref, ldc, ra, rb, 0.5, beta, m, n, k);
        for (int64_t j = 0; j < nc; j++) { /* the padding between rows must be untouched as well */
            double e = fabs(ref[j] - c[i * nc + j]) / sqrt((double)k + 1);
            if (!(e <= worst)) worst = e;
        }
    }
    free(a), free(b), free(c), free(c2), free(ref), free(before);
    return worst;
}

static void test_gemm(void) {
    static const int shapes[][4] = {
        /* batch, m, n, k */
        {1, 1, 1, 1},       {1, 1, 300, 64},   {1, 7, 1000, 129},  {1, 300, 1, 64},
        {1, 515, 3, 33},    {1, 8, 8, 8},      {1, 37, 41, 43},    {1, 257, 513, 65},
        {3, 2, 70, 31},     {2, 270, 520, 17}, {1, 5, 5, 0},       {1, 16, 70000, 2},
        {4, 64, 64, 64},    {1, 530, 2100, 9}, {1, 2200, 40, 12},  {1, 3, 9000, 200},
        {1, 9000, 2, 200},  {1, 300, 16, 16},  {1, 403, 119, 334}, {1, 867, 201, 261},
        {1, 700, 2200, 70},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int trans = 0; trans < 4; trans++)
            for (int beta = 0; beta < 2; beta++) {
                const int *s = shapes[i];
                double e = gemm_error(s[0], s[1], s[2], s[3], trans & 1, trans & 2,
                                      beta ? -0.75f : 0.0f, trans == 3 ? 5 : 0);
                CHECK(e < 2.5e-6, "%dx%dx%dx%d trans %d beta %d: error %g", s[0], s[1], s[2], s[3],
                      trans, beta, e);
            }
    float x[4] = {1, 2, 3, 4};
    kvl_mat ok = {x, 2, false, 0};
    kvl_error err;
    kvl_mat narrow = {x, 1, false, 0}, wide = {x, (int64_t)INT32_MAX + 1, false, 0};
    CHECK(kvl_gemm(x, 2, narrow, ok, 1, 0, 2, 2, 2, &err) == KVL_EINVAL, "ld too small");
    CHECK(kvl_gemm(x, 2, ok, wide, 1, 0, 2, 2, 2, &err) == KVL_EINVAL, "ld too large");
    CHECK(kvl_gemm(x, 2, ok, ok, 1, 0, 2, 2, (int64_t)1 << 40, &err) == KVL_EINVAL, "k too large");
    CHECK(kvl_gemm(x, 2, ok, ok, 1, 0, -1, 2, 2, &err) == KVL_EINVAL, "negative size");
    CHECK(kvl_gemm(x, 2, ok, ok, 1, 0, 0, 2, 2, &err) == KVL_OK, "empty is fine");
}

/* Panels of b, whichever way it lies, give what kvl_gemm_ref gives. */
static void test_panels(void) {
    static const int shapes[][3] = {{1, 1, 1},   {96, 64, 128}, {97, 65, 129},
                                    {5, 200, 3}, {300, 7, 260}, {4, 5, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int trans = 0; trans < 2; trans++) {
            int64_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2], ldb = (trans ? k : n) + 3;
            float *a = rand_floats(m * (k + 1)), *b = rand_floats((trans ? n : k) * ldb);
            float *c = rand_floats(m * n), *panels = malloc((size_t)(n * k) * sizeof *panels);
            double *ref = malloc((size_t)(m * n) * sizeof *ref), worst = 0.0;
            for (int64_t j = 0; j < m * n; j++)
                ref[j] = c[j];
            kvl_mat ma = {a, k + 1, false, 0}, mb = {b, ldb, trans, 0};
            kvl_make_panels(panels, mb, n, k);
            kvl_gemm_panels(c, n, a, k + 1, panels, 2.0f, -0.5f, m, n, k);
            kvl_gemm_ref(ref, n, ma, mb, 2.0, -0.5, m, n, k);
            for (int64_t j = 0; j < m * n; j++)
                worst = fmax(worst, fabs(ref[j] - c[j]) / sqrt((double)k + 1));
            CHECK(worst < 5e-6, "panels %ldx%ldx%ld trans %d: error %g", (long)m, (long)n, (long)k,
                  trans, worst);
            free(a), free(b), free(c), free(panels), free(ref);
        }
}

static void test_transpose(void) {
    for (int rows = 0; rows < 10; rows++)
        for (int cols = 0; cols < 10; cols++) {
            float *x = rand_floats(10 * 12), y[12 * 10] = {0};
            kvl_transpose(y, 11, x, 12, rows, cols);
            int wrong = 0;
            for (int i = 0; i < 10; i++)
                for (int j = 0; j < 10; j++)
                    wrong += y[j * 11 + i] != (i < rows && j < cols ? x[i * 12 + j] : 0.0f);
            CHECK(wrong == 0, "%d elements of %d x %d turned wrong", wrong, rows, cols);
            free(x);
        }
}

/* --- vector functions ------------------------------------------------------------------------- */

static void test_vmath(void) {
    enum { N = 1000003 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    for (int i = 0; i < N; i++)
        x[i] = -87.3f + 176.0f * (float)i / N;
    kvl_exp(y, x, N);
    double worst = 0, worst_sig = 0, worst_silu = 0;
    for (int i = 0; i < N; i++)
        worst = fmax(worst, fabs(y[i] / exp((double)x[i]) - 1));
    CHECK(worst < 2e-7, "exp: relative error %g", worst);
    kvl_sigmoid(y, x, N);
    for (int i = 0; i < N; i++)
        worst_sig = fmax(worst_sig, fabs(y[i] * (1 + exp(-(double)x[i])) - 1));
    CHECK(worst_sig < 1e-6, "sigmoid: relative error %g", worst_sig);
    kvl_silu(y, x, N);
    for (int i = 0; i < N; i++)
        if (x[i] != 0)
            worst_silu = fmax(worst_silu, fabs(y[i] / x[i] * (1 + exp(-(double)x[i])) - 1));
    CHECK(worst_silu < 1e-6, "silu: relative error %g", worst_silu);

    float odd[6] = {-INFINITY, INFINITY, NAN, -200.0f, 200.0f, 0.0f};
    kvl_exp(odd, odd, 6);
    CHECK(odd[0] == 0 && odd[1] == INFINITY && isnan(odd[2]) && odd[3] == 0 && odd[4] == INFINITY &&
              odd[5] == 1,
          "exp of special values: %g %g %g %g %g %g", odd[0], odd[1], odd[2], odd[3], odd[4],
          odd[5]);

    for (int n = 0; n < 70; n++) {
        float *a = rand_floats(n + 1), *b = rand_floats(n + 1);
        double sum = 0, dot = 0, esum = 0, max = -INFINITY;
        for (int i = 0; i < n; i++) {
            sum += a[i], dot += (double)a[i] * b[i], esum += exp(a[i] * 0.5 - 3);
            max = fmax(max, a[i]);
        }
        CHECK(fabs(kvl_sum(a, n) - sum) < 1e-5, "sum of %d", n);
        CHECK(fabs(kvl_dot(a, b, n) - dot) < 1e-5, "dot of %d", n);
        CHECK(kvl_max(a, n) == (float)max, "max of %d", n);
        CHECK(fabs(kvl_exp_sum(y, a, 0.5f, 3.0f, n) - esum) < 1e-4, "exp_sum of %d", n);
        memcpy(y, b, (size_t)n * sizeof *y);
        kvl_axpy(y, 2.0f, a, n);
        kvl_scale_by(y, 0.5f, n);
        double e = 0;
        for (int i = 0; i < n; i++)
            e = fmax(e, fabs(y[i] - (b[i] / 2.0 + a[i])));
        CHECK(e < 1e-6, "axpy and scale of %d: %g", n, e);
        free(a), free(b);
    }
    free(x), free(y);
}

int main(void) {
    kvl_blas_single_thread();
    CHECK(kvl_blas_threads() == 1, "BLAS still has %d threads", kvl_blas_threads());
    test_loops();
    test_gemm();
    test_panels();
    test_transpose();
    test_vmath();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leak", kvl_live_bytes());
    return check_done();
}
