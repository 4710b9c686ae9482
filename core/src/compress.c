/* compress.c - softmax pooling, whole or streaming. See compress.h.
 *
 * The state of a sequence at position n. Full rows are (C, Z + B); an overlapping block needs only
 * the first halves of the block before it, so what leaves the ring of rows leaves its first half
 * behind:
 *
 *         lo - m              lo                     n
 *   ...    | first halves [m]  |  full rows [<= cap]  |
 *
 *   cap = m - 1 + rollback. Row s lies in slot s mod cap, its first half in slot s mod m.
 *   Invariant: lo <= (first token of the open block), so the open block is all there.
 */
#include "kvlab/compress.h"

#include "kvlab/parallel.h"
#include "kvlab/vmath.h"
#include "compress_rows.h"

#include <math.h>
#include <string.h>

struct kvl_compress_state {
    kvl_compressor comp; /* bias NULL */
    int64_t rollback;
    int64_t high;   /* largest n so far: what was forgotten for it stays forgotten */
    int64_t row;    /* w or 2w */
    int64_t cap;    /* rows in the ring */
    int64_t n, lo;  /* tokens so far; oldest full row */
    float *c, *z;   /* [cap, row] */
    float *ac, *az; /* [m, w], overlapping only */
};

/* One row of an entry: its values, its scores, and the bias that they still need, or NULL. */
typedef struct pooled {
    const float *c, *z, *bias;
} pooled;

static int64_t row_width(const kvl_compressor *comp) {
    return comp->overlap ? 2 * comp->width : comp->width;
}

static kvl_status check(const kvl_compressor *comp, kvl_error *err) {
    int64_t floats;
    if (comp->ratio < 1 || comp->width < 1 || comp->ratio > INT32_MAX ||
        comp->width > INT32_MAX / 2 || !kvl_mul(&floats, comp->ratio, 8 * row_width(comp)))
        return kvl_fail(err, KVL_EINVAL, "compress: ratio %lld and width %lld must be >= 1",
                        (long long)comp->ratio, (long long)comp->width);
    return KVL_OK;
}

/* --- one entry -------------------------------------------------------------------------------- */

/* out [w]; scratch [3, w]: largest score, weight, sum of weights. A single row is its own entry. */
static void pool_entry(float *out, const pooled *rows, int64_t n, int64_t w, float *scratch) {
    float *top = scratch, *weight = scratch + w, *sum = scratch + 2 * w;
    row_scores(top, rows[0].z, rows[0].bias, w);
    for (int64_t i = 1; i < n; i++) {
        row_scores(weight, rows[i].z, rows[i].bias, w);
        take_max(top, weight, w);
    }
    for (int64_t i = 0; i < w; i++)
        out[i] = sum[i] = -0.0f; /* x + -0 is x, also for x = -0 */
    for (int64_t i = 0; i < n; i++) {
        row_scores(weight, rows[i].z, rows[i].bias, w);
        subtract(weight, top, w);
        kvl_exp(weight, weight, w);
        add_weighted(out, sum, weight, rows[i].c, w);
    }
    divide(out, sum, w);
}

/* --- many entries ----------------------------------------------------------------------------- */

enum { TILE_FLOATS = 64 * 1024 }; /* pooled floats per tile of entries */

/* Entries first .. of one sequence (or of a batch of whole ones): rows before `given` are in the
 * state, those from it on are in c and z. */
typedef struct job {
    const kvl_compressor *comp;
    const kvl_compress_state *state; /* NULL for whole sequences */
    const float *bias;
    kvl_rows c, z;
    float *out;
    int64_t given, first, entries, per_tile;
} job;

/* Columns [from, from + w) of row s. */
static pooled find_row(const job *j, int64_t b, int64_t s, int64_t from) {
    const kvl_compress_state *x = j->state;
    if (s >= j->given) {
        int64_t at = s - j->given;
        const float *bias = j->bias ? j->bias + s % j->comp->ratio * row_width(j->comp) + from
                                    : NULL;
        const float *z = j->z.p ? j->z.p + b * j->z.step_b + at * j->z.step_s + from : NULL;
        return (pooled){j->c.p + b * j->c.step_b + at * j->c.step_s + from, z, bias};
    }
    if (s >= x->lo) {
        int64_t at = s % x->cap * x->row + from;
        return (pooled){x->c + at, x->z + at, NULL};
    }
    int64_t at = s % x->comp.ratio * x->comp.width; /* from is 0: only first halves are that old */
    return (pooled){x->ac + at, x->az + at, NULL};
}

