/* lattend_grad.c - core.grad: gradients of attend, attention mass, and how an indexer learns from
 * it. As in lgrad.c, places for gradients are nil or tensors that are added to. The rules for
 * safety are in lkvl.h. */
#include "lattend.h"

/* Queries, sources and lse as attend had them: stack indices of its arguments. */
typedef struct attended {
    int q, sources, lse;
    double scale;
    int64_t pos0;
} attended;

static int64_t check_pos0(lua_State *L, int arg) {
    int64_t pos0 = luaL_checkinteger(L, arg);
    luaL_argcheck(L, pos0 >= 0 && pos0 <= (int64_t)1 << 50, arg,
                  "a position is a whole number, 0 or more");
    return pos0;
}

/* Checks q and lse and pushes the sources, which must be tensors. */
static void push_attended(lua_State *L, const attended *a, kvl_source_list *call) {
    kvl_need_rows(L, a->q, true);
    kvl_need_rows(L, a->lse, true);
    kvl_tensor *q = kvl_check_dims(L, a->q, 4, "q {B, T, H, width}");
    kvl_tensor *lse = kvl_check_dims(L, a->lse, 3, "lse {B, T, H}");
    for (int d = 0; d < 3; d++)
        if (lse->shape[d] != q->shape[d]) kvl_shape_error(L, a->lse, "lse with the {B, T, H} of q");
    kvl_push_sources(L, a->sources, call);
    for (int64_t i = 0; i < call->n; i++)
        if (call->slots[i].reader)
            luaL_error(L, "source %d reads tables; gradients need tensors", (int)i + 1);
}

static kvl_attend_args fill_attended(lua_State *L, const attended *a, kvl_source_list *call,
                                     int64_t value_width) {
    kvl_tensor *q = kvl_check_tensor(L, a->q);
    int64_t B = q->shape[0], T = q->shape[1], H = q->shape[2], key_width = q->shape[3];
    kvl_fill_sources(L, call, B, T, key_width, value_width);
    return (kvl_attend_args){.lse = kvl_tensor_f32(kvl_check_tensor(L, a->lse)),
                             .q = kvl_tensor_f32(kvl_check_tensor(L, a->q)),
                             .q_step_b = T * H * key_width,
                             .q_step_t = H * key_width,
                             .q_step_h = key_width,
                             .scale = (float)a->scale,
                             .q_pos0 = a->pos0,
                             .sources = call->sources,
                             .n_sources = call->n,
                             .batch = B,
                             .queries = T,
                             .heads = H,
                             .key_width = key_width,
                             .value_width = value_width};
}

/* --- attend ----------------------------------------------------------------------------------- */

/* Pushes field `name` of source i, a gradient of the tensor at `like`; its stack index, or 0. */
static int gradient_field(lua_State *L, const kvl_source_slots *slots, const char *name, int like) {
    if (lua_getfield(L, slots->at, name) == LUA_TNIL) {
        lua_pop(L, 1);
        return 0;
    }
    kvl_check_gradient(L, lua_gettop(L), like);
    return lua_gettop(L);
}

static kvl_rows_grad rows_grad(lua_State *L, int at, int64_t col0, int64_t head_step) {
    if (!at) return (kvl_rows_grad){NULL, 0, 0, 0};
    kvl_tensor *t = kvl_check_tensor(L, at);
    return (kvl_rows_grad){kvl_tensor_f32(t) + col0, t->stride[0], t->stride[1], head_step};
}

/* attend(d_out, out [B, T, H, value width], lse, q, sources, sink or nil, scale, pos0, d_q, d_sink)
 * A source may have d_rows, or d_key_rows and d_value_rows. */
