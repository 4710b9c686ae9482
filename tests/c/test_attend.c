/* test_attend.c - attention against its definition in double, and the properties it must have. */
#include "check.h"
#include "clock.h"
#include "rand.h"

#include "kvlab/attend.h"
#include "kvlab/blas.h"
#include "kvlab/parallel.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* One problem: tensors owned here, rows [B, S, Hkv, width] per source. */
typedef struct problem {
    kvl_attend_args a;
    kvl_source s[3];
    float *rows[3];
    int32_t *list[3];
    float *q, *sink, *out, *lse;
} problem;

/* A reader over a tensor that counts how often each row is asked for. */
typedef struct reader {
    const kvl_source *s;
    const float *rows;
    atomic_int seen[4096]; /* [S] of all batch items */
    int fail;
} reader;

static kvl_status read_rows(void *ctx, int64_t batch, const int32_t *list, int64_t first,
                            int64_t count, float *dst, kvl_error *err) {
    reader *r = ctx;
    int64_t floats = r->s->width;
    if (r->fail) return kvl_fail(err, KVL_EIO, "no such page");
    for (int64_t i = 0; i < count; i++) {
        int64_t row = list ? list[i] : first + i;
        atomic_fetch_add(&r->seen[row], 1);
        memcpy(dst + i * floats, r->rows + (batch * r->s->rows + row) * floats,
               (size_t)floats * sizeof *dst);
    }
    return KVL_OK;
}

static void make(problem *p, int64_t batch, int64_t queries, int64_t heads, int64_t kw, int64_t vw,
                 int64_t pos0, bool sink) {
    memset(p, 0, sizeof *p);
    p->q = rand_floats(batch * queries * heads * kw);
    p->sink = rand_floats(heads);
    p->out = malloc((size_t)(batch * queries * heads * vw) * sizeof(float));
    p->lse = malloc((size_t)(batch * queries * heads) * sizeof(float));
    p->a = (kvl_attend_args){.out = p->out,
                             .out_step_b = queries * heads * vw,
                             .out_step_t = heads * vw,
                             .out_step_h = vw,
                             .lse = p->lse,
                             .q = p->q,
                             .q_step_b = queries * heads * kw,
                             .q_step_t = heads * kw,
                             .q_step_h = kw,
                             .sink = sink ? p->sink : NULL,
                             .scale = 1.0f / sqrtf((float)kw),
                             .q_pos0 = pos0,
                             .sources = p->s,
                             .batch = batch,
                             .queries = queries,
                             .heads = heads,
                             .key_width = kw,
                             .value_width = vw};
}

/* Appends a source over a random tensor. key0 and value0 are its columns. */
static kvl_source *add(problem *p, kvl_see see, int64_t rows, int64_t kv_heads, int64_t width,
                       int64_t key0, int64_t value0) {
    int64_t n = p->a.n_sources++;
    p->rows[n] = rand_floats(p->a.batch * rows * kv_heads * width);
    kvl_source *s = &p->s[n];
    *s = (kvl_source){.rows = rows,
                      .kv_heads = kv_heads,
                      .width = kv_heads * width,
                      .key0 = key0,
                      .key_step = width,
                      .value0 = value0,
                      .value_step = width};
    s->key = (kvl_rows){p->rows[n] + key0, rows * kv_heads * width, kv_heads * width, width};
    s->value = s->key;
    s->value.p = p->rows[n] + value0;
    s->see = see;
    s->window = 5, s->ratio = 4;
    return s;
}

/* Gives a source random rows of [0, rows), -1 in some places. */
static void add_list(problem *p, kvl_source *s, int64_t k) {
    int64_t n = p->a.batch * p->a.queries * k, i = s - p->s;
    p->list[i] = malloc((size_t)(n + 1) * sizeof(int32_t));
    for (int64_t j = 0; j < n; j++)
        p->list[i][j] = s->rows > 0 && rand_unit() < 0.8 ? (int32_t)rand_int(s->rows) : -1;
    s->see = KVL_SEE_LIST, s->list = p->list[i], s->k = k;
}

static void drop(problem *p) {
    free(p->q), free(p->sink), free(p->out), free(p->lse);
    for (int i = 0; i < 3; i++)
        free(p->rows[i]), free(p->list[i]);
}

