/* png.c - PNG by libpng: every colour type and depth, interlaced or not; of an animated one the default image. Pixels
 * are those of Pillow's convert("RGB") or convert("L"): alpha and transparent colours are dropped, not blended, gamma
 * and colour profiles ignored, 16 bits reduced to their high byte. 16-bit gray differs on purpose: there Pillow clips
 * values to 255, so that nearly all of a picture is white (modes I;16 and I).
 *
 * Happy path: the blob up to the end of its image data goes to libpng's progressive reader -> take_header(): limits,
 * transformations -> take_row(), for each row of each pass: its part of the crop goes to the caller -> after the crop's
 * last pixel the call leaves by longjmp(), so that what stands below isn't even inflated.
 * What can fail: libpng reports errors to error_exit(), which writes err and leaves by longjmp(), too. Where bytes run
 * out, and where zlib finds damage, the reader just returns without the pixels that are missing.
 * Threads: a decoder belongs to one worker.
 *
 * libpng and not libspng, although that one needs no longjmp(): distributions have kept libpng repaired for decades,
 * it decodes all that there is of a file that is cut short, and it passes chunks over without reading them.
 *
 * Chunks that make no pixels are passed over, so that no compressed text or profile is ever inflated, and their CRCs
 * don't count; Pillow refuses a file for them. The CRCs of IHDR, PLTE and IDAT count, that of an IDAT chunk once
 * decoding gets to its end. Pillow leaves that to the checksum behind all of the image; without either, most errors of
 * a single bit pass unnoticed (test_codecs.py: test_png_bit_errors), and so they can in a crop that ends before its
 * chunk does.
 *
 * Memory: libpng has two rows of at most 8 bytes a pixel, zlib its window, and where a chunk is cut short there is a
 * copy of what there is of it. Nothing grows with the height. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

#include "codec.h"
#include "error.h"
#include "exif.h"

/* Pixels of a row; libpng's own default limit. A row is allocated before any of it is seen. */
#define WIDTH_MAX 1000000u

#define SIGNATURE_BYTES 8
#define CHUNK_BYTES     12u /* of a chunk without its data: length, type, CRC */

struct png {
    struct decoder decoder;
    /* Of the call that runs: */
    png_struct *read;
    png_info *info;
    jmp_buf escape;
    int status; /* what the call returns */
    bool out_of_memory;
    bool begun;       /* the header is good: what comes now are pixels */
    char warning[96]; /* libpng's latest, of the header or else of the pixels: it says more than the error behind it */
    struct feedd_error *err;
    struct blob in;
    struct image_info image;
    const struct decode_spec *spec; /* NULL: only the header is asked for */
    uint8_t *out;
    size_t stride;
    uint32_t row_channels; /* of the rows that libpng yields: 1 or 3 */
    bool interlaced;
    uint64_t missing;   /* pixels of the crop that haven't come yet */
    uint64_t rows_left; /* rows of all passes that haven't */
};

_Noreturn static void leave(struct png *png, int status)
{
    png->status = status;
    longjmp(png->escape, 1);
}

/* libpng's error function: must not return. */
_Noreturn static void error_exit(png_struct *read, const char *message)
{
    struct png *png = png_get_error_ptr(read);
    const char *reason = png->warning;
    if (png->begun && png->spec->accept_truncated && !png->out_of_memory)
        leave(png, 0); /* the pixels that are missing stay black */
    leave(png, error_set(png->err, png->out_of_memory ? FEEDD_E_MEMORY : FEEDD_E_CORRUPT, "PNG: %s%s%s%s", message,
                         *reason != '\0' ? " (" : "", reason, *reason != '\0' ? ")" : ""));
}

static void keep_warning(png_struct *read, const char *message)
{
    struct png *png = png_get_error_ptr(read);
    snprintf(png->warning, sizeof(png->warning), "%s", message);
}

static void *allocate(png_struct *read, png_alloc_size_t bytes)
{
    struct png *png = png_get_mem_ptr(read);
    void *memory = malloc(bytes);
    if (memory == NULL)
        png->out_of_memory = true;
    return memory;
}

static void release(png_struct *read, void *memory)
{
    (void)read;
    free(memory);
}

