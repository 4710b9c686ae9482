/* test_grad_ops.c - gradients of compressor, norms and activations against central differences of
 * their forward definitions, embedding and rotations against closed forms. */
#include "check.h"
#include "rand.h"
#include "slope.h"

#include "kvlab/compress_grad.h"
#include "kvlab/norm_grad.h"
#include "kvlab/norm.h"
#include "kvlab/op_grad.h"
#include "kvlab/parallel.h"
#include "kvlab/rope.h"
#include "kvlab/vmath.h"

#include <string.h>

static float *zeros(int64_t n) {
    return calloc((size_t)(n + 1), sizeof(float));
}

static bool same(const float *a, const float *b, int64_t n) {
    return !memcmp(a, b, (size_t)n * sizeof *a);
}

/* --- compressor ------------------------------------------------------------------------------- */

typedef struct pooling {
    kvl_compressor comp;
    float *c, *z, *bias, *d_out;
    bool scores;
    int64_t batch, tokens, row;
} pooling;

static double pooled_objective(void *ctx) {
    pooling *p = ctx;
    int64_t n = p->batch * (p->tokens / p->comp.ratio) * p->comp.width;
    double *out = malloc((size_t)(n + 1) * sizeof *out), sum = 0;
    kvl_rows c = {p->c, p->tokens * p->row, p->row, 0}, z = c;
    z.p = p->scores ? p->z : NULL;
    kvl_compress_ref(out, &p->comp, c, z, p->batch, p->tokens, NULL);
    for (int64_t i = 0; i < n; i++)
        sum += out[i] * (double)p->d_out[i];
    free(out);
    return sum;
}

