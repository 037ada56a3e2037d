/* sample.c - see sample.h.
 *
 * Happy path: reader -> (pread -> codec by content -> probe) -> geometry, chosen in the upright image -> back to coded
 * coordinates -> decode what the resizer reads -> turn upright -> scale into the cell. Without scaling the pixels are
 * decoded straight into their place in the cell. Pixels in memory go the same way without a codec. With normalize = cpu
 * what is said of the cell here holds for an image in scratch, which is then normalised into the cell.
 * What can fail: the file system (I/O), and the sample itself (everything else). */
#include "sample.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "codec.h"
#include "decoder.h"
#include "error.h"
#include "orient.h"
#include "resize.h"
#include "scratch.h"

enum { FIELD_IMAGE, FIELD_LABEL, FIELD_INDEX, FIELD_COUNT };

struct sample_scratch {
    struct decoder *decoders[DECODER_COUNT];
    struct resizer *resizer;
    struct scratch_buffer encoded, coded, upright; /* coded: pixels that are still to be turned */
    struct scratch_buffer pixels;                  /* of one sample, to be normalised into its cell */
    struct sample_times times;
};

/* One sample's image, before anything is done to it. */
struct source {
    struct image_info info;  /* as it is coded; an orientation that is ignored counts as 1 */
    const uint8_t *pixels;   /* in memory: info.height x info.width x the reader's channels; NULL: encoded, */
    struct blob encoded;     /* in the scratch, */
    struct decoder *decoder; /* and of this codec */
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
    scratch_decoders_free(scratch->decoders);
    resizer_free(scratch->resizer);
    free(scratch->encoded.bytes);
    free(scratch->coded.bytes);
    free(scratch->upright.bytes);
    free(scratch->pixels.bytes);
    free(scratch);
}

struct sample_times *sample_times(struct sample_scratch *scratch)
{
    return &scratch->times;
}

/* ---- what the reader yields ---- */

/* Takes over sample->fd. */
static int source_open(const struct sample_plan *plan, struct sample_scratch *scratch,
                       const struct reader_sample *sample, struct source *out, struct feedd_error *err)
{
    const struct reader *reader = plan->reader;
    struct source source = {.info = {.width = reader->width, .height = reader->height, .orientation = 1},
                            .pixels = sample->pixels};
    int status = 0;
    if (source.pixels == NULL) {
        status = scratch_read(&scratch->encoded, sample, plan->limits.encoded_bytes, err);
        close(sample->fd);
        source.encoded = (struct blob){scratch->encoded.bytes, sample->size};
        const uint64_t began_ns = clock_ns();
        if (status == 0)
            status = scratch_decoder(scratch->decoders, plan->limits.pixels, source.encoded, &source.decoder, err);
        if (status == 0)
            status = source.decoder->ops->probe(source.decoder, source.encoded, &source.info, err);
        scratch->times.decode_ns += clock_ns() - began_ns;
        if (plan->transform.ignore_orientation)
            source.info.orientation = 1;
    }
    if (status == 0)
        *out = source;
    return status;
}

static struct image_info upright_size(const struct source *source)
{
    const struct rect all = orient_rect(source->info.orientation, source->info.width, source->info.height,
                                        (struct rect){0, 0, source->info.width, source->info.height});
    return (struct image_info){.width = all.width, .height = all.height, .orientation = 1};
}

/* Part of the upright image as it lies in the coded one. */
static struct rect coded_part(const struct source *source, struct rect part)
{
    const struct image_info upright = upright_size(source);
    return orient_rect(orient_inverse(source->info.orientation), upright.width, upright.height, part);
}

/* One row of 1 or 3 channels as 3 or 1. */
static void convert_row(const uint8_t *in, uint32_t in_channels, uint32_t width, uint8_t *out)
{
    if (in_channels == 3) {
        codec_luma(in, width, out, 1);
        return;
    }
    for (uint32_t x = 0; x < width; x++)
        out[3 * x] = out[3 * x + 1] = out[3 * x + 2] = in[x];
}

static const uint8_t *pixel_at(const struct sample_plan *plan, const struct source *source, uint32_t x, uint32_t y)
{
    return source->pixels + ((size_t)y * source->info.width + x) * plan->reader->channels;
}

