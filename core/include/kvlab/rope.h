/* rope.h - rotary position embedding, with YaRN frequencies.
 *
 * Pair i of the rotated channels turns by position * freq[i]. Pairs are adjacent channels (2i,
 * 2i+1) (MLA, V4, V4.1) or half-split (i, i + n/2) (V3.2 indexer); the rotated channels are the
 * first or the last n of a vector, the others pass. The inverse turns back (V4: attention outputs).
 * Angles are computed in double: float32 would lose 1e-2 radians at position 131,072.
 */
#ifndef kvlab_rope_h
#define kvlab_rope_h

#include "kvlab/base.h"

/* YaRN: frequencies that turn less than beta_slow times within `context` tokens are divided by
 * `factor`, those above beta_fast stay, linear in between. No magnitude factor. */
typedef struct kvl_yarn {
    double factor, context, beta_fast, beta_slow;
} kvl_yarn;

/* freq [n / 2]: theta^(-2i/n), changed by YaRN when yarn is not NULL. n is even. */
KVL_API kvl_status kvl_rope_freqs(double *freq, double theta, const kvl_yarn *yarn, int64_t n,
                                  kvl_error *err);

typedef struct kvl_rope {
    const double *freq; /* [n / 2] */
    int64_t n;          /* rotated channels, even */
    bool first;         /* the first n channels of a vector, else the last n */
    bool half_split;    /* pairs (i, i + n/2), else (2i, 2i + 1) */
    bool inverse;
} kvl_rope;

/* x and out [B, T, H, width] with steps (the same for both; channel step 1); out may be x. Token
 * (b, t) is at position pos[b * pos_step + t], or at pos0 + t * stride when pos is NULL (stride:
 * the ratio of compressed entries, which lie at their first token). */
typedef struct kvl_rope_args {
    float *out;
    const float *x;
    int64_t step_b, step_t, step_h;
    const int64_t *pos;
    int64_t pos_step, pos0, stride;
    int64_t batch, tokens, heads, width;
} kvl_rope_args;

KVL_API kvl_status kvl_rope_apply(const kvl_rope *rope, const kvl_rope_args *args, kvl_error *err);

/* One vector [width] in double. */
KVL_API void kvl_rope_ref(double *out, const double *x, const kvl_rope *rope, double position,
                          int64_t width);

#endif
