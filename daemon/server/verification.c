/* verification.c - see verification.h.
 *
 * Happy path: VERIFY -> verify.c does the work, PROGRESS -> it has ended: a worker writes the report into a sealed
 * memfd
 * -> REPORT. CANCEL takes the same way from where it stands.
 * What can fail: the request, what verify.c says, memory for the report: an ERROR, and it is over. */
#include "verification.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend.h"
#include "clock.h"
#include "error.h"
#include "log.h"
#include "report.h"
#include "server.h"

/* The connection may have another from now on. */
static void finish(struct verification *verification)
{
    if (verification->connection != NULL)
        verification->connection->verification = NULL;
    verify_close(verification->verify);
    free(verification);
}

static void fail(struct verification *verification, const struct feedd_error *err)
{
    struct connection *connection = verification->connection;
    log_warning("client %s[%d]: verification: %s", connection->name, (int)connection->pid, err->message);
    connection_send_error(connection, verification->request, 0, err);
    finish(verification);
}

/* ---- the report ---- */

static void write_report(struct pool_task *task)
{
    struct verification *verification = container_of(task, struct verification, task);
    char *text = report_verify(verification->verify);
    uint8_t *memory;
    if (text == NULL) {
        verification->status = error_set(&verification->error, FEEDD_E_MEMORY, "no memory for a report");
        return;
    }
    verification->report_bytes = strlen(text);
    verification->status = backend_memfd_new("feedd-report", verification->report_bytes, -1, &verification->report_fd,
                                             &memory, &verification->error);
    if (verification->status == 0) {
        memcpy(memory, text, verification->report_bytes);
        munmap(memory, verification->report_bytes);
    }
    free(text);
}

static void report_written(struct inbox_item *item)
{
    struct verification *verification = container_of(item, struct verification, task.done);
    struct connection *connection = verification->connection;
    if (connection != NULL && verification->status != 0) {
        fail(verification, &verification->error);
        return;
    }
    if (connection != NULL) {
        Feedd__Report report = FEEDD__REPORT__INIT;
        report.request = verification->request;
        report.bytes = verification->report_bytes;
        connection_send(connection, WIRE_REPORT, &report.base, &verification->report_fd, 1);
    }
    if (verification->status == 0)
        close(verification->report_fd);
    finish(verification);
}

static void start_report(struct verification *verification)
{
    const struct connection *connection = verification->connection;
    struct verify *verify = verification->verify;
    uint64_t done = atomic_load(&verify->done);
    log_info("client %s[%d]: %s%s: %llu of %llu samples verified in %.1f s, %llu bad", connection->name,
             (int)connection->pid, verify->dataset->config->name, done < verify->sample_count ? ", cancelled" : "",
             (unsigned long long)done, (unsigned long long)verify->sample_count,
             (double)(verify->ended_ns - verify->began_ns) / 1e9, (unsigned long long)atomic_load(&verify->bad));
    verification->task = (struct pool_task){.work = write_report, .done = {.run = report_written}};
    pool_task_add(verify->pipeline->pool, &verification->task);
}

/* ---- while it runs ---- */

/* Some times a second; not to a client that doesn't read. */
static void tell_progress(struct verification *verification)
{
    struct connection *connection = verification->connection;
    struct verify *verify = verification->verify;
    uint64_t now_ns = clock_ns();
    if (connection->queued > 0 ||
        (verification->told_ns != 0 && now_ns - verification->told_ns < VERIFICATION_PROGRESS_MS * (uint64_t)1000000))
        return;
    Feedd__Progress progress = FEEDD__PROGRESS__INIT;
    progress.request = verification->request;
    progress.bad = atomic_load(&verify->bad);
    progress.done = atomic_load(&verify->done);
    progress.total = verify->sample_count;
    progress.bytes = atomic_load(&verify->bytes);
    verification->told_ns = now_ns;
    connection_send(connection, WIRE_PROGRESS, &progress.base, NULL, 0);
}

static void on_verify_event(struct verify *verify, enum verify_event event, const struct feedd_error *err)
{
    struct verification *verification = verify->arg;
    switch (event) {
    case VERIFY_EVENT_PROGRESS:
        tell_progress(verification);
        return;
    case VERIFY_EVENT_ENDED:
        start_report(verification);
        return;
    case VERIFY_EVENT_FAILED:
        fail(verification, err);
        return;
    }
}

static uint32_t count_verifications(const struct server *server)
{
    uint32_t count = 0;
    list_each (node, after, &server->connections)
        count += container_of(node, struct connection, node)->verification != NULL;
    return count;
}

int verification_start(struct connection *connection, const Feedd__Verify *message, struct dataset *dataset,
                       uint32_t selection, struct feedd_error *err)
{
    if (connection->verification != NULL)
        return error_set(err, FEEDD_E_STATE,
                         "this connection's verification %u is under way: cancel it, or connect once more",
                         connection->verification->request);
    if (count_verifications(connection->server) >= VERIFICATION_MAX)
        return error_set(err, FEEDD_E_LIMIT, "%u verifications are under way, as many as feedd does at a time",
                         VERIFICATION_MAX);
    struct verification *verification = calloc(1, sizeof(*verification));
    if (verification == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a verification");
    verification->connection = connection;
    verification->request = message->request;
    int status = verify_open(&connection->server->pipeline, dataset, selection,
                             message->has_errors_max ? message->errors_max : VERIFICATION_ERRORS_MAX, on_verify_event,
                             verification, &verification->verify, err);
    if (status != 0) {
        free(verification);
        return status;
    }
    connection->verification = verification;
    log_info("client %s[%d]: verifies %.255s", connection->name, (int)connection->pid, message->source);
    return 0;
}

void verification_cancel(struct connection *connection, uint32_t request)
{
    struct verification *verification = connection->verification;
    if (verification == NULL || verification->request != request)
        return;
    if (verification->verify->state == VERIFY_OPENING) {
        struct feedd_error err;
        error_set(&err, FEEDD_E_STATE, "cancelled while the dataset was being opened");
        fail(verification, &err);
    } else if (verification->verify->state == VERIFY_RUNNING) {
        verify_cancel(verification->verify);
    }
}

void verification_abandon(struct connection *connection)
{
    struct verification *verification = connection->verification;
    if (verification == NULL)
        return;
    log_info("client %s[%d]: has gone, and its verification with it", connection->name, (int)connection->pid);
    connection->verification = NULL;
    verification->connection = NULL;
    if (verification->verify->state != VERIFY_ENDED) /* else the report is under way, and finishes it */
        finish(verification);
}