static int64_t out_size(const problem *p) {
    return p->a.batch * p->a.queries * p->a.heads * p->a.value_width;
}

/* Largest difference to the definition, in out and in lse. */
static double error_of(problem *p) {
    int64_t n = out_size(p), rows = n / p->a.value_width;
    double *ref = malloc((size_t)n * sizeof *ref), *lse = malloc((size_t)rows * sizeof *lse), e = 0;
    kvl_error err = {0, ""};
    for (int64_t i = 0; i < n; i++)
        p->out[i] = NAN;
    kvl_status status = kvl_attend(&p->a, &err);
    CHECK(status == KVL_OK, "attend: %s", err.msg);
    CHECK(kvl_attend_ref(ref, lse, &p->a, &err) == KVL_OK, "attend_ref: %s", err.msg);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(ref[i] - p->out[i]) <= e)) e = fabs(ref[i] - p->out[i]);
    for (int64_t i = 0; i < rows; i++)
        if (lse[i] != p->lse[i] && !(fabs(lse[i] - p->lse[i]) <= e)) e = fabs(lse[i] - p->lse[i]);
    free(ref), free(lse);
    return e;
}

/* --- against the definition ------------------------------------------------------------------- */

static void test_table(void) {
    /* One row per kind of attention in the article; bound: largest absolute error,
     * inputs normal. */
    static const struct row {
        const char *name;
        int batch, queries, heads, kv_heads, kw, vw, width, value0, pos0, rows;
        kvl_see see;
        int window, ratio, k, sink;
        double bound;
    } table[] = {
        {"MHA causal", 2, 150, 4, 4, 32, 32, 64, 32, 0, 150, KVL_SEE_CAUSAL, 0, 0, 0, 0, 2e-6},
        {"MHA long", 1, 600, 2, 2, 16, 16, 32, 16, 0, 600, KVL_SEE_CAUSAL, 0, 0, 0, 0, 2e-6},
        {"GQA causal", 2, 70, 6, 2, 24, 8, 32, 24, 0, 70, KVL_SEE_CAUSAL, 0, 0, 0, 0, 2e-6},
        {"MQA decode", 1, 1, 16, 1, 64, 64, 128, 64, 999, 1000, KVL_SEE_CAUSAL, 0, 0, 0, 0, 2e-6},
        {"MLA absorbed decode", 1, 1, 32, 1, 72, 64, 72, 0, 2999, 3000, KVL_SEE_CAUSAL, 0, 0, 0, 0,
         2e-6},
        {"MLA absorbed chunk", 2, 9, 16, 1, 72, 64, 72, 0, 300, 309, KVL_SEE_CAUSAL, 0, 0, 0, 0,
         2e-6},
        {"DSA", 1, 20, 16, 1, 72, 64, 72, 0, 0, 20, KVL_SEE_LIST, 0, 0, 7, 0, 2e-6},
        {"SWA", 2, 300, 4, 1, 32, 32, 32, 0, 0, 300, KVL_SEE_WINDOW, 33, 0, 0, 1, 2e-6},
        {"blocks", 1, 60, 4, 1, 32, 32, 32, 0, 0, 15, KVL_SEE_BLOCKS, 0, 4, 0, 1, 2e-6},
        {"blocks of one", 1, 60, 4, 1, 32, 32, 32, 0, 0, 60, KVL_SEE_BLOCKS, 0, 1, 0, 1, 2e-6},
        {"list decode", 3, 1, 8, 2, 32, 32, 32, 0, 0, 900, KVL_SEE_LIST, 0, 0, 700, 1, 2e-6},
        {"encoder", 1, 40, 4, 2, 16, 16, 32, 16, 0, 77, KVL_SEE_ALL, 0, 0, 0, 0, 2e-6},
        {"width 1", 1, 5, 1, 1, 1, 1, 1, 0, 0, 5, KVL_SEE_CAUSAL, 0, 0, 0, 0, 2e-6},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct row *r = &table[i];
        problem p;
        make(&p, r->batch, r->queries, r->heads, r->kw, r->vw, r->pos0, r->sink);
        kvl_source *s = add(&p, r->see, r->rows, r->kv_heads, r->width, 0, r->value0);
        s->window = r->window, s->ratio = r->ratio;
        if (r->k) add_list(&p, s, r->k);
        double e = error_of(&p);
        CHECK(e < r->bound, "%s: error %g", r->name, e);
        drop(&p);
    }
}

