/* attend_grad.c - gradients of attention by tiles, on all threads. See kvlab/attend_grad.h.
 *
 * The work is cut into tasks (batch item, unit of heads, strip of queries). A unit is the fewest
 * heads that share rows with no head outside it, so tasks of different units add to different
 * places. Strips exist only when there are few units; then every strip has gradient rows of its
 * own, which are added at the end in the order of the strips. Both are cut by shape alone.
 *
 * Inside a task, for each source, kv head, tile of queries (M = heads x queries rows) and tile of N
 * rows: five products, two to find the weights and their gradients, three to use them.
 *
 *   S = K Q^T    P = e^(S - lse)      dP = V dO^T    dS = P (dP - D)          [N, M]
 *   dV += P dO                        dK += dS Q                    dQ += dS^T K
 *
 * Q is scaled when it is packed, which scales dK as well; dQ is scaled when it is stored.
 */
#include "kvlab/attend_grad.h"

#include "attend.h"

#include "kvlab/blas.h"
#include "kvlab/parallel.h"
#include "kvlab/vmath.h"
#include "sizes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MIN_QUERIES = 16,  /* queries of a tile at least */
    TILE_ROWS = 192,   /* N */
    THIN = 8,          /* lists with fewer heads per kv head: no BLAS */
    MIN_PARTS = 16,    /* fewer units than this: cut queries into strips */
    MIN_STRIP = 128,   /* queries of a strip at least */
    DELTA_QUERIES = 32 /* queries per tile of D */
};

typedef struct plan {
    const kvl_attend_args *a;
    const kvl_attend_grads *g;
    int64_t newest;                        /* position of the last query */
    int64_t unit, units, strip, strips;    /* heads of a unit, queries of a strip */
    int64_t tile_queries[KVL_MAX_SOURCES]; /* queries of a tile */
    int64_t m, n;                          /* largest M and N */
    float *delta;                          /* D [B, T, H] */
    float *partial;                        /* [strips, strip_floats], when strips > 1 */
    int64_t strip_floats;                  /* gradient rows of all sources for one strip */
    int64_t key_at[KVL_MAX_SOURCES], value_at[KVL_MAX_SOURCES]; /* where they begin */
    int64_t reduced; /* the source whose strips are being added */
} plan;

/* One tile of queries: those of t0 .. t0 + nt of the heads of one kv head. Row of (head h, query
 * t): (h - h0) * nt + t - t0. */
typedef struct tile {
    const plan *p;
    const kvl_source *s;
    int64_t b, g, h0, heads, t0, nt;
    float *q, *d_out, *d_q;         /* [M, key_width], [M, value_width], [M, key_width] */
    float *q_panels, *d_out_panels; /* some of them, turned (kvl_make_panels) */
    float *lse, *delta;             /* [M] */
    float *row_lse, *row_delta;     /* [M]: those of the logit rows at hand, */
    int32_t *lo, *hi;               /* and what they see of a tile of rows */
    float *weight, *d_weight;       /* [N, M]; [M, N] of few heads */
    float *keys, *values;           /* gathered rows [N, ..] */
    float *d_keys, *d_values;       /* their gradients */
    int32_t *names;                 /* [N] */
    kvl_rows_grad d_key, d_value;   /* of this batch item and kv head */
    kvl_error *err;
} tile;

/* N rows in memory and where their gradients go; d_key and d_value may be NULL. */
typedef struct rows {
    const float *key, *value;
    float *d_key, *d_value;
    int64_t key_s, value_s, d_key_s, d_value_s, n;
} rows;

/* --- one tile of rows ------------------------------------------------------------------------- */

/* The logit rows first, first + step, .. of one kv head (m of them): turned for the products with
 * keys and values; what they see of a tile of n rows is found in x->lo and x->hi. */
typedef struct logit_rows {
    int64_t first, step, m;
} logit_rows;

