/* vmath.h - elementwise functions and reductions over float32 vectors, written so that the compiler
 * turns them into vector code.
 *
 * libm's expf is scalar and 10 times slower. Every function here gives the same bits on every
 * processor: no fused multiply-add, and sums run in 16 lanes that are added in a fixed order.
 * NaN goes through; out may be x itself.
 */
#ifndef kvlab_vmath_h
#define kvlab_vmath_h

#include "kvlab/base.h"

/* Compiles a function several times, for the vector units that a processor may have; the loader
 * picks. Sanitizers do not get along with the resolver functions; older clangs name them otherwise
 * in each file. */
#if defined(__x86_64__) && defined(__ELF__) && defined(__OPTIMIZE__) &&                            \
    !defined(__SANITIZE_ADDRESS__) && (!defined(__clang__) || __clang_major__ >= 17)
#define KVL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define KVL_CLONES
#endif

/* out[i] = e^x[i], relative error below 2e-7. Below -87.3 the result is 0, not a denormal number;
 * above 88.7 it is inf. */
KVL_API void kvl_exp(float *out, const float *x, int64_t n);

/* out[i] = e^(x[i] * scale - shift), at most 1 (the shift is the largest); returns their sum. One
 * pass of a softmax. Below e^-87 the result is 0. */
KVL_API float kvl_exp_sum(float *out, const float *x, float scale, float shift, int64_t n);

/* 1 / (1 + e^-x), and x times that (SiLU). Relative error below 1e-6. */
KVL_API void kvl_sigmoid(float *out, const float *x, int64_t n);
KVL_API void kvl_silu(float *out, const float *x, int64_t n);

/* x Phi(x) (GELU), the exact form. Relative error below 4e-6 (left of -3), else 1e-6. */
KVL_API void kvl_gelu(float *out, const float *x, int64_t n);

/* Largest element; -inf for n = 0. A NaN is passed over. */
KVL_API float kvl_max(const float *x, int64_t n);

/* Sum, sum of products, and y += a * x. */
KVL_API float kvl_sum(const float *x, int64_t n);
KVL_API float kvl_dot(const float *x, const float *y, int64_t n);
KVL_API void kvl_axpy(float *y, float a, const float *x, int64_t n);

/* c [m, n] += a [m, k] b [k, n] for a few rows, where BLAS would be slower. Rows of c and b are ldc
 * and ldb apart; element (i, l) of a lies at a[i * a_i + l * a_l]. */
KVL_API void kvl_small_product(float *c, int64_t ldc, const float *a, int64_t a_i, int64_t a_l,
                               const float *b, int64_t ldb, int64_t m, int64_t n, int64_t k);

/* to [cols, rows] = the transpose of from [rows, cols]; rows are ld_to and ld_from apart. */
KVL_API void kvl_transpose(float *to, int64_t ld_to, const float *from, int64_t ld_from,
                           int64_t rows, int64_t cols);

/* Neither NaN nor infinite, all of them. */
KVL_API bool kvl_finite(const float *x, int64_t n);

/* x *= a */
KVL_API void kvl_scale_by(float *x, float a, int64_t n);

#endif
