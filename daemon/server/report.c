/* report.c - see report.h. Everything in it is derived from counters that the parts keep anyway. */
#include "report.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "connection.h"
#include "control.h"
#include "error.h"
#include "server.h"
#include "stream.h"

#define BUSY 0.85 /* share of the workers' time from which on they are the bottleneck */
#define FULL 0.75 /* share of a ring that stands ready from which on its readers are */

struct bottleneck {
    const char *stage; /* "idle", "open", "decode", "client", "latency" */
    char text[256];
};

/* The name of the client that holds a stream, for messages. */
static void reader_name(const struct server *server, const struct stream *stream, char *name, size_t size)
{
    snprintf(name, size, "nobody");
    list_each(node, after, &server->connections)
    {
        const struct connection *connection = container_of(node, struct connection, node);
        list_each(inner, inner_after, &connection->streams)
        {
            const struct attachment *attachment = container_of(inner, struct attachment, node);
            if (attachment->member->group->stream == stream)
                snprintf(name, size, "%s[%d]", connection->name, (int)connection->pid);
        }
    }
}

/* What keeps one stream from being faster, over the last second: its readers when most of the ring stands ready, the
 * workers when they are busy; else neither, and the time goes into the way between them. */
static struct bottleneck stream_bottleneck(const struct server *server, const struct stream *stream)
{
    struct bottleneck b = {.stage = "idle"};
    double busy = server->pipeline.rate.busy;
    uint32_t workers = pool_worker_count(server->pipeline.pool);
    char client[96];
    reader_name(server, stream, client, sizeof(client));
    if (stream->state == STREAM_OPENING) {
        b.stage = "open";
        snprintf(b.text, sizeof(b.text), "opening dataset %s", stream->spec.dataset->config->name);
    } else if (stream->state != STREAM_RUNNING) {
        snprintf(b.text, sizeof(b.text), "%s", stream_states[stream->state].name);
    } else if (stream->ready >= FULL * stream->depth && stream->rate.ready >= FULL * stream->depth) {
        b.stage = "client";
        snprintf(b.text, sizeof(b.text), "client %s: %u of %u batches wait for it", client, stream->ready,
                 stream->depth);
    } else if (busy >= BUSY) {
        b.stage = "decode";
        snprintf(b.text, sizeof(b.text), "decode: %u workers %.0f %% busy, %.1f of %u batches ready", workers,
                 busy * 100, stream->rate.ready, stream->depth);
    } else if (stream->rate.batches_s > 0) {
        b.stage = "latency";
        snprintf(b.text, sizeof(b.text),
                 "neither: workers %.0f %% busy, %.1f of %u batches ready; a deeper ring or larger batches would help",
                 busy * 100, stream->rate.ready, stream->depth);
    } else {
        snprintf(b.text, sizeof(b.text), "nothing was asked for in the last second");
    }
    return b;
}

static json_t *bottleneck_json(const struct bottleneck *b)
{
    return json_pack("{s:s, s:s}", "stage", b->stage, "text", b->text);
}

static json_int_t integer(uint64_t value)
{
    return value > INT64_MAX ? INT64_MAX : (json_int_t)value;
}