static void turn(tile *x, logit_rows l) {
    int64_t kw = x->p->a->key_width, vw = x->p->a->value_width;
    kvl_make_panels(x->q_panels, (kvl_mat){x->q + l.first * kw, l.step * kw, true, 0}, l.m, kw);
    kvl_make_panels(x->d_out_panels, (kvl_mat){x->d_out + l.first * vw, l.step * vw, true, 0}, l.m,
                    vw);
}

/* Both are 0 where a logit row sees nothing: see[t] is the part that query t sees, all when see is
 * NULL. A row that saw nothing anywhere has lse = -inf. */
static void softmax(tile *x, logit_rows l, int64_t n, const interval *see) {
    bool partly = false;
    for (int64_t j = 0; j < l.m; j++) {
        int64_t row = l.first + j * l.step;
        interval sees = see ? see[row % x->nt] : (interval){0, n};
        if (x->lse[row] == -INFINITY) sees.hi = sees.lo;
        x->lo[j] = (int32_t)sees.lo, x->hi[j] = (int32_t)sees.hi;
        partly |= sees.lo > 0 || sees.hi < n;
        x->row_lse[j] = x->lse[row], x->row_delta[j] = x->delta[row];
    }
    kvl_attend_weigh_grad(x->weight, x->d_weight, x->row_lse, x->row_delta, n, l.m);
    if (!partly) return;
    kvl_attend_hide(x->weight, x->lo, x->hi, 0.0f, n, l.m);
    kvl_attend_hide(x->d_weight, x->lo, x->hi, 0.0f, n, l.m);
}

/* Logit rows, which have been turned, against the rows of a tile. */
static void absorb(tile *x, const rows *r, logit_rows l, const interval *see) {
    int64_t kw = x->p->a->key_width, vw = x->p->a->value_width, n = r->n, m = l.m;
    float *s = x->weight, *d = x->d_weight;
    kvl_mat q = {x->q + l.first * kw, l.step * kw, false, 0};
    kvl_mat d_out = {x->d_out + l.first * vw, l.step * vw, false, 0};
    kvl_gemm_panels(s, m, r->key, r->key_s, x->q_panels, 1.0f, 0.0f, n, m, kw);
    kvl_gemm_panels(d, m, r->value, r->value_s, x->d_out_panels, 1.0f, 0.0f, n, m, vw);
    softmax(x, l, n, see);
    kvl_mat weights = {s, m, false, 0}, d_logits = {d, m, false, 0}, turned = {d, m, true, 0};
    if (r->d_value) kvl_gemm_tile(r->d_value, r->d_value_s, weights, d_out, 1.0f, 1.0f, n, vw, m);
    if (r->d_key) kvl_gemm_tile(r->d_key, r->d_key_s, d_logits, q, 1.0f, 1.0f, n, kw, m);
    if (x->p->g->d_q)
        kvl_gemm_tile(x->d_q + l.first * kw, l.step * kw, turned,
                      (kvl_mat){r->key, r->key_s, false, 0}, 1.0f, 1.0f, m, kw, n);
}

/* --- sources ---------------------------------------------------------------------------------- */

static const float *key_row(const tile *x, int64_t row) {
    const kvl_rows *k = &x->s->key;
    return k->p + x->b * k->step_b + row * k->step_s + x->g * k->step_h;
}

static const float *value_row(const tile *x, int64_t row) {
    const kvl_rows *v = &x->s->value;
    return v->p + x->b * v->step_b + row * v->step_s + x->g * v->step_h;
}

static float *grad_row(const kvl_rows_grad *to, int64_t row) {
    return to->p ? to->p + row * to->step_s : NULL;
}

