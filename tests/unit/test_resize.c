/* test_resize.c - scaling: pixels pinned from Pillow; a plain implementation that scales the whole image in two steps,
 * all columns and then all rows; and every kernel against the scalar one. tests/python/test_resize.py compares with
 * Pillow itself.
 *
 * Buffers have just the size that the contract asks for, so that a sanitizer sees every step outside. Where kernels are
 * compared, each row of the input lies between two pages that can't be touched, and so does the output.
 * Threads: one. Linked with --wrap=malloc, to be out of memory. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "resize_internal.h"

#ifndef __has_feature /* as clang says it */
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) ||               \
    __has_feature(thread_sanitizer)
size_t __sanitizer_get_current_allocated_bytes(void); /* LLVM's allocator_interface.h, which GCC doesn't install */
static size_t allocated_bytes(void)
{
    return __sanitizer_get_current_allocated_bytes();
}
#else
#include <malloc.h>
static size_t allocated_bytes(void)
{
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}
#endif

static int mallocs_left = -1; /* that succeed; -1: all */

void *__real_malloc(size_t bytes);
__attribute__((visibility("default"))) void *__wrap_malloc(size_t bytes);

__attribute__((visibility("default"))) void *__wrap_malloc(size_t bytes)
{
    if (mallocs_left == 0)
        return NULL;
    if (mallocs_left > 0)
        mallocs_left--;
    return __real_malloc(bytes);
}

static uint64_t random_next(uint64_t *state) /* SplitMix64 (Steele, Lea, Flood 2014) */
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

static double random_unit(uint64_t *state)
{
    return (double)(random_next(state) >> 11) / (double)(1ull << 53);
}

