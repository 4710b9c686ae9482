/* test_ops.c - elementwise operations, reductions, softmax, top-k and ids against their definitions
 * in double precision, with their error bounds. */
#include "kvlab/kvlab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "tensors.h"

/* --- unary: name, range of inputs, bound on the relative error ------------------------------- */

static const struct {
    kvl_unary_op op;
    float low, high;
    double bound;
} unary_rows[] = {
    {KVL_NEG, -5, 5, 0},         {KVL_ABS, -5, 5, 0},          {KVL_EXP, -80, 80, 2e-7},
    {KVL_LOG, 1e-6f, 100, 1e-7}, {KVL_SQRT, 0, 100, 6e-8},     {KVL_RSQRT, 1e-6f, 100, 1.3e-7},
    {KVL_RELU, -5, 5, 0},        {KVL_SIGMOID, -60, 60, 1e-6}, {KVL_SILU, -60, 60, 1e-6},
    {KVL_GELU, -3, 30, 3e-5},    {KVL_TANH, -10, 10, 2e-7},
};

static void test_unary(void) {
    enum { N = 5000 };
    static float x[N];
    static double ref[N];
    CHECK(sizeof unary_rows / sizeof *unary_rows == KVL_UNARY_OPS, "a row for each function");
    for (int r = 0; r < KVL_UNARY_OPS; r++) {
        int64_t shape[2] = {N / 5, 5};
        for (int i = 0; i < N; i++)
            x[i] = unary_rows[r].low +
                   (float)rand_unit() * (unary_rows[r].high - unary_rows[r].low);
        kvl_tensor *t = floats(2, shape, x), *turned, *out, *strided;
        kvl_tensor_transpose(&turned, t, 0, 1, &err);
        CHECK(kvl_unary(&out, unary_rows[r].op, t, &err) == KVL_OK, "%s", err.msg);
        CHECK(kvl_unary(&strided, unary_rows[r].op, turned, &err) == KVL_OK, "%s", err.msg);
        kvl_unary_ref(ref, unary_rows[r].op, x, N);
        double worst = 0;
        bool same = true;
        for (int64_t i = 0; i < N; i++) {
            double got = kvl_tensor_f32(out)[i], size = fabs(ref[i]) > 1e-30 ? fabs(ref[i]) : 1e-30;
            if (fabs(got - ref[i]) / size > worst) worst = fabs(got - ref[i]) / size;
            same = same && kvl_tensor_f32(strided)[i % 5 * (N / 5) + i / 5] == (float)got;
        }
        CHECK(worst <= unary_rows[r].bound, "%s: %g", kvl_unary_name(unary_rows[r].op), worst);
        CHECK(same, "%s: a transposed view gives the same", kvl_unary_name(unary_rows[r].op));
        kvl_tensor *all[] = {t, turned, out, strided};
        for (int i = 0; i < 4; i++)
            kvl_tensor_free(all[i]);
    }
    float special[6] = {NAN, INFINITY, -INFINITY, 0, -0.0f, 1e30f};
    int64_t six[1] = {6};
    kvl_tensor *t = floats(1, six, special), *out;
    kvl_unary(&out, KVL_EXP, t, &err);
    float *y = kvl_tensor_f32(out);
    CHECK(isnan(y[0]) && y[1] == INFINITY && y[2] == 0 && y[3] == 1 && y[5] == INFINITY, "exp");
    kvl_tensor_free(out);
    kvl_unary(&out, KVL_SIGMOID, t, &err);
    y = kvl_tensor_f32(out);
    CHECK(isnan(y[0]) && y[1] == 1 && y[2] == 0 && y[3] == 0.5f, "sigmoid");
    kvl_tensor_free(out);
    kvl_unary(&out, KVL_RELU, t, &err);
    CHECK(isnan(kvl_tensor_f32(out)[0]), "relu keeps NaN");
    kvl_tensor_free(out);
    kvl_tensor_free(t);
    int32_t least[1] = {INT32_MIN};
    int64_t one[1] = {1};
    t = ints(1, one, least);
    CHECK(kvl_unary(&out, KVL_NEG, t, &err) == KVL_EINVAL && !out, "-INT32_MIN");
    CHECK(kvl_unary(&out, KVL_ABS, t, &err) == KVL_EINVAL && !out, "abs INT32_MIN");
    kvl_tensor_free(t);
}

