/* lattend.c - core.attend: attend and index on tensors. The kernels take raw pointers, so every
 * shape is compared with every other here; what lists of ids name is checked by the kernels. */
#include "lkvl.h"

#include <math.h>
#include <string.h>

enum { FAR = 1 << 30 }; /* positions beyond this are mistakes */

static void fail_shape(lua_State *L, const char *what, const kvl_tensor *t, const char *expected) {
    char text[KVL_SHAPE_TEXT];
    luaL_error(L, "%s has shape %s, expected %s", what, kvl_shape_text(text, t->ndim, t->shape),
               expected);
}

/* The value of field `name` as rows, left on the stack; 0 when it is nil. */
static int rows_field(lua_State *L, int table, const char *name, const char *what, bool packed) {
    int at = kvl_key(L, table, name);
    if (lua_isnil(L, at)) return 0;
    kvl_to_rows(L, at, what, packed);
    return at;
}

/* A tensor (batch, rows, heads, width), or without batch: heads and batch may be missing in turn.
 */
static kvl_rows rows_of(const kvl_tensor *t, bool batch, bool heads) {
    kvl_rows r = {kvl_tensor_f32(t), 0, 0, 0};
    int i = 0;
    if (batch) r.step_b = t->stride[i++];
    r.step_s = t->stride[i++];
    if (heads) r.step_h = t->stride[i];
    return r;
}

typedef struct source_places {
    int key, value, list; /* stack indices; value may be key, list may be 0 */
} source_places;

/* Reads what is not a tensor of source number i (1-based), and finds its tensors. */
static source_places read_source(lua_State *L, int table, kvl_source *s) {
    static const char *const rules[] = {"all", "causal", "window", "blocks", "list", NULL};
    source_places p;
    int at = kvl_key(L, table, "see");
    const char *rule = lua_type(L, at) == LUA_TSTRING ? lua_tostring(L, at) : "causal";
    int see = 0;
    while (rules[see] && strcmp(rules[see], rule) != 0)
        see++;
    if (!rules[see] || !(lua_isnil(L, at) || lua_isstring(L, at)))
        luaL_error(L, "attend: see is %s, expected all, causal, window, blocks or list",
                   luaL_tolstring(L, at, NULL));
    s->see = (kvl_see)see;
    s->window = kvl_key_integer(L, table, "window", s->see == KVL_SEE_WINDOW ? -1 : 1, 1, FAR);
    s->ratio = kvl_key_integer(L, table, "ratio", s->see == KVL_SEE_BLOCKS ? -1 : 1, 1, FAR);
    s->pos0 = kvl_key_integer(L, table, "pos0", 0, -FAR, FAR);
    s->ring = kvl_key_integer(L, table, "ring", 0, 0, FAR);
    p.key = rows_field(L, table, "key", "attend: key", false);
    if (!p.key) luaL_error(L, "attend: a source has no key");
    p.value = rows_field(L, table, "value", "attend: value", false);
    if (!p.value) p.value = p.key;
    p.list = 0;
    if (s->see == KVL_SEE_LIST) {
        p.list = kvl_key(L, table, "list");
        kvl_to_ids(L, p.list, "attend: list");
    }
    return p;
}

/* Fills the pointers of a source and compares its shapes with those of q. */
static void link_source(lua_State *L, kvl_source *s, source_places p, kvl_attend_args *a,
                        bool batch) {
    int ndim = batch ? 4 : 3;
    kvl_tensor *key = kvl_named_tensor(L, p.key, "attend: key");
    kvl_tensor *value = kvl_named_tensor(L, p.value, "attend: value");
    if (key->ndim != ndim || key->shape[ndim - 1] != a->key_width ||
        (batch && key->shape[0] != a->batch))
        fail_shape(L, "attend: key", key, "{[batch,] rows, kv heads, width of q}");
    s->rows = key->shape[ndim - 3];
    s->kv_heads = key->shape[ndim - 2];
    if (s->kv_heads < 1 || a->heads % s->kv_heads != 0)
        luaL_error(L, "attend: %I heads of q are not a multiple of %I kv heads",
                   (LUAI_UACINT)a->heads, (LUAI_UACINT)s->kv_heads);
    if (value->ndim != ndim ||
        memcmp(value->shape, key->shape, (size_t)(ndim - 1) * sizeof *key->shape) != 0)
        fail_shape(L, "attend: value", value, "the shape of key but for the width");
    if (a->value_width == -1) a->value_width = value->shape[ndim - 1];
    if (value->shape[ndim - 1] != a->value_width)
        fail_shape(L, "attend: value", value, "one width in all sources");
    if (s->ring > s->rows)
        luaL_error(L, "attend: a ring of %I slots in %I rows", (LUAI_UACINT)s->ring,
                   (LUAI_UACINT)s->rows);
    s->key = rows_of(key, batch, true);
    s->value = rows_of(value, batch, true);
    if (!p.list) return;
    kvl_tensor *list = kvl_named_tensor(L, p.list, "attend: list");
    if (list->ndim != ndim - 1 || list->shape[ndim - 3] != a->queries ||
        (batch && list->shape[0] != a->batch))
        fail_shape(L, "attend: list", list, "{[batch,] queries, k}");
    s->list = kvl_tensor_i32(list);
    s->k = list->shape[ndim - 2];
}

