/* lkernels.c - core.kernels: norms, RoPE, Hadamard, attend, index, compressors on tensors and cache
 * tables. Shapes are checked here, options are read by lua/kvlab/kernels.lua. The rules for safety
 * are in lkvl.h: everything that a call needs is first put on the stack, then pointers are taken,
 * then the core runs. */
#include "lkvl.h"

#include <string.h>

#define ROPE       "kvlab.RopeTable"
#define COMPRESSOR "kvlab.Compressor"

/* --- arguments
 * ---------------------------------------------------------------------------------------- */

/* Replaces the float32 tensor at `arg` by one whose last dimension has step 1 (itself, or a copy).
 */
static void need_steps(lua_State *L, int arg, bool whole) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, arg);
    if (t->dtype != KVL_FLOAT32) luaL_argerror(L, arg, "expected a float32 tensor, got int32");
    if (whole ? kvl_tensor_is_contiguous(t)
              : t->ndim > 0 && (t->stride[t->ndim - 1] == 1 || t->shape[t->ndim - 1] == 1))
        return;
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, arg);
    if (kvl_tensor_contiguous(slot, t, &err) != KVL_OK) kvl_raise(L, &err);
    lua_replace(L, arg);
}

static int shape_error(lua_State *L, int arg, const char *want) {
    char text[KVL_SHAPE_TEXT];
    kvl_tensor *t = kvl_check_tensor(L, arg);
    return luaL_argerror(
        L, arg,
        lua_pushfstring(L, "expected %s, got %s", want, kvl_shape_text(text, t->ndim, t->shape)));
}

static kvl_tensor *check_dims(lua_State *L, int arg, int ndim, const char *want) {
    kvl_tensor *t = kvl_check_tensor(L, arg);
    if (t->ndim != ndim) shape_error(L, arg, want);
    return t;
}

/* Field `name` of the table at `at` as an integer >= least, or `missing`. */
static int64_t int_field(lua_State *L, int at, const char *name, int64_t missing, int64_t least) {
    int64_t value = missing;
    if (lua_getfield(L, at, name) != LUA_TNIL) {
        int ok;
        value = lua_tointegerx(L, -1, &ok);
        if (!ok || value < least || value > (int64_t)1 << 60)
            luaL_error(L, "%s = %s: expected a whole number, %I or more", name,
                       luaL_tolstring(L, -1, NULL), (LUAI_UACINT)least);
    }
    lua_pop(L, 1);
    return value;
}

/* --- norms and Hadamard
 * ------------------------------------------------------------------------------- */

/* Result like x (the argument 1, made contiguous) in a new slot at the top of the stack. */
static kvl_tensor *new_like(lua_State *L, int arg) {
    kvl_error err;
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *x = kvl_check_tensor(L, arg);
    if (kvl_tensor_new(slot, KVL_FLOAT32, x->ndim, x->shape, &err) != KVL_OK) kvl_raise(L, &err);
    return *slot;
}

/* A missing or float32 [n] vector at arg, where n is the last size of x. */
static void check_vector(lua_State *L, int arg, int64_t n) {
    if (lua_isnoneornil(L, arg)) return;
    need_steps(L, arg, true);
    kvl_tensor *t = kvl_check_tensor(L, arg);
    if (t->ndim != 1 || t->shape[0] != n)
        shape_error(L, arg, lua_pushfstring(L, "{%I}", (LUAI_UACINT)n));
}

static const float *vector(lua_State *L, int arg) {
    return lua_isnoneornil(L, arg) ? NULL : kvl_tensor_f32(kvl_check_tensor(L, arg));
}

static int64_t check_last(lua_State *L, int arg) {
    need_steps(L, arg, true);
    kvl_tensor *x = kvl_check_tensor(L, arg);
    if (x->ndim == 0 || x->shape[x->ndim - 1] == 0)
        shape_error(L, arg, "a tensor with a last dimension");
    return x->shape[x->ndim - 1];
}

/* rms_norm(x, weight or nil, eps) */
static int l_rms_norm(lua_State *L) {
    kvl_error err;
    float eps = (float)luaL_checknumber(L, 3);
    lua_settop(L, 3);
    int64_t n = check_last(L, 1);
    check_vector(L, 2, n);
    kvl_tensor *out = new_like(L, 1), *x = kvl_check_tensor(L, 1);
    return kvl_done(L,
                    kvl_rms_norm(kvl_tensor_f32(out), n, kvl_tensor_f32(x), n, vector(L, 2), eps,
                                 kvl_tensor_numel(x) / n, n, &err),
                    &err, 1);
}

