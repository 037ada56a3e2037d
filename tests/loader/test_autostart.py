"""A private daemon: for a path, or when asked for; one for all, gone when nobody uses it."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import feedd
import pytest
from conftest import python_command, python_environment
from harness import wait_for
from photos import image_folder, make_photos


@pytest.fixture
def private(folder, monkeypatch):
    """A runtime folder of the test's own, and what runs there in the end is stopped."""
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    yield runtime
    for pid in pids(folder):
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not pids(folder), 20, "the daemons' end")


def pids(folder):
    """Of the private daemons whose runtime folder is this test's."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"--private" in (place / "cmdline").read_bytes()
                and str(folder).encode() in (place / "environ").read_bytes()
            ):
                if (place / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found.append(int(place.name))
        except OSError:
            continue
    return found


@pytest.fixture
def photos(folder):
    return make_photos(folder / "photos", 40, size=(20, 16))


def test_a_path(private, photos, folder, monkeypatch):
    """One line, and nothing else; a relative path and one of a home folder too."""
    classes, samples = image_folder(photos)
    with feedd.NumpyLoader(photos, batch_size=10, order="sequential") as loader:
        assert loader.classes == classes and len(loader) == 4
        labels = [label for _, batch in loader for label in batch]
        assert labels == [label for _, label in samples]
        assert loader.path(3) == str(samples[3][0])
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HOME", str(folder))
        for path in "./photos", "~/photos", str(photos):
            with feedd.NumpyLoader(path, batch_size=10) as other:
                assert other.stats()["dataset"] == str(photos)
        wait_for(lambda: len(pids(folder)) == 1, what="the end of those that found one running")


JOB = """
import json, sys, feedd
loader = feedd.NumpyLoader("small", batch_size=10, autostart=sys.argv[1], fields=["index"])
print(json.dumps([i for batch in loader for i in batch["index"].tolist()]))
"""


def test_one_for_all_ranks_and_gone_after_the_last(private, folder, small):
    config = folder / "feedd.conf"
    config.write_text(json.dumps({"daemon": {"workers": 1, "linger_s": 1}, "datasets": {"small": small.config()}}))
    ranks = [
        subprocess.Popen(
            python_command(JOB, config), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=python_environment({"RANK": str(r), "WORLD_SIZE": "4", "LOCAL_RANK": str(r)}),
        )
        for r in range(4)
    ]  # fmt: skip
    outs = [process.communicate(timeout=60) for process in ranks]
    assert all(process.returncode == 0 for process in ranks), [err.decode()[-2000:] for _, err in outs]
    read = [json.loads(out) for out, _ in outs]
    assert sorted(sum(read, [])) == sorted(set(sum(read, []))) and [len(one) for one in read] == [250] * 4
    assert len(pids(folder)) <= 1
    wait_for(lambda: not pids(folder), 10, "the daemon's end")
    assert list(private.glob("feedd/*.sock")) == []


def test_it_is_started_again_under_a_loader(private, photos, folder):
    """kill -9 of a daemon that nobody else would start: no gap, no repeat."""
    with feedd.NumpyLoader(photos, batch_size=1, fields=["index"]) as loader:
        expected = [int(batch["index"][0]) for _ in range(4) for batch in loader]
        read = []
        for epoch in range(4):  # more than a ring holds
            loader.set_epoch(epoch)
            for batch in loader:
                read.append(int(batch["index"][0]))
                if len(read) == 3:
                    (pid,) = pids(folder)
                    os.kill(pid, signal.SIGKILL)
        assert read == expected and loader.stats()["reconnects"] == 1


def test_no_program(private, photos, monkeypatch):
    monkeypatch.setenv("FEEDD_PROGRAM", "/nonexistent/feedd")
    with pytest.raises(feedd.DaemonError, match="/nonexistent/feedd"):
        feedd.NumpyLoader(photos, batch_size=1)
    monkeypatch.delenv("FEEDD_PROGRAM")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(feedd.DaemonError, match="FEEDD_PROGRAM"):
        feedd.NumpyLoader(photos, batch_size=1)


def test_a_configuration_that_is_wrong(private, folder):
    (folder / "feedd.conf").write_text("nonsense: 1\n")
    with pytest.raises(feedd.DaemonError, match="feedd.conf:1: nonsense"):
        feedd.NumpyLoader("small", batch_size=1, autostart=folder / "feedd.conf")


def test_nothing_of_ours_is_kept_open(private, photos):
    """Who reads the output of a script to its end doesn't wait for the daemon that it started."""
    code = f"import feedd\nprint(len(feedd.NumpyLoader({str(photos)!r}, batch_size=10)))"
    began = time.monotonic()
    done = subprocess.run(python_command(code), capture_output=True, env=python_environment(), timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"4\n", b""), done.stderr
    assert time.monotonic() - began < 15


def test_a_daemon_that_is_named_is_not_started(private, folder, monkeypatch):
    for socket, environment in ((folder / "s", None), (None, str(folder / "s"))):
        if environment:
            monkeypatch.setenv("FEEDD_SOCKET", environment)
        with pytest.raises(feedd.DaemonError, match=str(folder / "s")):
            feedd.NumpyLoader(folder, batch_size=1, socket=socket, autostart=True)
    assert not pids(folder)
