/* control.c - see control.h.
 *
 * Happy path: HELLO -> WELCOME; OPEN -> (dataset and ring, elsewhere) -> STREAM with the rings' descriptors; ATTACH ->
 * READY, RELEASE, READY, ... -> END; CLOSE.
 * What can fail: a request (ERROR with its number; the client goes on), or the protocol (the connection is closed). A
 * message about a stream that has just ended is not an error: it may have crossed with ours. */
#include "control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "backend.h"
#include "error.h"
#include "log.h"
#include "report.h"
#include "server.h"
#include "site.h"
#include "stream.h"
#include "verification.h"

#define SAMPLE_PATH_MAX 8192 /* bytes: a root and what is below it */

/* ---- streams of a connection ---- */

static struct stream *stream_of(const struct attachment *attachment)
{
    return attachment->member->group->stream;
}

static void attachment_free(struct attachment *attachment)
{
    list_remove(&attachment->node);
    attachment->connection->stream_count--;
    free(attachment->source);
    free(attachment);
}

static void attachment_end(struct attachment *attachment)
{
    group_leave(attachment->member);
    attachment_free(attachment);
}

/* @return true and *out (NULL when it has ended since); false: there never was a stream of this number */
static bool find_attachment(struct connection *connection, uint32_t number, struct attachment **out)
{
    *out = NULL;
    list_each (node, after, &connection->streams) {
        struct attachment *attachment = container_of(node, struct attachment, node);
        if (attachment->number == number && attachment->opened)
            *out = attachment;
    }
    return number >= 1 && number <= connection->stream_number;
}

void control_connection_closed(struct connection *connection)
{
    while (!list_empty(&connection->streams)) /* ending one may fail its stream, and end others */
        attachment_end(container_of(connection->streams.next, struct attachment, node));
    verification_abandon(connection);
}

static void send_members(struct attachment *attachment)
{
    Feedd__Members message = FEEDD__MEMBERS__INIT;
    message.stream = attachment->number;
    message.count = attachment->member->group->member_count;
    connection_send(attachment->connection, WIRE_MEMBERS, &message.base, NULL, 0);
}

static void flush_attachment(struct attachment *attachment)
{
    struct connection *connection = attachment->connection;
    uint32_t slots[FEEDD_MAX_DEPTH];
    uint64_t seqs[FEEDD_MAX_DEPTH];
    if (attachment->count_changed) {
        attachment->count_changed = false;
        send_members(attachment);
    }
    if (attachment->member->ready_count > 0) {
        Feedd__Ready ready = FEEDD__READY__INIT;
        uint32_t count = member_take_ready(attachment->member, FEEDD_MAX_DEPTH, slots, seqs);
        ready.stream = attachment->number;
        ready.n_slots = ready.n_seqs = count;
        ready.slots = slots;
        ready.seqs = seqs;
        connection_send(connection, WIRE_READY, &ready.base, NULL, 0);
    }
    if (!attachment->ended || attachment->end_sent)
        return;
    Feedd__End end = FEEDD__END__INIT;
    end.stream = attachment->number;
    attachment->end_sent = true;
    connection_send(connection, WIRE_END, &end.base, NULL, 0);
}

void control_flush(struct connection *connection)
{
    list_each (node, after, &connection->streams) {
        struct attachment *attachment = container_of(node, struct attachment, node);
        /* A client that doesn't read is told later, when its socket takes packets again. */
        if (connection->queued > 0 || connection->failure.status != 0)
            return;
        if (attachment->attached)
            flush_attachment(attachment);
    }
}

static void mark_unflushed(struct attachment *attachment)
{
    if (attachment->attached)
        connection_mark_unflushed(attachment->connection);
}

/* ---- OPEN ---- */

/* A sealed memfd with the class names one after the other, each terminated. @return 0 and *fd, *bytes; *bytes = 0 and
 * no descriptor when the dataset has none */
