/* index.c - see index.h.
 *
 * A cache file is a header and the three tables as they are in memory: folders, samples, names. Its name is a hash of
 * the root's real path, device and inode, so that every root has one and no two users of a cache need to agree.
 *
 * Happy path: store: temporary file -> rename. Load: read all of it -> checksum -> every number within its table ->
 * every folder as it was.
 * What can fail: everything, and then the index isn't in the cache. A checksum proves nothing about intent: numbers
 * are checked even when it fits, and the paths are opened below the root like any others.
 * Threads: see reader.h. Two daemons may share a cache: a file is only ever replaced as a whole. */
#include "index.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "file.h"
#include "log.h"

#define MAGIC   0x7865646e69646566u /* "fedindex" on a little-endian machine, and no magic on another */
#define VERSION 1u                  /* of the tables, and of the rule by which they are made */

struct header {
    uint64_t magic;
    uint64_t checksum; /* XXH3 of what follows in this header, then of the tables */
    uint64_t version;
    uint64_t folder_count, sample_count, names_bytes;
    uint64_t fingerprint;
    uint64_t class_count;
    uint64_t device; /* of the root */
};

uint64_t index_bytes(const struct index *index)
{
    return index->folder_count * sizeof(*index->folders) + index->sample_count * sizeof(*index->samples) +
           index->names_bytes + index->class_count * sizeof(*index->class_names);
}

void index_done(struct index *index)
{
    free(index->folders);
    free(index->samples);
    free(index->names);
    free(index->class_names);
}

bool index_name_classes(struct index *index)
{
    index->class_names = malloc(index->class_count * sizeof(*index->class_names));
    if (index->class_names == NULL)
        return false;
    uint32_t c = 0;
    for (uint64_t i = 1; i < index->folder_count && c < index->class_count; i++)
        if (index->folders[i].label == c)
            index->class_names[c++] = index->names + index->folders[i].path_at;
    return true;
}

static uint64_t nanoseconds(struct timespec t)
{
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec; /* compared for equality only: it may wrap */
}

void index_folder_stamp(struct index_folder *folder, const struct stat *st)
{
    folder->mtime_ns = nanoseconds(st->st_mtim);
    folder->ctime_ns = nanoseconds(st->st_ctim);
}

/* @param path  PATH_MAX bytes. @return 0, or -1: this root can have no file */
static int cache_path(const char *cache_dir, int root_fd, const struct stat *root, char *path)
{
    char real[PATH_MAX], key[PATH_MAX + 64];
    if (file_real_path(root_fd, real) != 0)
        return -1;
    int length = snprintf(key, sizeof(key), "folder %llu %llu %s", (unsigned long long)root->st_dev,
                          (unsigned long long)root->st_ino, real);
    int bytes = snprintf(path, PATH_MAX, "%s/folder-%016llx.index", cache_dir,
                         (unsigned long long)XXH3_64bits(key, (size_t)length));
    return bytes > 0 && bytes < PATH_MAX ? 0 : -1;
}

static bool checksum(const struct header *header, const struct index *index, uint64_t *out)
{
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return false;
    const size_t skip = offsetof(struct header, version);
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, (const char *)header + skip, sizeof(*header) - skip);
    XXH3_64bits_update(state, index->folders, index->folder_count * sizeof(*index->folders));
    XXH3_64bits_update(state, index->samples, index->sample_count * sizeof(*index->samples));
    XXH3_64bits_update(state, index->names, index->names_bytes);
    *out = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return true;
}

/* ---- load ---- */

static bool read_all(int fd, void *to, uint64_t count, uint64_t *offset)
{
    for (uint64_t done = 0; done < count;) {
        ssize_t n = pread(fd, (char *)to + done, count - done, (off_t)(*offset + done));
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        done += n > 0 ? (uint64_t)n : 0;
    }
    *offset += count;
    return true;
}

/* Makes room for `count` entries of a file that has *rest bytes left. */
static void *allocate(uint64_t count, size_t entry_bytes, uint64_t *rest)
{
    if (count > *rest / entry_bytes)
        return NULL;
    *rest -= count * entry_bytes;
    return malloc(count * entry_bytes + 1);
}

/* Tables of the sizes that the header says, which have to be the file's. */
static bool make_tables(const struct header *header, uint64_t file_bytes, uint64_t memory_max, struct index *index)
{
    uint64_t rest = file_bytes - sizeof(*header);
    if (file_bytes < sizeof(*header) || header->folder_count > UINT32_MAX || header->class_count > UINT32_MAX ||
        rest > memory_max || header->class_count * sizeof(*index->class_names) > memory_max - rest)
        return false;
    index->folder_count = header->folder_count;
    index->sample_count = header->sample_count;
    index->names_bytes = header->names_bytes;
    index->fingerprint = header->fingerprint;
    index->class_count = (uint32_t)header->class_count;
    index->folders = allocate(index->folder_count, sizeof(*index->folders), &rest);
    index->samples = allocate(index->sample_count, sizeof(*index->samples), &rest);
    index->names = allocate(index->names_bytes, 1, &rest);
    return index->folders != NULL && index->samples != NULL && index->names != NULL && rest == 0;
}

static bool is_name(const struct index *index, uint64_t at, uint64_t bytes)
{
    return bytes < PATH_MAX && at < index->names_bytes && bytes < index->names_bytes - at &&
           index->names[at + bytes] == '\0';
}

