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
#include "gpu.h"
#include "log.h"
#include "report.h"
#include "server.h"
#include "site.h"
#include "stream.h"
#include "token.h"
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

/* Begins at a resume token: its order and seed hold, unless the client asked for others: then they must agree. */
static int apply_token(const Feedd__Open *open, struct stream_spec *spec, struct feedd_error *err)
{
    struct token token;
    int status = token_parse(open->resume, &token, err);
    if (status != 0)
        return status;
    if (order_name(token.order) == NULL)
        return error_set(
            err, FEEDD_E_TOKEN,
            "the resume token is of order %u, which this feedd doesn't know: it knows sequential and shuffle",
            token.order);
    bool force = open->has_resume_force && open->resume_force;
    struct sampler_spec *order = &spec->order;
    if (!force && open->has_order && open->order != token.order)
        return error_set(err, FEEDD_E_TOKEN,
                         "the resume token is of order %s, and %s was asked for: leave the order out",
                         order_name(token.order), order_name((int)open->order));
    if (!force && open->has_seed && open->seed != token.seed)
        return error_set(err, FEEDD_E_TOKEN,
                         "the resume token is of seed %llu, and %llu was asked for: leave the seed out",
                         (unsigned long long)token.seed, (unsigned long long)open->seed);
    if (!open->has_order)
        order->order = token.order;
    if (!open->has_seed)
        order->seed = token.seed;
    order->start_epoch = token.epoch;
    order->start_position = token.position;
    spec->resumed = true;
    spec->has_fingerprint = !force;
    spec->fingerprint = token.fingerprint;
    spec->sample_count = token.sample_count;
    return 0;
}

/* Alone, or with whom. */
static int resolve_group(const struct config_stream *stream, const Feedd__Open *open, struct group_spec *spec,
                         struct feedd_error *err)
{
    spec->share = stream != NULL ? stream->share : FEEDD_SHARE_PRIVATE;
    spec->members = stream != NULL ? stream->members : 0;
    if (open->has_share)
        spec->share = (int)open->share;
    if (open->has_members)
        spec->members = open->members;
    if (share_name(spec->share) == NULL)
        return error_set(err, FEEDD_E_ARGUMENT, "share %d: allowed are 1 (private) and 2 (broadcast)", spec->share);
    if (spec->share == FEEDD_SHARE_PRIVATE) {
        if ((open->has_members && open->members != 0) || open->has_join ||
            (open->group != NULL && open->group[0] != '\0'))
            return error_set(err, FEEDD_E_ARGUMENT, "group, members and join go with share = broadcast");
        spec->join = FEEDD_JOIN_NOW;
        spec->members = 0;
    } else {
        const char *name = open->group != NULL && open->group[0] != '\0' ? open->group : open->source;
        if (strlen(name) > FEEDD_MAX_NAME)
            return error_set(err, FEEDD_E_ARGUMENT, "a group's name of %zu bytes: at most %u are allowed", strlen(name),
                             FEEDD_MAX_NAME);
        strcpy(spec->name, name);
        if (spec->members > FEEDD_MAX_MEMBERS)
            return error_set(err, FEEDD_E_ARGUMENT, "members %u: at most %u are allowed", spec->members,
                             FEEDD_MAX_MEMBERS);
        spec->join = spec->members != 0 ? FEEDD_JOIN_GATE : FEEDD_JOIN_NOW;
        if (stream != NULL && stream->join != 0)
            spec->join = stream->join;
        if (open->has_join)
            spec->join = (int)open->join;
        if (join_name(spec->join) == NULL)
            return error_set(err, FEEDD_E_ARGUMENT, "join %d: allowed are 1 (now), 2 (gate), 3 (next-epoch)",
                             spec->join);
        if (spec->join == FEEDD_JOIN_GATE && spec->members == 0)
            return error_set(err, FEEDD_E_ARGUMENT, "join = gate waits for `members` members: say how many");
    }
    spec->gate_timeout_ms =
        open->has_gate_timeout_ms && open->gate_timeout_ms != 0 ? open->gate_timeout_ms : GROUP_GATE_MS;
    spec->incarnation = open->has_incarnation ? open->incarnation : 0;
    spec->incarnation_members = open->incarnation_members < FEEDD_MAX_MEMBERS ? open->incarnation_members : 0;
    spec->started = spec->incarnation != 0 && open->resume != NULL;
    return 0;
}

