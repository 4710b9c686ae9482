/* test_compress.c - pooling against its definition; whole = streamed = chunked, bit by bit. */
#include "check.h"
#include "rand.h"

#include "kvlab/compress.h"
#include "kvlab/parallel.h"

#include <math.h>
#include <string.h>

static kvl_rows rows_of(const float *p, int64_t tokens, int64_t row) {
    return (kvl_rows){p, tokens * row, row, 0};
}

/* An extra row of 1 keeps malloc(0) out of it. */
static float *entries(int64_t n, int64_t w) {
    return calloc((size_t)(n * w + 1), sizeof(float));
}

static void test_table(void) {
    static const struct {
        const char *name;
        int batch, tokens, ratio, width, overlap, bias;
        double bound;
    } table[] = {
        {"HCA", 1, 400, 128, 64, 0, 1, 2e-6},       {"CSA", 2, 103, 4, 48, 1, 1, 2e-6},
        {"CSA2 ratio 2", 2, 51, 2, 33, 0, 0, 2e-6}, {"CSA2 ratio 1", 2, 9, 1, 20, 0, 0, 2e-6},
        {"overlap 1", 1, 9, 1, 20, 1, 1, 2e-6},     {"overlap 3", 1, 100, 3, 5, 1, 0, 2e-6},
        {"no block", 1, 3, 4, 8, 1, 1, 2e-6},       {"long", 1, 3000, 5, 70, 1, 1, 2e-6},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int64_t row = table[i].width * (table[i].overlap ? 2 : 1), T = table[i].tokens;
        int64_t n = table[i].batch * (T / table[i].ratio), w = table[i].width;
        float *bias = rand_floats(table[i].ratio * row);
        kvl_compressor comp = {table[i].ratio, w, table[i].overlap, table[i].bias ? bias : NULL};
        float *c = rand_floats(table[i].batch * T * row),
              *z = rand_floats(table[i].batch * T * row);
        for (int64_t j = 0; j < table[i].batch * T * row; j++)
            z[j] *= 4;
        float *out = entries(n, w), *two = entries(n, w);
        double *ref = calloc((size_t)(n * w + 1), sizeof *ref), e = 0;
        kvl_error err;
        for (int gate = 0; gate < 2; gate++) {
            kvl_rows rc = rows_of(c, T, row), rz = rows_of(gate ? z : NULL, T, row);
            kvl_set_threads(1, NULL);
            CHECK(!kvl_compress(out, &comp, rc, rz, table[i].batch, T, &err), "%s", err.msg);
            kvl_set_threads(2, NULL);
            CHECK(!kvl_compress(two, &comp, rc, rz, table[i].batch, T, &err), "%s", err.msg);
            CHECK(!memcmp(out, two, (size_t)(n * w) * sizeof *out), "%s: threads", table[i].name);
            CHECK(!kvl_compress_ref(ref, &comp, rc, rz, table[i].batch, T, &err), "%s", err.msg);
            for (int64_t j = 0; j < n * w; j++)
                if (!(fabs(out[j] - ref[j]) <= e)) e = fabs(out[j] - ref[j]);
            CHECK(e < table[i].bound, "%s gate %d: error %g", table[i].name, gate, e);
        }
        free(bias), free(c), free(z), free(out), free(two), free(ref);
    }
}

/* One block by hand: scores ln 1 and ln 3 weigh 1/4 and 3/4. */
static void test_by_hand(void) {
    float c[2] = {8, 4}, z[2] = {0, 0}, bias[2] = {0, logf(3)}, out;
    kvl_compressor comp = {2, 1, false, bias};
    kvl_compress(&out, &comp, rows_of(c, 2, 1), rows_of(z, 2, 1), 1, 2, NULL);
    CHECK(fabs(out - 5) < 1e-6, "%g, not 5", out);
    /* Overlapping, m = 1: entry 1 = softmax over (a half of token 0, b half of token 1). */
    float c2[4] = {8, 100, 200, 4}, z2[4] = {0, 50, 50, logf(3)}, out2[2];
    kvl_compressor overlap = {1, 1, true, NULL};
    kvl_compress(out2, &overlap, rows_of(c2, 2, 2), rows_of(z2, 2, 2), 1, 2, NULL);
    CHECK(out2[0] == 100 && fabs(out2[1] - 5) < 1e-6, "%g %g, not 100 5", out2[0], out2[1]);
}

