"""feedctl verify: every sample is read and decoded in full, and what is said of it is what Pillow says."""

import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import photos
import pytest
from conftest import DATA
from crowd import Crowd, finish_all
from harness import LIBRARY, ROOT, check_output, finish_cat, parse_cat, run, sanitizer, wait_for
from neighbour import Neighbour
from oracle import check_batches, plan
from photos import Image, image_folder, make_photos
from rawclient import E_LIMIT, E_NOT_FOUND, E_PROTOCOL, ERROR, REPORT, STATUS, Client, check_line, encode, refusal
from test_access import E_ACCESS, OTHER, as_other, needs_root

VERIFY, PROGRESS, CANCEL = 14, 15, 16  # beside those of rawclient
E_STATE = -15
FORMATS = ["JPEG", "PNG", "WEBP"]
MANY = 100000  # samples: more than any machine decodes while a test looks

PROGRAM = r"""
#include <feedd.h>
#include <stdio.h>
#include <stdlib.h>

struct watch {
    int calls, cancel_at;
    struct feedd_verify_progress last;
};

static int on_progress(void *arg, const struct feedd_verify_progress *progress)
{
    struct watch *watch = arg;
    if (progress->done < watch->last.done || progress->done > progress->total)
        abort();
    watch->last = *progress;
    return ++watch->calls == watch->cancel_at;
}

int main(int argc, char **argv)
{
    struct feedd_verify_options options = FEEDD_VERIFY_OPTIONS_INIT, wrong = FEEDD_VERIFY_OPTIONS_INIT;
    struct feedd_error err;
    struct feedd_client *client;
    struct watch watch = {0, 0, {0, 0, 0, 0}};
    char *json = NULL, *status = NULL;
    int rc;
    if (argc != 4 || feedd_connect(argv[1], &client, &err))
        return 2;
    watch.cancel_at = atoi(argv[3]);
    wrong.size = 4;
    if (feedd_verify(client, argv[2], &wrong, NULL, NULL, &json, NULL) != FEEDD_E_ARGUMENT || json != NULL)
        return 3;
    rc = feedd_verify(client, argv[2], &options, watch.cancel_at ? on_progress : NULL, &watch, &json, &err);
    if (rc != FEEDD_OK)
        fprintf(stderr, "%d %s\n", rc, err.message);
    else
        puts(json);
    if (watch.calls != watch.cancel_at) /* not called again once it has cancelled */
        return 4;
    if (feedd_status_json(client, &status, &err) != FEEDD_OK) /* the connection is whole */
        return 5;
    free(status);
    free(json);
    feedd_client_close(client);
    return rc != FEEDD_OK;
}
"""


