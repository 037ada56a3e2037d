/* fuzz_jpeg.c - a JPEG file to pixels: probe, decode.
 *
 * Input: 8 bytes that choose the crop and how it is decoded, at the input's end so that a file stands as it is; before
 * them a file, when it begins with 0xFF, or else a recipe: the picture (its sides, colour space, sampling factors,
 * quality, coding), which libjpeg encodes here, and edits of its bytes.
 * What has to hold: a crop is what the whole image has there, be it damaged or not, shrunk or not; where the whole is
 * good, every part of it is; a decoder is as good as new after any image; a refusal says why; nothing stays allocated.
 * Threads: one. */
#include <setjmp.h>

#include "codec.h"

#include <jpeglib.h>

#include "error.h"

#define SIDE_MAX 48u /* of a picture that is made here */

struct encoder {
    struct jpeg_compress_struct cinfo;
    struct jpeg_error_mgr errors;
    jmp_buf escape;
};

_Noreturn static void give_up(j_common_ptr cinfo)
{
    longjmp(((struct encoder *)cinfo->client_data)->escape, 1);
}

/* Scans as encoders make them, or one a component, or those that a progressive file begins with. */
static void choose_scans(struct jpeg_compress_struct *cinfo, uint8_t coding)
{
    static jpeg_scan_info scans[4]; /* libjpeg keeps the pointer */
    const int components = cinfo->num_components;
    if (coding & 1)
        jpeg_simple_progression(cinfo);
    if (coding & 64) {
        scans[0] = (jpeg_scan_info){components, {0, 1, 2, 3}, 0, 0, 0, 1};
        scans[1] = (jpeg_scan_info){1, {0}, 1, 5, 0, 2};
        cinfo->scan_info = scans;
        cinfo->num_scans = 2;
    } else if (coding & 128) {
        for (int c = 0; c < components; c++)
            scans[c] = (jpeg_scan_info){1, {c}, 0, 63, 0, 0};
        cinfo->scan_info = scans;
        cinfo->num_scans = components;
    }
}

/* Makes a file of a recipe. @return its bytes, to be freed; NULL when libjpeg doesn't make such a one */
static uint8_t *encode(struct fuzz_input *in, unsigned long *size)
{
    static const J_COLOR_SPACE spaces[] = {JCS_YCbCr, JCS_RGB, JCS_GRAYSCALE, JCS_CMYK, JCS_YCCK};
    struct encoder encoder;
    struct jpeg_compress_struct *cinfo = &encoder.cinfo;
    unsigned char *bytes = NULL;
    uint8_t row[SIDE_MAX * 4];
    cinfo->err = jpeg_std_error(&encoder.errors);
    encoder.errors.error_exit = give_up;
    jpeg_create_compress(cinfo);
    cinfo->client_data = &encoder;
    if (setjmp(encoder.escape) != 0) {
        jpeg_destroy_compress(cinfo);
        free(bytes);
        return NULL;
    }
    jpeg_mem_dest(cinfo, &bytes, size);
    cinfo->image_width = 1 + fuzz_byte(in) % SIDE_MAX;
    cinfo->image_height = 1 + fuzz_byte(in) % SIDE_MAX;
    J_COLOR_SPACE space = spaces[fuzz_byte(in) % 5];
    cinfo->in_color_space = space == JCS_YCCK ? JCS_CMYK : space == JCS_YCbCr ? JCS_RGB : space;
    cinfo->input_components = space == JCS_GRAYSCALE ? 1 : cinfo->in_color_space == JCS_CMYK ? 4 : 3;
    jpeg_set_defaults(cinfo);
    jpeg_set_colorspace(cinfo, space);
    uint8_t sampling = fuzz_byte(in), coding = fuzz_byte(in);
    for (int c = 0; c < 2 && c < cinfo->num_components; c++, sampling >>= 4) {
        cinfo->comp_info[c].h_samp_factor = 1 + (sampling & 3);
        cinfo->comp_info[c].v_samp_factor = 1 + (sampling >> 2 & 3);
    }
    jpeg_set_quality(cinfo, 1 + fuzz_byte(in) % 100, TRUE);
    choose_scans(cinfo, coding);
    cinfo->arith_code = (coding & 2) != 0;
    cinfo->restart_interval = coding >> 2 & 3;
    cinfo->optimize_coding = (coding & 16) != 0;
    jpeg_start_compress(cinfo, (coding & 32) == 0); /* without tables: a file that can't be decoded alone */
    uint32_t noise = fuzz_byte(in);
    while (cinfo->next_scanline < cinfo->image_height) {
        for (uint32_t i = 0; i < sizeof(row); i++) {
            noise = noise * 1103515245 + 12345;
            row[i] = (uint8_t)(i * 3 + cinfo->next_scanline * 5 + (noise >> 26));
        }
        jpeg_write_scanlines(cinfo, &(JSAMPROW){row}, 1);
    }
    jpeg_finish_compress(cinfo);
    jpeg_destroy_compress(cinfo);
    return bytes;
}

