/* webp.c - WebP by libwebp: lossy, lossless, and of an animated one the first frame on its black canvas. Pixels are
 * those of Pillow's convert("RGB"), or of its convert("L") by way of RGB: alpha is dropped, not blended, and chroma
 * upsampled smoothly ("fancy").
 *
 * Happy path: libwebpdemux finds the first frame's bitstream in the container -> limits -> the crop's part of the frame
 * is decoded, and when that isn't all of it, with a margin into a buffer of its own, from which it is copied.
 * What can fail: the container, the limits, the bitstream, memory. A bitstream counts as far as the crop's last row:
 * libwebp stops there, so that a file that is cut short below it is as good as a whole one.
 * Threads: a decoder belongs to one worker, and holds nothing but the limits.
 *
 * An ALPH chunk isn't even decoded: the bitstream behind it is given to libwebp without its container, which libwebp
 * allows, and which lets it begin on one that is cut short.
 *
 * Memory: the list of the container's chunks, four times the file's bytes at worst; the crop with its margin; in
 * libwebp some rows, or 4 bytes a pixel for a lossless image. A lossless image also has groups of Huffman tables, at
 * most one for each 4 x 4 pixels and 65,536 in all, of up to 20 KB each (kTableSize in libwebp's vp8l_dec.c). Only a
 * file that is made to harm comes near those 1.3 GB. libwebp has no limit that could be set, and versions before 1.4
 * crash when that allocation fails (libwebp's commit dce8397f). */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

#include "codec.h"
#include "error.h"
#include "exif.h"

#define CHANNELS 3

/* Pixels that are decoded around a crop: at the edge of what it decodes libwebp doesn't use the chroma sample beside
 * it. Such a sample is two pixels wide and high, and begins at even coordinates, as all that libwebp decodes does. */
#define MARGIN 1u

#define CHUNK_HEADER_BYTES 8u /* tag, size of what follows */

struct webp {
    struct decoder decoder;
};

/* What a file shows first. */
struct picture {
    struct blob file;
    struct image_info canvas;
    struct rect frame;     /* within the canvas */
    struct blob bitstream; /* VP8's or VP8L's, as far as it is there; in the file's bytes */
    bool cut_short;
};

static int cut_short(struct blob in, struct feedd_error *err)
{
    return error_set(err, FEEDD_E_CORRUPT, "WebP: cut short: its %zu bytes end before the image does", in.size);
}

static uint32_t read_u32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* A frame's chunks: ALPH or none, then VP8 or VP8L, with which they end, and of which bytes may be missing. Without one
 * the bitstream is empty. */
static void find_bitstream(WebPData chunks, struct picture *out)
{
    size_t at = 0;
    while (chunks.size - at >= CHUNK_HEADER_BYTES) {
        const uint8_t *tag = chunks.bytes + at;
        const size_t unpadded = read_u32(tag + 4), size = unpadded + unpadded % 2;
        const size_t room = chunks.size - at - CHUNK_HEADER_BYTES;
        if (memcmp(tag, "VP8 ", 4) == 0 || memcmp(tag, "VP8L", 4) == 0) {
            out->bitstream = (struct blob){tag + CHUNK_HEADER_BYTES, room}; /* with padding, as libwebp reads it */
            out->cut_short = size > room;
            return;
        }
        if (size > room)
            return;
        at += CHUNK_HEADER_BYTES + size;
    }
}

static uint8_t find_orientation(const WebPDemuxer *demuxer)
{
    WebPChunkIterator chunk;
    uint8_t orientation = 1;
    if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk))
        orientation = exif_orientation(chunk.chunk.bytes, chunk.chunk.size);
    WebPDemuxReleaseChunkIterator(&chunk);
    return orientation;
}

static int read_container(const struct webp *webp, const WebPDemuxer *demuxer, struct blob in, struct picture *out,
                          struct feedd_error *err)
{
    const uint32_t width = WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_WIDTH);
    const uint32_t height = WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_HEIGHT);
    const int status = codec_check_size("WebP", width, height, &webp->decoder.limits, err);
    if (status != 0)
        return status;
    WebPIterator frame; /* it points into the file's bytes */
    struct picture picture = {.file = in, .canvas = {width, height, find_orientation(demuxer)}};
    const bool found = WebPDemuxGetFrame(demuxer, 1, &frame) && frame.width > 0 && frame.height > 0;
    if (found) {
        picture.frame = (struct rect){(uint32_t)frame.x_offset, (uint32_t)frame.y_offset, (uint32_t)frame.width,
                                      (uint32_t)frame.height};
        find_bitstream(frame.fragment, &picture);
    }
    WebPDemuxReleaseIterator(&frame);
    if (!found || picture.bitstream.size == 0)
        return cut_short(in, err);
    *out = picture;
    return 0;
}

static bool recognises(struct blob in)
{
    return in.size >= 12 && memcmp(in.bytes, "RIFF", 4) == 0 && memcmp(in.bytes + 8, "WEBP", 4) == 0;
}

static int open_picture(const struct webp *webp, struct blob in, struct picture *out, struct feedd_error *err)
{
    WebPDemuxState state = WEBP_DEMUX_PARSE_ERROR;
    WebPDemuxer *demuxer = NULL;
    if (recognises(in)) /* libwebpdemux also takes a bitstream without a container */
        demuxer = WebPDemuxPartial(&(WebPData){in.bytes, in.size}, &state);
    int status;
    if (state == WEBP_DEMUX_PARSE_ERROR)
        status = error_set(err, FEEDD_E_CORRUPT, "WebP: the container isn't as it should be: RIFF, WEBP and chunks");
    else if (state == WEBP_DEMUX_PARSING_HEADER)
        status = cut_short(in, err);
    else
        status = read_container(webp, demuxer, in, out, err);
    WebPDemuxDelete(demuxer);
    return status;
}

