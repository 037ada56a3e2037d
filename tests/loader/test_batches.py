"""What loaders deliver: the bytes that feedctl cat has digests of, and NumPy's own arithmetic on them."""

import feedd
import numpy
import pytest
import xxhash
from conftest import DATA
from oracle import plan

IMAGENET = DATA / "imagenet-sample"
OPTIONS = {
    "batch-size": "batch_size",
    "order": "order",
    "seed": "seed",
    "tail": "tail",
    "rank": "rank",
    "world": "world_size",
}


def digests(batch):
    return {name: xxhash.xxh3_64_hexdigest(array.tobytes()) for name, array in batch.items()}


def check_against_cat(daemon, loader, source, epochs, **options):
    """Every batch of the first epochs, raw, is what `feedctl cat` reads."""
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    expected, _ = daemon.cat(source, "--epochs", epochs, *words)
    at = iter(expected)
    for _ in range(epochs):
        for batch in loader:
            wanted = next(at)
            assert digests(batch) == wanted["digests"]
            assert loader.batch == (wanted["epoch"], wanted["position"], wanted["count"], wanted["valid"])
    assert next(at, None) is None


@pytest.mark.parametrize(
    "options",
    [
        {"order": "shuffle", "seed": 0},
        {"order": "sequential", "batch-size": 7},
        {"order": "shuffle", "seed": 5, "tail": "partial", "batch-size": 300},
        {"order": "shuffle", "seed": 5, "tail": "pad", "batch-size": 64, "rank": 2, "world": 3},
        {"order": "sequential", "tail": "partial", "batch-size": 100, "rank": 6, "world": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize("zero_copy", [False, True])
def test_equal_to_feedctl_cat(daemon, loaders, options, zero_copy):
    chosen = {OPTIONS[name]: value for name, value in options.items()}
    loader = loaders(layout="nhwc", fields=["image", "label", "index"], zero_copy=zero_copy, **chosen)
    check_against_cat(daemon, loader, "small", 2, **{"batch-size": 64, **options})


def test_photos_and_a_transform(daemon, loaders):
    if not IMAGENET.is_dir():
        pytest.skip(f"{IMAGENET} is missing (FEEDD_TEST_DATA)")
    transform = [feedd.Resize(72), feedd.CenterCrop((64, 60)), feedd.RandomHorizontalFlip(0.3)]
    loader = loaders(
        IMAGENET, layout="nhwc", fields=["image", "label", "index"], transform=transform, seed=3, batch_size=50
    )
    check_against_cat(
        daemon, loader, IMAGENET, 1, **{"batch-size": 50, "order": "shuffle", "seed": 3},
        transform="{resize: 72, center_crop: [64, 60], flip: 0.3}",
    )  # fmt: skip
    assert next(iter(loaders(IMAGENET, transform=transform, batch_size=5)))[0].shape == (5, 3, 64, 60)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    "dtype, mean, std",
    [
        ("float32", None, None),
        ("float32", 0.5, 0.5),
        (numpy.float32, [0.2], [0.3]),
        (numpy.dtype("float16"), 0.45, 0.225),
        ("int8", 0.5, 1 / 255),
        (None, None, None),
        ("uint8", None, None),
    ],
    ids=str,
)
def test_arithmetic(loaders, small, dtype, mean, std, layout):
    """(x - mean * scale) / (std * scale): two constants rounded to float32, each operation rounded once."""
    loader = loaders(dtype=dtype, mean=mean, std=std, layout=layout)
    indices = loaders(fields=["index"])
    for (images, labels), batch in zip(loader, indices):
        x = small.images[batch["index"]]
        if dtype not in (None, "uint8"):
            m = numpy.float32((0.0 if mean is None else numpy.ravel(mean)[0]) * 255)
            s = numpy.float32(1 / ((1.0 if std is None else numpy.ravel(std)[0]) * 255))
            x = (x.astype(numpy.float32) - m) * s
            x = numpy.clip(numpy.rint(x), -128, 127).astype(numpy.int8) if dtype == "int8" else x.astype(dtype)
        expected = x.transpose(0, 3, 1, 2) if layout == "nchw" else x
        assert images.dtype == expected.dtype and numpy.array_equal(images, expected)
        assert labels.dtype == numpy.int64 and numpy.array_equal(labels, small.labels[batch["index"]])
        assert images.flags.c_contiguous and images.flags.writeable


def test_bfloat16(loaders):
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 without ml_dtypes")
    floats, brains = loaders(dtype="float32", scale=100), loaders(dtype="bfloat16", scale=100)
    for (a, _), (b, _) in zip(floats, brains):
        assert numpy.array_equal(a.astype(b.dtype), b)


def test_scale(loaders, small):
    (images, _), batch = (
        next(iter(loader)) for loader in (loaders(dtype="float32", scale=100), loaders(fields=["index"]))
    )
    expected = small.images[batch["index"]].astype(numpy.float32) * numpy.float32(1 / 100)
    assert numpy.array_equal(images, expected.transpose(0, 3, 1, 2))


def test_fields(loaders, small):
    batch = next(iter(loaders(fields=("index", "label"))))
    assert list(batch) == ["index", "label"] and batch["index"].dtype == numpy.int64
    with pytest.raises(ValueError, match="image, label, index"):
        loaders(fields=["image", "boxes"])
    with pytest.raises(ValueError, match="fields"):
        loaders(fields=[])


def test_without_labels(daemons, small):
    config = {"datasets": {"bare": {key: value for key, value in small.config().items() if key != "labels"}}}
    with feedd.NumpyLoader("bare", batch_size=8, socket=daemons(config).socket) as loader:
        images, labels = next(iter(loader))
        assert images.shape == (8, 1, 6, 5) and labels.tolist() == [-1] * 8


def test_out(loaders, small):
    """Every batch is written to the same arrays; a shorter one to their beginning."""
    images, labels = numpy.full((300, 1, 6, 5), 7, numpy.float32), numpy.full(300, 7, numpy.int64)
    loader = loaders(out=(images, labels), dtype="float32", batch_size=300, tail="partial", order="sequential")
    counts = []
    for x, y in loader:
        counts.append(len(x))
        assert numpy.shares_memory(x, images) and numpy.shares_memory(y, labels)
        at = sum(counts[:-1])
        assert numpy.array_equal(y, small.labels[at : at + len(y)])
        assert numpy.array_equal(x[:, 0], small.images[at : at + len(y), ..., 0] * numpy.float32(1 / 255))
    assert counts == [300, 300, 300, 100] and labels[0] == small.labels[900] and labels[100] == small.labels[700]
    named = loaders(out={"label": labels}, fields=["label"], batch_size=300)
    assert next(iter(named))["label"] is labels
    for wrong, error in (
        ((images,), ValueError),
        ((images[:200], labels), ValueError),
        ((images, labels.astype(numpy.int32)), ValueError),
        ((images.astype(numpy.float64), labels), ValueError),
        ((images[..., ::-1], labels), TypeError),
        ((list(images), labels), TypeError),
    ):
        with pytest.raises(error, match="out"):
            loaders(out=wrong, dtype="float32", batch_size=300)


def test_padding_is_told(loaders):
    """tail="pad": batch.valid says how many are real."""
    loader = loaders(tail="pad", batch_size=300)
    seen = [(loader.batch.count, loader.batch.valid) for _ in loader]
    assert seen == [(len(p.positions), p.valid) for p in plan(1000, 300, "pad", 1)] and seen[-1] == (300, 100)


def test_a_split(loaders):
    whole, parts = len(loaders().dataset), [loaders("small", subset=name) for name in ("a", "b")]
    assert whole == 1000 and [len(part.dataset) for part in parts] == [750, 250]
    assert loaders("small/b").stats()["dataset"] == "small"
    indices = [batch["index"] for name in "ab" for batch in loaders(f"small/{name}", fields=["index"], tail="partial")]
    assert sorted(numpy.concatenate(indices)) == list(range(1000))
    with pytest.raises(feedd.NotFoundError, match="small/c"):
        loaders("small", subset="c")
    with pytest.raises(ValueError, match="splits"):
        loaders("small", subset=0.5)