/* Part of an image in memory. */
static void copy_pixels(const struct sample_plan *plan, const struct source *source, struct rect part, uint8_t *out,
                        size_t stride)
{
    const uint32_t channels = plan->reader->channels;
    const size_t in_stride = (size_t)source->info.width * channels, bytes = (size_t)part.width * channels;
    const uint8_t *in = pixel_at(plan, source, part.x, part.y);
    if (channels == plan->channels && in_stride == bytes && stride == bytes) {
        memcpy(out, in, part.height * bytes); /* digits, all of one: a call a row would take as long as the rest */
        return;
    }
    for (uint32_t y = 0; y < part.height; y++) {
        if (channels == plan->channels)
            memcpy(out + y * stride, in + y * in_stride, bytes);
        else
            convert_row(in + y * in_stride, channels, part.width, out + y * stride);
    }
}

/* Writes decode_region(spec). */
static int source_read(const struct sample_plan *plan, struct sample_scratch *scratch, const struct source *source,
                       const struct decode_spec *spec, uint8_t *out, size_t stride, struct feedd_error *err)
{
    if (source->pixels != NULL) {
        copy_pixels(plan, source, spec->crop, out, stride);
        return 0;
    }
    const uint64_t began_ns = clock_ns();
    int status = source->decoder->ops->decode(source->decoder, source->encoded, spec, out, stride, err);
    scratch->times.decode_ns += clock_ns() - began_ns;
    return status;
}

/* The same, turned. */
static int source_read_turned(const struct sample_plan *plan, struct sample_scratch *scratch,
                              const struct source *source, const struct decode_spec *spec, int turn, uint8_t *out,
                              size_t stride, struct feedd_error *err)
{
    if (turn == 1)
        return source_read(plan, scratch, source, spec, out, stride, err);
    const struct rect region = decode_region(spec);
    const size_t coded_stride = (size_t)region.width * plan->channels;
    int status = scratch_reserve(&scratch->coded, coded_stride * region.height, err);
    if (status == 0)
        status = source_read(plan, scratch, source, spec, scratch->coded.bytes, coded_stride, err);
    const uint64_t began_ns = clock_ns();
    if (status == 0)
        orient_pixels(turn, scratch->coded.bytes, region.width, region.height, coded_stride, plan->channels, out,
                      stride);
    scratch->times.resize_ns += clock_ns() - began_ns;
    return status;
}

/* ---- the image field ---- */

static struct decode_spec decode_spec(const struct sample_plan *plan, struct rect crop, uint32_t shrink)
{
    return (struct decode_spec){.crop = crop,
                                .channels = plan->channels,
                                .mode = plan->transform.fast ? DECODE_FAST : DECODE_EXACT,
                                .shrink = shrink,
                                .accept_truncated = plan->transform.accept_truncated};
}

/* The window is pixels of the image as they are: they are decoded into their place. */
static int fill_unscaled(const struct sample_plan *plan, struct sample_scratch *scratch, const struct source *source,
                         const struct geometry *g, uint8_t *cell, struct feedd_error *err)
{
    const struct rect part = {g->crop.x + g->window.x, g->crop.y + g->window.y, g->window.width, g->window.height};
    const struct decode_spec spec = decode_spec(plan, coded_part(source, part), 1);
    const int turn = g->flip ? orient_mirrored(source->info.orientation) : source->info.orientation;
    const size_t stride = (size_t)plan->width * plan->channels;
    return source_read_turned(plan, scratch, source, &spec, turn, cell + g->y * stride + (size_t)g->x * plan->channels,
                              stride, err);
}

/* By how much the codec may shrink the crop while it decodes: as far as the crop stays no smaller than what it
 * becomes, so that the rest is left to the resizer's filter. */
static uint32_t choose_shrink(const struct sample_plan *plan, const struct source *source, const struct geometry *g)
{
    const uint32_t max = plan->transform.fast && source->pixels == NULL ? source->decoder->ops->max_shrink : 1;
    uint32_t shrink = 1;
    while (2 * shrink <= max && g->crop.width / (2 * shrink) >= g->scaled_width &&
           g->crop.height / (2 * shrink) >= g->scaled_height)
        shrink *= 2;
    return shrink;
}

/* How the crop is scaled, when its coded pixels are shrunk and then turned upright. The source of the resizer is
 * decode_region() of the whole crop. Shrunk, that begins and ends at multiples of `shrink`, and so a little outside the
 * crop: the box leaves that out again, to the fraction of a pixel. All of it is whole numbers in pixels before
 * shrinking, so the box is exact. @param region  gets decode_region() */
