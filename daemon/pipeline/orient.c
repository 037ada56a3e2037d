/* orient.c - see orient.h.
 *
 * Every orientation is a transposition or none, then a mirroring of columns or none, then one of rows or none; so one
 * loop serves all: it walks the output and steps through the input by the two strides that belong to a step to the
 * right and a step down. It goes by blocks, because one of the two walks across rows: a block's rows stay in the cache.
 * What can fail: nothing. */
#include "orient.h"

#include <string.h>

/* Pixels of a block's side: 32 rows of 96 bytes on each side of the copy are 6 KiB, well within any first-level cache,
 * and use their cache lines up. */
#define BLOCK 32u

struct turn {
    bool transposed, columns_mirrored, rows_mirrored;
};

static struct turn turn_of(int orientation)
{
    static const struct turn turns[] = {
        [1] = {false, false, false}, [2] = {false, true, false}, [3] = {false, true, true}, [4] = {false, false, true},
        [5] = {true, false, false},  [6] = {true, true, false},  [7] = {true, true, true},  [8] = {true, false, true},
    };
    return turns[orientation];
}

bool orient_swaps(int orientation)
{
    return turn_of(orientation).transposed;
}

int orient_inverse(int orientation)
{
    return orientation == 6 ? 8 : orientation == 8 ? 6 : orientation;
}

int orient_mirrored(int orientation)
{
    return ((orientation - 1) ^ 1) + 1; /* neighbours in the list */
}

struct rect orient_rect(int orientation, uint32_t width, uint32_t height, struct rect part)
{
    const struct turn turn = turn_of(orientation);
    if (turn.transposed) {
        part = (struct rect){part.y, part.x, part.height, part.width};
        const uint32_t was = width;
        width = height;
        height = was;
    }
    if (turn.columns_mirrored)
        part.x = width - part.x - part.width;
    if (turn.rows_mirrored)
        part.y = height - part.y - part.height;
    return part;
}

/* How to step through the input while the output is walked. */
struct steps {
    const uint8_t *first;  /* the input's pixel for the output's first one */
    ptrdiff_t right, down; /* bytes in the input for a step in the output */
};

/* `channels` is a constant wherever this is called, so that a pixel is moved by one or two instructions. */
static inline __attribute__((always_inline)) void turn_blocks(struct steps in, uint32_t width, uint32_t height,
                                                              size_t channels, uint8_t *out, size_t out_stride)
{
    for (uint32_t top = 0; top < height; top += BLOCK) {
        const uint32_t bottom = height - top < BLOCK ? height : top + BLOCK;
        for (uint32_t left = 0; left < width; left += BLOCK) {
            const uint32_t right = width - left < BLOCK ? width : left + BLOCK;
            for (uint32_t y = top; y < bottom; y++) {
                uint8_t *to = out + y * out_stride;
                const uint8_t *from = in.first + (ptrdiff_t)y * in.down;
                for (uint32_t x = left; x < right; x++)
                    memcpy(to + x * channels, from + (ptrdiff_t)x * in.right, channels);
            }
        }
    }
}

void orient_pixels(int orientation, const uint8_t *in, uint32_t width, uint32_t height, size_t in_stride,
                   uint32_t channels, uint8_t *out, size_t out_stride)
{
    const struct turn turn = turn_of(orientation);
    struct steps steps = {in, (ptrdiff_t)channels, (ptrdiff_t)in_stride};
    if (turn.transposed) {
        steps.right = (ptrdiff_t)in_stride;
        steps.down = (ptrdiff_t)channels;
        const uint32_t was = width;
        width = height;
        height = was;
    }
    if (turn.columns_mirrored) {
        steps.first += (ptrdiff_t)(width - 1) * steps.right;
        steps.right = -steps.right;
    }
    if (turn.rows_mirrored) {
        steps.first += (ptrdiff_t)(height - 1) * steps.down;
        steps.down = -steps.down;
    }
    switch (channels) {
    case 1:
        turn_blocks(steps, width, height, 1, out, out_stride);
        break;
    case 2:
        turn_blocks(steps, width, height, 2, out, out_stride);
        break;
    case 3:
        turn_blocks(steps, width, height, 3, out, out_stride);
        break;
    default:
        turn_blocks(steps, width, height, 4, out, out_stride);
    }
}