/* Client-supplied and file names may be any bytes: JSON text must be UTF-8. */
static json_t *text(const char *value)
{
    json_t *string = json_string(value);
    if (string != NULL)
        return string;
    char printable[1024];
    snprintf(printable, sizeof(printable), "%s", value);
    for (char *c = printable; *c != '\0'; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    return json_string(printable);
}

static json_t *dataset_json(const struct dataset *dataset)
{
    const struct reader *reader = dataset->state == DATASET_OPEN ? dataset->reader : NULL;
    return json_pack("{s:o, s:s, s:s, s:i, s:I, s:I, s:o}", "name", text(dataset->config->name), "reader",
                     dataset->config->ops->name, "state", dataset_states[dataset->state].name, "users",
                     (int)dataset->users, "samples", integer(reader != NULL ? reader->sample_count : 0), "memory_bytes",
                     integer(reader != NULL ? reader->memory_bytes : 0), "error",
                     /* a worker writes both while it opens */
                     dataset->state != DATASET_OPENING && dataset->status != 0 ? text(dataset->error.message)
                                                                              : json_null());
}

static json_t *stream_json(const struct server *server, const struct stream *stream)
{
    struct bottleneck b = stream_bottleneck(server, stream);
    const struct sampler_spec *order = &stream->spec.order;
    double latency_ms =
        stream->stats.batches > 0 ? (double)stream->stats.latency_ns / (double)stream->stats.batches / 1e6 : 0;
    json_t *json = json_pack(
        "{s:I, s:o, s:s, s:o, s:s, s:s, s:I, s:I, s:s, s:i, s:i, s:i}", "stream", integer(stream->number), "dataset",
        text(stream->spec.dataset->config->name), "state", stream_states[stream->state].name, "bottleneck",
        bottleneck_json(&b), "backend", stream->spec.backend->name, "order", order_name(order->order), "seed",
        integer(order->seed), "epochs", integer(order->epochs), "tail", tail_name(order->tail) ? tail_name(order->tail) : "?",
        "batch_size", (int)order->batch_size, "rank", (int)order->rank, "world_size", (int)order->world_size);
    json_t *now = json_pack("{s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:I}", "depth",
                            (int)stream->depth, "filling", (int)stream->in_flight, "filled", (int)stream->filled,
                            "ready", (int)stream->ready, "epoch", integer(stream->stats.epoch), "position",
                            integer(stream->stats.position), "batches", integer(stream->stats.batches), "samples",
                            integer(stream->stats.samples), "batches_per_s", stream->rate.batches_s, "samples_per_s",
                            stream->rate.samples_s, "ready_mean", stream->rate.ready, "workers_mean",
                            stream->rate.workers, "latency_ms", latency_ms, "slot_bytes",
                            integer(stream->ring_spec.layout.slot_bytes), "ring_bytes", integer(stream->ring_bytes));
    json_object_update(json, now);
    json_decref(now);
    return json;
}

static json_t *client_json(const struct connection *connection, uint64_t now_ns)
{
    json_t *streams = json_array();
    list_each(node, after, &connection->streams)
    {
        const struct attachment *attachment = container_of(node, struct attachment, node);
        const struct member *member = attachment->member;
        json_array_append_new(
            streams, json_pack("{s:I, s:o, s:b, s:i, s:i, s:I}", "stream", integer(member->group->stream->number),
                               "source", text(attachment->source), "attached", attachment->attached, "held",
                               (int)(member->lease_count - member->ready_count), "untold", (int)member->ready_count,
                               "released", integer(member->released)));
    }
    return json_pack("{s:I, s:s, s:i, s:I, s:s, s:f, s:i, s:o}", "client", integer(connection->number), "name",
                     connection->name, "pid", (int)connection->pid, "uid", integer(connection->uid), "state",
                     connection_states[connection->state].name, "connected_s",
                     (double)(now_ns - connection->connected_ns) / 1e9, "queued", (int)connection->queued, "streams",
                     streams);
}

/* The busiest stream's word is the daemon's. */
static struct bottleneck overall_bottleneck(const struct server *server)
{
    const struct stream *busiest = NULL;
    list_each(node, after, &server->pipeline.groups)
    {
        const struct stream *stream = container_of(node, struct group, node)->stream;
        if (busiest == NULL || stream->rate.workers > busiest->rate.workers ||
            (stream->rate.workers == busiest->rate.workers && stream->state == STREAM_RUNNING))
            busiest = stream;
    }
    if (busiest != NULL)
        return stream_bottleneck(server, busiest);
    return (struct bottleneck){.stage = "idle", .text = "no stream is open"};
}

char *report_status(struct server *server)
{
    struct pipeline *pipeline = &server->pipeline;
    uint64_t now_ns = clock_ns();
    struct bottleneck b = overall_bottleneck(server);
    json_t *datasets = json_array(), *streams = json_array(), *clients = json_array();
    for (uint32_t i = 0; i < pipeline->dataset_count; i++)
        json_array_append_new(datasets, dataset_json(&pipeline->datasets[i]));
    list_each(node, after, &pipeline->groups)
        json_array_append_new(streams, stream_json(server, container_of(node, struct group, node)->stream));
    list_each(node, after, &server->connections)
        json_array_append_new(clients, client_json(container_of(node, struct connection, node), now_ns));
    json_t *root = json_pack(
        "{s:{s:s, s:i, s:f, s:o, s:o, s:i, s:f, s:I, s:I}, s:o, s:{s:I, s:I, s:I, s:I}, s:o, s:o, s:o}", "daemon",
        "version", FEEDD_VERSION, "pid", (int)getpid(), "uptime_s", (double)(now_ns - server->started_ns) / 1e9,
        "config", text(server->config->path), "socket", text(server->listener.path), "workers",
        (int)pool_worker_count(pipeline->pool), "workers_busy", pipeline->rate.busy, "connections",
        integer(server->stats.connections), "refused", integer(server->stats.refused), "bottleneck",
        bottleneck_json(&b), "memory", "ring_bytes", integer(pipeline->ring_bytes), "ring_max",
        integer(pipeline->limits.ring_memory_max), "dataset_bytes", integer(pipeline->dataset_bytes), "dataset_max",
        integer(pipeline->limits.dataset_memory_max), "datasets", datasets, "streams", streams, "clients", clients);
    char *out = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return out;
}
