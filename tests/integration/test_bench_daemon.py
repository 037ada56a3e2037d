"""feedctl bench batch, decode and share: what they say adds up, agrees with the daemon's own account, and what they
started is gone afterwards."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import harness
import oracle
import photos
import pytest
from harness import ENVIRONMENT, FEEDCTL, FEEDD, run, wait_for
from rawclient import RECORD, Client, Stream

FAKE = harness.BUILD / "tests" / "fake_cuda" / "libfake_cudart.so"
FIT = "{resize: 48, center_crop: 40}"
FIRST_JOB, FILLED = 1, 2  # enum feedd_time
STAGES = "read", "decode", "resize"
CPUS = len(os.sched_getaffinity(0))


@pytest.fixture(scope="session")
def album(made):
    """Photos that take a worker some hundred microseconds each."""
    return photos.make_photos(made / "bench-album", 64, size=(160, 120))


@pytest.fixture
def place(folder):
    """Where a private daemon may leave something."""
    for name in "tmp", "run":
        (folder / name).mkdir(mode=0o700)
    yield folder
    check_no_trace(folder)


def environment(place, **more):
    return {**ENVIRONMENT, "TMPDIR": str(place / "tmp"), "XDG_RUNTIME_DIR": str(place / "run"), **more}


def processes_of(place):
    """Daemons and clients that have to do with this place, by their command lines and environments."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            known = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if str(place / "tmp").encode() in known:
            found.append(int(entry.name))
    return found


def check_no_trace(place):
    assert os.listdir(place / "tmp") == [] and list(place.glob("run/feedd/*.sock")) == []
    assert processes_of(place) == []


def bench(place, *args, socket=None, **env):
    """One object, as --json has it."""
    where = ["--socket", socket] if socket else []
    done = run([FEEDCTL, *where, "bench", *args, "--json"], env=environment(place, **env))
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return json.loads(done.stdout)


def about(a, b, digits, relative=0.0):
    """Equal as far as so many decimals and what was rounded before allow."""
    return a == pytest.approx(b, abs=0.51 * 10**-digits, rel=relative)


# ---- the daemon's stages ----


def stages_of_an_epoch(daemons, dataset, **stream):
    """Reads one epoch with one worker. @return stages of the report; seconds from the first job to the end of its batches
    by the slot records; seconds that the worker can have worked"""
    config = {"datasets": {"d": dataset}, "streams": {"s": {"dataset": "d", "tail": "partial", **stream}}}
    began = time.monotonic()
    feedd = daemons(config, workers=1)
    filled_s = 0
    with Client(feedd.socket) as client:
        opened = Stream(client, "s", epochs=1)
        while (batch := opened.next()) is not None:
            times = RECORD.unpack_from(opened.meta, batch.slot * opened.record_bytes)[8:15]
            filled_s += (times[FILLED] - times[FIRST_JOB]) / 1e9
            opened.release(batch)
        (shown,) = feedd.report()["streams"]
        opened.close_fds()
    return shown["stages"], filled_s, time.monotonic() - began


def check_sum(stages, filled_s):
    """The records' times have a little more, until the loop looks: on a machine that is busy that takes a while."""
    assert 0.5 * filled_s < sum(stages.values()) < 1.02 * filled_s


def test_stages(daemons, album):
    """The three are what the slot record says of the same batch, which one worker has filled."""
    stages, filled_s, _ = stages_of_an_epoch(
        daemons, {"reader": "folder", "root": str(album)}, batch_size=64, transform={"resize": 48, "center_crop": 40}
    )
    assert list(stages) == ["read_s", "decode_s", "resize_s"] and all(value > 0 for value in stages.values())
    check_sum(stages, filled_s)
    assert stages["decode_s"] > stages["read_s"]  # a pread from the page cache against a JPEG


def test_stages_without_scaling(daemons, album):
    stages, filled_s, _ = stages_of_an_epoch(daemons, {"reader": "folder", "root": str(album)}, batch_size=64)
    assert stages["resize_s"] == 0 and stages["decode_s"] > 0
    check_sum(stages, filled_s)


