/* test_jpeg.c - the JPEG decoder and how codecs are found. Pixels are compared with a plain reading by libjpeg that
 * shares nothing with the decoder, and with the picture that was encoded; the comparison with djpeg is in
 * tests/python/test_pixels.py. Whatever is wrong with a file has to be an error that says so, and must leave nothing in
 * the decoder, which goes on to decode the next image.
 *
 * Happy path: a case makes its files in memory by libjpeg's encoder. One case reads the damaged and odd files of
 * FEEDD_TEST_DATA/hard-jpegs.
 * Threads: one, but for one case that decodes on four. */
#include <check.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "decoder.h"
#include "error.h"

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

#define ANY_LIMIT 40000000 /* pixels: for cases that are not about the limit */

/* A file that a case makes. */
struct recipe {
    const char *name;
    uint32_t width, height;
    J_COLOR_SPACE space; /* of the file */
    int components, quality;
    int h, v;                                                    /* luma's sampling factors */
    unsigned restart;                                            /* interval in MCUs, or 0 */
    enum { PLAIN, PROGRESSIVE, ARITHMETIC, SCANS, BARE } coding; /* SCANS: one a component; BARE: without tables */
};

static const struct recipe kinds[] = {
    {"4:4:4", 61, 47, JCS_YCbCr, 3, 100, 1, 1, 0, PLAIN},
    {"4:2:0", 61, 47, JCS_YCbCr, 3, 95, 2, 2, 0, PLAIN},
    {"4:2:2, restarts", 64, 33, JCS_YCbCr, 3, 95, 2, 1, 3, PLAIN},
    {"4:4:0", 33, 64, JCS_YCbCr, 3, 95, 1, 2, 0, PLAIN},
    {"4:1:1", 50, 20, JCS_YCbCr, 3, 95, 4, 1, 0, PLAIN},
    {"progressive 4:2:0", 61, 47, JCS_YCbCr, 3, 95, 2, 2, 0, PROGRESSIVE},
    {"progressive 4:4:4, restarts", 40, 40, JCS_YCbCr, 3, 95, 1, 1, 2, PROGRESSIVE},
    {"RGB", 31, 30, JCS_RGB, 3, 100, 1, 1, 0, PLAIN},
    {"gray", 61, 47, JCS_GRAYSCALE, 1, 100, 1, 1, 0, PLAIN},
    {"progressive gray", 17, 90, JCS_GRAYSCALE, 1, 95, 1, 1, 0, PROGRESSIVE},
    {"arithmetic", 61, 47, JCS_YCbCr, 3, 95, 2, 2, 0, ARITHMETIC},
    {"not interleaved", 61, 47, JCS_YCbCr, 3, 95, 2, 2, 0, SCANS},
    {"one pixel", 1, 1, JCS_YCbCr, 3, 95, 2, 2, 0, PLAIN},
    {"one row", 500, 1, JCS_YCbCr, 3, 95, 2, 2, 0, PLAIN},
    {"one column", 1, 500, JCS_YCbCr, 3, 95, 2, 2, 0, PROGRESSIVE},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static uint64_t random_next(uint64_t *state) /* SplitMix64 (Steele, Lea, Flood 2014) */
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* The picture in every file: smooth, other in each channel; gray has the first channel alone. */
static uint8_t picture(uint32_t x, uint32_t y, int channel)
{
    static const int slope[4][2] = {{2, 1}, {1, 3}, {3, 2}, {1, 1}};
    int value = (int)(x * (uint32_t)slope[channel][0] + y * (uint32_t)slope[channel][1]) + 60 * channel;
    value %= 400; /* there and back, without a jump */
    return (uint8_t)(20 + (value < 200 ? value : 400 - value));
}

struct file {
    uint8_t *bytes;
    size_t size;
};

static struct file make(const struct recipe *recipe)
{
    static const jpeg_scan_info scans[3] = {{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
    struct jpeg_compress_struct cinfo;
    struct jpeg_error_mgr errors;
    cinfo.err = jpeg_std_error(&errors);
    jpeg_create_compress(&cinfo);
    struct file file = {NULL, 0};
    unsigned long size = 0;
    jpeg_mem_dest(&cinfo, &file.bytes, &size);
    cinfo.image_width = recipe->width;
    cinfo.image_height = recipe->height;
    cinfo.input_components = recipe->components;
    cinfo.in_color_space = recipe->components == 3   ? JCS_RGB
                           : recipe->components == 4 ? JCS_CMYK
                           : recipe->components == 1 ? JCS_GRAYSCALE
                                                     : JCS_UNKNOWN;
    jpeg_set_defaults(&cinfo);
    jpeg_set_colorspace(&cinfo, recipe->space);
    jpeg_set_quality(&cinfo, recipe->quality, TRUE);
    cinfo.comp_info[0].h_samp_factor = recipe->h;
    cinfo.comp_info[0].v_samp_factor = recipe->v;
    cinfo.restart_interval = recipe->restart;
    cinfo.arith_code = recipe->coding == ARITHMETIC;
    if (recipe->coding == PROGRESSIVE)
        jpeg_simple_progression(&cinfo);
    if (recipe->coding == SCANS) {
        cinfo.scan_info = scans;
        cinfo.num_scans = 3;
    }
    if (recipe->coding == BARE)
        jpeg_suppress_tables(&cinfo, TRUE);
    jpeg_start_compress(&cinfo, recipe->coding != BARE);
    uint8_t *row = malloc((size_t)recipe->width * (size_t)recipe->components);
    ck_assert_ptr_nonnull(row);
    for (uint32_t y = 0; y < recipe->height; y++) {
        for (uint32_t x = 0; x < recipe->width; x++)
            for (int c = 0; c < recipe->components; c++)
                row[x * (uint32_t)recipe->components + (uint32_t)c] = picture(x, y, c);
        jpeg_write_scanlines(&cinfo, &row, 1);
    }
    free(row);
    jpeg_finish_compress(&cinfo);
    jpeg_destroy_compress(&cinfo);
    file.size = size;
    return file;
}

/* What libjpeg makes of a good file when it is left to its defaults. @return width x height x 3, to be freed */
static uint8_t *read_plainly(struct file file, uint32_t *width, uint32_t *height)
{
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    cinfo.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&cinfo);
    jpeg_mem_src(&cinfo, file.bytes, file.size);
    jpeg_read_header(&cinfo, TRUE);
    jpeg_start_decompress(&cinfo);
    *width = cinfo.output_width;
    *height = cinfo.output_height;
    const uint32_t channels = (uint32_t)cinfo.output_components; /* gray stays gray */
    uint8_t *pixels = malloc((size_t)*width * *height * 3), *row = malloc((size_t)*width * channels);
    ck_assert_ptr_nonnull(pixels);
    ck_assert_ptr_nonnull(row);
    for (uint32_t y = 0; y < *height; y++) {
        jpeg_read_scanlines(&cinfo, &row, 1);
        for (uint32_t x = 0; x < *width; x++)
            for (uint32_t c = 0; c < 3; c++)
                pixels[((size_t)y * *width + x) * 3 + c] = row[x * channels + (channels == 3 ? c : 0)];
    }
    free(row);
    jpeg_finish_decompress(&cinfo);
    jpeg_destroy_decompress(&cinfo);
    return pixels;
}

static struct decoder *must_make(uint64_t pixels)
{
    struct decoder *decoder = NULL;
    ck_assert_int_eq(decoder_jpeg.decoder_new(&(struct decoder_limits){.pixels = pixels}, &decoder, NULL), 0);
    ck_assert_ptr_eq(decoder->ops, &decoder_jpeg);
    ck_assert_uint_eq(decoder->limits.pixels, pixels);
    return decoder;
}

static struct blob blob_of(struct file file)
{
    return (struct blob){file.bytes, file.size};
}

/* An error has to be one line that says something, and nothing else than an error may have it. */
static void check_told(int rc, const struct feedd_error *err)
{
    if (rc == 0) {
        ck_assert_str_eq(err->message, "");
        return;
    }
    ck_assert_int_eq(err->status, rc);
    ck_assert_msg(strncmp(err->message, "JPEG: ", 6) == 0 && strlen(err->message) > 10 &&
                      strchr(err->message, '\n') == NULL,
                  "status %d says '%s'", rc, err->message);
}

static int try_probe(struct decoder *decoder, struct blob in, struct image_info *out, struct feedd_error *err)
{
    err->message[0] = '\0';
    int rc = decoder_jpeg.probe(decoder, in, out, err);
    check_told(rc, err);
    return rc;
}

static int try_decode(struct decoder *decoder, struct blob in, struct rect crop, uint8_t *out, size_t stride,
                      struct feedd_error *err)
{
    err->message[0] = '\0';
    int rc = decoder_jpeg.decode(decoder, in, crop, out, stride, err);
    check_told(rc, err);
    return rc;
}

/* The region is decoded twice over different bytes, in a buffer of just its size: each byte must be written, and be the
 * one of `whole`, an image of `width`; bytes between the rows must stay. */
static void check_crop(struct decoder *decoder, struct blob in, const uint8_t *whole, uint32_t width, struct rect crop,
                       const char *name)
{
    enum { GAP = 5 };
    const size_t row = (size_t)crop.width * 3, stride = row + GAP, bytes = stride * (crop.height - 1) + row;
    for (int poison = 0; poison < 256; poison += 255) {
        uint8_t *out = malloc(bytes);
        struct feedd_error err;
        ck_assert_ptr_nonnull(out);
        memset(out, poison, bytes);
        int rc = try_decode(decoder, in, crop, out, stride, &err);
        ck_assert_msg(rc == 0, "%s: %s", name, err.message);
        for (uint32_t y = 0; y < crop.height; y++) {
            const uint8_t *due = whole + ((size_t)(crop.y + y) * width + crop.x) * 3;
            if (memcmp(out + y * stride, due, row) != 0)
                ck_abort_msg("%s: row %u of the crop %u x %u at (%u, %u) differs", name, y, crop.width, crop.height,
                             crop.x, crop.y);
            for (size_t i = 0; i < GAP && y + 1 < crop.height; i++)
                ck_assert_uint_eq(out[y * stride + row + i], (unsigned)poison);
        }
        free(out);
    }
}

/* A decoder that has failed must decode the next image as if nothing had been. */
struct reference {
    struct file file;
    uint8_t *pixels;
    uint32_t width, height;
};

static struct reference reference_make(void)
{
    struct reference reference = {.file = make(&kinds[1])};
    reference.pixels = read_plainly(reference.file, &reference.width, &reference.height);
    return reference;
}

static void reference_check(const struct reference *reference, struct decoder *decoder)
{
    check_crop(decoder, blob_of(reference->file), reference->pixels, reference->width,
               (struct rect){0, 0, reference->width, reference->height}, "after an error");
}

static void reference_free(struct reference *reference)
{
    free(reference->pixels);
    free(reference->file.bytes);
}

/* The file has to be refused by probe() too when `early` is set, and else by decode() alone. */
static void refuse(struct decoder *decoder, struct file file, bool early, int status, const char *part)
{
    static uint8_t out[200 * 200 * 3];
    const struct image_info untouched = {12345, 54321};
    struct image_info info = untouched;
    struct feedd_error err;
    int rc = try_probe(decoder, blob_of(file), &info, &err);
    if (early) {
        ck_assert_int_eq(rc, status);
        ck_assert_msg(strstr(err.message, part) != NULL, "'%s' doesn't say '%s'", err.message, part);
        ck_assert_mem_eq(&info, &untouched, sizeof(info));
        info = (struct image_info){1, 1};
    } else {
        ck_assert_msg(rc == 0, "%s", err.message);
        ck_assert_uint_le((uint64_t)info.width * info.height, 200 * 200);
    }
    rc = try_decode(decoder, blob_of(file), (struct rect){0, 0, info.width, info.height}, out, (size_t)info.width * 3,
                    &err);
    ck_assert_msg(rc == status, "status %d, expected %d: '%s'", rc, status, err.message);
    ck_assert_msg(strstr(err.message, part) != NULL, "'%s' doesn't say '%s'", err.message, part);
    ck_assert_int_eq(decoder_jpeg.decode(decoder, blob_of(file), (struct rect){0, 0, info.width, info.height}, out,
                                         (size_t)info.width * 3, NULL),
                     status);
}

/* The offset of the first marker FF `code`, from `from` on: of its FF. */
static size_t find_marker(struct file file, uint8_t code, size_t from)
{
    for (size_t i = from; i + 1 < file.size; i++)
        if (file.bytes[i] == 0xFF && file.bytes[i + 1] == code)
            return i;
    ck_abort_msg("no marker ff%02x", code);
    return 0;
}

/* @return `file` with `count` times the `length` bytes at `from` inserted before `at`; to be freed */
static struct file insert(struct file file, size_t at, const uint8_t *from, size_t length, size_t count)
{
    struct file out = {malloc(file.size + length * count), file.size + length * count};
    ck_assert_ptr_nonnull(out.bytes);
    memcpy(out.bytes, file.bytes, at);
    for (size_t i = 0; i < count; i++)
        memcpy(out.bytes + at + i * length, from, length);
    memcpy(out.bytes + at + length * count, file.bytes + at, file.size - at);
    return out;
}

START_TEST(find)
{
    static const struct {
        size_t size;
        const char *bytes, *name;
    } others[] = {
        {8, "\x89PNG\r\n\x1a\n", "PNG"},
        {6, "GIF89a", "GIF"},
        {6, "GIF87a", "GIF"},
        {12, "RIFF\x10\0\0\0WEBP", "WebP"},
        {14, "BM\x36\0\0\0\0\0\0\0\x36\0\0\0", "BMP"},
        {8, "II*\0\x08\0\0\0", "TIFF"},
        {8, "MM\0*\0\0\0\x08", "TIFF"},
        {16,
         "\0\0\0\x20"
         "ftypavif\0\0\0\0",
         "AVIF"},
        {16,
         "\0\0\0\x18"
         "ftypheic\0\0\0\0",
         "HEIC"},
        {2, "\xff\x0a", "JPEG XL"},
        {12, "\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"},
        {12, "\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"},
        {4, "\xff\x4f\xff\x51", "JPEG 2000"},
        {9, "P6\n1 1 255", "PPM"},
        {9, "P4\t8 1\n\x80", "PBM"},
        {15, "<!DOCTYPE html>", "HTML"},
        {14, "\xef\xbb\xbf \r\n<?xml ?>", "XML"},
        {0, "", "empty"},
        {2, "\xff\xd8", "ff d8"},
        {3, "\xff\xd8\x00", "ff d8 00"},
        {12, "RIFF\x10\0\0\0WAVE", "52 49 46 46"},
        {2, "P6", "50 36"},
        {4, "\xef\xbb\xbf ", "ef bb bf 20"},
        {3, " \n\t", "20 0a 09"},
        {7, "\x89PNG\r\n\x1a", "89 50 4e 47 0d 0a 1a"},
    };
    ck_assert_int_eq(decoder_find((struct blob){(const uint8_t *)"\xff\xd8\xff", 3}, NULL), 0);
    ck_assert_ptr_eq(decoders[0], &decoder_jpeg);
    ck_assert_str_eq(decoders[0]->name, "jpeg");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        uint8_t *copy = malloc(others[i].size + 1); /* so that reading past the end is seen */
        ck_assert_ptr_nonnull(copy);
        memcpy(copy + 1, others[i].bytes, others[i].size);
        struct feedd_error err = {.message = ""};
        ck_assert_int_eq(decoder_find((struct blob){copy + 1, others[i].size}, &err), FEEDD_E_UNSUPPORTED);
        ck_assert_msg(strstr(err.message, others[i].name) != NULL && strstr(err.message, "allowed: JPEG") != NULL,
                      "'%s' doesn't say '%s'", err.message, others[i].name);
        ck_assert_int_eq(err.status, FEEDD_E_UNSUPPORTED);
        free(copy);
    }
}
END_TEST

/* Every kind: the size, libjpeg's own pixels, and about the picture that was encoded, channel by channel. */
START_TEST(all_kinds)
{
    struct decoder *decoder = must_make(ANY_LIMIT);
    for (size_t k = 0; k < KINDS; k++) {
        struct file file = make(&kinds[k]);
        uint32_t width, height;
        uint8_t *due = read_plainly(file, &width, &height);
        struct image_info info;
        struct feedd_error err;
        ck_assert_msg(try_probe(decoder, blob_of(file), &info, &err) == 0, "%s: %s", kinds[k].name, err.message);
        ck_assert_uint_eq(info.width, kinds[k].width);
        ck_assert_uint_eq(info.height, kinds[k].height);
        check_crop(decoder, blob_of(file), due, width, (struct rect){0, 0, width, height}, kinds[k].name);

        double difference = 0;
        for (uint32_t y = 0; y < height; y++)
            for (uint32_t x = 0; x < width; x++)
                for (uint32_t c = 0; c < 3; c++)
                    difference += abs(due[((size_t)y * width + x) * 3 + c] -
                                      picture(x, y, kinds[k].components == 1 ? 0 : (int)c));
        difference /= (double)width * height * 3;
        ck_assert_msg(difference < (kinds[k].quality == 100 ? 1 : 4), "%s: off by %.2f on average", kinds[k].name,
                      difference);
        free(due);
        free(file.bytes);
    }
    decoder_jpeg.decoder_free(decoder);
}
END_TEST

START_TEST(crops)
{
    uint64_t state = 1;
    struct decoder *decoder = must_make(ANY_LIMIT);
    for (size_t k = 0; k < KINDS; k++) {
        struct file file = make(&kinds[k]);
        uint32_t width, height;
        uint8_t *due = read_plainly(file, &width, &height);
        for (int i = 0; i < 40; i++) {
            struct rect crop = {.width = 1 + (uint32_t)(random_next(&state) % width),
                                .height = 1 + (uint32_t)(random_next(&state) % height)};
            crop.x = (uint32_t)(random_next(&state) % (width - crop.width + 1));
            crop.y = (uint32_t)(random_next(&state) % (height - crop.height + 1));
            check_crop(decoder, blob_of(file), due, width, crop, kinds[k].name);
        }
        check_crop(decoder, blob_of(file), due, width, (struct rect){width - 1, height - 1, 1, 1}, kinds[k].name);

        const struct rect outside[] = {{1, 0, width, 1},     {0, 1, 1, height},     {width, 0, 1, 1},
                                       {0, height, 1, 1},    {UINT32_MAX, 0, 2, 1}, {0, UINT32_MAX, 1, 2},
                                       {0, 0, UINT32_MAX, 1}};
        for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
            uint8_t untouched = 0xA5;
            struct feedd_error err;
            ck_assert_int_eq(try_decode(decoder, blob_of(file), outside[i], &untouched, 0, &err), FEEDD_E_ARGUMENT);
            ck_assert_uint_eq(untouched, 0xA5);
        }
        free(due);
        free(file.bytes);
    }
    decoder_jpeg.decoder_free(decoder);
}
END_TEST

