"""library_scenarios.py - libfeedd as a Python caller sees it: library_scenarios.py SCENARIO SOCKET IMAGES LABELS.

One process a scenario, started by test_library.py, so that a sanitizer's runtime can be loaded before everything else.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

import libfeedd
import numpy
import oracle
from libfeedd import Client, Failure, data, info, lib, view

SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def fails(status, call, *args):
    """The call fails with this status. @return the message"""
    try:
        call(*args)
    except Failure as failure:
        assert failure.status == status, failure
        return str(failure)
    raise AssertionError(f"no failure {status}")


def compare(batch, dataset):
    """The batch's bytes are those of the files. @return its info"""
    i = info(batch)
    assert i.count == i.valid and list(i.flags[: i.count]) == [0] * i.count
    expected = dataset.fields(i.indices[: i.count])
    for number, name in enumerate(["image", "label", "index"]):
        assert data(batch, number) == expected[name], name
    return i


def read(stream, dataset, count):
    for _ in range(count):
        batch = stream.next()
        compare(batch, dataset)
        stream.release(batch)


@scenario
def names(path, dataset):
    assert lib.feedd_version() == b"0.1.0"
    seen = {lib.feedd_status_name(-status) for status in range(21)}
    assert len(seen) == 21 and None not in seen
    assert lib.feedd_status_name(-1000) and lib.feedd_status_name(1000)
    dtypes = [(lib.feedd_dtype_name(d), lib.feedd_dtype_bytes(d)) for d in range(-1, 9)]
    assert dtypes == [(None, 0)] * 2 + [
        (b"u8", 1), (b"i8", 1), (b"f16", 2), (b"bf16", 2), (b"f32", 4), (b"i32", 4), (b"i64", 8),
    ] + [(None, 0)]  # fmt: skip


@scenario
def schema_and_views(path, dataset):
    client = Client(path)
    stream = client.open("named", batch_size=10, epochs=2, seed=3, order=oracle.SHUFFLE)
    s = stream.schema
    assert (s.source, s.dataset, s.sample_count, s.steps_per_epoch) == (b"named", b"named", 1000, 100)
    assert (s.batch_size, s.rank, s.world_size, s.order, s.tail) == (10, 0, 1, oracle.SHUFFLE, oracle.DROP)
    assert (s.seed, s.epochs, s.transport) == (3, 2, b"host") and s.mode_reason and 4 <= s.depth <= 64
    fields = [(f.name, f.dtype, list(f.shape[: f.ndim])) for f in s.fields[: s.field_count]]
    assert fields == [(b"image", 1, [6, 5, 1]), (b"label", 7, []), (b"index", 7, [])]
    assert s.class_names[: s.class_count] == [b"a", "\u00e9\u00e8".encode(), b"a"] + [b"c%d" % i for i in range(7)]
    batch = stream.next()
    image, label = view(batch, 0), view(batch, 1)
    assert image.shape[: image.ndim] == [10, 6, 5, 1] and image.bytes == 300 and image.data % 256 == 0
    assert label.shape[: label.ndim] == [10] and label.bytes == 80 and label.data % 256 == 0
    assert lib.feedd_batch_view(batch, 3, ctypes.byref(image)) == libfeedd.E_NOT_FOUND
    assert lib.feedd_batch_view(batch, 2**32 - 1, ctypes.byref(image)) == libfeedd.E_NOT_FOUND
    i = compare(batch, dataset)
    reserved, first_job, filled, copied, ready, first_release, last_release = i.time_ns
    assert 0 < reserved <= first_job <= filled <= copied <= ready <= time.monotonic_ns()
    assert (first_release, last_release) == (0, 0)
    client.close()


@scenario
def errors_without_err(path, dataset):
    """err may be NULL everywhere; out stays as it was."""
    handle = ctypes.c_void_p(77)
    assert (
        lib.feedd_connect(b"/nonexistent/s", ctypes.byref(handle), None) == libfeedd.E_CONNECTION and handle.value == 77
    )
    client = Client(path)
    assert lib.feedd_open(client.handle, b"nothing", None, ctypes.byref(handle), None) == libfeedd.E_NOT_FOUND
    assert handle.value == 77
    lib.feedd_stream_close(None)
    lib.feedd_client_close(None)
    stream = client.open("small")
    batch = stream.next()
    assert lib.feedd_release(batch, None, None) == 0
    assert lib.feedd_release(batch, None, None) == libfeedd.E_STATE
    client.close()


