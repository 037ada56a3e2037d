/* contact_sheet.c - draws the first samples of a stream into one PNG, each with its class name below.
 *
 *   contact_sheet [--socket PATH] SOURCE OUT.png [ROWS COLUMNS]
 *
 * Happy path: connect, open, then next / draw / release until the sheet is full or the stream ends; write the file.
 * What can fail: every call of libfeedd, whose one line is printed as it is; a source without images; the file.
 * Threads: one. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gd.h>
#include <gdfontl.h>
#include <gdfonts.h>

#include "feedd.h"

#define CELL_WIDTH 84u   /* pixels: narrower images are enlarged to at least that, by an integer factor */
#define LARGE      160   /* pixels: wider cells have larger captions */
#define GAP        8     /* pixels between cells and around the sheet */
#define MAX_IMAGE  4096u /* pixels a side */
#define MAX_CELLS  256   /* rows, columns */
#define MAX_SHEET  16384 /* pixels a side */
#define BACKGROUND 0xe8e8e8
#define INK        0x202020

struct sheet {
    int rows, columns, drawn; /* cells */
    const struct feedd_schema *schema;
    const struct feedd_field *image, *label; /* label NULL: the source has none */
    int height, width, channels, scale;      /* of one image */
    int cell_height, cell_width;             /* pixels, gap included */
    gdFontPtr font;                          /* of captions */
    gdImagePtr canvas;
};

static const struct feedd_field *find_field(const struct feedd_schema *schema, const char *name, int dtype,
                                            uint32_t ndim)
{
    for (uint32_t i = 0; i < schema->field_count; i++) {
        const struct feedd_field *field = &schema->fields[i];

        if (strcmp(field->name, name) == 0 && field->dtype == dtype && field->ndim == ndim)
            return field;
    }
    return NULL;
}

/* Makes an empty sheet for images of height x width x channels (1 = gray, 3 = RGB). */
static int make_sheet(struct sheet *sheet, const struct feedd_schema *schema, struct feedd_error *err)
{
    const struct feedd_field *image = find_field(schema, "image", FEEDD_U8, 3);
    int width, height;

    /* minus 1, so that 0 is refused too */
    if (!image || image->shape[0] - 1 >= MAX_IMAGE || image->shape[1] - 1 >= MAX_IMAGE ||
        (image->shape[2] != 1 && image->shape[2] != 3)) {
        snprintf(err->message, sizeof(err->message), "%s has no gray or RGB uint8 image field of up to %u x %u pixels",
                 schema->source, MAX_IMAGE, MAX_IMAGE);
        return FEEDD_E_UNSUPPORTED;
    }
    sheet->schema = schema;
    sheet->image = image;
    sheet->label = find_field(schema, "label", FEEDD_I64, 0);
    sheet->height = (int)image->shape[0];
    sheet->width = (int)image->shape[1];
    sheet->channels = (int)image->shape[2];
    sheet->scale = (int)((CELL_WIDTH + image->shape[1] - 1) / image->shape[1]);
    sheet->cell_width = sheet->width * sheet->scale + GAP;
    sheet->font = sheet->cell_width > LARGE ? gdFontGetLarge() : gdFontGetSmall();
    sheet->cell_height = sheet->height * sheet->scale + sheet->font->h + GAP;

    height = GAP + sheet->rows * sheet->cell_height;
    width = GAP + sheet->columns * sheet->cell_width;
    if (height <= MAX_SHEET && width <= MAX_SHEET)
        sheet->canvas = gdImageCreateTrueColor(width, height);
    if (!sheet->canvas) {
        snprintf(err->message, sizeof(err->message),
                 "no room for %d x %d pixels (at most %d a side): ask for fewer cells", width, height, MAX_SHEET);
        return FEEDD_E_LIMIT;
    }
    gdImageFilledRectangle(sheet->canvas, 0, 0, width, height, BACKGROUND);
    return FEEDD_OK;
}

static void draw_image(const struct sheet *sheet, int left, int top, const uint8_t *pixel)
{
    int last = sheet->scale - 1;

    for (int y = top; y < top + sheet->height * sheet->scale; y += sheet->scale) {
        for (int x = left; x < left + sheet->width * sheet->scale; x += sheet->scale, pixel += sheet->channels) {
            int colour = sheet->channels == 3 ? gdTrueColor(pixel[0], pixel[1], pixel[2]) : *pixel * 0x010101;

            gdImageFilledRectangle(sheet->canvas, x, y, x + last, y + last, colour);
        }
    }
}

