/* resize_simd.h - see resize_internal.h: the kernels with vectors of 16 or 32 bytes. Included by resize_sse41.c and
 * resize_avx2.c, each of which says before what its vectors are:
 *   vec, vec_double, VEC(op)     the types; _mm_op or _mm256_op
 *   VEC_ROWS                     1 or 2: rows of which a vector has 16 bytes
 *   load, store                  a vector
 *   load_rows, store_rows        16 bytes of each of VEC_ROWS rows
 *   repeat                       16 bytes for each row
 *   less                         compares doubles
 *   four_doubles, four_integers  convert, the latter truncating, what RESIZE_GROUP positions have
 *   sum_short                    sum_rows() for less bytes than a vector has
 *
 * A weight is high * 2^15 + low, each of which pmaddwd can multiply. Sums of either are kept apart, and
 *   (sum of pixel * weight + 2^21) >> 22  =  (sum of pixel * high + (sum of pixel * low >> 15) + 2^6) >> 7
 * so the result is what 32 bits would give. The right side without its 2^6 is at most 2^15 - 1, or saturates there:
 * that is 255 all the same.
 *
 * Horizontally, four positions of 2 * VEC_ROWS rows are made at a time. Of each row 16 bytes from the span's first
 * pixel on are loaded. A shuffle puts two of the pixels side by side, channel by channel, as pmaddwd wants them; so a
 * vector has up to four channels of one position for each of its rows. Positions whose spans are shorter than the
 * longest one have weights 0 there.
 *
 * Vertically, two rows are interleaved. `high` is below 2^7 there, so pmaddubsw multiplies it with bytes as they are.
 *
 * Nothing can fail. Threads: any. */
#ifndef FEEDD_RESIZE_SIMD_H
#define FEEDD_RESIZE_SIMD_H

#include <string.h>

#include "resize_internal.h"

#define LOW_BITS  15
#define HIGH_BITS (RESIZE_WEIGHT_BITS - LOW_BITS)
#define HALF      (1 << (HIGH_BITS - 1))

#define VEC_BYTES (16 * VEC_ROWS)
#define DOUBLES   (2 * VEC_ROWS)           /* that a vector has */
#define VECTORS   (RESIZE_GROUP / DOUBLES) /* for as many doubles as a group has positions */
#define HALVES    (2 * RESIZE_GROUP)       /* int16_t, a block of weights: four times high, four times low */
#define TAPS_ANY  UINT32_MAX               /* no constant */

/* For shuffles: pixels p and q of c channels as words; 0 for what 16 bytes don't hold, and for other channels. */
#define NO                    0x80
#define BYTE(c, p, n)         ((n) < (c) && ((p) + 1) * (c) <= 16 ? (uint8_t)((p) * (c) + (n)) : NO)
#define TWO_WORDS(c, p, q, n) BYTE(c, p, n), NO, BYTE(c, q, n), NO
#define WORDS(c, p, q)                                                                                                 \
    {                                                                                                                  \
        TWO_WORDS(c, p, q, 0), TWO_WORDS(c, p, q, 1), TWO_WORDS(c, p, q, 2), TWO_WORDS(c, p, q, 3)                     \
    }
#define PAIRS(c)                                                                                                       \
    {                                                                                                                  \
        WORDS(c, 0, 1), WORDS(c, 2, 3), WORDS(c, 4, 5)                                                                 \
    }

static const uint8_t pairs[RESIZE_CHANNELS_MAX + 1][3][16] = {{{0}}, PAIRS(1), PAIRS(2), PAIRS(3), PAIRS(4)};

/* For shuffles: four pixels of four bytes become four of c bytes, in order or mirrored. */
static const uint8_t closed_up[RESIZE_CHANNELS_MAX + 1][2][16] = {
    {{0}},
    {{0, 4, 8, 12, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO},
     {12, 8, 4, 0, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO}},
    {{0, 1, 4, 5, 8, 9, 12, 13, NO, NO, NO, NO, NO, NO, NO, NO},
     {12, 13, 8, 9, 4, 5, 0, 1, NO, NO, NO, NO, NO, NO, NO, NO}},
    {{0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, NO, NO, NO, NO},
     {12, 13, 14, 8, 9, 10, 4, 5, 6, 0, 1, 2, NO, NO, NO, NO}},
    {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3}},
};

/* `blocks` are the axis' own, which a caller may know to be constant. */
static INLINE int16_t *halves_at(const struct resize_axis *axis, size_t i, const uint32_t blocks)
{
    return (int16_t *)axis->weights + i * blocks * HALVES;
}

/* The weights of a group of positions before they are normalised. */
struct group {
    vec_double first[VECTORS], count[VECTORS], center[VECTORS], inverse;
};

