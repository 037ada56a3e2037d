/* fuzz_index.c - the cache of image folders' indices: a file in it that somebody else has made.
 *
 * Input: flags (bit 0: the checksum is made right; bit 1: so are magic, version and device; bit 2: the file is the rest
 * of the input, else the real one with changes), how many entries are added, those; then what is overwritten: an offset
 * of two bytes and a number each, of which bit 15 says whether the file is cut there or goes on to there.
 * What has to hold: the folder opens whatever its cache holds. When a second, simpler reading of the file says that
 * it fits the folders on disk, the samples are those of the file, else those that are there; then the cache is
 * written anew. Every sample can be asked for, and is a file below the root or an error; no more memory is taken than
 * allowed; no descriptor stays open.
 * Threads: one. */
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "fuzz.h"
#include "index.h"
#include "log.h"
#include "reader.h"

#define MEMORY_MAX  8192u
#define FOLDERS_MAX 16u
#define SAMPLES_MAX 32u
#define NAMES_MAX   2048u
#define FILE_MAX    16384u

/* As a cache file begins: a copy, so that a change of the format is a change here. */
struct header {
    uint64_t magic, checksum, version, folder_count, sample_count, names_bytes, fingerprint, class_count, device;
};

static char folder[] = "/tmp/feedd-fuzz-XXXXXX", root[64], cache[64], cache_file[PATH_MAX];
static _Alignas(8) uint8_t real[FILE_MAX]; /* the cache file of the folder as it is */
static size_t real_bytes;
static int root_fd;

/* A cache file in parts. */
static struct {
    struct header header;
    struct index_folder folders[FOLDERS_MAX];
    struct index_sample samples[SAMPLES_MAX];
    char names[NAMES_MAX];
} parts;

/* In place of log.c: messages are made, and not written. */
void log_write(enum log_level level, const char *format, ...)
{
    char line[2048];
    va_list args;
    (void)level;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
}

void log_bug(const char *file, int line, const char *expression)
{
    fprintf(stderr, "bug at %s:%d: not true: %s\n", file, line, expression);
    abort();
}

/* ---- the folder ---- */

static void write_file(const char *path, const void *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size && close(fd) == 0);
}

static size_t read_file(const char *path, uint8_t *bytes, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, bytes, room) : 0;
    if (fd >= 0)
        close(fd);
    FUZZ_CHECK(got >= 0 && (size_t)got < room);
    return (size_t)got;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *place)
{
    (void)st, (void)type, (void)place;
    return remove(path);
}

/* Folders that are older than a tick of the clock: younger ones aren't cached. */
static int make_old(const char *path, const struct stat *st, int type, struct FTW *place)
{
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    (void)st, (void)place;
    return type == FTW_DP ? utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW) : 0;
}

static int find_cache_file(const char *path, const struct stat *st, int type, struct FTW *place)
{
    (void)st, (void)place;
    if (type == FTW_F)
        snprintf(cache_file, sizeof(cache_file), "%s", path);
    return 0;
}

