/* jpeg.c - JPEG to RGB or luma by libjpeg-turbo: sequential, progressive and arithmetic coding, 8 bits a sample; gray,
 * YCbCr, RGB, CMYK and YCCK.
 *
 * Happy path: a decompressor over the blob -> header -> limits, colour space and crop checked -> rows above the crop
 * skipped, columns beside it left out -> its rows to the caller -> the decompressor is destroyed. What lies below the
 * crop isn't read, but in files of several scans, of which each is about every row.
 * What can fail: the library reports errors, and warnings of damaged data, to error_exit() and emit_message(), which
 * fill jpeg->error and leave by longjmp() to attempt(). Nothing is owned on the way but the decompressor and what it
 * allocates, and that goes with it.
 * Threads: a decoder belongs to one worker.
 *
 * Pixels. EXACT: the accurate integer transform (ISLOW) and smooth ("fancy") chroma upsampling, as in Pillow and djpeg,
 * and the same bytes whatever the crop. CMYK and YCCK become RGB by Pillow's formula; like Pillow we take all of them
 * for inverted, as Adobe writes them. Luma is Y as coded; of RGB and CMYK it is what Pillow's convert("L") makes.
 *
 * FAST: the same, but with shrink > 1 the transform scales. Against exact pixels, both scaled to 1/2, 1/4 and 1/8 of
 * 200 photos, that is 2.1, 1.9 and 2.2 levels off on average, 79 at most, and 36 to 38 dB apart; it makes the decoding
 * of random crops for 224 x 224 3 to 4 % cheaper, and what is left to scale 4 to 64 times smaller. Nothing else is
 * given up: the fast transform (IFAST) and plain upsampling together would save 4 to 6 %. tests/bench/decode.c prints
 * these.
 *
 * Damage. A warning that is about the picture is an error, for one that is half gray is worse than none; Pillow
 * delivers most of them in silence. As in Pillow, what leaves the picture whole is tolerated: bytes before a marker
 * that belong to nothing, headers that contradict each other. A warning above the crop counts, for all data behind it
 * may be shifted; one below it only in files of several scans, for where damage shows isn't where it is. A crop that
 * has the image's last row takes in the marker behind it, so that a file without its end is cut short, as in Pillow.
 * accept_truncated tolerates every warning behind the header, but no error, after which there is nothing to show.
 *
 * Memory. A file of several scans is held as coefficients: 2 bytes a sample, so at most 8 bytes for each pixel of the
 * limit (and of the blocks up to which its edges are filled); the library needs no limit of its own
 * (max_memory_to_use).
 *
 * The decompressor lives for one image, for libjpeg keeps quantisation and Huffman tables in it from image to image: a
 * file that lacks its own would be decoded by those of another, so that pixels would depend on what a worker did
 * before. Making one and reading the header takes a microsecond (bench_decode's line "probe"). */
#include <setjmp.h>
#include <stdio.h> /* jpeglib.h needs FILE and size_t from its includer */
#include <stdlib.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

#include "codec.h"
#include "decoder.h"
#include "error.h"
#include "exif.h"

#if JPEG_LIB_VERSION >= 70 /* the interface of libjpeg 7 and 8, which some systems build libjpeg-turbo with */
#define min_DCT_scaled_size min_DCT_h_scaled_size
#endif

/* Scans are work that costs a few bytes each, once for every block of the image. Encoders make 10 or so;
 * libjpeg-turbo's own fuzzers stop at 500. */
#define SCANS_MAX 500

/* Columns that are decoded on both sides of a crop. Chroma upsampling looks two beyond it, and the library treats the
 * first and last column that it decodes as the image's edge. */
#define MARGIN 16

/* Bytes before a marker within the image's data that encoders leave there; cameras make up to 17. More of them are
 * picture that wasn't decoded, because what came before it is damaged. */
#define STRAY_BYTES_MAX 32

struct jpeg {
    struct decoder decoder;
    struct jpeg_decompress_struct cinfo; /* only while a call runs, as all that follows */
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    struct blob in;
    const struct decode_spec *spec; /* NULL while probing */
    struct feedd_error error;       /* the caller gets it when nothing else helps */
    int status;                     /* of the attempt */
    uint8_t orientation;            /* 0: no EXIF yet */
    bool scanning;                  /* the header has been read */
    int cut_marker;                 /* of the segment in which the file ends, 0: in none, -1: hasn't ended yet */
};

