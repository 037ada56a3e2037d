"""Batches on a GPU, by way of the fake CUDA runtime: written and given back on the framework's own stream."""

import ctypes
import json
import threading
import time

import fake_gpu
import feedd
import numpy
import pytest
from conftest import python
from harness import wait_for

pytestmark = pytest.mark.skipif(not fake_gpu.PATH.exists(), reason="not built with FEEDD_CUDA=FAKE")


class Loader(feedd.DataLoader):
    def _load(self, device):
        return fake_gpu.Framework(device)


@pytest.fixture
def gpu(daemons, small, folder):
    return daemons(
        {
            "datasets": {"small": small.config()},
            "streams": {"short": {"dataset": "small", "batch_size": 50, "depth": 4}},
        },
        env={"FEEDD_FAKE_GPUS": "1"},
    )


@pytest.fixture
def loaders(gpu):
    made = []

    def make(source="small", kind=Loader, **options):
        options.setdefault("batch_size", 50)
        made.append(kind(source, socket=gpu.socket, **options))
        return made[-1]

    yield make
    for loader in made:
        loader.close()
    gpu.wait_report(lambda r: not r["streams"] and all(g["ring_bytes"] == 0 for g in r["gpus"]), what="nothing open")


def spin(loader, ms, stream=None):
    """A kernel that runs so long, on the framework's stream."""
    loader._framework.cuda.gpu_spin(ms, ctypes.c_void_p(stream or loader._framework.stream))


@pytest.mark.parametrize("options", [
    {}, {"layout": "nhwc"}, {"dtype": "float32", "mean": 0.4, "std": 0.3}, {"dtype": "float16", "layout": "nhwc"},
    {"dtype": "int8", "mean": 0.5, "std": 1 / 255},
], ids=str)  # fmt: skip
def test_equal_to_host_memory(loaders, options):
    loader = loaders(tail="partial", batch_size=64, **options)
    assert loader.stats()["transport"] == "ipc" and loader.stats()["device"].startswith("GPU-feedd")
    host = loaders(kind=feedd.NumpyLoader, tail="partial", batch_size=64, **options)
    for (images, labels), (x, y) in zip(loader, host):
        stream = loader._framework.stream
        assert images.dtype == x.dtype
        assert numpy.array_equal(images.numpy(stream), x) and numpy.array_equal(labels.numpy(stream), y)


def test_slots_are_not_used_again_before_the_stream_got_there(loaders):
    """Copies and kernels that begin long after next() has returned read what was there then."""
    loader, expected = loaders("short", dtype="float32"), list(loaders(kind=feedd.NumpyLoader, dtype="float32"))
    batches = []
    for batch in loader:
        batches.append(batch)
        spin(loader, 10)
    assert len(batches) == 20
    for (images, labels), (x, y) in zip(batches, expected):
        assert numpy.array_equal(images.numpy(loader._framework.stream), x)
        assert numpy.array_equal(labels.numpy(loader._framework.stream), y)


def test_out(loaders):
    cuda = fake_gpu.Cuda()
    out = fake_gpu.Array(cuda, (50, 1, 6, 5), "float32"), fake_gpu.Array(cuda, (50,), "int64")
    loader = loaders(dtype="float32", out=out)
    for (images, labels), (x, y) in zip(loader, loaders(kind=feedd.NumpyLoader, dtype="float32")):
        assert images is out[0] and labels is out[1]
        assert numpy.array_equal(images.numpy(loader._framework.stream), x)
        assert numpy.array_equal(labels.numpy(loader._framework.stream), y)


def held(gpu, source="short"):
    """What the daemon knows to be held by the one client that reads this."""
    streams = [s for client in gpu.report()["clients"] for s in client["streams"] if s["source"] == source]
    return streams[0]["held"] if streams else None


def test_zero_copy(gpu, loaders):
    """Nothing is copied and no kernel runs; what is kept is never overwritten."""
    loader = loaders("short", zero_copy=True, order="sequential", layout="nhwc")
    loop, kept = iter(loader), []
    with pytest.raises(feedd.LeasesError):
        for _ in range(100):
            kept.append(next(loop))
    assert len(kept) >= 3
    expected = loaders(kind=feedd.NumpyLoader, order="sequential", layout="nhwc")
    stream = loader._framework.stream
    for (images, labels), (x, y) in zip(kept, expected):
        assert (images.managed.device_type, images.managed.device_id, images.managed.lanes) == (2, 0, 1)
        assert images.shape == x.shape and images.managed.strides[: images.managed.ndim] == [30, 5, 1, 1]
        assert numpy.array_equal(images.numpy(stream), x) and numpy.array_equal(labels.numpy(stream), y)
    kept.clear()
    del images, labels
    next(loop)


