/* hash.h - numbers into a fingerprint, the same on every machine: resume tokens move between them. */
#ifndef FEEDD_HASH_H
#define FEEDD_HASH_H

#include <endian.h>
#include <stdint.h>
#include <xxhash.h>

static inline void hash_u64(XXH3_state_t *state, uint64_t value)
{
    const uint64_t little = htole64(value);
    XXH3_64bits_update(state, &little, sizeof(little));
}

#endif