static kvl_status pool_tile(void *ctx, int64_t tile, void *scratch, kvl_error *err) {
    (void)err;
    const job *j = ctx;
    int64_t m = j->comp->ratio, w = j->comp->width, tiles = kvl_tiles(j->entries, j->per_tile);
    int64_t b = tile / tiles, from = tile % tiles * j->per_tile;
    int64_t to = j->entries - from < j->per_tile ? j->entries : from + j->per_tile;
    float *work = scratch;
    pooled *rows = (pooled *)(void *)(work + (3 * w + 15) / 16 * 16);
    for (int64_t e = from; e < to; e++) {
        int64_t block = j->first + e, n = 0;
        if (j->comp->overlap && block > 0)
            for (int64_t i = 0; i < m; i++)
                rows[n++] = find_row(j, b, (block - 1) * m + i, 0);
        for (int64_t i = 0; i < m; i++)
            rows[n++] = find_row(j, b, block * m + i, j->comp->overlap ? w : 0);
        pool_entry(j->out + (b * j->entries + e) * w, rows, n, w, work);
    }
    return KVL_OK;
}

static kvl_status run(job *j, int64_t batch, kvl_error *err) {
    int64_t m = j->comp->ratio, w = j->comp->width, tiles;
    if (j->entries <= 0 || batch <= 0) return KVL_OK;
    j->per_tile = TILE_FLOATS / (m * w) + 1;
    size_t bytes = ((size_t)w * 3 + 16) * sizeof(float) + 2 * (size_t)m * sizeof(pooled);
    if (!kvl_mul(&tiles, kvl_tiles(j->entries, j->per_tile), batch))
        return kvl_fail(err, KVL_EINVAL, "compress: batch of %lld overflows", (long long)batch);
    return kvl_parallel_for(tiles, bytes, pool_tile, j, err);
}

kvl_status kvl_compress(float *out, const kvl_compressor *comp, kvl_rows c, kvl_rows z,
                        int64_t batch, int64_t tokens, kvl_error *err) {
    kvl_status status = check(comp, err);
    if (status) return status;
    job j = {.comp = comp, .bias = comp->bias, .c = c, .z = z, .out = out};
    j.entries = tokens / comp->ratio;
    return run(&j, batch, err);
}

/* --- state ------------------------------------------------------------------------------------ */

/* All rows of a state in floats: c, z, ac, az one after the other from c. */
static int64_t state_floats(const kvl_compress_state *x) {
    int64_t halves = x->comp.overlap ? x->comp.ratio * x->comp.width : 0;
    return 2 * x->cap * x->row + 2 * halves;
}

static kvl_status give_rows(kvl_compress_state *x, kvl_error *err) {
    int64_t floats = state_floats(x);
    if (floats == 0) return KVL_OK;
    x->c = kvl_alloc((size_t)floats * sizeof(float));
    if (!x->c)
        return kvl_fail(err, KVL_ENOMEM, "compress: no memory for a state of %lld floats",
                        (long long)floats);
    x->z = x->c + x->cap * x->row;
    x->ac = x->z + x->cap * x->row;
    x->az = x->ac + (x->comp.overlap ? x->comp.ratio * x->comp.width : 0);
    return KVL_OK;
}