static INLINE vec_double triangle(const struct group *group, int v, double t)
{
    const vec_double tap = VEC(set1_pd)(t), one = VEC(set1_pd)(1);
    const vec_double from_center = VEC(sub_pd)(VEC(add_pd)(group->first[v], tap), group->center[v]);
    const vec_double x = VEC(mul_pd)(VEC(add_pd)(from_center, VEC(set1_pd)(0.5)), group->inverse);
    const vec_double y = VEC(sub_pd)(one, VEC(andnot_pd)(VEC(set1_pd)(-0.0), x));
    return VEC(and_pd)(VEC(max_pd)(y, VEC(setzero_pd)()), less(tap, group->count[v]));
}

static INLINE void group_init(struct group *group, const struct resize_axis *axis, size_t i)
{
    const struct resize_line *line = &axis->line;
    const __m128 two = _mm_loadu_ps((const float *)(axis->spans + i)); /* moved, not computed with */
    const __m128 more = _mm_loadu_ps((const float *)(axis->spans + i + 2));
    four_doubles(_mm_castps_si128(_mm_shuffle_ps(two, more, _MM_SHUFFLE(2, 0, 2, 0))), group->first);
    four_doubles(_mm_castps_si128(_mm_shuffle_ps(two, more, _MM_SHUFFLE(3, 1, 3, 1))), group->count);
    four_doubles(_mm_setr_epi32(0, 1, 2, 3), group->center);
    const vec_double last = VEC(set1_pd)((double)axis->first + axis->count - 1);
    for (int v = 0; v < VECTORS; v++) {
        const vec_double position = VEC(add_pd)(VEC(set1_pd)((double)axis->first + (double)i), group->center[v]);
        const vec_double middle = VEC(add_pd)(VEC(min_pd)(position, last), VEC(set1_pd)(0.5));
        group->center[v] = VEC(add_pd)(VEC(set1_pd)(line->from), VEC(mul_pd)(middle, VEC(set1_pd)(line->scale)));
        group->center[v] = VEC(min_pd)(group->center[v], VEC(set1_pd)(line->in));
    }
    group->inverse = VEC(set1_pd)(line->inverse);
}

/* The same operations as in resize_scalar.c in the same order, for four positions at a time. */
static void weigh(struct resize_axis *axis)
{
    const vec_double one = VEC(set1_pd)(RESIZE_WEIGHT_ONE), half = VEC(set1_pd)(0.5);
    for (size_t i = 0; i < axis->count; i += RESIZE_GROUP) {
        struct group group;
        group_init(&group, axis, i);
        vec_double sums[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
            sums[v] = VEC(setzero_pd)();
            for (uint32_t t = 0; t < axis->longest; t++)
                sums[v] = VEC(add_pd)(sums[v], triangle(&group, v, t));
        }
        for (uint32_t block = 0; block < axis->blocks; block++) {
            __m128i taps[RESIZE_GROUP]; /* of four positions */
#pragma GCC unroll 4
            for (uint32_t k = 0; k < RESIZE_GROUP; k++) {
                vec_double weights[VECTORS];
                for (int v = 0; v < VECTORS; v++) {
                    weights[v] = VEC(div_pd)(triangle(&group, v, block * RESIZE_GROUP + k), sums[v]);
                    weights[v] = VEC(add_pd)(half, VEC(mul_pd)(weights[v], one));
                }
                taps[k] = four_integers(weights);
            }
            const __m128i a = _mm_unpacklo_epi32(taps[0], taps[1]), b = _mm_unpacklo_epi32(taps[2], taps[3]);
            const __m128i c = _mm_unpackhi_epi32(taps[0], taps[1]), d = _mm_unpackhi_epi32(taps[2], taps[3]);
            const __m128i positions[RESIZE_GROUP] = {_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b),
                                                     _mm_unpacklo_epi64(c, d), _mm_unpackhi_epi64(c, d)};
#pragma GCC unroll 4
            for (uint32_t k = 0; k < RESIZE_GROUP; k++) {
                const __m128i high = _mm_srli_epi32(positions[k], LOW_BITS);
                const __m128i low = _mm_and_si128(positions[k], _mm_set1_epi32((1 << LOW_BITS) - 1));
                _mm_storeu_si128((__m128i *)(halves_at(axis, i + k, axis->blocks) + block * HALVES),
                                 _mm_packs_epi32(high, low));
            }
        }
    }
}

/* Two halves of weights, for every pair of words. */
static INLINE vec splat(const int16_t *two)
{
    int32_t both;
    memcpy(&both, two, sizeof(both));
    return VEC(set1_epi32)(both);
}

/* Words of what join() gives, to 0..255 and more: mulhrs is (x * 2^8 + 2^14) >> 15. */
static INLINE vec round_words(vec words)
{
    return VEC(mulhrs_epi16)(words, VEC(set1_epi16)(1 << (LOW_BITS - HIGH_BITS)));
}