static struct resize_spec scaling(const struct sample_plan *plan, const struct source *source, const struct geometry *g,
                                  uint32_t shrink, struct rect *region)
{
    const int orientation = source->info.orientation;
    const struct rect crop = coded_part(source, g->crop);
    const struct decode_spec whole = decode_spec(plan, crop, shrink);
    *region = decode_region(&whole);
    const struct rect within = {crop.x - region->x * shrink, crop.y - region->y * shrink, crop.width, crop.height};
    const struct rect box = orient_rect(orientation, region->width * shrink, region->height * shrink, within);
    const bool swaps = orient_swaps(orientation);
    return (struct resize_spec){.width = swaps ? region->height : region->width,
                                .height = swaps ? region->width : region->height,
                                .box = {(double)box.x / shrink, (double)box.y / shrink, (double)box.width / shrink,
                                        (double)box.height / shrink},
                                .scaled_width = g->scaled_width,
                                .scaled_height = g->scaled_height,
                                .window = g->window,
                                .flip = g->flip,
                                .channels = plan->channels};
}

/* The crop whose decode_region() is `part` of `region`. */
static struct rect crop_of(const struct source *source, struct rect region, struct rect part, uint32_t shrink)
{
    struct rect crop = {(region.x + part.x) * shrink, (region.y + part.y) * shrink, part.width * shrink,
                        part.height * shrink};
    if (crop.width > source->info.width - crop.x)
        crop.width = source->info.width - crop.x;
    if (crop.height > source->info.height - crop.y)
        crop.height = source->info.height - crop.y;
    return crop;
}

static int scale(struct sample_scratch *scratch, const struct resize_spec *resize, const uint8_t *in, struct rect held,
                 size_t stride, uint8_t *cell, struct feedd_error *err)
{
    const uint64_t began_ns = clock_ns();
    int status = resizer_apply(scratch->resizer, resize, in, held, stride, cell, err);
    scratch->times.resize_ns += clock_ns() - began_ns;
    return status;
}

/* Only what the resizer reads is decoded. */
static int fill_scaled(const struct sample_plan *plan, struct sample_scratch *scratch, const struct source *source,
                       const struct geometry *g, uint8_t *cell, struct feedd_error *err)
{
    const int orientation = source->info.orientation;
    const uint32_t shrink = choose_shrink(plan, source, g);
    struct rect region;
    const struct resize_spec resize = scaling(plan, source, g, shrink, &region);
    const struct rect held = resize_source(&resize);
    if (source->pixels != NULL && plan->reader->channels == plan->channels)
        return scale(scratch, &resize, pixel_at(plan, source, region.x + held.x, region.y + held.y), held,
                     (size_t)source->info.width * plan->channels, cell, err);
    const struct rect part = orient_rect(orient_inverse(orientation), resize.width, resize.height, held);
    const struct decode_spec spec = decode_spec(plan, crop_of(source, region, part, shrink), shrink);
    const size_t stride = (size_t)held.width * plan->channels;
    int status = scratch_reserve(&scratch->upright, stride * held.height, err);
    if (status == 0)
        status = source_read_turned(plan, scratch, source, &spec, orientation, scratch->upright.bytes, stride, err);
    if (status == 0)
        status = scale(scratch, &resize, scratch->upright.bytes, held, stride, cell, err);
    return status;
}

static size_t image_bytes(const struct sample_plan *plan)
{
    return (size_t)plan->height * plan->width * plan->channels;
}

static int fill_image(const struct sample_plan *plan, struct sample_scratch *scratch, const struct sample_place *place,
                      const struct source *source, uint8_t *cell, struct feedd_error *err)
{
    struct geometry g;
    int status = geometry_choose(&plan->transform, plan->height, plan->width, plan->seed, place->epoch, place->position,
                                 upright_size(source), &g, err);
    if (status != 0)
        return status;
    if (g.window.width < plan->width || g.window.height < plan->height)
        memset(cell, 0, image_bytes(plan));
    if (g.window.width == 0)
        return 0;
    if (g.scaled_width == g.crop.width && g.scaled_height == g.crop.height)
        return fill_unscaled(plan, scratch, source, &g, cell, err);
    return fill_scaled(plan, scratch, source, &g, cell, err);
}

/* ---- samples ---- */

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

static bool normalizes(const struct sample_plan *plan)
{
    return plan->output.mode == FEEDD_NORMALIZE_CPU;
}

/* Where the uint8 image is made: in its cell, or where it is normalised from. */
static int choose_pixels(const struct sample_plan *plan, struct sample_scratch *scratch,
                         const struct sample_place *place, uint8_t **out, struct feedd_error *err)
{
    int status = normalizes(plan) ? scratch_reserve(&scratch->pixels, image_bytes(plan), err) : 0;
    if (status == 0)
        *out = normalizes(plan) ? scratch->pixels.bytes : cell_at(plan, place, FIELD_IMAGE);
    return status;
}