/* Every kind, cut short at every byte: always an error that says so, and then the decoder works on. */
START_TEST(cut_short)
{
    struct reference reference = reference_make();
    struct decoder *decoder = must_make(ANY_LIMIT);
    for (size_t k = 0; k < KINDS; k++) {
        struct file file = make(&kinds[k]);
        uint8_t *out = malloc((size_t)kinds[k].width * kinds[k].height * 3);
        ck_assert_ptr_nonnull(out);
        for (size_t size = 0; size < file.size; size++) {
            uint8_t *copy = malloc(size + 1); /* of its own, so that reading past the end is seen */
            ck_assert_ptr_nonnull(copy);
            memcpy(copy + 1, file.bytes, size);
            struct feedd_error err;
            char due[64];
            snprintf(due, sizeof(due), size == 0 ? "Empty" : "cut short: its %zu bytes", size);
            int rc =
                try_decode(decoder, (struct blob){copy + 1, size}, (struct rect){0, 0, kinds[k].width, kinds[k].height},
                           out, (size_t)kinds[k].width * 3, &err);
            ck_assert_msg(rc == FEEDD_E_CORRUPT && strstr(err.message, due) != NULL, "%s cut to %zu of %zu: %d '%s'",
                          kinds[k].name, size, file.size, rc, err.message);
            free(copy);
        }
        reference_check(&reference, decoder);
        free(out);
        free(file.bytes);
    }
    decoder_jpeg.decoder_free(decoder);
    reference_free(&reference);
}
END_TEST

