"""feedd --check-config: 0 and a line for a good file, 1 and the line of the mistake for a bad one."""

import json

import pytest
from harness import FEEDD, run

GOOD = """\
daemon:
  socket: /run/feedd/feedd.sock
  workers: 2
datasets:
  fashion:
    reader: idx
    images: train-images.gz
    labels: train-labels.gz
streams:
  train:
    dataset: fashion
    batch_size: 64
    order: shuffle
  eval:
    dataset: fashion
    batch_size: 100
"""


def check(path):
    return run([FEEDD, "--config", path, "--check-config"])


def test_good(folder):
    path = folder / "feedd.conf"
    path.write_text(GOOD)
    done = check(path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"{path}: right: 1 datasets, 2 streams\n"
    assert sorted(p.name for p in folder.iterdir()) == ["feedd.conf"]  # it has listened nowhere


def test_other_good_ones(folder):
    """Nothing, nothing but a comment, and JSON, which is YAML."""
    for text in "", "# nothing\n", json.dumps({"datasets": {"a": {"reader": "idx", "images": "x"}}}):
        path = folder / "feedd.conf"
        path.write_text(text)
        done = check(path)
        assert (done.returncode, done.stderr) == (0, b"") and done.stdout.count(b"\n") == 1


BAD = [
    # what is replaced, by what, the line of the mistake, words of the message
    ("workers: 2", "workers: 0", 3, ["daemon.workers", "'0'", "1 to 1024"]),
    ("workers: 2", "workers: many", 3, ["daemon.workers", "'many'"]),
    ("workers: 2", "wrokers: 2", 3, ["daemon.wrokers", "unknown key", "workers"]),
    ("workers: 2", "socket: x", 3, ["daemon.socket", "repeated", "line 2"]),
    ("reader: idx", "reader: idxx", 6, ["datasets.fashion.reader", "idxx", "idx"]),
    ("    reader: idx\n", "", 5, ["datasets.fashion.reader", "missing"]),
    ("dataset: fashion\n    batch_size: 64", "dataset: fashoin\n    batch_size: 64", 11, ["fashoin", "fashion"]),
    ("batch_size: 64", "batch_size: 0", 12, ["streams.train.batch_size", "'0'", "1 to 65536"]),
    ("batch_size: 64", "batch_size: 65537", 12, ["streams.train.batch_size", "65537"]),
    ("order: shuffle", "order: random", 13, ["streams.train.order", "random", "sequential, shuffle"]),
    ("order: shuffle", "tail: wag", 13, ["streams.train.tail", "drop, pad, partial"]),
    ("order: shuffle", "depth: 1", 13, ["streams.train.depth", "2 to 1024", "auto"]),
    ("  eval:", "  train:", 14, ["streams.train", "repeated", "line 10"]),
    ("streams:", "stream:", 9, ["stream", "unknown key", "daemon, datasets, streams"]),
    ("  train:", "\ttrain:", 10, ["not YAML"]),
    ("order: shuffle", "order: [shuffle", 14, ["not YAML"]),
    ("workers: 2", "workers: &two 2", 3, ["anchor"]),
]


@pytest.mark.parametrize("old, new, line, words", BAD, ids=[new.strip() or old.strip() for old, new, _, _ in BAD])
def test_bad(folder, old, new, line, words):
    path = folder / "feedd.conf"
    assert GOOD.count(old) >= 1
    path.write_text(GOOD.replace(old, new, 1))
    done = check(path)
    text = done.stderr.decode()
    assert (done.returncode, done.stdout) == (1, b"")
    assert text.startswith(f"<3>{path}:{line}: ") and text.count("\n") == 1, text
    for word in words:
        assert word in text


def test_no_file(folder):
    done = check(folder / "none")
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"No such file" in done.stderr
    done = check(folder)
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"directory" in done.stderr
    (folder / "binary").write_bytes(bytes(range(256)))
    done = check(folder / "binary")
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"not YAML" in done.stderr


def test_usage():
    for args in [], ["--config"], ["--nonsense"], ["--config", "a", "b"]:
        done = run([FEEDD, *args])
        assert done.returncode == 2 and done.stdout == b"" and b"--help" in done.stderr
    done = run([FEEDD, "--help"])
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.startswith(b"usage: feedd --config FILE")
    done = run([FEEDD, "--version"])
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.startswith(b"feedd ")
