"""library_scenarios.py - libfeedd as a Python caller sees it: library_scenarios.py SCENARIO SOCKET IMAGES LABELS.

One process a scenario, started by test_library.py, so that a sanitizer's runtime can be loaded before everything else.
"""

import ctypes
import json
import os
import select
import signal
import sys
import threading
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


@scenario
def open_in_two_steps(path, dataset):
    client = Client(path)
    stream, error = ctypes.c_void_p(), libfeedd.Error()

    def begin(source):
        libfeedd.check(lib.feedd_open_begin(client.handle, source, None, ctypes.byref(stream), ctypes.byref(error)), error)

    def wait(timeout_ms):
        libfeedd.check(lib.feedd_open_wait(stream, timeout_ms, ctypes.byref(error)), error)

    begin(b"small")
    handle = ctypes.c_void_p(7)
    assert lib.feedd_next(stream, 0, ctypes.byref(handle), None) == libfeedd.E_STATE and handle.value == 7
    lib.feedd_stream_stats(stream, ctypes.byref(libfeedd.Stats()))
    for _ in range(10000):
        try:
            wait(0)
            break
        except Failure as failure:
            assert failure.status == libfeedd.E_TIMEOUT
    wait(-1)  # it is open
    lib.feedd_stream_close(stream)
    begin(b"nothing")
    assert "nothing" in fails(libfeedd.E_NOT_FOUND, wait, -1)
    lib.feedd_stream_close(stream)
    begin(b"named")
    lib.feedd_stream_close(stream)  # given up
    read(client.open("small"), dataset, 3)
    client.close()


@scenario
def copy_paths_and_tokens(path, dataset):
    client = Client(path)
    stream = client.open("small", batch_size=100, seed=3, order=oracle.SHUFFLE)
    error = libfeedd.Error()
    for step in range(12):
        batch = stream.next()
        i = info(batch)
        assert (i.next_epoch, i.next_position) == divmod((step + 1) * 100, 1000)
        for number in range(3):
            out = ctypes.create_string_buffer(view(batch, number).bytes)
            assert lib.feedd_batch_copy(batch, number, out, len(out), None, ctypes.byref(error)) == 0
            assert out.raw == data(batch, number)
            assert lib.feedd_batch_copy(batch, number, out, len(out) - 1, None, None) == libfeedd.E_LIMIT
        assert lib.feedd_batch_copy(batch, 3, out, len(out), None, None) == libfeedd.E_NOT_FOUND
        stream.release(batch)
        assert lib.feedd_batch_copy(batch, 2, out, len(out), None, None) == libfeedd.E_STATE
    moved = ctypes.create_string_buffer(128)
    assert lib.feedd_token_move(stream.token(), 7, 300, moved, ctypes.byref(error)) == 0
    was, at = oracle.Token.parse(stream.token().decode()), oracle.Token.parse(moved.value.decode())
    assert (at.epoch, at.position, at.seed, at.fingerprint) == (7, 300, 3, was.fingerprint)
    epoch, position = ctypes.c_uint64(1), ctypes.c_uint64(2)
    assert lib.feedd_token_read(b"feedd1.", ctypes.byref(epoch), ctypes.byref(position), None) == libfeedd.E_TOKEN
    assert (epoch.value, position.value) == (1, 2)
    assert lib.feedd_token_read(moved.value, ctypes.byref(epoch), ctypes.byref(position), None) == 0
    assert (epoch.value, position.value) == (7, 300)
    assert lib.feedd_token_move(b"nonsense", 7, 300, moved, None) == libfeedd.E_TOKEN

    def name(index):
        text = ctypes.c_void_p()
        libfeedd.check(lib.feedd_sample_path(stream.handle, index, ctypes.byref(text), ctypes.byref(error)), error)
        return libfeedd.take_text(text).decode()

    assert name(999) == f"{dataset.images_path}[999]"
    assert "1000" in fails(libfeedd.E_NOT_FOUND, name, 1000)
    client.close()


