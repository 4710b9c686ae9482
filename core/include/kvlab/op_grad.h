/* op_grad.h - gradients of activations and of the embedding.
 *
 * An activation has one input, so its gradient is made where that of the output was; the gradient
 * of the embedding is added to its buffer. A straight-through quantiser needs no kernel: its
 * gradient is that of its output.
 */
#ifndef kvlab_op_grad_h
#define kvlab_op_grad_h

#include "kvlab/ops.h"

/* d [n] *= f'(x) for relu (0 at 0), sigmoid, silu and gelu; other functions are an error: their
 * gradients are products of what there is. */
KVL_API kvl_status kvl_unary_grad(float *d, kvl_unary_op op, const float *x, int64_t n,
                                  kvl_error *err);
/* f'(x) in double. */
KVL_API double kvl_unary_grad_ref(kvl_unary_op op, double x);

/* SwiGLU: out = silu(gate) * up. Matrices [rows, n] with steps, so that gate and up may be the two
 * halves of one product. The gradient d of out becomes that of gate; that of up is written. */
typedef struct kvl_swiglu_args {
    float *out; /* forward only */
    int64_t out_step;
    float *d, *d_up; /* gradients only */
    int64_t d_step, d_up_step;
    const float *gate, *up;
    int64_t gate_step, up_step;
    int64_t rows, n;
} kvl_swiglu_args;

KVL_API kvl_status kvl_swiglu(const kvl_swiglu_args *args, kvl_error *err);
KVL_API kvl_status kvl_swiglu_grad(const kvl_swiglu_args *args, kvl_error *err);

/* d_weight [vocabulary, width] (rows step apart): row ids[i] += d_out [n, width] row i, in order.
 */
KVL_API kvl_status kvl_embedding_grad(float *d_weight, int64_t d_weight_step, const int32_t *ids,
                                      const float *d_out, int64_t d_out_step, int64_t n,
                                      int64_t vocabulary, int64_t width, kvl_error *err);

#endif
