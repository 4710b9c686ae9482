/* lkvl.h - helpers of the binding. The binding checks arguments, calls the core and pushes results:
 * no mathematics here. Every open function adds its subtable to the module table on top of the
 * stack. */
#ifndef lkvl_h
#define lkvl_h

#include <lauxlib.h>
#include <lua.h>

#include "kvlab/kvlab.h"

/* Raises a Lua error with the message of a failed core call; never returns. */
int kvl_raise(lua_State *L, const kvl_error *err);

/* Opens one part of the module: creates a table of `funcs`, stores it as field `name` of the table
 * on top of the stack. */
void kvl_open_part(lua_State *L, const char *name, const luaL_Reg *funcs);

/* The record of the kvlab.Plan at stack index `arg`;
 * an argument error when it is something else. */
const kvl_record *kvl_check_plan(lua_State *L, int arg);

void kvl_open_base(lua_State *L);
void kvl_open_readline(lua_State *L);
void kvl_open_number(lua_State *L);
void kvl_open_record(lua_State *L);

/* --- tensors (ltensor.c) ---------------------------------------------------------------------- */

/* A tensor object is a userdata with a kvl_tensor *; NULL means freed, or not yet made. Any call
 * into Lua that allocates may run finalizers, and a finalizer may free any tensor. So a binding
 * function first pushes its (still empty) results and turns numbers into operands, and only then
 * takes pointers with kvl_check_tensor, calls the core, and ends with kvl_done. */
#define KVL_TENSOR "kvlab.Tensor"

void kvl_open_tensor(lua_State *L);
void kvl_open_make(lua_State *L);
void kvl_open_views(lua_State *L);
void kvl_open_print(lua_State *L);
void kvl_open_ops(lua_State *L);
void kvl_open_safetensors(lua_State *L);
void kvl_open_norm(lua_State *L);
void kvl_open_attend(lua_State *L);
void kvl_open_compress(lua_State *L);
void kvl_open_bench(lua_State *L);
void kvl_open_system(lua_State *L);
void kvl_open_grad(lua_State *L);
void kvl_open_attend_grad(lua_State *L); /* adds to core.grad */
void kvl_open_loss(lua_State *L);        /* the same, and core.optim */

/* Pushes an empty tensor object; the core call fills the returned slot. */
kvl_tensor **kvl_push_tensor(lua_State *L);
/* The tensor of an argument, not NULL; an error when it is none or was freed. */
kvl_tensor *kvl_check_tensor(lua_State *L, int arg);
bool kvl_is_tensor(lua_State *L, int arg);
/* Replaces a number at `arg` by a tensor without dimensions (an integer becomes int32). */
void kvl_to_operand(lua_State *L, int arg);
/* A dimension 1 .. ndim, or -1 for the last one and so on, counted from 0. */
int kvl_check_dim(lua_State *L, int arg, int ndim);
int kvl_opt_dim(lua_State *L, int arg, int ndim, int missing);
/* An index 1 .. size, or -1 for the last one and so on, counted from 0. */
int64_t kvl_check_index(lua_State *L, int arg, int64_t size);
/* Sizes from one table at `arg` or from integers there and after; returns the next argument. */
int kvl_check_shape(lua_State *L, int arg, int *ndim, int64_t *shape);
kvl_dtype kvl_opt_dtype(lua_State *L, int arg, kvl_dtype missing);

/* --- arguments of kernels (larg.c) ------------------------------------------------------------ */

/* A call first brings all of its arguments into form, then takes pointers. */

/* Makes the float32 tensor at `arg` one whose channels, the last dimension, are neighbours;
 * `whole`: without any gaps. A copy takes its place when it has to. */
void kvl_need_rows(lua_State *L, int arg, bool whole);
int kvl_shape_error(lua_State *L, int arg, const char *want);
kvl_tensor *kvl_check_dims(lua_State *L, int arg, int ndim, const char *want);
/* A missing or float32 {n} vector at `arg`, and its elements (NULL when missing). */
void kvl_check_vector(lua_State *L, int arg, int64_t n);
const float *kvl_vector(lua_State *L, int arg);
/* A place for a gradient: nil (NULL), or a float32 tensor without gaps of the sizes of the tensor
 * at `like`; it is written to, so a copy would not do. Checked first, its pointer taken later. */
void kvl_check_gradient(lua_State *L, int arg, int like);
float *kvl_gradient(lua_State *L, int arg);
/* Fields of the table at `at`: an integer >= least, or `missing`; a tensor of that type and in the
 * form of kvl_need_rows, left on the stack (its index, or 0). */
int64_t kvl_int_field(lua_State *L, int at, const char *name, int64_t missing, int64_t least);
int kvl_tensor_field(lua_State *L, int at, const char *name, kvl_dtype dtype, bool whole);
/* Makes the metatable `name` of a userdata, which scripts cannot reach; leaves its table of
 * methods. */
void kvl_new_class(lua_State *L, const char *name, const luaL_Reg *events, const luaL_Reg *methods);

/* Ends a function that leaves `results` values: raises the failure, or tells the collector about
 * the storages of the new tensors among them (without it a loop of temporaries grows without end,
 * because Lua sees only their small userdata). */
int kvl_done(lua_State *L, kvl_status status, const kvl_error *err, int results);
/* The same for views, which own nothing new. */
int kvl_done_view(lua_State *L, kvl_status status, const kvl_error *err);
/* Tells the collector about bytes that a userdata holds outside Lua; it may run finalizers. */
void kvl_tell_collector(lua_State *L, size_t bytes);

/* --- pools (lpool.c) -------------------------------------------------------------------------- */

void kvl_open_pool(lua_State *L);

/* A source that reads cache tables: a Lua table with the fields `table` (a Table, or a list of
 * them, one for each batch element), `kind` ('selected', 'window', 'index') and `counters`. In two
 * steps, for the same reason as above: the first checks the source at stack index `source` and
 * pushes a block; the second takes the pointers, which hold until the next call into Lua that
 * allocates, and only then may the core read with kvl_table_read. The reader lives in the block. */
void kvl_push_reader(lua_State *L, int source);
kvl_reader *kvl_fill_reader(lua_State *L, int block);

#endif