/* Weights of many rows are as good as those of few: all values are 1, so the output is. */
static void test_long(void) {
    enum { ROWS = 1 << 16, HEADS = 8, WIDTH = 8 };
    problem p;
    make(&p, 1, 1, HEADS, WIDTH, WIDTH, ROWS, false);
    kvl_source *s = add(&p, KVL_SEE_ALL, ROWS, 1, 2 * WIDTH, 0, WIDTH);
    for (int64_t i = 0; i < HEADS * WIDTH; i++)
        p.q[i] = 1.0f;
    for (int64_t i = 0; i < ROWS * 2 * WIDTH; i++)
        p.rows[0][i] = i / WIDTH % 2 ? 1.0f : i < WIDTH ? 0.0f : -0.814f; /* weights 1, 0.1 .. */
    p.a.batch = 16, p.a.q_step_b = s->key.step_b = s->value.step_b = 0;   /* rows are not cut */
    free(p.out), free(p.lse);
    p.out = p.a.out = malloc((size_t)out_size(&p) * sizeof(float));
    p.lse = p.a.lse = malloc((size_t)(p.a.batch * HEADS) * sizeof(float));
    double e = error_of(&p);
    CHECK(e < 1e-5, "%d rows: error %g", ROWS, e);
    drop(&p);
}

/* Random unions of up to three sources of all rules, from tensors and from readers. With a single
 * query, each selected row must be read exactly once and no other one. */
static void test_random(void) {
    static reader readers[3];
    for (int round = 0; round < 400; round++) {
        int64_t heads = 1 + rand_int(8), kw = 1 + rand_int(20), vw = 1 + rand_int(20);
        int64_t queries = rand_unit() < 0.4 ? 1 : 1 + rand_int(rand_unit() < 0.1 ? 200 : 12);
        int64_t pos0 = rand_unit() < 0.3 ? 0 : rand_int(700), batch = 1 + rand_int(2);
        problem p;
        make(&p, batch, queries, heads, kw, vw, pos0, rand_unit() < 0.5);
        memset(readers, 0, sizeof readers);
        int64_t n = rand_int(4);
        for (int64_t i = 0; i < n; i++) {
            int64_t kv = 1 + rand_int(heads);
            while (heads % kv)
                kv--;
            int64_t key0 = rand_int(3), value0 = rand_unit() < 0.5 ? key0 : rand_int(9);
            int64_t width = (key0 + kw > value0 + vw ? key0 + kw : value0 + vw) + rand_int(3);
            kvl_see see = (kvl_see)rand_int(5);
            int64_t rows = see == KVL_SEE_LIST ? 1 + rand_int(800) : rand_int(pos0 + queries + 3);
            kvl_source *s = add(&p, see, rows, kv, width, key0, value0);
            s->window = 1 + rand_int(rand_unit() < 0.5 ? 10 : 300), s->ratio = 1 + rand_int(9);
            if (see == KVL_SEE_WINDOW && rand_unit() < 0.5) {
                s->ring = s->window + queries - 1 + rand_int(5);
                free(p.rows[i]);
                s->rows = s->ring + rand_int(3);
                p.rows[i] = rand_floats(batch * s->rows * kv * width);
                s->key = (kvl_rows){p.rows[i] + key0, s->rows * kv * width, kv * width, width};
                s->value = s->key, s->value.p = p.rows[i] + value0;
            } else if (see != KVL_SEE_LIST && rand_unit() < 0.3) {
                s->pos0 = rand_int(pos0 + queries);
            }
            if (see == KVL_SEE_LIST) add_list(&p, s, rand_int(rand_unit() < 0.2 ? 700 : 20));
            if (rand_unit() < 0.5) {
                readers[i].s = s, readers[i].rows = p.rows[i];
                s->read = read_rows, s->read_ctx = &readers[i];
            }
        }
        double e = error_of(&p);
        CHECK(e < 3e-6, "round %d: error %g", round, e);
        /* Readers once more, now counting. */
        memset(readers[0].seen, 0, sizeof readers[0].seen);
        if (queries == 1 && batch == 1) {
            for (int i = 0; i < 3; i++)
                memset(readers[i].seen, 0, sizeof readers[i].seen);
            kvl_attend(&p.a, NULL);
            for (int64_t i = 0; i < n; i++) {
                const kvl_source *s = &p.s[i];
                if (!s->read) continue;
                int want[4096] = {0}, wrong = 0;
                for (int64_t j = 0; s->see == KVL_SEE_LIST && j < s->k; j++)
                    if (s->list[j] >= 0) want[s->list[j]]++;
                for (int64_t r = 0; s->see != KVL_SEE_LIST && r < s->rows; r++) {
                    int64_t pos = s->pos0 + r;
                    if (s->ring) { /* slot r holds the newest position <= pos0 that is r mod ring */
                        pos = pos0 - ((pos0 - r) % s->ring + s->ring) % s->ring;
                        if (r >= s->ring || pos < 0) continue;
                    }
                    want[r] = s->see == KVL_SEE_ALL      ? 1
                              : s->see == KVL_SEE_BLOCKS ? pos < (pos0 + 1) / s->ratio
                              : s->see == KVL_SEE_WINDOW ? pos <= pos0 && pos > pos0 - s->window
                                                         : pos <= pos0;
                }
                for (int r = 0; r < 4096; r++)
                    wrong += readers[i].seen[r] != want[r];
                CHECK(wrong == 0,
                      "round %d source %d rule %d: %d rows not read as often as selected", round,
                      (int)i, (int)s->see, wrong);
            }
        }
        drop(&p);
    }
}

