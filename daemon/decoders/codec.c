/* codec.c - see codec.h. What can fail: the checks; the rest is arithmetic. */
#include "codec.h"

#include "error.h"

int codec_check_size(const char *name, uint32_t width, uint32_t height, const struct decoder_limits *limits,
                     struct feedd_error *err)
{
    const uint64_t pixels = (uint64_t)width * height;
    if (pixels > limits->pixels)
        return error_set(err, FEEDD_E_LIMIT, "%s: %u x %u are %llu pixels; allowed: %llu", name, width, height,
                         (unsigned long long)pixels, (unsigned long long)limits->pixels);
    return 0;
}

int codec_check_spec(const char *name, uint32_t width, uint32_t height, const struct decode_spec *spec,
                     struct feedd_error *err)
{
    const struct rect crop = spec->crop;
    if (crop.width == 0 || crop.x > width || crop.width > width - crop.x || crop.height == 0 || crop.y > height ||
        crop.height > height - crop.y)
        return error_set(err, FEEDD_E_ARGUMENT, "%s: a crop of %u x %u at (%u, %u) isn't within %u x %u pixels", name,
                         crop.width, crop.height, crop.x, crop.y, width, height);
    if (spec->channels != 1 && spec->channels != 3)
        return error_set(err, FEEDD_E_ARGUMENT, "%s: %u channels; allowed: 1, 3", name, spec->channels);
    if (spec->mode != DECODE_EXACT && spec->mode != DECODE_FAST)
        return error_set(err, FEEDD_E_ARGUMENT, "%s: decode mode %d; allowed: 1, 2", name, spec->mode);
    if (spec->shrink != 1)
        return error_set(err, FEEDD_E_ARGUMENT, "%s: shrunk by %u; allowed: 1", name, spec->shrink);
    return 0;
}

void codec_luma(const uint8_t *rgb, size_t pixels, uint8_t *out, size_t out_step)
{
    for (size_t i = 0; i < pixels; i++, rgb += 3, out += out_step)
        *out = (uint8_t)((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >> 16);
}