/* layer_norm(x, weight or nil, bias or nil, eps) */
static int l_layer_norm(lua_State *L) {
    kvl_error err;
    float eps = (float)luaL_checknumber(L, 4);
    lua_settop(L, 4);
    int64_t n = check_last(L, 1);
    check_vector(L, 2, n);
    check_vector(L, 3, n);
    kvl_tensor *out = new_like(L, 1), *x = kvl_check_tensor(L, 1);
    return kvl_done(L,
                    kvl_layer_norm(kvl_tensor_f32(out), n, kvl_tensor_f32(x), n, vector(L, 2),
                                   vector(L, 3), eps, kvl_tensor_numel(x) / n, n, &err),
                    &err, 1);
}

/* hadamard(x) */
static int l_hadamard(lua_State *L) {
    kvl_error err;
    lua_settop(L, 1);
    int64_t n = check_last(L, 1);
    kvl_tensor *out = new_like(L, 1), *x = kvl_check_tensor(L, 1);
    return kvl_done(L,
                    kvl_hadamard(kvl_tensor_f32(out), n, kvl_tensor_f32(x), n,
                                 kvl_tensor_numel(x) / n, n, &err),
                    &err, 1);
}

/* --- RoPE
 * --------------------------------------------------------------------------------------------- */

typedef struct rope_table {
    int64_t n; /* rotated channels */
    double freq[];
} rope_table;

/* rope_freqs(channels, theta [, factor, context, beta_fast, beta_slow]) */
static int l_rope_freqs(lua_State *L) {
    kvl_error err;
    lua_Integer n = luaL_checkinteger(L, 1);
    double theta = luaL_checknumber(L, 2);
    luaL_argcheck(L, n >= 2 && n % 2 == 0 && n <= 1 << 20, 1,
                  "expected an even number of channels, 2 or more");
    bool scaled = !lua_isnoneornil(L, 3);
    kvl_yarn yarn = {0};
    if (scaled)
        yarn = (kvl_yarn){luaL_checknumber(L, 3), luaL_checknumber(L, 4), luaL_checknumber(L, 5),
                          luaL_checknumber(L, 6)};
    rope_table *table = lua_newuserdatauv(L, sizeof *table + (size_t)(n / 2) * sizeof *table->freq,
                                          0);
    table->n = n;
    luaL_setmetatable(L, ROPE);
    if (kvl_rope_freqs(table->freq, theta, scaled ? &yarn : NULL, n, &err) != KVL_OK)
        return kvl_raise(L, &err);
    return 1;
}

static int rope_tostring(lua_State *L) {
    rope_table *table = luaL_checkudata(L, 1, ROPE);
    lua_pushfstring(L, "%s: %I channels", ROPE, (LUAI_UACINT)table->n);
    return 1;
}

