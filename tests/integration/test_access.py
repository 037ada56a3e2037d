"""Who may what: users and groups in the configuration, limits a client, what a client can reach, other namespaces."""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import signal
import subprocess
import traceback

import pytest
from crowd import BROADCAST, Crowd, forked, wait_printed
from harness import FEEDCTL, run, wait_for
from oracle import check_batches, plan
from rawclient import E_LIMIT, Client, Stream

E_ACCESS, E_NOT_FOUND = -3, -2
OTHER = 65534  # nobody
TRAIN = {"dataset": "small", "batch_size": 16, "depth": 8}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes another user")


@pytest.fixture
def serve(daemons, folder, small, tiny):
    """A daemon that every user can reach."""
    folder.chmod(0o755)

    def start(daemon=None, **more):
        return daemons(
            {
                "daemon": daemon or {},
                "datasets": {"small": small.config(), "tiny": tiny.config(**more)},
                "streams": {"train": TRAIN, "tiny-train": {**TRAIN, "dataset": "tiny"}},
            }
        )

    return start


def as_other(function, *args, uid=OTHER, groups=()):
    """Runs a function as another user, in a child; what it asserts counts here."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = b""
        try:
            os.setgroups(groups)
            os.setgid(uid)
            os.setuid(uid)
            function(*args)
        except BaseException:
            text = traceback.format_exc().encode()
        os.write(writing, text[-30000:])
        os._exit(1 if text else 0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        text = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0, text.decode()


def report_of(client):
    packet = client.status()
    text = os.pread(packet.fds[0], packet.one(2), 0)
    os.close(packet.fds[0])
    return json.loads(text)


# ---- users and groups ----


@needs_root
@pytest.mark.tsan
def test_dataset_of_others(serve, tiny):
    feedd = serve(allow={"users": ["root"]})
    feedd.cat("tiny", "--batch-size", 10)

    def other():
        with Client(feedd.socket) as client:
            for source in "tiny", "tiny-train":
                client.open(source)
                client.expect_refusal(E_ACCESS, "tiny", f"user {OTHER}", "allow")
            Stream(client, "small")  # which is everybody's
            report = report_of(client)
            assert [d["name"] for d in report["datasets"]] == ["small"]

    as_other(other)
    assert {d["name"] for d in feedd.report()["datasets"]} == {"small", "tiny"}


@needs_root
def test_dataset_of_a_group(serve):
    """By a group's name or number; supplementary groups count."""
    feedd = serve(allow={"groups": ["daemon", 4242]})

    def may():
        with Client(feedd.socket) as client:
            Stream(client, "tiny")

    def may_not():
        with Client(feedd.socket) as client:
            client.open("tiny")
            client.expect_refusal(E_ACCESS, "tiny")

    as_other(may, groups=[7, 4242])
    as_other(may, groups=[1])
    as_other(may_not, groups=[4243])
    as_other(may, uid=4242)


@needs_root
def test_daemon_of_others(serve):
    feedd = serve(daemon={"allow": {"users": [0]}})

    def other():
        with Client(feedd.socket, hello=False) as client:
            client.expect_closed(E_ACCESS, f"user {OTHER}", "allow")

    as_other(other)
    done = run(feedd.feedctl_command("status"), user=OTHER, group=OTHER, extra_groups=[])
    assert done.returncode == 1 and f"user {OTHER}".encode() in done.stderr, done.stderr
    feedd.cat("tiny", "--batch-size", 10)


@needs_root
def test_clients_of_others(serve):
    """Who isn't an admin sees its own clients in status."""
    feedd = serve(daemon={"admin": {"users": [4242]}})

    def ordinary():
        with Client(feedd.socket, name="mine") as client:
            assert {c["uid"] for c in report_of(client)["clients"]} == {OTHER}

    def admin():
        with Client(feedd.socket, name="admin") as client:
            assert {c["uid"] for c in report_of(client)["clients"]} == {0, 4242}

    with Client(feedd.socket, name="root"):
        as_other(ordinary)
        as_other(admin, uid=4242)


