/* lmake.c - core.tensor: constructors, from Lua values and otherwise. */
#include "lkvl.h"

#include <math.h>
#include <string.h>

/* Follows the first elements of the table on top of the stack. */
static int table_shape(lua_State *L, int64_t *shape) {
    int ndim = 0;
    lua_pushvalue(L, 1);
    while (lua_type(L, -1) == LUA_TTABLE) {
        if (ndim == KVL_MAX_DIMS)
            luaL_argerror(L, 1, "tables are nested more than 8 deep (or contain themselves)");
        shape[ndim] = (int64_t)lua_rawlen(L, -1);
        bool empty = shape[ndim++] == 0;
        lua_rawgeti(L, -1, 1);
        lua_remove(L, -2);
        if (empty) break;
    }
    lua_pop(L, 1);
    return ndim;
}

/* "{2, 1}" for the place of an element, 1-based. */
static const char *place_text(char text[KVL_SHAPE_TEXT], int depth, const int64_t *index) {
    int64_t from_one[KVL_MAX_DIMS] = {0};
    for (int i = 0; i < depth; i++)
        from_one[i] = index[i] + 1;
    return kvl_shape_text(text, depth, from_one);
}

/* Copies the (nested) table or number on top of the stack to element `at` and on; pops nothing. */
static void fill_from(lua_State *L, kvl_tensor *t, int depth, int64_t *index, int64_t *at) {
    char text[KVL_SHAPE_TEXT];
    if (depth < t->ndim) {
        if (lua_type(L, -1) != LUA_TTABLE || (int64_t)lua_rawlen(L, -1) != t->shape[depth]) {
            if (lua_type(L, -1) == LUA_TTABLE)
                luaL_error(L, "tensor: element %s has %d elements, its neighbours have %d",
                           place_text(text, depth, index), (int)lua_rawlen(L, -1),
                           (int)t->shape[depth]);
            luaL_error(L, "tensor: element %s is a %s, its neighbours are tables",
                       place_text(text, depth, index), luaL_typename(L, -1));
        }
        for (index[depth] = 0; index[depth] < t->shape[depth]; index[depth]++) {
            lua_rawgeti(L, -1, index[depth] + 1);
            fill_from(L, t, depth + 1, index, at);
            lua_pop(L, 1);
        }
        return;
    }
    if (lua_type(L, -1) != LUA_TNUMBER) {
        if (kvl_is_tensor(L, -1))
            luaL_error(L, "tensor: element %s is a Tensor: join tensors with kv.stack or kv.cat",
                       place_text(text, depth, index));
        luaL_error(L, "tensor: element %s is a %s, expected a number",
                   place_text(text, depth, index), luaL_typename(L, -1));
    }
    if ((*at & 0xfffff) == 0xfffff && kvl_cancelled()) luaL_error(L, "interrupted");
    if (t->dtype == KVL_FLOAT32) {
        kvl_tensor_f32(t)[(*at)++] = (float)lua_tonumber(L, -1);
        return;
    }
    int ok;
    lua_Integer i = lua_tointegerx(L, -1, &ok);
    if (!ok || i < INT32_MIN || i > INT32_MAX)
        luaL_error(L, "tensor: element %s is %s, which int32 cannot hold",
                   place_text(text, depth, index), luaL_tolstring(L, -1, NULL));
    kvl_tensor_i32(t)[(*at)++] = (int32_t)i;
}

/* tensor(value [, dtype]): value is a number, nested tables of numbers, or a tensor (copied). */
static int l_tensor(lua_State *L) {
    kvl_error err;
    int64_t shape[KVL_MAX_DIMS], index[KVL_MAX_DIMS] = {0}, at = 0;
    lua_settop(L, 2);
    if (kvl_is_tensor(L, 1)) {
        kvl_tensor **slot = kvl_push_tensor(L);
        kvl_tensor *t = kvl_check_tensor(L, 1);
        kvl_dtype dtype = kvl_opt_dtype(L, 2, t->dtype);
        return kvl_done(L,
                        dtype == t->dtype ? kvl_tensor_clone(slot, t, &err)
                                          : kvl_tensor_cast(slot, t, dtype, &err),
                        &err, 1);
    }
    if (lua_type(L, 1) != LUA_TNUMBER && lua_type(L, 1) != LUA_TTABLE)
        return luaL_typeerror(L, 1, "number, table of numbers or Tensor");
    kvl_dtype dtype = kvl_opt_dtype(L, 2, KVL_FLOAT32);
    int ndim = table_shape(L, shape);
    luaL_checkstack(L, KVL_MAX_DIMS + 4, NULL);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_status status = kvl_tensor_new(slot, dtype, ndim, shape, &err);
    if (status != KVL_OK) return kvl_raise(L, &err);
    lua_pushvalue(L, 1);
    if (kvl_tensor_numel(*slot) > 0) fill_from(L, *slot, 0, index, &at);
    lua_pop(L, 1);
    return kvl_done(L, KVL_OK, &err, 1);
}

/* zeros(sizes... [, dtype]) */
static int l_zeros(lua_State *L) {
    kvl_error err;
    int64_t shape[KVL_MAX_DIMS];
    int ndim, next = kvl_check_shape(L, 1, &ndim, shape);
    kvl_dtype dtype = kvl_opt_dtype(L, next, KVL_FLOAT32);
    kvl_tensor **slot = kvl_push_tensor(L);
    return kvl_done(L, kvl_tensor_new(slot, dtype, ndim, shape, &err), &err, 1);
}