static void test_compress(void) {
    static const struct {
        const char *name;
        int batch, tokens, ratio, width, overlap, bias, scores;
        double bound;
    } table[] = {
        {"HCA", 2, 37, 8, 5, 0, 1, 1, 2e-6},
        {"CSA", 2, 22, 4, 6, 1, 1, 1, 2e-6},
        {"CSA2", 1, 20, 2, 16, 0, 0, 1, 2e-6},
        {"mean", 2, 9, 3, 4, 0, 0, 0, 2e-6},
        {"bias alone", 1, 12, 3, 4, 1, 1, 0, 2e-6},
        {"ratio 1", 2, 7, 1, 9, 0, 1, 1, 2e-6},
        {"ratio 1, overlapping", 1, 9, 1, 4, 1, 1, 1, 2e-6},
        {"no block", 1, 3, 4, 4, 1, 1, 1, 2e-6},
        {"one channel", 3, 16, 4, 1, 1, 1, 1, 2e-6},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        pooling p = {.batch = table[i].batch, .tokens = table[i].tokens, .scores = table[i].scores};
        p.comp = (kvl_compressor){table[i].ratio, table[i].width, table[i].overlap, NULL};
        p.row = table[i].width * (table[i].overlap ? 2 : 1);
        int64_t n = p.batch * p.tokens * p.row, m = table[i].ratio * p.row;
        p.c = rand_floats(n), p.z = rand_floats(n), p.bias = rand_floats(m);
        p.d_out = rand_floats(n);
        if (table[i].bias) p.comp.bias = p.bias;
        float *d_c = zeros(n), *d_z = zeros(n), *d_b = zeros(m);
        float *e_c = zeros(n), *e_z = zeros(n), *e_b = zeros(m);
        kvl_rows c = {p.c, p.tokens * p.row, p.row, 0}, z = c;
        z.p = p.scores ? p.z : NULL;
        kvl_rows_grad gc = {d_c, p.tokens * p.row, p.row, 0}, gz = gc, hc = gc, hz = gc;
        gz.p = d_z, hc.p = e_c, hz.p = e_z;
        kvl_error err = {0, ""};
        kvl_set_threads(2, NULL);
        CHECK(!kvl_compress_grad(gc, gz, d_b, &p.comp, p.d_out, c, z, p.batch, p.tokens, &err),
              "%s", err.msg);
        kvl_set_threads(1, NULL);
        kvl_compress_grad(hc, hz, e_b, &p.comp, p.d_out, c, z, p.batch, p.tokens, NULL);
        CHECK(same(d_c, e_c, n) && same(d_z, e_z, n) && same(d_b, e_b, m), "%s: threads",
              table[i].name);
        double e = 0;
        for (int64_t k = 0; k < n; k++) {
            e = worse(e, (double)d_c[k], slope(pooled_objective, &p, p.c + k), 1);
            if (p.scores) e = worse(e, (double)d_z[k], slope(pooled_objective, &p, p.z + k), 1);
        }
        for (int64_t k = 0; k < m && p.comp.bias; k++)
            e = worse(e, (double)d_b[k], slope(pooled_objective, &p, p.bias + k), 1);
        CHECK(e <= table[i].bound, "%s: error %g", table[i].name, e);
        /* Added to what is there; a second time doubles, without the scores as well. */
        kvl_compress_grad(hc, (kvl_rows_grad){NULL, 0, 0, 0}, NULL, &p.comp, p.d_out, c, z, p.batch,
                          p.tokens, NULL);
        for (int64_t k = 0; k < n; k++)
            CHECK(e_c[k] == 2 * d_c[k], "%s: not added", table[i].name);
        free(p.c), free(p.z), free(p.bias), free(p.d_out);
        free(d_c), free(d_z), free(d_b), free(e_c), free(e_z), free(e_b);
    }
    /* Many blocks: the bias is a sum over parts. With equal scores d_bias is known: every block
     * gives (c - mean) / m. */
    enum { BLOCKS = 9000 };
    float *c = zeros(2 * BLOCKS), *g = zeros(BLOCKS), d_bias[2] = {1, 1};
    for (int i = 0; i < BLOCKS; i++)
        c[2 * i] = 1, g[i] = 1;
    kvl_compressor comp = {2, 1, false, NULL};
    kvl_rows rows = {c, 2 * BLOCKS, 1, 0}, none = {NULL, 0, 0, 0};
    kvl_rows_grad nowhere = {NULL, 0, 0, 0};
    CHECK(!kvl_compress_grad(nowhere, nowhere, d_bias, &comp, g, rows, none, 1, 2 * BLOCKS, NULL),
          "failed");
    CHECK(d_bias[0] == 1 + BLOCKS / 4.0f && d_bias[1] == 1 - BLOCKS / 4.0f, "%g %g", d_bias[0],
          d_bias[1]);
    kvl_error err;
    comp.ratio = 0;
    CHECK(kvl_compress_grad(nowhere, nowhere, NULL, &comp, g, rows, none, 1, 4, &err) == KVL_EINVAL,
          "ratio 0");
    comp.ratio = 2, comp.width = 4;
    nowhere.p = c, nowhere.step_s = 3;
    CHECK(kvl_compress_grad(nowhere, nowhere, NULL, &comp, g, rows, none, 1, 4, &err) == KVL_EINVAL,
          "rows that overlap");
    free(c), free(g);
}

/* --- norms ------------------------------------------------------------------------------------ */

typedef struct normed {
    bool layer;
    float *x, *w, *b, *d; /* w and b may be NULL */
    double eps;
    int64_t rows, n;
} normed;

static double norm_objective(void *ctx) {
    normed *p = ctx;
    double sum = 0, *in = malloc((size_t)p->n * 32), *w = in + p->n, *b = w + p->n, *out = b + p->n;
    for (int64_t i = 0; i < p->n; i++)
        w[i] = p->w ? p->w[i] : 1, b[i] = p->b ? p->b[i] : 0;
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t i = 0; i < p->n; i++)
            in[i] = p->x[r * p->n + i];
        if (p->layer)
            kvl_layer_norm_ref(out, in, w, b, p->eps, p->n);
        else
            kvl_rms_norm_ref(out, in, w, p->eps, p->n);
        for (int64_t i = 0; i < p->n; i++)
            sum += out[i] * (double)p->d[r * p->n + i];
    }
    free(in);
    return sum;
}

