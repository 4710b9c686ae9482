/* select.h - private to index.c: selection in one row of scores. */
#ifndef kvl_src_select_h
#define kvl_src_select_h

#include "kvlab/base.h"

/* Scratch that a selection among n scores needs. */
size_t kvl_select_bytes(int64_t n);

/* out [k]: places of the k largest of scores [n], ascending, then -1. */
void kvl_select_top(int32_t *out, const float *scores, int64_t n, int64_t k, void *scratch);

/* out [blocks * block]: entries of the best blocks among the first `visible`, ascending,
 * then -1. */
void kvl_select_blocks(int32_t *out, const float *scores, int64_t visible, int64_t block,
                       int64_t blocks, void *scratch);

#endif
