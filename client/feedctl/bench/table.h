/* table.h - what a benchmark found: columns, rows, notes; printed for people, as CSV or as JSON, the same numbers in
 * each.
 *
 * A number is rounded to its column's decimals when it is put in, so that no form says more than another. A cell that
 * could not be measured has the reason in place of the number.
 * Memory: everything is copied in. Threads: one. */
#ifndef FEEDD_BENCH_TABLE_H
#define FEEDD_BENCH_TABLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define TABLE_COLUMNS_MAX 40

struct table_column {
    const char *name;  /* with its unit, as CSV and JSON have it: "ours_total_us" */
    const char *group; /* what stands above columns that belong together: "ours"; NULL: nothing */
    const char *head;  /* in the text table: "total" */
    const char *unit;  /* below the head, and in JSON: "us"; NULL: none */
    int decimals;      /* of a number; TABLE_TEXT: a text */
    int part;          /* the text table is printed in parts, one below the other; columns of part 0 begin each */
};

#define TABLE_TEXT (-1)

struct table;

/* @param columns  borrowed for the table's life: a static array */
struct table *table_new(const struct table_column *columns, size_t column_count);
void table_free(struct table *table);

/* Begins a row; the cells that nothing is put in are absent without a reason: "not applicable". */
void table_row(struct table *table);

/* Into the row begun last, by the column's name (an unknown one is a bug). A number that is not finite is absent. */
void table_number(struct table *table, const char *column, double value);
void table_text(struct table *table, const char *column, const char *text);
/* @param reason  NULL: not applicable */
__attribute__((format(printf, 3, 4))) void table_absent(struct table *table, const char *column, const char *reason,
                                                        ...);

/* A sentence or more that is printed below the table. */
__attribute__((format(printf, 2, 3))) void table_note(struct table *table, const char *note, ...);

/* --- reading it again, for a plot or a recommendation --- */

size_t table_rows(const struct table *table);
/* @return NAN when it is absent */
double table_number_at(const struct table *table, size_t row, const char *column);
/* @return NULL when it is absent */
const char *table_text_at(const struct table *table, size_t row, const char *column);

/* --- printing --- */

/* Aligned, group, head and unit above, notes below; reasons of absent cells are lettered, and told below too. */
void table_print(const struct table *table, FILE *to);
/* RFC 4180, but lines end in LF. The last column, "absent", has the reasons of cells that are empty. */
void table_print_csv(const struct table *table, FILE *to);
/* Adds "columns", "rows" and "notes" to the object. An absent cell is null; such a row has "absent": {column: reason}.
 */
void table_json(const struct table *table, json_t *to);

#endif
