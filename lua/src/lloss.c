/* lloss.c - core.grad: cross-entropy; core.optim: AdamW and the norm of gradients. The rules for
 * safety are in lkvl.h. */
#include "lkvl.h"

/* --- cross-entropy ---------------------------------------------------------------------------- */

/* int32 labels {rows} at `arg`, without gaps. */
static void check_labels(lua_State *L, int arg, int64_t rows) {
    kvl_tensor *t = kvl_check_dims(L, arg, 1, "int32 labels {N}");
    if (t->dtype != KVL_INT32 || t->shape[0] != rows || !kvl_tensor_is_contiguous(t))
        kvl_shape_error(L, arg, "int32 labels, one a row, without gaps");
}

/* head_loss(x [N, width], weight [vocabulary, width], labels [N], scale, d_x, d_weight) -> loss
 * [N]; the gradients are those of scale * sum(loss) */
static int l_head_loss(lua_State *L) {
    kvl_error err;
    double scale = luaL_checknumber(L, 4);
    lua_settop(L, 6);
    kvl_need_rows(L, 1, true);
    kvl_need_rows(L, 2, true);
    kvl_tensor *x = kvl_check_dims(L, 1, 2, "x {N, width}"),
               *w = kvl_check_dims(L, 2, 2, "weight {vocabulary, width}");
    int64_t rows = x->shape[0], width = x->shape[1], vocabulary = w->shape[0];
    if (w->shape[1] != width) kvl_shape_error(L, 2, "weight with the width of x");
    check_labels(L, 3, rows);
    kvl_check_gradient(L, 5, 1);
    kvl_check_gradient(L, 6, 2);
    kvl_tensor **loss = kvl_push_tensor(L);
    if (kvl_tensor_new(loss, KVL_FLOAT32, 1, &rows, &err) != KVL_OK) return kvl_raise(L, &err);
    kvl_head_loss_args args = {.loss = kvl_tensor_f32(*loss),
                               .d_x = kvl_gradient(L, 5),
                               .d_weight = kvl_gradient(L, 6),
                               .d_x_step = width,
                               .d_weight_step = width,
                               .x = kvl_tensor_f32(kvl_check_tensor(L, 1)),
                               .weight = kvl_tensor_f32(kvl_check_tensor(L, 2)),
                               .x_step = width,
                               .weight_step = width,
                               .labels = kvl_tensor_i32(kvl_check_tensor(L, 3)),
                               .scale = (float)scale,
                               .rows = rows,
                               .width = width,
                               .vocabulary = vocabulary};
    return kvl_done(L, kvl_head_loss(&args, &err), &err, 1);
}

/* cross_entropy(logits [N, vocabulary], labels [N], scale) -> loss [N], d_logits (written) */
static int l_cross_entropy(lua_State *L) {
    kvl_error err;
    double scale = luaL_checknumber(L, 3);
    lua_settop(L, 3);
    kvl_need_rows(L, 1, true);
    kvl_tensor *x = kvl_check_dims(L, 1, 2, "logits {N, vocabulary}");
    int64_t shape[] = {x->shape[0], x->shape[1]};
    check_labels(L, 2, shape[0]);
    kvl_tensor **loss = kvl_push_tensor(L), **grad = kvl_push_tensor(L);
    if (kvl_tensor_new(loss, KVL_FLOAT32, 1, shape, &err) != KVL_OK ||
        kvl_tensor_new(grad, KVL_FLOAT32, 2, shape, &err) != KVL_OK)
        return kvl_raise(L, &err);
    kvl_cross_entropy_args args = {.loss = kvl_tensor_f32(*loss),
                                   .d_logits = kvl_tensor_f32(*grad),
                                   .d_logits_step = shape[1],
                                   .logits = kvl_tensor_f32(kvl_check_tensor(L, 1)),
                                   .logits_step = shape[1],
                                   .labels = kvl_tensor_i32(kvl_check_tensor(L, 2)),
                                   .scale = (float)scale,
                                   .rows = shape[0],
                                   .vocabulary = shape[1]};
    return kvl_done(L, kvl_cross_entropy(&args, &err), &err, 2);
}

