/* resize_avx2.c - the kernels of resize_simd.h for CPUs with AVX2: a vector has 16 bytes of each of two rows.
 *
 * Nothing can fail. Threads: any. Compiled with flags of its own, so it holds nothing that runs before the CPU is known
 * to have them. */
#include <immintrin.h>

#include "resize_internal.h"

#define INLINE   inline __attribute__((always_inline))
#define VEC(op)  _mm256_##op
#define VEC_ROWS 2

typedef __m256i vec;
typedef __m256d vec_double;

static INLINE vec load(const uint8_t *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}

static INLINE void store(uint8_t *to, vec v)
{
    _mm256_storeu_si256((__m256i *)to, v);
}

static INLINE vec load_rows(const uint8_t *const *rows, size_t at)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(rows[0] + at))),
                                   _mm_loadu_si128((const __m128i *)(rows[1] + at)), 1);
}

static INLINE void store_rows(uint8_t *const *rows, size_t at, vec v)
{
    _mm_storeu_si128((__m128i *)(rows[0] + at), _mm256_castsi256_si128(v));
    _mm_storeu_si128((__m128i *)(rows[1] + at), _mm256_extracti128_si256(v, 1));
}

static INLINE vec repeat(const uint8_t bytes[16])
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes));
}

static INLINE vec_double less(vec_double a, vec_double b)
{
    return _mm256_cmp_pd(a, b, _CMP_LT_OQ);
}

static INLINE void four_doubles(__m128i integers, vec_double out[1])
{
    out[0] = _mm256_cvtepi32_pd(integers);
}

static INLINE __m128i four_integers(const vec_double v[1])
{
    return _mm256_cvttpd_epi32(v[0]);
}

static void sum_short(const struct resize_axis *axis, uint32_t i, const uint8_t *const *rows, size_t bytes,
                      uint8_t *out)
{
    resize_sse41.sum_rows(axis, i, rows, bytes, out);
}

#include "resize_simd.h"

const struct resize_kernels resize_avx2 = {"avx2", true, weigh, scale_rows, sum_rows};