@scenario
def environment(path, dataset):
    """Without a path: $FEEDD_SOCKET."""
    os.environ["FEEDD_SOCKET"] = path
    handle = ctypes.c_void_p()
    assert lib.feedd_connect(None, ctypes.byref(handle), None) == 0
    lib.feedd_client_close(handle)


@scenario
def options_of_other_sizes(path, dataset):
    """A caller of an older feedd.h has a shorter struct; a size that makes no sense is refused."""
    client = Client(path)
    for size in 0, 8, ctypes.sizeof(libfeedd.Options) - 1, ctypes.sizeof(libfeedd.Options) + 8:
        assert "size" in fails(libfeedd.E_ARGUMENT, lambda size=size: client.open("small", size=size))
    read(client.open("small"), dataset, 2)
    client.close()


@scenario
def select_on_stream_fd(path, dataset):
    """next(0) and select(): never a wait for something that is there, and the end is readable too."""
    client = Client(path)
    stream = client.open("small", epochs=2)
    fd = stream.fd()
    assert fd == stream.fd() and not os.get_inheritable(fd)
    taken = 0
    while True:
        try:
            batch = stream.next(0)
        except Failure as failure:
            if failure.status == libfeedd.E_END:
                break
            assert failure.status == libfeedd.E_TIMEOUT
            readable, _, _ = select.select([fd], [], [], 10)
            assert readable
            continue
        compare(batch, dataset)
        stream.release(batch)
        taken += 1
    assert taken == 2 * 15
    assert select.select([fd], [], [], 10)[0]  # the end stays
    fails(libfeedd.E_END, stream.next, 0)
    fails(libfeedd.E_END, stream.next, -1)
    client.close()


@scenario
def select_while_nothing_comes(path, dataset):
    """With the whole ring in hand nothing becomes readable, and after a release it does."""
    client = Client(path)
    stream = client.open("small", depth=4)
    fd = stream.fd()
    held = [stream.next() for _ in range(4)]
    end = time.monotonic() + 0.3
    while time.monotonic() < end:  # "it may be readable without need": then next() says that there is nothing
        if select.select([fd], [], [], 0.05)[0]:
            fails(libfeedd.E_LEASES, stream.next, 0)
    stream.release(held[0])
    stream.release(held[1])
    assert select.select([fd], [], [], 10)[0]
    assert info(stream.next()).seq == 4
    client.close()


@scenario
def select_after_a_release(path, dataset):
    """What has been given back is the daemon's before anybody waits for what follows."""
    client = Client(path)
    stream = client.open("small", depth=64, batch_size=1)
    fd = stream.fd()
    while stream.stats().ready < 64:
        client.status_json()  # receives what has come in
    stream.release(stream.next(0))
    held = [stream.next(0) for _ in range(63)]
    assert select.select([fd], [], [], 3)[0]
    assert info(stream.next(0)).seq == 64
    assert len(held) == 63
    client.close()


@scenario
def select_on_two_streams(path, dataset):
    """A packet for one stream may be received on behalf of the other: its descriptor must say so."""
    client = Client(path)
    one, two = client.open("small", epochs=3), client.open("small", epochs=3, order=oracle.SHUFFLE, seed=9)
    streams = {one.fd(): one, two.fd(): two}
    taken = {fd: 0 for fd in streams}
    open_fds = set(streams)
    while open_fds:
        readable, _, _ = select.select(open_fds, [], [], 10)
        assert readable
        for fd in readable:
            try:
                batch = streams[fd].next(0)
            except Failure as failure:
                assert failure.status in (libfeedd.E_TIMEOUT, libfeedd.E_END)
                if failure.status == libfeedd.E_END:
                    open_fds.discard(fd)
                continue
            compare(batch, dataset)
            taken[fd] += 1
            streams[fd].release(batch)
    assert set(taken.values()) == {45}
    client.close()


