/* open.c - opening a stream of libfeedd: what is asked for, what the daemon answers, and what comes of the two.
 *
 * Happy path: OPEN -> STREAM -> both rings are mapped (map.c) -> ATTACH with the nonce: the stream is open. Where
 * batches for a GPU can't be mapped as was answered, or what is mapped isn't the daemon's memory, and other ways were
 * left to the daemon: CLOSE, and OPEN again without that one; the caller doesn't notice, and schema.mode_reason says
 * why. As long as there are other ways, ATTACH has to be confirmed before the stream counts as open.
 * A stream that was lost with its daemon is opened again as it was.
 * What can fail: the options, the daemon's answer, mapping; that is the stream's, not the connection's.
 * Threads: one at a time (feedd.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "internal.h"

#define CLASS_NAMES_MAX (64ull << 20) /* bytes of all class names */

static const char *const transport_names[TRANSPORT_COUNT] = {"ipc", "fd", "host"};

/* @return enum transport, or -1 */
static int transport_of(const char *name)
{
    for (int i = 0; i < TRANSPORT_COUNT; i++)
        if (strcmp(name, transport_names[i]) == 0)
            return i;
    return -1;
}

/* ---- what is asked for ---- */

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

/* As far as that goes without the image: its channels are known to the daemon alone, and the first is always there. */
static int check_output(const struct feedd_open_options *options, struct feedd_error *err)
{
    const struct feedd_normalize_options *output = options->output;
    if (options->normalize < 0 || options->normalize > FEEDD_NORMALIZE_CPU)
        return error_set(err, FEEDD_E_ARGUMENT, "normalize %d: allowed are 0 and those of enum feedd_normalize_mode",
                         options->normalize);
    if (output == NULL)
        return 0;
    if (output->size != sizeof(*output))
        return error_set(err, FEEDD_E_ARGUMENT, "output of size %zu; this libfeedd knows %zu: set output->size",
                         output->size, sizeof(*output));
    if (output->windows != NULL || output->height != 0 || output->width != 0)
        return error_set(err, FEEDD_E_ARGUMENT,
                         "output with windows, height or width: a stream's images are whole; its transform crops them");
    struct normalize_params params = {.batch = 1,
                                      .in_height = 1,
                                      .in_width = 1,
                                      .channels = 1,
                                      .out_height = 1,
                                      .out_width = 1,
                                      .dtype = output->dtype,
                                      .layout = output->nchw ? NORMALIZE_NCHW : NORMALIZE_NHWC,
                                      .scale = output->scale};
    memcpy(params.mean, output->mean, sizeof(params.mean));
    memcpy(params.std, output->std, sizeof(params.std));
    const char *wrong = normalize_check(&params);
    return wrong == NULL ? 0 : error_set(err, FEEDD_E_ARGUMENT, "output: %s", wrong);
}

