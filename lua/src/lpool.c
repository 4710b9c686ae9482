/* lpool.c - core.pool: the objects Pool, Table and Counters, and readers for whoever computes on
 * caches.
 *
 * A Pool object holds the pool of the core, a Table object its table; either may be freed first,
 * because tables keep their pool alive in the core. Entries, bytes and pages count from 1 in
 * arguments and results, ids in tensors from 0 as everywhere. The rules for safety are in lkvl.h.
 */
#include "lkvl.h"

#include <string.h>

#define POOL     "kvlab.Pool"
#define TABLE    "kvlab.Table"
#define COUNTERS "kvlab.Counters"

static const char *const kinds[KVL_READ_KINDS + 1] = {"selected", "window", "index", NULL};

/* --- the objects ------------------------------------------------------------------------------ */

static kvl_pool **push_pool(lua_State *L) {
    kvl_pool **slot = lua_newuserdatauv(L, sizeof *slot, 0);
    *slot = NULL;
    luaL_setmetatable(L, POOL);
    return slot;
}

static kvl_pool *check_pool(lua_State *L, int arg) {
    kvl_pool **slot = luaL_checkudata(L, arg, POOL);
    if (!*slot) luaL_argerror(L, arg, "the pool was freed");
    return *slot;
}

static kvl_table **push_table(lua_State *L) {
    kvl_table **slot = lua_newuserdatauv(L, sizeof *slot, 0);
    *slot = NULL;
    luaL_setmetatable(L, TABLE);
    return slot;
}

static kvl_table *check_table(lua_State *L, int arg) {
    kvl_table **slot = luaL_checkudata(L, arg, TABLE);
    if (!*slot) luaL_argerror(L, arg, "the table was freed");
    return *slot;
}

static void set_integer(lua_State *L, const char *key, int64_t value) {
    lua_pushinteger(L, value);
    lua_setfield(L, -2, key);
}

/* --- Pool ------------------------------------------------------------------------------------- */

/* new(plan [, max_pages]) */
static int pool_new(lua_State *L) {
    kvl_error err;
    const kvl_record *rec = kvl_check_plan(L, 1);
    lua_Integer max_pages = luaL_optinteger(L, 2, 0);
    luaL_argcheck(L, lua_isnoneornil(L, 2) || max_pages > 0, 2, "a pool has at least 1 page");
    kvl_pool **slot = push_pool(L);
    if (kvl_pool_new(slot, rec, max_pages, &err)) return kvl_raise(L, &err);
    return 1;
}

/* pool:table([ring [, window]]) */
static int pool_table(lua_State *L) {
    kvl_error err;
    lua_Integer ring = luaL_optinteger(L, 2, 0), window = luaL_optinteger(L, 3, 0);
    luaL_argcheck(L, lua_isnoneornil(L, 2) || ring > 0, 2, "a ring has at least 1 slot");
    luaL_argcheck(L, lua_isnoneornil(L, 3) || window > 0, 3, "a window has at least 1 entry");
    kvl_table **slot = push_table(L);
    if (kvl_table_new(slot, check_pool(L, 1), ring, window, &err)) return kvl_raise(L, &err);
    return 1;
}

static int pool_stats(lua_State *L) {
    lua_createtable(L, 0, 9);
    const kvl_pool *pool = check_pool(L, 1);
    const kvl_record_info info = *kvl_record_about(kvl_pool_record(pool));
    kvl_pool_stats s = kvl_pool_about(pool);
    if (s.max_pages) set_integer(L, "max_pages", s.max_pages);
    set_integer(L, "made", s.made);
    set_integer(L, "used", s.used);
    set_integer(L, "free", s.free);
    set_integer(L, "shared", s.shared);
    set_integer(L, "page_bytes", s.page_bytes);
    set_integer(L, "page_entries", info.page_entries);
    set_integer(L, "entry_bytes", info.data_bytes + info.scale_bytes);
    set_integer(L, "allocated_bytes", s.allocated_bytes);
    return 1;
}

/* pool:references(page) -> the tables that hold it */
static int pool_references(lua_State *L) {
    const kvl_pool *pool = check_pool(L, 1);
    lua_Integer page = luaL_checkinteger(L, 2), made = kvl_pool_about(pool).made;
    if (page < 1 || page > made)
        return luaL_error(L, "page %I is none of the %I pages made so far", (LUAI_UACINT)page,
                          (LUAI_UACINT)made);
    lua_pushinteger(L, kvl_pool_references(pool, page - 1));
    return 1;
}

