/* exif.c - see exif.h.
 *
 * Happy path: "II" or "MM", 42, the offset of the first directory, its entries up to the tag.
 * What can fail: nothing; a block that isn't as it should be has no orientation. An entry counts when it lies within
 * the block, also when the directory behind it is cut short, as in Pillow. */
#include "exif.h"

#include <stdbool.h>
#include <string.h>

enum {
    HEADER_BYTES = 8,
    ENTRY_BYTES = 12, /* tag, type, count, value: 2 + 2 + 4 + 4 */
    TAG_ORIENTATION = 0x0112,
    TYPE_SHORT = 3
};

static uint32_t read_u16(const uint8_t *at, bool big)
{
    return big ? (uint32_t)at[0] << 8 | at[1] : (uint32_t)at[1] << 8 | at[0];
}

static uint32_t read_u32(const uint8_t *at, bool big)
{
    const uint32_t first = read_u16(at, big), second = read_u16(at + 2, big);
    return big ? first << 16 | second : second << 16 | first;
}

uint8_t exif_orientation(const uint8_t *exif, size_t size)
{
    static const uint8_t prefix[] = {'E', 'x', 'i', 'f', 0, 0};
    for (int i = 0; i < 2 && size >= sizeof(prefix) && memcmp(exif, prefix, sizeof(prefix)) == 0; i++) {
        exif += sizeof(prefix);
        size -= sizeof(prefix);
    }
    if (size < HEADER_BYTES || (memcmp(exif, "II*\0", 4) != 0 && memcmp(exif, "MM\0*", 4) != 0))
        return 1;
    const bool big = exif[0] == 'M';
    const size_t directory = read_u32(exif + 4, big);
    if (directory > size - HEADER_BYTES) /* HEADER_BYTES: more than the two of its count */
        return 1;
    size_t entries = read_u16(exif + directory, big);
    const size_t room = (size - directory - 2) / ENTRY_BYTES;
    if (entries > room)
        entries = room;
    for (const uint8_t *entry = exif + directory + 2; entries > 0; entries--, entry += ENTRY_BYTES) {
        if (read_u16(entry, big) != TAG_ORIENTATION)
            continue;
        const uint32_t value = read_u16(entry + 8, big); /* a SHORT stands at the field's beginning */
        if (read_u16(entry + 2, big) == TYPE_SHORT && read_u32(entry + 4, big) == 1 && value >= 1 && value <= 8)
            return (uint8_t)value;
        return 1;
    }
    return 1;
}
