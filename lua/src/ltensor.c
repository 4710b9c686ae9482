/* ltensor.c - core.tensor: the Tensor object, constructors, views, element access. What is computed
 * on tensors is in lops.c, printing in lprint.c. The rules for safety are in lkvl.h. */
#include "lkvl.h"

#include <math.h>
#include <string.h>

/* --- helpers of every binding of tensors ----------------------------------------------------- */

/* What the collector of one Lua state has been told. */
typedef struct gc_state {
    size_t debt;  /* bytes of tensors made since the last hint */
    size_t floor; /* bytes that were live after the last full collection, or fewer since */
} gc_state;
static const char gc_key = 0;
enum { HINT = 1 << 20, SLACK = 16 << 20 };

/* One step of the collector per MiB keeps an incremental collector in pace. A generational one (the
 * mode of the lua5.4 program) does not free userdata in steps: Lua 5.4.4 leaves them to full
 * collections. So there is one whenever the live bytes have doubled. */
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
        state->floor = live;
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

/* Reshape and contiguous may copy: `of` is what they were made of. */
static int done_maybe(lua_State *L, kvl_status status, const kvl_error *err, kvl_tensor **made,
                      kvl_tensor *of) {
    if (status == KVL_OK && kvl_tensor_shares(*made, of)) return 1;
    return kvl_done(L, status, err, 1);
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

/* --- from Lua values ------------------------------------------------------------------------- */

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

/* full(table of sizes, value [, dtype]) */
static int l_full(lua_State *L) {
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

/* --- views ----------------------------------------------------------------------------------- */

/* t:slice(dim [, first [, last [, step]]]): 1-based, both ends included, negative from the end. */
static int t_slice(lua_State *L) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int dim = kvl_check_dim(L, 2, t->ndim);
    int64_t size = t->shape[dim];
    lua_Integer first = luaL_optinteger(L, 3, 1), last = luaL_optinteger(L, 4, size);
    lua_Integer step = luaL_optinteger(L, 5, 1);
    if (first < 0 && first >= -size) first += size + 1;
    if (last < 0 && last >= -size - 1) last += size + 1;
    luaL_argcheck(L, step >= 1, 5, "the step is 1 or more");
    if (first < 1 || first > size + 1)
        return luaL_argerror(L, 3,
                             lua_pushfstring(L,
                                             "first %I: there are 1 .. %I, or -1 for the last one",
                                             (LUAI_UACINT)first, (LUAI_UACINT)size));
    if (last < first - 1 || last > size)
        return luaL_argerror(
            L, 4,
            lua_pushfstring(L, "last %I: expected %I (nothing) .. %I, or -1 for the end",
                            (LUAI_UACINT)last, (LUAI_UACINT)(first - 1), (LUAI_UACINT)size));
    int64_t count = last < first ? 0 : (last - first) / step + 1;
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    return kvl_done_view(L, kvl_tensor_slice(slot, t, dim, first - 1, count, step, &err), &err);
}

/* t:select(dim, index) */
static int t_select(lua_State *L) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int dim = kvl_check_dim(L, 2, t->ndim);
    int64_t index = kvl_check_index(L, 3, t->shape[dim]);
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    return kvl_done_view(L, kvl_tensor_select(slot, t, dim, index, &err), &err);
}

/* t:transpose([a, b]): without arguments the last two dimensions. */
static int t_transpose(lua_State *L) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    if (t->ndim < 2) return luaL_argerror(L, 1, "a transpose needs two dimensions");
    int a = kvl_opt_dim(L, 2, t->ndim, t->ndim - 2), b = kvl_opt_dim(L, 3, t->ndim, t->ndim - 1);
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    return kvl_done_view(L, kvl_tensor_transpose(slot, t, a, b, &err), &err);
}

/* t:permute(dims...): dimension i of the result is dimension dims[i] of t. */
static int t_permute(lua_State *L) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int64_t list[KVL_MAX_DIMS];
    int ndim, dims[KVL_MAX_DIMS];
    kvl_check_shape(L, 2, &ndim, list);
    if (ndim != t->ndim)
        return luaL_argerror(L, 2,
                             lua_pushfstring(L, "%d dimensions for a tensor of %d", ndim, t->ndim));
    for (int i = 0; i < ndim; i++) {
        if (list[i] == 0 || list[i] < -ndim || list[i] > ndim)
            return luaL_argerror(
                L, 2,
                lua_pushfstring(L, "dimension %I: there are 1 .. %d, or -1 for the last one",
                                (LUAI_UACINT)list[i], ndim));
        dims[i] = (int)(list[i] > 0 ? list[i] - 1 : ndim + list[i]);
    }
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    if (t->ndim != ndim) return luaL_argerror(L, 1, "the tensor changed");
    return kvl_done_view(L, kvl_tensor_permute(slot, t, dims, &err), &err);
}

/* t:expand(sizes...): -1 keeps a size. */
static int t_expand(lua_State *L) {
    kvl_error err;
    int64_t shape[KVL_MAX_DIMS];
    int ndim;
    kvl_check_tensor(L, 1);
    kvl_check_shape(L, 2, &ndim, shape);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    return kvl_done_view(L, kvl_tensor_expand(slot, t, ndim, shape, &err), &err);
}

