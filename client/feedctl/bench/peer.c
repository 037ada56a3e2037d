/* peer.c - the process that feeds another one: both sides of it.
 *
 * Happy path: the parent sends a request -> the child makes memory and streams, and answers with a handle -> the parent
 * opens it and says go -> the child sends READY for each batch, whose slot the parent gives back by a release -> the
 * parent closes the memory and says so -> the child frees it.
 * What can fail: the child's GPU work, in the answer or in a READY; either process may go, which the other reads as the
 * end of its socket. Threads: one on either side. */
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "error.h"
#include "gpu.h"
#include "ways.h"

extern char **environ;

struct peer {
    pid_t pid;
    int socket; /* SOCK_SEQPACKET, as the daemon's */
};

/* What goes over the socket: both ends are the same program. */
struct request {
    struct normalize_params params;
    uint64_t count; /* batches */
    bool pinned, pipelined;
};

struct answer {
    struct feedd_error err; /* status 0: there is a handle */
    uint8_t handle[GPU_HANDLE_BYTES];
};

struct ready {
    struct feedd_error err; /* status 0: the slot is ready, else the feeding has ended */
    double began_s;         /* CLOCK_MONOTONIC, before its copy was submitted */
};

/* From the parent, after the request: go, the oldest slot is free, the memory is closed. */
struct word {
    bool go; /* of the first one: false when the memory could not be opened; then nothing follows */
};

static int gone(struct feedd_error *err)
{
    return error_set(err, FEEDD_E_CONNECTION, "the process that normalises has ended");
}