/* --- properties ------------------------------------------------------------------------------- */

/* A V4-like layer: window + compressed blocks + sink (DeepSeek-V4 report 2.3). */
static void make_v4(problem *p, int64_t queries, int64_t pos0, kvl_see see) {
    make(p, 1, queries, 4, 32, 32, pos0, true);
    kvl_source *w = add(p, KVL_SEE_WINDOW, pos0 + queries, 1, 32, 0, 0);
    w->window = 16;
    kvl_source *c = add(p, see, (pos0 + queries) / 4, 1, 32, 0, 0);
    c->ratio = 4;
}

/* Prompts and single steps, before the first block and at odd lengths; SWA, HCA and CSA. */
static void test_v4(void) {
    static const int lengths[][2] = {{1, 0},   {1, 3},   {3, 0},   {40, 0},
                                     {1, 201}, {7, 500}, {1, 2002}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int kind = 0; kind < 3; kind++) {
            problem p;
            make_v4(&p, lengths[i][0], lengths[i][1], KVL_SEE_BLOCKS);
            if (kind == 0) p.a.n_sources = 1;
            if (kind == 2) add_list(&p, &p.s[1], 9);
            double e = error_of(&p);
            CHECK(e < 2e-6, "kind %d, %d tokens after %d: error %g", kind, lengths[i][0],
                  lengths[i][1], e);
            drop(&p);
        }
}

static void test_threads(void) {
    for (int round = 0; round < 3; round++) {
        problem p;
        make_v4(&p, round == 0 ? 1 : 300, 3000, KVL_SEE_BLOCKS);
        if (round == 2) {
            drop(&p);
            make(&p, 1, 1, 6, 16, 16, 2999, true);
            add(&p, KVL_SEE_CAUSAL, 3000, 3, 32, 0, 16);
        }
        float *one = malloc((size_t)out_size(&p) * sizeof *one);
        for (int threads = 1; threads <= 4; threads++) {
            kvl_set_threads(threads, NULL);
            kvl_attend(&p.a, NULL);
            if (threads == 1) memcpy(one, p.out, (size_t)out_size(&p) * sizeof *one);
            CHECK(memcmp(one, p.out, (size_t)out_size(&p) * sizeof *one) == 0,
                  "%d threads change bits", threads);
        }
        free(one);
        drop(&p);
    }
    kvl_set_threads(0, NULL);
}