static uint8_t *must_allocate(size_t bytes)
{
    uint8_t *memory = malloc(bytes);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static uint8_t *noise(uint64_t seed, size_t bytes)
{
    uint8_t *image = must_allocate(bytes);
    for (size_t i = 0; i < bytes; i++)
        image[i] = (uint8_t)random_next(&seed);
    return image;
}

static struct resizer *must_make(const struct resize_kernels *kernels)
{
    struct resizer *resizer = NULL;
    struct feedd_error err;
    ck_assert_int_eq(resizer_new(&resizer, &err), 0);
    resizer_use(resizer, kernels);
    return resizer;
}

/* One for each implementation; NULL behind the last. */
static struct resizer **must_make_all(void)
{
    static struct resizer *all[8];
    unsigned count = 0;
    for (; resize_kernels_at(count) != NULL; count++)
        all[count] = must_make(resize_kernels_at(count));
    ck_assert_uint_ge(count, 1);
    ck_assert_ptr_eq(resize_kernels_at(count - 1), &resize_scalar);
    all[count] = NULL;
    return all;
}

static void free_all(struct resizer **all)
{
    for (; *all != NULL; all++)
        resizer_free(*all);
}

static const char *name_of(unsigned number)
{
    return resize_kernels_at(number)->name;
}

static size_t out_bytes(const struct resize_spec *spec)
{
    return (size_t)spec->window.width * spec->window.height * spec->channels;
}

static struct rect whole(uint32_t width, uint32_t height)
{
    return (struct rect){0, 0, width, height};
}

/* A whole image to a whole one. */
static struct resize_spec simple(uint32_t width, uint32_t height, uint32_t channels, uint32_t scaled_width,
                                 uint32_t scaled_height)
{
    return (struct resize_spec){.width = width,
                                .height = height,
                                .box = {0, 0, width, height},
                                .scaled_width = scaled_width,
                                .scaled_height = scaled_height,
                                .window = {0, 0, scaled_width, scaled_height},
                                .channels = channels};
}

/* `in` is the whole source. @return the window, to be freed */
static uint8_t *must_apply(struct resizer *resizer, const uint8_t *in, size_t stride, const struct resize_spec *spec)
{
    uint8_t *out = must_allocate(out_bytes(spec));
    struct feedd_error err;
    int rc = resizer_apply(resizer, spec, in, whole(spec->width, spec->height), stride, out, &err);
    ck_assert_msg(rc == 0, "%s", err.message);
    return out;
}

/* One step: `count` lines of `in` positions become lines of `out` positions. A position of line l is at
 * l * line_step + position * step. */
static void scale_plainly(const uint8_t *from, size_t from_line, size_t from_step, uint32_t in, double box,
                          double box_length, uint8_t *to, size_t to_line, size_t to_step, uint32_t out, size_t lines)
{
    const float begin = (float)box, end = (float)(box + box_length);
    const double scale = (double)(end - begin) / out, support = scale > 1 ? scale : 1;
    double *weights = (double *)must_allocate(sizeof(double) * in);
    for (uint32_t i = 0; i < out; i++) {
        const double center = begin + (i + 0.5) * scale;
        double sum = 0;
        for (uint32_t p = 0; p < in; p++) { /* all pixels: those outside of the support get nothing */
            const double distance = fabs((p - center + 0.5) * (1.0 / support));
            weights[p] = distance < 1 ? 1 - distance : 0;
            sum += weights[p];
        }
        for (size_t line = 0; line < lines; line++) {
            int64_t value = 1 << 21;
            for (uint32_t p = 0; p < in; p++)
                value += from[line * from_line + p * from_step] * (int64_t)(weights[p] / sum * (1 << 22) + 0.5);
            to[line * to_line + i * to_step] = value >> 22 > 255 ? 255 : (uint8_t)(value >> 22);
        }
    }
    free(weights);
}

/* The window of a scaled image, mirrored if it shall be. */
static uint8_t *cut(const uint8_t *scaled, const struct resize_spec *spec)
{
    const size_t c = spec->channels, stride = spec->scaled_width * c;
    const struct rect window = spec->window;
    uint8_t *out = must_allocate(out_bytes(spec)), *to = out;
    for (uint32_t y = 0; y < window.height; y++)
        for (uint32_t x = 0; x < window.width; x++, to += c)
            memcpy(to, scaled + (window.y + y) * stride + (window.x + (spec->flip ? window.width - 1 - x : x)) * c, c);
    return out;
}

static uint8_t *apply_plainly(const uint8_t *in, const struct resize_spec *spec)
{
    const size_t c = spec->channels, columns = spec->scaled_width, rows = spec->scaled_height;
    uint8_t *narrow = must_allocate(columns * spec->height * c), *scaled = must_allocate(columns * rows * c);
    for (size_t k = 0; k < c; k++)
        scale_plainly(in + k, spec->width * c, c, spec->width, spec->box.x, spec->box.width, narrow + k, columns * c, c,
                      spec->scaled_width, spec->height);
    scale_plainly(narrow, 1, columns * c, spec->height, spec->box.y, spec->box.height, scaled, 1, columns * c,
                  spec->scaled_height, columns * c);
    uint8_t *out = cut(scaled, spec);
    free(narrow);
    free(scaled);
    return out;
}

static void must_equal(const uint8_t *got, const uint8_t *due, const struct resize_spec *spec, const char *name)
{
    const size_t bytes = out_bytes(spec);
    if (memcmp(got, due, bytes) == 0)
        return;
    size_t i = 0;
    while (got[i] == due[i])
        i++;
    ck_abort_msg("%s: %u x %u x %u, box %.9g x %.9g at (%.9g, %.9g) to %u x %u, window %u x %u at (%u, %u), flip %d: "
                 "byte %zu is %u, not %u",
                 name, spec->width, spec->height, spec->channels, spec->box.width, spec->box.height, spec->box.x,
                 spec->box.y, spec->scaled_width, spec->scaled_height, spec->window.width, spec->window.height,
                 spec->window.x, spec->window.y, spec->flip, i, got[i], due[i]);
}

/* Every implementation against the plain one, rows `gap` bytes apart. */
static void check_spec(struct resizer *const *all, const struct resize_spec *spec, uint64_t seed, size_t gap)
{
    const size_t row = (size_t)spec->width * spec->channels, stride = row + gap;
    uint8_t *packed = noise(seed, row * spec->height), *in = noise(~seed, stride * (spec->height - 1) + row);
    for (uint32_t y = 0; y < spec->height; y++)
        memcpy(in + y * stride, packed + y * row, row);
    uint8_t *due = apply_plainly(packed, spec);
    for (unsigned k = 0; all[k] != NULL; k++) {
        uint8_t *got = must_apply(all[k], in, stride, spec);
        must_equal(got, due, spec, name_of(k));
        free(got);
    }
    free(packed);
    free(in);
    free(due);
}

static uint64_t fnv1a(const uint8_t *bytes, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3;
    return hash;
}

/* Pillow's own pixels of noise(seed): Image.resize(box), crop(), transpose(). */
START_TEST(pinned_pixels)
{
    static const uint8_t small[] = {133, 172, 115, 142, 124, 154, 131, 112, 136, 150, 96,  91,
                                    116, 148, 140, 150, 135, 122, 141, 145, 117, 124, 136, 118,
                                    103, 121, 130, 151, 101, 151, 96,  117, 170, 118, 127, 106};
    static const uint8_t large[] = {142, 136, 191, 162, 95,  163, 116, 155, 122, 138, 190, 111,
                                    161, 77,  131, 159, 152, 94,  199, 229, 133, 147, 126, 125,
                                    108, 121, 121, 194, 206, 103, 150, 135, 118, 125, 105, 141};
    static const struct {
        uint64_t seed;
        struct resize_spec spec;
        uint64_t hash;
    } cases[] = {
        {100, {100, 75, {0, 0, 100, 75}, 64, 48, {8, 0, 48, 48}, false, 3}, 0x71b671ac378302b1},
        {101, {75, 100, {0, 0, 75, 100}, 48, 64, {0, 8, 48, 48}, true, 3}, 0x885d8d3d44dbf26c},
        {102, {31, 200, {0, 0, 31, 200}, 200, 31, {0, 0, 200, 31}, false, 1}, 0xe87787f64d168fd4},
        {103, {200, 31, {0, 0, 200, 31}, 31, 200, {0, 0, 31, 200}, true, 1}, 0xf76a961d386c77d5},
        {104, {64, 64, {0, 0, 64, 64}, 64, 20, {0, 0, 64, 20}, false, 3}, 0xdac35631fa41653e},
        {105, {64, 64, {0, 0, 64, 64}, 20, 64, {0, 0, 20, 64}, false, 3}, 0xb11f29d86280b93f},
        {106, {257, 3, {0, 0, 257, 3}, 255, 2, {0, 0, 255, 2}, true, 3}, 0x6317b8757a44e5a8},
        {107, {1, 1, {0, 0, 1, 1}, 50, 50, {10, 10, 20, 20}, false, 3}, 0x3f881508c74f1325},
        {108, {300, 2, {0, 0, 300, 2}, 1, 1, {0, 0, 1, 1}, false, 1}, 0xaf643e4c86029312},
        {109, {40, 30, {0, 0, 40, 30}, 40, 30, {3, 2, 30, 20}, true, 3}, 0xa44eea560b0ae436},
        {200, {100, 75, {12.5, 7.25, 61.375, 50.125}, 48, 48, {0, 0, 48, 48}, false, 3}, 0x2c12763de2b491c2},
        {201, {100, 75, {0.3, 0, 99.7, 33.3}, 31, 64, {3, 5, 20, 50}, true, 3}, 0xe551aedfeb9cd7ee},
        {202, {64, 48, {10, 5, 32, 32}, 64, 64, {1, 2, 60, 61}, true, 4}, 0x020ef158d3d9c56d},
        {203, {90, 70, {33.1, 20.7, 0.9, 40.2}, 17, 9, {0, 0, 17, 9}, false, 1}, 0x56a7c9a8b77bc680},
        {204, {50, 40, {5, 6, 30, 20}, 30, 20, {0, 0, 30, 20}, true, 3}, 0x707d22ac1745e207},
        {205, {50, 40, {5.5, 6, 30, 20}, 30, 20, {2, 3, 25, 15}, false, 3}, 0xf69a7f6fe288902b},
        {206, {300, 9, {1, 1, 298, 7}, 5, 3, {0, 0, 5, 3}, true, 3}, 0x6160b4d044232b39},
        {207, {40, 40, {0.125, 0.125, 39.75, 39.75}, 40, 40, {4, 4, 32, 32}, false, 4}, 0x8ef251ecf5ef1e9d},
    };
    const struct resize_spec to_small = simple(7, 5, 3, 4, 3);
    struct resize_spec to_large = simple(7, 5, 3, 9, 8);
    to_large.window = (struct rect){2, 1, 3, 4};
    to_large.flip = true;
    struct resizer **all = must_make_all();
    for (unsigned k = 0; all[k] != NULL; k++) {
        uint8_t *in = noise(1, 7 * 5 * 3);
        uint8_t *out = must_apply(all[k], in, 7 * 3, &to_small);
        must_equal(out, small, &to_small, name_of(k));
        free(out);
        out = must_apply(all[k], in, 7 * 3, &to_large);
        must_equal(out, large, &to_large, name_of(k));
        free(out);
        free(in);
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            const struct resize_spec *spec = &cases[i].spec;
            const size_t row = (size_t)spec->width * spec->channels;
            in = noise(cases[i].seed, row * spec->height);
            out = must_apply(all[k], in, row, spec);
            const uint64_t hash = fnv1a(out, out_bytes(spec));
            ck_assert_msg(hash == cases[i].hash, "%s, case %zu: %016llx", name_of(k), i, (unsigned long long)hash);
            free(out);
            free(in);
        }
    }
    free_all(all);
}
END_TEST

