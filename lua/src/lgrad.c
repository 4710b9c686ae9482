/* lgrad.c - core.grad: gradients of norms, activations, embedding, linear layers and compressors.
 *
 * Every function is given d_out, the inputs of the forward, and places for gradients, which are nil
 * or tensors that the gradient is ADDED to; those of activations take the place of d_out. The tape
 * (lua/kvlab/tape.lua) is their caller; shapes are checked here all the same. The rules for safety
 * are in lkvl.h.
 */
#include "lkvl.h"

/* The arguments a and b have the same sizes. */
static void check_same(lua_State *L, int a, int b, const char *want) {
    kvl_tensor *x = kvl_check_tensor(L, a), *y = kvl_check_tensor(L, b);
    bool same = x->ndim == y->ndim;
    for (int d = 0; same && d < x->ndim; d++)
        same = x->shape[d] == y->shape[d];
    if (!same) kvl_shape_error(L, a, want);
}

/* The last size of the tensor at `arg`, which gets no gaps. */
static int64_t whole_last(lua_State *L, int arg) {
    kvl_need_rows(L, arg, true);
    kvl_tensor *x = kvl_check_tensor(L, arg);
    if (x->ndim == 0 || x->shape[x->ndim - 1] == 0)
        kvl_shape_error(L, arg, "a tensor with a last dimension");
    return x->shape[x->ndim - 1];
}

static const float *floats(lua_State *L, int arg) {
    return kvl_tensor_f32(kvl_check_tensor(L, arg));
}

static int ended(lua_State *L, kvl_status status, const kvl_error *err) {
    return status == KVL_OK ? 0 : kvl_raise(L, err);
}

/* A vector gradient {n} at arg, or nil. */
static void check_vector_gradient(lua_State *L, int arg, int64_t n) {
    if (lua_isnoneornil(L, arg)) return;
    kvl_tensor *g = kvl_check_tensor(L, arg);
    if (g->ndim != 1 || g->shape[0] != n)
        kvl_shape_error(L, arg, "a gradient of the last size of x");
    kvl_check_gradient(L, arg, arg);
}

/* --- norms ------------------------------------------------------------------------------------ */

/* rms_norm(d_out, x, weight or nil, eps, d_x, d_weight) and
 * layer_norm(d_out, x, weight or nil, eps, d_x, d_weight, d_bias) */
static int norm(lua_State *L, bool layer) {
    kvl_error err;
    float eps = (float)luaL_checknumber(L, 4);
    lua_settop(L, 7);
    int64_t n = whole_last(L, 2);
    kvl_need_rows(L, 1, true);
    check_same(L, 1, 2, "d_out of the shape of x");
    kvl_check_vector(L, 3, n);
    kvl_check_gradient(L, 5, 2);
    check_vector_gradient(L, 6, n);
    check_vector_gradient(L, 7, n);
    kvl_norm_grad_args args = {.d_x = kvl_gradient(L, 5),
                               .d_x_step = n,
                               .d_weight = kvl_gradient(L, 6),
                               .d_bias = layer ? kvl_gradient(L, 7) : NULL,
                               .d_out = floats(L, 1),
                               .d_out_step = n,
                               .x = floats(L, 2),
                               .x_step = n,
                               .weight = kvl_vector(L, 3),
                               .eps = eps,
                               .rows = kvl_tensor_numel(kvl_check_tensor(L, 2)) / n,
                               .n = n};
    return ended(L, layer ? kvl_layer_norm_grad(&args, &err) : kvl_rms_norm_grad(&args, &err),
                 &err);
}

static int l_rms_norm(lua_State *L) {
    return norm(L, false);
}

static int l_layer_norm(lua_State *L) {
    return norm(L, true);
}

/* --- activations ------------------------------------------------------------------------------ */

/* unary(name, d, x): the gradient d of f(x) becomes that of x, in place */
static int l_unary(lua_State *L) {
    static const char *const names[] = {"relu", "sigmoid", "silu", "gelu", NULL};
    static const kvl_unary_op ops[] = {KVL_RELU, KVL_SIGMOID, KVL_SILU, KVL_GELU};
    kvl_error err;
    kvl_unary_op op = ops[luaL_checkoption(L, 1, NULL, names)];
    lua_settop(L, 3);
    kvl_need_rows(L, 3, true);
    kvl_check_tensor(L, 2);
    kvl_check_gradient(L, 2, 3);
    return ended(L,
                 kvl_unary_grad(kvl_gradient(L, 2), op, floats(L, 3),
                                kvl_tensor_numel(kvl_check_tensor(L, 3)), &err),
                 &err);
}

