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
    uint32_t width, height; /* pixels as they are coded, both at least 1 */
    uint8_t orientation;    /* EXIF's, 1 to 8: how the coded pixels have to be turned; 1 where nothing valid says so */
};

enum decode_mode {
    DECODE_EXACT = 1, /* every pixel as when the whole image is decoded by the accurate methods */
    DECODE_FAST = 2   /* whatever is cheaper may be used; see jpeg.c for what that costs */
};

/* What shall be decoded of an image, and how. */
struct decode_spec {
    struct rect crop;      /* within the coded image, not empty */
    uint32_t channels;     /* 3: RGB, as Pillow's convert("RGB") makes it; 1: luma */
    int mode;              /* enum decode_mode */
    uint32_t shrink;       /* both sides divided by 1, 2, 4 or 8; at most the codec's max_shrink, 1 when EXACT */
    bool accept_truncated; /* an image that is cut short is no error: what is missing is gray or black */
};

/* Where in the image divided by spec->shrink the crop lies: what decode() writes has this size. */
static inline struct rect decode_region(const struct decode_spec *spec)
{
    const struct rect crop = spec->crop;
    const uint32_t s = spec->shrink;
    const uint32_t x = crop.x / s, y = crop.y / s;
    return (struct rect){x, y, (crop.x + crop.width + s - 1) / s - x, (crop.y + crop.height + s - 1) / s - y};
}

struct decoder_ops {
    const char *name;    /* "jpeg" */
    uint32_t max_shrink; /* 1, or up to which power of two the codec can shrink while it decodes */
    /* Do these bytes begin as this codec's files do? */
    bool (*recognises)(struct blob in);
    /* @return 0 and *out, owned by the caller; FEEDD_E_MEMORY */
    int (*decoder_new)(const struct decoder_limits *limits, struct decoder **out, struct feedd_error *err);
    void (*decoder_free)(struct decoder *decoder);
    /* Reads the header. @return 0; FEEDD_E_CORRUPT, FEEDD_E_UNSUPPORTED (said by name), FEEDD_E_LIMIT */
    int (*probe)(struct decoder *decoder, struct blob in, struct image_info *out, struct feedd_error *err);
    /* Decodes decode_region(spec). Damage counts only where it touches that region; in files of several scans anywhere.
     * @param out     region height x width x channels uint8; every byte is written on success, undefined on failure
     * @param stride  bytes from row to row of `out`
     * @return 0; FEEDD_E_CORRUPT (reason in err), FEEDD_E_UNSUPPORTED, FEEDD_E_LIMIT, FEEDD_E_MEMORY; FEEDD_E_ARGUMENT
     * for a spec that makes no sense for this image */
    int (*decode)(struct decoder *decoder, struct blob in, const struct decode_spec *spec, uint8_t *out, size_t stride,
                  struct feedd_error *err);
};

extern const struct decoder_ops decoder_jpeg, decoder_png, decoder_webp;

#define DECODER_COUNT 3

/* All codecs; a worker keeps one decoder of each, made when it is first needed. */
extern const struct decoder_ops *const decoders[DECODER_COUNT];

/* The number of the codec of these bytes in decoders[]. @return FEEDD_E_UNSUPPORTED, and err names the format where it
 * is a known one ("a PNG image: ...") */
int decoder_find(struct blob in, struct feedd_error *err);

#endif