/* Any byte may be anything: an error with its reason, or pixels, and all of them. */
START_TEST(damaged_bytes)
{
    uint64_t state = 7;
    struct reference reference = reference_make();
    struct decoder *decoder = must_make(200 * 200);
    int failed = 0, decoded = 0;
    for (int i = 0; i < 4000; i++) {
        const struct recipe *recipe = &kinds[i % (int)KINDS];
        struct file file = make(recipe);
        for (uint64_t n = 1 + random_next(&state) % 3; n > 0; n--)
            file.bytes[2 + random_next(&state) % (file.size - 2)] = (uint8_t)random_next(&state);

        struct image_info info;
        struct feedd_error err;
        int rc = try_probe(decoder, blob_of(file), &info, &err);
        if (rc == 0) {
            ck_assert_uint_le((uint64_t)info.width * info.height, 200 * 200);
            uint8_t *out = malloc((size_t)info.width * info.height * 3);
            ck_assert_ptr_nonnull(out);
            rc = try_decode(decoder, blob_of(file), (struct rect){0, 0, info.width, info.height}, out,
                            (size_t)info.width * 3, &err);
            free(out);
        }
        if (rc != 0 && rc != FEEDD_E_CORRUPT && rc != FEEDD_E_UNSUPPORTED && rc != FEEDD_E_LIMIT)
            ck_abort_msg("%s: status %d: %s", recipe->name, rc, err.message);
        failed += rc != 0;
        decoded += rc == 0;
        free(file.bytes);
        if (i % 50 == 0)
            reference_check(&reference, decoder);
    }
    ck_assert_int_gt(failed, 500);
    ck_assert_int_gt(decoded, 500);
    decoder_jpeg.decoder_free(decoder);
    reference_free(&reference);
}
END_TEST

