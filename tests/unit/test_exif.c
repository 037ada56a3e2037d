/* test_exif.c - EXIF's orientation out of blocks made here by TIFF 6.0, section 2: both byte orders, wherever the
 * directory and the entry stand, and whatever is wrong with them. Real files are compared with Pillow in
 * tests/python/test_hard_jpegs.py.
 *
 * Happy path: a block is built, read in memory of just its size, and the answer compared. Threads: one. */
#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "exif.h"

enum { ROOM = 200000, ENTRY = 12 };

struct block {
    uint8_t bytes[ROOM];
    size_t size;
    bool big;
};

static void put(struct block *block, uint32_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        block->bytes[block->size++] = (uint8_t)(value >> 8 * (block->big ? bytes - 1 - i : i));
}

static void put_entry(struct block *block, uint32_t tag, uint32_t type, uint32_t count, uint32_t value)
{
    put(block, tag, 2);
    put(block, type, 2);
    put(block, count, 4);
    put(block, value, 2); /* a SHORT: two bytes, and two of padding */
    put(block, 0, 2);
}

/* A header, `gap` bytes, and the number of entries that follow. */
static struct block *begin(bool big, uint32_t gap, uint32_t entries)
{
    static struct block block;
    block.big = big;
    block.size = 2;
    memcpy(block.bytes, big ? "MM" : "II", 2);
    put(&block, 42, 2);
    put(&block, 8 + gap, 4);
    memset(block.bytes + block.size, 0x55, gap);
    block.size += gap;
    put(&block, entries, 2);
    return &block;
}

/* What the first `size` bytes of the block say, behind which and before which nothing can be read. */
static int read_cut(const struct block *block, size_t size)
{
    uint8_t *copy = malloc(size + 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy + 1, block->bytes, size);
    const int orientation = exif_orientation(copy + 1, size);
    free(copy);
    return orientation;
}

static int read_block(const struct block *block)
{
    return read_cut(block, block->size);
}

/* One entry in each byte order. */
static void check_entry(uint32_t tag, uint32_t type, uint32_t count, uint32_t value, int due)
{
    for (int big = 0; big < 2; big++) {
        struct block *block = begin(big, 0, 1);
        put_entry(block, tag, type, count, value);
        put(block, 0, 4);
        const int got = read_block(block);
        ck_assert_msg(got == due, "tag %u, type %u, count %u, value %u: %d, expected %d", tag, type, count, value, got,
                      due);
    }
}

START_TEST(values)
{
    for (uint32_t value = 0; value < 65536; value = value < 20 ? value + 1 : value * 2)
        check_entry(0x0112, 3, 1, value, value >= 1 && value <= 8 ? (int)value : 1);
    check_entry(0x0112, 3, 1, 0x0600, 1); /* what the other byte order would make 6 */
}
END_TEST

/* A type or a number of values that the tag hasn't. */
START_TEST(kinds)
{
    for (uint32_t type = 0; type < 20; type++)
        check_entry(0x0112, type, 1, 6, type == 3 ? 6 : 1);
    check_entry(0x0112, 0x0300, 1, 6, 1);
    const uint32_t counts[] = {0, 2, 3, 256, 65537, 0x01000000, UINT32_MAX};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        check_entry(0x0112, 3, counts[i], 6, 1);
    const uint32_t tags[] = {0, 0x0111, 0x0113, 0x1201, 0x0012, 0xFFFF};
    for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++)
        check_entry(tags[i], 3, 1, 6, 1);
}
END_TEST

/* The entry anywhere among others, the directory anywhere in the block. */
START_TEST(places)
{
    for (uint32_t gap = 0; gap < 100000; gap = gap * 5 + 1)
        for (uint32_t entries = 1; entries <= 2000; entries = entries * 3 + 1)
            for (uint32_t at = 0; at < entries; at += 1 + entries / 7) {
                struct block *block = begin(gap % 2 == 0, gap, entries);
                for (uint32_t i = 0; i < entries; i++)
                    put_entry(block, i == at ? 0x0112 : 0x8769 + i, 3, 1, i == at ? 7 : 3);
                put(block, 0, 4);
                ck_assert_int_eq(read_block(block), 7);
            }
}
END_TEST

