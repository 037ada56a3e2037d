/* fuzz_list.c - datasets of a list: lines of path, TAB, label.
 *
 * Input: flags (bit 0: the root is configured, else it is the list's folder; bit 1: bytes below 4 stand for what lists
 * are made of), the number of classes, then the list.
 * What has to hold: a list opens exactly when a second, simpler reading of it says so, with the same samples; a
 * sample's file is one below the root, whatever its path says; opening takes no more memory than allowed; a refusal
 * says why; no descriptor stays open.
 * Threads: one. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sys/stat.h>

#include "fuzz.h"
#include "reader.h"

#define MEMORY_MAX  16384u
#define LIST_MAX    4096u
#define SAMPLES_MAX (LIST_MAX / 2)

static char folder[] = "/tmp/feedd-fuzz-XXXXXX";
static char root[64], list_path[64];

/* What a list says, by the format's description and not by the reader's code. */
struct due {
    int refused;
    uint32_t count;
    int has_labels, floats;
    struct due_sample {
        const char *path; /* not terminated */
        size_t path_bytes;
        int64_t label;
        float value;
    } samples[SAMPLES_MAX];
};
static struct due due;

static const char *path_of(const char *name)
{
    static char path[96];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    FUZZ_CHECK(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

static void remove_folder(void)
{
    static const char *const files[] = {"root/a", "root/sub/b", "root/in", "root/out", "root/pipe", "root/list", "c"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        unlink(path_of(files[i]));
    rmdir(path_of("root/sub"));
    rmdir(root);
    rmdir(folder);
}

/* Files in the root, a link to one, one out of it, a pipe; and a file beside the root. */
static void prepare(void)
{
    FUZZ_CHECK(mkdtemp(folder) != NULL);
    atexit(remove_folder);
    snprintf(root, sizeof(root), "%s/root", folder);
    snprintf(list_path, sizeof(list_path), "%s/root/list", folder);
    FUZZ_CHECK(mkdir(root, 0700) == 0 && mkdir(path_of("root/sub"), 0700) == 0);
    write_file(path_of("root/a"), "a", 1);
    write_file(path_of("root/sub/b"), "bb", 2);
    write_file(path_of("c"), "ccc", 3);
    FUZZ_CHECK(symlink("sub/b", path_of("root/in")) == 0 && symlink("../c", path_of("root/out")) == 0);
    FUZZ_CHECK(mkfifo(path_of("root/pipe"), 0600) == 0);
}

static int is_one_of(const char *bytes, size_t size, const char *set)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i] == '\0' || strchr(set, bytes[i]) == NULL)
            return 0;
    return 1;
}

/* @return whether it is a label of the kind that the list has so far */
static int read_label(const char *bytes, size_t size, uint8_t classes, struct due_sample *sample)
{
    char text[LIST_MAX + 1], *end;
    memcpy(text, bytes, size);
    text[size] = '\0';
    if (size == 0 || !is_one_of(text, size, "0123456789+-.eE"))
        return 0;
    int is_float = strpbrk(text, ".eE") != NULL;
    if (is_float && classes > 0)
        return 0;
    if (is_float && !due.floats)
        for (uint32_t i = 0; i < due.count; i++)
            due.samples[i].value = (float)due.samples[i].label;
    due.floats |= is_float;
    errno = 0;
    if (due.floats)
        sample->value = strtof(text, &end);
    else
        sample->label = strtoll(text, &end, 10);
    if (end != text + size || (due.floats ? !isfinite(sample->value) : errno == ERANGE))
        return 0;
    return classes == 0 || (sample->label >= -1 && sample->label < classes);
}

/* One line that isn't empty. @return whether it is right */
static int read_line(const char *line, size_t size, uint8_t classes)
{
    struct due_sample *sample = &due.samples[due.count];
    const char *end = line + size, *tab = memchr(line, '\t', size);
    const char *path = line, *path_end = tab != NULL ? tab : end;
    size_t root_bytes = strlen(root);
    if (tab != NULL && memchr(tab + 1, '\t', (size_t)(end - tab - 1)) != NULL)
        return 0;
    if (*line == '/') {
        if (size <= root_bytes || memcmp(line, root, root_bytes) != 0 || line[root_bytes] != '/')
            return 0;
        for (path += root_bytes; path < path_end && *path == '/';)
            path++;
    }
    if (path >= path_end || path_end - path >= PATH_MAX)
        return 0;
    if (due.count == 0)
        due.has_labels = tab != NULL;
    *sample = (struct due_sample){.path = path, .path_bytes = (size_t)(path_end - path), .label = -1};
    if (due.has_labels != (tab != NULL) ||
        (tab != NULL && !read_label(tab + 1, (size_t)(end - tab - 1), classes, sample)))
        return 0;
    due.count++;
    return 1;
}