static void random_window(uint64_t *state, struct resize_spec *spec)
{
    spec->window.width = 1 + random_below(state, spec->scaled_width);
    spec->window.height = 1 + random_below(state, spec->scaled_height);
    spec->window.x = random_below(state, spec->scaled_width - spec->window.width + 1);
    spec->window.y = random_below(state, spec->scaled_height - spec->window.height + 1);
}

/* Part of 0..in: sometimes all of it, sometimes whole pixels. */
static void random_box(uint64_t *state, uint32_t in, double *begin, double *length)
{
    switch (random_below(state, 4)) {
    case 0:
        *begin = 0;
        *length = in;
        break;
    case 1:
        *begin = random_below(state, in);
        *length = 1 + random_below(state, in - (uint32_t)*begin);
        break;
    default: {
        const double one = in * random_unit(state), other = in * random_unit(state);
        *begin = one < other ? one : other;
        *length = fabs(one - other);
        if (*length == 0)
            *length = in - *begin;
    }
    }
}

static uint32_t side(uint64_t *state)
{
    return 1 + random_below(state, random_below(state, 3) == 0 ? 8 : 110);
}

/* One resizer for all: nothing of a job may be left in the next one. */
START_TEST(as_a_plain_implementation)
{
    uint64_t state = 3;
    struct resizer **all = must_make_all();
    for (uint64_t i = 0; i < 150; i++) {
        struct resize_spec spec =
            simple(side(&state), side(&state), 1 + random_below(&state, 4), side(&state), side(&state));
        spec.flip = i % 2 == 0;
        if (i % 8 == 3 || i % 8 == 7) /* one direction, or both, as it is */
            spec.scaled_width = spec.window.width = spec.width;
        if (i % 8 == 5 || i % 8 == 7)
            spec.scaled_height = spec.window.height = spec.height;
        if (i % 8 < 3) {
            random_box(&state, spec.width, &spec.box.x, &spec.box.width);
            random_box(&state, spec.height, &spec.box.y, &spec.box.height);
        }
        check_spec(all, &spec, i, 0);
        for (int n = 0; n < 2; n++) { /* the same sizes, other windows */
            random_window(&state, &spec);
            spec.flip = !spec.flip;
            check_spec(all, &spec, i, (size_t)random_below(&state, 9));
        }
    }
    free_all(all);
    resizer_free(NULL);
}
END_TEST

