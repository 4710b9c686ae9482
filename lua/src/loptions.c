/* loptions.c - arguments that come in tables of options, and tensors brought into the form that a
 * kernel reads. Unknown keys are rejected in Lua (lua/kvlab/options.lua); here types and ranges are
 * checked. */
#include "lkvl.h"

kvl_tensor *kvl_named_tensor(lua_State *L, int arg, const char *what) {
    kvl_tensor **slot = luaL_testudata(L, arg, KVL_TENSOR);
    if (!slot) luaL_error(L, "%s is a %s, expected a Tensor", what, luaL_typename(L, arg));
    if (!*slot) luaL_error(L, "%s: the tensor was freed", what);
    return *slot;
}

/* Channels side by side, and no element repeated: what the kernels can address. */
static bool usable(const kvl_tensor *t) {
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] > 1 && (t->stride[i] < 1 || (i == t->ndim - 1 && t->stride[i] != 1)))
            return false;
    return true;
}

void kvl_to_rows(lua_State *L, int arg, const char *what, bool packed) {
    kvl_error err;
    kvl_tensor *t = kvl_named_tensor(L, arg, what), *typed;
    if (t->ndim == 0) luaL_error(L, "%s has no dimensions", what);
    if (t->dtype != KVL_FLOAT32 || !(packed ? kvl_tensor_is_contiguous(t) : usable(t))) {
        kvl_tensor **slot = kvl_push_tensor(L);
        t = kvl_named_tensor(L, arg, what);
        kvl_status status = kvl_tensor_cast(&typed, t, KVL_FLOAT32, &err);
        if (status == KVL_OK) {
            status = kvl_tensor_contiguous(slot, typed, &err);
            kvl_tensor_free(typed);
        }
        kvl_done(L, status, &err, 1);
        lua_replace(L, arg);
        t = kvl_named_tensor(L, arg, what);
    }
    for (int i = t->ndim - 3; i < t->ndim; i++) /* BLAS addresses with int */
        if (i >= 0 && t->shape[i] > 1 && t->stride[i] > INT32_MAX)
            luaL_error(L, "%s: rows of more than 2^31 elements", what);
}

void kvl_to_ids(lua_State *L, int arg, const char *what) {
    kvl_error err;
    kvl_tensor *t = kvl_named_tensor(L, arg, what);
    if (t->dtype != KVL_INT32) luaL_error(L, "%s is float32, expected int32 ids", what);
    if (kvl_tensor_is_contiguous(t)) return;
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_done(L, kvl_tensor_contiguous(slot, kvl_named_tensor(L, arg, what), &err), &err, 1);
    lua_replace(L, arg);
}

int kvl_key(lua_State *L, int table, const char *name) {
    luaL_checkstack(L, 4, NULL);
    lua_pushstring(L, name);
    lua_rawget(L, table);
    return lua_gettop(L);
}

lua_Integer kvl_key_integer(lua_State *L, int table, const char *name, lua_Integer missing,
                            lua_Integer low, lua_Integer high) {
    int at = kvl_key(L, table, name), ok;
    lua_Integer value = lua_tointegerx(L, at, &ok);
    if (lua_isnil(L, at))
        value = missing;
    else if (!ok || lua_type(L, at) != LUA_TNUMBER)
        luaL_error(L, "%s is %s, expected an integer", name, luaL_tolstring(L, at, NULL));
    if (value < low || value > high) {
        if (lua_isnil(L, at)) luaL_error(L, "%s is missing", name);
        luaL_error(L, "%s is %I, expected %I .. %I", name, (LUAI_UACINT)value, (LUAI_UACINT)low,
                   (LUAI_UACINT)high);
    }
    lua_settop(L, at - 1);
    return value;
}

lua_Number kvl_key_number(lua_State *L, int table, const char *name, lua_Number missing) {
    int at = kvl_key(L, table, name);
    lua_Number value = lua_isnil(L, at) ? missing : lua_tonumber(L, at);
    if (!lua_isnil(L, at) && lua_type(L, at) != LUA_TNUMBER)
        luaL_error(L, "%s is a %s, expected a number", name, luaL_typename(L, at));
    lua_settop(L, at - 1);
    return value;
}

bool kvl_key_flag(lua_State *L, int table, const char *name) {
    int at = kvl_key(L, table, name);
    bool value = lua_toboolean(L, at);
    if (!lua_isnil(L, at) && !lua_isboolean(L, at))
        luaL_error(L, "%s is a %s, expected true or false", name, luaL_typename(L, at));
    lua_settop(L, at - 1);
    return value;
}
