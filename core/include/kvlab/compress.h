/* compress.h - softmax pooling of m tokens into one entry (DeepSeek-V4 report 2.3, V4.1
 * report 2.3).
 *
 * Every token brings a row of values C and a row of scores Z; a position bias B [m, row] is added
 * to Z, row t mod m to token t. Entry b is, separately for every channel,
 *
 *     sum over its rows of softmax(Z) * C
 *
 *   plain (HCA, CSA2):  w columns; its rows are the tokens m b .. m b + m - 1
 *   overlapping (CSA):  2w columns [first | second]; its rows are the first half of the tokens of
 *                       block b - 1 (none for b = 0) and the second half of those of block b
 *
 * With m = 1, plain, an entry is its token, bit by bit. A sequence may come as a whole, token by
 * token or in any chunks: the entries are the same, bit by bit, because all go through one piece of
 * code.
 */
#ifndef kvlab_compress_h
#define kvlab_compress_h

#include "kvlab/rows.h"

typedef struct kvl_compressor {
    int64_t ratio; /* m >= 1 */
    int64_t width; /* w: channels of an entry; a row has w or, overlapping, 2w */
    bool overlap;
    const float *bias; /* [m, row], or NULL */
} kvl_compressor;

/* Whole sequences: out [batch, tokens / m, w], contiguous, from c and z [batch, tokens, row].
 * Tokens of an incomplete block are left out. z.p = NULL: scores 0, so the mean (plus what the bias
 * does). */
KVL_API kvl_status kvl_compress(float *out, const kvl_compressor *comp, kvl_rows c, kvl_rows z,
                                int64_t batch, int64_t tokens, kvl_error *err);
KVL_API kvl_status kvl_compress_ref(double *out, const kvl_compressor *comp, kvl_rows c, kvl_rows z,
                                    int64_t batch, int64_t tokens, kvl_error *err);

/* What one sequence has to remember between tokens: the rows (C, Z + B) of the open block,
 * overlapping also the first halves of the last complete block, and `rollback` rows more, so that
 * as many tokens can be taken back. Float32. comp->bias is not kept. */
typedef struct kvl_compress_state kvl_compress_state;

KVL_API kvl_status kvl_compress_state_new(kvl_compress_state **out, const kvl_compressor *comp,
                                          int64_t rollback, kvl_error *err);
KVL_API kvl_status kvl_compress_state_copy(kvl_compress_state **out, const kvl_compress_state *from,
                                           kvl_error *err);
KVL_API void kvl_compress_state_free(kvl_compress_state *state); /* NULL is fine */

/* Takes n more tokens: rows c and z [n, row] (step_b is not used). Writes the entries they complete
 * to out [(position + n) / m - position / m, w], contiguous. On failure nothing has changed. */
KVL_API kvl_status kvl_compress_push(float *out, kvl_compress_state *state, const float *bias,
                                     kvl_rows c, kvl_rows z, int64_t n, kvl_error *err);

/* The same for sequences in step (the same position, ratio, width): rows [batch, n, row], entries
 * [batch, completed, w]. On failure none of the states has changed. */
KVL_API kvl_status kvl_compress_push_batch(float *out, kvl_compress_state *const *states,
                                           int64_t batch, const float *bias, kvl_rows c, kvl_rows z,
                                           int64_t n, kvl_error *err);

/* Takes back the last n tokens; never further than `rollback` below the largest position so far. */
KVL_API kvl_status kvl_compress_rollback(kvl_compress_state *state, int64_t n, kvl_error *err);

/* Tokens so far; entries so far are that / m. */
KVL_API int64_t kvl_compress_position(const kvl_compress_state *state);

/* Bytes of remembered rows: what any implementation needs to go on from here (at most m - 1 open
 * rows, and m halves), and the room that the rollback adds to it. */
KVL_API size_t kvl_compress_state_bytes(const kvl_compress_state *state);
KVL_API size_t kvl_compress_rollback_bytes(const kvl_compress_state *state);

#endif