static kvl_status walk_interval(tile *x) {
    const plan *p = x->p;
    const kvl_source *s = x->s;
    int64_t pos = p->a->q_pos0 + x->t0, kw = p->a->key_width, vw = p->a->value_width;
    int64_t lo = kvl_attend_sees(s, pos, p->newest).lo;
    int64_t hi = kvl_attend_sees(s, pos + x->nt - 1, p->newest).hi;
    interval see[KVL_MOST_QUERIES];
    logit_rows all_rows = {0, 1, x->heads * x->nt};
    turn(x, all_rows);
    for (int64_t at = lo; at < hi; at += TILE_ROWS) {
        int64_t n = min(TILE_ROWS, hi - at), row = at - s->pos0;
        for (int64_t t = 0; t < x->nt; t++) {
            interval all = kvl_attend_sees(s, pos + t, p->newest);
            see[t] = (interval){min(max(all.lo - at, 0), n), min(max(all.hi - at, 0), n)};
        }
        rows r = {key_row(x, row),
                  value_row(x, row),
                  grad_row(&x->d_key, row),
                  grad_row(&x->d_value, row),
                  max(s->key.step_s, kw),
                  max(s->value.step_s, vw),
                  max(x->d_key.step_s, kw),
                  max(x->d_value.step_s, vw),
                  n};
        absorb(x, &r, all_rows, see);
    }
    return KVL_OK;
}

static void add_rows(const kvl_rows_grad *to, const int32_t *names, const float *from,
                     int64_t width, int64_t n) {
    for (int64_t i = 0; i < n && to->p; i++)
        kvl_axpy(grad_row(to, names[i]), 1.0f, from + i * width, width);
}

/* Rows of a list with many heads: gathered, multiplied, their gradients scattered. */
static void absorb_list(tile *x, int64_t t, int64_t n) {
    int64_t kw = x->p->a->key_width, vw = x->p->a->value_width;
    for (int64_t i = 0; i < n; i++) {
        memcpy(x->keys + i * kw, key_row(x, x->names[i]), (size_t)kw * sizeof(float));
        memcpy(x->values + i * vw, value_row(x, x->names[i]), (size_t)vw * sizeof(float));
    }
    memset(x->d_keys, 0, (size_t)(n * kw) * sizeof(float));
    memset(x->d_values, 0, (size_t)(n * vw) * sizeof(float));
    rows r = {x->keys,
              x->values,
              x->d_key.p ? x->d_keys : NULL,
              x->d_value.p ? x->d_values : NULL,
              kw,
              vw,
              kw,
              vw,
              n};
    absorb(x, &r, (logit_rows){t, x->nt, x->heads}, NULL);
    add_rows(&x->d_key, x->names, x->d_keys, kw, n);
    add_rows(&x->d_value, x->names, x->d_values, vw, n);
}

/* Rows `names` as columns: to [width, ld], zeros from column n on. */
static void transpose(float *to, int64_t ld, const tile *x,
                      const float *(*row)(const tile *, int64_t), int64_t width, int64_t n) {
    memset(to, 0, (size_t)(width * ld) * sizeof *to);
    for (int64_t i = 0; i < n; i++) {
        const float *from = row(x, x->names[i]);
        for (int64_t c = 0; c < width; c++)
            to[c * ld + i] = from[c];
    }
}

/* d[i] = p[i] * (d[i] - delta) */
KVL_CLONES
static void weight_grad(float *d, const float *p, float delta, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        d[i] = p[i] * (d[i] - delta);
}

/* The softmax of one logit row. */
static void softmax_row(const tile *x, int64_t row, float *s, float *d, int64_t n) {
    if (x->lse[row] == -INFINITY) {
        memset(s, 0, (size_t)n * sizeof *s);
        memset(d, 0, (size_t)n * sizeof *d);
        return;
    }
    kvl_exp_sum(s, s, 1.0f, x->lse[row], n);
    weight_grad(d, s, x->delta[row], n);
}

/* Few heads: products too small for BLAS. The rows are transposed, so that logits are neighbours;
 * their gradients go where they belong, row by row. */
