/* control.c - see control.h.
 *
 * Happy path: HELLO -> WELCOME; OPEN -> (dataset and ring, elsewhere) -> STREAM with the rings' descriptors; ATTACH ->
 * READY, RELEASE, READY, ... -> END; CLOSE.
 * What can fail: a request (ERROR with its number; the client goes on), or the protocol (the connection is closed). A
 * message about a stream that has just ended is not an error: it may have crossed with ours. */
#include "control.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend.h"
#include "error.h"
#include "log.h"
#include "report.h"
#include "server.h"
#include "stream.h"
#include "token.h"

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
    list_each(node, after, &connection->streams)
    {
        struct attachment *attachment = container_of(node, struct attachment, node);
        if (attachment->number == number && attachment->opened)
            *out = attachment;
    }
    return number >= 1 && number <= connection->stream_number;
}

void control_connection_closed(struct connection *connection)
{
    list_each(node, after, &connection->streams) attachment_end(container_of(node, struct attachment, node));
}

static void flush_attachment(struct attachment *attachment)
{
    struct connection *connection = attachment->connection;
    uint32_t slots[FEEDD_MAX_DEPTH];
    uint64_t seqs[FEEDD_MAX_DEPTH];
    if (attachment->member->ready_count > 0) {
        Feedd__Ready ready = FEEDD__READY__INIT;
        uint32_t count = member_take_ready(attachment->member, FEEDD_MAX_DEPTH, slots, seqs);
        ready.stream = attachment->number;
        ready.n_slots = ready.n_seqs = count;
        ready.slots = slots;
        ready.seqs = seqs;
        connection_send(connection, WIRE_READY, &ready.base, NULL, 0);
    }
    if (connection->state == CONNECTION_CLOSING || !attachment->ended || attachment->end_sent)
        return;
    Feedd__End end = FEEDD__END__INIT;
    end.stream = attachment->number;
    attachment->end_sent = true;
    connection_send(connection, WIRE_END, &end.base, NULL, 0);
}

void control_flush(struct connection *connection)
{
    list_remove(&connection->unflushed_node);
    list_each(node, after, &connection->streams)
    {
        struct attachment *attachment = container_of(node, struct attachment, node);
        /* A client that doesn't read is told later, when its socket takes packets again. */
        if (connection->queued > 0)
            return;
        if (attachment->attached)
            flush_attachment(attachment);
        if (connection->state == CONNECTION_CLOSING) /* it has gone, and with it every attachment of the list */
            return;
    }
}

static void mark_unflushed(struct attachment *attachment)
{
    struct connection *connection = attachment->connection;
    if (attachment->attached && list_empty(&connection->unflushed_node))
        list_append(&connection->server->unflushed, &connection->unflushed_node);
}

/* ---- OPEN ---- */

/* A sealed memfd with the class names one after the other, each terminated. @return 0 and *fd, *bytes; *bytes = 0 and no
 * descriptor when the dataset has none */
static int class_names_memfd(const struct reader_config *config, int *fd, uint64_t *bytes, struct feedd_error *err)
{
    *bytes = 0;
    for (uint32_t i = 0; i < config->class_count; i++)
        *bytes += strlen(config->classes[i]) + 1;
    if (*bytes == 0)
        return 0;
    uint8_t *memory;
    int status = backend_memfd_new("feedd-classes", *bytes, fd, &memory, err);
    if (status != 0)
        return status;
    uint8_t *at = memory;
    for (uint32_t i = 0; i < config->class_count; i++)
        at = (uint8_t *)stpcpy((char *)at, config->classes[i]) + 1;
    munmap(memory, *bytes);
    return 0;
}