struct sums {
    vec high[2], low[2]; /* of 2 * VEC_ROWS rows */
};

/* Two pixels of each row, which `words` finds among those loaded. */
static INLINE void add_pair(struct sums *sums, const vec loaded[2], vec words, const int16_t *halves)
{
    const vec high = splat(halves), low = splat(halves + RESIZE_GROUP);
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
        const vec pair = VEC(shuffle_epi8)(loaded[v], words);
        sums->high[v] = VEC(add_epi32)(sums->high[v], VEC(madd_epi16)(pair, high));
        sums->low[v] = VEC(add_epi32)(sums->low[v], VEC(madd_epi16)(pair, low));
    }
}

/* One position. `taps` and `loads` are constants where no span has more than 2, 4 or 6 taps, or `taps` is TAPS_ANY. */
static INLINE void scale_position(const uint32_t channels, const uint32_t taps, const uint32_t loads,
                                  const vec words[3], const uint8_t *const *rows, size_t at, const int16_t *halves,
                                  vec out[2])
{
    const vec zero = VEC(set1_epi32)(0);
    struct sums sums = {{zero, zero}, {zero, zero}};
#pragma GCC unroll 2
    for (uint32_t n = 0; n < loads; n++, at += RESIZE_GROUP * channels, halves += HALVES) {
        const vec loaded[2] = {load_rows(rows, at), load_rows(rows + VEC_ROWS, at)};
        add_pair(&sums, loaded, words[0], halves);
        if (taps > n * RESIZE_GROUP + 2)
            add_pair(&sums, loaded, words[1], halves + 2);
        if (taps == 6 && loads == 1)
            add_pair(&sums, loaded, words[2], halves + HALVES);
    }
    out[0] = VEC(add_epi32)(sums.high[0], VEC(srli_epi32)(sums.low[0], LOW_BITS));
    out[1] = VEC(add_epi32)(sums.high[1], VEC(srli_epi32)(sums.low[1], LOW_BITS));
    __asm__("" : "+x"(out[0]), "+x"(out[1])); /* one position after the other: GCC would run out of registers */
}

/* The groups first, first + step, ... */
static INLINE void scale_groups(const uint32_t channels, const uint32_t taps, const uint32_t loads,
                                const struct resize_axis *axis, uint32_t first, int step, uint32_t count,
                                const uint8_t *const *in, uint32_t in_first, uint8_t *const *out)
{
    const vec words[3] = {repeat(pairs[channels][0]), repeat(pairs[channels][1]), repeat(pairs[channels][2])};
    const vec order = repeat(closed_up[channels][step < 0]);
    const uint32_t blocks = taps != TAPS_ANY ? resize_groups(taps) : axis->blocks;
    const size_t skipped = (size_t)in_first * channels, end = (size_t)count * RESIZE_GROUP * channels;
    uint32_t group = first;
    for (size_t to = 0; to < end; to += RESIZE_GROUP * channels, group += (uint32_t)step) {
        const struct resize_span *spans = axis->spans + (size_t)group * RESIZE_GROUP;
        const int16_t *halves = halves_at(axis, (size_t)group * RESIZE_GROUP, blocks);
        vec sums[RESIZE_GROUP][2];
#pragma GCC unroll 4
        for (uint32_t k = 0; k < RESIZE_GROUP; k++)
            scale_position(channels, taps, loads, words, in, (size_t)spans[k].first * channels - skipped,
                           halves + (size_t)k * blocks * HALVES, sums[k]);
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            const vec lower = round_words(VEC(packs_epi32)(sums[0][v], sums[1][v]));
            const vec upper = round_words(VEC(packs_epi32)(sums[2][v], sums[3][v]));
            store_rows(out + v * VEC_ROWS, to, VEC(shuffle_epi8)(VEC(packus_epi16)(lower, upper), order));
        }
    }
}

/* Of 2 * VEC_ROWS rows. Each set of constants costs code, so that RGB has most of them. */
static void scale_step(const struct resize_axis *axis, uint32_t first, int step, uint32_t count, uint32_t channels,
                       const uint8_t *const *in, uint32_t in_first, uint8_t *const *out)
{
    const uint32_t longest = axis->longest, loads = resize_loads(longest, channels);
    if (channels != 3) {
        if (longest <= 4)
            scale_groups(channels, 4, 1, axis, first, step, count, in, in_first, out);
        else if (loads == 1)
            scale_groups(channels, 6, 1, axis, first, step, count, in, in_first, out);
        else
            scale_groups(channels, TAPS_ANY, loads, axis, first, step, count, in, in_first, out);
    } else if (longest <= 2) {
        scale_groups(3, 2, 1, axis, first, step, count, in, in_first, out);
    } else if (longest <= 4) {
        scale_groups(3, 4, 1, axis, first, step, count, in, in_first, out);
    } else if (loads == 1) {
        scale_groups(3, 6, 1, axis, first, step, count, in, in_first, out);
    } else if (longest == 6) {
        scale_groups(3, 6, 2, axis, first, step, count, in, in_first, out);
    } else {
        scale_groups(3, TAPS_ANY, loads, axis, first, step, count, in, in_first, out);
    }
}

