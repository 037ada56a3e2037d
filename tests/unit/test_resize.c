/* test_resize.c - scaling: pixels pinned from Pillow, and compared with a plain implementation that scales the whole
 * image in two steps, all columns and then all rows, and cuts the window out at the end. tests/python/test_pixels.py
 * compares with Pillow itself.
 *
 * Buffers have just the size that the contract asks for, so that a sanitizer sees every step outside.
 * Threads: one. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "resize.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
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

static uint8_t *noise(uint64_t seed, size_t bytes)
{
    uint8_t *image = malloc(bytes);
    ck_assert_ptr_nonnull(image);
    for (size_t i = 0; i < bytes; i++)
        image[i] = (uint8_t)random_next(&seed);
    return image;
}

static struct resizer *must_make(void)
{
    struct resizer *resizer = NULL;
    struct feedd_error err;
    ck_assert_int_eq(resizer_new(&resizer, &err), 0);
    return resizer;
}

/* What is scaled, and to what. */
struct job {
    uint32_t width, height, channels, scaled_width, scaled_height;
    struct rect window;
    bool flip;
};

/* @return the window, to be freed */
static uint8_t *must_apply(struct resizer *resizer, const uint8_t *in, size_t stride, const struct job *job)
{
    uint8_t *out = malloc((size_t)job->window.width * job->window.height * job->channels);
    struct feedd_error err;
    ck_assert_ptr_nonnull(out);
    int rc = resizer_apply(resizer, in, job->width, job->height, stride, job->channels, job->scaled_width,
                           job->scaled_height, job->window, job->flip, out, &err);
    ck_assert_msg(rc == 0, "%s", err.message);
    return out;
}

/* One step: `count` lines of `in` positions become lines of `out` positions. A position of line l is at
 * l * line_step + position * step. */
