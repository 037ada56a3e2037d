/* test_geometry.c - which pixels of an image a sample is made of: sizes as torchvision computes them, crops and flips
 * as geometry.h documents them.
 *
 * Pinned numbers come from Python: its own integers, division and round() as in torchvision's
 * transforms.functional, and Philox in unbounded integers; tests/python/test_pixels.py repeats that for many more.
 * Statistical bounds are 6 sigma, the seeds fixed.
 * Threads: one. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "geometry.h"

static const struct transform_spec none = {.kind = TRANSFORM_NONE};

static struct geometry must_choose(const struct transform_spec *spec, uint32_t height, uint32_t width, uint64_t seed,
                                   uint64_t epoch, uint64_t position, struct image_info image)
{
    struct geometry geometry;
    struct feedd_error err = {.message = ""};
    int rc = geometry_choose(spec, height, width, seed, epoch, position, image, &geometry, &err);
    if (rc != 0 ||
        err.message[0] != '\0') /* a plain condition: Check's bookkeeping is slow, and this is called often */
        ck_abort_msg("status %d: %s", rc, err.message);
    return geometry;
}

static int flipped(uint64_t seed, uint64_t epoch, uint64_t position, double probability)
{
    struct transform_spec spec = none;
    spec.flip = probability;
    return must_choose(&spec, 1, 1, seed, epoch, position, (struct image_info){1, 1, 1}).flip;
}

START_TEST(sizes)
{
    static const struct {
        uint32_t resize, height, width, image_width, image_height;
        uint32_t scaled_width, scaled_height, x, y;
    } cases[] = {
        {256, 224, 224, 500, 375, 341, 256, 58, 16},
        {256, 224, 224, 375, 500, 256, 341, 16, 58}, /* 58.5 goes to the even neighbour */
        {256, 224, 224, 256, 256, 256, 256, 16, 16},
        {232, 224, 224, 640, 427, 347, 232, 62, 4}, /* so does 61.5 */
        {256, 225, 224, 333, 500, 256, 384, 16, 80},
        {255, 224, 224, 500, 333, 382, 255, 79, 16},
        {256, 224, 200, 601, 400, 384, 256, 92, 16},
        {224, 224, 224, 224, 900, 224, 900, 0, 338}, /* the shorter side is right already */
        {224, 224, 224, 900, 224, 900, 224, 338, 0},
        {1, 1, 1, 65500, 1, 65500, 1, 32750, 0},
        {16384, 16384, 16384, 1, 65500, 16384, 1073152000, 0, 536567808},
        {3, 2, 1, 7, 5, 4, 3, 2, 0},
        {5, 2, 1, 7, 11, 5, 7, 2, 2},
        {7, 6, 5, 13, 29, 7, 15, 1, 4},
        {9, 2, 7, 1000, 999, 9, 9, 1, 4},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct transform_spec spec = {.kind = TRANSFORM_RESIZE_CENTER_CROP,
                                            .resize = cases[i].resize,
                                            .height = cases[i].height,
                                            .width = cases[i].width};
        ck_assert_ptr_null(transform_check(&spec));
        const struct image_info image = {.width = cases[i].image_width, .height = cases[i].image_height};
        const struct geometry g = must_choose(&spec, spec.height, spec.width, 1, 2, 3, image);
        const uint32_t got[] = {g.crop.x,        g.crop.y,   g.crop.width, g.crop.height,  g.scaled_width,
                                g.scaled_height, g.window.x, g.window.y,   g.window.width, g.window.height};
        const uint32_t due[] = {
            0,          0,          image.width, image.height, cases[i].scaled_width, cases[i].scaled_height,
            cases[i].x, cases[i].y, spec.width,  spec.height};
        for (size_t n = 0; n < sizeof(due) / sizeof(due[0]); n++)
            ck_assert_msg(got[n] == due[n], "case %zu: number %zu is %u, not %u", i, n, got[n], due[n]);
        ck_assert(!g.flip);
    }
}
END_TEST