/* m = 1, plain: the token itself, to the bit, negative zero and infinity included. */
static void test_identity(void) {
    float c[6] = {1.5f, -0.0f, 3e38f, 1e-40f, -7, INFINITY}, z[6] = {9, -300, 0, 88, 1e30f, 5},
          out[6];
    kvl_compressor comp = {1, 2, false, NULL};
    kvl_compress(out, &comp, rows_of(c, 3, 2), rows_of(z, 3, 2), 1, 3, NULL);
    CHECK(!memcmp(c, out, sizeof c), "with a gate");
    kvl_compress(out, &comp, rows_of(c, 3, 2), rows_of(NULL, 3, 2), 1, 3, NULL);
    CHECK(!memcmp(c, out, sizeof c), "without a gate");
    kvl_compress_state *s;
    kvl_compress_state_new(&s, &comp, 0, NULL);
    kvl_compress_push(out, s, NULL, rows_of(c, 3, 2), rows_of(z, 3, 2), 3, NULL);
    CHECK(!memcmp(c, out, sizeof c), "streamed");
    CHECK(kvl_compress_state_bytes(s) == 0, "ratio 1 needs no state");
    kvl_compress_state_free(s);
}

/* Random chunks, copies and rollbacks give the entries of the whole sequence, bit by bit. */
static void test_streaming(void) {
    for (int round = 0; round < 300; round++) {
        int64_t m = 1 + rand_int(round % 10 == 0 ? 130 : 9), w = 1 + rand_int(9), T = rand_int(400);
        int64_t rollback = rand_unit() < 0.3 ? 0 : rand_int(3 * m);
        bool overlap = rand_unit() < 0.6;
        int64_t row = overlap ? 2 * w : w, n = T / m;
        float *bias = rand_floats(m * row), *c = rand_floats(T * row), *z = rand_floats(T * row);
        kvl_compressor comp = {m, w, overlap, rand_unit() < 0.5 ? bias : NULL};
        float *whole = entries(n, w), *out = entries(n, w);
        kvl_error err = {0, ""};
        kvl_compress(whole, &comp, rows_of(c, T, row), rows_of(z, T, row), 1, T, &err);
        kvl_compress_state *s;
        CHECK(!kvl_compress_state_new(&s, &comp, rollback, &err), "%s", err.msg);
        int64_t at = 0, high = 0,
                most = rand_unit() < 0.3   ? 1
                       : rand_unit() < 0.5 ? 2 * m + 3
                                           : T + 1;
        for (int step = 0; at < T && step < 3000; step++) {
            int64_t chunk = 1 + rand_int(most);
            if (chunk > T - at) chunk = T - at;
            if (rand_unit() < 0.2) { /* go on with a copy, spoil the original */
                kvl_compress_state *copy;
                CHECK(!kvl_compress_state_copy(&copy, s, &err), "%s", err.msg);
                float *bad = rand_floats(3 * row), *bad_out = entries(4, w);
                kvl_compress_push(bad_out, s, NULL, rows_of(bad, 3, row), rows_of(bad, 3, row), 3,
                                  NULL);
                kvl_compress_state_free(s);
                free(bad), free(bad_out);
                s = copy;
            }
            kvl_status status = kvl_compress_push(out + at / m * w, s, comp.bias,
                                                  rows_of(c + at * row, T, row),
                                                  rows_of(z + at * row, T, row), chunk, &err);
            CHECK(!status, "%s", err.msg);
            at += chunk;
            if (at > high) high = at;
            CHECK(kvl_compress_position(s) == at, "position %d", (int)kvl_compress_position(s));
            if (rand_unit() < 0.3) {
                int64_t back = rand_int(rollback + 3);
                bool allowed = back <= at && at - back >= high - rollback;
                status = kvl_compress_rollback(s, back, &err);
                CHECK(allowed == (status == KVL_OK), "round %d: rollback %d at %d of %d: %s", round,
                      (int)back, (int)at, (int)high, err.msg);
                if (!status) at -= back;
            }
        }
        /* A walk with much going back may not have come to the end. */
        CHECK(!memcmp(whole, out, (size_t)(at / m * w) * sizeof *out),
              "round %d: m %d overlap %d rollback %d differs from the whole", round, (int)m,
              overlap, (int)rollback);
        /* DeepSeek-V4: the rows of C and Z of the open block, a halves of the m rows before it. */
        int64_t floats = 2 * (at % m) * row + (overlap && at >= m ? 2 * m * w : 0);
        CHECK(kvl_compress_state_bytes(s) == (size_t)floats * 4, "state of %d bytes, not %d",
              (int)kvl_compress_state_bytes(s), (int)floats * 4);
        kvl_compress_state_free(s);
        free(bias), free(c), free(z), free(whole), free(out);
    }
}

