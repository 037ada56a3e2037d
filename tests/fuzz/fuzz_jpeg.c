/* fuzz_jpeg.c - one sample's way from encoded bytes to pixels: probe, decode, geometry, resize.
 *
 * Input: 8 bytes that choose crop, transform and scaling, at the input's end so that a file stands as it is; before
 * them a file, when it begins with 0xFF, or else a recipe: the picture (its sides, colour space, sampling factors,
 * quality, coding), which libjpeg encodes here, and edits of its bytes.
 * What has to hold: decoding succeeds whole or not at all, whatever the crop; a crop is what the whole has there; a
 * decoder is as good as new after any image; the window of a scaled image is what all of it has there, and mirrored
 * when flipped; a refusal says why; nothing stays allocated.
 * Threads: one. */
#include <setjmp.h>

#include "fuzz.h"

#include <jpeglib.h>

#include "decoder.h"
#include "error.h"
#include "geometry.h"
#include "resize.h"

#define PIXELS_MAX  65536u /* of an image: more is refused */
#define SIDE_MAX    48u    /* of a picture that is made here */
#define DELIVER_MAX 64u    /* of what a transform delivers */
#define SCALED_MAX  65536u /* pixels of a scaled image that is made whole, to be compared */
#define CHOICES     8u     /* bytes at the end */
#define CHANNELS    3u

struct encoder {
    struct jpeg_compress_struct cinfo;
    struct jpeg_error_mgr errors;
    jmp_buf escape;
};