/* Whatever the image: the window lies within what is scaled, whose shorter side is as asked for. */
START_TEST(windows_fit)
{
    srand(1);
    for (int i = 0; i < 100000; i++) {
        struct transform_spec spec = {.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 1 + (uint32_t)rand() % 16384};
        spec.height = 1 + (uint32_t)rand() % spec.resize;
        spec.width = 1 + (uint32_t)rand() % spec.resize;
        const uint32_t most = i % 2 == 0 ? 65500 : 700;
        const struct image_info image = {.width = 1 + (uint32_t)rand() % most, .height = 1 + (uint32_t)rand() % most};
        const struct geometry g = must_choose(&spec, spec.height, spec.width, 0, 0, 0, image);
        const uint32_t shorter = g.scaled_width < g.scaled_height ? g.scaled_width : g.scaled_height;
        if (shorter != spec.resize || g.window.x > g.scaled_width - spec.width ||
            g.window.y > g.scaled_height - spec.height)
            ck_abort_msg("resize %u, crop %u x %u of %u x %u", spec.resize, spec.width, spec.height, image.width,
                         image.height);
    }
}
END_TEST

/* Both sides are given, and a part of the middle is delivered, or all of it. */
START_TEST(both_sides)
{
    const struct transform_spec all = {
        .kind = TRANSFORM_RESIZE_CENTER_CROP, .resize_height = 240, .resize_width = 301, .height = 240, .width = 301};
    const struct image_info image = {.width = 33, .height = 4000};
    struct geometry g = must_choose(&all, 240, 301, 1, 2, 3, image);
    ck_assert_uint_eq(g.crop.width, 33);
    ck_assert_uint_eq(g.crop.height, 4000);
    ck_assert_uint_eq(g.scaled_width, 301);
    ck_assert_uint_eq(g.scaled_height, 240);
    ck_assert_uint_eq(g.window.x + g.window.y, 0);
    struct transform_spec middle = all;
    middle.height = 224;
    middle.width = 224;
    g = must_choose(&middle, 224, 224, 1, 2, 3, image);
    ck_assert_uint_eq(g.scaled_width, 301);
    ck_assert_uint_eq(g.scaled_height, 240);
    ck_assert_uint_eq(g.window.x, 38); /* 38.5 */
    ck_assert_uint_eq(g.window.y, 8);
    ck_assert_uint_eq(g.window.width, 224);
    ck_assert_uint_eq(g.window.height, 224);
}
END_TEST