@scenario
def two_streams_on_one_connection(path, dataset):
    """Each has its own order. One that stands still doesn't hold up the other, and closing it neither."""
    client = Client(path)
    still = client.open("small", depth=2)
    held = [still.next(), still.next()]
    moving = client.open("small", order=oracle.SHUFFLE, seed=1)
    read(moving, dataset, 100)
    for batch in held:
        compare(batch, dataset)
    assert [info(batch).seq for batch in held] == [0, 1]
    report = json.loads(client.status_json())
    assert len(report["streams"]) == 2
    still.release(held[1])
    read(moving, dataset, 50)
    still.close()
    read(moving, dataset, 50)
    third = client.open("small", batch_size=1000, epochs=1)
    assert list(info(third.next()).indices[:1000]) == list(range(1000))
    read(moving, dataset, 20)
    assert moving.stats().batches == 220 and moving.stats().samples == 220 * 64
    client.close()


@scenario
def leases(path, dataset):
    """By age and not by count: the oldest held batch may be depth - 1 batches old, and then it is this one's turn."""
    client = Client(path)
    stream = client.open("small", depth=5)
    held = [stream.next() for _ in range(5)]
    assert stream.stats().held == 5
    for timeout in 0, 100, -1:
        message = fails(libfeedd.E_LEASES, stream.next, timeout)
        assert "5" in message and "release" in message
    for batch in held[1:]:
        stream.release(batch)
    assert "release" in fails(libfeedd.E_LEASES, stream.next, -1)  # one is held, and it is 4 batches old
    assert stream.stats().held == 1
    compare(held[0], dataset)
    stream.release(held[0])
    read(stream, dataset, 20)

    keep = stream.next()
    seq = info(keep).seq
    for i in range(4):
        batch = stream.next()
        assert info(batch).seq == seq + 1 + i
        stream.release(batch)
    fails(libfeedd.E_LEASES, stream.next, -1)
    stream.release(keep)
    read(stream, dataset, 5)
    client.close()


@scenario
def release_in_any_order(path, dataset):
    client = Client(path)
    stream = client.open("small", depth=8, order=oracle.SHUFFLE)
    held = []
    for seq in range(300):
        held.append(stream.next())
        assert compare(held[-1], dataset).seq == seq
        if len(held) == 5:
            oldest = seq - info(held[0]).seq
            batch = held.pop(0 if oldest >= 6 else seq % 5)
            compare(batch, dataset)
            stream.release(batch)
    client.close()


@scenario
def release_twice(path, dataset):
    client = Client(path)
    stream, other = client.open("small", depth=4), client.open("small", depth=64)
    batch = stream.next()
    stream.release(batch)
    assert "not held" in fails(libfeedd.E_STATE, stream.release, batch)
    foreign = [other.next() for _ in range(30)]
    read(stream, dataset, 30)  # a batch knows its stream: none of another's is given back with these
    for theirs in foreign:
        compare(theirs, dataset)
        other.release(theirs)
        assert "not held" in fails(libfeedd.E_STATE, other.release, theirs)
    client.close()


@scenario
def timeouts(path, dataset):
    """0 doesn't wait, a number of milliseconds is kept, and what comes later is still there."""
    client = Client(path)
    stream = client.open("small", order=oracle.SHUFFLE)
    stream.release(stream.next(-1))
    daemon = json.loads(client.status_json())["daemon"]["pid"]
    os.kill(daemon, signal.SIGSTOP)
    try:
        while True:  # what was announced before it stopped
            stream.release(stream.next(0))
    except Failure as failure:
        assert failure.status == libfeedd.E_TIMEOUT
    for timeout in 0, 1, 150:
        began = time.monotonic()
        assert f"{timeout} ms" in fails(libfeedd.E_TIMEOUT, stream.next, timeout)
        spent = time.monotonic() - began
        assert timeout / 1000 - 0.002 <= spent < timeout / 1000 + 2, spent
    before = stream.stats().batches
    assert stream.stats().wait_ns > 0.14e9
    os.kill(daemon, signal.SIGCONT)
    assert info(stream.next(10000)).seq == before
    client.close()


