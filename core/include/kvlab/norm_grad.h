/* norm_grad.h - gradients of the norms (norm.h). The Hadamard rotation is its own adjoint.
 *
 *   rms_norm:    r = 1 / sqrt(mean(x^2) + eps), g = d_out * w
 *                d_x += r g - x r^3 mean(g x)                      d_w += sum over rows of d_out x
 * r layer_norm:  y = (x - mean(x)) / sqrt(var(x) + eps), g = d_out * w d_x += r (g - mean(g) - y
 * mean(g y))     d_w += sum of d_out y    d_b += sum d_out
 *
 * x, d_out and d_x are [rows, n] with row steps. Gradients are added to their buffers, any of which
 * may be NULL. Sums are taken in double.
 */
#ifndef kvlab_norm_grad_h
#define kvlab_norm_grad_h

#include "kvlab/base.h"

typedef struct kvl_norm_grad_args {
    float *d_x;
    int64_t d_x_step;
    float *d_weight, *d_bias; /* [n], or NULL; there is no bias in rms_norm */
    const float *d_out;
    int64_t d_out_step;
    const float *x;
    int64_t x_step;
    const float *weight; /* [n], or NULL: 1 */
    float eps;
    int64_t rows, n;
} kvl_norm_grad_args;

KVL_API kvl_status kvl_rms_norm_grad(const kvl_norm_grad_args *args, kvl_error *err);
KVL_API kvl_status kvl_layer_norm_grad(const kvl_norm_grad_args *args, kvl_error *err);

#endif
