"""The protocol broken in every way: who does it is told in one line and closed, and nobody else notices."""

import os
import random
import resource
import signal
import socket
import time

import pytest
import rawclient
from harness import finish_cat, parse_cat, wait_for
from neighbour import Neighbour
from oracle import check_batches, plan
from rawclient import ATTACH, CLOSE, END, ERROR, HELLO, OPEN, READY, RELEASE, REPORT, STATUS, STREAM, WELCOME
from rawclient import E_ARGUMENT, E_DEVICE, E_LIMIT, E_NOT_FOUND, E_PROTOCOL, E_TIMEOUT, E_UNSUPPORTED, E_VERSION
from rawclient import Client, Stream, encode, packed, refusal, varint

KINDS = range(1, 14)


@pytest.fixture
def neighbour(feedd, small):
    """Reads before, during and after; then nothing of the client that misbehaved may be left."""
    with Neighbour(feedd, small) as neighbour:
        before = feedd.settled_fd_count()
        yield neighbour
        feedd.check_running()
        feedd.wait_report(lambda r: len(r["streams"]) == 1 and len(r["clients"]) == 1, what="one client and stream")
        wait_for(lambda: feedd.fd_count() == before, what="the descriptors' return")
        neighbour.read(20)


# ---- before HELLO ----


@pytest.mark.parametrize("type_", [t for t in [0, *KINDS, 255, 65535] if t != HELLO])
def test_packet_before_hello(feedd, neighbour, type_):
    with Client(feedd.socket, hello=False) as client:
        client.send(type_, encode({1: 1, 2: "train"}))
        client.expect_closed(E_PROTOCOL, f"type {type_}", "before HELLO")


def test_other_version(feedd, neighbour):
    with Client(feedd.socket, hello=False) as client:
        client.send(HELLO, encode({1: "tomorrow"}), version=7)
        client.expect_closed(E_VERSION, "version 7", "1", "matching feedd and libfeedd")


@pytest.mark.parametrize("size", [513, 4096, 65536, 70000])
def test_long_hello(feedd, neighbour, size):
    with Client(feedd.socket, hello=False) as client:
        body = encode({1: "x" * (size - 8 - 4)})
        client.send(HELLO, body + bytes(size - 8 - len(body)))
        client.expect_closed(E_PROTOCOL, "more than 512 bytes")


def test_longest_hello(feedd, neighbour):
    """512 bytes are allowed; the name is cut and shown without what a terminal would act upon."""
    with Client(feedd.socket, hello=False) as client:
        body = encode({1: "evil\x1b[31m\n" + "x" * 491})
        assert len(body) == 504
        client.send(HELLO, body)
        client.expect(WELCOME)
        names = [c["name"] for c in feedd.report()["clients"]]
        assert "evil?[31m?" + "x" * 53 in names


def test_second_hello(feedd, neighbour):
    with Client(feedd.socket) as client:
        client.send(HELLO, encode({1: "again"}))
        client.expect_closed(E_PROTOCOL, "type 1")


def test_no_hello(feedd, neighbour):
    """Who connects and says nothing is closed after 5 s; who has said HELLO isn't."""
    began = time.monotonic()
    silent = [Client(feedd.socket, hello=False) for _ in range(3)]
    with Client(feedd.socket) as client:
        for connection in silent:
            connection.expect_closed(E_TIMEOUT, "HELLO", "5 s")
            neighbour.read(1)
        assert 5 <= time.monotonic() - began < 8
        os.close(client.status().fds[0])
    for connection in silent:
        connection.close()


# ---- packets that are none ----


@pytest.mark.parametrize("greeted", [False, True])
@pytest.mark.parametrize("size", range(1, 8))
def test_short_packet(feedd, neighbour, greeted, size):
    with Client(feedd.socket, hello=greeted) as client:
        client.send_bytes(bytes(size))
        client.expect_closed(E_PROTOCOL, f"{size} bytes", "header")


@pytest.mark.parametrize("greeted", [False, True])
def test_empty_packet(feedd, neighbour, greeted):
    """To the daemon it looks like the end of the connection, and is treated as that."""
    with Client(feedd.socket, hello=greeted) as client:
        client.send_bytes(b"")
        assert client.receive() is None


@pytest.mark.parametrize("magic", [0, 0xEDFE, 0xFFFF])
def test_other_magic(feedd, neighbour, magic):
    with Client(feedd.socket) as client:
        client.send(STATUS, encode({1: 1}), magic=magic)
        client.expect_closed(E_PROTOCOL, "magic")