_Noreturn static void give_up(struct jpeg *jpeg, int status, const char *message)
{
    jpeg->status = error_set(&jpeg->error, status, "JPEG: %s", message);
    longjmp(jpeg->escape, 1);
}

/* What the library doesn't decode, by the marker of its frame (T.81, table B.1). */
static const char *process_name(int marker)
{
    if (marker == 0xC3 || marker == 0xCB)
        return "a lossless JPEG";
    return marker == 0xC8 ? "a JPEG of a reserved kind" : "a hierarchical JPEG";
}

/* @return the status, and in `message` what the user shall read */
static int describe(j_common_ptr cinfo, char message[JMSG_LENGTH_MAX])
{
    const int first = cinfo->err->msg_parm.i[0];
    cinfo->err->format_message(cinfo, message);
    switch (cinfo->err->msg_code) {
    case JERR_OUT_OF_MEMORY:
    case JERR_NO_BACKING_STORE: /* more than the environment's JPEGMEM allows */
        return FEEDD_E_MEMORY;
    case JERR_IMAGE_TOO_BIG:
    case JERR_WIDTH_OVERFLOW:
        return FEEDD_E_LIMIT;
    case JERR_BAD_PRECISION:
        if (first < 2 || first > 16) /* no kind of JPEG has such */
            return FEEDD_E_CORRUPT;
        snprintf(message, JMSG_LENGTH_MAX, "a JPEG of %d bits a sample; allowed: 8", first);
        return FEEDD_E_UNSUPPORTED;
    case JERR_SOF_UNSUPPORTED:
        snprintf(message, JMSG_LENGTH_MAX, "%s (SOF type 0x%02x): not supported", process_name(first), (unsigned)first);
        return FEEDD_E_UNSUPPORTED;
    case JERR_ARITH_NOTIMPL:
    case JERR_CCIR601_NOTIMPL:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_NOT_COMPILED:
        return FEEDD_E_UNSUPPORTED;
    default:
        return FEEDD_E_CORRUPT;
    }
}

/* The library's error_exit: must not return. */
_Noreturn static void error_exit(j_common_ptr cinfo)
{
    char message[JMSG_LENGTH_MAX];
    const int status = describe(cinfo, message);
    give_up(cinfo->client_data, status, message);
}

/* Does the warning leave the picture as it is? */
static bool is_harmless(const struct jpeg *jpeg)
{
    const int *values = jpeg->errors.msg_parm.i;
    switch (jpeg->errors.msg_code) {
    case JWRN_ADOBE_XFORM: /* odd headers, of which the data doesn't suffer: an unknown transform is read as YCbCr, */
    case JWRN_JFIF_MAJOR:
    case JWRN_NOT_SEQUENTIAL: /* and a sequential scan doesn't use the parameters that are odd */
        return true;
    case JWRN_EXTRANEOUS_DATA: /* how many bytes, and before which marker */
        return !jpeg->scanning || values[0] <= STRAY_BYTES_MAX || values[1] == JPEG_EOI;
    default:
        return false;
    }
}

/* The library's emit_message. level: -1 for a warning, 0 and up for tracing. */
static void emit_message(j_common_ptr cinfo, int level)
{
    struct jpeg *jpeg = cinfo->client_data;
    char message[JMSG_LENGTH_MAX];
    if (level >= 0)
        return;
    if (jpeg->spec != NULL && jpeg->spec->accept_truncated && jpeg->scanning) {
        if (cinfo->err->msg_code == JWRN_JPEG_EOF && jpeg->cut_marker < 0)
            jpeg->cut_marker = jpeg->cinfo.unread_marker;
        return;
    }
    if (is_harmless(jpeg))
        return;
    if (cinfo->err->msg_code == JWRN_JPEG_EOF)
        snprintf(message, sizeof(message), "cut short: its %zu bytes end before the image does", jpeg->in.size);
    else
        cinfo->err->format_message(cinfo, message);
    give_up(jpeg, FEEDD_E_CORRUPT, message);
}