static int pool_free(lua_State *L) {
    kvl_pool **slot = luaL_checkudata(L, 1, POOL);
    kvl_pool_free(*slot);
    *slot = NULL;
    return 0;
}

static int pool_tostring(lua_State *L) {
    kvl_pool **slot = luaL_checkudata(L, 1, POOL);
    if (!*slot) {
        lua_pushliteral(L, "kvlab.Pool (freed)");
        return 1;
    }
    kvl_pool_stats s = kvl_pool_about(*slot);
    lua_pushfstring(L, "kvlab.Pool: %I pages of %I bytes used, %I shared", (LUAI_UACINT)s.used,
                    (LUAI_UACINT)s.page_bytes, (LUAI_UACINT)s.shared);
    return 1;
}

/* --- Table: writing --------------------------------------------------------------------------- */

/* A pool that is out of pages may have some in tables that nobody reaches any more. */
static bool collect_once(lua_State *L, kvl_status status, bool *done) {
    if (status != KVL_EFULL || *done) return false;
    *done = true;
    lua_gc(L, LUA_GCCOLLECT);
    return true;
}

/* Ends a function that may have made pages: `made` is how many there were before. */
static int done_growing(lua_State *L, kvl_table *t, int64_t made, int results) {
    kvl_pool_stats s = kvl_pool_about(kvl_table_pool(t));
    kvl_tell_collector(L, (size_t)((s.made - made) * s.page_bytes));
    return results;
}

static int64_t pages_made(const kvl_table *t) {
    return kvl_pool_about(kvl_table_pool(t)).made;
}

/* The rows of argument 2, float32 [n, channels] or [1, n, channels]. */
static const kvl_tensor *check_rows(lua_State *L, const kvl_table *t) {
    char shape[KVL_SHAPE_TEXT];
    const kvl_tensor *rows = kvl_check_tensor(L, 2);
    bool flat = rows->ndim == 2, batch = rows->ndim == 3 && rows->shape[0] == 1;
    if (rows->dtype != KVL_FLOAT32 || !(flat || batch) ||
        rows->shape[rows->ndim - 1] != kvl_table_channels(t))
        luaL_error(L, "append: rows are %s %s, expected float32 {n, %I} or {1, n, %I}",
                   kvl_dtype_name(rows->dtype), kvl_shape_text(shape, rows->ndim, rows->shape),
                   (LUAI_UACINT)kvl_table_channels(t), (LUAI_UACINT)kvl_table_channels(t));
    return rows;
}

static kvl_status append(kvl_table *t, const kvl_tensor *rows, kvl_error *err) {
    int last = rows->ndim - 1;
    if (rows->stride[last] == 1)
        return kvl_table_append(t, kvl_tensor_f32(rows), rows->stride[last - 1],
                                rows->shape[last - 1], err);
    kvl_tensor *copy;
    kvl_status status = kvl_tensor_contiguous(&copy, rows, err);
    if (status) return status;
    status = kvl_table_append(t, kvl_tensor_f32(copy), rows->shape[last], rows->shape[last - 1],
                              err);
    kvl_tensor_free(copy);
    return status;
}

/* t:append(rows) -> t */
static int table_append(lua_State *L) {
    kvl_error err;
    kvl_status status;
    kvl_table *t;
    int64_t made;
    bool collected = false;
    do {
        t = check_table(L, 1);
        made = pages_made(t);
        status = append(t, check_rows(L, t), &err);
    } while (collect_once(L, status, &collected));
    if (status) return kvl_raise(L, &err);
    lua_settop(L, 1);
    return done_growing(L, t, made, 1);
}

/* t:reserve(more) -> t */
static int table_reserve(lua_State *L) {
    kvl_error err;
    kvl_status status;
    kvl_table *t;
    int64_t made, more = luaL_checkinteger(L, 2);
    bool collected = false;
    do {
        t = check_table(L, 1);
        made = pages_made(t);
        status = kvl_table_reserve(t, more, &err);
    } while (collect_once(L, status, &collected));
    if (status) return kvl_raise(L, &err);
    lua_settop(L, 1);
    return done_growing(L, t, made, 1);
}

static int table_fork(lua_State *L) {
    kvl_error err;
    kvl_table **slot = push_table(L);
    if (kvl_table_fork(slot, check_table(L, 1), &err)) return kvl_raise(L, &err);
    return 1;
}

