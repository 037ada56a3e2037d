/* output.c - see output.h.
 *
 * Happy path: resolve (at OPEN) -> settle, params, field (once the dataset is open).
 * What can fail: a mode that can't be had here; values that normalize_check() refuses.
 * Threads: any. */
#include "output.h"

#include <stdio.h>

#include "error.h"

void output_init(struct output_spec *output)
{
    *output = (struct output_spec){.scale = 255};
    for (int c = 0; c < NORMALIZE_CHANNELS_MAX; c++)
        output->std[c] = 1;
}

static void choose(struct output_spec *output, int mode, const char *reason)
{
    output->mode = mode;
    snprintf(output->reason, sizeof(output->reason), "%s", reason);
}

static void choose_nothing(struct output_spec *output)
{
    choose(output, FEEDD_NORMALIZE_CLIENT, "nothing to normalise");
}

static int check_daemon(const struct output_client *client, struct feedd_error *err)
{
    if (!client->has_device)
        return error_set(err, FEEDD_E_UNSUPPORTED,
                         "normalize = daemon is a kernel on a GPU: without a device there is normalize = cpu");
    if (!client->maps_gpu_memory)
        return error_set(err, FEEDD_E_UNSUPPORTED,
                         "normalize = daemon writes to a GPU's memory: transport ipc or fd is needed, and it is host");
    return 0;
}

/* What no image's size or channels change. */
static int check_values(const struct output_spec *output, struct feedd_error *err)
{
    struct normalize_params params;
    return output_params(output, 1, 1, 1, 1, &params, err);
}

int output_resolve(struct output_spec *output, const struct output_client *client, struct feedd_error *err)
{
    const int asked = output->mode;
    int status = 0;
    if (output->dtype == 0 || (output->dtype == FEEDD_U8 && !output->nchw)) {
        choose_nothing(output);
        return 0;
    }
    if (asked == FEEDD_NORMALIZE_CLIENT && !client->normalizes)
        status = error_set(err, FEEDD_E_UNSUPPORTED, "normalize = client: the client says that it can't");
    else if (asked == FEEDD_NORMALIZE_DAEMON)
        status = check_daemon(client, err);
    if (status == 0 && asked != FEEDD_NORMALIZE_CLIENT && (asked != 0 || !client->normalizes))
        status = check_values(output, err);
    if (status != 0)
        return status;
    if (asked == FEEDD_NORMALIZE_CLIENT)
        choose(output, asked, "normalised by the client: as it was asked for");
    else if (asked == FEEDD_NORMALIZE_DAEMON)
        choose(output, asked, "normalised by the daemon: as it was asked for");
    else if (asked == FEEDD_NORMALIZE_CPU)
        choose(output, asked, "normalised by the CPU: as it was asked for");
    else if (client->normalizes)
        choose(output, FEEDD_NORMALIZE_CLIENT, "normalised by the client: auto, and it can");
    else if (client->maps_gpu_memory)
        choose(output, FEEDD_NORMALIZE_DAEMON, "normalised by the daemon: auto, and the client can't");
    else
        choose(output, FEEDD_NORMALIZE_CPU,
               client->has_device ? "normalised by the CPU: auto, the client can't, and it maps host memory"
                                  : "normalised by the CPU: auto, the client can't, and there is no GPU");
    return 0;
}

void output_settle(struct output_spec *output, uint32_t channels)
{
    if (output->dtype == FEEDD_U8 && channels == 1)
        choose_nothing(output);
}

int output_params(const struct output_spec *output, uint32_t batch, uint32_t height, uint32_t width, uint32_t channels,
                  struct normalize_params *out, struct feedd_error *err)
{
    struct normalize_params params = {.batch = batch,
                                      .in_height = height,
                                      .in_width = width,
                                      .channels = channels,
                                      .out_height = height,
                                      .out_width = width,
                                      .dtype = output->dtype,
                                      .layout = output->nchw ? NORMALIZE_NCHW : NORMALIZE_NHWC,
                                      .scale = output->scale};
    for (int c = 0; c < NORMALIZE_CHANNELS_MAX; c++) {
        params.mean[c] = output->mean[c];
        params.std[c] = output->std[c];
    }
    const char *problem = normalize_check(&params);
    if (problem != NULL)
        return error_set(err, FEEDD_E_ARGUMENT, "output: %s", problem);
    *out = params;
    return 0;
}

void output_field(const struct normalize_params *params, struct slot_field *field)
{
    const uint64_t height = params->out_height, width = params->out_width, channels = params->channels;
    const bool nchw = params->layout == NORMALIZE_NCHW;
    field->dtype = (uint32_t)params->dtype; /* the numbers are the same */
    field->ndim = 3;
    field->shape[0] = nchw ? channels : height;
    field->shape[1] = nchw ? height : width;
    field->shape[2] = nchw ? width : channels;
}

_Static_assert((int)NORMALIZE_U8 == (int)FEEDD_U8 && (int)NORMALIZE_F32 == (int)FEEDD_F32, "the same numbers");

void output_list(const struct output_spec *output, uint32_t channels, struct transform_field out[OUTPUT_FIELDS])
{
    static const char *const means[] = {"output.mean[0]", "output.mean[1]", "output.mean[2]", "output.mean[3]"};
    static const char *const stds[] = {"output.std[0]", "output.std[1]", "output.std[2]", "output.std[3]"};
    _Static_assert(OUTPUT_FIELDS == 4 + 2 * NORMALIZE_CHANNELS_MAX, "four, and two of each channel");
    const bool counts = output->mode != FEEDD_NORMALIZE_CLIENT;
    const bool scales = counts && output->dtype != FEEDD_U8;
    struct transform_field *field = out;
    *field++ = (struct transform_field){"normalize", output->mode, normalize_mode_name(output->mode)};
    *field++ = (struct transform_field){"output.dtype", counts ? output->dtype : 0, dtype_name(output->dtype)};
    *field++ = (struct transform_field){"output.layout", counts && output->nchw, output->nchw ? "nchw" : "nhwc"};
    *field++ = (struct transform_field){"output.scale", scales ? output->scale : 0, NULL};
    for (uint32_t c = 0; c < NORMALIZE_CHANNELS_MAX; c++) {
        *field++ = (struct transform_field){means[c], scales && c < channels ? output->mean[c] : 0, NULL};
        *field++ = (struct transform_field){stds[c], scales && c < channels ? output->std[c] : 0, NULL};
    }
}