static double distance(const float *x, const float *y, int64_t n) {
    double e = 0;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)x[i] - y[i]) <= e)) e = fabs((double)x[i] - y[i]);
    return e;
}

static float *result(const problem *p) {
    kvl_error err;
    CHECK(kvl_attend(&p->a, &err) == KVL_OK, "%s", err.msg);
    float *copy = malloc((size_t)out_size(p) * sizeof *copy);
    memcpy(copy, p->out, (size_t)out_size(p) * sizeof *copy);
    return copy;
}

/* A list that names every visible entry is the same as seeing the blocks; so is a shuffled one. */
static void test_list_is_blocks(void) {
    problem p;
    make_v4(&p, 40, 100, KVL_SEE_BLOCKS);
    float *blocks = result(&p);
    kvl_source *s = &p.s[1];
    add_list(&p, s, s->rows);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        for (int64_t t = 0; t < 40; t++) {
            int32_t *list = p.list[1] + t * s->k;
            for (int64_t j = 0; j < s->k; j++)
                list[j] = j < (100 + t + 1) / 4 ? (int32_t)j : -1;
            for (int64_t j = s->k - 1; shuffle && j > 0; j--) {
                int64_t other = rand_int(j + 1);
                int32_t swap = list[j];
                list[j] = list[other], list[other] = swap;
            }
        }
        float *lists = result(&p);
        double e = distance(blocks, lists, out_size(&p));
        CHECK(e < 1e-6, "list of everything (shuffled %d) differs by %g", shuffle, e);
        free(lists);
    }
    free(blocks);
    drop(&p);
}

/* Rows 0..n/2 and n/2..n as two sources are the rows as one. */
static void test_two_sources(void) {
    problem p;
    make(&p, 2, 50, 6, 16, 16, 30, true);
    kvl_source *s = add(&p, KVL_SEE_CAUSAL, 80, 2, 32, 0, 16);
    float *one = result(&p);
    p.s[1] = *s;
    s->rows = 37;
    p.s[1].rows = 43, p.s[1].pos0 = 37;
    p.s[1].key.p += 37 * s->key.step_s, p.s[1].value.p += 37 * s->value.step_s;
    p.a.n_sources = 2;
    float *two = result(&p);
    CHECK(distance(one, two, out_size(&p)) < 1e-6, "two sources are not their concatenation");
    /* All positions moved by the same amount: nothing changes, here not even a bit. */
    p.a.q_pos0 += 1000, p.s[0].pos0 += 1000, p.s[1].pos0 += 1000;
    float *moved = result(&p);
    CHECK(distance(two, moved, out_size(&p)) == 0, "shifted positions change the result");
    free(one), free(two), free(moved);
    drop(&p);
}

/* Rows in another order, with their values: the same sum. */
static void test_permuted(void) {
    problem p;
    make(&p, 1, 3, 4, 16, 16, 0, false);
    kvl_source *s = add(&p, KVL_SEE_ALL, 200, 1, 32, 0, 16);
    float *before = result(&p);
    for (int64_t i = 199; i > 0; i--) {
        int64_t j = rand_int(i + 1);
        for (int c = 0; c < 32; c++) {
            float swap = p.rows[0][i * 32 + c];
            p.rows[0][i * 32 + c] = p.rows[0][j * 32 + c];
            p.rows[0][j * 32 + c] = swap;
        }
    }
    (void)s;
    float *after = result(&p);
    CHECK(distance(before, after, out_size(&p)) < 1e-6, "permuted rows change the result");
    free(before), free(after);
    drop(&p);
}