/* attend{q =, sources =, sink =, scale =, pos0 =, lse =} -> out [, lse] */
static int l_attend(lua_State *L) {
    kvl_error err;
    kvl_source source[KVL_MAX_SOURCES] = {{0}};
    source_places place[KVL_MAX_SOURCES];
    lua_settop(L, 1);
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checkstack(L, 16 + 8 * KVL_MAX_SOURCES, NULL);
    kvl_attend_args a = {.sources = source, .value_width = -1};
    a.q_pos0 = kvl_key_integer(L, 1, "pos0", 0, -FAR, FAR);
    bool want_lse = kvl_key_flag(L, 1, "lse");
    double scale = kvl_key_number(L, 1, "scale", -1);
    int q_at = rows_field(L, 1, "q", "attend: q", false);
    if (!q_at) return luaL_error(L, "attend: q is missing");
    int sink_at = rows_field(L, 1, "sink", "attend: sink", true);
    int list_at = kvl_key(L, 1, "sources");
    lua_Unsigned count = lua_istable(L, list_at) ? lua_rawlen(L, list_at) : 0;
    if (count < 1 || count > KVL_MAX_SOURCES)
        return luaL_error(L, "attend: sources must be a list of 1 .. %d", KVL_MAX_SOURCES);
    for (lua_Unsigned i = 0; i < count; i++) {
        lua_rawgeti(L, list_at, (lua_Integer)i + 1);
        if (!lua_istable(L, -1)) return luaL_error(L, "attend: source %d is no table", (int)i + 1);
        place[i] = read_source(L, lua_gettop(L), &source[i]);
    }
    a.n_sources = (int64_t)count;
    kvl_tensor **lse = kvl_push_tensor(L), **out = kvl_push_tensor(L);

    kvl_tensor *q = kvl_named_tensor(L, q_at, "attend: q"); /* from here on nothing allocates */
    bool batch = q->ndim == 4;
    if (q->ndim != 3 && q->ndim != 4)
        fail_shape(L, "attend: q", q, "{[batch,] queries, heads, width}");
    int dim = batch ? 1 : 0;
    a.batch = batch ? q->shape[0] : 1;
    a.queries = q->shape[dim];
    a.heads = q->shape[dim + 1];
    a.key_width = q->shape[dim + 2];
    if (a.heads < 1 || a.key_width < 1)
        fail_shape(L, "attend: q", q, "at least one head and one channel");
    a.q = kvl_tensor_f32(q);
    a.q_step_b = batch ? q->stride[0] : 0;
    a.q_step_t = q->stride[dim];
    a.q_step_h = q->stride[dim + 1];
    a.scale = scale < 0 ? (float)(1 / sqrt((double)a.key_width)) : (float)scale;
    for (lua_Unsigned i = 0; i < count; i++)
        link_source(L, &source[i], place[i], &a, batch);
    if (a.value_width < 1) return luaL_error(L, "attend: values have no channels");
    if (sink_at) {
        kvl_tensor *sink = kvl_named_tensor(L, sink_at, "attend: sink");
        if (sink->ndim != 1 || sink->shape[0] != a.heads)
            fail_shape(L, "attend: sink", sink, "{heads}");
        a.sink = kvl_tensor_f32(sink);
    }
    int64_t shape[4] = {0};
    memcpy(shape, q->shape, (size_t)q->ndim * sizeof *shape);
    shape[dim + 2] = a.value_width;
    kvl_status status = kvl_tensor_new(out, KVL_FLOAT32, q->ndim, shape, &err);
    if (status == KVL_OK && want_lse)
        status = kvl_tensor_new(lse, KVL_FLOAT32, q->ndim - 1, shape, &err);
    if (status == KVL_OK && kvl_tensor_numel(*out) > 0) {
        a.out = kvl_tensor_f32(*out);
        a.out_step_h = a.value_width;
        a.out_step_t = a.heads * a.out_step_h;
        a.out_step_b = a.queries * a.out_step_t;
        a.lse = want_lse ? kvl_tensor_f32(*lse) : NULL;
        status = kvl_attend(&a, &err);
    }
    if (status == KVL_OK && want_lse) lua_rotate(L, -2, 1); /* out, lse */
    return kvl_done(L, status, &err, want_lse ? 2 : 1);
}

