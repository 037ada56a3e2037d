/* wire.c - see wire.h.
 *
 * Happy path: recvmsg -> header checked -> body unpacked into an arena; pack -> sendmsg.
 * What can fail: anything that a peer sends. A packet that was cut (MSG_TRUNC), descriptors that were cut
 * (MSG_CTRUNC) or not asked for, another magic or version: refused, and every descriptor that arrived is closed. */
#include "wire.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "error.h"

void wire_packet_drop(struct wire_packet *packet)
{
    while (packet->fd_count > 0)
        close(packet->fds[--packet->fd_count]);
}

/* Takes the descriptors out of the control data: all of them, so that none leaks. */
static void collect_fds(struct msghdr *message, struct wire_packet *packet)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (packet->fd_count < WIRE_MAX_FDS)
                packet->fds[packet->fd_count++] = fd;
            else
                close(fd);
        }
    }
}

static int check_packet(const struct msghdr *message, const uint8_t *buffer, size_t bytes, size_t max_bytes,
                        uint32_t max_fds, struct wire_packet *packet, struct feedd_error *err)
{
    struct wire_header header;
    if (message->msg_flags & MSG_CTRUNC || packet->fd_count > max_fds)
        return error_set(err, FEEDD_E_PROTOCOL, "a packet with descriptors that nobody asked for");
    if (message->msg_flags & MSG_TRUNC)
        return error_set(err, FEEDD_E_PROTOCOL, "a packet of more than %zu bytes", max_bytes);
    if (bytes < sizeof(header))
        return error_set(err, FEEDD_E_PROTOCOL, "a packet of %zu bytes, shorter than its header", bytes);
    memcpy(&header, buffer, sizeof(header));
    if (header.magic != WIRE_MAGIC)
        return error_set(err, FEEDD_E_PROTOCOL, "a packet that doesn't begin with feedd's magic");
    if (header.version != WIRE_VERSION)
        return error_set(err, FEEDD_E_VERSION,
                         "the other side speaks protocol version %u, this one %u: install matching feedd and libfeedd",
                         header.version, WIRE_VERSION);
    packet->type = header.type;
    packet->body = buffer + sizeof(header);
    packet->body_bytes = bytes - sizeof(header);
    return 0;
}

int wire_receive(int fd, uint8_t *buffer, size_t max_bytes, uint32_t max_fds, struct wire_packet *out,
                 struct feedd_error *err)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * WIRE_MAX_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {buffer, max_bytes};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t received;
    bool reset = false; /* a peer that closed with our packets unread: its last words come behind the error */
    do {
        received = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (received < 0 && (errno == EINTR || (errno == ECONNRESET && !reset && (reset = true))));
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return FEEDD_E_TIMEOUT;
    if (received < 0)
        return error_set(err, FEEDD_E_CONNECTION, "the connection broke: %s", strerror(errno));
    struct wire_packet packet = {0};
    collect_fds(&message, &packet);
    if (received == 0 && packet.fd_count == 0 && !(message.msg_flags & MSG_CTRUNC))
        return error_set(err, FEEDD_E_CONNECTION, "the other side has closed the connection");
    int status = check_packet(&message, buffer, (size_t)received, max_bytes, max_fds, &packet, err);
    if (status != 0) {
        wire_packet_drop(&packet);
        return status;
    }
    *out = packet;
    return 0;
}

size_t wire_pack(uint8_t *buffer, size_t size, enum wire_type type, const ProtobufCMessage *message)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    struct wire_header header = {WIRE_MAGIC, WIRE_VERSION, (uint16_t)type, 0};
    if (bytes + sizeof(header) > size)
        return 0;
    memcpy(buffer, &header, sizeof(header));
    protobuf_c_message_pack(message, buffer + sizeof(header));
    return bytes + sizeof(header);
}

int wire_send(int fd, const uint8_t *packet, size_t bytes, const int *fds, uint32_t fd_count)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * WIRE_MAX_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {(void *)(uintptr_t)packet, bytes};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd_count > 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
    }
    ssize_t sent;
    do {
        sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0)
        return 0;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS ? FEEDD_E_TIMEOUT
                                                                                                : FEEDD_E_CONNECTION;
}

static void *arena_alloc(void *arg, size_t size)
{
    struct wire_arena *arena = arg;
    size_t rounded = (size + 15) & ~(size_t)15;
    if (rounded < size || rounded > sizeof(arena->bytes) - arena->used)
        return NULL;
    void *memory = arena->bytes + arena->used;
    arena->used += rounded;
    return memory;
}

static void arena_free(void *arg, void *memory)
{
    (void)arg, (void)memory; /* all at once, by the next wire_unpack() */
}

void wire_arena_init(struct wire_arena *arena)
{
    arena->allocator = (ProtobufCAllocator){arena_alloc, arena_free, arena};
    arena->used = 0;
}

void *wire_unpack(struct wire_arena *arena, const ProtobufCMessageDescriptor *type, const struct wire_packet *packet)
{
    arena->used = 0;
    return protobuf_c_message_unpack(type, &arena->allocator, packet->body_bytes, packet->body);
}