static void absorb_thin(tile *x, int64_t t, int64_t n) {
    int64_t kw = x->p->a->key_width, vw = x->p->a->value_width, ld = (n + 15) / 16 * 16;
    int64_t qs = x->nt * kw, gs = x->nt * vw, m = x->heads; /* steps from head to head */
    const float *q = x->q + t * kw, *g = x->d_out + t * vw;
    float *s = x->weight, *d = x->d_weight;
    memset(s, 0, (size_t)(m * ld) * sizeof *s);
    memset(d, 0, (size_t)(m * ld) * sizeof *d);
    const float *keys = x->d_keys, *values = x->d_keys;
    transpose(x->d_keys, ld, x, key_row, kw, n);
    if (kw != vw || key_row(x, 0) != value_row(x, 0) || x->s->key.step_s != x->s->value.step_s) {
        transpose(x->d_values, ld, x, value_row, vw, n);
        values = x->d_values;
    }
    kvl_small_product(s, ld, q, qs, 1, keys, ld, m, ld, kw);
    kvl_small_product(d, ld, g, gs, 1, values, ld, m, ld, vw);
    for (int64_t h = 0; h < m; h++)
        softmax_row(x, h * x->nt + t, s + h * ld, d + h * ld, n);
    for (int64_t i = 0; i < n; i++) {
        float *d_key = grad_row(&x->d_key, x->names[i]);
        float *d_value = grad_row(&x->d_value, x->names[i]);
        memcpy(x->keys + i * kw, key_row(x, x->names[i]), (size_t)kw * sizeof(float));
        if (d_key) kvl_small_product(d_key, 0, d + i, 0, ld, q, qs, 1, kw, m);
        if (d_value) kvl_small_product(d_value, 0, s + i, 0, ld, g, gs, 1, vw, m);
    }
    kvl_small_product(x->d_q + t * kw, qs, d, ld, 1, x->keys, kw, m, kw, n);
}

static kvl_status walk_list(tile *x) {
    const kvl_source *s = x->s;
    for (int64_t t = 0; t < x->nt; t++) {
        const int32_t *list = s->list + (x->b * x->p->a->queries + x->t0 + t) * s->k;
        if (x->heads >= THIN) turn(x, (logit_rows){t, x->nt, x->heads});
        for (int64_t at = 0; at < s->k;) {
            int64_t n = 0;
            for (; at < s->k && n < TILE_ROWS; at++) {
                if (list[at] == -1) continue;
                if (list[at] < 0 || list[at] >= s->rows)
                    return kvl_attend_bad_row(s, list[at], x->err);
                x->names[n++] = list[at];
            }
            if (x->heads < THIN)
                absorb_thin(x, t, n);
            else if (n > 0)
                absorb_list(x, t, n);
        }
    }
    return KVL_OK;
}

/* --- one task --------------------------------------------------------------------------------- */

static void pack(tile *x) {
    const kvl_attend_args *a = x->p->a;
    const kvl_attend_grads *g = x->p->g;
    int64_t kw = a->key_width, vw = a->value_width, row = 0;
    for (int64_t h = x->h0; h < x->h0 + x->heads; h++)
        for (int64_t t = x->t0; t < x->t0 + x->nt; t++, row++) {
            const float *q = a->q + x->b * a->q_step_b + t * a->q_step_t + h * a->q_step_h;
            int64_t number = (x->b * a->queries + t) * a->heads + h;
            for (int64_t c = 0; c < kw; c++)
                x->q[row * kw + c] = q[c] * a->scale;
            memcpy(x->d_out + row * vw,
                   g->d_out + x->b * g->d_out_step_b + t * g->d_out_step_t + h * g->d_out_step_h,
                   (size_t)vw * sizeof(float));
            x->lse[row] = a->lse[number];
            x->delta[row] = x->p->delta[number];
        }
    memset(x->d_q, 0, (size_t)(row * kw) * sizeof(float));
}

static void store(const tile *x) {
    const kvl_attend_args *a = x->p->a;
    const kvl_attend_grads *g = x->p->g;
    int64_t row = 0;
    for (int64_t h = x->h0; h < x->h0 + x->heads && g->d_q; h++)
        for (int64_t t = x->t0; t < x->t0 + x->nt; t++, row++)
            kvl_axpy(g->d_q + x->b * g->d_q_step_b + t * g->d_q_step_t + h * g->d_q_step_h,
                     a->scale, x->d_q + row * a->key_width, a->key_width);
}

/* Where a strip adds the gradients of one source, before batch item and head are chosen. */
static kvl_rows_grad target(const plan *p, const kvl_rows_grad *to, int64_t strip, int64_t at,
                            const kvl_source *s, int64_t width) {
    if (!to->p || p->strips == 1) return *to;
    return (kvl_rows_grad){p->partial + strip * p->strip_floats + at, s->rows * s->kv_heads * width,
                           s->kv_heads * width, width};
}

