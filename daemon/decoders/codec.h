/* codec.h - what the codecs share: checks of sizes and specifications, luma, EXIF's prefix.
 * Thread-safe: nothing here has state. */
#ifndef FEEDD_CODEC_H
#define FEEDD_CODEC_H

#include "decoder.h"

/* @param name  the format as messages say it
 * @return 0; FEEDD_E_LIMIT for an image of more pixels than allowed */
int codec_check_size(const char *name, uint32_t width, uint32_t height, const struct decoder_limits *limits,
                     struct feedd_error *err);

/* For codecs that don't shrink. @return 0; FEEDD_E_ARGUMENT when `spec` makes no sense for an image of this size */
int codec_check_spec(const char *name, uint32_t width, uint32_t height, const struct decode_spec *spec,
                     struct feedd_error *err);

/* `pixels` of RGB, without gaps, to one byte each `out_step` bytes: ITU-R BT.601's luma in 16 bits of fixed point, as
 * Pillow's convert("L") makes it (L24() in its Convert.c). */
void codec_luma(const uint8_t *rgb, size_t pixels, uint8_t *out, size_t out_step);

/* The orientation in a chunk's EXIF block, before which "Exif\0\0" may stand, as in a JPEG: some writers of PNG and
 * WebP take it along, and Pillow skips it. @return as exif_orientation() */
uint8_t codec_orientation(const uint8_t *exif, size_t size);

#endif
