/* ltensor.c - the Tensor object: its life, what the collector is told, reading and writing
 * elements, and the helpers of all bindings of tensors. Constructors are in lmake.c, views in
 * lviews.c, what is computed in lops.c, printing in lprint.c; they add to the method table here.
 * The rules for safety are in lkvl.h. */
#include "lkvl.h"

#include <math.h>
#include <string.h>

/* --- helpers of every binding of tensors ----------------------------------------------------- */

/* What the collector of one Lua state has been told. */
typedef struct gc_state {
    size_t debt;  /* bytes of tensors made since the last hint */
    size_t floor; /* bytes that were live after the last full collection; sinks to what is live */
} gc_state;
static const char gc_key = 0;
enum { HINT = 1 << 20, SLACK = 16 << 20, SINK = 512 };

/* One step of the collector per MiB keeps an incremental collector in pace. A generational one (the
 * mode of the lua5.4 program) does not free userdata in steps: Lua 5.4.4 leaves them to full
 * collections. So there is one whenever the live bytes have doubled. A training step fills and
 * empties its tape every time, which is no garbage: what counts as live before sinks slowly. */
void kvl_tell_collector(lua_State *L, size_t bytes) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &gc_key);
    gc_state *state = lua_touserdata(L, -1);
    lua_pop(L, 1);
    if (!state) return;
    state->debt += bytes;
    if (state->debt < HINT || !lua_gc(L, LUA_GCISRUNNING)) return;
    size_t units = state->debt; /* what LUA_GCSTEP counts in: KiB in Lua 5.4, bytes from 5.5 on */
    state->debt = 0;
#if LUA_VERSION_NUM >= 505
    lua_gc(L, LUA_GCSTEP, units);
#else
    units >>= 10;
    lua_gc(L, LUA_GCSTEP, units > 1 << 20 ? 1 << 20 : (int)units);
#endif
    size_t live = kvl_live_bytes();
    if (live > state->floor && (live - state->floor) / 2 > state->floor / 2 + SLACK / 2) {
        lua_gc(L, LUA_GCCOLLECT);
        state->floor = kvl_live_bytes();
    } else if (live < state->floor) {
        state->floor -= (state->floor - live) / SINK;
    }
}

kvl_tensor **kvl_push_tensor(lua_State *L) {
    kvl_tensor **slot = lua_newuserdatauv(L, sizeof *slot, 0);
    *slot = NULL;
    luaL_setmetatable(L, KVL_TENSOR);
    return slot;
}

kvl_tensor *kvl_check_tensor(lua_State *L, int arg) {
    kvl_tensor **slot = luaL_checkudata(L, arg, KVL_TENSOR);
    if (!*slot) luaL_argerror(L, arg, "the tensor was freed");
    return *slot;
}

bool kvl_is_tensor(lua_State *L, int arg) {
    return luaL_testudata(L, arg, KVL_TENSOR) != NULL;
}

int kvl_done(lua_State *L, kvl_status status, const kvl_error *err, int results) {
    if (status != KVL_OK) return kvl_raise(L, err);
    size_t bytes = 0;
    for (int i = 1; i <= results; i++) {
        kvl_tensor **slot = luaL_testudata(L, -i, KVL_TENSOR);
        if (slot && *slot) bytes += kvl_tensor_bytes(*slot);
    }
    kvl_tell_collector(L, bytes);
    return results;
}

int kvl_done_view(lua_State *L, kvl_status status, const kvl_error *err) {
    return status == KVL_OK ? 1 : kvl_raise(L, err);
}

void kvl_to_operand(lua_State *L, int arg) {
    kvl_error err;
    if (lua_type(L, arg) != LUA_TNUMBER) {
        if (!kvl_is_tensor(L, arg)) luaL_typeerror(L, arg, "Tensor or number");
        return;
    }
    int is_integer = lua_isinteger(L, arg);
    lua_Integer i = is_integer ? lua_tointeger(L, arg) : 0;
    bool small = is_integer && i >= INT32_MIN && i <= INT32_MAX;
    double value = lua_tonumber(L, arg);
    kvl_tensor **slot = kvl_push_tensor(L);
    lua_replace(L, arg);
    if (kvl_tensor_full(slot, small ? KVL_INT32 : KVL_FLOAT32, 0, NULL, value, &err) != KVL_OK)
        kvl_raise(L, &err);
}

int kvl_check_dim(lua_State *L, int arg, int ndim) {
    lua_Integer dim = luaL_checkinteger(L, arg);
    if (ndim == 0) luaL_argerror(L, arg, "the tensor has no dimensions");
    if (dim < -ndim || dim > ndim || dim == 0)
        luaL_argerror(L, arg,
                      lua_pushfstring(L, "dimension %I: there are 1 .. %d, or -1 for the last one",
                                      (LUAI_UACINT)dim, ndim));
    return (int)(dim > 0 ? dim - 1 : ndim + dim);
}

