/* fuzz_webp.c - a WebP file to pixels: probe, decode. What has to hold stands in codec.h.
 *
 * Input: 8 bytes of choices at the end, so that a file stands as it is; before them a file, when it begins with 'R', or
 * else a recipe: the picture (its sides, coding, quality, noise), which libwebp encodes here, its container, and edits
 * of the file's bytes.
 * Threads: one. */
#include "codec.h"

#include <webp/encode.h>

#include "error.h"

#define SIDE_MAX 48u /* of a picture that is made here */

struct file {
    uint8_t *bytes;
    size_t size;
};

static void put(struct file *file, const void *bytes, size_t size)
{
    file->bytes = realloc(file->bytes, file->size + size + 1);
    FUZZ_CHECK(file->bytes != NULL);
    if (size > 0)
        memcpy(file->bytes + file->size, bytes, size);
    file->size += size;
}

static void put_number(struct file *file, uint32_t value, size_t bytes)
{
    const uint8_t all[4] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16), (uint8_t)(value >> 24)};
    put(file, all, bytes);
}

static void put_chunk(struct file *file, const char *tag, const void *data, size_t size)
{
    put(file, tag, 4);
    put_number(file, (uint32_t)size, 4);
    put(file, data, size);
    put(file, "", size % 2);
}

static int append(const uint8_t *data, size_t size, const WebPPicture *picture)
{
    put(picture->custom_ptr, data, size);
    return 1;
}

static struct file encode(struct fuzz_input *in, int width, int height)
{
    struct file file = {NULL, 0};
    const uint8_t coding = fuzz_byte(in), quality = fuzz_byte(in) % 101, seed = fuzz_byte(in);
    uint8_t rgba[SIDE_MAX * SIDE_MAX * 4];
    uint32_t noise = seed;
    for (int i = 0; i < width * height * 4; i++) {
        noise = noise * 1103515245 + 12345;
        rgba[i] = (uint8_t)(i * 3 + (seed & 15 ? noise >> (25 + seed % 4) : 0));
        if (i % 4 == 3 && !(coding & 2))
            rgba[i] = 255;
    }
    WebPConfig config;
    WebPPicture picture;
    FUZZ_CHECK(WebPConfigInit(&config) && WebPPictureInit(&picture));
    config.lossless = picture.use_argb = coding & 1;
    config.quality = quality;
    config.method = coding >> 2 & 3;
    config.filter_type = coding >> 4 & 1;
    config.partitions = coding >> 5 & 3;
    picture.width = width;
    picture.height = height;
    picture.writer = append;
    picture.custom_ptr = &file;
    FUZZ_CHECK(WebPPictureImportRGBA(&picture, rgba, width * 4) && WebPEncode(&config, &picture));
    WebPPictureFree(&picture);
    return file;
}

/* Puts the image of a file into another container: behind VP8X, or as a frame, with EXIF before or behind it. */
static struct file wrap(struct file image, uint8_t how, uint32_t width, uint32_t height)
{
    static const char exif[] = "Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    const size_t skipped = memcmp(image.bytes + 12, "VP8X", 4) == 0 ? 30 : 12;
    const uint32_t margin = how & 2 ? 2 * (how >> 4) : 0;
    struct file file = {NULL, 0}, frame = {NULL, 0}, head = {NULL, 0};
    put_number(&head, (how & 2) | (how & 12 ? 0x08 : 0) | 0x10, 4);
    put_number(&head, width + 2 * margin - 1, 3);
    put_number(&head, height + margin - 1, 3);
    put(&file, "RIFF\0\0\0\0WEBP", 12);
    put_chunk(&file, "VP8X", head.bytes, head.size);
    if (how & 4)
        put_chunk(&file, "EXIF", exif, sizeof(exif) - 1);
    if (how & 2) {
        put_chunk(&file, "ANIM", "\0\0\0\0\0\0", 6);
        put_number(&frame, margin / 2, 3);
        put_number(&frame, margin / 2, 3);
        put_number(&frame, width - 1, 3);
        put_number(&frame, height - 1, 3);
        put_number(&frame, 100, 4);
    }
    put(&frame, image.bytes + skipped, image.size - skipped);
    for (int i = 0; i < (how & 1 ? 2 : 1) && how & 2; i++)
        put_chunk(&file, "ANMF", frame.bytes, frame.size);
    if (!(how & 2))
        put(&file, frame.bytes, frame.size);
    if (how & 8)
        put_chunk(&file, "EXIF", exif + 6, sizeof(exif) - 7);
    const size_t size = file.size - 8;
    memcpy(file.bytes + 4, (const uint8_t[]){(uint8_t)size, (uint8_t)(size >> 8), (uint8_t)(size >> 16), 0}, 4);
    free(head.bytes);
    free(frame.bytes);
    free(image.bytes);
    return file;
}

static struct file make_file(struct fuzz_input *in)
{
    const uint32_t width = 1 + fuzz_byte(in) % SIDE_MAX, height = 1 + fuzz_byte(in) % SIDE_MAX;
    const uint8_t how = fuzz_byte(in);
    struct file file = encode(in, (int)width, (int)height);
    if (how & 14)
        file = wrap(file, how, width, height);
    while (in->left >= 3) {
        size_t at = (size_t)fuzz_byte(in) << 8;
        at |= fuzz_byte(in);
        const uint8_t value = fuzz_byte(in);
        if (at < file.size)
            file.bytes[at] = value;
        else
            file.size = file.size > at % 256 ? file.size - at % 256 : file.size; /* cut short */
    }
    return file;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct decoder *decoder; /* a worker's: for all of them */
    uint8_t choices[CHOICES] = {0};
    const size_t chosen = size < CHOICES ? size : CHOICES;
    struct fuzz_input in = {data, size};
    struct file file = {NULL, 0};
    if (decoder == NULL)
        decoder = codec_new(&decoder_webp);
    if (size > 0)
        memcpy(choices, data + size - chosen, chosen);
    if (size > 0 && data[0] == 'R')
        put(&file, data, size);
    else {
        in.left -= chosen;
        file = make_file(&in);
    }
    uint8_t *exact = realloc(file.bytes, file.size); /* so that a sanitizer sees the first byte too many */
    FUZZ_CHECK(exact != NULL);
    codec_check_file(decoder, (struct blob){exact, file.size}, choices, true);
    free(exact);
    return 0;
}
