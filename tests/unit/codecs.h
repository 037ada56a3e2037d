/* codecs.h - what the tests of PNG and WebP share: files in memory, random numbers, and decoding that is checked: every
 * byte of a region written and none beside it, an error in one line or nothing said. For one test program each. */
#ifndef FEEDD_CODECS_H
#define FEEDD_CODECS_H

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
size_t __sanitizer_get_current_allocated_bytes(void); /* LLVM's allocator_interface.h, which GCC doesn't install */
static inline size_t allocated_bytes(void)
{
    return __sanitizer_get_current_allocated_bytes();
}
#else
#include <malloc.h>
static inline size_t allocated_bytes(void)
{
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}
#endif

#define ANY_LIMIT 40000000 /* pixels: for cases that are not about the limit */

struct file {
    uint8_t *bytes;
    size_t size;
};

/* A picture's bytes, height x width x 3. */
struct pixels {
    uint32_t width, height;
    uint8_t *rgb;
};

static inline uint32_t random_below(uint64_t *state, uint32_t limit) /* SplitMix64 (Steele, Lea, Flood 2014) */
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((x ^ x >> 31) % limit);
}

static inline void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes + (bytes == 0));
    ck_assert_ptr_nonnull(memory);
    return memory;
}

/* Memory of just its size, so that a sanitizer sees the first byte too many. */
static inline struct file copy_of(struct file file, size_t size)
{
    struct file copy = {allocate(size), size};
    memcpy(copy.bytes, file.bytes, size < file.size ? size : file.size);
    return copy;
}

/* The programs are linked with --wrap=malloc and --wrap=calloc. */
static _Thread_local unsigned allocations_left = UINT32_MAX; /* of this thread, that succeed */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    if (allocations_left == 0)
        return NULL;
    allocations_left -= allocations_left < UINT32_MAX;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    if (allocations_left == 0)
        return NULL;
    allocations_left -= allocations_left < UINT32_MAX;
    return __real_calloc(count, bytes);
}

static inline struct decoder *must_make(const struct decoder_ops *ops, uint64_t pixels)
{
    struct decoder *decoder = NULL;
    ck_assert_int_eq(ops->decoder_new(&(struct decoder_limits){.pixels = pixels}, &decoder, NULL), 0);
    ck_assert_ptr_eq(decoder->ops, ops);
    ck_assert_uint_eq(decoder->limits.pixels, pixels);
    return decoder;
}

static inline void check_told(int status, const struct feedd_error *err)
{
    ck_assert_msg((status == 0) == (err->message[0] == '\0'), "status %d says '%s'", status, err->message);
    ck_assert(status == 0 || (err->status == status && strchr(err->message, '\n') == NULL));
}

static inline int try_probe(struct decoder *decoder, struct file file, struct image_info *out, struct feedd_error *err)
{
    err->message[0] = '\0';
    int status = decoder->ops->probe(decoder, (struct blob){file.bytes, file.size}, out, err);
    check_told(status, err);
    return status;
}

/* Decodes twice over different bytes, in a buffer of just the region's size with gaps between its rows.
 * @param out  region height x width x channels, all of it written on success; to be freed; NULL on failure */
static inline int try_decode(struct decoder *decoder, struct file file, const struct decode_spec *spec, uint8_t **out,
                             struct feedd_error *err)
{
    enum { GAP = 5 };
    const struct rect region = decode_region(spec);
    const size_t row = (size_t)region.width * spec->channels, stride = row + GAP;
    const size_t bytes = stride * (region.height - 1) + row;
    uint8_t *first = allocate(row * region.height), *buffer = malloc(bytes);
    int status = 0, wrong = 0; /* Check writes a file for each assertion: one for all bytes */
    ck_assert_ptr_nonnull(buffer);
    for (int poison = 0; poison < 256; poison += 255) {
        memset(buffer, poison, bytes);
        err->message[0] = '\0';
        const int now = decoder->ops->decode(decoder, (struct blob){file.bytes, file.size}, spec, buffer, stride, err);
        check_told(now, err);
        ck_assert(poison == 0 || now == status);
        status = now;
        for (uint32_t y = 0; y < region.height; y++) {
            if (poison == 0)
                memcpy(first + y * row, buffer + y * stride, row);
            else if (status == 0)
                wrong |= memcmp(first + y * row, buffer + y * stride, row);
            for (size_t i = 0; i < GAP && y + 1 < region.height; i++)
                wrong |= buffer[y * stride + row + i] != poison;
        }
    }
    ck_assert_msg(wrong == 0, "bytes of the region weren't written, or others were");
    free(buffer);
    if (status != 0)
        free(first);
    *out = status == 0 ? first : NULL;
    return status;
}