@scenario
def transform(path, dataset):
    """As feedd.conf's; a text that is none is refused with what is wrong in it."""
    client = Client(path)
    for text, words in (
        (b"{flip: 1.5}", ("request:1: transform.flip", "1.5")),
        (b"{resize: 7, nonsense: 1}", ("nonsense", "resize")),
        (b"{resize: [", ("not YAML",)),
        (b"resize", ("mapping",)),
        (b"{flip: &a 1}", ("anchor",)),
        (b"{flip: 0}" + b" " * 5000, ("5009 bytes",)),
        (b"{resize: 0, center_crop: 4}", ("transform.resize",)),
    ):
        status = libfeedd.E_LIMIT if len(text) > 4096 else libfeedd.E_ARGUMENT
        message = fails(status, lambda text=text: client.open("small", transform=text))
        assert all(word in message for word in words), message
    read(client.open("small", transform=b"{}"), dataset, 2)
    read(client.open("small", transform=b"# nothing"), dataset, 2)
    batch = client.open("small", transform=b'{"flip": 1}', batch_size=50).next()
    images = numpy.frombuffer(data(batch, 0), numpy.uint8).reshape(50, 6, 5, 1)
    assert numpy.array_equal(images, dataset.images[:50, :, ::-1])
    client.open("small", transform=b"{flip: 1}", share=2, group=b"g")
    assert "transform" in fails(libfeedd.E_ARGUMENT, lambda: client.open("small", share=2, group=b"g"))
    client.open("small", transform=b"{'flip': 1.0}", share=2, group=b"g")
    client.close()


class Tensor:
    """What is lent: a DLManagedTensor, read and deleted by hand."""

    class Legacy(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
            ("dtype", ctypes.c_uint8 * 2), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
            ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ]  # fmt: skip

    def __init__(self, batch, field=0):
        out, error = ctypes.c_void_p(), libfeedd.Error()
        libfeedd.check(lib.feedd_batch_dlpack(batch, field, 0, None, ctypes.byref(out), ctypes.byref(error)), error)
        self.address, self.fields = out.value, self.Legacy.from_address(out.value)
        assert list(self.fields.device) == [1, 0] and self.fields.lanes == 1 and self.fields.offset == 0
        self.bytes = view(batch, field).bytes

    def data(self):
        return ctypes.string_at(self.fields.data, self.bytes)

    def delete(self):
        self.fields.deleter(self.address)


@scenario
def lent(path, dataset):
    """A batch goes back when it is released and its last tensor deleted, in whatever order and on whatever thread."""
    client = Client(path)
    stream = client.open("small", depth=4, batch_size=50)
    held = []
    for _ in range(3):
        batch = stream.next()
        i = info(batch)
        held.append((list(i.indices[:50]), [Tensor(batch), Tensor(batch, 1), Tensor(batch)]))
        stream.release(batch)
        fails(libfeedd.E_STATE, stream.release, batch)
        fails(libfeedd.E_STATE, Tensor, batch)
    assert list(held[0][1][0].fields.shape[:4]) == [50, 6, 5, 1] and list(held[0][1][0].fields.strides[:4]) == [30, 5, 1, 1]
    assert list(held[0][1][0].fields.dtype) == [1, 8] and list(held[0][1][1].fields.dtype) == [0, 64]
    assert stream.stats().held == 3
    stream.release(stream.next())
    fails(libfeedd.E_LEASES, stream.next)
    for indices, tensors in held:
        expected = dataset.fields(indices)
        assert [t.data() for t in tensors] == [expected[name] for name in ("image", "label", "image")]
    thread = threading.Thread(target=lambda: [t.delete() for t in held[0][1]])
    thread.start()
    thread.join()
    read(stream, dataset, 1)
    fails(libfeedd.E_LEASES, stream.next)
    for _, tensors in held[1:]:
        for tensor in tensors:
            tensor.delete()
    read(stream, dataset, 50)
    batch = stream.next()  # deleted before it is released
    Tensor(batch).delete()
    compare(batch, dataset)
    stream.release(batch)
    read(stream, dataset, 50)
    client.close()