/* t:share(n): the first n entries */
static int table_share(lua_State *L) {
    kvl_error err;
    kvl_status status;
    int64_t made, n = luaL_checkinteger(L, 2);
    bool collected = false;
    kvl_table **slot = push_table(L);
    do {
        kvl_table *t = check_table(L, 1);
        made = pages_made(t);
        status = kvl_table_share(slot, t, n, &err);
    } while (collect_once(L, status, &collected));
    if (status) return kvl_raise(L, &err);
    return done_growing(L, *slot, made, 1);
}

/* t:truncate(n) -> t */
static int table_truncate(lua_State *L) {
    kvl_error err;
    int64_t n = luaL_checkinteger(L, 2);
    if (kvl_table_truncate(check_table(L, 1), n, &err)) return kvl_raise(L, &err);
    lua_settop(L, 1);
    return 1;
}

/* --- Table: reading --------------------------------------------------------------------------- */

static int64_t check_entry(lua_State *L, int arg, const kvl_table *t) {
    lua_Integer entry = luaL_checkinteger(L, arg);
    if (entry < 1 || kvl_table_row(t, entry - 1) < 0)
        luaL_error(L, "entry %I is not held: the table has entries %I to %I", (LUAI_UACINT)entry,
                   (LUAI_UACINT)(kvl_table_first(t) + 1), (LUAI_UACINT)kvl_table_count(t));
    return entry - 1;
}

/* The entries of arguments arg and arg + 1, first and last;
 * none of both means all that are held. */
static void check_range(lua_State *L, int arg, const kvl_table *t, int64_t *first, int64_t *count) {
    int64_t oldest = kvl_table_first(t) + 1, newest = kvl_table_count(t);
    lua_Integer from = luaL_optinteger(L, arg, oldest), to = luaL_optinteger(L, arg + 1, newest);
    if (from < oldest || from > newest + 1 || to < from - 1 || to > newest)
        luaL_error(L, "entries %I to %I: the table has entries %I to %I", (LUAI_UACINT)from,
                   (LUAI_UACINT)to, (LUAI_UACINT)oldest, (LUAI_UACINT)newest);
    *first = from - 1;
    *count = to - from + 1;
}

/* t:rows([first, last]) -> tensor [n, channels], not counted */
static int table_rows(lua_State *L) {
    kvl_error err;
    int64_t first, count;
    lua_settop(L, 3);
    kvl_tensor **out = kvl_push_tensor(L);
    const kvl_table *t = check_table(L, 1);
    check_range(L, 2, t, &first, &count);
    int64_t shape[2] = {count, kvl_table_channels(t)};
    kvl_status status = kvl_tensor_new(out, KVL_FLOAT32, 2, shape, &err);
    if (!status) status = kvl_table_peek(t, kvl_tensor_f32(*out), shape[1], first, count, &err);
    return kvl_done(L, status, &err, 1);
}

/* Reads the entries ids[0..count), or first and on, to a new tensor. A reader knows entries of
 * rings by their slots. */
static kvl_status read_entries(kvl_tensor **out, kvl_reader *reader, const int32_t *ids,
                               int64_t first, int64_t count, kvl_error *err) {
    const kvl_table *t = reader->tables[0];
    int64_t shape[2] = {count, kvl_table_channels(t)};
    int32_t *slots = NULL;
    kvl_status status = kvl_tensor_new(out, KVL_FLOAT32, 2, shape, err);
    if (status) return status;
    if (kvl_table_ring(t) && count > 0) {
        slots = kvl_alloc((size_t)count * sizeof *slots);
        if (!slots) return kvl_fail(err, KVL_ENOMEM, "no memory for %lld ids", (long long)count);
        for (int64_t i = 0; i < count; i++)
            slots[i] = (int32_t)kvl_table_row(t, ids ? ids[i] : first + i);
        ids = slots;
    }
    status = kvl_table_read(reader, 0, ids, first, count, kvl_tensor_f32(*out), err);
    kvl_free(slots);
    return status;
}