/* A path that is not in the configuration: only for the daemon's own user, who could read it anyway. */
static int resolve_path(const struct connection *connection, const char *path, struct stream_spec *spec,
                        struct feedd_error *err)
{
    if (connection->uid != geteuid())
        return error_set(err, FEEDD_E_ACCESS,
                         "paths are opened for the daemon's own user (%u) alone; use a dataset of %s",
                         (unsigned)geteuid(), connection->server->config->path);
    return pipeline_dataset_at(&connection->server->pipeline, path, &spec->dataset, err);
}

/* @return also in a failure, spec->dataset is NULL or held */
static int resolve_dataset(const struct connection *connection, const char *source, const struct config_stream *stream,
                           struct stream_spec *spec, struct feedd_error *err)
{
    const struct config *config = connection->server->config;
    const struct reader_config *dataset = NULL;
    if (stream == NULL && source[0] == '/') {
        int status = resolve_path(connection, source, spec, err);
        if (status == 0)
            dataset_hold(spec->dataset);
        return status;
    }
    if (stream != NULL) {
        dataset = stream->dataset;
        spec->selection = stream->selection;
    } else if (!config_dataset_selection(config, source, &dataset, &spec->selection)) {
        return error_set(err, FEEDD_E_NOT_FOUND, "no stream and no dataset is called '%s' in %s", source, config->path);
    }
    spec->dataset = pipeline_dataset(&connection->server->pipeline, dataset->name);
    dataset_hold(spec->dataset);
    if (!access_allows(&config->dataset_access[dataset - config->datasets], connection->uid, connection->groups,
                       connection->group_count))
        return error_set(err, FEEDD_E_ACCESS, "dataset %s is not for user %u: `allow` in %s says whose it is",
                         dataset->name, (unsigned)connection->uid, config->path);
    return 0;
}

static void set_reason(struct delivery *delivery, enum transport transport, const char *reason)
{
    snprintf(delivery->reason, sizeof(delivery->reason), "%s: %s", transport_name(transport), reason);
    for (char *c = delivery->reason; *c != '\0'; c++) /* it is shown on terminals */
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7F)
            *c = '?';
}

/* Entry i of the client's list, or of what stands for none: all. @return false: there are no more */
static bool transport_at(const Feedd__Open *open, size_t i, const char **name)
{
    static const enum transport any[] = {TRANSPORT_IPC, TRANSPORT_FD, TRANSPORT_HOST};
    const size_t count = open->n_transports > 0 ? open->n_transports : sizeof(any) / sizeof(any[0]);
    if (i < count)
        *name = open->n_transports > 0 ? open->transports[i] : transport_name(any[i]);
    return i < count;
}

/* @param gpu  NULL: feedd doesn't drive it, or there is none */
static bool is_possible(const char *name, const struct gpu *gpu, enum transport *out)
{
    if (strcmp(name, transport_name(TRANSPORT_HOST)) == 0)
        *out = TRANSPORT_HOST;
    else if (gpu != NULL && strcmp(name, transport_name(TRANSPORT_IPC)) == 0)
        *out = TRANSPORT_IPC;
    else if (gpu != NULL && gpu->transports_fd && strcmp(name, transport_name(TRANSPORT_FD)) == 0)
        *out = TRANSPORT_FD;
    else
        return false;
    return true;
}

