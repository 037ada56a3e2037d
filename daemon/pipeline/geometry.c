/* geometry.c - see geometry.h. The sizes are torchvision's (transforms.functional: _compute_resized_output_size() and
 * center_crop(); RandomResizedCrop.get_params(), RandomCrop.get_params()), so that a model sees the pixels that it was
 * trained or published with. After the choice there are only integers.
 *
 * Compiled without contraction of floating-point expressions (CMakeLists.txt): see geometry.h.
 *
 * What can fail: an image that doesn't fit a stream which doesn't resize, one that is smaller than its crop, or one
 * that would be scaled to a side of 2^32.
 * Threads: any; a pure function. */
#include "geometry.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "error.h"
#include "philox.h"

/* 16: as 0 for all types but _Float16 */
_Static_assert(FLT_EVAL_METHOD == 0 || FLT_EVAL_METHOD == 16, "doubles are rounded to doubles after each operation");

#define SIDE_MAX  16384u
#define RATIO_MAX 1000.0 /* of a crop's sides */
#define TRIES     10     /* torchvision's */

/* What random numbers of a sample are for. Every use has a number of its own and keeps it: pixels that users have seen
 * must not change. */
enum random_use { RANDOM_FLIP = 0, RANDOM_RESIZED_CROP = 1, RANDOM_CROP = 2 };

/* The four words that are one sample's own: s in geometry.h. */
struct sample_key {
    uint32_t words[4];
};

static struct sample_key sample_key(uint64_t seed, uint64_t epoch, uint64_t position)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)epoch,
                                 (uint32_t)(epoch >> 32)};
    struct sample_key sample;
    philox4x32(key, counter, sample.words);
    return sample;
}

/* r of geometry.h */
static void random_words(const struct sample_key *sample, enum random_use use, uint32_t try, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)use, try, sample->words[2], sample->words[3]};
    philox4x32(sample->words, counter, out);
}

static double share(uint32_t word)
{
    return word / 4294967296.0;
}

/* n may be a little over 2^32. */
static uint64_t below(uint32_t word, uint64_t n)
{
    return (n >> 32) * word + ((n & UINT32_MAX) * word >> 32);
}

static double power(double base, uint32_t word)
{
    double p = 1, q = base;
    for (uint32_t bit = UINT32_C(1) << 31; bit != 0; bit >>= 1) {
        q = sqrt(q);
        if (word & bit)
            p *= q;
    }
    return p;
}

const char *transform_kind_name(int kind)
{
    static const char *const names[] = {[TRANSFORM_NONE] = "none",
                                        [TRANSFORM_RESIZE_CENTER_CROP] = "resize",
                                        [TRANSFORM_RANDOM_RESIZED_CROP] = "random_resized_crop",
                                        [TRANSFORM_RANDOM_CROP] = "random_crop"};
    return kind >= TRANSFORM_NONE && kind <= TRANSFORM_RANDOM_CROP ? names[kind] : NULL;
}

void transform_list(const struct transform_spec *spec, struct transform_field out[TRANSFORM_FIELDS])
{
    const struct transform_field all[TRANSFORM_FIELDS] = {
        {"transform", spec->kind, transform_kind_name(spec->kind)},
        {"transform.resize", spec->resize, NULL},
        {"transform.resize (height)", spec->resize_height, NULL},
        {"transform.resize (width)", spec->resize_width, NULL},
        {"transform height", spec->height, NULL},
        {"transform width", spec->width, NULL},
        {"transform.random_resized_crop.scale (least)", spec->scale[0], NULL},
        {"transform.random_resized_crop.scale (most)", spec->scale[1], NULL},
        {"transform.random_resized_crop.ratio (least)", spec->ratio[0], NULL},
        {"transform.random_resized_crop.ratio (most)", spec->ratio[1], NULL},
        {"transform.random_crop.padding (left)", spec->padding[0], NULL},
        {"transform.random_crop.padding (top)", spec->padding[1], NULL},
        {"transform.random_crop.padding (right)", spec->padding[2], NULL},
        {"transform.random_crop.padding (bottom)", spec->padding[3], NULL},
        {"transform.flip", spec->flip, NULL},
        {"decode", spec->fast, spec->fast ? "fast" : "exact"},
        {"orientation", spec->ignore_orientation, spec->ignore_orientation ? "ignore" : "exif"},
        {"truncated", spec->accept_truncated, spec->accept_truncated ? "accept" : "fail"},
        {"channels", spec->channels, spec->channels == 0 ? "the dataset's own" : NULL},
    };
    memcpy(out, all, sizeof(all));
}

static bool is_side(uint32_t side)
{
    return side >= 1 && side <= SIDE_MAX;
}