/* What libpng shall make of a row: samples of 8 bits, RGB, or gray for luma of a gray image. */
static void set_transformations(struct png *png, int colour, int depth)
{
    const bool gray = (colour & PNG_COLOR_MASK_COLOR) == 0;
    if (colour == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(png->read); /* an index behind the palette's end: black, as in Pillow */
    if (gray && depth < 8)
        png_set_expand_gray_1_2_4_to_8(png->read);
    if (depth == 16)
        png_set_strip_16(png->read);
    if (colour & PNG_COLOR_MASK_ALPHA)
        png_set_strip_alpha(png->read);
    if (gray && png->spec->channels == 3)
        png_set_gray_to_rgb(png->read);
    png->row_channels = gray && png->spec->channels == 1 ? 1 : 3;
    png_read_update_info(png->read, png->info); /* allocates the rows */
}

/* libpng calls this when the first IDAT chunk begins. */
static void take_header(png_struct *read, png_info *info)
{
    struct png *png = png_get_progressive_ptr(read);
    const uint32_t width = png_get_image_width(read, info), height = png_get_image_height(read, info);
    png->image = (struct image_info){.width = width, .height = height, .orientation = 1};
    int status = codec_check_size("PNG", width, height, &png->decoder.limits, png->err);
    if (status == 0 && width > WIDTH_MAX)
        status = error_set(png->err, FEEDD_E_LIMIT, "PNG: %u pixels wide; allowed: %u", width, WIDTH_MAX);
    if (status == 0 && png->spec != NULL)
        status = codec_check_spec("PNG", width, height, png->spec, png->err);
    if (status != 0 || png->spec == NULL)
        leave(png, status);

    set_transformations(png, png_get_color_type(read, info), png_get_bit_depth(read, info));
    png->interlaced = png_get_interlace_type(read, info) != PNG_INTERLACE_NONE;
    png->rows_left = png->interlaced ? 0 : height;
    for (int pass = 0; pass < PNG_INTERLACE_ADAM7_PASSES && png->interlaced; pass++)
        png->rows_left += PNG_PASS_COLS(width, pass) > 0 ? PNG_PASS_ROWS(height, pass) : 0;
    const struct rect crop = png->spec->crop;
    png->missing = (uint64_t)crop.width * crop.height;
    if (png->spec->accept_truncated) {
        png_set_crc_action(read, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);
        for (uint32_t y = 0; y < crop.height; y++)
            memset(png->out + y * png->stride, 0, (size_t)crop.width * png->spec->channels);
    }
    png->warning[0] = '\0';
    png->begun = true;
}

/* Copies what a row has of the crop. @param number  the row's in its pass; pixel i of a pass stands in the image at
 * first + (i << shift), in both directions */
static void copy_row(struct png *png, const uint8_t *row, uint32_t number, int pass)
{
    const struct rect crop = png->spec->crop;
    const uint32_t channels = png->spec->channels;
    const uint32_t x_first = png->interlaced ? PNG_PASS_START_COL(pass) : 0;
    const uint32_t x_shift = png->interlaced ? PNG_PASS_COL_SHIFT(pass) : 0;
    const uint32_t y = png->interlaced ? PNG_ROW_FROM_PASS_ROW(number, pass) : number;
    const uint32_t step = 1u << x_shift;
    const uint32_t i = crop.x > x_first ? (crop.x - x_first + step - 1) >> x_shift : 0; /* the first in the crop */
    const uint32_t x = x_first + (i << x_shift);
    if (y < crop.y || y - crop.y >= crop.height || x - crop.x >= crop.width)
        return;

    const uint32_t count = (crop.width - (x - crop.x) + step - 1) >> x_shift;
    const uint8_t *from = row + (size_t)i * png->row_channels;
    uint8_t *to = png->out + (y - crop.y) * png->stride + (size_t)(x - crop.x) * channels;
    png->missing -= count;
    if (channels != png->row_channels)
        codec_luma(from, count, to, step);
    else if (step == 1)
        memcpy(to, from, (size_t)count * channels);
    else
        for (uint32_t k = 0; k < count; k++, from += channels, to += (size_t)step * channels)
            memcpy(to, from, channels);
}

/* libpng calls this for each row of each pass. Behind the last of all it goes on to the chunk's CRC. */
static void take_row(png_struct *read, png_byte *row, png_uint_32 number, int pass)
{
    struct png *png = png_get_progressive_ptr(read);
    copy_row(png, row, number, pass);
    png->rows_left--;
    if (png->missing == 0 && png->rows_left > 0)
        leave(png, 0);
}

static void start(struct png *png)
{
    png->read = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, png, error_exit, keep_warning, png, allocate, release);
    if (png->read != NULL)
        png->info = png_create_info_struct(png->read);
    if (png->info == NULL)
        leave(png, error_set(png->err, FEEDD_E_MEMORY, "PNG: not enough memory for libpng"));
    png_set_user_limits(png->read, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* take_header() has ours */
    png_set_chunk_malloc_max(png->read, 0);                           /* no limit: chunks aren't allocated */
    /* All chunks but IHDR, PLTE, tRNS, IDAT and IEND; then that one, too, or else it would add alpha. */
    png_set_keep_unknown_chunks(png->read, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_keep_unknown_chunks(png->read, PNG_HANDLE_CHUNK_NEVER, (const png_byte *)"tRNS", 1);
    /* A window that the stream's header says to be smaller than it is doesn't stop Pillow. */
    png_set_option(png->read, PNG_MAXIMUM_INFLATE_WINDOW, PNG_OPTION_ON);
    png_set_progressive_read_fn(png->read, png, take_header, take_row, NULL);
}

static uint32_t read_u32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Steps over the chunks of a file. @param at  where the chunk begins; afterwards, where the next one does
 * @param data  the chunk's; its type stands in the 4 bytes before
 * @return false: there is no whole chunk any more */
static bool next_chunk(struct blob in, size_t *at, struct blob *data)
{
    if (in.size - *at < CHUNK_BYTES)
        return false;
    const uint32_t length = read_u32(in.bytes + *at);
    if (length > in.size - *at - CHUNK_BYTES)
        return false;
    *data = (struct blob){in.bytes + *at + 8, length};
    *at += CHUNK_BYTES + length;
    return true;
}

static bool is_type(struct blob data, const char *type)
{
    return memcmp(data.bytes - 4, type, 4) == 0;
}

/* How many of the bytes libpng gets: up to the end of the IDAT chunks, which follow one another. What comes behind them
 * is no reason to refuse an image. */
static size_t image_end(struct blob in)
{
    struct blob data;
    size_t at = SIGNATURE_BYTES, end = 0;
    while (in.size >= SIGNATURE_BYTES && next_chunk(in, &at, &data)) {
        if (is_type(data, "IDAT"))
            end = at;
        else if (end > 0)
            return end;
    }
    const bool cut = in.size >= at + 8 && memcmp(in.bytes + at + 4, "IDAT", 4) == 0;
    return end > 0 && !cut ? end : in.size;
}

static int read_all(struct png *png)
{
    start(png);
    /* The bytes are only read, in spite of their type. */
    png_process_data(png->read, png->info, (png_byte *)png->in.bytes, image_end(png->in));
    if (png->begun && (png->missing == 0 || png->spec->accept_truncated))
        return 0;
    if (png->begun && png->warning[0] != '\0') /* zlib's errors are only warnings here */
        return error_set(png->err, FEEDD_E_CORRUPT, "PNG: damaged image data: %llu pixels of the crop are missing",
                         (unsigned long long)png->missing);
    return error_set(png->err, FEEDD_E_CORRUPT, "PNG: cut short: its %zu bytes end before the image does",
                     png->in.size);
}

/* No variable of this one changes between setjmp() and longjmp(), so that all of them are defined afterwards. */
static int run(struct png *png, struct blob in, const struct decode_spec *spec, struct feedd_error *err)
{
    png->read = NULL;
    png->info = NULL;
    png->out_of_memory = png->begun = false;
    png->warning[0] = '\0';
    png->err = err;
    png->in = in;
    png->spec = spec;
    if (setjmp(png->escape) == 0)
        png->status = read_all(png);
    png_destroy_read_struct(&png->read, &png->info, NULL);
    return png->status;
}

/* The last eXIf chunk counts, before or behind the image, as in Pillow once it has loaded a file. */
static uint8_t find_orientation(struct blob in)
{
    struct blob data;
    uint8_t orientation = 1;
    for (size_t at = SIGNATURE_BYTES; next_chunk(in, &at, &data) && !is_type(data, "IEND");)
        if (is_type(data, "eXIf"))
            orientation = exif_orientation(data.bytes, data.size);
    return orientation;
}

static bool recognises(struct blob in)
{
    return in.size >= SIGNATURE_BYTES && memcmp(in.bytes, "\x89PNG\r\n\x1a\n", SIGNATURE_BYTES) == 0;
}

static int decoder_new(const struct decoder_limits *limits, struct decoder **out, struct feedd_error *err)
{
    struct png *png = calloc(1, sizeof(*png));
    if (png == NULL)
        return error_set(err, FEEDD_E_MEMORY, "PNG: not enough memory for a decoder");
    png->decoder = (struct decoder){.ops = &decoder_png, .limits = *limits};
    *out = &png->decoder;
    return 0;
}

static void decoder_free(struct decoder *decoder)
{
    free(decoder);
}

static int probe(struct decoder *decoder, struct blob in, struct image_info *out, struct feedd_error *err)
{
    struct png *png = (struct png *)decoder;
    const int status = run(png, in, NULL, err);
    if (status == 0) {
        *out = png->image;
        out->orientation = find_orientation(in);
    }
    return status;
}

static int decode(struct decoder *decoder, struct blob in, const struct decode_spec *spec, uint8_t *out, size_t stride,
                  struct feedd_error *err)
{
    struct png *png = (struct png *)decoder;
    png->out = out;
    png->stride = stride;
    return run(png, in, spec, err);
}

const struct decoder_ops decoder_png = {.name = "png",
                                        .max_shrink = 1,
                                        .recognises = recognises,
                                        .decoder_new = decoder_new,
                                        .decoder_free = decoder_free,
                                        .probe = probe,
                                        .decode = decode};
