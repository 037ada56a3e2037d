/* folder.c - datasets of image files in class folders, as torchvision.datasets.ImageFolder finds and orders them.
 *
 * The rule (torchvision 0.21, datasets/folder.py): classes are the folders in the root, by name. The samples of a
 * class are its files and those of all folders below it (links are followed), folder after folder by path ("a", "a-b",
 * "a/b"), by name in each. A sample's name ends as an image's does, in either case. Python sorts text by code point,
 * which is the order of its bytes in UTF-8; only names that aren't UTF-8 may sort elsewhere there.
 * Unlike there, what can't be read is an error, not left out, and links don't lead out of the root, nor in circles.
 *
 * Happy path: open: the index from the cache, or listed: the root, then class by class the folder with the smallest
 * path of those that are known; whatever it leads to comes behind it. Read: one openat2() below the root.
 * What can fail: a folder can't be read, a class has no image, there are no classes, a link leads elsewhere, the list
 * takes too much memory. Files are not opened before they are read: a broken one is an error of its sample.
 * Threads: see reader.h; nothing changes between open and close. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "file.h"
#include "hash.h"
#include "index.h"
#include "reader.h"

static const char *const extensions[] = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"};
static const char extensions_shown[] = ".jpg, .jpeg, .png, .ppm, .bmp, .pgm, .tif, .tiff or .webp";

/* A folder that changes after it was listed, but within one tick of its file system's clock, looks as it did: an index
 * is kept only when no folder is this young. 2 s is FAT's tick; others' are shorter. */
#define TICK_NS 2000000000ull

struct folder {
    struct reader reader; /* first: what callers hold */
    const char *root;     /* the configuration's */
    int root_fd;
    struct index index;
};

/* A table that grows. */
struct table {
    uint64_t count, room;
    size_t entry_bytes;
    char *entries;
};

struct listing {
    const char *root;
    char shown[FILE_SHOWN]; /* the root in messages */
    int root_fd;
    uint64_t memory_max, memory_bytes; /* of all tables */
    struct table folders, samples, names;
    struct table classes; /* uint64_t, in names: their paths */
    struct table pending; /* likewise, folders that are known and not listed yet: a heap, the smallest path on top */
    struct feedd_error *err;
};

/* ---- tables ---- */

/* Makes room for `count` more entries: twice as much as there is, or near the limit a quarter of what it leaves, so
 * that every table gets some. */
static int table_reserve(struct listing *l, struct table *table, uint64_t count)
{
    if (count <= table->room - table->count)
        return 0;
    const uint64_t left = (l->memory_max - l->memory_bytes) / table->entry_bytes;
    uint64_t more = table->room > 64 ? table->room : 64;
    if (more > left / 4)
        more = left / 4;
    if (more < count)
        more = count;
    if (more > left)
        return error_set(l->err, FEEDD_E_LIMIT,
                         "%s: the list of its files takes more memory than is allowed: %llu bytes "
                         "(daemon.dataset_memory_max)",
                         l->shown, (unsigned long long)l->memory_max);
    char *entries = realloc(table->entries, (table->room + more) * table->entry_bytes);
    if (entries == NULL)
        return error_set(l->err, FEEDD_E_MEMORY, "%s: not enough memory for the list of its files", l->shown);
    table->entries = entries;
    table->room += more;
    l->memory_bytes += more * table->entry_bytes;
    return 0;
}

/* Gives back what isn't used. */
static void table_trim(struct table *table)
{
    char *entries = table->count > 0 ? realloc(table->entries, table->count * table->entry_bytes) : NULL;
    if (entries != NULL)
        table->entries = entries;
}

static const char *name_at(const struct listing *l, uint64_t at)
{
    return l->names.entries + at;
}