static const char *check_resize(const struct transform_spec *spec)
{
    if (spec->resize != 0 ? spec->resize > SIDE_MAX : !is_side(spec->resize_height) || !is_side(spec->resize_width))
        return "resize isn't a size; allowed: 1 to 16384 pixels for the shorter side, or for height and width";
    const uint32_t height = spec->resize != 0 ? spec->resize : spec->resize_height;
    const uint32_t width = spec->resize != 0 ? spec->resize : spec->resize_width;
    if (spec->height > height || spec->width > width)
        return "the crop is larger than the resized image; allowed: height and width of at most resize";
    return NULL;
}

/* Conditions are written so that what is not a number fails them. */
static const char *check_ranges(const struct transform_spec *spec)
{
    if (!(spec->scale[0] >= 0 && spec->scale[0] <= spec->scale[1] && spec->scale[1] > 0 && spec->scale[1] <= 1))
        return "scale isn't a range of shares of the image's area; allowed: [least, most], from 0 to 1";
    if (!(spec->ratio[0] >= 1 / RATIO_MAX && spec->ratio[0] <= spec->ratio[1] && spec->ratio[1] <= RATIO_MAX))
        return "ratio isn't a range of width / height; allowed: [least, most], from 0.001 to 1000";
    return NULL;
}

static const char *check_padding(const struct transform_spec *spec)
{
    for (int i = 0; i < 4; i++)
        if (spec->padding[i] > SIDE_MAX)
            return "the padding is over 16384 pixels; allowed: 0 to 16384 on each side";
    return NULL;
}

const char *transform_check(const struct transform_spec *spec)
{
    const char *problem = NULL;
    if (transform_kind_name(spec->kind) == NULL)
        return "the transform is unknown; allowed: none, resize, random_resized_crop, random_crop";
    if (spec->kind == TRANSFORM_NONE && (spec->height > SIDE_MAX || spec->width > SIDE_MAX))
        return "the size is over 16384 pixels; allowed: height and width of 1 to 16384, or 0 for the images' own";
    if (spec->kind != TRANSFORM_NONE && (!is_side(spec->height) || !is_side(spec->width)))
        return "the crop isn't a size; allowed: height and width of 1 to 16384 pixels";
    if (spec->kind == TRANSFORM_RESIZE_CENTER_CROP)
        problem = check_resize(spec);
    else if (spec->kind == TRANSFORM_RANDOM_RESIZED_CROP)
        problem = check_ranges(spec);
    else if (spec->kind == TRANSFORM_RANDOM_CROP)
        problem = check_padding(spec);
    if (problem != NULL)
        return problem;
    if (!(spec->flip >= 0 && spec->flip <= 1)) /* also not a number */
        return "flip isn't a probability; allowed: 0 to 1";
    if (spec->channels != 0 && spec->channels != 1 && spec->channels != 3)
        return "channels isn't a number of channels; allowed: 1 or 3, or 0 for the images' own";
    return NULL;
}

/* int(round((side - part) / 2.0)) of Python 3, which rounds a half to the even neighbour. */
static uint32_t center_offset(uint32_t side, uint32_t part)
{
    const uint32_t room = side - part, half = room / 2;
    return half + (room & half & 1);
}

/* The window is set to the size that is delivered; here it finds its place. */
static int resize_center_crop(const struct transform_spec *spec, struct image_info image, struct geometry *g,
                              struct feedd_error *err)
{
    g->scaled_width = spec->resize_width;
    g->scaled_height = spec->resize_height;
    if (spec->resize != 0) {
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
        g->scaled_width = image.width == shorter ? spec->resize : (uint32_t)scaled;
        g->scaled_height = image.width == shorter ? (uint32_t)scaled : spec->resize;
    }
    g->window.x = center_offset(g->scaled_width, g->window.width);
    g->window.y = center_offset(g->scaled_height, g->window.height);
    return 0;
}

/* The middle of an image in which no try found room. */
static struct rect fallback_crop(const struct transform_spec *spec, struct image_info image)
{
    const double own = (double)image.width / image.height;
    struct rect crop = {.width = image.width, .height = image.height};
    if (own < spec->ratio[0])
        crop.height = (uint32_t)fmax(rint(image.width / spec->ratio[0]), 1);
    else if (own > spec->ratio[1])
        crop.width = (uint32_t)fmax(rint(image.height * spec->ratio[1]), 1);
    crop.x = (image.width - crop.width) / 2;
    crop.y = (image.height - crop.height) / 2;
    return crop;
}

