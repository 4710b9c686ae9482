/* ops.h - what is computed on tensors, apart from attention and its relatives.
 *
 * Every function makes a new tensor (`out` first, owned by the caller) unless its name ends in
 * _into. Shapes broadcast as in NumPy: sizes counted from the last dimension must be equal or 1.
 * int32 with float32 gives float32. Tensors of ids (gather, embedding, top-k, argmax) are int32 and
 * count from 0. Nothing depends on the number of threads: sums are cut into pieces by size and
 * added in order, in double precision. All of them stop with KVL_ECANCEL soon after kvl_cancel().
 *
 * Negative zero, inf and NaN mean what IEEE says; NaN goes through max, min and argmax (the first
 * NaN wins) and is never taken by top-k.
 */
#ifndef kvlab_ops_h
#define kvlab_ops_h

#include "kvlab/tensor.h"

/* --- elementwise (elementwise.c) ------------------------------------------------------------- */

typedef enum kvl_binary_op {
    KVL_ADD,
    KVL_SUB,
    KVL_MUL,
    KVL_DIV, /* float32 always */
    KVL_POW, /* float32 always */
    KVL_MIN,
    KVL_MAX,
    KVL_EQ, /* this one and the following give int32 0 or 1 */
    KVL_NE,
    KVL_LT,
    KVL_LE,
    KVL_GT,
    KVL_GE,
    KVL_BINARY_OPS
} kvl_binary_op;

typedef enum kvl_unary_op {
    KVL_NEG, /* this one and abs keep int32 */
    KVL_ABS,
    KVL_EXP,
    KVL_LOG,
    KVL_SQRT,
    KVL_RSQRT,
    KVL_RELU,
    KVL_SIGMOID,
    KVL_SILU, /* x sigmoid(x) */
    KVL_GELU, /* x Phi(x), the exact form with erf */
    KVL_TANH,
    KVL_UNARY_OPS
} kvl_unary_op;

KVL_API const char *kvl_binary_name(kvl_binary_op op);
KVL_API const char *kvl_unary_name(kvl_unary_op op);

/* int32 results that do not fit into 32 bits are an error, never wrapped. */
KVL_API kvl_status kvl_binary(kvl_tensor **out, kvl_binary_op op, const kvl_tensor *a,
                              const kvl_tensor *b, kvl_error *err);
/* out has the shape and type of the result; it may be a or b itself or overlap them. */
KVL_API kvl_status kvl_binary_into(kvl_tensor *out, kvl_binary_op op, const kvl_tensor *a,
                                   const kvl_tensor *b, kvl_error *err);
KVL_API kvl_status kvl_unary(kvl_tensor **out, kvl_unary_op op, const kvl_tensor *a,
                             kvl_error *err);
/* condition != 0 ? a : b, all three broadcast. */
KVL_API kvl_status kvl_where(kvl_tensor **out, const kvl_tensor *condition, const kvl_tensor *a,
                             const kvl_tensor *b, kvl_error *err);

/* The definitions, in double: out[i] = op(x[i]). */
KVL_API void kvl_unary_ref(double *out, kvl_unary_op op, const float *x, int64_t n);

/* --- reductions (reduce.c) ------------------------------------------------------------------- */

typedef enum kvl_reduce_op {
    KVL_SUM,  /* of int32: int32, an error when it does not fit */
    KVL_MEAN, /* float32 always */
    KVL_VAR,  /* float32 always: mean of (x - mean)^2, divided by n */
    KVL_AMAX, /* these four fail when there is nothing to compare */
    KVL_AMIN,
    KVL_ARGMAX, /* int32 id of the lowest index among equals */
    KVL_ARGMIN,
    KVL_ANY, /* int32 0 or 1 */
    KVL_ALL,
    KVL_REDUCE_OPS
} kvl_reduce_op;

enum { KVL_EVERY_DIM = -1 };

KVL_API const char *kvl_reduce_name(kvl_reduce_op op);

/* Over one dimension, or over all of them (KVL_EVERY_DIM, in row-major order). A reduced dimension
 * disappears, or stays with size 1 when `keep`. */
KVL_API kvl_status kvl_reduce(kvl_tensor **out, kvl_reduce_op op, const kvl_tensor *a, int dim,
                              bool keep, kvl_error *err);

/* --- along one dimension (rows.c) ------------------------------------------------------------ */

