/* normalize_avx2.c - the same as normalize_scalar.c with AVX2 and F16C, 16 pixels at a time.
 *
 * Happy path: 16 pixels of c channels become c vectors of 16 values in the order of the output: vector v is a piece of
 * plane v (NCHW), or the v-th piece of the row (NHWC). A vector is computed in two halves of 8 floats, a half in two
 * lanes of 4. One load of 16 bytes and one shuffle, which spreads 4 of them over 4 integers, make a lane; both halves
 * are then converted, normalised, rounded and stored. What differs between layouts and mirrored samples is in tables,
 * made once a call; dtype, channels and the kind of layout are constants wherever it matters, so that loops unroll.
 * Nothing can fail: the parameters are checked. Threads: any. Compiled with flags of its own, so it holds nothing that
 * runs before the CPU is known to have them. */
#include <immintrin.h>
#include <string.h>

#include "normalize_internal.h"

#define GROUP       16  /* pixels; values of a vector; bytes of a load */
#define LINE_BYTES  64  /* of the cache */
#define ROWS_AHEAD  3   /* that are fetched: memory takes about 100 ns to answer, 224 x 3 values take 60 */
#define GAPLESS_ROW 512 /* pixels */
#define INLINE      inline __attribute__((always_inline))

/* Where a lane's bytes are: among the 16 that begin `at` bytes into the group, and end within it, those that `bytes`
 * picks. With planes all vectors need the same 16: at[0] is enough. */
struct order {
    uint32_t at[NORMALIZE_CHANNELS_MAX][2][2]; /* vector, half, lane */
    __m256i bytes[NORMALIZE_CHANNELS_MAX][2];  /* vector, half; as _mm256_shuffle_epi8() wants them, 0x80 makes a 0 */
};

struct plan {
    uint32_t channels;
    int dtype, planar;               /* planar: NCHW */
    size_t pixel_bytes, group_bytes; /* of the output; of one plane, if planar */
    size_t step_bytes;               /* of the output: from a vector to the next */
    __m256 offset[NORMALIZE_CHANNELS_MAX][2], factor[NORMALIZE_CHANNELS_MAX][2]; /* vector, half */
    struct order orders[2];                                                      /* straight, mirrored */
};

/* Groups that follow one another in the output. */
struct run {
    const uint8_t *in; /* the first */
    ptrdiff_t in_step; /* bytes from a group to the next */
    uint8_t *out;
    size_t step_bytes; /* as the plan's, or that of a buffer */
    size_t count;
};

/* Which of a vector's 16 values this lane begins with. f32 and f16 are stored a half at a time: 0-7, 8-15. For the
 * others both halves are packed into one, which takes the lower lanes of both, then the upper ones: 0-3 8-11, 4-7
 * 12-15. */
static uint32_t lane_first(int dtype, uint32_t half, uint32_t lane)
{
    return dtype == NORMALIZE_F32 || dtype == NORMALIZE_F16 ? half * 8 + lane * 4 : lane * 8 + half * 4;
}

/* Of a value of a vector: its pixel in the group, not mirrored, and its channel. */
static uint32_t pixel_of(const struct plan *plan, uint32_t vector, uint32_t value)
{
    return plan->planar ? value : (vector * GROUP + value) / plan->channels;
}

static uint32_t channel_of(const struct plan *plan, uint32_t vector, uint32_t value)
{
    return plan->planar ? vector : (vector * GROUP + value) % plan->channels;
}

static void order_init(struct order *order, const struct plan *plan, int mirrored, uint32_t vector, uint32_t half)
{
    const uint32_t last_load = GROUP * (plan->channels - 1);
    uint8_t bytes[32];
    memset(bytes, 0x80, sizeof(bytes));
    for (uint32_t lane = 0; lane < 2; lane++) {
        const uint32_t first = lane_first(plan->dtype, half, lane); /* of 4 values, from less than 16 bytes */
        const uint32_t low = mirrored ? GROUP - 1 - pixel_of(plan, vector, first + 3) : pixel_of(plan, vector, first);
        const uint32_t at = low * plan->channels < last_load ? low * plan->channels : last_load;
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t pixel = pixel_of(plan, vector, first + i), channel = channel_of(plan, vector, first + i);
            uint32_t source = (mirrored ? GROUP - 1 - pixel : pixel) * plan->channels + channel;
            bytes[lane * 16 + i * 4] = (uint8_t)(source - at);
        }
        order->at[vector][half][lane] = at;
    }
    order->bytes[vector][half] = _mm256_loadu_si256((const __m256i *)bytes);
}