/* A hair beside whole pixels, where one weight is 1 after rounding, and its neighbour still has some or just none. */
START_TEST(almost_whole_pixels)
{
    static const double beside[] = {0x1p-21, 0x1.8p-23, 0x1p-23, 0x1p-24, 0x1p-25, -0x1p-22, -0x1p-23, -0x1p-24};
    struct resizer **all = must_make_all();
    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
        for (uint32_t x = 0; x < 3; x++) {
            struct resize_spec spec = simple(12, 11, 3, 7, 7);
            spec.box.x = spec.box.y = x + beside[i] < 0 ? 0 : x + beside[i];
            for (uint32_t scale = 1; scale <= 3; scale += 2) { /* pixels a row; 1/3 of them */
                spec.box.width = 7;
                spec.box.height = 7.0 / scale;
                check_spec(all, &spec, i, 0);
                spec.box.width = 7.0 / scale;
                spec.box.height = 7;
                check_spec(all, &spec, i, 0);
            }
        }
    }
    free_all(all);
}
END_TEST

/* Pages that can be used, each between two that can't. */
struct pages {
    uint8_t *base;
    size_t page;
    uint32_t count;
};

static struct pages pages_map(uint32_t count)
{
    struct pages pages = {NULL, (size_t)sysconf(_SC_PAGESIZE), count};
    pages.base = mmap(NULL, (2 * (size_t)count + 1) * pages.page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(pages.base, MAP_FAILED);
    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(mprotect(pages.base + (2 * i + 1) * pages.page, pages.page, PROT_READ | PROT_WRITE), 0);
    return pages;
}

static void pages_unmap(struct pages *pages)
{
    munmap(pages->base, (2 * (size_t)pages->count + 1) * pages->page);
}

/* `bytes` of page i: its first, or its last. */
static uint8_t *page_at(const struct pages *pages, size_t i, size_t bytes, bool end)
{
    return pages->base + (2 * i + 1) * pages->page + (end ? pages->page - bytes : 0);
}

/* Only `held` of the source is there. Each of its rows ends, or begins, where a page does; so does the output. */
static void check_guarded(struct resizer *resizer, const char *name, const struct resize_spec *spec,
                          const uint8_t *source, struct rect held, const struct pages *rows, const struct pages *outs,
                          bool end, const uint8_t *due)
{
    const size_t c = spec->channels, bytes = held.width * c;
    ck_assert(held.height <= rows->count && bytes <= rows->page && out_bytes(spec) <= outs->page);
    for (uint32_t y = 0; y < held.height; y++)
        memcpy(page_at(rows, y, bytes, end), source + ((size_t)(held.y + y) * spec->width + held.x) * c, bytes);
    uint8_t *out = page_at(outs, 0, out_bytes(spec), end);
    memset(out, due[0] ^ 0xFF, out_bytes(spec));
    struct feedd_error err;
    int rc = resizer_apply(resizer, spec, page_at(rows, 0, bytes, end), held, 2 * rows->page, out, &err);
    ck_assert_msg(rc == 0, "%s", err.message);
    must_equal(out, due, spec, name);
}

/* Something between `least` and all of 0..in. */
static void random_held(uint64_t *state, uint32_t in, uint32_t *begin, uint32_t *length)
{
    const uint32_t end = *begin + *length;
    *begin -= random_below(state, 2) == 0 ? 0 : random_below(state, *begin + 1);
    *length = end + (random_below(state, 2) == 0 ? 0 : random_below(state, in - end + 1)) - *begin;
}

static uint32_t small_side(uint64_t *state)
{
    static const uint32_t most[] = {3, 6, 12, 24, 24, 60};
    return 1 + random_below(state, most[random_below(state, sizeof(most) / sizeof(most[0]))]);
}

/* Cutting out of the whole, scaled by the scalar kernels, is the oracle here. */
START_TEST(kernels_are_equal)
{
    enum { CASES = 40000, WINDOWS = 2 }; /* by up to three implementations */
    uint64_t state = 7;
    struct resizer **all = must_make_all(), *plain = must_make(&resize_scalar);
    struct pages rows = pages_map(60), outs = pages_map(1);
    uint8_t *pixels = noise(8, 60 * 60 * 4 + 4096);
    for (uint32_t i = 0; i < CASES; i++) {
        struct resize_spec spec = simple(small_side(&state), small_side(&state), 1 + random_below(&state, 4),
                                         1 + random_below(&state, 30), 1 + random_below(&state, 30));
        if (random_below(&state, 2) == 0)
            spec.channels = 3;
        if (random_below(&state, 10) == 0)
            spec.scaled_width = spec.window.width = spec.width < 30 ? spec.width : 30;
        random_box(&state, spec.width, &spec.box.x, &spec.box.width);
        random_box(&state, spec.height, &spec.box.y, &spec.box.height);
        const uint8_t *source = pixels + random_below(&state, 4096);
        uint8_t *scaled = must_apply(plain, source, (size_t)spec.width * spec.channels, &spec);
        for (int n = 0; n < WINDOWS; n++) {
            if (n > 0)
                random_window(&state, &spec);
            spec.flip = random_below(&state, 2) == 0;
            struct rect held = resize_source(&spec);
            random_held(&state, spec.width, &held.x, &held.width);
            random_held(&state, spec.height, &held.y, &held.height);
            uint8_t *due = cut(scaled, &spec);
            for (unsigned k = 0; all[k] != NULL; k++)
                check_guarded(all[k], name_of(k), &spec, source, held, &rows, &outs, random_below(&state, 4) != 0, due);
            free(due);
        }
        free(scaled);
    }
    free(pixels);
    pages_unmap(&rows);
    pages_unmap(&outs);
    free_all(all);
    resizer_free(plain);
}
END_TEST

/* Nothing but what resize_source() says has weight: other pixels may have any value, and it has some on all its sides.
 */
START_TEST(source_is_what_counts)
{
    uint64_t state = 11;
    struct resizer *resizer = must_make(resize_kernels_at(0));
    for (uint32_t i = 0; i < 400; i++) {
        struct resize_spec spec = simple(1 + random_below(&state, 60), 1 + random_below(&state, 60), 1,
                                         1 + random_below(&state, 40), 1 + random_below(&state, 40));
        random_box(&state, spec.width, &spec.box.x, &spec.box.width);
        random_box(&state, spec.height, &spec.box.y, &spec.box.height);
        random_window(&state, &spec);
        const struct rect source = resize_source(&spec);
        uint8_t *in = calloc(spec.width, spec.height);
        ck_assert_ptr_nonnull(in);
        for (uint32_t y = 0; y < spec.height; y++)
            for (uint32_t x = 0; x < spec.width; x++)
                in[y * spec.width + x] =
                    y - source.y < source.height && x - source.x < source.width ? 0 : (uint8_t)random_next(&state);
        uint8_t *out = must_apply(resizer, in, spec.width, &spec);
        for (size_t n = 0; n < out_bytes(&spec); n++)
            ck_assert_uint_eq(out[n], 0);
        free(out);
        free(in);
    }
    struct resize_spec copy = simple(50, 40, 3, 50, 40); /* nothing is scaled: nothing more is needed */
    copy.window = (struct rect){10, 20, 7, 9};
    const struct rect source = resize_source(&copy);
    ck_assert(source.x == 10 && source.y == 20 && source.width == 7 && source.height == 9);
    const struct resize_spec half = {.width = 50,
                                     .height = 40,
                                     .box = {0, 0, 50, 40},
                                     .scaled_width = 25,
                                     .scaled_height = 20,
                                     .channels = 3,
                                     .window = {10, 5, 2, 1}};
    const struct rect taps = resize_source(&half); /* centres 21 and 23, 11; 2 pixels to each side */
    ck_assert(taps.x == 19 && taps.y == 9 && taps.width == 6 && taps.height == 4);
    resizer_free(resizer);
}
END_TEST

/* Thousands of weights whose rounding errors add up: white stays white, black black. */
START_TEST(one_colour_stays)
{
    struct resize_spec specs[] = {simple(65500, 2, 1, 3, 1),
                                  simple(2, 65500, 1, 1, 2),
                                  simple(2, 65500, 3, 16, 3),
                                  simple(30000, 1, 3, 29999, 1),
                                  simple(1, 1, 3, 16384, 16384),
                                  simple(3, 2, 3, 1000000000, 7),
                                  simple((1u << 24) + 3, 1, 1, 67108880, 1)}; /* single precision says 2^24 + 4 */
    specs[3].window = (struct rect){29900, 0, 99, 1};
    specs[4].window = (struct rect){16000, 16000, 384, 384};
    specs[4].flip = true;
    specs[5].window = (struct rect){500000000, 0, 100, 7};
    specs[6].window = (struct rect){67108870, 0, 10, 1};
    struct resizer **all = must_make_all();
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        const struct resize_spec *spec = &specs[i];
        const size_t in_bytes = (size_t)spec->width * spec->height * spec->channels;
        uint8_t *in = must_allocate(in_bytes);
        for (int colour = 0; colour < 256; colour += 85) {
            memset(in, colour, in_bytes);
            for (unsigned k = 0; all[k] != NULL; k++) {
                uint8_t *out = must_apply(all[k], in, (size_t)spec->width * spec->channels, spec);
                for (size_t n = 0; n < out_bytes(spec); n++)
                    if (out[n] != colour)
                        ck_abort_msg("%s, case %zu: %d became %u", name_of(k), i, colour, out[n]);
                free(out);
            }
        }
        free(in);
    }
    free_all(all);
}
END_TEST

