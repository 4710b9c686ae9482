/* test_pool_attend.c - attention over pools: the same output as over plain tensors of decoded rows,
 * and counters that are true: a damaged byte reaches the output exactly when its row was counted.
 */
#include "kvlab/attend.h"
#include "kvlab/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "rand.h"

/* A decode step of 2 sequences: 3 heads over one K = V entry of 16 channels. A window of 6 in rings
 * of 9 slots, at position 22, and 5 of 14 entries by list. */
enum { B = 2, H = 3, C = 16, N = 23, RING = 9, WINDOW = 6, S = 14, K = 5, BYTES = C + 2 };

typedef struct setup {
    kvl_pool *pool;
    kvl_table *local[B], *main[B];
    float q[B * H * C], local_rows[B][N][C], main_rows[B][S][C];
    int32_t list[B * K];
    kvl_counters counters;
} setup;

static kvl_record *e4m3_record(void) {
    kvl_field f = {.channels = C, .number = KVL_E4M3, .scaled = true};
    f.scale = (kvl_scale){.number = KVL_UE8M0, .rule = KVL_RULE_POW2_UP, .group = C / 2};
    kvl_record *rec = NULL;
    kvl_error err = {0};
    CHECK(kvl_record_compile(&rec, &f, 1, 4, 1, &err) == KVL_OK, "%s", err.msg);
    return rec;
}

static void fill(setup *s) {
    kvl_record *rec = e4m3_record();
    kvl_error err = {0};
    memset(s, 0, sizeof *s);
    kvl_pool_new(&s->pool, rec, 0, &err);
    for (int i = 0; i < B * H * C; i++)
        s->q[i] = rand_normal();
    for (int b = 0; b < B; b++) {
        float *rows = rand_floats(N * C);
        kvl_table_new(&s->local[b], s->pool, RING, WINDOW, &err);
        kvl_table_new(&s->main[b], s->pool, 0, 0, &err);
        CHECK(!kvl_table_append(s->local[b], rows, C, N, &err), "%s", err.msg);
        CHECK(!kvl_record_roundtrip(rec, s->local_rows[b][0], C, rows, C, N, &err), "%s", err.msg);
        CHECK(!kvl_table_append(s->main[b], rows + C, C, S, &err), "%s", err.msg);
        CHECK(!kvl_record_roundtrip(rec, s->main_rows[b][0], C, rows + C, C, S, &err), "%s",
              err.msg);
        free(rows);
    }
    static const int32_t list[B * K] = {13, 0, 4, 5, 6, 2, -1, 9, 1, -1};
    memcpy(s->list, list, sizeof list);
    kvl_record_free(rec);
}

static void drop(setup *s) {
    for (int b = 0; b < B; b++) {
        kvl_table_free(s->local[b]);
        kvl_table_free(s->main[b]);
    }
    kvl_pool_free(s->pool);
}

static kvl_attend_args args_of(setup *s, float *out, const kvl_source *sources) {
    return (kvl_attend_args){.out = out,
                             .out_step_b = H * C,
                             .out_step_t = H * C,
                             .out_step_h = C,
                             .q = s->q,
                             .q_step_b = H * C,
                             .q_step_t = H * C,
                             .q_step_h = C,
                             .scale = 0.25f,
                             .q_pos0 = N - 1,
                             .sources = sources,
                             .n_sources = 2,
                             .batch = B,
                             .queries = 1,
                             .heads = H,
                             .key_width = C,
                             .value_width = C};
}

static void over_pool(setup *s, float *out) {
    kvl_reader local = {(const kvl_table *const *)s->local, B, KVL_READ_WINDOW, &s->counters};
    kvl_reader mains = {(const kvl_table *const *)s->main, B, KVL_READ_SELECTED, &s->counters};
    kvl_source sources[2] = {{.rows = RING,
                              .kv_heads = 1,
                              .read = kvl_table_read,
                              .read_ctx = &local,
                              .width = C,
                              .see = KVL_SEE_WINDOW,
                              .ring = RING,
                              .window = WINDOW},
                             {.rows = S,
                              .kv_heads = 1,
                              .read = kvl_table_read,
                              .read_ctx = &mains,
                              .width = C,
                              .see = KVL_SEE_LIST,
                              .list = s->list,
                              .k = K}};
    kvl_attend_args a = args_of(s, out, sources);
    kvl_error err = {0};
    CHECK(kvl_attend(&a, &err) == KVL_OK, "%s", err.msg);
}

static kvl_rows rows_of(const float *p, int64_t step_b) {
    return (kvl_rows){p, step_b, C, C};
}