/* The library calls this before each row of blocks that it reads, and each row of pixels that it writes. */
static void progress_monitor(j_common_ptr cinfo)
{
    if (((j_decompress_ptr)cinfo)->input_scan_number > SCANS_MAX)
        give_up(cinfo->client_data, FEEDD_E_CORRUPT, "more scans than the 500 that are allowed");
}

/* The library's processor of APP1 segments, from their length on: EXIF is looked at where it stands in the blob. Of
 * several the first counts; Pillow reads them as one, of which the first has the header. */
static boolean read_app1(j_decompress_ptr cinfo)
{
    struct jpeg *jpeg = cinfo->client_data;
    struct jpeg_source_mgr *source = cinfo->src; /* holds the whole rest of the blob */
    const uint8_t *segment = source->next_input_byte;
    const size_t left = source->bytes_in_buffer;
    const size_t length = left >= 2 ? (size_t)segment[0] << 8 | segment[1] : left;
    const size_t held = length < left ? length : left;
    if (jpeg->orientation == 0 && held >= 8 && memcmp(segment + 2, "Exif\0\0", 6) == 0)
        jpeg->orientation = exif_orientation(segment + 8, held - 8);
    source->skip_input_data(cinfo, (long)length);
    return TRUE;
}

/* Reads the header and checks whether feedd decodes such an image; allocates nothing that grows with its size.
 * May longjmp(), as all that follow. */
static int read_header(struct jpeg *jpeg)
{
    struct jpeg_decompress_struct *cinfo = &jpeg->cinfo;
    jpeg_create_decompress(cinfo); /* keeps err and client_data */
    cinfo->progress = &jpeg->progress;
    jpeg_set_marker_processor(cinfo, JPEG_APP0 + 1, read_app1);
    jpeg_mem_src(cinfo, jpeg->in.bytes, jpeg->in.size);
    jpeg_read_header(cinfo, TRUE);

    const int rc =
        codec_check_size("JPEG", cinfo->image_width, cinfo->image_height, &jpeg->decoder.limits, &jpeg->error);
    if (rc != 0)
        return rc;
    if (cinfo->data_precision != 8)
        return error_set(&jpeg->error, FEEDD_E_UNSUPPORTED, "JPEG: a JPEG of %d bits a sample; allowed: 8",
                         cinfo->data_precision);
    if (cinfo->num_components != 1 && cinfo->num_components != 3 && cinfo->num_components != 4)
        return error_set(&jpeg->error, FEEDD_E_UNSUPPORTED,
                         "JPEG: %d colour components of unknown meaning; allowed: 1, 3, 4", cinfo->num_components);
    return 0;
}

static int check_spec(struct jpeg *jpeg)
{
    struct decode_spec spec = *jpeg->spec;
    if (spec.shrink != 1 && (spec.mode != DECODE_FAST || (spec.shrink != 2 && spec.shrink != 4 && spec.shrink != 8)))
        return error_set(&jpeg->error, FEEDD_E_ARGUMENT,
                         "JPEG: shrunk by %u; allowed: 1, and when it shall be fast 2, 4, 8", spec.shrink);
    spec.shrink = 1;
    return codec_check_spec("JPEG", jpeg->cinfo.image_width, jpeg->cinfo.image_height, &spec, &jpeg->error);
}

/* Can rows be skipped and columns be left out so that the rest is as in the whole image? libjpeg-turbo can't where
 * - blocks are smoothed by their neighbours, which it does in progressive files that lack the last bits of the first
 *   nine AC coefficients: the first and last block that it decodes then pass for the image's edge;
 * - the transform scales and a component is subsampled by 4: jpeg_crop_scanline() takes its rows for too short
 *   (libjpeg-turbo 2.1; repaired in 3.0.0, item 4 of its change log), so that some samples are never written;
 * - there are no blocks of 8 x 8, which is how it shows that the file is lossless (3.0 and later).
 * Such files are rare; they are decoded from the top, in their whole width. Everything else is exact from 2.1.4 on,
 * with all sampling factors: what was repaired in jpeg_skip_scanlines() before concerned merged upsampling and
 * buffered-image mode, which aren't used here. It warns as reading the rows does. */
