/* norm.h - RMSNorm, LayerNorm and the Hadamard rotation over the last axis.
 *
 *   rms_norm    x / sqrt(mean(x^2) + eps) * w, or without w (V4: per query head)
 *   layer_norm  (x - mean(x)) / sqrt(var(x) + eps) * w + b (V3.2: index keys)
 *   hadamard    Walsh-Hadamard, Sylvester order, scaled to keep lengths; n a power of two
 *
 * x and out are [rows, n] with row steps; out may be x. Sums are taken in double.
 */
#ifndef kvlab_norm_h
#define kvlab_norm_h

#include "kvlab/base.h"

KVL_API kvl_status kvl_rms_norm(float *out, int64_t out_step, const float *x, int64_t x_step,
                                const float *weight, float eps, int64_t rows, int64_t n,
                                kvl_error *err);
KVL_API void kvl_rms_norm_ref(double *out, const double *x, const double *weight, double eps,
                              int64_t n);

/* weight and bias may be NULL. */
KVL_API kvl_status kvl_layer_norm(float *out, int64_t out_step, const float *x, int64_t x_step,
                                  const float *weight, const float *bias, float eps, int64_t rows,
                                  int64_t n, kvl_error *err);
KVL_API void kvl_layer_norm_ref(double *out, const double *x, const double *weight,
                                const double *bias, double eps, int64_t n);

KVL_API kvl_status kvl_hadamard(float *out, int64_t out_step, const float *x, int64_t x_step,
                                int64_t rows, int64_t n, kvl_error *err);
KVL_API void kvl_hadamard_ref(double *out, const double *x, int64_t n);

#endif
