"""Datasets and requests that make no sense: one clear line to who asked, and nobody else notices."""

import gzip
import os
import struct

import pytest
from harness import FEEDCTL, parse_failure, run
from neighbour import Neighbour
from oracle import check_batches, plan


def write(path, data):
    path.write_bytes(data)
    return path


def flip(data, at, count=1):
    """The same with some bytes of it inverted."""
    return data[:at] + bytes(byte ^ 0xFF for byte in data[at : at + count]) + data[at + count :]


# What the file of images holds: a function of right content; and what the message has to say about it.
IMAGES = {
    "empty": (lambda data: b"", ["truncated", "0 of 4 bytes"]),
    "truncated": (lambda data: data[:-1], ["truncated", "1215 of 1216 bytes"]),
    "longer than its header says": (lambda data: data + b"x", ["trailing data", "1216 bytes"]),
    "truncated gzip": (lambda data: gzip.compress(data)[:600], ["truncated", "after decompression"]),
    "gzip without its end": (lambda data: gzip.compress(data)[:-4], ["truncated", "checksum"]),
    "gzip with a wrong checksum": (
        lambda data: flip(gzip.compress(data), -8),
        ["damaged gzip", "incorrect data check"],
    ),
    "damaged gzip": (lambda data: flip(gzip.compress(data), 100, 100), ["damaged gzip"]),
    "garbage behind gzip": (lambda data: gzip.compress(data) + b"garbage", ["damaged gzip", "incorrect header check"]),
    "text": (lambda data: b"this is not a gzip file, whatever its name says", ["not an IDX file", "74 68 69 73"]),
    "wrong magic": (lambda data: b"\1" + data[1:], ["not an IDX file", "01 00 08 03"]),
    "floats": (lambda data: bytes([0, 0, 0x0D, 3]) + data[4:], ["f32", "u8"]),
    "two dimensions": (lambda data: bytes([0, 0, 8, 2]) + data[4:], ["2 dimensions", "3 (", "4 ("]),
    "no samples": (lambda data: data[:4] + bytes(4) + data[8:16], ["dimension 1", "0"]),
    "labels": (lambda data: bytes([0, 0, 8, 1]) + data[4:], ["labels", "where images are due"]),
    "99 samples": (lambda data: data[:4] + struct.pack(">I", 99) + data[8:-12], ["99 images", "100 labels"]),
    "2^70 bytes": (lambda data: data[:8] + b"\xff" * 8, ["4294967295 x 4294967295", "dataset_memory_max"]),
    "100 GiB, packed": (
        lambda data: gzip.compress(data[:4] + struct.pack(">3I", 100, 2**15, 2**15)),
        ["107374183200 bytes", "dataset_memory_max"],
    ),
}


def broken(daemons, images, labels, small):
    """A daemon with a broken dataset and a good one."""
    return daemons(
        {
            "daemon": {"dataset_memory_max": "64M"},
            "datasets": {
                "broken": {"reader": "idx", "images": str(images), "labels": str(labels)},
                "small": small.config(),
            },
            "streams": {"train": {"dataset": "small", "batch_size": 64, "order": "shuffle"}},
        }
    )


def check_broken(feedd, small, *words):
    """Each attempt to open it looks at the files anew and fails with the same clear line; nothing of it stays."""
    with Neighbour(feedd, small) as neighbour:
        memory = feedd.report()["memory"]
        for _ in range(2):
            feedd.cat_fails("broken", words=words)
            neighbour.read(5)
        report = feedd.wait_report(lambda r: len(r["streams"]) == 1, what="one stream")
        assert report["memory"] == memory
        dataset = next(d for d in report["datasets"] if d["name"] == "broken")
        assert (dataset["state"], dataset["samples"], dataset["memory_bytes"]) == ("closed", 0, 0)
        assert all(str(word) in dataset["error"] for word in words)


@pytest.mark.parametrize("kind", IMAGES)
def test_broken_images(daemons, folder, small, tiny, kind):
    make, words = IMAGES[kind]
    images = write(folder / "some-images.gz", make(tiny.images_path.read_bytes()))
    check_broken(broken(daemons, images, tiny.labels_path, small), small, images, *words)