kvl_status kvl_compress_state_new(kvl_compress_state **out, const kvl_compressor *comp,
                                  int64_t rollback, kvl_error *err) {
    *out = NULL;
    kvl_status status = check(comp, err);
    if (status) return status;
    int64_t floats, row = row_width(comp);
    if (rollback < 0 || rollback > INT32_MAX || !kvl_mul(&floats, comp->ratio + rollback, 16 * row))
        return kvl_fail(err, KVL_EINVAL, "compress: rollback of %lld tokens", (long long)rollback);
    kvl_compress_state *x = kvl_alloc(sizeof *x);
    if (!x) return kvl_fail(err, KVL_ENOMEM, "compress: no memory for a state");
    x->comp = *comp;
    x->comp.bias = NULL;
    x->rollback = rollback;
    x->row = row;
    /* Plain with m = 1: a block is never open, so nothing is remembered. */
    x->cap = comp->ratio == 1 && !comp->overlap ? 0 : comp->ratio - 1 + rollback;
    status = give_rows(x, err);
    if (status) {
        kvl_free(x);
        return status;
    }
    *out = x;
    return KVL_OK;
}

kvl_status kvl_compress_state_copy(kvl_compress_state **out, const kvl_compress_state *from,
                                   kvl_error *err) {
    *out = NULL;
    kvl_compress_state *x = kvl_alloc(sizeof *x);
    if (!x) return kvl_fail(err, KVL_ENOMEM, "compress: no memory for a state");
    *x = *from;
    x->c = NULL;
    kvl_status status = give_rows(x, err);
    if (status) {
        kvl_free(x);
        return status;
    }
    if (x->c) memcpy(x->c, from->c, (size_t)state_floats(x) * sizeof(float));
    *out = x;
    return KVL_OK;
}

void kvl_compress_state_free(kvl_compress_state *x) {
    if (!x) return;
    kvl_free(x->c);
    kvl_free(x);
}

static void keep_half(kvl_compress_state *x, int64_t s, const float *c, const float *z) {
    if (!x->comp.overlap) return;
    int64_t w = x->comp.width, at = s % x->comp.ratio * w;
    memcpy(x->ac + at, c, (size_t)w * sizeof *c);
    memcpy(x->az + at, z, (size_t)w * sizeof *z);
}

/* Row n, with its bias added, goes into the ring; the oldest leaves it,
 * except for its first half. */
static void remember(kvl_compress_state *x, const pooled *row) {
    if (x->cap > 0) {
        if (x->n - x->lo == x->cap) {
            int64_t at = x->lo % x->cap * x->row;
            keep_half(x, x->lo, x->c + at, x->z + at);
            x->lo++;
        }
        int64_t at = x->n % x->cap * x->row;
        memcpy(x->c + at, row->c, (size_t)x->row * sizeof(float));
        row_scores(x->z + at, row->z, row->bias, x->row);
    } else { /* m = 1 without rollback */
        if (x->comp.overlap) {
            memcpy(x->ac, row->c, (size_t)x->comp.width * sizeof(float));
            row_scores(x->az, row->z, row->bias, x->comp.width);
        }
        x->lo++;
    }
    x->n++;
}

/* What item b of a batch gets: n rows after those in its state. */
static job push_job(float *out, const kvl_compress_state *x, const float *bias, kvl_rows c,
                    kvl_rows z, int64_t b, int64_t n) {
    int64_t m = x->comp.ratio, entries = (x->n + n) / m - x->n / m;
    job j = {.comp = &x->comp, .state = x, .bias = bias, .given = x->n};
    j.first = x->n / m;
    j.entries = entries;
    j.out = out + b * entries * x->comp.width;
    j.c = (kvl_rows){c.p + b * c.step_b, 0, c.step_s, 0};
    j.z = (kvl_rows){z.p ? z.p + b * z.step_b : NULL, 0, z.step_s, 0};
    return j;
}

/* Only the last rows are remembered; with enough of them, nothing older is. */
static void take_rows(kvl_compress_state *x, const job *j, int64_t n) {
    int64_t end = x->n + n, begin = x->n, needed = x->cap + x->comp.ratio;
    if (n > needed) begin = x->n = x->lo = end - needed;
    for (int64_t s = begin; s < end; s++) {
        pooled row = find_row(j, 0, s, 0);
        remember(x, &row);
    }
    if (x->n > x->high) x->high = x->n;
}

static bool in_step(const kvl_compress_state *x, const kvl_compress_state *y) {
    return x->n == y->n && x->comp.ratio == y->comp.ratio && x->comp.width == y->comp.width &&
           x->comp.overlap == y->comp.overlap;
}