/* swiglu(gate, up) -> silu(gate) * up, the forward in one pass */
static int l_swiglu(lua_State *L) {
    kvl_error err;
    lua_settop(L, 2);
    int64_t n = whole_last(L, 1);
    kvl_need_rows(L, 2, true);
    check_same(L, 2, 1, "up of the shape of gate");
    kvl_tensor **out = kvl_push_tensor(L), *gate = kvl_check_tensor(L, 1);
    if (kvl_tensor_new_raw(out, KVL_FLOAT32, gate->ndim, gate->shape, &err) != KVL_OK)
        return kvl_raise(L, &err);
    kvl_swiglu_args args = {.out = kvl_tensor_f32(*out),
                            .out_step = n,
                            .gate = floats(L, 1),
                            .up = floats(L, 2),
                            .gate_step = n,
                            .up_step = n,
                            .rows = kvl_tensor_numel(gate) / n,
                            .n = n};
    return kvl_done(L, kvl_swiglu(&args, &err), &err, 1);
}

/* swiglu_grad(d, gate, up) -> d_up; the gradient d of the result becomes that of gate, in place */
static int l_swiglu_grad(lua_State *L) {
    kvl_error err;
    lua_settop(L, 3);
    int64_t n = whole_last(L, 2);
    kvl_need_rows(L, 3, true);
    check_same(L, 3, 2, "up of the shape of gate");
    kvl_check_tensor(L, 1);
    kvl_check_gradient(L, 1, 2);
    kvl_tensor **d_up = kvl_push_tensor(L), *gate = kvl_check_tensor(L, 2);
    if (kvl_tensor_new_raw(d_up, KVL_FLOAT32, gate->ndim, gate->shape, &err) != KVL_OK)
        return kvl_raise(L, &err);
    kvl_swiglu_args args = {.d = kvl_gradient(L, 1),
                            .d_step = n,
                            .d_up = kvl_tensor_f32(*d_up),
                            .d_up_step = n,
                            .gate = floats(L, 2),
                            .up = floats(L, 3),
                            .gate_step = n,
                            .up_step = n,
                            .rows = kvl_tensor_numel(gate) / n,
                            .n = n};
    return kvl_done(L, kvl_swiglu_grad(&args, &err), &err, 1);
}

/* --- weights ---------------------------------------------------------------------------------- */

/* embedding(d_out (ids..., width), ids, d_weight [vocabulary, width]) */
static int l_embedding(lua_State *L) {
    kvl_error err;
    lua_settop(L, 3);
    int64_t width = whole_last(L, 1);
    kvl_tensor *w = kvl_check_dims(L, 3, 2, "d_weight {vocabulary, width}");
    if (w->shape[1] != width) kvl_shape_error(L, 3, "d_weight with the width of d_out");
    kvl_check_gradient(L, 3, 3);
    kvl_tensor *ids = kvl_check_tensor(L, 2);
    if (ids->dtype != KVL_INT32) luaL_argerror(L, 2, "expected int32 ids");
    kvl_tensor **whole = kvl_push_tensor(L);
    if (kvl_tensor_contiguous(whole, kvl_check_tensor(L, 2), &err) != KVL_OK)
        return kvl_raise(L, &err);
    int64_t n = kvl_tensor_numel(*whole);
    if (kvl_tensor_numel(kvl_check_tensor(L, 1)) != n * width)
        kvl_shape_error(L, 1, "a row of d_out for each id");
    w = kvl_check_tensor(L, 3);
    return ended(L,
                 kvl_embedding_grad(kvl_tensor_f32(w), width, kvl_tensor_i32(*whole), floats(L, 1),
                                    width, n, w->shape[0], width, &err),
                 &err);
}

/* weight(d_out (..., out), x (..., in), d_weight [out, in]): d_weight += d_out^T x */
static int l_weight(lua_State *L) {
    kvl_error err;
    lua_settop(L, 3);
    int64_t outputs = whole_last(L, 1), inputs = whole_last(L, 2);
    kvl_tensor *w = kvl_check_dims(L, 3, 2, "d_weight {out, in}");
    if (w->shape[0] != outputs || w->shape[1] != inputs)
        kvl_shape_error(L, 3, "d_weight {last size of d_out, last size of x}");
    kvl_check_gradient(L, 3, 3);
    int64_t rows = kvl_tensor_numel(kvl_check_tensor(L, 1)) / outputs;
    if (kvl_tensor_numel(kvl_check_tensor(L, 2)) / inputs != rows)
        kvl_shape_error(L, 2, "x with as many rows as d_out");
    kvl_mat a = {floats(L, 1), outputs, true, 0}, b = {floats(L, 2), inputs, false, 0};
    return ended(L, kvl_gemm_deep(kvl_gradient(L, 3), inputs, a, b, 1, outputs, inputs, rows, &err),
                 &err);
}