static size_t scratch_bytes(const plan *p) {
    int64_t kw = p->a->key_width, vw = p->a->value_width;
    int64_t floats = 3 * pad(p->m * kw) + 2 * pad(p->m * vw) + 6 * pad(p->m) +
                     2 * pad(p->m * p->n) + 2 * pad(p->n * kw) + 2 * pad(p->n * vw) + pad(p->n);
    return (size_t)floats * sizeof(float);
}

static kvl_status run_task(void *ctx, int64_t number, void *scratch, kvl_error *err) {
    const plan *p = ctx;
    const kvl_attend_args *a = p->a;
    int64_t kw = a->key_width, vw = a->value_width;
    /* The last queries see most: they come first, so that the threads end together. */
    int64_t strip = p->strips - 1 - number / (a->batch * p->units);
    int64_t unit = number % p->units, b = number / p->units % a->batch;
    tile x = {.p = p, .b = b, .err = err};
    float *at = scratch;
    x.q = at, at += pad(p->m * kw);
    x.d_q = at, at += pad(p->m * kw);
    x.d_out = at, at += pad(p->m * vw);
    x.q_panels = at, at += pad(p->m * kw);
    x.d_out_panels = at, at += pad(p->m * vw);
    x.row_lse = at, at += pad(p->m);
    x.row_delta = at, at += pad(p->m);
    x.lo = (int32_t *)(void *)at, at += pad(p->m);
    x.hi = (int32_t *)(void *)at, at += pad(p->m);
    x.lse = at, at += pad(p->m);
    x.delta = at, at += pad(p->m);
    x.weight = at, at += pad(p->m * p->n);
    x.d_weight = at, at += pad(p->m * p->n);
    x.keys = at, at += pad(p->n * kw);
    x.d_keys = at, at += pad(p->n * kw);
    x.values = at, at += pad(p->n * vw);
    x.d_values = at, at += pad(p->n * vw);
    x.names = (int32_t *)(void *)at;
    int64_t begin = strip * p->strip, end = min(begin + p->strip, a->queries);
    for (int64_t i = 0; i < a->n_sources; i++) {
        const kvl_source *s = x.s = &a->sources[i];
        x.heads = a->heads / s->kv_heads;
        kvl_rows_grad d_key = target(p, &p->g->d_key[i], strip, p->key_at[i], s, kw);
        kvl_rows_grad d_value = target(p, &p->g->d_value[i], strip, p->value_at[i], s, vw);
        for (x.h0 = unit * p->unit; x.h0 < (unit + 1) * p->unit; x.h0 += x.heads) {
            x.g = x.h0 / x.heads;
            x.d_key = d_key, x.d_value = d_value;
            if (d_key.p) x.d_key.p += b * d_key.step_b + x.g * d_key.step_h;
            if (d_value.p) x.d_value.p += b * d_value.step_b + x.g * d_value.step_h;
            for (x.t0 = begin; x.t0 < end; x.t0 += p->tile_queries[i]) {
                if (kvl_cancelled()) return kvl_fail(err, KVL_ECANCEL, "cancelled");
                x.nt = min(p->tile_queries[i], end - x.t0);
                pack(&x);
                kvl_status status = s->see == KVL_SEE_LIST ? walk_list(&x) : walk_interval(&x);
                if (status) return status;
                store(&x);
            }
        }
    }
    return KVL_OK;
}

/* --- before and after ------------------------------------------------------------------------- */

static kvl_status make_delta(void *ctx, int64_t number, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const plan *p = ctx;
    const kvl_attend_args *a = p->a;
    const kvl_attend_grads *g = p->g;
    int64_t tiles = kvl_tiles(a->queries, DELTA_QUERIES), b = number / tiles;
    int64_t t0 = number % tiles * DELTA_QUERIES;
    for (int64_t t = t0; t < min(t0 + DELTA_QUERIES, a->queries); t++)
        for (int64_t h = 0; h < a->heads; h++)
            p->delta[(b * a->queries + t) * a->heads + h] = kvl_dot(
                a->out + b * a->out_step_b + t * a->out_step_t + h * a->out_step_h,
                g->d_out + b * g->d_out_step_b + t * g->d_out_step_t + h * g->d_out_step_h,
                a->value_width);
    return KVL_OK;
}

