/* feedd.h - libfeedd: batches from a feedd daemon on this node.
 *
 *   struct feedd_error err;
 *   struct feedd_client *client;
 *   struct feedd_stream *stream;
 *   const struct feedd_batch *batch;
 *   int rc;
 *
 *   if (feedd_connect(NULL, &client, &err) || feedd_open(client, "train", NULL, &stream, &err))
 *       return fprintf(stderr, "%s\n", err.message), 1;
 *   while ((rc = feedd_next(stream, -1, &batch, &err)) == FEEDD_OK) {
 *       struct feedd_view image;
 *       feedd_batch_view(batch, 0, &image);
 *       ... image.data, image.shape ...
 *       feedd_release(batch, NULL, &err);
 *   }
 *
 * Conventions. Functions return FEEDD_OK or a negative enum feedd_status and then fill *err (which may be NULL) with
 * one line for a person; outputs are untouched on failure. A pointer that is returned is borrowed; one that is handed
 * out through an out parameter is the caller's to close.
 *
 * Threads. A client and its streams belong to one thread at a time; different clients are independent. The library
 * starts no thread for batches in host memory, and one for a client that gives batches on a GPU back or lends them
 * through DLPack.
 *
 * GPUs. With options.device batches lie in the memory of a GPU, and nothing of them is copied to this process: the
 * daemon copies each once, for all. They are there when feedd_next() hands them out. feedd_normalize() enqueues a
 * kernel on the caller's own CUDA stream; feedd_release() returns at once, and the batch goes back when that stream has
 * got there. The library uses the primary contexts, as frameworks do, and makes none of its own; it leaves the current
 * device as it was. `struct CUstream_st *` is CUDA's cudaStream_t; NULL is the default stream, and what calls about
 * host memory take. A write to a batch on a GPU isn't prevented, and spoils it for the whole group; with transport "fd"
 * it is, and ends the writer. With transport "host" batches are in host memory, which the GPU may read at full speed:
 * views, feedd_batch_read() and DLPack tensors are the CPU's, and feedd_normalize() and feedd_batch_copy() bring fields
 * to the GPU's memory.
 *
 * Fork. After fork() the child must not use what the parent connected: calls answer FEEDD_E_FORK. The child may call
 * feedd_stream_close() and feedd_client_close(), which only free its own copy; the parent notices nothing.
 *
 * Strict C99 and C++. */
#ifndef FEEDD_H
#define FEEDD_H

#include <stddef.h>
#include <stdint.h>

#include "feedd_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;  /* *cudaStream_t */
struct feedd_client; /* a connection to the daemon */
struct feedd_stream; /* one ordered sequence of batches */
struct feedd_batch;  /* one batch that the caller has borrowed */
struct feedd_normalize_options;

/* "0.1.0": of the library that is loaded. */
const char *feedd_version(void);

/* The short name of a status: "not found", "timeout". Never NULL. */
const char *feedd_status_name(int status);

/* Bytes of one element of an enum feedd_dtype, 0 for an unknown one; and its name ("u8", "i64"), NULL likewise. */
uint32_t feedd_dtype_bytes(int dtype);
const char *feedd_dtype_name(int dtype);

/* Connects to the daemon.
 * @param socket_path  NULL: $FEEDD_SOCKET, or else /run/feedd/feedd.sock
 * @return FEEDD_E_CONNECTION (nobody listens there), FEEDD_E_VERSION (a daemon of another protocol), FEEDD_E_LIMIT
 * (it has as many clients as it may), FEEDD_E_TIMEOUT (it doesn't answer within 10 s) */
int feedd_connect(const char *socket_path, struct feedd_client **out, struct feedd_error *err);

/* Closes the connection and every stream of it that is still open. NULL is allowed. */
void feedd_client_close(struct feedd_client *client);

/* What to open. Begin with FEEDD_OPEN_OPTIONS_INIT: 0 and NULL mean "as the stream is configured", or for a dataset
 * the default in brackets. Strings are copied. */
