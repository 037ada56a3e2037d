"""feedd --private: a daemon of one's own, found again by everybody who starts it with the same configuration."""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import oracle
import pytest
from harness import ENVIRONMENT, FEEDCTL, FEEDD, check_output, parse_cat, run, wait_for
from oracle import check_batches, plan
from rawclient import Client, Stream

pytestmark = pytest.mark.tsan
OTHER = 65534


@pytest.fixture
def runtime(folder):
    place = folder / "run"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture
def config(folder, small):
    path = folder / "feedd.conf"
    path.write_text(json.dumps({"daemon": {"workers": 1}, "datasets": {"small": small.config()}}))
    return path


@pytest.fixture
def private(folder, runtime):
    """Starts feedd --private. @return (process, the socket that it printed)"""
    with contextlib.ExitStack() as stack:
        running = []

        def start(*args, env=None, **popen):
            log = folder / f"log{len(running)}"
            process = subprocess.Popen(
                [str(word) for word in [FEEDD, "--private", *args]],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stack.enter_context(open(log, "wb")),
                env={**ENVIRONMENT, "XDG_RUNTIME_DIR": str(runtime), **(env or {})}, **popen,
            )  # fmt: skip
            running.append((process, log))
            line = process.stdout.readline().decode()
            assert line.endswith(".sock\n"), log.read_text()
            return process, Path(line.rstrip("\n"))

        yield start
        for process, log in running:
            if process.poll() is None:
                process.terminate()
                process.wait(20)
            process.stdout.close()
            check_output(log.read_bytes(), "feedd")


def cat(socket, *args):
    return parse_cat(run([FEEDCTL, "--socket", socket, "cat", *args, "--json"]))[0]


def test_one_a_configuration(private, runtime, config, folder, small):
    """The second start prints the same socket and succeeds; another configuration has another one."""
    first, socket = private("--config", config)
    assert socket.parent == runtime / "feedd" and stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    check_batches(cat(socket, "small"), plan(1000, 64, "drop", 1), small)
    (folder / "link.conf").symlink_to(config)
    for path in config, folder / "link.conf":
        second, same = private("--config", path)
        assert same == socket and second.wait(20) == 0
    assert first.poll() is None
    shutil.copy(config, folder / "other.conf")
    third, other = private("--config", folder / "other.conf")
    fourth, none = private()
    assert len({socket, other, none}) == 3
    for process in first, third, fourth:
        assert process.poll() is None
        process.terminate()
        assert process.wait(20) == 0
    assert list(runtime.glob("feedd/*.sock")) == []