static void scale_rows(const struct resize_axis *axis, uint32_t first, uint32_t count, bool mirrored,
                       const struct resize_rows *rows)
{
    for (uint32_t r = 0; r < rows->count; r += 2 * VEC_ROWS) {
        const uint8_t *in[2 * VEC_ROWS];
        uint8_t *out[2 * VEC_ROWS];
        for (uint32_t k = 0; k < 2 * VEC_ROWS; k++) { /* where there are less, the last one again */
            const uint32_t row = r + k < rows->count ? r + k : rows->count - 1;
            in[k] = rows->in[row];
            out[k] = rows->out[row];
        }
        scale_step(axis, mirrored ? first + count - 1 : first, mirrored ? -1 : 1, count, rows->channels, in,
                   rows->in_first, out);
    }
}

/* A vector's bytes from x on. `count` is a constant up to 5. */
static INLINE void sum_vector(const uint32_t count, const uint8_t *const *rows, const int16_t *halves, size_t x,
                              uint8_t *out)
{
    const vec zero = VEC(set1_epi32)(0);
    vec high[2] = {zero, zero}, low[4] = {zero, zero, zero, zero}, words[2];
#pragma GCC unroll 3
    for (uint32_t t = 0; t < count; t += 2) {
        const int16_t *weights = halves + t / RESIZE_GROUP * HALVES + t % RESIZE_GROUP;
        const vec high_weights = VEC(packs_epi16)(splat(weights), splat(weights));
        const vec low_weights = splat(weights + RESIZE_GROUP);
        const vec one = load(rows[t] + x), other = load(rows[t + 1 < count ? t + 1 : t] + x);
        const vec both[2] = {VEC(unpacklo_epi8)(one, other), VEC(unpackhi_epi8)(one, other)};
#pragma GCC unroll 2
        for (int n = 0; n < 2; n++) {
            const vec lower = VEC(unpacklo_epi8)(both[n], zero), upper = VEC(unpackhi_epi8)(both[n], zero);
            high[n] = VEC(add_epi16)(high[n], VEC(maddubs_epi16)(both[n], high_weights));
            low[2 * n] = VEC(add_epi32)(low[2 * n], VEC(madd_epi16)(lower, low_weights));
            low[2 * n + 1] = VEC(add_epi32)(low[2 * n + 1], VEC(madd_epi16)(upper, low_weights));
        }
    }
#pragma GCC unroll 2
    for (int n = 0; n < 2; n++) {
        const vec lower = VEC(srli_epi32)(low[2 * n], LOW_BITS), upper = VEC(srli_epi32)(low[2 * n + 1], LOW_BITS);
        words[n] = round_words(VEC(adds_epi16)(high[n], VEC(packs_epi32)(lower, upper)));
    }
    store(out + x, VEC(packus_epi16)(words[0], words[1]));
}

static INLINE void sum_vectors(const uint32_t count, const uint8_t *const *rows, const int16_t *halves, size_t bytes,
                               uint8_t *restrict out)
{
    size_t x = 0;
    for (; x + VEC_BYTES <= bytes; x += VEC_BYTES)
        sum_vector(count, rows, halves, x, out);
    if (x < bytes)
        sum_vector(count, rows, halves, bytes - VEC_BYTES, out); /* some once more */
}

static void sum_rows(const struct resize_axis *axis, uint32_t i, const uint8_t *const *rows, size_t bytes, uint8_t *out)
{
    const int16_t *halves = halves_at(axis, i, axis->blocks);
    const uint32_t count = axis->spans[i].count;
    for (uint32_t t = 0; t < count; t++) {
        /* A weight of 1 is the only one whose high part has more than 7 bits; others beside it are lost in rounding. */
        if (halves[t / RESIZE_GROUP * HALVES + t % RESIZE_GROUP] == RESIZE_WEIGHT_ONE >> LOW_BITS) {
            memcpy(out, rows[t], bytes);
            return;
        }
    }
    if (bytes < VEC_BYTES) {
        sum_short(axis, i, rows, bytes, out);
        return;
    }
    switch (count) {
    case 2:
        sum_vectors(2, rows, halves, bytes, out);
        break;
    case 3:
        sum_vectors(3, rows, halves, bytes, out);
        break;
    case 4:
        sum_vectors(4, rows, halves, bytes, out);
        break;
    case 5:
        sum_vectors(5, rows, halves, bytes, out);
        break;
    default:
        sum_vectors(count, rows, halves, bytes, out);
    }
}

#endif
