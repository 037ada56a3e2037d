/* resize.h - scaling pixels as Pillow does: separable, antialiased triangle filter ("bilinear"), 8-bit in and out.
 *
 * Coefficients as in Pillow's Resample.c: support = max(1, scale), centre (i + 0.5) * scale, normalised weights, in
 * fixed point with 22 fractional bits (32 - 8 - 2), rounding half up, horizontally first, the intermediate rounded to
 * 8 bits. So results equal Pillow's Image.resize(BILINEAR) bit for bit. Pillow 13 scales vertically first when more
 * than twice as many rows as columns go, which changes some pixels by 1; here the order of all versions before it is
 * kept.
 * Threads: a resizer is one worker's scratch. */
#ifndef FEEDD_RESIZE_H
#define FEEDD_RESIZE_H

#include <stddef.h>
#include <stdint.h>

#include "decoder.h"
#include "feedd_types.h"

struct resizer; /* buffers and coefficient tables that are used again */

int resizer_new(struct resizer **out, struct feedd_error *err);
void resizer_free(struct resizer *resizer);

/* Scales `in` to scaled_width x scaled_height and writes the window of the result; only what the window needs is
 * computed, and equal to cutting it out of the whole.
 * @param in      in_height x in_width x channels uint8, rows in_stride bytes apart
 * @param out     window.height x window.width x channels uint8, rows without gaps
 * @param flip    mirrored left to right within the window
 * @return 0, or FEEDD_E_MEMORY */
int resizer_apply(struct resizer *resizer, const uint8_t *in, uint32_t in_width, uint32_t in_height, size_t in_stride,
                  uint32_t channels, uint32_t scaled_width, uint32_t scaled_height, struct rect window, int flip,
                  uint8_t *out, struct feedd_error *err);

#endif