/* rope:frequencies() -> the angles that a step of one position adds, as numbers */
static int rope_frequencies(lua_State *L) {
    rope_table *table = luaL_checkudata(L, 1, ROPE);
    lua_createtable(L, (int)(table->n / 2), 0);
    for (int64_t i = 0; i < table->n / 2; i++) {
        lua_pushnumber(L, table->freq[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* rope(x, table, position of token 0 or a list with one for each batch item, stride, inverse,
 * first, half_split); x [B, T, width] or [B, T, H, width] */
static int l_rope(lua_State *L) {
    kvl_error err;
    rope_table *table = luaL_checkudata(L, 2, ROPE);
    int64_t stride = luaL_checkinteger(L, 4);
    luaL_argcheck(L, stride >= 1 && stride <= (int64_t)1 << 40, 4, "stride must be 1 or more");
    kvl_rope rope = {table->freq, table->n, lua_toboolean(L, 6), lua_toboolean(L, 7),
                     lua_toboolean(L, 5)};
    lua_settop(L, 7);
    check_last(L, 1);
    kvl_tensor *x = kvl_check_tensor(L, 1);
    if (x->ndim != 3 && x->ndim != 4) shape_error(L, 1, "{B, T, width} or {B, T, H, width}");
    int64_t B = x->shape[0], T = x->shape[1], H = x->ndim == 4 ? x->shape[2] : 1,
            width = x->shape[x->ndim - 1];
    int64_t *positions = NULL, pos0 = 0;
    if (lua_istable(L, 3)) {
        luaL_argcheck(L, T == 1, 3, "a position for each batch item needs chunks of one token");
        luaL_argcheck(L, (int64_t)lua_rawlen(L, 3) == B, 3,
                      "expected a position for each batch item");
        positions = lua_newuserdatauv(L, (size_t)(B + 1) * sizeof *positions, 0);
        for (int64_t b = 0; b < B; b++) {
            lua_rawgeti(L, 3, b + 1);
            int ok;
            positions[b] = lua_tointegerx(L, -1, &ok);
            if (!ok || positions[b] < 0)
                luaL_argerror(L, 3, "positions are whole numbers, 0 or more");
            lua_pop(L, 1);
        }
    } else {
        pos0 = luaL_checkinteger(L, 3);
        luaL_argcheck(L, pos0 >= 0 && pos0 <= (int64_t)1 << 50, 3,
                      "a position is a whole number, 0 or more");
    }
    kvl_tensor *out = new_like(L, 1);
    x = kvl_check_tensor(L, 1);
    kvl_rope_args args = {.out = kvl_tensor_f32(out),
                          .x = kvl_tensor_f32(x),
                          .step_b = T * H * width,
                          .step_t = H * width,
                          .step_h = width,
                          .pos = positions,
                          .pos_step = 1,
                          .pos0 = pos0,
                          .stride = stride,
                          .batch = B,
                          .tokens = T,
                          .heads = H,
                          .width = width};
    return kvl_done(L, kvl_rope_apply(&rope, &args, &err), &err, 1);
}

/* --- rows of a source
 * ----------------------------------------------------------------------------------- */

/* A source on the stack: where its tensors and its reader lie, filled before pointers are taken. */
typedef struct source_slots {
    int rows, value, reader, list; /* stack indices, 0: none */
    int64_t key0, key_cols, value0, value_cols, kv_heads;
} source_slots;

/* Pushes field `name` of the table at `at` when it is a tensor; returns its stack index or 0. */
static int tensor_field(lua_State *L, int at, const char *name, bool whole) {
    if (lua_getfield(L, at, name) == LUA_TNIL) {
        lua_pop(L, 1);
        return 0;
    }
    if (!kvl_is_tensor(L, -1))
        luaL_error(L, "%s: expected a tensor, got %s", name, luaL_typename(L, -1));
    int index = lua_gettop(L);
    if (kvl_check_tensor(L, index)->dtype == KVL_FLOAT32) need_steps(L, index, whole);
    return index;
}

/* Field `name` = {first, last}, columns counted from 1: *col0 from 0, *cols. */
static void columns_field(lua_State *L, int at, const char *name, int64_t *col0, int64_t *cols) {
    if (lua_getfield(L, at, name) != LUA_TTABLE)
        luaL_error(L, "%s: expected columns {first, last}", name);
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    int64_t first = lua_tointeger(L, -2), last = lua_tointeger(L, -1);
    if (first < 1 || last < first || last > INT32_MAX)
        luaL_error(L, "%s = {%I, %I}: expected columns {first, last}, counted from 1", name,
                   (LUAI_UACINT)first, (LUAI_UACINT)last);
    *col0 = first - 1;
    *cols = last - first + 1;
    lua_pop(L, 3);
}

static kvl_see check_see(lua_State *L, int at) {
    static const char *const names[] = {"all", "causal", "window", "blocks", "list", NULL};
    lua_getfield(L, at, "see");
    const char *name = luaL_optstring(L, -1, "causal");
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0) {
            lua_pop(L, 1);
            return (kvl_see)i;
        }
    return (kvl_see)luaL_error(L, "see = '%s': expected all, causal, window, blocks or list", name);
}

/* --- attend
 * --------------------------------------------------------------------------------------------- */

/* Puts what source i of the list at stack index 2 needs on the stack, and reads its numbers. */
static void push_source(lua_State *L, int at, kvl_source *s, source_slots *slots) {
    s->see = check_see(L, at);
    s->pos0 = int_field(L, at, "pos0", 0, 0);
    s->window = int_field(L, at, "window", 1, 1);
    s->ratio = int_field(L, at, "ratio", 1, 1);
    slots->list = s->see == KVL_SEE_LIST ? tensor_field(L, at, "list", false) : 0;
    if (s->see == KVL_SEE_LIST) {
        if (!slots->list) luaL_error(L, "see = 'list' needs a list, an int32 tensor {B, T, k}");
        kvl_tensor *list = kvl_check_tensor(L, slots->list);
        if (list->dtype != KVL_INT32 || list->ndim != 3)
            shape_error(L, slots->list, "an int32 list {B, T, k}");
        if (!kvl_tensor_is_contiguous(list)) {
            kvl_error err;
            kvl_tensor **slot = kvl_push_tensor(L);
            if (kvl_tensor_contiguous(slot, kvl_check_tensor(L, slots->list), &err) != KVL_OK)
                kvl_raise(L, &err);
            lua_replace(L, slots->list);
        }
    }
    slots->value = 0;
    slots->rows = tensor_field(L, at, "key_rows", false);
    if (slots->rows) { /* keys and values of their own, [B, S, Hkv, width] each */
        slots->value = tensor_field(L, at, "value_rows", false);
        if (!slots->value) luaL_error(L, "key_rows needs value_rows");
        check_dims(L, slots->rows, 4, "key_rows {B, S, Hkv, width}");
        check_dims(L, slots->value, 4, "value_rows {B, S, Hkv, width}");
        return;
    }
    slots->kv_heads = int_field(L, at, "kv_heads", 1, 1);
    columns_field(L, at, "key", &slots->key0, &slots->key_cols);
    columns_field(L, at, "value", &slots->value0, &slots->value_cols);
    if (slots->key_cols % slots->kv_heads || slots->value_cols % slots->kv_heads)
        luaL_error(L, "%I kv heads do not divide %I key and %I value columns",
                   (LUAI_UACINT)slots->kv_heads, (LUAI_UACINT)slots->key_cols,
                   (LUAI_UACINT)slots->value_cols);
    slots->rows = tensor_field(L, at, "rows", false);
    if (slots->rows) {
        check_dims(L, slots->rows, 3, "rows {B, S, channels}");
        return;
    }
    kvl_push_reader(L, at);
    slots->reader = lua_gettop(L);
}

/* Takes the pointers of a source; nothing here allocates. */
static void fill_source(lua_State *L, kvl_source *s, const source_slots *slots, int64_t B,
                        int64_t T) {
    if (slots->list) {
        kvl_tensor *list = kvl_check_tensor(L, slots->list);
        if (list->shape[0] != B || list->shape[1] != T)
            shape_error(L, slots->list, "a list with the {B, T} of q");
        s->list = kvl_tensor_i32(list);
        s->k = list->shape[2];
    }
    if (slots->value) {
        kvl_tensor *key = kvl_check_tensor(L, slots->rows),
                   *value = kvl_check_tensor(L, slots->value);
        if (key->shape[0] != B || value->shape[0] != B || key->shape[1] != value->shape[1] ||
            key->shape[2] != value->shape[2])
            shape_error(L, slots->value,
                        "value_rows of the batch, rows and heads of key_rows and q");
        s->rows = key->shape[1];
        s->kv_heads = key->shape[2];
        s->key = (kvl_rows){kvl_tensor_f32(key), key->stride[0], key->stride[1], key->stride[2]};
        s->value = (kvl_rows){kvl_tensor_f32(value), value->stride[0], value->stride[1],
                              value->stride[2]};
        s->key0 = key->shape[3]; /* widths, for the check against q */
        s->value0 = value->shape[3];
        return;
    }
    int64_t channels;
    s->kv_heads = slots->kv_heads;
    int64_t key_width = slots->key_cols / slots->kv_heads,
            value_width = slots->value_cols / slots->kv_heads;
    if (slots->rows) {
        kvl_tensor *rows = kvl_check_tensor(L, slots->rows);
        if (rows->shape[0] != B) shape_error(L, slots->rows, "rows with the batch of q");
        channels = rows->shape[2];
        s->rows = rows->shape[1];
        const float *p = kvl_tensor_f32(rows);
        s->key = (kvl_rows){p + slots->key0, rows->stride[0], rows->stride[1], key_width};
        s->value = (kvl_rows){p + slots->value0, rows->stride[0], rows->stride[1], value_width};
    } else {
        kvl_reader *reader = kvl_fill_reader(L, slots->reader);
        if (reader->batch != B)
            luaL_error(L, "the source has %I tables, q has a batch of %I",
                       (LUAI_UACINT)reader->batch, (LUAI_UACINT)B);
        const kvl_table *table = reader->tables[0];
        channels = kvl_table_channels(table);
        s->ring = kvl_table_ring(table);
        s->rows = s->ring ? s->ring : kvl_table_count(table);
        s->read = kvl_table_read;
        s->read_ctx = reader;
        s->width = channels;
        s->key_step = key_width;
        s->value_step = value_width;
        for (int64_t b = 1; b < B; b++)
            if (kvl_table_ring(reader->tables[b]) != s->ring ||
                kvl_table_count(reader->tables[b]) != kvl_table_count(table))
                luaL_error(L, "the tables of one source must have the same number of entries");
    }
    if (slots->key0 + slots->key_cols > channels || slots->value0 + slots->value_cols > channels)
        luaL_error(L, "columns to %I, but the rows have %I",
                   (LUAI_UACINT)(slots->key0 + slots->key_cols > channels
                                     ? slots->key0 + slots->key_cols
                                     : slots->value0 + slots->value_cols),
                   (LUAI_UACINT)channels);
    s->key0 = slots->key0;
    s->value0 = slots->value0;
}

static int64_t key_width_of(const source_slots *slots, const kvl_source *s) {
    return slots->value ? s->key0 : slots->key_cols / slots->kv_heads;
}

static int64_t value_width_of(const source_slots *slots, const kvl_source *s) {
    return slots->value ? s->value0 : slots->value_cols / slots->kv_heads;
}

/* attend(q [B, T, H, width], sources, sink or nil, scale, pos0, value width or 0, with lse) -> out
 * [B, T, H, width of values] [, lse [B, T, H]]. The value width is needed only when there is no
 * source. */
static int l_attend(lua_State *L) {
    kvl_error err;
    double scale = luaL_checknumber(L, 4);
    int64_t pos0 = luaL_checkinteger(L, 5), value_width = luaL_checkinteger(L, 6);
    bool with_lse = lua_toboolean(L, 7);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 7);
    luaL_argcheck(L, pos0 >= 0 && pos0 <= (int64_t)1 << 50, 5,
                  "a position is a whole number, 0 or more");
    luaL_argcheck(L, value_width >= 0 && value_width <= INT32_MAX, 6, "not a width");
    need_steps(L, 1, true);
    check_dims(L, 1, 4, "q {B, T, H, width}");
    int64_t n = (int64_t)lua_rawlen(L, 2);
    if (n > KVL_MAX_SOURCES)
        luaL_error(L, "attend: %d sources, at most %d", (int)n, KVL_MAX_SOURCES);
    luaL_checkstack(L, 6 * KVL_MAX_SOURCES + 16, "attend");
    kvl_source sources[KVL_MAX_SOURCES];
    source_slots slots[KVL_MAX_SOURCES];
    memset(sources, 0, sizeof sources);
    memset(slots, 0, sizeof slots);
    kvl_tensor *q = kvl_check_tensor(L, 1);
    int64_t B = q->shape[0], T = q->shape[1], H = q->shape[2], key_width = q->shape[3];
    check_vector(L, 3, H);
    for (int64_t i = 0; i < n; i++) {
        if (lua_rawgeti(L, 2, i + 1) != LUA_TTABLE)
            luaL_error(L, "attend: source %d is %s, expected a table", (int)i + 1,
                       luaL_typename(L, -1));
        push_source(L, lua_gettop(L), &sources[i], &slots[i]);
    }
    /* The width of values is that of the first source, which is known without pointers. */
    if (n > 0) {
        if (slots[0].value)
            value_width = kvl_check_tensor(L, slots[0].value)->shape[3];
        else
            value_width = slots[0].value_cols / slots[0].kv_heads;
    }
    if (value_width < 1)
        luaL_error(L, "attend: without a source the width of the values must be given");
    kvl_tensor **out = kvl_push_tensor(L);
    int64_t shape[] = {B, T, H, value_width};
    if (kvl_tensor_new(out, KVL_FLOAT32, 4, shape, &err) != KVL_OK) return kvl_raise(L, &err);
    kvl_tensor **lse = NULL;
    if (with_lse) {
        lse = kvl_push_tensor(L);
        if (kvl_tensor_new(lse, KVL_FLOAT32, 3, shape, &err) != KVL_OK) return kvl_raise(L, &err);
    }
    for (int64_t i = 0; i < n; i++) {
        fill_source(L, &sources[i], &slots[i], B, T);
        int64_t kw = key_width_of(&slots[i], &sources[i]),
                vw = value_width_of(&slots[i], &sources[i]);
        if (kw != key_width || vw != value_width)
            return luaL_error(
                L, "attend: keys of source %d have %I channels and values %I, expected %I and %I",
                (int)i + 1, (LUAI_UACINT)kw, (LUAI_UACINT)vw, (LUAI_UACINT)key_width,
                (LUAI_UACINT)value_width);
        if (slots[i].value) sources[i].key0 = sources[i].value0 = 0;
    }
    q = kvl_check_tensor(L, 1);
    kvl_attend_args args = {.out = kvl_tensor_f32(*out),
                            .out_step_b = T * H * value_width,
                            .out_step_t = H * value_width,
                            .out_step_h = value_width,
                            .lse = lse ? kvl_tensor_f32(*lse) : NULL,
                            .q = kvl_tensor_f32(q),
                            .q_step_b = T * H * key_width,
                            .q_step_t = H * key_width,
                            .q_step_h = key_width,
                            .sink = vector(L, 3),
                            .scale = (float)scale,
                            .q_pos0 = pos0,
                            .sources = sources,
                            .n_sources = n,
                            .batch = B,
                            .queries = T,
                            .heads = H,
                            .key_width = key_width,
                            .value_width = value_width};
    return kvl_done(L, kvl_attend(&args, &err), &err, with_lse ? 2 : 1);
}

/* --- index
 * ---------------------------------------------------------------------------------------------- */

/* index(q [B, T, heads, width], w [B, T, heads], keys (a source), { pos0, ratio, k, pool (list),
 * block, blocks, scores })
 * -> { top =, pool =, scores = }, those that were asked for */
static int l_index(lua_State *L) {
    kvl_error err;
    luaL_checktype(L, 3, LUA_TTABLE);
    luaL_checktype(L, 4, LUA_TTABLE);
    lua_settop(L, 4);
    need_steps(L, 1, true);
    need_steps(L, 2, true);
    check_dims(L, 1, 4, "q {B, T, heads, width}");
    check_dims(L, 2, 3, "w {B, T, heads}");
    int64_t pos0 = int_field(L, 4, "pos0", 0, 0), ratio = int_field(L, 4, "ratio", 1, 1),
            k = int_field(L, 4, "k", 0, 0);
    int64_t block = int_field(L, 4, "block", 0, 0), blocks = int_field(L, 4, "blocks", 0, 0);
    lua_getfield(L, 4, "scores");
    bool with_scores = lua_toboolean(L, -1);
    int pool = tensor_field(L, 4, "pool", true);
    if (pool && kvl_check_tensor(L, pool)->dtype != KVL_INT32)
        luaL_error(L, "pool: expected an int32 tensor {B, T, entries}");
    if (pool && !kvl_tensor_is_contiguous(kvl_check_tensor(L, pool)))
        luaL_error(L, "pool: expected a contiguous tensor");
    int rows = tensor_field(L, 3, "rows", false), reader_at = 0;
    if (rows)
        check_dims(L, rows, 3, "keys {B, S, width}");
    else {
        kvl_push_reader(L, 3);
        reader_at = lua_gettop(L);
    }
    kvl_tensor *q = kvl_check_tensor(L, 1), *w = kvl_check_tensor(L, 2);
    int64_t B = q->shape[0], T = q->shape[1], heads = q->shape[2], width = q->shape[3];
    if (w->shape[0] != B || w->shape[1] != T || w->shape[2] != heads)
        shape_error(L, 2, "w with the {B, T, heads} of q");
    int64_t n;
    if (rows) {
        kvl_tensor *t = kvl_check_tensor(L, rows);
        if (t->shape[0] != B || t->shape[2] != width)
            shape_error(L, rows, "keys with the batch and width of q");
        n = t->shape[1];
    } else {
        kvl_reader *reader = kvl_fill_reader(L, reader_at);
        if (reader->batch != B)
            luaL_error(L, "keys: %I tables for a batch of %I", (LUAI_UACINT)reader->batch,
                       (LUAI_UACINT)B);
        n = kvl_table_count(reader->tables[0]);
        for (int64_t b = 0; b < B; b++)
            if (kvl_table_channels(reader->tables[b]) != width ||
                kvl_table_count(reader->tables[b]) != n || kvl_table_ring(reader->tables[b]))
                luaL_error(L, "keys: expected lists of %I entries with %I channels", (LUAI_UACINT)n,
                           (LUAI_UACINT)width);
    }
    if (pool) {
        kvl_tensor *t = kvl_check_tensor(L, pool);
        if (t->ndim != 3 || t->shape[0] != B || t->shape[1] != T)
            shape_error(L, pool, "a pool with the {B, T} of q");
    }
    int64_t pool_size;
    if (!kvl_mul(&pool_size, block, blocks))
        luaL_error(L, "a pool of %I blocks of %I is too large", (LUAI_UACINT)blocks,
                   (LUAI_UACINT)block);
    int64_t most = (n + (block ? block - 1 : 0)) /
                   (block ? block : 1); /* blocks there are at all */
    if (blocks > most) blocks = most > 0 ? most : 1;
    if (k > n) k = n;
    lua_newtable(L);
    int result = lua_gettop(L);
    kvl_index_out out = {.k = k, .block = block, .blocks = blocks};
    struct {
        const char *name;
        bool wanted;
        int64_t last;
        kvl_dtype dtype;
        kvl_tensor *made;
    } wanted[] = {{"top", k > 0, k, KVL_INT32, NULL},
                  {"pool", block > 0 && blocks > 0, block * blocks, KVL_INT32, NULL},
                  {"scores", with_scores, n, KVL_FLOAT32, NULL}};
    for (int i = 0; i < 3; i++) {
        if (!wanted[i].wanted) continue;
        kvl_tensor **slot = kvl_push_tensor(L);
        int64_t shape[] = {B, T, wanted[i].last};
        if (kvl_tensor_new(slot, wanted[i].dtype, 3, shape, &err) != KVL_OK)
            return kvl_raise(L, &err);
        wanted[i].made = *slot; /* the result table keeps it */
        lua_setfield(L, result, wanted[i].name);
    }
    if (wanted[0].made) out.top = kvl_tensor_i32(wanted[0].made);
    if (wanted[1].made) out.pool = kvl_tensor_i32(wanted[1].made);
    if (wanted[2].made) out.scores = kvl_tensor_f32(wanted[2].made);
    q = kvl_check_tensor(L, 1);
    w = kvl_check_tensor(L, 2);
    kvl_index_args args = {.q = kvl_tensor_f32(q),
                           .q_step_b = T * heads * width,
                           .q_step_t = heads * width,
                           .q_step_h = width,
                           .w = kvl_tensor_f32(w),
                           .w_step_b = T * heads,
                           .w_step_t = heads,
                           .rows = n,
                           .q_pos0 = pos0,
                           .ratio = ratio,
                           .batch = B,
                           .queries = T,
                           .heads = heads,
                           .width = width};
    if (rows) {
        kvl_tensor *t = kvl_check_tensor(L, rows);
        args.key = (kvl_rows){kvl_tensor_f32(t), t->stride[0], t->stride[1], 0};
    } else {
        args.read = kvl_table_read;
        args.read_ctx = kvl_fill_reader(L, reader_at);
    }
    if (pool) {
        kvl_tensor *t = kvl_check_tensor(L, pool);
        args.pool = kvl_tensor_i32(t);
        args.pool_size = t->shape[2];
    }
    if (kvl_index(&out, &args, &err) != KVL_OK) return kvl_raise(L, &err);
    lua_settop(L, result);
    return 1;
}

/* --- compressors
 * ---------------------------------------------------------------------------------------- */

/* The states of a batch of sequences that go in step. */
typedef struct compressor {
    int64_t batch, width, row; /* row: columns of candidates and scores */
    int64_t ratio;
    kvl_compress_state *state[];
} compressor;

static compressor *check_compressor(lua_State *L, int arg) {
    compressor *c = luaL_checkudata(L, arg, COMPRESSOR);
    if (c->batch > 0 && !c->state[0]) luaL_argerror(L, arg, "the compressor was freed");
    return c;
}

static compressor *push_compressor(lua_State *L, int64_t batch) {
    compressor *c = lua_newuserdatauv(L, sizeof *c + (size_t)batch * sizeof *c->state, 1);
    memset(c, 0, sizeof *c + (size_t)batch * sizeof *c->state);
    c->batch = batch;
    luaL_setmetatable(L, COMPRESSOR);
    return c;
}

/* compressor(ratio, width, overlap, bias or nil [ratio, row], rollback, batch) */
static int l_compressor(lua_State *L) {
    kvl_error err;
    int64_t ratio = luaL_checkinteger(L, 1), width = luaL_checkinteger(L, 2),
            rollback = luaL_checkinteger(L, 5), batch = luaL_checkinteger(L, 6);
    bool overlap = lua_toboolean(L, 3);
    luaL_argcheck(L, batch >= 1 && batch <= 1 << 20, 6, "batch must be 1 or more");
    lua_settop(L, 6);
    if (!lua_isnil(L, 4)) {
        need_steps(L, 4, true);
        kvl_tensor *bias = check_dims(L, 4, 2, "a bias {ratio, row}");
        if (bias->shape[0] != ratio || bias->shape[1] != width * (overlap ? 2 : 1))
            shape_error(L, 4, "a bias {ratio, row}");
    }
    compressor *c = push_compressor(L, batch);
    c->width = width;
    c->row = width * (overlap ? 2 : 1);
    c->ratio = ratio;
    lua_pushvalue(L, 4); /* the bias lives as long as the compressor */
    lua_setiuservalue(L, -2, 1);
    kvl_compressor comp = {ratio, width, overlap, NULL};
    for (int64_t b = 0; b < batch; b++)
        if (kvl_compress_state_new(&c->state[b], &comp, rollback, &err) != KVL_OK)
            return kvl_raise(L, &err);
    return 1;
}

/* c:push(candidates [B, T, row], scores [B, T, row] or nil) -> entries [B, completed, width] */
static int compressor_push(lua_State *L) {
    kvl_error err;
    compressor *c = check_compressor(L, 1);
    lua_settop(L, 3);
    need_steps(L, 2, true);
    kvl_tensor *x = check_dims(L, 2, 3, "candidates {B, T, row}");
    if (x->shape[0] != c->batch || x->shape[2] != c->row)
        shape_error(L, 2,
                    lua_pushfstring(L, "candidates {%I, T, %I}", (LUAI_UACINT)c->batch,
                                    (LUAI_UACINT)c->row));
    if (!lua_isnil(L, 3)) {
        need_steps(L, 3, true);
        kvl_tensor *z = check_dims(L, 3, 3, "scores {B, T, row}");
        x = kvl_check_tensor(L, 2);
        for (int d = 0; d < 3; d++)
            if (z->shape[d] != x->shape[d])
                shape_error(L, 3, "scores of the shape of the candidates");
    }
    int bias = lua_getiuservalue(L, 1, 1) == LUA_TUSERDATA ? lua_gettop(L) : 0;
    kvl_tensor **slot = kvl_push_tensor(L);
    x = kvl_check_tensor(L, 2);
    int64_t T = x->shape[1], position = kvl_compress_position(c->state[0]);
    int64_t shape[] = {c->batch, (position + T) / c->ratio - position / c->ratio, c->width};
    if (kvl_tensor_new(slot, KVL_FLOAT32, 3, shape, &err) != KVL_OK) return kvl_raise(L, &err);
    x = kvl_check_tensor(L, 2);
    const float *z = vector(L, 3), *b0 = bias ? kvl_tensor_f32(kvl_check_tensor(L, bias)) : NULL;
    for (int64_t b = 0; b < c->batch; b++) {
        int64_t at = b * T * c->row;
        kvl_rows cand = {kvl_tensor_f32(x) + at, 0, c->row, 0},
                 score = {z ? z + at : NULL, 0, c->row, 0};
        if (kvl_compress_push(kvl_tensor_f32(*slot) + b * shape[1] * c->width, c->state[b], b0,
                              cand, score, T, &err) != KVL_OK)
            return kvl_raise(L, &err);
    }
    return kvl_done(L, KVL_OK, &err, 1);
}

static int compressor_rollback(lua_State *L) {
    kvl_error err;
    compressor *c = check_compressor(L, 1);
    int64_t n = luaL_checkinteger(L, 2);
    for (int64_t b = 0; b < c->batch; b++)
        if (kvl_compress_rollback(c->state[b], n, &err) != KVL_OK) return kvl_raise(L, &err);
    return 0;
}

static int compressor_copy(lua_State *L) {
    kvl_error err;
    compressor *c = check_compressor(L, 1), *copy = push_compressor(L, c->batch);
    copy->width = c->width, copy->row = c->row, copy->ratio = c->ratio;
    lua_getiuservalue(L, 1, 1);
    lua_setiuservalue(L, -2, 1);
    c = check_compressor(L, 1);
    for (int64_t b = 0; b < c->batch; b++)
        if (kvl_compress_state_copy(&copy->state[b], c->state[b], &err) != KVL_OK)
            return kvl_raise(L, &err);
    return 1;
}

static int compressor_position(lua_State *L) {
    lua_pushinteger(L, kvl_compress_position(check_compressor(L, 1)->state[0]));
    return 1;
}

static int compressor_bytes(lua_State *L, size_t (*bytes)(const kvl_compress_state *)) {
    compressor *c = check_compressor(L, 1);
    lua_Integer sum = 0;
    for (int64_t b = 0; b < c->batch; b++)
        sum += (lua_Integer)bytes(c->state[b]);
    lua_pushinteger(L, sum);
    return 1;
}

static int compressor_state_bytes(lua_State *L) {
    return compressor_bytes(L, kvl_compress_state_bytes);
}

static int compressor_rollback_bytes(lua_State *L) {
    return compressor_bytes(L, kvl_compress_rollback_bytes);
}

static int compressor_free(lua_State *L) {
    compressor *c = luaL_checkudata(L, 1, COMPRESSOR);
    for (int64_t b = 0; b < c->batch; b++) {
        kvl_compress_state_free(c->state[b]);
        c->state[b] = NULL;
    }
    return 0;
}

static int compressor_tostring(lua_State *L) {
    compressor *c = check_compressor(L, 1);
    lua_pushfstring(L, "%s: %I tokens to entries of %I channels, %I tokens so far", COMPRESSOR,
                    (LUAI_UACINT)c->ratio, (LUAI_UACINT)c->width,
                    (LUAI_UACINT)kvl_compress_position(c->state[0]));
    return 1;
}

/* --- the module
 * ----------------------------------------------------------------------------------------- */

/* Creates a metatable whose methods cannot be reached by a wrong object; leaves the method table.
 */
static void new_class(lua_State *L, const char *name, const luaL_Reg *events,
                      const luaL_Reg *methods) {
    luaL_newmetatable(L, name);
    luaL_setfuncs(L, events, 0);
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_newtable(L);
    luaL_setfuncs(L, methods, 0);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "__index");
    lua_remove(L, -2);
}

void kvl_open_kernels(lua_State *L) {
    static const luaL_Reg functions[] = {{"rms_norm", l_rms_norm},
                                         {"layer_norm", l_layer_norm},
                                         {"hadamard", l_hadamard},
                                         {"rope_freqs", l_rope_freqs},
                                         {"rope", l_rope},
                                         {"attend", l_attend},
                                         {"index", l_index},
                                         {"compressor", l_compressor},
                                         {NULL, NULL}};
    static const luaL_Reg rope_events[] = {{"__tostring", rope_tostring}, {NULL, NULL}};
    static const luaL_Reg rope_methods[] = {{"frequencies", rope_frequencies}, {NULL, NULL}};
    static const luaL_Reg events[] = {{"__gc", compressor_free},
                                      {"__close", compressor_free},
                                      {"__tostring", compressor_tostring},
                                      {NULL, NULL}};
    static const luaL_Reg methods[] = {{"push", compressor_push},
                                       {"rollback", compressor_rollback},
                                       {"copy", compressor_copy},
                                       {"position", compressor_position},
                                       {"state_bytes", compressor_state_bytes},
                                       {"rollback_bytes", compressor_rollback_bytes},
                                       {"free", compressor_free},
                                       {NULL, NULL}};
    kvl_open_part(L, "kernels", functions);
    lua_getfield(L, -1, "kernels");
    lua_newtable(L);
    new_class(L, ROPE, rope_events, rope_methods);
    lua_setfield(L, -2, "RopeTable");
    new_class(L, COMPRESSOR, events, methods);
    lua_setfield(L, -2, "Compressor");
    lua_setfield(L, -2, "classes");
    lua_pop(L, 1);
}
