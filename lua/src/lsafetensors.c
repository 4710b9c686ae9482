/* lsafetensors.c - core.safetensors: open, save, and the SafeTensors object. */
#include "lkvl.h"

#include <string.h>

#define FILE_TYPE "kvlab.SafeTensors"

static kvl_safetensors *check_file(lua_State *L) {
    kvl_safetensors **slot = luaL_checkudata(L, 1, FILE_TYPE);
    if (!*slot) luaL_argerror(L, 1, "the file was closed");
    return *slot;
}

/* The file and its entry of the name in argument 2; a number becomes a string first, as that may run
 * a finalizer, which may close the file. */
static const kvl_st_entry *check_entry(lua_State *L, const kvl_safetensors **out) {
    size_t length;
    const char *name = luaL_checklstring(L, 2, &length);
    const kvl_safetensors *file = *out = check_file(L);
    const kvl_st_entry *e = strlen(name) == length ? kvl_safetensors_find(file, name) : NULL;
    if (!e) luaL_argerror(L, 2, lua_pushfstring(L, "the file has no tensor '%s'", name));
    return e;
}

/* open(path) */
static int l_open(lua_State *L) {
    kvl_error err;
    size_t length;
    const char *path = luaL_checklstring(L, 1, &length);
    luaL_argcheck(L, strlen(path) == length, 1, "a path has no character 0");
    kvl_safetensors **slot = lua_newuserdatauv(L, sizeof *slot, 0);
    *slot = NULL;
    luaL_setmetatable(L, FILE_TYPE);
    if (kvl_safetensors_open(slot, path, &err) != KVL_OK) return kvl_raise(L, &err);
    return 1;
}

static int f_close(lua_State *L) {
    kvl_safetensors **slot = luaL_checkudata(L, 1, FILE_TYPE);
    kvl_safetensors_free(*slot);
    *slot = NULL;
    return 0;
}

static int f_len(lua_State *L) {
    lua_pushinteger(L, kvl_safetensors_count(check_file(L)));
    return 1;
}

static int f_tostring(lua_State *L) {
    kvl_safetensors **slot = luaL_checkudata(L, 1, FILE_TYPE);
    if (*slot)
        lua_pushfstring(L, "SafeTensors (%I tensors)", (LUAI_UACINT)kvl_safetensors_count(*slot));
    else
        lua_pushliteral(L, "SafeTensors (closed)");
    return 1;
}

/* The tables below grow while Lua may run a finalizer that closes the file: it is looked up again
 * for every entry. */

