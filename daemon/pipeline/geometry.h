/* geometry.h - where the pixels of one sample come from: chosen once a sample, then applied by every field.
 *
 * The image's region `crop` is scaled to scaled_width x scaled_height, and of that the window is delivered, mirrored
 * when flip is set. Choosing is a pure function of (transform, seed, epoch, position, image size): random numbers are
 * Philox4x32-10 of (seed, epoch, position), so pixels do not depend on threads, batch size, clients or resumption.
 *
 * Those numbers, with 64-bit values as two words, the lower one first:
 *   s = philox(key {seed}, counter {position, epoch})                  four words that are the sample's own
 *   r = philox(key {s[0], s[1]}, counter {use, 0, s[2], s[3]})         use 0: flip
 * An image is mirrored when r[0] < flip * 2^32. */
#ifndef FEEDD_GEOMETRY_H
#define FEEDD_GEOMETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "decoder.h"
#include "feedd_types.h"

enum transform_kind {
    TRANSFORM_NONE = 1,              /* the image as it is; all images of the dataset have one size */
    TRANSFORM_RESIZE_CENTER_CROP = 2 /* torchvision's Resize(resize), CenterCrop(height, width) */
};

/* What a stream does to its images. Zeroed but for kind = NONE: nothing. */
struct transform_spec {
    int kind;               /* enum transform_kind */
    uint32_t resize;        /* RESIZE_CENTER_CROP: the shorter side becomes this many pixels */
    uint32_t height, width; /* of what is delivered; 0 for NONE: the first image's */
    double flip;            /* probability of mirroring left to right, 0..1 */
};

struct geometry {
    struct rect crop;                     /* in the image */
    uint32_t scaled_width, scaled_height; /* what the crop is scaled to */
    struct rect window;                   /* of the scaled crop; its size is what is delivered */
    bool flip;                            /* mirrored left to right, after all else */
};

/* @return NULL when the transform makes sense, else one line (static text) that says what is wrong and what is right:
 * an unknown kind, a crop larger than the resized image's shorter side, a size 0 or over 16384, flip outside 0..1 */
const char *transform_check(const struct transform_spec *spec);

/* @param height, width  what the stream delivers (NONE: the image must have this size)
 * @return 0; FEEDD_E_UNSUPPORTED: an image of another size in a stream that doesn't resize; FEEDD_E_LIMIT: an image so
 * narrow that its longer side would become 2^32 pixels */
int geometry_choose(const struct transform_spec *spec, uint32_t height, uint32_t width, uint64_t seed, uint64_t epoch,
                    uint64_t position, struct image_info image, struct geometry *out, struct feedd_error *err);

#endif