/* filled(table of sizes, value [, dtype]) */
static int l_filled(lua_State *L) {
    kvl_error err;
    int64_t shape[KVL_MAX_DIMS];
    int ndim;
    luaL_checktype(L, 1, LUA_TTABLE);
    kvl_check_shape(L, 1, &ndim, shape);
    double value = luaL_checknumber(L, 2);
    kvl_dtype dtype = kvl_opt_dtype(L, 3, KVL_FLOAT32);
    kvl_tensor **slot = kvl_push_tensor(L);
    return kvl_done(L, kvl_tensor_full(slot, dtype, ndim, shape, value, &err), &err, 1);
}

/* arange(n): 0 .. n-1; arange(first, last [, step]): as a for loop of Lua, last included. */
static int l_arange(lua_State *L) {
    kvl_error err;
    double first = 0, last = luaL_checknumber(L, 1), step = 1;
    bool integer = lua_isinteger(L, 1), one = lua_isnoneornil(L, 2);
    if (one) {
        last -= 1;
    } else {
        first = last;
        last = luaL_checknumber(L, 2);
        step = luaL_optnumber(L, 3, 1);
        integer = integer && lua_isinteger(L, 2) && (lua_isnoneornil(L, 3) || lua_isinteger(L, 3));
    }
    luaL_argcheck(L, isfinite(first) && isfinite(last), one ? 1 : 2, "the range must be finite");
    luaL_argcheck(L, isfinite(step) && step != 0, 3, "the step must be finite and not 0");
    double count = floor((last - first) / step + 1);
    luaL_argcheck(L, count < 9e15, one ? 1 : 2, "too many elements");
    kvl_tensor **slot = kvl_push_tensor(L);
    return kvl_done(L,
                    kvl_tensor_arange(slot, integer ? KVL_INT32 : KVL_FLOAT32, first, step,
                                      count > 0 ? (int64_t)count : 0, &err),
                    &err, 1);
}

static int l_eye(lua_State *L) {
    kvl_error err;
    lua_Integer n = luaL_checkinteger(L, 1);
    kvl_tensor **slot = kvl_push_tensor(L);
    return kvl_done(L, kvl_tensor_eye(slot, n, &err), &err, 1);
}

/* tril(rows [, cols [, diagonal]]) */
static int l_tril(lua_State *L) {
    kvl_error err;
    lua_Integer rows = luaL_checkinteger(L, 1), cols = luaL_optinteger(L, 2, rows);
    lua_Integer diagonal = luaL_optinteger(L, 3, 0);
    kvl_tensor **slot = kvl_push_tensor(L);
    return kvl_done(L, kvl_tensor_tril_mask(slot, rows, cols, diagonal, &err), &err, 1);
}

/* cat(list, dim) and stack(list, dim): upvalue 1 says whether a dimension is added. */
static int l_cat(lua_State *L) {
    kvl_error err;
    bool stack = lua_toboolean(L, lua_upvalueindex(1));
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 2);
    lua_Unsigned count = lua_rawlen(L, 1);
    luaL_argcheck(L, count >= 1 && count <= 1000000, 1, "expected a list of 1 .. 1000000 tensors");
    const kvl_tensor **list = lua_newuserdatauv(L, (size_t)count * sizeof *list, 0);
    kvl_tensor *heads = stack ? lua_newuserdatauv(L, (size_t)count * sizeof *heads, 0) : NULL;
    kvl_tensor **slot = kvl_push_tensor(L);
    int dim = -1;
    for (lua_Unsigned i = 0; i < count; i++) {
        lua_rawgeti(L, 1, (lua_Integer)i + 1);
        kvl_tensor **item = luaL_testudata(L, -1, KVL_TENSOR);
        if (!item || !*item)
            return luaL_argerror(L, 1,
                                 lua_pushfstring(L, "element %d is %s", (int)i + 1,
                                                 item ? "a freed tensor" : luaL_typename(L, -1)));
        list[i] = *item;
        lua_pop(L, 1);
        if (i == 0) {
            int ndim = list[0]->ndim + stack;
            luaL_argcheck(L, ndim <= KVL_MAX_DIMS, 1, "the result has more than 8 dimensions");
            dim = kvl_opt_dim(L, 2, ndim, 0);
        }
        if (!stack) continue;
        if (list[i]->ndim != list[0]->ndim - (i > 0)) /* the first has the new dimension already */
            return luaL_argerror(L, 1, "the tensors differ in their number of dimensions");
        heads[i] = *list[i]; /* borrows the storage, with a dimension of size 1 put in */
        for (int k = heads[i].ndim++; k > dim; k--) {
            heads[i].shape[k] = heads[i].shape[k - 1];
            heads[i].stride[k] = heads[i].stride[k - 1];
        }
        heads[i].shape[dim] = 1;
        heads[i].stride[dim] = 1;
        list[i] = &heads[i];
    }
    return kvl_done(L, kvl_tensor_cat(slot, list, (int64_t)count, dim, &err), &err, 1);
}

static int l_is_tensor(lua_State *L) {
    lua_pushboolean(L, kvl_is_tensor(L, 1));
    return 1;
}

static const luaL_Reg functions[] = {
    {"tensor", l_tensor}, {"zeros", l_zeros}, {"filled", l_filled},       {"arange", l_arange},
    {"eye", l_eye},       {"tril", l_tril},   {"is_tensor", l_is_tensor}, {NULL, NULL},
};

void kvl_open_make(lua_State *L) {
    kvl_open_part(L, "tensor", functions);
    lua_getfield(L, -1, "tensor"); /* the part that was just opened */
    luaL_getmetatable(L, KVL_TENSOR);
    lua_getfield(L, -1, "methods");
    lua_setfield(L, -3, "methods");
    lua_pop(L, 1);
    for (int stack = 0; stack <= 1; stack++) {
        lua_pushboolean(L, stack);
        lua_pushcclosure(L, l_cat, 1);
        lua_setfield(L, -2, stack ? "stack" : "cat");
    }
    lua_pop(L, 1);
}
