/* reader.h - datasets on disk: the ops table that each format implements, one file a format.
 *
 * Threads: open() and close() run on a worker, and may take long. read() and path() run on many threads at once and
 * only read what open() made. Nothing here runs on the loop but path(). */
#ifndef FEEDD_READER_H
#define FEEDD_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedd_types.h"

struct reader_ops;

/* Which samples of a dataset: all (fraction_end = 0 and no file), a share that a fixed permutation of the samples gives
 * (so that every class has its share; shares [a, b) and [b, c) never overlap), or those that a file lists. */
struct reader_selection {
    char *name;                          /* of a split; NULL: the dataset's own `subset:` */
    double fraction_begin, fraction_end; /* 0 <= begin < end <= 1, in positions of the permutation */
    char *file;                          /* one index a line, # comments; or NULL */
};

/* A dataset as feedd.conf describes it. Owned by the configuration, which outlives every reader. */
struct reader_config {
    char *name;                   /* of the dataset */
    const struct reader_ops *ops; /* `reader:` */
    char *images, *labels;        /* idx: paths; labels may be NULL */
    char *root;     /* folder: of the class folders; list: what paths are relative to, or NULL: its folder */
    char *list;     /* list: the TSV file */
    char **classes; /* class names, or NULL */
    uint32_t class_count;
    struct reader_selection *selections; /* [0]: the dataset itself; then its splits */
    uint32_t selection_count;
};

/* What opening may use. */
struct reader_limits {
    uint64_t memory_max;   /* bytes that the dataset may take in memory */
    const char *cache_dir; /* for index caches; NULL: none */
};

/* Where one sample's pixels come from. */
struct reader_sample {
    const uint8_t *pixels; /* decoded: height x width x channels uint8, rows without gaps; valid until the reader is
                            * closed. NULL: encoded bytes, in */
    int fd;                /* a regular file, the caller's to close; -1 with pixels */
    uint64_t offset, size; /* where in it */
    int64_t label;         /* label_dtype = FEEDD_I64; -1: none */
    float value;           /* label_dtype = FEEDD_F32 */
};

/* Set by open(), constant afterwards. Formats put their own state behind it. */
struct reader {
    const struct reader_ops *ops;
    uint64_t sample_count;
    uint32_t height, width, channels; /* of every sample; 0: encoded images of any size */
    uint64_t fingerprint;             /* of ordered names and sizes: changes when the dataset does */
    uint64_t memory_bytes;            /* held in memory while it is open */
    uint32_t class_count;             /* labels are 0..class_count-1, or -1; 0 = not known */
    const char *const *class_names;   /* class_count names, or NULL */
    bool has_labels;
    int label_dtype; /* FEEDD_I64 or FEEDD_F32 */
};

struct reader_ops {
    const char *name; /* as in feedd.conf */
    /* @return 0 and *out, owned by the caller; FEEDD_E_NOT_FOUND, _ACCESS, _IO, _CORRUPT, _UNSUPPORTED, _LIMIT,
     * _MEMORY: err names file and reason */
    int (*open)(const struct reader_config *config, const struct reader_limits *limits, struct reader **out,
                struct feedd_error *err);
    /* @return 0; FEEDD_E_IO, _MEMORY (trying again may help); FEEDD_E_NOT_FOUND, _ACCESS, _CORRUPT (this sample is
     * bad); FEEDD_E_ARGUMENT (there is no such sample). err gives the reason only: path() names the sample */
    int (*read)(const struct reader *reader, uint64_t index, struct reader_sample *out, struct feedd_error *err);
    /* Writes what a person would call the sample: its path, or file and number. Always terminated. */
    void (*path)(const struct reader *reader, uint64_t index, char *text, size_t size);
    void (*close)(struct reader *reader);
};

extern const struct reader_ops reader_idx, reader_folder, reader_list;

/* The reader of that name, or NULL. `names`, when not NULL, gets "idx, ...": what is allowed. */
const struct reader_ops *reader_find(const char *name, const char **names);

/* For encoded samples: opens `path` below the folder `root_fd` for reading. Symbolic links are followed within the
 * folder; what leads outside, and what is not a regular file, is refused. Never hangs on a FIFO.
 * @return 0 and *fd, *size; FEEDD_E_NOT_FOUND, FEEDD_E_ACCESS (leads outside, no right), FEEDD_E_CORRUPT (not a regular
 * file), FEEDD_E_IO, _MEMORY; err gives the reason only */
int reader_open_file(int root_fd, const char *path, int *fd, uint64_t *size, struct feedd_error *err);

/* Makes the list of indices of a selection, in the dataset's order (fraction) or the file's. The same fraction of as
 * many samples is the same list, always and everywhere.
 * @param memory_max  bytes that it may take, also while it is made: 8 a sample of the dataset for a fraction
 * @return 0 and *indices (owned by the caller, free()), *count; *indices = NULL when it is all of them;
 * FEEDD_E_ARGUMENT (it holds no sample), FEEDD_E_CORRUPT (a line of the file), _LIMIT, _MEMORY, and as open() */
int reader_select(const struct reader *reader, const struct reader_selection *selection, uint64_t memory_max,
                  uint64_t **indices, uint64_t *count, struct feedd_error *err);

#endif
