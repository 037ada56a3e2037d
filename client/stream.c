/* stream.c - a stream of libfeedd that is open (open.c): taking batches, giving them back, closing it.
 *
 * Happy path: READY fills the list of batches that are there -> next hands one out -> release -> RELEASE, many at a
 * time.
 * When the daemon goes away and comes back (options.reconnect): what was announced is handed out, then OPEN again with
 * the token of what the caller has; a group may begin earlier, and what the caller has had is dropped.
 * What can fail: the stream, the connection, what the daemon announces. Threads: one at a time (feedd.h). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "internal.h"

#define RECONNECT_TIMEOUT_MS 60000u /* unless the caller says otherwise */
#define AWAY_MS              20     /* between two attempts to reach a daemon that is away */

/* ---- closing ---- */

static void stream_free(struct feedd_stream *stream)
{
    while (stream->map != NULL) {
        struct ring_map *map = stream->map;
        stream->map = map->older;
        map_free(map);
    }
    if (stream->client->owner == getpid()) /* a forked child must not call CUDA */
        device_scratch_free(&stream->device, stream->scratch);
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

/* Before slots are used for other batches: the GPU is done with them. */
static void finish(struct feedd_stream *stream)
{
    bool held = false;
    for (const struct ring_map *map = stream->map; map != NULL; map = map->older)
        held = held || (map->for_gpu && map->held > 0);
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
    open_confirmed(stream);
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
    int status = open_send(stream, err);
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
        map_drop_older(stream);
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
    if (!stream->shown || stream->state == STREAM_ATTACHING)
        return error_set(err, FEEDD_E_STATE, "'%s' isn't open yet: feedd_open_wait() says when", stream->source);
    if (stream->client->lending && stream->map->older != NULL)
        map_drop_older(stream); /* tensors are deleted at any time */
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
    bool settled = false, idle = !map->for_gpu;
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
        map_drop_older(stream);
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
    if (!map->on_host)
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
    if (map->for_gpu)
        return (map->on_host ? device_upload : device_copy)(&map->stream->device, out, view.data, view.bytes,
                                                            cuda_stream, err);
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