def is_good(path):
    """Pillow's judgement, in the formats that feedd has."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            image.load()
    except Exception:
        return False
    return True


def cut(path, share=0.5):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def save(root, name, seed, *args, **options):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    photos.picture(photos.np.random.default_rng(seed), 90, 70).save(path, *args, **options)
    return path


@pytest.fixture(scope="session")
def mixed(made):
    """Good, cut, misnamed, empty and foreign files in four classes. @return (root, classes, [(path, label)])"""
    root = make_photos(made / "mixed", 60)
    save(root, "class-1/a-png.jpg", 1, "PNG")
    save(root, "class-1/a-webp.jpeg", 2, "WEBP")
    save(root, "class-1/really.png", 3, "PNG")
    save(root, "class-2/a-bmp.jpg", 4, "BMP")
    save(root, "class-2/a-tiff.webp", 5, "TIFF")
    for i, name in enumerate(["class-0/0000.jpg", "class-3/0003.jpg", "class-1/a-png.jpg"]):
        cut(root / name, 0.3 + 0.3 * i)
    cut(root / "class-2/0002.jpg", 0.97)  # of its last rows
    (root / "class-3/empty.jpg").touch()
    (root / "class-3/text.png").write_text("not a photo at all\n")
    return root, *image_folder(root)


@pytest.fixture(scope="session")
def many(made):
    """A list of the same photo, MANY times."""
    root = make_photos(made / "many", 1, size=(640, 480))
    (made / "many.tsv").write_text("class-0/0000.jpg\t0\n" * MANY)
    return {"reader": "list", "list": str(made / "many.tsv"), "root": str(root)}


@pytest.fixture
def serve(daemons, folder, mixed, many, small):
    def start(datasets=None, streams=None, daemon=None, **options):
        return daemons(
            {
                "daemon": {"cache_dir": str(folder / "cache"), **(daemon or {})},
                "datasets": {
                    "mixed": {"reader": "folder", "root": str(mixed[0]), "splits": {"a": 0.5, "b": 0.5}},
                    "many": many,
                    "small": small.config(),
                    **(datasets or {}),
                },
                "streams": {
                    "train": {"dataset": "small", "batch_size": 16, "depth": 8, "order": "shuffle", "seed": 1},
                    "half": {"dataset": "mixed/a", "batch_size": 4},
                    **(streams or {}),
                },
            },
            **options,
        )

    return start


def verify(feedd, source, *args, code=0):
    """feedctl verify --json. @return the report"""
    done = feedd.feedctl("verify", source, "--json", *args)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def idle(report):
    return not report["verifications"] and all(d["state"] == "closed" for d in report["datasets"])


def start_verify(feedd, source, *args, **popen):
    return subprocess.Popen(
        feedd.feedctl_command("verify", source, *args), env=feedd.env, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **popen,
    )  # fmt: skip


def running(report):
    return [v for v in report["verifications"] if v["state"] == "running" and v["done"] > 0]


def settled(feedd):
    """Nothing is under way. @return the count of descriptors"""
    feedd.wait_report(idle, what="the end of the work")
    return feedd.settled_fd_count()


# ---- what it finds ----


@pytest.mark.tsan
@pytest.mark.parametrize("workers", [1, 7])
def test_as_pillow(serve, mixed, workers):
    """Every count and every path of the report is Pillow's."""
    root, classes, samples = mixed
    feedd = serve(workers=workers)
    report = verify(feedd, "mixed", code=1)
    bad = [i for i, (path, _) in enumerate(samples) if not is_good(path)]
    assert 0 < len(bad) < len(samples) // 2
    assert (report["dataset"], report["complete"]) == ("mixed", True)
    assert (report["samples"], report["checked"], report["bad"]) == (len(samples), len(samples), len(bad))
    assert report["bytes"] == sum(path.stat().st_size for path, _ in samples)
    assert report["seconds"] > 0
    assert report["classes"] == [
        {
            "name": name,
            "samples": sum(label == at for _, label in samples),
            "bad": sum(samples[i][1] == at for i in bad),
        }
        for at, name in enumerate(classes)
    ]
    assert [(e["index"], e["path"], e["class"]) for e in report["errors"]] == [
        (i, str(samples[i][0]), classes[samples[i][1]]) for i in bad
    ]
    reasons = {Path(e["path"]).name: (e["status"], e["reason"]) for e in report["errors"]}
    for name, status, word in (
        ("0000.jpg", "corrupt data", "cut short"), ("0002.jpg", "corrupt data", "cut"),
        ("a-png.jpg", "corrupt data", "PNG"),
        ("a-bmp.jpg", "unsupported", "BMP"), ("empty.jpg", "unsupported", "empty"), ("text.png", "unsupported", ""),
    ):  # fmt: skip
        assert reasons[name][0] == status and word in reasons[name][1], reasons[name]
    assert feedd.report()["datasets"][0]["bad_samples"] == 0  # that counts what streams have met
    assert feedd.feedctl("errors", "--json").stdout.strip() == b"[]"


def test_of_part(serve, mixed):
    """A split, a stream that reads one, and both splits together."""
    feedd = serve()
    a, b = (verify(feedd, f"mixed/{split}", code=1) for split in "ab")
    half = verify(feedd, "half", code=1)
    whole = verify(feedd, "mixed", code=1)
    assert half["errors"] == a["errors"] and half["classes"] == a["classes"] and half["samples"] == a["samples"]
    for key in "samples", "checked", "bad", "bytes":
        assert a[key] + b[key] == whole[key]
    by_index = sorted(a["errors"] + b["errors"], key=lambda e: e["index"])
    assert by_index == whole["errors"] and a["errors"] and b["errors"]


def test_subset_in_any_order(serve, mixed, folder):
    """A file of indices: bad ones are listed in its order, as often as it names them."""
    _, _, samples = mixed
    bad = [i for i, (path, _) in enumerate(samples) if not is_good(path)]
    indices = [bad[3], 5, bad[0], 6, bad[3]]
    (folder / "indices").write_text("".join(f"{i}\n" for i in indices))
    subset = {"reader": "folder", "root": str(mixed[0]), "subset": str(folder / "indices")}
    report = verify(serve(datasets={"some": subset}), "some", code=1)
    assert (report["samples"], report["bad"]) == (5, 3)
    assert [e["index"] for e in report["errors"]] == [bad[3], bad[0], bad[3]]


def test_of_pixels(serve, small):
    """Pixels in memory were read when the dataset was opened: they are good, and counted by their labels."""
    report = verify(serve(), "train")
    assert (report["dataset"], report["samples"], report["bad"], report["bytes"]) == ("small", 1000, 0, 0)
    counts = photos.np.bincount(small.labels)
    assert [(c["name"], c["samples"], c["bad"]) for c in report["classes"]] == [
        (str(i), count, 0) for i, count in enumerate(counts)
    ]


def test_files_that_cannot_be_opened(serve, mixed, folder):
    """They are bad, too; what they are named is said, and no class, for nobody has looked inside."""
    root, _, samples = mixed
    good = [path for path, _ in samples if is_good(path)][:2]
    (folder / "list.tsv").write_text(f"{good[0]}\t0\n/nowhere.jpg\t1\n{root}\t1\n{good[1]}\t1\n")
    feedd = serve(datasets={"list": {"reader": "list", "list": str(folder / "list.tsv"), "root": "/"}})
    report = verify(feedd, "list", code=1)
    assert [(e["index"], e["class"], e["status"]) for e in report["errors"]] == [
        (1, None, "not found"), (2, None, "corrupt data"),
    ]  # fmt: skip
    assert "No such file" in report["errors"][0]["reason"] and "directory" in report["errors"][1]["reason"]
    assert [(c["samples"], c["bad"]) for c in report["classes"]] == [(1, 0), (1, 0)]


