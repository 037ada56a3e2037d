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
#include "gpu.h"
#include "output.h"
#include "server.h"
#include "site.h"
#include "stream.h"
#include "verification.h"

#define BUSY    0.85 /* share of the workers' time from which on they are the bottleneck */
#define SLOW_S  5.0  /* seconds from which on a member that keeps a batch is said to hold up its group */
#define COPYING 0.85 /* share of the time in which copies are under way from which on they are the bottleneck */
#define FULL    0.75 /* share of a ring that stands ready from which on its readers are */

struct bottleneck {
    const char *stage; /* "idle", "open", "gate", "decode", "copy", "client", "latency" */
    char text[256];
};

/* Who holds up a stream of which every slot is taken: the client that has held the oldest batch longest. */
struct holder {
    const struct connection *connection; /* NULL: nobody */
    uint64_t seq;                        /* the batch */
    double seconds;                      /* since it was published */
};

static const struct attachment *attachment_of(const struct member *member)
{
    return member->arg;
}

static struct holder find_holder(const struct stream *stream, uint64_t now_ns)
{
    struct holder holder = {.seq = UINT64_MAX};
    list_each (node, after, &stream->group->members) {
        const struct member *member = container_of(node, struct member, node);
        for (uint32_t slot = 0; member->leases != NULL && slot < stream->depth; slot++)
            if (member->leases[slot].state != LEASE_NONE && member->leases[slot].seq < holder.seq) {
                const struct ring *ring = member->site->ring;
                uint64_t ready_ns = slot_record_at(ring->meta, &ring->spec.layout, slot)->time_ns[FEEDD_TIME_READY];
                holder = (struct holder){attachment_of(member)->connection, member->leases[slot].seq,
                                         (double)(now_ns - ready_ns) / 1e9};
            }
    }
    return holder;
}

/* The site of which most stands ready: it is the one that holds the others back. NULL: none is open */
static const struct site *fullest_site(const struct stream *stream)
{
    const struct site *fullest = NULL;
    list_each (node, after, &stream->sites) {
        const struct site *site = container_of(node, struct site, node);
        if (site->state == SITE_OPEN && (fullest == NULL || site->ready > fullest->ready))
            fullest = site;
    }
    return fullest;
}

/* The busiest of the GPUs that a stream's batches are copied to, or NULL. */
static const struct gpu *busiest_gpu(const struct stream *stream)
{
    const struct gpu *busiest = NULL;
    list_each (node, after, &stream->sites) {
        const struct gpu *gpu = container_of(node, struct site, node)->gpu;
        if (gpu != NULL && (busiest == NULL || gpu->rate.busy > busiest->rate.busy))
            busiest = gpu;
    }
    return busiest;
}

static void client_bottleneck(const struct stream *stream, uint32_t ready, struct bottleneck *b)
{
    struct holder holder = find_holder(stream, clock_ns());
    b->stage = "client";
    if (holder.connection == NULL)
        snprintf(b->text, sizeof(b->text), "nobody takes what is ready");
    else if (stream->group->member_count > 1 && holder.seconds >= SLOW_S)
        snprintf(b->text, sizeof(b->text), "%s[%d] holds up the other %u: it has kept batch %llu for %.0f s",
                 holder.connection->name, (int)holder.connection->pid, stream->group->member_count - 1,
                 (unsigned long long)holder.seq, holder.seconds);
    else
        snprintf(b->text, sizeof(b->text), "%s[%d]: %u of %u batches wait for it", holder.connection->name,
                 (int)holder.connection->pid, ready, stream->depth);
}

/* What keeps one stream from being faster, over the last second: its readers when most of the ring stands ready, the
 * workers when they are busy; else neither, and the time goes into the way between them. */
