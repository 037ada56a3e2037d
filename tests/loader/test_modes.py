"""Who normalises, and how batches get to a GPU: the same arrays in every case, and stats() says which it is and why."""

import fake_gpu
import feedd
import numpy
import pytest
from conftest import python
from oracle import Dataset, idx_bytes
from test_gpu import Loader

needs_fake = pytest.mark.skipif(not fake_gpu.PATH.exists(), reason="not built with FEEDD_CUDA=FAKE")

OPTIONS = [
    {"dtype": "float32", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    {"dtype": "float32", "layout": "nhwc", "scale": 100}, {"dtype": "float16", "layout": "nhwc"},
    {"dtype": "int8", "mean": 0.5, "std": 1 / 255}, {"dtype": "uint8"},
]  # fmt: skip


@pytest.fixture
def rgb(folder):
    random = numpy.random.default_rng(5)
    paths = []
    for kind, array in (("images", random.integers(0, 256, (200, 6, 9, 3), numpy.uint8)),
                        ("labels", random.integers(0, 10, 200, numpy.uint8))):  # fmt: skip
        paths.append(folder / f"rgb-{kind}")
        paths[-1].write_bytes(idx_bytes(array))
    return Dataset(*paths)


@pytest.fixture
def served(daemons, rgb):
    output = {"dtype": "float32", "layout": "nchw", "mean": 0.5, "std": [0.5, 0.25, 0.125]}
    return daemons(
        {
            "datasets": {"rgb": rgb.config()},
            "streams": {
                "floats": {"dataset": "rgb", "batch_size": 32, "normalize": "cpu", "output": output},
                "ours": {"dataset": "rgb", "batch_size": 32, "normalize": "client", "output": output},
            },
        },
        env={"FEEDD_FAKE_GPUS": "1"},
    )


@pytest.fixture
def loaders(served):
    made = []

    def make(source="rgb", kind=feedd.NumpyLoader, **options):
        made.append(kind(source, socket=served.socket, **{"batch_size": 32, "tail": "partial", **options}))
        return made[-1]

    yield make
    for loader in made:
        loader.close()
    served.wait_report(lambda r: not r["streams"] and all(g["ring_bytes"] == 0 for g in r["gpus"]), what="nothing open")


def numbers(array, loader):
    return array if isinstance(array, numpy.ndarray) else array.numpy(loader._framework.stream)


def check(loader, expected, batches=7):
    """These batches, to the bit; they are the framework's own."""
    made = list(loader)
    assert len(made) == batches
    for (images, labels), (x, y) in zip(made, expected):
        assert (tuple(images.shape), images.dtype) == (x.shape, x.dtype)
        assert numpy.array_equal(numbers(images, loader), x) and numpy.array_equal(numbers(labels, loader), y)


# ---- in host memory ----


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_by_the_daemons_threads(loaders, options):
    expected = list(loaders(**options))
    loader = loaders(normalize="cpu", **options)
    assert loader.stats()["normalize"] == "cpu" and "normalised by the CPU: as it was asked" in loader.stats()["mode_reason"]
    assert loader.stats()["transport"] == "host"
    check(loader, expected)
    check(loaders(normalize="cpu", zero_copy=True, **options), expected)
    out = numpy.empty_like(expected[0][0]), numpy.empty_like(expected[0][1])
    last = [(images.copy(), labels.copy()) for images, labels in loaders(normalize="cpu", out=out, **options)]
    assert all(numpy.array_equal(a, x) and numpy.array_equal(b, y) for (a, b), (x, y) in zip(last, expected))


def test_zero_copy_is_in_the_layout_that_was_asked_for(loaders):
    for layout in "nchw", "nhwc":
        images, _ = next(iter(loaders(normalize="cpu", dtype="float32", layout=layout, zero_copy=True)))
        assert images.flags.c_contiguous and not images.flags.writeable
    images, _ = next(iter(loaders(zero_copy=True)))
    assert not images.flags.c_contiguous  # the client's: strides of nhwc


def test_nothing_to_normalise(loaders):
    for normalize in "auto", "client", "daemon", "cpu":
        loader = loaders(dtype="uint8", layout="nhwc", normalize=normalize)
        assert loader.stats()["normalize"] == "client" and "nothing to normalise" in loader.stats()["mode_reason"]
        check(loader, list(loaders(layout="nhwc")))


def test_as_configured(loaders):
    """Without a dtype the stream's output counts, with it the loader's."""
    expected = list(loaders(dtype="float32", mean=0.5, std=(0.5, 0.25, 0.125)))
    loader = loaders("floats")
    assert loader.stats()["normalize"] == "cpu"
    check(loader, expected)
    half = loaders("floats", dtype="float16", layout="nhwc")
    assert half.stats()["normalize"] == "cpu"
    check(half, list(loaders(dtype="float16", layout="nhwc")))
    check(loaders("ours"), list(loaders()))


def test_going_elsewhere(loaders):
    """Another epoch, and what a state says: in the same mode."""
    options = {"normalize": "cpu", "dtype": "float32", "order": "shuffle"}
    loader, expected = loaders(**options), loaders(dtype="float32", order="shuffle")
    for one in loader, expected:
        one.set_epoch(3)
    for (a, b), (x, y) in zip(loader, expected):
        assert numpy.array_equal(a, x) and numpy.array_equal(b, y)
    state = loader.state_dict()
    resumed = loaders(resume=state, **options)
    for (a, _), (x, _) in zip(resumed, expected):
        assert numpy.array_equal(a, x)


def test_refused(loaders):
    with pytest.raises(feedd.Error, match="normalize = daemon is a kernel on a GPU.*normalize = cpu"):
        loaders(normalize="daemon", dtype="float32")


# ---- on a GPU ----


@needs_fake
@pytest.mark.parametrize("transport", ["ipc", "fd", "host"])
@pytest.mark.parametrize("normalize", ["client", "daemon", "cpu"])
def test_on_a_gpu(loaders, normalize, transport):
    for options in OPTIONS:
        expected = list(loaders(**options))
        more = {"kind": Loader, "normalize": normalize, "transport": transport, **options}
        if (normalize, transport) == ("daemon", "host"):
            with pytest.raises(feedd.Error, match="transport ipc or fd is needed"):
                loaders(**more)
            continue
        loader = loaders(**more)
        stats = loader.stats()
        assert (stats["normalize"], stats["transport"]) == (normalize, transport), stats
        assert stats["device"].startswith("GPU-feedd") and stats["mode_reason"].startswith(f"{transport}: ")
        check(loader, expected)
        out = [fake_gpu.Array(loader._framework.cuda, a.shape, a.dtype) for a in expected[0]]
        loader = loaders(out=out, **more)
        for (images, labels), (x, y) in zip(loader, expected[:3]):
            assert images is out[0] and labels is out[1]
            assert numpy.array_equal(numbers(images, loader), x) and numpy.array_equal(numbers(labels, loader), y)
        if transport == "host":
            with pytest.raises(ValueError, match="transport host: batches are in host memory"):
                loaders(zero_copy=True, **{**more, "dtype": "uint8", "mean": None, "std": None})
        elif normalize != "client":
            check(loaders(zero_copy=True, **more), expected)


@needs_fake
def test_late_kernels_read_what_was_there(loaders):
    """Copies out of host memory, and the kernels behind them, begin long after next() has returned."""
    options = {"dtype": "float32", "layout": "nchw"}
    expected = list(loaders(**options))
    for normalize in "client", "cpu":
        loader, made = loaders(kind=Loader, transport="host", normalize=normalize, **options), []
        for batch in loader:
            made.append(batch)
            loader._framework.cuda.gpu_spin(10, fake_gpu.ctypes.c_void_p(loader._framework.stream))
        for (images, labels), (x, y) in zip(made, expected):
            assert numpy.array_equal(numbers(images, loader), x) and numpy.array_equal(numbers(labels, loader), y)


ELSEWHERE = """
import json, sys
from test_gpu import Loader
loader = Loader("rgb", batch_size=32, socket=sys.argv[1], dtype="float32")
next(iter(loader))
print(json.dumps(loader.stats()))
loader.close()
"""


@needs_fake
@pytest.mark.parametrize("env, transport, words", [
    ({}, "ipc", ["asked for it and can map it"]),
    ({"FEEDD_FAKE_NO_IPC": "1"}, "fd", ["ipc: ", "mapping of buffer object failed"]),
    ({"FEEDD_FAKE_NO_IPC": "1", "FEEDD_FAKE_NO_VMM": "1"}, "host", ["ipc: ", "fd: "]),
    ({"FEEDD_TRANSPORT": "host"}, "host", []),
], ids=str)  # fmt: skip
def test_what_works(served, env, transport, words):
    stats = python(ELSEWHERE, served.socket, env={"FEEDD_FAKE_GPUS": "1", **env})
    assert stats["transport"] == transport and stats["normalize"] == "client"
    assert all(word in stats["mode_reason"] for word in words), stats["mode_reason"]