/* The part of `a` that lies in `b`, in the coordinates of `b`; of width or height 0 where there is none. */
static struct rect intersect(struct rect a, struct rect b)
{
    const uint32_t left = a.x > b.x ? a.x : b.x, top = a.y > b.y ? a.y : b.y;
    const uint32_t right = a.x + a.width < b.x + b.width ? a.x + a.width : b.x + b.width;
    const uint32_t bottom = a.y + a.height < b.y + b.height ? a.y + a.height : b.y + b.height;
    return (struct rect){left - b.x, top - b.y, right > left ? right - left : 0, bottom > top ? bottom - top : 0};
}

static void widen(uint32_t *first, uint32_t *length, uint32_t side)
{
    const uint32_t end = *first + *length;
    *first = *first > MARGIN ? (*first - MARGIN) & ~1u : 0;
    *length = (side - end > MARGIN ? end + MARGIN : side) - *first;
}

/* Decodes `area` of the frame, the first coordinates of which are even. */
static int decode_area(const struct picture *picture, struct rect area, bool accept_truncated, uint8_t *out,
                       size_t stride, struct feedd_error *err)
{
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config))
        return error_set(err, FEEDD_E_INTERNAL, "WebP: libwebp isn't of the version that this was built with");
    config.options.use_cropping = 1;
    config.options.crop_left = (int)area.x;
    config.options.crop_top = (int)area.y;
    config.options.crop_width = (int)area.width;
    config.options.crop_height = (int)area.height;
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = out;
    config.output.u.RGBA.stride = (int)stride;
    config.output.u.RGBA.size = stride * (area.height - 1) + (size_t)area.width * CHANNELS;
    const VP8StatusCode code = WebPDecode(picture->bitstream.bytes, picture->bitstream.size, &config);
    switch (code) {
    case VP8_STATUS_OK:
        return 0;
    case VP8_STATUS_OUT_OF_MEMORY:
        return error_set(err, FEEDD_E_MEMORY, "WebP: not enough memory for libwebp");
    default:
        if (accept_truncated)
            return 0;
        if (picture->cut_short)
            return cut_short(picture->file, err);
        return error_set(err, FEEDD_E_CORRUPT, "WebP: damaged bitstream");
    }
}

/* Decodes `part` of the frame, not empty, into its place. */
static int decode_part(const struct picture *picture, struct rect part, const struct decode_spec *spec, uint8_t *out,
                       size_t stride, struct feedd_error *err)
{
    struct rect area = part;
    widen(&area.x, &area.width, picture->frame.width);
    widen(&area.y, &area.height, picture->frame.height);
    if (memcmp(&area, &part, sizeof(area)) == 0 && spec->channels == CHANNELS && stride <= INT_MAX)
        return decode_area(picture, area, spec->accept_truncated, out, stride, err);

    const size_t area_stride = (size_t)area.width * CHANNELS;
    uint8_t *pixels = calloc(area.height, area_stride);
    if (pixels == NULL)
        return error_set(err, FEEDD_E_MEMORY, "WebP: not enough memory for %zu bytes", area_stride * area.height);
    const int status = decode_area(picture, area, spec->accept_truncated, pixels, area_stride, err);
    const uint8_t *from = pixels + (part.y - area.y) * area_stride + (size_t)(part.x - area.x) * CHANNELS;
    for (uint32_t y = 0; status == 0 && y < part.height; y++, from += area_stride, out += stride) {
        if (spec->channels == 1)
            codec_luma(from, part.width, out, 1);
        else
            memcpy(out, from, (size_t)part.width * CHANNELS);
    }
    free(pixels);
    return status;
}

static int decode(struct decoder *decoder, struct blob in, const struct decode_spec *spec, uint8_t *out, size_t stride,
                  struct feedd_error *err)
{
    struct picture picture;
    int status = open_picture((struct webp *)decoder, in, &picture, err);
    if (status == 0)
        status = codec_check_spec("WebP", picture.canvas.width, picture.canvas.height, spec, err);
    if (status != 0)
        return status;
    const struct rect crop = spec->crop, part = intersect(crop, picture.frame);
    const bool covered = part.width == crop.width && part.height == crop.height;
    for (uint32_t y = 0; (!covered || spec->accept_truncated) && y < crop.height; y++)
        memset(out + y * stride, 0, (size_t)crop.width * spec->channels);
    if (part.width == 0 || part.height == 0)
        return 0;
    out += (part.y + picture.frame.y - crop.y) * stride;
    out += (size_t)(part.x + picture.frame.x - crop.x) * spec->channels;
    return decode_part(&picture, part, spec, out, stride, err);
}

static int probe(struct decoder *decoder, struct blob in, struct image_info *out, struct feedd_error *err)
{
    struct picture picture;
    const int status = open_picture((struct webp *)decoder, in, &picture, err);
    if (status == 0)
        *out = picture.canvas;
    return status;
}

static int decoder_new(const struct decoder_limits *limits, struct decoder **out, struct feedd_error *err)
{
    struct webp *webp = calloc(1, sizeof(*webp));
    if (webp == NULL)
        return error_set(err, FEEDD_E_MEMORY, "WebP: not enough memory for a decoder");
    webp->decoder = (struct decoder){.ops = &decoder_webp, .limits = *limits};
    *out = &webp->decoder;
    return 0;
}

static void decoder_free(struct decoder *decoder)
{
    free(decoder);
}

const struct decoder_ops decoder_webp = {.name = "webp",
                                         .max_shrink = 1,
                                         .recognises = recognises,
                                         .decoder_new = decoder_new,
                                         .decoder_free = decoder_free,
                                         .probe = probe,
                                         .decode = decode};
