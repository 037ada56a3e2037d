/* server.c - see server.h.
 *
 * Happy path: init (listener, workers) -> run the loop -> a signal -> stop: tell clients, wait until streams and
 * datasets are closed, join workers -> return.
 * What can fail: starting. Once the loop runs, faults belong to a client or a stream, and are dealt with there.
 * A second signal while it stops ends the process at once: nothing of ours outlives it but an unlinked socket file. */
#include "server.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "connection.h"
#include "control.h"
#include "ensure.h"
#include "error.h"
#include "log.h"
#include "machine.h"

#define MS 1000000ull /* nanoseconds */

static void wake_loop(void *arg)
{
    struct server *server = arg;
    uv_async_send(&server->wake);
}

static void on_wake(uv_async_t *wake)
{
    struct server *server = wake->data;
    inbox_drain(&server->pipeline.inbox);
}

static void on_flush(uv_check_t *check)
{
    struct server *server = check->data;
    while (!list_empty(&server->unflushed))
        connection_flush(container_of(server->unflushed.next, struct connection, unflushed_node));
}

static void on_tick(uv_timer_t *timer)
{
    struct server *server = timer->data;
    uint64_t now_ns = clock_ns();
    pipeline_tick(&server->pipeline, now_ns);
    listener_resume(&server->listener);
    list_each (node, after, &server->connections)
        connection_tick(container_of(node, struct connection, node), now_ns);
    if (server->stopping && now_ns - server->stop_ns > SERVER_STOP_MS * MS) {
        log_error("a worker or a GPU doesn't come back: leaving without it");
        _exit(1);
    }
    if (server->connection_count > 0)
        server->idle_ns = 0;
    else if (server->idle_ns == 0)
        server->idle_ns = now_ns;
    if (server->private && !server->stopping && server->idle_ns != 0 &&
        now_ns - server->idle_ns >= server->config->linger_s * 1000 * MS) {
        log_info("no client for %u s: leaving", server->config->linger_s);
        server_stop(server);
    }
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct server *server = handle->data;
    if (server->stopping) {
        log_warning("signal %d again: leaving at once", number);
        _exit(1);
    }
    log_info("signal %d: stopping", number);
    server_stop(server);
}

static void on_pipeline_idle(void *arg)
{
    struct server *server = arg;
    uv_close((uv_handle_t *)&server->wake, NULL);
    uv_close((uv_handle_t *)&server->flush, NULL);
    uv_close((uv_handle_t *)&server->tick, NULL);
    for (int i = 0; i < 2; i++)
        uv_close((uv_handle_t *)&server->signals[i], NULL);
}

/* Tells every client why, and closes all. */
static void stop(struct server *server, const struct feedd_error *reason)
{
    if (server->stopping)
        return;
    server->stopping = true;
    server->stop_ns = clock_ns();
    server->pipeline.stopping = true;
    listener_close(&server->listener);
    while (!list_empty(&server->connections)) {
        struct connection *connection = container_of(server->connections.next, struct connection, node);
        connection_send_error(connection, 0, 0, reason);
        connection_close(connection, NULL);
    }
    pipeline_close(&server->pipeline, on_pipeline_idle, server);
}

void server_stop(struct server *server)
{
    struct feedd_error reason;
    error_set(&reason, FEEDD_E_SHUTDOWN, "feedd is stopping");
    stop(server, &reason);
}

void server_fail(struct server *server, const struct feedd_error *reason)
{
    log_error("leaving: %s", reason->message);
    if (server->failure.status == 0)
        server->failure = *reason;
    stop(server, reason);
}

static void on_gpu_lost(void *arg, const struct feedd_error *err)
{
    struct feedd_error reason;
    error_set(&reason, FEEDD_E_DEVICE, "a GPU has failed, and feedd with it: %.900s", err->message);
    server_fail(arg, &reason);
}

