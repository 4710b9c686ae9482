/* attend.c - attention by tiles, on all threads. See kvlab/attend.h for what is computed.
 *
 * The work is cut into groups (batch item, heads h0..h1, queries t0..t1) and, when there are few of
 * them (decoding), the rows that a group sees are cut into chunks as well. For a group and a chunk,
 * a state is kept for each of its M = heads x queries logit rows:
 *
 *     max [M]     largest logit so far       S [N, M]          logits of one tile of N rows
 *     sum [M]     sum of e^(logit - max)     acc [M, value]    sum of e^(logit - max) * value
 *
 * and a tile changes it by: S = K Q^T; rescale by e^(old max - new max); S = e^(S - max); acc +=
 * S^T V. Both products are matrix products over all heads that share the rows. A row of S has the
 * logits of one key, so that the softmax goes through all M of them side by side. The states of the
 * chunks are added at the end, always in the same order. The numbers of groups and chunks depend on
 * the shapes only, so the bits of the result do not depend on the number of threads.
 */
#include "attend.h"

#include "kvlab/blas.h"
#include "kvlab/parallel.h"
#include "kvlab/vmath.h"
#include "sizes.h"

#include <math.h>
#include <string.h>

enum {
    GROUP_ROWS = 256,       /* M: logit rows of a group, when there are so many queries */
    TILE_ROWS = 96,         /* N at most, for narrow rows */
    TILE_FLOATS = 80 << 10, /* of a tile of rows at most: it stays in a second-level cache */
    MIN_TILE_ROWS = 32,
    THIN = 8,        /* fewer logit rows per kv head: no matrix products */
    MIN_PARTS = 16,  /* fewer groups than this: cut rows into chunks */
    MIN_CHUNK = 128, /* rows of a chunk at least */
    STRIP = 16       /* rows that are turned into columns together */
};

typedef struct plan {
    const kvl_attend_args *a;
    int64_t newest; /* position of the last query */
    int64_t group_heads, group_queries, head_groups, query_groups, groups;
    int64_t chunks, chunk_rows; /* chunks per group */
    int64_t tile_rows[KVL_MAX_SOURCES];
    int64_t m, n, row_floats; /* largest M, N, floats of a tile of rows */
    float *partial;           /* [groups, chunks, m, value_width + 2], when chunks > 1 */
} plan;

/* One group with one chunk, on one thread. Logit row of (head h, query t): (h - h0) * nt + t - t0,
 * so that the heads of one kv head are neighbours. */
typedef struct group {
    const plan *p;
    const kvl_attend_args *a;
    int64_t b, h0, h1, t0, nt;
    float *q;         /* [M, key_width], scaled */
    float *panels;    /* the same, turned, of each kv head (kvl_make_panels) */
    float *acc;       /* [M, value_width] */
    float *max;       /* [M] */
    float *sum;       /* [M] */
    float *shift;     /* [M]: max of one kv head, 0 where there is none yet */
    float *sums;      /* [M]: its sums over the tile */
    float *s;         /* [N, M]; [M, N] of few logit rows */
    float *rows;      /* rows that were read or gathered */
    float *columns;   /* [key_width, STRIP] keys of some rows, turned */
    int32_t *names;   /* [N] rows of a list without the -1 */
    int32_t *lo, *hi; /* [M] rows of a tile that are seen */
    kvl_error *err;
} group;

/* Rows of one source in memory. Element (s, g, c) of the keys: key[s * key_s + g * key_h + c]. */
typedef struct tile {
    const float *key, *value;
    int64_t key_s, key_h, value_s, value_h;
    int64_t n;
} tile;

/* --- rows ------------------------------------------------------------------------------------- */

/* The value columns lie within the key columns: a gathered row serves both. */
static bool shares_columns(const kvl_attend_args *a, const kvl_source *s) {
    return s->value.p == s->key.p && a->value_width <= a->key_width &&
           s->value.step_b == s->key.step_b && s->value.step_s == s->key.step_s &&
           s->value.step_h == s->key.step_h;
}

static void gather(float *dst, int64_t width, const float *src, const kvl_rows *from,
                   const int32_t *names, int64_t n, int64_t g0, int64_t g1) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t g = g0; g < g1; g++, dst += width)
            memcpy(dst, src + names[i] * from->step_s + g * from->step_h,
                   (size_t)width * sizeof *dst);
}