def test_stages_of_digits(daemons, small):
    """Nothing is decoded, so all is reading; scaled it is scaling, too."""
    stages, _, most_s = stages_of_an_epoch(daemons, small.config(), batch_size=64)
    assert stages["decode_s"] == stages["resize_s"] == 0 < stages["read_s"] < most_s
    scaled, _, _ = stages_of_an_epoch(daemons, small.config(), batch_size=64, transform={"resize": [32, 32]})
    assert scaled["decode_s"] == 0 < scaled["resize_s"]


# ---- decode ----


def check_decode(rows, least_busy):
    for row in rows:
        assert about(row["images_per_s_worker"], row["images_per_s"] / row["workers"], 1)
        assert about(row["efficiency"], row["images_per_s_worker"] / rows[0]["images_per_s_worker"], 3, 0.002)
        spent = [row[f"{stage}_us"] for stage in STAGES]
        for stage, us in zip(STAGES, spent, strict=True):
            assert about(row[f"{stage}_share"], us / sum(spent) * 100, 1, 0.02)
        # A worker can't work for more than a second a second; with photos it always has something to do.
        assert least_busy < sum(spent) * row["images_per_s_worker"] / 1e6 < 1.2


def test_decode(place, album):
    found = bench(place, "decode", album, "--transform", FIT, "--workers", "1,2", "--seconds", 1, "--batch-size", 4)
    assert found["command"] == "decode"
    rows = found["rows"]
    check_decode(rows, 0.5)
    assert [row["workers"] for row in rows] == [1, 2]
    assert all(row["decode_us"] > row["read_us"] > 0 and row["resize_us"] > 0 for row in rows)
    for row in rows:
        cpu_s = row["cpu_s_per_1000"] * row["images_per_s"] / 1000  # a second
        assert 0.1 * row["workers"] < cpu_s < min(row["workers"] + 0.6, CPUS + 0.1)
    asked = found["parameters"]
    assert (asked["dataset"], asked["daemon"], asked["transform"]) == (str(album), "private", FIT)
    assert (asked["batch_size"], asked["samples"], asked["warmed"]) == (4, 64, 64)
    assert any("epoch of 64 samples was read before" in note for note in found["notes"])


def test_cpu_seconds(place, album):
    """As /proc/PID/stat has them of the daemon, over about the same time."""
    process = start(place, "decode", album, "--transform", FIT, "--workers", "1", "--seconds", 3, "--json", "--cold")
    daemon = the_daemon(process)

    def used_s():
        fields = Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), time.monotonic()

    time.sleep(1)
    (cpu_a, at_a) = used_s()
    time.sleep(1.5)
    (cpu_b, at_b) = used_s()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    (row,) = json.loads(out)["rows"]
    share = (cpu_b - cpu_a) / (at_b - at_a)
    assert row["cpu_s_per_1000"] * row["images_per_s"] / 1000 == pytest.approx(share, rel=0.45)  # not quite the same time


def test_decode_by_default(place, tmp_path, small):
    """1, 2, 4... and all the CPUs; IDX files; the cold note."""
    found = bench(place, "decode", f"idx:{small.images_path},{small.labels_path}", "--seconds", 0.1, "--cold")
    expected = [2**i for i in range(20) if 2**i < CPUS] + [CPUS]
    assert [row["workers"] for row in found["rows"]] == expected
    assert all(row["decode_us"] == row["resize_us"] == 0 and row["read_share"] == 100 for row in found["rows"])
    assert found["parameters"]["warmed"] == 0 and any("left as it was" in note for note in found["notes"])


def test_list(place, album, folder):
    lines = [f"{path}\t{label}\n" for path, label in photos.image_folder(album)[1]]
    (album / "list.tsv").write_text("".join(lines))
    try:
        found = bench(place, "decode", album / "list.tsv", "--transform", FIT, "--workers", 1, "--seconds", 0.1)
    finally:
        (album / "list.tsv").unlink()
    assert found["parameters"]["samples"] == 64


# ---- share ----


