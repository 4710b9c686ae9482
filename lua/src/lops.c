/* lops.c - core.ops and the methods of Tensor that compute. Every function follows lkvl.h: results
 * are pushed first, then pointers are taken, then the core is called. */
#include "lkvl.h"

#include <math.h>
#include <string.h>

/* --- elementwise ----------------------------------------------------------------------------- */

/* a op b; upvalue 1 is the operation. Either side may be a number. */
static int l_binary(lua_State *L) {
    kvl_error err;
    kvl_binary_op op = (kvl_binary_op)lua_tointeger(L, lua_upvalueindex(1));
    lua_settop(L, 2);
    kvl_to_operand(L, 1);
    kvl_to_operand(L, 2);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *a = kvl_check_tensor(L, 1), *b = kvl_check_tensor(L, 2);
    return kvl_done(L, kvl_binary(slot, op, a, b, &err), &err, 1);
}

/* t:add_(x) and so on: the result goes into t, which is returned. */
static int t_binary_into(lua_State *L) {
    kvl_error err;
    kvl_binary_op op = (kvl_binary_op)lua_tointeger(L, lua_upvalueindex(1));
    lua_settop(L, 2);
    kvl_check_tensor(L, 1);
    kvl_to_operand(L, 2);
    kvl_tensor *t = kvl_check_tensor(L, 1), *x = kvl_check_tensor(L, 2);
    if (kvl_binary_into(t, op, t, x, &err) != KVL_OK) return kvl_raise(L, &err);
    lua_settop(L, 1);
    return 1;
}

/* The operator of a tensor; upvalue 2 is its event. What is on the right and has that operator
 * itself (a Var of a tape) is asked instead. */
static int t_operator(lua_State *L) {
    const char *event = lua_tostring(L, lua_upvalueindex(2));
    lua_settop(L, 2);
    if (lua_type(L, 2) != LUA_TTABLE || luaL_getmetafield(L, 2, event) == LUA_TNIL)
        return l_binary(L);
    lua_insert(L, 1);
    lua_call(L, 2, 1);
    return 1;
}

static int t_unary(lua_State *L) {
    kvl_error err;
    kvl_unary_op op = (kvl_unary_op)lua_tointeger(L, lua_upvalueindex(1));
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    return kvl_done(L, kvl_unary(slot, op, t, &err), &err, 1);
}

/* where(condition, a, b) */
static int l_where(lua_State *L) {
    kvl_error err;
    lua_settop(L, 3);
    for (int i = 1; i <= 3; i++)
        kvl_to_operand(L, i);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *c = kvl_check_tensor(L, 1), *a = kvl_check_tensor(L, 2),
               *b = kvl_check_tensor(L, 3);
    return kvl_done(L, kvl_where(slot, c, a, b, &err), &err, 1);
}

/* --- reductions ------------------------------------------------------------------------------ */

/* t:sum([dim [, keep]]): without dim one Lua value;
 * argmax and argmin take the last dimension then. */
static int t_reduce(lua_State *L) {
    kvl_error err;
    kvl_reduce_op op = (kvl_reduce_op)lua_tointeger(L, lua_upvalueindex(1));
    bool arg = op == KVL_ARGMAX || op == KVL_ARGMIN, truth = op == KVL_ANY || op == KVL_ALL;
    lua_settop(L, 3);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    if (arg && t->ndim == 0) return luaL_argerror(L, 1, "the tensor has no dimensions");
    int dim = kvl_opt_dim(L, 2, t->ndim, arg ? t->ndim - 1 : KVL_EVERY_DIM);
    bool keep = lua_toboolean(L, 3);
    kvl_status status = kvl_reduce(slot, op, t, dim, keep, &err);
    if (status != KVL_OK || dim != KVL_EVERY_DIM || keep) return kvl_done(L, status, &err, 1);
    kvl_tensor *out = *slot;
    if (truth)
        lua_pushboolean(L, kvl_tensor_i32(out)[0]);
    else if (out->dtype == KVL_INT32)
        lua_pushinteger(L, kvl_tensor_i32(out)[0]);
    else
        lua_pushnumber(L, kvl_tensor_f32(out)[0]);
    kvl_tensor_free(out);
    *slot = NULL;
    return 1;
}

