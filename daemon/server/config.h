/* config.h - feedd.conf: YAML, read once into plain structs.
 *
 *   daemon:
 *     socket: /run/feedd/feedd.sock   # made here unless systemd passes one
 *     workers: auto                   # decode threads; auto = the CPUs that the process may use
 *     ring_memory_max: auto           # bytes of all rings together (K, M, G, T: powers of 1024); auto = half of memory
 *     dataset_memory_max: auto        # bytes that datasets may hold in memory; auto = half of memory
 *     clients_max: 256                # connections at a time
 *     streams_per_client_max: 16
 *   datasets:
 *     fashion:
 *       reader: idx
 *       images: /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz
 *       labels: /usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz   # optional
 *       classes: [T-shirt/top, Trouser]                                        # optional
 *   streams:
 *     train:
 *       dataset: fashion
 *       batch_size: 64
 *       order: shuffle        # sequential | shuffle; default sequential
 *       seed: 1               # default 0
 *       epochs: 0             # 0 = endless (default)
 *       tail: drop            # drop | pad | partial; default drop
 *       depth: auto           # slots of the ring; auto = 64 MiB worth, 4 to 64
 *
 * An error names file, line, key and what is allowed; an unknown or repeated key is an error.
 * Threads: loop only; constant once loaded. */
#ifndef FEEDD_CONFIG_H
#define FEEDD_CONFIG_H

#include <stdint.h>

#include "feedd_types.h"
#include "reader.h"

struct config_stream {
    char *name;
    const struct reader_config *dataset;
    uint32_t batch_size;
    int order; /* enum feedd_order */
    uint64_t seed;
    uint64_t epochs; /* 0 = endless */
    int tail;        /* enum feedd_tail */
    uint32_t depth;  /* 0 = auto */
};

struct config {
    char *path;
    char *socket;
    uint32_t workers;            /* 0 = auto */
    uint64_t ring_memory_max;    /* bytes; 0 = auto */
    uint64_t dataset_memory_max; /* bytes; 0 = auto */
    uint32_t clients_max;
    uint32_t streams_per_client_max;
    struct reader_config *datasets;
    uint32_t dataset_count;
    struct config_stream *streams;
    uint32_t stream_count;
};

/* Reads a configuration. Relative paths in it are relative to the file's folder.
 * @return 0 and *out, owned by the caller; FEEDD_E_NOT_FOUND, _ACCESS, _IO, _LIMIT (the file: missing, not readable,
 * larger than 1 MiB), FEEDD_E_MEMORY, FEEDD_E_ARGUMENT (its content) with "FILE:LINE: KEY: what is wrong, what is
 * allowed" */
int config_load(const char *path, struct config **out, struct feedd_error *err);
void config_free(struct config *config);

/* By name, or NULL. A stream and a dataset may have the same name. */
const struct reader_config *config_dataset(const struct config *config, const char *name);
const struct config_stream *config_stream(const struct config *config, const char *name);

#endif