static int send_stream(struct attachment *attachment, struct feedd_error *err)
{
    const struct stream *stream = stream_of(attachment);
    const struct slot_layout *layout = &stream->ring->spec.layout;
    const struct sampler_spec *order = &stream->sampler.spec;
    int fds[3] = {stream->ring->meta_fd, stream->ring->ring_fd, -1};
    Feedd__Stream message = FEEDD__STREAM__INIT;
    int status = class_names_memfd(stream->spec.dataset->config, &fds[2], &message.class_names_bytes, err);
    if (status != 0)
        return status;
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
    message.sample_count = stream->reader->sample_count;
    message.fingerprint = stream->reader->fingerprint;
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
    message.transport = (char *)(uintptr_t)stream->ring->ops->transport;
    message.mode_reason = (char *)(uintptr_t)"host memory: no device was asked for";
    attachment->opened = true;
    connection_send(attachment->connection, WIRE_STREAM, &message.base, fds, fds[2] >= 0 ? 3 : 2);
    if (fds[2] >= 0)
        close(fds[2]);
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
        if (send_stream(attachment, &error) != 0)
            open_failed(attachment, &error);
        return;
    case MEMBER_READY:
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

/* Begins at a resume token: its order and seed hold, unless the client asked for others: then they must agree. */
static int apply_token(const Feedd__Open *open, struct stream_spec *spec, struct feedd_error *err)
{
    struct token token;
    int status = token_parse(open->resume, &token, err);
    if (status != 0)
        return status;
    if (order_name(token.order) == NULL)
        return error_set(err, FEEDD_E_TOKEN, "the resume token is of an order (%u) that this feedd doesn't know", token.order);
    bool force = open->has_resume_force && open->resume_force;
    struct sampler_spec *order = &spec->order;
    if (!force && open->has_order && open->order != token.order)
        return error_set(err, FEEDD_E_TOKEN, "the resume token is of order %s, and %s was asked for: leave the order out",
                         order_name(token.order), order_name((int)open->order));
    if (!force && open->has_seed && open->seed != token.seed)
        return error_set(err, FEEDD_E_TOKEN, "the resume token is of seed %llu, and %llu was asked for: leave the seed out",
                         (unsigned long long)token.seed, (unsigned long long)open->seed);
    if (!open->has_order)
        order->order = token.order;
    if (!open->has_seed)
        order->seed = token.seed;
    order->start_epoch = token.epoch;
    order->start_position = token.position;
    spec->has_fingerprint = !force;
    spec->fingerprint = token.fingerprint;
    spec->sample_count = token.sample_count;
    return 0;
}

/* The configured stream or dataset, and over it what the client asked for. */
static int resolve(struct server *server, const Feedd__Open *open, struct stream_spec *spec, struct feedd_error *err)
{
    const struct config *config = server->config;
    const struct config_stream *stream = config_stream(config, open->source);
    const struct reader_config *dataset = stream != NULL ? stream->dataset : config_dataset(config, open->source);
    if (dataset == NULL)
        return error_set(err, FEEDD_E_NOT_FOUND, "no stream and no dataset is called '%s' in %s", open->source,
                         config->path);
    memset(spec, 0, sizeof(*spec));
    spec->dataset = pipeline_dataset(&server->pipeline, dataset->name);
    spec->backend = &backend_host;
    spec->order = (struct sampler_spec){.order = FEEDD_ORDER_SEQUENTIAL,
                                        .tail = FEEDD_TAIL_DROP,
                                        .batch_size = 64,
                                        .world_size = 1};
    if (stream != NULL) {
        spec->order.order = stream->order;
        spec->order.tail = stream->tail;
        spec->order.seed = stream->seed;
        spec->order.epochs = stream->epochs;
        spec->order.batch_size = stream->batch_size;
        spec->depth = stream->depth;
    }
    if (open->has_batch_size)
        spec->order.batch_size = open->batch_size;
    if (open->has_order)
        spec->order.order = (int)open->order;
    if (open->has_tail)
        spec->order.tail = (int)open->tail;
    if (open->has_seed)
        spec->order.seed = open->seed;
    if (open->has_epochs)
        spec->order.epochs = open->epochs;
    if (open->has_rank)
        spec->order.rank = open->rank;
    if (open->has_world_size)
        spec->order.world_size = open->world_size;
    if (open->has_depth) {
        if (open->depth < 2 || open->depth > FEEDD_MAX_DEPTH)
            return error_set(err, FEEDD_E_ARGUMENT, "depth %u: allowed are 2 to %u", open->depth, FEEDD_MAX_DEPTH);
        spec->depth = open->depth;
    }
    if (order_name(spec->order.order) == NULL)
        return error_set(err, FEEDD_E_ARGUMENT, "order %d: allowed are 1 (sequential) and 2 (shuffle)",
                         spec->order.order);
    if (open->device != NULL && open->device[0] != '\0')
        return error_set(err, FEEDD_E_DEVICE,
                         "device '%s': this feedd has no GPU backend; open without a device for host memory",
                         open->device);
    bool can_map = open->n_transports == 0;
    for (size_t i = 0; i < open->n_transports; i++)
        can_map = can_map || strcmp(open->transports[i], spec->backend->transport) == 0;
    if (!can_map)
        return error_set(err, FEEDD_E_UNSUPPORTED, "none of the %zu transports that the client can map is '%s'",
                         open->n_transports, spec->backend->transport);
    return open->resume != NULL ? apply_token(open, spec, err) : 0;
}

static int open_stream(struct connection *connection, const Feedd__Open *open, struct feedd_error *err)
{
    struct server *server = connection->server;
    struct stream_spec spec;
    if (server->stopping)
        return error_set(err, FEEDD_E_SHUTDOWN, "feedd is stopping");
    if (connection->stream_count >= server->config->streams_per_client_max)
        return error_set(err, FEEDD_E_LIMIT, "%u streams are open, as many as streams_per_client_max allows",
                         connection->stream_count);
    int status = resolve(server, open, &spec, err);
    if (status != 0)
        return status;
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
    status = group_join(&server->pipeline, &spec, on_member_event, attachment, &attachment->member, err);
    if (status != 0) {
        free(source);
        free(attachment);
        return status;
    }
    attachment->number = ++connection->stream_number;
    connection->stream_count++;
    list_append(&connection->streams, &attachment->node);
    log_info("client %s[%d]: opens %s as stream %llu", connection->name, (int)connection->pid, source,
             (unsigned long long)stream_of(attachment)->number);
    return 0;
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
    if (attachment->attached || attach->nonce != stream_of(attachment)->ring->nonce)
        return error_set(err, FEEDD_E_PROTOCOL, "ATTACH to stream %u %s", attach->stream,
                         attachment->attached ? "a second time" : "without having mapped its ring");
    attachment->attached = true;
    mark_unflushed(attachment);
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

static int handle_status(struct connection *connection, const Feedd__Status *status_message, struct feedd_error *reason)
{
    struct feedd_error err;
    if (status_message->request == 0)
        return error_set(reason, FEEDD_E_PROTOCOL, "STATUS with request 0: requests are numbered from 1");
    int fd = -1;
    uint8_t *memory;
    char *text = report_status(connection->server);
    size_t bytes = text != NULL ? strlen(text) : 0;
    int status = text == NULL ? error_set(&err, FEEDD_E_MEMORY, "no memory for a status report")
                              : backend_memfd_new("feedd-report", bytes, &fd, &memory, &err);
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
    default:
        return handle_status(connection, message, err);
    }
}
