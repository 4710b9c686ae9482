/* lnorm.c - core.norm: rms_norm, layer_norm, hadamard, rope. */
#include "lkvl.h"

#include <string.h>

enum { FAR = 1 << 30 }; /* positions and strides beyond this are mistakes */

/* One weight for each channel of x, or NULL when nil. */
static const float *channels(lua_State *L, int arg, const char *what, const kvl_tensor *x) {
    char text[KVL_SHAPE_TEXT];
    if (lua_isnil(L, arg)) return NULL;
    kvl_tensor *w = kvl_named_tensor(L, arg, what);
    if (w->ndim != 1 || w->shape[0] != x->shape[x->ndim - 1])
        luaL_error(L, "%s has shape %s, x has %I channels", what,
                   kvl_shape_text(text, w->ndim, w->shape), (LUAI_UACINT)x->shape[x->ndim - 1]);
    return kvl_tensor_f32(w);
}

/* Rows of x, whose last dimension has n channels. */
static int64_t row_count(const kvl_tensor *x, int64_t n) {
    return n > 0 ? kvl_tensor_numel(x) / n : 0;
}

/* rms_norm(x, weight or nil, eps) */
static int l_rms_norm(lua_State *L) {
    kvl_error err;
    lua_settop(L, 3);
    kvl_to_rows(L, 1, "rms_norm: x", true);
    if (!lua_isnil(L, 2)) kvl_to_rows(L, 2, "rms_norm: weight", true);
    double eps = luaL_checknumber(L, 3);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *x = kvl_named_tensor(L, 1, "rms_norm: x");
    const float *weight = channels(L, 2, "rms_norm: weight", x);
    kvl_status status = kvl_tensor_new(slot, KVL_FLOAT32, x->ndim, x->shape, &err);
    int64_t n = x->shape[x->ndim - 1];
    if (status == KVL_OK && n > 0)
        status = kvl_rms_norm(kvl_tensor_f32(*slot), n, kvl_tensor_f32(x), n, weight, (float)eps,
                              row_count(x, n), n, &err);
    return kvl_done(L, status, &err, 1);
}

/* layer_norm(x, weight or nil, bias or nil, eps) */
static int l_layer_norm(lua_State *L) {
    kvl_error err;
    lua_settop(L, 4);
    kvl_to_rows(L, 1, "layer_norm: x", true);
    if (!lua_isnil(L, 2)) kvl_to_rows(L, 2, "layer_norm: weight", true);
    if (!lua_isnil(L, 3)) kvl_to_rows(L, 3, "layer_norm: bias", true);
    double eps = luaL_checknumber(L, 4);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *x = kvl_named_tensor(L, 1, "layer_norm: x");
    const float *weight = channels(L, 2, "layer_norm: weight", x);
    const float *bias = channels(L, 3, "layer_norm: bias", x);
    kvl_status status = kvl_tensor_new(slot, KVL_FLOAT32, x->ndim, x->shape, &err);
    int64_t n = x->shape[x->ndim - 1];
    if (status == KVL_OK && n > 0)
        status = kvl_layer_norm(kvl_tensor_f32(*slot), n, kvl_tensor_f32(x), n, weight, bias,
                                (float)eps, row_count(x, n), n, &err);
    return kvl_done(L, status, &err, 1);
}

static int l_hadamard(lua_State *L) {
    kvl_error err;
    lua_settop(L, 1);
    kvl_to_rows(L, 1, "hadamard: x", true);
    kvl_tensor **slot = kvl_push_tensor(L);
    kvl_tensor *x = kvl_named_tensor(L, 1, "hadamard: x");
    kvl_status status = kvl_tensor_new(slot, KVL_FLOAT32, x->ndim, x->shape, &err);
    int64_t n = x->shape[x->ndim - 1];
    if (status == KVL_OK)
        status = kvl_hadamard(kvl_tensor_f32(*slot), n, kvl_tensor_f32(x), n, row_count(x, n), n,
                              &err);
    return kvl_done(L, status, &err, 1);
}

/* Positions of the tokens as int64 (batch, tokens), from int32 (tokens) or (batch, tokens) at
 * `arg`; leaves a buffer on the stack. */
