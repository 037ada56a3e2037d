/* verify.c - feedd_verify(): one request, a long wait, progress in between.
 *
 * Happy path: VERIFY -> PROGRESS, some times a second -> REPORT. The caller's word to cancel goes out as CANCEL, and
 * the report comes all the same. What can fail: the request (ERROR), the connection. Threads: as feedd.h says. */
#include "error.h"
#include "internal.h"

#define PROGRESS_MS 200

static int cancel(struct feedd_client *client, struct feedd_error *err)
{
    Feedd__Cancel message = FEEDD__CANCEL__INIT;
    message.request = client->request;
    return client_send(client, WIRE_CANCEL, &message.base, err);
}

/* Waits for the answer; the caller hears of progress also when there is none, since it may want to cancel. */
static int wait_for_report(struct feedd_client *client, int (*progress)(void *, const struct feedd_verify_progress *),
                           void *arg, struct feedd_error *err)
{
    int status = 0;
    uint64_t told_ns = client_clock_ns();
    client->answered = false;
    while (status == 0 && !client->answered) {
        int left_ms = progress != NULL ? client_left_ms(PROGRESS_MS, told_ns) : -1;
        status = client_receive(client, left_ms, err);
        if (status == FEEDD_E_TIMEOUT)
            status = 0;
        if (status != 0 || client->answered || progress == NULL || client_left_ms(PROGRESS_MS, told_ns) > 0)
            continue;
        told_ns = client_clock_ns();
        const struct feedd_verify_progress so_far = client->progress;
        if (progress(arg, &so_far) != 0) {
            status = cancel(client, err);
            progress = NULL;
        }
    }
    return status;
}

FEEDD_API int feedd_verify(struct feedd_client *client, const char *source, const struct feedd_verify_options *options,
                           int (*progress)(void *arg, const struct feedd_verify_progress *so_far), void *arg,
                           char **out, struct feedd_error *err)
{
    int status = client_check(client, err);
    if (status != 0)
        return status;
    static const struct feedd_verify_options defaults = FEEDD_VERIFY_OPTIONS_INIT;
    if (options == NULL)
        options = &defaults;
    if (options->size != sizeof(*options)) /* there is one version yet */
        return error_set(err, FEEDD_E_ARGUMENT, "verify options of size %zu; this libfeedd knows %zu: set options.size",
                         options->size, sizeof(*options));
    Feedd__Verify request = FEEDD__VERIFY__INIT;
    request.request = ++client->request;
    request.source = (char *)(uintptr_t)source;
    request.has_errors_max = true;
    request.errors_max = options->errors_max;
    client->progress = (struct feedd_verify_progress){0};
    status = client_send(client, WIRE_VERIFY, &request.base, err);
    if (status == 0)
        status = wait_for_report(client, progress, arg, err);
    return status == 0 ? client_take_report(client, out, err) : status;
}
