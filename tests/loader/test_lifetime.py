"""Loaders come and go, are interrupted, and outlive their daemon."""

import gc
import os
import signal
import subprocess
import threading
import time

import feedd
import pytest
from conftest import python_command, python_environment
from harness import wait_for


def resources():
    """(resident MiB, descriptors, threads) of this process."""
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    return pages * 4096 / 2**20, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def test_a_thousand_loaders(daemon, small):
    """Half of them are dropped in mid-epoch, some with tensors that are still there: nothing stays."""
    count = 100 if "libasan" in os.environ.get("LD_PRELOAD", "") else 1000
    kept, before = [], None
    for number in range(count):
        loader = feedd.NumpyLoader("small", batch_size=64, socket=daemon.socket, zero_copy=number % 4 == 3)
        loop = iter(loader)
        for images, labels in loop:
            kept.append(images)
            del kept[:-2]
            if number % 2:
                break
        if number % 3:
            loader.close()
        del loader, loop, images, labels
        if number == count // 5:
            kept.clear()
            gc.collect()
            daemon.wait_report(lambda r: not r["streams"] and not r["clients"], what="nothing left")
            before = resources()
    kept.clear()
    gc.collect()
    daemon.wait_report(lambda r: not r["streams"] and not r["clients"], what="nothing left")
    wait_for(lambda: resources()[1:] == before[1:], what=f"{before} and not {resources()}")
    grown = resources()[0] - before[0]
    assert grown < (20 if count == 100 else 4), f"{grown:.1f} MiB more after {count} loaders"


INTERRUPTED = """
import signal, sys, time, feedd
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
waits = sys.argv[2] == "waits"
options = {"share": "broadcast", "members": 2} if waits else {}
loader = feedd.NumpyLoader("small", batch_size=64, socket=sys.argv[1], **options)
print("ready", flush=True)
try:
    while True:
        for batch in loader:
            if sys.argv[2] == "between":
                time.sleep(0.05)
finally:
    print("left", flush=True)
"""


@pytest.mark.parametrize("where", ["waits", "reads", "between"])
def test_ctrl_c(daemon, where):
    """It ends within a second wherever it is, with nothing but KeyboardInterrupt."""
    process = subprocess.Popen(
        python_command(INTERRUPTED, daemon.socket, where), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=python_environment(),
    )  # fmt: skip
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.5)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < (5 if "libasan" in os.environ.get("LD_PRELOAD", "") else 1)
    assert out == b"left\n" and err.strip().endswith(b"KeyboardInterrupt"), err.decode()
    assert process.returncode == -signal.SIGINT


def test_ctrl_c_while_the_dataset_opens(daemon, folder):
    """A list whose reading doesn't end: a FIFO."""
    os.mkfifo(folder / "list.tsv")
    code = """
import signal, sys, feedd
signal.signal(signal.SIGINT, signal.default_int_handler)
print("ready", flush=True)
feedd.NumpyLoader(sys.argv[2], batch_size=1, socket=sys.argv[1])
"""
    process = subprocess.Popen(python_command(code, daemon.socket, folder / "list.tsv"), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env=python_environment())  # fmt: skip
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.5)
    if process.poll() is not None:
        assert b"regular file" in process.communicate()[1]  # refused: there is nothing to interrupt
        return
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT


def epochs(loader, count):
    return [batch["index"].tolist() for _ in range(count) for batch in loader]


@pytest.mark.parametrize("zero_copy", [False, True])
def test_the_daemon_is_killed(daemon, loaders, zero_copy):
    """kill -9, twice: training goes on, no gap, no repeat; what was kept stays as it was."""
    expected = epochs(loaders(fields=["index"]), 20)  # several rings
    loader = loaders(fields=["index"], zero_copy=zero_copy)
    read, kept = [], []
    for _ in range(20):
        for batch in loader:
            read.append(batch["index"].tolist())
            if len(read) in (7, 150):
                kept.append((batch["index"], len(read) - 1))
                # What was given back has been announced anew: what is kept is then as old as the ring.
                daemon.wait_report(lambda r: all(s["ready"] == s["depth"] for s in r["streams"]), what="full rings")
                daemon.process.kill()
                daemon.process.wait()
                daemon.start()
    assert read == expected and loader.stats()["reconnects"] == 2
    assert all(array.tolist() == expected[number] for array, number in kept)


def test_the_daemon_is_away_when_a_loop_begins(daemon, loaders):
    """Opening at another epoch waits for it too."""
    loader = loaders(fields=["index"])
    next(iter(loader))
    daemon.process.kill()
    daemon.process.wait()
    starter = subprocess.Popen(["sleep", "0.7"])
    loader.set_epoch(5)
    thread = threading.Thread(target=lambda: (starter.wait(), daemon.start()))
    thread.start()
    assert len(epochs(loader, 1)) == 15 and loader.batch.epoch == 5
    thread.join()


def test_a_daemon_that_does_not_come_back(daemon, loaders, monkeypatch):
    """An exception, after a while, and none but that from then on."""
    from feedd import _client

    monkeypatch.setattr(_client, "REOPEN_S", 0.5)
    loader = loaders()
    next(iter(loader))
    daemon.process.kill()
    daemon.process.wait()
    for _ in range(2):
        with pytest.raises(feedd.DaemonError, match="start it|autostart"):
            next(iter(loader))
    with pytest.raises(feedd.Error, match="isn't open"):
        loader.stats()
    daemon.start()
    assert len([0 for _ in loader]) == 15


def test_at_the_exit_of_python(daemon):
    """Loaders and their tensors that nobody has closed don't keep it from ending, or make it crash."""
    code = """
import sys, feedd
loaders = [feedd.NumpyLoader("small", batch_size=64, socket=sys.argv[1], zero_copy=z) for z in (False, True)]
loops = [iter(loader) for loader in loaders]
kept = [next(loop) for loop in loops]
sys.kept = kept
"""
    done = subprocess.run(
        python_command(code, daemon.socket), env=python_environment(), capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), done.stderr.decode()
    daemon.wait_report(lambda r: not r["streams"] and not r["clients"], what="nothing left")
