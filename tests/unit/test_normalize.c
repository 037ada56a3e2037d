/* test_normalize.c - the host kernels: what is refused, every rounding, every place that a pixel can go to, and that
 * nothing else is read or written.
 *
 * The oracle is made of definitions and shares no code with the kernels: sums and products in double, which rounds to
 * float like float arithmetic itself; the nearest of all numbers of a format, found by search, even when there are two;
 * one formula for the place. Vector and scalar kernels are both compared with it, bit by bit. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "normalize.h"

typedef void kernel(const struct normalize_params *, const uint8_t *, const struct normalize_window *, void *);

static kernel *const kernels[] = {normalize_host, normalize_scalar};
static const char *const dtype_names[] = {"?", "u8", "i8", "f16", "bf16", "f32"};
enum { KERNELS = 2 };

static uint64_t random_next(uint64_t *state) /* SplitMix64, Steele, Lea, Flood 2014 */
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(random_next(state) % n);
}

static size_t bytes_of(int dtype)
{
    static const size_t bytes[] = {0, 1, 1, 2, 2, 4};
    return bytes[dtype];
}

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* A binary format of 16 bits, and its numbers without sign. They ascend with the bits; infinity stands where the next
 * number would be, which is how IEEE 754 rounds to it. */
struct format {
    int exponent_bits, fraction_bits;
};

static const struct format f16 = {5, 10}, bf16 = {8, 7};

static double number(const struct format *format, uint32_t bits)
{
    int bias = (1 << (format->exponent_bits - 1)) - 1, exponent = (int)(bits >> format->fraction_bits);
    double fraction = bits & ((1u << format->fraction_bits) - 1);
    if (exponent == 0)
        return ldexp(fraction, 1 - bias - format->fraction_bits);
    return ldexp(fraction + (1 << format->fraction_bits), exponent - bias - format->fraction_bits);
}

static uint32_t nearest(const struct format *format, float value)
{
    const uint32_t infinity = ((1u << format->exponent_bits) - 1) << format->fraction_bits;
    uint32_t low = 0, high = infinity; /* number(low) <= |value|; beyond infinity everything is */
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (number(format, middle) <= fabs((double)value))
            low = middle;
        else
            high = middle;
    }
    double below = fabs((double)value) - number(format, low), above = number(format, high) - fabs((double)value);
    uint32_t magnitude = below < above || (below == above && low % 2 == 0) ? low : high;
    return (signbit(value) ? 0x8000u : 0) | magnitude;
}

static uint32_t nearest_i8(float value)
{
    if (value >= 127)
        return 127;
    if (value <= -128)
        return (uint8_t)-128;
    double down = floor((double)value), rest = (double)value - down;
    int integer = (int)down;
    if (rest > 0.5 || (rest == 0.5 && integer % 2 != 0))
        integer++;
    return (uint8_t)integer;
}

static uint32_t rounded(int dtype, float value)
{
    return dtype == NORMALIZE_I8     ? nearest_i8(value)
           : dtype == NORMALIZE_F16  ? nearest(&f16, value)
           : dtype == NORMALIZE_BF16 ? nearest(&bf16, value)
                                     : float_bits(value);
}

/* What pixel x of channel c must become. */
static uint32_t expected_bits(const struct normalize_params *p, uint32_t c, uint8_t x)
{
    if (p->dtype == NORMALIZE_U8)
        return x;
    double offset = (float)(p->mean[c] * p->scale), factor = (float)(1 / (p->std[c] * p->scale));
    float difference = (float)(x - offset);
    return rounded(p->dtype, (float)(difference * factor));
}

static uint32_t element_at(const void *out, size_t index, int dtype)
{
    uint32_t bits = 0;
    memcpy(&bits, (const uint8_t *)out + index * bytes_of(dtype), bytes_of(dtype)); /* little endian */
    return bits;
}

