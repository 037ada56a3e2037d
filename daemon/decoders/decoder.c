/* decoder.c - the list of codecs, and what encoded bytes are: content decides, never a file's name.
 *
 * Happy path: the first codec that recognises the bytes. What can fail: none does; then the error names the format, so
 * that a user learns which of their files are something else.
 * Threads: any; nothing here has state. */
#include "decoder.h"

#include <stdio.h>
#include <string.h>

#include "error.h"

const struct decoder_ops *const decoders[DECODER_COUNT] = {&decoder_jpeg, &decoder_png, &decoder_webp};
static const char allowed[] = "JPEG, PNG, WebP"; /* all of them, as messages say it */

#define SIGNATURES_MAX 6

/* Formats without a decoder, by their first bytes: each format's own specification. Lengths are counted, for some
 * hold bytes of value 0. */
#define BYTES(offset, text)                                                                                            \
    {                                                                                                                  \
        (offset), sizeof(text) - 1, (text)                                                                             \
    }
static const struct {
    const char *name;
    struct signature {
        uint8_t offset, length; /* length 0: no more signatures */
        const char *bytes;
    } signatures[SIGNATURES_MAX];
} others[] = {
    {"a GIF image", {BYTES(0, "GIF87a"), BYTES(0, "GIF89a")}},
    {"a BMP image", {BYTES(0, "BM")}},
    {"a TIFF image", {BYTES(0, "II*\0"), BYTES(0, "MM\0*"), BYTES(0, "II+\0"), BYTES(0, "MM\0+")}},
    {"an AVIF image", {BYTES(4, "ftypavif"), BYTES(4, "ftypavis")}},
    {"a HEIF or HEIC image",
     {BYTES(4, "ftypheic"), BYTES(4, "ftypheix"), BYTES(4, "ftyphevc"), BYTES(4, "ftypheim"), BYTES(4, "ftypmif1"),
      BYTES(4, "ftypmsf1")}},
    {"a JPEG XL image", {BYTES(0, "\xff\x0a"), BYTES(0, "\0\0\0\x0cJXL \r\n\x87\n")}},
    {"a JPEG 2000 image", {BYTES(0, "\0\0\0\x0cjP  \r\n\x87\n"), BYTES(0, "\xff\x4f\xff\x51")}},
};

static bool begins(struct blob in, const struct signature *signature)
{
    return in.size >= (size_t)signature->offset + signature->length &&
           memcmp(in.bytes + signature->offset, signature->bytes, signature->length) == 0;
}

static bool is_space(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* PBM, PGM, PPM (plain or raw) and PAM: "P1" to "P7", then white space. */
static bool is_netpbm(struct blob in)
{
    return in.size >= 3 && in.bytes[0] == 'P' && in.bytes[1] >= '1' && in.bytes[1] <= '7' && is_space(in.bytes[2]);
}

/* Error pages that a download saved as a picture, and SVG: "<" after a byte order mark and white space. */
static bool is_markup(struct blob in)
{
    size_t i = in.size >= 3 && memcmp(in.bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (i < in.size && is_space(in.bytes[i]))
        i++;
    return i < in.size && in.bytes[i] == '<';
}

/* What the bytes are, or NULL. */
static const char *known_format(struct blob in)
{
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        for (size_t s = 0; s < SIGNATURES_MAX && others[i].signatures[s].length > 0; s++)
            if (begins(in, &others[i].signatures[s]))
                return others[i].name;
    return is_netpbm(in) ? "a PBM, PGM, PPM or PAM image" : is_markup(in) ? "HTML or XML text" : NULL;
}

int decoder_find(struct blob in, struct feedd_error *err)
{
    for (int i = 0; i < DECODER_COUNT; i++)
        if (decoders[i]->recognises(in))
            return i;

    if (in.size == 0)
        return error_set(err, FEEDD_E_UNSUPPORTED, "an empty file: not an image; allowed: %s", allowed);
    const char *name = known_format(in);
    if (name != NULL)
        return error_set(err, FEEDD_E_UNSUPPORTED, "%s: no decoder for that; allowed: %s", name, allowed);

    char first[3 * 8 + 1];
    for (size_t i = 0; i < 8 && i < in.size; i++)
        snprintf(first + 3 * i, 4, " %02x", in.bytes[i]);
    return error_set(err, FEEDD_E_UNSUPPORTED, "not an image of a known format (first bytes:%s); allowed: %s", first,
                     allowed);
}