static inline struct decode_spec spec_of(struct rect crop, uint32_t channels)
{
    return (struct decode_spec){.crop = crop, .channels = channels, .mode = DECODE_EXACT, .shrink = 1};
}

static inline struct rect all_of(struct pixels picture)
{
    return (struct rect){0, 0, picture.width, picture.height};
}

static inline struct rect random_crop(uint64_t *state, struct pixels picture)
{
    struct rect crop;
    crop.width = 1 + random_below(state, picture.width);
    crop.height = 1 + random_below(state, picture.height);
    crop.x = random_below(state, picture.width - crop.width + 1);
    crop.y = random_below(state, picture.height - crop.height + 1);
    return crop;
}

/* Pillow's L24(), in doubles. */
static inline uint8_t luma_of(const uint8_t *rgb)
{
    return (uint8_t)((rgb[0] * 19595.0 + rgb[1] * 38470.0 + rgb[2] * 7471.0 + 32768.0) / 65536.0);
}

/* The region of `file` is that of `due`, in colour and as luma. */
static inline void check_crop(struct decoder *decoder, struct file file, struct pixels due, struct rect crop,
                              const char *name)
{
    for (uint32_t channels = 1; channels <= 3; channels += 2) {
        const struct decode_spec spec = spec_of(crop, channels);
        struct feedd_error err;
        uint8_t *got;
        ck_assert_msg(try_decode(decoder, file, &spec, &got, &err) == 0, "%s: %s", name, err.message);
        for (uint32_t y = 0; y < crop.height; y++)
            for (uint32_t x = 0; x < crop.width; x++) {
                const uint8_t *pixel = got + ((size_t)y * crop.width + x) * channels;
                const uint8_t *rgb = due.rgb + ((size_t)(crop.y + y) * due.width + crop.x + x) * 3;
                if (channels == 1 ? *pixel != luma_of(rgb) : memcmp(pixel, rgb, 3) != 0)
                    ck_abort_msg("%s: %u x %u at (%u, %u), %u channels: (%u, %u) differs", name, crop.width,
                                 crop.height, crop.x, crop.y, channels, x, y);
            }
        free(got);
    }
}

static inline void check_picture(struct decoder *decoder, struct file file, struct pixels due, uint64_t *state,
                                 const char *name)
{
    struct image_info info;
    struct feedd_error err;
    ck_assert_msg(try_probe(decoder, file, &info, &err) == 0, "%s: %s", name, err.message);
    ck_assert_uint_eq(info.width, due.width);
    ck_assert_uint_eq(info.height, due.height);
    check_crop(decoder, file, due, all_of(due), name);
    for (int i = 0; i < 6; i++)
        check_crop(decoder, file, due, random_crop(state, due), name);
}

/* probe() and decode(), also where what is there would be taken, refuse the file and say `part`. */
static inline void check_refused(struct decoder *decoder, struct file file, int status, const char *part)
{
    const struct image_info untouched = {12345, 54321, 7};
    struct image_info info = untouched;
    struct feedd_error err;
    uint8_t *got;
    const int probed = try_probe(decoder, file, &info, &err);
    ck_assert_msg(probed == status && strstr(err.message, part) != NULL, "%d: '%s'", probed, err.message);
    ck_assert_mem_eq(&info, &untouched, sizeof(info));
    struct decode_spec spec = spec_of((struct rect){0, 0, 1, 1}, 3);
    for (int i = 0; i < 2; i++, spec.accept_truncated = true) {
        const int decoded = try_decode(decoder, file, &spec, &got, &err);
        ck_assert_msg(decoded == status && strstr(err.message, part) != NULL, "%d: '%s'", decoded, err.message);
        uint8_t out[3];
        ck_assert_int_eq(
            decoder->ops->decode(decoder, (struct blob){file.bytes, file.size}, &spec, out, sizeof(out), NULL), status);
    }
}

