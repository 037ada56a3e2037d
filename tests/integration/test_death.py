"""Clients that die, vanish or stand still: what they had ends at once, and nobody else notices."""

import os
import signal
import socket
import subprocess

import oracle
import pytest
from harness import PROGRAMS, check_output, finish_cat, parse_cat, parse_lines, wait_for
from neighbour import Neighbour
from oracle import check_batches, plan
from rawclient import Client, Stream

pytestmark = pytest.mark.tsan

NOTICE_S = 2  # within which the daemon has to notice a death


def idle(report):
    closed = all(d["state"] == "closed" for d in report["datasets"])
    return closed and not report["clients"] and not report["streams"] and report["memory"]["ring_bytes"] == 0


def stream_of(report, pid):
    """The stream that the client with this pid has open, if it has one."""
    numbers = [stream["stream"] for client in report["clients"] if client["pid"] == pid for stream in client["streams"]]
    return next((stream for stream in report["streams"] if stream["stream"] in numbers), None)


def holds_a_socket(pid):
    """The process lives, and has a socket open."""
    folder = f"/proc/{pid}/fd"
    return any(os.readlink(f"{folder}/{fd}").startswith("socket:") for fd in os.listdir(folder))


@pytest.fixture
def stuck(feedd):
    """Starts a `feedctl cat` whose output nobody reads: it ends up stuck in write(), with batches in its hands."""
    pipes = []

    def start(source="train"):
        reading, writing = os.pipe()
        process = feedd.start_cat(source, "--epochs", 0, stdout=writing)
        os.close(writing)
        pipes.append(reading)

        def full(report):
            stream = stream_of(report, process.pid)
            held = [
                s["held"] for client in report["clients"] if client["pid"] == process.pid for s in client["streams"]
            ]
            return stream is not None and held == [stream["depth"]] != [0]  # 0: it is still being opened

        feedd.wait_report(full, what="a client that holds all of its ring")
        return process

    yield start
    for reading in pipes:
        os.close(reading)


def test_killed_while_it_holds_batches(feedd, stuck):
    process = stuck()
    report = feedd.report()
    assert report["memory"]["ring_bytes"] > 0 and report["datasets"][0]["users"] == 1
    process.kill()
    process.wait()
    report = feedd.wait_report(idle, NOTICE_S, "nothing left of the client")
    assert all(d["state"] == "closed" and d["users"] == 0 for d in report["datasets"])
    assert report["memory"]["dataset_bytes"] == 0
    assert (report["daemon"]["refused"], report["daemon"]["pid"]) == (0, feedd.pid)


def test_killed_beside_others(feedd, stuck, small):
    """Two die, one after the other; one reads on through it all, and one begins afterwards."""
    reader = feedd.start_cat("train", "--seed", 3, "--epochs", 40)
    with Neighbour(feedd, small) as neighbour:
        for _ in range(2):
            process = stuck()
            neighbour.read(30)
            process.kill()
            process.wait()
            neighbour.read(30)
            feedd.wait_report(lambda r, pid=process.pid: stream_of(r, pid) is None, NOTICE_S, "the client's end")
    batches, _ = parse_cat(finish_cat(reader))
    check_batches(batches, plan(1000, 64, "partial", 40), small, {})
    feedd.wait_report(idle, what="nothing left")
    check_batches(feedd.cat("train", "--seed", 3, "--epochs", 2)[0], plan(1000, 64, "partial", 2), small, {})