int kvl_opt_dim(lua_State *L, int arg, int ndim, int missing) {
    return lua_isnoneornil(L, arg) ? missing : kvl_check_dim(L, arg, ndim);
}

int64_t kvl_check_index(lua_State *L, int arg, int64_t size) {
    lua_Integer i = luaL_checkinteger(L, arg);
    if (i < -size || i > size || i == 0) {
        const char *why = size == 0 ? lua_pushfstring(L, "index %I: the dimension is empty",
                                                      (LUAI_UACINT)i)
                                    : lua_pushfstring(
                                          L, "index %I: there are 1 .. %I, or -1 for the last one",
                                          (LUAI_UACINT)i, (LUAI_UACINT)size);
        luaL_argerror(L, arg, why);
    }
    return i > 0 ? i - 1 : size + i;
}

int kvl_check_shape(lua_State *L, int arg, int *ndim, int64_t *shape) {
    bool table = lua_type(L, arg) == LUA_TTABLE;
    *ndim = 0;
    if (!table && lua_type(L, arg) != LUA_TNUMBER)
        luaL_typeerror(L, arg, "sizes (integers or a table of them)");
    lua_Unsigned count = table ? lua_rawlen(L, arg) : (lua_Unsigned)(lua_gettop(L) - arg + 1);
    for (lua_Unsigned i = 0; i < count; i++) {
        if (table)
            lua_rawgeti(L, arg, (lua_Integer)i + 1);
        else if (lua_type(L, arg + (int)i) != LUA_TNUMBER)
            return arg + (int)i;
        else
            lua_pushvalue(L, arg + (int)i);
        int ok;
        lua_Integer size = lua_tointegerx(L, -1, &ok);
        if (!ok || lua_type(L, -1) != LUA_TNUMBER)
            luaL_argerror(L, table ? arg : arg + (int)i,
                          lua_pushfstring(L, "size %d is %s, expected an integer", (int)i + 1,
                                          luaL_tolstring(L, -1, NULL)));
        if (*ndim == KVL_MAX_DIMS)
            luaL_argerror(L, arg, lua_pushfstring(L, "more than %d dimensions", KVL_MAX_DIMS));
        shape[(*ndim)++] = size;
        lua_pop(L, 1);
    }
    return table ? arg + 1 : arg + (int)count;
}

kvl_dtype kvl_opt_dtype(lua_State *L, int arg, kvl_dtype missing) {
    static const char *const names[] = {"float32", "int32", NULL};
    if (lua_isnoneornil(L, arg)) return missing;
    return luaL_checkoption(L, arg, NULL, names) == 1 ? KVL_INT32 : KVL_FLOAT32;
}

/* --- elements -------------------------------------------------------------------------------- */

static void push_element(lua_State *L, const kvl_tensor *t, int64_t at) {
    if (t->dtype == KVL_INT32)
        lua_pushinteger(L, kvl_tensor_i32(t)[at]);
    else
        lua_pushnumber(L, kvl_tensor_f32(t)[at]);
}

/* Arguments 2 .. ndim+1 are indices; returns the place of the element. */
static int64_t element_at(lua_State *L, const kvl_tensor *t, int args) {
    int64_t at = 0;
    if (args != t->ndim) luaL_error(L, "%d indices for a tensor of %d dimensions", args, t->ndim);
    for (int i = 0; i < t->ndim; i++)
        at += kvl_check_index(L, i + 2, t->shape[i]) * t->stride[i];
    return at;
}

static int t_get(lua_State *L) {
    kvl_tensor *t = kvl_check_tensor(L, 1);
    push_element(L, t, element_at(L, t, lua_gettop(L) - 1));
    return 1;
}

static int t_item(lua_State *L) {
    char text[KVL_SHAPE_TEXT];
    kvl_tensor *t = kvl_check_tensor(L, 1);
    if (kvl_tensor_numel(t) != 1)
        return luaL_error(L, "item: shape %s has not one element",
                          kvl_shape_text(text, t->ndim, t->shape));
    push_element(L, t, 0);
    return 1;
}

static void store(lua_State *L, kvl_tensor *t, int64_t at, int arg) {
    if (t->dtype == KVL_FLOAT32) {
        kvl_tensor_f32(t)[at] = (float)luaL_checknumber(L, arg);
        return;
    }
    lua_Integer i = luaL_checkinteger(L, arg);
    luaL_argcheck(L, i >= INT32_MIN && i <= INT32_MAX, arg, "int32 cannot hold that");
    kvl_tensor_i32(t)[at] = (int32_t)i;
}

