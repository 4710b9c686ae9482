/* compress_grad.h - gradients of softmax pooling over whole sequences (compress.h).
 *
 * For one entry and channel, with weights p = softmax(z + bias) over its rows and value u = sum p
 * c:
 *
 *     d_c += p * d_out        d_z += p * (c - u) * d_out        d_bias[t mod m] += the same
 *
 * Every row (overlapping: every half of a row) belongs to at most one entry; tokens of an
 * incomplete block, and the a halves of the last block, get nothing. With m = 1, plain, d_c +=
 * d_out and d_z stays. Gradients are added to their buffers.
 */
#ifndef kvlab_compress_grad_h
#define kvlab_compress_grad_h

#include "kvlab/compress.h"

/* d_out [batch, tokens / m, w], contiguous; c, z and comp as in the forward. d_c and d_z are
 * [batch, tokens, row], d_bias [m, row] or NULL. */
KVL_API kvl_status kvl_compress_grad(kvl_rows_grad d_c, kvl_rows_grad d_z, float *d_bias,
                                     const kvl_compressor *comp, const float *d_out, kvl_rows c,
                                     kvl_rows z, int64_t batch, int64_t tokens, kvl_error *err);

#endif