/* --- along one dimension, the last one unless told otherwise --------------------------------- */

typedef kvl_status along_fn(kvl_tensor **out, const kvl_tensor *a, int dim, kvl_error *err);

static int along(lua_State *L, along_fn *fn) {
    kvl_error err;
    lua_settop(L, 2);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int dim = kvl_opt_dim(L, 2, t->ndim, t->ndim - 1);
    return kvl_done(L, fn(slot, t, dim, &err), &err, 1);
}

static int t_softmax(lua_State *L) {
    return along(L, kvl_softmax);
}

static int t_log_softmax(lua_State *L) {
    return along(L, kvl_log_softmax);
}

static int t_logsumexp(lua_State *L) {
    return along(L, kvl_logsumexp);
}

static int t_cumsum(lua_State *L) {
    return along(L, kvl_cumsum);
}

/* t:topk(k [, 'score' | 'index']) -> ids, scores */
static int t_topk(lua_State *L) {
    static const char *const orders[] = {"score", "index", NULL};
    kvl_error err;
    lua_settop(L, 3);
    lua_Integer k = luaL_checkinteger(L, 2);
    int order = luaL_checkoption(L, 3, "score", orders);
    kvl_tensor **ids = kvl_push_tensor(L), **scores = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    kvl_status status = kvl_tensor_topk(ids, scores, t, k, order == 1 ? KVL_BY_INDEX : KVL_BY_SCORE,
                                        &err);
    return kvl_done(L, status, &err, 2);
}

/* --- by ids ---------------------------------------------------------------------------------- */

/* t:gather(dim, ids) */
static int t_gather(lua_State *L) {
    kvl_error err;
    lua_settop(L, 3);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int dim = kvl_check_dim(L, 2, t->ndim);
    return kvl_done(L, kvl_gather(slot, t, dim, kvl_check_tensor(L, 3), &err), &err, 1);
}

/* t:scatter(dim, ids, src) and t:scatter_add(dim, ids, src): upvalue 1 says which. */
static int t_scatter(lua_State *L) {
    kvl_error err;
    lua_settop(L, 4);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int dim = kvl_check_dim(L, 2, t->ndim);
    kvl_tensor *ids = kvl_check_tensor(L, 3), *src = kvl_check_tensor(L, 4);
    bool add = lua_toboolean(L, lua_upvalueindex(1));
    return kvl_done(L, kvl_scatter(slot, t, dim, ids, src, add, &err), &err, 1);
}

/* t:index_select(dim, ids) */
static int t_index_select(lua_State *L) {
    kvl_error err;
    lua_settop(L, 3);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *t = kvl_check_tensor(L, 1);
    int dim = kvl_check_dim(L, 2, t->ndim);
    return kvl_done(L, kvl_index_select(slot, t, dim, kvl_check_tensor(L, 3), &err), &err, 1);
}

/* embedding(weight, ids) */
static int l_embedding(lua_State *L) {
    kvl_error err;
    lua_settop(L, 2);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *weight = kvl_check_tensor(L, 1), *ids = kvl_check_tensor(L, 2);
    return kvl_done(L, kvl_embedding(slot, weight, ids, &err), &err, 1);
}

static int l_matmul(lua_State *L) {
    kvl_error err;
    lua_settop(L, 2);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *a = kvl_check_tensor(L, 1), *b = kvl_check_tensor(L, 2);
    return kvl_done(L, kvl_matmul(slot, a, b, &err), &err, 1);
}

/* --- random numbers: options are checked and named in lua/kvlab/tensor.lua ------------------- */

