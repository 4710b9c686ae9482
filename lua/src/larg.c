/* larg.c - arguments of kernels: tensors in the form that a kernel reads, numbers in option tables,
 * classes. Unknown options are rejected in Lua (lua/kvlab/kernels.lua); here types, ranges and
 * shapes are checked. */
#include "lkvl.h"

static bool has_rows(const kvl_tensor *t, bool whole) {
    int last = t->ndim - 1;
    if (whole) return kvl_tensor_is_contiguous(t);
    return last >= 0 && (t->stride[last] == 1 || t->shape[last] == 1);
}

/* Replaces the float32 tensor at `arg` by one whose last dimension has step 1 (itself,
 * or a copy). */
void kvl_need_rows(lua_State *L, int arg, bool whole) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, arg);
    if (t->dtype != KVL_FLOAT32) luaL_argerror(L, arg, "expected a float32 tensor, got int32");
    if (has_rows(t, whole)) return;
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, arg);
    if (kvl_tensor_contiguous(slot, t, &err) != KVL_OK) kvl_raise(L, &err);
    lua_replace(L, arg);
}

int kvl_shape_error(lua_State *L, int arg, const char *want) {
    char text[KVL_SHAPE_TEXT];
    kvl_tensor *t = kvl_check_tensor(L, arg);
    return luaL_argerror(
        L, arg,
        lua_pushfstring(L, "expected %s, got %s", want, kvl_shape_text(text, t->ndim, t->shape)));
}

kvl_tensor *kvl_check_dims(lua_State *L, int arg, int ndim, const char *want) {
    kvl_tensor *t = kvl_check_tensor(L, arg);
    if (t->ndim != ndim) kvl_shape_error(L, arg, want);
    return t;
}

/* Field `name` of the table at `at` as an integer >= least, or `missing`. */
int64_t kvl_int_field(lua_State *L, int at, const char *name, int64_t missing, int64_t least) {
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

/* A missing or float32 [n] vector at arg, where n is the last size of x. */
void kvl_check_vector(lua_State *L, int arg, int64_t n) {
    if (lua_isnoneornil(L, arg)) return;
    kvl_need_rows(L, arg, true);
    kvl_tensor *t = kvl_check_tensor(L, arg);
    if (t->ndim != 1 || t->shape[0] != n)
        kvl_shape_error(L, arg, lua_pushfstring(L, "{%I}", (LUAI_UACINT)n));
}

const float *kvl_vector(lua_State *L, int arg) {
    return lua_isnoneornil(L, arg) ? NULL : kvl_tensor_f32(kvl_check_tensor(L, arg));
}

void kvl_check_gradient(lua_State *L, int arg, int like) {
    if (lua_isnoneornil(L, arg)) return;
    kvl_tensor *g = kvl_check_tensor(L, arg), *t = kvl_check_tensor(L, like);
    bool same = g->ndim == t->ndim && g->dtype == KVL_FLOAT32;
    for (int d = 0; same && d < t->ndim; d++)
        same = g->shape[d] == t->shape[d];
    if (!same || !kvl_tensor_is_contiguous(g)) {
        char text[KVL_SHAPE_TEXT];
        kvl_shape_error(L, arg,
                        lua_pushfstring(L, "a float32 gradient %s without gaps",
                                        kvl_shape_text(text, t->ndim, t->shape)));
    }
}

float *kvl_gradient(lua_State *L, int arg) {
    return lua_isnoneornil(L, arg) ? NULL : kvl_tensor_f32(kvl_check_tensor(L, arg));
}

/* Pushes field `name` of the table at `at` when it is a tensor; returns its stack index or 0. */
int kvl_tensor_field(lua_State *L, int at, const char *name, kvl_dtype dtype, bool whole) {
    kvl_error err;
    if (lua_getfield(L, at, name) == LUA_TNIL) {
        lua_pop(L, 1);
        return 0;
    }
    if (!kvl_is_tensor(L, -1))
        luaL_error(L, "%s: expected a tensor, got %s", name, luaL_typename(L, -1));
    int index = lua_gettop(L);
    kvl_tensor **held = lua_touserdata(L, index);
    if (!*held) luaL_error(L, "%s: the tensor was freed", name);
    if ((*held)->dtype != dtype)
        luaL_error(L, "%s: expected a tensor of %s, got %s", name, kvl_dtype_name(dtype),
                   kvl_dtype_name((*held)->dtype));
    if (has_rows(*held, whole)) return index;
    kvl_tensor **slot = kvl_push_tensor(L);
    if (kvl_tensor_contiguous(slot, kvl_check_tensor(L, index), &err) != KVL_OK) kvl_raise(L, &err);
    lua_replace(L, index);
    return index;
}

/* Creates a metatable whose methods cannot be reached by a wrong object;
 * leaves the method table. */
void kvl_new_class(lua_State *L, const char *name, const luaL_Reg *events,
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