static void test_norms(void) {
    static const struct {
        const char *name;
        int layer, weight, rows, n;
        double eps, bound;
    } table[] = {
        {"rms", 0, 0, 5, 33, 1e-6, 5e-6},        {"rms weight", 0, 1, 9, 16, 1e-6, 5e-6},
        {"rms eps", 0, 1, 3, 8, 0.5, 5e-6},      {"rms of one", 0, 1, 4, 1, 0.25, 5e-6},
        {"layer", 1, 0, 5, 31, 1e-6, 5e-6},      {"layer weight", 1, 1, 9, 16, 1e-5, 5e-6},
        {"layer of two", 1, 1, 6, 2, 0.5, 5e-6},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        normed p = {.layer = table[i].layer, .rows = table[i].rows, .n = table[i].n};
        int64_t size = p.rows * p.n;
        p.eps = (double)(float)table[i].eps, p.x = rand_floats(size), p.d = rand_floats(size);
        float *w = rand_floats(p.n), *b = rand_floats(p.n);
        if (table[i].weight) p.w = w, p.b = p.layer ? b : NULL;
        float *d_x = zeros(size), *d_w = zeros(p.n), *d_b = zeros(p.n), *e_x = zeros(size);
        kvl_norm_grad_args a = {.d_x = d_x, .d_x_step = p.n, .x = p.x, .x_step = p.n};
        a.d_out = p.d, a.d_out_step = p.n, a.weight = p.w, a.eps = (float)p.eps, a.rows = p.rows;
        a.d_weight = p.w ? d_w : NULL, a.d_bias = p.b ? d_b : NULL, a.n = p.n;
        kvl_error err = {0, ""};
        CHECK(!(p.layer ? kvl_layer_norm_grad : kvl_rms_norm_grad)(&a, &err), "%s", err.msg);
        double e = 0;
        for (int64_t k = 0; k < size; k++)
            e = worse(e, (double)d_x[k], slope(norm_objective, &p, p.x + k), 1);
        for (int64_t k = 0; k < p.n && p.w; k++)
            e = worse(e, (double)d_w[k], slope(norm_objective, &p, w + k), 1);
        for (int64_t k = 0; k < p.n && p.b; k++)
            e = worse(e, (double)d_b[k], slope(norm_objective, &p, b + k), 1);
        CHECK(e <= table[i].bound, "%s: error %g", table[i].name, e);
        a.d_x = e_x, a.d_weight = a.d_bias = NULL;
        (p.layer ? kvl_layer_norm_grad : kvl_rms_norm_grad)(&a, NULL);
        (p.layer ? kvl_layer_norm_grad : kvl_rms_norm_grad)(&a, NULL);
        for (int64_t k = 0; k < size; k++)
            CHECK(e_x[k] == 2 * d_x[k], "%s: not added", table[i].name);
        free(p.x), free(p.d), free(w), free(b), free(d_x), free(d_w), free(d_b), free(e_x);
    }
    /* Many rows on one and on two threads. */
    enum { ROWS = 5000, N = 24 };
    float *x = rand_floats(ROWS * N), *d = rand_floats(ROWS * N), *w = rand_floats(N);
    float *d_x[2], *d_w[2], *d_b[2];
    for (int t = 0; t < 2; t++) {
        d_x[t] = zeros(ROWS * N), d_w[t] = zeros(N), d_b[t] = zeros(N);
        kvl_norm_grad_args a = {d_x[t], N, d_w[t], d_b[t], d, N, x, N, w, 1e-6f, ROWS, N};
        kvl_set_threads(t + 1, NULL);
        CHECK(!kvl_layer_norm_grad(&a, NULL), "failed");
    }
    CHECK(same(d_x[0], d_x[1], ROWS * N) && same(d_w[0], d_w[1], N) && same(d_b[0], d_b[1], N),
          "threads");
    double sum = 0;
    for (int i = 0; i < ROWS; i++)
        sum += (double)d[i * N];
    CHECK(fabs(d_b[0][0] - sum) < 1e-4, "d_bias %g, not %g", d_b[0][0], sum);
    for (int t = 0; t < 2; t++)
        free(d_x[t]), free(d_w[t]), free(d_b[t]);
    free(x), free(d), free(w);
}