/* random(kind, shape, seed, a, b) */
static int l_random(lua_State *L) {
    static const char *const kinds[] = {"normal", "uniform", "integer", NULL};
    kvl_error err;
    kvl_status status;
    int64_t shape[KVL_MAX_DIMS];
    int ndim, kind = luaL_checkoption(L, 1, NULL, kinds);
    luaL_checktype(L, 2, LUA_TTABLE);
    kvl_check_shape(L, 2, &ndim, shape);
    uint64_t seed = (uint64_t)luaL_checkinteger(L, 3);
    if (kind == 2) {
        lua_Integer low = luaL_checkinteger(L, 4), high = luaL_checkinteger(L, 5);
        luaL_argcheck(L, low >= INT32_MIN && low <= INT32_MAX, 4, "int32 cannot hold low");
        luaL_argcheck(L, high >= INT32_MIN && high <= INT32_MAX, 5, "int32 cannot hold high");
        kvl_tensor **slot = kvl_push_tensor(L);
        status = kvl_random_integer(slot, ndim, shape, seed, (int32_t)low, (int32_t)high, &err);
    } else {
        double a = luaL_checknumber(L, 4), b = luaL_checknumber(L, 5);
        kvl_tensor **slot = kvl_push_tensor(L);
        status = kind == 0 ? kvl_random_normal(slot, ndim, shape, seed, a, b, &err)
                           : kvl_random_uniform(slot, ndim, shape, seed, a, b, &err);
    }
    return kvl_done(L, status, &err, 1);
}

/* permutation(n, seed) */
static int l_permutation(lua_State *L) {
    kvl_error err;
    lua_Integer n = luaL_checkinteger(L, 1), seed = luaL_checkinteger(L, 2);
    kvl_tensor **slot = kvl_push_tensor(L);
    return kvl_done(L, kvl_random_permutation(slot, n, (uint64_t)seed, &err), &err, 1);
}

/* --- opening --------------------------------------------------------------------------------- */

static const luaL_Reg methods[] = {
    {"softmax", t_softmax},
    {"log_softmax", t_log_softmax},
    {"logsumexp", t_logsumexp},
    {"cumsum", t_cumsum},
    {"topk", t_topk},
    {"gather", t_gather},
    {"matmul", l_matmul},
    {"index_select", t_index_select},
    {NULL, NULL},
};

static const luaL_Reg functions[] = {
    {"where", l_where},   {"embedding", l_embedding},     {"matmul", l_matmul},
    {"random", l_random}, {"permutation", l_permutation}, {NULL, NULL},
};

/* Stores fn with one integer upvalue as field `name` of the table at `table`. */
static void set_with(lua_State *L, int table, const char *name, lua_CFunction fn, int value) {
    lua_pushinteger(L, value);
    lua_pushcclosure(L, fn, 1);
    lua_setfield(L, table, name);
}

void kvl_open_ops(lua_State *L) {
    static const struct {
        const char *name;
        int op;
    } events[] = {{"__add", KVL_ADD},
                  {"__sub", KVL_SUB},
                  {"__mul", KVL_MUL},
                  {"__div", KVL_DIV},
                  {"__pow", KVL_POW}};
    static const char *const in_place[] = {"add_", "sub_", "mul_",
                                           "div_"}; /* in the order of the ops */
    luaL_getmetatable(L, KVL_TENSOR);
    int meta = lua_gettop(L);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
        lua_pushinteger(L, events[i].op);
        lua_pushstring(L, events[i].name);
        lua_pushcclosure(L, t_operator, 2);
        lua_setfield(L, meta, events[i].name);
    }
    set_with(L, meta, "__unm", t_unary, KVL_NEG);
    lua_getfield(L, meta, "methods");
    int table = lua_gettop(L);
    luaL_setfuncs(L, methods, 0);
    for (int op = 0; op < KVL_BINARY_OPS; op++)
        set_with(L, table, kvl_binary_name((kvl_binary_op)op), l_binary, op);
    for (int op = KVL_ADD; op <= KVL_DIV; op++)
        set_with(L, table, in_place[op], t_binary_into, op);
    for (int op = 0; op < KVL_UNARY_OPS; op++)
        set_with(L, table, kvl_unary_name((kvl_unary_op)op), t_unary, op);
    for (int op = 0; op < KVL_REDUCE_OPS; op++)
        set_with(L, table, kvl_reduce_name((kvl_reduce_op)op), t_reduce, op);
    for (int add = 0; add <= 1; add++) {
        lua_pushboolean(L, add);
        lua_pushcclosure(L, t_scatter, 1);
        lua_setfield(L, table, add ? "scatter_add" : "scatter");
    }
    lua_pop(L, 2);
    kvl_open_part(L, "ops", functions);
}