def test_killed_while_a_child_holds_the_socket(feedd, small):
    """End of file never comes as long as the child lives: the daemon has to watch the process."""
    client = subprocess.Popen(
        [PROGRAMS / "forking_client", feedd.socket, "train"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=feedd.env,
    )
    word, pid = client.stdout.readline().split()
    child = int(pid)
    try:
        assert word == b"child"
        with Neighbour(feedd, small) as neighbour:
            neighbour.read(10)
            client.kill()
            client.wait()
            feedd.wait_report(lambda r: len(r["clients"]) == len(r["streams"]) == 1, NOTICE_S, "the client's end")
            assert holds_a_socket(child)
            neighbour.read(10)
        feedd.wait_report(idle, NOTICE_S)
        assert "its process has gone" in feedd.log_text()
    finally:
        os.kill(child, signal.SIGKILL)
        check_output(client.stderr.read(), "forking_client")
        client.stdout.close()
        client.stderr.close()


def test_vanishing_at_every_step(feedd, small):
    """Connections that end before HELLO, in the middle of opening, before ATTACH, with batches untold or held."""

    def greeted():
        return Client(feedd.socket)

    def opening():
        client = Client(feedd.socket)
        client.open("train")
        return client

    def opened():
        client = Client(feedd.socket)
        Stream(client, "train", attach=False).close_fds()
        return client

    def attached():
        client = Client(feedd.socket)
        Stream(client, "train").close_fds()
        return client

    def holding():
        client = Client(feedd.socket)
        stream = Stream(client, "train", depth=4)
        stream.release(stream.next())
        stream.next()
        stream.close_fds()
        return client

    def ended():
        client = Client(feedd.socket)
        stream = Stream(client, "tiny", epochs=1)
        while (batch := stream.next()) is not None:
            stream.release(batch)
        stream.close_fds()
        return client

    before = None
    with Neighbour(feedd, small) as neighbour:
        for round_ in range(15):
            for begin in lambda: Client(feedd.socket, hello=False), greeted, opening, opened, attached, holding, ended:
                begin().close()
            neighbour.read(2)
            if round_ == 0:
                feedd.wait_report(lambda r: len(r["streams"]) == 1, what="one stream")
                before = feedd.settled_fd_count()
        feedd.wait_report(lambda r: len(r["clients"]) == 1 and len(r["streams"]) == 1, what="one client and stream")
        wait_for(lambda: feedd.fd_count() == before, what="the descriptors' return")
    feedd.wait_report(idle)


def test_gone_when_it_is_told(feedd, small):
    """The daemon finds out by the error of its own send, while it announces batches of the first of three streams.

    shutdown(SHUT_RD) makes that certain: the daemon can still read, and its next send fails.
    """
    with Neighbour(feedd, small) as neighbour:
        for _ in range(3):
            with Client(feedd.socket) as client:
                streams = [Stream(client, "train", attach=False) for _ in range(3)]
                feedd.wait_report(
                    lambda r: len(r["streams"]) == 4 and all(s["filled"] == s["depth"] for s in r["streams"][1:]),
                    what="three full rings",
                )
                client.socket.shutdown(socket.SHUT_RD)
                streams[0].attach()
                feedd.wait_report(lambda r: len(r["clients"]) == len(r["streams"]) == 1, what="the client's end")
                for stream in streams:
                    stream.close_fds()
            neighbour.read(10)


def test_stopped_client(feedd, small):
    """A client that is stopped (SIGSTOP) keeps its own stream waiting and no other; then it goes on."""
    process = feedd.start_cat("train", "--epochs", 60)
    feedd.wait_report(lambda r: any(s["batches"] > 20 for s in r["streams"]), what="20 batches")
    os.kill(process.pid, signal.SIGSTOP)
    with Neighbour(feedd, small) as neighbour:
        neighbour.read(200)
        before = stream_of(feedd.report(), process.pid)
        neighbour.read(100)
        after = stream_of(feedd.report(), process.pid)
        assert after["batches"] == before["batches"] and after["ready"] == after["depth"]
        os.kill(process.pid, signal.SIGCONT)
        batches, _ = parse_cat(finish_cat(process))
        check_batches(batches, plan(1000, 64, "partial", 60), small, {})
        neighbour.read(20)


def test_never_releasing(feedd, small):
    """A client that keeps everything stops its own stream; status shows which client it is."""
    with Client(feedd.socket, name="miser") as client, Neighbour(feedd, small) as neighbour:
        stream = Stream(client, "train", depth=5)
        held = [stream.next() for _ in range(5)]
        neighbour.read(100)
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.receive(0.3)

        def shown(report):
            mine = [s for s in report["streams"] if s["depth"] == 5]
            return len(mine) == 1 and mine[0]["bottleneck"]["stage"] == "client" and mine[0]

        mine = shown(feedd.wait_report(shown, what="the client as bottleneck"))
        assert (mine["ready"], mine["batches"]) == (5, 5)
        assert f"miser[{os.getpid()}]" in mine["bottleneck"]["text"]
        status = feedd.feedctl("status")
        assert status.returncode == 0 and f"miser[{os.getpid()}]" in status.stdout.decode()
        # The bytes of what it holds are still what they were, and the stream goes on when something comes back.
        for batch in held:
            assert batch.fields == small.fields(batch.indices)
            at = batch.slot * stream.slot_bytes
            image = stream.ring[at : at + len(batch.fields["image"])]
            assert image == batch.fields["image"]
        stream.release(held[2])
        assert stream.next().seq == 5
        stream.close_fds()


def test_daemon_killed(feedd, small):
    """kill -9 of the daemon: clients get one clear line, with a token that the next daemon takes."""
    process = feedd.start_cat("train", "--epochs", 0)
    feedd.wait_report(lambda r: any(s["batches"] > 20 for s in r["streams"]), what="20 batches")
    feedd.process.kill()
    feedd.process.wait()
    done = finish_cat(process)
    assert (done.returncode, done.stderr.decode()) == (1, "feedctl: feedd has gone: the connection is closed\n")
    batches, end = parse_lines(done.stdout)
    order = {}
    check_batches(batches, plan(1000, 64, "partial", len(batches))[: len(batches)], small, order)
    feedd.start()
    token = oracle.Token.parse(end["token"])
    rest, _ = feedd.cat("train", "--resume", end["token"], "--epochs", token.epoch + 2)
    check_batches(rest, plan(1000, 64, "partial", token.epoch + 2, start=(token.epoch, token.position)), small, order)