/* What comes later changes no entry that is complete. */
static void test_causality(void) {
    int64_t T = 40, m = 4, w = 6;
    float *c = rand_floats(T * 2 * w), *z = rand_floats(T * 2 * w), *a = entries(10, w),
          *b = entries(10, w);
    kvl_compressor comp = {m, w, true, NULL};
    kvl_compress(a, &comp, rows_of(c, T, 2 * w), rows_of(z, T, 2 * w), 1, T, NULL);
    for (int64_t at = 1; at < T; at += 5) {
        for (int64_t i = at * 2 * w; i < T * 2 * w; i++)
            c[i] = z[i] = NAN;
        kvl_compress(b, &comp, rows_of(c, T, 2 * w), rows_of(z, T, 2 * w), 1, T, NULL);
        CHECK(!memcmp(a, b, (size_t)(at / m * w) * sizeof *a), "tokens from %d on change the past",
              (int)at);
        if (at == 1) break; /* everything behind is NaN from now on */
    }
    float *c2 = rand_floats(T * 2 * w);
    kvl_compress(a, &comp, rows_of(c2, T, 2 * w), rows_of(c2, T, 2 * w), 1, T, NULL);
    for (int64_t at = T - 1; at > 0; at -= 3) {
        for (int64_t i = at * 2 * w; i < T * 2 * w; i++)
            c2[i] = NAN;
        kvl_compress(b, &comp, rows_of(c2, T, 2 * w), rows_of(c2, T, 2 * w), 1, T, NULL);
        CHECK(!memcmp(a, b, (size_t)(at / m * w) * sizeof *a), "tokens from %d on change the past",
              (int)at);
        CHECK(isnan(b[at / m * w]), "token %d does not reach its own entry", (int)at);
    }
    free(c), free(z), free(a), free(b), free(c2);
}