@pytest.mark.parametrize("size", [65537, 70000, 150000])
def test_oversized_packet(feedd, neighbour, size):
    with Client(feedd.socket) as client:
        client.send(RELEASE, bytes(size - 8))
        client.expect_closed(E_PROTOCOL, "more than 65536 bytes")


@pytest.mark.parametrize("type_", [0, HELLO, WELCOME, STREAM, READY, END, REPORT, ERROR, 13, 65535])
def test_not_a_clients_packet(feedd, neighbour, type_):
    with Client(feedd.socket) as client:
        client.send(type_, encode({1: 1}))
        client.expect_closed(E_PROTOCOL, f"type {type_}")


NO_MESSAGES = {
    "required fields missing": b"",
    "varint without an end": b"\x08\xff",
    "varint of 11 bytes": b"\x08" + b"\xff" * 10 + b"\x01",
    "longer than the packet": b"\x12\xff\xff\x03abc",
    "length of 2^64 - 1": b"\x12" + varint(2**64 - 1),
    "length of 2^31": b"\x12" + varint(2**31) + b"abc",
    "field 0": b"\x00\x01",
    "a group": b"\x0b\x0c",
    "wire type 7": b"\x0f",
    "text for a number": b"\x0a\x03abc",
    "unknown fields without end": b"\x80\x01\x00" * 21000,
}


@pytest.mark.parametrize("body", NO_MESSAGES.values(), ids=NO_MESSAGES)
@pytest.mark.parametrize("type_", [OPEN, ATTACH, RELEASE, CLOSE, STATUS])
def test_not_a_message(feedd, neighbour, type_, body):
    with Client(feedd.socket) as client:
        client.send(type_, body)
        client.expect_closed(E_PROTOCOL, f"type {type_}", "parsed")


def test_unknown_fields(feedd, neighbour):
    """Minor versions add fields: who doesn't know them leaves them alone."""
    with Client(feedd.socket) as client:
        body = encode({1: 5, 100: 7, 101: "more", 2: "tiny", 3: 10, 6: 1, 7: 1})
        client.send(OPEN, body)
        assert client.expect(STREAM).one(10) == 10
        client.send(STATUS, encode({1: 6, 1000: b"x" * 10000}))
        assert client.expect(REPORT).one(1) == 6


@pytest.mark.tsan
def test_garbage(feedd, neighbour):
    """Random bytes behind a right header, random packets, right packets with random damage: 300 connections."""
    rng = random.Random(1)
    good = [
        encode({1: 1, 2: "train", 3: 8, 7: 1, 14: ["host"]}),
        encode({1: 1, 2: 12345}),
        encode({1: 1, 2: packed([0, 1, 2]), 3: packed([0, 1, 2])}),
    ]
    for round_ in range(300):
        with Client(feedd.socket, hello=round_ % 5 != 0) as client:
            client.socket.settimeout(5)
            try:
                for _ in range(rng.randrange(1, 6)):
                    if rng.random() < 0.3:
                        client.send_bytes(rng.randbytes(rng.choice([1, 8, 9, 100, 5000])))
                        continue
                    body = bytearray(rng.choice([rng.randbytes(rng.randrange(200)), *good]))
                    for _ in range(rng.randrange(3)):
                        if body:
                            body[rng.randrange(len(body))] = rng.randrange(256)
                    client.send(rng.choice(KINDS), bytes(body))
            except (BrokenPipeError, ConnectionResetError):
                pass
        if round_ % 30 == 0:
            neighbour.read(2)
    feedd.check_running()


# ---- descriptors that nobody asked for ----


@pytest.mark.tsan
@pytest.mark.parametrize("greeted", [False, True])
@pytest.mark.parametrize("count", [1, 4, 5, 100])
@pytest.mark.parametrize("empty", [False, True])
def test_descriptors(feedd, neighbour, greeted, count, empty):
    """They are closed, how ever many there are; the neighbour fixture counts."""
    with Client(feedd.socket, hello=greeted) as client:
        null = os.open("/dev/null", os.O_RDONLY)
        body = (
            b""
            if empty
            else rawclient.HEADER.pack(rawclient.MAGIC, 1, STATUS if greeted else HELLO, 0) + encode({1: 1})
        )
        client.send_bytes(body, [null] * count)
        os.close(null)
        client.expect_closed(E_PROTOCOL, "descriptors that nobody asked for")


