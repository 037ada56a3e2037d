/* stream.c - a stream of libfeedd: opening and mapping it, taking batches, giving them back.
 *
 * Happy path: OPEN -> STREAM -> map both rings read-only, check what they are -> ATTACH with the nonce -> READY fills
 * the list of batches that are there -> next hands one out -> release -> RELEASE, many at a time.
 * When the daemon goes away and comes back (options.reconnect): what was announced is handed out, then OPEN again with
 * the token of what the caller has; a group may begin earlier, and what the caller has had is dropped.
 * What can fail: the daemon's answer (mapped only when sealed and of the size that the layout needs, so that reading
 * can't fault), the stream, the connection. Threads: one at a time (feedd.h). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "internal.h"

#define CLASS_NAMES_MAX      (64ull << 20) /* bytes of all class names */
#define RECONNECT_TIMEOUT_MS 60000u        /* unless the caller says otherwise */
#define AWAY_MS              20            /* between two attempts to reach a daemon that is away */

/* ---- opening ---- */

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

/* The class names: class_count terminated strings in a sealed memfd. */
static int read_classes(struct feedd_stream *stream, const Feedd__Stream *answer, int fd, struct feedd_error *err)
{
    uint64_t bytes = answer->class_names_bytes;
    if (bytes == 0)
        return 0;
    if (fd < 0 || bytes > CLASS_NAMES_MAX || answer->class_count > bytes)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd passed %u class names in %llu bytes", answer->class_count,
                         (unsigned long long)bytes);
    char *names = malloc(bytes);
    stream->class_text = names;
    stream->classes = calloc(answer->class_count + 1, sizeof(*stream->classes));
    if (names == NULL || stream->classes == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for %u class names", answer->class_count);
    if (pread(fd, names, bytes, 0) != (ssize_t)bytes || names[bytes - 1] != '\0')
        return error_set(err, FEEDD_E_PROTOCOL, "feedd passed class names that can't be read");
    const char *name = names;
    for (uint32_t i = 0; i < answer->class_count; i++) {
        if (name >= names + bytes)
            return error_set(err, FEEDD_E_PROTOCOL, "feedd passed fewer than %u class names", answer->class_count);
        stream->classes[i] = name;
        name += strlen(name) + 1;
    }
    return 0;
}

