/* output.h - what images are delivered as, and who makes of uint8 pixels what a network reads.
 *
 * A client says what it wants, and perhaps by whom. Which mode comes of it, and why, is decided once, at OPEN, but for
 * one case that needs the images' channels (output_settle()). With mode client slots hold pixels as decoded, and what
 * is wanted is the client's own business; with daemon the kernel writes it into a GPU's placements; with cpu workers
 * write it into staging. Threads: any; nothing here has state. */
#ifndef FEEDD_OUTPUT_H
#define FEEDD_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "feedd_types.h"
#include "geometry.h"
#include "normalize.h"
#include "slot.h"

struct output_spec {
    int mode;  /* enum feedd_normalize_mode; 0: not decided yet */
    int dtype; /* enum feedd_dtype; 0: as decoded, and nothing below counts */
    bool nchw; /* planes {channels, height, width}; else {height, width, channels} */
    double mean[NORMALIZE_CHANNELS_MAX], std[NORMALIZE_CHANNELS_MAX], scale; /* as normalize.h; unused channels: any */
    char reason[96];                                                         /* of the mode, for a person */
};

/* Who asks, where, and what it can do. */
struct output_client {
    bool has_device;      /* its batches are for a GPU */
    bool maps_gpu_memory; /* by its transport; else host memory */
    bool normalizes;      /* it can do it itself */
};

/* mean 0, std 1, scale 255: to 0..1. */
void output_init(struct output_spec *output);

/* Decides output->mode, which is what was asked for, or 0, and its reason.
 * @return 0; FEEDD_E_UNSUPPORTED: what was asked for can't be had here; FEEDD_E_ARGUMENT: values that make no sense for
 * any image. In a failure *output is as it was */
int output_resolve(struct output_spec *output, const struct output_client *client, struct feedd_error *err);

/* The channels are known: planes of one channel are images as decoded. */
void output_settle(struct output_spec *output, uint32_t channels);

/* The parameters for a batch of images as decoded. @return 0; FEEDD_E_ARGUMENT: values that make no sense for them */
int output_params(const struct output_spec *output, uint32_t batch, uint32_t height, uint32_t width, uint32_t channels,
                  struct normalize_params *out, struct feedd_error *err);

/* Of a field of images as decoded: dtype and shape of what these parameters make of it. */
void output_field(const struct normalize_params *params, struct slot_field *field);

/* A spec as a list, as transform_list(): what makes other bytes. With mode client the rest doesn't count.
 * @param channels  how many of mean and std count */
#define OUTPUT_FIELDS 12
void output_list(const struct output_spec *output, uint32_t channels, struct transform_field out[OUTPUT_FIELDS]);

#endif