/* --- binary ---------------------------------------------------------------------------------- */

static double binary_definition(kvl_binary_op op, double x, double y) {
    switch (op) {
    case KVL_ADD: return x + y;
    case KVL_SUB: return x - y;
    case KVL_MUL: return x * y;
    case KVL_DIV: return x / y;
    case KVL_POW: return pow(x, y);
    case KVL_MIN: return fmin(x, y);
    case KVL_MAX: return fmax(x, y);
    case KVL_EQ: return x == y;
    case KVL_NE: return x != y;
    case KVL_LT: return x < y;
    case KVL_LE: return x <= y;
    case KVL_GT: return x > y;
    default: return x >= y;
    }
}

/* Random shapes that broadcast, random strides, both types. */
static void test_binary(void) {
    for (int round = 0; round < 1500; round++) {
        kvl_binary_op op = (kvl_binary_op)(round % KVL_BINARY_OPS);
        int64_t full[3], shape[2][3];
        kvl_tensor *in[2], *base[2], *out;
        for (int i = 0; i < 3; i++)
            full[i] = 1 + rand_int(6);
        for (int k = 0; k < 2; k++) {
            int64_t turned[3];
            for (int i = 0; i < 3; i++)
                shape[k][i] = rand_unit() < 0.3 ? 1 : full[i];
            bool turn = rand_unit() < 0.5;
            for (int i = 0; i < 3; i++)
                turned[i] = turn ? shape[k][2 - i] : shape[k][i];
            base[k] = randn(3, turned);
            if (rand_unit() < 0.4) {
                kvl_tensor *integer;
                for (int64_t i = 0; i < kvl_tensor_numel(base[k]); i++)
                    kvl_tensor_f32(base[k])[i] *= 3;
                kvl_tensor_cast(&integer, base[k], KVL_INT32, &err);
                kvl_tensor_free(base[k]);
                base[k] = integer;
            } else if (op == KVL_POW && k == 0) {
                for (int64_t i = 0; i < kvl_tensor_numel(base[k]); i++)
                    kvl_tensor_f32(base[k])[i] = fabsf(kvl_tensor_f32(base[k])[i]);
            }
            if (turn)
                kvl_tensor_transpose(&in[k], base[k], 0, 2, &err);
            else
                kvl_tensor_view(&in[k], base[k], &err);
        }
        CHECK(kvl_binary(&out, op, in[0], in[1], &err) == KVL_OK, "%s", err.msg);
        bool integer = in[0]->dtype == KVL_INT32 && in[1]->dtype == KVL_INT32;
        kvl_dtype type = op >= KVL_EQ || (integer && op != KVL_DIV && op != KVL_POW) ? KVL_INT32
                                                                                     : KVL_FLOAT32;
        CHECK(out->dtype == type, "%s: type", kvl_binary_name(op));
        double worst = 0;
        for (int64_t i = 0; i < kvl_tensor_numel(out); i++) {
            int64_t index[3], rest = i, place[2][3];
            for (int d = 2; d >= 0; d--) {
                index[d] = rest % out->shape[d];
                rest /= out->shape[d];
                for (int k = 0; k < 2; k++)
                    place[k][d] = in[k]->shape[d] == 1 ? 0 : index[d];
            }
            double want = binary_definition(op, element(in[0], place[0]), element(in[1], place[1]));
            double got = element(out, index);
            if (got == want || (isnan(got) && isnan(want))) continue;
            double off = fabs(got - want) / (fabs(want) + 1e-30);
            if (!(off <= worst)) worst = off;
        }
        CHECK(worst <= 2e-7, "%s: %g", kvl_binary_name(op), worst);
        for (int k = 0; k < 2; k++) {
            kvl_tensor_free(in[k]);
            kvl_tensor_free(base[k]);
        }
        kvl_tensor_free(out);
    }
    int64_t three[1] = {3}, four[1] = {4}, s32[2] = {3, 2};
    float nan[3] = {NAN, 1, NAN};
    int32_t big[3] = {2000000000, -2000000000, 65536};
    kvl_tensor *a = floats(1, three, nan), *b, *c = randn(1, four), *out,
               *big_t = ints(1, three, big);
    kvl_tensor_full(&b, KVL_FLOAT32, 1, three, 2, &err);
    for (kvl_binary_op op = KVL_MIN; op <= KVL_MAX; op++)
        for (int swap = 0; swap < 2; swap++) {
            kvl_binary(&out, op, swap ? b : a, swap ? a : b, &err);
            CHECK(isnan(kvl_tensor_f32(out)[0]) && !isnan(kvl_tensor_f32(out)[1]),
                  "NaN goes through");
            kvl_tensor_free(out);
        }
    CHECK(kvl_binary(&out, KVL_ADD, b, c, &err) == KVL_EINVAL && !out && strstr(err.msg, "{4}"),
          "%s", err.msg);
    CHECK(kvl_binary(&out, KVL_ADD, big_t, big_t, &err) == KVL_EINVAL && !out, "overflow of +");
    CHECK(kvl_binary(&out, KVL_MUL, big_t, big_t, &err) == KVL_EINVAL && !out, "overflow of *");
    /* into a view, and into an operand, and into a transposed view of an operand */
    kvl_tensor *m = randn(2, s32), *copy, *turned, *square, *sum;
    kvl_tensor_clone(&copy, m, &err);
    CHECK(kvl_binary_into(m, KVL_ADD, m, m, &err) == KVL_OK, "%s", err.msg);
    CHECK(kvl_tensor_f32(m)[3] == 2 * kvl_tensor_f32(copy)[3], "m = m + m");
    CHECK(kvl_binary_into(m, KVL_ADD, m, b, &err) == KVL_EINVAL, "shape of the target");
    CHECK(kvl_binary_into(m, KVL_EQ, m, m, &err) == KVL_EINVAL, "type of the target");
    kvl_tensor_slice(&square, m, 0, 0, 2, 1, &err);
    kvl_tensor_transpose(&turned, square, 0, 1, &err);
    kvl_binary(&sum, KVL_ADD, square, turned, &err);
    CHECK(kvl_binary_into(square, KVL_ADD, square, turned, &err) == KVL_OK, "%s", err.msg);
    bool equal;
    kvl_tensor_equal(&equal, square, sum, &err);
    CHECK(equal, "overlapping operands are read before they are written");
    kvl_tensor *all[] = {a, b, c, big_t, m, copy, turned, square, sum};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kvl_tensor_free(all[i]);
}

