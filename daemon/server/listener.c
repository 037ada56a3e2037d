/* listener.c - see listener.h.
 *
 * Happy path: (LISTEN_FDS | lock -> probe -> bind -> listen) -> poll -> accept4 -> connection_new().
 * What can fail: another daemon, a file in the way, no right to make files there; later, descriptors run out: then
 * accepting pauses for a tick, clients wait in the backlog. */
#include "listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "connection.h"
#include "error.h"
#include "log.h"
#include "server.h"

#define LISTEN_FD      3 /* SD_LISTEN_FDS_START, sd_listen_fds(3) */
#define LISTEN_BACKLOG 128

static int socket_option(int fd, int option)
{
    int value = -1;
    socklen_t size = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

/* @return 1 and *fd when a socket was passed, 0 when none was, or an error */
static int passed_socket(int *fd, struct feedd_error *err)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    if (pid == NULL || count == NULL || strtol(pid, NULL, 10) != getpid())
        return 0;
    int sockets = atoi(count);
    unsetenv("LISTEN_PID"); /* not for children */
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (sockets == 0)
        return 0;
    if (sockets != 1 || socket_option(LISTEN_FD, SO_DOMAIN) != AF_UNIX ||
        socket_option(LISTEN_FD, SO_TYPE) != SOCK_SEQPACKET || socket_option(LISTEN_FD, SO_ACCEPTCONN) != 1)
        return error_set(
            err, FEEDD_E_ARGUMENT,
            "LISTEN_FDS passed %d descriptors; right is one listening Unix socket (ListenSequentialPacket=)", sockets);
    if (fcntl(LISTEN_FD, F_SETFD, FD_CLOEXEC) != 0 ||
        fcntl(LISTEN_FD, F_SETFL, fcntl(LISTEN_FD, F_GETFL) | O_NONBLOCK) != 0)
        return error_set(err, FEEDD_E_IO, "the socket passed by LISTEN_FDS: %s", strerror(errno));
    *fd = LISTEN_FD;
    return 1;
}

/* Locks PATH.lock: the file that is there, not one that its last owner has just removed. */
static int take_lock(struct listener *listener, struct feedd_error *err)
{
    char path[sizeof(listener->path) + 8];
    struct stat locked, there;
    snprintf(path, sizeof(path), "%s.lock", listener->path);
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return error_set(err, errno == EACCES || errno == EPERM ? FEEDD_E_ACCESS : FEEDD_E_IO, "lock file %s: %s%s",
                             path, strerror(errno), errno == ENOENT ? "; the folder has to exist" : "");
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            close(fd);
            return error_set(err, FEEDD_E_STATE,
                             "another feedd serves %s (it holds %s); stop it or use another --socket", listener->path,
                             path);
        }
        if (fstat(fd, &locked) == 0 && stat(path, &there) == 0 && locked.st_dev == there.st_dev &&
            locked.st_ino == there.st_ino) {
            listener->lock_fd = fd;
            return 0;
        }
        close(fd);
    }
}

