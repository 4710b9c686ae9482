/* vmath.c - branch-free exp and lane-wise reductions. See vmath.h.
 *
 * Plain loops that the compiler vectorises by itself: explicit vector types are taken apart before
 * gcc makes the clones of a function, and then stay apart (measured: 4 times slower).
 */
#include "kvlab/vmath.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 16, BLOCK = 256 };

/* e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2, times 2^-lower.
 * - Adding 1.5 * 2^23 + 127 rounds to an integer and leaves the exponent n + 127 in the low bits of
 *   the sum; shifting these bits into the exponent field drops all others and makes 2^(n - lower).
 * - ln 2 is taken off in two parts; the first has 9 bits, so n * LN2_HI is exact.
 * - The polynomial of degree 6 was fitted to the smallest relative error (2e-9) with p(0) = 1. It
 * is evaluated in pairs: one long chain of operations would leave the vector unit waiting. */
INLINE float exp_core(float x, uint32_t lower) {
    const float MAGIC = 12582912.0f + 127.0f, LN2_HI = 0.693359375f, LN2_LO = -2.12194440e-4f;
    float t = x * 1.44269504f + MAGIC;
    float n = t - MAGIC;
    float r = x - n * LN2_HI - n * LN2_LO;
    float r2 = r * r;
    float low = 4.99999942e-1f + 1.66664308e-1f * r;
    float high = 4.16680047e-2f + 8.37419568e-3f * r + 1.38436068e-3f * r2;
    float p = 1.0f + (r + r2 * (low + high * r2));
    uint32_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits - lower) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* x <= 0 or NaN, the case of a softmax. e^-87 is still a normal number. */
INLINE float exp_neg(float x) {
    const float LO = -87.0f;
    float e = exp_core(x < LO ? LO : x, 0);
    return x < LO ? 0.0f : e;
}

/* Any x. 2^128 is not a float although e^88.7 is, so the last factor 2 comes by itself; the
 * smallest results keep theirs, or they would pass through denormal numbers. */
INLINE float exp1(float x) {
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

/* Full blocks of lanes are added into `lane`; the result adds the lanes, by halves,
 * and the rest. */
INLINE float sum_lanes(float *lane, const float *rest, int64_t n) {
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    float sum = lane[0];
    for (int64_t i = 0; i < n; i++)
        sum += rest[i];
    return sum;
}

KVL_CLONES
float kvl_sum(const float *x, int64_t n) {
    float lane[LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += x[i + j];
    return sum_lanes(lane, x + i, n - i);
}

/* In blocks, so that the second pass finds the first one's results in the cache. */
KVL_CLONES
float kvl_exp_sum(float *out, const float *x, float scale, float shift, int64_t n) {
    float lane[LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LANES <= n;) {
        int64_t end = n - i < BLOCK ? i + (n - i) / LANES * LANES : i + BLOCK;
        for (int64_t j = i; j < end; j++)
            out[j] = exp_neg(x[j] * scale - shift);
        for (; i < end; i += LANES)
            for (int j = 0; j < LANES; j++)
                lane[j] += out[i + j];
    }
    for (int64_t j = i; j < n; j++)
        out[j] = exp_neg(x[j] * scale - shift);
    return sum_lanes(lane, out + i, n - i);
}

/* The bits of floats, with those of negative ones turned over, are ordered like the numbers, and a
 * maximum of integers is something that the compiler can reorder. */
KVL_CLONES
float kvl_max(const float *x, int64_t n) {
    const int32_t NEG_INF = (int32_t)0x807fffff; /* of -inf */
    int32_t max = NEG_INF;
    for (int64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        int32_t key = bits ^ ((bits >> 31) & 0x7fffffff);
        key = (bits & 0x7fffffff) > 0x7f800000 ? NEG_INF : key; /* NaN */
        max = key > max ? key : max;
    }
    max ^= (max >> 31) & 0x7fffffff;
    float out;
    memcpy(&out, &max, sizeof out);
    return out;
}

KVL_CLONES
float kvl_dot(const float *x, const float *y, int64_t n) {
    float lane[LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += x[i + j] * y[i + j];
    float sum = sum_lanes(lane, NULL, 0);
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
bool kvl_finite(const float *x, int64_t n) {
    uint32_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
    }
    return found == 0;
}

KVL_CLONES
void kvl_scale_by(float *x, float a, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] *= a;
}
