/* lnorm.c - core.norm: norms, Hadamard rotation and RoPE on tensors. The rules for safety are in
 * lkvl.h. */
#include "lkvl.h"

#define ROPE "kvlab.RopeTable"

/* Result like x (the argument 1, made contiguous) in a new slot at the top of the stack. */
static kvl_tensor *new_like(lua_State *L, int arg) {
    kvl_error err;
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *x = kvl_check_tensor(L, arg);
    if (kvl_tensor_new_raw(slot, KVL_FLOAT32, x->ndim, x->shape, &err) != KVL_OK)
        kvl_raise(L, &err);
    return *slot;
}

static int64_t check_last(lua_State *L, int arg) {
    kvl_need_rows(L, arg, true);
    kvl_tensor *x = kvl_check_tensor(L, arg);
    if (x->ndim == 0 || x->shape[x->ndim - 1] == 0)
        kvl_shape_error(L, arg, "a tensor with a last dimension");
    return x->shape[x->ndim - 1];
}

/* rms_norm(x, weight or nil, eps) */
static int l_rms_norm(lua_State *L) {
    kvl_error err;
    float eps = (float)luaL_checknumber(L, 3);
    lua_settop(L, 3);
    int64_t n = check_last(L, 1);
    kvl_check_vector(L, 2, n);
    kvl_tensor *out = new_like(L, 1), *x = kvl_check_tensor(L, 1);
    return kvl_done(L,
                    kvl_rms_norm(kvl_tensor_f32(out), n, kvl_tensor_f32(x), n, kvl_vector(L, 2),
                                 eps, kvl_tensor_numel(x) / n, n, &err),
                    &err, 1);
}

/* layer_norm(x, weight or nil, bias or nil, eps) */
static int l_layer_norm(lua_State *L) {
    kvl_error err;
    float eps = (float)luaL_checknumber(L, 4);
    lua_settop(L, 4);
    int64_t n = check_last(L, 1);
    kvl_check_vector(L, 2, n);
    kvl_check_vector(L, 3, n);
    kvl_tensor *out = new_like(L, 1), *x = kvl_check_tensor(L, 1);
    return kvl_done(L,
                    kvl_layer_norm(kvl_tensor_f32(out), n, kvl_tensor_f32(x), n, kvl_vector(L, 2),
                                   kvl_vector(L, 3), eps, kvl_tensor_numel(x) / n, n, &err),
                    &err, 1);
}

/* hadamard(x) */
static int l_hadamard(lua_State *L) {
    kvl_error err;
    lua_settop(L, 1);
    int64_t n = check_last(L, 1);
    kvl_tensor *out = new_like(L, 1), *x = kvl_check_tensor(L, 1);
    return kvl_done(L,
                    kvl_hadamard(kvl_tensor_f32(out), n, kvl_tensor_f32(x), n,
                                 kvl_tensor_numel(x) / n, n, &err),
                    &err, 1);
}

/* --- RoPE ------------------------------------------------------------------------------------- */

typedef struct rope_table {
    int64_t n; /* rotated channels */
    double freq[];
} rope_table;

/* rope_freqs(channels, theta [, factor, context, beta_fast, beta_slow]) */
static int l_rope_freqs(lua_State *L) {
    kvl_error err;
    lua_Integer n = luaL_checkinteger(L, 1);
    double theta = luaL_checknumber(L, 2);
    luaL_argcheck(L, n >= 2 && n % 2 == 0 && n <= 1 << 20, 1,
                  "expected an even number of channels, 2 or more");
    bool scaled = !lua_isnoneornil(L, 3);
    kvl_yarn yarn = {0};
    if (scaled)
        yarn = (kvl_yarn){luaL_checknumber(L, 3), luaL_checknumber(L, 4), luaL_checknumber(L, 5),
                          luaL_checknumber(L, 6)};
    rope_table *table = lua_newuserdatauv(L, sizeof *table + (size_t)(n / 2) * sizeof *table->freq,
                                          0);
    table->n = n;
    luaL_setmetatable(L, ROPE);
    if (kvl_rope_freqs(table->freq, theta, scaled ? &yarn : NULL, n, &err) != KVL_OK)
        return kvl_raise(L, &err);
    return 1;
}

