"""rawclient.py - the protocol spoken by hand: packets as wire.h and feedd.proto describe them, right or wrong.

Independent of libfeedd and protobuf: header, varints, fields and the layout of the rings are written out here.
"""

import array
import dataclasses
import mmap
import os
import socket
import struct

HEADER = struct.Struct("<HHHH")
MAGIC, VERSION = 0xFEED, 1
MAX_PACKET = 65536
HELLO, WELCOME, OPEN, STREAM, ATTACH, READY, RELEASE, END, CLOSE, STATUS, REPORT, ERROR, MEMBERS = range(1, 14)

E_ARGUMENT, E_NOT_FOUND, E_LIMIT, E_MEMORY, E_CORRUPT, E_UNSUPPORTED = -1, -2, -4, -5, -7, -8
E_VERSION, E_PROTOCOL, E_TIMEOUT, E_TOKEN, E_SHUTDOWN, E_DEVICE = -9, -10, -12, -14, -17, -18

# numbers of OPEN's fields
OPEN_FIELDS = {
    "request": 1, "source": 2, "batch_size": 3, "order": 4, "tail": 5, "seed": 6, "epochs": 7, "rank": 8,
    "world_size": 9, "depth": 10, "resume": 11, "resume_force": 12, "device": 13, "transports": 14, "share": 15,
    "group": 16, "members": 17, "join": 18, "gate_timeout_ms": 19, "incarnation": 20, "incarnation_members": 21,
}  # fmt: skip


# ---- protobuf ----


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(fields):
    """{number: int | str | bytes | list of these} as a message."""
    out = b""
    for number, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, int):
                out += varint(number << 3) + varint(value)
            else:
                data = value.encode() if isinstance(value, str) else value
                out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def packed(values):
    return b"".join(varint(value) for value in values)


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def unpack(data):
    values, at = [], 0
    while at < len(data):
        value, at = read_varint(data, at)
        values.append(value)
    return values


