/* test_index.c - indexer scores, top-k and candidate pools against their definitions. */
#include "check.h"
#include "rand.h"

#include "kvlab/blas.h"
#include "kvlab/index.h"
#include "kvlab/parallel.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* --- selection -------------------------------------------------------------------------------- */

static const float odd_scores[] = {0,         -0.0f, 1,        1,      -1,     2,
                                   -INFINITY, NAN,   INFINITY, 1e-40f, -1e-40f};

/* Scores with many ties and special values. */
static void odd_row(float *x, double *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double u = rand_unit();
        x[i] = u < 0.5 ? odd_scores[rand_int(11)] : u < 0.7 ? (float)rand_int(4) : rand_normal();
        y[i] = x[i];
    }
}

static void test_topk(void) {
    for (int round = 0; round < 600; round++) {
        int64_t n = rand_int(round < 500 ? 60 : 700), k = rand_int(n + 5), rows = 1 + rand_int(3);
        float *x = malloc((size_t)(rows * n + 1) * sizeof *x);
        double *y = malloc((size_t)(n + 1) * sizeof *y);
        int32_t *got = malloc((size_t)(rows * k + 1) * sizeof *got),
                *want = malloc((size_t)(k + 1) * sizeof *want);
        for (int64_t r = 0; r < rows; r++)
            odd_row(x + r * n, y, n);
        CHECK(!kvl_topk(got, x, n, rows, n, k, NULL), "failed");
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t i = 0; i < n; i++)
                y[i] = x[r * n + i];
            kvl_topk_ref(want, y, n, k);
            CHECK(!memcmp(want, got + r * k, (size_t)k * sizeof *got), "round %d: top %d of %d",
                  round, (int)k, (int)n);
        }
        free(x), free(y), free(got), free(want);
    }
    /* By hand: ties to the lower index, -inf and NaN never. */
    float x[7] = {1, 3, NAN, 3, -INFINITY, 3, 2};
    int32_t out[7];
    kvl_topk(out, x, 7, 1, 7, 2, NULL);
    CHECK(out[0] == 1 && out[1] == 3, "%d %d", out[0], out[1]);
    kvl_topk(out, x, 7, 1, 7, 7, NULL);
    CHECK(out[0] == 0 && out[1] == 1 && out[2] == 3 && out[3] == 5 && out[4] == 6 && out[5] == -1 &&
              out[6] == -1,
          "all candidates");
    CHECK(kvl_topk(out, x, 7, 1, 7, -1, NULL) == KVL_EINVAL, "k = -1");
    CHECK(kvl_topk(out, x, 7, 1, 7, 0, NULL) == KVL_OK, "k = 0");
}

static void test_pool(void) {
    for (int round = 0; round < 500; round++) {
        int64_t visible[2] = {rand_int(90), rand_int(90)}, block = 1 + rand_int(9),
                blocks = 1 + rand_int(12);
        float x[2][90];
        double y[2][90];
        int32_t got[2 * 108], want[108];
        for (int r = 0; r < 2; r++)
            odd_row(x[r], y[r], 90);
        CHECK(!kvl_block_pool(got, x[0], 90, visible, 2, block, blocks, NULL), "failed");
        for (int r = 0; r < 2; r++) {
            kvl_block_pool_ref(want, y[r], visible[r], block, blocks);
            CHECK(!memcmp(want, got + r * blocks * block, (size_t)(blocks * block) * sizeof *want),
                  "round %d: %d blocks of %d, %d visible", round, (int)blocks, (int)block,
                  (int)visible[r]);
        }
    }
    /* By hand: 3 blocks of 2, the newest (entry 4) is pinned, counts, and pushes out block 0. */
    float x[5] = {5, 0, 1, 9, -7};
    int64_t visible = 5;
    int32_t out[4];
    kvl_block_pool(out, x, 5, &visible, 1, 2, 2, NULL);
    CHECK(out[0] == 2 && out[1] == 3 && out[2] == 4 && out[3] == -1, "%d %d %d %d", out[0], out[1],
          out[2], out[3]);
}

/* --- scores ----------------------------------------------------------------------------------- */

typedef struct reader {
    const float *keys;
    int64_t rows, width;
    atomic_int seen[5000];
} reader;