static kvl_status sink_of_head(void *ctx, int64_t h, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const plan *p = ctx;
    const kvl_attend_args *a = p->a;
    double sum = 0.0;
    if (a->sink[h] == -INFINITY) return KVL_OK; /* weight 0 */
    for (int64_t i = h; i < a->batch * a->queries * a->heads; i += a->heads)
        sum -= exp((double)a->sink[h] - (double)a->lse[i]) * (double)p->delta[i];
    p->g->d_sink[h] += (float)sum;
    return KVL_OK;
}

enum { REDUCE_ROWS = 64 };

static void add_strips(const plan *p, const kvl_rows_grad *to, int64_t at, const kvl_source *s,
                       int64_t width, int64_t b, int64_t row) {
    for (int64_t i = 0; i < p->strips && to->p; i++)
        for (int64_t g = 0; g < s->kv_heads; g++)
            kvl_axpy(to->p + b * to->step_b + row * to->step_s + g * to->step_h, 1.0f,
                     p->partial + i * p->strip_floats + at +
                         ((b * s->rows + row) * s->kv_heads + g) * width,
                     width);
}

static kvl_status reduce_rows(void *ctx, int64_t number, void *scratch, kvl_error *err) {
    (void)scratch;
    (void)err;
    const plan *p = ctx;
    const kvl_source *s = &p->a->sources[p->reduced];
    int64_t tiles = kvl_tiles(s->rows, REDUCE_ROWS), row = number % tiles * REDUCE_ROWS,
            i = p->reduced;
    for (int64_t end = min(row + REDUCE_ROWS, s->rows); row < end; row++) {
        add_strips(p, &p->g->d_key[i], p->key_at[i], s, p->a->key_width, number / tiles, row);
        add_strips(p, &p->g->d_value[i], p->value_at[i], s, p->a->value_width, number / tiles, row);
    }
    return KVL_OK;
}

/* --- the plan --------------------------------------------------------------------------------- */

static kvl_status check_rows(const kvl_attend_args *a, const kvl_source *s, const kvl_rows_grad *to,
                             int64_t width, const char *what, int64_t i, kvl_error *err) {
    if (!to->p || s->rows == 0) return KVL_OK;
    if ((s->rows > 1 && (to->step_s < width || to->step_s > INT32_MAX)) ||
        (s->kv_heads > 1 && llabs(to->step_h) < width) ||
        (a->batch > 1 && llabs(to->step_b) < width))
        return kvl_fail(err, KVL_EINVAL,
                        "attend_grad: %s of source %lld has %lld columns, but rows %lld, heads "
                        "%lld and batch items %lld apart: gradients must not share places",
                        what, (long long)i, (long long)width, (long long)to->step_s,
                        (long long)to->step_h, (long long)to->step_b);
    return KVL_OK;
}

