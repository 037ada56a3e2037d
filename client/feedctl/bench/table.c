/* table.c - rows of a benchmark as text, CSV and JSON.
 *
 * Happy path: table_new -> table_row, table_number... -> one of the printers. What can fail: memory, which ends the
 * program; a column that doesn't exist is a bug. Threads: one. */
#include "table.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define GAP        2 /* spaces between two columns */
#define NOTE_WIDTH 100
#define LETTERS    26 /* reasons that are told apart */
#define CELL_BYTES 64 /* of a number as text */

struct cell {
    enum { CELL_ABSENT, CELL_NUMBER, CELL_TEXT } kind;
    double number;
    char *text; /* the text, or why it is absent; NULL: not applicable */
};

struct table {
    const struct table_column *columns;
    size_t column_count, row_count, row_room, note_count;
    struct cell *cells; /* row by row */
    char **notes;
};

static void *need(void *memory)
{
    if (memory == NULL) {
        fputs("feedctl: out of memory\n", stderr);
        abort();
    }
    return memory;
}

struct table *table_new(const struct table_column *columns, size_t column_count)
{
    if (column_count > TABLE_COLUMNS_MAX) {
        fprintf(stderr, "feedctl: bug: a table of %zu columns\n", column_count);
        abort();
    }
    struct table *table = need(calloc(1, sizeof(*table)));
    table->columns = columns;
    table->column_count = column_count;
    return table;
}

void table_free(struct table *table)
{
    for (size_t i = 0; i < table->row_count * table->column_count; i++)
        free(table->cells[i].text);
    for (size_t i = 0; i < table->note_count; i++)
        free(table->notes[i]);
    free(table->cells);
    free(table->notes);
    free(table);
}

void table_row(struct table *table)
{
    if (table->row_count == table->row_room) {
        table->row_room = 2 * table->row_room + 16;
        table->cells = need(reallocarray(table->cells, table->row_room * table->column_count, sizeof(table->cells[0])));
    }
    memset(table->cells + table->row_count * table->column_count, 0, table->column_count * sizeof(table->cells[0]));
    table->row_count++;
}

static size_t column_of(const struct table *table, const char *name)
{
    for (size_t i = 0; i < table->column_count; i++)
        if (strcmp(table->columns[i].name, name) == 0)
            return i;
    fprintf(stderr, "feedctl: bug: no column %s\n", name);
    abort();
}

static struct cell *cell_at(const struct table *table, size_t row, const char *name)
{
    return &table->cells[row * table->column_count + column_of(table, name)];
}

static void put(struct table *table, const char *column, struct cell value)
{
    struct cell *cell = cell_at(table, table->row_count - 1, column);
    free(cell->text);
    *cell = value;
}

/* As all forms print it. */
static void format_number(const struct table_column *column, double number, char text[CELL_BYTES])
{
    snprintf(text, CELL_BYTES, "%.*f", column->decimals, number);
}

void table_number(struct table *table, const char *column, double value)
{
    char text[CELL_BYTES];
    if (!isfinite(value)) {
        put(table, column, (struct cell){.kind = CELL_ABSENT});
        return;
    }
    format_number(&table->columns[column_of(table, column)], value, text);
    put(table, column, (struct cell){.kind = CELL_NUMBER, .number = strtod(text, NULL)});
}

void table_text(struct table *table, const char *column, const char *text)
{
    put(table, column, (struct cell){.kind = CELL_TEXT, .text = need(strdup(text))});
}

__attribute__((format(printf, 1, 0))) static char *format_text(const char *format, va_list arguments)
{
    char *text = NULL;
    return need(vasprintf(&text, format, arguments) < 0 ? NULL : text);
}

void table_absent(struct table *table, const char *column, const char *reason, ...)
{
    struct cell cell = {.kind = CELL_ABSENT};
    if (reason != NULL) {
        va_list arguments;
        va_start(arguments, reason);
        cell.text = format_text(reason, arguments);
        va_end(arguments);
    }
    put(table, column, cell);
}

void table_note(struct table *table, const char *note, ...)
{
    va_list arguments;
    table->notes = need(reallocarray(table->notes, table->note_count + 1, sizeof(table->notes[0])));
    va_start(arguments, note);
    table->notes[table->note_count++] = format_text(note, arguments);
    va_end(arguments);
}

size_t table_rows(const struct table *table)
{
    return table->row_count;
}

double table_number_at(const struct table *table, size_t row, const char *column)
{
    const struct cell *cell = cell_at(table, row, column);
    return cell->kind == CELL_NUMBER ? cell->number : (double)NAN;
}

const char *table_text_at(const struct table *table, size_t row, const char *column)
{
    const struct cell *cell = cell_at(table, row, column);
    return cell->kind == CELL_TEXT ? cell->text : NULL;
}

/* ---- text ---- */