/* Specs that make no sense for a picture, and write nothing. */
static inline void check_arguments(struct decoder *decoder, struct file file, struct pixels picture)
{
    const uint32_t w = picture.width, h = picture.height;
    const struct rect crops[] = {{0, 0, w + 1, 1},      {0, 0, 1, h + 1},      {w, 0, 1, 1}, {0, h, 1, 1},
                                 {1, 0, UINT32_MAX, 1}, {0, 1, 1, UINT32_MAX}, {0, 0, 0, 1}, {0, 0, 1, 0}};
    struct decode_spec specs[16];
    size_t count = 0;
    for (; count < sizeof(crops) / sizeof(crops[0]); count++)
        specs[count] = spec_of(crops[count], 3);
    for (uint32_t i = 0; i < 3; i++)
        specs[count++] = spec_of((struct rect){0, 0, 1, 1}, 2 * i);
    specs[count] = specs[count + 1] = specs[count + 2] = spec_of((struct rect){0, 0, 1, 1}, 3);
    specs[count++].shrink = 2;
    specs[count++].mode = 0;
    specs[count++].mode = 3;
    for (size_t i = 0; i < count; i++) {
        struct feedd_error err = {0, ""};
        specs[i].accept_truncated = i % 2 == 0;
        uint8_t out = 77;
        const int status =
            decoder->ops->decode(decoder, (struct blob){file.bytes, file.size}, &specs[i], &out, 0, &err);
        ck_assert_msg(status == FEEDD_E_ARGUMENT && out == 77, "spec %zu: %d", i, status);
        check_told(status, &err);
    }
}

/* One allocation more succeeds each time, until all do; no failure is taken for a file that is cut short.
 * @return how many of ours there are */
static inline unsigned check_out_of_memory(const struct decoder_ops *ops, struct file file, struct pixels due)
{
    const struct blob in = {file.bytes, file.size};
    struct decoder *decoder = NULL;
    struct decode_spec spec = spec_of(all_of(due), 1);
    uint8_t *out = allocate((size_t)due.width * due.height);
    struct feedd_error err = {0, ""};
    unsigned count = 0;
    allocations_left = 0;
    int status = ops->decoder_new(&(struct decoder_limits){.pixels = ANY_LIMIT}, &decoder, &err);
    allocations_left = UINT32_MAX;
    ck_assert(status == FEEDD_E_MEMORY && decoder == NULL);
    check_told(status, &err);
    decoder = must_make(ops, ANY_LIMIT);
    do {
        spec.accept_truncated = !spec.accept_truncated;
        err.message[0] = '\0';
        memset(out, 0, (size_t)due.width * due.height);
        allocations_left = count;
        count += !spec.accept_truncated;
        status = ops->decode(decoder, in, &spec, out, due.width, &err);
        allocations_left = UINT32_MAX;
        check_told(status, &err);
        size_t right = 0;
        for (size_t i = 0; i < (size_t)due.width * due.height; i++)
            right += out[i] == luma_of(due.rgb + 3 * i);
        ck_assert_msg(status == 0 ? right == (size_t)due.width * due.height : status == FEEDD_E_MEMORY,
                      "allocation %u: %d: %s", count, status, err.message);
    } while (status != 0 || spec.accept_truncated);
    free(out);
    ops->decoder_free(decoder);
    return count - 1;
}

/* What a thread decodes again and again, good and cut short by turns, with a decoder of its own. */
struct threads_task {
    const struct decoder_ops *ops;
    struct file file;
    struct pixels due;
};

static inline void *decode_many(void *argument)
{
    const struct threads_task *task = argument;
    struct decoder *decoder = NULL;
    intptr_t wrong = task->ops->decoder_new(&(struct decoder_limits){.pixels = ANY_LIMIT}, &decoder, NULL);
    const size_t bytes = (size_t)task->due.width * task->due.height * 3;
    uint8_t *out = malloc(bytes);
    const struct decode_spec spec = spec_of(all_of(task->due), 3);
    for (int i = 0; i < 40 && wrong == 0; i++) {
        const struct blob in = {task->file.bytes, i % 2 == 0 ? task->file.size : task->file.size / 2};
        const int status = task->ops->decode(decoder, in, &spec, out, (size_t)task->due.width * 3, NULL);
        if (i % 2 == 0)
            wrong = status != 0 || memcmp(out, task->due.rgb, bytes) != 0;
        else
            wrong = status != FEEDD_E_CORRUPT;
    }
    free(out);
    task->ops->decoder_free(decoder);
    return (void *)wrong;
}

static inline void check_threads(struct threads_task task)
{
    pthread_t ids[4];
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&ids[i], NULL, decode_many, &task), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong = NULL;
        ck_assert_int_eq(pthread_join(ids[i], &wrong), 0);
        ck_assert_ptr_null(wrong);
    }
}

static inline int run_cases(const char *name, const TTest *const *cases, size_t count)
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 120);
    for (size_t i = 0; i < count; i++)
        tcase_add_test(tcase, cases[i]);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}

#endif