/* Rows `names` (or first, first + 1, ...) of kv heads g0..g1 as a tile, in place where possible. */
static kvl_status load_tile(group *x, tile *out, const kvl_source *s, const int32_t *names,
                            int64_t first, int64_t n, int64_t g0, int64_t g1) {
    int64_t kw = x->a->key_width, vw = x->a->value_width, heads = g1 - g0;
    if (s->read) {
        kvl_status status = s->read(s->read_ctx, x->b, names, first, n, x->rows, x->err);
        *out = (tile){x->rows + s->key0, x->rows + s->value0, s->width, s->key_step,
                      s->width,          s->value_step,       n};
        return status;
    }
    const float *key = s->key.p + x->b * s->key.step_b;
    const float *value = s->value.p + x->b * s->value.step_b;
    if (!names) {
        *out = (tile){key + first * s->key.step_s,
                      value + first * s->value.step_s,
                      max(s->key.step_s, kw),
                      s->key.step_h,
                      max(s->value.step_s, vw),
                      s->value.step_h,
                      n};
        return KVL_OK;
    }
    float *keys = x->rows, *values = x->rows;
    gather(keys, kw, key, &s->key, names, n, g0, g1);
    int64_t value_width = kw;
    if (!shares_columns(x->a, s)) {
        values = keys + n * heads * kw;
        value_width = vw;
        gather(values, vw, value, &s->value, names, n, g0, g1);
    }
    /* Heads are counted from 0, gathered are those from g0 on. */
    *out = (tile){keys - g0 * kw,
                  values - g0 * value_width,
                  heads * kw,
                  kw,
                  heads * value_width,
                  value_width,
                  n};
    return KVL_OK;
}

/* --- one tile --------------------------------------------------------------------------------- */

/* Logits s[0..n) of which only [lo, hi) are seen become weights relative to the new maximum. */
static void softmax_row(group *x, int64_t row, float *s, int64_t n, int64_t lo, int64_t hi) {
    float old = x->max[row], new = kvl_max(s + lo, hi - lo);
    if (hi <= lo) {
        memset(s, 0, (size_t)n * sizeof *s);
        return;
    }
    if (new < old) new = old;
    if (new > old && old != -INFINITY) {
        float keep = expf(old - new);
        x->sum[row] *= keep;
        kvl_scale_by(x->acc + row * x->a->value_width, keep, x->a->value_width);
    }
    x->max[row] = new;
    /* All of them -inf: weights 0, but a NaN among them must stay one. */
    float shift = new == -INFINITY ? 0.0f : new;
    x->sum[row] += kvl_exp_sum(s + lo, s + lo, 1.0f, shift, hi - lo);
    memset(s, 0, (size_t)lo * sizeof *s);
    memset(s + hi, 0, (size_t)(n - hi) * sizeof *s);
}

static bool all_finite(const float *rows, int64_t step, int64_t n, int64_t width) {
    bool finite = true;
    for (int64_t i = 0; i < n; i++)
        finite &= kvl_finite(rows + i * step, width);
    return finite;
}

/* Logit rows first, first + step, ... (m of them) of the heads of one kv head, and where the panels
 * of their queries begin. */
typedef struct kv_group {
    int64_t g, first, step, m, panels;
} kv_group;

/* All queries of the group, or query ta alone. */
static kv_group kv_group_of(const group *x, int64_t per_kv, int64_t g, int64_t ta, int64_t tb) {
    int64_t ha = max(g * per_kv, x->h0) - x->h0, hb = min((g + 1) * per_kv, x->h1) - x->h0;
    bool whole = tb - ta == x->nt;
    return (kv_group){g, ha * x->nt + ta, whole ? 1 : x->nt, whole ? (hb - ha) * x->nt : hb - ha,
                      ha * (tb - ta) * x->a->key_width};
}

/* Few logit rows per kv head: no matrix products. */
static bool is_thin(const group *x, const kvl_source *s, int64_t queries) {
    return x->a->heads / s->kv_heads * queries < THIN;
}