/* --- optimisation ----------------------------------------------------------------------------- */

/* adamw(p, m, v, grad, lr, beta1, beta2, eps, decay, grad_scale, step): all four of one shape */
static int l_adamw(lua_State *L) {
    kvl_error err;
    kvl_adamw adamw = {.lr = luaL_checknumber(L, 5),
                       .beta1 = luaL_checknumber(L, 6),
                       .beta2 = luaL_checknumber(L, 7),
                       .eps = luaL_checknumber(L, 8),
                       .decay = luaL_checknumber(L, 9),
                       .grad_scale = luaL_checknumber(L, 10),
                       .step = luaL_checkinteger(L, 11)};
    lua_settop(L, 11);
    kvl_check_tensor(L, 1);
    for (int arg = 1; arg <= 4; arg++) {
        kvl_check_tensor(L, arg);
        kvl_check_gradient(L, arg, 1);
    }
    if (kvl_adamw_step(kvl_gradient(L, 1), kvl_gradient(L, 2), kvl_gradient(L, 3),
                       kvl_gradient(L, 4), &adamw, kvl_tensor_numel(kvl_check_tensor(L, 1)),
                       &err) != KVL_OK)
        return kvl_raise(L, &err);
    return 0;
}

/* The tensors of the list at stack index 1, float32 without gaps, in a block on top of the stack.
 */
static kvl_floats *check_list(lua_State *L, int64_t *count) {
    luaL_checktype(L, 1, LUA_TTABLE);
    *count = (int64_t)lua_rawlen(L, 1);
    luaL_argcheck(L, *count <= 1 << 20, 1, "too many tensors");
    kvl_floats *list = lua_newuserdatauv(L, (size_t)(*count + 1) * sizeof *list, 0);
    for (int64_t i = 0; i < *count; i++) {
        lua_rawgeti(L, 1, i + 1);
        if (!kvl_is_tensor(L, -1)) luaL_error(L, "item %d is no tensor", (int)i + 1);
        kvl_check_gradient(L, lua_gettop(L), lua_gettop(L));
        kvl_tensor *t = kvl_check_tensor(L, -1);
        list[i] = (kvl_floats){kvl_tensor_f32(t), kvl_tensor_numel(t)};
        lua_pop(L, 1);
    }
    return list;
}

/* global_norm(list of tensors) -> sqrt of the sum of all squares */
static int l_global_norm(lua_State *L) {
    kvl_error err;
    int64_t count;
    double norm;
    kvl_floats *list = check_list(L, &count);
    if (kvl_global_norm(&norm, list, count, &err) != KVL_OK) return kvl_raise(L, &err);
    lua_pushnumber(L, norm);
    return 1;
}

/* clip_scale(norm, max) -> the factor that brings norm down to max */
static int l_clip_scale(lua_State *L) {
    lua_pushnumber(L, kvl_clip_scale(luaL_checknumber(L, 1), luaL_checknumber(L, 2)));
    return 1;
}

/* scale(list of tensors, factor), in place */
static int l_scale(lua_State *L) {
    kvl_error err;
    int64_t count;
    double factor = luaL_checknumber(L, 2);
    kvl_floats *list = check_list(L, &count);
    if (kvl_scale_all(list, count, (float)factor, &err) != KVL_OK) return kvl_raise(L, &err);
    return 0;
}

void kvl_open_loss(lua_State *L) {
    static const luaL_Reg losses[] = {
        {"head_loss", l_head_loss}, {"cross_entropy", l_cross_entropy}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"adamw", l_adamw},
                                         {"global_norm", l_global_norm},
                                         {"clip_scale", l_clip_scale},
                                         {"scale", l_scale},
                                         {NULL, NULL}};
    lua_getfield(L, -1, "grad");
    luaL_setfuncs(L, losses, 0);
    lua_pop(L, 1);
    kvl_open_part(L, "optim", functions);
}
