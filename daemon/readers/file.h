/* file.h - files that a user names: opened without ever waiting, and read, never mapped, so that nobody who truncates
 * one can kill the daemon by SIGBUS. Thread-safe: nothing here has state. */
#ifndef FEEDD_FILE_H
#define FEEDD_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "feedd_types.h"

/* Opens a regular file for reading.
 * @param bytes  gets its size
 * @return a descriptor, to be closed by the caller; FEEDD_E_NOT_FOUND, _ACCESS, _IO (also: not a regular file) */
int file_open(const char *path, uint64_t *bytes, struct feedd_error *err);

/* Reads on from where the last read ended. @return bytes read, fewer than `count` only at the end; or FEEDD_E_IO */
int64_t file_read(int fd, const char *path, void *to, size_t count, struct feedd_error *err);

/* Reads a whole file.
 * @param max_name  what sets the limit, as the message says it
 * @return 0 and *text (owned by the caller, free(); a NUL stands behind it), *bytes; as file_open(), FEEDD_E_LIMIT,
 * FEEDD_E_MEMORY */
int file_load(const char *path, uint64_t max, const char *max_name, char **text, uint64_t *bytes,
              struct feedd_error *err);

/* Opens `path` below the folder `root_fd` (O_PATH will do). Links are followed within the folder, absolute ones too.
 * @param flags  of open(2); O_CLOEXEC, O_NOCTTY and O_NONBLOCK are added
 * @return a descriptor; or -1 and errno, which is EXDEV for what leads outside */
int file_open_below(int root_fd, const char *path, int flags);

/* The real path of an open folder or file. @param real  PATH_MAX bytes. @return 0, or -1: not known (no /proc) */
int file_real_path(int fd, char *real);

/* The status of a call that failed with this errno: FEEDD_E_NOT_FOUND, _ACCESS, _MEMORY, or _IO: trying again may
 * help. */
int file_status(int error);

/* A path as messages show it: whole, or "..." and its end, so that the reason behind it still fits. */
#define FILE_SHOWN 320
void file_shown(const char *path, char shown[FILE_SHOWN]);

#endif
