/* resize.h - scaling pixels as Pillow does: separable, antialiased triangle filter ("bilinear"), 8-bit in and out.
 *
 * Coefficients as in Pillow's Resample.c: support = max(1, scale), centre (i + 0.5) * scale from the box's beginning,
 * normalised weights, in fixed point with 22 fractional bits (32 - 8 - 2), rounding half up, horizontally first, the
 * intermediate rounded to 8 bits. The box is rounded to single precision, as Pillow takes it. So results equal Pillow's
 * Image.resize(size, BILINEAR, box) bit for bit. One thing is otherwise: Pillow scales vertically first when many more
 * rows than columns go (before 13, in images more than 100 times as high as wide; from 13 on, when the rows that go are
 * more than twice the columns), which changes some pixels by 1. Here horizontally first holds for all images.
 * Threads: a resizer is one worker's scratch. */
#ifndef FEEDD_RESIZE_H
#define FEEDD_RESIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decoder.h"
#include "feedd_types.h"

struct resizer; /* buffers and coefficient tables that are used again */

int resizer_new(struct resizer **out, struct feedd_error *err);
void resizer_free(struct resizer *resizer);

/* One scaling. */
struct resize_spec {
    uint32_t width, height; /* of the source: no tap reaches over its edges */
    struct {
        double x, y, width, height; /* within the source, may be fractional: what is scaled, as Pillow's resize(box=) */
    } box;
    uint32_t scaled_width, scaled_height; /* what the box becomes */
    struct rect window;                   /* of that, what is delivered; its size is the output's */
    bool flip;                            /* mirrored left to right within the window */
    uint32_t channels;                    /* 1 to 4 */
};

/* Which pixels of the source are read: no more has to be decoded. */
struct rect resize_source(const struct resize_spec *spec);

/* Scales; only what the window needs is computed, and equal to cutting it out of the whole.
 * @param in      pixel (held.x, held.y) of the source; rows in_stride bytes apart
 * @param held    the part of the source that is in memory: contains resize_source(spec)
 * @param out     window.height x window.width x channels uint8, rows without gaps
 * @return 0, or FEEDD_E_MEMORY */
int resizer_apply(struct resizer *resizer, const struct resize_spec *spec, const uint8_t *in, struct rect held,
                  size_t in_stride, uint8_t *out, struct feedd_error *err);

#endif