static void finish_image(const struct sample_plan *plan, struct sample_scratch *scratch,
                         const struct sample_place *place, const uint8_t *pixels)
{
    if (!normalizes(plan))
        return;
    const uint64_t began_ns = clock_ns();
    normalize_host(&plan->params, pixels, NULL, cell_at(plan, place, FIELD_IMAGE));
    scratch->times.resize_ns += clock_ns() - began_ns;
}

int sample_fill(const struct sample_plan *plan, struct sample_scratch *scratch, const struct sample_place *place,
                struct feedd_error *err)
{
    const struct reader *reader = plan->reader;
    struct reader_sample sample = {.fd = -1};
    struct source source;
    int status = reader->ops->read(reader, place->index, &sample, err);
    if (status == 0)
        status = source_open(plan, scratch, &sample, &source, err);
    uint8_t *pixels = NULL;
    if (status == 0)
        status = choose_pixels(plan, scratch, place, &pixels, err);
    if (status == 0)
        status = fill_image(plan, scratch, place, &source, pixels, err);
    if (status != 0)
        return name_sample(reader, place->index, status, err);
    finish_image(plan, scratch, place, pixels);
    write_label(plan, place, sample.label, sample.value);
    return 0;
}

int sample_zero(const struct sample_plan *plan, struct sample_scratch *scratch, const struct sample_place *place,
                struct feedd_error *err)
{
    uint8_t *pixels;
    int status = choose_pixels(plan, scratch, place, &pixels, err);
    if (status != 0)
        return status;
    memset(pixels, 0, image_bytes(plan));
    finish_image(plan, scratch, place, pixels);
    write_label(plan, place, -1, -1);
    return 0;
}

/* A stream that doesn't resize delivers images of the size that its first one has. */
static int first_size(struct sample_plan *plan, struct sample_scratch *scratch, struct feedd_error *err)
{
    const struct reader *reader = plan->reader;
    struct reader_sample sample = {.fd = -1};
    struct source source;
    int status = reader->ops->read(reader, 0, &sample, err);
    if (status == 0)
        status = source_open(plan, scratch, &sample, &source, err);
    if (status != 0)
        return name_sample(reader, 0, status, err);
    const struct image_info size = upright_size(&source);
    plan->height = size.height;
    plan->width = size.width;
    return 0;
}

/* Images of a dataset's own channels, unless the transform wants others: what is decoded has any, and pixels in memory
 * go between 1 and 3. */
static int choose_channels(struct sample_plan *plan, struct feedd_error *err)
{
    const uint32_t own = plan->reader->channels, wanted = plan->transform.channels;
    if (wanted != 0 && own != 0 && wanted != own && own != 1 && own != 3)
        return error_set(err, FEEDD_E_UNSUPPORTED,
                         "channels %u of a dataset whose pixels have %u; allowed: the dataset's own, without the key",
                         wanted, own);
    plan->channels = wanted != 0 ? wanted : own != 0 ? own : 3;
    return 0;
}

int sample_plan_init(struct sample_plan *plan, uint32_t batch_size, struct sample_scratch *scratch,
                     struct feedd_error *err)
{
    const struct reader *reader = plan->reader;
    struct slot_layout *layout = &plan->layout;
    int status = choose_channels(plan, err);
    plan->height = plan->transform.height != 0 ? plan->transform.height : reader->height;
    plan->width = plan->transform.width != 0 ? plan->transform.width : reader->width;
    if (status == 0 && plan->height == 0)
        status = first_size(plan, scratch, err);
    if (status != 0)
        return status;
    *layout = (struct slot_layout){.field_count = FIELD_COUNT, .batch_size = batch_size};
    layout->fields[FIELD_IMAGE] = (struct slot_field){
        .name = "image", .dtype = FEEDD_U8, .ndim = 3, .shape = {plan->height, plan->width, plan->channels}};
    output_settle(&plan->output, plan->channels);
    if (plan->output.mode > FEEDD_NORMALIZE_CLIENT) {
        status = output_params(&plan->output, 1, plan->height, plan->width, plan->channels, &plan->params, err);
        if (status != 0)
            return status;
    }
    if (normalizes(plan))
        output_field(&plan->params, &layout->fields[FIELD_IMAGE]);
    layout->fields[FIELD_LABEL] = (struct slot_field){.name = "label", .dtype = (uint32_t)reader->label_dtype};
    layout->fields[FIELD_INDEX] = (struct slot_field){.name = "index", .dtype = FEEDD_I64};
    return slot_layout_init(layout, err);
}