static kvl_status read_keys(void *ctx, int64_t batch, const int32_t *list, int64_t first,
                            int64_t count, float *dst, kvl_error *err) {
    (void)err;
    reader *r = ctx;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = list ? list[i] : first + i;
        atomic_fetch_add(&r->seen[row], 1);
        memcpy(dst + i * r->width, r->keys + (batch * r->rows + row) * r->width,
               (size_t)r->width * sizeof *dst);
    }
    return KVL_OK;
}

static reader keys_reader;

static void test_scores(void) {
    for (int round = 0; round < 150; round++) {
        int64_t B = 1 + rand_int(2), T = rand_unit() < 0.4 ? 1 : 1 + rand_int(30),
                H = 1 + rand_int(12);
        int64_t d = 1 + rand_int(40), pos0 = rand_int(rand_unit() < 0.2 ? 3000 : 60),
                ratio = 1 + rand_int(4);
        int64_t S = (pos0 + T) / ratio + rand_int(3), k = rand_int(20), P = rand_int(40);
        float *q = rand_floats(B * T * H * d), *w = rand_floats(B * T * H),
              *key = rand_floats(B * S * d);
        int32_t *pool = malloc((size_t)(B * T * P + 1) * sizeof *pool);
        for (int64_t i = 0; i < B * T; i++)
            for (int64_t j = 0, at = 0; j < P; j++) { /* ascending, some missing, some invisible */
                at += rand_int(3) + 1;
                pool[i * P + j] = at - 1 < S && rand_unit() < 0.9 ? (int32_t)(at - 1) : -1;
            }
        kvl_index_args a = {.q = q,
                            .q_step_b = T * H * d,
                            .q_step_t = H * d,
                            .q_step_h = d,
                            .w = w,
                            .w_step_b = T * H,
                            .w_step_t = H,
                            .key = {key, S * d, d, 0},
                            .rows = S,
                            .q_pos0 = pos0,
                            .ratio = ratio,
                            .batch = B,
                            .queries = T,
                            .heads = H,
                            .width = d};
        bool pooled = rand_unit() < 0.4, reads = rand_unit() < 0.5;
        if (pooled) a.pool = pool, a.pool_size = P;
        memset(&keys_reader, 0, sizeof keys_reader);
        keys_reader.keys = key, keys_reader.rows = S, keys_reader.width = d;
        if (reads) a.read = read_keys, a.read_ctx = &keys_reader;
        float *scores = malloc((size_t)(B * T * S + 1) * sizeof *scores);
        double *ref = malloc((size_t)(B * T * S + 1) * sizeof *ref);
        int32_t *top = malloc((size_t)(B * T * k + 1) * sizeof *top),
                *got = malloc((size_t)(B * T * 24) * sizeof *got);
        int32_t want[64];
        kvl_index_out out = {.scores = scores, .top = top, .k = k, .block = 4, .blocks = 6};
        if (!pooled) out.pool = got;
        kvl_error err = {0, ""};
        CHECK(!kvl_index(&out, &a, &err), "%s", err.msg);
        if (reads && T == 1 && B == 1) { /* each visible (and pooled) key once, no other */
            int wrong = 0;
            for (int64_t s = 0; s < S; s++) {
                int should = 0;
                for (int64_t i = 0; i < P; i++)
                    should |= pool[i] == s;
                should = (should || !pooled) && s < (pos0 + 1) / ratio;
                wrong += keys_reader.seen[s] != should;
            }
            CHECK(wrong == 0, "round %d: %d keys not read as often as scored", round, wrong);
        }
        CHECK(!kvl_index_ref(ref, &a, &err), "%s", err.msg);
        double e = 0;
        for (int64_t i = 0; i < B * T * S; i++)
            if (ref[i] != scores[i] && !(fabs(ref[i] - scores[i]) <= e))
                e = fabs(ref[i] - scores[i]);
        CHECK(e < 2e-6 * sqrt((double)d) * (double)H, "round %d: error %g", round, e);
        /* Selection follows from the scores that were returned. */
        for (int64_t i = 0; i < B * T; i++) {
            double row[4096];
            for (int64_t s = 0; s < S; s++)
                row[s] = scores[i * S + s];
            kvl_topk_ref(want, row, S, k);
            CHECK(!memcmp(want, top + i * k, (size_t)k * sizeof *want),
                  "round %d: top-k of query %d", round, (int)i);
            if (pooled) continue;
            int64_t see = (pos0 + i % T + 1) / ratio;
            kvl_block_pool_ref(want, row, see < S ? see : S, 4, 6);
            CHECK(!memcmp(want, got + i * 24, 24 * sizeof *want), "round %d: pool of query %d",
                  round, (int)i);
        }
        free(q), free(w), free(key), free(pool), free(scores), free(ref), free(top), free(got);
    }
}