def test_file_that_cannot_be_read(serve, mixed, folder):
    """An I/O error is the sample's, when others can be read."""
    unreadable = Path("/sys/devices/virtual/net/lo/speed")
    try:
        unreadable.read_bytes()
        pytest.skip(f"{unreadable} can be read here")
    except OSError as error:
        if not unreadable.exists():
            pytest.skip(f"{unreadable}: {error}")
    good = [path for path, _ in mixed[2] if is_good(path)]
    (folder / "list.tsv").write_text("".join(f"{path}\n{unreadable}\n" for path in good))
    feedd = serve(datasets={"list": {"reader": "list", "list": str(folder / "list.tsv"), "root": "/"}})
    began = time.monotonic()
    report = verify(feedd, "list", code=1)
    assert report["bad"] == len(good) and {e["status"] for e in report["errors"]} == {"input/output error"}
    assert time.monotonic() - began > 0.11 * len(good) / 2  # each was tried three times


def test_of_a_path(serve, mixed, folder):
    """A path, as for OPEN: nothing of the dataset stays behind."""
    feedd = serve()
    before = settled(feedd)
    report = verify(feedd, mixed[0], code=1)
    assert report["dataset"] == str(mixed[0]) and report["samples"] == len(mixed[2])
    done = feedd.feedctl("verify", folder / "nowhere")
    assert done.returncode == 2 and b"nowhere" in done.stderr and done.stdout == b""
    (folder / "empty").mkdir()
    done = feedd.feedctl("verify", folder / "empty")
    assert done.returncode == 2 and b"empty" in done.stderr and done.stdout == b""
    assert settled(feedd) == before
    assert {d["name"] for d in feedd.report()["datasets"]} == {"mixed", "many", "small"}


@pytest.mark.tsan
def test_hard_jpegs(serve, folder):
    """A line for each file that is bad; no word of those of which there is no doubt that they are good."""
    place = DATA / "hard-jpegs"
    if not place.is_dir():
        pytest.skip(f"{place} is missing (FEEDD_TEST_DATA)")
    with open(place / "expected.tsv") as table:
        rows = [dict(zip(header, line.rstrip("\n").split("\t"), strict=True))
                for header in [next(table).rstrip("\n").split("\t")] for line in table]  # fmt: skip
    assert len(rows) == 100
    (folder / "list.tsv").write_text("".join(f"{row['file']}\n" for row in rows))
    feedd = serve(datasets={"hard": {"reader": "list", "list": str(folder / "list.tsv"), "root": str(place)}})
    done = feedd.feedctl("verify", "hard")
    assert done.returncode == 1, done.stderr
    *lines, last = done.stdout.decode().splitlines()
    said = dict(line.split("\t") for line in lines)
    assert len(said) == len(lines) and f"100 of 100 samples checked, {len(said)} bad" in last
    for path, reason in said.items():
        check_line(reason)
        assert path.startswith(f"{place}/")
    good = {r["file"] for r in rows if r["magic"] == "JPEG" and r["djpeg"] == "ok" and r["Pillow"].endswith(" ok")}
    # what neither libjpeg-turbo's own program nor Pillow makes pixels of
    bad = {r["file"] for r in rows if r["djpeg"].startswith("error") and "fails" in r["Pillow"]}
    found = {path.removeprefix(f"{place}/") for path in said}
    assert len(good) > 40 and len(bad) > 10
    assert not good & found, good & found
    assert bad <= found, bad - found


def test_damage_that_no_crop_touches(serve, folder):
    """A stream whose crop ends above the damage delivers the photo; it is bad all the same."""
    root = folder / "low"
    path = save(root, "a/low.jpg", 7, "JPEG", quality=90)
    cut(path, 0.95)
    crop = {"dataset": "low", "batch_size": 1, "on_error": "fail", "transform": {"resize": 70, "center_crop": [10, 70]}}
    feedd = serve(datasets={"low": {"reader": "folder", "root": str(root)}}, streams={"crop": crop})
    assert not is_good(path)
    report = verify(feedd, "crop", code=1)
    assert [e["path"] for e in report["errors"]] == [str(path)]


# ---- how it is told ----