static void test_where(void) {
    int64_t s21[2] = {2, 1}, s3[1] = {3};
    int32_t yes[2] = {1, 0}, x[3] = {1, 2, 3};
    kvl_tensor *c = ints(2, s21, yes), *a = ints(1, s3, x), *b, *out;
    kvl_tensor_full(&b, KVL_FLOAT32, 0, NULL, -0.5, &err);
    CHECK(kvl_where(&out, c, a, b, &err) == KVL_OK, "%s", err.msg);
    CHECK(out->ndim == 2 && out->dtype == KVL_FLOAT32, "where");
    float *y = kvl_tensor_f32(out);
    CHECK(y[0] == 1 && y[2] == 3 && y[3] == -0.5f && y[5] == -0.5f, "where");
    kvl_tensor *all[] = {c, a, b, out};
    for (int i = 0; i < 4; i++)
        kvl_tensor_free(all[i]);
}

/* --- reductions: bound relative to the sum of magnitudes ------------------------------------- */

static const struct {
    kvl_reduce_op op;
    double bound;
} reduce_rows[] = {{KVL_SUM, 6e-8}, {KVL_MEAN, 6e-8}, {KVL_VAR, 1.2e-7},
                   {KVL_AMAX, 0},   {KVL_AMIN, 0},    {KVL_ARGMAX, 0},
                   {KVL_ARGMIN, 0}, {KVL_ANY, 0},     {KVL_ALL, 0}};

/* x: n elements `step` apart. */
static double reduce_definition(kvl_reduce_op op, const float *x, int64_t n, int64_t step) {
    double sum = 0, squares = 0;
    int64_t high = 0, low = 0, nonzero = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i * step];
        if (x[i * step] > x[high * step]) high = i;
        if (x[i * step] < x[low * step]) low = i;
        nonzero += x[i * step] != 0;
    }
    for (int64_t i = 0; i < n; i++)
        squares += ((double)x[i * step] - sum / (double)n) *
                   ((double)x[i * step] - sum / (double)n);
    switch (op) {
    case KVL_SUM: return sum;
    case KVL_MEAN: return sum / (double)n;
    case KVL_VAR: return squares / (double)n;
    case KVL_AMAX: return (double)x[high * step];
    case KVL_AMIN: return (double)x[low * step];
    case KVL_ARGMAX: return (double)high;
    case KVL_ARGMIN: return (double)low;
    case KVL_ANY: return nonzero > 0;
    default: return nonzero == n;
    }
}