def check_share(rows, counts):
    assert [(row["clients"], row["way"]) for row in rows] == [(n, w) for n in counts for w in ("private", "broadcast")]
    for private, broadcast in zip(rows[::2], rows[1::2], strict=True):
        for row in private, broadcast:
            n, together = row["clients"], row["together_images_per_s"]
            assert about(row["mean_images_per_s"], together / n, 1)
            assert 0 < row["least_images_per_s"] <= row["mean_images_per_s"] <= row["most_images_per_s"]
            assert row["least_images_per_s"] + (n - 1) * row["most_images_per_s"] >= together - 0.1 * n
            assert about(row["ratio"], together / private["together_images_per_s"], 3, 0.002)
            assert row["clients_cpu_s_per_1000"] > 0


def test_share(place, album):
    found = bench(
        place, "share", album, "--transform", FIT, "--clients", "1,4", "--seconds", 1, "--batch-size", 8, "--workers", 2
    )
    rows = found["rows"]
    check_share(rows, (1, 4))
    private, broadcast = rows[2:]
    # Each image is decoded once in place of four times.
    assert 2 < broadcast["ratio"] < 8
    assert broadcast["daemon_cpu_s_per_1000"] < 0.5 * private["daemon_cpu_s_per_1000"]
    # Members of a group get the same batches.
    assert broadcast["most_images_per_s"] < 1.3 * broadcast["least_images_per_s"]
    assert found["parameters"]["clients"] == [1, 4] and found["parameters"]["batch_size"] == 8


# ---- batch ----

TRAINER = "--step-batch", "20", "--step-fixed-ms", "5"


def check_batch(rows, step_ms, wait_max=1.0):
    """The table's own arithmetic; and what is recommended, by the rule in feedctl(1)."""
    measured = [row for row in rows if row["images_per_s"] is not None]
    late_ms = [row["step_ms"] - (5 + step_ms * row["batch_size"] / 20) for row in measured]
    assert min(late_ms) >= -0.001 and min(late_ms) < 5  # more, in one row or another, is the scheduler's
    for row in measured:
        cycle = row["wait_ms"] + row["step_ms"]
        assert abs(row["wait_share"] - row["wait_ms"] / cycle * 100) <= 0.0051 + 0.06 / cycle  # 0.01 %, and 0.001 ms
        assert about(row["trainer_images_per_s"], row["batch_size"] / cycle * 1000, 1, 0.01)
        assert 0 < row["making_ms"] <= row["latency_ms"] + 0.001
    good = [row for row in measured if row["wait_share"] < wait_max]
    best = min(good, key=lambda row: row["batch_size"]) if good else min(measured, key=lambda row: row["wait_share"])
    assert [row["batch_size"] for row in measured if row["recommended"] == "yes"] == [best["batch_size"]]
    assert {row["recommended"] for row in measured} <= {"yes", "no"}
    return best["batch_size"], bool(good)


def test_batch(place, album):
    """A trainer that is slower than the feeder doesn't wait, with batches of any size: the smallest is taken."""
    found = bench(
        place, "batch", album, "--transform", FIT, "--step-ms", 60, *TRAINER, "--sizes", "16,12,24,100", "--seconds", 0.3
    )
    rows = found["rows"]
    assert [row["batch_size"] for row in rows] == [16, 12, 24, 100]
    size, good = check_batch(rows, 60)
    assert good and found["notes"][0].startswith(f"Take batches of {size}: the smallest size")
    refused = rows[3]
    assert refused["images_per_s"] is refused["recommended"] is None
    assert "64 samples are less than a step of 100" in refused["absent"]["images_per_s"]
    assert all(row["gpu_mib"] is None and "host memory" in row["absent"]["gpu_mib"] for row in rows[:3])
    asked = found["parameters"]
    assert (asked["step_ms"], asked["step_batch"], asked["step_fixed_ms"], asked["wait_max"]) == (60, 20, 5, 1)


def test_batch_too_fast(place, album):
    """A trainer that takes no time waits for all of it, and gets what the feeder makes."""
    found = bench(
        place, "batch", album, "--transform", "{resize: 200, center_crop: 192}", "--step-ms", 0.001,
        "--sizes", "8,32", "--seconds", 1, "--device", "host",
    )  # fmt: skip
    rows = found["rows"]
    for row in rows:
        assert row["wait_share"] > 50
        assert 1 / 3 < row["trainer_images_per_s"] / row["images_per_s"] < 3  # one was measured after the other
    least = min(rows, key=lambda row: row["wait_share"])
    assert [row["batch_size"] for row in rows if row["recommended"] == "yes"] == [least["batch_size"]]
    assert found["notes"][0].startswith(f"Take batches of {least['batch_size']}: the trainer waits least")