def test_text(serve, mixed, folder):
    """Lines of path, TAB and reason; the table; the sum; and where each of them goes."""
    _, classes, samples = mixed
    feedd = serve()
    errors = verify(feedd, "mixed", code=1)["errors"]
    lines = [f"{e['path']}\t{e['reason']}" for e in errors]

    def text(*args, code=1):
        done = feedd.feedctl("verify", "mixed", *args)
        assert done.returncode == code, done.stderr
        return done.stdout.decode().splitlines(), done.stderr.decode().splitlines()

    out, err = text()
    assert out[:-1] == lines and err == []
    assert re.fullmatch(
        rf"mixed: {len(samples)} of {len(samples)} samples checked, {len(lines)} bad; "
        r"\d+\.\d MB in \d+\.\d s: \d+ images/s, \d+\.\d MB/s", out[-1]
    )  # fmt: skip
    out, err = text("--classes")
    assert out[: len(lines)] == lines and err == []
    table = out[len(lines) : -1]
    assert table[0].split() == ["CLASS", "SAMPLES", "BAD"]
    assert [row.split()[0] for row in table[1:]] == classes
    assert sum(int(row.split()[2]) for row in table[1:]) == len(lines)

    out, err = text("--list", "-", "--classes")
    assert out == lines and err[0].split() == ["CLASS", "SAMPLES", "BAD"] and "samples checked" in err[-1]
    out, err = text("--list", folder / "bad")
    assert len(out) == 1 and (folder / "bad").read_text().splitlines() == lines
    report = verify(feedd, "mixed", "--list", folder / "worse", code=1)
    assert report["errors"] == errors and (folder / "worse").read_text().splitlines() == lines
    for most in 0, 3:
        report = verify(feedd, "mixed", "--errors-max", most, code=1)
        assert report["bad"] == len(lines) and len(report["errors"]) == most
    assert f"{len(lines)} bad (3 listed)" in text("--errors-max", 3)[0][-1]

    good = feedd.feedctl("verify", "small", "--list", folder / "none")
    assert (good.returncode, good.stderr, (folder / "none").read_text()) == (0, b"", "")


def test_odd_names(serve, folder):
    """Whatever a file is called, a line stays a line; the report has the name as it is."""
    root = folder / "odd"
    (root / "a\tb").mkdir(parents=True)
    for name in "new\nline.jpg", "\x1b[31mred.jpg", "tab\t.jpg", "über.jpg":
        (root / "a\tb" / name).touch()
    feedd = serve(datasets={"odd": {"reader": "folder", "root": str(root)}})
    report = verify(feedd, "odd", code=1)
    assert {Path(e["path"]).name for e in report["errors"]} == set(os.listdir(root / "a\tb"))
    assert {e["class"] for e in report["errors"]} == {"a\tb"}
    out = feedd.feedctl("verify", "odd", "--classes").stdout.decode()
    assert [line.count("\t") for line in out.splitlines()] == [1, 1, 1, 1, 0, 0, 0]
    assert out.replace("\n", "").replace("\t", "").isprintable() and "new?line.jpg\t" in out and "über" in out


def test_exit_codes_when_it_cannot_be_done(serve, folder):
    feedd = serve(datasets={"gone": {"reader": "folder", "root": str(folder / "gone")}})
    for args, word in (
        (["nothing"], "nothing"), (["gone"], "gone"), ([], "needs"), (["small", "mixed"], "takes one"),
        (["small", "--errors-max", "-1"], "errors-max"), (["small", "--list", "/nowhere/x"], "/nowhere/x"),
        (["small", "--json", "--list", "-"], "stdout"), (["small", "--what"], "what"),
    ):  # fmt: skip
        done = feedd.feedctl("verify", *args)
        assert done.returncode == 2 and done.stdout == b"", args
        assert word in done.stderr.decode() and done.stderr.count(b"\n") == 1, done.stderr
    feedd.wait_report(idle)
    assert feedd.feedctl("verify", "--help").returncode == 0
    feedd.stop()
    assert feedd.feedctl("verify", "small").returncode == 2


def read_terminal(fd):
    data = b""
    with contextlib.suppress(OSError):  # the other side has closed
        while chunk := os.read(fd, 4096):
            data += chunk
    return data.decode()


def test_progress_on_a_terminal(serve):
    """One line, rewritten in place and never wider than the terminal; what is said in the end stands alone."""
    feedd = serve()
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process = subprocess.Popen(feedd.feedctl_command("verify", "many"), env=feedd.env, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=slave)  # fmt: skip
    os.close(slave)
    feedd.wait_report(lambda r: any(v["done"] > 400 for v in r["verifications"]), 30)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    shown = read_terminal(master)
    os.close(master)
    assert process.wait(20) == 2
    out = process.stdout.read().decode()
    process.stdout.close()
    assert out.startswith("many: ") and out.count("\n") == 1
    *progress, end = shown.split("\r\x1b[K")[0].split("\r")[1:], shown.split("\r\x1b[K")[-1]
    (lines,) = progress
    assert len(lines) >= 3 and all(line.endswith("\x1b[K") and "\n" not in line for line in lines)
    texts = [line.removesuffix("\x1b[K") for line in lines]
    assert all(len(text) < 60 for text in texts)
    assert any(re.match(r" +\d+ % \[#* *\] \d+ images/s, \d+\.\d MB/s", text) for text in texts), texts
    assert "interrupted" in end and "\x1b" not in end