/* A row without anything above -inf gives zeros (nothing to choose from), not NaN. */
KVL_API kvl_status kvl_softmax(kvl_tensor **out, const kvl_tensor *a, int dim, kvl_error *err);
/* log sum exp(x); the dimension disappears. -inf for a row without anything above -inf. */
KVL_API kvl_status kvl_logsumexp(kvl_tensor **out, const kvl_tensor *a, int dim, kvl_error *err);
KVL_API kvl_status kvl_log_softmax(kvl_tensor **out, const kvl_tensor *a, int dim, kvl_error *err);
KVL_API kvl_status kvl_cumsum(kvl_tensor **out, const kvl_tensor *a, int dim, kvl_error *err);

/* The k largest of each row of the last dimension: ids int32 (..., k) and, unless NULL, their
 * scores float32 (..., k). Equal scores: the lower index wins. -inf and NaN are never taken: places
 * that stay empty come last, with id -1 and score -inf. */
typedef enum kvl_topk_order { KVL_BY_INDEX, KVL_BY_SCORE } kvl_topk_order;
KVL_API kvl_status kvl_tensor_topk(kvl_tensor **ids, kvl_tensor **scores, const kvl_tensor *a,
                                   int64_t k, kvl_topk_order order, kvl_error *err);

/* Definitions in double over x (rows, n). */
KVL_API void kvl_softmax_ref(double *out, const float *x, int64_t rows, int64_t n);
KVL_API void kvl_logsumexp_ref(double *out, const float *x, int64_t rows, int64_t n);

/* --- by ids (gather.c): an id outside its dimension is an error ------------------------------ */

/* out has the shape of ids; its element at (.., j, ..) is a at (.., ids[.., j, ..], ..). The other
 * sizes of ids and a are equal. */
KVL_API kvl_status kvl_gather(kvl_tensor **out, const kvl_tensor *a, int dim, const kvl_tensor *ids,
                              kvl_error *err);
/* A copy of a with element (.., ids[.., j, ..], ..) set to src (.., j, ..), or with it added when
 * `add`. ids and src have one shape; repeated ids are taken in order. */
KVL_API kvl_status kvl_scatter(kvl_tensor **out, const kvl_tensor *a, int dim,
                               const kvl_tensor *ids, const kvl_tensor *src, bool add,
                               kvl_error *err);
/* Slices ids[0], ids[1], ... of dimension dim; ids has one dimension. */
KVL_API kvl_status kvl_index_select(kvl_tensor **out, const kvl_tensor *a, int dim,
                                    const kvl_tensor *ids, kvl_error *err);
/* weight (vocabulary, width), ids of any shape -> (ids..., width). */
KVL_API kvl_status kvl_embedding(kvl_tensor **out, const kvl_tensor *weight, const kvl_tensor *ids,
                                 kvl_error *err);

/* --- products (matmul.c) --------------------------------------------------------------------- */

/* a (..., m, k) x b (..., k, n) -> (..., m, n); the leading dimensions broadcast. A vector on the
 * left is one row, on the right one column, and that dimension disappears. Operands whose last two
 * dimensions are a matrix or a transposed one are used where they lie. */
KVL_API kvl_status kvl_matmul(kvl_tensor **out, const kvl_tensor *a, const kvl_tensor *b,
                              kvl_error *err);

/* --- random numbers (random.c) --------------------------------------------------------------- */

/* Element i depends on (seed, i) and nothing else: Philox 4x32-10, key = seed, counter = i / 4.
 * Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011). */
KVL_API void kvl_philox(uint32_t out[4], uint64_t seed, uint64_t counter_low,
                        uint64_t counter_high);
/* float32 in [low, high). */
KVL_API kvl_status kvl_random_uniform(kvl_tensor **out, int ndim, const int64_t *shape,
                                      uint64_t seed, double low, double high, kvl_error *err);
KVL_API kvl_status kvl_random_normal(kvl_tensor **out, int ndim, const int64_t *shape,
                                     uint64_t seed, double mean, double deviation, kvl_error *err);
/* int32 from low to high, both included. */
KVL_API kvl_status kvl_random_integer(kvl_tensor **out, int ndim, const int64_t *shape,
                                      uint64_t seed, int32_t low, int32_t high, kvl_error *err);
/* int32 (n): 0 .. n-1 in random order. */
KVL_API kvl_status kvl_random_permutation(kvl_tensor **out, int64_t n, uint64_t seed,
                                          kvl_error *err);

#endif
