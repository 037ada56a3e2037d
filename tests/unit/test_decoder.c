/* test_decoder.c - which codec decodes what, and how formats without one are named; and what codec.h checks.
 *
 * Happy path: first bytes as the formats' specifications have them, in memory of just their size. Threads: one. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "codec.h"
#include "decoder.h"

struct beginning {
    size_t size;
    const char *bytes, *name;
};

/* @return decoder_find()'s answer for bytes behind which there is nothing to be read */
static int find(struct beginning b, struct feedd_error *err)
{
    uint8_t *copy = malloc(b.size + 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy + 1, b.bytes, b.size);
    err->message[0] = '\0';
    const int status = decoder_find((struct blob){copy + 1, b.size}, err);
    free(copy);
    return status;
}

START_TEST(known)
{
    static const struct beginning all[] = {{3, "\xff\xd8\xff", "jpeg"},
                                           {8, "\x89PNG\r\n\x1a\n", "png"},
                                           {12, "RIFF\x10\0\0\0WEBP", "webp"},
                                           {16, "RIFF\xff\xff\xff\xffWEBPVP8 ", "webp"}};
    bool seen[DECODER_COUNT] = {false};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct feedd_error err;
        const int number = find(all[i], &err);
        ck_assert_msg(number >= 0 && number < DECODER_COUNT, "%s: %s", all[i].name, err.message);
        ck_assert_str_eq(decoders[number]->name, all[i].name);
        ck_assert_str_eq(err.message, "");
        seen[number] = true;
    }
    for (int i = 0; i < DECODER_COUNT; i++) {
        const struct decoder_ops *ops = decoders[i];
        ck_assert(seen[i] && ops->decoder_new != NULL && ops->decoder_free != NULL && ops->probe != NULL &&
                  ops->decode != NULL);
        ck_assert(ops->max_shrink == 1 || ops->max_shrink == 8);
    }
}
END_TEST

START_TEST(others)
{
    static const struct beginning all[] = {
        {6, "GIF89a", "GIF"},
        {6, "GIF87a", "GIF"},
        {14, "BM\x36\0\0\0\0\0\0\0\x36\0\0\0", "BMP"},
        {8, "II*\0\x08\0\0\0", "TIFF"},
        {8, "MM\0*\0\0\0\x08", "TIFF"},
        {16,
         "\0\0\0\x20"
         "ftypavif\0\0\0\0",
         "AVIF"},
        {16,
         "\0\0\0\x18"
         "ftypheic\0\0\0\0",
         "HEIC"},
        {2, "\xff\x0a", "JPEG XL"},
        {12, "\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"},
        {12, "\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"},
        {4, "\xff\x4f\xff\x51", "JPEG 2000"},
        {9, "P6\n1 1 255", "PPM"},
        {9, "P4\t8 1\n\x80", "PBM"},
        {15, "<!DOCTYPE html>", "HTML"},
        {14, "\xef\xbb\xbf \r\n<?xml ?>", "XML"},
        {0, "", "empty"},
        {2, "\xff\xd8", "ff d8"},
        {3, "\xff\xd8\x00", "ff d8 00"},
        {12, "RIFF\x10\0\0\0WAVE", "52 49 46 46"},
        {12, "RIFX\x10\0\0\0WEBP", "52 49 46 58"},
        {11, "RIFF\x10\0\0\0WEB", "52 49 46 46"},
        {2, "P6", "50 36"},
        {4, "\xef\xbb\xbf ", "ef bb bf 20"},
        {3, " \n\t", "20 0a 09"},
        {7, "\x89PNG\r\n\x1a", "89 50 4e 47 0d 0a 1a"},
        {8, "\x89PNG\n\x1a\n\0", "89 50 4e 47 0a 1a 0a 00"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct feedd_error err;
        ck_assert_int_eq(find(all[i], &err), FEEDD_E_UNSUPPORTED);
        ck_assert_int_eq(err.status, FEEDD_E_UNSUPPORTED);
        ck_assert_msg(strstr(err.message, all[i].name) != NULL && strstr(err.message, "allowed: JPEG, PNG, WebP"),
                      "'%s' doesn't say '%s'", err.message, all[i].name);
        ck_assert_int_eq(decoder_find((struct blob){(const uint8_t *)all[i].bytes, all[i].size}, NULL),
                         FEEDD_E_UNSUPPORTED);
    }
}
END_TEST

START_TEST(sizes)
{
    const struct decoder_limits limits = {.pixels = 100};
    struct feedd_error err = {0, ""};
    ck_assert_int_eq(codec_check_size("X", 10, 10, &limits, &err), 0);
    ck_assert_str_eq(err.message, "");
    ck_assert_int_eq(codec_check_size("X", 101, 1, &limits, &err), FEEDD_E_LIMIT);
    ck_assert_str_eq(err.message, "X: 101 x 1 are 101 pixels; allowed: 100");
    ck_assert_int_eq(codec_check_size("X", UINT32_MAX, UINT32_MAX, &limits, NULL), FEEDD_E_LIMIT);
}
END_TEST

/* All colours in steps of 5, at a distance of `step` bytes. */
START_TEST(luma)
{
    int wrong = 0;
    for (uint32_t step = 1; step <= 8; step *= 8)
        for (int r = 0; r < 256; r += 5)
            for (int g = 0; g < 256; g += 5) {
                uint8_t rgb[52 * 3], out[52 * 8];
                memset(out, 9, sizeof(out));
                for (int b = 0; b < 52; b++)
                    memcpy(rgb + 3 * b, (const uint8_t[]){(uint8_t)r, (uint8_t)g, (uint8_t)(5 * b)}, 3);
                codec_luma(rgb, 52, out, step);
                for (uint32_t i = 0; i < 52 * step; i++) {
                    const int due = (r * 19595 + g * 38470 + (int)(5 * (i / step)) * 7471 + 32768) / 65536;
                    wrong += out[i] != (i % step != 0 ? 9 : due);
                }
            }
    ck_assert_int_eq(wrong, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("decoder");
    TCase *tcase = tcase_create("decoder");
    tcase_add_test(tcase, known);
    tcase_add_test(tcase, others);
    tcase_add_test(tcase, sizes);
    tcase_add_test(tcase, luma);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
