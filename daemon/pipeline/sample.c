/* sample.c - see sample.h.
 *
 * Happy path: reader -> (pread -> codec by content -> probe) -> geometry -> decode the crop -> scale into the cell.
 * Without scaling the pixels are decoded straight into the cell.
 * What can fail: the file system (I/O), and the sample itself (everything else). Files are read by pread, never mapped:
 * one that is cut while it is read is an error, not a SIGBUS. */
#include "sample.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decoder.h"
#include "error.h"
#include "resize.h"

#define SCRATCH_KEEP (64u << 20) /* bytes of a buffer that are kept from sample to sample: a giant's are given back */

enum { FIELD_IMAGE, FIELD_LABEL, FIELD_INDEX, FIELD_COUNT };

struct buffer {
    uint8_t *bytes;
    size_t size;
};

struct sample_scratch {
    struct decoder *decoders[DECODER_COUNT];
    struct resizer *resizer;
    struct buffer encoded, decoded;
};

/* Pixels in memory, rows without gaps. */
struct pixels {
    const uint8_t *bytes;
    struct image_info size;
};

struct sample_scratch *sample_scratch_new(void)
{
    struct sample_scratch *scratch = calloc(1, sizeof(*scratch));
    if (scratch != NULL && resizer_new(&scratch->resizer, NULL) != 0) {
        free(scratch);
        return NULL;
    }
    return scratch;
}

void sample_scratch_free(struct sample_scratch *scratch)
{
    if (scratch == NULL)
        return;
    for (int i = 0; i < DECODER_COUNT; i++)
        if (scratch->decoders[i] != NULL)
            scratch->decoders[i]->ops->decoder_free(scratch->decoders[i]);
    resizer_free(scratch->resizer);
    free(scratch->encoded.bytes);
    free(scratch->decoded.bytes);
    free(scratch);
}

static int buffer_reserve(struct buffer *buffer, size_t size, struct feedd_error *err)
{
    if (size <= buffer->size && (buffer->size <= SCRATCH_KEEP || size > SCRATCH_KEEP))
        return 0;
    size_t room = size <= SCRATCH_KEEP && size > SCRATCH_KEEP / 2 ? SCRATCH_KEEP : size + size / 2;
    free(buffer->bytes); /* nothing of the last sample is needed */
    buffer->bytes = malloc(room);
    buffer->size = buffer->bytes != NULL ? room : 0;
    return buffer->bytes != NULL ? 0 : error_set(err, FEEDD_E_MEMORY, "no memory for %zu bytes of an image", size);
}

static int read_file(const struct reader_sample *from, struct buffer *buffer, struct feedd_error *err)
{
    if (from->size > SAMPLE_ENCODED_MAX)
        return error_set(err, FEEDD_E_LIMIT, "%llu bytes: an image may have %llu", (unsigned long long)from->size,
                         SAMPLE_ENCODED_MAX);
    int status = buffer_reserve(buffer, from->size + 1, err);
    for (uint64_t done = 0; status == 0 && done < from->size;) {
        ssize_t got = pread(from->fd, buffer->bytes + done, from->size - done, (off_t)(from->offset + done));
        if (got > 0)
            done += (uint64_t)got;
        else if (got == 0)
            status = error_set(err, FEEDD_E_CORRUPT, "ends after %llu of %llu bytes", (unsigned long long)done,
                               (unsigned long long)from->size);
        else if (errno != EINTR)
            status = error_set(err, FEEDD_E_IO, "reading: %s", strerror(errno));
    }
    return status;
}

/* The decoder for these bytes, made when it is first needed. */
static int find_decoder(struct sample_scratch *scratch, struct blob in, struct decoder **out, struct feedd_error *err)
{
    static const struct decoder_limits limits = {.pixels = SAMPLE_PIXELS_MAX};
    int number = decoder_find(in, err);
    if (number < 0)
        return number;
    struct decoder **decoder = &scratch->decoders[number];
    int status = *decoder == NULL ? decoders[number]->decoder_new(&limits, decoder, err) : 0;
    if (status == 0)
        *out = *decoder;
    return status;
}

static bool is_identity(const struct geometry *g)
{
    return !g->flip && g->scaled_width == g->crop.width && g->scaled_height == g->crop.height && g->window.x == 0 &&
           g->window.y == 0 && g->window.width == g->crop.width && g->window.height == g->crop.height;
}

static int choose(const struct sample_plan *plan, const struct sample_place *place, struct image_info image,
                  struct geometry *out, struct feedd_error *err)
{
    return geometry_choose(&plan->transform, plan->height, plan->width, plan->seed, place->epoch, place->position,
                           image, out, err);
}

static int fill_from_pixels(const struct sample_plan *plan, struct sample_scratch *scratch,
                            const struct sample_place *place, const uint8_t *pixels, uint8_t *cell,
                            struct feedd_error *err)
{
    const struct reader *reader = plan->reader;
    size_t stride = (size_t)reader->width * reader->channels;
    struct geometry g;
    int status = choose(plan, place, (struct image_info){reader->width, reader->height}, &g, err);
    if (status != 0)
        return status;
    if (is_identity(&g) && g.crop.width == reader->width) {
        memcpy(cell, pixels + g.crop.y * stride, g.crop.height * stride);
        return 0;
    }
    return resizer_apply(scratch->resizer, pixels + g.crop.y * stride + (size_t)g.crop.x * reader->channels,
                         g.crop.width, g.crop.height, stride, reader->channels, g.scaled_width, g.scaled_height,
                         g.window, g.flip, cell, err);
}

