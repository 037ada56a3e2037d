/* config.h - feedd.conf: YAML, read once into plain structs.
 *
 *   daemon:
 *     socket: /run/feedd/feedd.sock   # made here unless systemd passes one
 *     workers: auto                   # decode threads; auto = the CPUs that the process may use
 *     numa: auto                      # auto: workers and rings near the GPUs; off: where the kernel puts them
 *     ring_memory_max: auto           # bytes of all rings together (K, M, G, T: powers of 1024); auto = half of memory
 *     dataset_memory_max: auto        # bytes that datasets may hold in memory; auto = half of memory
 *     gpus: all                       # which GPUs to drive: all, none, or a list of UUIDs
 *     gpu_memory_max: auto            # bytes of all rings in one GPU's memory; auto = half of what it has
 *     pinned_max: auto                # bytes of host memory registered with GPUs; auto = ring_memory_max
 *     clients_max: 256                # connections at a time
 *     streams_per_client_max: 16
 *     leases_per_client_max: 1024     # slots in all streams of a client
 *     ring_memory_per_client_max: auto # bytes of a client's rings; auto = ring_memory_max
 *     image_pixels_max: 100000000     # width x height of an image; a larger one is a bad sample
 *     image_bytes_max: 256M           # of an encoded image, likewise
 *     read_timeout_ms: 30000          # of one read; then its stream fails
 *     linger_s: 30                    # a private daemon leaves after so long without a client
 *     cache_dir: /var/cache/feedd     # what was listed; default: see config_load()
 *     allow: {users: [ann, 1001], groups: [vision]}  # who may connect; default everybody
 *     admin: {users: [ann]}           # who may do more than read; root and the daemon's own user always
 *   datasets:
 *     fashion:
 *       reader: idx
 *       images: /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz
 *       labels: /usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz   # optional
 *       classes: [T-shirt/top, Trouser]                                        # optional
 *       splits: {train: 0.9, val: 0.1}  # fractions, or a file of indices each
 *       allow: {groups: [vision]}       # who may read it; default everybody
 *     imagenet:
 *       reader: folder
 *       root: /data/imagenet/train
 *       subset: 0.1                     # a fraction, or a file of indices; not together with splits
 *     faces:
 *       reader: list
 *       list: faces/train.tsv           # path TAB label
 *       root: /data/faces               # of the paths; default: the list's folder
 *   streams:
 *     train:
 *       dataset: fashion/train    # a dataset, or one of its splits
 *       batch_size: 64
 *       order: shuffle        # sequential | shuffle; default sequential
 *       seed: 1               # default 0
 *       epochs: 0             # 0 = endless (default)
 *       tail: drop            # drop | pad | partial; default drop
 *       depth: auto           # slots of the ring; auto = 64 MiB worth, 4 to 64
 *       share: private        # private | broadcast; default private
 *       members: 4            # of the group of a broadcast stream; default: any number
 *       join: gate            # now | gate | next-epoch; default gate with members, else now
 *       on_error: substitute  # substitute | zero | fail; default substitute
 *       transform: {resize: 256, center_crop: 224, flip: 0.5}  # default: images as they are; or
 *       # {resize: [240, 320]}, {random_resized_crop: {size: 224, scale: [0.08, 1], ratio: [3/4, 4/3]}},
 *       # {random_crop: {size: 32, padding: 4}}; sizes are one number or [height, width]
 *       decode: exact         # exact | fast; default exact
 *       orientation: exif     # exif | ignore; default exif
 *       truncated: fail       # fail | accept; default fail
 *       channels: 3           # 3 | 1; default: the dataset's own, 3 for encoded images
 *       output: {dtype: float32, layout: nchw, mean: [0.5, 0.5, 0.5], std: 0.25, scale: 255} # default: uint8 as
 * decoded normalize: auto       # auto | client | daemon | cpu: who makes `output`; default auto
 *
 * An error names file, line, key and what is allowed; an unknown or repeated key is an error.
 * Threads: loop only; constant once loaded. */
