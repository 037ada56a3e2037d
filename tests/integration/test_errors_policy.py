"""Samples that can't be had: what is delivered in their place is the same for everyone, and said."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from crowd import Crowd, failure, finish_all
from harness import sanitizer
from oracle import check_batches, plan
from photos import digests, image_folder, make_photos, validation

FIT = {"resize": 48, "center_crop": 40}
SUBSTITUTED, ZEROED = 2, 4
BAD = 37  # index of the bad file
BAD_NAME = "class-1/0049.jpg"


def truncate(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def link_to_a_directory(path):
    path.unlink()
    path.symlink_to("../class-0")


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def link_outside(path):
    path.unlink()
    path.symlink_to("/etc/hostname")


DAMAGES = {
    "truncated": (truncate, "cut short"),
    "zero bytes": (lambda path: path.write_bytes(b""), "empty"),
    "text": (lambda path: path.write_text("not a photo at all\n"), "JPEG"),
    "link to a directory": (link_to_a_directory, "directory"),
    "removed": (Path.unlink, "No such file"),
    "FIFO": (pipe, "regular file"),
    "link outside": (link_outside, "leads out"),
}


@pytest.fixture(scope="session")
def hundred(made):
    return make_photos(made / "hundred", 100)


@pytest.fixture
def damaged(hundred, folder):
    """A copy in which files are damaged: damaged(how, names). @return (its dataset as a list, [(path, label)])"""

    def make(how, names=(BAD_NAME,)):
        root = folder / "photos"
        shutil.copytree(hundred, root)
        samples = image_folder(root)[1]
        assert str(samples[BAD][0].relative_to(root)) == BAD_NAME
        for name in names:
            how(root / name)
        lines = [f"{path.relative_to(root)}\t{label}\n" for path, label in samples]
        (folder / "list.tsv").write_text("".join(lines))
        return {"reader": "list", "list": str(folder / "list.tsv"), "root": str(root)}, samples

    return make


@pytest.fixture
def serve(daemons, folder):
    def start(dataset, workers=2, more=None, timeout_ms=30000, **options):
        stream = {"batch_size": 8, "tail": "partial", "order": "shuffle", "seed": 2, "transform": FIT}
        return daemons(
            {
                "daemon": {"cache_dir": str(folder / "cache"), "read_timeout_ms": timeout_ms},
                "datasets": {"d": dataset, **(more or {})},
                "streams": {
                    on_error: {"dataset": "d", "on_error": on_error, **stream}
                    for on_error in ("substitute", "zero", "fail")
                },
            },
            workers=workers,
            **options,
        )

    return start


def errors(feedd):
    done = feedd.feedctl("errors", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_delivered(batches, samples, bad, flag):
    """What is delivered is what indices and flags say; and the bad ones never are."""
    flagged = []
    for batch in batches:
        images, labels = [], []
        for index, f in zip(batch["indices"], batch["flags"], strict=True):
            flagged += [(batch["epoch"], index)] if f else []
            assert f in (0, flag)
            zero = f == ZEROED
            assert zero or index not in bad
            images.append(np.zeros((40, 40, 3)) if zero else validation(samples[index][0], 48, 40))
            labels.append(-1 if zero else samples[index][1])
        assert batch["digests"] == digests(images, labels, batch["indices"])
    return flagged


@pytest.mark.tsan
@pytest.mark.parametrize("kind", DAMAGES)
def test_substitute(serve, damaged, kind):
    """One bad file in a hundred: the same stand-in for all members, all runs, whatever the number of workers."""
    how, reason = DAMAGES[kind]
    dataset, samples = damaged(how)
    runs = []
    for workers in 1, 2, 7:
        feedd = serve(dataset, workers)
        with Crowd(feedd) as crowd:
            runs.append(finish_all(crowd.start_all(2, "substitute", "--epochs", 2)))
        (entry,) = errors(feedd)
        assert (entry["dataset"], entry["index"], entry["count"]) == ("d", BAD, 2)
        assert BAD_NAME in entry["reason"] and reason in entry["reason"], entry["reason"]
        text = feedd.feedctl("errors").stdout.decode()
        assert entry["reason"] in text
        assert feedd.report()["datasets"][0]["bad_samples"] == 2
        feedd.stop()
    assert runs[0] == runs[1] == runs[2]
    flagged = check_delivered(runs[0], samples, {BAD}, SUBSTITUTED)
    assert [epoch for epoch, _ in flagged] == [0, 1]
    for epoch in 0, 1:
        indices = [i for b in runs[0] if b["epoch"] == epoch for i in b["indices"]]
        missing = set(range(100)) - set(indices)
        assert missing == {BAD} and len(indices) == 100  # the stand-in comes twice


def test_substitutes_of_several(serve, damaged):
    """Stand-ins may be bad themselves; the next one is tried."""
    names = [f"class-{i % 4}/{i:04}.jpg" for i in range(0, 30, 3)]
    dataset, samples = damaged(lambda path: path.write_bytes(b""), names)
    bad = {i for i, (path, _) in enumerate(samples) if path.stat().st_size == 0}
    assert len(bad) == 10
    runs = []
    for workers in 1, 7:
        feedd = serve(dataset, workers)
        runs.append(feedd.cat("substitute", "--epochs", 3)[0])
        assert {entry["index"] for entry in errors(feedd)} == bad
    assert runs[0] == runs[1]
    assert len(check_delivered(runs[0], samples, bad, SUBSTITUTED)) == 30


@pytest.mark.tsan
def test_zero(serve, damaged):
    """Black, label -1, and the index of the one that is bad."""
    dataset, samples = damaged(truncate)
    runs = []
    for workers in 1, 7:
        feedd = serve(dataset, workers)
        runs.append(feedd.cat("zero", "--epochs", 2)[0])
        assert [entry["index"] for entry in errors(feedd)] == [BAD]
    assert runs[0] == runs[1]
    assert check_delivered(runs[0], samples, {BAD}, ZEROED) == [(0, BAD), (1, BAD)]


def test_fail(serve, damaged):
    """The stream ends for all members, with the file's name; what was delivered before is right."""
    dataset, samples = damaged(truncate)
    feedd = serve(dataset)
    with Crowd(feedd) as crowd:
        ends = [failure(process, BAD_NAME, "cut short") for process in crowd.start_all(2, "fail", "--epochs", 2)]
    for batches, line in ends:
        assert line == ends[0][1]
        check_delivered(batches, samples, {BAD}, 0)
    assert [entry["index"] for entry in errors(feedd)] == [BAD]
    feedd.cat("substitute")  # others don't mind


