/* block_reads.c - a file system that doesn't answer, to be preloaded into feedd: while the file named by BLOCK_WHILE
 * exists, pread() of files whose name ends in BLOCK_READS hangs. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

ssize_t pread(int fd, void *to, size_t bytes, off_t offset);

ssize_t pread(int fd, void *to, size_t bytes, off_t offset)
{
    ssize_t (*next)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, "pread");
    const char *name = getenv("BLOCK_READS"), *flag = getenv("BLOCK_WHILE");
    char self[32], path[4096];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(self, path, sizeof(path) - 1);
    path[length > 0 ? length : 0] = '\0';
    size_t end = strlen(name);
    while ((size_t)(length > 0 ? length : 0) >= end && strcmp(path + length - end, name) == 0 &&
           access(flag, F_OK) == 0)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    return next(fd, to, bytes, offset);
}
