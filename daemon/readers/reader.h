/* reader.h - datasets on disk: the ops table that each format implements, one file a format.
 *
 * Threads: open() and close() run on a worker, and may take long. read() runs on many workers at once and only
 * reads what open() made. Nothing here runs on the loop. */
#ifndef FEEDD_READER_H
#define FEEDD_READER_H

#include <stddef.h>
#include <stdint.h>

#include "feedd_types.h"

struct reader_ops;

/* A dataset as feedd.conf describes it. Owned by the configuration, which outlives every reader. */
struct reader_config {
    char *name;                   /* of the dataset */
    const struct reader_ops *ops; /* `reader:` */
    char *images, *labels;        /* idx: paths; labels may be NULL */
    char **classes;               /* class names, or NULL */
    uint32_t class_count;
};

/* What one sample is made of. Pointers stay valid until the reader is closed. */
struct reader_sample {
    const uint8_t *pixels; /* height x width x channels uint8, rows without gaps */
    int64_t label;
};

/* Set by open(), constant afterwards. Formats put their own state behind it. */
struct reader {
    const struct reader_ops *ops;
    uint64_t sample_count;
    uint32_t height, width, channels; /* of every sample */
    uint64_t fingerprint;             /* of ordered names and sizes: changes when the dataset does */
    uint64_t memory_bytes;            /* held in memory while it is open */
    uint32_t class_count;             /* labels are 0..class_count-1, or -1; 0 = not known */
    int has_labels;
};

struct reader_ops {
    const char *name; /* as in feedd.conf */
    /* @param memory_max  bytes that the dataset may take in memory
     * @return 0 and *out, owned by the caller; FEEDD_E_NOT_FOUND, _ACCESS, _IO, _CORRUPT, _UNSUPPORTED, _LIMIT,
     * _MEMORY: err names file and reason */
    int (*open)(const struct reader_config *config, uint64_t memory_max, struct reader **out, struct feedd_error *err);
    /* @return 0, or FEEDD_E_ARGUMENT for an index that the dataset doesn't have */
    int (*read)(const struct reader *reader, uint64_t index, struct reader_sample *out, struct feedd_error *err);
    void (*close)(struct reader *reader);
};

extern const struct reader_ops reader_idx;

/* The reader of that name, or NULL. `names`, when not NULL, gets "idx, ...": what is allowed. */
const struct reader_ops *reader_find(const char *name, const char **names);

/* Files that a user names: opened without ever waiting, regular files only, and read, never mapped, so that nobody who
 * truncates one can kill the daemon by SIGBUS.
 * @param bytes  gets the file's size
 * @return a descriptor, to be closed by the caller; FEEDD_E_NOT_FOUND, _ACCESS, _IO (also: not a regular file) */
int reader_file_open(const char *path, uint64_t *bytes, struct feedd_error *err);

/* Reads on from where the last read ended. @return bytes read, fewer than `count` only at the end; or FEEDD_E_IO */
int64_t reader_file_read(int fd, const char *path, void *to, size_t count, struct feedd_error *err);

/* A path as messages show it: whole, or "..." and its end, so that the reason behind it still fits. */
#define READER_SHOWN 320
void reader_file_shown(const char *path, char shown[READER_SHOWN]);

#endif
