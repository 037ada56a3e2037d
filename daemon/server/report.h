/* report.h - the daemon's account of itself, as JSON (schema: feedctl(1), "status --json").
 * Threads: loop only. */
#ifndef FEEDD_REPORT_H
#define FEEDD_REPORT_H

struct server;

/* @return terminated text, to be freed with free(); NULL when memory has run out */
char *report_status(struct server *server);

#endif
