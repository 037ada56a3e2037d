/* fuzz_exif.c - a block of EXIF to an orientation, against a second reading by another way: every number is fetched by
 * a function that says when it lies outside.
 *
 * Input: the block. Threads: one. */
#include <stdbool.h>

#include "fuzz.h"

#include "exif.h"

struct block {
    const uint8_t *bytes;
    uint64_t size;
    bool big;
};

/* A number of `width` bytes at `at`, or -1. */
static int64_t fetch(struct block block, uint64_t at, uint64_t width)
{
    int64_t value = 0;
    if (at + width > block.size)
        return -1;
    for (uint64_t i = 0; i < width; i++)
        value = value * 256 + block.bytes[at + (block.big ? i : width - 1 - i)];
    return value;
}

static int second_reading(struct block block)
{
    for (int i = 0; i < 2 && block.size >= 6 && memcmp(block.bytes, "Exif\0\0", 6) == 0; i++) {
        block.bytes += 6;
        block.size -= 6;
    }
    block.big = block.size > 0 && block.bytes[0] == 'M';
    const int64_t mark = block.big ? 0x4D4D : 0x4949;
    const int64_t offset = fetch(block, 4, 4);
    if (fetch(block, 0, 2) != mark || fetch(block, 2, 2) != 42 || offset < 0)
        return 1;
    const int64_t count = fetch(block, (uint64_t)offset, 2);
    for (int64_t i = 0; i < count; i++) {
        const uint64_t entry = (uint64_t)offset + 2 + 12 * (uint64_t)i;
        if (fetch(block, entry + 8, 4) < 0)
            return 1;
        if (fetch(block, entry, 2) != 0x0112)
            continue;
        const int64_t value = fetch(block, entry + 8, 2);
        const bool known = fetch(block, entry + 2, 2) == 3 && fetch(block, entry + 4, 4) == 1;
        return known && value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_CHECK(exif_orientation(data, size) == second_reading((struct block){data, size, false}));
    return 0;
}