START_TEST(warnings)
{
    struct reference reference = reference_make();
    const struct file good = reference.file;
    struct decoder *decoder = must_make(ANY_LIMIT);

    /* before the end of image; the library takes the first few for the end of the coefficients */
    struct file file = insert(good, good.size - 2, (const uint8_t *)"ab", 2, 20);
    refuse(decoder, file, false, FEEDD_E_CORRUPT, "extraneous bytes before marker 0xd9");
    uint8_t out[3]; /* below the crop, too */
    struct feedd_error err;
    ck_assert_int_eq(try_decode(decoder, blob_of(file), (struct rect){0, 0, 1, 1}, out, 3, &err), FEEDD_E_CORRUPT);
    free(file.bytes);

    file = insert(good, find_marker(good, 0xDB, 0), (const uint8_t *)"abc", 3, 1); /* before the tables */
    refuse(decoder, file, true, FEEDD_E_CORRUPT, "3 extraneous bytes before marker 0xdb");
    free(file.bytes);

    size_t middle = (find_marker(good, 0xDA, 0) + good.size) / 2;
    file = insert(good, middle, (const uint8_t *)"\xff\xd9", 2, 1);
    refuse(decoder, file, false, FEEDD_E_CORRUPT, "premature end of data segment");
    free(file.bytes);

    /* odd headers above good data: an unknown version of JFIF, a scan that says it is progressive */
    file = insert(good, 0, NULL, 0, 0);
    ck_assert_mem_eq(file.bytes + 6, "JFIF", 5);
    file.bytes[11] = 9;
    size_t scan = find_marker(file, 0xDA, 0);
    file.bytes[scan + 2 + 2 + 1 + 3 * 2 + 1] = 5; /* length, count, three components, first coefficient: the last one */
    check_crop(decoder, blob_of(file), reference.pixels, reference.width,
               (struct rect){0, 0, reference.width, reference.height}, "odd headers");
    free(file.bytes);

    reference_check(&reference, decoder);
    decoder_jpeg.decoder_free(decoder);
    reference_free(&reference);
}
END_TEST

