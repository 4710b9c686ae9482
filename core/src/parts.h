/* parts.h - private: sums over many rows, cut into parts.
 *
 * The gradient of something that every row uses (a norm's weight, a bias) is a sum over all rows.
 * Rows are cut into at most KVL_PARTS parts, by their number and not by threads; every part adds
 * into doubles of its own, and the parts are added in order.
 */
#ifndef kvl_src_parts_h
#define kvl_src_parts_h

#include "kvlab/parallel.h"

enum { KVL_PARTS = 64 };

/* Rows of a part: `wish` if that gives few enough parts. */
static inline int64_t kvl_part_rows(int64_t rows, int64_t wish) {
    int64_t least = kvl_tiles(rows, KVL_PARTS);
    return wish > least ? wish : least;
}

/* out [n] += sum over parts of part [parts, step] from column `from` on; NULL: not wanted. */
static inline void kvl_add_parts(float *out, const double *part, int64_t parts, int64_t step,
                                 int64_t from, int64_t n) {
    for (int64_t i = 0; i < n && out; i++) {
        double sum = 0.0;
        for (int64_t k = 0; k < parts; k++)
            sum += part[k * step + from + i];
        out[i] += (float)sum;
    }
}

#endif
