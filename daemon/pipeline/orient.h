/* orient.h - turning pixels upright: EXIF's orientation, 1 to 8 (CIPA DC-008, tag 0x0112).
 *
 *   1 as it is              5 transposed
 *   2 mirrored left-right   6 turned by 90 degrees clockwise
 *   3 turned by 180         7 transposed along the other diagonal
 *   4 mirrored up-down      8 turned by 90 degrees counterclockwise
 *
 * The eight are all ways to lay a rectangle upon itself, so that one followed by another is a third one.
 * Threads: any; pure functions. */
#ifndef FEEDD_ORIENT_H
#define FEEDD_ORIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decoder.h"

/* Do width and height change places? */
bool orient_swaps(int orientation);

/* What undoes it. */
int orient_inverse(int orientation);

/* It, then mirrored left to right. */
int orient_mirrored(int orientation);

/* Where a part of a width x height image lies once the image is turned. */
struct rect orient_rect(int orientation, uint32_t width, uint32_t height, struct rect part);

/* Turns an image.
 * @param in   width x height pixels of `channels` (1 to 4) bytes, rows in_stride bytes apart
 * @param out  does not overlap `in`; rows out_stride bytes apart, of which only the pixels are written */
void orient_pixels(int orientation, const uint8_t *in, uint32_t width, uint32_t height, size_t in_stride,
                   uint32_t channels, uint8_t *out, size_t out_stride);

#endif