/* t:set(indices..., value) */
static int t_set(lua_State *L) {
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int top = lua_gettop(L);
    luaL_argcheck(L, top >= 2, 2, "expected indices and a value");
    for (int i = 0; i < t->ndim; i++)
        if (t->stride[i] == 0 && t->shape[i] > 1)
            return luaL_error(L,
                              "set: the tensor repeats elements (expand): clone it before writing");
    store(L, t, element_at(L, t, top - 2), top);
    lua_settop(L, 1);
    return 1;
}

/* Pushes nested tables of dimension depth and on; `at` is the place of the first element. */
static void push_table(lua_State *L, kvl_tensor *const *slot, const kvl_tensor *head, int depth,
                       int64_t at, int64_t *done) {
    if (depth == head->ndim) {
        push_element(L, *slot, at);
        return;
    }
    int64_t n = head->shape[depth];
    lua_createtable(L, (int)n, 0);
    if (!*slot) luaL_error(L, "the tensor was freed"); /* by a finalizer that ran just now */
    for (int64_t i = 0; i < n; i++) {
        if ((++*done & 0xfffff) == 0 && kvl_cancelled()) luaL_error(L, "interrupted");
        push_table(L, slot, head, depth + 1, at + i * head->stride[depth], done);
        lua_rawseti(L, -2, i + 1);
    }
}

static int t_totable(lua_State *L) {
    char text[KVL_SHAPE_TEXT];
    kvl_tensor head = *kvl_check_tensor(
        L, 1); /* shape and strides; the storage stays with the object */
    /* Tables and elements: beside an empty dimension there can be more tables than elements. */
    int64_t done = 0, n = 1, level = 1;
    for (int i = 0; i < head.ndim && level > 0; i++)
        if (!kvl_mul(&level, level, head.shape[i]) || __builtin_add_overflow(n, level, &n))
            n = INT64_MAX, level = 0;
    if (n > INT32_MAX ||
        (size_t)n * 16 > kvl_memory_limit() / 2) /* Lua takes 16 bytes an element */
        return luaL_error(L, "totable: shape %s is too large for a table",
                          kvl_shape_text(text, head.ndim, head.shape));
    luaL_checkstack(L, KVL_MAX_DIMS + 4, NULL);
    push_table(L, lua_touserdata(L, 1), &head, 0, 0, &done);
    return 1;
}

static int t_fill(lua_State *L) {
    kvl_error err;
    double value = luaL_checknumber(L, 2);
    if (kvl_tensor_fill(kvl_check_tensor(L, 1), value, &err) != KVL_OK) return kvl_raise(L, &err);
    lua_settop(L, 1);
    return 1;
}

static int t_copy(lua_State *L) {
    kvl_error err;
    lua_settop(L, 2);
    kvl_to_operand(L, 2);
    kvl_tensor *dst = kvl_check_tensor(L, 1), *src = kvl_check_tensor(L, 2);
    if (kvl_tensor_copy(dst, src, &err) != KVL_OK) return kvl_raise(L, &err);
    lua_settop(L, 1);
    return 1;
}

static int t_equal(lua_State *L) {
    kvl_error err;
    bool equal;
    kvl_tensor *a = kvl_check_tensor(L, 1), *b = kvl_check_tensor(L, 2);
    if (kvl_tensor_equal(&equal, a, b, &err) != KVL_OK) return kvl_raise(L, &err);
    lua_pushboolean(L, equal);
    return 1;
}

static int t_shares(lua_State *L) {
    lua_pushboolean(L, kvl_tensor_shares(kvl_check_tensor(L, 1), kvl_check_tensor(L, 2)));
    return 1;
}

static int t_is_contiguous(lua_State *L) {
    lua_pushboolean(L, kvl_tensor_is_contiguous(kvl_check_tensor(L, 1)));
    return 1;
}

/* --- the object ------------------------------------------------------------------------------ */

static int t_free(lua_State *L) {
    kvl_tensor **slot = luaL_checkudata(L, 1, KVL_TENSOR);
    kvl_tensor_free(*slot);
    *slot = NULL;
    return 0;
}

static int t_len(lua_State *L) {
    kvl_tensor *t = kvl_check_tensor(L, 1);
    if (t->ndim == 0) return luaL_error(L, "a tensor without dimensions has no length");
    lua_pushinteger(L, t->shape[0]);
    return 1;
}

/* The row t[i], or the element when there is one dimension. Leaves it on top of the stack. */
static int push_row(lua_State *L, int64_t index) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    if (t->ndim == 1) {
        push_element(L, t, index * t->stride[0]);
        return 1;
    }
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    return kvl_done_view(L, kvl_tensor_select(slot, t, 0, index, &err), &err);
}

