/* reader.c - the list of dataset formats, and what they share: opening a sample's file, and choosing some samples.
 *
 * What can fail: a sample's file is missing, not ours to read, not a regular file, or outside its dataset's folder; a
 * selection's file can't be read or holds something else than indices; there is not enough memory.
 * Threads: any; nothing here has state. */
#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "file.h"
#include "philox.h"

static const struct reader_ops *const readers[] = {&reader_idx, &reader_folder, &reader_list};
static const char reader_names[] = "idx, folder, list"; /* of all of them, in that order */

const struct reader_ops *reader_find(const char *name, const char **names)
{
    if (names != NULL)
        *names = reader_names;
    for (size_t i = 0; i < sizeof(readers) / sizeof(readers[0]); i++)
        if (strcmp(readers[i]->name, name) == 0)
            return readers[i];
    return NULL;
}

int reader_open_file(int root_fd, const char *path, int *fd, uint64_t *size, struct feedd_error *err)
{
    int opened = file_open_below(root_fd, path, O_RDONLY);
    if (opened < 0 && errno == EXDEV)
        return error_set(err, FEEDD_E_ACCESS, "leads out of the dataset's folder; allowed: files and links within it");
    if (opened < 0 && errno == ENXIO) /* a socket: no other answer than this */
        return error_set(err, FEEDD_E_CORRUPT, "is a socket; allowed: a regular file");
    if (opened < 0)
        return error_set(err, file_status(errno), "can't be opened: %s", strerror(errno));

    struct stat st;
    int rc = 0;
    if (fstat(opened, &st) != 0)
        rc = error_set(err, FEEDD_E_IO, "can't be examined: %s", strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = error_set(err, FEEDD_E_CORRUPT, "is %s; allowed: a regular file",
                       S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    if (rc != 0) {
        close(opened);
        return rc;
    }
    *fd = opened;
    *size = (uint64_t)st.st_size;
    return 0;
}

/* Selections. */

/* The split of a dataset is what users publish results on: these numbers must never change. */
static const uint32_t split_key[2] = {0xFEEDD5E1u, 0x1EC7ED00u};

/* Uniform in 0..range-1: the upper half of random x range (Lemire, "Fast Random Integer Generation in an Interval",
 * 2019); the bias is below range / 2^64. */
static uint64_t random_below(uint64_t range)
{
    const uint32_t counter[4] = {(uint32_t)range, (uint32_t)(range >> 32), 0, 0};
    uint32_t r[4];
    philox4x32(split_key, counter, r);
    return (uint64_t)(((unsigned __int128)((uint64_t)r[1] << 32 | r[0]) * range) >> 64);
}

/* The samples whose places in one shuffle of all of them (Fisher-Yates) are in [begin, end), in the dataset's order. */
static int select_share(const struct reader *reader, uint64_t begin, uint64_t end, uint64_t memory_max,
                        uint64_t **indices, struct feedd_error *err)
{
    const uint64_t n = reader->sample_count;
    if (n > memory_max / sizeof(uint64_t) || n > PTRDIFF_MAX / sizeof(uint64_t))
        return error_set(err, FEEDD_E_LIMIT,
                         "a share of %llu samples needs 8 bytes of memory for each; allowed: %llu bytes "
                         "(daemon.dataset_memory_max)",
                         (unsigned long long)n, (unsigned long long)memory_max);
    uint64_t *place = malloc(n * sizeof(uint64_t));
    if (place == NULL)
        return error_set(err, FEEDD_E_MEMORY, "not enough memory for %llu indices", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++)
        place[i] = i;
    for (uint64_t i = n - 1; i > 0; i--) {
        const uint64_t j = random_below(i + 1), kept = place[i];
        place[i] = place[j];
        place[j] = kept;
    }
    uint64_t count = 0;
    for (uint64_t i = 0; i < n; i++) /* in place: count <= i */
        if (place[i] >= begin && place[i] < end)
            place[count++] = i;
    uint64_t *smaller = realloc(place, count * sizeof(uint64_t));
    *indices = smaller != NULL ? smaller : place;
    return 0;
}

/* Reads one line: an index, or nothing. @return 1, 0, or -1: something else */
static int parse_index(const char *line, const char *end, uint64_t count, uint64_t *index)
{
    while (line < end && (*line == ' ' || *line == '\t'))
        line++;
    while (end > line && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r'))
        end--;
    if (line == end || *line == '#')
        return 0;
    uint64_t value = 0;
    for (; line < end; line++) {
        if (*line < '0' || *line > '9' || value > (count - 1) / 10)
            return -1;
        value = value * 10 + (uint64_t)(*line - '0');
    }
    *index = value;
    return value < count ? 1 : -1;
}

static int select_file(const struct reader *reader, const char *path, uint64_t memory_max, uint64_t **indices,
                       uint64_t *count, struct feedd_error *err)
{
    char *text, shown[FILE_SHOWN];
    uint64_t bytes, lines = 1, used = 0, number = 0;
    int rc = file_load(path, memory_max, "daemon.dataset_memory_max", &text, &bytes, err);
    if (rc != 0)
        return rc;
    file_shown(path, shown);
    for (uint64_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    uint64_t *list = NULL;
    if (lines > (memory_max - bytes) / sizeof(uint64_t))
        rc = error_set(err, FEEDD_E_LIMIT,
                       "%s: %llu lines need 8 bytes of memory for each; allowed: %llu bytes beside the text "
                       "(daemon.dataset_memory_max)",
                       shown, (unsigned long long)lines, (unsigned long long)(memory_max - bytes));
    else if ((list = malloc(lines * sizeof(uint64_t))) == NULL)
        rc = error_set(err, FEEDD_E_MEMORY, "%s: not enough memory for %llu lines", shown, (unsigned long long)lines);
    for (const char *line = text, *end; rc == 0 && line < text + bytes; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + bytes - line));
        if (end == NULL)
            end = text + bytes;
        number++;
        int found = parse_index(line, end, reader->sample_count, &list[used]);
        if (found < 0)
            rc = error_set(err, FEEDD_E_CORRUPT, "%s:%llu: '%.*s' is not an index; allowed: 0 to %llu", shown,
                           (unsigned long long)number, end - line < 64 ? (int)(end - line) : 64, line,
                           (unsigned long long)(reader->sample_count - 1));
        used += found > 0;
    }
    free(text);
    if (rc == 0 && used == 0)
        rc = error_set(err, FEEDD_E_ARGUMENT, "%s: no indices; allowed: one a line, at least one", shown);
    if (rc != 0) {
        free(list);
        return rc;
    }
    uint64_t *smaller = realloc(list, used * sizeof(uint64_t));
    *indices = smaller != NULL ? smaller : list;
    *count = used;
    return 0;
}

/* The place that a fraction of n places ends at: to the nearest, so that 0.29 of 100 is 29. */
static uint64_t place_of(double fraction, uint64_t n)
{
    if (fraction >= 1)
        return n;
    uint64_t place = (uint64_t)(fraction * (double)n + 0.5);
    return place < n ? place : n;
}

int reader_select(const struct reader *reader, const struct reader_selection *selection, uint64_t memory_max,
                  uint64_t **indices, uint64_t *count, struct feedd_error *err)
{
    const uint64_t n = reader->sample_count;
    if (selection->file != NULL)
        return select_file(reader, selection->file, memory_max, indices, count, err);
    if (selection->fraction_end == 0 || (selection->fraction_begin == 0 && selection->fraction_end >= 1)) {
        *indices = NULL;
        *count = n;
        return 0;
    }
    const uint64_t begin = place_of(selection->fraction_begin, n), end = place_of(selection->fraction_end, n);
    if (begin >= end)
        return error_set(err, FEEDD_E_ARGUMENT, "%s%s: %g to %g of %llu samples are none; allowed: at least one sample",
                         selection->name != NULL ? "split " : "subset", selection->name != NULL ? selection->name : "",
                         selection->fraction_begin, selection->fraction_end, (unsigned long long)n);
    int rc = select_share(reader, begin, end, memory_max, indices, err);
    if (rc == 0)
        *count = end - begin;
    return rc;
}