static void test_errors(void) {
    kvl_error err;
    kvl_compressor bad[] = {
        {0, 4, false, NULL}, {4, 0, false, NULL}, {(int64_t)1 << 40, 4, true, NULL}};
    kvl_compress_state *s;
    for (int i = 0; i < 3; i++) {
        CHECK(kvl_compress_state_new(&s, &bad[i], 0, &err) == KVL_EINVAL && !s, "accepted %d", i);
        CHECK(kvl_compress(NULL, &bad[i], rows_of(NULL, 0, 0), rows_of(NULL, 0, 0), 1, 0, &err) ==
                  KVL_EINVAL,
              "accepted %d", i);
    }
    kvl_compressor comp = {4, 8, true, NULL};
    CHECK(kvl_compress_state_new(&s, &comp, -1, &err) == KVL_EINVAL, "rollback -1");
    for (int n = 0; n < 3; n++) {
        kvl_alloc_fail_after(n);
        kvl_status status = kvl_compress_state_new(&s, &comp, 2, &err);
        kvl_alloc_fail_after(-1);
        CHECK(status == (n < 2 ? KVL_ENOMEM : KVL_OK), "%d allocations: status %d", n, status);
    }
    float *c = rand_floats(64 * 16), *out = entries(16, 8), *again = entries(16, 8);
    kvl_rows rows = rows_of(c, 64, 16);
    kvl_compress_push(out, s, NULL, rows, rows, 6, &err);
    kvl_alloc_fail_after(0); /* a push that fails leaves everything as it was */
    CHECK(kvl_compress_push(again, s, NULL, rows, rows, 6, &err) == KVL_ENOMEM,
          "no memory, no error");
    kvl_alloc_fail_after(-1);
    CHECK(kvl_compress_position(s) == 6, "position %d", (int)kvl_compress_position(s));
    CHECK(kvl_compress_push(again, s, NULL, rows, rows, -1, &err) == KVL_EINVAL, "-1 tokens");
    CHECK(kvl_compress_rollback(s, 3, &err) == KVL_EINVAL, "rollback beyond r");
    CHECK(kvl_compress_rollback(s, -1, &err) == KVL_EINVAL, "rollback -1");
    kvl_compress_state_free(s);
    kvl_compress_state_free(NULL);
    free(c), free(out), free(again);
}

/* A batch goes on together or not at all, whichever allocation is refused, and gives what the
 * sequences give one by one. */
static void test_batch(void) {
    enum { B = 3, T = 7, ROW = 16 };
    kvl_error err;
    kvl_compressor comp = {4, 8, true, NULL};
    kvl_compress_state *together[B], *alone[B];
    float *c = rand_floats(B * T * ROW), *out = entries(B * 2, 8), *one = entries(B * 2, 8);
    kvl_rows rows = {c, T * ROW, ROW, 0};
    for (int b = 0; b < B; b++) {
        kvl_compress_state_new(&together[b], &comp, 0, &err);
        kvl_compress_state_new(&alone[b], &comp, 0, &err);
        kvl_compress_push(one + b * 8, alone[b], NULL, rows_of(c + b * T * ROW, T, ROW),
                          rows_of(c + b * T * ROW, T, ROW), T, &err);
    }
    int n = 0;
    for (kvl_status status = KVL_ENOMEM; status != KVL_OK && n < 100; n++) {
        kvl_alloc_fail_after(n);
        status = kvl_compress_push_batch(out, together, B, NULL, rows, rows, T, &err);
        kvl_alloc_fail_after(-1);
        CHECK(status == KVL_OK || status == KVL_ENOMEM, "status %d", status);
        for (int b = 0; b < B; b++)
            CHECK(kvl_compress_position(together[b]) == (status == KVL_OK ? T : 0),
                  "%d allocations: sequence %d is at %d", n, b,
                  (int)kvl_compress_position(together[b]));
    }
    CHECK(n > B, "the sweep ended after %d", n);
    CHECK(memcmp(out, one, B * 8 * sizeof *out) == 0, "a batch gives other entries");
    kvl_compress_push(one, together[1], NULL, rows, rows, 1, &err);
    CHECK(kvl_compress_push_batch(out, together, B, NULL, rows, rows, 1, &err) == KVL_EINVAL,
          "out of step");
    for (int b = 0; b < B; b++)
        kvl_compress_state_free(together[b]), kvl_compress_state_free(alone[b]);
    free(c), free(out), free(one);
}

int main(void) {
    test_table();
    test_by_hand();
    test_identity();
    test_streaming();
    test_causality();
    test_errors();
    test_batch();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leak", kvl_live_bytes());
    return check_done();
}