@pytest.mark.parametrize("kind", ["missing", "a folder", "a pipe", "images", "truncated"])
def test_broken_labels(daemons, folder, small, tiny, kind):
    labels = folder / "some-labels"
    words = [labels]
    match kind:
        case "missing":
            words.append("No such file")
        case "a folder":
            labels.mkdir()
            words += ["directory", "regular file"]
        case "a pipe":
            os.mkfifo(labels)
            words += ["pipe", "regular file"]
        case "images":
            labels = tiny.images_path
            words = [labels, "images (3 dimensions) where labels are due", "wrong way round"]
        case "truncated":
            write(labels, tiny.labels_path.read_bytes()[:-1])
            words += ["truncated", "107 of 108 bytes"]
    check_broken(broken(daemons, tiny.images_path, labels, small), small, *words)


def test_missing_images(daemons, folder, small, tiny):
    check_broken(broken(daemons, folder / "none", tiny.labels_path, small), small, folder / "none", "No such file")


@pytest.mark.tsan
def test_file_appears(daemons, folder, tiny):
    """What was missing when the daemon started, or when somebody asked before, is there now."""
    images, labels = folder / tiny.images_path.name, folder / tiny.labels_path.name
    feedd = daemons({"datasets": {"late": {"reader": "idx", "images": str(images), "labels": str(labels)}}})
    feedd.cat_fails("late", words=["No such file"])
    images.write_bytes(tiny.images_path.read_bytes())
    labels.write_bytes(tiny.labels_path.read_bytes())
    batches, _ = feedd.cat("late", "--batch-size", 10)
    check_batches(batches, plan(100, 10, "drop", 1), tiny)
    assert feedd.report()["datasets"][0]["error"] is None


def test_plain_file_called_gz(daemons, folder, tiny):
    """Content decides what a file is, not its name."""
    paths = []
    for path, wrap in (tiny.images_path, bytes), (tiny.labels_path, gzip.compress):
        paths.append(write(folder / f"{path.name}{'.gz' if wrap is bytes else ''}", wrap(path.read_bytes())))
    feedd = daemons({"datasets": {"odd": {"reader": "idx", "images": str(paths[0]), "labels": str(paths[1])}}})
    batches, _ = feedd.cat("odd", "--batch-size", 10)
    check_batches(batches, plan(100, 10, "drop", 1), tiny)


def test_file_changes_while_it_is_read(daemons, folder, small):
    """A dataset that is truncated or overwritten while it is open: what was read stays, and nobody gets a SIGBUS."""
    images, labels = folder / "i.gz", folder / "l.gz"
    images.write_bytes(small.images_path.read_bytes())
    labels.write_bytes(small.labels_path.read_bytes())
    feedd = daemons(
        {
            "datasets": {"small": {"reader": "idx", "images": str(images), "labels": str(labels)}},
            "streams": {"train": {"dataset": "small", "batch_size": 64, "order": "shuffle"}},
        }
    )
    with Neighbour(feedd, small) as neighbour:
        os.truncate(images, 0)
        os.truncate(labels, 10)
        neighbour.read(50)


# ---- memory ----


@pytest.mark.tsan
def test_dataset_memory_max(daemons, small, tiny):
    """Alone it is too large; or it is too large beside what others have open."""
    size = 1000 * 30 + 1000 * 8  # small: pixels and labels
    config = {
        "datasets": {"small": small.config(), "tiny": tiny.config()},
        "streams": {"train": {"dataset": "small", "batch_size": 64, "order": "shuffle"}},
    }
    for limit in "20K", "38015":
        feedd = daemons({**config, "daemon": {"dataset_memory_max": limit}})
        feedd.cat_fails("small", words=["dataset_memory_max", small.images_path.name, "1000"])
        feedd.cat("tiny")
        assert feedd.report()["memory"]["dataset_bytes"] == 0
    feedd = daemons({**config, "daemon": {"dataset_memory_max": size + 1000}})
    with Neighbour(feedd, small) as neighbour:
        memory = feedd.report()["memory"]
        assert size <= memory["dataset_bytes"] <= size + 64
        feedd.cat_fails("tiny", words=["dataset_memory_max", tiny.images_path.name, "100 samples"])
        neighbour.read(10)
    feedd.wait_report(lambda r: r["memory"]["dataset_bytes"] == 0, what="a closed dataset")
    feedd.cat("tiny")