static char *copy_text(const char *text)
{
    return text != NULL ? strdup(text) : NULL;
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

/* @param name  as the caller gave it, or NULL */
static int choose_transports(struct feedd_stream *stream, const char *name, struct feedd_error *err)
{
    const bool for_gpu = stream->device.ordinal >= 0;
    const char *origin = "";
    if ((name == NULL || name[0] == '\0') && for_gpu) {
        name = secure_getenv("FEEDD_TRANSPORT");
        origin = " in FEEDD_TRANSPORT";
    }
    const bool any = name == NULL || name[0] == '\0' || strcmp(name, "auto") == 0;
    const int asked = any ? TRANSPORT_HOST : transport_of(name);
    if (asked < 0)
        return error_set(err, FEEDD_E_ARGUMENT, "transport '%.80s'%s: allowed are auto, ipc, fd and host", name,
                         origin);
    if (!for_gpu && asked != TRANSPORT_HOST && !stream->device_optional)
        return error_set(err, FEEDD_E_ARGUMENT,
                         "transport %s gets batches to a GPU, and none was asked for: set device, or transport = host",
                         name);
    stream->transports = !for_gpu ? 1u << TRANSPORT_HOST : any ? (1u << TRANSPORT_COUNT) - 1 : 1u << asked;
    return 0;
}

static void set_output(Feedd__Open *open, struct feedd_normalize_options *output)
{
    open->has_output_dtype = open->has_output_nchw = open->has_output_scale = true;
    open->output_dtype = (uint32_t)output->dtype;
    open->output_nchw = output->nchw != 0;
    open->n_output_mean = sizeof(output->mean) / sizeof(output->mean[0]);
    open->output_mean = output->mean;
    open->n_output_std = sizeof(output->std) / sizeof(output->std[0]);
    open->output_std = output->std;
    open->output_scale = output->scale;
}

static int send_open(struct feedd_stream *stream, struct feedd_error *err)
{
    const struct feedd_open_options *options = &stream->options;
    const struct feedd_schema *schema = &stream->schema;
    const bool for_gpu = stream->shown ? schema->device[0] != '\0' : stream->device.ordinal >= 0;
    char *transports[TRANSPORT_COUNT];
    char token[FEEDD_TOKEN_TEXT];
    Feedd__Open open = FEEDD__OPEN__INIT;
    open.request = stream->request;
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
    open.device = for_gpu ? stream->device.uuid : NULL;
    open.has_device_optional = open.device_optional = for_gpu && stream->device_optional;
    open.device_reason = stream->device_reason[0] != '\0' ? stream->device_reason : NULL;
    open.transports = transports;
    for (int i = 0; i < TRANSPORT_COUNT; i++)
        if (stream->transports & 1u << i)
            transports[open.n_transports++] = (char *)(uintptr_t)transport_names[i];
    open.transport_reason = stream->transport_reason[0] != '\0' ? stream->transport_reason : NULL;
    open.has_normalize = options->normalize != 0;
    open.normalize = (uint32_t)options->normalize;
    open.has_normalizes = open.normalizes = true; /* a process that has found a GPU has the kernel for it, too */
    if (options->output != NULL)
        set_output(&open, &stream->output);
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
        open.has_device_optional = false;
        open.has_normalize = true;
        open.normalize = (uint32_t)schema->normalize;
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

int open_send(struct feedd_stream *stream, struct feedd_error *err)
{
    stream->request = ++stream->client->request;
    return send_open(stream, err);
}

/* ---- what the daemon answers ---- */

static int32_t effective_normalize(const Feedd__Stream *answer)
{
    return answer->has_normalize ? (int32_t)answer->normalize : FEEDD_NORMALIZE_CLIENT;
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
    schema->device = stream->map->for_gpu ? stream->device.uuid : "";
    schema->device_ordinal = stream->map->for_gpu ? stream->device.ordinal : -1;
    schema->normalize = effective_normalize(answer);
    schema->views_on_host = stream->map->on_host;
    stream->token = (struct token){.order = (uint8_t)answer->order,
                                   .sample_count = answer->sample_count,
                                   .fingerprint = answer->fingerprint,
                                   .seed = answer->seed,
                                   .epoch = answer->start_epoch,
                                   .position = answer->start_position};
    return 0;
}

/* A mode that this library knows, and a transport that it was asked for by. */
static int check_mode(const struct feedd_stream *stream, const Feedd__Stream *answer, struct feedd_error *err)
{
    const int transport = transport_of(answer->transport);
    const int32_t normalize = effective_normalize(answer);
    if (normalize < FEEDD_NORMALIZE_CLIENT || normalize > FEEDD_NORMALIZE_CPU)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd answered with normalize %d, which this libfeedd doesn't know",
                         (int)normalize);
    if (answer->device != NULL && (transport < 0 || !(stream->transports & 1u << transport)))
        return error_set(err, FEEDD_E_PROTOCOL, "feedd answered with transport %.80s, which wasn't asked for",
                         answer->transport);
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
        answer->content == stream->content && strcmp(answer->transport, schema->transport) == 0 &&
        strcmp(answer->device != NULL ? answer->device : "", schema->device) == 0 &&
        effective_normalize(answer) == schema->normalize)
        return 0;
    return error_set(err, FEEDD_E_STATE, "after its restart feedd serves '%s' in another way; open it anew",
                     stream->source);
}

/* Maps what the daemon has opened.
 * @return 0 and *nonce; or why not, and *unmapped: another transport may do */
