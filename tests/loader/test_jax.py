"""JAX arrays, where JAX is installed: always a copy, with the same bits."""

import feedd
import numpy
import pytest

jax = pytest.importorskip("jax", reason="JAX isn't installed")


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("options", [
    {}, {"dtype": "float32", "mean": 0.4, "std": 0.3}, {"dtype": "float16", "scale": 100}, {"dtype": "bfloat16"},
    {"dtype": "int8", "mean": 0.5, "std": 1 / 255},
], ids=str)  # fmt: skip
def test_equal_to_numpy(loaders, options, layout):
    made = loaders(kind=feedd.JaxLoader, device="cpu", layout=layout, tail="partial", **options)
    count = 0
    for (a, b), (x, y) in zip(made, loaders(layout=layout, tail="partial", **options)):
        assert isinstance(a, jax.Array) and a.dtype == x.dtype and b.dtype == numpy.int32
        assert numpy.array_equal(numpy.asarray(a), x) and numpy.array_equal(numpy.asarray(b), y)
        count += 1
    assert count == 16


@pytest.mark.parametrize("options", [
    {"dtype": "float32", "mean": 0.4, "std": 0.3}, {"dtype": "bfloat16"}, {"dtype": "int8", "layout": "nhwc"},
], ids=str)  # fmt: skip
def test_made_by_the_daemon(loaders, options):
    made = loaders(kind=feedd.JaxLoader, device="cpu", normalize="cpu", **options)
    assert made.stats()["normalize"] == "cpu"
    for (a, b), (x, y) in zip(made, loaders(**options)):
        assert a.dtype == x.dtype and numpy.array_equal(numpy.asarray(a), x) and numpy.array_equal(numpy.asarray(b), y)


def test_views_in_host_memory_go_to_the_gpu(loaders, monkeypatch):
    """Transport "host": they are put onto the device before anything is computed of them. Here that is the CPU."""
    cpu, put = jax.devices("cpu")[0], []
    monkeypatch.setattr(jax, "devices", lambda kind: [cpu] if kind == "cuda" else pytest.fail(kind))
    monkeypatch.setattr(jax, "device_put", lambda views, device: put.append(device) or [jax.numpy.array(v) for v in views])
    loader = loaders(kind=feedd.JaxLoader, device="cpu", dtype="float32")
    loader._client.schema = loader._client.schema._replace(device="GPU-somewhere")
    for (a, b), (x, y) in zip(loader, loaders(dtype="float32")):
        assert numpy.array_equal(numpy.asarray(a), x) and numpy.array_equal(numpy.asarray(b), y)
    assert put == [cpu] * 15


def test_always_a_copy(loaders, small):
    """All of them are kept, of a ring of 4, and stay as they were; donating one is fine."""
    loader = loaders("short", kind=feedd.JaxLoader, device="cpu", batch_size=50, order="sequential", layout="nhwc")
    kept = list(loader)
    assert len(kept) == 20 and loader.stats()["held"] <= 1
    donated = jax.jit(lambda x: x + 1, donate_argnums=0)(kept[3][0])
    loader.close()
    for number, (images, labels) in enumerate(kept):
        if number == 3:
            images = donated - 1
        assert numpy.array_equal(numpy.asarray(images), small.images[50 * number : 50 * number + 50])
        assert numpy.array_equal(numpy.asarray(labels), small.labels[50 * number : 50 * number + 50])


def test_what_makes_no_sense(loaders):
    for options in {"zero_copy": True}, {"out": (1, 2)}:
        with pytest.raises(ValueError, match="always a copy"):
            loaders(kind=feedd.JaxLoader, device="cpu", **options)
    with pytest.raises(ValueError, match="cpu"):
        loaders(kind=feedd.JaxLoader, device="tpu")