/* Turns the queries ta .. tb for the products with the keys of a source. */
static void turn_queries(group *x, const kvl_source *s, int64_t ta, int64_t tb) {
    int64_t per_kv = x->a->heads / s->kv_heads, kw = x->a->key_width;
    if (is_thin(x, s, tb - ta)) return;
    for (int64_t g = x->h0 / per_kv; g * per_kv < x->h1; g++) {
        kv_group k = kv_group_of(x, per_kv, g, ta, tb);
        kvl_make_panels(x->panels + k.panels, (kvl_mat){x->q + k.first * kw, k.step * kw, true, 0},
                        k.m, kw);
    }
}

/* Logits of rows at .. at + count of a tile for few logit rows, which share the turned keys. */
static void thin_logits(group *x, const tile *in, kv_group k, int64_t at, int64_t count) {
    int64_t kw = x->a->key_width, n = in->n;
    const float *key = in->key + at * in->key_s + k.g * in->key_h, *q = x->q + k.first * kw;
    float *s = x->s + k.first * n + at;
    if (k.m == 1) {
        for (int64_t i = 0; i < count; i++)
            s[i] = kvl_dot(q, key + i * in->key_s, kw);
        return;
    }
    kvl_transpose(x->columns, STRIP, key, in->key_s, count, kw);
    for (int64_t j = 0; j < k.m; j++)
        memset(s + j * k.step * n, 0, (size_t)count * sizeof *s);
    kvl_small_product(s, k.step * n, q, k.step * kw, 1, x->columns, STRIP, k.m, count, kw);
}

/* acc += weights times the values of the same rows. */
static void thin_sums(group *x, const tile *in, kv_group k, int64_t at, int64_t count,
                      const interval *see) {
    int64_t vw = x->a->value_width, n = in->n;
    const float *value = in->value + k.g * in->value_h, *s = x->s + k.first * n;
    float *acc = x->acc + k.first * vw;
    if (!see) {
        kvl_small_product(acc, k.step * vw, s + at, k.step * n, 1, value + at * in->value_s,
                          in->value_s, k.m, vw, count);
        return;
    }
    for (int64_t j = 0; j < k.m; j++, acc += k.step * vw, s += k.step * n) {
        interval sees = see[(k.first + j * k.step) % x->nt];
        int64_t from = max(sees.lo, at), to = min(sees.hi, at + count);
        kvl_small_product(acc, 0, s + from, 0, 1, value + from * in->value_s, in->value_s, 1, vw,
                          to - from);
    }
}

/* Few logit rows per kv head (multi-head decoding, lists): a matrix product would be slow, and
 * would walk through the rows once per kv head. So strip by strip, each with all its heads. */
static void absorb_thin(group *x, const kvl_source *s, const tile *in, int64_t ta, int64_t tb,
                        const interval *see) {
    int64_t per_kv = x->a->heads / s->kv_heads, n = in->n;
    int64_t g0 = x->h0 / per_kv, g1 = (x->h1 - 1) / per_kv + 1;
    for (int64_t at = 0; at < n; at += STRIP)
        for (int64_t g = g0; g < g1; g++)
            thin_logits(x, in, kv_group_of(x, per_kv, g, ta, tb), at, min(STRIP, n - at));
    for (int64_t t = ta; t < tb; t++)
        for (int64_t h = 0; h < x->h1 - x->h0; h++) {
            interval sees = see ? see[t] : (interval){0, n};
            softmax_row(x, h * x->nt + t, x->s + (h * x->nt + t) * n, n, sees.lo, sees.hi);
        }
    for (int64_t at = 0; at < n; at += STRIP)
        for (int64_t g = g0; g < g1; g++)
            thin_sums(x, in, kv_group_of(x, per_kv, g, ta, tb), at, min(STRIP, n - at), see);
}

/* Logits s [n, m] of a kv head become weights relative to the new maxima. */
static void softmax_columns(group *x, kv_group k, float *s, int64_t n) {
    float *max = x->shift, *sum = x->sums;
    for (int64_t j = 0; j < k.m; j++)
        max[j] = x->max[k.first + j * k.step];
    kvl_attend_raise_max(max, s, n, k.m);
    for (int64_t j = 0; j < k.m; j++) {
        int64_t row = k.first + j * k.step;
        float old = x->max[row];
        x->max[row] = max[j];
        if (max[j] > old && old != -INFINITY) {
            float keep = expf(old - max[j]);
            x->sum[row] *= keep;
            kvl_scale_by(x->acc + row * x->a->value_width, keep, x->a->value_width);
        }
        sum[j] = 0.0f;
        /* All of them -inf: weights 0, but a NaN among them must stay one. */
        if (max[j] == -INFINITY) max[j] = 0.0f;
    }
    /* The sums of a tile by themselves: a million small weights, one by one, are lost in a large
     * sum. */
    kvl_attend_weigh(s, sum, max, n, k.m);
    for (int64_t j = 0; j < k.m; j++)
        x->sum[k.first + j * k.step] += sum[j];
}

