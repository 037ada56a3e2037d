/* reader.c - the list of dataset formats, and how every one of them opens and reads a user's files.
 *
 * Happy path: find the format by name -> its open() -> reader_file_open() -> reader_file_read() until the end.
 * What can fail: the file is missing, not ours to read, not a regular file, or the disk fails.
 * Threads: any; nothing here has state. */
#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"

static const struct reader_ops *const readers[] = {&reader_idx};
static const char reader_names[] = "idx"; /* of all of them, in that order */

const struct reader_ops *reader_find(const char *name, const char **names)
{
    if (names != NULL)
        *names = reader_names;
    for (size_t i = 0; i < sizeof(readers) / sizeof(readers[0]); i++)
        if (strcmp(readers[i]->name, name) == 0)
            return readers[i];
    return NULL;
}

void reader_file_shown(const char *path, char shown[READER_SHOWN])
{
    size_t length = strlen(path);
    if (length < READER_SHOWN) {
        memcpy(shown, path, length + 1);
        return;
    }
    const char *end = path + length - (READER_SHOWN - 4);
    while (((unsigned char)*end & 0xC0) == 0x80) /* begin with a whole UTF-8 character */
        end++;
    snprintf(shown, READER_SHOWN, "...%s", end);
}

static int file_status(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return FEEDD_E_NOT_FOUND;
    case EACCES:
    case EPERM:
        return FEEDD_E_ACCESS;
    default:
        return FEEDD_E_IO;
    }
}

int reader_file_open(const char *path, uint64_t *bytes, struct feedd_error *err)
{
    char shown[READER_SHOWN];
    reader_file_shown(path, shown);
    int fd;
    do { /* O_NONBLOCK: a FIFO without a writer would hold us up before fstat can tell that it is one */
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return error_set(err, file_status(errno), "%s: can't be opened: %s", shown, strerror(errno));

    struct stat st;
    int rc = 0;
    if (fstat(fd, &st) != 0)
        rc = error_set(err, FEEDD_E_IO, "%s: can't be examined: %s", shown, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = error_set(err, FEEDD_E_IO, "%s: is %s; allowed: a regular file", shown,
                       S_ISDIR(st.st_mode) ? "a directory" : "a device, pipe or socket");
    if (rc != 0) {
        close(fd);
        return rc;
    }
    *bytes = (uint64_t)st.st_size;
    return fd;
}

int64_t reader_file_read(int fd, const char *path, void *to, size_t count, struct feedd_error *err)
{
    size_t done = 0;
    while (done < count) {
        ssize_t n = read(fd, (char *)to + done, count - done);
        if (n == 0)
            break;
        if (n > 0) {
            done += (size_t)n;
        } else if (errno != EINTR) {
            int error = errno;
            char shown[READER_SHOWN];
            reader_file_shown(path, shown);
            return error_set(err, FEEDD_E_IO, "%s: reading failed: %s", shown, strerror(error));
        }
    }
    return (int64_t)done;
}
