/* pixels_glue.c - what test_pixels.py calls by ctypes: samples as a worker makes them, with one scratch that serves
 * every call, and plain numbers in place of structs.
 *
 * Built without sanitizers into every variant, for the process is Python's; the unit tests run the same code with them.
 * What can fail: what the functions behind it say; `message` (1020 bytes) then has the reason.
 * Threads: one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"
#include "sample.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int pixels_open(uint64_t pixels_max, uint64_t encoded_bytes_max);
EXPORT void pixels_close(void);
EXPORT int pixels_choose(const double *transform, uint32_t height, uint32_t width, uint64_t seed, uint64_t epoch,
                         uint64_t position, uint32_t image_width, uint32_t image_height, uint32_t out[13],
                         char *message);
EXPORT int pixels_file(const char *path, const double *transform, uint64_t seed, uint64_t epoch, uint64_t position,
                       uint8_t *out, size_t out_bytes, uint32_t shape[3], char *message);
EXPORT int pixels_memory(const uint8_t *pixels, uint32_t height, uint32_t width, uint32_t channels,
                         const double *transform, uint64_t seed, uint64_t epoch, uint64_t position, uint8_t *out,
                         size_t out_bytes, uint32_t shape[3], char *message);

static struct sample_scratch *scratch;
static struct sample_limits limits;

/* A dataset of one sample: the file at `path`, or pixels. */
struct one {
    struct reader reader;
    const char *path;
    const uint8_t *pixels;
};

int pixels_open(uint64_t pixels_max, uint64_t encoded_bytes_max)
{
    limits = (struct sample_limits){pixels_max, encoded_bytes_max};
    scratch = sample_scratch_new();
    return scratch != NULL ? 0 : FEEDD_E_MEMORY;
}

void pixels_close(void)
{
    sample_scratch_free(scratch);
}

static int one_read(const struct reader *reader, uint64_t index, struct reader_sample *out, struct feedd_error *err)
{
    const struct one *one = (const struct one *)reader;
    struct stat stat;
    *out = (struct reader_sample){.pixels = one->pixels, .fd = -1, .label = (int64_t)index};
    if (one->pixels != NULL)
        return 0;
    out->fd = open(one->path, O_RDONLY | O_CLOEXEC);
    if (out->fd < 0 || fstat(out->fd, &stat) != 0)
        return error_set(err, FEEDD_E_IO, "%s", strerror(errno));
    out->size = (uint64_t)stat.st_size;
    return 0;
}

static void one_path(const struct reader *reader, uint64_t index, char *text, size_t size)
{
    const struct one *one = (const struct one *)reader;
    (void)index;
    snprintf(text, size, "%s", one->path);
}

static const struct reader_ops one_ops = {.name = "one", .read = one_read, .path = one_path};

static int tell(int rc, const struct feedd_error *err, char *message)
{
    memcpy(message, err->message, sizeof(err->message));
    return rc;
}

/* The inverse of transform_list(). */
static struct transform_spec spec_of(const double *v)
{
    return (struct transform_spec){.kind = (int)v[0],
                                   .resize = (uint32_t)v[1],
                                   .resize_height = (uint32_t)v[2],
                                   .resize_width = (uint32_t)v[3],
                                   .height = (uint32_t)v[4],
                                   .width = (uint32_t)v[5],
                                   .scale = {v[6], v[7]},
                                   .ratio = {v[8], v[9]},
                                   .padding = {(uint32_t)v[10], (uint32_t)v[11], (uint32_t)v[12], (uint32_t)v[13]},
                                   .flip = v[14],
                                   .fast = v[15] != 0,
                                   .ignore_orientation = v[16] != 0,
                                   .accept_truncated = v[17] != 0,
                                   .channels = (uint32_t)v[18]};
}

