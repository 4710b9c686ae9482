/* elementwise.c - arithmetic, comparison, unary functions, where; see ops.h.
 *
 * A row function handles one run of elements (walk.h). The usual strides have loops of their own,
 * so that the compiler can turn them into vector code.
 */
#include "kvlab/ops.h"
#include "kvlab/vmath.h"

#include <math.h>
#include <string.h>

#include "walk.h"

/* --- two operands ---------------------------------------------------------------------------- */

#define ROW_LOOP(R, T, so, sa, sb, expr)                                                           \
    for (int64_t i = 0; i < n; i++) {                                                              \
        T x = a[i * (sa)], y = b[i * (sb)];                                                        \
        o[i * (so)] = (R)(expr);                                                                   \
    }

#define BINARY_ROW(name, R, T, expr)                                                               \
    KVL_CLONES static void name(int64_t n, char *const *p, const int64_t *s) {                     \
        R *o = (R *)p[0];                                                                          \
        const T *a = (const T *)p[1], *b = (const T *)p[2];                                        \
        if (s[0] == 1 && s[1] == 1 && s[2] == 1)                                                   \
            ROW_LOOP(R, T, 1, 1, 1, expr)                                                          \
        else if (s[0] == 1 && s[1] == 1 && s[2] == 0)                                              \
            ROW_LOOP(R, T, 1, 1, 0, expr)                                                          \
        else if (s[0] == 1 && s[1] == 0 && s[2] == 1)                                              \
            ROW_LOOP(R, T, 1, 0, 1, expr)                                                          \
        else                                                                                       \
            ROW_LOOP(R, T, s[0], s[1], s[2], expr)                                                 \
    }

BINARY_ROW(add_f32, float, float, x + y)
BINARY_ROW(sub_f32, float, float, x - y)
BINARY_ROW(mul_f32, float, float, x *y)
BINARY_ROW(div_f32, float, float, x / y)
BINARY_ROW(pow_f32, float, float, powf(x, y))
/* x != x: a NaN on either side is the result */
BINARY_ROW(min_f32, float, float, x != x || x < y ? x : y)
BINARY_ROW(max_f32, float, float, x != x || x > y ? x : y)
BINARY_ROW(eq_f32, int32_t, float, x == y)
BINARY_ROW(ne_f32, int32_t, float, x != y)
BINARY_ROW(lt_f32, int32_t, float, x < y)
BINARY_ROW(le_f32, int32_t, float, x <= y)
BINARY_ROW(gt_f32, int32_t, float, x > y)
BINARY_ROW(ge_f32, int32_t, float, x >= y)
BINARY_ROW(min_i32, int32_t, int32_t, x < y ? x : y)
BINARY_ROW(max_i32, int32_t, int32_t, x > y ? x : y)
BINARY_ROW(eq_i32, int32_t, int32_t, x == y)
BINARY_ROW(ne_i32, int32_t, int32_t, x != y)
BINARY_ROW(lt_i32, int32_t, int32_t, x < y)
BINARY_ROW(le_i32, int32_t, int32_t, x <= y)
BINARY_ROW(gt_i32, int32_t, int32_t, x > y)
BINARY_ROW(ge_i32, int32_t, int32_t, x >= y)

typedef void plain_row(int64_t n, char *const *p, const int64_t *s);

static const struct {
    const char *name;
    plain_row *f32, *i32;
} binary_ops[KVL_BINARY_OPS] = {
    [KVL_ADD] = {"add", add_f32, NULL},        [KVL_SUB] = {"sub", sub_f32, NULL},
    [KVL_MUL] = {"mul", mul_f32, NULL},        [KVL_DIV] = {"div", div_f32, NULL},
    [KVL_POW] = {"pow", pow_f32, NULL},        [KVL_MIN] = {"minimum", min_f32, min_i32},
    [KVL_MAX] = {"maximum", max_f32, max_i32}, [KVL_EQ] = {"eq", eq_f32, eq_i32},
    [KVL_NE] = {"ne", ne_f32, ne_i32},         [KVL_LT] = {"lt", lt_f32, lt_i32},
    [KVL_LE] = {"le", le_f32, le_i32},         [KVL_GT] = {"gt", gt_f32, gt_i32},
    [KVL_GE] = {"ge", ge_f32, ge_i32},
};