/* Of several the first counts, also when it makes no sense. */
START_TEST(repeated)
{
    struct block *block = begin(true, 0, 2);
    put_entry(block, 0x0112, 3, 1, 5);
    put_entry(block, 0x0112, 3, 1, 6);
    ck_assert_int_eq(read_block(block), 5);
    block = begin(true, 0, 2);
    put_entry(block, 0x0112, 3, 1, 9);
    put_entry(block, 0x0112, 3, 1, 6);
    ck_assert_int_eq(read_block(block), 1);
}
END_TEST

/* Nothing behind the end is read; an entry counts as soon as it is whole, and only then. */
START_TEST(cut)
{
    for (int i = 0; i < 6; i++) {
        const size_t place = (size_t)i / 2;
        struct block *block = begin(i % 2 == 0, 10, 3);
        const size_t end = block->size + (place + 1) * ENTRY;
        for (size_t k = 0; k < 3; k++)
            put_entry(block, k == place ? 0x0112 : 0x0131, 3, 1, k == place ? 8 : 2);
        put(block, 0, 4);
        for (size_t size = 0; size <= block->size; size++)
            ck_assert_int_eq(read_cut(block, size), size >= end ? 8 : 1);
    }
    ck_assert_int_eq(exif_orientation(NULL, 0), 1);
}
END_TEST

/* Offsets and numbers of entries that lead out of the block, or to its last bytes. */
START_TEST(outside)
{
    for (int big = 0; big < 2; big++) {
        struct block *block = begin(big, 0, 1);
        put_entry(block, 0x0112, 3, 1, 6);
        put(block, 0, 4);
        const struct block good = *block;
        const uint32_t size = (uint32_t)good.size;
        for (int64_t offset = -1; offset < (int64_t)size + 4; offset++) {
            block->size = 4;
            put(block, (uint32_t)offset, 4); /* -1: the largest there is */
            block->size = size;
            ck_assert_int_eq(read_block(block), offset == 8 ? 6 : 1);
        }
        *block = good;
        const uint32_t counts[] = {0, 1, 2, 3, 0x7FFF, 0xFFFF};
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            block->size = 8;
            put(block, counts[i], 2);
            block->size = size;
            ck_assert_int_eq(read_block(block), counts[i] == 0 ? 1 : 6);
        }
    }
}
END_TEST

START_TEST(headers)
{
    static const char *const wrong[] = {"IM*\0", "MI\0*", "II\0*", "MM*\0", "II+\0", "MM\0+", "ii*\0", "\0\0\0\0"};
    for (int big = 0; big < 2; big++) {
        struct block *block = begin(big, 0, 1);
        put_entry(block, 0x0112, 3, 1, 6);
        ck_assert_int_eq(read_block(block), 6);
        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
            memcpy(block->bytes, wrong[i], 4);
            ck_assert_int_eq(read_block(block), 1);
        }
    }
}
END_TEST

/* "Exif\0\0" before the block is passed over, once or twice. */
START_TEST(prefixes)
{
    struct block *block = begin(true, 0, 1);
    put_entry(block, 0x0112, 3, 1, 4);
    for (int count = 0; count < 5; count++) {
        ck_assert_int_eq(read_block(block), count <= 2 ? 4 : 1);
        memmove(block->bytes + 6, block->bytes, block->size);
        memcpy(block->bytes, "Exif\0\0", 6);
        block->size += 6;
    }
    for (size_t size = 0; size < 12; size++)
        ck_assert_int_eq(read_cut(block, size), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exif");
    TCase *tcase = tcase_create("exif");
    tcase_add_test(tcase, values);
    tcase_add_test(tcase, kinds);
    tcase_add_test(tcase, places);
    tcase_add_test(tcase, repeated);
    tcase_add_test(tcase, cut);
    tcase_add_test(tcase, outside);
    tcase_add_test(tcase, headers);
    tcase_add_test(tcase, prefixes);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