static int class_names_memfd(const struct reader *reader, int *fd, uint64_t *bytes, struct feedd_error *err)
{
    *bytes = 0;
    for (uint32_t i = 0; i < reader->class_count && reader->class_names != NULL; i++)
        *bytes += strlen(reader->class_names[i]) + 1;
    if (*bytes == 0)
        return 0;
    uint8_t *memory;
    int status = backend_memfd_new("feedd-classes", *bytes, -1, fd, &memory, err);
    if (status != 0)
        return status;
    uint8_t *at = memory;
    for (uint32_t i = 0; i < reader->class_count; i++)
        at = (uint8_t *)stpcpy((char *)at, reader->class_names[i]) + 1;
    munmap(memory, *bytes);
    return 0;
}

/* Changes when the same samples would be delivered with other pixels. */
static uint64_t content_hash(const struct stream *stream)
{
    struct transform_field fields[TRANSFORM_FIELDS], output[OUTPUT_FIELDS];
    double parts[TRANSFORM_FIELDS + OUTPUT_FIELDS];
    size_t count = 0;
    transform_list(&stream->spec.transform, fields);
    output_list(&stream->plan.output, stream->plan.channels, output);
    for (int i = 0; i < TRANSFORM_FIELDS; i++)
        parts[count++] = fields[i].value;
    parts[count++] = stream->spec.on_error;
    if (stream->plan.output.mode !=
        FEEDD_NORMALIZE_CLIENT) /* daemon and cpu make the same: [0], the mode, is left out */
        for (int i = 1; i < OUTPUT_FIELDS; i++)
            parts[count++] = output[i].value;
    return XXH3_64bits(parts, count * sizeof(parts[0]));
}

void control_mode_reason(const struct attachment *attachment, char out[CONTROL_REASON])
{
    snprintf(out, CONTROL_REASON, "%s; %s", attachment->delivery.reason, attachment->delivery.output.reason);
}

/* What a client maps, besides the records. */
static void describe_ring(const struct ring *ring, Feedd__Stream *message, int *fds, uint32_t *fd_count)
{
    message->transport = (char *)(uintptr_t)transport_name(ring->spec.transport);
    switch (ring->spec.transport) {
    case TRANSPORT_IPC:
        message->has_ipc_handle = message->has_ipc_offset = true;
        message->ipc_handle = (ProtobufCBinaryData){sizeof(ring->ipc_handle), (uint8_t *)(uintptr_t)ring->ipc_handle};
        message->ipc_offset = ring->ipc_offset;
        return;
    case TRANSPORT_FD:
        message->has_fd_bytes = true;
        message->fd_bytes = ring->ring_fd_bytes;
        fds[(*fd_count)++] = ring->ring_fd;
        return;
    default:
        fds[(*fd_count)++] = ring->ring_fd;
        return;
    }
}

