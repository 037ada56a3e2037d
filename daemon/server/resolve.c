/* resolve.c - see resolve.h.
 *
 * Happy path: the source's dataset, held -> what is configured -> over it what OPEN says -> transport and device -> who
 * normalises -> the group -> where a resume token stands.
 * What can fail: what makes no sense, isn't there, isn't for this client, or isn't possible here; the first that is
 * found is said. Nothing is changed but the dataset's hold. */
#include "resolve.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend.h"
#include "connection.h"
#include "error.h"
#include "gpu.h"
#include "server.h"
#include "token.h"

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

int resolve_source(const struct connection *connection, const char *source, struct stream_spec *spec,
                   struct feedd_error *err)
{
    const struct config *config = connection->server->config;
    const struct config_stream *stream = config_stream(config, source);
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

int resolve_open(const struct connection *connection, const Feedd__Open *open, struct group_spec *group,
                 struct delivery *delivery, struct feedd_error *err)
{
    const struct server *server = connection->server;
    struct stream_spec *spec = &group->stream;
    const struct config_stream *stream = config_stream(server->config, open->source);
    memset(group, 0, sizeof(*group));
    memset(delivery, 0, sizeof(*delivery));
    int status = resolve_source(connection, open->source, spec, err);
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