static void remove_folder(void)
{
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static int open_folder(struct reader **out, struct feedd_error *err)
{
    static char name[] = "fuzz";
    static struct reader_config config = {.name = name, .ops = &reader_folder, .root = root};
    *out = NULL;
    return reader_folder.open(&config, &(struct reader_limits){MEMORY_MAX, cache}, out, err);
}

static void prepare(void)
{
    static const char *const files[] = {"a/1.jpg", "a/2.jpg", "a/x/3.jpg", "b/4.jpg", "b/5.png"};
    char path[PATH_MAX];
    struct reader *reader;
    struct feedd_error err;
    FUZZ_CHECK(mkdtemp(folder) != NULL);
    atexit(remove_folder);
    snprintf(root, sizeof(root), "%s/root", folder);
    snprintf(cache, sizeof(cache), "%s/cache", folder);
    snprintf(path, sizeof(path), "%s/outside.jpg", folder);
    write_file(path, "outside", 7);
    for (const char *const *name = (const char *const[]){"", "/a", "/b", "/a/x", NULL}; *name != NULL; name++) {
        snprintf(path, sizeof(path), "%s%s", root, *name);
        FUZZ_CHECK(mkdir(path, 0700) == 0);
    }
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", root, files[i]);
        write_file(path, files[i], i + 1);
    }
    snprintf(path, sizeof(path), "%s/b/6.jpg", root);
    FUZZ_CHECK(symlink("../../outside.jpg", path) == 0 && nftw(root, make_old, 8, FTW_DEPTH | FTW_PHYS) == 0);
    FUZZ_CHECK(open_folder(&reader, &err) == 0 && reader->sample_count == 6 && reader->class_count == 2);
    reader->ops->close(reader);
    FUZZ_CHECK(nftw(cache, find_cache_file, 8, FTW_PHYS) == 0 && cache_file[0] != '\0');
    real_bytes = read_file(cache_file, real, sizeof(real));
    root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    FUZZ_CHECK(root_fd >= 0);
}

/* ---- the cache file ---- */

static void take_apart(void)
{
    const uint8_t *at = real + sizeof(parts.header);
    memset(&parts, 0, sizeof(parts));
    memcpy(&parts.header, real, sizeof(parts.header));
    memcpy(parts.folders, at, parts.header.folder_count * sizeof(parts.folders[0]));
    at += parts.header.folder_count * sizeof(parts.folders[0]);
    memcpy(parts.samples, at, parts.header.sample_count * sizeof(parts.samples[0]));
    at += parts.header.sample_count * sizeof(parts.samples[0]);
    memcpy(parts.names, at, parts.header.names_bytes);
}

static size_t put_together(uint8_t *file)
{
    uint8_t *at = mempcpy(file, &parts.header, sizeof(parts.header));
    at = mempcpy(at, parts.folders, parts.header.folder_count * sizeof(parts.folders[0]));
    at = mempcpy(at, parts.samples, parts.header.sample_count * sizeof(parts.samples[0]));
    at = mempcpy(at, parts.names, parts.header.names_bytes);
    return (size_t)(at - file);
}

/* A name of up to 63 bytes; the most interesting ones have numbers. */
static uint32_t add_name(struct fuzz_input *in, uint64_t *at)
{
    static const char *const known[] = {"a",      "b", "a/x", "..",      "a/..",           ".",
                                        "b/../a", "/", "",    "a/1.jpg", "../outside.jpg", "/proc"};
    const uint8_t *bytes;
    uint8_t kind = fuzz_byte(in);
    size_t size = kind < 64 ? fuzz_bytes(in, kind, &bytes) : 0;
    if (kind >= 64) {
        bytes = (const uint8_t *)known[kind % (sizeof(known) / sizeof(known[0]))];
        size = strlen((const char *)bytes);
    }
    if (parts.header.names_bytes + size + 1 > NAMES_MAX)
        return 0;
    *at = parts.header.names_bytes;
    memcpy(parts.names + *at, bytes, size);
    parts.names[*at + size] = '\0';
    parts.header.names_bytes += size + 1;
    return (uint32_t)size;
}

static void add_folder(struct fuzz_input *in)
{
    struct index_folder new = {.label = fuzz_byte(in)};
    struct stat st;
    if (parts.header.folder_count == FOLDERS_MAX)
        return;
    new.path_bytes = add_name(in, &new.path_at);
    if (fstatat(root_fd, parts.names + new.path_at, &st, 0) == 0) /* as if it had been listed */
        index_folder_stamp(&new, &st);
    parts.folders[parts.header.folder_count++] = new;
}

static void add_sample(struct fuzz_input *in)
{
    struct index_sample new = {.folder = fuzz_byte(in), .size = fuzz_byte(in)};
    if (parts.header.sample_count == SAMPLES_MAX)
        return;
    new.name_bytes = add_name(in, &new.name_at);
    parts.samples[parts.header.sample_count++] = new;
}