@scenario
def lent_beyond_the_end(path, dataset):
    """Stream and client are closed; the tensors stay, and with the last of them everything goes."""
    other = Client(path)
    before = counts()
    for close_stream, release in (False, False), (True, True), (True, False), (False, True):
        client = Client(path)
        group = {"share": 2, "group": b"lent", "members": 2, "depth": 4, "batch_size": 50}
        stream, member = client.open("small", **group), other.open("small", **group)
        batches = [stream.next() for _ in range(3)]
        tensors = [Tensor(batch) for batch in batches[:2]]
        expected = [dataset.fields(info(batch).indices[:50])["image"] for batch in batches[:2]]
        for batch in batches[:2] if release else []:
            stream.release(batch)
        if close_stream:
            stream.close()
            read(client.open("small"), dataset, 3)
        client.close()
        taken = 0
        while True:  # a member that went on would overwrite them
            try:
                member.release(member.next(300))
                taken += 1
            except Failure as failure:
                assert failure.status == libfeedd.E_TIMEOUT and taken == 4, failure
                break
        assert [t.data() for t in tensors] == expected
        tensors[0].delete()
        assert tensors[1].data() == expected[1]
        tensors[1].delete()
        for _ in range(20):
            member.release(member.next())
        member.close()
    deadline = time.monotonic() + 10
    while counts() != before:
        assert time.monotonic() < deadline, (counts(), before)
        time.sleep(0.01)
    read(other.open("small"), dataset, 3)
    other.close()
    with open("/proc/self/maps") as maps:
        assert "feedd-" not in maps.read()