static void test_reduce(void) {
    static const int64_t shapes[][3] = {{3, 5, 7}, {1, 70000, 1}, {2, 1, 300}, {2, 3000, 3},
                                        {1, 1, 1}, {2, 2, 40000}, {3, 2, 600}, {40, 1500, 1}};
    CHECK(sizeof reduce_rows / sizeof *reduce_rows == KVL_REDUCE_OPS, "a row for each");
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        for (int r = 0; r < KVL_REDUCE_OPS; r++)
            for (int dim = -1; dim < 3; dim++) {
                kvl_tensor *x = randn(3, shapes[k]), *out;
                float *p = kvl_tensor_f32(x);
                for (int64_t i = 0; i < kvl_tensor_numel(x); i += 3)
                    p[i] = roundf(p[i]); /* ties and zeros */
                kvl_reduce_op op = reduce_rows[r].op;
                CHECK(kvl_reduce(&out, op, x, dim, true, &err) == KVL_OK, "%s", err.msg);
                int64_t outer = 1, n = 1, inner = 1;
                for (int i = 0; i < 3; i++)
                    *(dim < 0 || i == dim ? &n : i < dim ? &outer : &inner) *= shapes[k][i];
                double worst = 0;
                for (int64_t i = 0; i < outer * inner; i++) {
                    const float *from = p + i / inner * n * inner + i % inner;
                    double want = reduce_definition(op, from, n, inner), size = 0;
                    for (int64_t j = 0; j < n; j++)
                        size += fabs((double)from[j * inner]) + 1e-30;
                    if (op == KVL_MEAN) size /= (double)n;
                    if (op == KVL_VAR) size = want + 1e-30;
                    double got = out->dtype == KVL_INT32 ? kvl_tensor_i32(out)[i]
                                                         : (double)kvl_tensor_f32(out)[i];
                    if (!(fabs(got - want) / size <= worst)) worst = fabs(got - want) / size;
                }
                CHECK(worst <= reduce_rows[r].bound, "%s over %d of shape %zu: %g",
                      kvl_reduce_name(op), dim, k, worst);
                kvl_tensor_free(x);
                kvl_tensor_free(out);
            }
    int64_t none[2] = {3, 0}, two[1] = {2};
    int32_t big[2] = {2000000000, 2000000000};
    kvl_tensor *e, *out, *b = ints(1, two, big);
    kvl_tensor_new(&e, KVL_FLOAT32, 2, none, &err);
    CHECK(kvl_reduce(&out, KVL_SUM, e, 1, false, &err) == KVL_OK && kvl_tensor_f32(out)[2] == 0,
          "a sum of nothing is 0");
    kvl_tensor_free(out);
    CHECK(kvl_reduce(&out, KVL_ALL, e, -1, false, &err) == KVL_OK && kvl_tensor_i32(out)[0] == 1,
          "all of nothing");
    kvl_tensor_free(out);
    CHECK(kvl_reduce(&out, KVL_AMAX, e, 1, false, &err) == KVL_EINVAL && !out, "max of nothing");
    CHECK(kvl_reduce(&out, KVL_AMAX, e, 0, false, &err) == KVL_OK && kvl_tensor_numel(out) == 0,
          "nothing to take a max for");
    kvl_tensor_free(out);
    CHECK(kvl_reduce(&out, KVL_SUM, b, 0, false, &err) == KVL_EINVAL && !out,
          "sum of int32 too large");
    CHECK(kvl_reduce(&out, KVL_MEAN, b, 0, false, &err) == KVL_OK && kvl_tensor_f32(out)[0] == 2e9f,
          "mean of int32");
    kvl_tensor_free(out);
    CHECK(kvl_reduce(&out, KVL_VAR, b, 0, false, &err) == KVL_OK && kvl_tensor_f32(out)[0] == 0,
          "variance of equal int32");
    kvl_tensor_free(out);
    float with_nan[2] = {3, NAN};
    kvl_tensor *n = floats(1, two, with_nan);
    CHECK(kvl_reduce(&out, KVL_AMAX, n, 0, false, &err) == KVL_OK && isnan(kvl_tensor_f32(out)[0]),
          "max of NaN");
    kvl_tensor_free(out);
    CHECK(kvl_reduce(&out, KVL_ARGMIN, n, 0, false, &err) == KVL_OK && kvl_tensor_i32(out)[0] == 1,
          "argmin finds the NaN");
    kvl_tensor_free(out);
    kvl_tensor_free(n);
    kvl_tensor_free(e);
    kvl_tensor_free(b);
}

