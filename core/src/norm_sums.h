/* norm_sums.h - private: sums of one row in double precision, for norms and their gradients.
 *
 * One sum per loop: with two of them gcc takes the loop over the lanes apart and does not get it
 * together again (measured: 5 times slower).
 */
#ifndef kvl_src_norm_sums_h
#define kvl_src_norm_sums_h

#include <stdint.h>

enum { KVL_SUM_LANES = 8 };

/* Sums of x and of (x - mean)^2, in norm.c. */
double kvl_row_sum(const float *x, int64_t n);
double kvl_row_squares(const float *x, double mean, int64_t n);

#endif