/* Adds "folder/name" (folder "": just the name). */
static int add_name(struct listing *l, const char *folder, const char *name, uint64_t *at)
{
    const size_t folder_bytes = strlen(folder), name_bytes = strlen(name);
    int rc = table_reserve(l, &l->names, folder_bytes + name_bytes + 2);
    if (rc != 0)
        return rc;
    char *to = l->names.entries + l->names.count;
    *at = l->names.count;
    l->names.count += (uint64_t)(stpcpy(folder_bytes > 0 ? stpcpy(stpcpy(to, folder), "/") : to, name) + 1 - to);
    return 0;
}

static uint64_t *paths_of(const struct table *table)
{
    return (uint64_t *)(void *)table->entries;
}

static int add_path(struct listing *l, struct table *table, uint64_t at)
{
    int rc = table_reserve(l, table, 1);
    if (rc == 0)
        paths_of(table)[table->count++] = at;
    return rc;
}

static int push_pending(struct listing *l, uint64_t at)
{
    int rc = add_path(l, &l->pending, at);
    if (rc != 0)
        return rc;
    uint64_t *paths = paths_of(&l->pending), i = l->pending.count - 1;
    for (; i > 0 && strcmp(name_at(l, paths[(i - 1) / 2]), name_at(l, at)) > 0; i = (i - 1) / 2)
        paths[i] = paths[(i - 1) / 2];
    paths[i] = at;
    return 0;
}

static uint64_t pop_pending(struct listing *l)
{
    uint64_t *paths = paths_of(&l->pending), i = 0, child;
    const uint64_t count = --l->pending.count, first = paths[0], last = paths[count];
    for (; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && strcmp(name_at(l, paths[child + 1]), name_at(l, paths[child])) < 0)
            child++;
        if (strcmp(name_at(l, last), name_at(l, paths[child])) <= 0)
            break;
        paths[i] = paths[child];
    }
    paths[i] = last;
    return first;
}

/* ---- listing ---- */

/* The root and a path below it, for messages. */
static const char *below(const struct listing *l, const char *path, char shown[FILE_SHOWN])
{
    char joined[3 * PATH_MAX + 2];
    snprintf(joined, sizeof(joined), "%.*s%s%s", PATH_MAX, l->root, *path != '\0' ? "/" : "", path);
    file_shown(joined, shown);
    return shown;
}

static int fail_errno(const struct listing *l, const char *path, const char *what)
{
    char shown[FILE_SHOWN];
    int error = errno;
    if (error == EXDEV)
        return error_set(l->err, FEEDD_E_ACCESS,
                         "%s: a link that leads out of the dataset's folder; allowed: links within it",
                         below(l, path, shown));
    return error_set(l->err, file_status(error), "%s: can't be %s: %s", below(l, path, shown), what, strerror(error));
}

static bool is_image(const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof(extensions) / sizeof(extensions[0]); i++) {
        const size_t bytes = strlen(extensions[i]);
        if (length >= bytes && strcasecmp(name + length - bytes, extensions[i]) == 0)
            return true;
    }
    return false;
}

/* A link to a folder that holds it would never end. Folders that hold it are those of its own path. */
static int check_circle(const struct listing *l, const char *path, const struct stat *target)
{
    char prefix[PATH_MAX];
    strcpy(prefix, path);
    for (char *slash = prefix; slash != NULL;) {
        struct stat st;
        slash = strrchr(prefix, '/');
        if (slash != NULL)
            *slash = '\0';
        if (fstatat(l->root_fd, slash != NULL ? prefix : ".", &st, 0) != 0)
            return fail_errno(l, path, "examined");
        if (st.st_dev == target->st_dev && st.st_ino == target->st_ino) {
            char shown[FILE_SHOWN];
            return error_set(l->err, FEEDD_E_CORRUPT,
                             "%s: a link to a folder that it is in itself, so that the list would never end",
                             below(l, path, shown));
        }
    }
    return 0;
}

/* What a link (or, on some file systems, any entry) is in the end; a link to nothing is a file of no size, as os.walk
 * has it. */