static struct bottleneck stream_bottleneck(const struct server *server, const struct stream *stream)
{
    struct bottleneck b = {.stage = "idle"};
    double busy = server->pipeline.rate.busy;
    uint32_t workers = pool_worker_count(server->pipeline.pool);
    const struct site *fullest = fullest_site(stream);
    const struct gpu *gpu = busiest_gpu(stream);
    const uint32_t ready = fullest != NULL ? fullest->ready : 0;
    const double ready_mean = fullest != NULL ? fullest->rate.ready : 0;
    if (stream->state == STREAM_OPENING) {
        b.stage = "open";
        snprintf(b.text, sizeof(b.text), "opening dataset %s", stream->spec.dataset->config->name);
    } else if (stream->state != STREAM_RUNNING) {
        snprintf(b.text, sizeof(b.text), "%s", stream_states[stream->state].name);
    } else if (stream->group->gate_members > 0) {
        b.stage = "gate";
        snprintf(b.text, sizeof(b.text), "%u of %u members are there", group_attached_count(stream->group),
                 stream->group->gate_members);
    } else if (ready >= FULL * stream->depth && ready_mean >= FULL * stream->depth) {
        client_bottleneck(stream, ready, &b);
    } else if (gpu != NULL && gpu->rate.busy >= COPYING) {
        b.stage = "copy";
        snprintf(b.text, sizeof(b.text), "copies to %s take %.0f %% of the time, %.1f GB/s", gpu->uuid,
                 gpu->rate.busy * 100, gpu->rate.copied_bytes_s / 1e9);
    } else if (busy >= BUSY) {
        b.stage = "decode";
        snprintf(b.text, sizeof(b.text), "%u workers %.0f %% busy, %.1f of %u batches ready", workers, busy * 100,
                 ready_mean, stream->depth);
    } else if (stream->rate.batches_s > 0) {
        b.stage = "latency";
        snprintf(
            b.text, sizeof(b.text),
            "workers %.0f %% busy, %.1f of %u batches ready: the time goes into the way between; larger batches or a "
            "deeper ring would help",
            busy * 100, ready_mean, stream->depth);
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

static json_t *dataset_json(struct dataset *dataset)
{
    const struct reader *reader = dataset->state == DATASET_OPEN ? dataset->reader : NULL;
    bool failed = dataset->state != DATASET_OPENING && dataset->status != 0; /* a worker writes both while it opens */
    return json_pack("{s:o, s:s, s:s, s:i, s:I, s:I, s:I, s:o}", "name", text(dataset->config->name), "reader",
                     dataset->config->ops->name, "state", dataset_states[dataset->state].name, "users",
                     (int)dataset->users, "samples", integer(reader != NULL ? reader->sample_count : 0), "memory_bytes",
                     integer(reader != NULL ? reader->memory_bytes : 0), "bad_samples",
                     integer(error_log_total(&dataset->errors)), "error",
                     failed ? text(dataset->error.message) : json_null());
}

static const char *transport_of(const struct site *site)
{
    return transport_name(site->transport);
}

static json_t *device_json(const struct site *site)
{
    return site->gpu != NULL ? json_string(site->gpu->uuid) : json_null();
}

/* One of a site's members, or NULL: they agree in how batches get to them, and tell why. */
static const struct attachment *attachment_at(const struct site *site)
{
    list_each (node, after, &site->stream->group->members) {
        const struct member *member = container_of(node, struct member, node);
        if (member->site == site)
            return attachment_of(member);
    }
    return NULL;
}

static json_t *sites_json(const struct stream *stream)
{
    json_t *sites = json_array();
    list_each (node, after, &stream->sites) {
        const struct site *site = container_of(node, struct site, node);
        const struct attachment *attachment = attachment_at(site);
        json_array_append_new(
            sites, json_pack("{s:s, s:o, s:s, s:o, s:i, s:i, s:i, s:f, s:I, s:I, s:I, s:I, s:I}", "transport",
                             transport_of(site), "device", device_json(site), "state", site_states[site->state].name,
                             "reason", attachment != NULL ? text(attachment->delivery.reason) : json_null(), "members",
                             (int)site->member_count, "attached", (int)site->attached_count, "ready", (int)site->ready,
                             "ready_mean", site->rate.ready, "slot_bytes", integer(site->spec.layout.slot_bytes),
                             "records_bytes", integer(site->meta_bytes), "gpu_bytes", integer(site->gpu_bytes),
                             "copies", integer(site->stats.copies), "copied_bytes", integer(site->stats.copied_bytes)));
    }
    return sites;
}

/* What slots hold in place of uint8 images; null: nothing. */
static json_t *output_json(const struct stream *stream)
{
    const struct output_spec *output = &stream->plan.output;
    json_t *mean = json_array(), *std = json_array();
    if (output->mode <= FEEDD_NORMALIZE_CLIENT) { /* 0: not planned yet */
        json_decref(mean);
        json_decref(std);
        return json_null();
    }
    for (uint32_t c = 0; output->dtype != FEEDD_U8 && c < stream->plan.channels; c++) {
        json_array_append_new(mean, json_real(output->mean[c]));
        json_array_append_new(std, json_real(output->std[c]));
    }
    return json_pack("{s:s, s:s, s:o, s:o, s:f}", "dtype", dtype_name(output->dtype), "layout",
                     output->nchw ? "nchw" : "nhwc", "mean", mean, "std", std, "scale", output->scale);
}

/* How batches get to the clients: where there are several sites, as at the first one, and the totals. */
static json_t *delivery_json(const struct stream *stream)
{
    const bool planned = stream->depth > 0; /* before, a worker writes stream->plan */
    const struct output_spec *output = planned ? &stream->plan.output : &stream->spec.output;
    const struct site *first = list_empty(&stream->sites) ? NULL : container_of(stream->sites.next, struct site, node);
    const struct attachment *attachment = first != NULL ? attachment_at(first) : NULL;
    uint64_t gpu_bytes = 0, slot_bytes = planned ? stream->plan.layout.slot_bytes : 0;
    char reason[CONTROL_REASON] = "";
    list_each (node, after, &stream->sites)
        gpu_bytes += container_of(node, struct site, node)->gpu_bytes;
    if (first != NULL && first->reserved)
        slot_bytes = first->spec.layout.slot_bytes;
    if (attachment != NULL)
        control_mode_reason(attachment, reason);
    return json_pack("{s:s, s:s, s:o, s:I, s:s, s:s, s:o, s:o, s:I, s:I, s:o}", "backend",
                     first != NULL && first->gpu != NULL ? first->gpu->backend->name : backend_host.name, "transport",
                     transport_name(first != NULL ? first->transport : TRANSPORT_HOST), "device",
                     first != NULL ? device_json(first) : json_null(), "slot_bytes", integer(slot_bytes), "normalize",
                     normalize_mode_name(output->mode), "normalize_reason", output->reason, "output",
                     planned ? output_json(stream) : json_null(), "mode_reason", text(reason), "pinned_bytes",
                     integer(stream->pinned_bytes), "gpu_bytes", integer(gpu_bytes), "sites", sites_json(stream));
}

/* Where the workers' time for a stream went, since it began. */
static json_t *stages_json(const struct stream *stream)
{
    return json_pack("{s:f, s:f, s:f}", "read_s", (double)atomic_load(&stream->stages.read_ns) / 1e9, "decode_s",
                     (double)atomic_load(&stream->stages.decode_ns) / 1e9, "resize_s",
                     (double)atomic_load(&stream->stages.resize_ns) / 1e9);
}

static json_t *stream_json(const struct server *server, const struct stream *stream)
{
    struct bottleneck b = stream_bottleneck(server, stream);
    const struct sampler_spec *order = &stream->spec.order;
    const struct site *fullest = fullest_site(stream);
    double latency_ms =
        stream->stats.batches > 0 ? (double)stream->stats.latency_ns / (double)stream->stats.batches / 1e6 : 0;
    uint64_t ring_bytes = stream->staging_bytes;
    list_each (node, after, &stream->sites)
        ring_bytes += container_of(node, struct site, node)->meta_bytes;
    json_t *json =
        json_pack("{s:I, s:o, s:s, s:o, s:s, s:I, s:I, s:s, s:i, s:i, s:i}", "stream", integer(stream->number),
                  "dataset", text(stream->spec.dataset->config->name), "state", stream_states[stream->state].name,
                  "bottleneck", bottleneck_json(&b), "order", order_name(order->order), "seed", integer(order->seed),
                  "epochs", integer(order->epochs), "tail", tail_name(order->tail) ? tail_name(order->tail) : "?",
                  "batch_size", (int)order->batch_size, "rank", (int)order->rank, "world_size", (int)order->world_size);
    json_t *now = json_pack("{s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I}", "depth",
                            (int)stream->depth, "filling", (int)stream->filling, "filled", (int)stream->filled,
                            "copying", (int)stream->copying, "ready", (int)(fullest != NULL ? fullest->ready : 0),
                            "epoch", integer(stream->next_epoch), "position", integer(stream->next_position), "batches",
                            integer(stream->stats.batches), "samples", integer(stream->stats.samples), "batches_per_s",
                            stream->rate.batches_s, "samples_per_s", stream->rate.samples_s, "ready_mean",
                            fullest != NULL ? fullest->rate.ready : 0, "workers_mean", stream->rate.workers,
                            "latency_ms", latency_ms, "ring_bytes", integer(ring_bytes));
    json_object_update_new(json, now);
    json_object_update_new(json, delivery_json(stream));
    json_object_set_new(json, "stages", stages_json(stream));
    const struct group *group = stream->group;
    json_object_update_new(json,
                           json_pack("{s:s, s:o, s:i, s:i}", "share", share_name(group->spec.share), "group",
                                     group->spec.name[0] != '\0' ? text(group->spec.name) : json_null(), "members",
                                     (int)group->member_count, "members_max", (int)group->spec.members));
    return json;
}

static json_t *gpu_json(const struct pipeline *pipeline, const struct gpu *gpu)
{
    static const char *const states[] = {[GPU_STARTING] = "starting", [GPU_UP] = "up", [GPU_DOWN] = "down"};
    int state = atomic_load_explicit(&gpu->state, memory_order_acquire);
    uint64_t limit = pipeline->limits.gpu_memory_max != 0 ? pipeline->limits.gpu_memory_max : gpu->memory_bytes / 2;
    return json_pack("{s:s, s:o, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "gpu", gpu->uuid, "name",
                     text(gpu->name), "state", states[state], "error",
                     state == GPU_DOWN ? text(gpu->error.message) : json_null(), "memory_bytes",
                     integer(gpu->memory_bytes), "ring_bytes", integer(gpu->reserved_bytes), "ring_max", integer(limit),
                     "copies", integer(gpu->stats.copies), "copied_bytes", integer(gpu->stats.copied_bytes), "kernels",
                     integer(gpu->stats.kernels), "copies_per_s", gpu->rate.copies_s, "copied_bytes_per_s",
                     gpu->rate.copied_bytes_s, "copying", gpu->rate.busy);
}

/* Empty: they run anywhere. */
static json_t *workers_near_json(const struct pool *pool)
{
    uint32_t count;
    const struct pool_node *nodes = pool_nodes(pool, &count);
    json_t *json = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(json,
                              json_pack("{s:i, s:i, s:i, s:i}", "node", nodes[i].node, "workers", (int)nodes[i].workers,
                                        "cpus", (int)nodes[i].cpus, "gpus", (int)nodes[i].gpus));
    return json;
}

static json_t *client_json(const struct connection *connection, uint64_t now_ns)
{
    json_t *streams = json_array();
    list_each (node, after, &connection->streams) {
        const struct attachment *attachment = container_of(node, struct attachment, node);
        const struct member *member = attachment->member;
        const struct stream *stream = member->group->stream;
        json_array_append_new(
            streams,
            json_pack("{s:I, s:o, s:s, s:s, s:i, s:i, s:I}", "stream", integer(stream != NULL ? stream->number : 0),
                      "source", text(attachment->source), "transport", transport_name(member->transport), "state",
                      member_states[member->state].name, "held", (int)(member->lease_count - member->ready_count),
                      "untold", (int)member->ready_count, "released", integer(member->released)));
    }
    return json_pack("{s:I, s:s, s:i, s:I, s:s, s:f, s:i, s:o}", "client", integer(connection->number), "name",
                     connection->name, "pid", (int)connection->pid, "uid", integer(connection->uid), "state",
                     connection_states[connection->state].name, "connected_s",
                     (double)(now_ns - connection->connected_ns) / 1e9, "queued", (int)connection->queued, "streams",
                     streams);
}

static json_t *verification_json(const struct connection *connection, uint64_t now_ns)
{
    const struct verify *verify = connection->verification->verify;
    uint64_t end_ns = verify->ended_ns != 0 ? verify->ended_ns : now_ns;
    double seconds = verify->began_ns != 0 ? (double)(end_ns - verify->began_ns) / 1e9 : 0;
    uint64_t bad = atomic_load(&verify->bad), done = atomic_load(&verify->done);
    return json_pack("{s:I, s:s, s:i, s:o, s:s, s:I, s:I, s:I, s:I, s:f}", "client", integer(connection->number),
                     "name", connection->name, "pid", (int)connection->pid, "dataset",
                     text(verify->dataset->config->name), "state", verify_states[verify->state].name, "done",
                     integer(done), "total", integer(verify->sample_count), "bad", integer(bad), "bytes",
                     integer(atomic_load(&verify->bytes)), "seconds", seconds);
}

/* The busiest stream's word is the daemon's. */
static struct bottleneck overall_bottleneck(const struct server *server)
{
    const struct stream *busiest = NULL;
    list_each (node, after, &server->pipeline.groups) {
        const struct stream *stream = container_of(node, struct group, node)->stream;
        if (stream == NULL) /* its group waits for members to come back */
            continue;
        if (busiest == NULL || stream->rate.workers > busiest->rate.workers ||
            (stream->rate.workers == busiest->rate.workers && stream->state == STREAM_RUNNING))
            busiest = stream;
    }
    if (busiest != NULL)
        return stream_bottleneck(server, busiest);
    return (struct bottleneck){.stage = "idle", .text = "no stream is open"};
}

static bool is_admin(const struct connection *to)
{
    return access_allows(&to->server->config->admin, to->uid, to->groups, to->group_count);
}

/* May this client know of the dataset? Those that are not in the configuration are the daemon's own user's. */
static bool may_see(const struct connection *to, const struct dataset *dataset)
{
    const struct config *config = to->server->config;
    if (is_admin(to))
        return true;
    if (dataset->temporary)
        return to->uid == geteuid();
    return access_allows(&config->dataset_access[dataset->config - config->datasets], to->uid, to->groups,
                         to->group_count);
}

char *report_status(const struct connection *to)
{
    struct server *server = to->server;
    struct pipeline *pipeline = &server->pipeline;
    uint64_t now_ns = clock_ns();
    struct bottleneck b = overall_bottleneck(server);
    json_t *datasets = json_array(), *streams = json_array(), *clients = json_array(), *gpus = json_array(),
           *verifications = json_array();
    for (uint32_t i = 0; i < pipeline->gpus.count; i++)
        json_array_append_new(gpus, gpu_json(pipeline, pipeline->gpus.gpu[i]));
    list_each (node, after, &pipeline->datasets) {
        struct dataset *dataset = container_of(node, struct dataset, node);
        if (may_see(to, dataset))
            json_array_append_new(datasets, dataset_json(dataset));
    }
    list_each (node, after, &pipeline->groups) {
        const struct group *group = container_of(node, struct group, node);
        if (group->stream != NULL && may_see(to, group->stream->spec.dataset))
            json_array_append_new(streams, stream_json(server, group->stream));
    }
    list_each (node, after, &server->connections) {
        const struct connection *connection = container_of(node, struct connection, node);
        if (connection->uid == to->uid || is_admin(to))
            json_array_append_new(clients, client_json(connection, now_ns));
        if (connection->verification != NULL && may_see(to, connection->verification->verify->dataset))
            json_array_append_new(verifications, verification_json(connection, now_ns));
    }
    json_t *daemon =
        json_pack("{s:s, s:i, s:f, s:o, s:o, s:i, s:o, s:i, s:f, s:I, s:I}", "version", FEEDD_VERSION, "pid",
                  (int)getpid(), "uptime_s", (double)(now_ns - server->started_ns) / 1e9, "config",
                  text(server->config->path), "socket", text(server->listener.path), "workers",
                  (int)pool_worker_count(pipeline->pool), "workers_near", workers_near_json(pipeline->pool),
                  "workers_stuck", (int)pool_stuck_count(pipeline->pool), "workers_busy", pipeline->rate.busy,
                  "connections", integer(server->stats.connections), "refused", integer(server->stats.refused));
    json_t *memory =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "ring_bytes", integer(pipeline->ring_bytes), "ring_max",
                  integer(pipeline->limits.ring_memory_max), "pinned_bytes", integer(pipeline->pinned_bytes),
                  "pinned_max", integer(pipeline->limits.pinned_max), "dataset_bytes", integer(pipeline->dataset_bytes),
                  "dataset_max", integer(pipeline->limits.dataset_memory_max));
    json_t *root = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "daemon", daemon, "bottleneck",
                             bottleneck_json(&b), "memory", memory, "gpus", gpus, "no_gpu",
                             pipeline->gpus.count == 0 ? text(pipeline->gpus.absent) : json_null(), "datasets",
                             datasets, "streams", streams, "clients", clients, "verifications", verifications);
    char *out = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return out;
}

