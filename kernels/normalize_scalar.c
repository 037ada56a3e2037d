/* normalize_scalar.c - one value at a time: short enough to be checked by reading, and what every other implementation
 * is compared with.
 *
 * Happy path: walk the output in the order of the input, find the value's place, compute, round, store.
 * Nothing can fail: the parameters are checked. Threads: any. */
#include <math.h>
#include <string.h>

#include "normalize_internal.h"

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* binary32 to binary16, half to even. Not for NaN, which checked parameters can't give. */
static uint16_t f16_of(float value)
{
    uint32_t sign = bits_of(value) >> 16 & 0x8000, magnitude = bits_of(value) & 0x7FFFFFFF;
    if (magnitude >= 0x47800000) /* 2^16: beyond all that rounds to a finite number */
        return (uint16_t)(sign | 0x7C00);
    if (magnitude < 0x38800000) /* 2^-14: in [0.5, 1) floats are 2^-24 apart, as the subnormals of binary16 */
        return (uint16_t)(sign | (bits_of(fabsf(value) + 0.5f) - bits_of(0.5f)));
    uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1); /* may carry into the exponent, up to infinity */
    return (uint16_t)(sign | ((rounded >> 13) - ((127 - 15) << 10)));
}

/* binary32 to bfloat16, half to even; a carry out of the largest finite number gives infinity. Not for NaN. */
static uint16_t bf16_of(float value)
{
    return (uint16_t)((bits_of(value) + 0x7FFF + (bits_of(value) >> 16 & 1)) >> 16);
}

static int8_t i8_of(float value)
{
    return (int8_t)rintf(fminf(fmaxf(value, -128), 127)); /* the default mode of rounding: half to even */
}

static void store(int dtype, void *out, size_t index, uint8_t pixel, float offset, float factor)
{
    float difference = (float)pixel - offset;
    float value = difference * factor;
    switch (dtype) {
    case NORMALIZE_U8:
        ((uint8_t *)out)[index] = pixel;
        break;
    case NORMALIZE_I8:
        ((int8_t *)out)[index] = i8_of(value);
        break;
    case NORMALIZE_F16:
        ((uint16_t *)out)[index] = f16_of(value);
        break;
    case NORMALIZE_BF16:
        ((uint16_t *)out)[index] = bf16_of(value);
        break;
    case NORMALIZE_F32:
        ((float *)out)[index] = value;
        break;
    }
}

void normalize_scalar(const struct normalize_params *params, const uint8_t *in, const struct normalize_window *windows,
                      void *out)
{
    const size_t channels = params->channels, width = params->out_width, height = params->out_height;
    const size_t in_row = params->in_width * channels, in_sample = params->in_height * in_row;
    const int planar = params->layout == NORMALIZE_NCHW;
    const size_t channel_stride = planar ? height * width : 1, pixel_stride = planar ? 1 : channels; /* in values */
    struct normalize_constants constants;
    normalize_constants(params, &constants);

    for (size_t n = 0; n < params->batch; n++) {
        struct normalize_window window = windows != NULL ? windows[n] : (struct normalize_window){0};
        for (size_t y = 0; y < height; y++) {
            const uint8_t *from = in + n * in_sample + (window.y + y) * in_row + window.x * channels;
            size_t row = n * height * width * channels + y * width * pixel_stride;
            for (size_t x = 0; x < width; x++) {
                size_t to = row + (window.flip ? width - 1 - x : x) * pixel_stride;
                for (size_t c = 0; c < channels; c++)
                    store(params->dtype, out, to + c * channel_stride, from[x * channels + c], constants.offset[c],
                          constants.factor[c]);
            }
        }
    }
}
