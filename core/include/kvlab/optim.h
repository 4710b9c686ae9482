/* optim.h - AdamW, the global norm of gradients, clipping.
 *
 * AdamW (Loshchilov, Hutter: Decoupled weight decay regularization, ICLR 2019, algorithm 2), step
 * t:
 *
 *   p -= lr * decay * p                              g = grad_scale * grad
 *   m  = beta1 m + (1 - beta1) g                     v = beta2 v + (1 - beta2) g^2
 *   p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 *
 * The caller decides what decays (matrices only) by the decay it passes.
 */
#ifndef kvlab_optim_h
#define kvlab_optim_h

#include "kvlab/base.h"

typedef struct kvl_adamw {
    double lr, beta1, beta2, eps, decay;
    double grad_scale; /* 1, or what kvl_clip_scale says */
    int64_t step;      /* t, 1 for the first */
} kvl_adamw;

/* p, m, v and grad [n]; m and v are 0 before the first step. */
KVL_API kvl_status kvl_adamw_step(float *p, float *m, float *v, const float *grad,
                                  const kvl_adamw *adamw, int64_t n, kvl_error *err);
KVL_API void kvl_adamw_step_ref(double *p, double *m, double *v, const double *grad,
                                const kvl_adamw *adamw, int64_t n);

typedef struct kvl_floats {
    float *p;
    int64_t n;
} kvl_floats;

/* sqrt of the sum of all squares, in double, of `count` tensors. */
KVL_API kvl_status kvl_global_norm(double *norm, const kvl_floats *list, int64_t count,
                                   kvl_error *err);

/* The factor that brings a norm down to `max`: 1 when it is not larger (or NaN). max 0 or less: 1.
 */
KVL_API double kvl_clip_scale(double norm, double max);

/* Multiplies all elements in place. */
KVL_API kvl_status kvl_scale_all(const kvl_floats *list, int64_t count, float factor,
                                 kvl_error *err);

#endif