/* The file, in memory of its own size, so that a sanitizer sees the first byte too many. */
static uint8_t *make_file(struct fuzz_input *in, size_t *size)
{
    uint8_t *file;
    if (in->left > 0 && in->at[0] == 0xFF) {
        *size = in->left;
        file = malloc(*size);
        FUZZ_CHECK(file != NULL);
        memcpy(file, in->at, *size);
        return file;
    }
    unsigned long encoded;
    file = encode(in, &encoded);
    if (file == NULL)
        return NULL;
    *size = encoded;
    while (in->left >= 3) {
        size_t at = (size_t)fuzz_byte(in) << 8;
        at |= fuzz_byte(in);
        uint8_t value = fuzz_byte(in);
        if (at < *size)
            file[at] = value;
        else
            *size = *size > at % 256 ? *size - at % 256 : *size; /* cut short */
    }
    uint8_t *exact = realloc(file, *size);
    FUZZ_CHECK(exact != NULL);
    return exact;
}

/* Pixels without gaps, or NULL and *status. */
static uint8_t *decode(struct decoder *decoder, struct blob in, const struct decode_spec *spec, int *status)
{
    struct feedd_error err = {0, ""};
    const struct rect region = decode_region(spec);
    const size_t stride = (size_t)region.width * spec->channels;
    uint8_t *pixels = malloc(stride * region.height);
    FUZZ_CHECK(pixels != NULL);
    *status = decoder->ops->decode(decoder, in, spec, pixels, stride, &err);
    if (*status == 0) {
        FUZZ_CHECK(err.message[0] == '\0');
        return pixels;
    }
    fuzz_check_error(&err, *status);
    free(pixels);
    return NULL;
}

/* What is decoded of `spec` is what `whole` has there: the (shrunk) image in rows of `width` pixels. */
static void check_part(const uint8_t *whole, uint32_t width, const struct decode_spec *spec, const uint8_t *part)
{
    const struct rect region = decode_region(spec);
    const size_t row = (size_t)region.width * spec->channels;
    for (uint32_t y = 0; y < region.height; y++)
        FUZZ_CHECK(memcmp(part + y * row, whole + ((size_t)(region.y + y) * width + region.x) * spec->channels, row) ==
                   0);
}

static void check_file(struct decoder *decoder, struct blob in, const uint8_t choices[CHOICES])
{
    struct feedd_error err = {0, ""};
    struct image_info image;
    int status = decoder->ops->probe(decoder, in, &image, &err), strict_status, fresh_status, part_status;
    struct decode_spec spec = {{0, 0, 1, 1}, 3, DECODE_EXACT, 1, false};
    if (status != 0) {
        fuzz_check_error(&err, status);
        FUZZ_CHECK(status == FEEDD_E_CORRUPT || status == FEEDD_E_UNSUPPORTED || status == FEEDD_E_LIMIT);
        FUZZ_CHECK(decode(decoder, in, &spec, &part_status) == NULL && part_status == status);
        return;
    }
    FUZZ_CHECK(err.message[0] == '\0');
    FUZZ_CHECK(image.width > 0 && image.height > 0 && image.width <= PIXELS_MAX / image.height);
    FUZZ_CHECK(image.orientation >= 1 && image.orientation <= 8);

    spec.shrink = 1u << (choices[4] & 3);
    spec.mode = spec.shrink > 1 ? DECODE_FAST : DECODE_EXACT;
    spec.channels = choices[4] & 4 ? 1 : 3;
    const struct rect all = {0, 0, image.width, image.height};
    const uint32_t width = (image.width + spec.shrink - 1) / spec.shrink;
    struct rect crop;
    codec_span(image.width, choices[0], choices[1], &crop.x, &crop.width);
    codec_span(image.height, choices[2], choices[3], &crop.y, &crop.height);

    struct decoder *fresh = codec_new(decoder->ops);
    spec.crop = all;
    uint8_t *strict = decode(decoder, in, &spec, &strict_status);
    uint8_t *again = decode(fresh, in, &spec, &fresh_status);
    FUZZ_CHECK(strict_status == fresh_status);
    spec.accept_truncated = true;
    uint8_t *lax = decode(decoder, in, &spec, &status);
    FUZZ_CHECK(strict == NULL || lax != NULL);
    if (strict != NULL) {
        check_part(again, width, &spec, strict);
        check_part(lax, width, &spec, strict);
    }
    spec.crop = crop;
    uint8_t *part = decode(decoder, in, &spec, &part_status);
    FUZZ_CHECK(part_status == status);
    if (part != NULL)
        check_part(lax, width, &spec, part);
    free(part);
    spec.accept_truncated = false;
    part = decode(decoder, in, &spec, &part_status);
    FUZZ_CHECK(part != NULL ? lax != NULL : strict == NULL);
    if (part != NULL)
        check_part(lax, width, &spec, part);
    free(part);
    spec.crop.x = image.width; /* isn't within the image */
    FUZZ_CHECK(decode(decoder, in, &spec, &part_status) == NULL && part_status == FEEDD_E_ARGUMENT);
    free(lax);
    free(again);
    free(strict);
    fresh->ops->decoder_free(fresh);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct decoder *decoder; /* a worker's: for all of them */
    uint8_t choices[CHOICES] = {0};
    size_t chosen = size < CHOICES ? size : CHOICES;
    struct fuzz_input in = {data, size};
    if (decoder == NULL)
        decoder = codec_new(&decoder_jpeg);
    if (size > 0)
        memcpy(choices, data + size - chosen, chosen);
    if (size > 0 && data[0] != 0xFF)
        in.left -= chosen;
    size_t bytes = 0;
    uint8_t *file = make_file(&in, &bytes);
    if (file != NULL)
        check_file(decoder, (struct blob){file, bytes}, choices);
    free(file);
    return 0;
}
