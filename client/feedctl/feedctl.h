/* feedctl.h - the commands of feedctl, one file each. Each gets what follows the command's name and answers the exit
 * status: 0 done, 1 failed (one line on stderr says why), 2 wrong usage; verify.c has its own. */
#ifndef FEEDD_FEEDCTL_H
#define FEEDD_FEEDCTL_H

#include <stdint.h>

#include "feedd.h"

int command_listing(const char *name, const char *socket_path, int argc,
                    char **argv); /* status, datasets, streams, clients, errors */
int command_cat(const char *name, const char *socket_path, int argc, char **argv);
int command_verify(const char *name, const char *socket_path, int argc, char **argv);
int command_bench(const char *name, const char *socket_path, int argc, char **argv);

/* Prints "feedctl: message" and returns 1, for `return fail(&err);`. */
int fail(const struct feedd_error *err);

/* "1h 02m", "3m 20s", "12s". @return text */
const char *human_time(double seconds, char text[32]);

/* Reads a whole number from min to max. @return 0, or 2 after saying what is wrong with `text` of --option */
int parse_number(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *out);

#endif