def test_progress_elsewhere(serve):
    """A line every ten seconds, with how long it will take."""
    feedd = serve()
    process = start_verify(feedd, "many")
    line = process.stderr.readline()
    assert re.fullmatch(
        rf"feedctl: +\d+ % \d+ of {MANY}, \d+ images/s, \d+\.\d MB/s, (\d+[dhms] ?)+ left, 0 bad\n", line
    ), line
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 2 and "interrupted" in err, err
    assert 0 < int(re.match(rf"many: (\d+) of {MANY} samples checked, 0 bad", out)[1]) < MANY


def test_status(serve):
    """Who verifies what, and how far it has come."""
    feedd = serve()
    assert feedd.report()["verifications"] == []
    process = start_verify(feedd, "many")
    (shown,) = feedd.wait_report(running)["verifications"]
    assert (shown["name"], shown["pid"], shown["dataset"]) == ("feedctl", process.pid, "many")
    assert 0 < shown["done"] < shown["total"] == MANY and shown["bad"] == 0 and shown["seconds"] > 0
    (later,) = feedd.wait_report(lambda r: r["verifications"][0]["done"] > shown["done"] + 10)["verifications"]
    assert later["bytes"] > shown["bytes"]
    text = feedd.feedctl("status").stdout.decode()
    assert re.search(rf"^many +running +\d+ +{MANY} +0 +\S+ +feedctl\[{process.pid}\]$", text, re.MULTILINE), text
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 2
    feedd.wait_report(idle)
    assert "VERIFICATION" not in feedd.feedctl("status").stdout.decode()


# ---- how it ends early ----


@pytest.mark.tsan
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted(serve, how):
    """The daemon stops within a sample's time, and has given back all of it. Ctrl-C: what was found is told."""
    feedd = serve(workers=4)
    verify(feedd, "small")
    fds = settled(feedd)
    for _ in range(3):
        process = start_verify(feedd, "many", "--json")
        feedd.wait_report(running)
        process.send_signal(how)
        began = time.monotonic()
        feedd.wait_report(idle, what="the end of the work")
        assert time.monotonic() - began < 5  # much less on a quiet machine
        out, err = process.communicate(timeout=20)
        check_output(err.encode(), "feedctl")
        if how == signal.SIGINT:
            report = json.loads(out)
            assert process.returncode == 2 and "interrupted" in err
            assert report["complete"] is False and 0 < report["checked"] < report["samples"] == MANY
            assert report["classes"] == [{"name": "0", "samples": report["checked"], "bad": 0}]
        assert settled(feedd) == fds


@pytest.mark.tsan
def test_stops_with_the_daemon(serve):
    feedd = serve(workers=3)
    processes = [start_verify(feedd, "many") for _ in range(2)]
    feedd.wait_report(lambda report: len(running(report)) == 2)
    processes.append(start_verify(feedd, "mixed"))
    feedd.stop()
    for process in processes[:2]:
        err = process.communicate(timeout=20)[1]
        assert process.returncode == 2 and "stopping" in err, err
    processes[2].communicate(timeout=20)


def test_cancelled_while_opening(serve, folder):
    """Indexing goes on, but the client is told at once, and may ask for something else."""
    (folder / "long.tsv").write_text("class-0/0000.jpg\t0\n" * 3000000)
    feedd = serve(datasets={"long": {"reader": "list", "list": str(folder / "long.tsv")}})
    with Client(feedd.socket) as client:
        request = client.request(VERIFY, {2: "long"})
        feedd.wait_report(lambda r: [v["state"] for v in r["verifications"]] == ["opening"])
        client.send(CANCEL, encode({1: request}))
        refused = client.expect_refusal(E_STATE, "cancelled", "opened")
        assert refused.request == request
        assert feedd.report()["verifications"] == []
        assert client.request(VERIFY, {2: "small"})
        assert report_of(client)["samples"] == 1000
    feedd.wait_report(idle)


# ---- beside streams ----


@pytest.mark.parametrize("workers, verifications", [(1, 1), (2, 3)])
def test_beside_a_stream(serve, workers, verifications):
    """The stream's batches are the same. Of N workers' time it has N parts in N + 1, however many verify."""
    stream = {"dataset": "many", "batch_size": 8, "transform": {"resize": [32, 32]}}
    feedd = serve(streams={"photos": stream}, workers=workers)
    alone = feedd.cat("photos", "--batches", 12)[0]
    processes = [start_verify(feedd, "many") for _ in range(verifications)]
    feedd.wait_report(lambda r: len(running(r)) == verifications)
    reader = feedd.start_cat("photos", "--epochs", 1)
    feedd.wait_report(lambda r: r["streams"] and r["streams"][0]["batches"] > 12, 60)
    verified = sum(v["done"] for v in feedd.report()["verifications"])
    shares = []
    for _ in range(3):
        time.sleep(1)  # each is of the second before it
        (shown,) = feedd.report()["streams"]
        shares.append(shown["workers_mean"] / workers)
    assert sum(v["done"] for v in feedd.report()["verifications"]) > verified
    for process in [*processes, reader]:
        process.send_signal(signal.SIGINT)
    for process in processes:
        process.communicate(timeout=20)
    beside = parse_cat(finish_cat(reader))[0]
    assert [b["digests"] for b in beside[:12]] == [b["digests"] for b in alone]
    due = workers / (workers + 1)
    assert due - 0.15 < sorted(shares)[1] < due + 0.2, (due, shares)