char *report_errors(const struct connection *to)
{
    json_t *errors = json_array();
    uint64_t now_ns = clock_ns();
    list_each (node, after, &to->server->pipeline.datasets) {
        struct dataset *dataset = container_of(node, struct dataset, node);
        struct error_entry entry;
        for (uint32_t i = 0; may_see(to, dataset) && error_log_get(&dataset->errors, i, &entry) == 0; i++)
            json_array_append_new(
                errors, json_pack("{s:o, s:I, s:I, s:f, s:s, s:o}", "dataset", text(dataset->config->name), "index",
                                  integer(entry.index), "count", integer(entry.count), "first_s_ago",
                                  (double)(now_ns - entry.first_ns) / 1e9, "status",
                                  error_status_name(entry.error.status), "reason", text(entry.error.message)));
    }
    json_t *root = json_pack("{s:o}", "errors", errors);
    char *out = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return out;
}

/* The class's name, or its number where classes have none; null: no class. */
static json_t *class_json(const struct reader *reader, int64_t label)
{
    if (label < 0 || label >= reader->class_count)
        return json_null();
    if (reader->class_names != NULL)
        return text(reader->class_names[label]);
    return json_sprintf("%lld", (long long)label);
}

char *report_verify(const struct verify *verify)
{
    const struct reader *reader = verify->reader;
    json_t *classes = json_array(), *errors = json_array();
    for (uint32_t i = 0; i < verify->class_count; i++)
        json_array_append_new(classes, json_pack("{s:o, s:I, s:I}", "name", class_json(reader, i), "samples",
                                                 integer(atomic_load(&verify->classes[i].samples)), "bad",
                                                 integer(atomic_load(&verify->classes[i].bad))));
    list_each (node, after, &verify->bad_list) {
        const struct verify_bad *bad = container_of(node, struct verify_bad, node);
        json_array_append_new(errors, json_pack("{s:I, s:o, s:o, s:s, s:o}", "index", integer(bad->index), "path",
                                                text(bad->path), "class", class_json(reader, bad->label), "status",
                                                error_status_name(bad->status), "reason", text(bad->reason)));
    }
    uint64_t done = atomic_load(&verify->done);
    json_t *root = json_pack(
        "{s:o, s:b, s:I, s:I, s:I, s:I, s:f, s:o, s:o}", "dataset", text(verify->dataset->config->name), "complete",
        done == verify->sample_count, "samples", integer(verify->sample_count), "checked", integer(done), "bad",
        integer(atomic_load(&verify->bad)), "bytes", integer(atomic_load(&verify->bytes)), "seconds",
        (double)(verify->ended_ns - verify->began_ns) / 1e9, "classes", classes, "errors", errors);
    char *out = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return out;
}