/* --- rows ------------------------------------------------------------------------------------ */

static void test_softmax(void) {
    static const int64_t shapes[][2] = {{7, 1}, {5, 33}, {3, 5000}, {600, 40}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        int64_t rows = shapes[k][0], n = shapes[k][1];
        kvl_tensor *x = randn(2, shapes[k]), *soft, *lse, *logs, *turned, *other;
        for (int64_t i = 0; i < rows * n; i++)
            kvl_tensor_f32(x)[i] = i % 11 == 10 ? -INFINITY : 6 * kvl_tensor_f32(x)[i];
        CHECK(kvl_softmax(&soft, x, 1, &err) == KVL_OK, "%s", err.msg);
        CHECK(kvl_logsumexp(&lse, x, 1, &err) == KVL_OK && lse->ndim == 1, "%s", err.msg);
        CHECK(kvl_log_softmax(&logs, x, 1, &err) == KVL_OK, "%s", err.msg);
        double *ref = malloc((size_t)(rows * n) * sizeof *ref),
               *ref_lse = malloc((size_t)rows * sizeof *ref);
        kvl_softmax_ref(ref, kvl_tensor_f32(x), rows, n);
        kvl_logsumexp_ref(ref_lse, kvl_tensor_f32(x), rows, n);
        double worst = 0, worst_lse = 0, worst_log = 0, worst_one = 0;
        for (int64_t i = 0; i < rows; i++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++) {
                double got = kvl_tensor_f32(soft)[i * n + j], l = kvl_tensor_f32(logs)[i * n + j];
                sum += got;
                worst = fmax(worst, fabs(got - ref[i * n + j]));
                if (ref[i * n + j] > 1e-30)
                    worst_log = fmax(worst_log, fabs(l - log(ref[i * n + j])) / (1 + fabs(l)));
            }
            if (ref_lse[i] == -INFINITY) {
                CHECK(sum == 0 && kvl_tensor_f32(lse)[i] == -INFINITY, "nothing to choose from");
                continue;
            }
            worst_one = fmax(worst_one, fabs(sum - 1));
            worst_lse = fmax(worst_lse,
                             fabs(kvl_tensor_f32(lse)[i] - ref_lse[i]) / (1 + fabs(ref_lse[i])));
        }
        CHECK(worst < 6e-7, "softmax: %g", worst);
        CHECK(worst_lse < 1e-7, "logsumexp: %g", worst_lse);
        CHECK(worst_log < 1e-6, "log_softmax: %g", worst_log);
        CHECK(worst_one < 1e-6, "rows sum to 1: %g", worst_one);
        kvl_tensor_transpose(&turned, x, 0, 1, &err);
        CHECK(kvl_softmax(&other, turned, 0, &err) == KVL_OK, "%s", err.msg);
        kvl_tensor *back;
        bool equal;
        kvl_tensor_transpose(&back, other, 0, 1, &err);
        kvl_tensor_equal(&equal, back, soft, &err);
        CHECK(equal, "along the other dimension");
        kvl_tensor *all[] = {x, soft, lse, logs, turned, other, back};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            kvl_tensor_free(all[i]);
        free(ref);
        free(ref_lse);
    }
    float special[3][3] = {{NAN, -INFINITY, -INFINITY}, {NAN, 1, 2}, {1e30f, -1e30f, 1e30f}};
    int64_t s33[2] = {3, 3};
    kvl_tensor *x = floats(2, s33, special[0]), *soft;
    kvl_softmax(&soft, x, 1, &err);
    float *y = kvl_tensor_f32(soft);
    CHECK(isnan(y[0]) && isnan(y[4]) && y[6] == 0.5f && y[7] == 0 && y[8] == 0.5f,
          "special values");
    kvl_tensor_free(x);
    kvl_tensor_free(soft);
}