# ---- streams ----
@pytest.mark.tsan
def test_release_of_what_is_not_held(feedd, neighbour):
    cases = [
        lambda stream, batch: [(batch.slot, batch.seq + 1)],
        lambda stream, batch: [((batch.slot + 1) % stream.depth, batch.seq)],
        lambda stream, batch: [(batch.slot, batch.seq), (batch.slot, batch.seq)],
        lambda stream, batch: [(stream.depth, batch.seq)],
        lambda stream, batch: [(2**32 - 1, batch.seq)],
        lambda stream, batch: [(batch.slot, 2**64 - 1)],
    ]
    for case in cases:
        with Client(feedd.socket) as client:
            stream = Stream(client, "train", depth=4)
            batch = stream.next()
            while len(stream.ready) < 3:
                stream.take_packet(client.receive())
            pairs = case(stream, batch)
            stream.release_pairs(pairs)
            client.expect_closed(E_PROTOCOL, f"slot {pairs[-1][0]}", f"batch {pairs[-1][1]}", "does not hold")
            stream.close_fds()
        neighbour.read(2)


def test_release_twice(feedd, neighbour):
    with Client(feedd.socket) as client:
        stream = Stream(client, "tiny", depth=2, epochs=1)
        batches = [stream.next(), stream.next()]
        stream.release(batches[0])
        stream.next()
        stream.release(batches[0])  # its slot holds a later batch by now
        client.expect_closed(E_PROTOCOL, "slot", "batch 0", "does not hold")
        stream.close_fds()


def test_release_before_it_was_told(feedd, neighbour):
    """Batches stand filled in the ring, but without ATTACH they are not published: not this client's to give back."""
    with Client(feedd.socket) as client:
        stream = Stream(client, "tiny", attach=False)
        feedd.wait_report(
            lambda r: any(s["dataset"] == "tiny" and s["filled"] > 0 for s in r["streams"]), what="a batch"
        )
        stream.release_pairs([(0, 0)])
        client.expect_closed(E_PROTOCOL, "slot 0", "batch 0", "does not hold")
        stream.close_fds()


def test_release_of_unequal_lists(feedd, neighbour):
    for slots, seqs in (([0], []), ([], [0]), ([0, 1], [0])):
        with Client(feedd.socket) as client:
            stream = Stream(client, "tiny")
            client.send(RELEASE, encode({1: stream.number, 2: packed(slots), 3: packed(seqs)}))
            while (packet := client.receive()).type == READY:
                pass
            refused = refusal(packet)
            assert refused.status == E_PROTOCOL and f"{len(slots)} slots and {len(seqs)} batches" in refused.message
            stream.close_fds()


def test_release_of_as_many_as_fit(feedd, neighbour):
    """65,400 numbers in one packet: the first one is refused, and unpacking them takes no more than the arena."""
    with Client(feedd.socket) as client:
        stream = Stream(client, "tiny", attach=False)
        body = encode({1: stream.number, 2: b"\0" * 32700, 3: b"\0" * 32700})
        client.send(RELEASE, body)
        client.expect_closed(E_PROTOCOL)
        stream.close_fds()


@pytest.mark.parametrize("number", [0, 2, 2**32 - 1])
@pytest.mark.parametrize("type_, name", [(ATTACH, "ATTACH"), (RELEASE, "RELEASE"), (CLOSE, "CLOSE")])
def test_stream_that_was_never_opened(feedd, neighbour, type_, name, number):
    with Client(feedd.socket) as client:
        stream = Stream(client, "tiny", attach=False)
        assert stream.number == 1
        client.send(type_, encode({1: number, 2: 0} if type_ == ATTACH else {1: number}))
        client.expect_closed(E_PROTOCOL, name, f"stream {number}", "never opened")
        stream.close_fds()


def test_another_clients_stream(feedd, neighbour):
    """Numbers are each connection's own: there is no way to another's stream."""
    with Client(feedd.socket) as client:
        client.send(RELEASE, encode({1: neighbour.stream.number}))
        client.expect_closed(E_PROTOCOL, "never opened")


def test_attach_twice(feedd, neighbour):
    with Client(feedd.socket) as client:
        stream = Stream(client, "tiny")
        stream.next()
        stream.attach()
        while (packet := client.receive()).type == READY:
            pass
        assert refusal(packet).status == E_PROTOCOL and "second time" in refusal(packet).message
        assert client.receive() is None
        stream.close_fds()


def test_wrong_nonce(feedd, neighbour):
    """Who hasn't mapped the ring gets no batches from it, and may try another way."""
    with Client(feedd.socket) as client:
        for wrong in (lambda nonce: nonce ^ 1, lambda nonce: 0, lambda nonce: neighbour.stream.nonce):
            stream = Stream(client, "tiny", attach=False)
            assert stream.nonce not in (0, neighbour.stream.nonce)
            stream.attach(wrong(stream.nonce))
            refused = client.expect_refusal(E_PROTOCOL, "ATTACH", "mapped")
            assert (refused.request, refused.stream) == (None, stream.number)
            stream.close()
            stream.close_fds()
        stream = Stream(client, "tiny")
        stream.next()
        stream.close_fds()