/* t:read(ids, kind, counters) or t:read(first, last, kind, counters) -> tensor [n, channels] */
static int table_read(lua_State *L) {
    kvl_error err;
    bool by_ids = kvl_is_tensor(L, 2);
    int after = by_ids ? 3 : 4;
    int64_t first = 0, count;
    kvl_read_kind kind = (kvl_read_kind)luaL_checkoption(L, after, NULL, kinds);
    kvl_counters *counters = luaL_checkudata(L, after + 1, COUNTERS);
    kvl_tensor **out = kvl_push_tensor(L), *ids = NULL;
    const kvl_table *t = check_table(L, 1);
    kvl_reader reader = {&t, 1, kind, counters};
    if (!by_ids) {
        check_range(L, 2, t, &first, &count);
        return kvl_done(L, read_entries(out, &reader, NULL, first, count, &err), &err, 1);
    }
    const kvl_tensor *given = kvl_check_tensor(L, 2);
    if (given->dtype != KVL_INT32 || given->ndim != 1)
        return luaL_error(L, "read: ids must be an int32 tensor of one dimension, counted from 0");
    kvl_status status = kvl_tensor_contiguous(&ids, given, &err);
    if (!status) {
        status = read_entries(out, &reader, kvl_tensor_i32(ids), 0, given->shape[0], &err);
        kvl_tensor_free(ids);
    }
    return kvl_done(L, status, &err, 1);
}

/* t:bytes(entry) -> string */
static int table_bytes(lua_State *L) {
    kvl_error err;
    const kvl_record_info *info = kvl_record_about(
        kvl_pool_record(kvl_table_pool(check_table(L, 1))));
    size_t size = (size_t)(info->data_bytes + info->scale_bytes);
    uint8_t *bytes = lua_newuserdatauv(L, size, 0);
    const kvl_table *t = check_table(L, 1);
    if (kvl_table_bytes(t, bytes, check_entry(L, 2, t), &err)) return kvl_raise(L, &err);
    lua_pushlstring(L, (const char *)bytes, size);
    return 1;
}

/* t:poke(entry, byte, flip) */
static int table_poke(lua_State *L) {
    kvl_error err;
    kvl_table *t = check_table(L, 1);
    int64_t entry = check_entry(L, 2, t);
    lua_Integer byte = luaL_checkinteger(L, 3), flip = luaL_checkinteger(L, 4);
    const kvl_record_info *info = kvl_record_about(kvl_pool_record(kvl_table_pool(t)));
    if (byte < 1 || byte > info->data_bytes + info->scale_bytes)
        return luaL_error(L, "byte %I: an entry has the bytes 1 to %I", (LUAI_UACINT)byte,
                          (LUAI_UACINT)(info->data_bytes + info->scale_bytes));
    luaL_argcheck(L, flip >= 0 && flip <= 255, 4, "expected the bits to flip, 0 to 255");
    if (kvl_table_poke(t, entry, byte - 1, (uint8_t)flip, &err)) return kvl_raise(L, &err);
    return 0;
}

/* --- Table: facts ----------------------------------------------------------------------------- */

static int table_count(lua_State *L) {
    lua_pushinteger(L, kvl_table_count(check_table(L, 1)));
    return 1;
}

static int table_first(lua_State *L) {
    lua_pushinteger(L, kvl_table_first(check_table(L, 1)) + 1);
    return 1;
}