static void test_topk(void) {
    for (int round = 0; round < 300; round++) {
        int64_t rows = 1 + rand_int(4), n = rand_int(60), k = rand_int(70), shape[2] = {rows, n};
        kvl_tensor *x = randn(2, shape), *ids, *scores, *sorted;
        float *p = kvl_tensor_f32(x);
        for (int64_t i = 0; i < rows * n; i++) {
            double u = rand_unit();
            p[i] = u < 0.1 ? NAN : u < 0.2 ? -INFINITY : u < 0.25 ? INFINITY : roundf(p[i] * 3);
        }
        CHECK(kvl_tensor_topk(&ids, &scores, x, k, KVL_BY_SCORE, &err) == KVL_OK, "%s", err.msg);
        CHECK(kvl_tensor_topk(&sorted, NULL, x, k, KVL_BY_INDEX, &err) == KVL_OK, "%s", err.msg);
        for (int64_t row = 0; row < rows; row++) {
            double wide[60];
            int32_t want[70], *by_score = kvl_tensor_i32(ids) + row * k;
            float *score = kvl_tensor_f32(scores) + row * k;
            for (int64_t i = 0; i < n; i++)
                wide[i] = (double)p[row * n + i];
            kvl_topk_ref(want, wide, n, k);
            CHECK(memcmp(kvl_tensor_i32(sorted) + row * k, want, (size_t)k * 4) == 0, "round %d",
                  round);
            bool taken[60] = {false};
            for (int64_t i = 0; i < k; i++)
                if (want[i] >= 0) taken[want[i]] = true;
            for (int64_t i = 0; i < k; i++) {
                int32_t id = by_score[i];
                CHECK(id >= 0 ? taken[id] && score[i] == p[row * n + id] : score[i] == -INFINITY,
                      "round %d: id %d", round, id);
                if (id >= 0) taken[id] = false; /* each once */
                if (i == 0) continue;
                CHECK(id < 0 || score[i] < score[i - 1] ||
                          (score[i] == score[i - 1] && id > by_score[i - 1]),
                      "round %d: order", round);
            }
            for (int64_t i = 0; i < n; i++)
                CHECK(!taken[i], "round %d: id %lld is missing", round, (long long)i);
        }
        kvl_tensor *all[] = {x, ids, scores, sorted};
        for (int i = 0; i < 4; i++)
            kvl_tensor_free(all[i]);
    }
    int64_t two[1] = {2}, zero = 0;
    kvl_tensor *x = randn(1, two), *single, *ids;
    kvl_tensor_new(&single, KVL_FLOAT32, 0, &zero, &err);
    CHECK(kvl_tensor_topk(&ids, NULL, x, -1, KVL_BY_SCORE, &err) == KVL_EINVAL && !ids, "k = -1");
    CHECK(kvl_tensor_topk(&ids, NULL, x, INT64_MAX, KVL_BY_SCORE, &err) != KVL_OK && !ids,
          "k huge");
    CHECK(kvl_tensor_topk(&ids, NULL, single, 1, KVL_BY_SCORE, &err) == KVL_EINVAL && !ids,
          "no dimension");
    kvl_tensor_free(x);
    kvl_tensor_free(single);
}

static void test_cumsum(void) {
    int64_t shape[3] = {3, 50, 4};
    kvl_tensor *x = randn(3, shape), *out;
    CHECK(kvl_cumsum(&out, x, 1, &err) == KVL_OK, "%s", err.msg);
    double worst = 0;
    for (int64_t i = 0; i < 3; i++)
        for (int64_t c = 0; c < 4; c++) {
            double sum = 0;
            for (int64_t j = 0; j < 50; j++) {
                int64_t index[3] = {i, j, c};
                sum += element(x, index);
                worst = fmax(worst, fabs(element(out, index) - sum) / (1 + fabs(sum)));
            }
        }
    CHECK(worst < 6e-8, "cumsum: %g", worst);
    kvl_tensor_free(x);
    kvl_tensor_free(out);
    int64_t two[1] = {2};
    int32_t big[2] = {2000000000, 2000000000};
    x = ints(1, two, big);
    CHECK(kvl_cumsum(&out, x, 0, &err) == KVL_EINVAL && !out, "cumsum overflow");
    kvl_tensor_free(x);
}

/* --- ids ------------------------------------------------------------------------------------- */

