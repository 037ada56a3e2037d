/* sample.h - one sample into its cells: what a worker does.
 *
 * Each field of the stream's layout has a cell a sample; sample_fill() writes all of them and nothing else. */
#ifndef FEEDD_SAMPLE_H
#define FEEDD_SAMPLE_H

#include <stdint.h>

#include "feedd_types.h"
#include "reader.h"
#include "slot.h"

/* The fields that a dataset's samples have, as a layout for `batch_size`: image (u8, height x width x channels),
 * label (i64; -1 where the dataset has none), index (i64, in the dataset). @return as slot_layout_init() */
int sample_layout(const struct reader *reader, uint32_t batch_size, struct slot_layout *out, struct feedd_error *err);

/* Reads sample `index` into cell `cell` of every field of the slot. Worker thread.
 * @return 0, or what the reader answered: then the cells are undefined */
int sample_fill(const struct reader *reader, const struct slot_layout *layout, uint64_t index, uint8_t *slot,
                uint32_t cell, struct feedd_error *err);

#endif