static bool put(int socket, const void *message, size_t bytes)
{
    ssize_t n;
    while ((n = send(socket, message, bytes, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        ;
    return n == (ssize_t)bytes;
}

static bool get(int socket, void *message, size_t bytes)
{
    ssize_t n;
    while ((n = recv(socket, message, bytes, 0)) < 0 && errno == EINTR)
        ;
    return n == (ssize_t)bytes;
}

/* ---- the parent ---- */

int peer_start(struct peer **out, struct feedd_error *err)
{
    char program[] = "feedctl", bench[] = "bench", command[] = PEER_COMMAND;
    char *arguments[] = {program, bench, command, NULL};
    posix_spawn_file_actions_t actions;
    int sockets[2];
    struct peer *peer = calloc(1, sizeof(*peer));
    if (peer == NULL)
        return error_set(err, FEEDD_E_MEMORY, "out of memory");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
        free(peer);
        return error_set(err, FEEDD_E_IO, "a socket: %s", strerror(errno));
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, sockets[1], STDIN_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const int error = posix_spawn(&peer->pid, "/proc/self/exe", &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(sockets[1]);
    peer->socket = sockets[0];
    if (error != 0) {
        close(sockets[0]);
        free(peer);
        return error_set(err, FEEDD_E_IO, "a second process: %s", strerror(error));
    }
    *out = peer;
    return 0;
}

void peer_stop(struct peer *peer)
{
    if (peer == NULL)
        return;
    close(peer->socket);
    while (waitpid(peer->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    free(peer);
}

/* Takes READY after READY. @param us  count of them: the time of each batch, or between it and the one before */
static int take(const struct peer *peer, size_t count, bool pipelined, double *us, struct feedd_error *err)
{
    const struct word release = {true};
    double before_s = 0;
    for (size_t i = 0; i < count; i++) {
        struct ready ready;
        if (!get(peer->socket, &ready, sizeof(ready)))
            return gone(err);
        const double now_s = bench_now_s();
        if (ready.err.status != 0) {
            *err = ready.err;
            return ready.err.status;
        }
        us[i] = (now_s - (pipelined ? before_s : ready.began_s)) * 1e6;
        before_s = now_s;
        if (!put(peer->socket, &release, sizeof(release)))
            return gone(err);
    }
    return 0;
}

/* What follows the child's answer. @param us  count of them */
static int receive(const struct peer *peer, const struct answer *answer, size_t count, bool pipelined, double *us,
                   struct feedd_error *err)
{
    void *memory;
    int status = gpu_memory_import(answer->handle, &memory, err);
    const struct word go = {status == 0}, closed = {true};
    if (!put(peer->socket, &go, sizeof(go)))
        return gone(err);
    if (status != 0)
        return status;
    status = take(peer, count, pipelined, us, err);
    gpu_memory_close(memory);
    return put(peer->socket, &closed, sizeof(closed)) || status != 0 ? status : gone(err);
}

int peer_feed(struct peer *peer, const struct normalize_params *params, bool pinned, bool pipelined, size_t count,
              double *us, struct feedd_error *err)
{
    const size_t all = count + WAYS_SLOTS; /* the first ones fill the ring */
    const struct request request = {.params = *params, .count = all, .pinned = pinned, .pipelined = pipelined};
    struct answer answer;
    double *times = calloc(all, sizeof(*times));
    if (times == NULL)
        return error_set(err, FEEDD_E_MEMORY, "out of memory");
    int status;
    if (!put(peer->socket, &request, sizeof(request)) || !get(peer->socket, &answer, sizeof(answer)))
        status = gone(err);
    else if ((status = answer.err.status) != 0)
        *err = answer.err;
    else
        status = receive(peer, &answer, all, pipelined, times, err);
    if (status == 0 && pipelined) {
        double sum = 0;
        for (size_t i = WAYS_SLOTS; i < all; i++)
            sum += times[i];
        *us = sum / (double)count;
    } else if (status == 0) {
        *us = bench_median(times + WAYS_SLOTS, count);
    }
    free(times);
    return status;
}

/* ---- the child ---- */

static bool readable(int socket)
{
    struct pollfd p = {.fd = socket, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

struct feeding {
    struct ways ways;
    uint64_t submitted, ready, released; /* batches; each at most the one before */
    double began_s[WAYS_SLOTS];
};

/* Waits for the oldest batch, and says that it is ready. */
static int announce(struct feeding *f, struct ready *ready)
{
    const unsigned slot = (unsigned)(f->ready % WAYS_SLOTS);
    ready->began_s = f->began_s[slot];
    if (gpu_event_wait(f->ways.slots[slot].done, &ready->err) != 0)
        return ready->err.status;
    if (!put(STDIN_FILENO, ready, sizeof(*ready)))
        return FEEDD_E_CONNECTION;
    f->ready++;
    return 0;
}

/* @return 0; FEEDD_E_CONNECTION: the parent has gone; else what has failed, in *ready */
static int feed(struct feeding *f, const struct request *request, struct ready *ready)
{
    const unsigned depth = request->pipelined ? WAYS_SLOTS : 1;
    struct word release;
    int status = 0;
    while (status == 0 && f->released < request->count) {
        if (f->submitted < request->count && f->submitted - f->released < depth) {
            const unsigned slot = (unsigned)(f->submitted++ % WAYS_SLOTS);
            f->began_s[slot] = bench_now_s();
            status = ways_submit(&f->ways, WAY_CLIENT, &f->ways.slots[slot], false, &ready->err);
        } else if (f->ready < f->submitted && !readable(STDIN_FILENO)) {
            status = announce(f, ready);
        } else if (get(STDIN_FILENO, &release, sizeof(release))) {
            f->released++;
        } else {
            status = FEEDD_E_CONNECTION;
        }
    }
    return status;
}

/* One request, with its memory in place. @return whether the parent is still there */
static bool serve(struct feeding *f, const struct request *request)
{
    struct ready ready = {.began_s = 0};
    struct word word;
    if (!get(STDIN_FILENO, &word, sizeof(word)))
        return false;
    if (!word.go)
        return true;
    const int status = feed(f, request, &ready);
    if (status == FEEDD_E_CONNECTION)
        return false;
    if (status != 0) { /* it has been told of by nothing so far */
        if (!put(STDIN_FILENO, &ready, sizeof(ready)))
            return false;
        for (; f->released < f->ready; f->released++)
            if (!get(STDIN_FILENO, &word, sizeof(word)))
                return false;
    }
    return get(STDIN_FILENO, &word, sizeof(word));
}

int peer_serve(void)
{
    struct ways_memory memory = {.pixels = {.at = NULL}};
    struct request request;
    bool connected = true;
    while (connected && get(STDIN_FILENO, &request, sizeof(request))) {
        struct feeding f = {.submitted = 0};
        struct answer answer = {.err = {.status = 0}};
        const struct ways_spec spec = {
            .params = request.params, .pinned = request.pinned, .gpu = true, .blocking = true};
        answer.err.status = ways_init(&f.ways, &spec, &memory, &answer.err);
        const bool made = answer.err.status == 0;
        if (made)
            answer.err.status = gpu_memory_export(f.ways.gpu_normals, answer.handle, &answer.err);
        connected = put(STDIN_FILENO, &answer, sizeof(answer));
        if (connected && answer.err.status == 0)
            connected = serve(&f, &request);
        if (made)
            ways_done(&f.ways);
    }
    ways_memory_delete(&memory);
    return 0;
}
