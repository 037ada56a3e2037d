/* list.c - datasets of image files that a list names: lines of `path`, TAB, label.
 *
 * Paths are relative to the dataset's root; absolute ones have to lie below it. Empty lines and lines that begin with #
 * are skipped; a line may end in CR LF. Labels are whole numbers from -1 (none) on, or, as soon as one of them has a
 * point or an exponent, 32-bit floats; or no line has one.
 *
 * Happy path: open: the whole text into memory -> one entry a line; paths stay where they stand in it. Read: one
 * openat2() below the root.
 * What can fail: the list can't be read or takes too much memory, a line isn't of that form, labels are of two kinds
 * or aren't classes. Files are not opened before they are read: what is wrong with one is an error of its sample.
 * Threads: see reader.h; nothing changes between open and close. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "file.h"
#include "hash.h"
#include "reader.h"

#define LABEL_SHOWN 40 /* bytes of a label that messages show */

struct entry {
    uint64_t path_at; /* in text */
    union {
        int64_t label; /* label_dtype */
        float value;
    };
};

struct list {
    struct reader reader; /* first: what callers hold */
    char *root;           /* the configuration's, or the folder of the list */
    int root_fd;
    char *text; /* the file, with a NUL behind each path */
    uint64_t text_bytes;
    struct entry *entries;
};

struct parser {
    struct list *list;
    const struct reader_config *config;
    char shown[FILE_SHOWN];    /* the file in messages */
    char root[PATH_MAX];       /* real, or "" */
    uint64_t line;             /* from 1 */
    uint64_t first_line;       /* of the first sample */
    uint64_t negative_line;    /* of the first label below -1, fine among floats only; 0: none */
    int64_t negative, largest; /* labels */
    struct feedd_error *err;
};

__attribute__((format(printf, 2, 3))) static int fail(const struct parser *p, const char *format, ...)
{
    char what[sizeof(p->err->message)];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    return error_set(p->err, FEEDD_E_CORRUPT, "%s:%llu: %s", p->shown, (unsigned long long)p->line, what);
}

/* ---- lines ---- */

static int fail_label(const struct parser *p, const char *text, const char *why)
{
    return fail(p, "label '%.*s' %s", LABEL_SHOWN, text, why);
}

/* Makes the samples so far a dataset of floats. */
static int turn_to_floats(struct parser *p, const char *text)
{
    struct reader *reader = &p->list->reader;
    if (p->config->class_count > 0)
        return fail_label(p, text,
                          "is not a whole number, but classes are configured; allowed: a class's number, or -1");
    for (uint64_t i = 0; i < reader->sample_count; i++)
        p->list->entries[i].value = (float)p->list->entries[i].label;
    reader->label_dtype = FEEDD_F32;
    return 0;
}

static int parse_float(const struct parser *p, const char *text, struct entry *entry)
{
    char *end;
    float value = strtof(text, &end);
    if (end == text || *end != '\0')
        return fail_label(p, text, "is not a number; allowed: a whole number, or one like 0.5 or 1e-3");
    if (!isfinite(value))
        return fail_label(p, text, "is larger than a 32-bit float can be; allowed: up to 3.4e38");
    entry->value = value;
    return 0;
}

static int parse_whole(struct parser *p, const char *text, struct entry *entry)
{
    char *end;
    const int64_t classes = p->config->class_count;
    errno = 0;
    const long long label = strtoll(text, &end, 10);
    if (end == text || *end != '\0')
        return fail_label(p, text, "is not a number; allowed: a whole number, or one like 0.5 or 1e-3");
    if (errno == ERANGE)
        return fail_label(p, text, "doesn't fit 64 bits; allowed: -1 to 9223372036854775807");
    if (classes > 0 && (label < -1 || label >= classes))
        return fail(p, "label %lld, but %lld classes are configured; allowed: 0 to %lld, or -1 for none", label,
                    (long long)classes, (long long)classes - 1);
    if (label < -1 && p->negative_line == 0) {
        p->negative_line = p->line;
        p->negative = label;
    }
    if (label > p->largest)
        p->largest = label;
    entry->label = label;
    return 0;
}

/* @param text  what stands behind the TAB, or NULL */
static int parse_label(struct parser *p, const char *text, struct entry *entry)
{
    struct reader *reader = &p->list->reader;
    if (reader->sample_count == 0) {
        reader->has_labels = text != NULL;
        p->first_line = p->line;
    }
    if (reader->has_labels != (text != NULL))
        return fail(p, "has %s label, and line %llu has %s; allowed: a label in every line, or in none",
                    text != NULL ? "a" : "no", (unsigned long long)p->first_line, text != NULL ? "none" : "one");
    entry->label = -1;
    if (text == NULL)
        return 0;
    if (text[strspn(text, "0123456789+-.eE")] != '\0') /* strtof() knows blanks, nan, hexadecimal */
        return fail_label(p, text, "is not a number; allowed: a whole number, or one like 0.5 or 1e-3");
    int rc = 0;
    if (reader->label_dtype == FEEDD_I64 && strpbrk(text, ".eE") != NULL)
        rc = turn_to_floats(p, text);
    if (rc != 0)
        return rc;
    return reader->label_dtype == FEEDD_F32 ? parse_float(p, text, entry) : parse_whole(p, text, entry);
}