struct feedd_open_options {
    size_t size;              /* of this structure: tells the library which of its members the caller knows */
    uint32_t batch_size;      /* samples [64] */
    int32_t order;            /* enum feedd_order [sequential] */
    int32_t tail;             /* enum feedd_tail [drop] */
    int32_t has_seed;         /* 1: `seed` counts, also when it is 0 */
    uint64_t seed;            /* [0] */
    int32_t has_epochs;       /* 1: `epochs` counts, also when it is 0 */
    uint32_t rank;            /* this process among world_size [0] */
    uint64_t epochs;          /* the stream ends where this epoch would begin, epochs counted from 0; 0 = endless [0] */
    uint32_t world_size;      /* [1] */
    uint32_t depth;           /* slots of the ring [64 MiB worth, 4 to 64] */
    const char *resume;       /* token text: begin where it says; its order and seed hold unless given above */
    int32_t resume_force;     /* 1: accept a token of another dataset, order or seed */
    int32_t share;            /* enum feedd_share [private] */
    const char *device;       /* where the batches shall be: "host" (or NULL, ""); "cuda", the calling thread's current
                               * device; "cuda:N"; a UUID as nvidia-smi -L prints it: that GPU or an error; "auto": as
                               * "cuda", or the host where that can't be had, and schema.mode_reason says why */
    const char *group;        /* of broadcast: its name, among those of this user [the source] */
    uint32_t members;         /* of the group; 0: any number [any] */
    int32_t join;             /* enum feedd_join [gate with members, else now] */
    uint32_t gate_timeout_ms; /* how long a gate waits for the members; the stream fails then [600,000] */
    /* 1: survive a restart of the daemon. feedd_next() connects and opens again, where the caller stands: no batch is
     * missed or repeated, groups form again. Batches that are held stay readable; so do those announced before. */
    int32_t reconnect;
    uint32_t reconnect_timeout_ms; /* how long to try; then feedd_next() answers FEEDD_E_CONNECTION [60,000] */
    const char *transform;         /* as feedd.conf(5) has it behind `transform:`, in its place; JSON is right, too */
    /* How batches that are wanted on a GPU get there: "ipc" (CUDA IPC), "fd" (a descriptor of GPU memory that this
     * process maps read-only, so that a write of its own can't spoil a batch for others), "host" (host memory that the
     * GPU reads: the library copies what feedd_normalize() and feedd_batch_copy() are asked for), or "auto": the first
     * of these that works, and schema.mode_reason says why not those before it [$FEEDD_TRANSPORT, or auto]. Batches for
     * the CPU come by "host" */
    const char *transport;
    int32_t normalize; /* enum feedd_normalize_mode: who makes `output`; 0: the caller with feedd_normalize(), where
                        * this library can run its kernel, else the daemon [0] */
    /* What images are wanted as. With normalize = daemon or cpu, or where 0 comes to that, this is what slots hold, and
     * the schema's field has its dtype and shape; no windows, height and width 0. Copied; NULL: uint8 as decoded */
    const struct feedd_normalize_options *output;
};
#define FEEDD_OPEN_OPTIONS_INIT                                                                                        \
    {                                                                                                                  \
        sizeof(struct feedd_open_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, NULL, NULL, 0, 0, 0, 0, 0, NULL,  \
            NULL, 0, NULL                                                                                              \
    }

/* Opens a stream of the daemon's configuration, or a dataset with defaults. Waits while the daemon indexes the dataset.
 * @param source   name of a stream, or else of a dataset
 * @param options  NULL: all defaults
 * @return FEEDD_E_NOT_FOUND, FEEDD_E_ARGUMENT (a spec that makes no sense, or another one than the group's),
 * FEEDD_E_TOKEN, FEEDD_E_LIMIT, FEEDD_E_STATE (the group stands elsewhere than the token), FEEDD_E_MEMORY, FEEDD_E_IO,
 * FEEDD_E_CORRUPT (the dataset), FEEDD_E_DEVICE (no such GPU, or by that transport its memory can't be had),
 * FEEDD_E_UNSUPPORTED (normalize and transport don't go together), FEEDD_E_ACCESS */
int feedd_open(struct feedd_client *client, const char *source, const struct feedd_open_options *options,
               struct feedd_stream **out, struct feedd_error *err);

/* The same in two steps, for those who have something else to do while the daemon indexes the dataset. begin() asks;
 * until wait() has returned FEEDD_OK the stream can only be waited for or closed.
 * @param timeout_ms  0: don't wait; -1: wait for ever
 * @return of wait(): what feedd_open() does, and FEEDD_E_TIMEOUT: not yet. The stream has to be closed also after a
 * failure */
int feedd_open_begin(struct feedd_client *client, const char *source, const struct feedd_open_options *options,
                     struct feedd_stream **out, struct feedd_error *err);
int feedd_open_wait(struct feedd_stream *stream, int timeout_ms, struct feedd_error *err);

/* Gives back every batch that is held and closes the stream. Batches of it must not be touched afterwards. On a GPU it
 * waits: for what batches that were given back wait for, and, while batches are held, for all work of the device, which
 * no CUDA graph may be captured at the same time for.
 * What is lent through DLPack stays valid, and its bytes unchanged. While it is, the stream is there for the daemon as
 * one whose client takes nothing: members of its group wait for what is lent as for any batch that is held. */
void feedd_stream_close(struct feedd_stream *stream);

/* One named array of the stream's batches. */
struct feedd_field {
    const char *name;               /* "image", "label", "index"; lives as long as the stream */
    int32_t dtype;                  /* enum feedd_dtype */
    uint32_t ndim;                  /* dimensions of one sample; 0 = a scalar */
    uint64_t shape[FEEDD_MAX_DIMS]; /* of one sample: height, width, channels for an image */
};

/* What a stream delivers: the effective values, constant while it is open. Pointers live as long as the stream. */
struct feedd_schema {
    const char *source;  /* as opened */
    const char *dataset; /* name of the dataset */
    uint64_t sample_count;
    uint64_t steps_per_epoch; /* batches a rank gets in a whole epoch */
    uint32_t field_count;
    const struct feedd_field *fields;
    uint32_t class_count;           /* 0: no classes */
    const char *const *class_names; /* class_count names, or NULL where the dataset has none */
    uint32_t batch_size, depth, rank, world_size;
    int32_t order, tail; /* enum feedd_order, enum feedd_tail */
    uint64_t seed, epochs;
    int32_t share;           /* enum feedd_share */
    const char *group;       /* its name, "" when private */
    uint64_t slot_bytes;     /* of one batch in the ring */
    const char *transport;   /* how batches are mapped: "host", "ipc", "fd" */
    const char *mode_reason; /* why that one, and why normalised so, for a person */
    const char *device;      /* UUID of the GPU that batches are for; "": none, they are for the CPU */
    int32_t device_ordinal;  /* CUDA's number of it in this process; -1: none */
    int32_t normalize;     /* enum feedd_normalize_mode, the effective one: with FEEDD_NORMALIZE_CLIENT images are uint8
                            * and the caller's to normalise */
    int32_t views_on_host; /* 1: views are in host memory: without a GPU, or with transport "host" */
};
const struct feedd_schema *feedd_stream_schema(const struct feedd_stream *stream);

/* Borrows the next batch, in order. It stays valid, and its bytes unchanged, until it is released.
 * @param timeout_ms  0: don't wait; -1: wait for ever
 * @return FEEDD_E_TIMEOUT; FEEDD_E_END (the last batch has been delivered); FEEDD_E_LEASES (not without a release
 * first: the oldest batch that the caller holds is depth - 1 batches old); FEEDD_E_SHUTDOWN, FEEDD_E_CONNECTION (the
 * daemon stops, or has gone); FEEDD_E_IO, FEEDD_E_CORRUPT (the stream failed, or its gate) */
int feedd_next(struct feedd_stream *stream, int timeout_ms, const struct feedd_batch **out, struct feedd_error *err);

/* Gives a batch back; views of it must not be used by anything that is enqueued later. Batches may be released in any
 * order. One that is lent through DLPack goes back when the last of its tensors is deleted.
 * @param cuda_stream  for a GPU: the batch goes back when this stream has done what it has been given up to now. Other
 *                     streams that read the batch have to be waited for by it (cudaStreamWaitEvent). Else NULL
 * @return FEEDD_E_STATE when it is not held, or the stream is being captured into a CUDA graph; FEEDD_E_DEVICE, _MEMORY
 */
int feedd_release(const struct feedd_batch *batch, struct CUstream_st *cuda_stream, struct feedd_error *err);

/* A file descriptor that is readable when feedd_next(stream, 0, ...) may have something: a batch, the end, an error.
 * For poll, select, epoll, libuv; the library's own: don't read or close it. It may be readable without need.
 * @return the descriptor, or a negative status */
int feedd_stream_fd(struct feedd_stream *stream, struct feedd_error *err);

/* What a batch is. */
struct feedd_batch_info {
    uint64_t seq;           /* number of the batch since the stream, or its group, began; goes on over reconnecting */
    uint64_t epoch;         /* all its samples are of this epoch */
    uint64_t position;      /* of its first sample in the epoch's order, over all ranks */
    uint32_t count;         /* samples, padding included: the first dimension of every view */
    uint32_t valid;         /* the first `valid` samples are real, the others padding */
    const int64_t *indices; /* count sample indices in the dataset; valid as long as the batch */
    const uint32_t *flags;  /* count values of enum feedd_sample_flag */
    uint64_t time_ns[FEEDD_TIME_COUNT]; /* enum feedd_time: CLOCK_MONOTONIC of the daemon's machine */
    uint64_t next_epoch, next_position; /* where all ranks stand after it; next_epoch > epoch: it is the epoch's last */
};
void feedd_batch_info(const struct feedd_batch *batch, struct feedd_batch_info *out);

/* One field of a batch. */
struct feedd_view {
    const void *data; /* read-only: in host memory a write is a segmentation fault; on a GPU an address of its memory.
                       * 256-byte aligned, C order, no gaps */
    int32_t dtype;    /* enum feedd_dtype */
    uint32_t ndim;    /* with the batch dimension first */
    uint64_t shape[FEEDD_MAX_DIMS + 1];
    uint64_t bytes;
};

/* @param field  number in the schema. @return FEEDD_E_NOT_FOUND for another number */
int feedd_batch_view(const struct feedd_batch *batch, uint32_t field, struct feedd_view *out);

/* Copies one field to host memory, from wherever it is, and waits for that.
 * @return FEEDD_E_NOT_FOUND, FEEDD_E_LIMIT (out_bytes is less than the view's), FEEDD_E_DEVICE */
int feedd_batch_read(const struct feedd_batch *batch, uint32_t field, void *out, size_t out_bytes,
                     struct feedd_error *err);

/* Copies one field as it is into memory of the caller's: for a GPU enqueues that and returns.
 * @param out          of the GPU that batches are for (schema.device), also when they are in host memory; without one
 *                     host memory
 * @param cuda_stream  for a GPU: what the copy is enqueued on; else NULL
 * @return FEEDD_E_NOT_FOUND, FEEDD_E_LIMIT (out_bytes is less than the view's), FEEDD_E_STATE (the batch is not held,
 * or the stream is being captured into a CUDA graph), FEEDD_E_DEVICE */
int feedd_batch_copy(const struct feedd_batch *batch, uint32_t field, void *out, size_t out_bytes,
                     struct CUstream_st *cuda_stream, struct feedd_error *err);

/* Lends one field as a DLPack tensor: its bytes where they are, to be read only. The caller has to release the batch
 * all the same; it goes back when that is done and every tensor of it is deleted, for a GPU when the streams that are
 * known to read it have got to where they stand then. The tensor's deleter may be called from any thread, at any time,
 * also after the stream and the client are closed; it waits for nothing. In a forked child it only frees its own copy.
 * @param versioned    0: a DLManagedTensor, as DLPack 0.8 has it; 1: a DLManagedTensorVersioned of DLPack 1.0, which
 *                     says that it is read-only
 * @param cuda_stream  on a GPU: what the tensor is read on; else NULL. A tensor in host memory is the CPU's, with
 *                     transport "host" too: streams that copy from it are told by feedd_batch_record()
 * @param out          gets the structure, which is the caller's to delete or to hand on
 * @return FEEDD_E_NOT_FOUND, FEEDD_E_STATE (the batch is not held), FEEDD_E_LIMIT (as feedd_batch_record()),
 * FEEDD_E_MEMORY */
int feedd_batch_dlpack(const struct feedd_batch *batch, uint32_t field, int versioned, struct CUstream_st *cuda_stream,
                       void **out, struct feedd_error *err);

/* A batch that is lent is read on this stream too. @return FEEDD_E_STATE (it isn't lent), FEEDD_E_LIMIT (4 other
 * streams are known already) */
int feedd_batch_record(const struct feedd_batch *batch, struct CUstream_st *cuda_stream, struct feedd_error *err);

/* For Python, to which the library is not linked: the destructor of a PyCapsule around such a tensor, which deletes it
 * unless somebody has taken it.
 * @param is_valid, get_pointer  PyCapsule_IsValid and PyCapsule_GetPointer
 * @return a function, for PyCapsule_New() */
void *feedd_capsule_destructor(int (*is_valid)(void *capsule, const char *name),
                               void *(*get_pointer)(void *capsule, const char *name));

/* What feedd_normalize() makes of an image field. Begin with FEEDD_NORMALIZE_OPTIONS_INIT.
 *   out = (x - mean * scale) / (std * scale), per channel; mean and std in 0..1 as in torchvision; mean = std = 0.5 and
 * scale = 255 give (x - 127.5) / 127.5. Without mean and std set mean = 0, std = 1: x / scale. The arithmetic, to the
 * bit: normalize.h. dtype FEEDD_U8 delivers the pixels as they are. */
struct feedd_normalize_options {
    size_t size;            /* of this structure */
    int32_t dtype;          /* FEEDD_U8, FEEDD_I8 (rounded half to even, saturated), FEEDD_F16, FEEDD_BF16, FEEDD_F32 */
    int32_t nchw;           /* 1: planes {count, channels, height, width}; 0: {count, height, width, channels} */
    uint32_t height, width; /* of the output, at most the field's; 0: the field's */
    double mean[4], std[4], scale;
    const struct feedd_window *windows; /* of each sample, count entries in host memory, read during the call; NULL:
                                         * from 0, 0, not mirrored */
};
#define FEEDD_NORMALIZE_OPTIONS_INIT                                                                                   \
    {                                                                                                                  \
        sizeof(struct feedd_normalize_options), FEEDD_F32, 1, 0, 0, {0, 0, 0, 0}, {1, 1, 1, 1}, 255, NULL              \
    }

/* Which part of one sample is taken; it has to lie within the field. */
struct feedd_window {
    uint32_t y, x; /* of the first row and column */
    uint32_t flip; /* 1: mirrored left to right */
};

/* Crops, mirrors, normalises, casts and lays out a uint8 image field into memory of the caller's, in one pass. On a
 * GPU: enqueues that, one kernel (with windows one for each 256 samples), and returns. The same bits on both. From host
 * memory for a GPU (transport "host") the field goes by way of device memory of the library's, as much as a slot; calls
 * on several streams then take turns.
 * @param field      number in the schema: uint8 of {height, width, 1 to 4 channels}
 * @param out        of the GPU that batches are for (schema.device), without one host memory; aligned to the element,
 *                   not overlapping the batch; every byte of the result is written
 * @param out_bytes  of `out`: count x height x width x channels x element size are needed
 * @param cuda_stream  for a GPU: what the kernel is enqueued on; else NULL
 * @return FEEDD_E_ARGUMENT (what makes no sense), FEEDD_E_LIMIT (out_bytes is too small), FEEDD_E_STATE (the batch is
 * not held, the daemon has normalised it already (schema.normalize), or the stream is being captured into a CUDA graph:
 * replays would read what lies in the slot by then), FEEDD_E_DEVICE, FEEDD_E_MEMORY */
int feedd_normalize(const struct feedd_batch *batch, uint32_t field, const struct feedd_normalize_options *options,
                    void *out, size_t out_bytes, struct CUstream_st *cuda_stream, struct feedd_error *err);

/* The resume token of what feedd_next() has handed out so far; of where the stream began before the first batch.
 * @param text  FEEDD_TOKEN_TEXT bytes; gets a terminated line of printable ASCII */
void feedd_stream_token(const struct feedd_stream *stream, char text[FEEDD_TOKEN_TEXT]);

/* Where a token stands: the next sample's epoch and position. @return FEEDD_E_TOKEN: `token` is none */
int feedd_token_read(const char *token, uint64_t *epoch, uint64_t *position, struct feedd_error *err);

/* The token of the same dataset, order and seed that stands elsewhere: at the start of an epoch, or where a batch's
 * info says that the next one begins. @return FEEDD_E_TOKEN: `token` is none */
int feedd_token_move(const char *token, uint64_t epoch, uint64_t position, char out[FEEDD_TOKEN_TEXT],
                     struct feedd_error *err);

struct feedd_stream_stats {
    uint64_t batches, samples; /* handed out */
    uint64_t wait_ns;          /* that feedd_next() waited for the daemon */
    uint32_t held;             /* batches that the caller holds now */
    uint32_t ready;            /* batches that are there and not yet taken */
    uint32_t members;          /* of the group, as last told */
    uint32_t reconnects;       /* restarts of the daemon survived */
    uint32_t away;             /* 1: the daemon has gone, and feedd_next() looks for it */
};
void feedd_stream_stats(const struct feedd_stream *stream, struct feedd_stream_stats *out);

/* The daemon's own account of itself, its streams and clients, as one JSON object (documented in feedctl(1)).
 * @param out  gets terminated text, to be freed with free() */
int feedd_status_json(struct feedd_client *client, char **out, struct feedd_error *err);

/* Likewise: the bad samples that the daemon has met, by dataset. */
int feedd_errors_json(struct feedd_client *client, char **out, struct feedd_error *err);

/* How a verification is to be made. Begin with FEEDD_VERIFY_OPTIONS_INIT. */
struct feedd_verify_options {
    size_t size;         /* of this structure */
    uint32_t errors_max; /* bad samples that the report lists; all are counted */
};
#define FEEDD_VERIFY_OPTIONS_INIT                                                                                      \
    {                                                                                                                  \
        sizeof(struct feedd_verify_options), 10000                                                                     \
    }

/* How far a verification has come. */
struct feedd_verify_progress {
    uint64_t done, total; /* samples; total is 0 while the dataset is being opened */
    uint64_t bad;         /* samples so far */
    uint64_t bytes;       /* of encoded images that were read so far */
};

/* Has the daemon read and decode every sample of a dataset in full, and waits for the outcome, which may take hours.
 * The work is the daemon's; its streams come first.
 * @param source    name of a dataset or a split, or of a stream: what that reads
 * @param options   NULL: all defaults
 * @param progress  called some five times a second, also while nothing comes; must not use the client. When it returns
 *                  another value than 0, the verification is cancelled, and it is not called again. NULL: no progress
 * @param out       gets the report, terminated text, to be freed with free() (documented in feedctl(1)); when it was
 *                  cancelled, of what had been checked by then: "complete" is false
 * @return FEEDD_OK, whether samples are bad or not; FEEDD_E_NOT_FOUND, FEEDD_E_ACCESS, FEEDD_E_LIMIT (as many
 * verifications are under way as the daemon does at a time), FEEDD_E_STATE (cancelled while the dataset was being
 * opened), FEEDD_E_IO (the file system doesn't answer), FEEDD_E_MEMORY, and what feedd_open() says of a dataset */
int feedd_verify(struct feedd_client *client, const char *source, const struct feedd_verify_options *options,
                 int (*progress)(void *arg, const struct feedd_verify_progress *so_far), void *arg, char **out,
                 struct feedd_error *err);

/* What a person would call a sample of the stream's dataset: its path, or file and number.
 * @param index  as in feedd_batch_info.indices
 * @param out    gets the text, as the file system has it, to be freed with free()
 * @return FEEDD_E_NOT_FOUND: there is no such sample; FEEDD_E_CONNECTION: not while the daemon is away */
int feedd_sample_path(struct feedd_stream *stream, uint64_t index, char **out, struct feedd_error *err);

#ifdef __cplusplus
}
#endif
#endif
