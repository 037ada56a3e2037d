/* geometry.h - where the pixels of one sample come from: chosen once a sample, then applied by every field.
 *
 * The region `crop` of the upright image is scaled to scaled_width x scaled_height; of that the window is delivered, at
 * (x, y) of a black image when it is smaller than what the stream delivers, and mirrored when flip is set. Choosing is
 * a pure function of (transform, seed, epoch, position, image size): random numbers are Philox4x32-10 of (seed, epoch,
 * position), so pixels do not depend on threads, batch size, clients or resumption.
 *
 * Those numbers, with 64-bit values as two words, the lower one first:
 *   s = philox(key {seed}, counter {position, epoch})                four words that are the sample's own
 *   r(use, try) = philox(key {s[0], s[1]}, counter {use, try, s[2], s[3]})
 *   share(word) = word / 2^32, a double                              0 <= share < 1, exact
 *   below(word, n) = floor(word * n / 2^32), in integers             0 <= below < n
 *
 * Flip, r = r(0, 0): the image is mirrored when share(r[0]) < flip.
 *
 * Random resized crop of a W x H image (width x height), r = r(1, t) for the tries t = 0 to 9:
 *   area  = W * H * (scale[0] + (scale[1] - scale[0]) * share(r[0]))
 *   ratio = ratio[0] * power(ratio[1] / ratio[0], r[1])
 *   w = round(sqrt(area * ratio)), h = round(sqrt(area / ratio))
 * The first try with 1 <= w <= W and 1 <= h <= H is taken, at x = below(r[3], W - w + 1), y = below(r[2], H - h + 1).
 * Without any: all of the image where its own ratio W / H is allowed; else its middle, W x round(W / ratio[0]) of an
 * image that is too narrow, round(H * ratio[1]) x H of one that is too wide, at least one pixel of each.
 *
 * Random crop, r = r(2, 0), of a W x H image with its padding: x = below(r[1], W - width + 1),
 * y = below(r[0], H - height + 1).
 *
 * power(b, word) is b to the power of share(word), made of square roots: p = 1, q = b; for each bit of the word from
 * the highest: q = sqrt(q), and where the bit is set p = p * q. Doubles are IEEE 754 ones, each operation rounded to
 * nearest on its own, without contraction; round() takes a half to the even neighbour. Both are needed for crops that
 * are the same on every machine: IEEE 754 fixes the last bit of a square root, and nobody that of exp() and log(). */
#ifndef FEEDD_GEOMETRY_H
#define FEEDD_GEOMETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "decoder.h"
#include "feedd_types.h"

/* The parameters' meaning is torchvision's. */
enum transform_kind {
    TRANSFORM_NONE = 1,                /* the image as it is; all images of the dataset have one size */
    TRANSFORM_RESIZE_CENTER_CROP = 2,  /* Resize(resize), CenterCrop([height, width]) */
    TRANSFORM_RANDOM_RESIZED_CROP = 3, /* RandomResizedCrop([height, width], scale, ratio) */
    TRANSFORM_RANDOM_CROP = 4          /* RandomCrop([height, width], padding) */
};

/* What a stream makes of its images. Zeroed but for kind = NONE: nothing. */
struct transform_spec {
    int kind;                             /* enum transform_kind */
    uint32_t resize;                      /* RESIZE_CENTER_CROP: the shorter side becomes this many pixels; 0: */
    uint32_t resize_height, resize_width; /* both sides become these */
    uint32_t height, width;               /* of what is delivered; 0 for NONE: the first image's */
    double scale[2];                      /* RANDOM_RESIZED_CROP: share of the image's area, least and most */
    double ratio[2];                      /* and the crop's width / height */
    uint32_t padding[4];                  /* RANDOM_CROP: black pixels to the left, above, to the right, below */
    double flip;                          /* probability of mirroring left to right, 0..1 */
    /* How images are read. */
    bool fast;               /* by DECODE_FAST */
    bool ignore_orientation; /* as they are coded, whatever EXIF says */
    bool accept_truncated;   /* an image that is cut short is no error */
    uint32_t channels;       /* 3: RGB; 1: luma; 0: the dataset's own, which is 3 for encoded images */
};

struct geometry {
    struct rect crop;                     /* in the upright image; empty when only padding is delivered */
    uint32_t scaled_width, scaled_height; /* what the crop is scaled to */
    struct rect window;                   /* of the scaled crop: what is delivered */
    uint32_t x, y;                        /* of the window in what is delivered, the flip included */
    bool flip;                            /* mirrored left to right, after all else */
};

/* "random_resized_crop", ...; NULL for no kind */
const char *transform_kind_name(int kind);

/* A spec as a list, for those who compare specs, or hash them: in one place, so that none of them forgets a field. */
struct transform_field {
    const char *name; /* as feedd.conf has it: "transform.flip" */
    double value;
    const char *word; /* for the value, where feedd.conf has one; else NULL */
};
#define TRANSFORM_FIELDS 19
void transform_list(const struct transform_spec *spec, struct transform_field out[TRANSFORM_FIELDS]);

/* @return NULL when the transform makes sense, else one line (static text) that says what is wrong and what is right:
 * an unknown kind, a crop larger than the resized image, sizes or padding over 16384, a range or probability that is
 * none, channels other than 0, 1 and 3 */
const char *transform_check(const struct transform_spec *spec);

/* @param height, width  what the stream delivers (NONE: the image must have this size)
 * @param image          the size of the upright image; its orientation isn't looked at
 * @return 0; FEEDD_E_UNSUPPORTED: an image of another size in a stream that doesn't resize, or one that is smaller than
 * the random crop; FEEDD_E_LIMIT: an image so narrow that its longer side would become 2^32 pixels */
int geometry_choose(const struct transform_spec *spec, uint32_t height, uint32_t width, uint64_t seed, uint64_t epoch,
                    uint64_t position, struct image_info image, struct geometry *out, struct feedd_error *err);

#endif