def test_batch_of_none(place, tiny):
    done = run(
        [FEEDCTL, "bench", "batch", f"idx:{tiny.images_path}", "--step-ms", 1, "--sizes", "102,101"], env=environment(place)
    )
    assert done.returncode == 1 and b"100 samples are less than a step of 101" in done.stderr


def test_wait_max(place, small):
    """Less than 0 % can't be: the least is taken; 100 % is what any trainer comes below."""
    dataset = f"idx:{small.images_path}"
    for wait_max, good in ((0, False), (100, True)):
        found = bench(
            place, "batch", dataset, "--step-ms", 2, *TRAINER, "--sizes", "64,8", "--seconds", 0.1, "--wait-max", wait_max
        )
        assert check_batch(found["rows"], 2, wait_max)[1] == good


@pytest.mark.skipif(not FAKE.exists(), reason="not built with FEEDD_CUDA=FAKE, for which CUDA's headers are needed")
def test_batch_on_a_gpu(place, small):
    """The memory is the GPU's, in units of 2 MiB, and holds the ring."""
    args = "batch", f"idx:{small.images_path}", "--step-ms", 1, "--sizes", "32,64", "--seconds", 0.1
    on_gpu = bench(place, *args, FEEDD_FAKE_GPUS="1")
    assert any("GPU-" in note for note in on_gpu["notes"])
    for row in on_gpu["rows"]:
        slot_bytes = sum((sample * row["batch_size"] + 255) // 256 * 256 for sample in (30, 8, 8))
        assert row["gpu_mib"] % 2 == 0 and row["gpu_mib"] * 2**20 >= row["depth"] * slot_bytes
    none = bench(place, *args, FEEDD_FAKE_GPUS="0")
    assert all(row["gpu_mib"] is None and "no CUDA-capable device" in row["absent"]["gpu_mib"] for row in none["rows"])
    small_gpu = bench(place, *args, "--device", "cuda", FEEDD_FAKE_GPUS="1", FEEDD_FAKE_GPU_MEMORY="3M")
    assert small_gpu["notes"][0] == "No size could be measured."
    assert all(row["images_per_s"] is None and "gpu_memory_max" in row["absent"]["images_per_s"] for row in small_gpu["rows"])
    done = run([FEEDCTL, "bench", *args, "--device", "cuda"], env=environment(place, FEEDD_FAKE_GPUS="0"))
    assert done.returncode == 1 and b"no CUDA-capable device" in done.stderr


# ---- a running daemon ----


def test_running_daemon(place, feedd, tiny):
    """Names of its datasets; its workers; what is its own alone can't be told, and says so."""
    found = bench(place, "decode", "small", "--seconds", 0.2, socket=feedd.socket)
    (row,) = found["rows"]
    assert row["workers"] == 2 and row["cpu_s_per_1000"] is None and "others" in row["absent"]["cpu_s_per_1000"]
    check_decode(found["rows"], 0)  # digits: the reader is what takes time
    assert (found["parameters"]["daemon"], found["parameters"]["dataset"]) == ("running", "small")
    assert any("daemon was running" in note for note in found["notes"])

    found = bench(place, "share", "small", "--clients", "1,3", "--seconds", 0.2, FEEDD_SOCKET=str(feedd.socket))
    check_share(found["rows"], (1, 3))
    assert all(row["daemon_cpu_s_per_1000"] is None for row in found["rows"])

    sizes = 5, 20
    found = bench(
        place, "batch", "tiny", "--step-ms", 2, *TRAINER, "--sizes", "5,20", "--seconds", 0.1, socket=feedd.socket
    )
    check_batch(found["rows"], 2)
    with Client(feedd.socket) as client:
        for size, row in zip(sizes, found["rows"], strict=True):
            stream = Stream(client, "tiny", attach=False, batch_size=size)
            assert row["depth"] == stream.depth
            assert about(row["ring_mib"], (stream.ring_bytes + stream.meta_bytes) / 2**20, 2)
            stream.close_fds()
    feedd.check_running()
    report = feedd.wait_report(lambda r: r["streams"] == [], what="no stream")
    assert report["clients"] == []


def test_path_of_a_running_daemon(place, feedd, album):
    env = environment(place, FEEDD_SOCKET=str(feedd.socket))
    done = run(
        [FEEDCTL, "bench", "decode", f"./{album.name}", "--transform", FIT, "--seconds", 0.1, "--json"],
        env=env, cwd=album.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"]["samples"] == 64


# ---- how it ends ----


def start(place, *args, **popen):
    return subprocess.Popen(
        [str(word) for word in (FEEDCTL, "bench", *args)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **{"env": environment(place), **popen},
    )  # fmt: skip


def children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def the_daemon(process):
    """The pid of the private daemon, once it serves."""

    def found():
        for child in children(process.pid):
            if b"--private" in Path(f"/proc/{child}/cmdline").read_bytes() and len(os.listdir(f"/proc/{child}/task")) > 1:
                return child

    return wait_for(found, 20, "the private daemon")


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("command", [["decode"], ["share", "--clients", "3"], ["batch", "--step-ms", "1"]])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted(place, album, command, number):
    """Nothing stays: the daemon, its folder and clients are gone when feedctl is."""
    process = start(place, *command, album, "--transform", FIT, "--seconds", 60)
    daemon = the_daemon(process)
    time.sleep(1)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (1, b"", b"feedctl: interrupted\n")
    assert is_gone(daemon)
    check_no_trace(place)


def test_ctrl_c(place, album):
    """A terminal sends it to the whole group: clients that end of it are no error of their own."""
    process = start(place, "share", album, "--transform", FIT, "--seconds", 60, start_new_session=True)
    the_daemon(process)
    wait_for(lambda: len(children(process.pid)) > 1, 20, "clients")
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (1, b"", b"feedctl: interrupted\n")


def test_killed(place, album):
    """Then a folder stays behind, but no process."""
    process = start(place, "share", album, "--transform", FIT, "--seconds", 60)
    the_daemon(process)
    wait_for(lambda: len(children(process.pid)) > 1, 20, "clients")
    process.kill()
    process.wait()
    wait_for(lambda: processes_of(place) == [], 10, "the end of all that it had started")
    (left,) = (place / "tmp").iterdir()
    shutil.rmtree(left)
    process.communicate()


def test_killed_beside_a_running_daemon(place, feedd):
    process = start(place, "share", "small", "--seconds", 60, env=environment(place, FEEDD_SOCKET=str(feedd.socket)))
    clients = wait_for(lambda: children(process.pid), 20, "clients")
    time.sleep(0.5)
    process.kill()
    process.wait()
    wait_for(lambda: all(is_gone(client) for client in clients), 10, "the end of the clients")
    process.communicate()
    feedd.wait_report(lambda r: r["streams"] == [], what="no stream")


def test_daemon_dies(place, album):
    process = start(place, "share", album, "--transform", FIT, "--seconds", 60)
    daemon = the_daemon(process)
    wait_for(lambda: len(children(process.pid)) > 1, 20, "clients")
    time.sleep(0.5)
    os.kill(daemon, signal.SIGKILL)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1 and out == b"" and err.startswith(b"feedctl: ") and err.count(b"\n") == 1, err
    for path in place.glob("run/feedd/*"):  # what a daemon that is killed leaves
        path.unlink()


@pytest.mark.parametrize(
    "args, words",
    [
        (["decode"], "needs DATASET"),
        (["decode", "a", "b"], "takes no argument 'b'"),
        (["decode", "d", "--workers", "0"], "--workers 0"),
        (["decode", "d", "--workers", "1,1"], "twice"),
        (["decode", "d", "--repeat", "3"], "--repeat"),
        (["decode", "d", "--batch-size", "0"], "--batch-size 0"),
        (["decode", "d", "--seconds", "-1"], "--seconds -1"),
        (["share", "d", "--clients", "257"], "--clients 257"),
        (["share", "d", "--clients", "1,x"], "--clients x"),
        (["batch", "d"], "needs --step-ms"),
        (["batch", "d", "--step-ms", "0"], "--step-ms 0"),
        (["batch", "d", "--step-ms", "1", "--wait-max", "101"], "--wait-max 101"),
        (["batch", "d", "--step-ms", "1", "--sizes", "65537"], "--sizes 65537"),
        (["batch", "d", "--step-ms", "1", "--nonsense"], "nonsense"),
    ],
)
def test_wrong_usage(place, args, words):
    done = run([FEEDCTL, "bench", *args], env=environment(place))
    assert done.returncode == 2 and done.stdout == b"" and words in done.stderr.decode(), done.stderr


def test_wrong_usage_of_a_running_daemon(place):
    for args, words in ((["idx:x"], "idx:x"), (["d", "--workers", "2"], "--workers")):
        done = run([FEEDCTL, "--socket", "/nonexistent/s", "bench", "decode", *args], env=environment(place))
        assert done.returncode == 2 and words in done.stderr.decode(), done.stderr


@pytest.mark.parametrize(
    "dataset, words",
    [
        ("/nonexistent/photos", "/nonexistent/photos: No such file"),
        ("a-name", "needs --socket"),
        ("idx:/nonexistent/a,/nonexistent/b", "/nonexistent/a: No such file"),
        ("idx:/dev/null", "/dev/null"),
        ("/dev/null", "/dev/null"),
        ("/proc/self/fdinfo", "/proc"),
    ],
)
def test_no_such_dataset(place, dataset, words):
    for command in ["decode"], ["share"], ["batch", "--step-ms", "1"]:
        done = run([FEEDCTL, "bench", *command, dataset], env=environment(place))
        text = done.stderr.decode()
        assert done.returncode == 1 and done.stdout == b"" and words in text and text.count("\n") == 1, text
        check_no_trace(place)


def test_no_daemon(place, small):
    """One that isn't there, isn't feedd, or doesn't start."""
    dataset = f"idx:{small.images_path}"
    for env, words in (
        ({"FEEDD_PROGRAM": "/nonexistent/feedd"}, "/nonexistent/feedd can't be run"),
        ({"FEEDD_PROGRAM": "/bin/true"}, "didn't start"),
        ({"XDG_RUNTIME_DIR": "/tmp/" + "x" * 100}, "didn't start: "),
    ):
        if "XDG_RUNTIME_DIR" in env:
            os.mkdir(env["XDG_RUNTIME_DIR"])
        done = run([FEEDCTL, "bench", "decode", dataset], env={**environment(place), **env})
        if "XDG_RUNTIME_DIR" in env:
            os.rmdir(env["XDG_RUNTIME_DIR"])
            assert "XDG_RUNTIME_DIR is too long" in done.stderr.decode()
        assert done.returncode == 1 and words in done.stderr.decode() and done.stderr.count(b"\n") == 1, done.stderr
    done = run([FEEDCTL, "--socket", place / "none", "bench", "decode", "d"], env=environment(place))
    assert done.returncode == 1 and b"can't connect" in done.stderr


def test_named_program(place, small):
    """$FEEDD_PROGRAM comes first."""
    script = place / "feedd"
    script.write_text(f'#!/bin/sh\ntouch {place}/was-run\nexec {FEEDD} "$@"\n')
    script.chmod(0o755)
    bench(place, "decode", f"idx:{small.images_path}", "--workers", 1, "--seconds", 0.1, FEEDD_PROGRAM=str(script))
    assert (place / "was-run").exists()


def test_text(place, album):
    """Tables fit a wide terminal; nothing is said beside them."""
    for command in ["decode"], ["share", "--clients", "1,2"], ["batch", "--step-ms", "20", "--sizes", "4,8"]:
        done = run([FEEDCTL, "bench", *command, album, "--transform", FIT, "--seconds", 0.1], env=environment(place))
        assert (done.returncode, done.stderr) == (0, b"")
        assert max(len(line) for line in done.stdout.decode().splitlines()) <= 160