static int examine(const struct listing *l, int fd, const char *path, const char *name, struct stat *st)
{
    if (fstatat(fd, name, st, 0) == 0)
        return 0;
    memset(st, 0, sizeof(*st));
    int status = file_status(errno);
    return status == FEEDD_E_NOT_FOUND || status == FEEDD_E_ACCESS ? 0 : fail_errno(l, path, "examined");
}

/* One entry of the folder `folder_path`, open as `fd`. @param label  of its class; -1: the root, where only folders
 * count */
static int list_entry(struct listing *l, int fd, const char *folder_path, int64_t label, const struct dirent *entry)
{
    char path[2 * PATH_MAX];
    struct stat st;
    uint64_t at;
    int rc = 0,
        length = snprintf(path, sizeof(path), "%s%s%s", folder_path, *folder_path != '\0' ? "/" : "", entry->d_name);
    if (length >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return fail_errno(l, path, "listed");
    }
    const bool may_be_link = entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN;
    const bool counts = label >= 0 && is_image(entry->d_name);
    bool is_folder = entry->d_type == DT_DIR;
    if (!is_folder && !may_be_link && !counts)
        return 0;
    if (!is_folder)
        rc = examine(l, fd, path, entry->d_name, &st);
    if (rc == 0 && may_be_link && S_ISDIR(st.st_mode)) {
        is_folder = true;
        rc = check_circle(l, path, &st);
    }
    if (rc == 0 && is_folder) {
        rc = add_name(l, folder_path, entry->d_name, &at);
        if (rc == 0)
            rc = label < 0 ? add_path(l, &l->classes, at) : push_pending(l, at);
    } else if (rc == 0 && counts) {
        rc = add_name(l, "", entry->d_name, &at);
        if (rc == 0)
            rc = table_reserve(l, &l->samples, 1);
        if (rc == 0)
            ((struct index_sample *)(void *)l->samples.entries)[l->samples.count++] =
                (struct index_sample){.name_at = at,
                                      .size = (uint64_t)st.st_size,
                                      .name_bytes = (uint32_t)strlen(entry->d_name),
                                      .folder = (uint32_t)(l->folders.count - 1)};
    }
    return rc;
}

static int list_entries(struct listing *l, DIR *dir, const char *path, int64_t label)
{
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL)
            return errno == 0 ? 0 : fail_errno(l, path, "listed");
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        int rc = list_entry(l, dirfd(dir), path, label, entry);
        if (rc != 0)
            return rc;
    }
}

static int by_name(const void *a, const void *b, void *names)
{
    return strcmp((const char *)names + ((const struct index_sample *)a)->name_at,
                  (const char *)names + ((const struct index_sample *)b)->name_at);
}

static int by_path(const void *a, const void *b, void *names)
{
    return strcmp((const char *)names + *(const uint64_t *)a, (const char *)names + *(const uint64_t *)b);
}

/* Lists one folder: its samples, sorted, and the folders in it. */
static int list_folder(struct listing *l, uint64_t path_at, int64_t label)
{
    char path[PATH_MAX];
    struct stat st;
    strcpy(path, name_at(l, path_at)); /* names may move; shorter than PATH_MAX: see list_entry() */
    int rc = table_reserve(l, &l->folders, 1);
    if (rc != 0)
        return rc;
    if (l->folders.count == UINT32_MAX)
        return error_set(l->err, FEEDD_E_LIMIT, "%s: more than %u folders", l->shown, UINT32_MAX);
    int fd = file_open_below(l->root_fd, *path != '\0' ? path : ".", O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return fail_errno(l, path, "opened");
    DIR *dir = fstat(fd, &st) == 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        rc = fail_errno(l, path, "listed");
        close(fd);
        return rc;
    }
    struct index_folder *folder = (struct index_folder *)(void *)l->folders.entries + l->folders.count++;
    *folder = (struct index_folder){
        .path_at = path_at, .path_bytes = (uint32_t)strlen(path), .label = label < 0 ? 0 : (uint32_t)label};
    index_folder_stamp(folder, &st); /* before the entries are read: what changes meanwhile shows next time */
    const uint64_t first = l->samples.count;
    rc = list_entries(l, dir, path, label);
    closedir(dir);
    if (rc == 0 && l->samples.count > first)
        qsort_r((struct index_sample *)(void *)l->samples.entries + first, l->samples.count - first,
                sizeof(struct index_sample), by_name, l->names.entries);
    return rc;
}

