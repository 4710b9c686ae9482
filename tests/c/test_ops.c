/* test_ops.c - every operation against its definition in double precision, with its error bound;
 * the same bits on any number of threads; cancellation; refused memory. */
#include "kvlab/kvlab.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "rand.h"

static kvl_error err;

static kvl_tensor *randn(int ndim, const int64_t *shape) {
    kvl_tensor *t;
    if (kvl_tensor_new(&t, KVL_FLOAT32, ndim, shape, &err) != KVL_OK) return NULL;
    for (int64_t i = 0; i < kvl_tensor_numel(t); i++)
        kvl_tensor_f32(t)[i] = rand_normal();
    return t;
}

static kvl_tensor *ints(int ndim, const int64_t *shape, const int32_t *values) {
    kvl_tensor *t;
    return kvl_tensor_from(&t, KVL_INT32, ndim, shape, values, &err) == KVL_OK ? t : NULL;
}

static kvl_tensor *floats(int ndim, const int64_t *shape, const float *values) {
    kvl_tensor *t;
    return kvl_tensor_from(&t, KVL_FLOAT32, ndim, shape, values, &err) == KVL_OK ? t : NULL;
}

static int64_t offset_of(const kvl_tensor *t, const int64_t *index) {
    int64_t at = 0;
    for (int i = 0; i < t->ndim; i++)
        at += index[i] * t->stride[i];
    return at;
}

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