static const struct normalize_params imagenet = {.batch = 1,
                                                 .in_height = 1,
                                                 .in_width = 1,
                                                 .channels = 3,
                                                 .out_height = 1,
                                                 .out_width = 1,
                                                 .dtype = NORMALIZE_F32,
                                                 .layout = NORMALIZE_NCHW,
                                                 .mean = {0.485, 0.456, 0.406, 0.5},
                                                 .std = {0.229, 0.224, 0.225, 0.25},
                                                 .scale = 255};

/* First of all tests, so that the choice of instructions is made by threads that race. */
static void *normalise_all_pixels(void *out)
{
    struct normalize_params p = imagenet;
    uint8_t in[256 * 3];
    for (int i = 0; i < 256 * 3; i++)
        in[i] = (uint8_t)(i / 3);
    p.in_width = p.out_width = 256;
    normalize_host(&p, in, NULL, out);
    return NULL;
}

START_TEST(threads)
{
    enum { THREADS = 4 };
    static float out[THREADS][3][256];
    pthread_t ids[THREADS];
    for (int t = 0; t < THREADS; t++)
        ck_assert_int_eq(pthread_create(&ids[t], NULL, normalise_all_pixels, out[t]), 0);
    for (int t = 0; t < THREADS; t++)
        ck_assert_int_eq(pthread_join(ids[t], NULL), 0);
    for (int t = 0; t < THREADS; t++)
        for (uint32_t c = 0; c < 3; c++)
            for (int x = 0; x < 256; x++)
                ck_assert_uint_eq(float_bits(out[t][c][x]), expected_bits(&imagenet, c, (uint8_t)x));
}
END_TEST

/* Else everything below would compare the scalar kernel with itself. */
START_TEST(vector_where_the_cpu_has_it)
{
    bool avx2 = false, f16c = false;
    char line[8192];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        avx2 |= strstr(line, " avx2") != NULL;
        f16c |= strstr(line, " f16c") != NULL;
    }
    if (file != NULL)
        fclose(file);
    ck_assert_str_eq(normalize_host_name(), avx2 && f16c ? "avx2" : "scalar");
}
END_TEST

START_TEST(check_accepts)
{
    struct normalize_params p = imagenet;
    ck_assert_ptr_null(normalize_check(&p));
    ck_assert_uint_eq(normalize_bytes(&p), 12);
    p.batch = 256, p.in_height = p.out_height = 224, p.in_width = 230, p.out_width = 224, p.layout = NORMALIZE_NHWC;
    for (p.dtype = NORMALIZE_U8; p.dtype <= NORMALIZE_F32; p.dtype++) {
        ck_assert_ptr_null(normalize_check(&p));
        ck_assert_uint_eq(normalize_bytes(&p), 256u * 224 * 224 * 3 * bytes_of(p.dtype));
    }

    p = imagenet;
    p.channels = 1, p.mean[1] = NAN, p.std[2] = 0, p.std[3] = -1; /* of channels that aren't there */
    ck_assert_ptr_null(normalize_check(&p));
    p.mean[0] = -1e6, p.std[0] = 1e-6;
    ck_assert_ptr_null(normalize_check(&p));
    p.dtype = NORMALIZE_U8, p.mean[0] = NAN, p.std[0] = 0, p.scale = 0; /* no use is made of them */
    ck_assert_ptr_null(normalize_check(&p));

    p = imagenet; /* 2^62 bytes, just as much as is allowed */
    p.channels = 4, p.batch = 1u << 30, p.in_height = p.out_height = 1u << 14, p.in_width = p.out_width = 1u << 14;
    ck_assert_ptr_null(normalize_check(&p));
    ck_assert_uint_eq(normalize_bytes(&p), (size_t)1 << 62);
}
END_TEST

