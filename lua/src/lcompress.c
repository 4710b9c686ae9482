/* lcompress.c - core.compress: pooling of whole sequences, and the Compressor object that takes
 * tokens as they come. */
#include "lkvl.h"

#include <string.h>

#define COMPRESSOR "kvlab.Compressor"

enum { FAR = 1 << 30 };

typedef struct compressor {
    kvl_compress_state *state; /* NULL: freed, or not yet made */
    kvl_tensor *bias;          /* own copy (ratio, row), or NULL */
    kvl_compressor spec;
} compressor;

static int64_t row_width(const kvl_compressor *spec) {
    return spec->overlap ? 2 * spec->width : spec->width;
}

/* c and z ({batch,} tokens, row) are at 1 and 2 (z may be nil); checks them against each other. */
static void check_rows(lua_State *L, const char *what, const kvl_tensor *c, const kvl_tensor *z,
                       int64_t row, int least, int most) {
    char ta[KVL_SHAPE_TEXT], tb[KVL_SHAPE_TEXT];
    if (c->ndim < least || c->ndim > most || c->shape[c->ndim - 1] != row)
        luaL_error(L, "%s: c has shape %s, expected {%stokens, %I}", what,
                   kvl_shape_text(ta, c->ndim, c->shape), most == 3 ? "[batch,] " : "",
                   (LUAI_UACINT)row);
    if (z &&
        (z->ndim != c->ndim || memcmp(z->shape, c->shape, (size_t)c->ndim * sizeof *c->shape) != 0))
        luaL_error(L, "%s: c has shape %s, z has %s: they must be equal", what,
                   kvl_shape_text(ta, c->ndim, c->shape), kvl_shape_text(tb, z->ndim, z->shape));
}

static kvl_rows rows_of(const kvl_tensor *t) {
    kvl_rows r = {0};
    if (!t) return r;
    r.p = kvl_tensor_f32(t);
    r.step_s = t->stride[t->ndim - 2];
    r.step_b = t->ndim == 3 ? t->stride[0] : 0;
    return r;
}

static const float *check_bias(lua_State *L, const kvl_tensor *bias, const kvl_compressor *spec) {
    char text[KVL_SHAPE_TEXT];
    if (bias->ndim != 2 || bias->shape[0] != spec->ratio || bias->shape[1] != row_width(spec))
        luaL_error(L, "compress: bias has shape %s, expected {%I, %I}",
                   kvl_shape_text(text, bias->ndim, bias->shape), (LUAI_UACINT)spec->ratio,
                   (LUAI_UACINT)row_width(spec));
    return kvl_tensor_f32(bias);
}

/* compress(c, z or nil, {ratio =, overlap =, bias =}) -> entries ({batch,} tokens // ratio, width)
 */
static int l_compress(lua_State *L) {
    kvl_error err;
    lua_settop(L, 3);
    luaL_checktype(L, 3, LUA_TTABLE);
    kvl_compressor spec = {.ratio = kvl_key_integer(L, 3, "ratio", -1, 1, FAR),
                           .overlap = kvl_key_flag(L, 3, "overlap")};
    kvl_to_rows(L, 1, "compress: c", false);
    if (!lua_isnil(L, 2)) kvl_to_rows(L, 2, "compress: z", false);
    int bias_at = kvl_key(L, 3, "bias");
    if (!lua_isnil(L, bias_at)) kvl_to_rows(L, bias_at, "compress: bias", true);
    kvl_tensor **out = kvl_push_tensor(L);

    kvl_tensor *c = kvl_named_tensor(L, 1, "compress: c");
    kvl_tensor *z = lua_isnil(L, 2) ? NULL : kvl_named_tensor(L, 2, "compress: z");
    int64_t row = c->shape[c->ndim - 1];
    check_rows(L, "compress", c, z, row, 2, 3);
    if (spec.overlap && row % 2 != 0)
        return luaL_error(L, "compress: rows of %I channels, overlapping ones have an even number",
                          (LUAI_UACINT)row);
    spec.width = spec.overlap ? row / 2 : row;
    if (spec.width < 1) return luaL_error(L, "compress: rows have no channels");
    if (!lua_isnil(L, bias_at))
        spec.bias = check_bias(L, kvl_named_tensor(L, bias_at, "compress: bias"), &spec);
    int dim = c->ndim - 2;
    int64_t shape[3] = {c->shape[0], 0, 0};
    shape[dim] = c->shape[dim] / spec.ratio;
    shape[dim + 1] = spec.width;
    kvl_status status = kvl_tensor_new(out, KVL_FLOAT32, c->ndim, shape, &err);
    if (status == KVL_OK && kvl_tensor_numel(*out) > 0)
        status = kvl_compress(kvl_tensor_f32(*out), &spec, rows_of(c), rows_of(z),
                              c->ndim == 3 ? c->shape[0] : 1, c->shape[dim], &err);
    return kvl_done(L, status, &err, 1);
}

static compressor *push_compressor(lua_State *L) {
    compressor *x = lua_newuserdatauv(L, sizeof *x, 0);
    memset(x, 0, sizeof *x);
    luaL_setmetatable(L, COMPRESSOR);
    return x;
}

static compressor *check_compressor(lua_State *L) {
    compressor *x = luaL_checkudata(L, 1, COMPRESSOR);
    if (!x->state) luaL_argerror(L, 1, "the compressor was freed");
    return x;
}