@pytest.mark.tsan
def test_beside_groups(serve, small):
    """Groups, other streams of the dataset, and three verifications: everybody gets what is theirs."""
    feedd = serve(workers=3)
    with Crowd(feedd) as crowd:
        members = crowd.start_all(3, "small", "--batch-size", 16, "--epochs", 8)
        processes = [start_verify(feedd, source, "--json") for source in ("mixed", "small", "half")]
        check_batches(finish_all(members), plan(1000, 16, "drop", 8), small)
    reports = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert [process.returncode for process in processes] == [1, 0, 1]
    assert [r["complete"] for r in reports] == [True] * 3
    feedd.wait_report(idle)


# ---- file systems that fail ----


def preload(folder, blocked, flag):
    library = folder / "block_reads.so"
    source = Path(__file__).parent / "block_reads.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, source, "-ldl"], check=True)
    return {
        "LD_PRELOAD": str(library), "BLOCK_READS": blocked, "BLOCK_WHILE": str(flag),
        "ASAN_OPTIONS": "detect_leaks=1:verify_asan_link_order=0",
    }  # fmt: skip


def test_file_system_that_does_not_answer(serve, folder, mixed, small):
    """The verification fails with the file's name; the daemon and its streams go on; all comes back in the end."""
    if sanitizer() == "thread":
        pytest.skip("the thread sanitizer's runtime doesn't start behind a preloaded library")
    flag = folder / "block"
    flag.touch()
    busy = {"dataset": "many", "batch_size": 8, "transform": {"resize": [32, 32]}}
    feedd = serve(
        streams={"busy": busy},
        daemon={"read_timeout_ms": 700},
        env=preload(folder, "class-1/0005.jpg", flag),
    )
    before = settled(feedd)
    with Crowd(feedd) as crowd:
        other = crowd.start("small", "--epochs", 60, "--pause", 2, share="private")
        done = feedd.feedctl("verify", "mixed")
        assert done.returncode == 2 and done.stdout == b""
        (line,) = done.stderr.decode().splitlines()
        check_line(line, "class-1/0005.jpg", "file system", "doesn't answer")
        report = feedd.report()
        assert report["daemon"]["workers_stuck"] == 1 and report["verifications"] == []
        reader = feedd.start_cat("busy", "--epochs", 1)
        feedd.wait_report(lambda r: any(s["batches"] > 0 for s in r["streams"] if s["dataset"] == "many"))
        assert verify(feedd, "small")["complete"]  # the worker that is stuck takes nobody's turn
        reader.send_signal(signal.SIGINT)
        parse_cat(finish_cat(reader))
        flag.unlink()
        feedd.wait_report(lambda r: r["daemon"]["workers_stuck"] == 0, what="the worker's return")
        assert len(finish_all([other])) == 60 * 15
    assert settled(feedd) == before
    assert verify(feedd, "mixed", code=1)["complete"]


