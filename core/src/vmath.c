/* vmath.c - branch-free exp and lane-wise reductions. See vmath.h.
 *
 * Plain loops that the compiler vectorises by itself: explicit vector types are taken apart before
 * gcc makes the clones of a function, and then stay apart (measured: 4 times slower).
 */
#include "kvlab/vmath.h"

#include "simd.h"
#include "vexp.h"

enum { LANES = 16, BLOCK = 256 };

KVL_CLONES
void kvl_exp(float *out, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = kvl_exp_any(x[i]);
}

KVL_CLONES
void kvl_sigmoid(float *out, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = 1.0f / (1.0f + kvl_exp_any(-x[i]));
}

KVL_CLONES
void kvl_silu(float *out, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] / (1.0f + kvl_exp_any(-x[i]));
}

KVL_CLONES
void kvl_gelu(float *out, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float density;
        out[i] = x[i] * kvl_normal(&density, x[i]);
    }
}

/* Full blocks of lanes are added into `lane`; the result adds the lanes, by halves, and the rest.
 */
KVL_INLINE float sum_lanes(float *lane, const float *rest, int64_t n) {
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
            out[j] = kvl_exp_neg(x[j] * scale - shift);
        for (; i < end; i += LANES)
            for (int j = 0; j < LANES; j++)
                lane[j] += out[i + j];
    }
    for (int64_t j = i; j < n; j++)
        out[j] = kvl_exp_neg(x[j] * scale - shift);
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

/* y [n] += the sum of four rows of b, `ld` apart, times x[0], x[step], ... */
KVL_INLINE void add_four(float *restrict y, const float *restrict b, int64_t ld, const float *x,
                         int64_t step, int64_t n) {
    float x0 = x[0], x1 = x[step], x2 = x[2 * step], x3 = x[3 * step];
    for (int64_t j = 0; j < n; j++)
        y[j] += (x0 * b[j] + x1 * b[ld + j]) + (x2 * b[2 * ld + j] + x3 * b[3 * ld + j]);
}

/* Four rows at a time: y is loaded and stored once for them. */
KVL_CLONES
void kvl_small_product(float *c, int64_t ldc, const float *a, int64_t a_i, int64_t a_l,
                       const float *b, int64_t ldb, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; i++) {
        const float *x = a + i * a_i;
        float *y = c + i * ldc;
        int64_t l = 0;
        for (; l + 4 <= k; l += 4)
            add_four(y, b + l * ldb, ldb, x + l * a_l, a_l, n);
        for (; l < k; l++)
            for (int64_t j = 0; j < n; j++)
                y[j] += x[l * a_l] * b[l * ldb + j];
    }
}

/* Four rows of four, which gcc does not find by itself. */
KVL_INLINE void transpose_4x4(float *to, int64_t ld_to, const float *from, int64_t ld_from) {
#ifdef KVL_SHUFFLE
    typedef float quad __attribute__((vector_size(16)));
    quad r[4];
    for (int i = 0; i < 4; i++)
        memcpy(&r[i], from + i * ld_from, sizeof r[i]);
    quad ab = KVL_SHUFFLE(r[0], r[1], 0, 4, 1, 5), cd = KVL_SHUFFLE(r[2], r[3], 0, 4, 1, 5);
    quad ab2 = KVL_SHUFFLE(r[0], r[1], 2, 6, 3, 7), cd2 = KVL_SHUFFLE(r[2], r[3], 2, 6, 3, 7);
    quad t[4] = {KVL_SHUFFLE(ab, cd, 0, 1, 4, 5), KVL_SHUFFLE(ab, cd, 2, 3, 6, 7),
                 KVL_SHUFFLE(ab2, cd2, 0, 1, 4, 5), KVL_SHUFFLE(ab2, cd2, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++)
        memcpy(to + i * ld_to, &t[i], sizeof t[i]);
#else
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            to[j * ld_to + i] = from[i * ld_from + j];
#endif
}

void kvl_transpose(float *to, int64_t ld_to, const float *from, int64_t ld_from, int64_t rows,
                   int64_t cols) {
    int64_t whole = rows / 4 * 4, c = 0;
    for (; c + 4 <= cols; c += 4)
        for (int64_t i = 0; i < whole; i += 4)
            transpose_4x4(to + c * ld_to + i, ld_to, from + i * ld_from + c, ld_from);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < whole ? c : 0; j < cols; j++)
            to[j * ld_to + i] = from[i * ld_from + j];
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