static int rope_tostring(lua_State *L) {
    rope_table *table = luaL_checkudata(L, 1, ROPE);
    lua_pushfstring(L, "%s: %I channels", ROPE, (LUAI_UACINT)table->n);
    return 1;
}

/* rope:frequencies() -> the angles that a step of one position adds, as numbers */
static int rope_frequencies(lua_State *L) {
    rope_table *table = luaL_checkudata(L, 1, ROPE);
    lua_createtable(L, (int)(table->n / 2), 0);
    for (int64_t i = 0; i < table->n / 2; i++) {
        lua_pushnumber(L, table->freq[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* rope(x, table, position of token 0 or a list with one for each batch item, stride, inverse,
 * first, half_split); x [B, T, width] or [B, T, H, width] */
static int l_rope(lua_State *L) {
    kvl_error err;
    rope_table *table = luaL_checkudata(L, 2, ROPE);
    int64_t stride = luaL_checkinteger(L, 4);
    luaL_argcheck(L, stride >= 1 && stride <= (int64_t)1 << 40, 4, "stride must be 1 or more");
    kvl_rope rope = {table->freq, table->n, lua_toboolean(L, 6), lua_toboolean(L, 7),
                     lua_toboolean(L, 5)};
    lua_settop(L, 7);
    check_last(L, 1);
    kvl_tensor *x = kvl_check_tensor(L, 1);
    if (x->ndim != 3 && x->ndim != 4) kvl_shape_error(L, 1, "{B, T, width} or {B, T, H, width}");
    int64_t B = x->shape[0], T = x->shape[1], H = x->ndim == 4 ? x->shape[2] : 1,
            width = x->shape[x->ndim - 1];
    int64_t *positions = NULL, pos0 = 0;
    if (lua_istable(L, 3)) {
        luaL_argcheck(L, T == 1, 3, "a position for each batch item needs chunks of one token");
        luaL_argcheck(L, (int64_t)lua_rawlen(L, 3) == B, 3,
                      "expected a position for each batch item");
        positions = lua_newuserdatauv(L, (size_t)(B + 1) * sizeof *positions, 0);
        for (int64_t b = 0; b < B; b++) {
            lua_rawgeti(L, 3, b + 1);
            int ok;
            positions[b] = lua_tointegerx(L, -1, &ok);
            if (!ok || positions[b] < 0)
                luaL_argerror(L, 3, "positions are whole numbers, 0 or more");
            lua_pop(L, 1);
        }
    } else {
        pos0 = luaL_checkinteger(L, 3);
        luaL_argcheck(L, pos0 >= 0 && pos0 <= (int64_t)1 << 50, 3,
                      "a position is a whole number, 0 or more");
    }
    kvl_tensor *out = new_like(L, 1);
    x = kvl_check_tensor(L, 1);
    kvl_rope_args args = {.out = kvl_tensor_f32(out),
                          .x = kvl_tensor_f32(x),
                          .step_b = T * H * width,
                          .step_t = H * width,
                          .step_h = width,
                          .pos = positions,
                          .pos_step = 1,
                          .pos0 = pos0,
                          .stride = stride,
                          .batch = B,
                          .tokens = T,
                          .heads = H,
                          .width = width};
    return kvl_done(L, kvl_rope_apply(&rope, &args, &err), &err, 1);
}

void kvl_open_norm(lua_State *L) {
    static const luaL_Reg functions[] = {{"rms_norm", l_rms_norm}, {"layer_norm", l_layer_norm},
                                         {"hadamard", l_hadamard}, {"rope_freqs", l_rope_freqs},
                                         {"rope", l_rope},         {NULL, NULL}};
    static const luaL_Reg events[] = {{"__tostring", rope_tostring}, {NULL, NULL}};
    static const luaL_Reg methods[] = {{"frequencies", rope_frequencies}, {NULL, NULL}};
    kvl_open_part(L, "norm", functions);
    lua_getfield(L, -1, "norm");
    kvl_new_class(L, ROPE, events, methods);
    lua_setfield(L, -2, "rope_methods");
    lua_pop(L, 1);
}
