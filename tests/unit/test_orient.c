/* test_orient.c - turning pixels, against what the EXIF standard says of each orientation: on which side of the upright
 * image the first row of the coded one lies, and on which its first column.
 *
 * Guards around all memory by AddressSanitizer: every block is as large as its pixels need, and no larger.
 * Threads: one. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "orient.h"

enum side { LEFT, TOP, RIGHT, BOTTOM };

/* CIPA DC-008-2019, 4.6.5.A: "the 0th row is at the ... of the image, and the 0th column is the ...". */
static const struct {
    enum side row, column;
} standard[] = {
    [1] = {TOP, LEFT}, [2] = {TOP, RIGHT}, [3] = {BOTTOM, RIGHT}, [4] = {BOTTOM, LEFT},
    [5] = {LEFT, TOP}, [6] = {RIGHT, TOP}, [7] = {RIGHT, BOTTOM}, [8] = {LEFT, BOTTOM},
};

/* Moves (x, y) to where a line that is `distance` from that side lies. */
static void from_side(enum side side, uint32_t distance, uint32_t width, uint32_t height, uint32_t *x, uint32_t *y)
{
    if (side == LEFT)
        *x = distance;
    else if (side == RIGHT)
        *x = width - 1 - distance;
    else if (side == TOP)
        *y = distance;
    else
        *y = height - 1 - distance;
}

/* Where the coded image's pixel (column, row) lies in the upright one of width x height. */
static void upright_place(int orientation, uint32_t column, uint32_t row, uint32_t width, uint32_t height, uint32_t *x,
                          uint32_t *y)
{
    from_side(standard[orientation].row, row, width, height, x, y);
    from_side(standard[orientation].column, column, width, height, x, y);
}

static uint8_t *random_bytes(size_t size)
{
    uint8_t *bytes = malloc(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)rand();
    return bytes;
}

static void check_pixels(int orientation, uint32_t width, uint32_t height, uint32_t channels, uint32_t in_gap,
                         uint32_t out_gap)
{
    const bool swaps = standard[orientation].row == LEFT || standard[orientation].row == RIGHT;
    const uint32_t out_width = swaps ? height : width, out_height = swaps ? width : height;
    const size_t in_stride = (size_t)width * channels + in_gap, out_stride = (size_t)out_width * channels + out_gap;
    uint8_t *in = random_bytes((height - 1) * in_stride + (size_t)width * channels);
    const size_t out_size = (out_height - 1) * out_stride + (size_t)out_width * channels;
    uint8_t *out = random_bytes(out_size), *due = malloc(out_size);
    memcpy(due, out, out_size); /* what lies between the rows stays */
    for (uint32_t row = 0; row < height; row++)
        for (uint32_t column = 0; column < width; column++) {
            uint32_t x = 0, y = 0;
            upright_place(orientation, column, row, out_width, out_height, &x, &y);
            memcpy(due + y * out_stride + (size_t)x * channels, in + row * in_stride + (size_t)column * channels,
                   channels);
        }
    ck_assert_int_eq(orient_swaps(orientation), swaps);
    orient_pixels(orientation, in, width, height, in_stride, channels, out, out_stride);
    ck_assert_msg(memcmp(out, due, out_size) == 0, "orientation %d of %u x %u, %u channels", orientation, width, height,
                  channels);
    free(in);
    free(out);
    free(due);
}

START_TEST(pixels)
{
    static const uint32_t sides[] = {1, 2, 3, 31, 32, 33, 64, 97};
    const size_t count = sizeof(sides) / sizeof(sides[0]);
    srand(1);
    for (int orientation = 1; orientation <= 8; orientation++)
        for (size_t w = 0; w < count; w++)
            for (size_t h = 0; h < count; h++)
                for (uint32_t channels = 1; channels <= 4; channels++)
                    check_pixels(orientation, sides[w], sides[h], channels, w % 2 == 0 ? 0 : 5, h % 2 == 0 ? 0 : 7);
}
END_TEST

/* The corners of a part, each on its own. */
START_TEST(rectangles)
{
    srand(2);
    for (int i = 0; i < 20000; i++) {
        const int orientation = 1 + i % 8;
        const uint32_t width = 1 + (uint32_t)rand() % 50, height = 1 + (uint32_t)rand() % 50;
        struct rect part = {.width = 1 + (uint32_t)rand() % width, .height = 1 + (uint32_t)rand() % height};
        part.x = (uint32_t)rand() % (width - part.width + 1);
        part.y = (uint32_t)rand() % (height - part.height + 1);
        const bool swaps = orient_swaps(orientation);
        const uint32_t out_width = swaps ? height : width, out_height = swaps ? width : height;
        uint32_t x[2], y[2];
        upright_place(orientation, part.x, part.y, out_width, out_height, &x[0], &y[0]);
        upright_place(orientation, part.x + part.width - 1, part.y + part.height - 1, out_width, out_height, &x[1],
                      &y[1]);
        const struct rect got = orient_rect(orientation, width, height, part);
        ck_assert_uint_eq(got.x, x[0] < x[1] ? x[0] : x[1]);
        ck_assert_uint_eq(got.y, y[0] < y[1] ? y[0] : y[1]);
        ck_assert_uint_eq(got.width, swaps ? part.height : part.width);
        ck_assert_uint_eq(got.height, swaps ? part.width : part.height);

        const struct rect back = orient_rect(orient_inverse(orientation), out_width, out_height, got);
        ck_assert(back.x == part.x && back.y == part.y && back.width == part.width && back.height == part.height);
    }
}
END_TEST

START_TEST(mirrored)
{
    enum { WIDTH = 5, HEIGHT = 4 };
    for (int orientation = 1; orientation <= 8; orientation++) {
        const uint32_t width = orient_swaps(orientation) ? HEIGHT : WIDTH;
        const uint32_t height = orient_swaps(orientation) ? WIDTH : HEIGHT;
        for (uint32_t row = 0; row < HEIGHT; row++)
            for (uint32_t column = 0; column < WIDTH; column++) {
                uint32_t x, y, mirrored_x, mirrored_y;
                upright_place(orientation, column, row, width, height, &x, &y);
                upright_place(orient_mirrored(orientation), column, row, width, height, &mirrored_x, &mirrored_y);
                ck_assert_uint_eq(mirrored_x, width - 1 - x);
                ck_assert_uint_eq(mirrored_y, y);
            }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("orient");
    TCase *tcase = tcase_create("orient");
    tcase_add_test(tcase, pixels);
    tcase_add_test(tcase, rectangles);
    tcase_add_test(tcase, mirrored);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
