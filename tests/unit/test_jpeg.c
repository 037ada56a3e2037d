/* test_jpeg.c - the JPEG decoder. Pixels are compared with a plain reading by libjpeg, whole
 * and from top to bottom, that shares nothing with the decoder, and with the picture that was encoded; the comparison
 * with Pillow is in tests/python/test_hard_jpegs.py. Whatever is wrong with a file has to be an error that says so, and
 * must leave nothing in the decoder, which goes on to decode the next image.
 *
 * Happy path: a case makes its files in memory by libjpeg's encoder. Two cases read the photos and the odd and damaged
 * files of FEEDD_TEST_DATA.
 * Threads: one, but for one case that decodes on four. */
#include <check.h>
#include <fts.h>
#include <pthread.h>
#include <setjmp.h>
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
    const char *sampling; /* a digit each: horizontal and vertical factor of each component; those left out have 1 */
    unsigned restart;     /* interval in MCUs, or 0 */
    enum { PLAIN, PROGRESSIVE, INCOMPLETE, SCANS, BARE } coding; /* INCOMPLETE: progressive, without its last scans; */
    bool arithmetic;                                             /* SCANS: one a component; BARE: without tables */
};

static const struct recipe kinds[] = {
    {"4:4:4", 61, 47, JCS_YCbCr, 3, 100, "11", 0, PLAIN, false},
    {"4:2:0", 61, 47, JCS_YCbCr, 3, 95, "22", 0, PLAIN, false},
    {"4:2:2, restarts", 64, 33, JCS_YCbCr, 3, 95, "21", 3, PLAIN, false},
    {"4:4:0", 33, 64, JCS_YCbCr, 3, 95, "12", 0, PLAIN, false},
    {"4:1:1", 50, 20, JCS_YCbCr, 3, 95, "41", 0, PLAIN, false},
    {"progressive 4:2:0", 61, 47, JCS_YCbCr, 3, 95, "22", 0, PROGRESSIVE, false},
    {"progressive 4:4:4, restarts", 40, 40, JCS_YCbCr, 3, 95, "11", 2, PROGRESSIVE, false},
    {"RGB", 31, 30, JCS_RGB, 3, 100, "11", 0, PLAIN, false},
    {"gray", 61, 47, JCS_GRAYSCALE, 1, 100, "11", 0, PLAIN, false},
    {"progressive gray", 17, 90, JCS_GRAYSCALE, 1, 95, "11", 0, PROGRESSIVE, false},
    {"arithmetic", 61, 47, JCS_YCbCr, 3, 95, "22", 0, PLAIN, true},
    {"not interleaved", 61, 47, JCS_YCbCr, 3, 95, "22", 0, SCANS, false},
    {"one pixel", 1, 1, JCS_YCbCr, 3, 95, "22", 0, PLAIN, false},
    {"one row", 500, 1, JCS_YCbCr, 3, 95, "22", 0, PLAIN, false},
    {"one column", 1, 500, JCS_YCbCr, 3, 95, "22", 0, PROGRESSIVE, false},
    {"gray, two blocks by two", 70, 50, JCS_GRAYSCALE, 1, 100, "22", 0, PLAIN, false},
    {"2x4", 90, 70, JCS_YCbCr, 3, 95, "24", 0, PLAIN, false},
    {"4x2, restarts", 130, 50, JCS_YCbCr, 3, 95, "42", 4, PLAIN, false},
    {"4x2, not interleaved", 130, 50, JCS_YCbCr, 3, 95, "42", 0, SCANS, false},
    {"1x3", 30, 100, JCS_YCbCr, 3, 95, "13", 0, PLAIN, false},
    {"3x1", 100, 30, JCS_YCbCr, 3, 95, "31", 0, PLAIN, false},
    {"each its own sampling", 100, 75, JCS_YCbCr, 3, 95, "222111", 0, PLAIN, false},
    {"luma with fewer samples", 100, 75, JCS_YCbCr, 3, 95, "112221", 0, PLAIN, false},
    {"progressive, each its own", 100, 75, JCS_YCbCr, 3, 95, "412122", 0, PROGRESSIVE, false},
    {"progressive RGB, subsampled", 90, 90, JCS_RGB, 3, 95, "22", 0, PROGRESSIVE, false},
    {"progressive, arithmetic", 61, 47, JCS_YCbCr, 3, 95, "21", 5, PROGRESSIVE, true},
    {"progressive, incomplete", 150, 130, JCS_YCbCr, 3, 95, "22", 0, INCOMPLETE, false},
    {"progressive gray, incomplete", 150, 130, JCS_GRAYSCALE, 1, 30, "11", 0, INCOMPLETE, false},
    {"CMYK", 51, 40, JCS_CMYK, 4, 100, "11", 0, PLAIN, false},
    {"YCCK, subsampled", 70, 50, JCS_YCCK, 4, 95, "22111122", 0, PLAIN, false},
    {"progressive YCCK", 40, 60, JCS_YCCK, 4, 95, "11", 0, PROGRESSIVE, false},
    {"wide", 700, 40, JCS_YCbCr, 3, 90, "22", 0, PLAIN, false},
    {"high", 40, 700, JCS_YCbCr, 3, 90, "22", 0, PROGRESSIVE, false},
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
    const jpeg_scan_info first_scans[2] = {{recipe->components, {0, 1, 2}, 0, 0, 0, 1}, {1, {0}, 1, 5, 0, 2}};
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
    for (int c = 0; c < recipe->components; c++) {
        const bool given = strlen(recipe->sampling) > (size_t)c * 2;
        cinfo.comp_info[c].h_samp_factor = given ? recipe->sampling[c * 2] - '0' : 1;
        cinfo.comp_info[c].v_samp_factor = given ? recipe->sampling[c * 2 + 1] - '0' : 1;
    }
    cinfo.restart_interval = recipe->restart;
    cinfo.arith_code = recipe->arithmetic;
    if (recipe->coding == PROGRESSIVE)
        jpeg_simple_progression(&cinfo);
    if (recipe->coding == INCOMPLETE) {
        cinfo.scan_info = first_scans;
        cinfo.num_scans = 2;
    }
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

/* Pixels, rows without gaps. */
struct pixels {
    uint8_t *bytes;
    uint32_t width, height, channels;
    uint32_t warned; /* how many rows had been read when the first warning came; UINT32_MAX: there was none */
};

/* RGB of inverted CMYK: what is left of white when K and then the colour have been taken away, in one rounding. */
static void rgb_of(const uint8_t *cmyk, uint8_t *rgb)
{
    const double white = cmyk[3];
    for (int c = 0; c < 3; c++)
        rgb[c] = (uint8_t)(white - (int)(white * (255 - cmyk[c]) / 255 + 0.5));
}

struct escape {
    struct jpeg_error_mgr errors;
    jmp_buf to;
    uint32_t warned;
};

_Noreturn static void escape_error(j_common_ptr cinfo)
{
    longjmp(((struct escape *)cinfo->err)->to, 1);
}

static void escape_message(j_common_ptr cinfo, int level)
{
    struct escape *escape = (struct escape *)cinfo->err;
    if (level < 0 && escape->warned == UINT32_MAX)
        escape->warned = ((j_decompress_ptr)cinfo)->output_scanline;
}

/* What libjpeg makes of a file when it is left to its defaults and reads all of it, through every warning.
 * @return pixels to be freed; bytes == NULL when it reports an error */
static struct pixels read_plainly(struct file file, uint32_t channels, uint32_t shrink)
{
    struct jpeg_decompress_struct cinfo;
    struct escape escape;
    static struct pixels out; /* static: defined after longjmp() */
    static uint8_t *row;
    out = (struct pixels){.channels = channels};
    row = NULL;
    cinfo.err = jpeg_std_error(&escape.errors);
    escape.errors.error_exit = escape_error;
    escape.errors.emit_message = escape_message;
    escape.warned = UINT32_MAX;
    jpeg_create_decompress(&cinfo);
    if (setjmp(escape.to) != 0) {
        free(out.bytes);
        free(row);
        jpeg_destroy_decompress(&cinfo);
        return (struct pixels){.channels = channels};
    }
    jpeg_mem_src(&cinfo, file.bytes, file.size);
    jpeg_read_header(&cinfo, TRUE);
    if (channels == 1 && cinfo.num_components != 4)
        cinfo.out_color_space = JCS_GRAYSCALE;
    cinfo.scale_num = 1;
    cinfo.scale_denom = shrink;
    jpeg_start_decompress(&cinfo);
    out.width = cinfo.output_width;
    out.height = cinfo.output_height;
    const uint32_t components = (uint32_t)cinfo.output_components;
    out.bytes = malloc((size_t)out.width * out.height * channels);
    row = malloc((size_t)out.width * components);
    ck_assert_ptr_nonnull(out.bytes);
    ck_assert_ptr_nonnull(row);
    uint8_t *to = out.bytes;
    while (cinfo.output_scanline < cinfo.output_height) {
        jpeg_read_scanlines(&cinfo, &row, 1);
        for (uint32_t x = 0; x < out.width; x++, to += channels) {
            const uint8_t *from = row + x * components;
            uint8_t rgb[3] = {from[0], from[components == 1 ? 0 : 1], from[components == 1 ? 0 : 2]};
            if (components == 4)
                rgb_of(from, rgb);
            if (channels == 1 && components != 1)
                rgb[0] = (uint8_t)((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) / 0x10000);
            memcpy(to, rgb, channels);
        }
    }
    free(row);
    jpeg_destroy_decompress(&cinfo);
    out.warned = escape.warned;
    return out;
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

static int try_decode(struct decoder *decoder, struct blob in, struct decode_spec spec, uint8_t *out, size_t stride,
                      struct feedd_error *err)
{
    err->message[0] = '\0';
    int rc = decoder_jpeg.decode(decoder, in, &spec, out, stride, err);
    check_told(rc, err);
    return rc;
}

/* All of an image of that size, exact, RGB. */
static struct decode_spec all_of(uint32_t width, uint32_t height)
{
    return (struct decode_spec){{0, 0, width, height}, 3, DECODE_EXACT, 1, false};
}

static struct decode_spec cut_of(struct rect crop)
{
    return (struct decode_spec){crop, 3, DECODE_EXACT, 1, false};
}

static struct rect random_crop(uint64_t *state, uint32_t width, uint32_t height)
{
    struct rect crop = {.width = 1 + (uint32_t)(random_next(state) % width),
                        .height = 1 + (uint32_t)(random_next(state) % height)};
    if (random_next(state) % 3 == 0) { /* small ones have more neighbours */
        crop.width = 1 + crop.width % 20;
        crop.height = 1 + crop.height % 20;
        crop.width = crop.width > width ? width : crop.width;
        crop.height = crop.height > height ? height : crop.height;
    }
    crop.x = (uint32_t)(random_next(state) % (width - crop.width + 1));
    crop.y = (uint32_t)(random_next(state) % (height - crop.height + 1));
    return crop;
}

/* The region is decoded twice over different bytes, in a buffer of just its size: each byte must be written, and be the
 * one of `whole`, the (shrunk) image; bytes between the rows must stay. */
static void check_spec(struct decoder *decoder, struct blob in, const struct pixels *whole, struct decode_spec spec,
                       const char *name)
{
    enum { GAP = 5 };
    const struct rect region = decode_region(&spec);
    const size_t row = (size_t)region.width * spec.channels, stride = row + GAP;
    const size_t bytes = stride * (region.height - 1) + row;
    for (int poison = 0; poison < 256; poison += 255) {
        uint8_t *out = malloc(bytes);
        struct feedd_error err;
        ck_assert_ptr_nonnull(out);
        memset(out, poison, bytes);
        int rc = try_decode(decoder, in, spec, out, stride, &err);
        ck_assert_msg(rc == 0, "%s: %s", name, err.message);
        for (uint32_t y = 0; y < region.height; y++) {
            const uint8_t *due = whole->bytes + ((size_t)(region.y + y) * whole->width + region.x) * spec.channels;
            if (memcmp(out + y * stride, due, row) != 0)
                ck_abort_msg("%s: row %u of the crop %u x %u at (%u, %u) differs (%u channels, 1/%u)", name, y,
                             spec.crop.width, spec.crop.height, spec.crop.x, spec.crop.y, spec.channels, spec.shrink);
            for (size_t i = 0; i < GAP && y + 1 < region.height; i++)
                ck_assert_uint_eq(out[y * stride + row + i], (unsigned)poison);
        }
        free(out);
    }
}

/* A decoder that has failed must decode the next image as if nothing had been. */
struct reference {
    struct file file;
    struct pixels pixels;
};

static struct reference reference_make(void)
{
    struct reference reference = {.file = make(&kinds[1])};
    reference.pixels = read_plainly(reference.file, 3, 1);
    return reference;
}

static struct decode_spec reference_spec(const struct reference *reference)
{
    return all_of(reference->pixels.width, reference->pixels.height);
}

static void reference_check(const struct reference *reference, struct decoder *decoder)
{
    check_spec(decoder, blob_of(reference->file), &reference->pixels, reference_spec(reference), "after an error");
}

static void reference_free(struct reference *reference)
{
    free(reference->pixels.bytes);
    free(reference->file.bytes);
}

/* The file has to be refused by probe() too when `early` is set, and else by decode() alone. */
static void refuse(struct decoder *decoder, struct file file, bool early, int status, const char *part)
{
    static uint8_t out[200 * 200 * 3];
    const struct image_info untouched = {12345, 54321, 3};
    struct image_info info = untouched;
    struct feedd_error err;
    int rc = try_probe(decoder, blob_of(file), &info, &err);
    if (early) {
        ck_assert_int_eq(rc, status);
        ck_assert_msg(strstr(err.message, part) != NULL, "'%s' doesn't say '%s'", err.message, part);
        ck_assert_mem_eq(&info, &untouched, sizeof(info));
        info = (struct image_info){1, 1, 1};
    } else {
        ck_assert_msg(rc == 0, "%s", err.message);
        ck_assert_uint_le((uint64_t)info.width * info.height, 200 * 200);
    }
    const struct decode_spec spec = all_of(info.width, info.height);
    rc = try_decode(decoder, blob_of(file), spec, out, (size_t)info.width * 3, &err);
    ck_assert_msg(rc == status, "status %d, expected %d: '%s'", rc, status, err.message);
    ck_assert_msg(strstr(err.message, part) != NULL, "'%s' doesn't say '%s'", err.message, part);
    ck_assert_int_eq(decoder_jpeg.decode(decoder, blob_of(file), &spec, out, (size_t)info.width * 3, NULL), status);
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

/* Where the first scan's data begin. */
static size_t find_data(struct file file)
{
    const size_t scan = find_marker(file, 0xDA, 0);
    return scan + 2 + ((size_t)file.bytes[scan + 2] << 8 | file.bytes[scan + 3]);
}

/* @return `file` with `count` times the `length` bytes at `from` inserted before `at`; to be freed */
static struct file insert(struct file file, size_t at, const void *from, size_t length, size_t count)
{
    struct file out = {malloc(file.size + length * count), file.size + length * count};
    ck_assert_ptr_nonnull(out.bytes);
    memcpy(out.bytes, file.bytes, at);
    for (size_t i = 0; i < count; i++)
        memcpy(out.bytes + at + i * length, from, length);
    memcpy(out.bytes + at + length * count, file.bytes + at, file.size - at);
    return out;
}

/* Every kind: the size, libjpeg's own pixels, and about the picture that was encoded, channel by channel. */
START_TEST(all_kinds)
{
    struct decoder *decoder = must_make(ANY_LIMIT);
    for (size_t k = 0; k < KINDS; k++) {
        struct file file = make(&kinds[k]);
        struct image_info info;
        struct feedd_error err;
        ck_assert_msg(try_probe(decoder, blob_of(file), &info, &err) == 0, "%s: %s", kinds[k].name, err.message);
        ck_assert_uint_eq(info.width, kinds[k].width);
        ck_assert_uint_eq(info.height, kinds[k].height);
        ck_assert_uint_eq(info.orientation, 1);
        for (uint32_t channels = 1; channels <= 3; channels += 2) {
            struct pixels due = read_plainly(file, channels, 1);
            struct decode_spec spec = all_of(due.width, due.height);
            spec.channels = channels;
            check_spec(decoder, blob_of(file), &due, spec, kinds[k].name);
            free(due.bytes);
        }

        struct pixels due = read_plainly(file, 3, 1);
        double difference = 0;
        for (uint32_t y = 0; y < due.height; y++)
            for (uint32_t x = 0; x < due.width; x++) {
                const uint8_t cmyk[4] = {picture(x, y, 0), picture(x, y, 1), picture(x, y, 2), picture(x, y, 3)};
                uint8_t rgb[3] = {cmyk[0], cmyk[1], cmyk[2]};
                if (kinds[k].components == 4)
                    rgb_of(cmyk, rgb);
                for (uint32_t c = 0; c < 3; c++)
                    difference +=
                        abs(due.bytes[((size_t)y * due.width + x) * 3 + c] - rgb[kinds[k].components == 1 ? 0 : c]);
            }
        difference /= (double)due.width * due.height * 3;
        ck_assert_msg(difference < (kinds[k].quality == 100         ? 1
                                    : kinds[k].coding == INCOMPLETE ? 9
                                                                    : 6),
                      "%s: off by %.2f on average", kinds[k].name, difference);
        free(due.bytes);
        free(file.bytes);
    }
    decoder_jpeg.decoder_free(decoder);
}
END_TEST

/* A crop is what the whole image has there, byte for byte, and in a shrunk image what the whole shrunk one has. */
static void check_crops(struct decoder *decoder, struct file file, const char *name, int count, uint64_t *state)
{
    for (uint32_t shrink = 1; shrink <= 8; shrink *= 2)
        for (uint32_t channels = 1; channels <= 3; channels += 2) {
            struct pixels due = read_plainly(file, channels, shrink);
            struct image_info info;
            struct feedd_error err;
            ck_assert_msg(try_probe(decoder, blob_of(file), &info, &err) == 0, "%s: %s", name, err.message);
            for (int i = 0; i < count; i++) {
                const struct decode_spec spec = {.crop = random_crop(state, info.width, info.height),
                                                 .channels = channels,
                                                 .mode = shrink > 1 || i % 4 == 3 ? DECODE_FAST : DECODE_EXACT,
                                                 .shrink = shrink,
                                                 .accept_truncated = i % 8 == 7};
                check_spec(decoder, blob_of(file), &due, spec, name);
            }
            const struct decode_spec corner = {{info.width - 1, info.height - 1, 1, 1},
                                               channels,
                                               shrink > 1 ? DECODE_FAST : DECODE_EXACT,
                                               shrink,
                                               false};
            check_spec(decoder, blob_of(file), &due, corner, name);
            free(due.bytes);
        }
}

START_TEST(crops)
{
    uint64_t state = 1;
    struct decoder *decoder = must_make(ANY_LIMIT);
    for (size_t k = 0; k < KINDS; k++) {
        struct file file = make(&kinds[k]);
        check_crops(decoder, file, kinds[k].name, 40, &state);
        free(file.bytes);
    }
    decoder_jpeg.decoder_free(decoder);
}
END_TEST

START_TEST(arguments)
{
    struct decoder *decoder = must_make(ANY_LIMIT);
    struct file file = make(&kinds[1]);
    const uint32_t width = kinds[1].width, height = kinds[1].height;
    const struct decode_spec wrong[] = {
        cut_of((struct rect){1, 0, width, 1}),
        cut_of((struct rect){0, 1, 1, height}),
        cut_of((struct rect){width, 0, 1, 1}),
        cut_of((struct rect){0, height, 1, 1}),
        cut_of((struct rect){UINT32_MAX, 0, 2, 1}),
        cut_of((struct rect){0, UINT32_MAX, 1, 2}),
        cut_of((struct rect){0, 0, UINT32_MAX, 1}),
        cut_of((struct rect){0, 0, 0, 1}),
        cut_of((struct rect){0, 0, 1, 0}),
        {{0, 0, 1, 1}, 0, DECODE_EXACT, 1, false},
        {{0, 0, 1, 1}, 2, DECODE_EXACT, 1, false},
        {{0, 0, 1, 1}, 4, DECODE_EXACT, 1, false},
        {{0, 0, 1, 1}, 3, 0, 1, false},
        {{0, 0, 1, 1}, 3, DECODE_EXACT, 2, false},
        {{0, 0, 1, 1}, 3, DECODE_FAST, 0, false},
        {{0, 0, 1, 1}, 3, DECODE_FAST, 3, false},
        {{0, 0, 1, 1}, 3, DECODE_FAST, 16, false},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        uint8_t untouched = 0xA5;
        struct feedd_error err;
        int rc = try_decode(decoder, blob_of(file), wrong[i], &untouched, 0, &err);
        ck_assert_msg(rc == FEEDD_E_ARGUMENT, "%zu: status %d", i, rc);
        ck_assert_uint_eq(untouched, 0xA5);
    }
    ck_assert_uint_eq(decoder_jpeg.max_shrink, 8);
    free(file.bytes);
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
        const struct decode_spec spec = all_of(kinds[k].width, kinds[k].height);
        uint8_t *out = malloc((size_t)kinds[k].width * kinds[k].height * 3);
        ck_assert_ptr_nonnull(out);
        for (size_t size = 0; size < file.size; size++) {
            uint8_t *copy = malloc(size + 1); /* of its own, so that reading past the end is seen */
            ck_assert_ptr_nonnull(copy);
            memcpy(copy + 1, file.bytes, size);
            struct feedd_error err;
            char due[64];
            snprintf(due, sizeof(due), size == 0 ? "Empty" : "cut short: its %zu bytes", size);
            int rc = try_decode(decoder, (struct blob){copy + 1, size}, spec, out, (size_t)kinds[k].width * 3, &err);
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

/* The same, accepted: a picture as soon as the first scan has begun, also when the file ends within a table; what the
 * library makes of it with whatever crop; and in files of one scan all rows whose data are there. */
START_TEST(cut_short_accepted)
{
    uint64_t state = 3;
    struct decoder *decoder = must_make(ANY_LIMIT);
    for (size_t k = 0; k < KINDS; k++) {
        const struct recipe *recipe = &kinds[k];
        struct file file = make(recipe);
        const size_t data = find_data(file), room = (size_t)recipe->width * recipe->height * 3;
        const bool one_scan = recipe->coding == PLAIN;
        struct decode_spec spec = all_of(recipe->width, recipe->height);
        spec.accept_truncated = true;
        uint8_t *out = malloc(room);
        ck_assert_ptr_nonnull(out);
        struct pixels good = read_plainly(file, 3, 1);
        const size_t step = 1 + file.size / 200;
        for (size_t size = 0; size < file.size; size += step) {
            uint8_t *copy = malloc(size + 1);
            ck_assert_ptr_nonnull(copy);
            memcpy(copy + 1, file.bytes, size);
            const struct file part = {copy + 1, size};
            struct feedd_error err;
            int rc = try_decode(decoder, blob_of(part), spec, out, (size_t)recipe->width * 3, &err);
            ck_assert_msg(rc == (size < data ? FEEDD_E_CORRUPT : 0), "%s cut to %zu of %zu: %d '%s'", recipe->name,
                          size, file.size, rc, err.message);
            struct pixels due = read_plainly(part, 3, 1);
            if (rc == 0 && due.bytes != NULL) {
                ck_assert_msg(memcmp(out, due.bytes, room) == 0, "%s cut to %zu", recipe->name, size);
                struct decode_spec crop = spec;
                crop.crop = random_crop(&state, recipe->width, recipe->height);
                check_spec(decoder, blob_of(part), &due, crop, recipe->name);
            }
            if (one_scan && size > data + (file.size - data) * 3 / 4)
                ck_assert_msg(memcmp(out, good.bytes, room / 8) == 0, "%s cut to %zu", recipe->name, size);
            free(due.bytes);
            free(copy);
        }
        free(good.bytes);
        free(out);
        free(file.bytes);
    }
    decoder_jpeg.decoder_free(decoder);
}
END_TEST

/* Any byte may be anything: pixels as in the whole image, or an error with its reason. A plain reading of the rows from
 * the top to the crop's end warns, too, where a crop is refused. */
START_TEST(damaged_bytes)
{
    uint64_t state = 7;
    struct reference reference = reference_make();
    struct decoder *decoder = must_make(200 * 200);
    int failed = 0, decoded = 0;
    for (int i = 0; i < 4000; i++) {
        const struct recipe *recipe = &kinds[(size_t)i % KINDS];
        struct file file = make(recipe);
        for (uint64_t n = 1 + random_next(&state) % 3; n > 0; n--)
            file.bytes[2 + random_next(&state) % (file.size - 2)] = (uint8_t)random_next(&state);

        struct image_info info;
        struct feedd_error err;
        int rc = try_probe(decoder, blob_of(file), &info, &err);
        if (rc == 0) {
            ck_assert_uint_le((uint64_t)info.width * info.height, 200 * 200);
            struct pixels due = read_plainly(file, 3, 1);
            struct decode_spec spec = all_of(info.width, info.height);
            if (i % 4 != 0)
                spec.crop = random_crop(&state, info.width, info.height);
            spec.accept_truncated = i % 3 == 0;
            uint8_t *out = malloc((size_t)spec.crop.width * spec.crop.height * 3);
            ck_assert_ptr_nonnull(out);
            rc = try_decode(decoder, blob_of(file), spec, out, (size_t)spec.crop.width * 3, &err);
            free(out);
            const uint32_t end = spec.crop.y + spec.crop.height;
            if (rc == 0 && due.bytes != NULL)
                check_spec(decoder, blob_of(file), &due, spec, recipe->name);
            else if (rc != 0 && end < info.height)
                ck_assert_msg(due.bytes == NULL || due.warned < end, "%s, rows to %u: %s", recipe->name, end,
                              err.message);
            free(due.bytes);
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

/* Damage below the crop isn't seen; the same within it and above it is. Only in a file of several scans there is no
 * telling what it is about. */
START_TEST(damage_outside)
{
    struct decoder *decoder = must_make(ANY_LIMIT);
    struct recipe recipe = {"damaged below", 120, 400, JCS_YCbCr, 3, 95, "22", 0, PLAIN, false};
    for (int progressive = 0; progressive < 2; progressive++) {
        recipe.coding = progressive ? PROGRESSIVE : PLAIN;
        struct file file = make(&recipe);
        struct pixels due = read_plainly(file, 3, 1);
        static uint8_t out[120 * 400 * 3];
        struct feedd_error err;
        memcpy(file.bytes + file.size * 3 / 4, "\xff\xd9", 2);
        const struct decode_spec upper = cut_of((struct rect){10, 90, 100, 110});
        const struct decode_spec lower = cut_of((struct rect){10, 380, 100, 10});
        const struct decode_spec whole = all_of(recipe.width, recipe.height);
        if (!progressive)
            check_spec(decoder, blob_of(file), &due, upper, recipe.name);
        else
            ck_assert_int_eq(try_decode(decoder, blob_of(file), upper, out, 360, &err), FEEDD_E_CORRUPT);
        ck_assert_int_eq(try_decode(decoder, blob_of(file), lower, out, 360, &err), FEEDD_E_CORRUPT);
        ck_assert_int_eq(try_decode(decoder, blob_of(file), whole, out, 360, &err), FEEDD_E_CORRUPT);
        free(due.bytes);
        free(file.bytes);
    }
    decoder_jpeg.decoder_free(decoder);
}
END_TEST

/* What is tolerated, as by Pillow, and what isn't. */
START_TEST(warnings)
{
    struct reference reference = reference_make();
    const struct file good = reference.file;
    struct decoder *decoder = must_make(ANY_LIMIT);

    /* bytes before the end of image, between the tables, a few before a restart marker */
    struct file file = insert(good, good.size - 2, "ab", 2, 200);
    check_spec(decoder, blob_of(file), &reference.pixels, reference_spec(&reference), "before the end");
    free(file.bytes);
    file = insert(good, find_marker(good, 0xDB, 0), "abc", 3, 100);
    check_spec(decoder, blob_of(file), &reference.pixels, reference_spec(&reference), "before the tables");
    free(file.bytes);
    struct file restarts = make(&kinds[2]);
    struct pixels due = read_plainly(restarts, 3, 1);
    const size_t marker = find_marker(restarts, 0xD1, 0);
    file = insert(restarts, marker, "a", 1, 20);
    check_spec(decoder, blob_of(file), &due, all_of(due.width, due.height), "before a restart");
    free(file.bytes);
    file = insert(restarts, marker, "a", 1, 60);
    refuse(decoder, file, false, FEEDD_E_CORRUPT, "extraneous bytes before marker 0xd1");
    free(file.bytes);
    file = insert(restarts, 0, NULL, 0, 0);
    file.bytes[marker + 1] = 0xD5; /* the intervals between have got lost */
    refuse(decoder, file, false, FEEDD_E_CORRUPT, "found marker 0xd5 instead of RST1");
    free(file.bytes);
    free(due.bytes);
    free(restarts.bytes);

    /* between scans, as many as in a scan */
    struct file progressive = make(&kinds[5]);
    due = read_plainly(progressive, 3, 1);
    const size_t tables = find_marker(progressive, 0xC4, find_data(progressive));
    file = insert(progressive, tables, "a", 1, 20);
    check_spec(decoder, blob_of(file), &due, all_of(due.width, due.height), "between scans");
    free(file.bytes);
    file = insert(progressive, tables, "a", 1, 60);
    refuse(decoder, file, false, FEEDD_E_CORRUPT, "extraneous bytes before marker 0xc4");
    free(file.bytes);
    free(due.bytes);
    free(progressive.bytes);

    /* a scan too many: behind the last row, so a matter of crops that reach it */
    const size_t scan_at = find_marker(good, 0xDA, 0);
    file = insert(good, good.size - 2, good.bytes + scan_at, good.size - 2 - scan_at, 1);
    refuse(decoder, file, false, FEEDD_E_CORRUPT, "expect more than one scan");
    struct decode_spec spec = reference_spec(&reference);
    spec.accept_truncated = true;
    check_spec(decoder, blob_of(file), &reference.pixels, spec, "a scan too many");
    spec.accept_truncated = false;
    spec.crop.height--;
    check_spec(decoder, blob_of(file), &reference.pixels, spec, "a scan too many");
    free(file.bytes);

    size_t middle = (find_marker(good, 0xDA, 0) + good.size) / 2;
    file = insert(good, middle, "\xff\xd9", 2, 1);
    refuse(decoder, file, false, FEEDD_E_CORRUPT, "premature end of data segment");
    free(file.bytes);

    /* odd headers above good data: an unknown version of JFIF, a scan that says it is progressive */
    file = insert(good, 0, NULL, 0, 0);
    ck_assert_mem_eq(file.bytes + 6, "JFIF", 5);
    file.bytes[11] = 9;
    size_t scan = find_marker(file, 0xDA, 0);
    file.bytes[scan + 2 + 2 + 1 + 3 * 2 + 1] = 5; /* length, count, three components, first coefficient: the last one */
    check_spec(decoder, blob_of(file), &reference.pixels, reference_spec(&reference), "odd headers");
    free(file.bytes);

    reference_check(&reference, decoder);
    decoder_jpeg.decoder_free(decoder);
    reference_free(&reference);
}
END_TEST

static void check_orientation(struct decoder *decoder, struct file file, int due, const char *what)
{
    struct image_info info;
    struct feedd_error err;
    ck_assert_msg(try_probe(decoder, blob_of(file), &info, &err) == 0, "%s: %s", what, err.message);
    ck_assert_msg(info.orientation == due, "%s: %d, expected %d", what, info.orientation, due);
    ck_assert_uint_eq(info.width, kinds[1].width);
}

/* test_exif.c has what a block may look like; here is where it stands. */
START_TEST(orientation)
{
    struct reference reference = reference_make();
    const struct file good = reference.file;
    struct decoder *decoder = must_make(ANY_LIMIT);
    uint8_t exif[] = "\xff\xe1\0\x22"
                     "Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0";
    const size_t length = sizeof(exif) - 1, value = 2 + 2 + 6 + 8 + 2 + 8 + 1;
    uint8_t xmp[] = "\xff\xe1\0\x25http://ns.adobe.com/xap/1.0/\0<x/>..";
    ck_assert_uint_eq(length, 36);

    for (int i = 1; i <= 8; i++) {
        exif[value] = (uint8_t)i;
        struct file file = insert(good, 2, exif, length, 1);
        check_orientation(decoder, file, i, "one");
        struct file other = insert(file, 2, xmp, 2 + 0x25, 1);
        check_orientation(decoder, other, i, "behind XMP");
        free(other.bytes);
        exif[value] = (uint8_t)(i % 8 + 1);
        other = insert(file, 2 + length, exif, length, 3);
        check_orientation(decoder, other, i, "the first of four");
        check_spec(decoder, blob_of(other), &reference.pixels, reference_spec(&reference), "pixels aren't turned");
        free(other.bytes);
        free(file.bytes);
    }
    struct file file = insert(good, find_marker(good, 0xDA, 0), exif, length, 1);
    check_orientation(decoder, file, exif[value], "just before the scan");
    free(file.bytes);

    exif[4] = 'e';
    file = insert(good, 2, exif, length, 1);
    check_orientation(decoder, file, 1, "not EXIF");
    free(file.bytes);
    exif[4] = 'E';
    exif[3] = 0x21; /* one byte less than the directory needs; the value lies within */
    file = insert(good, 2, exif, length - 1, 1);
    check_orientation(decoder, file, exif[value], "a short segment");
    free(file.bytes);
    for (int bytes = 0; bytes <= 9; bytes++) { /* shorter than its own name; what it doesn't cover is skipped as junk */
        exif[3] = (uint8_t)bytes;
        file = insert(good, 2, exif, length, 1);
        check_orientation(decoder, file, 1, "a segment that is nearly empty");
        free(file.bytes);
    }

    /* the file ends within the segment */
    exif[3] = 0x22;
    file = insert(good, 2, exif, length, 1);
    for (size_t size = 2; size <= 2 + length; size++) {
        uint8_t *copy = malloc(size);
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, file.bytes, size);
        struct image_info info;
        struct feedd_error err;
        ck_assert_int_eq(try_probe(decoder, (struct blob){copy, size}, &info, &err), FEEDD_E_CORRUPT);
        ck_assert_msg(strstr(err.message, "cut short") != NULL, "%s", err.message);
        free(copy);
    }
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
    static const struct recipe two = {"two", 20, 10, JCS_UNKNOWN, 2, 95, "11", 0, PLAIN, false};
    struct file file = make(&two);
    refuse(decoder, file, true, FEEDD_E_UNSUPPORTED, "2 colour components");
    free(file.bytes);

    file = make(&kinds[0]);
    const size_t frame = find_marker(file, 0xC0, 0);
    file.bytes[frame + 4] = 12; /* bits a sample */
    refuse(decoder, file, true, FEEDD_E_UNSUPPORTED, "a JPEG of 12 bits a sample");
    file.bytes[frame + 4] = 128;
    refuse(decoder, file, true, FEEDD_E_CORRUPT, "precision 128");
    file.bytes[frame + 4] = 8;
    file.bytes[frame + 1] = 0xC5;
    refuse(decoder, file, true, FEEDD_E_UNSUPPORTED, "a hierarchical JPEG");
    file.bytes[frame + 1] = 0xC8;
    refuse(decoder, file, true, FEEDD_E_UNSUPPORTED, "a JPEG of a reserved kind");
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
    struct pixels due = read_plainly(file, 3, 1);
    const struct decode_spec all = all_of(due.width, due.height);
    const size_t first = find_marker(file, 0xDA, 0), next = find_marker(file, 0xC4, first); /* the next scan's tables */

    struct file most = insert(file, first, file.bytes + first, next - first, 500 - 3);
    check_spec(decoder, blob_of(most), &due, all, "500 scans");
    free(most.bytes);
    most = insert(file, first, file.bytes + first, next - first, 500 - 3 + 1);
    refuse(decoder, most, false, FEEDD_E_CORRUPT, "500");
    free(most.bytes);

    reference_check(&reference, decoder);
    free(due.bytes);
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
    ck_assert_int_eq(try_decode(decoder, blob_of(whole), all_of(61, 47), out, 61 * 3, &err), 0);
    refuse(decoder, without, false, FEEDD_E_CORRUPT, "Quantization table 0x00 was not defined");
    free(out);
    free(whole.bytes);
    free(without.bytes);
    decoder_jpeg.decoder_free(decoder);
}
END_TEST

/* A decoder holds nothing of an image, whatever it decodes and however that ends. */
START_TEST(memory_stays)
{
    struct decoder *decoder = must_make(ANY_LIMIT);
    static uint8_t out[700 * 64 * 3];
    const size_t held = allocated_bytes();
    for (size_t k = 0; k < KINDS; k++) {
        struct file file = make(&kinds[k]);
        struct feedd_error err;
        const struct rect crop = {0, kinds[k].height / 2, kinds[k].width, (kinds[k].height + 1) / 2};
        struct decode_spec spec = cut_of(crop);
        if (crop.height > 64)
            spec.crop.height = 64;
        ck_assert_int_eq(try_decode(decoder, blob_of(file), spec, out, (size_t)crop.width * 3, &err), 0);
        file.size /= 2;
        ck_assert_int_ne(try_decode(decoder, blob_of(file), spec, out, (size_t)crop.width * 3, &err), 0);
        free(file.bytes);
        ck_assert_uint_le(allocated_bytes(), held);
    }
    decoder_jpeg.decoder_free(decoder);
    decoder_jpeg.decoder_free(NULL);
}
END_TEST

static void *decode_many(void *argument)
{
    const struct reference *reference = argument;
    struct decoder *decoder = must_make(ANY_LIMIT);
    const struct decode_spec all = reference_spec(reference);
    const size_t stride = (size_t)all.crop.width * 3;
    uint8_t *out = malloc(stride * all.crop.height);
    uintptr_t wrong = out == NULL;
    for (size_t i = 0; i < 100 && !wrong; i++) {
        struct blob in = blob_of(reference->file);
        in.size -= i % 2;
        int rc = decoder_jpeg.decode(decoder, in, &all, out, stride, NULL);
        if (i % 2 == 0)
            wrong = rc != 0 || memcmp(out, reference->pixels.bytes, stride * all.crop.height) != 0;
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

/* Calls `visit` for every file of a folder of FEEDD_TEST_DATA. @return how many; 0 and a line when there is none */
static int each_file(const char *folder, void (*visit)(const char *path, void *argument), void *argument)
{
    const char *data = getenv("FEEDD_TEST_DATA");
    char top[4096];
    snprintf(top, sizeof(top), "%s/%s", data != NULL ? data : "", folder);
    char *roots[] = {top, NULL};
    FTS *tree = data != NULL ? fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, NULL) : NULL;
    int count = 0;
    for (FTSENT *entry = tree != NULL ? fts_read(tree) : NULL; entry != NULL; entry = fts_read(tree)) {
        if (entry->fts_info != FTS_F || entry->fts_level < 2) /* files beside the folders are about them */
            continue;
        visit(entry->fts_path, argument);
        count++;
    }
    if (tree != NULL)
        fts_close(tree);
    if (count == 0)
        printf("skipped: no folder %s in FEEDD_TEST_DATA\n", folder);
    return count;
}

struct visit {
    struct decoder *decoder;
    struct reference reference;
    uint64_t state;
    int crops, refused;
};

/* The whole file, and cut at up to 40 places: a status that makes sense, and every time memory of just the right size.
 */
static void decode_hard_file(const char *path, void *argument)
{
    struct visit *visit = argument;
    struct file file = load(path);
    const size_t step = file.size > 300000 ? 10 : 1; /* some of those are large pictures */
    for (size_t cut = 0; cut <= 40; cut += step) {
        const size_t size = cut == 0 ? file.size : file.size * cut / 41;
        uint8_t *copy = malloc(size + 1); /* so that reading past the end is seen */
        ck_assert_ptr_nonnull(copy);
        memcpy(copy + 1, file.bytes, size);
        const struct blob in = {copy + 1, size};

        struct feedd_error err;
        struct image_info info;
        int rc = try_probe(visit->decoder, in, &info, &err);
        if (rc == 0) {
            ck_assert_uint_le((uint64_t)info.width * info.height, ANY_LIMIT);
            struct decode_spec spec = all_of(info.width, info.height);
            spec.crop = cut % 2 == 0 ? spec.crop : random_crop(&visit->state, info.width, info.height);
            spec.accept_truncated = cut % 4 >= 2;
            uint8_t *out = malloc((size_t)spec.crop.width * spec.crop.height * 3);
            ck_assert_ptr_nonnull(out);
            rc = try_decode(visit->decoder, in, spec, out, (size_t)spec.crop.width * 3, &err);
            free(out);
        }
        ck_assert_msg(rc == 0 || rc == FEEDD_E_CORRUPT || rc == FEEDD_E_UNSUPPORTED || rc == FEEDD_E_LIMIT,
                      "%s, %zu bytes: status %d: %s", path, size, rc, err.message);
        ck_assert_msg(decoder_jpeg.recognises(in) || rc == FEEDD_E_CORRUPT, "%s isn't a JPEG file, and is decoded: %d",
                      path, rc);
        free(copy);
    }
    free(file.bytes);
    reference_check(&visit->reference, visit->decoder);
}

START_TEST(hard_files)
{
    struct visit visit = {.decoder = must_make(ANY_LIMIT), .reference = reference_make(), .state = 11};
    const int count = each_file("hard-jpegs", decode_hard_file, &visit);
    ck_assert(count == 0 || count >= 90);
    decoder_jpeg.decoder_free(visit.decoder);
    reference_free(&visit.reference);
}
END_TEST

/* Crops of real files, damaged ones too when that is accepted, against the whole read plainly. */
static void crop_file(const char *path, void *argument)
{
    struct visit *visit = argument;
    struct file file = load(path);
    struct image_info info;
    struct feedd_error err;
    const bool accepted = strstr(path, "/damaged/") != NULL;
    if (try_probe(visit->decoder, blob_of(file), &info, &err) != 0) {
        free(file.bytes);
        return;
    }
    struct pixels due = read_plainly(file, 3, 1);
    const int count = due.bytes == NULL || (uint64_t)info.width * info.height > 4000000 ? 0 : 4;
    for (int i = 0; i < count; i++) {
        struct decode_spec spec = cut_of(random_crop(&visit->state, info.width, info.height));
        spec.accept_truncated = accepted;
        uint8_t *out = malloc((size_t)spec.crop.width * spec.crop.height * 3);
        ck_assert_ptr_nonnull(out);
        const int rc = try_decode(visit->decoder, blob_of(file), spec, out, (size_t)spec.crop.width * 3, &err);
        free(out);
        visit->crops += rc == 0;
        visit->refused += rc != 0;
        if (rc == 0)
            check_spec(visit->decoder, blob_of(file), &due, spec, path);
    }
    free(due.bytes);
    free(file.bytes);
}

START_TEST(crops_of_files)
{
    struct visit visit = {.decoder = must_make(ANY_LIMIT), .state = 12};
    if (each_file("imagenet-sample", crop_file, &visit) > 0) {
        ck_assert_int_ge(visit.crops, 200 * 4);
        ck_assert_int_eq(visit.refused, 0);
    }
    visit.crops = 0;
    if (each_file("hard-jpegs", crop_file, &visit) > 0)
        ck_assert_int_ge(visit.crops, 50 * 4);
    decoder_jpeg.decoder_free(visit.decoder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("jpeg");
    TCase *tcase = tcase_create("jpeg");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, all_kinds);
    tcase_add_test(tcase, crops);
    tcase_add_test(tcase, arguments);
    tcase_add_test(tcase, cut_short);
    tcase_add_test(tcase, cut_short_accepted);
    tcase_add_test(tcase, damaged_bytes);
    tcase_add_test(tcase, damage_outside);
    tcase_add_test(tcase, warnings);
    tcase_add_test(tcase, orientation);
    tcase_add_test(tcase, unsupported);
    tcase_add_test(tcase, limits);
    tcase_add_test(tcase, many_scans);
    tcase_add_test(tcase, tables_stay_with_their_image);
    tcase_add_test(tcase, memory_stays);
    tcase_add_test(tcase, threads);
    tcase_add_test(tcase, hard_files);
    tcase_add_test(tcase, crops_of_files);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