/* Every number is within its table, and classes follow one another from 0 to class_count - 1. */
static bool is_sound(const struct index *index)
{
    uint64_t classes = 0;
    for (uint64_t i = 0; i < index->folder_count; i++) {
        const struct index_folder *folder = &index->folders[i];
        if (!is_name(index, folder->path_at, folder->path_bytes) || (folder->path_bytes == 0) != (i == 0))
            return false;
        if (i > 0 && folder->label == classes)
            classes++;
        if (i == 0 ? folder->label != 0 : (uint64_t)folder->label + 1 != classes)
            return false;
    }
    for (uint64_t i = 0; i < index->sample_count; i++) {
        const struct index_sample *sample = &index->samples[i];
        if (!is_name(index, sample->name_at, sample->name_bytes) || sample->folder == 0 ||
            sample->folder >= index->folder_count)
            return false;
    }
    return index->sample_count > 0 && classes > 0 && classes == index->class_count;
}

/* The folders on disk are those that were listed. */
static bool is_current(const struct index *index, int root_fd)
{
    for (uint64_t i = 0; i < index->folder_count; i++) {
        const struct index_folder *folder = &index->folders[i];
        struct index_folder now = *folder;
        struct stat st;
        if (fstatat(root_fd, i == 0 ? "." : index->names + folder->path_at, &st, 0) != 0 || !S_ISDIR(st.st_mode))
            return false;
        index_folder_stamp(&now, &st);
        if (memcmp(&now, folder, sizeof(now)) != 0)
            return false;
    }
    return true;
}

static bool read_index(int fd, int root_fd, const struct stat *root, uint64_t memory_max, struct index *index)
{
    struct header header;
    struct stat st;
    uint64_t offset = 0, sum;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022) != 0)
        return false;
    return read_all(fd, &header, sizeof(header), &offset) && header.magic == MAGIC && header.version == VERSION &&
           header.device == root->st_dev && make_tables(&header, (uint64_t)st.st_size, memory_max, index) &&
           read_all(fd, index->folders, index->folder_count * sizeof(*index->folders), &offset) &&
           read_all(fd, index->samples, index->sample_count * sizeof(*index->samples), &offset) &&
           read_all(fd, index->names, index->names_bytes, &offset) && checksum(&header, index, &sum) &&
           sum == header.checksum && is_sound(index) && is_current(index, root_fd) && index_name_classes(index);
}

bool index_load(const char *cache_dir, int root_fd, uint64_t memory_max, struct index *out)
{
    char path[PATH_MAX];
    struct stat root;
    if (fstat(root_fd, &root) != 0 || cache_path(cache_dir, root_fd, &root, path) != 0)
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return false;
    struct index index = {.folders = NULL};
    bool good = read_index(fd, root_fd, &root, memory_max, &index);
    close(fd);
    if (good)
        *out = index;
    else
        index_done(&index);
    return good;
}

/* ---- store ---- */

static bool write_all(int fd, const void *from, uint64_t count)
{
    for (uint64_t done = 0; done < count;) {
        ssize_t n = write(fd, (const char *)from + done, count - done);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        done += n > 0 ? (uint64_t)n : 0;
    }
    return true;
}

/* The cache's folder and those above it that aren't there, for its owner alone. */
static void make_folders(const char *cache_dir)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s", cache_dir) >= (int)sizeof(path))
        return;
    for (char *slash = path + 1; *path != '\0' && (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0700); /* what fails here shows when the file is made */
        *slash = '/';
    }
    mkdir(path, 0700);
}

/* @return 0, or -1 and errno */
static int write_index(const char *path, const struct header *header, const struct index *index)
{
    char temporary[PATH_MAX + 8];
    snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path);
    int fd = mkostemp(temporary, O_CLOEXEC); /* 0600 */
    if (fd < 0)
        return -1;
    /* Not synced: after a power cut the checksum tells, and the folders are listed again. */
    bool good = write_all(fd, header, sizeof(*header)) &&
                write_all(fd, index->folders, index->folder_count * sizeof(*index->folders)) &&
                write_all(fd, index->samples, index->sample_count * sizeof(*index->samples)) &&
                write_all(fd, index->names, index->names_bytes);
    if (close(fd) == 0 && good && rename(temporary, path) == 0)
        return 0;
    int error = errno;
    unlink(temporary);
    errno = error;
    return -1;
}

void index_store(const char *cache_dir, int root_fd, const struct index *index)
{
    char path[PATH_MAX];
    struct stat root;
    if (fstat(root_fd, &root) != 0 || cache_path(cache_dir, root_fd, &root, path) != 0)
        return;
    struct header header;
    memset(&header, 0, sizeof(header));
    header.magic = MAGIC;
    header.version = VERSION;
    header.folder_count = index->folder_count;
    header.sample_count = index->sample_count;
    header.names_bytes = index->names_bytes;
    header.fingerprint = index->fingerprint;
    header.class_count = index->class_count;
    header.device = root.st_dev;
    if (!checksum(&header, index, &header.checksum))
        return;
    make_folders(cache_dir);
    if (write_index(path, &header, index) != 0)
        log_warning("cache %s: can't be written, so that datasets are listed at every start: %s", cache_dir,
                    strerror(errno));
}