#define REFUSED(change, word)                                                                                          \
    do {                                                                                                               \
        struct normalize_params p = imagenet;                                                                          \
        change;                                                                                                        \
        const char *why = normalize_check(&p);                                                                         \
        ck_assert_msg(why != NULL, "accepted: %s", #change);                                                           \
        ck_assert_msg(strstr(why, word) != NULL && strchr(why, '\n') == NULL, "%s: \"%s\"", #change, why);             \
    } while (0)

START_TEST(check_refuses)
{
    REFUSED(p.batch = 0, "batch");
    REFUSED(p.in_height = 0, "heights");
    REFUSED(p.in_width = 0, "widths");
    REFUSED(p.out_height = 0, "heights");
    REFUSED(p.out_width = 0, "widths");
    REFUSED(p.channels = 0, "channels");
    REFUSED(p.channels = 5, "channels");
    REFUSED(p.channels = UINT32_MAX, "channels");
    REFUSED(p.out_height = 2, "output");
    REFUSED(p.out_width = UINT32_MAX, "output");
    REFUSED(p.dtype = 0, "dtype");
    REFUSED(p.dtype = 6, "dtype");
    REFUSED(p.dtype = -1, "dtype");
    REFUSED(p.layout = 0, "layout");
    REFUSED(p.layout = 3, "layout");

    REFUSED(p.scale = 0, "scale must");
    REFUSED(p.scale = -255, "scale must");
    REFUSED(p.scale = NAN, "scale must");
    REFUSED(p.scale = (double)INFINITY, "scale must");
    for (int c = 0; c < 3; c++) {
        REFUSED(p.mean[c] = NAN, "mean must");
        REFUSED(p.mean[c] = -(double)INFINITY, "mean must");
        REFUSED(p.std[c] = 0, "std must");
        REFUSED(p.std[c] = -0.0, "std must");
        REFUSED(p.std[c] = -0.25, "std must");
        REFUSED(p.std[c] = NAN, "std must");
        REFUSED(p.std[c] = (double)INFINITY, "std must");
        REFUSED(p.mean[c] = 1e37, "range");   /* offset beyond FLT_MAX */
        REFUSED(p.mean[c] = -1e308, "range"); /* beyond DBL_MAX */
        REFUSED(p.std[c] = 1e-42, "range");   /* factor beyond FLT_MAX */
        REFUSED(p.std[c] = 5e-324, "range");  /* beyond DBL_MAX */
        REFUSED(p.std[c] = 1e36, "range");    /* factor below FLT_MIN */
        REFUSED(p.std[c] = 1e308, "range");   /* 0 */
    }

    REFUSED((p.batch = p.in_height = p.in_width = UINT32_MAX), "2^62");
    REFUSED((p.batch = 1u << 31, p.in_height = 1u << 31, p.in_width = 1), "2^62");                /* x 3: input */
    REFUSED((p.batch = 1u << 30, p.in_height = p.out_height = 1u << 31, p.channels = 1), "2^62"); /* x 4: output */
    REFUSED((p.batch = 1u << 31, p.in_height = p.out_height = 1u << 31, p.channels = 4), "2^62"); /* 2^66 is 4 */
    REFUSED((p.batch = p.in_height = p.in_width = 1u << 31, p.channels = 1, p.dtype = NORMALIZE_U8), "2^62");
}
END_TEST

/* From NumPy. With MNIST's, each order of operations that rounds to float once more gives another last bit. */
START_TEST(constants)
{
    struct normalize_constants k;
    struct normalize_params p = imagenet;
    p.channels = 2, p.mean[1] = 0.1307, p.std[1] = 0.3081;
    normalize_constants(&p, &k);
    ck_assert_uint_eq(float_bits(k.offset[0]), 0x42F7599A); /* float32(0.485 * 255) */
    ck_assert_uint_eq(float_bits(k.factor[0]), 0x3C8C4936); /* float32(1 / (0.229 * 255)) */
    ck_assert_uint_eq(float_bits(k.offset[1]), 0x42055062);
    ck_assert_uint_eq(float_bits(k.factor[1]), 0x3C508A14);
    ck_assert(k.offset[2] == 0 && k.offset[3] == 0 && k.factor[2] == 0 && k.factor[3] == 0);
    p.dtype = NORMALIZE_U8, p.std[0] = 0;
    normalize_constants(&p, &k);
    ck_assert(k.offset[0] == 0 && k.factor[0] == 0);
}
END_TEST

/* Rounds any finite value: as the negated mean of a pixel that is 0, four at a time, one a channel. */
static void check_rounding(int dtype, const float values[4])
{
    static const uint8_t in[4] = {0};
    struct normalize_params p = {.batch = 1,
                                 .in_height = 1,
                                 .in_width = 1,
                                 .channels = 4,
                                 .out_height = 1,
                                 .out_width = 1,
                                 .dtype = dtype,
                                 .layout = NORMALIZE_NHWC,
                                 .mean = {-values[0], -values[1], -values[2], -values[3]},
                                 .std = {1, 1, 1, 1},
                                 .scale = 1};
    ck_assert_ptr_null(normalize_check(&p));
    for (int k = 0; k < KERNELS; k++) {
        uint32_t out[4];
        kernels[k](&p, in, NULL, out);
        for (int i = 0; i < 4; i++) {
            uint32_t bits = element_at(out, (size_t)i, dtype), right = rounded(dtype, values[i]);
            if (bits != right)
                ck_abort_msg("%s %s of %a: 0x%x instead of 0x%x", k == 0 ? "host" : "scalar", dtype_names[dtype],
                             (double)values[i], bits, right);
        }
    }
}

/* A value, its neighbours, and the negatives of all. */
static void check_around(int dtype, float value)
{
    float less = nextafterf(value, 0), more = value < FLT_MAX ? nextafterf(value, INFINITY) : value;
    check_rounding(dtype, (float[4]){value, less, more, -value});
    check_rounding(dtype, (float[4]){-less, -more, value, less});
}

/* Zero is left out: a difference of equal numbers is +0, whatever the sign that was meant. */
START_TEST(rounding_f16)
{
    for (uint32_t bits = 1; bits <= 0x7C00; bits++) { /* every number, and every middle; the last is 65520 */
        float value = (float)number(&f16, bits), middle = (float)((number(&f16, bits - 1) + number(&f16, bits)) / 2);
        float less = nextafterf(middle, 0), more = nextafterf(middle, INFINITY);
        check_rounding(NORMALIZE_F16, (float[4]){less, middle, more, value});
        check_rounding(NORMALIZE_F16, (float[4]){-less, -middle, -more, -value});
    }
}
END_TEST

START_TEST(rounding_bf16)
{
    for (uint32_t bits = 1; bits < 0x7F80; bits++) { /* every number, and every middle; the last is below FLT_MAX */
        float value = bits_float(bits << 16), middle = bits_float(bits << 16 | 0x8000);
        float less = bits_float(bits << 16 | 0x7FFF), more = bits_float(bits << 16 | 0x8001);
        check_rounding(NORMALIZE_BF16, (float[4]){less, middle, more, value});
        check_rounding(NORMALIZE_BF16, (float[4]){-less, -middle, -more, -value});
    }
    for (uint32_t bits = 2; bits < 0x10000; bits *= 2) /* around the least number and half of it */
        check_around(NORMALIZE_BF16, bits_float(bits));
    check_around(NORMALIZE_BF16, FLT_MAX);
}
END_TEST

START_TEST(rounding_i8)
{
    for (int twice = 1; twice <= 600; twice++)
        check_around(NORMALIZE_I8, (float)twice / 2);
    for (int exponent = 0; exponent < 128; exponent++) /* far beyond what conversions to integers can do */
        check_around(NORMALIZE_I8, ldexpf(1, exponent));
    check_around(NORMALIZE_I8, FLT_MAX);
}
END_TEST

START_TEST(rounding_random)
{
    uint64_t seed = 1;
    for (int i = 0; i < 10000; i++) {
        float values[4];
        for (int v = 0; v < 4; v++) {
            do
                values[v] = bits_float((uint32_t)random_next(&seed));
            while (!isfinite(values[v]) || values[v] == 0);
        }
        for (int dtype = NORMALIZE_I8; dtype <= NORMALIZE_F32; dtype++)
            check_rounding(dtype, values);
        for (int v = 0; v < 4; v++) /* near the range of f16 */
            values[v] = ldexpf(bits_float(0x3F800000 | (uint32_t)(random_next(&seed) >> 41)),
                               (int)random_below(&seed, 44) - 27);
        check_rounding(NORMALIZE_F16, values);
    }
}
END_TEST

/* A product beyond FLT_MAX, and one that is rounded to a zero that keeps its sign. */
START_TEST(overflow_and_underflow)
{
    static const uint32_t infinity[] = {0, 0, 127, 0x7C00, 0x7F80, 0x7F800000};
    static const uint32_t negative[] = {0, 0, 0x80, 0xFC00, 0xFF80, 0xFF800000};
    static const uint32_t zeros[] = {0, 0, 0, 0x8000, 0x8000, 0x80000000};
    static const uint8_t in[3] = {0};
    struct normalize_params p = imagenet;
    p.scale = 1;
    p.mean[0] = -3e38, p.mean[1] = 3e38, p.mean[2] = 1e-30;
    p.std[0] = p.std[1] = 1e-30, p.std[2] = 1e30;
    ck_assert_ptr_null(normalize_check(&p));
    for (p.dtype = NORMALIZE_I8; p.dtype <= NORMALIZE_F32; p.dtype++) {
        for (int k = 0; k < KERNELS; k++) {
            uint32_t out[3];
            kernels[k](&p, in, NULL, out);
            ck_assert_uint_eq(element_at(out, 0, p.dtype), infinity[p.dtype]);
            ck_assert_uint_eq(element_at(out, 1, p.dtype), negative[p.dtype]);
            ck_assert_uint_eq(element_at(out, 2, p.dtype), zeros[p.dtype]);
        }
    }
}
END_TEST

/* All pixel values of one channel as float, by the vector kernel. */
static void all_pixels(double mean, double std, double scale, float out[256])
{
    struct normalize_params p = imagenet;
    uint8_t in[256];
    p.channels = 1, p.mean[0] = mean, p.std[0] = std, p.scale = scale, p.in_width = p.out_width = 256;
    ck_assert_ptr_null(normalize_check(&p));
    for (int x = 0; x < 256; x++)
        in[x] = (uint8_t)x;
    normalize_host(&p, in, NULL, out);
}

START_TEST(near_double_arithmetic)
{
    static const double usual[][2] = {{0.485, 0.229},
                                      {0.456, 0.224},
                                      {0.406, 0.225},
                                      {0.5, 0.5},
                                      {0.1307, 0.3081},
                                      {0.4914, 0.2023},
                                      {0.4822, 0.1994},
                                      {0.4465, 0.2010},
                                      {0, 1},
                                      {0.2860, 0.3530},
                                      {0.5071, 0.2675},
                                      {0.4376821, 0.19803012},
                                      {0.48145466, 0.26862954},
                                      {0.40821073, 0.27577711}};
    float out[256];
    for (size_t u = 0; u < sizeof(usual) / sizeof(usual[0]); u++) {
        all_pixels(usual[u][0], usual[u][1], 255, out);
        for (int x = 0; x < 256; x++) {
            double exact = (x / 255.0 - usual[u][0]) / usual[u][1], error = fabs(out[x] - exact);
            ck_assert_msg(error < 1e-6, "mean %g, std %g, pixel %d: off by %g", usual[u][0], usual[u][1], x, error);
        }
    }

    /* Anything else: each of offset, factor, difference and product is off by 2^-24 of itself at most. */
    uint64_t seed = 2;
    for (int i = 0; i < 500; i++) {
        double mean = ldexp((double)random_next(&seed), (int)random_below(&seed, 20) - 74) - 0.5;
        double std = ldexp((double)random_next(&seed) + 1, -(int)random_below(&seed, 20) - 60);
        double scale = 1 + random_below(&seed, 300);
        all_pixels(mean, std, scale, out);
        for (int x = 0; x < 256; x++) {
            double exact = (x - mean * scale) / (std * scale), error = fabs(out[x] - exact);
            double bound = 1.0001 * ldexp(fabs(mean / std) + 3 * fabs(exact), -24);
            ck_assert_msg(error <= bound, "mean %g, std %g, scale %g, pixel %d: off by %g, more than %g", mean, std,
                          scale, x, error, bound);
        }
    }
}
END_TEST

/* Places. One call with everything around it: the input ends where its allocation does, at any address; the output has
 * guards on both sides, and is poisoned. */
enum { GUARD = 64 };

struct call {
    struct normalize_params params;
    uint8_t *in_allocation, *in, *out_allocation, *out, *right; /* right: what `out` must become */
    struct normalize_window *windows;
    size_t out_bytes;
};

enum windows { NO_WINDOWS, ALL_MIRRORED, ANY_WINDOWS, WINDOWS };

/* The value at (n, y, x, c) of the output is at this index, and comes from a pixel at that one. */
static size_t index_out(const struct normalize_params *p, size_t n, size_t y, size_t x, size_t c)
{
    return p->layout == NORMALIZE_NCHW ? ((n * p->channels + c) * p->out_height + y) * p->out_width + x
                                       : ((n * p->out_height + y) * p->out_width + x) * p->channels + c;
}

static size_t index_in(const struct normalize_params *p, struct normalize_window window, size_t n, size_t y, size_t x,
                       size_t c)
{
    size_t column = window.x + (window.flip ? p->out_width - 1 - x : x);
    return ((n * p->in_height + window.y + y) * p->in_width + column) * p->channels + c;
}

/* expected: the bits for each channel and pixel value */
static void call_init(struct call *call, const struct normalize_params *p, enum windows windows, uint64_t *seed,
                      const uint32_t expected[][256])
{
    ck_assert_ptr_null(normalize_check(p));
    call->params = *p;
    size_t in_bytes = (size_t)p->batch * p->in_height * p->in_width * p->channels, shift = random_below(seed, 4);
    call->in_allocation = malloc(shift + in_bytes);
    call->in = call->in_allocation + shift;
    for (size_t i = 0; i < in_bytes; i++)
        call->in[i] = (uint8_t)random_next(seed);

    call->windows = windows == NO_WINDOWS ? NULL : malloc(p->batch * sizeof(*call->windows));
    for (uint32_t n = 0; n < p->batch && windows != NO_WINDOWS; n++) {
        struct normalize_window *window = &call->windows[n];
        window->y = random_below(seed, p->in_height - p->out_height + 1);
        window->x = random_below(seed, p->in_width - p->out_width + 1);
        window->flip = windows == ALL_MIRRORED || random_below(seed, 2);
    }

    const size_t element = bytes_of(p->dtype);
    call->out_bytes = normalize_bytes(p);
    shift = random_below(seed, 8) * element;
    call->out_allocation = malloc(GUARD + shift + call->out_bytes + GUARD);
    call->out = call->out_allocation + GUARD + shift;
    call->right = malloc(call->out_bytes);
    for (size_t n = 0; n < p->batch; n++) {
        struct normalize_window window = windows == NO_WINDOWS ? (struct normalize_window){0} : call->windows[n];
        for (size_t y = 0; y < p->out_height; y++)
            for (size_t x = 0; x < p->out_width; x++)
                for (size_t c = 0; c < p->channels; c++) /* little endian */
                    memcpy(call->right + index_out(p, n, y, x, c) * element,
                           &expected[c][call->in[index_in(p, window, n, y, x, c)]], element);
    }
}

static void call_done(struct call *call)
{
    free(call->in_allocation);
    free(call->out_allocation);
    free(call->right);
    free(call->windows);
}

static void call_check(const struct call *call, kernel *run, uint8_t poison, enum windows windows)
{
    const struct normalize_params *p = &call->params;
    memset(call->out - GUARD, poison, GUARD + call->out_bytes + GUARD);
    run(p, call->in, call->windows, call->out);
    for (int i = 0; i < GUARD; i++)
        if (call->out[i - GUARD] != poison || call->out[call->out_bytes + (size_t)i] != poison)
            ck_abort_msg("written outside the output");
    if (memcmp(call->out, call->right, call->out_bytes) == 0)
        return;
    size_t i = 0;
    while (element_at(call->out, i, p->dtype) == element_at(call->right, i, p->dtype))
        i++;
    ck_abort_msg("%s %s %s, %u x %u x %u x %u to %u x %u, windows %d: value %zu is 0x%x instead of 0x%x",
                 run == normalize_host ? "host" : "scalar", dtype_names[p->dtype],
                 p->layout == NORMALIZE_NCHW ? "NCHW" : "NHWC", p->batch, p->in_height, p->in_width, p->channels,
                 p->out_height, p->out_width, windows, i, element_at(call->out, i, p->dtype),
                 element_at(call->right, i, p->dtype));
}

/* Every dtype, layout, number of channels and kind of windows. Two poisons: no byte is left as it was, even if it
 * happens to be right. */
static void check_places(uint32_t batch, uint32_t in_height, uint32_t in_width, uint32_t out_height, uint32_t out_width)
{
    static uint64_t seed = 3;
    static uint32_t expected[NORMALIZE_F32 + 1][NORMALIZE_CHANNELS_MAX][256]; /* made by the first call */
    struct normalize_params p = imagenet;
    for (p.dtype = NORMALIZE_U8; p.dtype <= NORMALIZE_F32 && expected[NORMALIZE_F32][0][0] == 0; p.dtype++)
        for (uint32_t c = 0; c < NORMALIZE_CHANNELS_MAX; c++)
            for (int x = 0; x < 256; x++)
                expected[p.dtype][c][x] = expected_bits(&p, c, (uint8_t)x);
    p.batch = batch, p.in_height = in_height, p.in_width = in_width, p.out_height = out_height, p.out_width = out_width;
    for (p.channels = 1; p.channels <= NORMALIZE_CHANNELS_MAX; p.channels++) {
        for (p.dtype = NORMALIZE_U8; p.dtype <= NORMALIZE_F32; p.dtype++) {
            for (p.layout = NORMALIZE_NHWC; p.layout <= NORMALIZE_NCHW; p.layout++) {
                for (enum windows windows = NO_WINDOWS; windows < WINDOWS; windows++) {
                    struct call call;
                    call_init(&call, &p, windows, &seed, expected[p.dtype]);
                    call_check(&call, normalize_host, 0xA5, windows);
                    call_check(&call, normalize_host, 0x5A, windows);
                    call_check(&call, normalize_scalar, 0xA5, windows);
                    call_done(&call);
                }
            }
        }
    }
}

START_TEST(places_widths) /* all remainders, alone and after one or two groups of any vector's length up to 32 */
{
    for (uint32_t width = 1; width <= 66; width++)
        check_places(1, 2, width, 2, width);
    for (uint32_t width = 1; width <= 40; width += 3)
        check_places(2, 3, width + 5, 2, width);
}
END_TEST

START_TEST(places_images)
{
    check_places(1, 3, 5, 3, 5);
    check_places(2, 28, 28, 28, 28);
    check_places(1, 223, 225, 223, 225);
    check_places(1, 224, 224, 224, 224);
    check_places(1, 230, 256, 224, 224);
    check_places(1, 2, 4099, 2, 4099);
}
END_TEST

START_TEST(places_batches)
{
    check_places(1024, 1, 1, 1, 1);
    check_places(1024, 4, 5, 3, 4);
    check_places(64, 11, 23, 8, 19);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("normalize");
    TCase *parameters = tcase_create("parameters");
    tcase_add_test(parameters, threads);
    tcase_add_test(parameters, vector_where_the_cpu_has_it);
    tcase_add_test(parameters, check_accepts);
    tcase_add_test(parameters, check_refuses);
    tcase_add_test(parameters, constants);
    suite_add_tcase(suite, parameters);
    TCase *values = tcase_create("values");
    tcase_set_timeout(values, 60);
    tcase_add_test(values, rounding_f16);
    tcase_add_test(values, rounding_bf16);
    tcase_add_test(values, rounding_i8);
    tcase_add_test(values, rounding_random);
    tcase_add_test(values, overflow_and_underflow);
    tcase_add_test(values, near_double_arithmetic);
    suite_add_tcase(suite, values);
    TCase *places = tcase_create("places");
    tcase_set_timeout(places, 60);
    tcase_add_test(places, places_widths);
    tcase_add_test(places, places_images);
    tcase_add_test(places, places_batches);
    suite_add_tcase(suite, places);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
