/* rows.h - where rows come from: a part of a tensor, or a reader that makes them.
 *
 * Attend and Index take both. A cache pool is a reader: it decodes records into float32 and counts
 * the bytes; nothing else counts.
 */
#ifndef kvlab_rows_h
#define kvlab_rows_h

#include "kvlab/base.h"

/* Element (b, s, h, c) lies at p[b * step_b + s * step_s + h * step_h + c]; b is the batch item, s
 * the row, h the head (0 where there are none), c the channel. */
typedef struct kvl_rows {
    const float *p;
    int64_t step_b, step_s, step_h;
} kvl_rows;

/* Where the gradient of such rows is added; p NULL: it is not wanted. */
typedef struct kvl_rows_grad {
    float *p;
    int64_t step_b, step_s, step_h;
} kvl_rows_grad;

/* Writes `count` rows of one batch item to dst, one after the other: rows list[0..count) when list
 * is not NULL, else rows first, first + 1, ... Called from several threads at a time. */
typedef kvl_status (*kvl_read_rows)(void *ctx, int64_t batch, const int32_t *list, int64_t first,
                                    int64_t count, float *dst, kvl_error *err);

#endif