/* Whatever lies in the future, NaN included, changes no bit of the past. */
static void test_causality(void) {
    const float poison[] = {1e30f, INFINITY, NAN};
    for (int i = 0; i < 3; i++)
        for (int64_t at = 1; at < 300; at += 37) {
            problem p;
            make_v4(&p, 300, 0, KVL_SEE_BLOCKS);
            float *before = result(&p);
            for (int64_t j = at * 32; j < 300 * 32; j++)
                p.rows[0][j] = poison[i];
            for (int64_t j = at / 4 * 32; j < 75 * 32; j++)
                p.rows[1][j] = poison[i]; /* entry b is complete at token 4 b + 3 */
            float *after = result(&p);
            int64_t n = (at / 4 * 4 + 3 < at ? at / 4 * 4 + 3 : at) * 4 * 32;
            CHECK(distance(before, after, n) < 1e-6, "%g from %d on changes the past", poison[i],
                  (int)at);
            int finite = 0;
            for (int64_t j = at * 4 * 32; i == 2 && j < (at + 1) * 4 * 32; j++)
                finite += isfinite(after[j]) != 0;
            CHECK(finite == 0, "NaN at %d did not reach its own output", (int)at);
            free(before), free(after);
            drop(&p);
        }
}

/* The same where every head has rows of its own and few queries: no matrix products there. */
static void test_causality_thin(void) {
    problem p;
    make(&p, 1, 5, 4, 16, 16, 300, false);
    add(&p, KVL_SEE_CAUSAL, 305, 4, 32, 0, 16);
    float *before = result(&p);
    for (int64_t j = 303 * 4 * 32; j < 305 * 4 * 32; j++)
        p.rows[0][j] = NAN;
    float *after = result(&p);
    CHECK(distance(before, after, 3 * 4 * 16) == 0, "NaN in the future changes the past");
    int finite = 0;
    for (int j = 3 * 4 * 16; j < 5 * 4 * 16; j++)
        finite += isfinite(after[j]) != 0;
    CHECK(finite == 0, "NaN did not reach its own output");
    free(before), free(after);
    drop(&p);
}

/* Logits and sinks of any size: weights stay weights. */
static void test_extremes(void) {
    static const float sinks[] = {-1e30f, -100, 0, 100, 1e30f, -INFINITY, INFINITY};
    for (size_t i = 0; i < sizeof sinks / sizeof *sinks; i++)
        for (int large = 0; large < 3; large++) {
            problem p;
            make(&p, 1, 1, 2, 8, 8, 9, true);
            add(&p, KVL_SEE_CAUSAL, 10, 1, 8, 0, 0);
            p.a.scale = large == 0 ? 1 : large == 1 ? 1e4f : -1e4f;
            p.sink[0] = p.sink[1] = sinks[i];
            float *out = result(&p);
            double *ref = malloc(16 * sizeof *ref);
            kvl_attend_ref(ref, NULL, &p.a, NULL);
            for (int j = 0; j < 16; j++) {
                double want = isinf(sinks[i]) && sinks[i] > 0 ? 0 : ref[j];
                CHECK(fabs(out[j] - want) < 2e-3, "sink %g scale %g: %g, not %g", sinks[i],
                      p.a.scale, out[j], want);
            }
            free(out), free(ref);
            drop(&p);
        }
    /* Nothing to see: zeros, with a sink, without one, and from a list of nothing. */
    for (int sink = 0; sink < 2; sink++) {
        problem p;
        make(&p, 1, 3, 2, 8, 8, 0, sink);
        add(&p, KVL_SEE_BLOCKS, 5, 1, 8, 0, 0)->ratio = 100;
        kvl_source *s = add(&p, KVL_SEE_LIST, 5, 1, 8, 0, 0);
        add_list(&p, s, 4);
        for (int j = 0; j < 12; j++)
            p.list[1][j] = -1;
        float *out = result(&p);
        for (int64_t j = 0; j < out_size(&p); j++)
            CHECK(out[j] == 0, "%g where nothing is visible", out[j]);
        for (int j = 0; j < 6; j++)
            CHECK(p.lse[j] == (sink ? p.sink[j % 2] : -INFINITY), "lse is %g", p.lse[j]);
        free(out);
        drop(&p);
    }
}

/* --- failures --------------------------------------------------------------------------------- */