/* Batches for the CPU. @param reason  why not for a GPU */
static int resolve_host(const Feedd__Open *open, struct group_spec *spec, struct delivery *delivery, const char *reason,
                        struct feedd_error *err)
{
    enum transport transport;
    const char *name;
    for (size_t i = 0; transport_at(open, i, &name); i++)
        if (is_possible(name, NULL, &transport)) {
            spec->transport = transport;
            set_reason(delivery, transport, reason);
            return 0;
        }
    return error_set(err, FEEDD_E_UNSUPPORTED, "none of the %zu transports that the client can map is 'host'",
                     open->n_transports);
}

/* The first transport that the client lists and the daemon can do for that GPU.
 * @param gpu  NULL: feedd doesn't drive it, and the client wants host memory first */
static int resolve_transport(const Feedd__Open *open, struct gpu *gpu, struct group_spec *spec,
                             struct delivery *delivery, struct feedd_error *err)
{
    const char *name, *reason = "the client asked for it and can map it";
    bool lacks_fd = false;
    for (size_t i = 0; transport_at(open, i, &name); i++) {
        if (!is_possible(name, gpu, &spec->transport)) {
            lacks_fd |= gpu != NULL && strcmp(name, transport_name(TRANSPORT_FD)) == 0;
            continue;
        }
        spec->gpu = spec->transport != TRANSPORT_HOST ? gpu : NULL;
        if (open->transport_reason != NULL)
            reason = open->transport_reason;
        else if (lacks_fd)
            reason = "fd can't be had: the GPU or its driver can't share memory by descriptors";
        set_reason(delivery, spec->transport, reason);
        return 0;
    }
    if (lacks_fd)
        return error_set(err, FEEDD_E_UNSUPPORTED,
                         "device %.80s: transport fd: the GPU or its driver can't share memory by descriptors; ipc and "
                         "host work",
                         open->device);
    return error_set(err, FEEDD_E_UNSUPPORTED,
                     "device %.80s: none of the %zu transports that the client can map is one of ipc, fd and host",
                     open->device, open->n_transports);
}

/* Where the batches shall be, how the client maps them there, and why so. */
static int resolve_delivery(const struct pipeline *pipeline, const Feedd__Open *open, struct group_spec *spec,
                            struct delivery *delivery, struct feedd_error *err)
{
    struct feedd_error reason;
    if (open->device == NULL || open->device[0] == '\0')
        return resolve_host(open, spec, delivery,
                            open->device_reason != NULL ? open->device_reason : "no device was asked for", err);
    if (strlen(open->device) >= sizeof(delivery->device))
        return error_set(err, FEEDD_E_ARGUMENT, "device %.80s: the UUID of a GPU has less than %u bytes", open->device,
                         FEEDD_UUID_TEXT);
    struct gpu *gpu = gpus_find(&pipeline->gpus, open->device, &reason);
    const bool host_first = open->n_transports > 0 && strcmp(open->transports[0], transport_name(TRANSPORT_HOST)) == 0;
    if (gpu == NULL && !host_first) {
        if (open->device_optional)
            return resolve_host(open, spec, delivery, reason.message, err);
        return error_set(err, reason.status, "device %.80s: %.900s", open->device, reason.message);
    }
    strcpy(delivery->device, open->device);
    return resolve_transport(open, gpu, spec, delivery, err);
}

static int take_channels(const char *name, size_t count, const double *values, double out[NORMALIZE_CHANNELS_MAX],
                         struct feedd_error *err)
{
    if (count != 0 && count != NORMALIZE_CHANNELS_MAX)
        return error_set(err, FEEDD_E_ARGUMENT, "%s of %zu values: %u are needed, those of absent channels don't count",
                         name, count, NORMALIZE_CHANNELS_MAX);
    if (count != 0)
        memcpy(out, values, NORMALIZE_CHANNELS_MAX * sizeof(*out));
    return 0;
}

