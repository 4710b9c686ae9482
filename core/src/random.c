/* random.c - counter-based random numbers; see ops.h. Element i needs (seed, i) only, so the tasks
 * of a tensor are independent and their number does not matter. */
#include "kvlab/ops.h"

#include <math.h>

#include "walk.h"

/* Philox 4x32 with 10 rounds; constants of Salmon et al. (SC 2011), section 3.3. */
void kvl_philox(uint32_t out[4], uint64_t seed, uint64_t counter_low, uint64_t counter_high) {
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

typedef enum random_kind { UNIFORM, NORMAL, INTEGER } random_kind;

typedef struct random_job {
    random_kind kind;
    kvl_tensor *out;
    uint64_t seed;
    int64_t n;
    float a, b;  /* low, width; mean, deviation */
    int32_t low; /* INTEGER: low .. low + range - 1 */
    uint64_t range;
} random_job;

/* Elements 4 i .. 4 i + 3. */
static void fill_block(const random_job *job, int64_t i, float f[4], int32_t n[4]) {
    uint32_t bits[4];
    kvl_philox(bits, job->seed, (uint64_t)i, 0);
    switch (job->kind) {
    case UNIFORM:
        for (int k = 0; k < 4; k++) {
            float u = (float)(bits[k] >> 8) * 0x1p-24f; /* [0, 1) */
            float x = job->a + u * job->b;
            float top = job->a + job->b;
            f[k] = x < top || job->b <= 0 ? x : nextafterf(top, job->a); /* rounding may reach it */
        }
        break;
    case NORMAL: /* Box and Muller: two uniform numbers give two normal ones */
        for (int k = 0; k < 4; k += 2) {
            float u = ((float)bits[k] + 1) * 0x1p-32f; /* (0, 1] */
            float r = sqrtf(-2 * logf(u)),
                  angle = 6.28318531f * ((float)(bits[k + 1] >> 8) * 0x1p-24f);
            f[k] = job->a + job->b * (r * cosf(angle));
            f[k + 1] = job->a + job->b * (r * sinf(angle));
        }
        break;
    default: /* 32 random bits times the range, the upper half: off by less than range / 2^32 */
        for (int k = 0; k < 4; k++)
            n[k] = (int32_t)(job->low + (int64_t)((bits[k] * job->range) >> 32));
    }
}

static kvl_status random_task(void *ctx, int64_t task, void *scratch, kvl_error *err) {
    (void)scratch, (void)err;
    const random_job *job = ctx;
    int64_t from = task * KVL_TILE, to = from + KVL_TILE < job->n ? from + KVL_TILE : job->n;
    float *f = kvl_tensor_f32(job->out), block[4] = {0};
    int32_t *i32 = kvl_tensor_i32(job->out), block_int[4] = {0};
    for (int64_t i = from; i < to; i += 4) {
        fill_block(job, i / 4, block, block_int);
        for (int64_t k = i; k < to && k < i + 4; k++) {
            if (job->kind == INTEGER)
                i32[k] = block_int[k - i];
            else
                f[k] = block[k - i];
        }
    }
    return KVL_OK;
}

static kvl_status random_fill(kvl_tensor **out, int ndim, const int64_t *shape, random_job *job,
                              kvl_error *err) {
    kvl_status status = kvl_tensor_new(out, job->kind == INTEGER ? KVL_INT32 : KVL_FLOAT32, ndim, shape,
                                       err);
    if (status != KVL_OK) return status;
    job->out = *out;
    job->n = kvl_tensor_numel(*out);
    status = kvl_parallel_for(kvl_tiles(job->n, KVL_TILE), 0, random_task, job, err);
    if (status != KVL_OK) {
        kvl_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

kvl_status kvl_random_uniform(kvl_tensor **out, int ndim, const int64_t *shape, uint64_t seed,
                              double low, double high, kvl_error *err) {
    *out = NULL;
    random_job job = {.kind = UNIFORM, .seed = seed, .a = (float)low, .b = (float)(high - low)};
    if (!(low <= high) || !isfinite(job.a) || !isfinite(job.b))
        return kvl_fail(err, KVL_EINVAL, "random: low %g and high %g must be finite, low first",
                        low, high);
    return random_fill(out, ndim, shape, &job, err);
}

kvl_status kvl_random_normal(kvl_tensor **out, int ndim, const int64_t *shape, uint64_t seed,
                             double mean, double deviation, kvl_error *err) {
    *out = NULL;
    random_job job = {.kind = NORMAL, .seed = seed, .a = (float)mean, .b = (float)deviation};
    if (!isfinite(job.a) || !isfinite(job.b) || deviation < 0)
        return kvl_fail(err, KVL_EINVAL,
                        "random: mean %g and deviation %g must be finite, the second not negative",
                        mean, deviation);
    return random_fill(out, ndim, shape, &job, err);
}

kvl_status kvl_random_integer(kvl_tensor **out, int ndim, const int64_t *shape, uint64_t seed,
                              int32_t low, int32_t high, kvl_error *err) {
    *out = NULL;
    if (low > high)
        return kvl_fail(err, KVL_EINVAL, "random: low %d is above high %d", (int)low, (int)high);
    random_job job = {
        .kind = INTEGER, .seed = seed, .low = low, .range = (uint64_t)((int64_t)high - low) + 1};
    return random_fill(out, ndim, shape, &job, err);
}

kvl_status kvl_random_permutation(kvl_tensor **out, int64_t n, uint64_t seed, kvl_error *err) {
    *out = NULL;
    if (n < 0 || n > INT32_MAX)
        return kvl_fail(err, KVL_EINVAL, "permutation: %lld elements: 0 .. %d", (long long)n,
                        INT32_MAX);
    kvl_status status = kvl_tensor_new(out, KVL_INT32, 1, &n, err);
    if (status != KVL_OK) return status;
    int32_t *p = kvl_tensor_i32(*out); /* (n) */
    for (int64_t i = 0; status == KVL_OK && i < n; i++) {
        p[i] = (int32_t)i;
        if ((i & 0xfffff) == 0 && kvl_cancelled()) status = KVL_ECANCEL;
    }
    for (int64_t i = n - 1; status == KVL_OK && i > 0; i--) { /* Fisher and Yates: swap with 0 .. i */
        uint32_t bits[4];
        kvl_philox(bits, seed, (uint64_t)i, 0);
        int64_t j = (int64_t)((bits[0] * ((uint64_t)i + 1)) >> 32);
        int32_t kept = p[i];
        p[i] = p[j];
        p[j] = kept;
        if ((i & 0xffff) == 0 && kvl_cancelled()) status = KVL_ECANCEL;
    }
    if (status != KVL_OK) {
        kvl_tensor_free(*out);
        *out = NULL;
        return kvl_fail(err, KVL_ECANCEL, "interrupted");
    }
    return KVL_OK;
}
