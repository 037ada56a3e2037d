/* shape.h - the shape of a sample on the command line, and what follows from it. Threads: any; no state. */
#ifndef FEEDD_BENCH_SHAPE_H
#define FEEDD_BENCH_SHAPE_H

#include <stddef.h>
#include <stdint.h>

#include "bench.h"
#include "normalize.h"
#include "slot.h"

#define SHAPE_SIDE_MAX   8192u
#define SHAPE_FRAMES_MAX 256u

/* An image, or a clip of frames x images; as uint8, channels last. */
struct shape {
    uint32_t frames, channels, height, width; /* frames: 1 of an image */
    char text[32];                            /* "3x224x224", "32x3x112x112" */
};

/* "CxHxW" or "FxCxHxW", C from 1 to 4. @return 0, or 2 after saying what is wrong with `text` of --option */
int shape_parse(const char *option, const char *text, struct shape *out);
/* Several, with commas between. */
int shape_parse_list(const char *option, const char *text, struct shape out[BENCH_LIST_MAX], size_t *count);

json_t *shape_list_json(const struct shape *shapes, size_t count); /* of their texts */

/* A sample's elements. */
size_t shape_elements(const struct shape *shape);

/* What normalises a batch: mean and deviation of ImageNet, NCHW. A clip's frames are normalised as images.
 * @return 0, or FEEDD_E_LIMIT */
int shape_params(const struct shape *shape, uint64_t batch, int dtype, struct normalize_params *out,
                 struct feedd_error *err);

/* A slot of the daemon's with the batch's images in it, and nothing else. @return 0, or FEEDD_E_LIMIT */
int shape_slot(const struct shape *shape, uint64_t batch, int dtype, struct slot_layout *out, struct feedd_error *err);

#endif
