/* test_loss.c - cross-entropy and the fused head against their definitions, AdamW against its
 * definition in double, norms and the deep product against plain sums. */
#include "check.h"
#include "rand.h"
#include "slope.h"

#include "kvlab/blas.h"
#include "kvlab/loss.h"
#include "kvlab/optim.h"
#include "kvlab/parallel.h"

#include <string.h>

static float *zeros(int64_t n) {
    return calloc((size_t)(n + 1), sizeof(float));
}

typedef struct problem {
    float *logits, *factor; /* of cross-entropy */
    float *x, *w;           /* of the head; NULL: logits are given */
    int32_t *labels;
    float scale;
    int64_t rows, n, width;
} problem;

/* Sum of factor * scale * loss. */
static double objective(void *ctx) {
    problem *p = ctx;
    double sum = 0, *row = malloc((size_t)p->n * sizeof *row);
    for (int64_t i = 0; i < p->rows; i++) {
        double top = -INFINITY, total = 0;
        if (p->labels[i] == -1) continue;
        for (int64_t v = 0; v < p->n; v++) {
            row[v] = p->x ? 0 : p->logits[i * p->n + v];
            for (int64_t c = 0; p->x && c < p->width; c++)
                row[v] += (double)p->x[i * p->width + c] * (double)p->w[v * p->width + c];
            top = fmax(top, row[v]);
        }
        for (int64_t v = 0; v < p->n; v++)
            total += exp(row[v] - top);
        sum += (double)p->factor[i] * (double)p->scale * (top + log(total) - row[p->labels[i]]);
    }
    free(row);
    return sum;
}

static problem make(int64_t rows, int64_t n, int64_t width, float spread) {
    problem p = {.rows = rows, .n = n, .width = width, .scale = 0.25f};
    p.logits = rand_floats(rows * n), p.factor = rand_floats(rows);
    p.labels = malloc((size_t)(rows + 1) * sizeof *p.labels);
    for (int64_t i = 0; i < rows * n; i++)
        p.logits[i] *= spread;
    for (int64_t i = 0; i < rows; i++) {
        p.labels[i] = rand_unit() < 0.3 ? -1 : (int32_t)rand_int(n);
        if (i % 5 == 2) p.factor[i] = 0;
    }
    if (width > 0) p.x = rand_floats(rows * width), p.w = rand_floats(n * width);
    return p;
}

static void drop(problem *p) {
    free(p->logits), free(p->factor), free(p->labels), free(p->x), free(p->w);
}

static void test_cross_entropy(void) {
    static const struct {
        const char *name;
        int rows, n;
        float spread;
        double bound;
    } table[] = {
        {"characters", 40, 65, 1, 1e-6}, {"one class", 5, 1, 1, 0},
        {"two classes", 30, 2, 3, 1e-6}, {"large logits", 20, 33, 300, 2e-5},
        {"wide", 3, 20000, 1, 1e-6},     {"no rows", 0, 10, 1, 0},
        {"many rows", 900, 70, 1, 1e-6},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        problem p = make(table[i].rows, table[i].n, 0, table[i].spread);
        int64_t size = p.rows * p.n;
        float *d = rand_floats(size), *loss = rand_floats(p.rows), *two = zeros(size);
        memcpy(two, p.logits, (size_t)size * sizeof *two);
        kvl_cross_entropy_args a = {loss,     d,        p.n,     p.logits, p.n,
                                    p.labels, p.factor, p.scale, p.rows,   p.n};
        kvl_error err = {0, ""};
        kvl_set_threads(1, NULL);
        CHECK(!kvl_cross_entropy(&a, &err), "%s", err.msg);
        double e = 0, e_d = 0;
        for (int64_t r = 0; r < p.rows; r++) {
            double want = kvl_cross_entropy_ref(p.logits + r * p.n, p.labels[r], p.n);
            e = worse(e, (double)loss[r], want, fmax(1, want));
        }
        for (int k = 0; k < 40 && size > 0; k++) {
            int64_t at = rand_int(size);
            e_d = worse(e_d, (double)d[at], slope(objective, &p, p.logits + at), 1);
        }
        CHECK(e <= table[i].bound, "%s: loss: error %g", table[i].name, e);
        CHECK(e_d <= 1e-6, "%s: d_logits: error %g", table[i].name, e_d);
        a.logits = a.d_logits = two; /* in place, on two threads */
        kvl_set_threads(2, NULL);
        kvl_cross_entropy(&a, NULL);
        CHECK(!memcmp(two, d, (size_t)size * sizeof *d), "%s: in place", table[i].name);
        a.logits = p.logits, a.d_logits = NULL;
        float *again = rand_floats(p.rows);
        a.loss = again;
        kvl_cross_entropy(&a, NULL);
        CHECK(!memcmp(again, loss, (size_t)p.rows * sizeof *loss), "%s: loss alone", table[i].name);
        free(d), free(loss), free(two), free(again);
        drop(&p);
    }
    float x[2] = {0, 0}, loss;
    int32_t label = 2;
    kvl_cross_entropy_args a = {&loss, NULL, 0, x, 2, &label, NULL, 1, 1, 2};
    kvl_error err;
    CHECK(kvl_cross_entropy(&a, &err) == KVL_EINVAL && strstr(err.msg, "label 2"), "%s", err.msg);
    label = 1;
    CHECK(!kvl_cross_entropy(&a, &err) && fabs(loss - log(2)) < 1e-7, "%g", loss);
    x[0] = NAN;
    kvl_cross_entropy(&a, NULL);
    CHECK(isnan(loss), "NaN must be seen: %g", loss);
}