START_TEST(unsupported)
{
    struct reference reference = reference_make();
    struct decoder *decoder = must_make(ANY_LIMIT);
    static const struct {
        struct recipe recipe;
        const char *part;
    } cases[] = {{{"CMYK", 20, 10, JCS_CMYK, 4, 95, 1, 1, 0, PLAIN}, "CMYK"},
                 {{"YCCK", 20, 10, JCS_YCCK, 4, 95, 1, 1, 0, PLAIN}, "YCCK"},
                 {{"two", 20, 10, JCS_UNKNOWN, 2, 95, 1, 1, 0, PLAIN}, "2 colour components"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct file other = make(&cases[i].recipe);
        refuse(decoder, other, true, FEEDD_E_UNSUPPORTED, cases[i].part);
        free(other.bytes);
    }

    struct file file = make(&kinds[0]);
    const size_t frame = find_marker(file, 0xC0, 0);
    file.bytes[frame + 4] = 12; /* bits a sample */
    refuse(decoder, file, true, FEEDD_E_UNSUPPORTED, "precision 12");
    file.bytes[frame + 4] = 8;
    file.bytes[frame + 1] = 0xC3; /* lossless */
    refuse(decoder, file, true, FEEDD_E_UNSUPPORTED, "SOF type 0xc3");
    free(file.bytes);

    reference_check(&reference, decoder);
    decoder_jpeg.decoder_free(decoder);
    reference_free(&reference);
}
END_TEST

static void set_size(struct file file, uint8_t frame_code, uint32_t width, uint32_t height)
{
    uint8_t *frame = file.bytes + find_marker(file, frame_code, 0);
    frame[5] = (uint8_t)(height >> 8);
    frame[6] = (uint8_t)height;
    frame[7] = (uint8_t)(width >> 8);
    frame[8] = (uint8_t)width;
}

/* Sizes are refused by their header, before memory is taken for them. */
START_TEST(limits)
{
    struct file file = make(&kinds[1]), progressive = make(&kinds[5]);
    const uint64_t pixels = (uint64_t)kinds[1].width * kinds[1].height;
    struct image_info info;
    struct feedd_error err;
    struct decoder *decoder = must_make(pixels);
    ck_assert_msg(try_probe(decoder, blob_of(file), &info, &err) == 0, "%s", err.message);
    decoder_jpeg.decoder_free(decoder);
    decoder = must_make(pixels - 1);
    refuse(decoder, file, true, FEEDD_E_LIMIT, "61 x 47 are 2867 pixels; allowed: 2866");

    const size_t before = allocated_bytes();
    set_size(file, 0xC0, 65500, 65500);
    refuse(decoder, file, true, FEEDD_E_LIMIT, "65500 x 65500 are 4290250000 pixels");
    set_size(progressive, 0xC2, 65500, 65500);
    refuse(decoder, progressive, true, FEEDD_E_LIMIT, "65500 x 65500");
    set_size(file, 0xC0, 65501, 1);
    refuse(decoder, file, true, FEEDD_E_LIMIT, "65500");
    ck_assert_uint_le(allocated_bytes(), before);
    decoder_jpeg.decoder_free(decoder);

    decoder = must_make(UINT64_MAX);
    set_size(file, 0xC0, 0, 10);
    refuse(decoder, file, true, FEEDD_E_CORRUPT, "Empty");
    set_size(file, 0xC0, 10, 0);
    refuse(decoder, file, true, FEEDD_E_CORRUPT, "Empty");
    decoder_jpeg.decoder_free(decoder);
    free(file.bytes);
    free(progressive.bytes);
}
END_TEST

/* A scan costs a few bytes in the file, and work for the whole image: 500 are allowed, of which the first comes again
 * and again here. */
START_TEST(many_scans)
{
    struct reference reference = reference_make();
    struct decoder *decoder = must_make(ANY_LIMIT);
    struct recipe recipe = kinds[0];
    recipe.coding = SCANS;
    struct file file = make(&recipe);
    uint32_t width, height;
    uint8_t *due = read_plainly(file, &width, &height);
    const size_t first = find_marker(file, 0xDA, 0), next = find_marker(file, 0xC4, first); /* the next scan's tables */

    struct file most = insert(file, first, file.bytes + first, next - first, 500 - 3);
    check_crop(decoder, blob_of(most), due, width, (struct rect){0, 0, width, height}, "500 scans");
    free(most.bytes);
    most = insert(file, first, file.bytes + first, next - first, 500 - 3 + 1);
    refuse(decoder, most, false, FEEDD_E_CORRUPT, "500");
    free(most.bytes);

    reference_check(&reference, decoder);
    free(due);
    free(file.bytes);
    decoder_jpeg.decoder_free(decoder);
    reference_free(&reference);
}
END_TEST

/* A file without tables is damaged, also when the file before it had some that would do. */
START_TEST(tables_stay_with_their_image)
{
    struct recipe bare = kinds[0];
    bare.coding = BARE;
    struct file whole = make(&kinds[0]), without = make(&bare);
    struct decoder *decoder = must_make(ANY_LIMIT);
    uint8_t *out = malloc(61 * 47 * 3);
    ck_assert_ptr_nonnull(out);
    refuse(decoder, without, false, FEEDD_E_CORRUPT, "Quantization table 0x00 was not defined");
    struct feedd_error err;
    ck_assert_int_eq(try_decode(decoder, blob_of(whole), (struct rect){0, 0, 61, 47}, out, 61 * 3, &err), 0);
    refuse(decoder, without, false, FEEDD_E_CORRUPT, "Quantization table 0x00 was not defined");
    free(out);
    free(whole.bytes);
    free(without.bytes);
    decoder_jpeg.decoder_free(decoder);
}
END_TEST

/* What a decoder holds is one row of the widest image, whatever it decodes and however that ends. */
START_TEST(memory_stays)
{
    struct decoder *decoder = must_make(ANY_LIMIT);
    static uint8_t out[500 * 64 * 3];
    size_t held = 0;
    for (int round = 0; round < 3; round++) {
        for (size_t k = 0; k < KINDS; k++) {
            struct file file = make(&kinds[k]);
            struct feedd_error err;
            const struct rect crop = {0, 0, kinds[k].width, kinds[k].height > 64 ? 64 : kinds[k].height};
            ck_assert_int_eq(try_decode(decoder, blob_of(file), crop, out, (size_t)crop.width * 3, &err), 0);
            file.size /= 2;
            ck_assert_int_ne(try_decode(decoder, blob_of(file), crop, out, (size_t)crop.width * 3, &err), 0);
            free(file.bytes);
        }
        if (round == 0)
            held = allocated_bytes();
        else
            ck_assert_uint_eq(allocated_bytes(), held);
    }
    decoder_jpeg.decoder_free(decoder);
    decoder_jpeg.decoder_free(NULL);
}
END_TEST

static void *decode_many(void *argument)
{
    const struct reference *reference = argument;
    struct decoder *decoder = must_make(ANY_LIMIT);
    uint8_t *out = malloc((size_t)reference->width * reference->height * 3);
    const struct rect all = {0, 0, reference->width, reference->height};
    uintptr_t wrong = out == NULL;
    for (size_t i = 0; i < 100 && !wrong; i++) {
        struct blob in = blob_of(reference->file);
        in.size -= i % 2;
        int rc = decoder_jpeg.decode(decoder, in, all, out, (size_t)all.width * 3, NULL);
        if (i % 2 == 0)
            wrong = rc != 0 || memcmp(out, reference->pixels, (size_t)all.width * all.height * 3) != 0;
        else
            wrong = rc != FEEDD_E_CORRUPT;
    }
    free(out);
    decoder_jpeg.decoder_free(decoder);
    return (void *)wrong;
}

START_TEST(threads)
{
    struct reference reference = reference_make();
    pthread_t ids[4];
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&ids[i], NULL, decode_many, &reference), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong = NULL;
        ck_assert_int_eq(pthread_join(ids[i], &wrong), 0);
        ck_assert_ptr_null(wrong);
    }
    reference_free(&reference);
}
END_TEST