/* file:names() -> list, sorted by the place of the data */
static int f_names(lua_State *L) {
    int64_t count = kvl_safetensors_count(check_file(L));
    lua_createtable(L, (int)count, 0);
    for (int64_t i = 0; i < count; i++) {
        lua_pushstring(L, kvl_safetensors_at(check_file(L), i)->name);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

static int f_has(lua_State *L) {
    size_t length;
    const char *name = luaL_checklstring(L, 2, &length);
    const kvl_safetensors *file = check_file(L);
    lua_pushboolean(L, strlen(name) == length && kvl_safetensors_find(file, name) != NULL);
    return 1;
}

/* file:info(name) -> dtype, shape */
static int f_info(lua_State *L) {
    const kvl_safetensors *file;
    kvl_st_entry e = *check_entry(L, &file); /* a copy: its name is not used */
    lua_pushstring(L, kvl_st_dtype_name(e.dtype));
    lua_createtable(L, e.ndim, 0);
    for (int i = 0; i < e.ndim; i++) {
        lua_pushinteger(L, e.shape[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 2;
}

static int f_metadata(lua_State *L) {
    const char *key, *value;
    check_file(L);
    lua_newtable(L);
    for (int64_t i = 0; kvl_safetensors_metadata(check_file(L), i, &key, &value); i++) {
        lua_pushstring(L, key);
        if (!kvl_safetensors_metadata(check_file(L), i, &key, &value)) break;
        lua_pushstring(L, value);
        lua_rawset(L, -3);
    }
    return 1;
}

/* file:load(name) -> Tensor */
static int f_load(lua_State *L) {
    kvl_error err;
    luaL_checkstring(L, 2);
    lua_settop(L, 2);
    kvl_tensor **slot = kvl_push_tensor(L);
    const kvl_safetensors *file;
    const kvl_st_entry *entry = check_entry(L, &file);
    return kvl_done(L, kvl_safetensors_load(slot, file, entry, &err), &err, 1);
}

/* file:compare(name, tensor) -> relative error, largest difference */
static int f_compare(lua_State *L) {
    kvl_error err;
    double relative, largest;
    const kvl_safetensors *file;
    const kvl_st_entry *entry = check_entry(L, &file);
    const kvl_tensor *t = kvl_check_tensor(L, 3);
    if (kvl_safetensors_compare(&relative, &largest, file, entry, t, &err) != KVL_OK)
        return kvl_raise(L, &err);
    lua_pushnumber(L, relative);
    lua_pushnumber(L, largest);
    return 2;
}

/* --- saving ---------------------------------------------------------------------------------- */

/* The string at the top of the stack, which stays anchored by its table. */
static const char *check_text(lua_State *L, int arg, const char *what) {
    if (lua_type(L, -1) != LUA_TSTRING || strlen(lua_tostring(L, -1)) != lua_rawlen(L, -1))
        luaL_argerror(L, arg,
                      lua_pushfstring(L, "%s: expected a string without the character 0, got %s",
                                      what, luaL_typename(L, -1)));
    return lua_tostring(L, -1);
}

static lua_Integer count_pairs(lua_State *L, int table) {
    lua_Integer n = 0;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1))
        n++;
    return n;
}

/* The value at the top of the stack: a tensor, or {tensor, 'BF16'}. */
static void read_item(lua_State *L, kvl_st_item *item) {
    int value = lua_gettop(L);
    const char *dtype = NULL;
    if (lua_type(L, value) == LUA_TTABLE) {
        lua_rawgeti(L, value, 2);
        if (lua_type(L, -1) == LUA_TSTRING) dtype = lua_tostring(L, -1);
        if (!dtype || !kvl_st_dtype_named(&item->dtype, dtype))
            luaL_argerror(
                L, 2,
                lua_pushfstring(L, "'%s': expected {tensor, type} with a type such as 'BF16'",
                                item->name));
        lua_rawgeti(L, value, 1);
    }
    kvl_tensor **slot = luaL_testudata(L, -1, KVL_TENSOR);
    if (!slot || !*slot)
        luaL_argerror(L, 2,
                      lua_pushfstring(L, "'%s' is %s, expected a Tensor or {tensor, type}",
                                      item->name, slot ? "a freed tensor" : luaL_typename(L, -1)));
    item->tensor = *slot;
    if (!dtype) item->dtype = item->tensor->dtype == KVL_INT32 ? KVL_ST_I32 : KVL_ST_F32;
    lua_settop(L, value);
}

/* save(path, {name = tensor or {tensor, type}} [, metadata]) */
static int l_save(lua_State *L) {
    kvl_error err;
    size_t length;
    const char *path = luaL_checklstring(L, 1, &length);
    luaL_argcheck(L, strlen(path) == length && length > 0, 1, "expected a path");
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 3);
    if (lua_isnil(L, 3)) {
        lua_newtable(L);
        lua_replace(L, 3);
    }
    luaL_checktype(L, 3, LUA_TTABLE);
    lua_Integer count = count_pairs(L, 2), pairs = count_pairs(L, 3), at = 0;
    kvl_st_item *items = lua_newuserdatauv(L, (size_t)(count + 1) * sizeof *items, 0);
    const char **metadata = lua_newuserdatauv(L, (size_t)(2 * pairs + 1) * sizeof *metadata, 0);
    /* from here on nothing allocates, so no finalizer runs and no table changes */
    for (lua_pushnil(L); lua_next(L, 3); lua_pop(L, 1), at++) {
        if (at >= pairs) return luaL_argerror(L, 3, "the table changed");
        metadata[2 * at + 1] = check_text(L, 3, "metadata");
        lua_pushvalue(L, -2);
        metadata[2 * at] = check_text(L, 3, "key of the metadata");
        lua_pop(L, 1);
    }
    pairs = at;
    at = 0;
    for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1), at++) {
        if (at >= count) return luaL_argerror(L, 2, "the table changed");
        lua_pushvalue(L, -2);
        items[at].name = check_text(L, 2, "name of a tensor");
        lua_pop(L, 1);
        read_item(L, &items[at]);
    }
    if (kvl_safetensors_write(path, items, at, metadata, pairs, &err) != KVL_OK)
        return kvl_raise(L, &err);
    return 0;
}

static const luaL_Reg methods[] = {
    {"names", f_names}, {"has", f_has},         {"info", f_info},         {"load", f_load},
    {"close", f_close}, {"compare", f_compare}, {"metadata", f_metadata}, {NULL, NULL},
};

static const luaL_Reg meta[] = {
    {"__gc", f_close},          {"__close", f_close}, {"__len", f_len},
    {"__tostring", f_tostring}, {NULL, NULL},
};

static const luaL_Reg functions[] = {{"open", l_open}, {"save", l_save}, {NULL, NULL}};

void kvl_open_safetensors(lua_State *L) {
    luaL_newmetatable(L, FILE_TYPE);
    luaL_setfuncs(L, meta, 0);
    lua_pushliteral(L, FILE_TYPE);
    lua_setfield(L, -2, "__metatable");
    luaL_newlib(L, methods);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "__index");
    lua_remove(L, -2);
    lua_insert(L, -2);
    kvl_open_part(L, "safetensors", functions);
    lua_getfield(L, -1, "safetensors");
    lua_pushvalue(L, -3);
    lua_setfield(L, -2, "methods");
    lua_pop(L, 1);
    lua_remove(L, -2);
}