/* The class name, or the label's number where there is none, cut to the width of the cell. */
static void draw_caption(const struct sheet *sheet, int left, int top, int64_t label)
{
    const struct feedd_schema *schema = sheet->schema;
    int room = (sheet->cell_width - GAP) / sheet->font->w;
    char caption[FEEDD_MAX_NAME + 1];

    if (schema->class_names && label >= 0 && label < (int64_t)schema->class_count)
        snprintf(caption, sizeof(caption), "%.*s", room, schema->class_names[label]);
    else
        snprintf(caption, sizeof(caption), "%lld", (long long)label);
    gdImageString(sheet->canvas, sheet->font, left, top, (unsigned char *)caption, INK);
}

static void draw_batch(struct sheet *sheet, const struct feedd_batch *batch)
{
    size_t image_bytes = (size_t)sheet->height * (size_t)sheet->width * (size_t)sheet->channels;
    const struct feedd_field *fields = sheet->schema->fields;
    struct feedd_batch_info info;
    struct feedd_view images, labels = {.data = NULL};

    feedd_batch_info(batch, &info);
    feedd_batch_view(batch, (uint32_t)(sheet->image - fields), &images);
    if (sheet->label)
        feedd_batch_view(batch, (uint32_t)(sheet->label - fields), &labels);
    for (uint32_t i = 0; i < info.valid && sheet->drawn < sheet->rows * sheet->columns; i++, sheet->drawn++) {
        int left = GAP + sheet->drawn % sheet->columns * sheet->cell_width;
        int top = GAP + sheet->drawn / sheet->columns * sheet->cell_height;

        draw_image(sheet, left, top, (const uint8_t *)images.data + i * image_bytes);
        if (labels.data)
            draw_caption(sheet, left, top + sheet->height * sheet->scale, ((const int64_t *)labels.data)[i]);
    }
}

static int draw_stream(struct sheet *sheet, struct feedd_stream *stream, struct feedd_error *err)
{
    const struct feedd_batch *batch;
    int rc = FEEDD_OK;

    while (rc == FEEDD_OK && sheet->drawn < sheet->rows * sheet->columns) {
        rc = feedd_next(stream, -1, &batch, err);
        if (rc != FEEDD_OK)
            break;
        draw_batch(sheet, batch);
        rc = feedd_release(batch, NULL, err);
    }
    return rc == FEEDD_E_END ? FEEDD_OK : rc; /* a short stream makes a sheet with empty cells */
}

static int write_png(const struct sheet *sheet, const char *path, struct feedd_error *err)
{
    FILE *file = fopen(path, "wb");
    int failed = !file;

    if (file) {
        gdImagePng(sheet->canvas, file);
        failed = ferror(file);
        failed |= fclose(file) != 0;
    }
    if (failed)
        snprintf(err->message, sizeof(err->message), "%s can't be written: %s", path, strerror(errno));
    return failed ? FEEDD_E_IO : FEEDD_OK;
}

/* 1 to MAX_CELLS, or 0 for anything else. */
static int parse_cells(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);

    return *end == '\0' && value >= 1 && value <= MAX_CELLS ? (int)value : 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: contact_sheet [--socket PATH] SOURCE OUT.png [ROWS COLUMNS]   (1 to %d each)\n", MAX_CELLS);
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"socket", required_argument, NULL, 's'}, {NULL, 0, NULL, 0}};
    struct sheet sheet = {.rows = 8, .columns = 12};
    const char *socket_path = NULL; /* libfeedd's default */
    struct feedd_client *client = NULL;
    struct feedd_stream *stream = NULL;
    struct feedd_error err;
    int option, rc;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option != 's')
            return usage();
        socket_path = optarg;
    }
    argv += optind;
    argc -= optind;
    if (argc == 4) {
        sheet.rows = parse_cells(argv[2]);
        sheet.columns = parse_cells(argv[3]);
    }
    if ((argc != 2 && argc != 4) || sheet.rows == 0 || sheet.columns == 0)
        return usage();

    if ((rc = feedd_connect(socket_path, &client, &err)) || (rc = feedd_open(client, argv[0], NULL, &stream, &err)) ||
        (rc = make_sheet(&sheet, feedd_stream_schema(stream), &err)) || (rc = draw_stream(&sheet, stream, &err)) ||
        (rc = write_png(&sheet, argv[1], &err)))
        fprintf(stderr, "contact_sheet: %s\n", err.message);
    else
        printf("%s: %d samples of %s\n", argv[1], sheet.drawn, sheet.schema->source);

    if (sheet.canvas)
        gdImageDestroy(sheet.canvas);
    feedd_client_close(client); /* and the stream with it */
    return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
