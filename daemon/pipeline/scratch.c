/* scratch.c - see scratch.h. What can fail: memory, the file system, and the file itself. */
#include "scratch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"

#define KEEP (64u << 20) /* bytes of a buffer that are kept from sample to sample: a giant's are given back */

int scratch_reserve(struct scratch_buffer *buffer, size_t size, struct feedd_error *err)
{
    if (size <= buffer->size && (buffer->size <= KEEP || size > KEEP))
        return 0;
    size_t room = size > KEEP ? size : size > KEEP / 2 ? KEEP : size + size / 2;
    free(buffer->bytes); /* nothing of the last sample is needed */
    buffer->bytes = malloc(room);
    buffer->size = buffer->bytes != NULL ? room : 0;
    return buffer->bytes != NULL ? 0 : error_set(err, FEEDD_E_MEMORY, "no memory for %zu bytes of an image", size);
}

int scratch_read(struct scratch_buffer *buffer, const struct reader_sample *from, uint64_t bytes_max,
                 struct feedd_error *err)
{
    if (from->size > bytes_max)
        return error_set(err, FEEDD_E_LIMIT, "%llu bytes; allowed: %llu (image_bytes_max)",
                         (unsigned long long)from->size, (unsigned long long)bytes_max);
    int status = scratch_reserve(buffer, from->size + 1, err);
    for (uint64_t done = 0; status == 0 && done < from->size;) {
        ssize_t got = pread(from->fd, buffer->bytes + done, from->size - done, (off_t)(from->offset + done));
        if (got > 0)
            done += (uint64_t)got;
        else if (got == 0)
            status = error_set(err, FEEDD_E_CORRUPT, "ends after %llu of %llu bytes", (unsigned long long)done,
                               (unsigned long long)from->size);
        else if (errno != EINTR)
            status = error_set(err, FEEDD_E_IO, "reading: %s", strerror(errno));
    }
    return status;
}

int scratch_decoder(struct decoder *made[DECODER_COUNT], uint64_t pixels_max, struct blob in, struct decoder **out,
                    struct feedd_error *err)
{
    const struct decoder_limits limits = {.pixels = pixels_max};
    int number = decoder_find(in, err);
    if (number < 0)
        return number;
    int status = made[number] == NULL ? decoders[number]->decoder_new(&limits, &made[number], err) : 0;
    if (status == 0)
        *out = made[number];
    return status;
}

void scratch_decoders_free(struct decoder *made[DECODER_COUNT])
{
    for (int i = 0; i < DECODER_COUNT; i++)
        if (made[i] != NULL)
            made[i]->ops->decoder_free(made[i]);
}