const char *kvl_binary_name(kvl_binary_op op) {
    return binary_ops[op].name;
}

/* int32 add, sub, mul: checked, because a wrapped id would point at something else. */
static kvl_status checked_row(kvl_binary_op op, int64_t n, char *const *p, const int64_t *s,
                              kvl_error *err) {
    int32_t *o = (int32_t *)p[0];
    const int32_t *a = (const int32_t *)p[1], *b = (const int32_t *)p[2];
    for (int64_t i = 0; i < n; i++) {
        int64_t x = a[i * s[1]], y = b[i * s[2]];
        int64_t r = op == KVL_ADD ? x + y : op == KVL_SUB ? x - y : x * y;
        if (r != (int32_t)r)
            return kvl_fail(err, KVL_EINVAL, "%s: %lld and %lld give %lld, more than int32 holds",
                            kvl_binary_name(op), (long long)x, (long long)y, (long long)r);
        o[i * s[0]] = (int32_t)r;
    }
    return KVL_OK;
}

typedef struct binary_job {
    kvl_binary_op op;
    kvl_dtype dtype; /* of the operands */
} binary_job;

static kvl_status binary_row(void *ctx, int64_t n, char *const *p, const int64_t *s,
                             kvl_error *err) {
    const binary_job *job = ctx;
    if (job->dtype == KVL_INT32 && !binary_ops[job->op].i32)
        return checked_row(job->op, n, p, s, err);
    (job->dtype == KVL_INT32 ? binary_ops[job->op].i32 : binary_ops[job->op].f32)(n, p, s);
    return KVL_OK;
}

/* Two views that do not overlap, or that are the same elements in the same places. */
static bool safe_alias(const kvl_tensor *out, const kvl_tensor *in) {
    if (!kvl_tensor_shares(out, in)) return true;
    if (out->offset != in->offset || out->ndim != in->ndim) return false;
    for (int i = 0; i < out->ndim; i++)
        if (out->shape[i] != in->shape[i] || (out->shape[i] > 1 && out->stride[i] != in->stride[i]))
            return false;
    return true;
}

/* Makes or fills *out; `fresh` says which. */
static kvl_status binary(kvl_tensor **out, bool fresh, kvl_binary_op op, const kvl_tensor *a,
                         const kvl_tensor *b, kvl_error *err) {
    int ndim;
    int64_t shape[KVL_MAX_DIMS];
    kvl_tensor *x = NULL, *y = NULL, *made = NULL;
    kvl_status status = kvl_broadcast(&ndim, shape, kvl_binary_name(op), a, b, err);
    if (status != KVL_OK) return status;
    bool integer = a->dtype == KVL_INT32 && b->dtype == KVL_INT32 && op != KVL_DIV && op != KVL_POW;
    binary_job job = {op, integer ? KVL_INT32 : KVL_FLOAT32};
    kvl_dtype type = op >= KVL_EQ ? KVL_INT32 : job.dtype;

    if (!fresh) {
        char ta[KVL_SHAPE_TEXT], tb[KVL_SHAPE_TEXT];
        bool same = (*out)->ndim == ndim && (*out)->dtype == type;
        for (int i = 0; same && i < ndim; i++)
            same = (*out)->shape[i] == shape[i];
        if (!same)
            return kvl_fail(err, KVL_EINVAL, "%s: the result is %s %s, the target is %s %s",
                            kvl_binary_name(op), kvl_dtype_name(type),
                            kvl_shape_text(ta, ndim, shape), kvl_dtype_name((*out)->dtype),
                            kvl_shape_text(tb, (*out)->ndim, (*out)->shape));
        status = kvl_check_writable(*out, kvl_binary_name(op), err);
        if (status != KVL_OK) return status;
    }
    status = kvl_tensor_cast(&x, a, job.dtype, err);
    if (status == KVL_OK) status = kvl_tensor_cast(&y, b, job.dtype, err);
    bool direct = !fresh && status == KVL_OK && safe_alias(*out, x) && safe_alias(*out, y);
    if (status == KVL_OK && !direct) status = kvl_tensor_new_raw(&made, type, ndim, shape, err);
    if (status == KVL_OK) {
        kvl_walk w;
        kvl_walk_init(&w, ndim, shape);
        kvl_walk_add(&w, direct ? *out : made);
        kvl_walk_add(&w, x);
        kvl_walk_add(&w, y);
        status = kvl_walk_run(&w, binary_row, &job, err);
    }
    if (status == KVL_OK && !fresh && !direct) status = kvl_tensor_copy(*out, made, err);
    kvl_tensor_free(x);
    kvl_tensor_free(y);
    if (fresh && status == KVL_OK)
        *out = made;
    else
        kvl_tensor_free(made);
    return status;
}

