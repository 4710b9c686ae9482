/* lcompress.c - core.compress: the Compressor, which pools tokens into entries for a batch of
 * sequences that go in step. The rules for safety are in lkvl.h. */
#include "lkvl.h"

#include <string.h>

#define COMPRESSOR "kvlab.Compressor"

/* The states of a batch of sequences that go in step. */
typedef struct compressor {
    int64_t batch, width, row; /* row: columns of candidates and scores */
    int64_t ratio;
    kvl_compress_state *state[];
} compressor;

static compressor *check_compressor(lua_State *L, int arg) {
    compressor *c = luaL_checkudata(L, arg, COMPRESSOR);
    if (c->batch > 0 && !c->state[0]) luaL_argerror(L, arg, "the compressor was freed");
    return c;
}

static compressor *push_compressor(lua_State *L, int64_t batch) {
    compressor *c = lua_newuserdatauv(L, sizeof *c + (size_t)batch * sizeof *c->state, 1);
    memset(c, 0, sizeof *c + (size_t)batch * sizeof *c->state);
    c->batch = batch;
    luaL_setmetatable(L, COMPRESSOR);
    return c;
}

/* compressor(ratio, width, overlap, bias or nil [ratio, row], rollback, batch) */
static int l_compressor(lua_State *L) {
    kvl_error err;
    int64_t ratio = luaL_checkinteger(L, 1), width = luaL_checkinteger(L, 2),
            rollback = luaL_checkinteger(L, 5), batch = luaL_checkinteger(L, 6);
    bool overlap = lua_toboolean(L, 3);
    luaL_argcheck(L, ratio >= 1 && ratio <= INT32_MAX, 1, "the ratio must be 1 or more tokens");
    luaL_argcheck(L, width >= 1 && width <= INT32_MAX / 2, 2, "the width must be 1 or more channels");
    luaL_argcheck(L, batch >= 1 && batch <= 1 << 20, 6, "batch must be 1 or more");
    lua_settop(L, 6);
    if (!lua_isnil(L, 4)) {
        kvl_need_rows(L, 4, true);
        kvl_tensor *bias = kvl_check_dims(L, 4, 2, "a bias {ratio, row}");
        if (bias->shape[0] != ratio || bias->shape[1] != width * (overlap ? 2 : 1))
            kvl_shape_error(L, 4, "a bias {ratio, row}");
    }
    compressor *c = push_compressor(L, batch);
    c->width = width;
    c->row = width * (overlap ? 2 : 1);
    c->ratio = ratio;
    if (!lua_isnil(L, 4)) { /* a view of its own: the caller may free his tensor */
        kvl_tensor **view = kvl_push_tensor(L);
        if (kvl_tensor_view(view, kvl_check_tensor(L, 4), &err) != KVL_OK) return kvl_raise(L, &err);
        lua_setiuservalue(L, -2, 1);
    }
    kvl_compressor comp = {ratio, width, overlap, NULL};
    for (int64_t b = 0; b < batch; b++)
        if (kvl_compress_state_new(&c->state[b], &comp, rollback, &err) != KVL_OK)
            return kvl_raise(L, &err);
    return 1;
}

/* c:push(candidates [B, T, row], scores [B, T, row] or nil) -> entries [B, completed, width] */
static int compressor_push(lua_State *L) {
    kvl_error err;
    compressor *c = check_compressor(L, 1);
    lua_settop(L, 3);
    kvl_need_rows(L, 2, true);
    kvl_tensor *x = kvl_check_dims(L, 2, 3, "candidates {B, T, row}");
    if (x->shape[0] != c->batch || x->shape[2] != c->row)
        kvl_shape_error(L, 2,
                        lua_pushfstring(L, "candidates {%I, T, %I}", (LUAI_UACINT)c->batch,
                                        (LUAI_UACINT)c->row));
    if (!lua_isnil(L, 3)) {
        kvl_need_rows(L, 3, true);
        kvl_tensor *z = kvl_check_dims(L, 3, 3, "scores {B, T, row}");
        x = kvl_check_tensor(L, 2);
        for (int d = 0; d < 3; d++)
            if (z->shape[d] != x->shape[d])
                kvl_shape_error(L, 3, "scores of the shape of the candidates");
    }
    int bias = lua_getiuservalue(L, 1, 1) == LUA_TUSERDATA ? lua_gettop(L) : 0;
    kvl_tensor **slot = kvl_push_tensor(L);
    c = check_compressor(L, 1); /* what ran meanwhile may have freed it */
    x = kvl_check_tensor(L, 2);
    int64_t T = x->shape[1], position = kvl_compress_position(c->state[0]);
    int64_t shape[] = {c->batch, (position + T) / c->ratio - position / c->ratio, c->width};
    if (kvl_tensor_new(slot, KVL_FLOAT32, 3, shape, &err) != KVL_OK) return kvl_raise(L, &err);
    const float *z = kvl_vector(L, 3), *b0 = bias ? kvl_vector(L, bias) : NULL;
    kvl_rows cand = {kvl_tensor_f32(x), T * c->row, c->row, 0}, score = {z, T * c->row, c->row, 0};
    return kvl_done(L,
                    kvl_compress_push_batch(kvl_tensor_f32(*slot), c->state, c->batch, b0, cand,
                                            score, T, &err),
                    &err, 1);
}

