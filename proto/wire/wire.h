/* wire.h - packets: sending and receiving messages and descriptors over a Unix SOCK_SEQPACKET socket.
 *
 * A packet is a message: no half frames. Header (8 bytes, host order: both ends are one machine) and a protobuf body.
 * Received descriptors are close-on-exec and belong to the caller. Everything that a peer can send is answered by a
 * status, never by a crash, and by at most WIRE_ARENA_BYTES of memory.
 * Thread-safe for different sockets, buffers and arenas. */
#ifndef FEEDD_WIRE_H
#define FEEDD_WIRE_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "feedd.pb-c.h"
#include "feedd_types.h"

#define WIRE_MAGIC       0xFEEDu
#define WIRE_VERSION     1u
#define WIRE_MAX_PACKET  65536u /* bytes of any packet, header included */
#define WIRE_MAX_HELLO   512u   /* bytes of a client's first packet */
#define WIRE_MAX_FDS     4u     /* descriptors of one packet */
#define WIRE_ARENA_BYTES (512u << 10)
#define WIRE_SOCKET      "/run/feedd/feedd.sock" /* where both sides look by default */

struct wire_header {
    uint16_t magic;
    uint16_t version;
    uint16_t type;  /* enum wire_type */
    uint16_t flags; /* 0 */
};
#define WIRE_HEADER_BYTES sizeof(struct wire_header)

enum wire_type {
    WIRE_HELLO = 1,
    WIRE_WELCOME = 2,
    WIRE_OPEN = 3,
    WIRE_STREAM = 4,
    WIRE_ATTACH = 5,
    WIRE_READY = 6,
    WIRE_RELEASE = 7,
    WIRE_END = 8,
    WIRE_CLOSE = 9,
    WIRE_STATUS = 10,
    WIRE_REPORT = 11,
    WIRE_ERROR = 12,
    WIRE_MEMBERS = 13,
    WIRE_VERIFY = 14,
    WIRE_PROGRESS = 15,
    WIRE_CANCEL = 16
};

/* One packet as received; the body lies in the caller's buffer. */
struct wire_packet {
    uint16_t type;
    const uint8_t *body;
    size_t body_bytes;
    int fds[WIRE_MAX_FDS];
    uint32_t fd_count;
};

/* Receives one packet without waiting.
 * @param buffer    WIRE_MAX_PACKET bytes
 * @param max_bytes what this peer may send now; more is refused
 * @param max_fds   likewise; descriptors beyond are closed and the packet refused
 * @return 0; FEEDD_E_TIMEOUT (nothing there); FEEDD_E_CONNECTION (the peer has closed);
 * FEEDD_E_VERSION, FEEDD_E_PROTOCOL (what came is not a packet of ours; no descriptor is left open) */
int wire_receive(int fd, uint8_t *buffer, size_t max_bytes, uint32_t max_fds, struct wire_packet *out,
                 struct feedd_error *err);

/* Closes the descriptors of a packet that nobody took. */
void wire_packet_drop(struct wire_packet *packet);

/* Writes header and message. @return bytes, or 0 when they don't fit into `size` */
size_t wire_pack(uint8_t *buffer, size_t size, enum wire_type type, const ProtobufCMessage *message);

/* Sends one packet without waiting; fds stay the caller's.
 * @return 0; FEEDD_E_TIMEOUT (the peer's queue is full); FEEDD_E_CONNECTION (the peer has gone) */
int wire_send(int fd, const uint8_t *packet, size_t bytes, const int *fds, uint32_t fd_count);

/* Memory for unpacking, without malloc: a message lives until the next wire_unpack() into the same arena. */
struct wire_arena {
    ProtobufCAllocator allocator;
    size_t used;
    _Alignas(16) uint8_t bytes[WIRE_ARENA_BYTES];
};
void wire_arena_init(struct wire_arena *arena);

/* Unpacks a body. @return the message, in the arena, never to be freed; NULL when it is not one, or too large */
void *wire_unpack(struct wire_arena *arena, const ProtobufCMessageDescriptor *type, const struct wire_packet *packet);

#endif