static int attach(struct feedd_stream *stream, const Feedd__Stream *answer, const struct wire_packet *packet,
                  uint64_t *nonce, bool *unmapped, struct feedd_error *err)
{
    struct ring_map *map = NULL;
    int status = stream->shown ? check_same(stream, answer, err) : check_mode(stream, answer, err);
    if (status == 0)
        status = map_new(stream, answer, packet, &map, err);
    if (status != 0)
        return status;
    status = map_data(map, answer, packet, nonce, err);
    if (status != 0) {
        *unmapped = status != FEEDD_E_PROTOCOL;
        map_free(map);
        return status;
    }
    map->older = stream->map;
    stream->map = map;
    if (!stream->shown) {
        uint32_t rings = strcmp(answer->transport, "ipc") == 0 ? 1 : 2; /* class names stand behind them */
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
    map_drop_older(stream);
    return 0;
}

/* Undoes attach() on a stream that was never open. */
static void detach(struct feedd_stream *stream)
{
    map_free(stream->map);
    free(stream->text);
    free(stream->class_text);
    free(stream->classes);
    stream->map = NULL;
    stream->text = stream->class_text = NULL;
    stream->classes = NULL;
    stream->schema = (struct feedd_schema){.source = NULL};
    stream->shown = false;
}

/* Takes the transport that failed off those that may be tried. @return whether one is left */
static bool drop_transport(struct feedd_stream *stream, int transport, const char *reason)
{
    const uint32_t left = stream->transports & ~(1u << transport);
    const size_t used = strlen(stream->transport_reason);
    if (left == 0)
        return false;
    stream->transports = left;
    snprintf(stream->transport_reason + used, sizeof(stream->transport_reason) - used, "%s%s: %.110s",
             used > 0 ? "; " : "", transport_names[transport], reason);
    return true;
}

/* Under the request that was answered: a call may be waiting for a later one. */
static int open_otherwise(struct feedd_stream *stream, struct feedd_error *err)
{
    Feedd__Close message = FEEDD__CLOSE__INIT;
    message.stream = stream->number;
    stream->number = 0;
    int status = client_send(stream->client, WIRE_CLOSE, &message.base, err);
    return status == 0 ? send_open(stream, err) : status;
}

void open_confirmed(struct feedd_stream *stream)
{
    if (stream->state != STREAM_ATTACHING)
        return;
    stream->state = STREAM_OPEN;
    stream->transports = 1u << transport_of(stream->schema.transport); /* also when it is opened again */
    stream_signal(stream);
}

int open_answered(struct feedd_stream *stream, const Feedd__Stream *answer, const struct wire_packet *packet,
                  struct feedd_error *err)
{
    struct feedd_error reason;
    Feedd__Attach message = FEEDD__ATTACH__INIT;
    bool unmapped = false;
    const int transport = transport_of(answer->transport);
    const bool for_gpu = answer->device != NULL, first = !stream->shown;
    stream->number = answer->stream;
    int status = attach(stream, answer, packet, &message.nonce, &unmapped, &reason);
    if (unmapped && for_gpu && first && drop_transport(stream, transport, reason.message))
        return open_otherwise(stream, err);
    if (status != 0) {
        stream_failed(stream, status, reason.message);
        return 0;
    }
    message.stream = stream->number;
    message.has_confirm = message.confirm = for_gpu && first && (stream->transports & ~(1u << transport)) != 0;
    stream->state = STREAM_ATTACHING;
    if (!message.confirm)
        open_confirmed(stream);
    return client_send(stream->client, WIRE_ATTACH, &message.base, err);
}

int open_failed(struct feedd_stream *stream, int status, const char *message, struct feedd_error *err)
{
    if (stream->state == STREAM_ATTACHING && status == FEEDD_E_PROTOCOL &&
        drop_transport(stream, transport_of(stream->schema.transport), message)) {
        detach(stream);
        return open_otherwise(stream, err);
    }
    stream_failed(stream, status, message);
    return 0;
}

/* ---- what callers call ---- */

FEEDD_API int feedd_open_begin(struct feedd_client *client, const char *source, const struct feedd_open_options *from,
                               struct feedd_stream **out, struct feedd_error *err)
{
    struct feedd_open_options options;
    int status = client_check(client, err);
    if (status == 0)
        status = read_options(from, &options, err);
    if (status == 0)
        status = check_output(&options, err);
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
    stream->options.transport = NULL; /* as choose_transports() reads it */
    if (options.output != NULL) {
        stream->output = *options.output;
        stream->options.output = &stream->output;
    }
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
        status = choose_transports(stream, options.transport, err);
    if (status == 0)
        status = open_send(stream, err);
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
    while (status == 0 && (stream->state == STREAM_OPENING || stream->state == STREAM_ATTACHING) &&
           stream->failure.status == 0)
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