/* What follows `root` and a slash in an absolute path, or NULL. */
static const char *behind(const char *path, const char *root)
{
    size_t length = strlen(root);
    while (length > 0 && root[length - 1] == '/')
        length--;
    if (strncmp(path, root, length) != 0 || path[length] != '/')
        return NULL;
    return path + length + strspn(path + length, "/");
}

static int parse_path(const struct parser *p, const char *path, struct entry *entry)
{
    const char *relative = path;
    if (*path == '/') {
        relative = behind(path, p->list->root);
        if (relative == NULL && p->root[0] != '\0')
            relative = behind(path, p->root);
    }
    if (relative == NULL) {
        char shown[FILE_SHOWN];
        file_shown(p->list->root, shown);
        return fail(p, "an absolute path outside of the dataset's root; allowed: paths below %s", shown);
    }
    if (*relative == '\0')
        return fail(p, "no path; allowed: a file's path, and behind a TAB its label");
    if (strlen(relative) >= PATH_MAX)
        return fail(p, "a path of %zu bytes; allowed: at most %d", strlen(relative), PATH_MAX - 1);
    entry->path_at = (uint64_t)(relative - p->list->text);
    return 0;
}

/* One line, ended by a NUL. */
static int parse_line(struct parser *p, char *line)
{
    struct entry *entry = &p->list->entries[p->list->reader.sample_count];
    char *label = strchr(line, '\t');
    if (label != NULL) {
        *label++ = '\0';
        if (strchr(label, '\t') != NULL)
            return fail(p, "more than one TAB; allowed: path, TAB, label");
    }
    int rc = parse_path(p, line, entry);
    if (rc == 0)
        rc = parse_label(p, label, entry);
    if (rc == 0)
        p->list->reader.sample_count++;
    return rc;
}

static int parse_lines(struct parser *p)
{
    char *const text = p->list->text, *const text_end = text + p->list->text_bytes;
    int rc = 0;
    for (char *line = text, *end; rc == 0 && line < text_end; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text_end - line));
        if (end == NULL)
            end = text_end; /* a NUL of ours stands there */
        p->line++;
        if (p->line == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0) /* a byte order mark */
            line += 3;
        *end = '\0';
        if (strlen(line) != (size_t)(end - line))
            return fail(p, "a NUL byte; allowed: text without it");
        if (end > line && end[-1] == '\r')
            end[-1] = '\0';
        if (*line != '\0' && *line != '#')
            rc = parse_line(p, line);
    }
    return rc;
}

/* ---- the reader ---- */

static void list_close(struct reader *reader)
{
    struct list *list = (struct list *)reader;
    if (list == NULL)
        return;
    free(list->entries);
    free(list->text);
    free(list->root);
    if (list->root_fd >= 0)
        close(list->root_fd);
    free(list);
}

/* Of paths, labels and the list's own size. Not of the files' sizes: asking a network's file system for a million of
 * them would take minutes at every start. */
static int hash_entries(const struct parser *p)
{
    struct list *list = p->list;
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return error_set(p->err, FEEDD_E_MEMORY, "%s: not enough memory for a hash", p->shown);
    XXH3_64bits_reset(state);
    for (uint64_t i = 0; i < list->reader.sample_count; i++) {
        const struct entry *entry = &list->entries[i];
        const char *path = list->text + entry->path_at;
        uint32_t bits;
        memcpy(&bits, &entry->value, sizeof(bits));
        XXH3_64bits_update(state, path, strlen(path) + 1);
        hash_u64(state, list->reader.label_dtype == FEEDD_F32 ? bits : (uint64_t)entry->label);
    }
    hash_u64(state, list->reader.sample_count);
    hash_u64(state, list->text_bytes);
    list->reader.fingerprint = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return 0;
}

/* One entry a line, at most. */
static int make_entries(struct parser *p, uint64_t memory_max)
{
    struct list *list = p->list;
    uint64_t lines = 1;
    for (uint64_t i = 0; i < list->text_bytes; i++)
        lines += list->text[i] == '\n';
    if (lines > (memory_max - list->text_bytes) / sizeof(struct entry))
        return error_set(p->err, FEEDD_E_LIMIT,
                         "%s: %llu lines of %llu bytes take more memory than is allowed: %llu bytes "
                         "(daemon.dataset_memory_max)",
                         p->shown, (unsigned long long)lines, (unsigned long long)list->text_bytes,
                         (unsigned long long)memory_max);
    list->entries = malloc(lines * sizeof(struct entry));
    return list->entries != NULL ? 0
                                 : error_set(p->err, FEEDD_E_MEMORY, "%s: not enough memory for %llu lines", p->shown,
                                             (unsigned long long)lines);
}