/* While it starts a signal waits: it would leave the socket's file behind. */
static void hold_signals(int how)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(how, &set, NULL);
}

static uint64_t memory_limit(uint64_t configured, uint64_t available)
{
    return configured != 0 ? configured : available / 2;
}

int server_init(struct server *server, const struct config *config, const char *socket_path, bool private,
                struct feedd_error *err)
{
    memset(server, 0, sizeof(*server));
    server->config = config;
    server->private = private;
    server->started_ns = clock_ns();
    list_init(&server->connections);
    list_init(&server->unflushed);
    wire_arena_init(&server->arena);
    uint64_t available = machine_memory_available();
    struct pipeline_limits limits = {
        .workers = config->workers != 0 ? config->workers : machine_cpu_count(),
        .numa = config->numa,
        .ring_memory_max = memory_limit(config->ring_memory_max, available),
        .pinned_max = config->pinned_max,
        .gpu_memory_max = config->gpu_memory_max,
        .gpus = config->gpus,
        .gpu_count = config->gpu_count,
        .dataset_memory_max = memory_limit(config->dataset_memory_max, available),
        .image = {.pixels = config->image_pixels_max, .encoded_bytes = config->image_bytes_max},
        .read_timeout_ms = config->read_timeout_ms,
        .cache_dir = config->cache_dir,
    };
    if (limits.pinned_max == 0)
        limits.pinned_max = limits.ring_memory_max;
    hold_signals(SIG_BLOCK);
    int rc = uv_loop_init(&server->loop);
    if (rc != 0)
        return error_set(err, FEEDD_E_IO, "event loop: %s", uv_strerror(rc));
    server->wake.data = server->flush.data = server->tick.data = server;
    server->signals[0].data = server->signals[1].data = server;
    int status = listener_init(&server->listener, socket_path != NULL ? socket_path : config->socket, err);
    if (status != 0)
        goto no_listener;
    rc = uv_async_init(&server->loop, &server->wake, on_wake); /* workers use it as soon as there are any */
    if (rc != 0) {
        status = error_set(err, FEEDD_E_IO, "event loop: %s", uv_strerror(rc));
        goto no_wake;
    }
    status = pipeline_init(&server->pipeline, &limits, config->datasets, config->dataset_count, wake_loop, on_gpu_lost,
                           server, err);
    if (status != 0)
        goto no_pipeline;
    status = listener_start(&server->listener, server, err);
    if (status != 0)
        goto no_start;
    uv_check_init(&server->loop, &server->flush);
    uv_check_start(&server->flush, on_flush);
    uv_timer_init(&server->loop, &server->tick);
    uv_timer_start(&server->tick, on_tick, 1000, 1000);
    const int numbers[2] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        uv_signal_init(&server->loop, &server->signals[i]);
        uv_signal_start(&server->signals[i], on_signal, numbers[i]);
    }
    hold_signals(SIG_UNBLOCK);
    log_info("feedd " FEEDD_VERSION
             ": %u workers, %u datasets, %u streams; rings up to %llu MiB, datasets up to %llu MiB",
             limits.workers, config->dataset_count, config->stream_count,
             (unsigned long long)(limits.ring_memory_max >> 20), (unsigned long long)(limits.dataset_memory_max >> 20));
    return 0;

no_start:
    pipeline_done(&server->pipeline);
no_pipeline:
    uv_close((uv_handle_t *)&server->wake, NULL);
no_wake:
    listener_close(&server->listener);
    uv_run(&server->loop, UV_RUN_DEFAULT);
no_listener:
    uv_loop_close(&server->loop);
    hold_signals(SIG_UNBLOCK);
    return status;
}

int server_run(struct server *server)
{
    uv_run(&server->loop, UV_RUN_DEFAULT); /* returns once every handle is closed */
    pipeline_done(&server->pipeline);
    ENSURE(uv_loop_close(&server->loop) == 0);
    log_info("stopped");
    return server->failure.status;
}
