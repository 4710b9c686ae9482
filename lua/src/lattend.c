/* lattend.c - core.attend: attend and index over tensors and cache tables. Everything that a call
 * needs is first put on the stack, then pointers are taken, then the core runs (lkvl.h). */
#include "lattend.h"

#include <string.h>

/* --- rows of a source ------------------------------------------------------------------------- */

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

/* --- attend ----------------------------------------------------------------------------------- */

/* Puts what source i of the list at stack index 2 needs on the stack, and reads its numbers. */
static void push_source(lua_State *L, int at, kvl_source *s, kvl_source_slots *slots) {
    s->see = check_see(L, at);
    s->pos0 = kvl_int_field(L, at, "pos0", 0, 0);
    s->window = kvl_int_field(L, at, "window", 1, 1);
    s->ratio = kvl_int_field(L, at, "ratio", 1, 1);
    slots->list = 0;
    if (s->see == KVL_SEE_LIST) {
        slots->list = kvl_tensor_field(L, at, "list", KVL_INT32, true);
        if (!slots->list) luaL_error(L, "see = 'list' needs a list, an int32 tensor {B, T, k}");
        kvl_check_dims(L, slots->list, 3, "an int32 list {B, T, k}");
    }
    slots->value = 0;
    slots->rows = kvl_tensor_field(L, at, "key_rows", KVL_FLOAT32, false);
    if (slots->rows) { /* keys and values of their own, [B, S, Hkv, width] each */
        slots->value = kvl_tensor_field(L, at, "value_rows", KVL_FLOAT32, false);
        if (!slots->value) luaL_error(L, "key_rows needs value_rows");
        kvl_check_dims(L, slots->rows, 4, "key_rows {B, S, Hkv, width}");
        kvl_check_dims(L, slots->value, 4, "value_rows {B, S, Hkv, width}");
        return;
    }
    slots->kv_heads = kvl_int_field(L, at, "kv_heads", 1, 1);
    columns_field(L, at, "key", &slots->key0, &slots->key_cols);
    columns_field(L, at, "value", &slots->value0, &slots->value_cols);
    if (slots->key_cols % slots->kv_heads || slots->value_cols % slots->kv_heads)
        luaL_error(L, "%I kv heads do not divide %I key and %I value columns",
                   (LUAI_UACINT)slots->kv_heads, (LUAI_UACINT)slots->key_cols,
                   (LUAI_UACINT)slots->value_cols);
    slots->rows = kvl_tensor_field(L, at, "rows", KVL_FLOAT32, false);
    if (slots->rows) {
        kvl_check_dims(L, slots->rows, 3, "rows {B, S, channels}");
        return;
    }
    kvl_push_reader(L, at);
    slots->reader = lua_gettop(L);
}