static int list_class(struct listing *l, uint64_t path_at, int64_t label)
{
    const uint64_t first = l->samples.count;
    int rc = push_pending(l, path_at);
    while (rc == 0 && l->pending.count > 0)
        rc = list_folder(l, pop_pending(l), label);
    if (rc == 0 && l->samples.count == first) {
        char shown[FILE_SHOWN];
        rc = error_set(l->err, FEEDD_E_CORRUPT, "%s: a class folder without images; allowed: at least one %s file",
                       below(l, name_at(l, path_at), shown), extensions_shown);
    }
    return rc;
}

static int list_root(struct listing *l)
{
    uint64_t root_at;
    int rc = add_name(l, "", "", &root_at);
    if (rc == 0)
        rc = list_folder(l, root_at, -1);
    if (rc == 0 && l->classes.count == 0)
        rc = error_set(l->err, FEEDD_E_CORRUPT,
                       "%s: no folders in it; allowed: a folder for each class, with its images", l->shown);
    if (rc == 0)
        qsort_r(l->classes.entries, l->classes.count, sizeof(uint64_t), by_path, l->names.entries);
    for (uint64_t c = 0; rc == 0 && c < l->classes.count; c++)
        rc = list_class(l, paths_of(&l->classes)[c], (int64_t)c);
    return rc;
}

/* Paths below the root: the dataset may move, and stand elsewhere on another node. */
static int hash_samples(const struct listing *l, struct index *index)
{
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return error_set(l->err, FEEDD_E_MEMORY, "%s: not enough memory for a hash", l->shown);
    XXH3_64bits_reset(state);
    for (uint64_t i = 0; i < index->sample_count; i++) {
        const struct index_sample *sample = &index->samples[i];
        const struct index_folder *folder = &index->folders[sample->folder];
        XXH3_64bits_update(state, index->names + folder->path_at, folder->path_bytes);
        XXH3_64bits_update(state, "/", 1);
        XXH3_64bits_update(state, index->names + sample->name_at, sample->name_bytes + 1);
        hash_u64(state, sample->size);
    }
    hash_u64(state, index->sample_count);
    index->fingerprint = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return 0;
}

static int list(const char *root, int root_fd, uint64_t memory_max, struct index *out, struct feedd_error *err)
{
    struct listing l = {.root = root,
                        .root_fd = root_fd,
                        .memory_max = memory_max,
                        .folders.entry_bytes = sizeof(struct index_folder),
                        .samples.entry_bytes = sizeof(struct index_sample),
                        .names.entry_bytes = 1,
                        .classes.entry_bytes = sizeof(uint64_t),
                        .pending.entry_bytes = sizeof(uint64_t),
                        .err = err};
    file_shown(root, l.shown);
    int rc = list_root(&l);
    if (rc == 0) {
        table_trim(&l.folders);
        table_trim(&l.samples);
        table_trim(&l.names);
    }
    struct index index = {.folders = (struct index_folder *)(void *)l.folders.entries,
                          .folder_count = l.folders.count,
                          .samples = (struct index_sample *)(void *)l.samples.entries,
                          .sample_count = l.samples.count,
                          .names = l.names.entries,
                          .names_bytes = l.names.count,
                          .class_count = (uint32_t)l.classes.count}; /* no more than folders */
    free(l.classes.entries); /* as large as class_names: the limit holds for those too */
    free(l.pending.entries);
    if (rc == 0)
        rc = hash_samples(&l, &index);
    if (rc == 0 && !index_name_classes(&index))
        rc = error_set(err, FEEDD_E_MEMORY, "%s: not enough memory for class names", l.shown);
    if (rc == 0)
        *out = index;
    else
        index_done(&index);
    return rc;
}