/* 798,915 weights from 3.5 to 7 / 2^22, which rounding makes 0.7 % more than 1: white becomes more than white. */
START_TEST(sums_saturate)
{
    const uint32_t many = 798915;
    const struct resize_spec narrow = simple(many, 1, 1, 1, 1), high = simple(1, many, 1, 1, 1);
    const struct resize_spec higher = simple(40, many, 1, 40, 1); /* a whole vector; only rows are summed up */
    const struct resize_spec *const specs[] = {&narrow, &high, &higher};
    struct resizer **all = must_make_all();
    uint8_t *in = must_allocate((size_t)40 * many);
    for (int colour = 200; colour < 256; colour += 55) {
        memset(in, colour, (size_t)40 * many);
        uint8_t *due = apply_plainly(in, &narrow);
        ck_assert_uint_eq(due[0], colour == 255 ? 255 : 201);
        for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
            for (unsigned k = 0; all[k] != NULL; k++) {
                uint8_t *out = must_apply(all[k], in, specs[i]->width, specs[i]);
                for (size_t n = 0; n < out_bytes(specs[i]); n++)
                    ck_assert_msg(out[n] == due[0], "%s, case %zu: %d became %u", name_of(k), i, colour, out[n]);
                free(out);
            }
        }
        free(due);
    }
    free(in);
    free_all(all);
}
END_TEST

