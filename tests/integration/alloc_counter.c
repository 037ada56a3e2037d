/* alloc_counter.c - counts a process' calls of the allocator: LD_PRELOAD=alloc_counter.so FEEDD_ALLOC_COUNTER=FILE.
 *
 * FILE gets one uint64_t, in the machine's byte order, that a test may read at any time: calls of malloc, calloc,
 * realloc, aligned_alloc, memalign, posix_memalign, mmap and free since the program was loaded. The work itself is done
 * by glibc under the names that it has for it, so that nothing has to be looked up (dlsym allocates).
 * Thread-safe. For builds without sanitizers, which have allocators of their own. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);
EXPORT void *memalign(size_t alignment, size_t size);

static _Atomic uint64_t *calls; /* NULL until the constructor has run */

__attribute__((constructor)) static void map_counter(void)
{
    const char *path = getenv("FEEDD_ALLOC_COUNTER");
    int fd = path != NULL ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return;
    if (ftruncate(fd, sizeof(*calls)) == 0) {
        long at = syscall(SYS_mmap, NULL, sizeof(*calls), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
        if (at != -1)
            calls = (_Atomic uint64_t *)at;
    }
    close(fd);
}

static void count(void)
{
    if (calls != NULL)
        atomic_fetch_add_explicit(calls, 1, memory_order_relaxed);
}

EXPORT void *malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}

EXPORT void *calloc(size_t number, size_t size)
{
    count();
    return __libc_calloc(number, size);
}

EXPORT void *realloc(void *memory, size_t size)
{
    count();
    return __libc_realloc(memory, size);
}

EXPORT void *memalign(size_t alignment, size_t size)
{
    count();
    return __libc_memalign(alignment, size);
}

EXPORT void *aligned_alloc(size_t alignment, size_t size)
{
    count();
    return __libc_memalign(alignment, size);
}

EXPORT int posix_memalign(void **out, size_t alignment, size_t size)
{
    count();
    void *memory = __libc_memalign(alignment, size);
    if (memory == NULL)
        return ENOMEM;
    *out = memory;
    return 0;
}

EXPORT void free(void *memory)
{
    count();
    __libc_free(memory);
}

EXPORT void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    count();
    return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}