def test_file_system_that_reads_nothing(serve, mixed, folder):
    """Where nothing can be read no file is at fault: the verification fails, and lists none."""
    feedd = serve()
    process = start_verify(feedd, "many")
    feedd.wait_report(running)
    limit = resource.prlimit(feedd.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(feedd.pid, resource.RLIMIT_NOFILE, (4, limit[1]))
    out, err = process.communicate(timeout=60)
    resource.prlimit(feedd.pid, resource.RLIMIT_NOFILE, limit)
    assert (process.returncode, out) == (2, ""), out
    assert "one after the other can't be read" in err and "Too many open files" in err and "many/class-0" in err
    assert verify(feedd, "mixed", code=1)["complete"]


@pytest.fixture
def giants(folder):
    """A photo, an image of nearly as many pixels as are allowed, and one of more."""
    root = folder / "giants"
    save(root, "a/small.jpg", 1)
    Image.new("L", (9000, 9000), 77).save(root / "a/81-million.png", compress_level=1)
    Image.new("L", (11000, 11000), 77).save(root / "a/121-million.png", compress_level=1)
    return {"reader": "folder", "root": str(root)}


def test_giants(serve, giants):
    """One beyond the limit is bad, without having been decoded."""
    report = verify(serve(datasets={"giants": giants}), "giants", code=1)
    assert [(Path(e["path"]).name, e["status"]) for e in report["errors"]] == [("121-million.png", "over a limit")]
    assert "11000 x 11000" in report["errors"][0]["reason"]


@pytest.mark.release
def test_memory_is_given_back(serve, giants):
    """What a giant took, and what was under way when it was interrupted."""
    feedd = serve(datasets={"giants": giants}, workers=4)
    verify(feedd, "small")
    settled(feedd)
    before = feedd.memory_bytes()
    for _ in range(3):
        verify(feedd, "giants", code=1)
        process = start_verify(feedd, "many")
        feedd.wait_report(running)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        settled(feedd)
        assert feedd.memory_bytes() < before + (16 << 20)


# ---- who may ----


@needs_root
@pytest.mark.tsan
def test_access(serve, folder, mixed):
    """As for OPEN: a dataset's rule holds for it, its splits and streams; paths are for the daemon's own user."""
    folder.chmod(0o755)
    private = {"reader": "folder", "root": str(mixed[0]), "allow": {"users": ["root"]}, "splits": {"a": 0.5}}
    feedd = serve(datasets={"private": private}, streams={"private-train": {"dataset": "private", "batch_size": 4}})
    process = start_verify(feedd, "private", "--errors-max", 0)
    process.communicate(timeout=60)
    assert process.returncode == 1

    def other():
        with Client(feedd.socket) as client:
            for source in "private", "private/a", "private-train":
                client.request(VERIFY, {2: source})
                client.expect_refusal(E_ACCESS, "private", f"user {OTHER}", "allow")
            for path in str(mixed[0]), "/nonexistent":
                client.request(VERIFY, {2: path})
                client.expect_refusal(E_ACCESS, "daemon's own user")
            client.request(VERIFY, {2: "small"})
            assert report_of(client)["bad"] == 0

    as_other(other)


@needs_root
def test_what_others_see(serve, folder, mixed):
    """A verification is shown to those who may use the dataset."""
    folder.chmod(0o755)
    private = {"reader": "list", "list": str(folder / "p.tsv"), "root": str(mixed[0]), "allow": {"users": ["root"]}}
    (folder / "p.tsv").write_text(f"{mixed[2][5][0].relative_to(mixed[0])}\n" * MANY)
    feedd = serve(datasets={"private": private})
    processes = [start_verify(feedd, source) for source in ("private", "many")]
    feedd.wait_report(lambda r: len(running(r)) == 2)

    def other():
        with Client(feedd.socket) as client:
            packet = client.status()
            report = json.loads(os.pread(packet.fds[0], packet.one(2), 0))
            assert [v["dataset"] for v in report["verifications"]] == ["many"]

    as_other(other)
    for process in processes:
        process.kill()
        process.communicate()


# ---- the protocol ----


def report_of(client, request=None):
    """Reads on until the report of a verification has come."""
    progress = []
    while True:
        packet = client.expect_any(30)
        assert packet.type in (PROGRESS, REPORT), refusal(packet) if packet.type == ERROR else packet
        assert request is None or packet.one(1) == request
        if packet.type == REPORT:
            text = os.pread(packet.fds[0], packet.one(2), 0)
            os.close(packet.fds[0])
            assert [p[0] for p in progress] == sorted(p[0] for p in progress)
            return json.loads(text)
        done, total, bad, _ = progress_of = tuple(packet.one(n) for n in range(2, 6))
        assert bad <= done <= total
        progress.append(progress_of)


@pytest.fixture
def disturbed(serve, small):
    """A daemon with a neighbour that reads before, during and after."""
    feedd = serve()
    with Neighbour(feedd, small) as neighbour:
        before = feedd.settled_fd_count()
        yield feedd
        feedd.check_running()
        feedd.wait_report(lambda r: len(r["clients"]) == 1 and not r["verifications"], what="one client")
        wait_for(lambda: feedd.fd_count() == before, what="the descriptors' return")
        neighbour.read(20)


@pytest.mark.tsan
def test_progress(disturbed):
    """Some five times a second, of this request."""
    with Client(disturbed.socket) as client:
        request = client.request(VERIFY, {2: "many"})
        times = []
        for _ in range(6):
            packet = client.expect(PROGRESS)
            assert packet.one(1) == request and packet.one(3) == MANY
            times.append(time.monotonic())
        assert 0.15 < (times[5] - times[0]) / 5 < 1
        client.send(CANCEL, encode({1: request}))
        assert not report_of(client, request)["complete"]


def test_requests(disturbed):
    """What is refused, and that it disturbs neither the connection nor what is under way."""
    with Client(disturbed.socket) as client:
        for source, status, word in (
            ("nothing", E_NOT_FOUND, "nothing"), ("mixed/c", E_NOT_FOUND, "mixed/c"), ("", E_NOT_FOUND, "''"),
            ("../etc", E_NOT_FOUND, "../etc"), ("/nonexistent", E_NOT_FOUND, "/nonexistent"),
        ):  # fmt: skip
            request = client.request(VERIFY, {2: source})
            assert client.expect_refusal(status, word).request == request
        client.send(CANCEL, encode({1: 1}))
        client.send(CANCEL, encode({1: 0}))
        client.send(CANCEL, encode({1: (1 << 32) - 1}))
        first = client.request(VERIFY, {2: "many", 3: (1 << 32) - 1})
        client.expect(PROGRESS)
        for request in (client.request(VERIFY, {2: "small"}), first):
            if request == first:
                client.send(VERIFY, encode({1: first, 2: "small"}))
            packet = client.expect_any()
            while packet.type == PROGRESS:
                packet = client.expect_any()
            refused = refusal(packet)
            assert (refused.status, refused.request) == (E_STATE, request) and "under way" in refused.message
        client.send(CANCEL, encode({1: first + 7}))
        assert client.expect(PROGRESS).one(1) == first
        client.send(CANCEL, encode({1: first}))
        client.send(CANCEL, encode({1: first}))
        assert not report_of(client, first)["complete"]
        client.send(CANCEL, encode({1: first}))
        again = client.request(VERIFY, {2: "mixed", 3: 2})
        report = report_of(client, again)
        assert report["complete"] and len(report["errors"]) == 2


@pytest.mark.parametrize(
    "type_, body, words",
    [
        (VERIFY, encode({1: 0, 2: "small"}), ["VERIFY", "request 0"]),
        (VERIFY, encode({1: 1}), ["can't be parsed"]),
        (VERIFY, encode({2: "small"}), ["can't be parsed"]),
        (VERIFY, b"\xff\xff\xff", ["can't be parsed"]),
        (CANCEL, b"", ["can't be parsed"]),
        (PROGRESS, encode({1: 1, 2: 1, 3: 1, 4: 1, 5: 1}), ["a client can't send"]),
    ],
)
def test_protocol_broken(disturbed, type_, body, words):
    with Client(disturbed.socket) as client:
        client.send(type_, body)
        client.expect_closed(E_PROTOCOL, *words)


@pytest.mark.parametrize("type_", [VERIFY, CANCEL, PROGRESS])
def test_before_hello(disturbed, type_):
    with Client(disturbed.socket, hello=False) as client:
        client.send(type_, encode({1: 1, 2: "small"}))
        client.expect_closed(E_PROTOCOL, "HELLO")


@pytest.mark.tsan
def test_four_at_a_time(disturbed):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(disturbed.socket)) for _ in range(5)]
        for client in clients[:4]:
            client.request(VERIFY, {2: "many"})
            client.expect(PROGRESS)
        clients[4].request(VERIFY, {2: "small"})
        clients[4].expect_refusal(E_LIMIT, "4 verifications")
        disturbed.wait_report(lambda r: len(running(r)) == 4)
        clients[0].close()

        def is_taken():
            request = clients[4].request(VERIFY, {2: "small"})
            packet = clients[4].expect_any()
            if packet.type == ERROR:
                return False
            assert packet.type == REPORT or report_of(clients[4], request)["complete"]
            for fd in packet.fds:
                os.close(fd)
            return True

        wait_for(is_taken, what="a free place")