def test_started_by_many_at_once(private, config, small):
    """Eight workers of a job start it at the same time: one serves, all are told where."""
    processes = []
    threads = [threading.Thread(target=lambda: processes.append(private("--config", config))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(processes) == 8 and len({socket for _, socket in processes}) == 1
    wait_for(lambda: sum(process.poll() is None for process, _ in processes) == 1, what="one that stays")
    assert all(process.returncode in (None, 0) for process, _ in processes)
    check_batches(cat(processes[0][1], "small"), plan(1000, 64, "drop", 1), small)


def test_leaves_when_nobody_is_there(private, config):
    """After the last client has gone, and not before; its socket goes with it."""
    process, socket = private("--config", config, "--linger", 1)
    with Client(socket) as client:
        stream = Stream(client, "small")
        stream.release(stream.next())
        time.sleep(3)
        assert process.poll() is None
        stream.close_fds()
    began = time.monotonic()
    assert process.wait(10) == 0
    assert 0.9 < time.monotonic() - began < 5 and not socket.exists()
    again, same = private("--config", config, "--linger", 1)
    assert same == socket and again.wait(10) == 0  # nobody came at all


def test_after_a_kill(private, config, small):
    """A socket that was left behind is taken over."""
    process, socket = private("--config", config)
    process.kill()
    process.wait()
    assert socket.exists()
    process, same = private("--config", config)
    assert same == socket
    check_batches(cat(socket, "small"), plan(1000, 64, "drop", 1), small)


def test_paths(private, made, folder):
    """Without a configuration: datasets by their paths."""
    from photos import decoded, digests, image_folder, make_photos

    root = make_photos(folder / "photos", 12, size=(20, 16))
    _, samples = image_folder(root)
    _, socket = private(env={"XDG_CACHE_HOME": str(folder / "cache")})
    (batch,) = cat(socket, root, "--batch-size", 12)
    assert batch["digests"] == digests([decoded(p) for p, _ in samples], [label for _, label in samples], range(12))


@pytest.mark.parametrize("value", [None, "", "relative", "/nonexistent/place"])
def test_without_a_runtime_folder(value):
    """/tmp/feedd-UID, as another user so that nobody's own is touched."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it becomes another user")
    uid = 64000 + os.getpid() % 1000
    env = {key: text for key, text in ENVIRONMENT.items() if key not in ("XDG_RUNTIME_DIR", "HOME")}
    if value is not None:
        env["XDG_RUNTIME_DIR"] = value
    place = Path(f"/tmp/feedd-{uid}")
    process = subprocess.Popen([FEEDD, "--private"], env=env, user=uid, group=uid, stdout=subprocess.PIPE, cwd="/")
    try:
        socket = Path(process.stdout.readline().decode().rstrip("\n"))
        assert socket.parent == place and stat.S_IMODE(place.stat().st_mode) == 0o700 and place.stat().st_uid == uid
        with Client(socket, hello=False) as client:  # root gets past the folder, and is refused all the same
            client.expect_closed(-3, "user 0")
        process.terminate()
        assert process.wait(20) == 0 and not socket.exists()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        shutil.rmtree(place, ignore_errors=True)


def test_folder_of_somebody_else(runtime, config, folder):
    """A folder that others can write, or that is another user's, is refused: who owns it could pose as feedd."""
    place = runtime / "feedd"

    def refused():
        done = run([FEEDD, "--private", "--config", config], env={**ENVIRONMENT, "XDG_RUNTIME_DIR": str(runtime)})
        line = done.stderr.decode()
        assert done.returncode == 1 and done.stdout == b"" and str(place) in line and line.count("\n") == 1, line

    place.mkdir()
    place.chmod(0o777)
    refused()
    place.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(place, OTHER, OTHER)
        refused()
    place.rmdir()
    (folder / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(folder / "elsewhere")
    refused()
    place.unlink()
    place.touch()
    refused()


def test_wrong_usage(config, runtime):
    env = {**ENVIRONMENT, "XDG_RUNTIME_DIR": str(runtime)}
    for args in (
        ["--private", "--socket", "/tmp/s"],
        ["--linger", "3", "--config", config],
        ["--private", "--linger", "x"],
        ["--private", "--linger", "-1"],
        ["--private", "more"],
    ):
        done = run([FEEDD, *args], env=env)
        assert done.returncode == 2 and done.stderr and not done.stdout, args
    done = run([FEEDD, "--private", "--config", "/nonexistent"], env=env)
    assert done.returncode == 1 and b"/nonexistent" in done.stderr
    long = {**env, "XDG_RUNTIME_DIR": tempfile.mkdtemp(prefix="x" * 80)}
    done = run([FEEDD, "--private"], env=long)
    os.rmdir(long["XDG_RUNTIME_DIR"])
    assert done.returncode == 1 and b"XDG_RUNTIME_DIR" in done.stderr


def test_in_place_of_a_shared_daemon(private, config):
    """A stream of one's own by its socket in the environment, as a launcher would set it."""
    _, socket = private("--config", config)
    done = run([FEEDCTL, "cat", "small", "--batches", 2], env={**ENVIRONMENT, "FEEDD_SOCKET": str(socket)})
    assert done.returncode == 0 and done.stdout.count(b"epoch 0") == 2
    assert oracle.Token.parse(done.stdout.split()[-1].decode()).position == 128
