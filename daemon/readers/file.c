/* file.c - see file.h.
 *
 * Happy path: file_open() -> file_read() until the end; or, below a dataset's folder, one openat2().
 * What can fail: a file is missing, not ours to read, not a regular file, or leads out of its folder; the disk fails.
 * Threads: any; nothing here has state. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "error.h"

#define RACES_MAX 32 /* renames that openat2() may meet on the way of one path */

void file_shown(const char *path, char shown[FILE_SHOWN])
{
    size_t length = strlen(path);
    if (length < FILE_SHOWN) {
        memcpy(shown, path, length + 1);
        return;
    }
    const char *end = path + length - (FILE_SHOWN - 4);
    while (((unsigned char)*end & 0xC0) == 0x80) /* begin with a whole UTF-8 character */
        end++;
    snprintf(shown, FILE_SHOWN, "...%s", end);
}

int file_status(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
        return FEEDD_E_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EXDEV: /* file_open_below() */
        return FEEDD_E_ACCESS;
    case ENOMEM:
        return FEEDD_E_MEMORY;
    default:
        return FEEDD_E_IO;
    }
}

int file_open(const char *path, uint64_t *bytes, struct feedd_error *err)
{
    char shown[FILE_SHOWN];
    file_shown(path, shown);
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

int64_t file_read(int fd, const char *path, void *to, size_t count, struct feedd_error *err)
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
            char shown[FILE_SHOWN];
            file_shown(path, shown);
            return error_set(err, FEEDD_E_IO, "%s: reading failed: %s", shown, strerror(error));
        }
    }
    return (int64_t)done;
}

int file_load(const char *path, uint64_t max, const char *max_name, char **text, uint64_t *bytes,
              struct feedd_error *err)
{
    char shown[FILE_SHOWN], *content = NULL;
    file_shown(path, shown);
    uint64_t size;
    int64_t got = 0;
    int rc = 0, fd = file_open(path, &size, err);
    if (fd < 0)
        return fd;
    if (size > max || size >= PTRDIFF_MAX)
        rc = error_set(err, FEEDD_E_LIMIT, "%s: %llu bytes; allowed: at most %llu (%s)", shown,
                       (unsigned long long)size, (unsigned long long)max, max_name);
    if (rc == 0) {
        content = malloc(size + 1);
        rc = content != NULL ? 0
                             : error_set(err, FEEDD_E_MEMORY, "%s: not enough memory for %llu bytes", shown,
                                         (unsigned long long)size);
    }
    if (rc == 0) {
        got = file_read(fd, path, content, size, err); /* less where it has been cut since */
        rc = got < 0 ? (int)got : 0;
    }
    close(fd);
    if (rc != 0) {
        free(content);
        return rc;
    }
    content[got] = '\0';
    *text = content;
    *bytes = (uint64_t)got;
    return 0;
}

int file_real_path(int fd, char *real)
{
    char self[32];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(self, real, PATH_MAX);
    if (length <= 0 || length == PATH_MAX || real[0] != '/')
        return -1;
    real[length] = '\0';
    return 0;
}

static bool is_below(int root_fd, int fd)
{
    char root[PATH_MAX], real[PATH_MAX];
    if (file_real_path(root_fd, root) != 0 || file_real_path(fd, real) != 0)
        return false;
    size_t length = strcmp(root, "/") == 0 ? 0 : strlen(root);
    return strncmp(real, root, length) == 0 && (real[length] == '/' || real[length] == '\0');
}

/* What openat2() doesn't do: absolute links that lead back into the folder, and kernels and sandboxes without it. The
 * file is found first (O_PATH opens nothing), its real path compared, and then that very file opened, so that nobody
 * can put another one in its place in between. */
static int open_resolved(int root_fd, const char *path, int flags)
{
    int found = openat(root_fd, path, O_PATH | O_CLOEXEC);
    if (found < 0)
        return -1;
    char self[32];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", found);
    int fd = -1, error = EXDEV;
    if (is_below(root_fd, found)) {
        fd = open(self, flags);
        error = errno;
    }
    close(found);
    errno = error;
    return fd;
}

int file_open_below(int root_fd, const char *path, int flags)
{
    flags |= O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    const struct open_how how = {.flags = (uint64_t)flags, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    long fd;
    int races = 0;
    do { /* EAGAIN: something was renamed while a ".." was on the way */
        fd = syscall(SYS_openat2, root_fd, path, &how, sizeof(how));
    } while (fd < 0 && (errno == EINTR || (errno == EAGAIN && races++ < RACES_MAX)));
    if (fd >= 0)
        return (int)fd;
    switch (errno) {
    case EXDEV:  /* outside, or an absolute link */
    case ENOSYS: /* Linux before 5.6 */
    case EPERM:  /* a sandbox that doesn't know the call */
        return open_resolved(root_fd, path, flags);
    default:
        return -1;
    }
}