/* --- activations ------------------------------------------------------------------------------ */

typedef struct point {
    kvl_unary_op op;
    float x;
} point;

static double unary_objective(void *ctx) {
    point *p = ctx;
    double out;
    kvl_unary_ref(&out, p->op, &p->x, 1);
    return out;
}

static void test_activations(void) {
    static const struct {
        kvl_unary_op op;
        float low, high;
        double bound;
    } table[] = {
        {KVL_RELU, -5, 5, 0},
        {KVL_SIGMOID, -30, 30, 1e-6},
        {KVL_SILU, -30, 30, 2e-6},
        {KVL_GELU, -9, 9, 1e-6},
    };
    enum { N = 4001 };
    static float x[N], d[N], g[N];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double e = 0, e_ref = 0;
        for (int k = 0; k < N; k++) {
            x[k] = table[i].low + (table[i].high - table[i].low) * (float)k / (N - 1);
            d[k] = g[k] = rand_normal();
        }
        CHECK(!kvl_unary_grad(d, table[i].op, x, N, NULL), "failed");
        for (int k = 0; k < N; k++) {
            double want = kvl_unary_grad_ref(table[i].op, (double)x[k]);
            e = worse(e, (double)d[k], want * (double)g[k], fmax(1e-3, fabs((double)g[k])));
            point p = {table[i].op, x[k]};
            if (k % 16 == 0 && (p.op != KVL_RELU || fabsf(p.x) > 0.1f))
                e_ref = worse(e_ref, want, slope(unary_objective, &p, &p.x), 1);
        }
        CHECK(e <= table[i].bound, "%s: error %g", kvl_unary_name(table[i].op), e);
        CHECK(e_ref <= 1e-8, "%s: definition and differences differ by %g",
              kvl_unary_name(table[i].op), e_ref);
    }
    float far[4] = {-INFINITY, INFINITY, NAN, 0}, to[4] = {1, 1, 1, 1};
    kvl_unary_grad(to, KVL_SILU, far, 4, NULL);
    CHECK(to[0] == 0 && to[1] == 1 && isnan(to[2]) && to[3] == 0.5f, "%g %g %g %g", to[0], to[1],
          to[2], to[3]);
    kvl_error err;
    CHECK(kvl_unary_grad(to, KVL_TANH, far, 4, &err) == KVL_EINVAL && strstr(err.msg, "tanh"), "%s",
          err.msg);
    float vg[3] = {-7.5f, 0.0f, 1.5f}, vo[3]; /* the forward in the far tail: relative error */
    double vr[3];
    kvl_gelu(vo, vg, 3);
    kvl_unary_ref(vr, KVL_GELU, vg, 3);
    for (int k = 0; k < 3; k++)
        CHECK(fabs(vo[k] - vr[k]) <= 4e-6 * fabs(vr[k]), "gelu(%g) = %g, not %g", vg[k], vo[k],
              vr[k]);
}

static void test_swiglu(void) {
    enum { ROWS = 300, N = 70, STEP = 2 * N + 3 };
    float *both = rand_floats(ROWS * STEP), *g = rand_floats(ROWS * N), *out = zeros(ROWS * N);
    float *d[2];
    for (int t = 0; t < 2; t++) {
        d[t] = zeros(ROWS * STEP);
        for (int r = 0; r < ROWS; r++) /* the gradient of out, which becomes that of gate */
            memcpy(d[t] + r * STEP, g + r * N, N * sizeof *g);
        kvl_swiglu_args a = {out,  N,        d[t], d[t] + N, STEP, STEP,
                             both, both + N, STEP, STEP,     ROWS, N};
        kvl_set_threads(t + 1, NULL);
        CHECK(!kvl_swiglu(&a, NULL) && !kvl_swiglu_grad(&a, NULL), "failed");
    }
    CHECK(same(d[0], d[1], ROWS * STEP), "threads");
    double e = 0;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < N; i++) {
            double x = both[r * STEP + i], up = both[r * STEP + N + i], s = 1 / (1 + exp(-x));
            double go = g[r * N + i];
            e = worse(e, out[r * N + i], x * s * up, 1);
            e = worse(e, d[0][r * STEP + i], go * up * kvl_unary_grad_ref(KVL_SILU, x), 10);
            e = worse(e, d[0][r * STEP + N + i], go * x * s, 10);
        }
    CHECK(e <= 2e-6, "error %g", e);
    for (int r = 0; r < ROWS; r++)
        CHECK(d[0][r * STEP + 2 * N] == 0, "written beyond the row");
    free(both), free(g), free(out), free(d[0]), free(d[1]);
}