@pytest.mark.parametrize("other", [False, True])
def test_a_lease_ends_when_the_streams_that_read_it_got_there(gpu, loaders, other):
    loader = loaders("short", zero_copy=True)
    loop = iter(loader)
    batch = next(loop)
    stream = loader._framework.stream
    if other:
        stream = loader._framework.cuda.stream()
        loader.record_stream(stream)
        loader.record_stream(stream)
    wait_for(lambda: held(gpu) == 4, what="a full ring")
    spin(loader, 600, stream)
    began = time.monotonic()
    del batch
    assert time.monotonic() - began < 0.3
    seq = gpu.report()["streams"][0]["batches"]
    time.sleep(0.2)
    assert gpu.report()["streams"][0]["batches"] == seq  # its slot isn't filled anew
    wait_for(lambda: gpu.report()["streams"][0]["batches"] > seq, what="the slot's next batch")
    assert time.monotonic() - began > 0.5


def test_too_many_streams(loaders):
    loader = loaders("short", zero_copy=True)
    batch = next(iter(loader))
    streams = [loader._framework.cuda.stream() for _ in range(4)]
    for stream in streams[:3]:
        loader.record_stream(stream)
    with pytest.raises(feedd.Error, match="4 streams"):
        loader.record_stream(streams[3])
    del batch
    with pytest.raises(feedd.Error, match="not lent"):
        loader.record_stream(streams[0])


def test_while_a_graph_is_captured(gpu, loaders):
    """Nothing of a batch may go into a graph: a clear error. A tensor that is dropped meanwhile waits for the end."""
    loader, other = loaders("short"), loaders("short", zero_copy=True)
    batch = next(iter(other))
    for one in loader, other:
        cuda, stream = one._framework.cuda, ctypes.c_void_p(one._framework.stream)
        cuda.cudaStreamBeginCapture(stream, 2)
        try:
            if one is loader:
                with pytest.raises(feedd.Error, match="captured into a CUDA graph"):
                    next(iter(loader))
            else:
                batches = 8  # two rings of 4, of which each loader holds one
                wait_for(lambda: sum(s["batches"] for s in gpu.report()["streams"]) == batches, what="full rings")
                del batch
                time.sleep(0.2)
                assert sum(s["batches"] for s in gpu.report()["streams"]) == batches
        finally:  # closing a loader waits for it
            graph = ctypes.c_void_p()
            cuda.cudaStreamEndCapture(stream, ctypes.byref(graph))
            cuda.cudaGraphDestroy(graph)
    wait_for(lambda: sum(s["batches"] for s in gpu.report()["streams"]) > batches, what="the slot's next batch")


@pytest.mark.parametrize("thread", [False, True])
def test_beyond_the_end_of_the_loader(gpu, loaders, thread):
    loader = loaders("short", zero_copy=True, order="sequential", layout="nhwc")
    images, labels = next(iter(loader))
    expected, _ = next(iter(loaders(kind=feedd.NumpyLoader, order="sequential", layout="nhwc")))
    spin(loader, 100)
    loader.close()
    assert numpy.array_equal(images.numpy(loader._framework.stream), expected)
    kept = [images, labels]
    del images, labels
    if thread:
        worker = threading.Thread(target=kept.clear)
        worker.start()
        worker.join()
    kept.clear()


LEFT = """
import json, sys
import fake_gpu, feedd
class Loader(feedd.DataLoader):
    def _load(self, device):
        return fake_gpu.Framework(device)
for zero_copy in False, True, False:
    loader = Loader("small", batch_size=50, socket=sys.argv[1], zero_copy=zero_copy)
    for number, batch in enumerate(loader):
        if number == 7:
            break
    loader.close()
    del batch, loader
"""


def test_nothing_is_left(gpu, folder):
    """Of memory, imports and events, when the process ends."""
    leaks = folder / "leaks"
    python(LEFT + "import time; time.sleep(1)", gpu.socket, env={"FEEDD_FAKE_CUDA_LEAKS": str(leaks)})
    (line,) = leaks.read_text().splitlines()
    counts = dict(word.split("=") for word in line.split()[1:])
    assert counts.pop("streams") == "3" and set(counts.values()) == {"0"}, line  # the framework's own


def test_a_call_of_cuda_fails(gpu):
    """An exception with CUDA's words; the batch is given back, and the next one comes."""
    code = """
import json, sys
import fake_gpu, feedd
class Loader(feedd.DataLoader):
    def _load(self, device):
        return fake_gpu.Framework(device)
loader = Loader("small", batch_size=50, socket=sys.argv[1], dtype="float32", fields=["image", "index"])
loop, said, read = iter(loader), [], 0
while True:
    try:
        for batch in loop:
            read += 1
        break
    except feedd.DeviceError as error:
        said.append(str(error))
print(json.dumps([said, read, loader.stats()["held"]]))
"""
    slow = {"FEEDD_FAKE_CUDA_DELAY_US": "normalize_cuda_launch:2000"}  # what is read on an idle stream needs no event
    for function in "normalize_cuda_launch", "cudaMemcpyAsync", "cudaEventRecord":
        fail = {"FEEDD_FAKE_CUDA_FAIL": f"{function}:3:cudaErrorUnknown"}
        said, read, held = python(code, gpu.socket, env={**slow, **fail})
        assert len(said) == 1 and "cudaErrorUnknown" in said[0] and read == 20 and held == 0, json.dumps(
            [said, read, held]
        )
