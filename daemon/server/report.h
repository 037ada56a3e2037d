/* report.h - the daemon's account of itself, as JSON (schema: feedctl(1), "status --json", "errors --json" and "verify
 * --json").
 *
 * Who asks sees the datasets that it may use, their streams, and its own user's clients; the administrators of the
 * configuration see everything.
 * Threads: loop only, but for report_verify(). */
#ifndef FEEDD_REPORT_H
#define FEEDD_REPORT_H

struct connection;
struct verify;

/* @return terminated text, to be freed with free(); NULL when memory has run out */
char *report_status(const struct connection *to);
char *report_errors(const struct connection *to);

/* Of a verification that has ended; any thread, for it may be long. */
char *report_verify(const struct verify *verify);

#endif