static void test_head(void) {
    static const struct {
        const char *name;
        int rows, n, width;
        double bound;
    } table[] = {
        {"characters", 60, 65, 24, 2e-6},          {"thin", 9, 3, 5, 2e-6},
        {"blocks of rows", 110, 33000, 4, 2e-5}, /* 2M / 33000 < 64: blocks of 64 */
        {"long, deep product", 3000, 11, 8, 2e-5}, {"no rows", 0, 7, 4, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        problem p = make(table[i].rows, table[i].n, table[i].width, 1);
        for (int64_t k = 0; k < p.n * p.width; k++)
            p.w[k] *= 0.5f;
        float *loss[2], *d_x[2], *d_w[2];
        kvl_error err = {0, ""};
        for (int t = 0; t < 2; t++) {
            loss[t] = rand_floats(p.rows), d_x[t] = zeros(p.rows * p.width);
            d_w[t] = zeros(p.n * p.width);
            kvl_head_loss_args a = {loss[t],  d_x[t],  d_w[t],  p.width, p.width,
                                    p.x,      p.w,     p.width, p.width, p.labels,
                                    p.factor, p.scale, p.rows,  p.width, p.n};
            kvl_set_threads(t + 1, NULL);
            CHECK(!kvl_head_loss(&a, &err), "%s: %s", table[i].name, err.msg);
        }
        CHECK(!memcmp(d_w[0], d_w[1], (size_t)(p.n * p.width) * sizeof(float)) &&
                  !memcmp(d_x[0], d_x[1], (size_t)(p.rows * p.width) * sizeof(float)) &&
                  !memcmp(loss[0], loss[1], (size_t)p.rows * sizeof(float)),
              "%s: threads", table[i].name);
        double e = 0, sum = 0;
        for (int64_t r = 0; r < p.rows; r++) {
            bool asked = p.labels[r] != -1 && p.factor[r] != 0;
            CHECK(asked || loss[0][r] == 0, "row %d: loss %g", (int)r, loss[0][r]);
            sum += asked ? (double)loss[0][r] * (double)p.factor[r] * (double)p.scale : 0;
        }
        CHECK(fabs(sum - objective(&p)) < 1e-4 * (1 + fabs(sum)), "%s: %g, not %g", table[i].name,
              sum, objective(&p));
        for (int k = 0; k < 4 && p.rows > 0; k++) {
            int64_t at = rand_int(p.rows * p.width), to = rand_int(p.n * p.width);
            e = worse(e, (double)d_x[0][at], slope(objective, &p, p.x + at), 1);
            e = worse(e, (double)d_w[0][to], slope(objective, &p, p.w + to), 1);
        }
        CHECK(e <= table[i].bound, "%s: error %g", table[i].name, e);
        for (int t = 0; t < 2; t++)
            free(loss[t]), free(d_x[t]), free(d_w[t]);
        drop(&p);
    }
}

static void test_adamw(void) {
    enum { N = 40000 };
    float *p = rand_floats(N), *m = zeros(N), *v = zeros(N), *g = rand_floats(N);
    double *rp = calloc(4 * N, sizeof *rp), *rm = rp + N, *rv = rm + N, *rg = rv + N, e = 0;
    float *p1 = zeros(N), *m1 = zeros(N), *v1 = zeros(N);
    for (int i = 0; i < N; i++)
        rp[i] = p1[i] = p[i];
    for (int step = 1; step <= 5; step++) {
        kvl_adamw a = {1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, step};
        for (int i = 0; i < N; i++)
            rg[i] = g[i] = rand_normal();
        kvl_set_threads(2, NULL);
        CHECK(!kvl_adamw_step(p, m, v, g, &a, N, NULL), "failed");
        kvl_set_threads(1, NULL);
        CHECK(!kvl_adamw_step(p1, m1, v1, g, &a, N, NULL), "failed");
        kvl_adamw_step_ref(rp, rm, rv, rg, &a, N);
    }
    for (int i = 0; i < N; i++)
        e = fmax(worse(e, p[i], rp[i], 1), worse(worse(e, m[i], rm[i], 1), v[i], rv[i], 1));
    CHECK(e <= 1e-6, "error %g", e);
    CHECK(!memcmp(p, p1, N * sizeof *p) && !memcmp(v, v1, N * sizeof *v), "threads");
    /* By hand: the first step moves by lr against the sign of the gradient, and decays by lr. */
    float one[2] = {1, 1}, zero1[2] = {0, 0}, zero2[2] = {0, 0}, grad[2] = {3, -0.01f};
    kvl_adamw a = {0.1, 0.9, 0.999, 0, 0.5, 1, 1};
    kvl_adamw_step(one, zero1, zero2, grad, &a, 2, NULL);
    CHECK(fabs(one[0] - 0.85) < 1e-6 && fabs(one[1] - 1.05) < 1e-6, "%g %g", one[0], one[1]);
    kvl_error err;
    a.step = 0;
    CHECK(kvl_adamw_step(one, zero1, zero2, grad, &a, 2, &err) == KVL_EINVAL, "step 0");
    free(p), free(m), free(v), free(g), free(rp), free(p1), free(m1), free(v1);
}

static void test_norm_and_scale(void) {
    float *x = rand_floats(50001), *y = rand_floats(3);
    kvl_floats list[3] = {{x, 50001}, {NULL, 0}, {y, 3}};
    double want = 0, norm[2];
    for (int i = 0; i < 50001; i++)
        want += (double)x[i] * (double)x[i];
    for (int i = 0; i < 3; i++)
        want += (double)y[i] * (double)y[i];
    for (int t = 0; t < 2; t++) {
        kvl_set_threads(t + 1, NULL);
        CHECK(!kvl_global_norm(&norm[t], list, 3, NULL), "failed");
    }
    CHECK(norm[0] == norm[1] && fabs(norm[0] - sqrt(want)) < 1e-9, "%g %g %g", norm[0], norm[1],
          sqrt(want));
    CHECK(kvl_clip_scale(4, 1) == 0.25 && kvl_clip_scale(1, 1) == 1 && kvl_clip_scale(4, 0) == 1 &&
              kvl_clip_scale((double)NAN, 1) == 1,
          "clip");
    CHECK(!kvl_scale_all(list, 3, (float)kvl_clip_scale(norm[0], 1), NULL), "failed");
    CHECK(!kvl_global_norm(&norm[1], list, 3, NULL) && fabs(norm[1] - 1) < 1e-6, "%g", norm[1]);
    CHECK(!kvl_global_norm(&norm[1], list, 0, NULL) && norm[1] == 0, "%g", norm[1]);
    free(x), free(y);
}

static void test_deep(void) {
    static const struct {
        int m, n, k;
    } table[] = {{40, 70, 3000}, {5, 3, 5000}, {128, 128, 1024}, {9, 9, 100}, {3, 4, 0}, {0, 4, 9}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int64_t m = table[i].m, n = table[i].n, k = table[i].k;
        float *a = rand_floats(k * m), *b = rand_floats(k * n), *c[2];
        double *want = calloc((size_t)(m * n) + 1, sizeof *want), e = 0;
        kvl_mat at = {a, m, true, 0}, bm = {b, n, false, 0};
        for (int t = 0; t < 2; t++) {
            c[t] = zeros(m * (n + 2));
            for (int64_t j = 0; j < m * (n + 2); j++)
                c[t][j] = 1;
            kvl_set_threads(t + 1, NULL);
            CHECK(!kvl_gemm_deep(c[t], n + 2, at, bm, 0.5f, m, n, k, NULL), "failed");
        }
        kvl_gemm_ref(want, n, at, bm, 0.5, 0, m, n, k);
        for (int64_t j = 0; j < m * n; j++)
            e = worse(e, (double)c[0][j / n * (n + 2) + j % n], want[j] + 1, sqrt((double)k + 1));
        CHECK(e <= 2e-6, "%dx%dx%d: error %g", (int)m, (int)n, (int)k, e);
        CHECK(!memcmp(c[0], c[1], (size_t)(m * (n + 2)) * sizeof(float)), "threads");
        for (int64_t j = 0; j < m; j++)
            CHECK(c[0][j * (n + 2) + n] == 1, "written beyond a row");
        free(a), free(b), free(c[0]), free(c[1]), free(want);
    }
}

int main(void) {
    test_cross_entropy();
    test_head();
    test_adamw();
    test_norm_and_scale();
    test_deep();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leak", kvl_live_bytes());
    return check_done();
}