/* --- embedding, rotations --------------------------------------------------------------------- */

static void test_embedding(void) {
    enum { IDS = 700, V = 13, W = 70 };
    float *g = rand_floats(IDS * W), *d[2];
    int32_t ids[IDS];
    double want[V * W] = {0}, e = 0;
    for (int i = 0; i < IDS; i++) {
        ids[i] = (int32_t)rand_int(V - 1);
        for (int c = 0; c < W; c++)
            want[ids[i] * W + c] += g[i * W + c];
    }
    for (int t = 0; t < 2; t++) {
        d[t] = zeros(V * W);
        kvl_set_threads(t + 1, NULL);
        CHECK(!kvl_embedding_grad(d[t], W, ids, g, W, IDS, V, W, NULL), "failed");
    }
    for (int i = 0; i < V * W; i++)
        e = worse(e, d[0][i], want[i], 10);
    CHECK(e <= 2e-6 && same(d[0], d[1], V * W), "error %g", e);
    kvl_error err;
    ids[5] = V;
    CHECK(kvl_embedding_grad(d[0], W, ids, g, W, IDS, V, W, &err) == KVL_EINVAL &&
              strstr(err.msg, "id 13 of 5"),
          "%s", err.msg);
    CHECK(same(d[0], d[1], V * W), "a failure must change nothing");
    free(g), free(d[0]), free(d[1]);
}

/* <R x, y> = <x, R' y>: the inverse rotation and the Hadamard rotation are the gradients. */
static void test_rotations(void) {
    enum { T = 9, W = 32 };
    double freq[8];
    float *x = rand_floats(T * W), *y = rand_floats(T * W), rx[T * W], ry[T * W];
    kvl_rope_freqs(freq, 10000, NULL, 16, NULL);
    for (int half = 0; half < 2; half++) {
        kvl_rope rope = {freq, 16, false, half, false};
        kvl_rope_args a = {.out = rx, .x = x, .step_b = T * W, .step_t = W, .step_h = W};
        a.pos0 = 5, a.stride = 4, a.batch = 1, a.tokens = T, a.heads = 1, a.width = W;
        kvl_rope_apply(&rope, &a, NULL);
        rope.inverse = true, a.out = ry, a.x = y;
        kvl_rope_apply(&rope, &a, NULL);
        double left = 0, right = 0;
        for (int i = 0; i < T * W; i++)
            left += (double)rx[i] * (double)y[i], right += (double)x[i] * (double)ry[i];
        CHECK(fabs(left - right) < 1e-4, "rope: %g and %g", left, right);
    }
    kvl_hadamard(rx, W, x, W, T, W, NULL);
    kvl_hadamard(ry, W, y, W, T, W, NULL);
    double left = 0, right = 0;
    for (int i = 0; i < T * W; i++)
        left += (double)rx[i] * (double)y[i], right += (double)x[i] * (double)ry[i];
    CHECK(fabs(left - right) < 1e-4, "hadamard: %g and %g", left, right);
    free(x), free(y);
}

int main(void) {
    test_compress();
    test_norms();
    test_activations();
    test_swiglu();
    test_embedding();
    test_rotations();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leak", kvl_live_bytes());
    return check_done();
}