static struct rect random_resized_crop(const struct transform_spec *spec, const struct sample_key *sample,
                                       struct image_info image)
{
    const double all = (double)((uint64_t)image.width * image.height), spread = spec->scale[1] - spec->scale[0];
    const double ratios = spec->ratio[1] / spec->ratio[0];
    for (uint32_t try = 0; try < TRIES; try++) {
        uint32_t r[4];
        random_words(sample, RANDOM_RESIZED_CROP, try, r);
        const double area = all * (spec->scale[0] + spread * share(r[0]));
        const double ratio = spec->ratio[0] * power(ratios, r[1]);
        const double width = rint(sqrt(area * ratio)), height = rint(sqrt(area / ratio));
        if (width >= 1 && width <= image.width && height >= 1 && height <= image.height) {
            struct rect crop = {.width = (uint32_t)width, .height = (uint32_t)height};
            crop.x = (uint32_t)below(r[3], (uint64_t)image.width - crop.width + 1);
            crop.y = (uint32_t)below(r[2], (uint64_t)image.height - crop.height + 1);
            return crop;
        }
    }
    return fallback_crop(spec, image);
}

/* What [begin, begin + length) of a padded side has of the image, [padding, padding + side) there.
 * @param start  gets where that begins in the image, @param at  in the crop. @return its length */
static uint32_t overlap(uint64_t begin, uint32_t length, uint32_t padding, uint32_t side, uint32_t *start, uint32_t *at)
{
    const uint64_t end = begin + length, image_end = (uint64_t)padding + side;
    const uint64_t from = begin > padding ? begin : padding, to = end < image_end ? end : image_end;
    if (from >= to)
        return 0;
    *start = (uint32_t)(from - padding);
    *at = (uint32_t)(from - begin);
    return (uint32_t)(to - from);
}

static int random_crop(const struct transform_spec *spec, const struct sample_key *sample, struct image_info image,
                       struct geometry *g, struct feedd_error *err)
{
    const uint32_t *padding = spec->padding;
    const uint64_t width = (uint64_t)image.width + padding[0] + padding[2];
    const uint64_t height = (uint64_t)image.height + padding[1] + padding[3];
    if (width < spec->width || height < spec->height)
        return error_set(err, FEEDD_E_UNSUPPORTED,
                         "an image of %u x %u pixels (width x height), %llu x %llu with its padding, is smaller than "
                         "the random crop of %u x %u; allowed: images of at least that size, or more padding",
                         image.width, image.height, (unsigned long long)width, (unsigned long long)height, spec->width,
                         spec->height);
    uint32_t r[4];
    random_words(sample, RANDOM_CROP, 0, r);
    struct rect crop = {0, 0, 0, 0};
    crop.width = overlap(below(r[1], width - spec->width + 1), spec->width, padding[0], image.width, &crop.x, &g->x);
    crop.height =
        overlap(below(r[0], height - spec->height + 1), spec->height, padding[1], image.height, &crop.y, &g->y);
    if (crop.width == 0 || crop.height == 0) {
        crop = (struct rect){0, 0, 0, 0};
        g->x = g->y = 0;
    }
    g->crop = crop;
    g->scaled_width = g->window.width = crop.width;
    g->scaled_height = g->window.height = crop.height;
    return 0;
}

int geometry_choose(const struct transform_spec *spec, uint32_t height, uint32_t width, uint64_t seed, uint64_t epoch,
                    uint64_t position, struct image_info image, struct geometry *out, struct feedd_error *err)
{
    const struct sample_key sample = sample_key(seed, epoch, position);
    struct geometry g = {.crop = {.width = image.width, .height = image.height},
                         .scaled_width = width,
                         .scaled_height = height,
                         .window = {.width = width, .height = height}};
    int status = 0;
    switch (spec->kind) {
    case TRANSFORM_RESIZE_CENTER_CROP:
        status = resize_center_crop(spec, image, &g, err);
        break;
    case TRANSFORM_RANDOM_RESIZED_CROP:
        g.crop = random_resized_crop(spec, &sample, image);
        break;
    case TRANSFORM_RANDOM_CROP:
        status = random_crop(spec, &sample, image, &g, err);
        break;
    default:
        if (image.width != width || image.height != height)
            status = error_set(err, FEEDD_E_UNSUPPORTED,
                               "an image of %u x %u pixels (width x height) in a stream of %u x %u that doesn't "
                               "resize; allowed: images of one size, or a stream that resizes",
                               image.width, image.height, width, height);
    }
    if (status != 0)
        return status;
    uint32_t r[4];
    random_words(&sample, RANDOM_FLIP, 0, r);
    g.flip = share(r[0]) < spec->flip;
    if (g.flip)
        g.x = width - g.x - g.window.width;
    *out = g;
    return 0;
}
