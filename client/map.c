/* map.c - the memory that a stream's batches are in, as this process sees it.
 *
 * Happy path: STREAM's descriptors and handle -> records and books -> the batches' memory: a sealed memfd that is
 * mapped read-only and, for a GPU, registered with it; or a GPU's memory, by CUDA IPC or a descriptor -> the nonce that
 * is read there. What can fail: the daemon's answer (host memory is mapped only when sealed and of the size that the
 * layout needs, so that reading can't fault); CUDA. Threads: one at a time (feedd.h), but for what is under the
 * client's lock. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "internal.h"

/* Maps a ring of exactly `bytes`, or says why it must not be trusted. */
static int map_ring(int fd, uint64_t bytes, uint8_t **out, struct feedd_error *err)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size != bytes || seals < 0 || !(seals & F_SEAL_SHRINK) ||
        !(seals & F_SEAL_GROW))
        return error_set(err, FEEDD_E_PROTOCOL, "feedd passed a ring that is not sealed, or not of %llu bytes",
                         (unsigned long long)bytes);
    void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return error_set(err, FEEDD_E_MEMORY, "mapping a ring of %llu bytes: %s", (unsigned long long)bytes,
                         strerror(errno));
    *out = memory;
    return 0;
}

/* Copies the layout out of the answer, and computes it anew: both sides have to agree. */
static int read_layout(struct slot_layout *layout, const Feedd__Stream *answer, struct feedd_error *err)
{
    if (answer->n_fields == 0 || answer->n_fields > FEEDD_MAX_FIELDS || answer->depth == 0 ||
        answer->depth > FEEDD_MAX_DEPTH)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd answered with %zu fields and %u slots", answer->n_fields,
                         answer->depth);
    layout->field_count = (uint32_t)answer->n_fields;
    layout->batch_size = answer->batch_size;
    for (uint32_t i = 0; i < layout->field_count; i++) {
        const Feedd__Field *from = answer->fields[i];
        struct slot_field *field = &layout->fields[i];
        if (strlen(from->name) > FEEDD_MAX_NAME || from->n_shape > FEEDD_MAX_DIMS)
            return error_set(err, FEEDD_E_PROTOCOL,
                             "feedd answered with a field of %zu dimensions, its name %zu bytes long", from->n_shape,
                             strlen(from->name));
        strcpy(field->name, from->name);
        field->dtype = from->dtype;
        field->ndim = (uint32_t)from->n_shape;
        for (uint32_t d = 0; d < field->ndim; d++)
            field->shape[d] = from->shape[d];
    }
    int status = slot_layout_init(layout, err);
    if (status == 0 && (layout->slot_bytes != answer->slot_bytes || layout->record_bytes != answer->record_bytes))
        status = error_set(err, FEEDD_E_PROTOCOL, "feedd lays batches out in another way than this libfeedd");
    return status;
}

