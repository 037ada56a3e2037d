/* decoder.h - encoded bytes -> pixels: the ops table that each codec implements, one file a codec.
 *
 * A decoder is one thread's scratch for one codec: libraries' handles and buffers that are used again from sample to
 * sample. Content decides the codec, never a file's name.
 * Threads: a decoder belongs to one worker; different decoders are independent. */
#ifndef FEEDD_DECODER_H
#define FEEDD_DECODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedd_types.h"

struct decoder_ops;

/* Encoded bytes; borrowed for a call. */
struct blob {
    const uint8_t *bytes;
    size_t size;
};

struct rect {
    uint32_t x, y, width, height;
};

struct decoder_limits {
    uint64_t pixels; /* width x height of an image */
};

/* Opaque to all but its codec, which puts its own state behind it. */
struct decoder {
    const struct decoder_ops *ops;
    struct decoder_limits limits;
};

/* What a header says. */
struct image_info {
    uint32_t width, height; /* pixels, both at least 1 */
};

struct decoder_ops {
    const char *name; /* "jpeg" */
    /* Do these bytes begin as this codec's files do? */
    bool (*recognises)(struct blob in);
    /* @return 0 and *out, owned by the caller; FEEDD_E_MEMORY */
    int (*decoder_new)(const struct decoder_limits *limits, struct decoder **out, struct feedd_error *err);
    void (*decoder_free)(struct decoder *decoder);
    /* Reads the header. @return 0; FEEDD_E_CORRUPT, FEEDD_E_UNSUPPORTED (said by name), FEEDD_E_LIMIT */
    int (*probe)(struct decoder *decoder, struct blob in, struct image_info *out, struct feedd_error *err);
    /* Decodes the region `crop` (within the image) as RGB.
     * @param out     crop.height x crop.width x 3 uint8; every byte is written on success, undefined on failure
     * @param stride  bytes from row to row of `out`
     * @return 0; FEEDD_E_CORRUPT (reason in err), FEEDD_E_UNSUPPORTED, FEEDD_E_LIMIT, FEEDD_E_MEMORY; FEEDD_E_ARGUMENT
     * for a crop that isn't within the image */
    int (*decode)(struct decoder *decoder, struct blob in, struct rect crop, uint8_t *out, size_t stride,
                  struct feedd_error *err);
};

extern const struct decoder_ops decoder_jpeg;

#define DECODER_COUNT 1

/* All codecs; a worker keeps one decoder of each, made when it is first needed. */
extern const struct decoder_ops *const decoders[DECODER_COUNT];

/* The number of the codec of these bytes in decoders[]. @return FEEDD_E_UNSUPPORTED, and err names the format where it
 * is a known one ("a PNG image: ...") */
int decoder_find(struct blob in, struct feedd_error *err);

#endif