/* Reasons why cells are absent, each once; the place is its letter. */
struct reasons {
    const char *texts[LETTERS];
    size_t count;
};

static char letter_of(struct reasons *reasons, const char *text)
{
    size_t i = 0;
    while (i < reasons->count && strcmp(reasons->texts[i], text) != 0)
        i++;
    if (i == LETTERS)
        return '*'; /* more than there are letters: told by CSV and JSON only */
    if (i == reasons->count)
        reasons->texts[reasons->count++] = text;
    return (char)('a' + (int)i);
}

static const char *cell_text(const struct table_column *column, const struct cell *cell, struct reasons *reasons,
                             char text[CELL_BYTES])
{
    if (cell->kind == CELL_TEXT)
        return cell->text;
    if (cell->kind == CELL_NUMBER)
        format_number(column, cell->number, text);
    else if (cell->text == NULL)
        strcpy(text, "-");
    else
        snprintf(text, CELL_BYTES, "(%c)", letter_of(reasons, cell->text));
    return text;
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

static bool same_group(const struct table_column *a, const struct table_column *b)
{
    return a->group != NULL && b->group != NULL && strcmp(a->group, b->group) == 0;
}

static int text_width(const char *text)
{
    return text != NULL ? (int)strlen(text) : 0;
}

static void print_padded(const char *text, int width, bool left, FILE *to)
{
    fprintf(to, left ? "%-*s" : "%*s", width, text != NULL ? text : "");
}

/* The columns of a part, and how wide each is. */
struct part {
    size_t columns[TABLE_COLUMNS_MAX];
    int widths[TABLE_COLUMNS_MAX];
    size_t count;
};

/* How many columns from the i-th on have its group, and how wide they are together. */
static size_t group_span(const struct table *table, const struct part *part, size_t i, int *width)
{
    size_t n = 1;
    *width = part->widths[i];
    while (i + n < part->count &&
           same_group(&table->columns[part->columns[i]], &table->columns[part->columns[i + n]])) {
        *width += GAP + part->widths[i + n];
        n++;
    }
    return n;
}

static void part_init(const struct table *table, int number, struct reasons *reasons, struct part *part)
{
    char text[CELL_BYTES];
    part->count = 0;
    for (size_t c = 0; c < table->column_count; c++) {
        const struct table_column *column = &table->columns[c];
        if (column->part != 0 && column->part != number)
            continue;
        int width = max_int(text_width(column->head), text_width(column->unit));
        for (size_t r = 0; r < table->row_count; r++)
            width = max_int(width,
                            text_width(cell_text(column, &table->cells[r * table->column_count + c], reasons, text)));
        part->columns[part->count] = c;
        part->widths[part->count++] = width;
    }
    for (size_t i = 0, n; i < part->count; i += n) { /* a group's name may be wider than its columns */
        int width;
        n = group_span(table, part, i, &width);
        part->widths[i] += max_int(0, text_width(table->columns[part->columns[i]].group) - width);
    }
}

/* A line of groups, where there are any: each name above its columns, with dashes as far as they go. */
static void print_groups(const struct table *table, const struct part *part, FILE *to)
{
    bool any = false;
    for (size_t i = 0; i < part->count; i++)
        any = any || table->columns[part->columns[i]].group != NULL;
    for (size_t i = 0, n; any && i < part->count; i += n) {
        int width;
        n = group_span(table, part, i, &width);
        const char *group = table->columns[part->columns[i]].group;
        fprintf(to, "%*s%s", i > 0 ? GAP : 0, "", group != NULL ? group : "");
        for (int w = text_width(group); w < width; w++)
            fputc(group == NULL ? ' ' : w == text_width(group) ? ' ' : '-', to);
    }
    if (any)
        fputc('\n', to);
}

static void print_part(const struct table *table, int number, struct reasons *reasons, FILE *to)
{
    struct part part;
    char text[CELL_BYTES];
    part_init(table, number, reasons, &part);
    print_groups(table, &part, to);
    for (int line = 0; line < 2; line++) {
        for (size_t i = 0; i < part.count; i++) {
            const struct table_column *column = &table->columns[part.columns[i]];
            fprintf(to, "%*s", i > 0 ? GAP : 0, "");
            print_padded(line == 0 ? column->head : column->unit, part.widths[i], column->decimals == TABLE_TEXT, to);
        }
        fputc('\n', to);
    }
    for (size_t r = 0; r < table->row_count; r++) {
        for (size_t i = 0; i < part.count; i++) {
            const struct table_column *column = &table->columns[part.columns[i]];
            const struct cell *cell = &table->cells[r * table->column_count + part.columns[i]];
            fprintf(to, "%*s", i > 0 ? GAP : 0, "");
            print_padded(cell_text(column, cell, reasons, text), part.widths[i], column->decimals == TABLE_TEXT, to);
        }
        fputc('\n', to);
    }
}

/* Words, in lines of NOTE_WIDTH. */
static void print_note(const char *lead, const char *note, FILE *to)
{
    int column = fprintf(to, "%s", lead);
    const int indent = column;
    while (*note != '\0') {
        const int word = (int)strcspn(note, " ");
        if (column > indent && column + 1 + word > NOTE_WIDTH) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
        }
        column += fprintf(to, "%s%.*s", column > indent ? " " : "", word, note);
        note += word;
        note += strspn(note, " ");
    }
    fputc('\n', to);
}