/* Logits of rows that a query does not see are -inf: their weight is 0. */
static void hide(group *x, kv_group k, int64_t n, const interval *see) {
    for (int64_t j = 0; j < k.m; j += x->nt)
        for (int64_t t = 0; t < x->nt; t++) {
            x->lo[j + t] = (int32_t)see[t].lo;
            x->hi[j + t] = (int32_t)see[t].hi;
        }
    kvl_attend_hide(x->s, x->lo, x->hi, -INFINITY, n, k.m);
}

/* Takes a tile into the state of the queries t0 + ta .. t0 + tb, which turn_queries has turned.
 * Each sees the part see[t] of it, all of it when see is NULL. */
static void absorb(group *x, const kvl_source *s, const tile *in, int64_t ta, int64_t tb,
                   const interval *see) {
    const kvl_attend_args *a = x->a;
    int64_t per_kv = a->heads / s->kv_heads, kw = a->key_width, vw = a->value_width, n = in->n;
    if (is_thin(x, s, tb - ta)) {
        absorb_thin(x, s, in, ta, tb, see);
        return;
    }
    bool partly = false;
    for (int64_t t = ta; see && t < tb; t++)
        partly |= see[t].lo > 0 || see[t].hi < n;
    for (int64_t g = x->h0 / per_kv; g * per_kv < x->h1; g++) {
        kv_group k = kv_group_of(x, per_kv, g, ta, tb);
        const float *value = in->value + g * in->value_h;
        kvl_gemm_panels(x->s, k.m, in->key + g * in->key_h, in->key_s, x->panels + k.panels, 1.0f,
                        0.0f, n, k.m, kw);
        if (partly) hide(x, k, n, see);
        softmax_columns(x, k, x->s, n);
        float *acc = x->acc + k.first * vw;
        if (!partly || all_finite(value, in->value_s, n, vw)) {
            kvl_gemm_tile(acc, k.step * vw, (kvl_mat){x->s, k.m, true, 0},
                          (kvl_mat){value, in->value_s, false, 0}, 1.0f, 1.0f, k.m, vw, n);
            continue;
        }
        /* 0 * NaN is NaN: weights 0 do not hide a row from the queries that do not see it. */
        for (int64_t j = 0; j < k.m; j++) {
            interval sees = see[(k.first + j * k.step) % x->nt];
            for (int64_t r = sees.lo; r < sees.hi; r++)
                kvl_axpy(acc + j * k.step * vw, x->s[r * k.m + j], value + r * in->value_s, vw);
        }
    }
}

/* --- one source ------------------------------------------------------------------------------- */

static interval part(interval all, int64_t from, int64_t to) {
    interval r = {max(all.lo, from) - from, min(all.hi, to) - from};
    if (r.hi < r.lo) r.hi = r.lo;
    return r;
}

/* Positions that some query of t0 .. t0 + nt sees. */
static interval union_of(const plan *p, const kvl_source *s, int64_t t0, int64_t nt) {
    interval first = kvl_attend_sees(s, p->a->q_pos0 + t0, p->newest);
    interval last = kvl_attend_sees(s, p->a->q_pos0 + t0 + nt - 1, p->newest);
    return (interval){first.lo, last.hi};
}

/* Rows (or list columns) of a source that a group walks through. */
static int64_t length_of(const plan *p, const kvl_source *s, int64_t t0, int64_t nt) {
    if (s->see == KVL_SEE_LIST) return s->k;
    interval all = union_of(p, s, t0, nt);
    return all.hi - all.lo;
}

static void kv_range(const group *x, const kvl_source *s, int64_t *g0, int64_t *g1) {
    int64_t per_kv = x->a->heads / s->kv_heads;
    *g0 = x->h0 / per_kv;
    *g1 = (x->h1 - 1) / per_kv + 1;
}

