/* jpeg.c - JPEG to RGB by libjpeg-turbo: baseline, extended and progressive, 8 bits a sample, gray, YCbCr or RGB.
 * Pixels are those of `djpeg -rgb`: the accurate integer transform (ISLOW) and smooth ("fancy") chroma upsampling.
 *
 * Happy path: a decompressor over the blob -> header -> limits and colour space checked -> rows, of which the crop's
 * part goes to the caller -> end of image -> the decompressor is destroyed.
 * What can fail: the library reports errors, and warnings of damaged data, to error_exit() and emit_message(), which
 * write err and leave by longjmp() to probe() or decode(). Nothing is owned on the way but the decompressor, which is
 * destroyed there, and the row, which stays with the decoder. Damaged or missing data is always an error, as in
 * Pillow's default for files that are cut short: a picture that is half gray isn't a sample.
 * Threads: a decoder belongs to one worker.
 *
 * The decompressor lives for one image, for libjpeg keeps quantisation and Huffman tables in it from image to image: a
 * file that lacks its own would be decoded by those of another, so that pixels would depend on what a worker did
 * before. Making one takes less than a microsecond. */
#include <setjmp.h>
#include <stdio.h> /* jpeglib.h needs FILE and size_t from its includer */
#include <stdlib.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

#include "decoder.h"
#include "error.h"

#define CHANNELS 3

/* Scans are work that costs a few bytes each, once for every block of the image. Encoders make 10 or so;
 * libjpeg-turbo's own fuzzers stop at 500. */
#define SCANS_MAX 500

struct jpeg {
    struct decoder decoder;
    struct jpeg_decompress_struct cinfo; /* only while a call runs, as all but `row` is */
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    int status; /* what the call returns */
    struct feedd_error *err;
    struct blob in;
    uint8_t *row; /* of one row of the image, kept: at most 65,500 pixels, libjpeg's JPEG_MAX_DIMENSION */
    size_t row_bytes;
};

_Noreturn static void give_up(struct jpeg *jpeg, int status, const char *message)
{
    jpeg->status = error_set(jpeg->err, status, "JPEG: %s", message);
    longjmp(jpeg->escape, 1);
}

static int status_of(int message_code)
{
    switch (message_code) {
    case JERR_OUT_OF_MEMORY:
    case JERR_NO_BACKING_STORE: /* more than the environment's JPEGMEM allows */
        return FEEDD_E_MEMORY;
    case JERR_IMAGE_TOO_BIG:
    case JERR_WIDTH_OVERFLOW:
        return FEEDD_E_LIMIT;
    case JERR_ARITH_NOTIMPL:
    case JERR_BAD_PRECISION:
    case JERR_CCIR601_NOTIMPL:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_SOF_UNSUPPORTED:
        return FEEDD_E_UNSUPPORTED;
    default:
        return FEEDD_E_CORRUPT;
    }
}

/* The library's error_exit: must not return. */
_Noreturn static void error_exit(j_common_ptr cinfo)
{
    char message[JMSG_LENGTH_MAX];
    cinfo->err->format_message(cinfo, message);
    give_up(cinfo->client_data, status_of(cinfo->err->msg_code), message);
}

/* The library's emit_message. level: -1 for a warning, 0 and up for tracing. */
static void emit_message(j_common_ptr cinfo, int level)
{
    struct jpeg *jpeg = cinfo->client_data;
    char message[JMSG_LENGTH_MAX];
    if (level >= 0)
        return;
    switch (cinfo->err->msg_code) {
    case JWRN_ADOBE_XFORM: /* odd headers, of which the data doesn't suffer: an unknown transform is read as YCbCr, */
    case JWRN_JFIF_MAJOR:
    case JWRN_NOT_SEQUENTIAL: /* and a sequential scan doesn't use the parameters that are odd */
        return;
    case JWRN_JPEG_EOF:
        snprintf(message, sizeof(message), "cut short: its %zu bytes end before the image does", jpeg->in.size);
        break;
    default:
        cinfo->err->format_message(cinfo, message);
    }
    give_up(jpeg, FEEDD_E_CORRUPT, message);
}

/* The library calls this before each row of blocks that it reads, and each row of pixels that it writes. */
static void progress_monitor(j_common_ptr cinfo)
{
    if (((j_decompress_ptr)cinfo)->input_scan_number > SCANS_MAX)
        give_up(cinfo->client_data, FEEDD_E_CORRUPT, "more scans than the 500 that are allowed");
}

/* Reads the header and checks whether feedd decodes such an image; allocates nothing that grows with its size.
 * May longjmp(), as all that follow. */
static int read_header(struct jpeg *jpeg)
{
    struct jpeg_decompress_struct *cinfo = &jpeg->cinfo;
    jpeg_create_decompress(cinfo); /* keeps err and client_data */
    cinfo->progress = &jpeg->progress;
    jpeg_mem_src(cinfo, jpeg->in.bytes, jpeg->in.size);
    jpeg_read_header(cinfo, TRUE);

    const uint64_t pixels = (uint64_t)cinfo->image_width * cinfo->image_height;
    if (pixels > jpeg->decoder.limits.pixels)
        return error_set(jpeg->err, FEEDD_E_LIMIT, "JPEG: %u x %u are %llu pixels; allowed: %llu", cinfo->image_width,
                         cinfo->image_height, (unsigned long long)pixels,
                         (unsigned long long)jpeg->decoder.limits.pixels);
    switch (cinfo->jpeg_color_space) {
    case JCS_GRAYSCALE:
    case JCS_RGB:
    case JCS_YCbCr:
        return 0;
    case JCS_CMYK:
    case JCS_YCCK:
        return error_set(jpeg->err, FEEDD_E_UNSUPPORTED, "JPEG: the colour space is %s; allowed: gray, YCbCr, RGB",
                         cinfo->jpeg_color_space == JCS_CMYK ? "CMYK" : "YCCK");
    default:
        return error_set(jpeg->err, FEEDD_E_UNSUPPORTED, "JPEG: %d colour components of unknown meaning; allowed: 1, 3",
                         cinfo->num_components);
    }
}

