"""Where the daemon listens, beside whom it refuses to start, and how it stops."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import rawclient
from harness import check_output, finish_cat, parse_lines, run, wait_for
from neighbour import Neighbour
from oracle import check_batches, plan
from rawclient import E_SHUTDOWN, Client, Stream

# Becomes the command behind it, with the descriptor as number 3 and the environment of socket activation.
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS=sys.argv[2], LISTEN_PID=sys.argv[3].replace("self", str(os.getpid())))
os.execv(sys.argv[4], sys.argv[4:])
"""


def start_fails(daemon, *words):
    """The daemon doesn't start: exit status 1, and one line that says why."""
    done = run(daemon.command, 20, daemon.env, **daemon.popen)
    assert done.returncode == 1 and done.stdout == b""
    line = [line for line in done.stderr.decode().splitlines() if line.startswith("<3>")]
    assert len(line) == 1, done.stderr.decode()
    rawclient.check_line(line[0], "can't start", *words)


def listening(path, kind=socket.SOCK_SEQPACKET):
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(str(path))
    listener.listen()
    return listener


# ---- the socket's path ----


def test_second_daemon(daemons, feedd, folder, small):
    """Refused beside a living one, which doesn't notice."""
    second = daemons({"daemon": {"socket": str(feedd.socket)}}, name="second", start=False)
    with Neighbour(feedd, small) as neighbour:
        for _ in range(2):
            start_fails(second, feedd.socket, "another feedd", "--socket")
            neighbour.read(5)
        assert feedd.report()["daemon"]["pid"] == feedd.pid
    feedd.stop()
    second.socket = feedd.socket
    second.start()
    assert second.report()["daemon"]["pid"] == second.pid


@pytest.mark.parametrize("stale", [False, True])
def test_many_at_once(daemons, folder, stale):
    """Of several that start at the same time on one path, one serves; the others say why they don't."""
    path = folder / "s"
    if stale:
        listening(path).close()
    contenders = [daemons({"daemon": {"socket": str(path)}}, start=False) for _ in range(8)]
    processes = []
    for daemon in contenders:
        with open(daemon.log, "wb") as log:
            processes.append(subprocess.Popen(daemon.command, stderr=log, env=daemon.env))
        daemon.process = processes[-1]
    wait_for(lambda: sum(process.poll() is None for process in processes) == 1, what="seven refusals")
    for daemon in contenders:
        if daemon.process.poll() is None:
            daemon.socket = path
            assert daemon.report()["daemon"]["pid"] == daemon.pid
            daemon.stop()
        else:
            assert daemon.process.returncode == 1 and f"serves {path}" in daemon.log_text()
    assert not path.exists()


def test_stale_socket(feedd, small):
    """What a daemon left behind that was killed is replaced."""
    feedd.kill()
    assert feedd.socket.is_socket()
    feedd.cat_fails("small", words=["Connection refused", "start it again"])
    feedd.start()
    assert f"replacing {feedd.socket}" in feedd.log_text()
    check_batches(feedd.cat("small")[0], plan(1000, 64, "drop", 1), small)


def test_nothing_is_left(feedd):
    feedd.cat("small")
    assert oct(feedd.socket.stat().st_mode & 0o777) == "0o666"
    feedd.stop()
    assert sorted(path.name for path in feedd.folder.iterdir()) == ["feedd.conf", "log"]


@pytest.mark.parametrize("kind", ["file", "folder", "link", "fifo"])
def test_something_in_the_way(daemons, kind):
    """Whatever is no socket stays, content and all."""
    daemon = daemons({}, start=False)
    path = daemon.socket
    match kind:
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to("feedd.conf")
        case "fifo":
            os.mkfifo(path)
    before = path.lstat()
    start_fails(daemon, path, "not a socket")
    after = path.lstat()
    assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_somebody_else_listens(daemons, kind):
    """A socket that lives stays, whoever serves it."""
    daemon = daemons({}, start=False)
    if kind == socket.SOCK_DGRAM:
        other = socket.socket(socket.AF_UNIX, kind)
        other.bind(str(daemon.socket))
    else:
        other = listening(daemon.socket, kind)
    inode = daemon.socket.stat().st_ino
    start_fails(daemon, daemon.socket, "somebody serves")
    assert daemon.socket.stat().st_ino == inode
    other.close()


def test_socket_replaced_while_it_runs(feedd):
    """At its end the daemon removes its own socket, and not what somebody has put in its place."""
    feedd.socket.unlink()
    feedd.socket.write_text("precious")
    feedd.stop()
    assert feedd.socket.read_text() == "precious"


def test_impossible_paths(daemons, folder):
    daemon = daemons({"daemon": {"socket": str(folder / "none" / "s")}}, start=False)
    start_fails(daemon, folder / "none", "No such file", "folder has to exist")
    daemon = daemons({}, start=False)
    long = folder / ("x" * 120)
    daemon.command += ["--socket", str(long)]
    start_fails(daemon, "at most 107", long)


def test_socket_option(daemons, folder, small):
    """--socket goes before the configuration."""
    daemon = daemons({"datasets": {"small": small.config()}}, start=False)
    configured, daemon.socket = daemon.socket, folder / "elsewhere"
    daemon.command += ["--socket", str(daemon.socket)]
    daemon.start()
    daemon.cat("small")
    assert not configured.exists()


# ---- socket activation ----


def activated(daemons, small, descriptor, count="1", pid="self", **options):
    return daemons(
        {"datasets": {"small": small.config()}},
        before=[sys.executable, "-c", ACTIVATE, str(descriptor), count, pid],
        pass_fds=[descriptor],
        **options,
    )