static void read_list(const char *text, size_t size, uint8_t classes)
{
    memset(&due, 0, offsetof(struct due, samples));
    due.refused = memchr(text, '\0', size) != NULL;
    size_t at = size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < size && !due.refused) {
        const char *line = text + at, *newline = memchr(line, '\n', size - at);
        size_t bytes = newline != NULL ? (size_t)(newline - line) : size - at;
        at += bytes + 1;
        if (bytes > 0 && line[bytes - 1] == '\r')
            bytes--;
        if (bytes > 0 && line[0] != '#')
            due.refused = !read_line(line, bytes, classes);
    }
    for (uint32_t i = 0; i < due.count && !due.floats; i++)
        due.refused |= due.samples[i].label < -1;
    due.refused |= due.count == 0;
}

/* An open file: it is in the root. */
static void check_below(int fd)
{
    char self[32], real[PATH_MAX];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(self, real, sizeof(real) - 1);
    FUZZ_CHECK(length > 0);
    real[length] = '\0';
    FUZZ_CHECK(strncmp(real, root, strlen(root)) == 0 && real[strlen(root)] == '/');
}

static void check_sample(const struct reader *reader, uint64_t i)
{
    const struct due_sample *is_due = &due.samples[i];
    char path[PATH_MAX + 96];
    struct reader_sample sample;
    struct feedd_error err = {0, ""};
    reader->ops->path(reader, i, path, sizeof(path));
    size_t length = strlen(path);
    FUZZ_CHECK(length > is_due->path_bytes &&
               memcmp(path + length - is_due->path_bytes, is_due->path, is_due->path_bytes) == 0);
    int status = reader->ops->read(reader, i, &sample, &err);
    if (status != 0) {
        FUZZ_CHECK(status == FEEDD_E_NOT_FOUND || status == FEEDD_E_ACCESS || status == FEEDD_E_CORRUPT);
        FUZZ_CHECK(err.status == status && err.message[0] != '\0');
        return;
    }
    check_below(sample.fd);
    close(sample.fd);
    FUZZ_CHECK(sample.pixels == NULL && sample.offset == 0);
    if (due.floats)
        FUZZ_CHECK(memcmp(&sample.value, &is_due->value, sizeof(float)) == 0);
    else
        FUZZ_CHECK(sample.label == is_due->label);
}

/* Bytes that make lists, so that mutations of one byte do something. */
static size_t expand(const uint8_t *bytes, size_t size, char *text)
{
    static const char *const words[] = {"a\t", "sub/b\t1\n", "", "in\t0.5\n"};
    size_t used = 0;
    for (size_t i = 0; i < size && used + sizeof(root) < LIST_MAX; i++) {
        const char *word = bytes[i] == 2 ? root : words[bytes[i] & 3];
        size_t length = bytes[i] < 4 ? strlen(word) : 1;
        memcpy(text + used, bytes[i] < 4 ? (const void *)word : (const void *)&bytes[i], length);
        used += length;
    }
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[LIST_MAX], *class_names[256], name[] = "fuzz";
    struct fuzz_input in = {data, size};
    const uint8_t *bytes;
    if (root[0] == '\0')
        prepare();
    uint8_t flags = fuzz_byte(&in), classes = fuzz_byte(&in);
    size_t used = fuzz_bytes(&in, LIST_MAX, &bytes);
    if (flags & 2)
        used = expand(bytes, used, text);
    else if (used > 0)
        memcpy(text, bytes, used);
    write_file(list_path, text, used);
    read_list(text, used, classes);

    for (int i = 0; i < classes; i++)
        class_names[i] = name;
    struct reader_config config = {.name = name,
                                   .ops = reader_find("list", NULL),
                                   .list = list_path,
                                   .root = flags & 1 ? root : NULL,
                                   .classes = classes > 0 ? class_names : NULL,
                                   .class_count = classes};
    struct reader *reader = NULL;
    struct feedd_error err = {0, ""};
    int next_fd = fuzz_next_fd();
    int status = config.ops->open(&config, &(struct reader_limits){MEMORY_MAX, NULL}, &reader, &err);
    if (status != 0) {
        FUZZ_CHECK(reader == NULL && (status == FEEDD_E_CORRUPT || status == FEEDD_E_LIMIT));
        FUZZ_CHECK(status == FEEDD_E_LIMIT || due.refused);
        fuzz_check_error(&err, status);
    } else {
        FUZZ_CHECK(!due.refused && reader->sample_count == due.count && reader->memory_bytes <= MEMORY_MAX);
        FUZZ_CHECK(reader->label_dtype == (due.floats ? FEEDD_F32 : FEEDD_I64) && reader->has_labels == due.has_labels);
        for (uint64_t i = 0; i < due.count; i++)
            check_sample(reader, i);
        struct reader_sample sample;
        FUZZ_CHECK(reader->ops->read(reader, due.count, &sample, &err) == FEEDD_E_ARGUMENT);
        reader->ops->close(reader);
    }
    FUZZ_CHECK(fuzz_next_fd() == next_fd);
    return 0;
}