static int l_attend(lua_State *L) {
    kvl_error err;
    kvl_source_list call;
    lua_settop(L, 10);
    attended a = {4, 5, 3, luaL_checknumber(L, 7), check_pos0(L, 8)};
    kvl_need_rows(L, 1, true);
    kvl_need_rows(L, 2, true);
    kvl_check_dims(L, 1, 4, "d_out {B, T, H, width of values}");
    kvl_check_dims(L, 2, 4, "out {B, T, H, width of values}");
    push_attended(L, &a, &call);
    kvl_tensor *q = kvl_check_tensor(L, 4), *d_out = kvl_check_tensor(L, 1),
               *out = kvl_check_tensor(L, 2);
    int64_t T = q->shape[1], H = q->shape[2], value_width = out->shape[3];
    for (int d = 0; d < 3; d++) {
        if (out->shape[d] != q->shape[d]) kvl_shape_error(L, 2, "out with the {B, T, H} of q");
    }
    for (int d = 0; d < 4; d++)
        if (d_out->shape[d] != out->shape[d]) kvl_shape_error(L, 1, "d_out of the shape of out");
    if (value_width < 1) kvl_shape_error(L, 2, "out with a width of 1 or more");
    kvl_check_vector(L, 6, H);
    kvl_check_gradient(L, 9, 4);
    if (!lua_isnil(L, 10)) {
        if (lua_isnil(L, 6)) luaL_argerror(L, 10, "a gradient of the sink, but there is none");
        kvl_check_gradient(L, 10, 6);
    }
    int key_at[KVL_MAX_SOURCES], value_at[KVL_MAX_SOURCES];
    for (int64_t i = 0; i < call.n; i++) {
        const kvl_source_slots *slots = &call.slots[i];
        luaL_checkstack(L, 8, "attend");
        if (slots->value) {
            key_at[i] = gradient_field(L, slots, "d_key_rows", slots->rows);
            value_at[i] = gradient_field(L, slots, "d_value_rows", slots->value);
        } else {
            key_at[i] = value_at[i] = gradient_field(L, slots, "d_rows", slots->rows);
        }
    }
    kvl_attend_args args = fill_attended(L, &a, &call, value_width);
    int64_t step = H * value_width;
    args.out = kvl_tensor_f32(kvl_check_tensor(L, 2));
    args.out_step_b = T * step;
    args.out_step_t = step;
    args.out_step_h = value_width;
    args.sink = kvl_vector(L, 6);
    kvl_attend_grads grads = {.d_out = kvl_tensor_f32(kvl_check_tensor(L, 1)),
                              .d_out_step_b = T * step,
                              .d_out_step_t = step,
                              .d_out_step_h = value_width,
                              .d_q = kvl_gradient(L, 9),
                              .d_q_step_b = args.q_step_b,
                              .d_q_step_t = args.q_step_t,
                              .d_q_step_h = args.q_step_h,
                              .d_sink = kvl_gradient(L, 10)};
    for (int64_t i = 0; i < call.n; i++) {
        const kvl_source_slots *slots = &call.slots[i];
        bool apart = slots->value != 0;
        grads.d_key[i] = rows_grad(L, key_at[i], apart ? 0 : slots->key0, args.key_width);
        grads.d_value[i] = rows_grad(L, value_at[i], apart ? 0 : slots->value0, value_width);
    }
    if (kvl_attend_grad(&grads, &args, &err) != KVL_OK) return kvl_raise(L, &err);
    return 0;
}

/* mass(q, sources, lse, scale, pos0, number of the source, set [B, T, n] or nil, normalise) -> mass
 * [B, T, n] */
static int l_mass(lua_State *L) {
    kvl_error err;
    kvl_source_list call;
    lua_settop(L, 8);
    attended a = {1, 2, 3, luaL_checknumber(L, 4), check_pos0(L, 5)};
    int64_t source = luaL_checkinteger(L, 6);
    bool normalise = lua_toboolean(L, 8);
    if (!lua_isnil(L, 7)) {
        kvl_tensor *set = kvl_check_dims(L, 7, 3, "an int32 set {B, T, n}");
        if (set->dtype != KVL_INT32 || !kvl_tensor_is_contiguous(set))
            kvl_shape_error(L, 7, "an int32 set {B, T, n} without gaps");
    }
    push_attended(L, &a, &call);
    luaL_argcheck(L, source >= 1 && source <= call.n, 6, "there is no such source");
    kvl_tensor *q = kvl_check_tensor(L, 1);
    int64_t shape[] = {q->shape[0], q->shape[1], 0};
    const kvl_source_slots *slots = &call.slots[source - 1];
    if (!lua_isnil(L, 7)) {
        kvl_tensor *set = kvl_check_tensor(L, 7);
        if (set->shape[0] != shape[0] || set->shape[1] != shape[1])
            kvl_shape_error(L, 7, "a set with the {B, T} of q");
        shape[2] = set->shape[2];
    } else {
        shape[2] = slots->list ? kvl_check_tensor(L, slots->list)->shape[2]
                               : kvl_check_tensor(L, slots->rows)->shape[1];
    }
    kvl_tensor **out = kvl_push_tensor(L);
    if (kvl_tensor_new(out, KVL_FLOAT32, 3, shape, &err) != KVL_OK) return kvl_raise(L, &err);
    kvl_attend_args args = fill_attended(L, &a, &call, kvl_sources_value_width(L, &call, 1));
    kvl_mass_args mass = {.out = kvl_tensor_f32(*out),
                          .attend = &args,
                          .source = source - 1,
                          .set = lua_isnil(L, 7) ? NULL : kvl_tensor_i32(kvl_check_tensor(L, 7)),
                          .n = shape[2],
                          .normalise = normalise};
    return kvl_done(L, kvl_attend_mass(&mass, &err), &err, 1);
}

/* --- the indexer ------------------------------------------------------------------------------ */