def test_activation(daemons, folder, small):
    """The passed socket is served, its file stays, and the next daemon serves it again; no client is refused."""
    path = folder / "passed"
    listener = listening(path)
    for _ in range(2):
        client = Client(path, hello=False)  # it waits in the backlog until there is a daemon
        client.send(rawclient.HELLO, rawclient.encode({1: "early"}))
        feedd = activated(daemons, small, listener.fileno())
        assert not feedd.socket.exists()
        feedd.socket = path
        client.expect(rawclient.WELCOME)
        client.close()
        check_batches(feedd.cat("small")[0], plan(1000, 64, "drop", 1), small)
        feedd.stop()
        assert path.is_socket()
    listener.close()


def test_activation_of_another_process(daemons, folder, small):
    """LISTEN_PID says that the descriptors are somebody else's."""
    listener = listening(folder / "passed")
    feedd = activated(daemons, small, listener.fileno(), pid="1")
    feedd.cat("small")
    feedd.stop()
    assert (folder / "passed").is_socket()
    listener.close()


@pytest.mark.parametrize("kind", ["stream", "not listening", "no socket", "two"])
def test_wrong_activation(daemons, folder, small, kind):
    if kind == "no socket":
        passed = open("/dev/null")  # noqa: SIM115
    elif kind == "not listening":
        passed = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    else:
        passed = listening(folder / "passed", socket.SOCK_STREAM if kind == "stream" else socket.SOCK_SEQPACKET)
    daemon = activated(daemons, small, passed.fileno(), count="2" if kind == "two" else "1", start=False)
    start_fails(daemon, "LISTEN_FDS", "ListenSequentialPacket=")
    passed.close()


# ---- stopping ----


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_clients_are_told(feedd, number):
    """Every client hears why, whether it has a stream or not, and whether it is in the middle of something."""
    idle, opening, reading = Client(feedd.socket), Client(feedd.socket), Client(feedd.socket)
    stream = Stream(reading, "train", depth=3)
    for _ in range(3):
        stream.next()
    opening.open("nothing")
    opening.expect_refusal(rawclient.E_NOT_FOUND)
    feedd.stop(number)
    for client in idle, opening, reading:
        client.expect_closed(E_SHUTDOWN, "feedd is stopping")
        client.close()
    stream.close_fds()
    assert not feedd.socket.exists()


@pytest.mark.tsan
@pytest.mark.parametrize("ending", ["stop", "refusal"])
def test_held_batches_outlive_the_connection(feedd, ending):
    """What a client holds when the daemon stops, or disconnects it, keeps its bytes: it has not been released.

    Many clients with many batches, while workers are awake: one that a worker overwrites is enough.
    """
    damaged = 0
    for _ in range(3):
        busy = feedd.start_cat("train", "--epochs", 0, "--depth", 64)
        clients = [Client(feedd.socket) for _ in range(12)]
        streams = [Stream(client, "train", depth=1024) for client in clients]
        held = [[stream.next() for _ in range(1024)] for stream in streams]
        if ending == "stop":
            feedd.stop()
        else:
            for client in clients:
                client.send(99)
            feedd.wait_report(lambda r: len(r["streams"]) == 1, what="the streams' end")
            busy.send_signal(signal.SIGINT)
        finish_cat(busy)
        for stream, batches in zip(streams, held, strict=True):
            for batch in batches:
                at = batch.slot * stream.slot_bytes
                damaged += stream.ring[at : at + len(batch.fields["image"])] != batch.fields["image"]
            stream.close_fds()
            stream.client.close()
        if ending == "stop":
            feedd.start()
    assert damaged == 0


@pytest.mark.tsan
@pytest.mark.parametrize("pause", [0.05, 0.5])
def test_stop_under_load(feedd, small, pause):
    """Four clients read as fast as they can: what they got is right, nothing leaks, and feedd exits with 0."""
    running = [feedd.start_cat("train", "--seed", i, "--epochs", 0, "--depth", 250 * (i + 1)) for i in range(4)]
    feedd.wait_report(lambda r: [s["batches"] > 0 for s in r["streams"]] == [True] * 4, what="four streams")
    time.sleep(pause)
    feedd.stop()
    for process in running:
        done = finish_cat(process)
        assert (done.returncode, done.stderr.decode()) == (1, "feedctl: feedd is stopping\n")
        batches, _ = parse_lines(done.stdout)
        check_batches(batches, plan(1000, 64, "partial", len(batches) // 16 + 1)[: len(batches)], small, {})


@pytest.mark.tsan
def test_stop_while_opening(daemons, fashion):
    """SIGTERM while workers read a dataset and make rings: it waits for them, and leaves nothing."""
    for pause in 0, 0.01, 0.1:
        feedd = daemons({"datasets": {"fashion": fashion.config()}})
        clients = [Client(feedd.socket) for _ in range(3)]
        for client in clients:
            client.open("fashion", batch_size=512)
        time.sleep(pause)
        feedd.stop()
        for client in clients:
            client.close()


def test_second_signal(daemons, fashion):
    """Whoever can't wait sends another: it leaves at once, with 1."""
    feedd = daemons({"datasets": {"fashion": fashion.config()}}, env={"ASAN_OPTIONS": "detect_leaks=0"})
    with Client(feedd.socket) as client:
        client.open("fashion")
        feedd.wait_report(lambda r: r["datasets"][0]["state"] == "opening", what="a dataset that is being read")
        feedd.process.send_signal(signal.SIGTERM)
        feedd.wait_log("stopping")
        feedd.process.send_signal(signal.SIGTERM)
        code = feedd.process.wait(5)
        check_output(feedd.log.read_bytes(), "feedd")
        assert code == (1 if "leaving at once" in feedd.log_text() else 0)