@scenario
def tokens(path, dataset):
    client = Client(path)
    stream = client.open("small", order=oracle.SHUFFLE, seed=7, batch_size=100)
    at = oracle.Token.parse(stream.token().decode())
    assert (at.order, at.seed, at.count, at.epoch, at.position) == (oracle.SHUFFLE, 7, 1000, 0, 0)
    seen = []
    for step in range(15):
        batch = stream.next()
        seen.append(list(info(batch).indices[:100]))
        at = oracle.Token.parse(stream.token().decode())
        assert (at.epoch, at.position) == divmod((step + 1) * 100, 1000)
        stream.release(batch)
    resumed = client.open(
        "small", batch_size=100, resume=oracle.Token(at.order, 1000, at.fingerprint, 7, 0, 300).text().encode()
    )
    for step in range(3, 15):
        batch = resumed.next()
        assert list(info(batch).indices[:100]) == seen[step]
        resumed.release(batch)
    assert resumed.token() == stream.token()
    client.close()


@scenario
def fork(path, dataset):
    """The child may use nothing and close everything, or just leave; the parent notices nothing of either."""
    client = Client(path)
    stream = client.open("small", order=oracle.SHUFFLE)
    fd = stream.fd()
    held = stream.next()
    for tidy in True, False:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for call in (
                    stream.next,
                    stream.fd,
                    client.status_json,
                    lambda: client.open("small"),
                    lambda: stream.release(held),
                ):
                    message = fails(libfeedd.E_FORK, call)
                    assert "fork" in message or call is not stream.next, message
                compare(held, dataset)  # its copy of the mapping
                if tidy:
                    stream.close()
                    client.close()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        compare(held, dataset)
        assert info(held).seq == 0
        read(stream, dataset, 20)
        assert select.select([fd], [], [], 10)[0]
        report = json.loads(client.status_json())
        assert len(report["clients"]) == len(report["streams"]) == 1
    stream.release(held)
    read(stream, dataset, 20)

    child = os.fork()  # a connection of its own
    if child == 0:
        code = 1
        try:
            own = Client(path)
            read(own.open("small"), dataset, 20)
            own.close()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    read(stream, dataset, 20)
    client.close()


@scenario
def many_connections(path, dataset):
    """Connections come and go; what was open is closed with them, in whatever order."""
    before = len(os.listdir("/proc/self/fd"))
    for i in range(20):
        client = Client(path)
        streams = [client.open("small", depth=4 + i) for _ in range(3)]
        for stream in streams:
            stream.fd()
            stream.next()
        if i % 3 == 0:
            streams[1].close()
        if i % 3 == 1:
            for stream in streams:
                stream.close()
        client.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with open("/proc/self/maps") as maps:
        assert "feedd-" not in maps.read()


def stop_daemon(client, stream, path):
    """Once all of a ring of 6 is here, one held and five ready, the daemon stops."""
    stream.next()
    while stream.stats().ready < 5:
        client.status_json()  # receives what has come in
    os.kill(json.loads(client.status_json())["daemon"]["pid"], signal.SIGTERM)
    while Path(path).exists():
        time.sleep(0.01)


@scenario
def daemon_stops(path, dataset):
    """What was announced can still be read; then every call says why."""
    client = Client(path)
    stream = client.open("small", depth=6, batch_size=100)
    fd = stream.fd()
    other = client.open("small", depth=4, order=oracle.SHUFFLE)
    while other.stats().ready < 4:
        client.status_json()  # receives what has come in
    stop_daemon(client, stream, path)
    for seq in range(1, 6):
        assert select.select([fd], [], [], 10)[0]
        assert info(stream.next()).seq == seq
    assert (stream.stats().held, stream.stats().ready) == (6, 0)
    assert oracle.Token.parse(stream.token().decode()).position == 600
    fails(libfeedd.E_LEASES, stream.next, 1000)
    for _ in range(4):
        other.next()
    for call in client.status_json, lambda: client.open("small"), other.fd:
        assert "stopping" in fails(libfeedd.E_SHUTDOWN, call)
    assert select.select([fd], [], [], 10)[0]
    stream.close()
    client.close()
    assert "No such file" in fails(libfeedd.E_CONNECTION, Client, path)


