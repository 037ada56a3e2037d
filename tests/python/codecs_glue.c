/* codecs_glue.c - what test_codecs.py calls by ctypes: one decoder of each codec, which serve every call, as a worker's
 * do, and plain numbers in place of structs. Content chooses the codec.
 *
 * Built without sanitizers into every variant, for the process is Python's; the unit tests run the same code with them.
 * What can fail: what the functions behind it say; `message` (1020 bytes) then has the reason.
 * Threads: one. */
#include <string.h>

#include "decoder.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int codecs_open(uint64_t pixels_max);
EXPORT void codecs_close(void);
EXPORT int codecs_probe(const uint8_t *bytes, size_t size, uint32_t out[3], char *message);
EXPORT int codecs_decode(const uint8_t *bytes, size_t size, const uint32_t crop[4], uint32_t channels,
                         int accept_truncated, uint8_t *out, size_t stride, char *message);

static struct decoder *all[DECODER_COUNT];

int codecs_open(uint64_t pixels_max)
{
    int status = 0;
    for (int i = 0; i < DECODER_COUNT && status == 0; i++)
        status = decoders[i]->decoder_new(&(struct decoder_limits){.pixels = pixels_max}, &all[i], NULL);
    return status;
}

void codecs_close(void)
{
    for (int i = 0; i < DECODER_COUNT; i++)
        decoders[i]->decoder_free(all[i]);
}

static int tell(int status, const struct feedd_error *err, char *message)
{
    memcpy(message, err->message, sizeof(err->message));
    return status;
}

int codecs_probe(const uint8_t *bytes, size_t size, uint32_t out[3], char *message)
{
    const struct blob in = {bytes, size};
    struct feedd_error err = {.message = ""};
    struct image_info info = {0};
    int status = decoder_find(in, &err);
    if (status >= 0)
        status = decoders[status]->probe(all[status], in, &info, &err);
    out[0] = info.width;
    out[1] = info.height;
    out[2] = info.orientation;
    return tell(status, &err, message);
}

int codecs_decode(const uint8_t *bytes, size_t size, const uint32_t crop[4], uint32_t channels, int accept_truncated,
                  uint8_t *out, size_t stride, char *message)
{
    const struct blob in = {bytes, size};
    const struct decode_spec spec = {.crop = {crop[0], crop[1], crop[2], crop[3]},
                                     .channels = channels,
                                     .mode = DECODE_EXACT,
                                     .shrink = 1,
                                     .accept_truncated = accept_truncated != 0};
    struct feedd_error err = {.message = ""};
    int status = decoder_find(in, &err);
    if (status >= 0)
        status = decoders[status]->decode(all[status], in, &spec, out, stride, &err);
    return tell(status, &err, message);
}
