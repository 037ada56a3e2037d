/* normalize.h - pixels as decoded into what a network reads: crop, flip, normalise, cast, layout, in one pass.
 *
 *   out = (x - mean*scale) * (1 / (std*scale))        per channel, x = the uint8 pixel
 *
 * The two constants are computed in double and rounded once to float; the subtraction and the product are each rounded
 * to nearest even, never contracted into an FMA; then one rounding to the output type (i8: half to even, saturating).
 * So every implementation, vector or scalar, host or device, gives the same bits, within 1e-6 of double arithmetic for
 * values in the usual range. mean and std are in 0..1 as torchvision has them; scale is 255 for 8-bit pixels;
 * mean = std = 0.5 gives (x - 127.5) / 127.5. f16 is IEEE 754 binary16 (overflow to infinity, subnormals kept), bf16
 * the upper half of a binary32, both rounded half to even. u8 output is the pixel itself: mean, std and scale don't
 * apply and aren't looked at. No NaN comes out of checked parameters. Callers leave the floating-point environment as
 * programs start with it: rounding to nearest, subnormals kept.
 *
 * Plain C with no types of the project: the daemon, the library and device code share it. Thread-safe; no state but the
 * choice of instructions, made once. */
#ifndef FEEDD_NORMALIZE_H
#define FEEDD_NORMALIZE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types of the output; the numbers are those of enum feedd_dtype. */
enum normalize_dtype { NORMALIZE_U8 = 1, NORMALIZE_I8 = 2, NORMALIZE_F16 = 3, NORMALIZE_BF16 = 4, NORMALIZE_F32 = 5 };

enum normalize_layout { NORMALIZE_NHWC = 1, NORMALIZE_NCHW = 2 };

#define NORMALIZE_CHANNELS_MAX 4

/* Where one sample's output lies in its input. */
struct normalize_window {
    uint32_t y, x; /* of the first output row and column in the input; y + out_height <= in_height, x likewise */
    uint32_t flip; /* not 0: mirrored left to right, within the window */
};

struct normalize_params {
    uint32_t batch, in_height, in_width, channels; /* input: uint8, NHWC without gaps; channels 1 to 4 */
    uint32_t out_height, out_width;                /* at most the input's */
    int dtype, layout;                             /* enum normalize_dtype, enum normalize_layout */
    double mean[NORMALIZE_CHANNELS_MAX], std[NORMALIZE_CHANNELS_MAX], scale;
};

/* What the kernels compute with, and nothing else: made once from the parameters. */
struct normalize_constants {
    float offset[NORMALIZE_CHANNELS_MAX]; /* mean * scale */
    float factor[NORMALIZE_CHANNELS_MAX]; /* 1 / (std * scale) */
};

/* @return NULL when the parameters make sense, else one line that says which does not (static text): a zero dimension,
 * more than 4 channels, an output larger than the input, an unknown dtype or layout, a mean, std or scale that is not
 * finite, std or scale not above 0, constants that a (normal) float can't hold, sizes whose product doesn't fit into
 * 2^62 bytes */
const char *normalize_check(const struct normalize_params *params);

/* Bytes of the output. Parameters must have passed normalize_check(). */
size_t normalize_bytes(const struct normalize_params *params);

/* Those of channels that aren't there are 0, and all for u8. Parameters must have passed normalize_check(). */
void normalize_constants(const struct normalize_params *params, struct normalize_constants *out);

/* @param in       batch x in_height x in_width x channels uint8
 * @param windows  one a sample (each must lie within the input), or NULL: all begin at 0, 0 and are not mirrored
 * @param out      normalize_bytes(params); aligned to the element; must not overlap `in`; every byte is written
 * The best instructions that this CPU has. Parameters must have passed normalize_check(). */
void normalize_host(const struct normalize_params *params, const uint8_t *in, const struct normalize_window *windows,
                    void *out);

/* The same in plain C, one value at a time: the oracle of every other implementation. */
void normalize_scalar(const struct normalize_params *params, const uint8_t *in, const struct normalize_window *windows,
                      void *out);

/* What normalize_host() chose: "avx2", "scalar". */
const char *normalize_host_name(void);

#ifdef __cplusplus
}
#endif
#endif
