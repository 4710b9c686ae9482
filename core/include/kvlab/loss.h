/* loss.h - cross-entropy, by itself and fused with the output head.
 *
 *   loss[i]       = log(sum over v of e^logits[i,v]) - logits[i, label[i]]
 *   d_logits[i,:] = factor[i] * (softmax(logits[i,:]) - onehot(label[i]))
 *
 * A label of -1 leaves a row out: loss 0, no gradient. Loss and gradient come from one pass. The
 * head multiplies only the rows that have a label and a factor, a block of rows at a time: a task
 * that asks at few positions pays for few, and [N, vocabulary] never exists.
 */
#ifndef kvlab_loss_h
#define kvlab_loss_h

#include "kvlab/base.h"

typedef struct kvl_cross_entropy_args {
    float *loss;           /* [N], or NULL */
    float *d_logits;       /* [N, vocabulary], WRITTEN; may be logits itself; or NULL */
    int64_t d_logits_step; /* between rows */
    const float *logits;   /* [N, vocabulary] */
    int64_t logits_step;
    const int32_t *labels; /* [N], 0 .. vocabulary - 1, or -1 */
    const float *factor;   /* [N] times `scale`, or NULL: `scale` for all. Not in the loss */
    float scale;           /* 1 / rows with a label, for a mean */
    int64_t rows, vocabulary;
} kvl_cross_entropy_args;

KVL_API kvl_status kvl_cross_entropy(const kvl_cross_entropy_args *args, kvl_error *err);

/* The loss of one row in double. */
KVL_API double kvl_cross_entropy_ref(const float *logits, int32_t label, int64_t vocabulary);

/* logits = x weight^T, then the above. Rows with a factor of 0 are left out like those of label -1:
 * their loss is 0. */
typedef struct kvl_head_loss_args {
    float *loss;     /* [N], or NULL */
    float *d_x;      /* [N, width], ADDED to, or NULL */
    float *d_weight; /* [vocabulary, width], ADDED to, or NULL */
    int64_t d_x_step, d_weight_step;
    const float *x;      /* [N, width] */
    const float *weight; /* [vocabulary, width], the table of a tied embedding as it is */
    int64_t x_step, weight_step;
    const int32_t *labels;
    const float *factor;
    float scale;
    int64_t rows, width, vocabulary;
} kvl_head_loss_args;

KVL_API kvl_status kvl_head_loss(const kvl_head_loss_args *args, kvl_error *err);

#endif
