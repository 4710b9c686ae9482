/* select.c - top-k and candidate pools. See index.h for the rule.
 *
 * Scores become unsigned keys in the same order, 0 for what is never selected. The k-th largest key
 * is found bit group by bit group (11, 11, 10 bits, or four times 8 when the keys are few, because
 * counters have to be cleared and walked): count the keys of each group value, walk down from the
 * largest until k are reached, keep only the keys of that value, go on with the next group. One key
 * left is the one. Then one walk in index order takes all larger keys and the first of the equal
 * ones. Linear in n, no sorting.
 */
#include "select.h"

#include "kvlab/index.h"
#include "kvlab/parallel.h"
#include "kvlab/vmath.h"

#include <math.h>
#include <string.h>

enum { BINS = 2048, FEW = 4096 };

/* Scratch: keys [n], those still in the race [n], block scores [n], bins. */
size_t kvl_select_bytes(int64_t n) {
    return (size_t)(3 * n + BINS) * sizeof(uint32_t);
}

KVL_CLONES
static void order_keys(uint32_t *key, const float *scores, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float x = scores[i] + 0.0f; /* -0 is equal to 0 */
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
        key[i] = x > -INFINITY ? ordered : 0u; /* neither -inf nor NaN */
    }
}

/* The k-th largest of key [n], 1 <= k <= n; *equal = how many of that value are among the k. */
static uint32_t find_threshold(const uint32_t *key, int64_t n, int64_t k, uint32_t *race,
                               uint32_t *bins, int64_t *equal) {
    int bits = n <= FEW ? 8 : 11;
    uint32_t threshold = 0;
    for (int left = 32; left > 0; left -= bits) {
        if (n == 1) {
            *equal = 1;
            return key[0];
        }
        if (bits > left) bits = left;
        int shift = left - bits;
        uint32_t mask = (1u << bits) - 1;
        memset(bins, 0, (mask + 1) * sizeof *bins);
        for (int64_t i = 0; i < n; i++)
            bins[key[i] >> shift & mask]++;
        uint32_t bin = mask;
        while (bins[bin] < k)
            k -= bins[bin--];
        threshold |= bin << shift;
        int64_t kept = 0;
        for (int64_t i = 0; i < n; i++) {
            race[kept] = key[i]; /* in place from the second pass on */
            kept += (key[i] >> shift & mask) == bin;
        }
        key = race;
        n = kept;
    }
    *equal = k;
    return threshold;
}

void kvl_select_top(int32_t *out, const float *scores, int64_t n, int64_t k, void *scratch) {
    uint32_t *key = scratch, *race = key + n, *bins = race + 2 * n;
    int64_t taken = 0;
    order_keys(key, scores, n);
    uint32_t threshold = 0;
    int64_t equal = 0;
    if (k > 0 && k < n) threshold = find_threshold(key, n, k, race, bins, &equal);
    for (int64_t i = 0; i < n && taken < k; i++) {
        if (key[i] < threshold || key[i] == 0) continue;
        if (key[i] == threshold && equal-- <= 0) continue;
        out[taken++] = (int32_t)i;
    }
    while (taken < k)
        out[taken++] = -1;
}

void kvl_select_blocks(int32_t *out, const float *scores, int64_t visible, int64_t block,
                       int64_t blocks, void *scratch) {
    int64_t n = kvl_tiles(visible, block), newest = n - 1, at = 0;
    float *best = (float *)scratch + 2 * visible; /* the third part; [n] */
    uint32_t *key = scratch, *race = key + n, *bins = (uint32_t *)(best + n);
    for (int64_t i = 0; i < n; i++) {
        int64_t first = i * block, count = visible - first < block ? visible - first : block;
        best[i] = kvl_max(scores + first, count); /* passes over NaN */
    }
    /* The newest block is in whatever its score, and one of `blocks`. The others compete. */
    if (n > 0) best[newest] = -INFINITY;
    order_keys(key, best, n);
    int64_t k = blocks - 1, equal = 0;
    uint32_t threshold = 0;
    if (k > 0 && k < n) threshold = find_threshold(key, n, k, race, bins, &equal);
    for (int64_t i = 0; i < n; i++) {
        bool take = i == newest;
        if (!take && k > 0 && key[i] != 0 && key[i] >= threshold)
            take = key[i] > threshold || threshold == 0 || equal-- > 0;
        for (int64_t s = i * block; take && s < (i + 1) * block && s < visible; s++)
            out[at++] = (int32_t)s;
    }
    while (at < blocks * block)
        out[at++] = -1;
}