kvl_status kvl_binary(kvl_tensor **out, kvl_binary_op op, const kvl_tensor *a, const kvl_tensor *b,
                      kvl_error *err) {
    *out = NULL;
    return binary(out, true, op, a, b, err);
}

kvl_status kvl_binary_into(kvl_tensor *out, kvl_binary_op op, const kvl_tensor *a,
                           const kvl_tensor *b, kvl_error *err) {
    return binary(&out, false, op, a, b, err);
}

/* --- one operand ----------------------------------------------------------------------------- */

#define UNARY(name, R, T, expr)                                                                    \
    KVL_CLONES static void name(R *o, const T *a, int64_t n) {                                     \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T x = a[i];                                                                            \
            o[i] = (expr);                                                                         \
        }                                                                                          \
    }

UNARY(neg_f32, float, float, -x)
UNARY(abs_f32, float, float, fabsf(x))
UNARY(log_f32, float, float, logf(x))
UNARY(sqrt_f32, float, float, sqrtf(x))
UNARY(rsqrt_f32, float, float, 1 / sqrtf(x))
UNARY(relu_f32, float, float, x < 0 ? 0 : x)
UNARY(tanh_f32, float, float, tanhf(x))

typedef void float_fn(float *out, const float *x, int64_t n);

static const struct {
    const char *name;
    float_fn *f32;
} unary_ops[KVL_UNARY_OPS] = {
    [KVL_NEG] = {"neg", neg_f32},    [KVL_ABS] = {"abs", abs_f32},
    [KVL_EXP] = {"exp", kvl_exp},    [KVL_LOG] = {"log", log_f32},
    [KVL_SQRT] = {"sqrt", sqrt_f32}, [KVL_RSQRT] = {"rsqrt", rsqrt_f32},
    [KVL_RELU] = {"relu", relu_f32}, [KVL_SIGMOID] = {"sigmoid", kvl_sigmoid},
    [KVL_SILU] = {"silu", kvl_silu}, [KVL_GELU] = {"gelu", kvl_gelu},
    [KVL_TANH] = {"tanh", tanh_f32},
};

const char *kvl_unary_name(kvl_unary_op op) {
    return unary_ops[op].name;
}

static kvl_status unary_row(void *ctx, int64_t n, char *const *p, const int64_t *s,
                            kvl_error *err) {
    (void)err;
    float_fn *fn = unary_ops[*(const kvl_unary_op *)ctx].f32;
    float *o = (float *)p[0];
    const float *a = (const float *)p[1];
    if (s[0] == 1 && s[1] == 1) {
        fn(o, a, n);
        return KVL_OK;
    }
    float part[256]; /* strided operands pass through here */
    for (int64_t from = 0; from < n; from += 256) {
        int64_t count = n - from < 256 ? n - from : 256;
        for (int64_t i = 0; i < count; i++)
            part[i] = a[(from + i) * s[1]];
        fn(part, part, count);
        for (int64_t i = 0; i < count; i++)
            o[(from + i) * s[0]] = part[i];
    }
    return KVL_OK;
}

/* neg and abs of int32; the most negative number has no opposite */
static kvl_status unary_int_row(void *ctx, int64_t n, char *const *p, const int64_t *s,
                                kvl_error *err) {
    kvl_unary_op op = *(const kvl_unary_op *)ctx;
    int32_t *o = (int32_t *)p[0];
    const int32_t *a = (const int32_t *)p[1];
    for (int64_t i = 0; i < n; i++) {
        int32_t x = a[i * s[1]];
        if (x == INT32_MIN)
            return kvl_fail(err, KVL_EINVAL, "%s: int32 cannot hold the opposite of %d",
                            kvl_unary_name(op), (int)x);
        o[i * s[0]] = op == KVL_NEG || x < 0 ? -x : x;
    }
    return KVL_OK;
}