static int64_t *positions(lua_State *L, int arg, const kvl_rope_args *a) {
    char text[KVL_SHAPE_TEXT];
    kvl_to_ids(L, arg, "rope: pos");
    int64_t count = 0;
    if (!kvl_mul(&count, a->batch, a->tokens) || count > INT64_MAX / 16)
        luaL_error(L, "rope: too many tokens");
    int64_t *pos = lua_newuserdatauv(L, (size_t)(count + 1) * sizeof *pos, 0);
    kvl_tensor *t = kvl_named_tensor(L, arg, "rope: pos");
    bool shared = t->ndim == 1 && t->shape[0] == a->tokens;
    if (!shared && !(t->ndim == 2 && t->shape[0] == a->batch && t->shape[1] == a->tokens))
        luaL_error(L, "rope: pos has shape %s, x has %I tokens",
                   kvl_shape_text(text, t->ndim, t->shape), (LUAI_UACINT)a->tokens);
    for (int64_t i = 0; i < count; i++)
        pos[i] = kvl_tensor_i32(t)[shared ? i % a->tokens : i];
    return pos;
}

/* rope(x, options): x (tokens, width), (tokens, heads, width) or (batch, tokens, heads, width) */
static int l_rope(lua_State *L) {
    kvl_error err;
    lua_settop(L, 2);
    luaL_checktype(L, 2, LUA_TTABLE);
    kvl_to_rows(L, 1, "rope: x", true);
    kvl_tensor *x = kvl_named_tensor(L, 1, "rope: x");
    if (x->ndim < 2 || x->ndim > 4)
        return luaL_error(L, "rope: x has %d dimensions, expected 2 .. 4", x->ndim);
    kvl_rope_args a = {.width = x->shape[x->ndim - 1],
                       .heads = x->ndim > 2 ? x->shape[x->ndim - 2] : 1,
                       .tokens = x->shape[x->ndim == 4 ? 1 : 0],
                       .batch = x->ndim == 4 ? x->shape[0] : 1};
    a.step_h = a.width;
    a.step_t = a.heads * a.width;
    a.step_b = a.tokens * a.step_t;
    kvl_rope rope = {.first = kvl_key_flag(L, 2, "first"),
                     .half_split = kvl_key_flag(L, 2, "half_split"),
                     .inverse = kvl_key_flag(L, 2, "inverse")};
    rope.n = kvl_key_integer(L, 2, "n", a.width, 0, a.width);
    double theta = kvl_key_number(L, 2, "theta", 10000);
    a.pos0 = kvl_key_integer(L, 2, "pos0", 0, -FAR, FAR);
    a.stride = kvl_key_integer(L, 2, "stride", 1, 0, FAR);
    if (rope.n % 2 != 0)
        return luaL_error(L, "rope: n is %I, expected an even number", (LUAI_UACINT)rope.n);
    kvl_yarn yarn = {0};
    int at = kvl_key(L, 2, "yarn");
    bool scaled = !lua_isnil(L, at);
    if (scaled) {
        if (!lua_istable(L, at))
            return luaL_error(L, "rope: yarn is a %s, expected a table", luaL_typename(L, at));
        yarn.factor = kvl_key_number(L, at, "factor", 1);
        yarn.context = kvl_key_number(L, at, "context", 4096);
        yarn.beta_fast = kvl_key_number(L, at, "beta_fast", 32);
        yarn.beta_slow = kvl_key_number(L, at, "beta_slow", 1);
    }
    double *freq = lua_newuserdatauv(L, (size_t)(rope.n / 2 + 1) * sizeof *freq, 0);
    rope.freq = freq;
    if (rope.n > 0 && kvl_rope_freqs(freq, theta, scaled ? &yarn : NULL, rope.n, &err) != KVL_OK)
        return kvl_raise(L, &err);
    at = kvl_key(L, 2, "pos");
    if (!lua_isnil(L, at)) {
        a.pos = positions(L, at, &a);
        a.pos_step = a.tokens;
    }
    kvl_tensor **slot = kvl_push_tensor(L);
    x = kvl_named_tensor(L, 1, "rope: x");
    kvl_status status = kvl_tensor_clone(slot, x, &err);
    if (status == KVL_OK && rope.n > 0) {
        a.out = kvl_tensor_f32(*slot);
        a.x = kvl_tensor_f32(*slot);
        status = kvl_rope_apply(&rope, &a, &err);
    }
    return kvl_done(L, status, &err, 1);
}

static const luaL_Reg functions[] = {{"rms_norm", l_rms_norm},
                                     {"layer_norm", l_layer_norm},
                                     {"hadamard", l_hadamard},
                                     {"rope", l_rope},
                                     {NULL, NULL}};

void kvl_open_norm(lua_State *L) {
    kvl_open_part(L, "norm", functions);
}