static kvl_status walk_interval(group *x, const kvl_source *s, int64_t tile_rows, int64_t from,
                                int64_t to) {
    interval see[KVL_MOST_QUERIES];
    int64_t g0, g1, base = union_of(x->p, s, x->t0, x->nt).lo;
    kv_range(x, s, &g0, &g1);
    turn_queries(x, s, 0, x->nt);
    for (int64_t at = base + from; at < base + to;) {
        if (kvl_cancelled()) return kvl_fail(x->err, KVL_ECANCEL, "cancelled");
        int64_t row = kvl_attend_row(s, at), n = min(tile_rows, base + to - at);
        if (s->ring) n = min(n, s->ring - row);
        for (int64_t t = 0; t < x->nt; t++)
            see[t] = part(kvl_attend_sees(s, x->a->q_pos0 + x->t0 + t, x->p->newest), at, at + n);
        tile in;
        kvl_status status = load_tile(x, &in, s, NULL, row, n, g0, g1);
        if (status) return status;
        absorb(x, s, &in, 0, x->nt, see);
        at += n;
    }
    return KVL_OK;
}

static kvl_status walk_list(group *x, const kvl_source *s, int64_t tile_rows, int64_t from,
                            int64_t to) {
    int64_t g0, g1;
    kv_range(x, s, &g0, &g1);
    for (int64_t t = 0; t < x->nt; t++) {
        const int32_t *list = s->list + (x->b * x->a->queries + x->t0 + t) * s->k;
        turn_queries(x, s, t, t + 1);
        for (int64_t at = from; at < to;) {
            if (kvl_cancelled()) return kvl_fail(x->err, KVL_ECANCEL, "cancelled");
            int64_t n = 0;
            for (; at < to && n < tile_rows; at++) {
                if (list[at] == -1) continue;
                if (list[at] < 0 || list[at] >= s->rows)
                    return kvl_attend_bad_row(s, list[at], x->err);
                x->names[n++] = list[at];
            }
            if (n == 0) break;
            tile in;
            kvl_status status = load_tile(x, &in, s, x->names, 0, n, g0, g1);
            if (status) return status;
            absorb(x, s, &in, t, t + 1, NULL);
        }
    }
    return KVL_OK;
}

/* --- one group -------------------------------------------------------------------------------- */

/* Writes out and lse of logit row (h, t) from its state. */
static void finish_row(const kvl_attend_args *a, int64_t b, int64_t t, int64_t h, const float *acc,
                       float largest, float sum) {
    float *out = a->out + b * a->out_step_b + t * a->out_step_t + h * a->out_step_h;
    /* The sink may be far above or below all logits:
     * relative to the larger one neither overflows. */
    float sink = a->sink ? a->sink[h] : -INFINITY;
    float top = largest, total = sum, keep = 1.0f;
    if (!(sink <= largest)) {
        top = sink;
        keep = largest == -INFINITY ? 1.0f : expf(largest - top);
        total = sum * keep + 1.0f;
    } else if (sink != -INFINITY) {
        total = sum + expf(sink - largest);
    }
    float factor = total == 0.0f ? 0.0f : keep / total;
    for (int64_t c = 0; c < a->value_width; c++)
        out[c] = acc[c] * factor;
    if (a->lse)
        a->lse[(b * a->queries + t) * a->heads + h] = total == 0.0f ? -INFINITY : top + logf(total);
}

static group group_of(const plan *p, int64_t number, kvl_error *err) {
    const kvl_attend_args *a = p->a;
    group x = {.p = p, .a = a, .err = err};
    /* The last queries see most: they come first, so that the threads end together. */
    x.t0 = (p->query_groups - 1 - number % p->query_groups) * p->group_queries;
    x.h0 = number / p->query_groups % p->head_groups * p->group_heads;
    x.b = number / p->query_groups / p->head_groups;
    x.h1 = min(x.h0 + p->group_heads, a->heads);
    x.nt = min(p->group_queries, a->queries - x.t0);
    return x;
}

