/* shape.c - "3x224x224" read, checked, and turned into what kernels and slots are described by.
 *
 * What can fail: a shape that isn't one; a batch that is larger than slots and kernels can be. Threads: any. */
#include "shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

#define DIMS       4
#define LIST_BYTES 1024

static int wrong(const char *option, const char *text)
{
    fprintf(stderr,
            "feedctl: --%s %s: right is CxHxW or FxCxHxW: C from 1 to %d, H and W from 1 to %u, F from 1 to %u\n",
            option, text, NORMALIZE_CHANNELS_MAX, SHAPE_SIDE_MAX, SHAPE_FRAMES_MAX);
    return 2;
}

int shape_parse(const char *option, const char *text, struct shape *out)
{
    uint32_t dims[DIMS];
    size_t count = 0;
    const char *at = text;
    for (;;) {
        char *end;
        const unsigned long value = strtoul(at, &end, 10);
        if (count == DIMS || *at < '0' || *at > '9' || value == 0 || value > SHAPE_SIDE_MAX)
            return wrong(option, text);
        dims[count++] = (uint32_t)value;
        at = end;
        if (*at == '\0')
            break;
        if (*at++ != 'x')
            return wrong(option, text);
    }
    struct shape shape = {.frames = 1};
    if (count == DIMS)
        shape.frames = dims[0];
    if (count < 3 || dims[count - 3] > NORMALIZE_CHANNELS_MAX || shape.frames > SHAPE_FRAMES_MAX)
        return wrong(option, text);
    shape.channels = dims[count - 3];
    shape.height = dims[count - 2];
    shape.width = dims[count - 1];
    const int n = count == DIMS ? snprintf(shape.text, sizeof(shape.text), "%ux", shape.frames) : 0;
    snprintf(shape.text + n, sizeof(shape.text) - (size_t)n, "%ux%ux%u", shape.channels, shape.height, shape.width);
    *out = shape;
    return 0;
}

int shape_parse_list(const char *option, const char *text, struct shape out[BENCH_LIST_MAX], size_t *count)
{
    char list[LIST_BYTES], *rest = list, *item;
    size_t n = 0;
    if (strlen(text) >= sizeof(list))
        return fprintf(stderr, "feedctl: --%s: at most %d bytes are right\n", option, LIST_BYTES - 1), 2;
    strcpy(list, text);
    while ((item = strsep(&rest, ",")) != NULL) {
        if (n == BENCH_LIST_MAX)
            return fprintf(stderr, "feedctl: --%s: at most %u shapes are right\n", option, BENCH_LIST_MAX), 2;
        if (shape_parse(option, item, &out[n]) != 0)
            return 2;
        for (size_t i = 0; i < n; i++)
            if (strcmp(out[i].text, out[n].text) == 0)
                return fprintf(stderr, "feedctl: --%s %s: %s is there twice\n", option, text, item), 2;
        n++;
    }
    *count = n;
    return 0;
}

json_t *shape_list_json(const struct shape *shapes, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_string(shapes[i].text));
    return list;
}

size_t shape_elements(const struct shape *shape)
{
    return (size_t)shape->frames * shape->channels * shape->height * shape->width;
}

int shape_params(const struct shape *shape, uint64_t batch, int dtype, struct normalize_params *out,
                 struct feedd_error *err)
{
    static const double mean[NORMALIZE_CHANNELS_MAX] = {0.485, 0.456, 0.406, 0.5};
    static const double std[NORMALIZE_CHANNELS_MAX] = {0.229, 0.224, 0.225, 0.5};
    struct normalize_params params = {
        .batch = (uint32_t)(batch * shape->frames),
        .in_height = shape->height,
        .in_width = shape->width,
        .channels = shape->channels,
        .out_height = shape->height,
        .out_width = shape->width,
        .dtype = dtype,
        .layout = NORMALIZE_NCHW,
        .scale = 255,
    };
    memcpy(params.mean, mean, sizeof(mean));
    memcpy(params.std, std, sizeof(std));
    const char *problem = normalize_check(&params);
    if (problem != NULL)
        return error_set(err, FEEDD_E_LIMIT, "%llu x %s: %s", (unsigned long long)batch, shape->text, problem);
    *out = params;
    return 0;
}

int shape_slot(const struct shape *shape, uint64_t batch, int dtype, struct slot_layout *out, struct feedd_error *err)
{
    struct slot_layout layout = {
        .field_count = 1,
        .batch_size = (uint32_t)batch,
        .fields = {{.name = "image",
                    .dtype = (uint32_t)dtype,
                    .ndim = 4,
                    .shape = {shape->frames, shape->height, shape->width, shape->channels}}},
    };
    if (slot_layout_init(&layout, NULL) !=
        0) /* with a shape and a batch size that are checked, it can only be too large */
        return error_set(err, FEEDD_E_LIMIT, "%llu x %s: a batch of at most %llu bytes fits into a slot",
                         (unsigned long long)batch, shape->text, FEEDD_MAX_SLOT_BYTES);
    *out = layout;
    return 0;
}