@pytest.mark.tsan
def test_over_budget(serve, damaged):
    """More than 10 bad ones in an epoch: the stream ends at the same batch in every run, naming one of them."""
    names = [f"class-{i % 4}/{i:04}.jpg" for i in range(0, 36, 3)]
    dataset, samples = damaged(lambda path: path.write_bytes(b""), names)
    bad = {i for i, (path, _) in enumerate(samples) if path.stat().st_size == 0}
    assert len(bad) == 12
    for on_error, flag in ("substitute", SUBSTITUTED), ("zero", ZEROED):
        runs = []
        for workers in 1, 7:
            feedd = serve(dataset, workers)
            with Crowd(feedd) as crowd:
                process = crowd.start(on_error, "--epochs", 2, share="private")
                batches, line = failure(process, "bad samples in epoch 0", "10 are tolerated", ".jpg: ")
            assert any(name in line for name in names)
            runs.append(batches)
            feedd.stop()
        assert min(runs, key=len) == max(runs, key=len)[: min(map(len, runs))]
        assert check_delivered(runs[0], samples, bad, flag)[:10]


def test_all_bad(serve, damaged, hundred):
    """Nothing can stand in: an error, not a hang."""
    names = [str(path.relative_to(hundred)) for path, _ in image_folder(hundred)[1]]
    dataset, _ = damaged(lambda path: path.write_bytes(b""), names)
    feedd = serve(dataset)
    feedd.cat_fails("substitute", words=[".jpg: ", "empty"])


def test_fifo_in_a_folder(serve, damaged):
    """ImageFolder's rule lists it; nobody waits for its writer."""
    dataset, samples = damaged(pipe)
    feedd = serve({"reader": "folder", "root": dataset["root"]})
    batches, _ = feedd.cat("substitute")
    assert len(check_delivered(batches, samples, {BAD}, SUBSTITUTED)) == 1


def test_of_another_size(serve, made, folder):
    """In a stream that delivers images as they are, one of another size is bad."""
    root = make_photos(folder / "one-size", 30, size=(41, 30))
    odd = sorted(root.glob("class-1/*.jpg"))[2]
    shutil.copy(sorted(make_photos(folder / "other", 1, size=(40, 30)).glob("*/*.jpg"))[0], odd)
    feedd = serve({"reader": "folder", "root": str(root)})
    batches, _ = feedd.cat("d", "--batch-size", 10)
    assert sum(sum(b["flags"]) for b in batches) == SUBSTITUTED
    (entry,) = errors(feedd)
    assert odd.name in entry["reason"] and "40 x 30" in entry["reason"] and "41 x 30" in entry["reason"]


def test_paused_disk(serve, damaged, folder, small):
    """A worker hangs in pread(): its stream fails with a reason, others go on, and all of it comes back afterwards."""
    if sanitizer() == "thread":
        pytest.skip("the thread sanitizer's runtime doesn't start behind a preloaded library")
    library, flag = folder / "block_reads.so", folder / "block"
    source = Path(__file__).parent / "block_reads.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, source, "-ldl"], check=True)
    dataset, samples = damaged(lambda path: None)
    flag.touch()
    feedd = serve(
        dataset,
        more={"small": small.config()},
        env={
            "LD_PRELOAD": str(library),
            "BLOCK_READS": BAD_NAME,
            "BLOCK_WHILE": str(flag),
            "ASAN_OPTIONS": "detect_leaks=1:verify_asan_link_order=0",
        },
        timeout_ms=700,
    )
    with Crowd(feedd) as crowd:
        other = crowd.start("small", "--epochs", 60, "--pause", 2, share="private")
        members = crowd.start_all(2, "substitute", "--epochs", 1)
        for member in members:
            batches, _ = failure(member, "epoch 0", "file system")
            check_delivered(batches, samples, set(), 0)
        report = feedd.report()
        assert (report["daemon"]["workers"], report["daemon"]["workers_stuck"]) == (2, 1)
        assert "another takes its place" in feedd.log_text()
        done = feedd.cat("small")[0]
        check_batches(done, plan(1000, 64, "drop", 1), small)
        other_ring = [s for s in report["streams"] if s["dataset"] == "small"]
        assert len(other_ring) == 1
        flag.unlink()
        feedd.wait_report(lambda r: r["daemon"]["workers_stuck"] == 0, what="the worker's return")
        feedd.wait_report(
            lambda r: all(s["dataset"] == "small" for s in r["streams"]),
            what="the ring of the stream that failed, freed",
        )
        assert len(finish_all([other])) == 60 * 15
    check_delivered(feedd.cat("substitute")[0], samples, set(), 0)
    feedd.wait_report(lambda r: r["memory"]["ring_bytes"] == 0, what="nothing left")
