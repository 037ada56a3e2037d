"""What is delivered: every sample, its bytes, in which order, whoever reads along."""

import os
import signal

import oracle
import pytest
from harness import finish_cat, parse_cat
from oracle import check_batches, check_permutation, plan

pytestmark = pytest.mark.tsan

TAILS = ["drop", "pad", "partial"]


def each_index(batches):
    """The indices of all real samples, in order of delivery."""
    return [index for batch in batches for index in batch["indices"][: batch["valid"]]]


# ---- one epoch ----


@pytest.mark.parametrize("tail", TAILS)
def test_fashion_epoch(daemons, fashion, tail):
    """60,000 images by 64 leave 32: left out, filled up, or a shorter last batch."""
    feedd = daemons({"datasets": {"fashion": fashion.config()}})
    batches, end = feedd.cat("fashion", "--order", "shuffle", "--seed", "7", "--tail", tail)
    order = {}
    check_batches(batches, plan(60000, 64, tail, epochs=1), fashion, order)
    delivered = each_index(batches)
    assert len(set(delivered)) == len(delivered) == end["samples"] == (59968 if tail == "drop" else 60000)
    assert delivered != sorted(delivered)
    if tail == "pad":  # the step is filled up with the epoch's first samples
        assert batches[-1]["indices"][32:] == batches[0]["indices"][:32]


def test_fashion_sequential(daemons, fashion):
    """The configured stream: its own order and batch size, class names or not."""
    feedd = daemons(
        {
            "datasets": {"fashion": fashion.config(classes=[f"class {i}" for i in range(10)])},
            "streams": {"eval": {"dataset": "fashion", "batch_size": 1000, "epochs": 1}},
        }
    )
    batches, end = feedd.cat("eval")
    check_batches(batches, plan(60000, 1000, "drop", epochs=1), fashion)
    assert each_index(batches) == list(range(60000)) and end["samples"] == 60000


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("order", ["sequential", "shuffle"])
def test_digits_epoch(daemons, digits, order, tail):
    feedd = daemons({"datasets": {"digits": digits.config()}})
    batches, _ = feedd.cat("digits", "--order", order, "--tail", tail)
    found = {} if order == "shuffle" else None
    check_batches(batches, plan(10000, 64, tail, epochs=1), digits, found)
    assert len(each_index(batches)) == (9984 if tail == "drop" else 10000)
    if order == "sequential":
        assert each_index(batches) == list(range(len(each_index(batches))))
    elif tail != "drop":
        check_permutation(found[0], 10000)


@pytest.mark.parametrize("channels", [None, 1, 3, 4])
def test_channels(daemons, made, folder, channels):
    """Gray and colour images: 3 dimensions or 4, height, width and channels all different."""
    small = oracle.make_dataset(folder, 50, 5, 7)
    if channels is not None:
        images = small.images.repeat(channels, axis=3) + oracle.np.arange(channels, dtype=oracle.np.uint8)
        small.images_path.write_bytes(oracle.idx_bytes(images))
        small = oracle.Dataset(small.images_path, small.labels_path)
    feedd = daemons({"datasets": {"small": small.config()}})
    batches, _ = feedd.cat("small", "--batch-size", 7, "--tail", "partial")
    check_batches(batches, plan(50, 7, "partial", epochs=1), small)


def test_without_labels(daemons, tiny):
    """A dataset without labels says -1."""
    feedd = daemons({"datasets": {"tiny": {"reader": "idx", "images": str(tiny.images_path)}}})
    batches, _ = feedd.cat("tiny", "--batch-size", 10)
    for batch in batches:
        labels = oracle.np.full(10, -1, oracle.np.int64).tobytes()
        expected = {**tiny.digests(batch["indices"]), "label": oracle.xxhash.xxh3_64_hexdigest(labels)}
        assert batch["digests"] == expected


@pytest.mark.parametrize("batch_size", [1, 99, 100])
def test_batch_sizes(feedd, tiny, batch_size):
    batches, _ = feedd.cat("tiny", "--batch-size", batch_size, "--tail", "partial")
    check_batches(batches, plan(100, batch_size, "partial", epochs=1), tiny)


def test_batch_larger_than_dataset(feedd, tiny):
    """One short batch, or one that goes round more than twice."""
    for tail in "partial", "pad":
        batches, _ = feedd.cat("tiny", "--batch-size", 250, "--tail", tail, "--epochs", 2)
        check_batches(batches, plan(100, 250, tail, epochs=2), tiny)


def test_text_and_json_agree(feedd):
    batches, end = feedd.cat("train", "--batches", 20)
    done = feedd.feedctl("cat", "train", "--batches", 20)
    assert (done.returncode, done.stderr) == (0, b"")
    *lines, total, mode, token = done.stdout.decode().splitlines()
    for line, batch in zip(lines, batches, strict=True):
        words = line.split()
        values = dict(zip(words[::2], words[1::2], strict=True))
        for key in "epoch", "seq", "position", "count", "valid":
            assert int(values[key]) == batch[key]
        assert {name: values[name] for name in batch["digests"]} == batch["digests"]
        assert [int(i) for i in values["indices"].split(",")] == batch["indices"]
        assert values["flags"] == "-"
    assert total.startswith(f"20 batches, {end['samples']} samples in ")
    assert token == f"token {end['token']}"
    assert mode == "transport host, normalize client: host: no device was asked for; nothing to normalise"