static void test_errors(void) {
    problem p;
    kvl_error err;
    make(&p, 1, 4, 4, 8, 8, 10, false);
    kvl_source *s = add(&p, KVL_SEE_CAUSAL, 14, 2, 16, 0, 8), good = *s;
    float *out = result(&p);
    free(out);
#define REFUSED(what, ...)                                                                         \
    do {                                                                                           \
        *s = good;                                                                                 \
        what;                                                                                      \
        CHECK(kvl_attend(&p.a, &err) == KVL_EINVAL, "accepted: %s", #what);                        \
        *s = good;                                                                                 \
    } while (0)
    REFUSED(s->kv_heads = 3);
    REFUSED(s->kv_heads = 0);
    REFUSED(s->rows = -1);
    REFUSED(s->see = (kvl_see)9);
    REFUSED((s->see = KVL_SEE_WINDOW, s->window = 0));
    REFUSED((s->see = KVL_SEE_BLOCKS, s->ratio = 0));
    REFUSED((s->see = KVL_SEE_WINDOW, s->window = 8, s->ring = 10)); /* needs 8 + 3 slots */
    REFUSED((s->see = KVL_SEE_WINDOW, s->window = 8, s->ring = 15)); /* more than there are rows */
    REFUSED(s->key.step_s = 7);
    REFUSED(s->value.p = NULL);
    REFUSED((s->read = read_rows, s->key0 = 9));
    REFUSED((s->read = read_rows, s->value0 = -1));
    int32_t list[4] = {0, 13, 14, -1};
    REFUSED((s->see = KVL_SEE_LIST, s->k = 1, s->list = list));
    list[2] = -2;
    REFUSED((s->see = KVL_SEE_LIST, s->k = 1, s->list = list));
    list[2] = 0;
    s->see = KVL_SEE_LIST, s->k = 1, s->list = list;
    CHECK(kvl_attend(&p.a, &err) == KVL_OK, "%s", err.msg);
    *s = good;
    p.a.heads = -1;
    CHECK(kvl_attend(&p.a, &err) == KVL_EINVAL, "heads -1");
    p.a.heads = 4, p.a.key_width = (int64_t)1 << 40;
    CHECK(kvl_attend(&p.a, &err) == KVL_EINVAL, "huge key");
    p.a.key_width = 8, p.a.queries = 0;
    CHECK(kvl_attend(&p.a, &err) == KVL_OK, "no queries: %s", err.msg);
    p.a.queries = 4;

    static reader r;
    r.s = s, r.rows = p.rows[0], r.fail = 1;
    s->read = read_rows, s->read_ctx = &r;
    CHECK(kvl_attend(&p.a, &err) == KVL_EIO && !strcmp(err.msg, "no such page"), "%s", err.msg);
    drop(&p);

    make_v4(&p, 1, 2000, KVL_SEE_BLOCKS); /* with partial states */
    for (int n = 0;; n++) {
        kvl_alloc_fail_after(n);
        kvl_status status = kvl_attend(&p.a, &err);
        kvl_alloc_fail_after(-1);
        CHECK(status == KVL_OK || status == KVL_ENOMEM, "status %d", status);
        if (status == KVL_OK) break;
    }
    drop(&p);
}

static void *cancel_soon(void *stamp) {
    struct timespec pause = {0, 50 * 1000 * 1000};
    nanosleep(&pause, NULL);
    *(moment *)stamp = now();
    kvl_cancel();
    return NULL;
}

static void test_cancel(void) {
    problem p; /* far more than 50 ms of work */
    make(&p, 1, 6000, 16, 32, 32, 0, false);
    add(&p, KVL_SEE_CAUSAL, 6000, 16, 64, 0, 32);
    pthread_t thread;
    moment asked = {0, 0};
    pthread_create(&thread, NULL, cancel_soon, &asked);
    kvl_status status = kvl_attend(&p.a, NULL);
    double late = seconds_since(asked);
    pthread_join(thread, NULL);
    kvl_cancel_clear();
    CHECK(status == KVL_ECANCEL, "status %d", status);
    CHECK(late < 0.2 * CHECK_SLOWER, "stopped %g s after the request", late);
    drop(&p);
}

int main(void) {
    kvl_blas_single_thread();
    kvl_set_threads(2, NULL);
    test_table();
    test_long();
    test_random();
    test_v4();
    test_threads();
    test_list_is_blocks();
    test_two_sources();
    test_permuted();
    test_causality();
    test_causality_thin();
    test_extremes();
    test_errors();
    test_cancel();
    CHECK(kvl_live_bytes() == 0, "%zu bytes leak", kvl_live_bytes());
    return check_done();
}
