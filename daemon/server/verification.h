/* verification.h - what a client has verified: its VERIFY, the PROGRESS that it is told, and the report in the end.
 * Threads: loop only. */
#ifndef FEEDD_VERIFICATION_H
#define FEEDD_VERIFICATION_H

#include <stdint.h>

#include "connection.h"
#include "dataset.h"
#include "pool.h"
#include "verify.h"

#define VERIFICATION_MAX         4u     /* under way at a time, of all clients */
#define VERIFICATION_ERRORS_MAX  10000u /* bad samples in a report, unless said otherwise */
#define VERIFICATION_PROGRESS_MS 200u   /* between two PROGRESS */

struct verification {
    struct connection *connection; /* NULL: it has gone while the report is being made */
    uint32_t request;              /* the VERIFY that it answers */
    struct verify *verify;         /* never NULL */
    uint64_t told_ns;              /* when PROGRESS was sent last; 0: never */
    struct pool_task task;         /* makes the report: */
    int status;
    struct feedd_error error;
    int report_fd; /* a sealed memfd */
    uint64_t report_bytes;
};

/* Starts what VERIFY asks. @return 0: the answer comes later; FEEDD_E_STATE (this client has one under way),
 * FEEDD_E_LIMIT (VERIFICATION_MAX are), FEEDD_E_MEMORY */
int verification_start(struct connection *connection, const Feedd__Verify *message, struct dataset *dataset,
                       uint32_t selection, struct feedd_error *err);

/* CANCEL. Another request than the one under way: has been answered, and nothing happens. */
void verification_cancel(struct connection *connection, uint32_t request);

/* The connection goes. */
void verification_abandon(struct connection *connection);

#endif