@needs_root
@pytest.mark.tsan
def test_group_of_others(serve):
    """Groups of different users never meet, though their names are the same: each has all to itself."""
    feedd = serve()
    with Client(feedd.socket) as client:
        mine = Stream(client, "train", share=BROADCAST, group="g", members=2)

        def other():
            with Client(feedd.socket) as client, Client(feedd.socket) as second:
                theirs = Stream(client, "train", share=BROADCAST, group="g", members=2)
                with pytest.raises(TimeoutError):
                    while True:
                        theirs.take_packet(client.receive(0.5))
                assert theirs.members == 1 and not theirs.ready
                also = Stream(second, "train", share=BROADCAST, group="g", members=2)
                assert also.next() == theirs.next() and also.members == 2

        as_other(other)
        assert not mine.ready
        mine.close_fds()


@needs_root
def test_paths_are_the_daemons_own_users(serve, folder):
    feedd = serve()
    feedd.cat_fails("/nonexistent-photos", words=["/nonexistent-photos"])  # tried, for the daemon's own user

    def other():
        with Client(feedd.socket) as client:
            for path in "/nonexistent-photos", str(folder), "/etc/shadow":
                client.open(path)
                client.expect_refusal(E_ACCESS, "daemon's own user")
            client.open("../etc")
            client.expect_refusal(E_NOT_FOUND)

    as_other(other)


# ---- limits ----


def test_streams_per_client(serve):
    feedd = serve(daemon={"streams_per_client_max": 2})
    with Client(feedd.socket) as client, Client(feedd.socket) as neighbour:
        first = Stream(client, "train", attach=False)
        Stream(client, "train", attach=False)
        client.open("train")
        client.expect_refusal(E_LIMIT, "2 streams", "streams_per_client_max")
        Stream(neighbour, "train", attach=False)
        first.close()
        Stream(client, "train", attach=False)


@pytest.mark.tsan
def test_leases_per_client(serve):
    """Slots of all its streams together, those of groups included."""
    feedd = serve(daemon={"leases_per_client_max": 20})
    with Client(feedd.socket) as client:
        first = Stream(client, "train", attach=False, depth=8)
        Stream(client, "train", attach=False, depth=12, share=BROADCAST)
        client.open("train", depth=2)
        client.expect_refusal(E_LIMIT, "22 slots", "leases_per_client_max is 20")
        first.close()
        Stream(client, "train", attach=False, depth=8)
        with Client(feedd.socket) as neighbour:
            Stream(neighbour, "train", attach=False, depth=20)
            neighbour.open("train", depth=12, share=BROADCAST)
            neighbour.expect_refusal(E_LIMIT, "32 slots")
    feedd.wait_report(lambda r: r["memory"]["ring_bytes"] == 0, what="nothing left")


def test_ring_memory_per_client(serve):
    feedd = serve(daemon={"ring_memory_per_client_max": "1M"})
    with Client(feedd.socket) as client:
        client.open("train", batch_size=1000, depth=1024)
        client.expect_refusal(E_LIMIT, "ring_memory_per_client_max is 1048576")
        Stream(client, "train", batch_size=1000, depth=8, attach=False)
        Stream(client, "train", batch_size=1000, depth=8, attach=False)
        client.open("train", batch_size=1000, depth=12)
        client.expect_refusal(E_LIMIT, "ring_memory_per_client_max")
    feedd.wait_report(lambda r: r["memory"]["ring_bytes"] == 0, what="nothing left")


# ---- what a client has of the rings ----


def memory_of(pid):
    """Inodes of the rings that a process has a descriptor or a mapping of."""
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            path = f"/proc/{pid}/fd/{fd}"
            if "memfd:feedd" in os.readlink(path):
                found.add(os.stat(path).st_ino)
    with open(f"/proc/{pid}/maps") as maps:
        found |= {int(line.split()[4]) for line in maps if "memfd:feedd" in line}
    return found


def test_a_client_has_its_own_rings_only(serve):
    feedd = serve()
    with Crowd(feedd) as crowd:
        first, second = (crowd.start(name, "--pause", 20, share="private") for name in ("train", "tiny-train"))
        for process in first, second:
            wait_printed(process, 1)
        one, two, all_ = (memory_of(pid) for pid in (first.pid, second.pid, feedd.pid))
    assert len(one) == len(two) == 2 and not one & two and all_ == one | two


