/* test_geometry.c - which pixels of an image a sample is made of: sizes as torchvision computes them, flips as
 * geometry.h documents them.
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
    return must_choose(&spec, 1, 1, seed, epoch, position, (struct image_info){1, 1}).flip;
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
        {{.kind = 3}, "unknown"},
        {{.kind = -1}, "unknown"},
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

int main(void)
{
    Suite *suite = suite_create("geometry");
    TCase *tcase = tcase_create("geometry");
    tcase_add_test(tcase, sizes);
    tcase_add_test(tcase, windows_fit);
    tcase_add_test(tcase, as_it_is);
    tcase_add_test(tcase, images_that_do_not_fit);
    tcase_add_test(tcase, pinned_flips);
    tcase_add_test(tcase, flips_are_as_frequent_as_asked_for);
    tcase_add_test(tcase, flips_are_unrelated);
    tcase_add_test(tcase, checks);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