@pytest.mark.tsan
def test_packets_that_crossed(feedd, neighbour):
    """RELEASE, ATTACH and CLOSE of a stream that has just been closed are not an error."""
    with Client(feedd.socket) as client:
        stream = Stream(client, "tiny", epochs=1)
        batch = stream.next()
        stream.close()
        stream.release(batch)
        stream.close()
        stream.attach()
        stream.release_pairs([(77, 77)])
        request = client.request(STATUS, {})
        while (packet := client.receive()).type != REPORT:
            assert packet.type in (READY, END)
        assert packet.one(1) == request
        stream.close_fds()
        os.close(packet.fds[0])


@pytest.mark.tsan
def test_stream_without_attach(feedd, neighbour):
    """It fills its ring and stands still: no READY comes."""
    with Client(feedd.socket) as client:
        stream = Stream(client, "tiny", attach=False, depth=3)
        feedd.wait_report(lambda r: any(s["depth"] == s["filled"] == 3 for s in r["streams"]), what="a full ring")
        os.close(client.status().fds[0])
        stream.attach()
        assert [stream.next().seq for _ in range(3)] == [0, 1, 2]
        stream.close_fds()


@pytest.mark.parametrize(
    "options, status, words",
    [
        ({"batch_size": 0}, E_ARGUMENT, ["batch size 0", "1 to 65536"]),
        ({"batch_size": 65537}, E_LIMIT, ["batch size 65537", "1 to 65536"]),
        ({"batch_size": 2**32 - 1}, E_LIMIT, ["batch size 4294967295"]),
        ({"world_size": 0}, E_ARGUMENT, ["world size 0"]),
        ({"world_size": 65537}, E_LIMIT, ["world size 65537"]),
        ({"rank": 2, "world_size": 2}, E_ARGUMENT, ["rank 2", "0 to 1"]),
        ({"rank": 2**32 - 1, "world_size": 65536}, E_ARGUMENT, ["rank 4294967295"]),
        ({"order": 0}, E_ARGUMENT, ["order 0"]),
        ({"order": 3}, E_ARGUMENT, ["order 3"]),
        ({"order": 2**32 - 1}, E_ARGUMENT, ["order"]),
        ({"tail": 0}, E_ARGUMENT, ["tail 0"]),
        ({"tail": 4}, E_ARGUMENT, ["tail 4"]),
        ({"tail": 2**31}, E_ARGUMENT, ["tail"]),
        ({"depth": 0}, E_ARGUMENT, ["depth 0", "2 to 1024"]),
        ({"depth": 1}, E_ARGUMENT, ["depth 1"]),
        ({"depth": 1025}, E_ARGUMENT, ["depth 1025"]),
        ({"device": "GPU-0123"}, E_DEVICE, ["GPU-0123"]),
        ({"transports": ["ipc", "fd"]}, E_UNSUPPORTED, ["transport", "host"]),
        ({"resume": "nonsense"}, rawclient.E_TOKEN, ["resume token"]),
        ({"resume": b"feedd1.\xff\xfe"}, rawclient.E_TOKEN, ["resume token"]),
    ],
)
def test_open_out_of_range(feedd, neighbour, options, status, words):
    """A request fails, and nothing else: the connection goes on."""
    with Client(feedd.socket) as client:
        request = client.open("small", **options)
        refused = client.expect_refusal(status, *words)
        assert (refused.request, refused.stream) == (request, None)
        stream = Stream(client, "tiny", epochs=1, batch_size=50)
        assert [len(stream.next().indices) for _ in range(2)] == [50, 50]
        assert stream.next() is None
        stream.close_fds()


def test_open_of_odd_names(feedd, neighbour):
    """Bytes that are not UTF-8, control characters, nothing, 60,000 of them."""
    with Client(feedd.socket) as client:
        for source in b"", b"\xff\xfe", b"a\nb", b"x" * 60000, b"train\0", b"../../etc/passwd":
            request = client.request(OPEN, {2: source})
            packet = client.expect(STREAM if source == b"train\0" else ERROR)
            assert packet.one(1) == request
            if packet.type == ERROR:
                message = packet.one(4)
                assert rawclient.signed(packet.one(3)) == E_NOT_FOUND and b"no stream and no dataset" in message
                assert b"\n" not in message and len(message) < 1020
            for fd in packet.fds:
                os.close(fd)