/* index(q [B, T, heads, width], w [B, T, heads], keys [B, S, width], pos0, ratio, set [B, T, n] or
 * nil, target [B, T, n], factor of the gradients, d_q, d_w, d_keys) -> loss [B, T] */
static int l_index(lua_State *L) {
    kvl_error err;
    int64_t pos0 = check_pos0(L, 4), ratio = luaL_checkinteger(L, 5);
    double factor = luaL_checknumber(L, 8);
    luaL_argcheck(L, ratio >= 1 && ratio <= INT32_MAX, 5, "the ratio must be 1 or more tokens");
    lua_settop(L, 11);
    for (int arg = 1; arg <= 3; arg++)
        kvl_need_rows(L, arg, true);
    kvl_need_rows(L, 7, true);
    kvl_tensor *q = kvl_check_dims(L, 1, 4, "q {B, T, heads, width}"),
               *w = kvl_check_dims(L, 2, 3, "w {B, T, heads}"),
               *keys = kvl_check_dims(L, 3, 3, "keys {B, S, width}"),
               *target = kvl_check_dims(L, 7, 3, "a target {B, T, n}");
    int64_t B = q->shape[0], T = q->shape[1], heads = q->shape[2], width = q->shape[3],
            rows = keys->shape[1], n = rows;
    for (int d = 0; d < 3; d++)
        if (w->shape[d] != q->shape[d]) kvl_shape_error(L, 2, "w with the {B, T, heads} of q");
    if (keys->shape[0] != B || keys->shape[2] != width)
        kvl_shape_error(L, 3, "keys with the batch and width of q");
    if (!lua_isnil(L, 6)) {
        kvl_tensor *set = kvl_check_dims(L, 6, 3, "an int32 set {B, T, n}");
        if (set->dtype != KVL_INT32 || !kvl_tensor_is_contiguous(set) || set->shape[0] != B ||
            set->shape[1] != T)
            kvl_shape_error(L, 6, "an int32 set with the {B, T} of q, without gaps");
        n = set->shape[2];
    }
    if (target->shape[0] != B || target->shape[1] != T || target->shape[2] != n)
        kvl_shape_error(L, 7, "a target for each entry of the set");
    kvl_check_gradient(L, 9, 1);
    kvl_check_gradient(L, 10, 2);
    kvl_check_gradient(L, 11, 3);
    int64_t shape[] = {B, T};
    kvl_tensor **factors = kvl_push_tensor(L), **loss = kvl_push_tensor(L);
    if (kvl_tensor_full(factors, KVL_FLOAT32, 2, shape, factor, &err) != KVL_OK ||
        kvl_tensor_new(loss, KVL_FLOAT32, 2, shape, &err) != KVL_OK)
        return kvl_raise(L, &err);
    kvl_index_args index = {.q = kvl_tensor_f32(kvl_check_tensor(L, 1)),
                            .q_step_b = T * heads * width,
                            .q_step_t = heads * width,
                            .q_step_h = width,
                            .w = kvl_tensor_f32(kvl_check_tensor(L, 2)),
                            .w_step_b = T * heads,
                            .w_step_t = heads,
                            .key = {kvl_tensor_f32(kvl_check_tensor(L, 3)), rows * width, width, 0},
                            .rows = rows,
                            .q_pos0 = pos0,
                            .ratio = ratio,
                            .pool = lua_isnil(L, 6) ? NULL : kvl_tensor_i32(kvl_check_tensor(L, 6)),
                            .pool_size = lua_isnil(L, 6) ? 0 : n,
                            .batch = B,
                            .queries = T,
                            .heads = heads,
                            .width = width};
    kvl_index_grad_args args = {.index = &index,
                                .target = kvl_tensor_f32(kvl_check_tensor(L, 7)),
                                .factor = kvl_tensor_f32(*factors),
                                .loss = kvl_tensor_f32(*loss),
                                .d_q = kvl_gradient(L, 9),
                                .d_q_step_b = index.q_step_b,
                                .d_q_step_t = index.q_step_t,
                                .d_q_step_h = index.q_step_h,
                                .d_w = kvl_gradient(L, 10),
                                .d_w_step_b = index.w_step_b,
                                .d_w_step_t = index.w_step_t,
                                .d_key = {kvl_gradient(L, 11), rows * width, width, 0}};
    return kvl_done(L, kvl_index_grad(&args, &err), &err, 1);
}

void kvl_open_attend_grad(lua_State *L) {
    static const luaL_Reg functions[] = {
        {"attend", l_attend}, {"mass", l_mass}, {"index", l_index}, {NULL, NULL}};
    lua_getfield(L, -1, "grad");
    luaL_setfuncs(L, functions, 0);
    lua_pop(L, 1);
}
