/* test_slot.c - slot layout and error text, against the rules written in slot.h and error.h. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "slot.h"

static struct slot_layout digits(uint32_t batch_size)
{
    struct slot_layout layout = {.field_count = 3, .batch_size = batch_size};
    layout.fields[0] = (struct slot_field){.name = "image", .dtype = FEEDD_U8, .ndim = 3, .shape = {28, 28, 1}};
    layout.fields[1] = (struct slot_field){.name = "label", .dtype = FEEDD_I64};
    layout.fields[2] = (struct slot_field){.name = "index", .dtype = FEEDD_I64};
    return layout;
}

START_TEST(test_layout_fields_are_aligned_and_apart)
{
    for (uint32_t batch_size = 1; batch_size <= 300; batch_size++) {
        struct slot_layout layout = digits(batch_size);
        ck_assert_int_eq(slot_layout_init(&layout, NULL), 0);
        uint64_t end = 0;
        for (uint32_t i = 0; i < layout.field_count; i++) {
            ck_assert_uint_eq(layout.fields[i].offset % 256, 0);
            ck_assert_uint_ge(layout.fields[i].offset, end);
            ck_assert_uint_lt(layout.fields[i].offset, end + 256);
            end = layout.fields[i].offset + layout.fields[i].sample_bytes * batch_size;
        }
        ck_assert_uint_eq(layout.slot_bytes % 4096, 0);
        ck_assert_uint_ge(layout.slot_bytes, end);
        ck_assert_uint_eq(slot_used_bytes(&layout, batch_size), end);
        ck_assert_uint_ge(layout.record_bytes, sizeof(struct slot_record) + batch_size * 12);
        ck_assert_uint_eq(layout.record_bytes % 64, 0);
        ck_assert_uint_eq(slot_ring_bytes(&layout, 7), 7 * layout.slot_bytes + 4096);
    }
}
END_TEST

START_TEST(test_layout_refuses_what_overflows)
{
    const uint64_t huge[][3] = {{UINT64_MAX, 1, 1}, {1ull << 32, 1ull << 32, 1}, {1ull << 63, 2, 1},
                                {0, 28, 1},         {1ull << 41, 1, 1},          {1ull << 20, 1ull << 20, 2}};
    for (size_t i = 0; i < sizeof(huge) / sizeof(huge[0]); i++) {
        struct slot_layout layout = digits(64), before;
        struct feedd_error err;
        memcpy(layout.fields[0].shape, huge[i], sizeof(huge[i]));
        before = layout;
        ck_assert_int_eq(slot_layout_init(&layout, &err), FEEDD_E_LIMIT);
        ck_assert_int_eq(err.status, FEEDD_E_LIMIT);
        ck_assert_mem_eq(&layout, &before, sizeof(layout)); /* untouched on failure */
    }
    struct slot_layout layout = digits(0);
    ck_assert_int_eq(slot_layout_init(&layout, NULL), FEEDD_E_ARGUMENT);
    layout = digits(FEEDD_MAX_BATCH + 1);
    ck_assert_int_eq(slot_layout_init(&layout, NULL), FEEDD_E_ARGUMENT);
    layout = digits(1);
    layout.field_count = FEEDD_MAX_FIELDS + 1;
    ck_assert_int_eq(slot_layout_init(&layout, NULL), FEEDD_E_ARGUMENT);
    layout = digits(1);
    layout.fields[1].dtype = 99;
    ck_assert_int_eq(slot_layout_init(&layout, NULL), FEEDD_E_ARGUMENT);
    layout = digits(1);
    layout.fields[1].ndim = FEEDD_MAX_DIMS + 1;
    ck_assert_int_eq(slot_layout_init(&layout, NULL), FEEDD_E_ARGUMENT);
}
END_TEST

START_TEST(test_depth_rule)
{
    ck_assert_uint_eq(slot_depth_rule(4096), 64);
    ck_assert_uint_eq(slot_depth_rule(1 << 20), 64);
    ck_assert_uint_eq(slot_depth_rule(2 << 20), 32);
    ck_assert_uint_eq(slot_depth_rule(16 << 20), 4);
    ck_assert_uint_eq(slot_depth_rule(1ull << 34), 4);
}
END_TEST

START_TEST(test_error_is_one_whole_line)
{
    struct feedd_error err;
    ck_assert_int_eq(error_set(&err, FEEDD_E_IO, "a\nb\tc%s", "\x1b[31m"), FEEDD_E_IO);
    ck_assert_str_eq(err.message, "a?b?c?[31m");
    ck_assert_int_eq(error_set(NULL, FEEDD_E_LIMIT, "nobody listens"), FEEDD_E_LIMIT);
    char text[3000] = ""; /* two-byte characters: a cut must not split one */
    for (int i = 0; i < 1400; i++)
        memcpy(text + 2 * i, "\xc3\xa9", 3);
    for (size_t shift = 0; shift < 2; shift++) {
        error_set(&err, FEEDD_E_IO, "%s%s", shift ? "x" : "", text);
        size_t length = strlen(err.message);
        ck_assert_uint_eq(length, sizeof(err.message) - 1);
        if ((length - shift) % 2 != 0) /* cut in the middle of a character */
            ck_assert_int_eq(err.message[length - 1], '?');
    }
}
END_TEST

START_TEST(test_error_is_utf8)
{
    static const char *const texts[][2] = {
        {"\xff\xfe", "??"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\xc0\x80|\xed\xa0\x80|\xf4\x90\x80\x80|\xe0\x80\x80|\xe2\x82", "??|???|????|???|??"},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct feedd_error err;
        error_set(&err, FEEDD_E_IO, "%s", texts[i][0]);
        ck_assert_str_eq(err.message, texts[i][1]);
    }
}
END_TEST

START_TEST(test_names)
{
    int value;
    ck_assert_int_eq(order_parse("shuffle", &value), 0);
    ck_assert_int_eq(value, FEEDD_ORDER_SHUFFLE);
    ck_assert_int_eq(order_parse("suffle", &value), FEEDD_E_ARGUMENT);
    ck_assert_int_eq(value, FEEDD_ORDER_SHUFFLE);
    ck_assert_int_eq(tail_parse("partial", &value), 0);
    ck_assert_int_eq(value, FEEDD_TAIL_PARTIAL);
    ck_assert_ptr_null(order_name(0));
    ck_assert_ptr_null(tail_name(-5));
    ck_assert_ptr_null(dtype_name(1000));
    ck_assert_uint_eq(dtype_bytes(FEEDD_BF16), 2);
    for (int status = 0; status >= FEEDD_E_INTERNAL; status--)
        ck_assert_str_ne(error_status_name(status), "unknown status");
    ck_assert_str_eq(error_status_name(-1000), "unknown status");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("slot");
    TCase *tests = tcase_create("slot");
    tcase_add_test(tests, test_layout_fields_are_aligned_and_apart);
    tcase_add_test(tests, test_layout_refuses_what_overflows);
    tcase_add_test(tests, test_depth_rule);
    tcase_add_test(tests, test_error_is_one_whole_line);
    tcase_add_test(tests, test_error_is_utf8);
    tcase_add_test(tests, test_names);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
