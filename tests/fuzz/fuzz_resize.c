/* fuzz_resize.c - scaling: no file says what is scaled, but files and clients choose all of its numbers.
 *
 * Input: the source's sizes and channels, the box, the scaled sizes, the window, flags, how much of the source is held,
 * then the seed of its pixels. Everything is made to fit together, as the caller of resizer_apply() has to.
 * What has to hold: every implementation gives the same bytes; a window is cut out of the whole; nothing outside of the
 * rows that are held is read, nothing outside of the output is written, which the sanitizers see, for all buffers are
 * just large enough. */
#include <math.h>

#include "fuzz.h"
#include "resize_internal.h"

#define IMPLEMENTATIONS 8
#define WORK_MAX        200000 /* so that an input takes about a millisecond */

static struct resizer *resizers[IMPLEMENTATIONS];
static unsigned implementations;

static void resizers_make(void)
{
    while (resize_kernels_at(implementations) != NULL) {
        FUZZ_CHECK(implementations < IMPLEMENTATIONS);
        FUZZ_CHECK(resizer_new(&resizers[implementations], NULL) == 0);
        resizer_use(resizers[implementations], resize_kernels_at(implementations));
        implementations++;
    }
}

/* 1 to 240, mostly, or to 4,096. */
static uint32_t size_of(struct fuzz_input *in)
{
    const uint32_t byte = fuzz_byte(in);
    return byte < 240 ? byte + 1 : (byte - 239) * 256 - fuzz_byte(in);
}

static uint32_t below(struct fuzz_input *in, uint32_t n)
{
    uint32_t value = fuzz_byte(in);
    if (n > 256)
        value = value << 8 | fuzz_byte(in);
    return value % n;
}

/* Part of 0 to `length`: all, whole pixels, or any double. */
static void box_side(struct fuzz_input *in, uint32_t length, double *begin, double *size)
{
    uint64_t bits[2];
    switch (fuzz_byte(in) % 3) {
    case 0:
        *begin = 0;
        *size = length;
        return;
    case 1:
        *begin = below(in, length);
        *size = 1 + below(in, length - (uint32_t)*begin);
        return;
    default:
        for (int i = 0; i < 2; i++) {
            bits[i] = 0;
            for (int n = 0; n < 7; n++)
                bits[i] = bits[i] << 8 | fuzz_byte(in);
        }
        *begin = length * (double)(bits[0] >> 3) / 9007199254740992.0; /* 2^53 */
        *size = (length - *begin) * (double)((bits[1] >> 3) + 1) / 9007199254740992.0;
        while (*begin + *size > length)
            *size = nextafter(*size, 0);
    }
}

static void window_side(struct fuzz_input *in, uint32_t scaled, uint32_t *begin, uint32_t *size)
{
    *begin = below(in, scaled);
    *size = scaled - *begin - below(in, scaled - *begin);
}

/* More of 0 to `length` than begin to begin + size. */
static void held_side(struct fuzz_input *in, uint32_t length, uint32_t *begin, uint32_t *size)
{
    const uint32_t end = *begin + *size + below(in, length - (*begin + *size) + 1);
    *begin -= below(in, *begin + 1);
    *size = end - *begin;
}

static uint8_t *allocate(size_t bytes)
{
    uint8_t *memory = malloc(bytes);
    FUZZ_CHECK(memory != NULL);
    return memory;
}

/* Of what `pixels` is the whole source, only `held`. @return the window, owned by the caller */
static uint8_t *apply(unsigned number, const struct resize_spec *spec, const uint8_t *pixels, struct rect held,
                      size_t gap)
{
    const size_t c = spec->channels, row = held.width * c, stride = row + gap;
    uint8_t *in = allocate(stride * (held.height - 1) + row);
    uint8_t *out = allocate((size_t)spec->window.width * spec->window.height * c);
    for (uint32_t y = 0; y < held.height; y++) {
        memcpy(in + y * stride, pixels + ((size_t)(held.y + y) * spec->width + held.x) * c, row);
        if (y + 1 < held.height)
            memset(in + y * stride + row, (int)number, gap);
    }
    FUZZ_CHECK(resizer_apply(resizers[number], spec, in, held, stride, out, NULL) == 0);
    free(in);
    return out;
}

static void check_cut(const struct resize_spec *spec, const uint8_t *whole, const uint8_t *window)
{
    const size_t c = spec->channels;
    for (uint32_t y = 0; y < spec->window.height; y++) {
        for (uint32_t x = 0; x < spec->window.width; x++, window += c) {
            const size_t column = spec->window.x + (spec->flip ? spec->window.width - 1 - x : x);
            FUZZ_CHECK(memcmp(window, whole + ((spec->window.y + y) * (size_t)spec->scaled_width + column) * c, c) ==
                       0);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    if (implementations == 0)
        resizers_make();
    struct resize_spec spec = {0};
    spec.width = size_of(&in);
    spec.height = size_of(&in);
    spec.channels = 1 + fuzz_byte(&in) % 4;
    spec.scaled_width = size_of(&in);
    spec.scaled_height = size_of(&in);
    if (((uint64_t)spec.width + 2 * spec.scaled_width) * (spec.height + 2 * spec.scaled_height) > WORK_MAX)
        return 0;
    box_side(&in, spec.width, &spec.box.x, &spec.box.width);
    box_side(&in, spec.height, &spec.box.y, &spec.box.height);
    window_side(&in, spec.scaled_width, &spec.window.x, &spec.window.width);
    window_side(&in, spec.scaled_height, &spec.window.y, &spec.window.height);
    const uint8_t flags = fuzz_byte(&in);
    spec.flip = flags & 1;
    struct rect held = resize_source(&spec);
    FUZZ_CHECK(held.width > 0 && held.width <= spec.width && held.x <= spec.width - held.width);
    FUZZ_CHECK(held.height > 0 && held.height <= spec.height && held.y <= spec.height - held.height);
    held_side(&in, spec.width, &held.x, &held.width);
    held_side(&in, spec.height, &held.y, &held.height);

    const size_t pixel_bytes = (size_t)spec.width * spec.height * spec.channels;
    uint8_t *pixels = allocate(pixel_bytes);
    uint32_t state = 1 + fuzz_byte(&in);
    for (size_t i = 0; i < pixel_bytes; i++) { /* a linear congruential generator: Numerical Recipes' */
        state = state * 1664525 + 1013904223;
        pixels[i] = flags & 2 ? (uint8_t) - (state >> 31) : (uint8_t)(state >> 24);
    }
    struct resize_spec all = spec;
    all.window = (struct rect){0, 0, spec.scaled_width, spec.scaled_height};
    all.flip = false;
    uint8_t *whole = apply(implementations - 1, &all, pixels, (struct rect){0, 0, spec.width, spec.height}, 0);
    for (unsigned i = 0; i < implementations; i++) {
        uint8_t *window = apply(i, &spec, pixels, held, flags >> 5);
        check_cut(&spec, whole, window);
        free(window);
    }
    free(whole);
    free(pixels);
    return 0;
}