/* Jobs that fit what is there take nothing more; a giant is forgotten. */
START_TEST(memory_stays)
{
    const struct resize_spec large = simple(120, 90, 3, 60, 50);
    struct resize_spec small = simple(70, 60, 3, 50, 40), giant = simple(1, 4200, 1, 16384, 1);
    small.window = (struct rect){1, 2, 40, 30};
    small.flip = giant.flip = true; /* 4,200 rows of 16,384 bytes */
    struct resizer **all = must_make_all();
    uint8_t *in = noise(1, 120 * 90 * 3);
    for (unsigned k = 0; all[k] != NULL; k++) {
        struct resizer *resizer = all[k];
        const size_t start = allocated_bytes();
        free(must_apply(resizer, in, 120 * 3, &large));
        const size_t held = allocated_bytes();
        ck_assert_uint_gt(held, start);
        for (int i = 0; i < 10; i++) {
            free(must_apply(resizer, in, 70 * 3, &small));
            free(must_apply(resizer, in, 120 * 3, &large));
            ck_assert_uint_eq(allocated_bytes(), held);
        }
        for (int i = 0; i < 2; i++) {
            free(must_apply(resizer, in, 1, &giant));
            ck_assert_uint_le(allocated_bytes(), start);
        }
        free(must_apply(resizer, in, 120 * 3, &large));
        ck_assert_uint_eq(allocated_bytes(), held);
    }
    check_spec(all, &large, 5, 0);
    free(in);
    free_all(all);
}
END_TEST

