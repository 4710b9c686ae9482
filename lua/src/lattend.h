/* lattend.h - the sources of an attend call, as lattend.c and lattend_grad.c take them from a Lua
 * list.
 *
 * In three steps, because of the rule in lkvl.h: kvl_push_sources checks the list and leaves on the
 * stack what the sources need; then results are pushed; then kvl_fill_sources takes the pointers.
 */
#ifndef lattend_h
#define lattend_h

#include "lkvl.h"

/* Where the tensors and the reader of one source lie on the stack; 0: it has none. */
typedef struct kvl_source_slots {
    int at; /* the source's own table */
    int rows, value, reader, list;
    int64_t key0, key_cols, value0, value_cols, kv_heads;
} kvl_source_slots;

typedef struct kvl_source_list {
    int64_t n;
    kvl_source sources[KVL_MAX_SOURCES];
    kvl_source_slots slots[KVL_MAX_SOURCES];
} kvl_source_list;

void kvl_push_sources(lua_State *L, int list, kvl_source_list *call);
/* The width of the values of the first source, known without pointers, or `missing`. */
int64_t kvl_sources_value_width(lua_State *L, const kvl_source_list *call, int64_t missing);
void kvl_fill_sources(lua_State *L, kvl_source_list *call, int64_t B, int64_t T, int64_t key_width,
                      int64_t value_width);

#endif