/* Four bytes at a place, or another length. @return the file's bytes */
static size_t change(struct fuzz_input *in, uint8_t *file, size_t size)
{
    uint32_t at = (uint32_t)fuzz_byte(in) << 8;
    at |= fuzz_byte(in);
    if (at >= 32768) {
        size_t length = (at - 32768) % FILE_MAX;
        if (length > size)
            memset(file + size, 0, length - size);
        return length;
    }
    uint32_t value = (uint32_t)fuzz_number(in);
    if (size >= sizeof(value))
        memcpy(file + at % (size - sizeof(value) + 1), &value, sizeof(value));
    return size;
}

static size_t make_file(struct fuzz_input *in, uint8_t *file)
{
    const uint8_t *bytes;
    uint8_t flags = fuzz_byte(in);
    size_t size;
    if (flags & 4) {
        size = fuzz_bytes(in, FILE_MAX, &bytes);
        if (size > 0)
            memcpy(file, bytes, size);
    } else {
        take_apart();
        for (uint32_t count = fuzz_byte(in) % 16; count > 0; count--) {
            uint8_t what = fuzz_byte(in) % 4;
            if (what == 0)
                add_sample(in);
            else
                add_folder(in);
            parts.header.class_count += what == 2;
        }
        size = put_together(file);
        while (in->left > 0)
            size = change(in, file, size);
    }
    struct header *header = (struct header *)(void *)file;
    const struct header *right = (const struct header *)(const void *)real;
    if (size >= sizeof(*header) && flags & 2) {
        header->magic = right->magic;
        header->version = right->version;
        header->device = right->device;
    }
    if (size >= sizeof(*header) && flags & 1)
        header->checksum = XXH3_64bits(&header->version, size - offsetof(struct header, version));
    return size;
}

/* ---- what is due ---- */

static struct {
    uint64_t folder_count, sample_count, class_count, fingerprint;
    const struct index_folder *folders;
    const struct index_sample *samples;
    const char *names;
} due;

static int is_name(uint64_t at, uint64_t bytes, uint64_t names_bytes)
{
    return bytes < PATH_MAX && at < names_bytes && bytes < names_bytes - at && due.names[at + bytes] == '\0';
}

static int is_folder(const struct index_folder *listed)
{
    struct index_folder now = *listed;
    struct stat st;
    const char *path = listed == due.folders ? "." : due.names + listed->path_at;
    if (fstatat(root_fd, path, &st, 0) != 0 || !S_ISDIR(st.st_mode))
        return 0;
    index_folder_stamp(&now, &st);
    return now.mtime_ns == listed->mtime_ns && now.ctime_ns == listed->ctime_ns;
}

/* Whether the file is good: by index.h, and not by index.c. */
static int read_due(const uint8_t *file, size_t size)
{
    const struct header *header = (const struct header *)(const void *)file, *right = (const void *)real;
    uint64_t rest = size - sizeof(*header);
    if (size < sizeof(*header) || header->magic != right->magic || header->version != right->version ||
        header->device != right->device ||
        header->checksum != XXH3_64bits(&header->version, size - offsetof(struct header, version)))
        return 0;
    if (header->folder_count > size || header->sample_count > size || header->names_bytes > size ||
        header->class_count > size ||
        header->folder_count * sizeof(*due.folders) + header->sample_count * sizeof(*due.samples) +
                header->names_bytes !=
            rest ||
        rest + header->class_count * sizeof(char *) > MEMORY_MAX)
        return 0;
    due.folders = (const void *)(file + sizeof(*header));
    due.samples = (const void *)(due.folders + header->folder_count);
    due.names = (const char *)(due.samples + header->sample_count);
    due.folder_count = header->folder_count;
    due.sample_count = header->sample_count;
    due.class_count = header->class_count;
    due.fingerprint = header->fingerprint;
    uint32_t label = 0;
    for (uint64_t i = 0; i < due.folder_count; i++) {
        const struct index_folder *listed = &due.folders[i];
        if (!is_name(listed->path_at, listed->path_bytes, header->names_bytes))
            return 0;
        if (i <= 1 ? listed->label != 0 : listed->label - label > 1)
            return 0;
        label = listed->label;
        if ((i == 0) != (listed->path_bytes == 0) || !is_folder(listed))
            return 0;
    }
    for (uint64_t i = 0; i < due.sample_count; i++)
        if (!is_name(due.samples[i].name_at, due.samples[i].name_bytes, header->names_bytes) ||
            due.samples[i].folder < 1 || due.samples[i].folder >= due.folder_count)
            return 0;
    return due.folder_count > 1 && due.sample_count > 0 && due.class_count == (uint64_t)label + 1;
}