/* What images are wanted as, and by whom: as configured, or as the client asks for. */
static int resolve_output(const struct config_stream *stream, const Feedd__Open *open, const struct group_spec *spec,
                          struct delivery *delivery, struct feedd_error *err)
{
    struct output_spec *output = &delivery->output;
    const struct output_client client = {.has_device = delivery->device[0] != '\0',
                                         .maps_gpu_memory = spec->transport != TRANSPORT_HOST,
                                         .normalizes = open->normalizes};
    int status = 0;
    output_init(output);
    if (stream != NULL && !open->has_output_dtype)
        *output = stream->output;
    output->mode = stream != NULL ? stream->output.mode : 0;
    if (open->has_output_dtype) {
        output->dtype = open->output_dtype <= INT32_MAX ? (int)open->output_dtype : INT32_MAX;
        output->nchw = open->output_nchw;
        output->scale = open->has_output_scale ? open->output_scale : output->scale;
        status = take_channels("output_mean", open->n_output_mean, open->output_mean, output->mean, err);
        if (status == 0)
            status = take_channels("output_std", open->n_output_std, open->output_std, output->std, err);
    }
    if (open->normalize != 0) {
        output->mode = open->normalize <= INT32_MAX ? (int)open->normalize : INT32_MAX;
        if (status == 0 && normalize_mode_name(output->mode) == NULL)
            status = error_set(err, FEEDD_E_ARGUMENT, "normalize %u: allowed are 1 (client), 2 (daemon) and 3 (cpu)",
                               open->normalize);
    }
    return status == 0 ? output_resolve(output, &client, err) : status;
}

/* The configured stream or dataset, and over it what the client asked for. */
static int resolve(const struct connection *connection, const Feedd__Open *open, struct group_spec *group,
                   struct delivery *delivery, struct feedd_error *err)
{
    const struct server *server = connection->server;
    struct stream_spec *spec = &group->stream;
    const struct config_stream *stream = config_stream(server->config, open->source);
    memset(group, 0, sizeof(*group));
    memset(delivery, 0, sizeof(*delivery));
    int status = resolve_dataset(connection, open->source, stream, spec, err);
    if (status != 0)
        return status;
    spec->transform.kind = TRANSFORM_NONE;
    spec->on_error = FEEDD_ON_ERROR_SUBSTITUTE;
    spec->order = (struct sampler_spec){
        .order = FEEDD_ORDER_SEQUENTIAL, .tail = FEEDD_TAIL_DROP, .batch_size = 64, .world_size = 1};
    if (stream != NULL) {
        spec->order.order = stream->order;
        spec->order.tail = stream->tail;
        spec->order.seed = stream->seed;
        spec->order.epochs = stream->epochs;
        spec->order.batch_size = stream->batch_size;
        spec->depth = stream->depth;
        spec->transform = stream->transform;
        spec->on_error = stream->on_error;
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
    if (open->transform != NULL) {
        status = config_transform_text(open->transform, &spec->transform, err);
        if (status != 0)
            return status;
    }
    if (order_name(spec->order.order) == NULL)
        return error_set(err, FEEDD_E_ARGUMENT, "order %d: allowed are 1 (sequential) and 2 (shuffle)",
                         spec->order.order);
    status = resolve_delivery(&server->pipeline, open, group, delivery, err);
    if (status == 0)
        status = resolve_output(stream, open, group, delivery, err);
    spec->output = delivery->output;
    if (status == 0)
        status = resolve_group(stream, open, group, err);
    if (status == 0 && open->resume != NULL)
        status = apply_token(open, spec, err);
    return status;
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
    int status = resolve(connection, open, &spec, &delivery, err);
    if (status == 0)
        status = join(connection, open, &spec, &delivery, err);
    if (spec.stream.dataset != NULL)
        dataset_drop(spec.stream.dataset); /* resolve_dataset()'s hold: the group has one of its own */
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
    int status =
        resolve_dataset(connection, message->source, config_stream(server->config, message->source), &spec, err);
    if (status == 0)
        status = verification_start(connection, message, spec.dataset, spec.selection, err);
    if (spec.dataset != NULL)
        dataset_drop(spec.dataset); /* resolve_dataset()'s hold: the verification has one of its own */
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