static void test_gather(void) {
    for (int dim = 0; dim < 3; dim++) {
        int64_t shape[3] = {4, 5, 6}, ids_shape[3] = {4, 5, 6};
        ids_shape[dim] = 7;
        kvl_tensor *a = randn(3, shape), *ids, *out, *back, *zero;
        kvl_tensor_new(&ids, KVL_INT32, 3, ids_shape, &err);
        int64_t count = kvl_tensor_numel(ids);
        for (int64_t i = 0; i < count; i++)
            kvl_tensor_i32(ids)[i] = (int32_t)rand_int(shape[dim]);
        CHECK(kvl_gather(&out, a, dim, ids, &err) == KVL_OK, "%s", err.msg);
        kvl_tensor_new(&zero, KVL_FLOAT32, 3, shape, &err);
        CHECK(kvl_scatter(&back, zero, dim, ids, out, true, &err) == KVL_OK, "%s", err.msg);
        kvl_tensor *want;
        kvl_tensor_clone(&want, zero, &err);
        bool right = true;
        for (int64_t i = 0; i < count; i++) {
            int64_t index[3], rest = i;
            for (int d = 2; d >= 0; d--) {
                index[d] = rest % ids_shape[d];
                rest /= ids_shape[d];
            }
            int64_t from = offset_of(out, index);
            index[dim] = kvl_tensor_i32(ids)[i];
            right = right && kvl_tensor_f32(out)[from] == kvl_tensor_f32(a)[offset_of(a, index)];
            kvl_tensor_f32(want)[offset_of(want, index)] += kvl_tensor_f32(out)[from];
        }
        CHECK(right, "gather along %d", dim);
        bool equal;
        kvl_tensor_equal(&equal, want, back, &err);
        CHECK(equal, "scatter_add along %d", dim);
        kvl_tensor_free(back);
        kvl_scatter(&back, a, dim, ids, out, false, &err);
        kvl_tensor_equal(&equal, a, back, &err);
        CHECK(equal, "scattering what was gathered changes nothing");
        int32_t *id = kvl_tensor_i32(ids), bad[] = {-1, (int32_t)shape[dim], INT32_MAX, INT32_MIN};
        for (int i = 0; i < 4; i++) {
            kvl_tensor *none;
            id[count - 1] = bad[i];
            CHECK(kvl_gather(&none, a, dim, ids, &err) == KVL_EINVAL && !none, "id %d", bad[i]);
            CHECK(kvl_scatter(&none, a, dim, ids, out, false, &err) == KVL_EINVAL && !none, "id");
        }
        kvl_tensor *all[] = {a, ids, out, back, zero, want};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            kvl_tensor_free(all[i]);
    }
    int64_t shape[3] = {3, 4, 2}, three[1] = {3}, s22[2] = {2, 2}, vocab[2] = {5, 3};
    int32_t pick[3] = {3, 0, 3}, tokens[4] = {4, 0, 1, 4};
    kvl_tensor *a = randn(3, shape), *ids = ints(1, three, pick), *out, *w = randn(2, vocab);
    kvl_tensor *turned, *t = ints(2, s22, tokens), *wrong = randn(1, three);
    kvl_tensor_transpose(&turned, a, 0, 2, &err); /* (2, 4, 3) */
    CHECK(kvl_index_select(&out, turned, 1, ids, &err) == KVL_OK, "%s", err.msg);
    int64_t from[3] = {1, 3, 2}, to[3] = {1, 2, 2};
    CHECK(out->shape[1] == 3 && element(out, to) == element(turned, from), "index_select");
    kvl_tensor_free(out);
    CHECK(kvl_embedding(&out, w, t, &err) == KVL_OK && out->ndim == 3, "%s", err.msg);
    int64_t e[3] = {1, 1, 2}, we[2] = {4, 2};
    CHECK(element(out, e) == element(w, we), "embedding");
    kvl_tensor_free(out);
    CHECK(kvl_index_select(&out, w, 1, ids, &err) == KVL_EINVAL && strstr(err.msg, "0 .. 2"), "%s",
          err.msg);
    CHECK(kvl_embedding(&out, w, wrong, &err) == KVL_EINVAL && strstr(err.msg, "int32"), "%s",
          err.msg);
    kvl_tensor *all[] = {a, ids, w, turned, t, wrong};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kvl_tensor_free(all[i]);
}

int main(void) {
    test_unary();
    test_binary();
    test_where();
    test_reduce();
    test_softmax();
    test_topk();
    test_cumsum();
    test_gather();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leaked", kvl_live_bytes());
    return check_done();
}
