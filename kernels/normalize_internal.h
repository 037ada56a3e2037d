/* normalize_internal.h - what the files of this folder share, and nobody else includes. Thread-safe: nothing here has
 * state. */
#ifndef FEEDD_NORMALIZE_INTERNAL_H
#define FEEDD_NORMALIZE_INTERNAL_H

#include "normalize.h"

static inline size_t element_bytes(int dtype)
{
    return dtype == NORMALIZE_F32 ? 4 : dtype == NORMALIZE_F16 || dtype == NORMALIZE_BF16 ? 2 : 1;
}

/* For CPUs with AVX2 and F16C; built for x86-64 only (normalize_avx2.c). As normalize_host() otherwise. */
void normalize_avx2(const struct normalize_params *params, const uint8_t *in, const struct normalize_window *windows,
                    void *out);

#endif