static void plan_init(struct plan *plan, const struct normalize_params *params)
{
    const size_t element = element_bytes(params->dtype);
    struct normalize_constants constants;
    normalize_constants(params, &constants);
    plan->channels = params->channels;
    plan->dtype = params->dtype;
    plan->planar = params->layout == NORMALIZE_NCHW && params->channels > 1; /* one channel is the same in both */
    plan->pixel_bytes = plan->planar ? element : params->channels * element;
    plan->group_bytes = GROUP * plan->pixel_bytes;
    plan->step_bytes = plan->planar ? (size_t)params->out_height * params->out_width * element : GROUP * element;
    for (uint32_t vector = 0; vector < params->channels; vector++) {
        for (uint32_t half = 0; half < 2; half++) {
            float offset[8], factor[8];
            for (uint32_t i = 0; i < 8; i++) {
                uint32_t value = lane_first(params->dtype, half, i / 4) + i % 4;
                offset[i] = constants.offset[channel_of(plan, vector, value)];
                factor[i] = constants.factor[channel_of(plan, vector, value)];
            }
            plan->offset[vector][half] = _mm256_loadu_ps(offset);
            plan->factor[vector][half] = _mm256_loadu_ps(factor);
            order_init(&plan->orders[0], plan, 0, vector, half);
            order_init(&plan->orders[1], plan, 1, vector, half);
        }
    }
}

static INLINE __m256i load(const uint8_t *in, const uint32_t at[2])
{
    __m128i lower = _mm_loadu_si128((const __m128i *)(in + at[0]));
    __m128i upper = _mm_loadu_si128((const __m128i *)(in + at[1]));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(lower), upper, 1);
}

static INLINE __m256 normalize8(__m256i pixels, __m256 offset, __m256 factor)
{
    return _mm256_mul_ps(_mm256_sub_ps(_mm256_cvtepi32_ps(pixels), offset), factor);
}

/* In the lower halves of 32 bits. Half to even, as bf16_of() in normalize_scalar.c. */
static INLINE __m256i round_bf16(__m256 values)
{
    __m256i bits = _mm256_castps_si256(values);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
}

/* Half to even; saturating above, where the conversion would give the least integer. Packing saturates below. */
static INLINE __m256i round_i8(__m256 values)
{
    return _mm256_cvtps_epi32(_mm256_min_ps(values, _mm256_set1_ps(127)));
}

/* Vector `v` of a group: normalises and stores 16 values. */
static INLINE void store(int dtype, const struct plan *plan, uint32_t v, const __m256i pixels[2], uint8_t *out)
{
    __m256 low = normalize8(pixels[0], plan->offset[v][0], plan->factor[v][0]);
    __m256 high = normalize8(pixels[1], plan->offset[v][1], plan->factor[v][1]);
    if (dtype == NORMALIZE_F32) {
        _mm256_storeu_ps((float *)out, low);
        _mm256_storeu_ps((float *)out + 8, high);
    } else if (dtype == NORMALIZE_F16) {
        _mm_storeu_si128((__m128i *)out, _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
        _mm_storeu_si128((__m128i *)out + 1, _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT));
    } else if (dtype == NORMALIZE_BF16) {
        _mm256_storeu_si256((__m256i *)out, _mm256_packus_epi32(round_bf16(low), round_bf16(high)));
    } else {
        const int u8 = dtype == NORMALIZE_U8;
        __m256i words =
            u8 ? _mm256_packs_epi32(pixels[0], pixels[1]) : _mm256_packs_epi32(round_i8(low), round_i8(high));
        __m128i lower = _mm256_castsi256_si128(words), upper = _mm256_extracti128_si256(words, 1);
        _mm_storeu_si128((__m128i *)out, u8 ? _mm_packus_epi16(lower, upper) : _mm_packs_epi16(lower, upper));
    }
}

/* dtype, channels and planar: constants where this is used. restrict lets the plan stay in registers. */
static INLINE void group(int dtype, uint32_t channels, int planar, const struct plan *plan, const struct order *order,
                         const uint8_t *restrict in, uint8_t *restrict out, size_t step_bytes)
{
    __m256i loaded[2];
#pragma GCC unroll 4
    for (uint32_t v = 0; v < channels; v++) {
        if (v == 0 || !planar) {
            loaded[0] = load(in, order->at[v][0]);
            loaded[1] = load(in, order->at[v][1]);
        }
        const __m256i pixels[2] = {_mm256_shuffle_epi8(loaded[0], order->bytes[v][0]),
                                   _mm256_shuffle_epi8(loaded[1], order->bytes[v][1])};
        store(dtype, plan, v, pixels, out + v * step_bytes);
    }
}

static INLINE void run_unrolled(int dtype, uint32_t channels, int planar, const struct plan *plan,
                                const struct order *order, const struct run *run)
{
    for (size_t g = 0; g < run->count; g++)
        group(dtype, channels, planar, plan, order, run->in + (ptrdiff_t)g * run->in_step,
              run->out + g * plan->group_bytes, run->step_bytes);
}