/* What the caller sees of the stream: from the first answer, constant from then on. */
static int fill_schema(struct feedd_stream *stream, const Feedd__Stream *answer, struct feedd_error *err)
{
    struct feedd_schema *schema = &stream->schema;
    const char *group = answer->group != NULL ? answer->group : "";
    size_t sizes[4] = {strlen(answer->dataset) + 1, strlen(answer->transport) + 1, strlen(answer->mode_reason) + 1,
                       strlen(group) + 1};
    char *text = stream->text = malloc(sizes[0] + sizes[1] + sizes[2] + sizes[3]);
    if (text == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a stream");
    schema->source = stream->source;
    schema->dataset = memcpy(text, answer->dataset, sizes[0]);
    schema->transport = memcpy(text += sizes[0], answer->transport, sizes[1]);
    schema->mode_reason = memcpy(text += sizes[1], answer->mode_reason, sizes[2]);
    schema->group = memcpy(text += sizes[2], group, sizes[3]);
    schema->sample_count = answer->sample_count;
    schema->steps_per_epoch = answer->steps_per_epoch;
    schema->field_count = stream->map->layout.field_count;
    schema->fields = stream->fields;
    for (uint32_t i = 0; i < schema->field_count; i++) {
        const struct slot_field *from = &stream->map->layout.fields[i];
        stream->fields[i] = (struct feedd_field){.dtype = (int32_t)from->dtype, .ndim = from->ndim};
        memcpy(stream->fields[i].shape, from->shape, sizeof(from->shape));
        stream->fields[i].name = stream->field_names[i];
        strcpy(stream->field_names[i], from->name);
    }
    schema->class_count = answer->class_count;
    schema->class_names = stream->classes;
    schema->batch_size = answer->batch_size;
    schema->depth = answer->depth;
    schema->rank = answer->rank;
    schema->world_size = answer->world_size;
    schema->order = (int32_t)answer->order;
    schema->tail = (int32_t)answer->tail;
    schema->share = (int32_t)answer->share;
    schema->seed = answer->seed;
    schema->epochs = answer->epochs;
    schema->slot_bytes = answer->slot_bytes;
    schema->device = stream->map->opened != NULL ? stream->device.uuid : "";
    schema->device_ordinal = stream->map->opened != NULL ? stream->device.ordinal : -1;
    stream->token = (struct token){.order = (uint8_t)answer->order,
                                   .sample_count = answer->sample_count,
                                   .fingerprint = answer->fingerprint,
                                   .seed = answer->seed,
                                   .epoch = answer->start_epoch,
                                   .position = answer->start_position};
    return 0;
}

/* A stream that comes back has to be the one that was lost. */
static int check_same(const struct feedd_stream *stream, const Feedd__Stream *answer, struct feedd_error *err)
{
    const struct feedd_schema *schema = &stream->schema;
    if (answer->batch_size == schema->batch_size && (int32_t)answer->order == schema->order &&
        answer->seed == schema->seed && answer->sample_count == schema->sample_count &&
        answer->fingerprint == stream->token.fingerprint && answer->world_size == schema->world_size &&
        answer->rank == schema->rank && answer->slot_bytes == schema->slot_bytes && answer->depth == schema->depth &&
        answer->content == stream->content && strcmp(answer->transport, schema->transport) == 0)
        return 0;
    return error_set(err, FEEDD_E_STATE, "after its restart feedd serves '%s' in another way; open it anew",
                     stream->source);
}

/* Lets go of the memory; the books stay, so that a batch that is given back a second time is still known. */
static void map_unmap(struct ring_map *map)
{
    /* In a forked child the GPU's memory isn't mapped, and no call of CUDA allowed. */
    bool ours = map->stream->client->owner == getpid();
    if (map->opened != NULL && ours)
        device_unmap(&map->stream->device, map->opened);
    else if (map->opened == NULL && map->ring != NULL)
        munmap(map->ring, map->ring_bytes);
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

static void map_free(struct ring_map *map)
{
    map_unmap(map);
    free(map->batches);
    free(map->ready);
    free(map->release_slots);
    free(map->release_seqs);
    free(map);
}

/* Unmaps older rings of which nothing is held, lent, or on its way back. */
static void unmap_older(struct feedd_stream *stream)
{
    for (struct ring_map *map = stream->map->older; map != NULL; map = map->older) {
        pthread_mutex_lock(&stream->client->lock);
        bool used = map->held > 0 || map->lent > 0 || map->returning > 0;
        pthread_mutex_unlock(&stream->client->lock);
        if (!used)
            map_unmap(map);
    }
}

/* The memory of the ring, on the host or on a GPU. */
static int map_data(struct ring_map *map, const Feedd__Stream *answer, const struct wire_packet *packet,
                    struct feedd_error *err)
{
    const struct feedd_stream *stream = map->stream;
    if (answer->device == NULL)
        return packet->fd_count < 2
                   ? error_set(err, FEEDD_E_PROTOCOL, "feedd answered OPEN without a ring: that can't be parsed")
                   : map_ring(packet->fds[1], map->ring_bytes, &map->ring, err);
    if (stream->device.ordinal < 0 || strcmp(answer->device, stream->device.uuid) != 0 ||
        strcmp(answer->transport, "ipc") != 0 || !answer->has_ipc_handle ||
        answer->ipc_handle.len != DEVICE_HANDLE_BYTES)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd answered with a ring on %.80s by %.80s, which wasn't asked for",
                         answer->device, answer->transport);
    int status = device_map(&stream->device, answer->ipc_handle.data, &map->opened, err);
    if (status == 0)
        map->ring = (uint8_t *)map->opened + answer->ipc_offset;
    return status;
}

static int map_new(struct feedd_stream *stream, const Feedd__Stream *answer, const struct wire_packet *packet,
                   struct ring_map **out, struct feedd_error *err)
{
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
        status = map_data(map, answer, packet, err);
    if (status == 0)
        *out = map;
    else
        map_free(map);
    return status;
}

/* Maps what the daemon has opened. A failure is the stream's, not the connection's. */
static int attach(struct feedd_stream *stream, const Feedd__Stream *answer, const struct wire_packet *packet,
                  struct feedd_error *err)
{
    struct ring_map *map = NULL;
    if (packet->fd_count < 1)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd answered OPEN without descriptors: that can't be parsed");
    int status = stream->shown ? check_same(stream, answer, err) : 0;
    if (status == 0)
        status = map_new(stream, answer, packet, &map, err);
    if (status != 0)
        return status;
    map->older = stream->map;
    stream->map = map;
    if (!stream->shown) {
        uint32_t rings = answer->device == NULL ? 2 : 1; /* class names stand behind them */
        status = read_classes(stream, answer, packet->fd_count > rings ? packet->fds[rings] : -1, err);
        if (status == 0)
            status = fill_schema(stream, answer, err);
        if (status != 0)
            return status;
    }
    stream->dropping = stream->shown;
    stream->shown = true;
    stream->ended = false;
    stream->incarnation = answer->incarnation;
    stream->content = answer->content;
    unmap_older(stream);
    return 0;
}

/* What shows that the ring is mapped. */
static int read_nonce(const struct feedd_stream *stream, uint64_t *nonce, struct feedd_error *err)
{
    const struct ring_map *map = stream->map;
    const uint8_t *proof = map->ring + map->ring_bytes - SLOT_PROOF_BYTES;
    if (map->opened != NULL)
        return device_read(&stream->device, nonce, proof, sizeof(*nonce), err);
    memcpy(nonce, proof, sizeof(*nonce));
    return 0;
}

int stream_opened(struct feedd_stream *stream, const Feedd__Stream *answer, const struct wire_packet *packet,
                  struct feedd_error *err)
{
    struct feedd_error reason;
    Feedd__Attach message = FEEDD__ATTACH__INIT;
    stream->number = answer->stream;
    int status = attach(stream, answer, packet, &reason);
    if (status == 0)
        status = read_nonce(stream, &message.nonce, &reason);
    if (status != 0) {
        stream_failed(stream, status, reason.message);
        return 0;
    }
    stream->state = STREAM_OPEN;
    stream_signal(stream);
    message.stream = stream->number;
    return client_send(stream->client, WIRE_ATTACH, &message.base, err);
}

static int read_options(const struct feedd_open_options *from, struct feedd_open_options *options,
                        struct feedd_error *err)
{
    memset(options, 0, sizeof(*options));
    if (from == NULL)
        return 0;
    if (from->size != sizeof(*options)) /* there is one version yet */
        return error_set(err, FEEDD_E_ARGUMENT, "open options of size %zu; this libfeedd knows %zu: set options.size",
                         from->size, sizeof(*options));
    memcpy(options, from, from->size);
    return 0;
}

static char *copy_text(const char *text)
{
    return text != NULL ? strdup(text) : NULL;
}

static void stream_free(struct feedd_stream *stream)
{
    while (stream->map != NULL) {
        struct ring_map *map = stream->map;
        stream->map = map->older;
        map_free(map);
    }
    if (stream->poll_fd >= 0) {
        close(stream->poll_fd);
        close(stream->event_fd);
        close(stream->timer_fd);
    }
    free((char *)(uintptr_t)stream->options.resume);
    free((char *)(uintptr_t)stream->options.device);
    free((char *)(uintptr_t)stream->options.group);
    free((char *)(uintptr_t)stream->options.transform);
    free(stream->source);
    free(stream->text);
    free(stream->class_text);
    free(stream->classes);
    free(stream);
}

/* Sends OPEN: as the caller asked, or for a stream that was lost, as it was. */
static int send_open(struct feedd_stream *stream, struct feedd_error *err)
{
    const struct feedd_open_options *options = &stream->options;
    const struct feedd_schema *schema = &stream->schema;
    char *transports[] = {(char *)(uintptr_t) "ipc", (char *)(uintptr_t) "host"};
    const bool on_gpu = stream->device.ordinal >= 0;
    char token[FEEDD_TOKEN_TEXT];
    Feedd__Open open = FEEDD__OPEN__INIT;
    open.request = stream->request = ++stream->client->request;
    open.source = stream->source;
    open.has_batch_size = options->batch_size != 0;
    open.batch_size = options->batch_size;
    open.has_order = options->order != 0;
    open.order = (uint32_t)options->order;
    open.has_tail = options->tail != 0;
    open.tail = (uint32_t)options->tail;
    open.has_seed = options->has_seed != 0;
    open.seed = options->seed;
    open.has_epochs = options->has_epochs != 0;
    open.epochs = options->epochs;
    open.has_rank = options->rank != 0;
    open.rank = options->rank;
    open.has_world_size = options->world_size != 0;
    open.world_size = options->world_size;
    open.has_depth = options->depth != 0;
    open.depth = options->depth;
    open.resume = (char *)(uintptr_t)options->resume;
    open.has_resume_force = options->resume_force != 0;
    open.resume_force = options->resume_force != 0;
    open.has_share = options->share != 0;
    open.share = (uint32_t)options->share;
    open.group = (char *)(uintptr_t)options->group;
    open.has_members = options->members != 0;
    open.members = options->members;
    open.has_join = options->join != 0;
    open.join = (uint32_t)options->join;
    open.has_gate_timeout_ms = options->gate_timeout_ms != 0;
    open.gate_timeout_ms = options->gate_timeout_ms;
    open.transform = (char *)(uintptr_t)options->transform;
    open.device = on_gpu ? stream->device.uuid : NULL;
    open.has_device_optional = open.device_optional = on_gpu && stream->device_optional;
    open.device_reason = stream->device_reason[0] != '\0' ? stream->device_reason : NULL;
    open.n_transports = on_gpu ? 2 : 1;
    open.transports = on_gpu ? transports : transports + 1;
    if (stream->shown) { /* the configuration may have changed: what was effective holds, and the token says the rest */
        open.has_batch_size = open.has_tail = open.has_epochs = open.has_rank = open.has_world_size = true;
        open.has_depth = true;
        open.batch_size = schema->batch_size;
        open.tail = (uint32_t)schema->tail;
        open.epochs = schema->epochs;
        open.rank = schema->rank;
        open.world_size = schema->world_size;
        open.depth = schema->depth;
        open.has_order = open.has_seed = false;
        open.has_resume_force = false;
        if (stream->started || schema->share == FEEDD_SHARE_PRIVATE) {
            token_format(&stream->token, token);
            open.resume = token;
        }
        open.has_incarnation = schema->share == FEEDD_SHARE_BROADCAST;
        open.incarnation = stream->incarnation;
        open.has_incarnation_members = true;
        open.incarnation_members = stream->members;
    }
    stream->state = STREAM_OPENING;
    return client_send(stream->client, WIRE_OPEN, &open.base, err);
}

/* Which GPU of this process the caller means, if any. */
static int find_device(struct feedd_stream *stream, struct feedd_error *err)
{
    const char *name = stream->options.device;
    struct feedd_error reason;
    stream->device.ordinal = -1;
    if (name == NULL || name[0] == '\0' || strcmp(name, "host") == 0)
        return 0;
    stream->device_optional = strcmp(name, "auto") == 0;
    if (!stream->device_optional)
        return device_find(name, &stream->device, err);
    if (device_find("cuda", &stream->device, &reason) != 0) {
        stream->device.ordinal = -1;
        snprintf(stream->device_reason, sizeof(stream->device_reason), "auto: %.240s", reason.message);
    }
    return 0;
}

FEEDD_API int feedd_open_begin(struct feedd_client *client, const char *source, const struct feedd_open_options *from,
                               struct feedd_stream **out, struct feedd_error *err)
{
    struct feedd_open_options options;
    int status = client_check(client, err);
    if (status == 0)
        status = read_options(from, &options, err);
    if (status != 0)
        return status;
    stream_reap(client);
    struct feedd_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a stream");
    stream->client = client;
    stream->poll_fd = stream->event_fd = stream->timer_fd = -1;
    stream->options = options;
    stream->options.resume = copy_text(options.resume);
    stream->options.device = copy_text(options.device);
    stream->options.group = copy_text(options.group);
    stream->options.transform = copy_text(options.transform);
    stream->source = copy_text(source);
    stream->next = client->streams; /* listed from here on: closing it undoes all */
    client->streams = stream;
    if (stream->source == NULL || (options.resume != NULL && stream->options.resume == NULL) ||
        (options.device != NULL && stream->options.device == NULL) ||
        (options.group != NULL && stream->options.group == NULL) ||
        (options.transform != NULL && stream->options.transform == NULL))
        status = error_set(err, FEEDD_E_MEMORY, "no memory for a stream");
    else
        status = find_device(stream, err);
    if (status == 0)
        status = send_open(stream, err);
    if (status != 0)
        feedd_stream_close(stream);
    else
        *out = stream;
    return status;
}

FEEDD_API int feedd_open_wait(struct feedd_stream *stream, int timeout_ms, struct feedd_error *err)
{
    uint64_t began_ns = client_clock_ns();
    int status = client_check(stream->client, err);
    while (status == 0 && stream->state == STREAM_OPENING && stream->failure.status == 0)
        status = client_receive(stream->client, client_left_ms(timeout_ms, began_ns), err);
    if (status == FEEDD_E_TIMEOUT)
        return error_set(err, status, "'%s' isn't open within %d ms", stream->source, timeout_ms);
    if (status == 0 && stream->failure.status != 0)
        status = error_set(err, stream->failure.status, "%s", stream->failure.message);
    if (status == 0 && !stream->shown)
        status = error_set(err, FEEDD_E_CONNECTION, "feedd has gone while it opened '%s'", stream->source);
    return status;
}

FEEDD_API int feedd_open(struct feedd_client *client, const char *source, const struct feedd_open_options *options,
                         struct feedd_stream **out, struct feedd_error *err)
{
    struct feedd_stream *stream = NULL;
    int status = feedd_open_begin(client, source, options, &stream, err);
    if (status != 0)
        return status;
    status = feedd_open_wait(stream, -1, err);
    if (status != 0)
        feedd_stream_close(stream);
    else
        *out = stream;
    return status;
}

/* Before slots are used for other batches: the GPU is done with them. */
static void finish(struct feedd_stream *stream)
{
    bool held = false;
    for (const struct ring_map *map = stream->map; map != NULL; map = map->older)
        held = held || (map->opened != NULL && map->held > 0);
    if (held) /* nobody knows which stream reads them */
        device_finish(&stream->device);
    releaser_drain(stream->client, stream);
}

/* What is lent stays when the caller closes the stream, and is the tensors' alone from then on.
 * @return whether something is */
static bool keep_lent(struct feedd_stream *stream)
{
    bool kept = false;
    for (struct ring_map *map = stream->map; map != NULL; map = map->older)
        for (uint32_t slot = 0; slot < map->depth; slot++) {
            struct feedd_batch *batch = &map->batches[slot];
            kept = kept || batch->tensors > 0;
            if (batch->tensors > 0 && batch->state == BATCH_HELD) {
                batch->state = BATCH_LENT;
                map->held--;
                map->lent++;
            }
        }
    return kept;
}

/* Closed by the caller, but not yet to be freed. */
static bool keep(struct feedd_stream *stream)
{
    struct feedd_client *client = stream->client;
    if (!client->lending)
        return false;
    bool ours = client->owner == getpid();
    if (ours) /* in a forked child it may be held for ever, and nobody else is there */
        pthread_mutex_lock(&client->lock);
    stream->closed = keep_lent(stream);
    if (ours)
        pthread_mutex_unlock(&client->lock);
    return stream->closed;
}

void stream_reap(struct feedd_client *client)
{
    for (struct feedd_stream *stream = client->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        if (stream->closed)
            feedd_stream_close(stream); /* unless something is still lent */
    }
}

FEEDD_API void feedd_stream_close(struct feedd_stream *stream)
{
    if (stream == NULL || keep(stream))
        return;
    struct feedd_client *client = stream->client;
    for (struct feedd_stream **at = &client->streams; *at != NULL; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    if (client->owner == getpid() && stream->map != NULL)
        finish(stream);
    if (client_check(client, NULL) == 0 && stream->number != 0) {
        Feedd__Close message = FEEDD__CLOSE__INIT;
        message.stream = stream->number;
        client_send(client, WIRE_CLOSE, &message.base, NULL); /* ends all leases, released or not */
    }
    stream_free(stream);
}

FEEDD_API const struct feedd_schema *feedd_stream_schema(const struct feedd_stream *stream)
{
    return &stream->schema;
}

/* ---- what the daemon says ---- */

int stream_ready(struct feedd_stream *stream, const Feedd__Ready *ready, struct feedd_error *err)
{
    struct ring_map *map = stream->map;
    if (ready->n_slots != ready->n_seqs || stream->state != STREAM_OPEN)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd announced %zu slots and %zu batches", ready->n_slots,
                         ready->n_seqs);
    for (size_t i = 0; i < ready->n_slots; i++) {
        uint32_t slot = ready->slots[i];
        uint64_t seq = ready->seqs[i];
        struct feedd_batch *batch = slot < map->depth ? &map->batches[slot] : NULL;
        if (map->announced_seq == UINT64_MAX)
            map->announced_seq = map->next_seq = seq;
        if (batch == NULL || batch->state != BATCH_ABSENT || seq != map->announced_seq)
            return error_set(err, FEEDD_E_PROTOCOL, "feedd announced batch %llu in slot %u, out of turn",
                             (unsigned long long)seq, slot);
        batch->state = BATCH_READY;
        batch->seq = map->announced_seq++;
        map->ready[(map->ready_first + map->ready_count++) % map->depth] = slot;
    }
    stream->started = true;
    stream_signal(stream);
    return 0;
}

void stream_failed(struct feedd_stream *stream, int status, const char *message)
{
    error_set(&stream->failure, status, "%s", message);
    stream_signal(stream);
}

/* ---- feedd_stream_fd ---- */

void stream_signal(struct feedd_stream *stream)
{
    if (stream->event_fd < 0)
        return;
    bool broken = stream->client->broken.status != 0;
    bool away = broken && stream->options.reconnect != 0 && stream->failure.status == 0;
    bool wanted = (stream->map != NULL && stream->map->ready_count > 0) || stream->ended ||
                  stream->failure.status != 0 || (broken && !away);
    uint64_t value = 1;
    if (wanted != stream->signalled) {
        ssize_t rc =
            wanted ? write(stream->event_fd, &value, sizeof(value)) : read(stream->event_fd, &value, sizeof(value));
        (void)rc; /* an eventfd of our own that is 0 or 1 takes both */
        stream->signalled = wanted;
    }
    if (away != stream->away) { /* nothing wakes the caller while the daemon is away: look ten times a second */
        struct itimerspec every = {0};
        every.it_interval.tv_nsec = every.it_value.tv_nsec = away ? 100000000 : 0;
        timerfd_settime(stream->timer_fd, 0, &every, NULL);
        stream->away = away;
    }
}

void stream_poll_socket(struct feedd_stream *stream)
{
    struct epoll_event readable = {.events = EPOLLIN};
    if (stream->poll_fd >= 0) /* closing the old socket has taken it out */
        epoll_ctl(stream->poll_fd, EPOLL_CTL_ADD, stream->client->fd, &readable);
    stream_signal(stream);
}

FEEDD_API int feedd_stream_fd(struct feedd_stream *stream, struct feedd_error *err)
{
    int status = client_check(stream->client, err);
    if (status == FEEDD_E_FORK || (status != 0 && !stream->options.reconnect))
        return status;
    if (stream->poll_fd >= 0)
        return stream->poll_fd;
    /* Readable with the socket, where news come in; or with the event, while what has come in waits to be taken: a
     * packet for this stream may have been received on behalf of another; or with the timer, while the daemon is
     * away. */
    int fds[3] = {epoll_create1(EPOLL_CLOEXEC), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                  timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)};
    struct epoll_event readable = {.events = EPOLLIN};
    if (fds[0] < 0 || fds[1] < 0 || fds[2] < 0 ||
        epoll_ctl(fds[0], EPOLL_CTL_ADD, stream->client->fd, &readable) != 0 ||
        epoll_ctl(fds[0], EPOLL_CTL_ADD, fds[1], &readable) != 0 ||
        epoll_ctl(fds[0], EPOLL_CTL_ADD, fds[2], &readable) != 0) {
        status = error_set(err, FEEDD_E_IO, "a descriptor to poll: %s", strerror(errno));
        for (int i = 0; i < 3; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        return status;
    }
    stream->poll_fd = fds[0];
    stream->event_fd = fds[1];
    stream->timer_fd = fds[2];
    stream_signal(stream);
    return stream->poll_fd;
}

/* ---- batches ---- */

static void send_releases(struct feedd_stream *stream)
{
    struct ring_map *map = stream->map;
    if (map->release_count == 0 || stream->state != STREAM_OPEN || stream->client->broken.status != 0)
        return;
    Feedd__Release release = FEEDD__RELEASE__INIT;
    release.stream = stream->number;
    release.n_slots = release.n_seqs = map->release_count;
    release.slots = map->release_slots;
    release.seqs = map->release_seqs;
    map->release_count = 0;
    client_send(stream->client, WIRE_RELEASE, &release.base, NULL); /* a failure breaks the connection, and is kept */
}

/* Would the next batch need the slot of one that the caller holds? By age and not by count: members of a group that
 * hold different batches must not wait for each other. */
static bool lease_too_old(const struct ring_map *map)
{
    if (map->held == 0 && map->lent == 0)
        return false;
    for (uint32_t slot = 0; slot < map->depth; slot++) {
        const struct feedd_batch *batch = &map->batches[slot];
        int state = batch->state;
        if ((state == BATCH_HELD || state == BATCH_LENT) && map->next_seq - batch->seq >= map->depth)
            return true;
    }
    return false;
}

/* Where the daemon has gone: connects and opens again, as far as that goes at once.
 * @return 0: go on receiving; FEEDD_E_TIMEOUT: not yet, try again soon; else it is no use */
static int come_back(struct feedd_stream *stream, struct feedd_error *err)
{
    struct feedd_client *client = stream->client;
    int broken = client->broken.status;
    if (broken != 0) {
        uint32_t patience_ms = stream->options.reconnect_timeout_ms;
        if (!stream->options.reconnect ||
            (broken != FEEDD_E_CONNECTION && broken != FEEDD_E_SHUTDOWN && broken != FEEDD_E_DEVICE))
            return client_check(client, err);
        struct feedd_error reason;
        if (client_reconnect(client, &reason) != 0) {
            uint64_t away_ms = (client_clock_ns() - client->broken_ns) / 1000000;
            if (away_ms >= (patience_ms != 0 ? patience_ms : RECONNECT_TIMEOUT_MS))
                return error_set(err, FEEDD_E_CONNECTION, "feedd has not come back within %llu s: %.900s",
                                 (unsigned long long)away_ms / 1000, reason.message);
            return FEEDD_E_TIMEOUT;
        }
    }
    if (stream->state != STREAM_LOST)
        return 0;
    stream->reconnects++;
    int status = send_open(stream, err);
    return status == FEEDD_E_CONNECTION ? FEEDD_E_TIMEOUT : status;
}

/* A daemon that has gone needs no slot of what is held: then there will be another ring. */
static bool must_release_first(const struct feedd_stream *stream)
{
    struct feedd_client *client = stream->client;
    if (stream->state != STREAM_OPEN || client->broken.status != 0 || !lease_too_old(stream->map))
        return false;
    while (stream->options.reconnect && client->broken.status == 0 && client_receive(client, 0, NULL) == 0)
        continue;
    return client->broken.status == 0;
}

/* Until a batch is there, or there is a reason why none will be. */
static int wait_ready(struct feedd_stream *stream, int timeout_ms, struct feedd_error *err)
{
    struct feedd_client *client = stream->client;
    int status = 0;
    uint64_t began_ns = 0;
    while (stream->map->ready_count == 0 && stream->failure.status == 0 && !stream->ended) {
        status = come_back(stream, err);
        bool away = status == FEEDD_E_TIMEOUT;
        if (status != 0 && !away)
            break;
        if (!away && client_receive(client, 0, NULL) != FEEDD_E_TIMEOUT)
            continue; /* a packet, or the connection broke: come_back() says what that means */
        if (began_ns == 0)
            began_ns = client_clock_ns();
        int left_ms = client_left_ms(timeout_ms, began_ns);
        status = left_ms == 0 ? FEEDD_E_TIMEOUT : 0;
        if (status == 0 && away)
            nanosleep(&(struct timespec){0, (left_ms > 0 && left_ms < AWAY_MS ? left_ms : AWAY_MS) * 1000000}, NULL);
        else if (status == 0)
            client_receive(client, left_ms, NULL);
        if (status != 0)
            break;
    }
    if (began_ns != 0)
        stream->wait_ns += client_clock_ns() - began_ns;
    if (stream->map->ready_count > 0)
        return 0;
    if (stream->failure.status != 0)
        return error_set(err, stream->failure.status, "%s", stream->failure.message);
    if (stream->ended)
        return error_set(err, FEEDD_E_END, "the stream has delivered its last batch");
    if (status == FEEDD_E_TIMEOUT)
        return error_set(err, FEEDD_E_TIMEOUT, "no batch within %d ms", timeout_ms);
    return status;
}

/* Takes the next batch off the list of those that are there. */
static int take_ready(struct feedd_stream *stream, struct feedd_batch **out, struct feedd_error *err)
{
    struct ring_map *map = stream->map;
    struct feedd_batch *batch = &map->batches[map->ready[map->ready_first]];
    const struct slot_record *record = slot_record_at(map->meta, &map->layout, batch->slot);
    uint32_t count = record->count;
    if (record->seq != batch->seq || count == 0 || count > map->layout.batch_size || record->valid > count)
        return error_set(err, FEEDD_E_PROTOCOL, "the record of batch %llu is damaged", (unsigned long long)batch->seq);
    map->ready_first = (map->ready_first + 1) % map->depth;
    map->ready_count--;
    map->next_seq++;
    map->held++;
    batch->state = BATCH_HELD;
    batch->count = count;
    batch->mark_count = batch->stream_count = 0;
    *out = batch;
    return 0;
}

/* After coming back: has the caller had this batch? */
static bool had_before(const struct feedd_stream *stream, const struct slot_record *record)
{
    const struct token *token = &stream->token;
    return record->next_epoch != token->epoch ? record->next_epoch < token->epoch
                                              : record->next_position <= token->position;
}

static void give_back(struct feedd_stream *stream, struct feedd_batch *batch)
{
    struct ring_map *map = batch->map;
    batch->state = BATCH_ABSENT;
    map->held--;
    if (map != stream->map) { /* of a daemon that has gone */
        unmap_older(stream);
        return;
    }
    if (stream->state != STREAM_OPEN || stream->client->broken.status != 0 || stream->failure.status != 0)
        return; /* nobody is there to be told */
    map->release_slots[map->release_count] = batch->slot;
    map->release_seqs[map->release_count++] = batch->seq;
    /* Together with others where others will follow soon, but never so many that the daemon runs short of slots. */
    if (map->ready_count > 0 && map->release_count < map->depth / 8)
        return;
    send_releases(stream); /* if the daemon has gone the batch is given back all the same, and feedd_next() says so */
}

FEEDD_API int feedd_next(struct feedd_stream *stream, int timeout_ms, const struct feedd_batch **out,
                         struct feedd_error *err)
{
    if (client_check(stream->client, err) == FEEDD_E_FORK)
        return FEEDD_E_FORK;
    if (!stream->shown)
        return error_set(err, FEEDD_E_STATE, "'%s' isn't open yet: feedd_open_wait() says when", stream->source);
    if (stream->client->lending && stream->map->older != NULL)
        unmap_older(stream); /* tensors are deleted at any time */
    for (;;) {
        if (must_release_first(stream))
            return error_set(err, FEEDD_E_LEASES,
                             "a batch is held that is %u batches old, as many as the ring has: release it first",
                             stream->map->depth);
        int status = 0;
        if (stream->map->ready_count == 0) { /* what is there can be read, also when the daemon has gone */
            send_releases(stream);
            status = wait_ready(stream, timeout_ms, err);
        }
        struct feedd_batch *batch = NULL;
        if (status == 0)
            status = take_ready(stream, &batch, err);
        if (status != 0)
            return status;
        struct ring_map *map = stream->map;
        const struct slot_record *record = slot_record_at(map->meta, &map->layout, batch->slot);
        if (stream->dropping && had_before(stream, record)) {
            give_back(stream, batch);
            continue;
        }
        if (stream->dropping) /* callers see numbers go on */
            map->shown_seq = stream->last_seq + (stream->batches_taken > 0) - batch->seq;
        stream->dropping = false;
        stream->last_seq = batch->seq + map->shown_seq;
        stream->token.epoch = record->next_epoch;
        stream->token.position = record->next_position;
        stream->batches_taken++;
        stream->samples_taken += record->valid;
        if (map->ready_count == 0) /* who waits on feedd_stream_fd() now must not wait for slots that were given back */
            send_releases(stream);
        stream_signal(stream);
        *out = batch;
        return 0;
    }
}

FEEDD_API int feedd_release(const struct feedd_batch *handle, struct CUstream_st *cuda_stream, struct feedd_error *err)
{
    struct ring_map *map = handle->map;
    struct feedd_stream *stream = map->stream;
    if (client_check(stream->client, err) == FEEDD_E_FORK)
        return FEEDD_E_FORK;
    struct feedd_batch *batch = &map->batches[handle->slot];
    if (batch->state != BATCH_HELD)
        return error_set(err, FEEDD_E_STATE, "a batch that is not held is given back");
    bool settled = false, idle = map->opened == NULL;
    int status = stream->client->lending ? releaser_settle(stream->client, batch, cuda_stream, &settled, err) : 0;
    if (status == 0 && !settled && !idle)
        status = releaser_add(stream->client, batch, cuda_stream, &idle, err);
    if (status != 0)
        return status;
    if (!settled && idle) {
        give_back(stream, batch);
        return 0;
    }
    map->held--;
    if (map != stream->map)
        unmap_older(stream);
    return 0;
}

FEEDD_API void feedd_batch_info(const struct feedd_batch *batch, struct feedd_batch_info *out)
{
    const struct ring_map *map = batch->map;
    struct slot_record *record = slot_record_at(map->meta, &map->layout, batch->slot);
    out->seq = batch->seq + map->shown_seq;
    out->epoch = record->epoch;
    out->position = record->position;
    out->count = batch->count;
    out->valid = record->valid;
    out->indices = slot_record_index(record);
    out->flags = slot_record_flags(record, map->layout.batch_size);
    memcpy(out->time_ns, record->time_ns, sizeof(out->time_ns));
    out->next_epoch = record->next_epoch;
    out->next_position = record->next_position;
}

FEEDD_API int feedd_batch_view(const struct feedd_batch *batch, uint32_t number, struct feedd_view *out)
{
    const struct ring_map *map = batch->map;
    if (number >= map->layout.field_count)
        return FEEDD_E_NOT_FOUND;
    const struct slot_field *field = &map->layout.fields[number];
    out->data = map->ring + batch->slot * map->layout.slot_bytes + field->offset;
    out->dtype = (int32_t)field->dtype;
    out->ndim = field->ndim + 1;
    out->shape[0] = batch->count;
    memcpy(out->shape + 1, field->shape, sizeof(field->shape));
    out->bytes = batch->count * field->sample_bytes;
    return 0;
}

/* A view of a field, and that a caller's memory has room for it. */
static int view_to_copy(const struct feedd_batch *batch, uint32_t number, size_t out_bytes, struct feedd_view *view,
                        struct feedd_error *err)
{
    const struct ring_map *map = batch->map;
    if (client_check(map->stream->client, err) == FEEDD_E_FORK)
        return FEEDD_E_FORK;
    if (feedd_batch_view(batch, number, view) != 0)
        return error_set(err, FEEDD_E_NOT_FOUND, "field %u: there are %u", number, map->layout.field_count);
    if (out_bytes < view->bytes)
        return error_set(err, FEEDD_E_LIMIT, "an output of %zu bytes; %llu are needed", out_bytes,
                         (unsigned long long)view->bytes);
    return 0;
}

FEEDD_API int feedd_batch_read(const struct feedd_batch *batch, uint32_t number, void *out, size_t out_bytes,
                               struct feedd_error *err)
{
    struct feedd_view view;
    const struct ring_map *map = batch->map;
    int status = view_to_copy(batch, number, out_bytes, &view, err);
    if (status != 0)
        return status;
    if (map->opened != NULL)
        return device_read(&map->stream->device, out, view.data, view.bytes, err);
    memcpy(out, view.data, view.bytes);
    return 0;
}

FEEDD_API int feedd_batch_copy(const struct feedd_batch *batch, uint32_t number, void *out, size_t out_bytes,
                               struct CUstream_st *cuda_stream, struct feedd_error *err)
{
    struct feedd_view view;
    const struct ring_map *map = batch->map;
    int status = view_to_copy(batch, number, out_bytes, &view, err);
    if (status == 0 && batch->state != BATCH_HELD)
        status = error_set(err, FEEDD_E_STATE, "a batch that is not held is copied");
    if (status != 0)
        return status;
    if (map->opened != NULL)
        return device_copy(&map->stream->device, out, view.data, view.bytes, cuda_stream, err);
    memcpy(out, view.data, view.bytes);
    return 0;
}

FEEDD_API void feedd_stream_token(const struct feedd_stream *stream, char text[FEEDD_TOKEN_TEXT])
{
    token_format(&stream->token, text);
}

FEEDD_API int feedd_token_read(const char *text, uint64_t *epoch, uint64_t *position, struct feedd_error *err)
{
    struct token token;
    int status = token_parse(text, &token, err);
    if (status != 0)
        return status;
    *epoch = token.epoch;
    *position = token.position;
    return 0;
}

FEEDD_API int feedd_token_move(const char *text, uint64_t epoch, uint64_t position, char out[FEEDD_TOKEN_TEXT],
                               struct feedd_error *err)
{
    struct token token;
    int status = token_parse(text, &token, err);
    if (status != 0)
        return status;
    token.epoch = epoch;
    token.position = position;
    token_format(&token, out);
    return 0;
}

FEEDD_API void feedd_stream_stats(const struct feedd_stream *stream, struct feedd_stream_stats *out)
{
    *out = (struct feedd_stream_stats){.batches = stream->batches_taken,
                                       .samples = stream->samples_taken,
                                       .wait_ns = stream->wait_ns,
                                       .ready = stream->map != NULL ? stream->map->ready_count : 0,
                                       .members = stream->members,
                                       .reconnects = stream->reconnects,
                                       .away = stream->client->broken.status != 0};
    for (const struct ring_map *map = stream->map; map != NULL; map = map->older)
        out->held += map->held + map->lent;
}