_Noreturn static void give_up(j_common_ptr cinfo)
{
    longjmp(((struct encoder *)cinfo->client_data)->escape, 1);
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
    cinfo->comp_info[0].h_samp_factor = 1 + (sampling & 3);
    cinfo->comp_info[0].v_samp_factor = 1 + (sampling >> 2 & 3);
    jpeg_set_quality(cinfo, 1 + fuzz_byte(in) % 100, TRUE);
    if (coding & 1)
        jpeg_simple_progression(cinfo);
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

static struct decoder *new_decoder(void)
{
    static const struct decoder_limits limits = {.pixels = PIXELS_MAX};
    struct decoder *decoder;
    struct feedd_error err;
    FUZZ_CHECK(decoder_jpeg.decoder_new(&limits, &decoder, &err) == 0);
    return decoder;
}

/* Pixels of a crop, or NULL and *status. */
static uint8_t *decode(struct decoder *decoder, struct blob in, struct rect crop, int *status)
{
    struct feedd_error err = {0, ""};
    size_t stride = (size_t)crop.width * CHANNELS;
    uint8_t *pixels = malloc(stride * crop.height + 1); /* a crop of nothing is one, too */
    FUZZ_CHECK(pixels != NULL);
    *status = decoder->ops->decode(decoder, in, crop, pixels, stride, &err);
    if (*status == 0)
        return pixels;
    fuzz_check_error(&err, *status);
    free(pixels);
    return NULL;
}

/* A span of 0..side, at least 1 long. */
static void choose_span(uint32_t side, uint8_t a, uint8_t b, uint32_t *first, uint32_t *length)
{
    *first = a * side / 256;
    *length = 1 + b * (side - *first) / 256;
    if (*length > side - *first)
        *length = side - *first;
}

/* The part `window` of an image of rows of `width` pixels, mirrored or not, is what `part` has. */
static void check_part(const uint8_t *image, uint32_t width, struct rect window, int flip, const uint8_t *part)
{
    for (uint32_t y = 0; y < window.height; y++)
        for (uint32_t x = 0; x < window.width; x++, part += CHANNELS) {
            uint32_t from = flip ? window.width - 1 - x : x;
            FUZZ_CHECK(memcmp(part, image + ((size_t)(window.y + y) * width + window.x + from) * CHANNELS, CHANNELS) ==
                       0);
        }
}

/* A region of an image, its rows without gaps, scaled by one that has done others before; against all of it, scaled by
 * a new one. */
static void check_scaling(struct resizer *resizer, const uint8_t *in, const struct geometry *g)
{
    struct resizer *fresh;
    struct feedd_error err;
    struct rect all = {0, 0, g->scaled_width, g->scaled_height}, window = g->window;
    size_t stride = (size_t)g->crop.width * CHANNELS;
    uint8_t *cell = malloc((size_t)window.width * window.height * CHANNELS), *scaled = NULL;
    FUZZ_CHECK(cell != NULL);
    if ((uint64_t)all.width * all.height <= SCALED_MAX) {
        scaled = malloc((size_t)all.width * all.height * CHANNELS);
        FUZZ_CHECK(scaled != NULL && resizer_new(&fresh, &err) == 0);
        FUZZ_CHECK(resizer_apply(fresh, in, g->crop.width, g->crop.height, stride, CHANNELS, all.width, all.height, all,
                                 0, scaled, &err) == 0);
        resizer_free(fresh);
    }
    for (int i = 0; i < 2; i++) { /* then beside it: what is kept of the first is of no use for the second */
        FUZZ_CHECK(resizer_apply(resizer, in, g->crop.width, g->crop.height, stride, CHANNELS, all.width, all.height,
                                 window, g->flip, cell, &err) == 0);
        if (scaled != NULL)
            check_part(scaled, all.width, window, g->flip, cell);
        window.x -= window.x > 0;
        window.y -= window.y > 0;
    }
    free(scaled);
    free(cell);
}

/* What sample.c does with an image: geometry, the crop, its scaling. */
static void check_transform(struct decoder *decoder, struct resizer *resizer, struct blob in, struct image_info image,
                            const uint8_t *whole, const uint8_t choices[CHOICES])
{
    struct transform_spec spec = {.kind = choices[0] & 1 ? TRANSFORM_RESIZE_CENTER_CROP : TRANSFORM_NONE,
                                  .resize = choices[1],
                                  .height = choices[2] % (DELIVER_MAX + 1),
                                  .width = choices[3] % (DELIVER_MAX + 1),
                                  .flip = (choices[0] >> 1) / 127.0};
    struct feedd_error err = {0, ""};
    struct geometry g;
    if (spec.kind == TRANSFORM_NONE && choices[0] & 2)
        spec.height = spec.width = 0;
    if (transform_check(&spec) != NULL)
        return;
    uint32_t height = spec.height != 0 ? spec.height : image.height, width = spec.width != 0 ? spec.width : image.width;
    int status = geometry_choose(&spec, height, width, choices[4], choices[5], choices[6], image, &g, &err);
    if (status != 0) {
        fuzz_check_error(&err, status);
        FUZZ_CHECK(status == FEEDD_E_LIMIT || (status == FEEDD_E_UNSUPPORTED && spec.kind == TRANSFORM_NONE));
        return;
    }
    FUZZ_CHECK(g.crop.x + g.crop.width <= image.width && g.crop.y + g.crop.height <= image.height);
    FUZZ_CHECK(g.window.width == width && g.window.x <= g.scaled_width && width <= g.scaled_width - g.window.x);
    FUZZ_CHECK(g.window.height == height && g.window.y <= g.scaled_height && height <= g.scaled_height - g.window.y);
    FUZZ_CHECK((spec.flip > 0 || !g.flip) && (spec.flip < 1 || g.flip));
    uint8_t *crop = decode(decoder, in, g.crop, &status);
    FUZZ_CHECK(status == 0);
    check_part(whole, image.width, g.crop, 0, crop);
    check_scaling(resizer, crop, &g);
    free(crop);
}

static void check_file(struct decoder *decoder, struct resizer *resizer, struct blob in, const uint8_t choices[CHOICES])
{
    struct feedd_error err = {0, ""};
    struct image_info image;
    int status = decoder_find(in, &err);
    FUZZ_CHECK(status >= 0 ? decoders[status] == &decoder_jpeg && decoder_jpeg.recognises(in)
                           : !decoder_jpeg.recognises(in));
    if (status < 0)
        fuzz_check_error(&err, status);
    status = decoder->ops->probe(decoder, in, &image, &err);
    if (status != 0) {
        fuzz_check_error(&err, status);
        FUZZ_CHECK(decode(decoder, in, (struct rect){0, 0, 1, 1}, &status) == NULL);
        return;
    }
    FUZZ_CHECK(image.width > 0 && image.height > 0 && image.width <= PIXELS_MAX / image.height);
    struct rect all = {0, 0, image.width, image.height}, crop;
    struct decoder *fresh = new_decoder();
    int fresh_status, crop_status;
    uint8_t *whole = decode(decoder, in, all, &status), *again = decode(fresh, in, all, &fresh_status);
    FUZZ_CHECK(status == fresh_status);
    choose_span(image.width, choices[0], choices[1], &crop.x, &crop.width);
    choose_span(image.height, choices[2], choices[3], &crop.y, &crop.height);
    uint8_t *part = decode(decoder, in, crop, &crop_status);
    FUZZ_CHECK(status == crop_status);
    if (status == 0) {
        FUZZ_CHECK(memcmp(whole, again, (size_t)image.width * image.height * CHANNELS) == 0);
        check_part(whole, image.width, crop, 0, part);
        check_transform(decoder, resizer, in, image, whole, choices);
        crop.width += image.width; /* isn't within the image */
        free(decode(decoder, in, crop, &status));
        FUZZ_CHECK(status == FEEDD_E_ARGUMENT);
    }
    free(part);
    free(again);
    free(whole);
    fresh->ops->decoder_free(fresh);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct decoder *decoder; /* a worker's: for all of them */
    static struct resizer *resizer;
    uint8_t choices[CHOICES] = {0};
    size_t chosen = size < CHOICES ? size : CHOICES;
    struct fuzz_input in = {data, size};
    struct feedd_error err;
    if (decoder == NULL) {
        decoder = new_decoder();
        FUZZ_CHECK(resizer_new(&resizer, &err) == 0);
    }
    if (size > 0)
        memcpy(choices, data + size - chosen, chosen);
    if (size > 0 && data[0] != 0xFF)
        in.left -= chosen;
    size_t bytes = 0;
    uint8_t *file = make_file(&in, &bytes);
    if (file != NULL)
        check_file(decoder, resizer, (struct blob){file, bytes}, choices);
    free(file);
    return 0;
}
