/* index.h - the samples of an image folder: three tables, as they are in memory and in a file of the cache.
 *
 * Listing a million files takes seconds on a local disk and minutes on a network's. What was listed is kept in the
 * cache, and read back as long as no folder has changed: files that were added, removed or renamed show in their
 * folder's times. A file that was overwritten in place doesn't; its pixels are read afresh all the same.
 *
 * Threads: see reader.h; constant once made. */
#ifndef FEEDD_INDEX_H
#define FEEDD_INDEX_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* A folder: the root, then each class's with all below it. */
struct index_folder {
    uint64_t path_at;    /* in names: its path below the root, "" for the root itself */
    uint64_t mtime_ns;   /* when it was listed */
    uint64_t ctime_ns;   /* too: archives and rsync set mtime to what it was elsewhere */
    uint32_t path_bytes; /* without the NUL */
    uint32_t label;      /* number of its class; 0 for the root */
};

struct index_sample {
    uint64_t name_at; /* in names */
    uint64_t size;    /* of the file when it was listed; 0 where that isn't known */
    uint32_t name_bytes;
    uint32_t folder; /* number of it */
};

struct index {
    struct index_folder *folders; /* by class and path */
    uint64_t folder_count;
    struct index_sample *samples; /* by folder and name */
    uint64_t sample_count;
    char *names; /* each ends with a NUL */
    uint64_t names_bytes;
    uint64_t fingerprint; /* of sample_count, and of ordered paths and sizes */
    uint32_t class_count;
    const char **class_names; /* in names: a class is called as its first folder is */
};

uint64_t index_bytes(const struct index *index);
void index_done(struct index *index);

/* Makes class_names from the folders. @return false: no memory */
bool index_name_classes(struct index *index);

/* Notes a folder's times. */
void index_folder_stamp(struct index_folder *folder, const struct stat *st);

/* Reads back what is in the cache for this root, if the folders are still as they were. A cache file is trusted no
 * more than any other: what is damaged, of another version, or not ours, isn't there.
 * @param root_fd     the dataset's folder
 * @param memory_max  bytes that the tables may take
 * @return whether *out is filled, to be given to index_done() */
bool index_load(const char *cache_dir, int root_fd, uint64_t memory_max, struct index *out);

/* Writes it into the cache, whose folder is made when it isn't there. What fails is only worth a warning. */
void index_store(const char *cache_dir, int root_fd, const struct index *index);

#endif