static int send_stream(struct attachment *attachment, struct feedd_error *err)
{
    const struct group *group = attachment->member->group;
    const struct stream *stream = group->stream;
    const struct ring *ring = attachment->member->site->ring;
    const struct slot_layout *layout = &ring->spec.layout;
    const struct sampler_spec *order = &stream->sampler.spec;
    struct delivery *delivery = &attachment->delivery;
    char mode_reason[CONTROL_REASON];
    int fds[3] = {ring->meta_fd}, classes_fd = -1;
    uint32_t fd_count = 1;
    Feedd__Stream message = FEEDD__STREAM__INIT;
    int status = class_names_memfd(stream->reader, &classes_fd, &message.class_names_bytes, err);
    if (status != 0)
        return status;
    describe_ring(ring, &message, fds, &fd_count);
    output_settle(&delivery->output, stream->plan.channels);
    control_mode_reason(attachment, mode_reason);
    if (delivery->device[0] != '\0')
        message.device = delivery->device;
    if (classes_fd >= 0)
        fds[fd_count++] = classes_fd;
    Feedd__Field fields[FEEDD_MAX_FIELDS], *field_list[FEEDD_MAX_FIELDS];
    for (uint32_t i = 0; i < layout->field_count; i++) {
        feedd__field__init(&fields[i]);
        fields[i].name = (char *)(uintptr_t)layout->fields[i].name;
        fields[i].dtype = layout->fields[i].dtype;
        fields[i].n_shape = layout->fields[i].ndim;
        fields[i].shape = (uint64_t *)(uintptr_t)layout->fields[i].shape;
        field_list[i] = &fields[i];
    }
    message.request = attachment->request;
    message.stream = attachment->number;
    message.dataset = stream->spec.dataset->config->name;
    const struct dataset_selection *selection = &stream->spec.dataset->selections[stream->spec.selection];
    message.sample_count = selection->count;
    message.fingerprint = selection->fingerprint;
    message.steps_per_epoch = stream->sampler.epoch_steps;
    message.n_fields = layout->field_count;
    message.fields = field_list;
    message.class_count = stream->reader->class_count;
    message.batch_size = order->batch_size;
    message.order = (uint32_t)order->order;
    message.tail = (uint32_t)order->tail;
    message.seed = order->seed;
    message.epochs = order->epochs;
    message.rank = order->rank;
    message.world_size = order->world_size;
    message.depth = stream->depth;
    message.slot_bytes = layout->slot_bytes;
    message.record_bytes = layout->record_bytes;
    message.start_epoch = order->start_epoch;
    message.start_position = order->start_position;
    message.mode_reason = mode_reason;
    message.has_normalize = true;
    message.normalize = (uint32_t)stream->plan.output.mode;
    message.share = (uint32_t)group->spec.share;
    message.group = (char *)(uintptr_t)group->spec.name;
    message.incarnation = group->incarnation;
    message.content = content_hash(stream);
    attachment->opened = true;
    connection_send(attachment->connection, WIRE_STREAM, &message.base, fds, fd_count);
    if (classes_fd >= 0)
        close(classes_fd);
    return 0;
}

/* What one client may hold: slots of all its streams, and bytes of their rings. */
static int check_quota(const struct attachment *attachment, struct feedd_error *err)
{
    const struct config *config = attachment->connection->server->config;
    uint64_t leases = 0, bytes = 0;
    list_each (node, after, &attachment->connection->streams) {
        const struct attachment *other = container_of(node, struct attachment, node);
        if (other->opened || other == attachment) {
            leases += stream_of(other)->depth;
            bytes += stream_of(other)->staging_bytes + other->member->site->meta_bytes;
        }
    }
    if (leases > config->leases_per_client_max)
        return error_set(err, FEEDD_E_LIMIT, "%llu slots in all streams of this client: leases_per_client_max is %u",
                         (unsigned long long)leases, config->leases_per_client_max);
    if (config->ring_memory_per_client_max != 0 && bytes > config->ring_memory_per_client_max)
        return error_set(err, FEEDD_E_LIMIT,
                         "%llu bytes of rings in all streams of this client: ring_memory_per_client_max is %llu",
                         (unsigned long long)bytes, (unsigned long long)config->ring_memory_per_client_max);
    return 0;
}

static void open_failed(struct attachment *attachment, const struct feedd_error *err)
{
    struct connection *connection = attachment->connection;
    log_warning("client %s[%d]: %s: %s", connection->name, (int)connection->pid, attachment->source, err->message);
    uint32_t request = attachment->opened ? 0 : attachment->request;
    uint32_t number = attachment->opened ? attachment->number : 0;
    attachment_end(attachment);
    connection_send_error(connection, request, number, err);
}