/* Whichever buffer there is no memory for: the status says it, the output is as it was, and the next time works. */
START_TEST(out_of_memory)
{
    const struct resize_spec spec = simple(20, 15, 3, 9, 11);
    uint8_t *in = noise(1, 20 * 15 * 3), *due = apply_plainly(in, &spec), *untouched = noise(2, out_bytes(&spec));
    for (unsigned k = 0; resize_kernels_at(k) != NULL; k++) {
        int failures = 0;
        for (bool done = false; !done; failures++) {
            struct resizer *resizer = must_make(resize_kernels_at(k));
            uint8_t *out = noise(2, out_bytes(&spec));
            struct feedd_error err = {.message = ""};
            mallocs_left = failures;
            const int rc = resizer_apply(resizer, &spec, in, whole(20, 15), 20 * 3, out, &err);
            mallocs_left = -1;
            done = rc == 0;
            if (!done) {
                ck_assert_int_eq(rc, FEEDD_E_MEMORY);
                ck_assert_int_eq(err.status, rc);
                ck_assert_ptr_nonnull(strstr(err.message, "not enough memory"));
                must_equal(out, untouched, &spec, name_of(k));
                ck_assert_int_eq(resizer_apply(resizer, &spec, in, whole(20, 15), 20 * 3, out, &err), 0);
            }
            must_equal(out, due, &spec, name_of(k));
            free(out);
            resizer_free(resizer);
        }
        ck_assert_int_ge(failures, 6); /* two tables of two buffers each, rows, the ring */
    }
    free(in);
    free(due);
    free(untouched);
}
END_TEST