/* index(want, {q =, w =, key =, pos0 =, ratio =, pool =, k =, block =, blocks =}): want is
 * "scores", "select" or "pool". */
static int l_index(lua_State *L) {
    static const char *const wants[] = {"scores", "select", "pool", NULL};
    kvl_error err;
    int want = luaL_checkoption(L, 1, NULL, wants);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 2);
    kvl_index_args a = {0};
    kvl_index_out o = {0};
    a.q_pos0 = kvl_key_integer(L, 2, "pos0", 0, 0, FAR);
    a.ratio = kvl_key_integer(L, 2, "ratio", 1, 1, FAR);
    if (want == 1) o.k = kvl_key_integer(L, 2, "k", -1, 0, INT32_MAX);
    if (want == 2) {
        o.block = kvl_key_integer(L, 2, "block", -1, 1, FAR);
        o.blocks = kvl_key_integer(L, 2, "blocks", -1, 1, FAR);
    }
    int q_at = rows_field(L, 2, "q", "index: q", false),
        w_at = rows_field(L, 2, "w", "index: w", false);
    int key_at = rows_field(L, 2, "key", "index: key", false), pool_at = kvl_key(L, 2, "pool");
    if (!q_at || !w_at || !key_at) return luaL_error(L, "index: q, w and key are needed");
    if (lua_isnil(L, pool_at))
        pool_at = 0;
    else
        kvl_to_ids(L, pool_at, "index: pool");
    kvl_tensor **out = kvl_push_tensor(L);

    kvl_tensor *q = kvl_named_tensor(L, q_at, "index: q"),
               *w = kvl_named_tensor(L, w_at, "index: w");
    kvl_tensor *key = kvl_named_tensor(L, key_at, "index: key");
    bool batch = q->ndim == 4;
    int dim = batch ? 1 : 0;
    if (q->ndim != 3 && q->ndim != 4)
        fail_shape(L, "index: q", q, "{[batch,] queries, heads, width}");
    a.batch = batch ? q->shape[0] : 1;
    a.queries = q->shape[dim];
    a.heads = q->shape[dim + 1];
    a.width = q->shape[dim + 2];
    if (a.heads < 1 || a.width < 1)
        fail_shape(L, "index: q", q, "at least one head and one channel");
    if (w->ndim != q->ndim - 1 ||
        memcmp(w->shape, q->shape, (size_t)w->ndim * sizeof *w->shape) != 0)
        fail_shape(L, "index: w", w, "{[batch,] queries, heads} of q");
    if (key->ndim != q->ndim - 1 || key->shape[dim + 1] != a.width ||
        (batch && key->shape[0] != a.batch))
        fail_shape(L, "index: key", key, "{[batch,] entries, width of q}");
    a.q = kvl_tensor_f32(q);
    a.q_step_b = batch ? q->stride[0] : 0;
    a.q_step_t = q->stride[dim];
    a.q_step_h = q->stride[dim + 1];
    a.w = kvl_tensor_f32(w);
    a.w_step_b = batch ? w->stride[0] : 0;
    a.w_step_t = w->stride[dim];
    a.key = rows_of(key, batch, false);
    a.rows = key->shape[dim];
    if (pool_at) {
        kvl_tensor *pool = kvl_named_tensor(L, pool_at, "index: pool");
        if (pool->ndim != q->ndim - 1 || pool->shape[dim] != a.queries ||
            (batch && pool->shape[0] != a.batch))
            fail_shape(L, "index: pool", pool, "{[batch,] queries, candidates}");
        a.pool = kvl_tensor_i32(pool);
        a.pool_size = pool->shape[dim + 1];
    }
    int64_t shape[3] = {0};
    memcpy(shape, q->shape, (size_t)(q->ndim - 2) * sizeof *shape);
    shape[dim + 1] = want == 0 ? a.rows : want == 1 ? o.k : o.block * o.blocks;
    kvl_status status = kvl_tensor_new(out, want == 0 ? KVL_FLOAT32 : KVL_INT32, q->ndim - 1, shape,
                                       &err);
    if (status == KVL_OK && kvl_tensor_numel(*out) > 0) {
        if (want == 0) o.scores = kvl_tensor_f32(*out);
        if (want == 1) o.top = kvl_tensor_i32(*out);
        if (want == 2) o.pool = kvl_tensor_i32(*out);
        status = kvl_index(&o, &a, &err);
    }
    return kvl_done(L, status, &err, 1);
}

static const luaL_Reg functions[] = {{"attend", l_attend}, {"index", l_index}, {NULL, NULL}};

void kvl_open_attend(lua_State *L) {
    kvl_open_part(L, "attend", functions);
}