static bool partial_is_exact(const struct jpeg *jpeg)
{
    const struct jpeg_decompress_struct *cinfo = &jpeg->cinfo;
    const uint32_t shrink = jpeg->spec->shrink;
    if (cinfo->min_DCT_scaled_size != (int)(DCTSIZE / shrink))
        return false;
    if (shrink > 1 && (cinfo->max_h_samp_factor > 2 || cinfo->max_v_samp_factor > 2))
        return false;
    for (int c = 0; cinfo->progressive_mode && c < cinfo->num_components; c++)
        for (int i = 1; i < 10; i++)
            if (cinfo->coef_bits[c][i] != 0)
                return false;
    return true;
}

/* CMYK or YCCK as the library gives it, of which Pillow inverts all four (its "CMYK;I"), to RGB as Pillow's cmyk2rgb()
 * in libImaging/Convert.c. `out` may be `in`. */
static void convert_cmyk(const uint8_t *in, uint32_t width, uint8_t *out)
{
    for (uint32_t i = 0; i < width; i++, in += 4, out += 3) {
        const uint32_t white = in[3];
        for (int c = 0; c < 3; c++) {
            const uint32_t product = (255u - in[c]) * white + 128; /* / 255, rounded, in two shifts */
            out[c] = (uint8_t)(white - ((product + (product >> 8)) >> 8));
        }
    }
}

/* The region of the (shrunk) image, out of rows that begin at column `first` and have `width` pixels. `row` has room
 * for one of them. A source in memory never suspends, so that each call reads the one row that it is asked for. */
static void read_rows(struct jpeg *jpeg, struct rect region, uint32_t first, uint32_t width, uint8_t *row, uint8_t *out,
                      size_t stride)
{
    struct jpeg_decompress_struct *cinfo = &jpeg->cinfo;
    const uint32_t channels = jpeg->spec->channels;
    const bool cmyk = cinfo->out_color_space == JCS_CMYK, straight = !cmyk && width == region.width;
    uint8_t *part = row + (size_t)(region.x - first) * (uint32_t)cinfo->output_components;
    for (uint32_t y = 0; y < region.height; y++, out += stride) {
        jpeg_read_scanlines(cinfo, &(JSAMPROW){straight ? out : row}, 1);
        if (cmyk)
            convert_cmyk(part, region.width, part);
        if (cmyk && channels == 1)
            codec_luma(part, region.width, out, 1);
        else if (!straight)
            memcpy(out, part, (size_t)region.width * channels);
    }
}

static int decode_image(struct jpeg *jpeg, uint8_t *out, size_t stride)
{
    struct jpeg_decompress_struct *cinfo = &jpeg->cinfo;
    const struct decode_spec *spec = jpeg->spec;
    int rc = read_header(jpeg);
    if (rc == 0)
        rc = check_spec(jpeg);
    if (rc != 0)
        return rc;

    cinfo->out_color_space = cinfo->num_components == 4 ? JCS_CMYK : spec->channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
    cinfo->dct_method = JDCT_ISLOW;
    cinfo->do_fancy_upsampling = TRUE;
    cinfo->scale_num = 1;
    cinfo->scale_denom = spec->shrink;
    jpeg->scanning = true;
    jpeg_start_decompress(cinfo); /* of several scans: reads them all */
    if (cinfo->output_width != (cinfo->image_width + spec->shrink - 1) / spec->shrink ||
        cinfo->output_height != (cinfo->image_height + spec->shrink - 1) / spec->shrink)
        return error_set(&jpeg->error, FEEDD_E_UNSUPPORTED, "JPEG: a lossless JPEG can't be shrunk");

    const struct rect region = decode_region(spec);
    uint32_t first = 0, width = cinfo->output_width;
    uint8_t *row =
        cinfo->mem->alloc_large((j_common_ptr)cinfo, JPOOL_IMAGE, (size_t)width * (uint32_t)cinfo->output_components);
    if (partial_is_exact(jpeg)) {
        const uint32_t end = region.x + region.width;
        first = region.x < MARGIN ? 0 : region.x - MARGIN;
        width = (end + MARGIN < width ? end + MARGIN : width) - first;
        jpeg_crop_scanline(cinfo, &first, &width); /* makes it begin with a block */
        jpeg_skip_scanlines(cinfo, region.y);
    }
    while (cinfo->output_scanline < region.y)
        jpeg_read_scanlines(cinfo, &(JSAMPROW){row}, 1);
    read_rows(jpeg, region, first, width, row, out, stride);
    if (region.y + region.height == cinfo->output_height && !spec->accept_truncated)
        jpeg_finish_decompress(cinfo);
    return 0;
}