/* Takes the pointers of a source; nothing here allocates. */
static void fill_source(lua_State *L, kvl_source *s, const kvl_source_slots *slots, int64_t B,
                        int64_t T) {
    if (slots->list) {
        kvl_tensor *list = kvl_check_tensor(L, slots->list);
        if (list->shape[0] != B || list->shape[1] != T)
            kvl_shape_error(L, slots->list, "a list with the {B, T} of q");
        s->list = kvl_tensor_i32(list);
        s->k = list->shape[2];
    }
    if (slots->value) {
        kvl_tensor *key = kvl_check_tensor(L, slots->rows),
                   *value = kvl_check_tensor(L, slots->value);
        if (key->shape[0] != B || value->shape[0] != B || key->shape[1] != value->shape[1] ||
            key->shape[2] != value->shape[2])
            kvl_shape_error(L, slots->value,
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
        if (rows->shape[0] != B) kvl_shape_error(L, slots->rows, "rows with the batch of q");
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

static int64_t key_width_of(const kvl_source_slots *slots, const kvl_source *s) {
    return slots->value ? s->key0 : slots->key_cols / slots->kv_heads;
}

static int64_t value_width_of(const kvl_source_slots *slots, const kvl_source *s) {
    return slots->value ? s->value0 : slots->value_cols / slots->kv_heads;
}

void kvl_push_sources(lua_State *L, int list, kvl_source_list *call) {
    luaL_checktype(L, list, LUA_TTABLE);
    memset(call, 0, sizeof *call);
    call->n = (int64_t)lua_rawlen(L, list);
    if (call->n > KVL_MAX_SOURCES)
        luaL_error(L, "attend: %d sources, at most %d", (int)call->n, KVL_MAX_SOURCES);
    luaL_checkstack(L, 8 * KVL_MAX_SOURCES + 24, "attend");
    for (int64_t i = 0; i < call->n; i++) {
        if (lua_rawgeti(L, list, i + 1) != LUA_TTABLE)
            luaL_error(L, "attend: source %d is %s, expected a table", (int)i + 1,
                       luaL_typename(L, -1));
        call->slots[i].at = lua_gettop(L);
        push_source(L, lua_gettop(L), &call->sources[i], &call->slots[i]);
    }
}

int64_t kvl_sources_value_width(lua_State *L, const kvl_source_list *call, int64_t missing) {
    if (call->n == 0) return missing;
    const kvl_source_slots *first = &call->slots[0];
    return first->value ? kvl_check_tensor(L, first->value)->shape[3]
                        : first->value_cols / first->kv_heads;
}

void kvl_fill_sources(lua_State *L, kvl_source_list *call, int64_t B, int64_t T, int64_t key_width,
                      int64_t value_width) {
    for (int64_t i = 0; i < call->n; i++) {
        kvl_source *s = &call->sources[i];
        const kvl_source_slots *slots = &call->slots[i];
        fill_source(L, s, slots, B, T);
        int64_t kw = key_width_of(slots, s), vw = value_width_of(slots, s);
        if (kw != key_width || vw != value_width)
            luaL_error(
                L, "attend: keys of source %d have %I channels and values %I, expected %I and %I",
                (int)i + 1, (LUAI_UACINT)kw, (LUAI_UACINT)vw, (LUAI_UACINT)key_width,
                (LUAI_UACINT)value_width);
        if (slots->value) s->key0 = s->value0 = 0;
    }
}

/* attend(q [B, T, H, width], sources, sink or nil, scale, pos0, value width or 0, with lse) -> out
 * [B, T, H, width of values] [, lse [B, T, H]]. The value width is needed only when there is no
 * source. */
static int l_attend(lua_State *L) {
    kvl_error err;
    kvl_source_list call;
    double scale = luaL_checknumber(L, 4);
    int64_t pos0 = luaL_checkinteger(L, 5), value_width = luaL_checkinteger(L, 6);
    bool with_lse = lua_toboolean(L, 7);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 7);
    luaL_argcheck(L, pos0 >= 0 && pos0 <= (int64_t)1 << 50, 5,
                  "a position is a whole number, 0 or more");
    luaL_argcheck(L, value_width >= 0 && value_width <= INT32_MAX, 6, "not a width");
    kvl_need_rows(L, 1, true);
    kvl_check_dims(L, 1, 4, "q {B, T, H, width}");
    kvl_tensor *q = kvl_check_tensor(L, 1);
    int64_t B = q->shape[0], T = q->shape[1], H = q->shape[2], key_width = q->shape[3];
    kvl_check_vector(L, 3, H);
    kvl_push_sources(L, 2, &call);
    value_width = kvl_sources_value_width(L, &call, value_width);
    if (value_width < 1)
        luaL_error(L, "attend: without a source the width of the values must be given");
    kvl_tensor **out = kvl_push_tensor(L);
    int64_t shape[] = {B, T, H, value_width};
    if (kvl_tensor_new_raw(out, KVL_FLOAT32, 4, shape, &err) != KVL_OK) return kvl_raise(L, &err);
    kvl_tensor **lse = NULL;
    if (with_lse) {
        lse = kvl_push_tensor(L);
        if (kvl_tensor_new_raw(lse, KVL_FLOAT32, 3, shape, &err) != KVL_OK)
            return kvl_raise(L, &err);
    }
    kvl_fill_sources(L, &call, B, T, key_width, value_width);
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
                            .sink = kvl_vector(L, 3),
                            .scale = (float)scale,
                            .q_pos0 = pos0,
                            .sources = call.sources,
                            .n_sources = call.n,
                            .batch = B,
                            .queries = T,
                            .heads = H,
                            .key_width = key_width,
                            .value_width = value_width};
    return kvl_done(L, kvl_attend(&args, &err), &err, with_lse ? 2 : 1);
}

/* --- index ------------------------------------------------------------------------------------ */

/* index(q [B, T, heads, width], w [B, T, heads], keys (a source), { pos0, ratio, k, pool (list),
 * block, blocks, scores })
 * -> { top =, pool =, scores = }, those that were asked for */
static int l_index(lua_State *L) {
    kvl_error err;
    luaL_checktype(L, 3, LUA_TTABLE);
    luaL_checktype(L, 4, LUA_TTABLE);
    lua_settop(L, 4);
    kvl_need_rows(L, 1, true);
    kvl_need_rows(L, 2, true);
    kvl_check_dims(L, 1, 4, "q {B, T, heads, width}");
    kvl_check_dims(L, 2, 3, "w {B, T, heads}");
    int64_t pos0 = kvl_int_field(L, 4, "pos0", 0, 0), ratio = kvl_int_field(L, 4, "ratio", 1, 1),
            k = kvl_int_field(L, 4, "k", 0, 0);
    int64_t block = kvl_int_field(L, 4, "block", 0, 0),
            blocks = kvl_int_field(L, 4, "blocks", 0, 0);
    lua_getfield(L, 4, "scores");
    bool with_scores = lua_toboolean(L, -1);
    int pool = kvl_tensor_field(L, 4, "pool", KVL_INT32, true);
    int rows = kvl_tensor_field(L, 3, "rows", KVL_FLOAT32, false), reader_at = 0;
    if (rows)
        kvl_check_dims(L, rows, 3, "keys {B, S, width}");
    else {
        kvl_push_reader(L, 3);
        reader_at = lua_gettop(L);
    }
    kvl_tensor *q = kvl_check_tensor(L, 1), *w = kvl_check_tensor(L, 2);
    int64_t B = q->shape[0], T = q->shape[1], heads = q->shape[2], width = q->shape[3];
    if (w->shape[0] != B || w->shape[1] != T || w->shape[2] != heads)
        kvl_shape_error(L, 2, "w with the {B, T, heads} of q");
    int64_t n;
    if (rows) {
        kvl_tensor *t = kvl_check_tensor(L, rows);
        if (t->shape[0] != B || t->shape[2] != width)
            kvl_shape_error(L, rows, "keys with the batch and width of q");
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
            kvl_shape_error(L, pool, "a pool with the {B, T} of q");
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

void kvl_open_attend(lua_State *L) {
    static const luaL_Reg functions[] = {{"attend", l_attend}, {"index", l_index}, {NULL, NULL}};
    kvl_open_part(L, "attend", functions);
}
