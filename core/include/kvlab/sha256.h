/* sha256.h - SHA-256 (FIPS 180-4): the ids of runs and the checksums of checkpoints. */
#ifndef kvlab_sha256_h
#define kvlab_sha256_h

#include "kvlab/base.h"

typedef struct kvl_sha256 {
    uint32_t h[8];
    uint64_t bytes;    /* taken in so far */
    uint8_t block[64]; /* the beginning of a block that is not full yet */
} kvl_sha256;

KVL_API void kvl_sha256_init(kvl_sha256 *s);
KVL_API void kvl_sha256_add(kvl_sha256 *s, const void *data, size_t bytes);
/* Writes 64 hexadecimal digits and a zero. */
KVL_API void kvl_sha256_hex(kvl_sha256 *s, char hex[65]);

#endif