static int fill_from_bytes(const struct sample_plan *plan, struct sample_scratch *scratch,
                           const struct sample_place *place, struct blob in, uint8_t *cell, struct feedd_error *err)
{
    struct decoder *decoder;
    struct image_info image;
    struct geometry g;
    int status = find_decoder(scratch, in, &decoder, err);
    if (status == 0)
        status = decoder->ops->probe(decoder, in, &image, err);
    if (status == 0)
        status = choose(plan, place, image, &g, err);
    if (status != 0)
        return status;
    size_t stride = (size_t)g.crop.width * plan->channels;
    if (is_identity(&g))
        return decoder->ops->decode(decoder, in, g.crop, cell, stride, err);
    status = buffer_reserve(&scratch->decoded, stride * g.crop.height, err);
    if (status == 0)
        status = decoder->ops->decode(decoder, in, g.crop, scratch->decoded.bytes, stride, err);
    if (status == 0)
        status = resizer_apply(scratch->resizer, scratch->decoded.bytes, g.crop.width, g.crop.height, stride,
                               plan->channels, g.scaled_width, g.scaled_height, g.window, g.flip, cell, err);
    return status;
}

/* The path and the reason: neither reader nor codec can say both. */
static int name_sample(const struct reader *reader, uint64_t index, int status, struct feedd_error *err)
{
    struct feedd_error reason = *err;
    char path[sizeof(err->message) / 2];
    reader->ops->path(reader, index, path, sizeof(path));
    return error_set(err, status, "%s: %s", path, reason.message);
}

static void *cell_at(const struct sample_plan *plan, const struct sample_place *place, int field)
{
    const struct slot_field *f = &plan->layout.fields[field];
    return place->slot + f->offset + f->sample_bytes * place->cell;
}

static void write_label(const struct sample_plan *plan, const struct sample_place *place, int64_t label, float value)
{
    int64_t index = (int64_t)place->index;
    if (plan->layout.fields[FIELD_LABEL].dtype == FEEDD_F32)
        memcpy(cell_at(plan, place, FIELD_LABEL), &value, sizeof(value));
    else
        memcpy(cell_at(plan, place, FIELD_LABEL), &label, sizeof(label));
    memcpy(cell_at(plan, place, FIELD_INDEX), &index, sizeof(index));
}

int sample_fill(const struct sample_plan *plan, struct sample_scratch *scratch, const struct sample_place *place,
                struct feedd_error *err)
{
    const struct reader *reader = plan->reader;
    struct reader_sample sample = {.fd = -1};
    uint8_t *cell = cell_at(plan, place, FIELD_IMAGE);
    int status = reader->ops->read(reader, place->index, &sample, err);
    if (status == 0 && sample.pixels != NULL) {
        status = fill_from_pixels(plan, scratch, place, sample.pixels, cell, err);
    } else if (status == 0) {
        status = read_file(&sample, &scratch->encoded, err);
        close(sample.fd);
        if (status == 0)
            status =
                fill_from_bytes(plan, scratch, place, (struct blob){scratch->encoded.bytes, sample.size}, cell, err);
    }
    if (status != 0)
        return name_sample(reader, place->index, status, err);
    write_label(plan, place, sample.label, sample.value);
    return 0;
}

void sample_zero(const struct sample_plan *plan, const struct sample_place *place)
{
    memset(cell_at(plan, place, FIELD_IMAGE), 0, plan->layout.fields[FIELD_IMAGE].sample_bytes);
    write_label(plan, place, -1, -1);
}

/* A stream that doesn't resize delivers images of the size that its first one has. */
static int first_size(struct sample_plan *plan, struct sample_scratch *scratch, struct feedd_error *err)
{
    const struct reader *reader = plan->reader;
    struct reader_sample sample = {.fd = -1};
    struct image_info image = {0, 0};
    struct decoder *decoder;
    int status = reader->ops->read(reader, 0, &sample, err);
    if (status == 0) {
        status = read_file(&sample, &scratch->encoded, err);
        close(sample.fd);
    }
    struct blob in = {scratch->encoded.bytes, sample.size};
    if (status == 0)
        status = find_decoder(scratch, in, &decoder, err);
    if (status == 0)
        status = decoder->ops->probe(decoder, in, &image, err);
    if (status != 0)
        return name_sample(reader, 0, status, err);
    plan->height = image.height;
    plan->width = image.width;
    return 0;
}

int sample_plan_init(struct sample_plan *plan, uint32_t batch_size, struct sample_scratch *scratch,
                     struct feedd_error *err)
{
    const struct reader *reader = plan->reader;
    struct slot_layout *layout = &plan->layout;
    int status = 0;
    plan->channels = reader->channels != 0 ? reader->channels : 3;
    plan->height = plan->transform.height != 0 ? plan->transform.height : reader->height;
    plan->width = plan->transform.width != 0 ? plan->transform.width : reader->width;
    if (plan->height == 0)
        status = first_size(plan, scratch, err);
    *layout = (struct slot_layout){.field_count = FIELD_COUNT, .batch_size = batch_size};
    layout->fields[FIELD_IMAGE] = (struct slot_field){
        .name = "image", .dtype = FEEDD_U8, .ndim = 3, .shape = {plan->height, plan->width, plan->channels}};
    layout->fields[FIELD_LABEL] = (struct slot_field){.name = "label", .dtype = (uint32_t)reader->label_dtype};
    layout->fields[FIELD_INDEX] = (struct slot_field){.name = "index", .dtype = FEEDD_I64};
    return status == 0 ? slot_layout_init(layout, err) : status;
}