static void on_member_event(struct member *member, enum member_event event, const struct feedd_error *err)
{
    struct attachment *attachment = member->arg;
    struct feedd_error error;
    switch (event) {
    case MEMBER_OPENED:
        if (check_quota(attachment, &error) != 0 || send_stream(attachment, &error) != 0)
            open_failed(attachment, &error);
        return;
    case MEMBER_READY:
        mark_unflushed(attachment);
        return;
    case MEMBER_COUNT:
        attachment->count_changed = attachment->member->group->spec.share == FEEDD_SHARE_BROADCAST;
        mark_unflushed(attachment);
        return;
    case MEMBER_ENDED:
        attachment->ended = true;
        mark_unflushed(attachment);
        return;
    case MEMBER_FAILED:
        open_failed(attachment, err);
        return;
    }
}

/* The group for it, and the connection's end of it. */
static int join(struct connection *connection, const Feedd__Open *open, struct group_spec *spec,
                const struct delivery *delivery, struct feedd_error *err)
{
    struct server *server = connection->server;
    spec->uid = connection->uid;
    struct attachment *attachment = calloc(1, sizeof(*attachment));
    char *source = strdup(open->source);
    if (attachment == NULL || source == NULL) {
        free(attachment);
        free(source);
        return error_set(err, FEEDD_E_MEMORY, "no memory for a stream");
    }
    attachment->connection = connection;
    attachment->request = open->request;
    attachment->source = source;
    attachment->delivery = *delivery;
    int status = group_join(&server->pipeline, spec, on_member_event, attachment, &attachment->member, err);
    if (status != 0) {
        free(source);
        free(attachment);
        return status;
    }
    attachment->number = ++connection->stream_number;
    connection->stream_count++;
    list_append(&connection->streams, &attachment->node);
    log_info("client %s[%d]: opens %s, %s %s", connection->name, (int)connection->pid, source, share_name(spec->share),
             spec->name);
    return 0;
}

static int open_stream(struct connection *connection, const Feedd__Open *open, struct feedd_error *err)
{
    struct server *server = connection->server;
    struct group_spec spec;
    struct delivery delivery;
    if (server->stopping)
        return error_set(err, FEEDD_E_SHUTDOWN, "feedd is stopping");
    if (connection->stream_count >= server->config->streams_per_client_max)
        return error_set(err, FEEDD_E_LIMIT, "%u streams are open, as many as streams_per_client_max allows",
                         connection->stream_count);
    int status = resolve_open(connection, open, &spec, &delivery, err);
    if (status == 0)
        status = join(connection, open, &spec, &delivery, err);
    if (spec.stream.dataset != NULL)
        dataset_drop(spec.stream.dataset); /* resolve_open()'s hold: the group has one of its own */
    return status;
}

/* ---- packets ---- */

static int handle_hello(struct connection *connection, const Feedd__Hello *hello)
{
    strncpy(connection->name, hello->client_name != NULL ? hello->client_name : "?", sizeof(connection->name) - 1);
    for (char *c = connection->name; *c != '\0'; c++) /* it is shown on terminals */
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7F)
            *c = '?';
    sm_move(connection_states, &connection->state, CONNECTION_SERVING);
    Feedd__Welcome welcome = FEEDD__WELCOME__INIT;
    welcome.daemon_version = (char *)(uintptr_t)FEEDD_VERSION;
    welcome.has_pid = true;
    welcome.pid = (uint32_t)getpid();
    connection_send(connection, WIRE_WELCOME, &welcome.base, NULL, 0);
    return 0;
}

static int handle_open(struct connection *connection, const Feedd__Open *open, struct feedd_error *reason)
{
    struct feedd_error err;
    if (open->request == 0)
        return error_set(reason, FEEDD_E_PROTOCOL, "OPEN with request 0: requests are numbered from 1");
    if (open_stream(connection, open, &err) != 0) {
        log_warning("client %s[%d]: %.255s: %s", connection->name, (int)connection->pid, open->source, err.message);
        connection_send_error(connection, open->request, 0, &err);
    }
    return 0;
}