kvl_status kvl_unary(kvl_tensor **out, kvl_unary_op op, const kvl_tensor *a, kvl_error *err) {
    kvl_tensor *x;
    *out = NULL;
    bool integer = a->dtype == KVL_INT32 && (op == KVL_NEG || op == KVL_ABS);
    kvl_status status = kvl_tensor_cast(&x, a, integer ? KVL_INT32 : KVL_FLOAT32, err);
    if (status != KVL_OK) return status;
    status = kvl_tensor_new_raw(out, x->dtype, x->ndim, x->shape, err);
    if (status == KVL_OK) {
        kvl_walk w;
        kvl_walk_init(&w, x->ndim, x->shape);
        kvl_walk_add(&w, *out);
        kvl_walk_add(&w, x);
        status = kvl_walk_run(&w, integer ? unary_int_row : unary_row, &op, err);
    }
    kvl_tensor_free(x);
    if (status != KVL_OK) {
        kvl_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

void kvl_unary_ref(double *out, kvl_unary_op op, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double v = x[i];
        switch (op) {
        case KVL_NEG: out[i] = -v; break;
        case KVL_ABS: out[i] = fabs(v); break;
        case KVL_EXP: out[i] = exp(v); break;
        case KVL_LOG: out[i] = log(v); break;
        case KVL_SQRT: out[i] = sqrt(v); break;
        case KVL_RSQRT: out[i] = 1 / sqrt(v); break;
        case KVL_RELU: out[i] = v < 0 ? 0 : v; break;
        case KVL_SIGMOID: out[i] = 1 / (1 + exp(-v)); break;
        case KVL_SILU: out[i] = v / (1 + exp(-v)); break;
        case KVL_GELU: out[i] = 0.5 * v * erfc(-v * 0.70710678118654752440); break;
        default: out[i] = tanh(v); break;
        }
    }
}

/* --- where ----------------------------------------------------------------------------------- */

static kvl_status where_row(void *ctx, int64_t n, char *const *p, const int64_t *s,
                            kvl_error *err) {
    (void)err;
    bool integer = *(const kvl_dtype *)ctx == KVL_INT32;
    uint32_t *o = (uint32_t *)p[0];
    const uint32_t *a = (const uint32_t *)p[2], *b = (const uint32_t *)p[3];
    for (int64_t i = 0; i < n; i++) {
        const char *c = p[1] + i * s[1] * 4;
        bool yes = integer ? *(const int32_t *)c != 0 : *(const float *)c != 0;
        o[i * s[0]] = yes ? a[i * s[2]] : b[i * s[3]];
    }
    return KVL_OK;
}

kvl_status kvl_where(kvl_tensor **out, const kvl_tensor *condition, const kvl_tensor *a,
                     const kvl_tensor *b, kvl_error *err) {
    kvl_tensor *x = NULL, *y = NULL, both = {0}, shape = {0};
    *out = NULL;
    kvl_status status = kvl_broadcast(&both.ndim, both.shape, "where", a, b, err);
    if (status == KVL_OK)
        status = kvl_broadcast(&shape.ndim, shape.shape, "where", condition, &both, err);
    if (status != KVL_OK) return status;
    kvl_dtype type = a->dtype == KVL_INT32 && b->dtype == KVL_INT32 ? KVL_INT32 : KVL_FLOAT32;
    status = kvl_tensor_cast(&x, a, type, err);
    if (status == KVL_OK) status = kvl_tensor_cast(&y, b, type, err);
    if (status == KVL_OK) status = kvl_tensor_new_raw(out, type, shape.ndim, shape.shape, err);
    if (status == KVL_OK) {
        kvl_dtype kind = condition->dtype;
        kvl_walk w;
        kvl_walk_init(&w, shape.ndim, shape.shape);
        kvl_walk_add(&w, *out);
        kvl_walk_add(&w, condition);
        kvl_walk_add(&w, x);
        kvl_walk_add(&w, y);
        status = kvl_walk_run(&w, where_row, &kind, err);
    }
    kvl_tensor_free(x);
    kvl_tensor_free(y);
    if (status != KVL_OK) {
        kvl_tensor_free(*out);
        *out = NULL;
    }
    return status;
}