static void pack_q(group *x) {
    const kvl_attend_args *a = x->a;
    for (int64_t h = x->h0; h < x->h1; h++)
        for (int64_t t = 0; t < x->nt; t++) {
            const float *q = a->q + x->b * a->q_step_b + (x->t0 + t) * a->q_step_t +
                             h * a->q_step_h;
            float *to = x->q + ((h - x->h0) * x->nt + t) * a->key_width;
            for (int64_t c = 0; c < a->key_width; c++)
                to[c] = q[c] * a->scale;
        }
}

static size_t scratch_bytes(const plan *p) {
    const kvl_attend_args *a = p->a;
    int64_t floats = 2 * pad(p->m * a->key_width) + pad(p->m * a->value_width) + 6 * pad(p->m) +
                     pad(p->m * p->n) + pad(p->row_floats) + pad(STRIP * a->key_width) + pad(p->n);
    return (size_t)floats * sizeof(float);
}

static kvl_status run_part(void *ctx, int64_t number, void *scratch, kvl_error *err) {
    const plan *p = ctx;
    const kvl_attend_args *a = p->a;
    int64_t chunk = number % p->chunks, vw = a->value_width;
    group x = group_of(p, number / p->chunks, err);
    float *at = scratch;
    x.q = at, at += pad(p->m * a->key_width);
    x.panels = at, at += pad(p->m * a->key_width);
    x.acc = at, at += pad(p->m * vw);
    x.max = at, at += pad(p->m);
    x.sum = at, at += pad(p->m);
    x.shift = at, at += pad(p->m);
    x.sums = at, at += pad(p->m);
    x.s = at, at += pad(p->m * p->n);
    x.rows = at, at += pad(p->row_floats);
    x.columns = at, at += pad(STRIP * a->key_width);
    x.lo = (int32_t *)(void *)at, at += pad(p->m);
    x.hi = (int32_t *)(void *)at, at += pad(p->m);
    x.names = (int32_t *)(void *)at;
    int64_t m = (x.h1 - x.h0) * x.nt;
    if (p->chunks > 1) { /* the state is what the chunk leaves behind: [acc | max | sum] */
        x.acc = p->partial + number * p->m * (vw + 2);
        x.max = x.acc + p->m * vw;
        x.sum = x.max + p->m;
    }
    pack_q(&x);
    memset(x.acc, 0, (size_t)(m * vw) * sizeof *x.acc);
    memset(x.sum, 0, (size_t)m * sizeof *x.sum);
    for (int64_t i = 0; i < m; i++)
        x.max[i] = -INFINITY;

    /* The rows of all sources, one after the other, are cut at multiples of chunk_rows. */
    int64_t begin = chunk * p->chunk_rows, end = begin + p->chunk_rows, offset = 0;
    for (int64_t i = 0; i < a->n_sources; i++) {
        const kvl_source *s = &a->sources[i];
        int64_t length = length_of(p, s, x.t0, x.nt);
        int64_t from = max(begin - offset, 0), to = min(end - offset, length);
        offset += length;
        if (from >= to) continue;
        kvl_status status = s->see == KVL_SEE_LIST
                                ? walk_list(&x, s, p->tile_rows[i], from, to)
                                : walk_interval(&x, s, p->tile_rows[i], from, to);
        if (status) return status;
    }
    if (p->chunks == 1)
        for (int64_t i = 0; i < m; i++)
            finish_row(a, x.b, x.t0 + i % x.nt, x.h0 + i / x.nt, x.acc + i * vw, x.max[i],
                       x.sum[i]);
    return KVL_OK;
}

/* Adds the states of the chunks of one group into that of its first chunk. */
static kvl_status combine(void *ctx, int64_t number, void *scratch, kvl_error *err) {
    (void)scratch;
    const plan *p = ctx;
    int64_t vw = p->a->value_width, step = p->m * (vw + 2);
    group x = group_of(p, number / p->group_heads, err);
    int64_t h = x.h0 + number % p->group_heads;
    if (h >= x.h1) return KVL_OK;
    float *first = p->partial + number / p->group_heads * p->chunks * step;
    for (int64_t t = 0; t < x.nt; t++) {
        int64_t row = (h - x.h0) * x.nt + t;
        float top = -INFINITY, sum = 0.0f;
        for (int64_t i = 0; i < p->chunks; i++)
            top = fmaxf(top, first[i * step + p->m * vw + row]);
        for (int64_t i = 0; i < p->chunks; i++) {
            const float *state = first + i * step + p->m * vw;
            /* A sum that is 0 belongs to an empty chunk; NaN is not 0 and goes on. */
            float keep = state[p->m + row] == 0.0f ? 0.0f : 1.0f;
            if (keep != 0.0f && top != -INFINITY) keep = expf(state[row] - top);
            sum += state[p->m + row] * keep;
            if (i == 0)
                kvl_scale_by(first + row * vw, keep, vw);
            else if (keep != 0.0f)
                kvl_axpy(first + row * vw, keep, first + i * step + row * vw, vw);
        }
        finish_row(p->a, x.b, x.t0 + t, h, first + row * vw, top, sum);
    }
    return KVL_OK;
}

