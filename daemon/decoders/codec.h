/* codec.h - what the codecs share: checks of sizes and specifications, luma.
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

#endif