def counts():
    """Of descriptors and threads."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@scenario
def lent_and_forked(path, dataset):
    """The child reads what was lent, deletes it and closes everything; the parent notices nothing."""
    client = Client(path)
    stream = client.open("small", depth=4, batch_size=50)
    batch = stream.next()
    tensor, expected = Tensor(batch), data(batch, 0)
    stream.release(batch)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert tensor.data() == expected
            stream.close()
            client.close()
            assert tensor.data() == expected
            tensor.delete()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    read(stream, dataset, 2)
    assert tensor.data() == expected
    tensor.delete()
    read(stream, dataset, 20)
    client.close()


def wanted(dtype=5, nchw=1, mean=(0.5, 0.4, 0.3, 0.2), std=(0.5, 0.25, 0.2, 0.1), scale=255.0, size=None, **changes):
    """What feedd_normalize() and OpenOptions.output take."""
    size = ctypes.sizeof(libfeedd.NormalizeOptions) if size is None else size
    options = libfeedd.NormalizeOptions(size, dtype, nchw, 0, 0, tuple(mean), tuple(std), scale, None)
    for name, value in changes.items():
        setattr(options, name, value)
    return options


@scenario
def bad_modes(path, dataset):
    """Transports, modes and outputs that make no sense; host memory needs no transport, and knows no other."""
    client = Client(path)
    os.environ["FEEDD_TRANSPORT"] = "pigeon"  # is about GPUs
    windows = (libfeedd.Window * 1)()
    for status, words, options in (
        (libfeedd.E_ARGUMENT, "transport 'pigeon': allowed are auto, ipc, fd and host", {"transport": b"pigeon"}),
        (libfeedd.E_ARGUMENT, "transport 'HOST': allowed", {"transport": b"HOST"}),
        (libfeedd.E_ARGUMENT, "transport ipc gets batches to a GPU", {"transport": b"ipc"}),
        (libfeedd.E_ARGUMENT, "transport fd gets batches to a GPU", {"transport": b"fd", "device": b"host"}),
        (libfeedd.E_ARGUMENT, "normalize -1", {"normalize": -1}),
        (libfeedd.E_ARGUMENT, "normalize 4", {"normalize": 4}),
        (libfeedd.E_ARGUMENT, "output of size 8", {"output": wanted(size=8)}),
        (libfeedd.E_ARGUMENT, "windows", {"output": wanted(windows=windows)}),
        (libfeedd.E_ARGUMENT, "height", {"output": wanted(height=2)}),
        (libfeedd.E_ARGUMENT, "width", {"output": wanted(width=2)}),
        (libfeedd.E_ARGUMENT, "output: ", {"output": wanted(dtype=0)}),
        (libfeedd.E_ARGUMENT, "output: ", {"output": wanted(dtype=6)}),
        (libfeedd.E_ARGUMENT, "output: ", {"output": wanted(std=(0, 1, 1, 1))}),
        (libfeedd.E_ARGUMENT, "output: ", {"output": wanted(mean=(float("inf"), 0, 0, 0))}),
        (libfeedd.E_ARGUMENT, "output: ", {"output": wanted(scale=0.0)}),
        (libfeedd.E_UNSUPPORTED, "normalize = daemon", {"output": wanted(), "normalize": 2}),
    ):
        if "output" in options:
            kept = options["output"]
            options = {**options, "output": ctypes.addressof(kept)}
        assert words in fails(status, lambda options=options: client.open("small", **options)), words
    for transport in None, b"", b"auto", b"host":
        stream = client.open("small", transport=transport)
        s = stream.schema
        assert (s.transport, s.device, s.device_ordinal, s.views_on_host, s.normalize) == (b"host", b"", -1, 1, 1)
        read(stream, dataset, 1)
        stream.close()
    client.close()


@scenario
def normalized_by_workers(path, dataset):
    """normalize = cpu: the field is what NumPy makes of the files, and what feedd_normalize() makes of the uint8 one."""
    client = Client(path)
    pixels = client.open("small", batch_size=50)
    batch = pixels.next()
    shape = list(view(batch, 0).shape[:4])
    images = numpy.frombuffer(data(batch, 0), numpy.uint8).reshape(shape)
    assert shape[3] == 1
    floats = (images.astype(numpy.float32) - numpy.float32(0.5 * 255)) * numpy.float32(1 / (0.5 * 255))
    kinds = {1: numpy.uint8, 2: numpy.int8, 3: numpy.float16, 4: numpy.uint16, 5: numpy.float32}
    for dtype, kind in kinds.items():
        for nchw in 0, 1:
            options, error = wanted(dtype, nchw), libfeedd.Error()
            stream = client.open("small", batch_size=50, normalize=3, output=ctypes.addressof(options))
            s, made = stream.schema, stream.next()
            as_decoded = dtype == 1  # one channel: planes or not, the bytes are the same
            assert s.normalize == (1 if as_decoded else 3) and s.mode_reason and s.views_on_host == 1, s.mode_reason
            field = s.fields[0]
            sample = shape[1:] if as_decoded or not nchw else [shape[3], *shape[1:3]]
            assert (field.name, field.dtype, list(field.shape[: field.ndim])) == (b"image", dtype, sample)
            out = numpy.full(shape, 77, kind)
            libfeedd.check(lib.feedd_normalize(batch, 0, ctypes.byref(options), out.ctypes.data, out.nbytes, None,
                                               ctypes.byref(error)), error)  # fmt: skip
            assert data(made, 0) == out.tobytes(), (dtype, nchw)
            if kind in (numpy.float32, numpy.float16):
                assert data(made, 0) == floats.astype(kind).tobytes(), (dtype, nchw)
            assert [data(made, number) for number in (1, 2)] == [data(batch, number) for number in (1, 2)]
            copy = numpy.full(shape, 78, kind)
            assert lib.feedd_batch_copy(made, 0, copy.ctypes.data, copy.nbytes, None, None) == libfeedd.OK
            assert numpy.array_equal(copy, out)
            if not as_decoded:
                status = lib.feedd_normalize(made, 0, ctypes.byref(options), copy.ctypes.data, copy.nbytes, None,
                                             ctypes.byref(error))  # fmt: skip
                name = lib.feedd_dtype_name(dtype).decode()
                assert f"field 0 is {name} already: the stream was opened with normalize = cpu" in error.message.decode()
                assert status == libfeedd.E_STATE and numpy.array_equal(copy, out)
            stream.close()
    client.close()


if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](sys.argv[2], oracle.Dataset(Path(sys.argv[3]), Path(sys.argv[4])))
