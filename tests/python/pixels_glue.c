/* pixels_glue.c - what test_pixels.py calls by ctypes: one decoder and one resizer that serve every call, as a worker's
 * do, and plain numbers in place of structs.
 *
 * Built without sanitizers into every variant, for the process is Python's; the unit tests run the same code with them.
 * What can fail: what the functions behind it say; `message` (1020 bytes) then has the reason.
 * Threads: one. */
#include <string.h>

#include "decoder.h"
#include "geometry.h"
#include "resize.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int pixels_open(uint64_t pixels_max);
EXPORT void pixels_close(void);
EXPORT int pixels_find(const uint8_t *bytes, size_t size, char *message);
EXPORT int pixels_probe(const uint8_t *bytes, size_t size, uint32_t out[2], char *message);
EXPORT int pixels_decode(const uint8_t *bytes, size_t size, const uint32_t crop[4], uint8_t *out, size_t stride,
                         char *message);
EXPORT int pixels_choose(int kind, uint32_t resize, uint32_t height, uint32_t width, double flip, uint64_t seed,
                         uint64_t epoch, uint64_t position, uint32_t image_width, uint32_t image_height,
                         uint32_t out[11], char *message);
EXPORT int pixels_resize(const uint8_t *in, uint32_t width, uint32_t height, size_t stride, uint32_t channels,
                         uint32_t scaled_width, uint32_t scaled_height, const uint32_t window[4], int flip,
                         uint8_t *out);

static struct decoder *decoder;
static struct resizer *resizer;

int pixels_open(uint64_t pixels_max)
{
    int rc = decoder_jpeg.decoder_new(&(struct decoder_limits){.pixels = pixels_max}, &decoder, NULL);
    return rc != 0 ? rc : resizer_new(&resizer, NULL);
}

void pixels_close(void)
{
    decoder_jpeg.decoder_free(decoder);
    resizer_free(resizer);
}

static int tell(int rc, const struct feedd_error *err, char *message)
{
    memcpy(message, err->message, sizeof(err->message));
    return rc;
}

int pixels_find(const uint8_t *bytes, size_t size, char *message)
{
    struct feedd_error err = {.message = ""};
    return tell(decoder_find((struct blob){bytes, size}, &err), &err, message);
}

int pixels_probe(const uint8_t *bytes, size_t size, uint32_t out[2], char *message)
{
    struct feedd_error err = {.message = ""};
    struct image_info info = {0, 0};
    int rc = decoder_jpeg.probe(decoder, (struct blob){bytes, size}, &info, &err);
    out[0] = info.width;
    out[1] = info.height;
    return tell(rc, &err, message);
}

int pixels_decode(const uint8_t *bytes, size_t size, const uint32_t crop[4], uint8_t *out, size_t stride, char *message)
{
    struct feedd_error err = {.message = ""};
    const struct rect rect = {crop[0], crop[1], crop[2], crop[3]};
    return tell(decoder_jpeg.decode(decoder, (struct blob){bytes, size}, rect, out, stride, &err), &err, message);
}

int pixels_choose(int kind, uint32_t resize, uint32_t height, uint32_t width, double flip, uint64_t seed,
                  uint64_t epoch, uint64_t position, uint32_t image_width, uint32_t image_height, uint32_t out[11],
                  char *message)
{
    const struct transform_spec spec = {kind, resize, height, width, flip};
    const struct image_info image = {.width = image_width, .height = image_height};
    struct feedd_error err = {.message = ""};
    struct geometry g = {0};
    int rc = geometry_choose(&spec, height, width, seed, epoch, position, image, &g, &err);
    const uint32_t all[11] = {g.crop.x,   g.crop.y,   g.crop.width,   g.crop.height,   g.scaled_width, g.scaled_height,
                              g.window.x, g.window.y, g.window.width, g.window.height, g.flip};
    memcpy(out, all, sizeof(all));
    return tell(rc, &err, message);
}

int pixels_resize(const uint8_t *in, uint32_t width, uint32_t height, size_t stride, uint32_t channels,
                  uint32_t scaled_width, uint32_t scaled_height, const uint32_t window[4], int flip, uint8_t *out)
{
    const struct rect rect = {window[0], window[1], window[2], window[3]};
    return resizer_apply(resizer, in, width, height, stride, channels, scaled_width, scaled_height, rect, flip, out,
                         NULL);
}