static int table_pages(lua_State *L) {
    int64_t n;
    lua_newtable(L);
    const kvl_table *t = check_table(L, 1);
    kvl_table_pages(t, &n);
    for (int64_t i = 0; i < n; i++) {
        lua_pushinteger(L, (lua_Integer)kvl_table_pages(t, &n)[i] + 1);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

static int table_stats(lua_State *L) {
    lua_createtable(L, 0, 10);
    const kvl_table *t = check_table(L, 1);
    kvl_table_stats s = kvl_table_about(t);
    int64_t pages, ring = kvl_table_ring(t), window = kvl_table_window(t);
    kvl_table_pages(t, &pages);
    if (ring) {
        set_integer(L, "ring", ring);
        set_integer(L, "window", window);
    }
    set_integer(L, "entries", s.entries);
    set_integer(L, "pages", pages);
    set_integer(L, "stored_bytes", s.stored);
    set_integer(L, "rollback_bytes", s.rollback);
    set_integer(L, "unused_bytes", s.unused);
    set_integer(L, "alignment_bytes", s.alignment);
    set_integer(L, "allocated_bytes", s.allocated);
    return 1;
}

static int table_free(lua_State *L) {
    kvl_table **slot = luaL_checkudata(L, 1, TABLE);
    kvl_table_free(*slot);
    *slot = NULL;
    return 0;
}

static int table_tostring(lua_State *L) {
    kvl_table **slot = luaL_checkudata(L, 1, TABLE);
    if (!*slot) {
        lua_pushliteral(L, "kvlab.Table (freed)");
        return 1;
    }
    kvl_table_stats s = kvl_table_about(*slot);
    int64_t pages, ring = kvl_table_ring(*slot);
    kvl_table_pages(*slot, &pages);
    lua_pushfstring(L, "kvlab.Table: %I entries in %I pages", (LUAI_UACINT)s.entries,
                    (LUAI_UACINT)pages);
    if (ring) lua_pushfstring(L, ", a ring of %I slots", (LUAI_UACINT)ring);
    if (ring) lua_concat(L, 2);
    return 1;
}

/* --- Counters --------------------------------------------------------------------------------- */

static int counters_new(lua_State *L) {
    kvl_counters *c = lua_newuserdatauv(L, sizeof *c, 0);
    memset(c, 0, sizeof *c);
    luaL_setmetatable(L, COUNTERS);
    return 1;
}

static int counters_get(lua_State *L) {
    const kvl_counters *c = luaL_checkudata(L, 1, COUNTERS);
    lua_createtable(L, 0, 2 * KVL_READ_KINDS);
    for (int i = 0; i < KVL_READ_KINDS; i++) {
        lua_pushfstring(L, "%s_rows", kinds[i]);
        lua_pushinteger(L, c->rows[i]);
        lua_rawset(L, -3);
        lua_pushfstring(L, "%s_bytes", kinds[i]);
        lua_pushinteger(L, c->bytes[i]);
        lua_rawset(L, -3);
    }
    return 1;
}

static int counters_reset(lua_State *L) {
    kvl_counters *c = luaL_checkudata(L, 1, COUNTERS);
    memset(c, 0, sizeof *c);
    return 0;
}

static int counters_tostring(lua_State *L) {
    const kvl_counters *c = luaL_checkudata(L, 1, COUNTERS);
    lua_pushfstring(L, "kvlab.Counters: bytes read: %I selected, %I window, %I index",
                    (LUAI_UACINT)c->bytes[KVL_READ_SELECTED],
                    (LUAI_UACINT)c->bytes[KVL_READ_WINDOW], (LUAI_UACINT)c->bytes[KVL_READ_INDEX]);
    return 1;
}

/* --- readers for other parts of the binding --------------------------------------------------- */

enum { MAX_BATCH = 1 << 20 };

/* The block has user values: 1 the list of tables, 2 the counters. */
void kvl_push_reader(lua_State *L, int source) {
    luaL_checkstack(L, 8, NULL);
    source = lua_absindex(L, source);
    lua_newtable(L);
    int list = lua_gettop(L);
    lua_Integer batch = 1;
    if (lua_getfield(L, source, "table") == LUA_TTABLE) {
        batch = (lua_Integer)lua_rawlen(L, -1);
        if (batch < 1 || batch > MAX_BATCH)
            luaL_error(L, "table: a list of %I, expected one Table for each batch element",
                       (LUAI_UACINT)batch);
        for (lua_Integer i = 1; i <= batch; i++) {
            lua_rawgeti(L, -1, i);
            lua_rawseti(L, list, i);
        }
        lua_pop(L, 1);
    } else {
        lua_rawseti(L, list, 1);
    }
    for (lua_Integer i = 1; i <= batch; i++, lua_pop(L, 1)) {
        lua_rawgeti(L, list, i);
        if (!luaL_testudata(L, -1, TABLE))
            luaL_error(L, "table: %s, expected a Table of a pool, or a list of them",
                       luaL_typename(L, -1));
    }
    lua_getfield(L, source, "counters");
    if (!luaL_testudata(L, -1, COUNTERS))
        luaL_error(L, "counters: %s, expected a Counters object (kv.counters())",
                   luaL_typename(L, -1));
    lua_getfield(L, source, "kind");
    const char *name = lua_tostring(L, -1);
    int kind = 0;
    while (kinds[kind] && !(name && strcmp(name, kinds[kind]) == 0))
        kind++;
    if (!kinds[kind])
        luaL_error(L, "kind: %s, expected 'selected', 'window' or 'index'",
                   name ? name : luaL_typename(L, -1));
    lua_pop(L, 1);

    size_t pointers = (size_t)batch * sizeof(kvl_table *);
    kvl_reader *reader = lua_newuserdatauv(L, sizeof *reader + pointers, 2);
    *reader = (kvl_reader){(const kvl_table *const *)(reader + 1), batch, (kvl_read_kind)kind,
                           NULL};
    lua_pushvalue(L, list);
    lua_setiuservalue(L, -2, 1);
    lua_pushvalue(L, -2);
    lua_setiuservalue(L, -2, 2);
    lua_replace(L, list); /* the block takes the place of the list; the counters go */
    lua_settop(L, list);
}

kvl_reader *kvl_fill_reader(lua_State *L, int block) {
    block = lua_absindex(L, block);
    kvl_reader *reader = lua_touserdata(L, block);
    const kvl_table **tables = (const kvl_table **)(reader + 1);
    lua_getiuservalue(L, block, 2);
    reader->counters = lua_touserdata(L, -1);
    lua_getiuservalue(L, block, 1);
    for (int64_t i = 0; i < reader->batch; i++) {
        lua_rawgeti(L, -1, i + 1);
        kvl_table **slot = lua_touserdata(L, -1);
        lua_pop(L, 1);
        if (!*slot) luaL_error(L, "table: it was freed");
        tables[i] = *slot;
        if (kvl_table_channels(tables[i]) != kvl_table_channels(tables[0]))
            luaL_error(L, "table: element %I has entries of %I channels, the first has %I",
                       (LUAI_UACINT)(i + 1), (LUAI_UACINT)kvl_table_channels(tables[i]),
                       (LUAI_UACINT)kvl_table_channels(tables[0]));
    }
    lua_pop(L, 2);
    return reader;
}

/* --- opening ---------------------------------------------------------------------------------- */

static const luaL_Reg pool_methods[] = {
    {"table", pool_table}, {"stats", pool_stats}, {"references", pool_references},
    {"free", pool_free},   {"close", pool_free},  {NULL, NULL}};

static const luaL_Reg pool_meta[] = {
    {"__gc", pool_free}, {"__close", pool_free}, {"__tostring", pool_tostring}, {NULL, NULL}};

static const luaL_Reg table_methods[] = {{"append", table_append},     {"reserve", table_reserve},
                                         {"fork", table_fork},         {"share", table_share},
                                         {"truncate", table_truncate}, {"rows", table_rows},
                                         {"read", table_read},         {"bytes", table_bytes},
                                         {"poke", table_poke},         {"count", table_count},
                                         {"first", table_first},       {"pages", table_pages},
                                         {"stats", table_stats},       {"free", table_free},
                                         {"close", table_free},        {NULL, NULL}};

static const luaL_Reg table_meta[] = {{"__gc", table_free},
                                      {"__close", table_free},
                                      {"__tostring", table_tostring},
                                      {"__len", table_count},
                                      {NULL, NULL}};

static const luaL_Reg counters_methods[] = {
    {"get", counters_get}, {"reset", counters_reset}, {NULL, NULL}};

static const luaL_Reg counters_meta[] = {{"__tostring", counters_tostring}, {NULL, NULL}};

static const luaL_Reg functions[] = {{"new", pool_new}, {"counters", counters_new}, {NULL, NULL}};

/* Makes a metatable, and a copy of the methods as field `shown` of the table on
 * top of the stack. */
static void open_class(lua_State *L, const char *name, const luaL_Reg *meta,
                       const luaL_Reg *methods, const char *shown) {
    luaL_newmetatable(L, name);
    luaL_setfuncs(L, meta, 0);
    lua_newtable(L);
    luaL_setfuncs(L, methods, 0);
    lua_setfield(L, -2, "__index");
    lua_pushstring(L, name);
    lua_setfield(L, -2, "__metatable"); /* scripts cannot reach __gc */
    lua_pop(L, 1);
    lua_newtable(L);
    luaL_setfuncs(L, methods, 0);
    lua_setfield(L, -2, shown);
}

/* core.pool.classes is for kv.classes: what help and the test of the documentation look at. */
void kvl_open_pool(lua_State *L) {
    kvl_open_part(L, "pool", functions);
    lua_getfield(L, -1, "pool");
    lua_newtable(L);
    open_class(L, POOL, pool_meta, pool_methods, "Pool");
    open_class(L, TABLE, table_meta, table_methods, "Table");
    open_class(L, COUNTERS, counters_meta, counters_methods, "Counters");
    lua_setfield(L, -2, "classes");
    lua_pop(L, 1);
}
