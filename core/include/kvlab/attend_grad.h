/* attend_grad.h - the gradients of attend, and the attention mass that an indexer learns from.
 *
 * With p[s] as in attend.h, D[b,t,h] = d_out[b,t,h,:] . out[b,t,h,:] and, for every row s seen,
 *
 *   dl[s]      = p[s] * (d_out . value[s] - D)                     gradient of its logit
 *   d_value[s] += p[s] * d_out          d_key[s] += scale * dl[s] * q
 *   d_q        += scale * sum over s of dl[s] * key[s]
 *   d_sink[h]  += sum over b, t of -e^(sink[h] - lse) * D           (a value of 0: its logit's dl)
 *
 * The weights are computed again from lse, a tile at a time. Every gradient is ADDED to its buffer:
 * rows that several layers borrow collect from all of them, and d_key and d_value may be the same
 * or overlapping columns of one buffer (K = V entries, MLA), also those of several sources. Heads
 * and batch items must not share places in a gradient buffer. No result depends on the threads.
 *
 * Selections (lists) are not differentiated. Rotations need no kernel of their own: the gradient of
 * a rotation is the inverse rotation (rope.h).
 */
#ifndef kvlab_attend_grad_h
#define kvlab_attend_grad_h

#include "kvlab/attend.h"

typedef struct kvl_attend_grads {
    const float *d_out; /* [B, T, H, value_width] */
    int64_t d_out_step_b, d_out_step_t, d_out_step_h;
    float *d_q; /* [B, T, H, key_width], or NULL */
    int64_t d_q_step_b, d_q_step_t, d_q_step_h;
    float *d_sink;                        /* [H], or NULL */
    kvl_rows_grad d_key[KVL_MAX_SOURCES]; /* like the source's key and value */
    kvl_rows_grad d_value[KVL_MAX_SOURCES];
} kvl_attend_grads;

/* args as they were given to kvl_attend, with the out and lse that it wrote. Sources are tensors
 * without a ring. */
KVL_API kvl_status kvl_attend_grad(const kvl_attend_grads *grads, const kvl_attend_args *args,
                                   kvl_error *err);

/* The definition in double. Adds to d_q [B, T, H, key_width], d_sink [H], and per source
 * d_key [B, rows, kv_heads, key_width] and d_value [.., value_width], all contiguous, any may be
 * NULL. Of grads only d_out is used; args->out and args->lse are not. */
KVL_API kvl_status kvl_attend_grad_ref(double *d_q, double *d_sink, double *const *d_key,
                                       double *const *d_value, const kvl_attend_grads *grads,
                                       const kvl_attend_args *args, kvl_error *err);

/* How much attention the entries of one source get, summed over the heads: the teacher of an
 * indexer (DeepSeek-V3.2 report 2.1.1).
 *
 *   mass[b,t,j] = sum over h of e^(scale * q[b,t,h,:] . key[set[b,t,j]] - lse[b,t,h])
 *
 * With the lse of the whole attention, each head is normalised together with the window and the
 * sink; the mass is then restricted to the set, and divided by its total. */
typedef struct kvl_mass_args {
    float *out;                    /* [B, T, n], contiguous */
    float *total;                  /* [B, T] mass of the set before it is divided, or NULL */
    const kvl_attend_args *attend; /* q, lse, scale, positions and sources; out is not used */
    int64_t source;                /* which of them */
    /* [B, T, n] entries of the set, -1 for none (mass 0). NULL: the list of the source, with n = k,
     * or all its rows, n = rows. Entries that the rule of the source hides have mass 0; where the
     * source has a list, the set counts instead of it. */
    const int32_t *set;
    int64_t n;
    bool normalise; /* a query without any mass keeps zeros */
} kvl_mass_args;

KVL_API kvl_status kvl_attend_mass(const kvl_mass_args *args, kvl_error *err);

/* In double, from the float32 lse: out [B, T, n]. */
KVL_API kvl_status kvl_attend_mass_ref(double *out, const kvl_mass_args *args, kvl_error *err);

#endif
