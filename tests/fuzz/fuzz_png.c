/* fuzz_png.c - a PNG file to pixels: probe, decode. What has to hold stands in codec.h.
 *
 * Input: 8 bytes of choices at the end, so that a file stands as it is; before them a file, when it begins with 0x89,
 * the CRCs of which are put right here when the last choice is odd; or else a recipe: sides, kind, coding, and the
 * filtered rows, which zlib compresses here.
 * Threads: one. */
#include "codec.h"

#include <zlib.h>

#include "error.h"

#define SIDE_MAX 48u /* of a picture that is made here */

struct file {
    uint8_t *bytes;
    size_t size, room;
};

static void put(struct file *file, const void *bytes, size_t size)
{
    if (size >= file->room - file->size) {
        file->room = 2 * (file->size + size) + 64;
        file->bytes = realloc(file->bytes, file->room);
        FUZZ_CHECK(file->bytes != NULL);
    }
    if (size > 0)
        memcpy(file->bytes + file->size, bytes, size);
    file->size += size;
}

static void write_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (24 - 8 * i));
}

static void put_chunk(struct file *file, const char *type, const uint8_t *data, size_t size)
{
    uint8_t number[4];
    write_u32(number, (uint32_t)size);
    put(file, number, 4);
    put(file, type, 4);
    put(file, data, size);
    write_u32(number, (uint32_t)crc32(0, file->bytes + file->size - size - 4, (uInt)size + 4));
    put(file, number, 4);
}

/* Bytes of the rows of all passes, each with its filter. */
static size_t rows_bytes(uint32_t width, uint32_t height, uint32_t pixel_bits, int interlaced)
{
    static const uint8_t adam7[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                        {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
    size_t bytes = 0;
    for (int i = 0; i < 7 && interlaced; i++) {
        const uint32_t columns = (width - adam7[i][0] + adam7[i][2] - 1) / adam7[i][2];
        const uint32_t rows = (height - adam7[i][1] + adam7[i][3] - 1) / adam7[i][3];
        if (width > adam7[i][0] && height > adam7[i][1])
            bytes += rows * (1 + ((size_t)columns * pixel_bits + 7) / 8);
    }
    return interlaced ? bytes : height * (1 + ((size_t)width * pixel_bits + 7) / 8);
}

static struct file make_file(struct fuzz_input *in)
{
    static const uint8_t kinds[15][3] = {/* colour type, depth, samples */
                                         {0, 1, 1}, {0, 2, 1},  {0, 4, 1},  {0, 8, 1}, {0, 16, 1},
                                         {2, 8, 3}, {2, 16, 3}, {3, 1, 1},  {3, 2, 1}, {3, 4, 1},
                                         {3, 8, 1}, {4, 8, 2},  {4, 16, 2}, {6, 8, 4}, {6, 16, 4}};
    uint8_t header[13] = {0}, palette[768];
    const uint32_t width = 1 + fuzz_byte(in) % SIDE_MAX, height = 1 + fuzz_byte(in) % SIDE_MAX;
    const uint8_t *kind = kinds[fuzz_byte(in) % 15], coding = fuzz_byte(in), colours = fuzz_byte(in);
    struct file file = {NULL, 0, 0};
    write_u32(header, width);
    write_u32(header + 4, height);
    header[8] = kind[1];
    header[9] = kind[0];
    header[12] = coding & 1;
    put(&file, "\x89PNG\r\n\x1a\n", 8);
    put_chunk(&file, "IHDR", header, sizeof(header));
    for (size_t i = 0; i < sizeof(palette); i++)
        palette[i] = (uint8_t)(i * 37 + i / 7);
    if (kind[0] == 3 || coding & 2)
        put_chunk(&file, "PLTE", palette, colours * 3);
    if (coding & 4)
        put_chunk(&file, "tRNS", palette, colours);

    size_t size = rows_bytes(width, height, kind[1] * kind[2], coding & 1);
    uint8_t *rows = calloc(1, size);
    FUZZ_CHECK(rows != NULL);
    for (size_t i = 0; i < size && in->left > 0; i++)
        rows[i] = fuzz_byte(in);
    uLongf compressed = compressBound(size);
    uint8_t *data = malloc(compressed);
    FUZZ_CHECK(data != NULL && compress2(data, &compressed, rows, size, coding >> 3 & 3) == Z_OK);
    const size_t chunk = coding & 32 ? 1u + colours : compressed;
    for (size_t at = 0; at < compressed; at += chunk)
        put_chunk(&file, "IDAT", data + at, compressed - at < chunk ? compressed - at : chunk);
    put_chunk(&file, "IEND", NULL, 0);
    free(data);
    free(rows);
    return file;
}

static void repair(struct file *file)
{
    for (size_t at = 8; file->size - at >= 12;) {
        const uint8_t *number = file->bytes + at;
        const size_t length = (size_t)number[0] << 24 | number[1] << 16 | number[2] << 8 | number[3];
        if (length > file->size - at - 12)
            return;
        write_u32(file->bytes + at + 8 + length, (uint32_t)crc32(0, file->bytes + at + 4, (uInt)length + 4));
        at += 12 + length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct decoder *decoder; /* a worker's: for all of them */
    uint8_t choices[CHOICES] = {0};
    const size_t chosen = size < CHOICES ? size : CHOICES;
    struct fuzz_input in = {data, size};
    struct file file = {NULL, 0, 0};
    if (decoder == NULL)
        decoder = codec_new(&decoder_png);
    if (size > 0)
        memcpy(choices, data + size - chosen, chosen);
    if (size > 0 && data[0] == 0x89)
        put(&file, data, size);
    else {
        in.left -= chosen;
        file = make_file(&in);
    }
    if (file.size >= 8 && choices[7] & 1)
        repair(&file);
    uint8_t *exact = realloc(file.bytes, file.size); /* so that a sanitizer sees the first byte too many */
    FUZZ_CHECK(exact != NULL);
    codec_check_file(decoder, (struct blob){exact, file.size}, choices, false);
    free(exact);
    return 0;
}