/* --- the plan --------------------------------------------------------------------------------- */

static void make_plan(plan *p, const kvl_attend_args *a) {
    *p = (plan){.a = a, .newest = a->q_pos0 + a->queries - 1, .group_heads = 1};
    /* Heads of one group: those that share rows; all, when rows come from a reader (each once) or
     * are gone through one by one. */
    int64_t shared = 1;
    for (int64_t i = 0; i < a->n_sources; i++) {
        const kvl_source *s = &a->sources[i];
        int64_t per_kv = a->heads / s->kv_heads;
        shared = max(shared, per_kv);
        bool all = s->read || per_kv * a->queries < THIN;
        p->group_heads = max(p->group_heads, all ? a->heads : per_kv);
    }
    int64_t queries = kvl_attend_queries(shared, a->queries);
    p->group_queries = max(1, min(min(GROUP_ROWS / p->group_heads, queries), a->queries));
    p->head_groups = kvl_tiles(a->heads, p->group_heads);
    p->query_groups = kvl_tiles(a->queries, p->group_queries);
    p->groups = a->batch * p->head_groups * p->query_groups;
    p->m = p->group_heads * p->group_queries;

    int64_t length =
        0; /* rows of a group: the last queries see most, a window as much everywhere */
    for (int64_t i = 0; i < a->n_sources; i++) {
        const kvl_source *s = &a->sources[i];
        int64_t per_kv = a->heads / s->kv_heads, heads = p->group_heads / per_kv;
        if (p->group_heads % per_kv != 0)
            heads = min(heads + 2, s->kv_heads); /* cut at both ends */
        int64_t width = shares_columns(a, s) ? a->key_width : a->key_width + a->value_width;
        int64_t floats = s->read ? s->width : heads * width;
        int64_t rows = min(max(TILE_FLOATS / floats / 16 * 16, MIN_TILE_ROWS), TILE_ROWS);
        int64_t longest = 0;
        for (int64_t g = 0; g < p->query_groups; g++) {
            int64_t t0 = g * p->group_queries;
            longest = max(longest, length_of(p, s, t0, min(p->group_queries, a->queries - t0)));
        }
        p->tile_rows[i] = rows;
        p->n = max(p->n, rows);
        if (s->read || s->see == KVL_SEE_LIST) p->row_floats = max(p->row_floats, rows * floats);
        length += longest;
    }
    p->chunks = 1;
    while (p->groups * p->chunks < MIN_PARTS && length >= 2 * p->chunks * MIN_CHUNK)
        p->chunks *= 2;
    p->chunk_rows = max(1, kvl_tiles(kvl_tiles(length, p->chunks), 16) * 16);
    p->chunks = max(1, kvl_tiles(length, p->chunk_rows));
}

kvl_status kvl_attend(const kvl_attend_args *a, kvl_error *err) {
    kvl_status status = kvl_attend_check(a, err);
    if (status || a->batch == 0 || a->queries == 0) return status;
    plan p;
    make_plan(&p, a);
    if (p.chunks > 1) {
        int64_t floats = p.groups * p.chunks * p.m * (a->value_width + 2);
        p.partial = kvl_alloc_raw((size_t)floats * sizeof(float));
        if (!p.partial)
            return kvl_fail(err, KVL_ENOMEM, "attend: no memory for %lld partial sums",
                            (long long)floats);
    }
    status = kvl_parallel_for(p.groups * p.chunks, scratch_bytes(&p), run_part, &p, err);
    if (!status && p.chunks > 1)
        status = kvl_parallel_for(p.groups * p.group_heads, 0, combine, &p, err);
    kvl_free(p.partial);
    return status;
}