static int probe_image(struct jpeg *jpeg, struct image_info *out)
{
    const int rc = read_header(jpeg);
    if (rc == 0)
        *out = (struct image_info){.width = jpeg->cinfo.image_width,
                                   .height = jpeg->cinfo.image_height,
                                   .orientation = jpeg->orientation != 0 ? jpeg->orientation : 1};
    return rc;
}

/* Everything from a new decompressor to its end: of a header when there is no spec, or else of the pixels. No variable
 * changes between setjmp() and longjmp(), so that all of them are defined afterwards. */
static void attempt(struct jpeg *jpeg, struct image_info *info, uint8_t *out, size_t stride)
{
    jpeg->orientation = 0;
    jpeg->cut_marker = -1;
    jpeg->scanning = false;
    if (setjmp(jpeg->escape) == 0)
        jpeg->status = jpeg->spec == NULL ? probe_image(jpeg, info) : decode_image(jpeg, out, stride);
    jpeg_destroy_decompress(&jpeg->cinfo);
}

static int conclude(const struct jpeg *jpeg, struct feedd_error *err)
{
    if (jpeg->status != 0 && err != NULL)
        *err = jpeg->error;
    return jpeg->status;
}

static bool recognises(struct blob in)
{
    return in.size >= 3 && memcmp(in.bytes, "\xff\xd8\xff", 3) == 0;
}

static int decoder_new(const struct decoder_limits *limits, struct decoder **out, struct feedd_error *err)
{
    struct jpeg *jpeg = calloc(1, sizeof(*jpeg));
    if (jpeg == NULL)
        return error_set(err, FEEDD_E_MEMORY, "JPEG: not enough memory for a decoder");
    jpeg->decoder = (struct decoder){.ops = &decoder_jpeg, .limits = *limits};
    jpeg->cinfo.err = jpeg_std_error(&jpeg->errors);
    jpeg->cinfo.client_data = jpeg;
    jpeg->errors.error_exit = error_exit;
    jpeg->errors.emit_message = emit_message;
    jpeg->progress.progress_monitor = progress_monitor;
    *out = &jpeg->decoder;
    return 0;
}

static void decoder_free(struct decoder *decoder)
{
    free(decoder);
}

static int probe(struct decoder *decoder, struct blob in, struct image_info *out, struct feedd_error *err)
{
    struct jpeg *jpeg = (struct jpeg *)decoder;
    jpeg->in = in;
    jpeg->spec = NULL;
    attempt(jpeg, out, NULL, 0);
    return conclude(jpeg, err);
}

/* The file without the segment in which it ends, which is about scans that aren't there. */
static struct blob without_cut_segment(struct blob in, int marker)
{
    while (in.size >= 2 && (in.bytes[in.size - 2] != 0xFF || in.bytes[in.size - 1] != marker))
        in.size--;
    in.size = in.size >= 2 ? in.size - 2 : 0;
    return in;
}

static int decode(struct decoder *decoder, struct blob in, const struct decode_spec *spec, uint8_t *out, size_t stride,
                  struct feedd_error *err)
{
    struct jpeg *jpeg = (struct jpeg *)decoder;
    jpeg->in = in;
    jpeg->spec = spec;
    attempt(jpeg, NULL, out, stride);
    if (jpeg->status == FEEDD_E_CORRUPT && jpeg->cut_marker > 0) {
        jpeg->in = without_cut_segment(in, jpeg->cut_marker);
        attempt(jpeg, NULL, out, stride);
    }
    return conclude(jpeg, err);
}

const struct decoder_ops decoder_jpeg = {.name = "jpeg",
                                         .max_shrink = 8,
                                         .recognises = recognises,
                                         .decoder_new = decoder_new,
                                         .decoder_free = decoder_free,
                                         .probe = probe,
                                         .decode = decode};