/* ---- what came ---- */

static void check_sample(const struct reader *reader, uint64_t i)
{
    const struct index_folder *in = &due.folders[due.samples[i].folder];
    char path[3 * PATH_MAX], is_due[3 * PATH_MAX], self[32];
    struct reader_sample sample;
    struct feedd_error err = {0, ""};
    reader->ops->path(reader, i, path, sizeof(path));
    snprintf(is_due, sizeof(is_due), "%s/%s/%s", root, due.names + in->path_at, due.names + due.samples[i].name_at);
    FUZZ_CHECK(strcmp(path, is_due) == 0);
    int status = reader->ops->read(reader, i, &sample, &err);
    if (status != 0) {
        FUZZ_CHECK(err.status == status && err.message[0] != '\0');
        return;
    }
    FUZZ_CHECK(sample.pixels == NULL && sample.label == in->label && sample.label < (int64_t)reader->class_count);
    snprintf(self, sizeof(self), "/proc/self/fd/%d", sample.fd);
    ssize_t length = readlink(self, path, sizeof(path) - 1);
    close(sample.fd);
    FUZZ_CHECK(length > (ssize_t)strlen(root) && memcmp(path, root, strlen(root)) == 0 && path[strlen(root)] == '/');
}

static void check_reader(const struct reader *reader)
{
    struct reader_sample sample;
    struct feedd_error err;
    FUZZ_CHECK(reader->sample_count == due.sample_count && reader->class_count == due.class_count);
    FUZZ_CHECK(reader->fingerprint == due.fingerprint && reader->memory_bytes <= MEMORY_MAX);
    for (uint64_t i = 1, c = 0; i < due.folder_count; i++)
        if (due.folders[i].label == c)
            FUZZ_CHECK(strcmp(reader->class_names[c++], due.names + due.folders[i].path_at) == 0);
    for (uint64_t i = 0; i < due.sample_count; i++)
        check_sample(reader, i);
    FUZZ_CHECK(reader->ops->read(reader, due.sample_count, &sample, &err) == FEEDD_E_ARGUMENT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static _Alignas(8) uint8_t file[2 * FILE_MAX], after[2 * FILE_MAX];
    struct fuzz_input in = {data, size};
    struct reader *reader;
    struct feedd_error err;
    if (root[0] == '\0')
        prepare();
    size_t bytes = make_file(&in, file);
    write_file(cache_file, file, bytes);
    int next_fd = fuzz_next_fd(), is_good = read_due(file, bytes);
    FUZZ_CHECK(open_folder(&reader, &err) == 0);
    size_t after_bytes = read_file(cache_file, after, sizeof(after));
    if (is_good) {
        FUZZ_CHECK(after_bytes == bytes && memcmp(after, file, bytes) == 0);
    } else {
        FUZZ_CHECK(after_bytes == real_bytes && memcmp(after, real, real_bytes) == 0);
        FUZZ_CHECK(read_due(real, real_bytes));
    }
    check_reader(reader);
    reader->ops->close(reader);
    FUZZ_CHECK(fuzz_next_fd() == next_fd);
    return 0;
}