/* t:reshape(sizes...): one may be -1. */
static int t_reshape(lua_State *L) {
    kvl_error err;
    int64_t shape[KVL_MAX_DIMS];
    int ndim;
    kvl_check_tensor(L, 1);
    kvl_check_shape(L, 2, &ndim, shape);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    return done_maybe(L, kvl_tensor_reshape(slot, t, ndim, shape, &err), &err, slot, t);
}

static int t_flatten(lua_State *L) {
    kvl_error err;
    int64_t all = -1;
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    if (kvl_tensor_numel(t) == 0) all = 0;
    return done_maybe(L, kvl_tensor_reshape(slot, t, 1, &all, &err), &err, slot, t);
}

/* t:squeeze(dim): drops a dimension of size 1. */
static int t_squeeze(lua_State *L) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int dim = kvl_check_dim(L, 2, t->ndim);
    if (t->shape[dim] != 1)
        return luaL_argerror(L, 2,
                             lua_pushfstring(L, "dimension %d has size %I, only 1 can be dropped",
                                             dim + 1, (LUAI_UACINT)t->shape[dim]));
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    return kvl_done_view(L, kvl_tensor_select(slot, t, dim, 0, &err), &err);
}

/* t:unsqueeze(dim): a new dimension of size 1 at that place. */
static int t_unsqueeze(lua_State *L) {
    kvl_error err;
    kvl_tensor *t = kvl_check_tensor(L, 1);
    if (t->ndim == KVL_MAX_DIMS) return luaL_argerror(L, 1, "the tensor has 8 dimensions already");
    int dim = kvl_check_dim(L, 2, t->ndim + 1);
    kvl_tensor **slot = kvl_push_tensor(L);
    t = kvl_check_tensor(L, 1);
    kvl_tensor *wide = NULL;
    int64_t shape[KVL_MAX_DIMS] = {1};
    int order[KVL_MAX_DIMS];
    memcpy(shape + 1, t->shape, (size_t)t->ndim * sizeof *shape);
    for (int i = 0; i <= t->ndim; i++)
        order[i] = i < dim ? i + 1 : i == dim ? 0 : i;
    kvl_status status = kvl_tensor_expand(&wide, t, t->ndim + 1, shape, &err);
    if (status == KVL_OK) status = kvl_tensor_permute(slot, wide, order, &err);
    kvl_tensor_free(wide);
    return kvl_done_view(L, status, &err);
}

static int t_contiguous(lua_State *L) {
    kvl_error err;
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    return done_maybe(L, kvl_tensor_contiguous(slot, t, &err), &err, slot, t);
}

static int t_clone(lua_State *L) {
    kvl_error err;
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    return kvl_done(L, kvl_tensor_clone(slot, t, &err), &err, 1);
}

/* t:to(dtype) */
static int t_to(lua_State *L) {
    kvl_error err;
    kvl_check_tensor(L, 1);
    luaL_checkstring(L, 2);
    kvl_dtype dtype = kvl_opt_dtype(L, 2, KVL_FLOAT32);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    return done_maybe(L, kvl_tensor_cast(slot, t, dtype, &err), &err, slot, t);
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
    int64_t done = 0, n = kvl_tensor_numel(&head);
    for (int i = 0; i < head.ndim; i++) /* sizes next to an empty dimension may be anything */
        if (n == 0 && head.shape[i] > 1000000) n = INT64_MAX;
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
    {"slice", t_slice},
    {"select", t_select},
    {"transpose", t_transpose},
    {"permute", t_permute},
    {"expand", t_expand},
    {"reshape", t_reshape},
    {"flatten", t_flatten},
    {"squeeze", t_squeeze},
    {"unsqueeze", t_unsqueeze},
    {"contiguous", t_contiguous},
    {"clone", t_clone},
    {"to", t_to},
    {"get", t_get},
    {"set", t_set},
    {"item", t_item},
    {"totable", t_totable},
    {"fill_", t_fill},
    {"copy_", t_copy},
    {"equal", t_equal},
    {"shares", t_shares},
    {"rows", t_rows},
    {"is_contiguous", t_is_contiguous},
    {"free", t_free},
    {"close", t_free},
    {NULL, NULL},
};

static const luaL_Reg meta[] = {
    {"__gc", t_free},           {"__close", t_free}, {"__len", t_len},
    {"__newindex", t_newindex}, {NULL, NULL},
};

static const luaL_Reg functions[] = {
    {"tensor", l_tensor}, {"zeros", l_zeros}, {"full", l_full},           {"arange", l_arange},
    {"eye", l_eye},       {"tril", l_tril},   {"is_tensor", l_is_tensor}, {NULL, NULL},
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

    kvl_open_part(L, "tensor", functions);
    lua_getfield(L, -1, "tensor"); /* the part that was just opened */
    for (int stack = 0; stack <= 1; stack++) {
        lua_pushboolean(L, stack);
        lua_pushcclosure(L, l_cat, 1);
        lua_setfield(L, -2, stack ? "stack" : "cat");
    }
    lua_pop(L, 1);
}