static struct file load(const char *path)
{
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s can't be opened", path);
    ck_assert_int_eq(fseek(f, 0, SEEK_END), 0);
    struct file file = {NULL, (size_t)ftell(f)};
    rewind(f);
    file.bytes = malloc(file.size + 1);
    ck_assert_ptr_nonnull(file.bytes);
    ck_assert_uint_eq(fread(file.bytes, 1, file.size, f), file.size);
    fclose(f);
    return file;
}

/* The whole file, and cut at 40 places: a status that makes sense, and every time memory of just the right size. */
static void decode_hard_file(struct decoder *decoder, const char *path)
{
    struct file file = load(path);
    for (size_t cut = 0; cut <= 40; cut++) {
        const size_t size = cut == 0 ? file.size : file.size * cut / 41;
        uint8_t *copy = malloc(size + 1); /* so that reading past the end is seen */
        ck_assert_ptr_nonnull(copy);
        memcpy(copy + 1, file.bytes, size);
        const struct blob in = {copy + 1, size};

        struct feedd_error err = {.message = ""};
        struct image_info info;
        int found = decoder_find(in, &err);
        ck_assert_msg(found == 0 || (found == FEEDD_E_UNSUPPORTED && err.message[0] != '\0'), "%s: %d", path, found);
        int rc = try_probe(decoder, in, &info, &err);
        if (rc == 0) {
            ck_assert_uint_le((uint64_t)info.width * info.height, ANY_LIMIT);
            uint8_t *out = malloc((size_t)info.width * info.height * 3);
            ck_assert_ptr_nonnull(out);
            rc = try_decode(decoder, in, (struct rect){0, 0, info.width, info.height}, out, (size_t)info.width * 3,
                            &err);
            free(out);
        }
        ck_assert_msg(rc == 0 || rc == FEEDD_E_CORRUPT || rc == FEEDD_E_UNSUPPORTED || rc == FEEDD_E_LIMIT,
                      "%s, %zu bytes: status %d: %s", path, size, rc, err.message);
        ck_assert_msg(found == 0 || rc == FEEDD_E_CORRUPT, "%s isn't a JPEG file, and is decoded: %d", path, rc);
        free(copy);
    }
    free(file.bytes);
}