static INLINE void run_channels(int dtype, int planar, const struct plan *plan, const struct order *order,
                                const struct run *run)
{
    switch (plan->channels) {
    case 1:
        run_unrolled(dtype, 1, planar, plan, order, run);
        break;
    case 2:
        run_unrolled(dtype, 2, planar, plan, order, run);
        break;
    case 3:
        run_unrolled(dtype, 3, planar, plan, order, run);
        break;
    case 4:
        run_unrolled(dtype, 4, planar, plan, order, run);
        break;
    }
}

static INLINE void run_layout(int dtype, const struct plan *plan, const struct order *order, const struct run *run)
{
    if (plan->planar)
        run_channels(dtype, 1, plan, order, run);
    else
        run_channels(dtype, 0, plan, order, run);
}

static void run_groups(const struct plan *plan, const struct order *order, const struct run *run)
{
    switch (plan->dtype) {
    case NORMALIZE_U8:
        run_layout(NORMALIZE_U8, plan, order, run);
        break;
    case NORMALIZE_I8:
        run_layout(NORMALIZE_I8, plan, order, run);
        break;
    case NORMALIZE_F16:
        run_layout(NORMALIZE_F16, plan, order, run);
        break;
    case NORMALIZE_BF16:
        run_layout(NORMALIZE_BF16, plan, order, run);
        break;
    case NORMALIZE_F32:
        run_layout(NORMALIZE_F32, plan, order, run);
        break;
    }
}

/* The pixels that don't fill a group: `count` that follow one another in the input, by way of a group of their own. */
static void rest(const struct plan *plan, int mirrored, const uint8_t *in, size_t count, uint8_t *out)
{
    uint8_t filled[GROUP * NORMALIZE_CHANNELS_MAX] = {0}, made[sizeof(filled) * sizeof(float)];
    const size_t vector_bytes = plan->planar ? plan->group_bytes : plan->step_bytes;
    memcpy(filled + (mirrored ? (GROUP - count) * plan->channels : 0), in, count * plan->channels);
    run_groups(plan, &plan->orders[mirrored],
               &(struct run){.in = filled, .out = made, .step_bytes = vector_bytes, .count = 1});
    for (uint32_t plane = 0; plane < (plan->planar ? plan->channels : 1); plane++)
        memcpy(out + plane * plan->step_bytes, made + plane * vector_bytes, count * plan->pixel_bytes);
}

/* Mirrored, the input is read backwards, but the output is always written forwards, which matters more. */
static void row(const struct plan *plan, int mirrored, const uint8_t *in, size_t width, uint8_t *out)
{
    const size_t group_in = GROUP * plan->channels, groups = width / GROUP, left = width % GROUP;
    if (groups > 0)
        run_groups(plan, &plan->orders[mirrored],
                   &(struct run){.in = mirrored ? in + width * plan->channels - group_in : in,
                                 .in_step = mirrored ? -(ptrdiff_t)group_in : (ptrdiff_t)group_in,
                                 .out = out,
                                 .step_bytes = plan->step_bytes,
                                 .count = groups});
    if (left > 0)
        rest(plan, mirrored, mirrored ? in : in + groups * group_in, left, out + groups * plan->group_bytes);
}

/* A row to come: CPUs don't foresee it well, least of all where rows are cropped or read backwards. It may lie beyond
 * the input, for this can't fault. */
static void prefetch(const uint8_t *in, size_t count)
{
    for (size_t i = 0; i < count; i += LINE_BYTES)
        _mm_prefetch((const char *)in + i, _MM_HINT_T0);
}

void normalize_avx2(const struct normalize_params *params, const uint8_t *in, const struct normalize_window *windows,
                    void *out)
{
    const size_t pixel = params->channels, in_row = params->in_width * pixel, in_sample = params->in_height * in_row;
    const size_t total = (size_t)params->out_height * params->out_width;
    struct plan plan;
    plan_init(&plan, params);
    for (size_t n = 0; n < params->batch; n++) {
        const struct normalize_window window = windows != NULL ? windows[n] : (struct normalize_window){0};
        const int mirrored = window.flip != 0;
        const uint8_t *from = in + n * in_sample + window.y * in_row + window.x * pixel;
        uint8_t *to = (uint8_t *)out + n * total * pixel * element_bytes(params->dtype);
        /* Without gaps between rows, rows of any other length do, which leaves one remainder instead of many. */
        const int gapless = params->out_width == params->in_width && !mirrored;
        const size_t width = gapless ? GAPLESS_ROW : params->out_width, step = gapless ? GAPLESS_ROW * pixel : in_row;
        for (size_t done = 0; done < total; done += width, from += step, to += width * plan.pixel_bytes) {
            prefetch(from + ROWS_AHEAD * step, width * pixel);
            row(&plan, mirrored, from, width < total - done ? width : total - done, to);
        }
    }
}