def decode(data):
    """A message as {number: [int or bytes, ...]}."""
    fields, at = {}, 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
        else:
            assert key & 7 == 2, "feedd's messages have varints and lengths only"
            length, at = read_varint(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length
        fields.setdefault(key >> 3, []).append(value)
    return fields


def signed(value):
    return value - (1 << 64) if value >> 63 else value


# ---- packets ----


@dataclasses.dataclass
class Packet:
    type: int
    fields: dict
    fds: list

    def one(self, number, default=None):
        values = self.fields.get(number, [default])
        assert len(values) == 1
        return values[0]


@dataclasses.dataclass
class Refusal:
    """An ERROR: of a request, a stream or, with neither, the connection."""

    status: int
    message: str
    request: int | None
    stream: int | None


class Client:
    def __init__(self, path, hello=True, name="raw"):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(10)
        self.socket.connect(str(path))
        self.requests = 0
        if hello:
            self.send(HELLO, encode({1: name, 2: "0.0.0"}))
            self.expect(WELCOME)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send_bytes(self, data, fds=()):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([data], rights)

    def send(self, type_, body=b"", fds=(), magic=MAGIC, version=VERSION):
        self.send_bytes(HEADER.pack(magic, version, type_, 0) + body, fds)

    def receive(self, timeout=10):
        """The next packet, or None when the daemon has closed the connection."""
        self.socket.settimeout(timeout)
        for attempt in range(2):
            try:
                data, fds, flags, _ = socket.recv_fds(self.socket, MAX_PACKET, 8)
                break
            except ConnectionResetError:  # it closed with packets of ours unread: what it said comes behind the error
                if attempt == 1:
                    return None
        if not data:
            return None
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        magic, version, type_, header_flags = HEADER.unpack_from(data)
        assert (magic, version, header_flags) == (MAGIC, VERSION, 0)
        return Packet(type_, decode(data[HEADER.size :]), fds)

    def expect_any(self, timeout=10):
        packet = self.receive(timeout)
        assert packet is not None, "the connection was closed"
        return packet

    def expect(self, type_, timeout=10):
        packet = self.expect_any(timeout)
        assert packet.type == type_, refusal(packet) if packet.type == ERROR else packet
        return packet

    def request(self, type_, fields):
        self.requests += 1
        self.send(type_, encode({1: self.requests, **fields}))
        return self.requests

    def open(self, source, **options):
        """Sends OPEN. @return the number of the request"""
        return self.request(OPEN, {2: source, **{OPEN_FIELDS[name]: value for name, value in options.items()}})

    def status(self):
        """The report, and its descriptor, to be closed by the caller. What a stream announces meanwhile is dropped."""
        request = self.request(STATUS, {})
        packet = self.expect_any()
        while packet.type == READY:
            packet = self.expect_any()
        assert packet.type == REPORT, refusal(packet) if packet.type == ERROR else packet
        assert packet.one(1) == request and len(packet.fds) == 1
        return packet

    def expect_refusal(self, status, *words):
        """The next packet is an ERROR with this status, and its message names what is wrong."""
        refused = refusal(self.expect(ERROR))
        assert refused.status == status, refused
        check_line(refused.message, *words)
        return refused

    def expect_closed(self, status, *words):
        """The daemon says why, on the connection's behalf, and closes it."""
        refused = self.expect_refusal(status, *words)
        assert (refused.request, refused.stream) == (None, None)
        assert self.receive() is None
        return refused


def refusal(packet):
    assert packet.type == ERROR
    return Refusal(signed(packet.one(3)), packet.one(4).decode(), packet.one(1), packet.one(2))


def check_line(message, *words):
    assert message and message.isprintable(), repr(message)
    for word in words:
        assert str(word) in message, f"{word!r} is not in {message!r}"


# ---- a stream, read as libfeedd would ----

ITEM_BYTES = {1: 1, 7: 8}  # FEEDD_U8, FEEDD_I64
RECORD = struct.Struct("<5Q2IQ7Q32Q")


@dataclasses.dataclass
class Batch:
    slot: int
    seq: int
    epoch: int
    position: int
    next: tuple
    count: int
    valid: int
    indices: list
    flags: list
    fields: dict  # name: bytes


class Stream:
    """Opens, maps and attaches; then batches in order. Not for reading fast: it copies every batch."""

    def __init__(self, client, source, attach=True, **options):
        self.client = client
        request = client.open(source, **options)
        answer = client.expect(STREAM)
        assert answer.one(1) == request
        self.answer = answer
        self.number = answer.one(2)
        self.dataset = answer.one(3).decode()
        self.sample_count, self.fingerprint, self.steps_per_epoch = answer.one(4), answer.one(5), answer.one(6)
        self.fields = []
        for data in answer.fields[7]:
            field = decode(data)
            shape = unpack(field[3][0]) if 3 in field else []
            self.fields.append((field[1][0].decode(), field[2][0], shape))
        self.batch_size, self.seed = answer.one(10), answer.one(13)
        self.depth, self.slot_bytes, self.record_bytes = answer.one(17), answer.one(18), answer.one(19)
        self.meta_fd, self.ring_fd, *self.other_fds = answer.fds
        self.meta_bytes, self.ring_bytes = os.fstat(self.meta_fd).st_size, os.fstat(self.ring_fd).st_size
        self.meta = mmap.mmap(self.meta_fd, self.meta_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        self.ring = mmap.mmap(self.ring_fd, self.ring_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        assert self.ring_bytes == self.depth * self.slot_bytes + 4096
        self.nonce = struct.unpack_from("<Q", self.ring, self.ring_bytes - 4096)[0]
        self.ready = []
        self.ended = False
        self.members = 0  # of the group, as last told
        if attach:
            self.attach()

    def attach(self, nonce=None):
        self.client.send(ATTACH, encode({1: self.number, 2: self.nonce if nonce is None else nonce}))

    def close_fds(self):
        for fd in [self.meta_fd, self.ring_fd, *self.other_fds]:
            os.close(fd)
        self.meta.close()
        self.ring.close()

    def take_packet(self, packet):
        assert packet is not None, "the connection was closed"
        if packet.type == ERROR:
            raise AssertionError(refusal(packet))
        assert packet.one(1) == self.number
        if packet.type == END:
            self.ended = True
            return
        if packet.type == MEMBERS:
            self.members = packet.one(2)
            return
        assert packet.type == READY and not self.ended
        slots, seqs = unpack(packet.one(2)), unpack(packet.one(3))
        assert len(slots) == len(seqs) > 0
        self.ready += zip(slots, seqs, strict=True)

    def next(self):
        """The next batch, or None after the last."""
        while not self.ready:
            if self.ended:
                return None
            self.take_packet(self.client.receive())
        slot, seq = self.ready.pop(0)
        at = slot * self.record_bytes
        values = RECORD.unpack_from(self.meta, at)
        assert values[0] == seq
        epoch, position, next_epoch, next_position, count, valid, used = values[1:8]
        extents = values[15:]
        at += RECORD.size
        indices = struct.unpack_from(f"<{count}q", self.meta, at)
        flags = struct.unpack_from(f"<{count}I", self.meta, at + 8 * self.batch_size)
        fields = {}
        end = 0
        for i, (name, dtype, shape) in enumerate(self.fields):
            offset, length = extents[2 * i : 2 * i + 2]
            item = ITEM_BYTES[dtype]
            for size in shape:
                item *= size
            assert length == count * item and offset % 256 == 0 and offset >= end and offset + length <= self.slot_bytes
            begin = slot * self.slot_bytes + offset
            fields[name] = self.ring[begin : begin + length]
            end = offset + length
        assert used == end
        return Batch(
            slot, seq, epoch, position, (next_epoch, next_position), count, valid, list(indices), list(flags), fields
        )

    def release(self, *batches):
        self.release_pairs([(batch.slot, batch.seq) for batch in batches])

    def release_pairs(self, pairs):
        slots, seqs = packed(slot for slot, _ in pairs), packed(seq for _, seq in pairs)
        self.client.send(RELEASE, encode({1: self.number, 2: slots, 3: seqs}))

    def close(self):
        self.client.send(CLOSE, encode({1: self.number}))