@pytest.mark.tsan
def test_open_and_close_in_a_hurry(feedd, neighbour):
    """Streams opened and closed without waiting for the answer to anything: memory and descriptors come back."""
    for _ in range(10):
        with Client(feedd.socket) as client:
            for round_ in range(8):
                client.open("tiny", depth=4)
                client.send(CLOSE, encode({1: round_ + 1}))
    feedd.wait_report(lambda r: len(r["streams"]) == 1, what="one stream")


# ---- floods, limits ----


@pytest.mark.tsan
def test_never_reading(feedd, neighbour):
    """Who asks without end and doesn't read is disconnected, and costs no more than its queue."""
    memory = feedd.memory_bytes()
    with Client(feedd.socket, name="flood") as client:
        client.socket.settimeout(10)
        sent = 0
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for sent in range(100000):
                client.send(STATUS, encode({1: sent + 1}))
        assert 64 <= sent < 10000
        assert feedd.memory_bytes() - memory < 64 << 20
        feedd.wait_log("it doesn't read")
    neighbour.read(20)


@pytest.mark.tsan
def test_slow_reader_is_not_disconnected(feedd, neighbour):
    """Packets wait for a client whose socket is full, in order; a stream announces its batches when there is room."""
    with Client(feedd.socket) as client:
        requests = []
        while not any(c["queued"] > 0 for c in feedd.report()["clients"]):
            requests += [client.request(STATUS, {}) for _ in range(16)]
        client.open("tiny", epochs=1)
        for request in requests:
            packet = client.expect(REPORT)
            assert packet.one(1) == request
            os.close(packet.fds[0])
        packet = client.expect(STREAM)
        for fd in packet.fds:
            os.close(fd)
        feedd.wait_report(lambda r: all(c["queued"] == 0 for c in r["clients"]), what="an empty queue")


@pytest.mark.tsan
def test_clients_max(daemons, small):
    feedd = daemons({"daemon": {"clients_max": 3}, "datasets": {"small": small.config()}})
    clients = [Client(feedd.socket) for _ in range(3)]
    for _ in range(3):
        with Client(feedd.socket, hello=False) as client:
            client.expect_closed(E_LIMIT, "3 clients", "clients_max")
        feedd.cat_fails("small", words=["3 clients", "clients_max"])
    for client in clients:
        os.close(client.status().fds[0])
    clients.pop().close()
    wait_for(lambda: feedd.feedctl("cat", "small").returncode == 0, what="room for another client")
    for client in clients:
        client.close()


@pytest.mark.tsan
def test_streams_per_client_max(daemons, small):
    feedd = daemons({"daemon": {"streams_per_client_max": 2}, "datasets": {"small": small.config()}})
    with Client(feedd.socket) as client:
        streams = [Stream(client, "small", attach=False) for _ in range(2)]
        for _ in range(2):
            request = client.open("small")
            refused = client.expect_refusal(E_LIMIT, "2 streams", "streams_per_client_max")
            assert refused.request == request
        streams[0].close()
        streams.append(Stream(client, "small", epochs=1))
        assert streams[2].number == 3 and streams[2].next().indices == list(range(64))
        for stream in streams:
            stream.close_fds()


@pytest.mark.tsan
def test_descriptors_run_out(daemons, small):
    """At its descriptor limit the daemon lets clients wait, serves those that it has, and goes on when one leaves."""

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))

    feedd = daemons(
        {
            "datasets": {"small": small.config()},
            "streams": {"train": {"dataset": "small", "batch_size": 64, "order": "shuffle"}},
        },
        preexec_fn=few,
    )
    with Neighbour(feedd, small) as neighbour:
        waiting = []
        for _ in range(60):
            client = Client(feedd.socket, hello=False)
            client.send(HELLO, encode({1: "many"}))
            waiting.append(client)
        feedd.wait_log("clients have to wait")
        neighbour.read(20)
        for client in waiting:
            client.expect(WELCOME)
            client.close()
        neighbour.read(20)
    feedd.cat("small")


def test_backlog(feedd, small):
    """More clients at once than the backlog takes: libfeedd waits for its turn."""
    os.kill(feedd.pid, signal.SIGSTOP)
    waiting = []
    try:
        while True:
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            waiting[-1].setblocking(False)
            waiting[-1].connect(str(feedd.socket))
    except BlockingIOError:
        process = feedd.start_cat("small", "--epochs", 1)
        time.sleep(0.3)
        assert process.poll() is None
    finally:
        os.kill(feedd.pid, signal.SIGCONT)
    batches, _ = parse_cat(finish_cat(process))
    check_batches(batches, plan(1000, 64, "drop", 1), small)
    for connection in waiting:
        connection.close()