def test_client_that_does_not_read(disturbed):
    """It is not told more than it reads, and stays; when it reads on, the report is there."""

    def queued():
        (shown,) = [c for c in disturbed.report()["clients"] if c["name"] == "raw"]
        return shown["queued"]

    with Client(disturbed.socket) as client:
        while not queued():
            client.request(STATUS, {})
        request = client.request(VERIFY, {2: "many"})
        disturbed.wait_report(running)
        before = queued()
        time.sleep(2)
        assert queued() == before < 10
        client.send(CANCEL, encode({1: request}))
        for _ in range(request - 1):
            os.close(client.expect(REPORT).fds[0])
        assert report_of(client, request)["checked"] > 0


def test_library(serve, folder, giants):
    """feedd_verify() from C: progress is told also while nothing comes, and is where it is cancelled, once."""
    program = folder / "verify.c"
    program.write_text(PROGRAM)
    command = ["gcc", "-std=c99", "-Wall", "-Werror", "-pedantic", f"-I{ROOT}/client", f"-I{ROOT}/proto", program,
               "-o", folder / "verify", LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}"]  # fmt: skip
    flags = {"address": ["-fsanitize=address,undefined"], "thread": ["-fsanitize=thread"], None: []}[sanitizer()]
    subprocess.run([*map(str, command), *flags], check=True)
    (folder / "slow.tsv").write_text("a/81-million.png\n" * 20)
    slow = {"reader": "list", "list": str(folder / "slow.tsv"), "root": giants["root"]}
    feedd = serve(datasets={"slow": slow})
    done = run([folder / "verify", feedd.socket, "small", "0"], env=feedd.env)
    assert done.returncode == 0 and json.loads(done.stdout)["complete"], done.stderr
    done = run([folder / "verify", feedd.socket, "many", "3"], env=feedd.env)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and not report["complete"] and report["checked"] > 0 and report["errors"] == []
    done = run([folder / "verify", feedd.socket, "slow", "2"], env=feedd.env)
    assert done.returncode == 0 and json.loads(done.stdout)["checked"] < 20
    done = run([folder / "verify", feedd.socket, "nothing", "0"], env=feedd.env)
    assert done.returncode == 1 and b"-2 " in done.stderr and b"nothing" in done.stderr
    feedd.wait_report(idle)
