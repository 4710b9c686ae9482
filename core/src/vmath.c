/* vmath.c - branch-free exp and lane-wise reductions. See vmath.h. */
#include "kvlab/vmath.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

/* e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2, for x in [-87.33, 88.37].
 * - Adding 1.5 * 2^23 + 127 rounds to an integer and leaves the exponent n + 127 in the low bits of
 *   the sum; shifting these bits into the exponent field drops all others and makes 2^n, or 2^(n -
 * lower).
 * - ln 2 is taken off in two parts; the first has 9 bits, so n * LN2_HI is exact.
 * - The polynomial of degree 6 was fitted to the smallest relative error (2e-9) with p(0) = 1. */
static inline __attribute__((always_inline)) float exp_core(float x, uint32_t lower) {
    const float MAGIC = 12582912.0f + 127.0f, LN2_HI = 0.693359375f, LN2_LO = -2.12194440e-4f;
    float t = x * 1.44269504f + MAGIC;
    float n = t - MAGIC;
    float r = x - n * LN2_HI - n * LN2_LO;
    float p = 1.38436068e-3f;
    p = p * r + 8.37419568e-3f;
    p = p * r + 4.16680047e-2f;
    p = p * r + 1.66664308e-1f;
    p = p * r + 4.99999942e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits - lower) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

enum { LOWEST = -87 }; /* e^-87.33 is the smallest normal float; softmax cuts at -87 */

/* x <= 0 or NaN, the case of a softmax. */
static inline __attribute__((always_inline)) float exp_neg(float x) {
    float e = exp_core(x < LOWEST ? (float)LOWEST : x, 0);
    return x < LOWEST ? 0.0f : e;
}

/* Any x. 2^128 is not a float although e^88.7 is, so the last factor 2 comes by itself; the
 * smallest results then pass through denormal numbers and keep fewer bits, unless it is left out
 * there. */
static inline __attribute__((always_inline)) float exp1(float x) {
    const float LO = -87.33654f, HI = 88.72283f;
    float y = x < LO ? LO : x;
    y = y > HI ? HI : y;
    uint32_t lower = y > 0.0f ? 1 : 0;
    float e = exp_core(y, lower) * (float)(1 + (int32_t)lower);
    e = x < LO ? 0.0f : e;
    return x > HI ? INFINITY : e;
}

KVL_CLONES
void kvl_exp(float *out, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = exp1(x[i]);
}

static inline __attribute__((always_inline)) float add_lanes(const float *lane) {
    float sum = 0.0f;
    for (int j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}

KVL_CLONES
float kvl_exp_sum(float *out, const float *x, float scale, float shift, int64_t n) {
    float lane[LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float e = exp_neg(x[i + j] * scale - shift);
            out[i + j] = e;
            lane[j] += e;
        }
    float sum = add_lanes(lane);
    for (; i < n; i++) {
        out[i] = exp_neg(x[i] * scale - shift);
        sum += out[i];
    }
    return sum;
}

KVL_CLONES
void kvl_sigmoid(float *out, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = 1.0f / (1.0f + exp1(-x[i]));
}

KVL_CLONES
void kvl_silu(float *out, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] / (1.0f + exp1(-x[i]));
}

KVL_CLONES
float kvl_max(const float *x, int64_t n) {
    float lane[LANES];
    for (int j = 0; j < LANES; j++)
        lane[j] = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    float max = -INFINITY;
    for (int j = 0; j < LANES; j++)
        max = lane[j] > max ? lane[j] : max;
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

KVL_CLONES
float kvl_sum(const float *x, int64_t n) {
    float lane[LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += x[i + j];
    float sum = add_lanes(lane);
    for (; i < n; i++)
        sum += x[i];
    return sum;
}

KVL_CLONES
float kvl_dot(const float *x, const float *y, int64_t n) {
    float lane[LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += x[i + j] * y[i + j];
    float sum = add_lanes(lane);
    for (; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

KVL_CLONES
void kvl_axpy(float *y, float a, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

KVL_CLONES
void kvl_scale(float *x, float a, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] *= a;
}