/* input(d_out (..., out), weight [out, in], d_x (..., in)): d_x += d_out weight */
static int l_input(lua_State *L) {
    kvl_error err;
    lua_settop(L, 3);
    int64_t outputs = whole_last(L, 1), inputs = whole_last(L, 2);
    kvl_tensor *w = kvl_check_dims(L, 2, 2, "a weight {out, in}");
    if (w->shape[0] != outputs) kvl_shape_error(L, 2, "a weight {last size of d_out, in}");
    kvl_check_gradient(L, 3, 3);
    kvl_tensor *x = kvl_check_tensor(L, 3);
    int64_t rows = kvl_tensor_numel(kvl_check_tensor(L, 1)) / outputs;
    if (x->ndim == 0 || x->shape[x->ndim - 1] != inputs || kvl_tensor_numel(x) / inputs != rows)
        kvl_shape_error(L, 3, "d_x with as many rows as d_out and the last size of the weight");
    kvl_mat a = {floats(L, 1), outputs, false, 0}, b = {floats(L, 2), inputs, false, 0};
    return ended(L, kvl_gemm(kvl_gradient(L, 3), inputs, a, b, 1, 1, rows, inputs, outputs, &err),
                 &err);
}

/* --- compressors ------------------------------------------------------------------------------ */

/* compress(d_out [B, entries, width], ratio, overlap, bias [ratio, row] or nil, c, z [B, T, row],
 * d_c, d_z, d_bias) */
static int l_compress(lua_State *L) {
    kvl_error err;
    int64_t ratio = luaL_checkinteger(L, 2);
    bool overlap = lua_toboolean(L, 3);
    luaL_argcheck(L, ratio >= 1 && ratio <= INT32_MAX, 2, "the ratio must be 1 or more tokens");
    lua_settop(L, 9);
    int64_t width = whole_last(L, 1);
    kvl_need_rows(L, 5, true);
    kvl_need_rows(L, 6, true);
    kvl_tensor *out = kvl_check_dims(L, 1, 3, "d_out {B, entries, width}"),
               *c = kvl_check_dims(L, 5, 3, "candidates {B, T, row}");
    int64_t B = c->shape[0], T = c->shape[1], row = c->shape[2];
    if (row != width * (overlap ? 2 : 1) || out->shape[0] != B || out->shape[1] != T / ratio)
        kvl_shape_error(L, 1, "d_out {B, T / ratio, width} for these candidates");
    check_same(L, 6, 5, "scores of the shape of the candidates");
    if (!lua_isnil(L, 4)) {
        kvl_need_rows(L, 4, true);
        kvl_tensor *bias = kvl_check_dims(L, 4, 2, "a bias {ratio, row}");
        if (bias->shape[0] != ratio || bias->shape[1] != row)
            kvl_shape_error(L, 4, "a bias {ratio, row}");
        kvl_check_gradient(L, 9, 4);
    } else if (!lua_isnil(L, 9)) {
        luaL_argerror(L, 9, "a gradient of the bias, but there is none");
    }
    kvl_check_gradient(L, 7, 5);
    kvl_check_gradient(L, 8, 5);
    kvl_compressor comp = {ratio, width, overlap, kvl_vector(L, 4)};
    kvl_rows_grad d_c = {kvl_gradient(L, 7), T * row, row, 0},
                  d_z = {kvl_gradient(L, 8), T * row, row, 0};
    kvl_rows cand = {floats(L, 5), T * row, row, 0}, score = {floats(L, 6), T * row, row, 0};
    return ended(L,
                 kvl_compress_grad(d_c, d_z, kvl_gradient(L, 9), &comp, floats(L, 1), cand, score,
                                   B, T, &err),
                 &err);
}

void kvl_open_grad(lua_State *L) {
    static const luaL_Reg functions[] = {{"rms_norm", l_rms_norm},
                                         {"layer_norm", l_layer_norm},
                                         {"unary", l_unary},
                                         {"swiglu", l_swiglu},
                                         {"swiglu_grad", l_swiglu_grad},
                                         {"embedding", l_embedding},
                                         {"weight", l_weight},
                                         {"input", l_input},
                                         {"compress", l_compress},
                                         {NULL, NULL}};
    kvl_open_part(L, "grad", functions);
}