static void scale_plainly(const uint8_t *from, size_t from_line, size_t from_step, uint32_t in, uint8_t *to,
                          size_t to_line, size_t to_step, uint32_t out, size_t lines)
{
    const double scale = (double)in / out, support = scale > 1 ? scale : 1;
    double *weights = malloc(sizeof(double) * in);
    ck_assert_ptr_nonnull(weights);
    for (uint32_t i = 0; i < out; i++) {
        const double center = (i + 0.5) * scale;
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

static uint8_t *apply_plainly(const uint8_t *in, const struct job *job)
{
    const size_t c = job->channels, columns = job->scaled_width, rows = job->scaled_height;
    uint8_t *narrow = malloc(columns * job->height * c), *whole = malloc(columns * rows * c);
    uint8_t *out = malloc((size_t)job->window.width * job->window.height * c);
    ck_assert(narrow != NULL && whole != NULL && out != NULL);
    for (size_t k = 0; k < c; k++)
        scale_plainly(in + k, job->width * c, c, job->width, narrow + k, columns * c, c, job->scaled_width,
                      job->height);
    scale_plainly(narrow, 1, columns * c, job->height, whole, 1, columns * c, job->scaled_height, columns * c);
    uint8_t *to = out;
    for (uint32_t y = 0; y < job->window.height; y++) {
        for (uint32_t x = 0; x < job->window.width; x++) {
            const uint32_t column = job->window.x + (job->flip ? job->window.width - 1 - x : x);
            memcpy(to, whole + ((job->window.y + y) * columns + column) * c, c);
            to += c;
        }
    }
    free(narrow);
    free(whole);
    return out;
}

static void check_job(struct resizer *resizer, const struct job *job, uint64_t seed, size_t gap)
{
    const size_t row = (size_t)job->width * job->channels, stride = row + gap;
    uint8_t *packed = noise(seed, row * job->height), *in = noise(~seed, stride * (job->height - 1) + row);
    for (uint32_t y = 0; y < job->height; y++)
        memcpy(in + y * stride, packed + y * row, row);
    uint8_t *got = must_apply(resizer, in, stride, job), *due = apply_plainly(packed, job);
    const size_t bytes = (size_t)job->window.width * job->window.height * job->channels;
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != due[i])
            ck_abort_msg("%u x %u x %u to %u x %u, window %u x %u at (%u, %u), flip %d: byte %zu is %u, not %u",
                         job->width, job->height, job->channels, job->scaled_width, job->scaled_height,
                         job->window.width, job->window.height, job->window.x, job->window.y, job->flip, i, got[i],
                         due[i]);
    free(packed);
    free(in);
    free(got);
    free(due);
}

static uint64_t fnv1a(const uint8_t *bytes, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3;
    return hash;
}

/* Pillow's own pixels of noise(seed): Image.resize(), crop(), transpose(). */
START_TEST(pinned_pixels)
{
    static const uint8_t small[] = {133, 172, 115, 142, 124, 154, 131, 112, 136, 150, 96,  91,
                                    116, 148, 140, 150, 135, 122, 141, 145, 117, 124, 136, 118,
                                    103, 121, 130, 151, 101, 151, 96,  117, 170, 118, 127, 106};
    static const uint8_t large[] = {142, 136, 191, 162, 95,  163, 116, 155, 122, 138, 190, 111,
                                    161, 77,  131, 159, 152, 94,  199, 229, 133, 147, 126, 125,
                                    108, 121, 121, 194, 206, 103, 150, 135, 118, 125, 105, 141};
    struct resizer *resizer = must_make();
    uint8_t *in = noise(1, 7 * 5 * 3);
    uint8_t *out = must_apply(resizer, in, 7 * 3, &(struct job){7, 5, 3, 4, 3, {0, 0, 4, 3}, false});
    ck_assert_mem_eq(out, small, sizeof(small));
    free(out);
    out = must_apply(resizer, in, 7 * 3, &(struct job){7, 5, 3, 9, 8, {2, 1, 3, 4}, true});
    ck_assert_mem_eq(out, large, sizeof(large));
    free(out);
    free(in);

    static const struct {
        struct job job;
        uint64_t hash;
    } cases[] = {
        {{100, 75, 3, 64, 48, {8, 0, 48, 48}, false}, 0x71b671ac378302b1},
        {{75, 100, 3, 48, 64, {0, 8, 48, 48}, true}, 0x885d8d3d44dbf26c},
        {{31, 200, 1, 200, 31, {0, 0, 200, 31}, false}, 0xe87787f64d168fd4},
        {{200, 31, 1, 31, 200, {0, 0, 31, 200}, true}, 0xf76a961d386c77d5},
        {{64, 64, 3, 64, 20, {0, 0, 64, 20}, false}, 0xdac35631fa41653e},
        {{64, 64, 3, 20, 64, {0, 0, 20, 64}, false}, 0xb11f29d86280b93f},
        {{257, 3, 3, 255, 2, {0, 0, 255, 2}, true}, 0x6317b8757a44e5a8},
        {{1, 1, 3, 50, 50, {10, 10, 20, 20}, false}, 0x3f881508c74f1325},
        {{300, 2, 1, 1, 1, {0, 0, 1, 1}, false}, 0xaf643e4c86029312},
        {{40, 30, 3, 40, 30, {3, 2, 30, 20}, true}, 0xa44eea560b0ae436},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct job *job = &cases[i].job;
        in = noise(100 + i, (size_t)job->width * job->height * job->channels);
        out = must_apply(resizer, in, (size_t)job->width * job->channels, job);
        const uint64_t hash = fnv1a(out, (size_t)job->window.width * job->window.height * job->channels);
        ck_assert_msg(hash == cases[i].hash, "case %zu: %016llx", i, (unsigned long long)hash);
        free(out);
        free(in);
    }
    resizer_free(resizer);
}
END_TEST

static uint32_t side(uint64_t *state)
{
    return 1 + random_below(state, random_below(state, 3) == 0 ? 8 : 110);
}

/* One resizer for all: nothing of a job may be left in the next one. */
START_TEST(as_a_plain_implementation)
{
    uint64_t state = 3;
    struct resizer *resizer = must_make();
    for (uint64_t i = 0; i < 150; i++) {
        struct job job = {side(&state), side(&state), 1 + random_below(&state, 4), side(&state), side(&state),
                          {0},          i % 2 == 0};
        if (i % 8 == 3) /* one direction, or both, as it is */
            job.scaled_width = job.width;
        if (i % 8 == 5)
            job.scaled_height = job.height;
        if (i % 8 == 7) {
            job.scaled_width = job.width;
            job.scaled_height = job.height;
        }
        job.window = (struct rect){0, 0, job.scaled_width, job.scaled_height};
        check_job(resizer, &job, i, 0);
        for (int n = 0; n < 2; n++) { /* the same sizes, other windows */
            job.window.width = 1 + random_below(&state, job.scaled_width);
            job.window.height = 1 + random_below(&state, job.scaled_height);
            job.window.x = random_below(&state, job.scaled_width - job.window.width + 1);
            job.window.y = random_below(&state, job.scaled_height - job.window.height + 1);
            job.flip = !job.flip;
            check_job(resizer, &job, i, (size_t)random_below(&state, 9));
        }
    }
    resizer_free(resizer);
    resizer_free(NULL);
}
END_TEST

/* Thousands of weights whose rounding errors add up: white stays white, black black. */
START_TEST(one_colour_stays)
{
    static const struct job jobs[] = {{65500, 2, 1, 3, 1, {0, 0, 3, 1}, false},
                                      {2, 65500, 1, 1, 2, {0, 0, 1, 2}, true},
                                      {30000, 1, 3, 29999, 1, {29900, 0, 99, 1}, false},
                                      {1, 1, 3, 16384, 16384, {16000, 16000, 384, 384}, true},
                                      {3, 2, 3, 1000000000, 7, {500000000, 0, 100, 7}, false}};
    struct resizer *resizer = must_make();
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        const size_t in_bytes = (size_t)jobs[i].width * jobs[i].height * jobs[i].channels;
        const size_t bytes = (size_t)jobs[i].window.width * jobs[i].window.height * jobs[i].channels;
        uint8_t *in = malloc(in_bytes);
        ck_assert_ptr_nonnull(in);
        for (int colour = 0; colour < 256; colour += 85) {
            memset(in, colour, in_bytes);
            uint8_t *out = must_apply(resizer, in, (size_t)jobs[i].width * jobs[i].channels, &jobs[i]);
            for (size_t n = 0; n < bytes; n++)
                if (out[n] != colour)
                    ck_abort_msg("job %zu: %d became %u", i, colour, out[n]);
            free(out);
        }
        free(in);
    }
    resizer_free(resizer);
}
END_TEST

/* Jobs that fit what is there take nothing more; a giant is forgotten. */
START_TEST(memory_stays)
{
    static const struct job large = {120, 90, 3, 60, 50, {0, 0, 60, 50}, false};
    static const struct job small = {70, 60, 3, 50, 40, {1, 2, 40, 30}, true};
    static const struct job giant = {1, 4200, 1, 16384, 1, {0, 0, 16384, 1}, true}; /* 4,200 rows of 16,384 bytes */
    struct resizer *resizer = must_make();
    uint8_t *in = noise(1, 120 * 90 * 3);
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
    check_job(resizer, &large, 5, 0);
    ck_assert_uint_eq(allocated_bytes(), held);
    free(in);
    resizer_free(resizer);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resize");
    TCase *tcase = tcase_create("resize");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, pinned_pixels);
    tcase_add_test(tcase, as_a_plain_implementation);
    tcase_add_test(tcase, one_colour_stays);
    tcase_add_test(tcase, memory_stays);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