@pytest.mark.tsan
def test_ring_memory_max(daemons, small):
    """A ring that doesn't fit, and one that doesn't fit beside others; afterwards there is room again."""
    feedd = daemons(
        {
            "daemon": {"ring_memory_max": "1M"},
            "datasets": {"small": small.config()},
            "streams": {"train": {"dataset": "small", "batch_size": 64, "order": "shuffle", "depth": 64}},
        }
    )
    feedd.cat_fails("small", "--batch-size", 1000, "--depth", 1024, words=["ring_memory_max", "1024 batches of 1000"])
    feedd.cat_fails("small", "--tail", "pad", "--batch-size", 65536, "--depth", 2, words=["ring_memory_max"])
    with Neighbour(feedd, small) as neighbour:
        used = feedd.report()["memory"]["ring_bytes"]
        assert 0 < used <= 1 << 20
        message = feedd.cat_fails("small", "--batch-size", 1000, "--depth", 13, words=["ring_memory_max"])
        assert str((1 << 20) - used) in message
        neighbour.read(10)
        assert feedd.report()["memory"]["ring_bytes"] == used
    feedd.wait_report(lambda r: r["memory"]["ring_bytes"] == 0, what="no ring")
    batches, _ = feedd.cat("small", "--batch-size", 1000, "--depth", 13)
    check_batches(batches, plan(1000, 1000, "drop", 1), small)


# ---- requests ----


@pytest.mark.parametrize(
    "source, args, words",
    [
        ("nothing", [], ["'nothing'", "feedd.conf"]),
        ("", [], ["''"]),
        ("x" * 60000, [], ["xxx"]),
        ("a\nb\x1b[2J\xff", [], ["a?b?[2J"]),
        ("small", ["--rank", 2, "--world", 2], ["rank 2", "0 to 1", "world of 2"]),
        ("small", ["--rank", 1], ["rank 1"]),
        ("small", ["--batch-size", 1001, "--tail", "drop"], ["1000 samples", "1001", "pad or partial"]),
        ("small", ["--batch-size", 300, "--world", 4, "--tail", "drop"], ["1000 samples", "1200", "at most 250"]),
        ("small", ["--batch-size", 1, "--world", 1001, "--tail", "drop"], ["1000 samples", "1001 ranks"]),
        ("small", ["--world", 65536, "--batch-size", 65536], ["1000 samples", "65536 ranks"]),
    ],
)
def test_impossible_request(feedd, small, source, args, words):
    with Neighbour(feedd, small) as neighbour:
        feedd.cat_fails(source, *args, words=words)
        neighbour.read(10)
        feedd.wait_report(lambda r: len(r["streams"]) == 1, what="one stream")


def test_wrong_usage(feedd):
    """feedctl itself refuses, with 2, before it asks the daemon."""
    for args in (
        ["cat"],
        ["cat", "a", "b"],
        ["cat", "small", "--batch-size", "0"],
        ["cat", "small", "--batch-size", "65537"],
        ["cat", "small", "--batch-size", "-1"],
        ["cat", "small", "--batch-size", "1e3"],
        ["cat", "small", "--depth", "1"],
        ["cat", "small", "--seed", "18446744073709551616"],
        ["cat", "small", "--order", "random"],
        ["cat", "small", "--tail", "loop"],
        ["cat", "small", "--nonsense"],
        ["status", "please"],
        ["frobnicate"],
    ):
        done = feedd.feedctl(*args)
        assert (done.returncode, done.stdout) == (2, b""), args
        assert done.stderr.count(b"\n") == 1, done.stderr


def test_nobody_there(folder, feedd):
    """No socket, something else in its place, a path that is too long: one clear line each."""
    places = {
        folder / "none": ["No such file", "is feedd running"],
        feedd.config: ["Connection refused", "start it again"],
        folder / ("x" * 200): ["at most 107"],
    }
    for path, words in places.items():
        parse_failure(run([FEEDCTL, "--socket", path, "status"]), path, *words)