int map_new(struct feedd_stream *stream, const Feedd__Stream *answer, const struct wire_packet *packet,
            struct ring_map **out, struct feedd_error *err)
{
    if (packet->fd_count < 1)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd answered OPEN without descriptors: that can't be parsed");
    struct ring_map *map = calloc(1, sizeof(*map));
    if (map == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a ring");
    map->stream = stream;
    int status = read_layout(&map->layout, answer, err);
    if (status == 0) {
        uint32_t depth = map->depth = answer->depth;
        map->batches = calloc(depth, sizeof(*map->batches));
        map->ready = calloc(depth, sizeof(*map->ready));
        map->release_slots = calloc(depth, sizeof(*map->release_slots));
        map->release_seqs = calloc(depth, sizeof(*map->release_seqs));
        if (map->batches == NULL || map->ready == NULL || map->release_slots == NULL || map->release_seqs == NULL)
            status = error_set(err, FEEDD_E_MEMORY, "no memory for the books of %u batches", depth);
        for (uint32_t i = 0; i < depth && map->batches != NULL; i++)
            map->batches[i] = (struct feedd_batch){.map = map, .slot = i};
        map->number = answer->stream;
        map->generation = stream->client->generation;
        map->meta_bytes = slot_meta_bytes(&map->layout, depth);
        map->ring_bytes = slot_ring_bytes(&map->layout, depth);
        map->announced_seq = answer->share == FEEDD_SHARE_BROADCAST ? UINT64_MAX : 0; /* a group may be under way */
    }
    if (status == 0)
        status = map_ring(packet->fds[0], map->meta_bytes, &map->meta, err);
    if (status == 0)
        *out = map;
    else
        map_free(map);
    return status;
}

static int map_host(struct ring_map *map, const struct wire_packet *packet, struct feedd_error *err)
{
    map->on_host = true;
    if (packet->fd_count < 2)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd answered OPEN without a ring: that can't be parsed");
    uint8_t *memory;
    int status = map_ring(packet->fds[1], map->ring_bytes, &memory, err);
    if (status == 0 && map->for_gpu) {
        status = device_register(&map->stream->device, memory, map->ring_bytes, err);
        if (status != 0)
            munmap(memory, map->ring_bytes);
    }
    if (status == 0)
        map->ring = memory;
    return status;
}

static int map_ipc(struct ring_map *map, const Feedd__Stream *answer, struct feedd_error *err)
{
    if (!answer->has_ipc_handle || answer->ipc_handle.len != DEVICE_HANDLE_BYTES)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd answered OPEN without a handle: that can't be parsed");
    int status = device_map(&map->stream->device, answer->ipc_handle.data, &map->opened, err);
    if (status == 0)
        map->ring = (uint8_t *)map->opened + answer->ipc_offset;
    return status;
}

static int map_fd(struct ring_map *map, const Feedd__Stream *answer, const struct wire_packet *packet,
                  struct feedd_error *err)
{
    if (packet->fd_count < 2 || !answer->has_fd_bytes || answer->fd_bytes < map->ring_bytes)
        return error_set(err, FEEDD_E_PROTOCOL,
                         "feedd answered OPEN without %zu bytes of GPU memory: that can't be parsed", map->ring_bytes);
    int status = device_import(&map->stream->device, packet->fds[1], answer->fd_bytes, &map->opened, err);
    if (status != 0)
        return status;
    map->import_bytes = answer->fd_bytes;
    map->ring = map->opened;
    return 0;
}

int map_data(struct ring_map *map, const Feedd__Stream *answer, const struct wire_packet *packet, uint64_t *nonce,
             struct feedd_error *err)
{
    const struct device *device = &map->stream->device;
    const char *transport = answer->transport;
    int status;
    map->for_gpu = answer->device != NULL;
    if (map->for_gpu && (device->ordinal < 0 || strcmp(answer->device, device->uuid) != 0))
        status = error_set(err, FEEDD_E_PROTOCOL, "feedd answered with batches for %.80s, which wasn't asked for",
                           answer->device);
    else if (strcmp(transport, "host") == 0)
        status = map_host(map, packet, err);
    else if (map->for_gpu && strcmp(transport, "ipc") == 0)
        status = map_ipc(map, answer, err);
    else if (map->for_gpu && strcmp(transport, "fd") == 0)
        status = map_fd(map, answer, packet, err);
    else
        status =
            error_set(err, FEEDD_E_PROTOCOL, "feedd answered with transport %.80s, which wasn't asked for", transport);
    if (status != 0)
        return status;
    const uint8_t *proof = map->ring + map->ring_bytes - SLOT_PROOF_BYTES;
    if (!map->on_host)
        return device_read(device, nonce, proof, sizeof(*nonce), err);
    memcpy(nonce, proof, sizeof(*nonce));
    return 0;
}

/* Lets go of the memory; the books stay, so that a batch that is given back a second time is still known. */
static void unmap(struct ring_map *map)
{
    /* In a forked child the GPU's memory isn't mapped, and no call of CUDA allowed. */
    bool ours = map->stream->client->owner == getpid();
    const struct device *device = &map->stream->device;
    if (map->on_host && map->ring != NULL) {
        if (map->for_gpu && ours)
            device_unregister(device, map->ring);
        munmap(map->ring, map->ring_bytes);
    }
    if (map->opened != NULL && ours && map->import_bytes > 0)
        device_unimport(device, map->opened, map->import_bytes);
    else if (map->opened != NULL && ours)
        device_unmap(device, map->opened);
    if (map->meta != NULL)
        munmap(map->meta, map->meta_bytes);
    for (uint32_t i = 0; i < map->depth && map->batches != NULL && ours; i++)
        for (int m = 0; m < BATCH_STREAMS; m++)
            if (map->batches[i].marks[m] != NULL) {
                device_mark_free(map->batches[i].marks[m]);
                map->batches[i].marks[m] = NULL;
            }
    map->opened = NULL;
    map->ring = map->meta = NULL;
}

void map_free(struct ring_map *map)
{
    unmap(map);
    free(map->batches);
    free(map->ready);
    free(map->release_slots);
    free(map->release_seqs);
    free(map);
}

void map_drop_older(struct feedd_stream *stream)
{
    for (struct ring_map *map = stream->map->older; map != NULL; map = map->older) {
        pthread_mutex_lock(&stream->client->lock);
        bool used = map->held > 0 || map->lent > 0 || map->returning > 0;
        pthread_mutex_unlock(&stream->client->lock);
        if (!used)
            unmap(map);
    }
}
