/* blas.h - matrix products. blas.c is the only file of the project that calls BLAS.
 *
 * kvlab threads over tiles of the output and calls BLAS single-threaded on each (parallel.h): loops
 * between calls of a multi-threaded BLAS are many times slower. Whoever owns the process decides
 * that once by kvl_blas_single_thread(); the library never changes it behind a host's back. While
 * BLAS has threads of its own, the loops of the core run on one thread: never two pools.
 *
 * Matrices are row-major float32. Sizes are int64_t; what BLAS cannot address is an error here.
 */
#ifndef kvlab_blas_h
#define kvlab_blas_h

#include "kvlab/base.h"

/* One operand: element (i, j) lies at p[i * ld + j], or at p[j * ld + i] when trans.
 * In a batch, matrix number b starts at p + b * step; step 0 uses one matrix for the whole batch.
 */
typedef struct kvl_mat {
    const float *p;
    int64_t ld;
    bool trans;
    int64_t step;
} kvl_mat;

/* Sets the BLAS library of this process to one thread, for good. */
KVL_API void kvl_blas_single_thread(void);

/* Threads that one BLAS call may use by itself when it comes from a loop of the core. */
KVL_API int kvl_blas_threads(void);

/* Name of the kernels that BLAS chose for this processor, for reports. */
KVL_API const char *kvl_blas_core(void);

/* Name of the kernels that this processor could run where BLAS fell back to its oldest ones because
 * it does not know the processor (OpenBLAS before 0.3.25 on Intel's of 2022 and later: a fifth of
 * the speed with AVX-512, half of it with AVX2); NULL when its choice stands. BLAS chooses while
 * it is loaded: only a process started with OPENBLAS_CORETYPE set to this name has them. */
KVL_API const char *kvl_blas_better_core(void);

/* c [m, n] = alpha * a [m, k] b [k, n] + beta * c. With beta = 0, c is only written. c overlaps no
 * operand. Thin products (m or n below 8) go to matrix-vector code: BLAS is up to 8 times slower
 * there. */
KVL_API kvl_status kvl_gemm(float *c, int64_t ldc, kvl_mat a, kvl_mat b, float alpha, float beta,
                            int64_t m, int64_t n, int64_t k, kvl_error *err);

/* The same for a batch: c number i starts at c + i * c_step. */
KVL_API kvl_status kvl_gemm_batched(float *c, int64_t ldc, int64_t c_step, kvl_mat a, kvl_mat b,
                                    float alpha, float beta, int64_t batch, int64_t m, int64_t n,
                                    int64_t k, kvl_error *err);

/* c [m, n] += alpha * a [m, k] b [k, n] where k is long and c small (the gradient of a weight: k is
 * the number of tokens): k is cut into parts for the threads, by size, and the parts are added in
 * order. */
KVL_API kvl_status kvl_gemm_deep(float *c, int64_t ldc, kvl_mat a, kvl_mat b, float alpha,
                                 int64_t m, int64_t n, int64_t k, kvl_error *err);

/* Inside a tile of a loop: one product on this thread, without checks (all sizes and leading
 * dimensions are known to be small). step is ignored. */
KVL_API void kvl_gemm_tile(float *c, int64_t ldc, kvl_mat a, kvl_mat b, float alpha, float beta,
                           int64_t m, int64_t n, int64_t k);

/* A small b [k, n] copied into panels (k * n floats), and c [m, n] = a [m, k] b + beta * c with
 * them, on this thread: the fastest products, for a b that is used for many rows. */
KVL_API void kvl_make_panels(float *panels, kvl_mat b, int64_t n, int64_t k);
KVL_API void kvl_gemm_panels(float *c, int64_t ldc, const float *a, int64_t lda,
                             const float *panels, float alpha, float beta, int64_t m, int64_t n,
                             int64_t k);

/* The definition, summed in double. */
KVL_API void kvl_gemm_ref(double *c, int64_t ldc, kvl_mat a, kvl_mat b, double alpha, double beta,
                          int64_t m, int64_t n, int64_t k);

#endif