/* t.name: a method (upvalue 1 has them), or one of the fields below; t[i]: a row. */
static int t_index(lua_State *L) {
    if (lua_type(L, 2) == LUA_TSTRING) {
        lua_pushvalue(L, 2);
        if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
        const char *name = lua_tostring(L, 2);
        if (strcmp(name, "shape") == 0) {
            kvl_tensor *t = kvl_check_tensor(L, 1);
            int64_t shape[KVL_MAX_DIMS];
            int ndim = t->ndim;
            memcpy(shape, t->shape, sizeof shape);
            lua_createtable(L, ndim, 0);
            for (int i = 0; i < ndim; i++) {
                lua_pushinteger(L, shape[i]);
                lua_rawseti(L, -2, i + 1);
            }
        } else if (strcmp(name, "ndim") == 0) {
            lua_pushinteger(L, kvl_check_tensor(L, 1)->ndim);
        } else if (strcmp(name, "dtype") == 0) {
            lua_pushstring(L, kvl_dtype_name(kvl_check_tensor(L, 1)->dtype));
        } else if (strcmp(name, "size") == 0) {
            lua_pushinteger(L, kvl_tensor_numel(kvl_check_tensor(L, 1)));
        } else {
            lua_pushnil(L);
        }
        return 1;
    }
    if (lua_type(L, 2) != LUA_TNUMBER) return 0;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    if (t->ndim == 0) return luaL_error(L, "a tensor without dimensions has no index: use :item()");
    return push_row(L, kvl_check_index(L, 2, t->shape[0]));
}

/* t[i] = number, or a tensor that broadcasts to the row. */
static int t_newindex(lua_State *L) {
    kvl_error err;
    if (lua_type(L, 2) != LUA_TNUMBER)
        return luaL_error(L, "a tensor has no field '%s' that could be set",
                          luaL_tolstring(L, 2, NULL));
    kvl_to_operand(L, 3);
    kvl_tensor *t = kvl_check_tensor(L, 1), *value = kvl_check_tensor(L, 3);
    if (t->ndim == 0)
        return luaL_error(L, "a tensor without dimensions has no index: use :fill_(x)");
    int64_t index = kvl_check_index(L, 2, t->shape[0]);
    kvl_tensor *row;
    kvl_status status = kvl_tensor_select(&row, t, 0, index, &err);
    if (status == KVL_OK) {
        status = kvl_tensor_copy(row, value, &err);
        kvl_tensor_free(row);
    }
    return status == KVL_OK ? 0 : kvl_raise(L, &err);
}

static int next_row(lua_State *L) {
    kvl_tensor *t = kvl_check_tensor(L, 1);
    lua_Integer i = luaL_checkinteger(L, 2);
    if (t->ndim == 0 || i < 0 || i >= t->shape[0]) return 0;
    lua_pushinteger(L, i + 1);
    push_row(L, i);
    return 2;
}

/* for i, row in t:rows() do ... end */
static int t_rows(lua_State *L) {
    kvl_check_tensor(L, 1);
    lua_pushcfunction(L, next_row);
    lua_pushvalue(L, 1);
    lua_pushinteger(L, 0);
    return 3;
}

static const luaL_Reg methods[] = {
    {"get", t_get},     {"set", t_set},
    {"item", t_item},   {"totable", t_totable},
    {"fill_", t_fill},  {"copy_", t_copy},
    {"equal", t_equal}, {"shares", t_shares},
    {"rows", t_rows},   {"is_contiguous", t_is_contiguous},
    {"free", t_free},   {"close", t_free},
    {NULL, NULL},
};

static const luaL_Reg meta[] = {
    {"__gc", t_free},           {"__close", t_free}, {"__len", t_len},
    {"__newindex", t_newindex}, {NULL, NULL},
};

void kvl_open_tensor(lua_State *L) {
    gc_state *state = lua_newuserdatauv(L, sizeof *state, 0);
    *state = (gc_state){0, 0};
    lua_rawsetp(L, LUA_REGISTRYINDEX, &gc_key);

    luaL_newmetatable(L, KVL_TENSOR);
    luaL_setfuncs(L, meta, 0);
    lua_pushliteral(L, KVL_TENSOR);
    lua_setfield(L, -2, "__metatable"); /* scripts cannot reach __gc */
    luaL_newlib(L, methods);
    lua_pushvalue(L, -1);
    lua_pushcclosure(L, t_index, 1);
    lua_setfield(L, -3, "__index");
    lua_setfield(L, -2, "methods"); /* lops.c and lprint.c add to it */
    lua_pop(L, 1);
}
