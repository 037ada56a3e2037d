/* stream.c - a stream of libfeedd: opening and mapping it, taking batches, giving them back.
 *
 * Happy path: OPEN -> STREAM -> map both rings read-only, check what they are -> ATTACH with the nonce -> READY fills
 * the list of batches that are there -> next hands one out -> release -> RELEASE, many at a time.
 * What can fail: the daemon's answer (mapped only when sealed and of the size that the layout needs, so that reading
 * can't fault), the stream, the connection. Threads: one at a time (feedd.h). */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "internal.h"

#define CLASS_NAMES_MAX (64ull << 20) /* bytes of all class names */

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
static int read_layout(struct feedd_stream *stream, const Feedd__Stream *answer, struct feedd_error *err)
{
    struct slot_layout *layout = &stream->layout;
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
            return error_set(err, FEEDD_E_PROTOCOL, "feedd answered with a field of %zu dimensions, its name %zu bytes long",
                             from->n_shape, strlen(from->name));
        strcpy(field->name, from->name);
        field->dtype = from->dtype;
        field->ndim = (uint32_t)from->n_shape;
        for (uint32_t d = 0; d < field->ndim; d++)
            field->shape[d] = from->shape[d];
        struct feedd_field *shown = &stream->fields[i];
        shown->name = field->name;
        shown->dtype = (int32_t)field->dtype;
        shown->ndim = field->ndim;
        memcpy(shown->shape, field->shape, sizeof(shown->shape));
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

static int fill_schema(struct feedd_stream *stream, const char *source, const Feedd__Stream *answer,
                       struct feedd_error *err)
{
    struct feedd_schema *schema = &stream->schema;
    size_t sizes[4] = {strlen(source) + 1, strlen(answer->dataset) + 1, strlen(answer->transport) + 1,
                       strlen(answer->mode_reason) + 1};
    char *text = stream->text = malloc(sizes[0] + sizes[1] + sizes[2] + sizes[3]);
    if (text == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a stream");
    schema->source = memcpy(text, source, sizes[0]);
    schema->dataset = memcpy(text += sizes[0], answer->dataset, sizes[1]);
    schema->transport = memcpy(text += sizes[1], answer->transport, sizes[2]);
    schema->mode_reason = memcpy(text += sizes[2], answer->mode_reason, sizes[3]);
    schema->sample_count = answer->sample_count;
    schema->steps_per_epoch = answer->steps_per_epoch;
    schema->field_count = stream->layout.field_count;
    schema->fields = stream->fields;
    schema->class_count = answer->class_count;
    schema->class_names = stream->classes;
    schema->batch_size = answer->batch_size;
    schema->depth = answer->depth;
    schema->rank = answer->rank;
    schema->world_size = answer->world_size;
    schema->order = (int32_t)answer->order;
    schema->tail = (int32_t)answer->tail;
    schema->seed = answer->seed;
    schema->epochs = answer->epochs;
    schema->slot_bytes = answer->slot_bytes;
    stream->token = (struct token){.order = (uint8_t)answer->order,
                                   .sample_count = answer->sample_count,
                                   .fingerprint = answer->fingerprint,
                                   .seed = answer->seed,
                                   .epoch = answer->start_epoch,
                                   .position = answer->start_position};
    return 0;
}

static int allocate_books(struct feedd_stream *stream, struct feedd_error *err)
{
    uint32_t depth = stream->schema.depth;
    stream->batches = calloc(depth, sizeof(*stream->batches));
    stream->ready = calloc(depth, sizeof(*stream->ready));
    stream->release_slots = calloc(depth, sizeof(*stream->release_slots));
    stream->release_seqs = calloc(depth, sizeof(*stream->release_seqs));
    if (stream->batches == NULL || stream->ready == NULL || stream->release_slots == NULL ||
        stream->release_seqs == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for the books of %u batches", depth);
    for (uint32_t i = 0; i < depth; i++) {
        stream->batches[i].stream = stream;
        stream->batches[i].slot = i;
    }
    return 0;
}

/* From the answer to a stream that can be read; what it has made so far is freed by feedd_stream_close(). */
static int stream_attach(struct feedd_stream *stream, const char *source, const struct wire_packet *packet,
                         struct feedd_error *err)
{
    struct feedd_client *client = stream->client;
    const Feedd__Stream *answer = wire_unpack(&client->arena, &feedd__stream__descriptor, packet);
    if (answer == NULL || packet->fd_count < 2)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd answered OPEN with something that can't be parsed");
    stream->number = answer->stream;
    int status = read_layout(stream, answer, err);
    if (status == 0)
        status = read_classes(stream, answer, packet->fd_count > 2 ? packet->fds[2] : -1, err);
    if (status == 0)
        status = fill_schema(stream, source, answer, err);
    if (status == 0)
        status = allocate_books(stream, err);
    if (status != 0)
        return status;
    uint32_t depth = stream->schema.depth;
    stream->meta_bytes = slot_meta_bytes(&stream->layout, depth);
    stream->ring_bytes = slot_ring_bytes(&stream->layout, depth);
    status = map_ring(packet->fds[0], stream->meta_bytes, &stream->meta, err);
    if (status == 0)
        status = map_ring(packet->fds[1], stream->ring_bytes, &stream->ring, err);
    if (status != 0)
        return status;
    Feedd__Attach attach = FEEDD__ATTACH__INIT;
    attach.stream = stream->number;
    memcpy(&attach.nonce, stream->ring + stream->ring_bytes - SLOT_PROOF_BYTES, sizeof(attach.nonce));
    return client_send(client, WIRE_ATTACH, &attach.base, err);
}

/* Options of a caller that was built with an older feedd.h are shorter: what it doesn't know is 0. */
static int read_options(const struct feedd_open_options *from, struct feedd_open_options *options,
                        struct feedd_error *err)
{
    memset(options, 0, sizeof(*options));
    if (from == NULL)
        return 0;
    if (from->size < offsetof(struct feedd_open_options, device) + sizeof(from->device) ||
        from->size > sizeof(*options))
        return error_set(err, FEEDD_E_ARGUMENT, "open options of size %zu; this libfeedd knows %zu: set options.size",
                         from->size, sizeof(*options));
    memcpy(options, from, from->size);
    return 0;
}

FEEDD_API int feedd_open(struct feedd_client *client, const char *source, const struct feedd_open_options *from,
                         struct feedd_stream **out, struct feedd_error *err)
{
    struct feedd_open_options options;
    int status = client_check(client, err);
    if (status == 0)
        status = read_options(from, &options, err);
    if (status != 0)
        return status;
    struct feedd_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a stream");
    stream->client = client;
    stream->poll_fd = stream->event_fd = -1;

    char *transports[] = {(char *)(uintptr_t)"host"};
    Feedd__Open open = FEEDD__OPEN__INIT;
    open.request = ++client->request;
    open.source = (char *)(uintptr_t)source;
    open.has_batch_size = options.batch_size != 0;
    open.batch_size = options.batch_size;
    open.has_order = options.order != 0;
    open.order = (uint32_t)options.order;
    open.has_tail = options.tail != 0;
    open.tail = (uint32_t)options.tail;
    open.has_seed = options.has_seed != 0;
    open.seed = options.seed;
    open.has_epochs = options.has_epochs != 0;
    open.epochs = options.epochs;
    open.has_rank = options.rank != 0;
    open.rank = options.rank;
    open.has_world_size = options.world_size != 0;
    open.world_size = options.world_size;
    open.has_depth = options.depth != 0;
    open.depth = options.depth;
    open.resume = (char *)(uintptr_t)options.resume;
    open.has_resume_force = options.resume_force != 0;
    open.resume_force = options.resume_force != 0;
    open.device = (char *)(uintptr_t)options.device;
    open.n_transports = 1;
    open.transports = transports;
    struct wire_packet packet;
    status = client_send(client, WIRE_OPEN, &open.base, err);
    if (status == 0)
        status = client_answer(client, WIRE_STREAM, -1, &packet, err);
    if (status != 0) {
        free(stream);
        return status;
    }
    stream->next = client->streams; /* listed from here on: closing it undoes all */
    client->streams = stream;
    status = stream_attach(stream, source, &packet, err);
    wire_packet_drop(&packet);
    if (status != 0) {
        feedd_stream_close(stream);
        return status;
    }
    *out = stream;
    return 0;
}

FEEDD_API void feedd_stream_close(struct feedd_stream *stream)
{
    if (stream == NULL)
        return;
    struct feedd_client *client = stream->client;
    for (struct feedd_stream **at = &client->streams; *at != NULL; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    if (client_check(client, NULL) == 0 && stream->number != 0) {
        Feedd__Close message = FEEDD__CLOSE__INIT;
        message.stream = stream->number;
        client_send(client, WIRE_CLOSE, &message.base, NULL); /* ends all leases, released or not */
    }
    if (stream->ring != NULL)
        munmap(stream->ring, stream->ring_bytes);
    if (stream->meta != NULL)
        munmap(stream->meta, stream->meta_bytes);
    if (stream->poll_fd >= 0) {
        close(stream->poll_fd);
        close(stream->event_fd);
    }
    free(stream->text);
    free(stream->class_text);
    free(stream->classes);
    free(stream->batches);
    free(stream->ready);
    free(stream->release_slots);
    free(stream->release_seqs);
    free(stream);
}

FEEDD_API const struct feedd_schema *feedd_stream_schema(const struct feedd_stream *stream)
{
    return &stream->schema;
}

/* ---- what the daemon says ---- */

int stream_ready(struct feedd_stream *stream, const Feedd__Ready *ready, struct feedd_error *err)
{
    uint32_t depth = stream->schema.depth;
    if (ready->n_slots != ready->n_seqs)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd announced %zu slots and %zu batches", ready->n_slots,
                         ready->n_seqs);
    for (size_t i = 0; i < ready->n_slots; i++) {
        uint32_t slot = ready->slots[i];
        struct feedd_batch *batch = slot < depth ? &stream->batches[slot] : NULL;
        if (batch == NULL || batch->state != BATCH_ABSENT || ready->seqs[i] != stream->announced_seq)
            return error_set(err, FEEDD_E_PROTOCOL, "feedd announced batch %llu in slot %u, out of turn",
                             (unsigned long long)ready->seqs[i], slot);
        batch->state = BATCH_READY;
        batch->seq = stream->announced_seq++;
        stream->ready[(stream->ready_first + stream->ready_count++) % depth] = slot;
    }
    stream_signal(stream);
    return 0;
}

void stream_ended(struct feedd_stream *stream)
{
    stream->ended = true;
    stream_signal(stream);
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
    bool wanted = stream->ready_count > 0 || stream->ended || stream->failure.status != 0 ||
                  stream->client->broken.status != 0;
    uint64_t value = 1;
    if (wanted != stream->signalled) {
        ssize_t rc = wanted ? write(stream->event_fd, &value, sizeof(value))
                            : read(stream->event_fd, &value, sizeof(value));
        (void)rc; /* an eventfd of our own that is 0 or 1 takes both */
        stream->signalled = wanted;
    }
}

FEEDD_API int feedd_stream_fd(struct feedd_stream *stream, struct feedd_error *err)
{
    int status = client_check(stream->client, err);
    if (status != 0 || stream->poll_fd >= 0)
        return status != 0 ? status : stream->poll_fd;
    /* Readable with the socket, where news come in, or with the event, while what has come in waits to be taken: a
     * packet for this stream may have been received on behalf of another. */
    int poll_fd = epoll_create1(EPOLL_CLOEXEC);
    int event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event readable = {.events = EPOLLIN};
    if (poll_fd < 0 || event_fd < 0 || epoll_ctl(poll_fd, EPOLL_CTL_ADD, stream->client->fd, &readable) != 0 ||
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, event_fd, &readable) != 0) {
        status = error_set(err, FEEDD_E_IO, "a descriptor to poll: %s", strerror(errno));
        if (poll_fd >= 0)
            close(poll_fd);
        if (event_fd >= 0)
            close(event_fd);
        return status;
    }
    stream->poll_fd = poll_fd;
    stream->event_fd = event_fd;
    stream_signal(stream);
    return poll_fd;
}

/* ---- batches ---- */

static int send_releases(struct feedd_stream *stream, struct feedd_error *err)
{
    if (stream->release_count == 0)
        return 0;
    Feedd__Release release = FEEDD__RELEASE__INIT;
    release.stream = stream->number;
    release.n_slots = release.n_seqs = stream->release_count;
    release.slots = stream->release_slots;
    release.seqs = stream->release_seqs;
    stream->release_count = 0;
    return client_send(stream->client, WIRE_RELEASE, &release.base, err);
}

/* Would the next batch need the slot of one that the caller holds? By age and not by count: members of a group that
 * hold different batches must not wait for each other. */
static bool lease_too_old(const struct feedd_stream *stream)
{
    if (stream->held == 0)
        return false;
    for (uint32_t slot = 0; slot < stream->schema.depth; slot++) {
        const struct feedd_batch *batch = &stream->batches[slot];
        if (batch->state == BATCH_HELD && stream->next_seq - batch->seq >= stream->schema.depth)
            return true;
    }
    return false;
}

/* Until a batch is there, or there is a reason why none will be. */
static int wait_ready(struct feedd_stream *stream, int timeout_ms, struct feedd_error *err)
{
    int status = 0;
    uint64_t began_ns = 0;
    while (stream->ready_count == 0 && stream->failure.status == 0 && !stream->ended) {
        status = client_receive(stream->client, 0, err);
        if (status != FEEDD_E_TIMEOUT) {
            if (status != 0)
                break;
            continue;
        }
        if (timeout_ms == 0)
            break;
        if (began_ns == 0)
            began_ns = client_clock_ns();
        status = client_receive(stream->client, client_left_ms(timeout_ms, began_ns), err);
        if (status != 0)
            break;
    }
    if (began_ns != 0)
        stream->wait_ns += client_clock_ns() - began_ns;
    if (stream->ready_count > 0)
        return 0;
    if (stream->failure.status != 0)
        return error_set(err, stream->failure.status, "%s", stream->failure.message);
    if (stream->ended)
        return error_set(err, FEEDD_E_END, "the stream has delivered its last batch");
    if (status == FEEDD_E_TIMEOUT)
        return error_set(err, FEEDD_E_TIMEOUT, "no batch within %d ms", timeout_ms);
    return status;
}

FEEDD_API int feedd_next(struct feedd_stream *stream, int timeout_ms, const struct feedd_batch **out,
                         struct feedd_error *err)
{
    struct feedd_client *client = stream->client;
    int status = client_check(client, err);
    if (status != 0 && (status == FEEDD_E_FORK || stream->ready_count == 0)) /* what is mapped can still be read */
        return status;
    if (lease_too_old(stream))
        return error_set(err, FEEDD_E_LEASES,
                         "a batch is held that is %u batches old, as many as the ring has: release it first",
                         stream->schema.depth);
    if (stream->ready_count == 0) {
        status = send_releases(stream, err);
        if (status == 0)
            status = wait_ready(stream, timeout_ms, err);
        if (status != 0)
            return status;
    }
    struct feedd_batch *batch = &stream->batches[stream->ready[stream->ready_first]];
    const struct slot_record *record = slot_record_at(stream->meta, &stream->layout, batch->slot);
    uint32_t count = record->count;
    if (record->seq != batch->seq || count == 0 || count > stream->layout.batch_size || record->valid > count)
        return error_set(err, FEEDD_E_PROTOCOL, "the record of batch %llu is damaged", (unsigned long long)batch->seq);
    stream->ready_first = (stream->ready_first + 1) % stream->schema.depth;
    stream->ready_count--;
    batch->state = BATCH_HELD;
    batch->count = count;
    stream->held++;
    stream->next_seq++;
    stream->token.epoch = record->next_epoch;
    stream->token.position = record->next_position;
    stream->batches_taken++;
    stream->samples_taken += record->valid;
    if (stream->ready_count == 0) /* who waits on feedd_stream_fd() now must not wait for slots that were given back */
        send_releases(stream, NULL);
    stream_signal(stream);
    *out = batch;
    return 0;
}

FEEDD_API int feedd_release(struct feedd_stream *stream, const struct feedd_batch *handle, struct feedd_error *err)
{
    if (client_check(stream->client, err) == FEEDD_E_FORK)
        return FEEDD_E_FORK;
    uint32_t slot = handle->slot;
    struct feedd_batch *batch = &stream->batches[slot];
    if (handle != batch || batch->state != BATCH_HELD)
        return error_set(err, FEEDD_E_STATE, "a batch that is not held is given back");
    batch->state = BATCH_ABSENT;
    stream->held--;
    if (stream->client->broken.status != 0 || stream->failure.status != 0)
        return 0; /* nobody is there to be told */
    stream->release_slots[stream->release_count] = slot;
    stream->release_seqs[stream->release_count++] = batch->seq;
    /* Together with others where others will follow soon, but never so many that the daemon runs short of slots. */
    if (stream->ready_count > 0 && stream->release_count < stream->schema.depth / 8)
        return 0;
    send_releases(stream, NULL); /* if the daemon has gone the batch is given back all the same, and feedd_next() says so */
    return 0;
}

FEEDD_API void feedd_batch_info(const struct feedd_batch *batch, struct feedd_batch_info *out)
{
    const struct feedd_stream *stream = batch->stream;
    struct slot_record *record = slot_record_at(stream->meta, &stream->layout, batch->slot);
    out->seq = batch->seq;
    out->epoch = record->epoch;
    out->position = record->position;
    out->count = batch->count;
    out->valid = record->valid;
    out->indices = slot_record_index(record);
    out->flags = slot_record_flags(record, stream->layout.batch_size);
    memcpy(out->time_ns, record->time_ns, sizeof(out->time_ns));
}

FEEDD_API int feedd_batch_view(const struct feedd_batch *batch, uint32_t number, struct feedd_view *out)
{
    const struct feedd_stream *stream = batch->stream;
    if (number >= stream->layout.field_count)
        return FEEDD_E_NOT_FOUND;
    const struct slot_field *field = &stream->layout.fields[number];
    out->data = stream->ring + batch->slot * stream->layout.slot_bytes + field->offset;
    out->dtype = (int32_t)field->dtype;
    out->ndim = field->ndim + 1;
    out->shape[0] = batch->count;
    memcpy(out->shape + 1, field->shape, sizeof(field->shape));
    out->bytes = batch->count * field->sample_bytes;
    return 0;
}

FEEDD_API void feedd_stream_token(const struct feedd_stream *stream, char text[FEEDD_TOKEN_TEXT])
{
    token_format(&stream->token, text);
}

FEEDD_API void feedd_stream_stats(const struct feedd_stream *stream, struct feedd_stream_stats *out)
{
    *out = (struct feedd_stream_stats){.batches = stream->batches_taken,
                                       .samples = stream->samples_taken,
                                       .wait_ns = stream->wait_ns,
                                       .held = stream->held,
                                       .ready = stream->ready_count};
}