static void test_properties(void) {
    enum { T = 20, H = 8, D = 16, S = 1500, K = 9 };
    float *q = rand_floats(T * H * D), *w = rand_floats(T * H), *key = rand_floats(S * D);
    kvl_index_args a = {.q = q,
                        .q_step_t = H * D,
                        .q_step_h = D,
                        .w = w,
                        .w_step_t = H,
                        .key = {key, 0, D, 0},
                        .rows = S,
                        .q_pos0 = S - T,
                        .ratio = 1,
                        .batch = 1,
                        .queries = T,
                        .heads = H,
                        .width = D};
    static float one[T * S], two[T * S];
    static int32_t top[T * K], again[T * K], pool[T * 2048];
    kvl_index_out out = {
        .scores = one, .top = top, .k = K, .pool = pool, .block = 8, .blocks = 256};
    kvl_set_threads(1, NULL);
    kvl_index(&out, &a, NULL);
    kvl_set_threads(2, NULL);
    out.scores = two;
    kvl_index(&out, &a, NULL);
    CHECK(!memcmp(one, two, sizeof one), "threads change bits");

    /* A pool that is not smaller than the context changes no selection. */
    kvl_index_args pooled = a;
    pooled.pool = pool, pooled.pool_size = 2048;
    kvl_index_out only_top = {.top = again, .k = K};
    kvl_index(&only_top, &pooled, NULL);
    CHECK(!memcmp(top, again, sizeof top), "a pool of everything changes the selection");

    /* A key that is NaN is not selected and disturbs no other; later keys change nothing. */
    key[700 * D] = NAN;
    for (int i = (S - T + 5) * D; i < S * D; i++)
        key[i] = NAN;
    out.scores = two, out.top = again;
    kvl_index(&out, &a, NULL);
    int changed = 0, nan_taken = 0;
    for (int t = 0; t < 5; t++)
        for (int s = 0; s < S; s++)
            changed += s != 700 && s <= S - T + t && one[t * S + s] != two[t * S + s];
    for (int i = 0; i < T * K; i++)
        nan_taken += again[i] == 700 || again[i] >= S - T + 5;
    CHECK(changed == 0, "%d scores changed", changed);
    CHECK(nan_taken == 0, "%d NaN were selected", nan_taken);

    kvl_error err;
    int32_t bad[T] = {S};
    pooled.pool = bad, pooled.pool_size = 1;
    CHECK(kvl_index(&only_top, &pooled, &err) == KVL_EINVAL, "a pool beyond the keys");
    a.ratio = 0;
    CHECK(kvl_index(&out, &a, &err) == KVL_EINVAL, "ratio 0");
    a.ratio = 1, a.key.step_s = 3;
    CHECK(kvl_index(&out, &a, &err) == KVL_EINVAL, "keys overlap");
    a.key.step_s = D;
    kvl_cancel();
    CHECK(kvl_index(&out, &a, &err) == KVL_ECANCEL, "not cancelled");
    kvl_cancel_clear();
    for (int n = 0;; n++) {
        kvl_alloc_fail_after(n);
        kvl_status status = kvl_index(&out, &a, &err);
        kvl_alloc_fail_after(-1);
        CHECK(status == KVL_OK || status == KVL_ENOMEM, "status %d", status);
        if (status == KVL_OK) break;
    }
    free(q), free(w), free(key);
}

int main(void) {
    kvl_blas_single_thread();
    test_topk();
    test_pool();
    test_scores();
    test_properties();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leak", kvl_live_bytes());
    return check_done();
}
