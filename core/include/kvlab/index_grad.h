/* index_grad.h - how the indexer learns: the KL loss of its scores against attention mass, and the
 * gradients of its queries, weights and keys (DeepSeek-V3.2 report 2.1.1).
 *
 * Per query t, over its supervised set S (the entries it sees, or those of a list or pool that it
 * sees), with the target p[t,s] >= 0 (attend_grad.h: kvl_attend_mass) and I as in index.h:
 *
 *   loss[t]  = sum over S of p * (log p - log softmax_S(I))
 *   dI[t,s]  = softmax_S(I) * sum(p) - p          times the factor of the query
 *   d_w[t,j] += sum dI max(0, q . key)     d_q[t,j] += sum dI w [q . key > 0] key     d_key[s] +=
 * ..
 *
 * A query whose target is all 0 has loss 0 and no gradient. Gradients are added to their buffers;
 * an owner's keys collect from every layer that selects with them. The selection itself has no
 * gradient. Scores of single heads exist only for a tile of queries and keys.
 */
#ifndef kvlab_index_grad_h
#define kvlab_index_grad_h

#include "kvlab/index.h"

typedef struct kvl_index_grad_args {
    /* q, w, key, positions as in the forward; pool = the set (NULL: all visible). No reader. */
    const kvl_index_args *index;
    const float *target; /* [B, T, n], n = pool_size or rows; entries outside S do not count */
    const float *factor; /* [B, T], or NULL: 1. Scales the gradients, not the loss */
    float *loss;         /* [B, T], or NULL */
    float *d_q;          /* [B, T, heads, width], or NULL */
    int64_t d_q_step_b, d_q_step_t, d_q_step_h;
    float *d_w; /* [B, T, heads], or NULL */
    int64_t d_w_step_b, d_w_step_t;
    kvl_rows_grad d_key; /* [B, rows, width] */
} kvl_index_grad_args;

KVL_API kvl_status kvl_index_grad(const kvl_index_grad_args *args, kvl_error *err);

/* In double: loss [B, T] is written; d_q, d_w, d_key, contiguous, are added to. Any may be NULL. */
KVL_API kvl_status kvl_index_grad_ref(double *loss, double *d_q, double *d_w, double *d_key,
                                      const kvl_index_grad_args *args, kvl_error *err);

#endif