static int compressor_rollback(lua_State *L) {
    kvl_error err;
    compressor *c = check_compressor(L, 1);
    int64_t n = luaL_checkinteger(L, 2);
    for (int64_t b = 0; b < c->batch; b++)
        if (kvl_compress_rollback(c->state[b], n, &err) != KVL_OK) return kvl_raise(L, &err);
    return 0;
}

static int compressor_copy(lua_State *L) {
    kvl_error err;
    compressor *c = check_compressor(L, 1), *copy = push_compressor(L, c->batch);
    copy->width = c->width, copy->row = c->row, copy->ratio = c->ratio;
    lua_getiuservalue(L, 1, 1);
    lua_setiuservalue(L, -2, 1);
    c = check_compressor(L, 1);
    for (int64_t b = 0; b < c->batch; b++)
        if (kvl_compress_state_copy(&copy->state[b], c->state[b], &err) != KVL_OK)
            return kvl_raise(L, &err);
    return 1;
}

static int compressor_position(lua_State *L) {
    lua_pushinteger(L, kvl_compress_position(check_compressor(L, 1)->state[0]));
    return 1;
}

static int compressor_bytes(lua_State *L, size_t (*bytes)(const kvl_compress_state *)) {
    compressor *c = check_compressor(L, 1);
    lua_Integer sum = 0;
    for (int64_t b = 0; b < c->batch; b++)
        sum += (lua_Integer)bytes(c->state[b]);
    lua_pushinteger(L, sum);
    return 1;
}

static int compressor_state_bytes(lua_State *L) {
    return compressor_bytes(L, kvl_compress_state_bytes);
}

static int compressor_rollback_bytes(lua_State *L) {
    return compressor_bytes(L, kvl_compress_rollback_bytes);
}

static int compressor_free(lua_State *L) {
    compressor *c = luaL_checkudata(L, 1, COMPRESSOR);
    for (int64_t b = 0; b < c->batch; b++) {
        kvl_compress_state_free(c->state[b]);
        c->state[b] = NULL;
    }
    return 0;
}

static int compressor_tostring(lua_State *L) {
    compressor *c = check_compressor(L, 1);
    lua_pushfstring(L, "%s: %I tokens to entries of %I channels, %I tokens so far", COMPRESSOR,
                    (LUAI_UACINT)c->ratio, (LUAI_UACINT)c->width,
                    (LUAI_UACINT)kvl_compress_position(c->state[0]));
    return 1;
}

void kvl_open_compress(lua_State *L) {
    static const luaL_Reg functions[] = {{"compressor", l_compressor}, {NULL, NULL}};
    static const luaL_Reg events[] = {{"__gc", compressor_free},
                                      {"__close", compressor_free},
                                      {"__tostring", compressor_tostring},
                                      {NULL, NULL}};
    static const luaL_Reg methods[] = {{"push", compressor_push},
                                       {"rollback", compressor_rollback},
                                       {"copy", compressor_copy},
                                       {"position", compressor_position},
                                       {"state_bytes", compressor_state_bytes},
                                       {"rollback_bytes", compressor_rollback_bytes},
                                       {"free", compressor_free},
                                       {NULL, NULL}};
    kvl_open_part(L, "compress", functions);
    lua_getfield(L, -1, "compress");
    kvl_new_class(L, COMPRESSOR, events, methods);
    lua_setfield(L, -2, "methods");
    lua_pop(L, 1);
}
