/* sample.h - one sample into its cells: what a worker does.
 *
 * The reader yields pixels, or a file whose header is probed; the geometry is chosen once for the sample, in the
 * upright image; then every field is written into its cell of the slot, and nothing else. Of an image no more is
 * decoded than what its cell shows: orientation, crop, scaling and flip are as if they were done one after the other.
 * With normalize = cpu the pixels are made in scratch and normalised into the cell.
 * Threads: a plan is constant while a stream is open; a scratch belongs to one worker. */
#ifndef FEEDD_SAMPLE_H
#define FEEDD_SAMPLE_H

#include <stdint.h>

#include "feedd_types.h"
#include "geometry.h"
#include "output.h"
#include "reader.h"
#include "slot.h"

/* What one sample may cost. Checked before anything is allocated for it. */
struct sample_limits {
    uint64_t pixels;        /* width x height of an image */
    uint64_t encoded_bytes; /* of an encoded image */
};

/* One worker's: decoders, and buffers that are used again from sample to sample. */
struct sample_scratch;

struct sample_scratch *sample_scratch_new(void);          /* NULL: no memory */
void sample_scratch_free(struct sample_scratch *scratch); /* NULL is allowed */

/* Where the time of sample_fill() goes. What is in neither is reading: opening and reading the file, and all that is
 * too short to be timed; for pixels in memory that aren't scaled it is everything. */
struct sample_times {
    uint64_t decode_ns; /* in codecs: finding the codec, probing, decoding */
    uint64_t resize_ns; /* after them: turning upright, scaling with the flip in it, normalising */
};

/* The scratch's own: sample_fill() and sample_plan_init() add to it, whoever wants to know sets it to 0 before. */
struct sample_times *sample_times(struct sample_scratch *scratch);

/* What a stream makes of a sample. */
struct sample_plan {
    const struct reader *reader;
    struct transform_spec transform;
    struct sample_limits limits;      /* the same in all plans that share a scratch */
    uint64_t seed;                    /* of random transforms */
    struct output_spec output;        /* settled by sample_plan_init() */
    uint32_t height, width, channels; /* of what is delivered */
    struct normalize_params params;   /* unless output.mode is client: of one sample */
    struct slot_layout layout;        /* image (u8, height x width x channels, but with mode cpu as `params` have it),
                                       * label (i64, or f32; -1 where the dataset has none), index (i64, in the
                                       * dataset) */
};

/* Which sample goes where. */
struct sample_place {
    uint64_t index;           /* in the dataset */
    uint64_t epoch, position; /* of the order: what random transforms depend on */
    uint8_t *slot;
    uint32_t cell; /* number in the batch */
};

/* Fills a plan from its reader, transform, limits, seed and output, whose mode is decided, or 0: uint8. May read the
 * first sample (a stream that doesn't resize has the size of its images): worker thread.
 * @return 0; as slot_layout_init() and output_params(), or what is wrong with the first sample; FEEDD_E_UNSUPPORTED:
 * the dataset's pixels have channels that can't become the transform's */
int sample_plan_init(struct sample_plan *plan, uint32_t batch_size, struct sample_scratch *scratch,
                     struct feedd_error *err);

/* Fills every field's cell. Worker thread.
 * @return 0; FEEDD_E_IO (the file system: trying again may help), FEEDD_E_MEMORY; anything else: this sample is bad,
 * err names it and why. The cells are undefined then */
int sample_fill(const struct sample_plan *plan, struct sample_scratch *scratch, const struct sample_place *place,
                struct feedd_error *err);

/* Black pixels, with mode cpu as they are when they are normalised, label -1, index: stands for a sample that can't be
 * had. Worker thread. @return 0, FEEDD_E_MEMORY */
int sample_zero(const struct sample_plan *plan, struct sample_scratch *scratch, const struct sample_place *place,
                struct feedd_error *err);

#endif