static int handle_attach(struct connection *connection, const Feedd__Attach *attach, struct feedd_error *err)
{
    struct attachment *attachment;
    if (!find_attachment(connection, attach->stream, &attachment))
        return error_set(err, FEEDD_E_PROTOCOL, "ATTACH to stream %u, which was never opened", attach->stream);
    if (attachment == NULL)
        return 0;
    if (attachment->attached)
        return error_set(err, FEEDD_E_PROTOCOL, "ATTACH to stream %u a second time", attach->stream);
    if (attach->nonce != attachment->member->site->ring->nonce) { /* another transport may do better */
        struct feedd_error reason;
        error_set(&reason, FEEDD_E_PROTOCOL, "ATTACH to stream %u without having mapped its ring", attach->stream);
        open_failed(attachment, &reason);
        return 0;
    }
    attachment->attached = true;
    if (attach->has_confirm && attach->confirm)
        attachment->count_changed = true;
    mark_unflushed(attachment); /* what was marked before it could be told */
    group_attach(attachment->member);
    return 0;
}

static int handle_release(struct connection *connection, const Feedd__Release *release, struct feedd_error *err)
{
    struct attachment *attachment;
    if (!find_attachment(connection, release->stream, &attachment))
        return error_set(err, FEEDD_E_PROTOCOL, "RELEASE on stream %u, which was never opened", release->stream);
    if (release->n_slots != release->n_seqs)
        return error_set(err, FEEDD_E_PROTOCOL, "RELEASE of %zu slots and %zu batches", release->n_slots,
                         release->n_seqs);
    for (size_t i = 0; attachment != NULL && i < release->n_slots; i++) {
        int status = member_release(attachment->member, release->slots[i], release->seqs[i], err);
        if (status != 0)
            return status;
    }
    return 0;
}

static int handle_close(struct connection *connection, const Feedd__Close *close_message, struct feedd_error *err)
{
    struct attachment *attachment;
    if (!find_attachment(connection, close_message->stream, &attachment))
        return error_set(err, FEEDD_E_PROTOCOL, "CLOSE of stream %u, which was never opened", close_message->stream);
    if (attachment != NULL)
        attachment_end(attachment);
    return 0;
}

static int start_verification(struct connection *connection, const Feedd__Verify *message, struct feedd_error *err)
{
    const struct server *server = connection->server;
    struct stream_spec spec = {.dataset = NULL};
    if (server->stopping)
        return error_set(err, FEEDD_E_SHUTDOWN, "feedd is stopping");
    int status = resolve_source(connection, message->source, &spec, err);
    if (status == 0)
        status = verification_start(connection, message, spec.dataset, spec.selection, err);
    if (spec.dataset != NULL)
        dataset_drop(spec.dataset); /* resolve_source()'s hold: the verification has one of its own */
    return status;
}

static int handle_verify(struct connection *connection, const Feedd__Verify *message, struct feedd_error *reason)
{
    struct feedd_error err;
    if (message->request == 0)
        return error_set(reason, FEEDD_E_PROTOCOL, "VERIFY with request 0: requests are numbered from 1");
    if (start_verification(connection, message, &err) != 0) {
        log_warning("client %s[%d]: verifying %.255s: %s", connection->name, (int)connection->pid, message->source,
                    err.message);
        connection_send_error(connection, message->request, 0, &err);
    }
    return 0;
}