#ifndef FEEDD_CONFIG_H
#define FEEDD_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "access.h"
#include "feedd_types.h"
#include "geometry.h"
#include "output.h"
#include "reader.h"

struct config_stream {
    char *name;
    const struct reader_config *dataset;
    uint32_t selection; /* of dataset->selections */
    uint32_t batch_size;
    int order; /* enum feedd_order */
    uint64_t seed;
    uint64_t epochs;  /* 0 = endless */
    int tail;         /* enum feedd_tail */
    uint32_t depth;   /* 0 = auto */
    int share;        /* enum feedd_share */
    uint32_t members; /* of its group; 0 = any number */
    int join;         /* enum feedd_join; 0 = gate when members are given, else now */
    int on_error;     /* enum feedd_on_error */
    struct transform_spec transform;
    struct output_spec output; /* mode: as asked for, 0 = auto */
};

struct config {
    char *path;
    char *socket;
    uint32_t workers;            /* 0 = auto */
    bool numa;                   /* workers and rings near the GPUs */
    uint64_t ring_memory_max;    /* bytes; 0 = auto */
    uint64_t dataset_memory_max; /* bytes; 0 = auto */
    uint64_t pinned_max;         /* bytes; 0 = auto: ring_memory_max */
    uint64_t gpu_memory_max;     /* bytes of each GPU; 0 = auto: half of what it has */
    char **gpus;                 /* UUIDs of those to drive; NULL = all */
    uint32_t gpu_count;
    uint32_t clients_max;
    uint32_t streams_per_client_max;
    uint32_t leases_per_client_max;      /* slots in all streams of a client */
    uint64_t ring_memory_per_client_max; /* bytes; 0 = auto: ring_memory_max */
    uint64_t image_pixels_max;           /* width x height of an image */
    uint64_t image_bytes_max;            /* of an encoded image */
    uint32_t read_timeout_ms;
    uint32_t linger_s;
    char *cache_dir;                 /* may not be there yet; NULL: none */
    struct access_rule allow, admin; /* admin: root and the daemon's own user included */
    struct reader_config *datasets;
    struct access_rule *dataset_access; /* of datasets[i] */
    uint32_t dataset_count;
    struct config_stream *streams;
    uint32_t stream_count;
};

/* Reads a configuration. Relative paths in it are relative to the file's folder; user and group names are looked up.
 * cache_dir, unless set: $CACHE_DIRECTORY (systemd's), else $XDG_CACHE_HOME/feedd, else $HOME/.cache/feedd, but for
 * root /var/cache/feedd.
 * @return 0 and *out, owned by the caller; FEEDD_E_NOT_FOUND, _ACCESS, _IO, _LIMIT (the file: missing, not readable,
 * larger than 1 MiB), FEEDD_E_MEMORY, FEEDD_E_ARGUMENT (its content) with "FILE:LINE: KEY: what is wrong, what is
 * allowed" */
int config_load(const char *path, struct config **out, struct feedd_error *err);

/* The same of no file: all defaults. */
int config_empty(struct config **out, struct feedd_error *err);
void config_free(struct config *config);

/* What stands behind `transform:`, as a client sends it: by the same parser, and as strict. What stands beside it in a
 * file (decode, orientation, truncated, channels) is left as it is in *out.
 * @return 0 and *out; FEEDD_E_ARGUMENT, FEEDD_E_LIMIT, FEEDD_E_MEMORY */
int config_transform_text(const char *text, struct transform_spec *out, struct feedd_error *err);

/* By name, or NULL. A stream and a dataset may have the same name. */
const struct reader_config *config_dataset(const struct config *config, const char *name);
const struct config_stream *config_stream(const struct config *config, const char *name);

/* A dataset, or by "name/split" a split of one. @param selection  gets its number in (*dataset)->selections
 * @return false: there is none of that name */
bool config_dataset_selection(const struct config *config, const char *name, const struct reader_config **dataset,
                              uint32_t *selection);

#endif
