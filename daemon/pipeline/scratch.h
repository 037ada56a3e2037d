/* scratch.h - what a worker uses again from sample to sample: buffers, and decoders that are made when they are first
 * needed. Threads: each belongs to one worker. */
#ifndef FEEDD_SCRATCH_H
#define FEEDD_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

#include "decoder.h"
#include "feedd_types.h"
#include "reader.h"

/* All 0 at first; the owner frees `bytes`. */
struct scratch_buffer {
    uint8_t *bytes;
    size_t size;
};

/* Room for `size` bytes; what it held is lost. What a giant took is given back by the next one that is none.
 * @return 0, or FEEDD_E_MEMORY: it is empty then */
int scratch_reserve(struct scratch_buffer *buffer, size_t size, struct feedd_error *err);

/* Reads a sample's file by pread, never mapped: one that is cut meanwhile is an error, not a SIGBUS. Leaves the
 * descriptor open. @return 0; FEEDD_E_LIMIT (more than bytes_max), FEEDD_E_CORRUPT (it ends early), FEEDD_E_IO,
 * FEEDD_E_MEMORY */
int scratch_read(struct scratch_buffer *buffer, const struct reader_sample *from, uint64_t bytes_max,
                 struct feedd_error *err);

/* The decoder for these bytes, by their content. @param made  all NULL at first
 * @return 0 and *out, which stays in `made`; FEEDD_E_UNSUPPORTED, FEEDD_E_CORRUPT, FEEDD_E_MEMORY */
int scratch_decoder(struct decoder *made[DECODER_COUNT], uint64_t pixels_max, struct blob in, struct decoder **out,
                    struct feedd_error *err);
void scratch_decoders_free(struct decoder *made[DECODER_COUNT]);

#endif