kvl_status kvl_compress_push_batch(float *out, kvl_compress_state *const *states, int64_t batch,
                                   const float *bias, kvl_rows c, kvl_rows z, int64_t n,
                                   kvl_error *err) {
    int64_t end;
    for (int64_t b = 0; b < batch; b++) {
        if (n < 0 || __builtin_add_overflow(states[b]->n, n, &end))
            return kvl_fail(err, KVL_EINVAL, "compress: %lld tokens", (long long)n);
        if (!in_step(states[b], states[0]))
            return kvl_fail(err, KVL_EINVAL,
                            "compress: sequence %lld is not in step with the first", (long long)b);
    }
    /* All entries first, as only they can fail: then the states go on together. */
    for (int64_t b = 0; b < batch; b++) {
        job j = push_job(out, states[b], bias, c, z, b, n);
        kvl_status status = run(&j, 1, err);
        if (status) return status;
    }
    for (int64_t b = 0; b < batch; b++) {
        job j = push_job(out, states[b], bias, c, z, b, n);
        take_rows(states[b], &j, n);
    }
    return KVL_OK;
}

kvl_status kvl_compress_push(float *out, kvl_compress_state *x, const float *bias, kvl_rows c,
                             kvl_rows z, int64_t n, kvl_error *err) {
    return kvl_compress_push_batch(out, &x, 1, bias, c, z, n, err);
}

kvl_status kvl_compress_rollback(kvl_compress_state *x, int64_t n, kvl_error *err) {
    int64_t left = x->rollback - (x->high - x->n);
    if (n < 0 || n > x->n || n > left)
        return kvl_fail(
            err, KVL_EINVAL,
            "compress: cannot take back %lld of %lld tokens; %lld of at most %lld are left "
            "to take back",
            (long long)n, (long long)x->n, (long long)(left < x->n ? left : x->n),
            (long long)x->rollback);
    x->n -= n;
    if (x->cap == 0) x->lo = x->n;
    return KVL_OK;
}

int64_t kvl_compress_position(const kvl_compress_state *x) {
    return x->n;
}

size_t kvl_compress_rollback_bytes(const kvl_compress_state *x) {
    return x->cap > 0 ? (size_t)(2 * x->rollback * x->row) * sizeof(float) : 0;
}

size_t kvl_compress_state_bytes(const kvl_compress_state *x) {
    int64_t m = x->comp.ratio, floats = 2 * (x->n % m) * x->row;
    if (x->comp.overlap && x->n >= m) floats += 2 * m * x->comp.width;
    return (size_t)floats * sizeof(float);
}

/* --- the definition --------------------------------------------------------------------------- */

kvl_status kvl_compress_ref(double *out, const kvl_compressor *comp, kvl_rows c, kvl_rows z,
                            int64_t batch, int64_t tokens, kvl_error *err) {
    kvl_status status = check(comp, err);
    if (status) return status;
    int64_t m = comp->ratio, w = comp->width, row = row_width(comp), blocks = tokens / m;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t e = 0; e < blocks; e++)
            for (int64_t i = 0; i < w; i++) {
                double top = -INFINITY, sum = 0.0, u = 0.0;
                /* pass 0: the largest score; pass 1: the weighted sum */
                for (int pass = 0; pass < 2; pass++)
                    for (int64_t s = comp->overlap && e > 0 ? (e - 1) * m : e * m; s < (e + 1) * m;
                         s++) {
                        int64_t col = comp->overlap && s >= e * m ? w + i : i;
                        double score = z.p ? z.p[b * z.step_b + s * z.step_s + col] : 0.0;
                        if (comp->bias) score += (double)comp->bias[s % m * row + col];
                        if (pass == 0) {
                            top = score > top ? score : top;
                            continue;
                        }
                        double p = exp(score - top);
                        sum += p;
                        u += p * (double)c.p[b * c.step_b + s * c.step_s + col];
                    }
                out[(b * blocks + e) * w + i] = u / sum;
            }
    return KVL_OK;
}