/* What a person would call a sample. */
static int sample_path(struct connection *connection, uint32_t number, uint64_t index, char **out,
                       struct feedd_error *err)
{
    struct attachment *attachment;
    if (!find_attachment(connection, number, &attachment) || attachment == NULL)
        return error_set(err, FEEDD_E_NOT_FOUND, "stream %u isn't open: it has no samples to name", number);
    const struct reader *reader = stream_of(attachment)->reader;
    if (index >= reader->sample_count)
        return error_set(err, FEEDD_E_NOT_FOUND, "sample %llu: the dataset has %llu, the first is 0",
                         (unsigned long long)index, (unsigned long long)reader->sample_count);
    *out = malloc(SAMPLE_PATH_MAX);
    if (*out == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a path");
    reader->ops->path(reader, index, *out, SAMPLE_PATH_MAX);
    return 0;
}

/* @return 0 and *text, to be freed */
static int write_report(struct connection *connection, const Feedd__Status *message, char **text,
                        struct feedd_error *err)
{
    if (message->has_stream)
        return sample_path(connection, message->stream, message->index, text, err);
    *text = message->errors ? report_errors(connection) : report_status(connection);
    return *text != NULL ? 0 : error_set(err, FEEDD_E_MEMORY, "no memory for a status report");
}

static int handle_status(struct connection *connection, const Feedd__Status *status_message, struct feedd_error *reason)
{
    struct feedd_error err;
    if (status_message->request == 0)
        return error_set(reason, FEEDD_E_PROTOCOL, "STATUS with request 0: requests are numbered from 1");
    int fd = -1;
    uint8_t *memory;
    char *text = NULL;
    int status = write_report(connection, status_message, &text, &err);
    size_t bytes = text != NULL ? strlen(text) : 0;
    if (status == 0)
        status = backend_memfd_new("feedd-report", bytes, -1, &fd, &memory, &err);
    if (status == 0) {
        memcpy(memory, text, bytes);
        munmap(memory, bytes);
        Feedd__Report report = FEEDD__REPORT__INIT;
        report.request = status_message->request;
        report.bytes = bytes;
        connection_send(connection, WIRE_REPORT, &report.base, &fd, 1);
        close(fd);
    } else {
        connection_send_error(connection, status_message->request, 0, &err);
    }
    free(text);
    return 0;
}

/* The packet's type, and whether it is one that a client may send now. */
static const ProtobufCMessageDescriptor *message_type(const struct connection *connection, uint16_t type)
{
    if (connection->state == CONNECTION_GREETING)
        return type == WIRE_HELLO ? &feedd__hello__descriptor : NULL;
    switch (type) {
    case WIRE_OPEN:
        return &feedd__open__descriptor;
    case WIRE_ATTACH:
        return &feedd__attach__descriptor;
    case WIRE_RELEASE:
        return &feedd__release__descriptor;
    case WIRE_CLOSE:
        return &feedd__close__descriptor;
    case WIRE_STATUS:
        return &feedd__status__descriptor;
    case WIRE_VERIFY:
        return &feedd__verify__descriptor;
    case WIRE_CANCEL:
        return &feedd__cancel__descriptor;
    default:
        return NULL;
    }
}

int control_packet(struct connection *connection, const struct wire_packet *packet, struct feedd_error *err)
{
    const ProtobufCMessageDescriptor *type = message_type(connection, packet->type);
    if (type == NULL)
        return error_set(err, FEEDD_E_PROTOCOL, "a packet of type %u, which a client can't send%s", packet->type,
                         connection->state == CONNECTION_GREETING ? " before HELLO" : "");
    const void *message = wire_unpack(&connection->server->arena, type, packet);
    if (message == NULL)
        return error_set(err, FEEDD_E_PROTOCOL, "a packet of type %u (%s) that can't be parsed", packet->type,
                         type->short_name);
    switch (packet->type) {
    case WIRE_HELLO:
        return handle_hello(connection, message);
    case WIRE_OPEN:
        return handle_open(connection, message, err);
    case WIRE_ATTACH:
        return handle_attach(connection, message, err);
    case WIRE_RELEASE:
        return handle_release(connection, message, err);
    case WIRE_CLOSE:
        return handle_close(connection, message, err);
    case WIRE_VERIFY:
        return handle_verify(connection, message, err);
    case WIRE_CANCEL:
        verification_cancel(connection, ((const Feedd__Cancel *)message)->request);
        return 0;
    default:
        return handle_status(connection, message, err);
    }
}