/* Crops in users' hands, which must never change. */
START_TEST(pinned_random_resized_crops)
{
    static const uint64_t places[][3] = {{0, 0, 0}, {42, 1, 7}, {UINT64_MAX, 0x10000000003, 0x200000005}};
    static const struct {
        struct image_info image;
        double scale[2], ratio[2];
        struct rect due[3]; /* a place each */
    } cases[] = {
        {{500, 375, 1}, {0.08, 1}, {3.0 / 4, 4.0 / 3}, {{223, 13, 259, 301}, {72, 92, 302, 283}, {296, 52, 137, 111}}},
        {{375, 500, 1}, {0.08, 1}, {3.0 / 4, 4.0 / 3}, {{108, 34, 259, 301}, {27, 217, 302, 283}, {194, 77, 137, 111}}},
        {{300, 301, 1}, {0.9, 1}, {0.5, 2}, {{8, 4, 285, 294}, {0, 0, 300, 301}, {0, 0, 300, 301}}},
        {{4000, 3000, 1},
         {0.25, 0.25},
         {1, 1},
         {{2096, 221, 1732, 1732}, {829, 1264, 1732, 1732}, {421, 658, 1732, 1732}}},
        {{640, 480, 1}, {0, 0.001}, {0.001, 1000}, {{590, 72, 2, 64}, {225, 474, 25, 5}, {100, 248, 101, 3}}},
        {{UINT32_MAX, UINT32_MAX, 1},
         {0.08, 1},
         {3.0 / 4, 4.0 / 3},
         {{1597625690, 228820041, 2566156371, 2983128185},
          {474616327, 1485760282, 2996536045, 2803738138},
          {2386731204, 632385471, 1363091224, 1103462784}}},
        /* no try finds room */
        {{640, 20, 1}, {0.08, 1}, {3.0 / 4, 4.0 / 3}, {{306, 0, 27, 20}, {306, 0, 27, 20}, {306, 0, 27, 20}}},
        {{20, 640, 1}, {0.5, 1}, {3.0 / 4, 4.0 / 3}, {{0, 306, 20, 27}, {0, 306, 20, 27}, {0, 306, 20, 27}}},
        {{65500, 1, 1}, {0.08, 1}, {3.0 / 4, 4.0 / 3}, {{32749, 0, 1, 1}, {32749, 0, 1, 1}, {32749, 0, 1, 1}}},
        {{640, 480, 1}, {1, 1}, {2, 2}, {{0, 80, 640, 320}, {0, 80, 640, 320}, {0, 80, 640, 320}}},
        {{3, 200, 1}, {1, 1}, {0.5, 0.5}, {{0, 97, 3, 6}, {0, 97, 3, 6}, {0, 97, 3, 6}}},
        {{2, 3, 1}, {1, 1}, {100, 100}, {{0, 1, 2, 1}, {0, 1, 2, 1}, {0, 1, 2, 1}}}, /* torchvision's would be empty */
        {{1, 1, 1}, {0.08, 1}, {3.0 / 4, 4.0 / 3}, {{0, 0, 1, 1}, {0, 0, 1, 1}, {0, 0, 1, 1}}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct transform_spec spec = {.kind = TRANSFORM_RANDOM_RESIZED_CROP, .height = 100, .width = 224};
        memcpy(spec.scale, cases[i].scale, sizeof(spec.scale));
        memcpy(spec.ratio, cases[i].ratio, sizeof(spec.ratio));
        ck_assert_ptr_null(transform_check(&spec));
        for (size_t n = 0; n < sizeof(places) / sizeof(places[0]); n++) {
            const struct rect due = cases[i].due[n];
            const struct geometry g =
                must_choose(&spec, 100, 224, places[n][0], places[n][1], places[n][2], cases[i].image);
            ck_assert_msg(
                g.crop.x == due.x && g.crop.y == due.y && g.crop.width == due.width && g.crop.height == due.height,
                "case %zu, place %zu: (%u, %u), %u x %u", i, n, g.crop.x, g.crop.y, g.crop.width, g.crop.height);
            ck_assert_uint_eq(g.scaled_width, 224);
            ck_assert_uint_eq(g.scaled_height, 100);
            ck_assert_uint_eq(g.window.x + g.window.y + g.x + g.y, 0);
            ck_assert_uint_eq(g.window.width, 224);
            ck_assert_uint_eq(g.window.height, 100);
        }
    }
}
END_TEST

/* Whatever the image and the ranges: a crop of at least one pixel within the image. */
START_TEST(random_resized_crops_fit)
{
    srand(2);
    for (int i = 0; i < 100000; i++) {
        struct transform_spec spec = {.kind = TRANSFORM_RANDOM_RESIZED_CROP, .height = 7, .width = 7};
        spec.scale[0] = i % 3 == 0 ? 0 : rand() / (double)RAND_MAX * 0.5;
        spec.scale[1] = i % 5 == 0 ? 1e-9 + spec.scale[0] : 1;
        spec.ratio[0] = i % 7 == 0 ? 0.001 : 0.1 + rand() / (double)RAND_MAX;
        spec.ratio[1] = i % 11 == 0 ? 1000 : spec.ratio[0] * (1 + rand() % 3);
        const uint32_t most = i % 2 == 0 ? 65500 : 20;
        const struct image_info image = {.width = 1 + (uint32_t)rand() % most, .height = 1 + (uint32_t)rand() % most};
        if (transform_check(&spec) != NULL)
            ck_abort_msg("%s", transform_check(&spec));
        const struct geometry g = must_choose(&spec, 7, 7, 1, 1, (uint64_t)i, image);
        if (g.crop.width < 1 || g.crop.height < 1 || g.crop.x > image.width - g.crop.width ||
            g.crop.y > image.height - g.crop.height)
            ck_abort_msg("(%u, %u), %u x %u of %u x %u", g.crop.x, g.crop.y, g.crop.width, g.crop.height, image.width,
                         image.height);
    }
}
END_TEST

/* Where a crop of width x height begins in the padded image: pinned. */
START_TEST(pinned_random_crops)
{
    static const uint64_t places[][3] = {{0, 0, 0}, {42, 1, 7}, {UINT64_MAX, 0x10000000003, 0x200000005}};
    static const struct {
        struct image_info image;
        uint32_t width, height, padding[4];
        struct {
            uint32_t x, y;
        } due[3];
    } cases[] = {
        {{32, 32, 1}, 32, 32, {4, 4, 4, 4}, {{0, 5}, {4, 3}, {5, 0}}},
        {{40, 30, 1}, 7, 9, {0, 0, 0, 0}, {{0, 12}, {16, 7}, {22, 0}}},
        {{28, 28, 1}, 28, 28, {0, 0, 0, 0}, {{0, 0}, {0, 0}, {0, 0}}},
        {{5, 4, 1}, 4, 4, {9, 0, 0, 9}, {{0, 5}, {5, 3}, {7, 0}}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct transform_spec spec = {
            .kind = TRANSFORM_RANDOM_CROP, .height = cases[i].height, .width = cases[i].width};
        memcpy(spec.padding, cases[i].padding, sizeof(spec.padding));
        for (size_t n = 0; n < sizeof(places) / sizeof(places[0]); n++) {
            /* A pixel of the crop is of the image when it lies in it; the others are padding. */
            const struct geometry g =
                must_choose(&spec, spec.height, spec.width, places[n][0], places[n][1], places[n][2], cases[i].image);
            for (uint32_t y = 0; y < spec.height; y++)
                for (uint32_t x = 0; x < spec.width; x++) {
                    const int64_t image_x = (int64_t)cases[i].due[n].x + x - spec.padding[0];
                    const int64_t image_y = (int64_t)cases[i].due[n].y + y - spec.padding[1];
                    const bool in_image = image_x >= 0 && image_x < cases[i].image.width && image_y >= 0 &&
                                          image_y < cases[i].image.height;
                    const bool in_window =
                        x >= g.x && x - g.x < g.window.width && y >= g.y && y - g.y < g.window.height;
                    if (in_image != in_window || (in_image && (g.crop.x + x - g.x != (uint32_t)image_x ||
                                                               g.crop.y + y - g.y != (uint32_t)image_y)))
                        ck_abort_msg("case %zu, place %zu: pixel (%u, %u)", i, n, x, y);
                }
            ck_assert_uint_eq(g.scaled_width, g.crop.width);
            ck_assert_uint_eq(g.scaled_height, g.crop.height);
            ck_assert_uint_eq(g.window.x + g.window.y, 0);
            spec.flip = 1;
            const struct geometry mirrored =
                must_choose(&spec, spec.height, spec.width, places[n][0], places[n][1], places[n][2], cases[i].image);
            spec.flip = 0;
            ck_assert(mirrored.flip);
            ck_assert_uint_eq(mirrored.x, spec.width - g.x - g.window.width);
            ck_assert_uint_eq(mirrored.crop.x, g.crop.x);
        }
    }
}
END_TEST

/* The widest image that a number can say, and padding beyond it. */
START_TEST(random_crops_of_giants)
{
    const struct transform_spec spec = {
        .kind = TRANSFORM_RANDOM_CROP, .height = 16384, .width = 16384, .padding = {16384, 16384, 16384, 16384}};
    const struct image_info image = {.width = UINT32_MAX, .height = UINT32_MAX};
    for (uint64_t i = 0; i < 10000; i++) {
        const struct geometry g = must_choose(&spec, 16384, 16384, 1, 1, i, image);
        if (g.window.width > 16384 - g.x || g.window.height > 16384 - g.y || g.crop.x > UINT32_MAX - g.crop.width ||
            g.crop.y > UINT32_MAX - g.crop.height)
            ck_abort_msg("position %llu", (unsigned long long)i);
    }
    /* One whose words are so high that they times the room are more than 64 bits. */
    const struct geometry g = must_choose(&spec, 16384, 16384, 1, 1, 372392, image);
    ck_assert_uint_eq(g.crop.x, 1315228514 - 16384);
    ck_assert_uint_eq(g.crop.y, 4294974270 - 16384);
    ck_assert_uint_eq(g.crop.width, 16384);
    ck_assert_uint_eq(g.crop.height, 9409);
}
END_TEST

START_TEST(as_it_is)
{
    const struct geometry g = must_choose(&none, 28, 29, 5, 6, 7, (struct image_info){.width = 29, .height = 28});
    ck_assert_uint_eq(g.crop.x + g.crop.y + g.window.x + g.window.y, 0);
    ck_assert_uint_eq(g.crop.width, 29);
    ck_assert_uint_eq(g.crop.height, 28);
    ck_assert_uint_eq(g.scaled_width, 29);
    ck_assert_uint_eq(g.scaled_height, 28);
    ck_assert_uint_eq(g.window.width, 29);
    ck_assert_uint_eq(g.window.height, 28);
    ck_assert(!g.flip);
}
END_TEST

static void refuse(const struct transform_spec *spec, uint32_t height, uint32_t width, struct image_info image,
                   int status, const char *part)
{
    struct geometry geometry, untouched;
    memset(&geometry, 0xA5, sizeof(geometry));
    memset(&untouched, 0xA5, sizeof(untouched));
    struct feedd_error err = {.message = ""};
    ck_assert_int_eq(geometry_choose(spec, height, width, 0, 0, 0, image, &geometry, &err), status);
    ck_assert_int_eq(err.status, status);
    ck_assert_msg(strstr(err.message, part) != NULL, "'%s' doesn't say '%s'", err.message, part);
    ck_assert_mem_eq(&geometry, &untouched, sizeof(geometry));
    ck_assert_int_eq(geometry_choose(spec, height, width, 0, 0, 0, image, &geometry, NULL), status);
}

START_TEST(images_that_do_not_fit)
{
    refuse(&none, 28, 28, (struct image_info){.width = 29, .height = 28}, FEEDD_E_UNSUPPORTED, "29 x 28");
    refuse(&none, 28, 28, (struct image_info){.width = 28, .height = 27}, FEEDD_E_UNSUPPORTED, "28 x 27");
    refuse(&none, 20, 30, (struct image_info){.width = 20, .height = 30}, FEEDD_E_UNSUPPORTED, "a stream of 30 x 20");
    const struct transform_spec spec = {.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 16384, .height = 1, .width = 1};
    refuse(&spec, 1, 1, (struct image_info){.width = 1, .height = 262144}, FEEDD_E_LIMIT, "1 x 262144");
    refuse(&spec, 1, 1, (struct image_info){.width = UINT32_MAX, .height = 1}, FEEDD_E_LIMIT, "4294967295 x 1");
    must_choose(&spec, 1, 1, 0, 0, 0, (struct image_info){.width = 1, .height = 262143});
    must_choose(&spec, 1, 1, 0, 0, 0, (struct image_info){.width = UINT32_MAX, .height = UINT32_MAX});

    const struct transform_spec crop = {
        .kind = TRANSFORM_RANDOM_CROP, .height = 20, .width = 30, .padding = {1, 2, 3, 4}};
    refuse(&crop, 20, 30, (struct image_info){.width = 25, .height = 99}, FEEDD_E_UNSUPPORTED, "25 x 99");
    refuse(&crop, 20, 30, (struct image_info){.width = 25, .height = 99}, FEEDD_E_UNSUPPORTED, "29 x 105 with its pad");
    refuse(&crop, 20, 30, (struct image_info){.width = 99, .height = 13}, FEEDD_E_UNSUPPORTED, "crop of 30 x 20");
    must_choose(&crop, 20, 30, 0, 0, 0, (struct image_info){.width = 26, .height = 14});
}
END_TEST

/* Which of positions 0..63, and of 5 + i * 2^32, are mirrored: pixels in users' hands, which must never change. */
START_TEST(pinned_flips)
{
    static const struct {
        uint64_t seed, epoch;
        double probability;
        uint64_t near, far;
    } cases[] = {
        {0x0, 0x0, 0.5, 0x2808912065d7caa4, 0x39792f942e226b4d},
        {0x2a, 0x0, 0.5, 0x202889683dbad0a2, 0x7664cbf9ce39db43},
        {0x2a, 0x1, 0.5, 0x251a4cc91e4364d4, 0x173685b537b374e6},
        {0x2a, 0x100000000, 0.5, 0xa37d0cd2b25fd2bc, 0x6fc333da31fa49cd},
        {0x2a00000000, 0x0, 0.5, 0x864b052894153076, 0x8107d5f6a2772043},
        {0x2a, 0x0, 0.25, 0x0008006824081000, 0x64644be84809da00},
        {UINT64_MAX, UINT64_MAX, 0.5, 0xf096190796b4d943, 0xa6fd86c008b30454},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t near = 0, far = 0;
        for (uint64_t p = 0; p < 64; p++) {
            near |= (uint64_t)flipped(cases[i].seed, cases[i].epoch, p, cases[i].probability) << p;
            far |= (uint64_t)flipped(cases[i].seed, cases[i].epoch, 5 + (p << 32), cases[i].probability) << p;
        }
        ck_assert_msg(near == cases[i].near && far == cases[i].far, "case %zu: %016llx %016llx", i,
                      (unsigned long long)near, (unsigned long long)far);
    }
}
END_TEST

START_TEST(flips_are_as_frequent_as_asked_for)
{
    enum { N = 40000 };
    for (int tenths = 0; tenths <= 10; tenths++) {
        const double p = tenths / 10.0, sigma = sqrt(N * p * (1 - p));
        int over_positions = 0, over_epochs = 0, over_seeds = 0;
        for (uint64_t i = 0; i < N; i++) {
            over_positions += flipped(9, 9, i, p);
            over_epochs += flipped(9, i, 9, p);
            over_seeds += flipped(i, 9, 9, p);
        }
        ck_assert_msg(fabs(over_positions - N * p) <= 6 * sigma && fabs(over_epochs - N * p) <= 6 * sigma &&
                          fabs(over_seeds - N * p) <= 6 * sigma,
                      "%.1f: %d, %d and %d of %d", p, over_positions, over_epochs, over_seeds, N);
    }
}
END_TEST

/* Neighbours agree half of the time: in position, epoch and seed. */
START_TEST(flips_are_unrelated)
{
    enum { N = 40000 };
    int same[3] = {0, 0, 0};
    for (uint64_t i = 0; i < N; i++) {
        const int flip = flipped(3, 4, i, 0.5);
        same[0] += flip == flipped(3, 4, i + 1, 0.5);
        same[1] += flip == flipped(3, 5, i, 0.5);
        same[2] += flip == flipped(4, 4, i, 0.5);
    }
    for (int i = 0; i < 3; i++)
        ck_assert_msg(abs(same[i] - N / 2) < 600, "%d: %d of %d", i, same[i], N); /* sigma 100 */
}
END_TEST

#define BOTH(rows, columns, h, w)                                                                                      \
    {                                                                                                                  \
        .kind = TRANSFORM_RESIZE_CENTER_CROP, .resize_height = (rows), .resize_width = (columns), .height = (h),       \
        .width = (w)                                                                                                   \
    }
#define RANDOM(scale_least, scale_most, ratio_least, ratio_most)                                                       \
    {                                                                                                                  \
        .kind = TRANSFORM_RANDOM_RESIZED_CROP, .height = 1, .width = 1, .scale = {(scale_least), (scale_most)},        \
        .ratio = {                                                                                                     \
            (ratio_least),                                                                                             \
            (ratio_most)                                                                                               \
        }                                                                                                              \
    }

START_TEST(checks)
{
    static const struct {
        struct transform_spec spec;
        const char *part; /* NULL: fine */
    } cases[] = {
        {{.kind = TRANSFORM_NONE}, NULL},
        {{.kind = TRANSFORM_NONE, .flip = 1}, NULL},
        {{.kind = TRANSFORM_NONE, .height = 16384, .width = 16384}, NULL},
        {{.kind = TRANSFORM_NONE, .height = 16385, .width = 1}, "16384"},
        {{.kind = TRANSFORM_NONE, .height = 1, .width = UINT32_MAX}, "16384"},
        {{.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 256, .height = 224, .width = 224, .flip = 0.5}, NULL},
        {{.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 224, .height = 224, .width = 224}, NULL},
        {{.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 1, .height = 1, .width = 1}, NULL},
        {{.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 16384, .height = 16384, .width = 16384}, NULL},
        {{.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 223, .height = 224, .width = 100}, "larger"},
        {{.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 223, .height = 100, .width = 224}, "larger"},
        {{.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 0, .height = 1, .width = 1}, "resize isn't"},
        {{.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 16385, .height = 1, .width = 1}, "resize isn't"},
        {{.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 9, .height = 0, .width = 1}, "crop isn't"},
        {{.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 9, .height = 1, .width = 0}, "crop isn't"},
        {{.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 9, .height = 20000, .width = 1}, "crop isn't"},
        {{.kind = TRANSFORM_NONE, .flip = 1.000001}, "flip"},
        {{.kind = TRANSFORM_NONE, .flip = -0.000001}, "flip"},
        {{.kind = TRANSFORM_NONE, .flip = NAN}, "flip"},
        {{.kind = TRANSFORM_NONE, .flip = INFINITY}, "flip"},
        {{.kind = 0}, "unknown"},
        {{.kind = 5}, "unknown"},
        {{.kind = -1}, "unknown"},
        {BOTH(1, 16384, 1, 16384), NULL},
        {BOTH(9, 8, 9, 7), NULL},
        {BOTH(9, 8, 10, 8), "larger"},
        {BOTH(9, 8, 9, 9), "larger"},
        {BOTH(0, 8, 1, 1), "resize isn't"},
        {BOTH(8, 0, 1, 1), "resize isn't"},
        {BOTH(8, 16385, 1, 1), "resize isn't"},
        {RANDOM(0.08, 1, 0.75, 1.25), NULL},
        {RANDOM(0, 1e-9, 0.001, 1000), NULL},
        {RANDOM(1, 1, 1, 1), NULL},
        {RANDOM(-0.01, 1, 1, 1), "scale"},
        {RANDOM(0, 0, 1, 1), "scale"},
        {RANDOM(0.5, 0.4, 1, 1), "scale"},
        {RANDOM(0.5, 1.1, 1, 1), "scale"},
        {RANDOM(NAN, 1, 1, 1), "scale"},
        {RANDOM(0, NAN, 1, 1), "scale"},
        {RANDOM(0, 1, 0.0009, 1), "ratio"},
        {RANDOM(0, 1, 1, 1000.1), "ratio"},
        {RANDOM(0, 1, 1.1, 1), "ratio"},
        {RANDOM(0, 1, NAN, 1), "ratio"},
        {RANDOM(0, 1, 1, INFINITY), "ratio"},
        {{.kind = TRANSFORM_RANDOM_RESIZED_CROP, .scale = {0, 1}, .ratio = {1, 1}, .height = 1}, "crop isn't"},
        {{.kind = TRANSFORM_RANDOM_CROP, .height = 32, .width = 16384}, NULL},
        {{.kind = TRANSFORM_RANDOM_CROP, .height = 32, .width = 0}, "crop isn't"},
        {{.kind = TRANSFORM_RANDOM_CROP, .height = 1, .width = 1, .padding = {16384, 0, 16384, 1}}, NULL},
        {{.kind = TRANSFORM_RANDOM_CROP, .height = 1, .width = 1, .padding = {0, 0, 0, 16385}}, "padding"},
        {{.kind = TRANSFORM_NONE, .channels = 1}, NULL},
        {{.kind = TRANSFORM_NONE, .channels = 3}, NULL},
        {{.kind = TRANSFORM_NONE, .channels = 2}, "channels"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *wrong = transform_check(&cases[i].spec);
        if (cases[i].part == NULL)
            ck_assert_msg(wrong == NULL, "case %zu: %s", i, wrong);
        else
            ck_assert_msg(wrong != NULL && strstr(wrong, cases[i].part) != NULL && strstr(wrong, "allowed") != NULL,
                          "case %zu: '%s' doesn't say '%s'", i, wrong, cases[i].part);
    }
}
END_TEST

/* Every byte that a spec has is in the list: a spec with one of them changed has another list. */
START_TEST(list_is_complete)
{
    const struct transform_spec plain = {.kind = TRANSFORM_NONE};
    const struct transform_spec specs[] = {
        {.kind = TRANSFORM_RANDOM_CROP},
        {.kind = TRANSFORM_NONE, .resize = 1},
        {.kind = TRANSFORM_NONE, .resize_height = 1},
        {.kind = TRANSFORM_NONE, .resize_width = 1},
        {.kind = TRANSFORM_NONE, .height = 1},
        {.kind = TRANSFORM_NONE, .width = 1},
        {.kind = TRANSFORM_NONE, .scale = {1, 0}},
        {.kind = TRANSFORM_NONE, .scale = {0, 1}},
        {.kind = TRANSFORM_NONE, .ratio = {1, 0}},
        {.kind = TRANSFORM_NONE, .ratio = {0, 1}},
        {.kind = TRANSFORM_NONE, .padding = {1, 0, 0, 0}},
        {.kind = TRANSFORM_NONE, .padding = {0, 1, 0, 0}},
        {.kind = TRANSFORM_NONE, .padding = {0, 0, 1, 0}},
        {.kind = TRANSFORM_NONE, .padding = {0, 0, 0, 1}},
        {.kind = TRANSFORM_NONE, .flip = 1},
        {.kind = TRANSFORM_NONE, .fast = true},
        {.kind = TRANSFORM_NONE, .ignore_orientation = true},
        {.kind = TRANSFORM_NONE, .accept_truncated = true},
        {.kind = TRANSFORM_NONE, .channels = 1},
    };
    ck_assert_uint_eq(sizeof(specs) / sizeof(specs[0]), TRANSFORM_FIELDS);
    ck_assert_uint_eq(sizeof(plain), 6 * sizeof(uint32_t) + 4 * sizeof(double) + 4 * sizeof(uint32_t) + sizeof(double) +
                                         3 * sizeof(bool) + 1 + sizeof(uint32_t));
    struct transform_field due[TRANSFORM_FIELDS], got[TRANSFORM_FIELDS];
    transform_list(&plain, due);
    for (int i = 0; i < TRANSFORM_FIELDS; i++) {
        transform_list(&specs[i], got);
        for (int n = 0; n < TRANSFORM_FIELDS; n++)
            ck_assert_msg((got[n].value != due[n].value) == (n == i), "spec %d: field %d, %s", i, n, got[n].name);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("geometry");
    TCase *tcase = tcase_create("geometry");
    tcase_add_test(tcase, sizes);
    tcase_add_test(tcase, windows_fit);
    tcase_add_test(tcase, both_sides);
    tcase_add_test(tcase, pinned_random_resized_crops);
    tcase_add_test(tcase, random_resized_crops_fit);
    tcase_add_test(tcase, pinned_random_crops);
    tcase_add_test(tcase, random_crops_of_giants);
    tcase_add_test(tcase, as_it_is);
    tcase_add_test(tcase, images_that_do_not_fit);
    tcase_add_test(tcase, pinned_flips);
    tcase_add_test(tcase, flips_are_as_frequent_as_asked_for);
    tcase_add_test(tcase, flips_are_unrelated);
    tcase_add_test(tcase, checks);
    tcase_add_test(tcase, list_is_complete);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