static int load(struct parser *p, const struct reader_limits *limits)
{
    struct list *list = p->list;
    struct reader *reader = &list->reader;
    int rc = file_load(p->config->list, limits->memory_max, "daemon.dataset_memory_max", &list->text, &list->text_bytes,
                       p->err);
    if (rc == 0)
        rc = make_entries(p, limits->memory_max);
    if (rc == 0)
        rc = parse_lines(p);
    if (rc != 0)
        return rc;
    if (reader->sample_count == 0)
        return error_set(p->err, FEEDD_E_CORRUPT, "%s: no samples; allowed: a line for each, path, TAB, label",
                         p->shown);
    if (reader->label_dtype == FEEDD_I64 && p->negative_line != 0) {
        p->line = p->negative_line;
        return fail(p, "label %lld; allowed: 0 or more, or -1 for none", (long long)p->negative);
    }
    struct entry *entries = realloc(list->entries, reader->sample_count * sizeof(*entries));
    if (entries != NULL)
        list->entries = entries;
    reader->memory_bytes = list->text_bytes + 1 + reader->sample_count * sizeof(*entries);
    reader->class_count = p->config->class_count;
    if (reader->class_count > 0)
        reader->class_names = (const char *const *)p->config->classes;
    else if (reader->has_labels && reader->label_dtype == FEEDD_I64 && p->largest < UINT32_MAX)
        reader->class_count = (uint32_t)(p->largest + 1);
    return hash_entries(p);
}

static char *root_of(const struct reader_config *config)
{
    const char *slash = strrchr(config->list, '/');
    if (config->root != NULL)
        return strdup(config->root);
    if (slash == NULL)
        return strdup(".");
    return strndup(config->list, slash > config->list ? (size_t)(slash - config->list) : 1);
}

static int open_root(struct parser *p)
{
    struct list *list = p->list;
    list->root = root_of(p->config);
    if (list->root == NULL)
        return error_set(p->err, FEEDD_E_MEMORY, "%s: not enough memory", p->shown);
    list->root_fd = open(list->root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (list->root_fd >= 0) {
        if (file_real_path(list->root_fd, p->root) != 0)
            p->root[0] = '\0';
        return 0;
    }
    int error = errno;
    char shown[FILE_SHOWN];
    file_shown(list->root, shown);
    return error_set(p->err, file_status(error), "%s: can't be opened: %s", shown, strerror(error));
}

static int list_open(const struct reader_config *config, const struct reader_limits *limits, struct reader **out,
                     struct feedd_error *err)
{
    struct list *list = calloc(1, sizeof(*list));
    if (list == NULL)
        return error_set(err, FEEDD_E_MEMORY, "dataset %s: not enough memory", config->name);
    struct parser p = {.list = list, .config = config, .largest = -1, .err = err};
    file_shown(config->list, p.shown);
    list->reader.ops = &reader_list;
    list->reader.label_dtype = FEEDD_I64;
    list->root_fd = -1;
    int rc = open_root(&p);
    if (rc == 0)
        rc = load(&p, limits);
    if (rc != 0) {
        list_close(&list->reader);
        return rc;
    }
    *out = &list->reader;
    return 0;
}

static int list_read(const struct reader *reader, uint64_t index, struct reader_sample *out, struct feedd_error *err)
{
    const struct list *list = (const struct list *)reader;
    if (index >= reader->sample_count)
        return error_set(err, FEEDD_E_ARGUMENT, "sample %llu of a dataset of %llu", (unsigned long long)index,
                         (unsigned long long)reader->sample_count);
    const struct entry *entry = &list->entries[index];
    int fd;
    uint64_t size;
    int rc = reader_open_file(list->root_fd, list->text + entry->path_at, &fd, &size, err);
    if (rc != 0)
        return rc;
    *out = (struct reader_sample){.fd = fd, .size = size};
    if (reader->label_dtype == FEEDD_F32)
        out->value = entry->value;
    else
        out->label = entry->label;
    return 0;
}

static void list_path(const struct reader *reader, uint64_t index, char *text, size_t size)
{
    const struct list *list = (const struct list *)reader;
    if (index < reader->sample_count)
        snprintf(text, size, "%s/%s", list->root, list->text + list->entries[index].path_at);
    else
        snprintf(text, size, "%s", list->root);
}

const struct reader_ops reader_list = {
    .name = "list", .open = list_open, .read = list_read, .path = list_path, .close = list_close};