/* Under the lock: whoever left a socket there is dead, unless it came by it in another way (systemd). */
static int clear_path(const struct sockaddr_un *address, struct feedd_error *err)
{
    struct stat st;
    if (lstat(address->sun_path, &st) != 0)
        return 0;
    if (!S_ISSOCK(st.st_mode))
        return error_set(err, FEEDD_E_ARGUMENT, "%s exists and is not a socket; move it away or use another --socket",
                         address->sun_path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(err, FEEDD_E_IO, "socket: %s", strerror(errno));
    int rc = connect(fd, (const struct sockaddr *)address, sizeof(*address));
    int reason = errno;
    close(fd);
    if (rc == 0 || reason == EAGAIN || reason == EPROTOTYPE)
        return error_set(err, FEEDD_E_STATE, "somebody serves %s already; stop it or use another --socket",
                         address->sun_path);
    if (reason != ECONNREFUSED)
        return error_set(err, FEEDD_E_IO, "%s: %s", address->sun_path, strerror(reason));
    log_info("replacing %s, which a daemon that has gone left behind", address->sun_path);
    if (unlink(address->sun_path) != 0)
        return error_set(err, FEEDD_E_IO, "removing %s: %s", address->sun_path, strerror(errno));
    return 0;
}

static int make_socket(struct listener *listener, struct feedd_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, listener->path, sizeof(address.sun_path));
    int status = take_lock(listener, err);
    if (status == 0)
        status = clear_path(&address, err);
    if (status != 0)
        return status;
    listener->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0)
        return error_set(err, FEEDD_E_IO, "socket: %s", strerror(errno));
    struct stat st;
    if (bind(listener->fd, (const struct sockaddr *)&address, sizeof(address)) != 0)
        return error_set(err, errno == EACCES ? FEEDD_E_ACCESS : FEEDD_E_IO, "bind %s: %s", listener->path,
                         strerror(errno));
    listener->bound = true;
    if (lstat(listener->path, &st) == 0) {
        listener->device = st.st_dev;
        listener->inode = st.st_ino;
    }
    /* Who may connect is decided by the peer's credentials, not by the file. */
    if (chmod(listener->path, 0666) != 0 || listen(listener->fd, LISTEN_BACKLOG) != 0)
        return error_set(err, FEEDD_E_IO, "%s: %s", listener->path, strerror(errno));
    return 0;
}

static void release(struct listener *listener)
{
    if (listener->fd >= 0)
        close(listener->fd);
    struct stat st;
    if (listener->bound && lstat(listener->path, &st) == 0 && st.st_dev == listener->device &&
        st.st_ino == listener->inode)
        unlink(listener->path);
    if (listener->lock_fd >= 0) {
        char path[sizeof(listener->path) + 8];
        snprintf(path, sizeof(path), "%s.lock", listener->path);
        unlink(path);
        close(listener->lock_fd);
    }
    listener->fd = listener->lock_fd = -1;
    listener->bound = false;
}

int listener_init(struct listener *listener, const char *path, struct feedd_error *err)
{
    memset(listener, 0, sizeof(*listener));
    listener->fd = listener->lock_fd = -1;
    int status = passed_socket(&listener->fd, err);
    if (status < 0)
        return status;
    if (status == 1) {
        log_info("listening on the socket that was passed");
        return 0;
    }
    if (strlen(path) >= sizeof(listener->path))
        return error_set(err, FEEDD_E_ARGUMENT, "socket path of %zu bytes: at most %zu are possible: %s", strlen(path),
                         sizeof(listener->path) - 1, path);
    strcpy(listener->path, path);
    status = make_socket(listener, err);
    if (status != 0)
        release(listener);
    else
        log_info("listening on %s", path);
    return status;
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct server *server = poll->data;
    (void)events;
    if (status < 0) {
        log_error("listening socket: %s", uv_strerror(status));
        return;
    }
    for (int i = 0; i < 16; i++) { /* then others have their turn */
        int fd = accept4(server->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            connection_new(server, fd);
            continue;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return;
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        log_error("accept: %s; clients have to wait", strerror(errno));
        listener_pause(&server->listener);
        return;
    }
}

int listener_start(struct listener *listener, struct server *server, struct feedd_error *err)
{
    int rc = uv_poll_init(&server->loop, &listener->poll, listener->fd);
    if (rc == 0) {
        listener->poll.data = server;
        listener->polling = true;
        rc = uv_poll_start(&listener->poll, UV_READABLE, on_readable);
    }
    return rc == 0 ? 0 : error_set(err, FEEDD_E_IO, "listening socket: %s", uv_strerror(rc));
}

void listener_pause(struct listener *listener)
{
    uv_poll_stop(&listener->poll);
    listener->paused = true;
}

void listener_resume(struct listener *listener)
{
    if (listener->paused && listener->polling)
        uv_poll_start(&listener->poll, UV_READABLE, on_readable);
    listener->paused = false;
}

void listener_close(struct listener *listener)
{
    if (listener->polling)
        uv_close((uv_handle_t *)&listener->poll, NULL);
    listener->polling = false;
    release(listener);
}
