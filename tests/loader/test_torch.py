"""torch tensors in host memory, where torch is installed."""

import io
import json

import feedd
import numpy
import pytest
from conftest import python

torch = pytest.importorskip("torch", reason="torch isn't installed")


@pytest.fixture
def torch_loaders(loaders):
    return lambda source="small", **options: loaders(source, kind=feedd.DataLoader, device="cpu", **options)


@pytest.mark.parametrize("options", [
    {}, {"dtype": torch.float32}, {"dtype": torch.float16, "mean": 0.5, "std": 0.25, "layout": "nhwc"},
    {"dtype": "int8", "mean": 0.5, "std": 1 / 255},
], ids=str)  # fmt: skip
def test_equal_to_numpy(loaders, torch_loaders, options):
    names = {torch.float32: "float32", torch.float16: "float16"}
    same = {**options, "dtype": names.get(options.get("dtype"), options.get("dtype"))}
    for (a, b), (x, y) in zip(torch_loaders(**options), loaders(**same)):
        assert a.dtype == getattr(torch, str(x.dtype)) and b.dtype == torch.int64
        assert numpy.array_equal(a.numpy(), x) and numpy.array_equal(b.numpy(), y)


def test_bfloat16(loaders, torch_loaders):
    for (a, _), (x, _) in zip(torch_loaders(dtype=torch.bfloat16, scale=100), loaders(dtype="float32", scale=100)):
        assert torch.equal(a, torch.from_numpy(x).to(torch.bfloat16))


def test_out(torch_loaders):
    images, labels = torch.zeros((64, 1, 6, 5), dtype=torch.float32), torch.zeros(64, dtype=torch.int64)
    for (a, b), (x, y) in zip(torch_loaders(out=(images, labels), dtype=torch.float32), torch_loaders(dtype="float32")):
        assert a is images and b is labels and torch.equal(a, x) and torch.equal(b, y)
    with pytest.raises(TypeError, match="contiguous"):
        torch_loaders(out=(images.transpose(2, 3), labels), dtype=torch.float32)


def test_zero_copy(torch_loaders, loaders):
    """nchw is the strides that torch calls channels_last; and what is kept is never overwritten."""
    loader = torch_loaders("short", batch_size=50, zero_copy=True)
    loop, held = iter(loader), []
    with pytest.raises(feedd.LeasesError):
        for _ in range(100):
            held.append(next(loop))
    assert len(held) >= 3 and held[0][0].is_contiguous(memory_format=torch.channels_last)
    for (images, labels), (x, y) in zip(held, loaders("short", batch_size=50)):
        assert numpy.array_equal(images.numpy(), x) and numpy.array_equal(labels.numpy(), y)
    loader.close()
    part, held, images, labels = held[1][0][3:5], None, None, None
    del x, y
    assert part.shape == (2, 1, 6, 5) and part.sum() > 0


def test_profiler(torch_loaders):
    """next() is named in a trace."""
    loop = iter(torch_loaders())
    next(loop)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        next(loop)
    assert "feedd.next" in {event.key for event in profile.key_averages()}


def test_a_device_that_is_not_there(loaders):
    if torch.cuda.is_available():
        pytest.skip("torch has a GPU here")
    for device in "cuda", "cuda:1", torch.device("cuda"):
        with pytest.raises(feedd.DeviceError, match='device="cpu"'):
            loaders(kind=feedd.DataLoader, device=device)
    with pytest.raises(ValueError, match="cpu"):
        loaders(kind=feedd.DataLoader, device="meta")


def test_in_place_of_torchs(torch_loaders):
    """The loop that people have: one line is another one."""
    loader = torch_loaders(dtype=torch.float32)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(30, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert step + 1 == len(loader)
    buffer = io.BytesIO()
    torch.save(loader.state_dict(), buffer)
    buffer.seek(0)
    loader.load_state_dict(torch.load(buffer))


def test_forked_workers_are_told(daemon):
    """A loader within a Dataset of torch's own DataLoader with workers: a clear error, not a hang."""
    code = """
import json, sys, feedd, torch
loader = feedd.DataLoader("small", batch_size=8, device="cpu", socket=sys.argv[1])
class Inner(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(loader)
try:
    next(iter(torch.utils.data.DataLoader(Inner(), num_workers=1, batch_size=None, multiprocessing_context="fork")))
except RuntimeError as error:
    print(json.dumps(str(error)))
"""
    assert "ForkError" in json.dumps(python(code, daemon.socket))