static int weighed;

static void weigh_and_count(struct resize_axis *axis)
{
    weighed++;
    resize_scalar.weigh(axis);
}

/* Tables are made when something that they depend on has changed, and only then. */
START_TEST(tables_are_kept)
{
    struct resize_kernels counting = resize_scalar;
    counting.weigh = weigh_and_count;
    struct resizer *resizer = must_make(&counting);
    struct resize_spec spec = simple(20, 15, 3, 9, 11);
    uint8_t *in = noise(1, 20 * 15 * 3);
    const struct {
        uint32_t *value;
        uint32_t change;
        int tables; /* that it concerns */
    } steps[] = {
        {NULL, 0, 2},           {NULL, 0, 0},           {&spec.scaled_width, 10, 1}, {&spec.scaled_height, 12, 1},
        {&spec.window.x, 1, 1}, {&spec.window.y, 1, 1}, {&spec.window.width, 5, 1},  {&spec.window.height, 6, 1},
        {&spec.width, 19, 1},   {&spec.height, 14, 1},  {&spec.channels, 2, 0}};
    spec.box.width = spec.box.height = 14;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (steps[i].value != NULL)
            *steps[i].value = steps[i].change;
        weighed = 0;
        uint8_t *out = must_apply(resizer, in, (size_t)spec.width * spec.channels, &spec);
        ck_assert_msg(weighed == steps[i].tables, "step %zu: %d tables", i, weighed);
        uint8_t *due = apply_plainly(in, &spec);
        must_equal(out, due, &spec, "scalar");
        free(out);
        free(due);
    }
    spec.flip = true;
    spec.box.x = 0.25;
    weighed = 0;
    free(must_apply(resizer, in, (size_t)spec.width * spec.channels, &spec));
    ck_assert_int_eq(weighed, 1);
    free(in);
    resizer_free(resizer);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resize");
    TCase *tcase = tcase_create("resize");
    tcase_set_timeout(tcase, 240);
    tcase_add_test(tcase, pinned_pixels);
    tcase_add_test(tcase, as_a_plain_implementation);
    tcase_add_test(tcase, almost_whole_pixels);
    tcase_add_test(tcase, kernels_are_equal);
    tcase_add_test(tcase, source_is_what_counts);
    tcase_add_test(tcase, one_colour_stays);
    tcase_add_test(tcase, sums_saturate);
    tcase_add_test(tcase, memory_stays);
    tcase_add_test(tcase, out_of_memory);
    tcase_add_test(tcase, tables_are_kept);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
