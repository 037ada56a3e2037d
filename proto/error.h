/* error.h - naming an error where it is first seen, and the names of the enumerations.
 * Thread-safe: nothing here has state. */
#ifndef FEEDD_ERROR_H
#define FEEDD_ERROR_H

#include "feedd_types.h"

/* Fills *err (may be NULL) and returns status, so that a failing function ends in `return error_set(...)`.
 * A message that is too long is cut at the end; control characters and what is not UTF-8 become '?'. */
__attribute__((format(printf, 3, 4))) int error_set(struct feedd_error *err, int status, const char *format, ...);

/* "not found", "corrupt"…: the short name of a status, for messages and JSON. Never NULL. */
const char *error_status_name(int status);

/* Names as users write them ("u8", "shuffle", "drop"), and back: 0 or FEEDD_E_ARGUMENT. NULL for an unknown value. */
const char *dtype_name(int dtype);
uint32_t dtype_bytes(int dtype);               /* bytes of one element, 0 for an unknown dtype */
int dtype_parse(const char *name, int *dtype); /* also "float32", "uint8", ...: as NumPy and PyTorch have them */
const char *order_name(int order);
int order_parse(const char *name, int *order);
const char *tail_name(int tail);
int tail_parse(const char *name, int *tail);
const char *share_name(int share);
int share_parse(const char *name, int *share);
const char *join_name(int join);
int join_parse(const char *name, int *join);
const char *on_error_name(int on_error);
int on_error_parse(const char *name, int *on_error);
const char *normalize_mode_name(int mode);
int normalize_mode_parse(const char *name, int *mode);

#endif