static int reserve_row(struct jpeg *jpeg)
{
    const size_t bytes = (size_t)jpeg->cinfo.image_width * CHANNELS;
    if (bytes <= jpeg->row_bytes)
        return 0;
    free(jpeg->row);
    jpeg->row = malloc(bytes);
    jpeg->row_bytes = jpeg->row != NULL ? bytes : 0;
    return jpeg->row != NULL ? 0 : error_set(jpeg->err, FEEDD_E_MEMORY, "JPEG: not enough memory for %zu bytes", bytes);
}

/* A source in memory never suspends, so that each call reads the one row that it is asked for. */
static void discard_rows(struct jpeg *jpeg, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        jpeg_read_scanlines(&jpeg->cinfo, &(JSAMPROW){jpeg->row}, 1);
}

static void read_rows(struct jpeg *jpeg, struct rect crop, uint8_t *out, size_t stride)
{
    const bool whole = crop.width == jpeg->cinfo.output_width;
    for (uint32_t y = 0; y < crop.height; y++) {
        uint8_t *to = out + y * stride;
        jpeg_read_scanlines(&jpeg->cinfo, &(JSAMPROW){whole ? to : jpeg->row}, 1);
        if (!whole)
            memcpy(to, jpeg->row + (size_t)crop.x * CHANNELS, (size_t)crop.width * CHANNELS);
    }
}

/* Reads to the end of the image, also past the crop: an image that is damaged there is damaged for every crop. */
static int decode_image(struct jpeg *jpeg, struct rect crop, uint8_t *out, size_t stride)
{
    struct jpeg_decompress_struct *cinfo = &jpeg->cinfo;
    int rc = read_header(jpeg);
    if (rc != 0)
        return rc;
    const uint32_t width = cinfo->image_width, height = cinfo->image_height;
    if (crop.x > width || crop.width > width - crop.x || crop.y > height || crop.height > height - crop.y)
        return error_set(jpeg->err, FEEDD_E_ARGUMENT, "JPEG: a crop of %u x %u at (%u, %u) isn't within %u x %u pixels",
                         crop.width, crop.height, crop.x, crop.y, width, height);
    rc = reserve_row(jpeg);
    if (rc != 0)
        return rc;

    cinfo->out_color_space = JCS_RGB;
    cinfo->dct_method = JDCT_ISLOW;
    cinfo->do_fancy_upsampling = TRUE;
    jpeg_start_decompress(cinfo);
    discard_rows(jpeg, crop.y);
    read_rows(jpeg, crop, out, stride);
    discard_rows(jpeg, height - crop.y - crop.height);
    jpeg_finish_decompress(cinfo);
    return 0;
}

static bool recognises(struct blob in)
{
    return in.size >= 3 && memcmp(in.bytes, "\xff\xd8\xff", 3) == 0;
}

static int decoder_new(const struct decoder_limits *limits, struct decoder **out, struct feedd_error *err)
{
    struct jpeg *jpeg = calloc(1, sizeof(*jpeg));
    if (jpeg == NULL)
        return error_set(err, FEEDD_E_MEMORY, "JPEG: not enough memory for a decoder");
    jpeg->decoder = (struct decoder){.ops = &decoder_jpeg, .limits = *limits};
    jpeg->cinfo.err = jpeg_std_error(&jpeg->errors);
    jpeg->cinfo.client_data = jpeg;
    jpeg->errors.error_exit = error_exit;
    jpeg->errors.emit_message = emit_message;
    jpeg->progress.progress_monitor = progress_monitor;
    *out = &jpeg->decoder;
    return 0;
}

static void decoder_free(struct decoder *decoder)
{
    struct jpeg *jpeg = (struct jpeg *)decoder;
    if (jpeg == NULL)
        return;
    free(jpeg->row);
    free(jpeg);
}

/* No variable of these two changes between setjmp() and longjmp(), so that all of them are defined afterwards. */
static int probe(struct decoder *decoder, struct blob in, struct image_info *out, struct feedd_error *err)
{
    struct jpeg *jpeg = (struct jpeg *)decoder;
    jpeg->in = in;
    jpeg->err = err;
    if (setjmp(jpeg->escape) == 0)
        jpeg->status = read_header(jpeg);
    if (jpeg->status == 0)
        *out = (struct image_info){.width = jpeg->cinfo.image_width, .height = jpeg->cinfo.image_height};
    jpeg_destroy_decompress(&jpeg->cinfo);
    return jpeg->status;
}

static int decode(struct decoder *decoder, struct blob in, struct rect crop, uint8_t *out, size_t stride,
                  struct feedd_error *err)
{
    struct jpeg *jpeg = (struct jpeg *)decoder;
    jpeg->in = in;
    jpeg->err = err;
    if (setjmp(jpeg->escape) == 0)
        jpeg->status = decode_image(jpeg, crop, out, stride);
    jpeg_destroy_decompress(&jpeg->cinfo);
    return jpeg->status;
}

const struct decoder_ops decoder_jpeg = {.name = "jpeg",
                                         .recognises = recognises,
                                         .decoder_new = decoder_new,
                                         .decoder_free = decoder_free,
                                         .probe = probe,
                                         .decode = decode};
