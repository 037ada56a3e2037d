/* report.h - the daemon's account of itself, as JSON (schema: feedctl(1), "status --json" and "errors --json").
 *
 * Who asks sees the datasets that it may use, their streams, and its own user's clients; the administrators of the
 * configuration see everything.
 * Threads: loop only. */
#ifndef FEEDD_REPORT_H
#define FEEDD_REPORT_H

struct connection;

/* @return terminated text, to be freed with free(); NULL when memory has run out */
char *report_status(const struct connection *to);
char *report_errors(const struct connection *to);

#endif
