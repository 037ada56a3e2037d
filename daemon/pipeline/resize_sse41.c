/* resize_sse41.c - the kernels of resize_simd.h for CPUs with SSE4.1: a vector has 16 bytes of one row.
 *
 * Nothing can fail. Threads: any. Compiled with flags of its own, so it holds nothing that runs before the CPU is known
 * to have them. */
#include <smmintrin.h>

#include "resize_internal.h"

#define INLINE   inline __attribute__((always_inline))
#define VEC(op)  _mm_##op
#define VEC_ROWS 1

typedef __m128i vec;
typedef __m128d vec_double;

static INLINE vec load(const uint8_t *from)
{
    return _mm_loadu_si128((const __m128i *)from);
}

static INLINE void store(uint8_t *to, vec v)
{
    _mm_storeu_si128((__m128i *)to, v);
}

static INLINE vec load_rows(const uint8_t *const *rows, size_t at)
{
    return load(rows[0] + at);
}

static INLINE void store_rows(uint8_t *const *rows, size_t at, vec v)
{
    store(rows[0] + at, v);
}

static INLINE vec repeat(const uint8_t bytes[16])
{
    return load(bytes);
}

static INLINE vec_double less(vec_double a, vec_double b)
{
    return _mm_cmplt_pd(a, b);
}

static INLINE void four_doubles(__m128i integers, vec_double out[2])
{
    out[0] = _mm_cvtepi32_pd(integers);
    out[1] = _mm_cvtepi32_pd(_mm_unpackhi_epi64(integers, integers));
}

static INLINE __m128i four_integers(const vec_double v[2])
{
    return _mm_unpacklo_epi64(_mm_cvttpd_epi32(v[0]), _mm_cvttpd_epi32(v[1]));
}

static void sum_short(const struct resize_axis *axis, uint32_t i, const uint8_t *const *rows, size_t bytes,
                      uint8_t *out);

#include "resize_simd.h"

static void sum_short(const struct resize_axis *axis, uint32_t i, const uint8_t *const *rows, size_t bytes,
                      uint8_t *out)
{
    const int16_t *halves = halves_at(axis, i, axis->blocks);
    for (size_t x = 0; x < bytes; x++) {
        uint32_t high = 0, low = 0;
        for (uint32_t t = 0; t < axis->spans[i].count; t++) {
            const int16_t *weight = halves + t / RESIZE_GROUP * HALVES + t % RESIZE_GROUP;
            high += rows[t][x] * (uint32_t)weight[0];
            low += rows[t][x] * (uint32_t)weight[RESIZE_GROUP];
        }
        const uint32_t sum = (high + (low >> LOW_BITS) + HALF) >> HIGH_BITS;
        out[x] = (uint8_t)(sum < 255 ? sum : 255);
    }
}

const struct resize_kernels resize_sse41 = {"sse4.1", true, weigh, scale_rows, sum_rows};
