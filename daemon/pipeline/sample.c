/* sample.c - see sample.h. Runs on many workers at once; touches nothing but the cells of its own sample. */
#include "sample.h"

#include <stdio.h>
#include <string.h>

enum { FIELD_IMAGE, FIELD_LABEL, FIELD_INDEX, FIELD_COUNT };

int sample_layout(const struct reader *reader, uint32_t batch_size, struct slot_layout *out, struct feedd_error *err)
{
    struct slot_layout layout = {.field_count = FIELD_COUNT, .batch_size = batch_size};
    layout.fields[FIELD_IMAGE] = (struct slot_field){
        .name = "image", .dtype = FEEDD_U8, .ndim = 3, .shape = {reader->height, reader->width, reader->channels}};
    layout.fields[FIELD_LABEL] = (struct slot_field){.name = "label", .dtype = FEEDD_I64};
    layout.fields[FIELD_INDEX] = (struct slot_field){.name = "index", .dtype = FEEDD_I64};
    int status = slot_layout_init(&layout, err);
    if (status == 0)
        *out = layout;
    return status;
}

static void *cell_at(const struct slot_layout *layout, uint8_t *slot, int field, uint32_t cell)
{
    return slot + layout->fields[field].offset + layout->fields[field].sample_bytes * cell;
}

int sample_fill(const struct reader *reader, const struct slot_layout *layout, uint64_t index, uint8_t *slot,
                uint32_t cell, struct feedd_error *err)
{
    struct reader_sample sample;
    int status = reader->ops->read(reader, index, &sample, err);
    if (status != 0)
        return status;
    memcpy(cell_at(layout, slot, FIELD_IMAGE, cell), sample.pixels, layout->fields[FIELD_IMAGE].sample_bytes);
    memcpy(cell_at(layout, slot, FIELD_LABEL, cell), &sample.label, sizeof(int64_t));
    memcpy(cell_at(layout, slot, FIELD_INDEX, cell), &(int64_t){(int64_t)index}, sizeof(int64_t));
    return 0;
}