/* --- on their own ----------------------------------------------------------------------------- */

typedef struct rows_job {
    int32_t *out;
    const float *scores;
    const int64_t *visible;
    int64_t step, n, k, block, blocks;
} rows_job;

static kvl_status top_row(void *ctx, int64_t row, void *scratch, kvl_error *err) {
    (void)err;
    const rows_job *j = ctx;
    kvl_select_top(j->out + row * j->k, j->scores + row * j->step, j->n, j->k, scratch);
    return KVL_OK;
}

static kvl_status pool_row(void *ctx, int64_t row, void *scratch, kvl_error *err) {
    (void)err;
    const rows_job *j = ctx;
    kvl_select_blocks(j->out + row * j->blocks * j->block, j->scores + row * j->step,
                      j->visible[row], j->block, j->blocks, scratch);
    return KVL_OK;
}

kvl_status kvl_topk(int32_t *out, const float *scores, int64_t step, int64_t n_rows, int64_t n,
                    int64_t k, kvl_error *err) {
    if (n < 0 || k < 0 || n_rows < 0 || n > INT32_MAX || k > INT32_MAX)
        return kvl_fail(err, KVL_EINVAL, "topk: %lld of %lld scores", (long long)k, (long long)n);
    rows_job j = {.out = out, .scores = scores, .step = step, .n = n, .k = k};
    return kvl_parallel_for(n_rows, kvl_select_bytes(n), top_row, &j, err);
}

kvl_status kvl_block_pool(int32_t *out, const float *scores, int64_t step, const int64_t *visible,
                          int64_t n_rows, int64_t block, int64_t blocks, kvl_error *err) {
    if (block < 1 || blocks < 1 || n_rows < 0 || block > INT32_MAX || blocks > INT32_MAX)
        return kvl_fail(err, KVL_EINVAL, "block_pool: %lld blocks of %lld entries",
                        (long long)blocks, (long long)block);
    int64_t most = 0;
    for (int64_t i = 0; i < n_rows; i++) {
        if (visible[i] < 0 || visible[i] > INT32_MAX)
            return kvl_fail(err, KVL_EINVAL, "block_pool: row %lld sees %lld entries", (long long)i,
                            (long long)visible[i]);
        if (visible[i] > most) most = visible[i];
    }
    rows_job j = {.out = out,
                  .scores = scores,
                  .step = step,
                  .visible = visible,
                  .block = block,
                  .blocks = blocks};
    return kvl_parallel_for(n_rows, kvl_select_bytes(most), pool_row, &j, err);
}

/* --- the definitions -------------------------------------------------------------------------- */

static void pad_list(int32_t *out, int64_t from, int64_t n) {
    while (from < n)
        out[from++] = -1;
}

void kvl_topk_ref(int32_t *out, const double *scores, int64_t n, int64_t k) {
    int64_t taken = 0;
    for (int64_t i = 0; i < n && taken < k; i++) {
        int64_t better = 0; /* how many come before entry i */
        for (int64_t j = 0; j < n; j++)
            better += scores[j] > scores[i] || (scores[j] == scores[i] && j < i);
        if (better < k && scores[i] > -INFINITY) out[taken++] = (int32_t)i;
    }
    pad_list(out, taken, k);
}

void kvl_block_pool_ref(int32_t *out, const double *scores, int64_t visible, int64_t block,
                        int64_t blocks) {
    int64_t n = kvl_tiles(visible, block), at = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t better = 0;
        double own = -INFINITY;
        for (int64_t j = 0; j < n; j++) {
            double best[2] = {-INFINITY, -INFINITY}; /* of block i, of block j */
            for (int which = 0; which < 2; which++) {
                int64_t b = which ? j : i;
                for (int64_t s = b * block; s < (b + 1) * block && s < visible; s++)
                    if (scores[s] > best[which]) best[which] = scores[s];
            }
            own = best[0];
            bool pinned = j == n - 1;
            better += j != i && (pinned || best[1] > best[0] || (best[1] == best[0] && j < i));
        }
        bool take = i == n - 1 || (better < blocks && own > -INFINITY);
        for (int64_t s = i * block; take && s < (i + 1) * block && s < visible; s++)
            out[at++] = (int32_t)s;
    }
    pad_list(out, at, blocks * block);
}