/* compressor{ratio =, width =, overlap =, bias =, rollback =} */
static int l_compressor(lua_State *L) {
    kvl_error err;
    lua_settop(L, 1);
    luaL_checktype(L, 1, LUA_TTABLE);
    kvl_compressor spec = {.ratio = kvl_key_integer(L, 1, "ratio", -1, 1, FAR),
                           .width = kvl_key_integer(L, 1, "width", -1, 1, FAR),
                           .overlap = kvl_key_flag(L, 1, "overlap")};
    int64_t rollback = kvl_key_integer(L, 1, "rollback", 0, 0, FAR);
    int bias_at = kvl_key(L, 1, "bias");
    if (!lua_isnil(L, bias_at)) kvl_to_rows(L, bias_at, "compress: bias", true);
    compressor *x = push_compressor(L);
    x->spec = spec;
    kvl_status status = KVL_OK;
    if (!lua_isnil(L, bias_at)) {
        kvl_tensor *bias = kvl_named_tensor(L, bias_at, "compress: bias");
        check_bias(L, bias, &spec);
        status = kvl_tensor_clone(&x->bias, bias, &err);
    }
    if (status == KVL_OK) status = kvl_compress_state_new(&x->state, &spec, rollback, &err);
    return status == KVL_OK ? 1 : kvl_raise(L, &err);
}

/* c:push(rows [, scores]) -> the entries that these tokens complete ({n, width}) */
static int c_push(lua_State *L) {
    kvl_error err;
    lua_settop(L, 3);
    check_compressor(L);
    kvl_to_rows(L, 2, "compress: c", false);
    if (!lua_isnil(L, 3)) kvl_to_rows(L, 3, "compress: z", false);
    kvl_tensor **out = kvl_push_tensor(L);
    compressor *x = check_compressor(L);
    kvl_tensor *c = kvl_named_tensor(L, 2, "compress: c");
    kvl_tensor *z = lua_isnil(L, 3) ? NULL : kvl_named_tensor(L, 3, "compress: z");
    check_rows(L, "compress", c, z, row_width(&x->spec), 2, 2);
    int64_t n = c->shape[0], at = kvl_compress_position(x->state);
    int64_t shape[2] = {(at + n) / x->spec.ratio - at / x->spec.ratio, x->spec.width};
    kvl_status status = kvl_tensor_new(out, KVL_FLOAT32, 2, shape, &err);
    if (status == KVL_OK)
        status = kvl_compress_push(kvl_tensor_f32(*out), x->state,
                                   x->bias ? kvl_tensor_f32(x->bias) : NULL, rows_of(c), rows_of(z),
                                   n, &err);
    return kvl_done(L, status, &err, 1);
}

static int c_rollback(lua_State *L) {
    kvl_error err;
    lua_Integer n = luaL_checkinteger(L, 2);
    luaL_argcheck(L, n >= 0, 2, "tokens to take back: 0 or more");
    if (kvl_compress_rollback(check_compressor(L)->state, n, &err) != KVL_OK)
        return kvl_raise(L, &err);
    lua_settop(L, 1);
    return 1;
}

static int c_copy(lua_State *L) {
    kvl_error err;
    compressor *to = push_compressor(L), *from = check_compressor(L);
    to->spec = from->spec;
    kvl_status status = from->bias ? kvl_tensor_view(&to->bias, from->bias, &err) : KVL_OK;
    if (status == KVL_OK) status = kvl_compress_state_copy(&to->state, from->state, &err);
    return status == KVL_OK ? 1 : kvl_raise(L, &err);
}

static int c_position(lua_State *L) {
    lua_pushinteger(L, kvl_compress_position(check_compressor(L)->state));
    return 1;
}

/* c:bytes() -> what any implementation has to remember, what the rollback adds to it */
static int c_bytes(lua_State *L) {
    compressor *x = check_compressor(L);
    lua_pushinteger(L, (lua_Integer)kvl_compress_state_bytes(x->state));
    lua_pushinteger(L, (lua_Integer)kvl_compress_rollback_bytes(x->state));
    return 2;
}

static int c_free(lua_State *L) {
    compressor *x = luaL_checkudata(L, 1, COMPRESSOR);
    kvl_compress_state_free(x->state);
    kvl_tensor_free(x->bias);
    x->state = NULL;
    x->bias = NULL;
    return 0;
}

static int c_tostring(lua_State *L) {
    compressor *x = luaL_checkudata(L, 1, COMPRESSOR);
    if (!x->state)
        lua_pushliteral(L, "Compressor (freed)");
    else
        lua_pushfstring(L, "Compressor (%s%d tokens to one of width %d, at token %I)",
                        x->spec.overlap ? "overlapping, " : "", (int)x->spec.ratio,
                        (int)x->spec.width, (LUAI_UACINT)kvl_compress_position(x->state));
    return 1;
}

static const luaL_Reg methods[] = {
    {"push", c_push},   {"rollback", c_rollback}, {"copy", c_copy},  {"position", c_position},
    {"bytes", c_bytes}, {"free", c_free},         {"close", c_free}, {NULL, NULL},
};

static const luaL_Reg meta[] = {
    {"__gc", c_free},
    {"__close", c_free},
    {"__tostring", c_tostring},
    {NULL, NULL},
};

static const luaL_Reg functions[] = {
    {"compress", l_compress},
    {"compressor", l_compressor},
    {NULL, NULL},
};

void kvl_open_compress(lua_State *L) {
    luaL_newmetatable(L, COMPRESSOR);
    luaL_setfuncs(L, meta, 0);
    lua_pushliteral(L, COMPRESSOR);
    lua_setfield(L, -2, "__metatable");
    luaL_newlib(L, methods);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "__index");
    lua_remove(L, -2);
    lua_insert(L, -2);
    kvl_open_part(L, "compress", functions);
    lua_getfield(L, -1, "compress");
    lua_pushvalue(L, -3);
    lua_setfield(L, -2, "methods");
    lua_pop(L, 1);
    lua_remove(L, -2);
}