/* ---- the reader ---- */

static void folder_close(struct reader *reader)
{
    struct folder *folder = (struct folder *)reader;
    if (folder == NULL)
        return;
    index_done(&folder->index);
    if (folder->root_fd >= 0)
        close(folder->root_fd);
    free(folder);
}

/* Are all folders older than a tick? */
static bool is_settled(const struct index *index, const struct timespec *now)
{
    const uint64_t now_ns = (uint64_t)now->tv_sec * 1000000000u + (uint64_t)now->tv_nsec;
    for (uint64_t i = 0; i < index->folder_count; i++)
        if (now_ns < TICK_NS || index->folders[i].mtime_ns > now_ns - TICK_NS)
            return false;
    return true;
}

static int load(struct folder *folder, const struct reader_limits *limits, struct feedd_error *err)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (limits->cache_dir != NULL && index_load(limits->cache_dir, folder->root_fd, limits->memory_max, &folder->index))
        return 0;
    int rc = list(folder->root, folder->root_fd, limits->memory_max, &folder->index, err);
    if (rc == 0 && limits->cache_dir != NULL && is_settled(&folder->index, &now))
        index_store(limits->cache_dir, folder->root_fd, &folder->index);
    return rc;
}

static int folder_open(const struct reader_config *config, const struct reader_limits *limits, struct reader **out,
                       struct feedd_error *err)
{
    struct folder *folder = calloc(1, sizeof(*folder));
    if (folder == NULL)
        return error_set(err, FEEDD_E_MEMORY, "dataset %s: not enough memory", config->name);
    folder->root = config->root;
    folder->root_fd = open(config->root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int rc = 0, error = errno;
    if (folder->root_fd < 0) {
        char shown[FILE_SHOWN];
        file_shown(config->root, shown);
        rc = error_set(err, file_status(error), "%s: can't be opened: %s", shown, strerror(error));
    }
    if (rc == 0)
        rc = load(folder, limits, err);
    if (rc != 0) {
        folder_close(&folder->reader);
        return rc;
    }
    struct reader *reader = &folder->reader;
    reader->ops = &reader_folder;
    reader->sample_count = folder->index.sample_count;
    reader->fingerprint = folder->index.fingerprint;
    reader->memory_bytes = index_bytes(&folder->index);
    reader->class_count = folder->index.class_count;
    reader->class_names = folder->index.class_names;
    reader->has_labels = true;
    reader->label_dtype = FEEDD_I64;
    *out = reader;
    return 0;
}

static int folder_read(const struct reader *reader, uint64_t index, struct reader_sample *out, struct feedd_error *err)
{
    const struct folder *folder = (const struct folder *)reader;
    if (index >= reader->sample_count)
        return error_set(err, FEEDD_E_ARGUMENT, "sample %llu of a dataset of %llu", (unsigned long long)index,
                         (unsigned long long)reader->sample_count);
    const struct index_sample *sample = &folder->index.samples[index];
    const struct index_folder *in = &folder->index.folders[sample->folder];
    char path[2 * PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", folder->index.names + in->path_at, folder->index.names + sample->name_at);
    int fd;
    uint64_t size;
    int rc = reader_open_file(folder->root_fd, path, &fd, &size, err);
    if (rc == 0)
        *out = (struct reader_sample){.fd = fd, .size = size, .label = in->label};
    return rc;
}

static void folder_path(const struct reader *reader, uint64_t index, char *text, size_t size)
{
    const struct folder *folder = (const struct folder *)reader;
    const struct index_sample *sample = index < reader->sample_count ? &folder->index.samples[index] : NULL;
    if (sample != NULL)
        snprintf(text, size, "%s/%s/%s", folder->root,
                 folder->index.names + folder->index.folders[sample->folder].path_at,
                 folder->index.names + sample->name_at);
    else
        snprintf(text, size, "%s", folder->root);
}

const struct reader_ops reader_folder = {
    .name = "folder", .open = folder_open, .read = folder_read, .path = folder_path, .close = folder_close};
