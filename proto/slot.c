/* slot.c - computing a slot's layout. Every size may come from another process or a file: checked by division. */
#include "slot.h"

#include "error.h"

static uint64_t round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* Bytes of one sample of a field, or 0 when it is over FEEDD_MAX_SLOT_BYTES or has a zero dimension. */
static uint64_t field_sample_bytes(const struct slot_field *field)
{
    uint64_t bytes = dtype_bytes((int)field->dtype);
    for (uint32_t i = 0; i < field->ndim; i++) {
        if (field->shape[i] == 0 || bytes > FEEDD_MAX_SLOT_BYTES / field->shape[i])
            return 0;
        bytes *= field->shape[i];
    }
    return bytes;
}

int slot_layout_init(struct slot_layout *layout, struct feedd_error *err)
{
    struct slot_layout l = *layout;
    if (l.batch_size == 0 || l.batch_size > FEEDD_MAX_BATCH)
        return error_set(err, FEEDD_E_ARGUMENT, "batch size %u: allowed are 1 to %u", l.batch_size, FEEDD_MAX_BATCH);
    if (l.field_count == 0 || l.field_count > FEEDD_MAX_FIELDS)
        return error_set(err, FEEDD_E_ARGUMENT, "%u fields: allowed are 1 to %u", l.field_count, FEEDD_MAX_FIELDS);
    uint64_t end = 0;
    for (uint32_t i = 0; i < l.field_count; i++) {
        struct slot_field *field = &l.fields[i];
        if (dtype_bytes((int)field->dtype) == 0 || field->ndim > FEEDD_MAX_DIMS)
            return error_set(err, FEEDD_E_ARGUMENT, "field %u: dtype %u with %u dimensions is not one that feedd knows",
                             i, field->dtype, field->ndim);
        field->sample_bytes = field_sample_bytes(field);
        if (field->sample_bytes == 0 || field->sample_bytes > FEEDD_MAX_SLOT_BYTES / l.batch_size)
            return error_set(err, FEEDD_E_LIMIT, "field %u: an empty sample, or a batch over %llu bytes", i,
                             FEEDD_MAX_SLOT_BYTES);
        field->offset = round_up(end, SLOT_ALIGN);
        end = field->offset + field->sample_bytes * l.batch_size;
    }
    l.slot_bytes = round_up(end, SLOT_PAGE);
    if (l.slot_bytes > FEEDD_MAX_SLOT_BYTES)
        return error_set(err, FEEDD_E_LIMIT, "a batch of %llu bytes: at most %llu are allowed",
                         (unsigned long long)l.slot_bytes, FEEDD_MAX_SLOT_BYTES);
    l.record_bytes = round_up(sizeof(struct slot_record) + l.batch_size * (sizeof(int64_t) + sizeof(uint32_t)), 64);
    *layout = l;
    return 0;
}

uint64_t slot_ring_bytes(const struct slot_layout *layout, uint32_t depth)
{
    return layout->slot_bytes * depth + SLOT_PROOF_BYTES;
}

uint64_t slot_meta_bytes(const struct slot_layout *layout, uint32_t depth)
{
    return round_up(layout->record_bytes * depth, SLOT_PAGE);
}

uint32_t slot_depth_rule(uint64_t slot_bytes)
{
    uint64_t depth = (64ull << 20) / slot_bytes;
    return depth < 4 ? 4 : depth > 64 ? 64 : (uint32_t)depth;
}

uint64_t slot_used_bytes(const struct slot_layout *layout, uint32_t count)
{
    const struct slot_field *last = &layout->fields[layout->field_count - 1];
    return last->offset + last->sample_bytes * count;
}
