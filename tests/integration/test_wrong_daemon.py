"""libfeedd against a daemon that is wrong: too old, broken, or not feedd at all. It says what is wrong, in one line.

The daemon is played by a thread; feedctl is the client, so that a sanitizer sees what the library makes of it.
"""

import fcntl
import os
import re
import socket
import struct
import subprocess
import threading

import pytest
import rawclient
from harness import ENVIRONMENT, FEEDCTL, check_output, parse_failure
from rawclient import ATTACH, END, ERROR, HEADER, HELLO, MAGIC, OPEN, READY, RECORD, STREAM, WELCOME, encode, packed

F_ADD_SEALS, SEALS = 1033, 1 | 2 | 4  # F_SEAL_SEAL, SHRINK, GROW
DEPTH, BATCH = 4, 10
SLOT = 4096  # of 10 u8 and 10 i64
RECORD_BYTES = (RECORD.size + BATCH * 12 + 63) // 64 * 64
RING, META = DEPTH * SLOT + 4096, -(-DEPTH * RECORD_BYTES // 4096) * 4096


def memfd(size, seals=SEALS, content=b""):
    fd = os.memfd_create("ring", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, content, 0)
    if seals:
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def field(name=b"image", dtype=1, shape=()):
    return encode({1: name, 2: dtype, 3: packed(shape)})


def stream(**changes):
    """A right STREAM message, but for the changes: number of the field in feedd.proto, as f7=..."""
    fields = {
        1: 1, 2: 1, 3: "data", 4: 100, 5: 0, 6: 10, 7: [field(), field(b"label", 7)], 8: 0, 9: 0, 10: BATCH, 11: 1,
        12: 1, 13: 0, 14: 1, 15: 0, 16: 1, 17: DEPTH, 18: SLOT, 19: RECORD_BYTES, 20: 0, 21: 0, 22: "host", 23: "why",
        24: 1, 26: 1, 27: 1,
    }  # fmt: skip
    fields.update({int(key[1:]): value for key, value in changes.items()})
    return encode(fields)


def record(seq=0, count=BATCH, valid=BATCH):
    return RECORD.pack(seq, 0, 0, 0, 10, count, valid, 400, *[0] * 39) + bytes(BATCH * 12)


class Daemon(threading.Thread):
    """Answers packets of one client: {type of the client's packet: [(type, body, fds), ...]}."""

    def __init__(self, path, answers, version=1):
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen()
        self.answers, self.version = answers, version

    def run(self):
        peer, _ = self.listener.accept()
        peer.settimeout(20)
        with peer:
            while packet := self.packet(peer):
                for type_, body, fds in self.answers.get(HEADER.unpack_from(packet)[2], []):
                    data = body if type_ is None else HEADER.pack(MAGIC, self.version, type_, 0) + body
                    try:
                        socket.send_fds(peer, [data], fds)
                    except OSError:
                        return
                    for fd in fds:
                        os.close(fd)

    def packet(self, peer):
        try:
            return peer.recv(65536)
        except OSError:
            return None


def run_feedctl(folder, answers, version=1):
    path = folder / "s"
    daemon = Daemon(path, answers, version)
    daemon.start()
    command = [FEEDCTL, "--socket", path, "cat", "data", "--batches", "2"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, env=ENVIRONMENT)
    daemon.join(10)
    daemon.listener.close()
    check_output(done.stderr, "feedctl")
    return done


WELCOMED = [(WELCOME, encode({1: "0.1.0"}), [])]


def rings(content=b""):
    return [memfd(META, content=content), memfd(RING)]


def test_right_daemon(folder):
    """The played daemon is good enough, as long as it does what it should."""
    content = record(0) + bytes(RECORD_BYTES - len(record())) + record(1)
    done = run_feedctl(
        folder,
        {
            HELLO: WELCOMED,
            OPEN: [(STREAM, stream(), rings(content))],
            ATTACH: [(READY, encode({1: 1, 2: packed([0, 1]), 3: packed([0, 1])}), [])],
        },
    )
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.count(b"\n") == 5


@pytest.mark.parametrize(
    "answers, version, words",
    [
        ([(WELCOME, b"", [])], 2, ["version 2", "this one 1", "matching feedd and libfeedd"]),
        ([(None, b"HTTP/1.1 400 Bad Request", [])], 1, ["magic"]),
        ([(None, b"abc", [])], 1, ["3 bytes"]),
        ([(None, bytes(70000), [])], 1, ["more than 65536"]),
        ([(STREAM, stream(), [])], 1, ["type 4"]),
        ([(99, b"", [])], 1, ["type 99"]),
        ([(ERROR, b"", [])], 1, ["parsed"]),
        ([(ERROR, encode({3: -4, 4: "full"}), [])], 1, ["full"]),
        ([(ERROR, encode({3: 77, 4: "odd"}), [])], 1, ["odd"]),
        ([(ERROR, encode({1: 5, 3: -4, 4: "nobody asked"}), [])], 1, ["nobody asked"]),
        ([(READY, b"\xff", [])], 1, ["READY"]),
        ([(END, b"", [])], 1, ["END"]),
    ],
)
def test_wrong_welcome(folder, answers, version, words):
    parse_failure(run_feedctl(folder, {HELLO: answers}, version), *words)


WRONG_STREAMS = {
    "no descriptors": (stream(), lambda: [], "parsed"),
    "one descriptor": (stream(), lambda: [memfd(META)], "parsed"),
    "too many descriptors": (stream(), lambda: [memfd(RING) for _ in range(5)], "descriptors"),
    "no message": (b"\xff", rings, "parsed"),
    "not sealed": (stream(), lambda: [memfd(META), memfd(RING, seals=0)], "sealed"),
    "may shrink": (stream(), lambda: [memfd(META, seals=4), memfd(RING)], "sealed"),
    "a file": (stream(), lambda: [os.open(__file__, os.O_RDONLY), memfd(RING)], "sealed"),
    "a pipe": (stream(), lambda: [*os.pipe()], "sealed"),
    "short ring": (stream(), lambda: [memfd(META), memfd(RING - 4096)], "sealed"),
    "short meta": (stream(), lambda: [memfd(META - 4096), memfd(RING)], "sealed"),
    "no fields": (stream(f7=[]), rings, "0 fields"),
    "17 fields": (stream(f7=[field(b"f%d" % i) for i in range(17)]), rings, "17 fields"),
    "7 dimensions": (stream(f7=[field(shape=[1] * 7)]), rings, "7 dimensions"),
    "long name": (stream(f7=[field(b"x" * 300)]), rings, "field"),
    "unknown dtype": (stream(f7=[field(dtype=99)]), rings, "dtype 99"),
    "2^64 bytes": (stream(f7=[field(shape=[2**32, 2**32])]), rings, "field 0"),
    "2^63 bytes": (stream(f7=[field(shape=[2**63])]), rings, "field 0"),
    "dimension 0": (stream(f7=[field(shape=[0])]), rings, "empty sample"),
    "other slot size": (stream(f18=8192), rings, "lays batches out"),
    "other record size": (stream(f19=64), rings, "lays batches out"),
    "depth 0": (stream(f17=0), rings, "0 slots"),
    "depth 1025": (stream(f17=1025), rings, "1025 slots"),
    "batch size 0": (stream(f10=0), rings, "batch size 0"),
    "batch size 2^32 - 1": (stream(f10=2**32 - 1), rings, "batch size 4294967295"),
    "class names without a descriptor": (stream(f8=1, f9=10), rings, "1 class names"),
    "class names of 2^40 bytes": (stream(f8=1, f9=2**40), lambda: [*rings(), memfd(4096)], "1 class names"),
    "class names cut": (stream(f8=2, f9=4), lambda: [*rings(), memfd(4, content=b"abcd")], "class names"),
    "fewer class names": (stream(f8=3, f9=4), lambda: [*rings(), memfd(4, content=b"a\0b\0")], "fewer than 3"),
    "class names short": (stream(f8=2, f9=4096), lambda: [*rings(), memfd(4, content=b"a\0b\0")], "class names"),
}


@pytest.mark.parametrize("kind", WRONG_STREAMS)
def test_wrong_stream(folder, kind):
    body, fds, words = WRONG_STREAMS[kind]
    parse_failure(run_feedctl(folder, {HELLO: WELCOMED, OPEN: [(STREAM, body, fds())]}), words)


@pytest.mark.parametrize(
    "slots, seqs, content, words",
    [
        ([DEPTH], [0], record(), [f"slot {DEPTH}", "out of turn"]),
        ([2**32 - 1], [0], record(), ["out of turn"]),
        ([0], [1], record(1), ["batch 1", "out of turn"]),
        ([0, 0], [0, 1], record(), ["slot 0", "out of turn"]),
        ([0], [], record(), ["1 slots and 0 batches"]),
        ([0], [0], record(seq=7), ["record of batch 0"]),
        ([0], [0], record(count=0), ["record of batch 0"]),
        ([0], [0], record(count=BATCH + 1), ["record of batch 0"]),
        ([0], [0], record(count=2**32 - 1), ["record of batch 0"]),
    ],
)
def test_wrong_batch(folder, slots, seqs, content, words):
    answers = {
        HELLO: WELCOMED,
        OPEN: [(STREAM, stream(), rings(content))],
        ATTACH: [(READY, encode({1: 1, 2: packed(slots), 3: packed(seqs)}), [])],
    }
    done = run_feedctl(folder, answers)
    assert re.search(rb" samples/s\ntransport .*\ntoken feedd1\.", done.stdout)  # also then it says how far it came
    parse_failure(done, *words)


def test_no_answer(folder):
    """Somebody listens and says nothing: after 10 s feedctl gives up."""
    parse_failure(run_feedctl(folder, {}), "doesn't answer")


def test_nonce_is_read_from_the_ring(folder):
    """The proof is what stands behind the last slot."""
    seen = []

    class Listening(Daemon):
        def packet(self, peer):
            packet = super().packet(peer)
            if packet and HEADER.unpack_from(packet)[2] == ATTACH:
                seen.append(rawclient.decode(packet[HEADER.size :]))
                return None
            return packet

    ring = memfd(RING, seals=0)
    os.pwrite(ring, struct.pack("<Q", 0x0123456789ABCDEF), RING - 4096)
    fcntl.fcntl(ring, F_ADD_SEALS, SEALS)
    path = folder / "s"
    daemon = Listening(path, {HELLO: WELCOMED, OPEN: [(STREAM, stream(), [memfd(META), ring])]})
    daemon.start()
    done = subprocess.run([FEEDCTL, "--socket", path, "cat", "data"], capture_output=True, timeout=30, env=ENVIRONMENT)
    daemon.join(10)
    parse_failure(done, "gone")
    assert seen == [{1: [1], 2: [0x0123456789ABCDEF]}]