def test_what_is_passed_is_read_only(serve):
    """No client can shrink a ring, grow it, or write it, not even by opening its descriptor anew."""
    feedd = serve()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with Client(feedd.socket) as client:
        stream = Stream(client, "train")
        batch = stream.next()
        for fd in stream.meta_fd, stream.ring_fd:
            size = os.fstat(fd).st_size
            again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
            for handle in fd, again:
                for length in 0, size - 4096, size + 4096:
                    with pytest.raises(OSError):
                        os.ftruncate(handle, length)
                with pytest.raises(OSError):
                    mmap.mmap(handle, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
                with pytest.raises(OSError):
                    os.pwrite(handle, b"x", 0)
                at = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
                assert libc.mprotect(at, 4096, mmap.PROT_READ | mmap.PROT_WRITE) == -1
                assert ctypes.get_errno() == errno.EACCES
            os.close(again)
        at = batch.slot * stream.slot_bytes
        assert stream.ring[at : at + 100] == batch.fields["image"][:100]
        stream.close_fds()


# ---- namespaces ----


def needs_namespaces():
    probe = subprocess.run(["unshare", "-Urpmf", "--mount-proc", "true"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip(f"namespaces are not permitted here: {probe.stderr.decode().strip()}")


def test_client_in_a_container(serve, small, folder):
    """A client with its own users, processes and mounts: it reads right, and its death is noticed."""
    needs_namespaces()
    feedd = serve()
    inside = folder / "inside"
    inside.touch()
    script = f'mount --bind "{feedd.socket}" "{inside}" && exec "$@"'

    def command(*args):
        return [
            "unshare", "-Urpmf", "--mount-proc", "--kill-child", "sh", "-c", script, "sh",
            FEEDCTL, "--socket", inside, "cat", "train", "--json", *args,
        ]  # fmt: skip

    env = {**feedd.env, "ASAN_OPTIONS": "detect_leaks=0"}
    done = run(command("--epochs", "1"), env=env)
    assert done.returncode == 0, done.stderr
    batches = [json.loads(line) for line in done.stdout.splitlines()][:-1]
    check_batches(batches, plan(1000, 16, "drop", 1), small)
    with Client(feedd.socket) as client:
        survivor = Stream(client, "train", share=BROADCAST, members=2, epochs=0)
        process = subprocess.Popen(
            [str(word) for word in command("--share", "broadcast", "--members", "2", "--epochs", "0", "--pause", "20")],
            env=env, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        for seq in range(30):
            batch = survivor.next()
            assert batch.seq == seq and batch.fields == small.fields(batch.indices)
            survivor.release(batch)
        process.kill()
        process.wait()
        for seq in range(30, 300):
            batch = survivor.next()
            assert batch.seq == seq
            survivor.release(batch)
        feedd.wait_report(lambda r: len(r["clients"]) == 1 and r["streams"][0]["members"] == 1, what="its leave")
        survivor.close_fds()


def test_client_whose_process_is_not_visible(daemons, small):
    """The daemon is in the container: it knows no pid of its clients, and end of file has to do."""
    needs_namespaces()
    feedd = daemons(
        {"datasets": {"small": small.config()}, "streams": {"train": TRAIN}},
        before=["unshare", "-pf", "--mount-proc"],
    )
    (inner,) = (int(pid) for pid in open(f"/proc/{feedd.pid}/task/{feedd.pid}/children").read().split())
    try:
        check_batches(feedd.cat("train")[0], plan(1000, 16, "drop", 1), small)
        with Client(feedd.socket) as client:
            survivor = Stream(client, "train", share=BROADCAST, members=2)

            def hold(told):
                Stream(Client(feedd.socket), "train", share=BROADCAST, members=2).next()
                os.write(told, b"!")
                signal.pause()

            with forked(hold) as pid:
                assert {c["pid"] for c in feedd.report()["clients"]} == {0}
                for _ in range(8):
                    survivor.release(survivor.next())
                with pytest.raises(TimeoutError):
                    while True:
                        survivor.take_packet(survivor.client.receive(0.5))
                os.kill(pid, signal.SIGKILL)
                for seq in range(8, 100):
                    batch = survivor.next()
                    assert batch.seq == seq
                    survivor.release(batch)
            survivor.close_fds()
    finally:
        os.kill(inner, signal.SIGTERM)
        wait_for(lambda: feedd.process.poll() is not None, what="the end")
    assert feedd.process.returncode == 0