void table_print(const struct table *table, FILE *to)
{
    struct reasons reasons = {.count = 0};
    int last = 0;
    for (size_t c = 0; c < table->column_count; c++)
        last = max_int(last, table->columns[c].part);
    for (int number = last > 0 ? 1 : 0; number <= last; number++) {
        if (number > 1)
            fputc('\n', to);
        print_part(table, number, &reasons, to);
    }
    if (reasons.count + table->note_count > 0)
        fputc('\n', to);
    for (size_t i = 0; i < reasons.count; i++) {
        const char lead[] = {'(', (char)('a' + (int)i), ')', ' ', '\0'};
        print_note(lead, reasons.texts[i], to);
    }
    for (size_t i = 0; i < table->note_count; i++)
        print_note("- ", table->notes[i], to);
}

/* ---- CSV, JSON ---- */

static void print_csv_text(const char *text, FILE *to)
{
    if (strpbrk(text, ",\"\r\n") == NULL) {
        fputs(text, to);
        return;
    }
    fputc('"', to);
    for (; *text != '\0'; text++)
        fprintf(to, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', to);
}

/* The reasons of a row's absent cells, each once, as one text. Owned by the caller. */
static char *row_reasons(const struct table *table, const struct cell *cells)
{
    char *all = need(strdup(""));
    for (size_t c = 0; c < table->column_count; c++) {
        if (cells[c].kind != CELL_ABSENT || cells[c].text == NULL || strstr(all, cells[c].text) != NULL)
            continue;
        char *more = NULL;
        if (asprintf(&more, "%s%s%s", all, *all != '\0' ? "; " : "", cells[c].text) < 0)
            more = NULL;
        free(all);
        all = need(more);
    }
    return all;
}

void table_print_csv(const struct table *table, FILE *to)
{
    char text[CELL_BYTES];
    for (size_t c = 0; c < table->column_count; c++) {
        print_csv_text(table->columns[c].name, to);
        fputc(',', to);
    }
    fputs("absent\n", to);
    for (size_t r = 0; r < table->row_count; r++) {
        const struct cell *cells = &table->cells[r * table->column_count];
        for (size_t c = 0; c < table->column_count; c++) {
            if (cells[c].kind == CELL_NUMBER) {
                format_number(&table->columns[c], cells[c].number, text);
                fputs(text, to);
            } else if (cells[c].kind == CELL_TEXT) {
                print_csv_text(cells[c].text, to);
            }
            fputc(',', to);
        }
        char *reasons = row_reasons(table, cells);
        print_csv_text(reasons, to);
        free(reasons);
        fputc('\n', to);
    }
}

static json_t *cell_json(const struct table_column *column, const struct cell *cell)
{
    if (cell->kind == CELL_TEXT)
        return json_string(cell->text);
    if (cell->kind == CELL_NUMBER)
        return column->decimals == 0 ? json_integer((json_int_t)cell->number) : json_real(cell->number);
    return json_null();
}

static json_t *row_json(const struct table *table, const struct cell *cells)
{
    json_t *row = json_object(), *absent = json_object();
    for (size_t c = 0; c < table->column_count; c++) {
        json_object_set_new(row, table->columns[c].name, cell_json(&table->columns[c], &cells[c]));
        if (cells[c].kind == CELL_ABSENT && cells[c].text != NULL)
            json_object_set_new(absent, table->columns[c].name, json_string(cells[c].text));
    }
    if (json_object_size(absent) > 0)
        json_object_set(row, "absent", absent);
    json_decref(absent);
    return row;
}

void table_json(const struct table *table, json_t *to)
{
    json_t *columns = json_array(), *rows = json_array(), *notes = json_array();
    for (size_t c = 0; c < table->column_count; c++) {
        const struct table_column *column = &table->columns[c];
        json_array_append_new(columns, json_pack("{s:s, s:s?}", "name", column->name, "unit", column->unit));
    }
    for (size_t r = 0; r < table->row_count; r++)
        json_array_append_new(rows, row_json(table, &table->cells[r * table->column_count]));
    for (size_t i = 0; i < table->note_count; i++)
        json_array_append_new(notes, json_string(table->notes[i]));
    json_object_set_new(to, "columns", columns);
    json_object_set_new(to, "rows", rows);
    json_object_set_new(to, "notes", notes);
}
