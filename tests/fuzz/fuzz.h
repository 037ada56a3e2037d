/* fuzz.h - what the fuzz targets share: values out of an input's bytes, a file made of bytes, and giving up.
 *
 * A target is one LLVMFuzzerTestOneInput(). It aborts when something isn't as it has to be; everything else is the
 * sanitizers' business. An input that has run out goes on as zeros, so that every input means something.
 * Threads: one. */
#ifndef FEEDD_FUZZ_H
#define FEEDD_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "feedd_types.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Always compiled in, unlike assert(). */
#define FUZZ_CHECK(expression)                                                                                         \
    do {                                                                                                               \
        if (!(expression)) {                                                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #expression);                                 \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

static inline uint8_t fuzz_byte(struct fuzz_input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

/* Up to `want` bytes, in place. @return how many there are */
static inline size_t fuzz_bytes(struct fuzz_input *in, size_t want, const uint8_t **bytes)
{
    size_t got = want < in->left ? want : in->left;
    *bytes = in->at;
    in->at += got;
    in->left -= got;
    return got;
}

/* A number, mostly one that is worth trying: one byte stands for itself or for an entry of the table; 255 for the
 * eight bytes behind it. */
static inline uint64_t fuzz_number(struct fuzz_input *in)
{
    static const uint64_t special[] = {
        255,        256,        257,        1000,           1023,      1024,      1025,       4095,
        4096,       65535,      65536,      INT32_MAX,      65537,     1u << 31,  UINT32_MAX, 1ull << 32,
        1ull << 40, 1ull << 62, UINT64_MAX, UINT64_MAX - 1, INT64_MAX, 1ull << 63};
    enum { FIRST = 255 - sizeof(special) / sizeof(special[0]) };
    uint8_t byte = fuzz_byte(in);
    if (byte < FIRST)
        return byte;
    if (byte < 255)
        return special[byte - FIRST];
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value = value << 8 | fuzz_byte(in);
    return value;
}

/* RFC 3629, but for overlong forms and surrogates. */
static inline int fuzz_is_utf8(const char *text)
{
    for (const uint8_t *c = (const uint8_t *)text; *c != 0; c++) {
        int more = *c < 0x80 ? 0 : *c >= 0xC2 && *c < 0xE0 ? 1 : *c >= 0xE0 && *c < 0xF0 ? 2 : *c < 0xF5 ? 3 : -1;
        if (more < 0 || (*c >= 0x80 && *c < 0xC2))
            return 0;
        for (; more > 0; more--)
            if ((*++c & 0xC0) != 0x80) /* also at the terminator */
                return 0;
    }
    return 1;
}

/* What every failure has to leave behind: its status, and one line of UTF-8 that isn't empty. */
static inline void fuzz_check_error(const struct feedd_error *err, int status)
{
    FUZZ_CHECK(status < 0 && err->status == status);
    FUZZ_CHECK(err->message[0] != '\0' && fuzz_is_utf8(err->message));
    for (const char *c = err->message; *c != '\0'; c++)
        FUZZ_CHECK((uint8_t)*c >= 0x20 && *c != 0x7F);
}

/* Files that need no file system: a memfd, opened by its path. */
struct fuzz_file {
    int fd;
    char path[32];
};

static inline void fuzz_file_write(struct fuzz_file *file, const void *bytes, size_t size)
{
    if (file->path[0] == '\0') {
        file->fd = memfd_create("fuzz", MFD_CLOEXEC);
        FUZZ_CHECK(file->fd >= 0);
        snprintf(file->path, sizeof(file->path), "/proc/self/fd/%d", file->fd);
    }
    FUZZ_CHECK(ftruncate(file->fd, 0) == 0 && pwrite(file->fd, bytes, size, 0) == (ssize_t)size);
}

/* The descriptor that the next open() would get: it grows when one has been left open. */
static inline int fuzz_next_fd(void)
{
    int fd = dup(STDERR_FILENO);
    FUZZ_CHECK(fd >= 0);
    close(fd);
    return fd;
}

#endif