static kvl_status check(const kvl_attend_grads *g, const kvl_attend_args *a, kvl_error *err) {
    kvl_status status = kvl_attend_check(a, err);
    for (int64_t i = 0; i < a->n_sources && !status; i++) {
        const kvl_source *s = &a->sources[i];
        if (s->read || s->ring)
            return kvl_fail(err, KVL_EINVAL,
                            "attend_grad: source %lld %s; gradients need the rows of a tensor",
                            (long long)i, s->read ? "has a reader" : "is a ring");
        status = check_rows(a, s, &g->d_key[i], a->key_width, "d_key", i, err);
        if (!status) status = check_rows(a, s, &g->d_value[i], a->value_width, "d_value", i, err);
    }
    if (status) return status;
    if (a->batch > 0 && a->queries > 0 && (!a->out || !a->lse || !g->d_out))
        return kvl_fail(err, KVL_EINVAL, "attend_grad: %s is missing",
                        !a->out   ? "out"
                        : !a->lse ? "lse"
                                  : "d_out");
    if (g->d_q && ((a->heads > 1 && llabs(g->d_q_step_h) < a->key_width) ||
                   (a->queries > 1 && llabs(g->d_q_step_t) < a->key_width) ||
                   (a->batch > 1 && llabs(g->d_q_step_b) < a->key_width)))
        return kvl_fail(err, KVL_EINVAL,
                        "attend_grad: d_q has %lld columns, but queries %lld, heads %lld and batch "
                        "items %lld apart: gradients must not share places",
                        (long long)a->key_width, (long long)g->d_q_step_t, (long long)g->d_q_step_h,
                        (long long)g->d_q_step_b);
    return KVL_OK;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    return b == 0 ? a : common_divisor(b, a % b);
}

static void make_plan(plan *p, const kvl_attend_grads *g, const kvl_attend_args *a) {
    *p = (plan){.a = a, .g = g, .newest = a->q_pos0 + a->queries - 1, .unit = 1};
    p->n = TILE_ROWS;
    for (int64_t i = 0; i < a->n_sources; i++) {
        const kvl_source *s = &a->sources[i];
        int64_t per_kv = a->heads / s->kv_heads;
        p->unit = p->unit / common_divisor(p->unit, per_kv) * per_kv;
        int64_t nt = kvl_attend_queries(per_kv, a->queries);
        /* Of the rows that a tile of queries multiplies, each query sees a window. */
        if (s->see == KVL_SEE_WINDOW) nt = min(nt, max(s->window, MIN_QUERIES));
        p->tile_queries[i] = nt;
        p->m = max(p->m, per_kv * nt);
        if (g->d_key[i].p) {
            p->key_at[i] = p->strip_floats;
            p->strip_floats += pad(a->batch * s->rows * s->kv_heads * a->key_width);
        }
        if (g->d_value[i].p) {
            p->value_at[i] = p->strip_floats;
            p->strip_floats += pad(a->batch * s->rows * s->kv_heads * a->value_width);
        }
    }
    p->units = a->heads / p->unit;
    p->strips = 1;
    while (a->batch * p->units * p->strips < MIN_PARTS && a->queries >= 2 * p->strips * MIN_STRIP)
        p->strips *= 2;
    p->strip = kvl_tiles(a->queries, p->strips);
    p->strips = kvl_tiles(a->queries, p->strip);
}

kvl_status kvl_attend_grad(const kvl_attend_grads *g, const kvl_attend_args *a, kvl_error *err) {
    kvl_status status = check(g, a, err);
    if (status || a->batch == 0 || a->queries == 0) return status;
    plan p;
    make_plan(&p, g, a);
    p.delta = kvl_alloc((size_t)(a->batch * a->queries * a->heads) * sizeof(float));
    int64_t partial = p.strips > 1 ? p.strips * p.strip_floats : 0;
    if (partial > 0) p.partial = kvl_alloc((size_t)partial * sizeof(float));
    if (!p.delta || (partial > 0 && !p.partial))
        status = kvl_fail(err, KVL_ENOMEM, "attend_grad: no memory for %lld partial gradients",
                          (long long)partial);
    if (!status)
        status = kvl_parallel_for(a->batch * kvl_tiles(a->queries, DELTA_QUERIES), 0, make_delta,
                                  &p, err);
    if (!status && g->d_sink && a->sink)
        status = kvl_parallel_for(a->heads, 0, sink_of_head, &p, err);
    if (!status)
        status = kvl_parallel_for(a->batch * p.units * p.strips, scratch_bytes(&p), run_task, &p,
                                  err);
    for (p.reduced = 0; p.reduced < a->n_sources && partial > 0 && !status; p.reduced++)
        status = kvl_parallel_for(a->batch * kvl_tiles(a->sources[p.reduced].rows, REDUCE_ROWS), 0,
                                  reduce_rows, &p, err);
    kvl_free(p.delta);
    kvl_free(p.partial);
    return status;
}
