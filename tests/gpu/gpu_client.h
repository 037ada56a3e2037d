/* gpu_client.h - what the files of gpu_client share: its options, a stream to take batches from, checksums of them.
 *
 * What can fail: the daemon and CUDA; the program says what and ends with 2. Threads: one. */
#ifndef FEEDD_TESTS_GPU_CLIENT_H
#define FEEDD_TESTS_GPU_CLIENT_H

#include <stdbool.h>

#include "device.h"
#include "feedd.h"
#include "gpu_kernels.h"

#define SIZES_MAX 16

struct options {
    const char *socket, *source;
    struct feedd_open_options open;
    uint64_t batches; /* 0: not given, as with what follows */
    double seconds;
    unsigned spin_ms, hold_ms, linger_ms, rounds;
    uint64_t rate;                         /* batches a second */
    struct feedd_normalize_options output; /* what images are wanted as, where has_output */
    bool has_output;
    bool normalize, checksum;
    uint64_t sizes[SIZES_MAX]; /* bytes */
    uint32_t size_count;
};

/* An open stream, and where the program works on its batches. */
struct session {
    struct feedd_client *client;
    struct feedd_stream *stream;
    const struct feedd_schema *schema;
    cudaStream_t cuda; /* NULL: batches are in host memory */
    void *results, *output;
    size_t output_bytes;
    /* Of `output`, where the client has to make it: the batch's own images are uint8 then. Else size is 0. */
    struct feedd_normalize_options own;
};

/* @param device  as feedd_open_options has it; NULL: host memory */
void session_open(struct session *s, const struct options *options, const char *device);
void session_close(struct session *s);

/* @return NULL at the stream's end */
const struct feedd_batch *session_next(struct session *s);

/* Gives a batch back, on a GPU when what was enqueued has been done. */
void session_release(struct session *s, const struct feedd_batch *batch);

/* Waits for what was enqueued. */
void session_wait(const struct session *s);

/* Memory for checksums, and for normalised batches of the stream, whatever the dtype; the latter where the client works
 * on them. Once a session, which owns it. */
void *session_results(struct session *s, size_t bytes);
void *session_output(struct session *s, size_t *bytes);

/* The field that feedd_normalize() takes: the first uint8 array of three dimensions. */
uint32_t session_image(const struct session *s);

/* Enqueues what makes session_output() of a batch. */
void session_normalize(const struct session *s, const struct feedd_batch *batch,
                       const struct feedd_normalize_options *options);

/* Enqueues what a trainer has to do to have the images as they are wanted: nothing, where they lie so on the GPU. */
void session_image_ready(const struct session *s, const struct feedd_batch *batch);

/* gpu_kernels.h's checksum of each field of a batch; of images as they are wanted, whoever makes them.
 * @param sums  field_count of session_results(): written at once on the host, by the GPU in the order of its stream */
void session_checksum(const struct session *s, const struct feedd_batch *batch, uint64_t *sums);

/* Bytes of all fields. */
uint64_t session_bytes(const struct session *s, const struct feedd_batch *batch);

/* malloc(), or the end of the program. */
void *allocate(size_t bytes);

/* Ends the program with 2 when a call of libfeedd has failed. */
void must(int status, const struct feedd_error *err);

/* A line for whoever waits for it. */
void say(const char *word);

double seconds_now(void);
void sleep_ms(unsigned ms);
/* Sorts them. */
double median(double *values, size_t count);

/* Commands. @return the exit code */
int command_check(const struct options *options);
int command_copies(const struct options *options);
int command_feed(const struct options *options);
int command_trainer(const struct options *options);

#endif
