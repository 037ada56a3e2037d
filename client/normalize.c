/* normalize.c - feedd_normalize(): the pixel kernels of kernels/ on a batch, by the CPU or by the GPU that it is for.
 *
 * What can fail: what the caller asks for, which is checked in full before a byte is written; CUDA. Threads: one at a
 * time (feedd.h). */
#include "normalize.h"

#include <string.h>

#include "error.h"
#include "internal.h"

_Static_assert(sizeof(struct feedd_window) == sizeof(struct normalize_window), "handed through as it is");
_Static_assert((int)FEEDD_U8 == (int)NORMALIZE_U8 && (int)FEEDD_I8 == (int)NORMALIZE_I8 &&
                   (int)FEEDD_F16 == (int)NORMALIZE_F16 && (int)FEEDD_BF16 == (int)NORMALIZE_BF16 &&
                   (int)FEEDD_F32 == (int)NORMALIZE_F32,
               "one numbering of dtypes");

static int check_windows(const struct normalize_params *params, const struct feedd_window *windows,
                         struct feedd_error *err)
{
    for (uint32_t i = 0; windows != NULL && i < params->batch; i++)
        if (windows[i].y > params->in_height - params->out_height ||
            windows[i].x > params->in_width - params->out_width)
            return error_set(err, FEEDD_E_ARGUMENT,
                             "window of sample %u begins at row %u, column %u: %u x %u of %u x %u "
                             "pixels don't fit there",
                             i, windows[i].y, windows[i].x, params->out_height, params->out_width, params->in_height,
                             params->in_width);
    return 0;
}

FEEDD_API int feedd_normalize(const struct feedd_batch *batch, uint32_t field,
                              const struct feedd_normalize_options *options, void *out, size_t out_bytes,
                              struct CUstream_st *cuda_stream, struct feedd_error *err)
{
    struct feedd_view view;
    const struct ring_map *map = batch->map;
    struct feedd_stream *stream = map->stream;
    int status = client_check(stream->client, err);
    if (status == FEEDD_E_FORK)
        return status;
    if (options->size != sizeof(*options))
        return error_set(err, FEEDD_E_ARGUMENT,
                         "normalize options of size %zu; this libfeedd knows %zu: set options.size", options->size,
                         sizeof(*options));
    if (batch->state != BATCH_HELD)
        return error_set(err, FEEDD_E_STATE, "a batch that is not held is normalised");
    if (field == 0 && stream->schema.normalize != FEEDD_NORMALIZE_CLIENT)
        return error_set(
            err, FEEDD_E_STATE,
            "field 0 is %s already: the stream was opened with normalize = %s; feedd_batch_copy() takes it",
            dtype_name(stream->schema.fields[0].dtype), normalize_mode_name(stream->schema.normalize));
    if (feedd_batch_view(batch, field, &view) != 0 || view.dtype != FEEDD_U8 || view.ndim != 4)
        return error_set(err, FEEDD_E_ARGUMENT, "field %u is not a uint8 image", field);
    struct normalize_params params = {.batch = (uint32_t)view.shape[0],
                                      .in_height = (uint32_t)view.shape[1],
                                      .in_width = (uint32_t)view.shape[2],
                                      .channels = (uint32_t)view.shape[3],
                                      .dtype = options->dtype,
                                      .layout = options->nchw ? NORMALIZE_NCHW : NORMALIZE_NHWC,
                                      .scale = options->scale};
    params.out_height = options->height != 0 ? options->height : params.in_height;
    params.out_width = options->width != 0 ? options->width : params.in_width;
    memcpy(params.mean, options->mean, sizeof(params.mean));
    memcpy(params.std, options->std, sizeof(params.std));
    const char *wrong = normalize_check(&params);
    if (wrong != NULL)
        return error_set(err, FEEDD_E_ARGUMENT, "%s", wrong);
    status = check_windows(&params, options->windows, err);
    if (status != 0)
        return status;
    if (out_bytes < normalize_bytes(&params))
        return error_set(err, FEEDD_E_LIMIT, "an output of %zu bytes; %zu are needed", out_bytes,
                         normalize_bytes(&params));
    const struct normalize_window *windows = (const struct normalize_window *)options->windows;
    if (map->for_gpu && map->on_host)
        return device_scratch_normalize(&stream->device, &stream->scratch, map->layout.slot_bytes, &params, view.data,
                                        windows, out, cuda_stream, err);
    if (map->for_gpu)
        return device_normalize(&stream->device, &params, view.data, windows, out, cuda_stream, err);
    normalize_host(&params, view.data, windows, out);
    return 0;
}
