/* geometry.c - see geometry.h. The sizes are torchvision's (transforms.functional: _compute_resized_output_size() and
 * center_crop()), so that a model sees the pixels that it was trained or published with.
 *
 * What can fail: an image that doesn't fit a stream which doesn't resize, or which would be scaled to a side of 2^32.
 * Threads: any; a pure function. */
#include "geometry.h"

#include <stddef.h>

#include "error.h"
#include "philox.h"

#define SIDE_MAX 16384u

/* What random numbers of a sample are for. Every use has a number of its own and keeps it: pixels that users have seen
 * must not change. */
enum random_use { RANDOM_FLIP = 0 };

/* 32 random bits of one sample for one use: see geometry.h. */
static uint32_t random_bits(uint64_t seed, uint64_t epoch, uint64_t position, enum random_use use)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)epoch,
                                 (uint32_t)(epoch >> 32)};
    uint32_t sample[4], out[4];
    philox4x32(key, counter, sample);
    philox4x32(sample, (const uint32_t[4]){(uint32_t)use, 0, sample[2], sample[3]}, out);
    return out[0];
}

const char *transform_check(const struct transform_spec *spec)
{
    switch (spec->kind) {
    case TRANSFORM_NONE:
        if (spec->height > SIDE_MAX || spec->width > SIDE_MAX)
            return "the size is over 16384 pixels; allowed: height and width of 1 to 16384, or 0 for the images' own";
        break;
    case TRANSFORM_RESIZE_CENTER_CROP:
        if (spec->resize < 1 || spec->resize > SIDE_MAX)
            return "resize isn't a size; allowed: 1 to 16384 pixels for the shorter side";
        if (spec->height < 1 || spec->height > SIDE_MAX || spec->width < 1 || spec->width > SIDE_MAX)
            return "the crop isn't a size; allowed: height and width of 1 to 16384 pixels";
        if (spec->height > spec->resize || spec->width > spec->resize)
            return "the crop is larger than the resized image; allowed: height and width of at most resize";
        break;
    default:
        return "the transform is unknown; allowed: none, resize and centre crop";
    }
    if (!(spec->flip >= 0 && spec->flip <= 1)) /* also not a number */
        return "flip isn't a probability; allowed: 0 to 1";
    return NULL;
}

/* int(round((side - part) / 2.0)) of Python 3, which rounds a half to the even neighbour. */
static uint32_t center_offset(uint32_t side, uint32_t part)
{
    const uint32_t room = side - part, half = room / 2;
    return half + (room & half & 1);
}

int geometry_choose(const struct transform_spec *spec, uint32_t height, uint32_t width, uint64_t seed, uint64_t epoch,
                    uint64_t position, struct image_info image, struct geometry *out, struct feedd_error *err)
{
    struct geometry geometry = {.crop = {.width = image.width, .height = image.height},
                                .scaled_width = image.width,
                                .scaled_height = image.height,
                                .window = {.width = width, .height = height}};
    if (spec->kind == TRANSFORM_RESIZE_CENTER_CROP) {
        const uint32_t shorter = image.width < image.height ? image.width : image.height;
        const uint32_t longer = image.width < image.height ? image.height : image.width;
        /* Python's int(resize * longer / shorter): that quotient of doubles is exact enough to be cut to the integer */
        const uint64_t scaled = (uint64_t)spec->resize * longer / shorter;
        if (scaled > UINT32_MAX)
            return error_set(
                err, FEEDD_E_LIMIT,
                "an image of %u x %u pixels (width x height) would have a longer side of %llu pixels when its "
                "shorter one has %u; allowed: less than 2^32",
                image.width, image.height, (unsigned long long)scaled, spec->resize);
        geometry.scaled_width = image.width == shorter ? spec->resize : (uint32_t)scaled;
        geometry.scaled_height = image.width == shorter ? (uint32_t)scaled : spec->resize;
        geometry.window.x = center_offset(geometry.scaled_width, width);
        geometry.window.y = center_offset(geometry.scaled_height, height);
    } else if (image.width != width || image.height != height) {
        return error_set(err, FEEDD_E_UNSUPPORTED,
                         "an image of %u x %u pixels (width x height) in a stream of %u x %u that doesn't resize; "
                         "allowed: images of one size, or a stream that resizes",
                         image.width, image.height, width, height);
    }
    geometry.flip = random_bits(seed, epoch, position, RANDOM_FLIP) < spec->flip * 4294967296.0; /* 2^32: exact */
    *out = geometry;
    return 0;
}
