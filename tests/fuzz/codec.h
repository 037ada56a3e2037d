/* codec.h - what has to hold for any file given to the PNG or WebP decoder.
 *
 * A file is decoded whole and in part, in colour and as luma, strictly and as far as it goes. Where the whole is good,
 * every part is, and is what the whole has there; a decoder is as good as new after any image; a refusal says why and
 * writes nothing but pixels; nothing stays allocated.
 * Threads: one. */
#ifndef FEEDD_FUZZ_CODEC_H
#define FEEDD_FUZZ_CODEC_H

#include "fuzz.h"

#include "decoder.h"

#define PIXELS_MAX 65536u /* of an image: more is refused */
#define CHOICES    8u     /* bytes at the input's end: a crop, flags of the target's */

static inline struct decoder *codec_new(const struct decoder_ops *ops)
{
    static const struct decoder_limits limits = {.pixels = PIXELS_MAX};
    struct decoder *decoder;
    struct feedd_error err;
    FUZZ_CHECK(ops->decoder_new(&limits, &decoder, &err) == 0);
    return decoder;
}

/* Pixels without gaps, or NULL and *status. */
static inline uint8_t *codec_decode(struct decoder *decoder, struct blob in, struct rect crop, uint32_t channels,
                                    bool accept_truncated, int *status)
{
    struct feedd_error err = {0, ""};
    const struct decode_spec spec = {.crop = crop,
                                     .channels = channels,
                                     .mode = accept_truncated ? DECODE_FAST : DECODE_EXACT,
                                     .shrink = 1,
                                     .accept_truncated = accept_truncated};
    const size_t stride = (size_t)crop.width * channels;
    uint8_t *pixels = malloc(stride * crop.height);
    FUZZ_CHECK(pixels != NULL);
    *status = decoder->ops->decode(decoder, in, &spec, pixels, stride, &err);
    if (*status == 0) {
        FUZZ_CHECK(err.message[0] == '\0');
        return pixels;
    }
    fuzz_check_error(&err, *status);
    free(pixels);
    return NULL;
}

/* A span of 0..side, at least 1 long. */
static inline void codec_span(uint32_t side, uint8_t a, uint8_t b, uint32_t *first, uint32_t *length)
{
    *first = a * side / 256;
    *length = 1 + b * (side - *first) / 256;
    if (*length > side - *first)
        *length = side - *first;
}

/* The part `crop` of an image of rows of `width` RGB pixels is what `part` has, in as many channels. `rows_may_miss`:
 * where not, one of the two rows is black. */
static inline void codec_check_part(const uint8_t *image, uint32_t width, struct rect crop, uint32_t channels,
                                    const uint8_t *part, bool rows_may_miss)
{
    for (uint32_t y = 0; y < crop.height; y++) {
        const uint8_t *whole = image + ((size_t)(crop.y + y) * width + crop.x) * 3;
        bool same = true, black = true, black_part = true;
        for (uint32_t x = 0; x < crop.width; x++, whole += 3, part += channels) {
            const uint32_t luma = (whole[0] * 19595u + whole[1] * 38470u + whole[2] * 7471u + 0x8000u) >> 16;
            same &= channels == 3 ? memcmp(whole, part, 3) == 0 : *part == luma;
            black &= (whole[0] | whole[1] | whole[2]) == 0;
            for (uint32_t c = 0; c < channels; c++)
                black_part &= part[c] == 0;
        }
        FUZZ_CHECK(same || (rows_may_miss && (black || black_part)));
    }
}

/* A crop, strictly and not, against the whole image: `strict` is NULL where that one isn't good, `lax` never. */
static inline void codec_check_crop(struct decoder *decoder, struct blob in, uint32_t width, struct rect crop,
                                    const uint8_t *strict, const uint8_t *lax, bool rows_may_miss)
{
    for (uint32_t channels = 1; channels <= 3; channels += 2) {
        int status;
        uint8_t *part = codec_decode(decoder, in, crop, channels, false, &status);
        FUZZ_CHECK(status == 0 || (status == FEEDD_E_CORRUPT && strict == NULL));
        if (part != NULL)
            codec_check_part(lax, width, crop, channels, part, rows_may_miss);
        if (part != NULL && strict != NULL)
            codec_check_part(strict, width, crop, channels, part, false);
        free(part);
        part = codec_decode(decoder, in, crop, channels, true, &status);
        FUZZ_CHECK(status == 0);
        codec_check_part(lax, width, crop, channels, part, rows_may_miss);
        free(part);
    }
}

static inline void codec_check_refused(struct decoder *decoder, struct blob in, int status)
{
    for (int i = 0; i < 2; i++) {
        int again;
        FUZZ_CHECK(codec_decode(decoder, in, (struct rect){0, 0, 1, 1}, 3, i == 1, &again) == NULL && again == status);
    }
}

/* @param rows_may_miss  how much of damaged data is used depends on the crop, by rows */
static inline void codec_check_file(struct decoder *decoder, struct blob in, const uint8_t choices[CHOICES],
                                    bool rows_may_miss)
{
    struct feedd_error err = {0, ""};
    struct image_info image;
    int status = decoder->ops->probe(decoder, in, &image, &err), fresh_status, outside;
    if (status != 0) {
        fuzz_check_error(&err, status);
        FUZZ_CHECK(status == FEEDD_E_CORRUPT || status == FEEDD_E_LIMIT);
        codec_check_refused(decoder, in, status);
        return;
    }
    FUZZ_CHECK(decoder->ops->recognises(in));
    FUZZ_CHECK(image.width > 0 && image.height > 0 && image.width <= PIXELS_MAX / image.height);
    FUZZ_CHECK(image.orientation >= 1 && image.orientation <= 8);
    struct rect all = {0, 0, image.width, image.height}, crop;
    struct decoder *fresh = codec_new(decoder->ops);
    uint8_t *strict = codec_decode(decoder, in, all, 3, false, &status);
    uint8_t *again = codec_decode(fresh, in, all, 3, false, &fresh_status);
    FUZZ_CHECK(status == fresh_status && (status == 0 || status == FEEDD_E_CORRUPT));
    uint8_t *lax = codec_decode(decoder, in, all, 3, true, &status);
    FUZZ_CHECK(status == 0);
    if (strict != NULL) {
        FUZZ_CHECK(memcmp(strict, again, (size_t)image.width * image.height * 3) == 0);
        FUZZ_CHECK(memcmp(strict, lax, (size_t)image.width * image.height * 3) == 0);
    }
    codec_span(image.width, choices[0], choices[1], &crop.x, &crop.width);
    codec_span(image.height, choices[2], choices[3], &crop.y, &crop.height);
    codec_check_crop(decoder, in, image.width, crop, strict, lax, rows_may_miss);
    crop.x = image.width; /* isn't within the image */
    FUZZ_CHECK(codec_decode(decoder, in, crop, 3, false, &outside) == NULL && outside == FEEDD_E_ARGUMENT);
    free(lax);
    free(again);
    free(strict);
    fresh->ops->decoder_free(fresh);
}

#endif
