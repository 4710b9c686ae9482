/* sizes.h - smaller, larger and padded sizes, for kernels that cut work into tiles. */
#ifndef kvlab_sizes_h
#define kvlab_sizes_h

#include <stdint.h>

static inline int64_t min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t max(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Floats of one part of a scratch block: a multiple of 16, so that all parts start on cache lines.
 */
static inline int64_t pad(int64_t floats) {
    return (floats + 15) / 16 * 16;
}

#endif