@scenario
def release_when_the_daemon_has_stopped(path, dataset):
    """Giving back succeeds, whether or not anybody is there to be told, and next() says why nothing follows."""
    client = Client(path)
    stream = client.open("small", depth=6, batch_size=100)
    stop_daemon(client, stream, path)
    held = [stream.next() for _ in range(5)]
    for batch in held:
        stream.release(batch)
    fails(libfeedd.E_STATE, stream.release, held[0])
    stream.stats()
    client.close()


@scenario
def normalize(path, dataset):
    """Floats by the library equal NumPy's, in float32 and in every step; what makes no sense is refused, untouched."""
    client = Client(path)
    batch = client.open("small", batch_size=5).next()
    shape = list(view(batch, 0).shape[:4])
    pixels = numpy.frombuffer(data(batch, 0), numpy.uint8).reshape(shape)
    count, height, width, channels = shape
    assert height >= 4 and width >= 4
    mean, std = [0.5, 0.4, 0.3, 0.2], [0.5, 0.25, 0.2, 0.1]
    error = libfeedd.Error()

    def call(dtype, nchw, out, field=0, windows=None, **changes):
        options = libfeedd.NormalizeOptions(ctypes.sizeof(libfeedd.NormalizeOptions), dtype, nchw, 0, 0, tuple(mean),
                                            tuple(std), 255.0, windows)
        for name, value in changes.items():
            setattr(options, name, value)
        status = lib.feedd_normalize(batch, field, ctypes.byref(options), out.ctypes.data, out.nbytes, None,
                                     ctypes.byref(error))
        libfeedd.check(status, error)
        return out

    offset = (numpy.array(mean[:channels]) * 255).astype(numpy.float32)
    factor = (1 / (numpy.array(std[:channels]) * 255)).astype(numpy.float32)
    floats = (pixels.astype(numpy.float32) - offset) * factor
    for nchw, expected in ((0, floats), (1, numpy.ascontiguousarray(floats.transpose(0, 3, 1, 2)))):
        for dtype, kind in ((5, numpy.float32), (3, numpy.float16)):
            out = call(dtype, nchw, numpy.full(expected.shape, 77, kind))
            assert numpy.array_equal(out, expected.astype(kind)), (nchw, kind)
    windows = (libfeedd.Window * count)(*[(i % 2, i % 3, i % 2) for i in range(count)])
    crops = [pixels[i, i % 2 : i % 2 + 2, i % 3 : i % 3 + 2] for i in range(count)]
    crops = numpy.stack([crop[:, ::-1] if i % 2 else crop for i, crop in enumerate(crops)])
    out = call(1, 0, numpy.zeros((count, 2, 2, channels), numpy.uint8), windows=windows, height=2, width=2)
    assert numpy.array_equal(out, crops)

    poison = numpy.full(floats.shape, 7, numpy.float32)
    for status, words, changes in (
        (libfeedd.E_ARGUMENT, "field 1", {"field": 1}),
        (libfeedd.E_ARGUMENT, "size", {"size": 3}),
        (libfeedd.E_ARGUMENT, "std", {"std": (0.0,) * 4}),
        (libfeedd.E_ARGUMENT, "dtype", {"dtype": 9}),
        (libfeedd.E_ARGUMENT, "window of sample 1", {"windows": windows, "width": width, "height": height - 1}),
        (libfeedd.E_LIMIT, "bytes", {"out": poison[1:]}),
    ):
        arguments = {"dtype": 5, "nchw": 1, "out": poison, **changes}
        assert words in fails(status, lambda arguments=arguments: call(**arguments)), words
    assert (poison == 7).all()
    client.close()


if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](sys.argv[2], oracle.Dataset(Path(sys.argv[3]), Path(sys.argv[4])))
