/* safetensors_types.h - private: what reading and writing of safetensors share. */
#ifndef safetensors_types_h
#define safetensors_types_h

#include "kvlab/number.h"
#include "kvlab/safetensors.h"

typedef struct kvl_st_type {
    const char *name;
    int bytes;
} kvl_st_type;

struct kvl_safetensors {
    int fd;
    unsigned char *map;
    size_t map_bytes;
    const unsigned char *data; /* behind the header */
    int64_t data_bytes;
    char *path, *text;     /* text: the header, strings decoded */
    kvl_st_entry *entries; /* in the order of the data */
    kvl_st_entry **by_name;
    char **metadata; /* key, value, ... */
    bool has_metadata;
    int64_t count, capacity, pairs, pair_capacity;
};

extern const kvl_st_type kvl_st_types[KVL_ST_DTYPES];

/* The number that stands for a float type of at most 32 bits; false for the others. */
bool kvl_st_number(kvl_number *out, kvl_st_dtype dtype);

bool kvl_utf8_valid(const char *text, size_t n);

#endif