START_TEST(hard_files)
{
    const char *data = getenv("FEEDD_TEST_DATA");
    char top[2048], folder[4096], path[8192];
    snprintf(top, sizeof(top), "%s/hard-jpegs", data != NULL ? data : "");
    DIR *folders = opendir(top);
    if (folders == NULL) {
        printf("hard_files: skipped: no folder hard-jpegs in FEEDD_TEST_DATA\n");
        return;
    }
    struct reference reference = reference_make();
    struct decoder *decoder = must_make(ANY_LIMIT);
    int count = 0;
    for (struct dirent *f = readdir(folders); f != NULL; f = readdir(folders)) {
        snprintf(folder, sizeof(folder), "%s/%s", top, f->d_name);
        DIR *files = f->d_name[0] != '.' ? opendir(folder) : NULL; /* NULL: a file, about the folders */
        for (struct dirent *e = files != NULL ? readdir(files) : NULL; e != NULL; e = readdir(files)) {
            if (e->d_name[0] == '.')
                continue;
            snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
            decode_hard_file(decoder, path);
            reference_check(&reference, decoder);
            count++;
        }
        if (files != NULL)
            closedir(files);
    }
    closedir(folders);
    ck_assert_int_ge(count, 90);
    decoder_jpeg.decoder_free(decoder);
    reference_free(&reference);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("jpeg");
    TCase *tcase = tcase_create("jpeg");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, find);
    tcase_add_test(tcase, all_kinds);
    tcase_add_test(tcase, crops);
    tcase_add_test(tcase, cut_short);
    tcase_add_test(tcase, damaged_bytes);
    tcase_add_test(tcase, warnings);
    tcase_add_test(tcase, unsupported);
    tcase_add_test(tcase, limits);
    tcase_add_test(tcase, many_scans);
    tcase_add_test(tcase, tables_stay_with_their_image);
    tcase_add_test(tcase, memory_stays);
    tcase_add_test(tcase, threads);
    tcase_add_test(tcase, hard_files);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
