/* bench.h - what this machine can do at best, to hold kernels against (docs/bench.md).
 *
 * Three limits: one direct call of BLAS, reading a buffer, copying a buffer; and the loop that
 * decodes rows of a cache, the one kernel that otherwise runs only inside of others. Whoever calls
 * them takes the time; nothing here looks at a clock.
 */
#ifndef kvlab_bench_h
#define kvlab_bench_h

#include "kvlab/pool.h"

/* c [n, n] = a [n, n] b [n, n]: one call of cblas_sgemm on this thread (in blas.c). BLAS must have
 * been set to one thread. 2 n^3 floating-point operations. */
KVL_API kvl_status kvl_bench_sgemm(float *c, const float *a, const float *b, int64_t n,
                                   kvl_error *err);

/* Reads x [n] once, on all threads; *sum is that of its elements, so that nothing is left out. */
KVL_API kvl_status kvl_bench_read(double *sum, const float *x, int64_t n, kvl_error *err);

/* memcpy of src [n] to dst [n], on all threads. */
KVL_API kvl_status kvl_bench_copy(float *dst, const float *src, int64_t n, kvl_error *err);

/* Rows 0 .. count-1 of the reader's first table to dst [count, channels], on all threads, by
 * kvl_table_read, as attention reads them: a tile of rows at a time. */
KVL_API kvl_status kvl_bench_decode(float *dst, kvl_reader *reader, int64_t count, kvl_error *err);

#endif