# ---- epochs, ranks ----


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("order", ["sequential", "shuffle"])
def test_epochs_without_a_gap(feedd, small, order, tail):
    """Three epochs: each complete, each in an order of its own, and no batch spans two."""
    batches, _ = feedd.cat("small", "--order", order, "--tail", tail, "--epochs", 3)
    found = {} if order == "shuffle" else None
    check_batches(batches, plan(1000, 64, tail, epochs=3), small, found)
    if order == "shuffle":
        assert len(found) == 3
        orders = [tuple(found[epoch][p] for p in range(960)) for epoch in range(3)]
        assert len(set(orders)) == 3
        if tail != "drop":
            for epoch in range(3):
                check_permutation(found[epoch], 1000)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world, batch_size", [(2, 16), (3, 7), (7, 20)])
def test_ranks(feedd, small, world, batch_size, tail):
    """Ranks take disjoint parts of every step, and all make the same number of steps: else a DDP job hangs."""
    found = {}
    running = [
        feedd.start_cat(
            "train", "--batch-size", batch_size, "--rank", r, "--world", world, "--tail", tail, "--epochs", 2
        )
        for r in range(world)
    ]
    ranks = [parse_cat(finish_cat(process))[0] for process in running]
    for rank, batches in enumerate(ranks):
        check_batches(batches, plan(1000, batch_size, tail, 2, rank, world), small, found)
    assert len({len(batches) for batches in ranks}) == 1
    delivered = [
        sorted(i for r in ranks for i in each_index([b for b in r if b["epoch"] == epoch])) for epoch in (0, 1)
    ]
    for epoch in 0, 1:
        if tail == "drop":
            steps = 1000 // (world * batch_size)
            assert len(delivered[epoch]) == len(set(delivered[epoch])) == steps * world * batch_size
        else:
            assert delivered[epoch] == list(range(1000))
            check_permutation(found[epoch], 1000)


@pytest.mark.parametrize("tail", ["pad", "partial"])
def test_more_ranks_than_samples(feedd, tiny, tail):
    """97 + 3 samples on 8 ranks: those that would get none get padding, so that all make as many steps."""
    counts = set()
    seen = []
    for rank in range(8):
        batches, _ = feedd.cat("tiny", "--batch-size", 4, "--rank", rank, "--world", 8, "--tail", tail)
        check_batches(batches, plan(100, 4, tail, 1, rank, 8), tiny)
        counts.add(len(batches))
        seen += each_index(batches)
    assert counts == {4} and sorted(seen) == list(range(100))


# ---- the same for everybody ----


def test_workers_change_nothing(daemons, small):
    """1, 2 and 7 workers deliver the same bytes in the same order."""
    config = {"datasets": {"small": small.config()}}
    runs = []
    for workers in 1, 2, 7:
        feedd = daemons(config, workers=workers)
        assert feedd.report()["daemon"]["workers"] == workers
        batches, end = feedd.cat("small", "--order", "shuffle", "--seed", 11, "--tail", "partial", "--epochs", 3)
        runs.append((batches, end["token"]))
    check_batches(runs[0][0], plan(1000, 64, "partial", 3), small, {})
    assert runs[0] == runs[1] == runs[2]


def test_eight_clients(feedd, small):
    """Eight at once, four seeds: everybody's bytes are right, equal seeds give equal streams, others don't."""
    running = [feedd.start_cat("train", "--seed", 1 + i // 2, "--epochs", 5) for i in range(8)]
    results = [parse_cat(finish_cat(process)) for process in running]
    for batches, _ in results:
        check_batches(batches, plan(1000, 64, "partial", 5), small, {})
    for i in range(0, 8, 2):
        assert results[i][0] == results[i + 1][0]
    assert len({tuple(batches[0]["indices"]) for batches, _ in results}) == 4
    feedd.wait_report(lambda r: not r["streams"] and r["memory"]["ring_bytes"] == 0, what="no stream")


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_seeds(feedd, small, seed):
    """Any 64 bits are a seed; the order depends on nothing but seed and epoch."""
    found = {}
    for batch_size in 64, 100:
        batches, end = feedd.cat("train", "--seed", seed, "--batch-size", batch_size)
        check_batches(batches, plan(1000, batch_size, "partial", 1), small, found)
        assert oracle.Token.parse(end["token"]).seed == seed
    check_permutation(found[0], 1000)


@pytest.mark.parametrize("depth", [2, 3, 64])
def test_depth_changes_nothing(feedd, small, depth):
    batches, _ = feedd.cat("train", "--depth", depth, "--epochs", 2)
    check_batches(batches, plan(1000, 64, "partial", 2), small, {})


def test_interrupted(feedd, small):
    """SIGINT ends a `cat` in the middle: what it printed is right, and its token says where it stands."""
    process = feedd.start_cat("train", "--epochs", 0)
    feedd.wait_report(lambda r: any(s["batches"] > 50 for s in r["streams"]), what="50 batches")
    process.send_signal(signal.SIGINT)
    batches, end = parse_cat(finish_cat(process))
    expected = plan(1000, 64, "partial", len(batches) // 16 + 1)[: len(batches)]
    check_batches(batches, expected, small, {})
    token = oracle.Token.parse(end["token"])
    assert (token.epoch, token.position) == expected[-1].next


def test_output_that_nobody_reads(feedd):
    """`feedctl cat | head -1`: it stops when its output is closed, and says so."""
    reading, writing = os.pipe()
    process = feedd.start_cat("train", "--epochs", 0, stdout=writing)
    os.close(writing)
    os.read(reading, 100)
    os.close(reading)
    done = finish_cat(process)
    assert (done.returncode, done.stderr.decode()) == (1, "feedctl: standard output can't be written\n")
    feedd.wait_report(lambda r: not r["clients"], what="no client")