static double element(const kvl_tensor *t, const int64_t *index) {
    int64_t at = offset_of(t, index);
    return t->dtype == KVL_INT32 ? kvl_tensor_i32(t)[at] : (double)kvl_tensor_f32(t)[at];
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

/* --- matmul: bound relative to sum |a| |b| --------------------------------------------------- */

static void check_matmul(const kvl_tensor *a, const kvl_tensor *b, const char *what) {
    kvl_tensor *c;
    CHECK(kvl_matmul(&c, a, b, &err) == KVL_OK, "%s: %s", what, err.msg);
    if (!c) return;
    int64_t m = a->shape[a->ndim - 2], k = a->shape[a->ndim - 1], n = b->shape[b->ndim - 1];
    double worst = 0;
    for (int64_t i = 0; i < kvl_tensor_numel(c); i++) {
        int64_t index[KVL_MAX_DIMS], rest = i, ia[KVL_MAX_DIMS], ib[KVL_MAX_DIMS];
        for (int d = c->ndim - 1; d >= 0; d--) {
            index[d] = rest % c->shape[d];
            rest /= c->shape[d];
        }
        for (int d = 0; d < c->ndim; d++) {
            int da = d - (c->ndim - a->ndim), db = d - (c->ndim - b->ndim);
            if (da >= 0) ia[da] = a->shape[da] == 1 ? 0 : index[d];
            if (db >= 0) ib[db] = b->shape[db] == 1 ? 0 : index[d];
        }
        double sum = 0, size = 1e-30;
        for (int64_t l = 0; l < k; l++) {
            ia[a->ndim - 2] = index[c->ndim - 2];
            ia[a->ndim - 1] = l;
            ib[b->ndim - 2] = l;
            ib[b->ndim - 1] = index[c->ndim - 1];
            double term = element(a, ia) * element(b, ib);
            sum += term;
            size += fabs(term);
        }
        double off = fabs(element(c, index) - sum) / size;
        if (!(off <= worst)) worst = off;
    }
    CHECK(worst < 1e-6 && c->shape[c->ndim - 2] == m && c->shape[c->ndim - 1] == n, "%s: %g", what,
          worst);
    kvl_tensor_free(c);
}

static void test_matmul(void) {
    for (int round = 0; round < 400; round++) {
        int batch = (int)rand_int(3);
        int64_t shape[2][4], m = 1 + rand_int(12), k = 1 + rand_int(12), n = 1 + rand_int(12);
        kvl_tensor *in[2];
        int64_t lead[2];
        for (int i = 0; i < batch; i++)
            lead[i] = 1 + rand_int(3);
        for (int o = 0; o < 2; o++) {
            int ndim = batch + 2;
            for (int i = 0; i < batch; i++)
                shape[o][i] = rand_unit() < 0.3 ? 1 : lead[i];
            shape[o][batch] = o ? k : m;
            shape[o][batch + 1] = o ? n : k;
            int kind = (int)rand_int(4);
            kvl_tensor *t, *v;
            if (kind == 1 || (kind == 2 && batch == 0)) { /* the matrix transposed */
                int64_t kept = shape[o][batch];
                shape[o][batch] = shape[o][batch + 1];
                shape[o][batch + 1] = kept;
                t = randn(ndim, shape[o]);
                kvl_tensor_transpose(&v, t, batch, batch + 1, &err);
            } else if (kind == 2) { /* heads behind tokens: (m, batch, k) seen as (batch, m, k) */
                int64_t kept = shape[o][batch];
                shape[o][batch] = shape[o][batch - 1];
                shape[o][batch - 1] = kept;
                t = randn(ndim, shape[o]);
                kvl_tensor_transpose(&v, t, batch - 1, batch, &err);
            } else { /* every second column of something wider */
                shape[o][batch + 1] *= kind == 3 ? 2 : 1;
                t = randn(ndim, shape[o]);
                kvl_tensor_slice(&v, t, batch + 1, 0, shape[o][batch + 1] / (kind == 3 ? 2 : 1),
                                 kind == 3 ? 2 : 1, &err);
            }
            kvl_tensor_free(t);
            in[o] = v;
        }
        check_matmul(in[0], in[1], "random");
        kvl_tensor_free(in[0]);
        kvl_tensor_free(in[1]);
    }
    int64_t tall[2] = {3, 9000}, wide[2] = {9000, 2}, s32[2] = {3, 2}, s45[2] = {4, 5};
    int64_t none[2] = {3, 0}, none_b[2] = {0, 2}, two[1] = {2}, three[1] = {3}, five[1] = {5};
    kvl_tensor *a = randn(2, tall), *b = randn(2, wide), *c;
    check_matmul(a, b, "long inner dimension, added in pieces");
    kvl_tensor_free(a);
    kvl_tensor_free(b);
    a = randn(2, none);
    b = randn(2, none_b);
    CHECK(kvl_matmul(&c, a, b, &err) == KVL_OK && kvl_tensor_f32(c)[5] == 0, "inner size 0");
    kvl_tensor_free(a);
    kvl_tensor_free(b);
    kvl_tensor_free(c);
    a = randn(2, s32);
    b = randn(2, s45);
    CHECK(kvl_matmul(&c, a, b, &err) == KVL_EINVAL && !c &&
              strcmp(err.msg, "matmul: inner sizes differ: {3, 2} x {4, 5}") == 0,
          "%s", err.msg);
    kvl_tensor *v2 = randn(1, two), *v3 = randn(1, three), *v5 = randn(1, five);
    CHECK(kvl_matmul(&c, a, v2, &err) == KVL_OK && c->ndim == 1 && c->shape[0] == 3,
          "matrix, vector");
    float want = kvl_tensor_f32(a)[0] * kvl_tensor_f32(v2)[0] +
                 kvl_tensor_f32(a)[1] * kvl_tensor_f32(v2)[1];
    CHECK(fabsf(kvl_tensor_f32(c)[0] - want) < 1e-6f, "matrix, vector");
    kvl_tensor_free(c);
    CHECK(kvl_matmul(&c, v3, a, &err) == KVL_OK && c->ndim == 1 && c->shape[0] == 2,
          "vector, matrix");
    kvl_tensor_free(c);
    CHECK(kvl_matmul(&c, v3, v3, &err) == KVL_OK && c->ndim == 0, "vector, vector");
    kvl_tensor_free(c);
    CHECK(kvl_matmul(&c, v3, v5, &err) == KVL_EINVAL && !c, "%s", err.msg);
    kvl_tensor *all[] = {a, b, v2, v3, v5};
    for (int i = 0; i < 5; i++)
        kvl_tensor_free(all[i]);
}

/* --- random numbers -------------------------------------------------------------------------- */

static void test_random(void) {
    /* known answers published with the Random123 library */
    static const struct {
        uint64_t low, high, key;
        uint32_t out[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x85a308d3243f6a88,
         0x0370734413198a2e,
         0x299f31d0a4093822,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        kvl_philox(out, known[i].key, known[i].low, known[i].high);
        CHECK(memcmp(out, known[i].out, sizeof out) == 0, "philox %d: %08x", i, out[0]);
    }
    enum { N = 200000 };
    int64_t shape[1] = {N}, shorter[1] = {1001};
    kvl_tensor *u, *n, *k, *p, *s;
    kvl_random_uniform(&u, 1, shape, 7, -2, 4, &err);
    kvl_random_normal(&n, 1, shape, 7, 1, 3, &err);
    kvl_random_integer(&k, 1, shape, 7, -3, 6, &err);
    kvl_random_normal(&s, 1, shorter, 7, 1, 3, &err);
    CHECK(memcmp(kvl_tensor_data(s), kvl_tensor_data(n), 1001 * 4) == 0,
          "an element depends on its index");
    double mean_u = 0, mean_n = 0, var_n = 0, next = 0;
    int64_t seen[10] = {0};
    bool inside = true;
    for (int64_t i = 0; i < N; i++) {
        double x = kvl_tensor_f32(n)[i] - 1.0;
        inside = inside && kvl_tensor_f32(u)[i] >= -2 && kvl_tensor_f32(u)[i] < 4;
        mean_u += kvl_tensor_f32(u)[i];
        mean_n += x;
        var_n += x * x;
        if (i > 0) next += x * (kvl_tensor_f32(n)[i - 1] - 1.0);
        int32_t v = kvl_tensor_i32(k)[i];
        CHECK(v >= -3 && v <= 6, "integer %d", v);
        if (v >= -3 && v <= 6) seen[v + 3]++;
    }
    /* five standard errors */
    CHECK(inside && fabs(mean_u / N - 1) < 5 * 1.7321 / sqrt(N), "uniform mean %g", mean_u / N);
    CHECK(fabs(mean_n / N) < 5 * 3 / sqrt(N), "normal mean %g", mean_n / N);
    CHECK(fabs(var_n / N - 9) < 5 * 9 * sqrt(2.0 / N), "normal variance %g", var_n / N);
    CHECK(fabs(next / N) < 5 * 9 / sqrt(N), "neighbours %g", next / N);
    for (int i = 0; i < 10; i++)
        CHECK(fabs((double)seen[i] - N / 10.0) < 5 * sqrt(N * 0.09), "%d: %lld", i,
              (long long)seen[i]);
    kvl_random_permutation(&p, 1000, 3, &err);
    bool once[1000] = {false};
    int fixed = 0;
    for (int i = 0; i < 1000; i++) {
        int32_t v = kvl_tensor_i32(p)[i];
        CHECK(v >= 0 && v < 1000 && !once[v], "a permutation");
        if (v >= 0 && v < 1000) once[v] = true;
        fixed += v == i;
    }
    CHECK(fixed < 10, "%d stayed in place", fixed);
    kvl_tensor *all[] = {u, n, k, p, s}, *bad;
    for (int i = 0; i < 5; i++)
        kvl_tensor_free(all[i]);
    CHECK(kvl_random_uniform(&bad, 1, shape, 1, 2, 1, &err) == KVL_EINVAL && !bad,
          "low above high");
    CHECK(kvl_random_uniform(&bad, 1, shape, 1, 0, NAN, &err) == KVL_EINVAL && !bad, "NaN");
    CHECK(kvl_random_normal(&bad, 1, shape, 1, 0, -1, &err) == KVL_EINVAL && !bad, "deviation -1");
    CHECK(kvl_random_integer(&bad, 1, shape, 1, 5, 4, &err) == KVL_EINVAL && !bad,
          "low above high");
    CHECK(kvl_random_permutation(&bad, -1, 1, &err) == KVL_EINVAL && !bad, "-1 elements");
}

/* --- threads, cancellation, memory ----------------------------------------------------------- */

static uint64_t hash(uint64_t h, const kvl_tensor *t) {
    kvl_tensor *c;
    kvl_tensor_contiguous(&c, t, &err);
    const uint32_t *bits = kvl_tensor_data(c);
    for (int64_t i = 0; i < kvl_tensor_numel(c); i++)
        h = (h ^ bits[i]) * 1099511628211u;
    kvl_tensor_free(c);
    return h;
}

/* Every kind of loop once, on operands of several tasks. */
static uint64_t everything(kvl_status *status) {
    int64_t shape[2] = {300, 700}, row[2] = {1, 700}, ids_shape[2] = {300, 40};
    uint64_t h = 14695981039346656037u;
    kvl_tensor *t[16] = {NULL};
    kvl_status s = kvl_random_normal(&t[0], 2, shape, 11, 0, 1, &err);
    if (!s) s = kvl_random_uniform(&t[1], 2, row, 12, -1, 1, &err);
    if (!s) s = kvl_binary(&t[2], KVL_MUL, t[0], t[1], &err);
    if (!s) s = kvl_reduce(&t[3], KVL_SUM, t[0], -1, false, &err);
    if (!s) s = kvl_reduce(&t[4], KVL_VAR, t[0], 0, false, &err);
    if (!s) s = kvl_reduce(&t[5], KVL_MEAN, t[0], 1, false, &err);
    if (!s) s = kvl_softmax(&t[6], t[0], 0, &err);
    if (!s) s = kvl_logsumexp(&t[7], t[0], 1, &err);
    if (!s) s = kvl_tensor_topk(&t[8], &t[9], t[0], 50, KVL_BY_SCORE, &err);
    if (!s) s = kvl_tensor_transpose(&t[10], t[0], 0, 1, &err);
    if (!s) s = kvl_matmul(&t[11], t[10], t[0], &err);
    if (!s) s = kvl_random_integer(&t[12], 2, ids_shape, 13, 0, 699, &err);
    if (!s) s = kvl_gather(&t[13], t[0], 1, t[12], &err);
    if (!s) s = kvl_scatter(&t[14], t[0], 1, t[12], t[13], true, &err);
    if (!s) s = kvl_where(&t[15], t[1], t[0], t[2], &err);
    kvl_alloc_fail_after(-1); /* what follows is the test's own */
    for (int i = 0; i < 16; i++) {
        if (!s) h = hash(h, t[i]);
        kvl_tensor_free(t[i]);
    }
    *status = s;
    return h;
}

static void test_threads(void) {
    kvl_status status;
    uint64_t first = 0;
    for (int threads = 1; threads <= 7; threads += 2) {
        kvl_set_threads(threads, &err);
        uint64_t h = everything(&status);
        CHECK(status == KVL_OK, "%s", err.msg);
        if (threads == 1) first = h;
        CHECK(h == first, "%d threads change the result", threads);
    }
    kvl_set_threads(0, &err);
}

static void test_out_of_memory(void) {
    size_t before = kvl_live_bytes();
    kvl_status status = KVL_ENOMEM;
    int n = 0;
    for (; status != KVL_OK && n < 300; n++) {
        kvl_alloc_fail_after(n);
        everything(&status);
        kvl_alloc_fail_after(-1);
        CHECK(status == KVL_OK || status == KVL_ENOMEM, "%d: %s", n, err.msg);
        CHECK(kvl_live_bytes() == before, "leak after %d allocations", n);
    }
    CHECK(status == KVL_OK && n > 30, "the sweep ended after %d", n);
}

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static volatile double asked_at, asked_cpu; /* when the request came: in time, in processor time */

static void on_alarm(int signo) {
    (void)signo;
    asked_at = now(CLOCK_MONOTONIC);
    asked_cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    kvl_cancel();
}

/* Starts work that would take seconds; it has to end within 0.2 s of the request at 0.1 s. On a
 * machine that is busy with something else, that is 0.2 s of processor time. */
static void test_cancel(void) {
    signal(SIGALRM, on_alarm);
    int64_t big[2] = {3000, 3000}, deep[2] = {6000, 6000};
    kvl_tensor *m, *d, *out;
    kvl_random_normal(&m, 2, big, 1, 0, 1, &err);
    kvl_random_normal(&d, 2, deep, 1, 0, 1, &err);
    for (int kind = 0; kind < 5; kind++) {
        kvl_status status = KVL_OK;
        double start = now(CLOCK_MONOTONIC);
        ualarm(100000, 0);
        while (status == KVL_OK && now(CLOCK_MONOTONIC) - start < 20) {
            switch (kind) {
            case 0: status = kvl_matmul(&out, d, d, &err); break;
            case 1: status = kvl_softmax(&out, m, 0, &err); break;
            case 2: status = kvl_unary(&out, KVL_TANH, m, &err); break;
            case 3: status = kvl_tensor_topk(&out, NULL, m, 700, KVL_BY_INDEX, &err); break;
            default: status = kvl_random_permutation(&out, 30000000, 1, &err);
            }
            kvl_tensor_free(out);
        }
        double late = now(CLOCK_MONOTONIC) - asked_at;
        double late_cpu = now(CLOCK_PROCESS_CPUTIME_ID) - asked_cpu;
        if (late_cpu < late) late = late_cpu;
        CHECK(status == KVL_ECANCEL && out == NULL, "%d: not cancelled", kind);
        CHECK(late < 0.2 * CHECK_SLOWER, "%d: stopped %.3f s after the request", kind, late);
        kvl_cancel_clear();
    }
    CHECK(kvl_unary(&out, KVL_NEG, m, &err) == KVL_OK, "works again");
    kvl_tensor_free(out);
    kvl_tensor_free(m);
    kvl_tensor_free(d);
}

int main(void) {
    kvl_blas_single_thread();
    test_unary();
    test_binary();
    test_where();
    test_reduce();
    test_softmax();
    test_topk();
    test_cumsum();
    test_gather();
    test_matmul();
    test_random();
    test_threads();
    test_out_of_memory();
    test_cancel();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leaked", kvl_live_bytes());
    return check_done();
}