static void test_equal(void) {
    static setup s;
    fill(&s);
    float out[B * H * C];
    double expected[B * H * C];
    kvl_source sources[2] = {{.rows = N,
                              .kv_heads = 1,
                              .key = rows_of(s.local_rows[0][0], N * C),
                              .value = rows_of(s.local_rows[0][0], N * C),
                              .see = KVL_SEE_WINDOW,
                              .window = WINDOW},
                             {.rows = S,
                              .kv_heads = 1,
                              .key = rows_of(s.main_rows[0][0], S * C),
                              .value = rows_of(s.main_rows[0][0], S * C),
                              .see = KVL_SEE_LIST,
                              .list = s.list,
                              .k = K}};
    kvl_attend_args a = args_of(&s, out, sources);
    kvl_error err = {0};
    CHECK(kvl_attend_ref(expected, NULL, &a, &err) == KVL_OK, "%s", err.msg);
    over_pool(&s, out);
    for (int i = 0; i < B * H * C; i++)
        CHECK(fabs(out[i] - expected[i]) < 1e-5, "%d: %g, expected %g", i, out[i], expected[i]);

    /* 5 and 3 listed entries, 6 of the window for each sequence; nothing else. */
    const int64_t rows[KVL_READ_KINDS] = {[KVL_READ_SELECTED] = 8, [KVL_READ_WINDOW] = 12};
    for (int kind = 0; kind < KVL_READ_KINDS; kind++)
        CHECK(s.counters.rows[kind] == rows[kind] && s.counters.bytes[kind] == rows[kind] * BYTES,
              "kind %d: %lld rows, %lld bytes", kind, (long long)s.counters.rows[kind],
              (long long)s.counters.bytes[kind]);
    drop(&s);
}

/* Does out change in sequence b, and only there, when a byte of this entry is damaged? */
static void damage(setup *s, kvl_table *t, int64_t entry, int b, bool read, const float *before) {
    float out[B * H * C];
    for (int64_t byte = 0; byte < BYTES; byte++) {
        CHECK(kvl_table_poke(t, entry, byte, 0x04, NULL) == KVL_OK, "entry %lld", (long long)entry);
        over_pool(s, out);
        for (int k = 0; k < B; k++)
            CHECK((memcmp(out + k * H * C, before + k * H * C, H * C * sizeof *out) != 0) ==
                      (read && k == b),
                  "sequence %d, entry %lld, byte %lld: seen in %d", b, (long long)entry,
                  (long long)byte, k);
        kvl_table_poke(t, entry, byte, 0x04, NULL);
    }
}

static void test_counters_are_true(void) {
    static setup s;
    fill(&s);
    float before[B * H * C];
    over_pool(&s, before);
    for (int b = 0; b < B; b++) {
        for (int64_t e = 0; e < S; e++) {
            bool listed = false;
            for (int k = 0; k < K; k++)
                listed |= s.list[b * K + k] == e;
            damage(&s, s.main[b], e, b, listed, before);
        }
        for (int64_t e = N - RING; e < N; e++)
            damage(&s, s.local[b], e, b, e >= N - WINDOW, before);
    }
    drop(&s);
}

/* The round trip is what a page gives back, in place and with strides. */
static void test_roundtrip(void) {
    enum { ROWS = 200, STRIDE = C + 3 };
    kvl_record *rec = e4m3_record();
    kvl_error err = {0};
    float *x = rand_floats(ROWS * STRIDE), *y = rand_floats(ROWS * STRIDE);
    memcpy(y, x, ROWS * STRIDE * sizeof *y);
    CHECK(!kvl_record_roundtrip(rec, y, STRIDE, y, STRIDE, ROWS, &err), "%s", err.msg);
    for (int i = 0; i < ROWS; i++) {
        uint8_t data[C], scale[2];
        double exact[C];
        kvl_record_encode_ref(rec, data, scale, x + i * STRIDE);
        kvl_record_decode_ref(rec, exact, data, scale);
        for (int c = 0; c < STRIDE; c++) {
            float expected = c < C ? (float)exact[c] : x[i * STRIDE + c];
            CHECK(y[i * STRIDE + c] == expected, "row %d, channel %d", i, c);
        }
    }
    CHECK(!kvl_record_roundtrip(rec, y, STRIDE, x, STRIDE, 0, &err), "%s", err.msg);
    kvl_alloc_fail_after(0);
    CHECK(kvl_record_roundtrip(rec, y, STRIDE, x, STRIDE, ROWS, &err) == KVL_ENOMEM, "refused");
    kvl_alloc_fail_after(-1);
    free(x);
    free(y);
    kvl_record_free(rec);
}

int main(void) {
    test_equal();
    test_counters_are_true();
    test_roundtrip();
    CHECK(kvl_live_bytes() == 0, "%zu bytes are still held", kvl_live_bytes());
    return check_done();
}