/* Fails when the list isn't one of a spec that makes sense. */
static int read_spec(const double *transform, struct transform_spec *spec, struct feedd_error *err)
{
    struct transform_field fields[TRANSFORM_FIELDS];
    *spec = spec_of(transform);
    transform_list(spec, fields);
    for (int i = 0; i < TRANSFORM_FIELDS; i++)
        if (fields[i].value != transform[i])
            return error_set(err, FEEDD_E_ARGUMENT, "number %d of the transform, %s, has come back as %g", i,
                             fields[i].name, fields[i].value);
    const char *problem = transform_check(spec);
    return problem != NULL ? error_set(err, FEEDD_E_ARGUMENT, "%s", problem) : 0;
}

int pixels_choose(const double *transform, uint32_t height, uint32_t width, uint64_t seed, uint64_t epoch,
                  uint64_t position, uint32_t image_width, uint32_t image_height, uint32_t out[13], char *message)
{
    struct feedd_error err = {.message = ""};
    struct transform_spec spec;
    struct geometry g = {.flip = false};
    int rc = read_spec(transform, &spec, &err);
    if (rc == 0)
        rc = geometry_choose(&spec, height, width, seed, epoch, position,
                             (struct image_info){.width = image_width, .height = image_height}, &g, &err);
    const uint32_t all[13] = {g.crop.x,        g.crop.y,   g.crop.width, g.crop.height,  g.scaled_width,
                              g.scaled_height, g.window.x, g.window.y,   g.window.width, g.window.height,
                              g.flip,          g.x,        g.y};
    memcpy(out, all, sizeof(all));
    return tell(rc, &err, message);
}

static int make_sample(const struct reader *reader, const double *transform, uint64_t seed, uint64_t epoch,
                       uint64_t position, uint8_t *out, size_t out_bytes, uint32_t shape[3], char *message)
{
    struct feedd_error err = {.message = ""};
    struct sample_plan plan = {.reader = reader, .limits = limits, .seed = seed};
    int rc = read_spec(transform, &plan.transform, &err);
    if (rc == 0)
        rc = sample_plan_init(&plan, 1, scratch, &err);
    if (rc != 0)
        return tell(rc, &err, message);
    const struct slot_field *image = &plan.layout.fields[0];
    uint8_t *slot = malloc(plan.layout.slot_bytes);
    if (slot == NULL || image->sample_bytes > out_bytes) {
        free(slot);
        return tell(error_set(&err, FEEDD_E_MEMORY, "no room for the sample"), &err, message);
    }
    memset(slot, out[0], plan.layout.slot_bytes); /* the caller's poison */
    const struct sample_place place = {.epoch = epoch, .position = position, .slot = slot};
    rc = sample_fill(&plan, scratch, &place, &err);
    memcpy(out, slot + image->offset, image->sample_bytes);
    shape[0] = plan.height;
    shape[1] = plan.width;
    shape[2] = plan.channels;
    free(slot);
    return tell(rc, &err, message);
}

int pixels_file(const char *path, const double *transform, uint64_t seed, uint64_t epoch, uint64_t position,
                uint8_t *out, size_t out_bytes, uint32_t shape[3], char *message)
{
    const struct one one = {.reader = {.ops = &one_ops, .sample_count = 1, .label_dtype = FEEDD_I64}, .path = path};
    return make_sample(&one.reader, transform, seed, epoch, position, out, out_bytes, shape, message);
}

int pixels_memory(const uint8_t *pixels, uint32_t height, uint32_t width, uint32_t channels, const double *transform,
                  uint64_t seed, uint64_t epoch, uint64_t position, uint8_t *out, size_t out_bytes, uint32_t shape[3],
                  char *message)
{
    const struct one one = {.reader = {.ops = &one_ops,
                                       .sample_count = 1,
                                       .height = height,
                                       .width = width,
                                       .channels = channels,
                                       .label_dtype = FEEDD_I64},
                            .path = "memory",
                            .pixels = pixels};
    return make_sample(&one.reader, transform, seed, epoch, position, out, out_bytes, shape, message);
}
