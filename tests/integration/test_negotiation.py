"""libfeedd with a GPU, against a daemon that is played: which transports it asks for, what it makes of the answer, and
that it asks again without the one that it can't map. The runtime is the fake one; feedctl is the client."""

import json
import socket
import subprocess
import sys
import threading

import pytest
import rawclient
from harness import BUILD, ENVIRONMENT, FEEDCTL, check_output, parse_failure
from rawclient import ATTACH, CLOSE, ERROR, HEADER, HELLO, MAGIC, MEMBERS, OPEN, READY, RECORD, RELEASE, STREAM, WELCOME, encode, packed
from test_library import python_environment
from test_wrong_daemon import BATCH, META, RECORD_BYTES, RING, memfd, stream

FAKE = BUILD / "tests" / "fake_cuda" / "libfake_cudart.so"
UUID, OTHER_UUID = (f"GPU-feedd0{number:02x}-fa4e-4000-8000-{number:012x}" for number in range(2))
ALL = [b"ipc", b"fd", b"host"]

pytestmark = [
    pytest.mark.tsan,
    pytest.mark.skipif(not FAKE.exists(), reason="not built with FEEDD_CUDA=FAKE, for which CUDA's headers are needed"),
]


def ipc(handle=b"\x5a" * 64, **changes):
    return stream(**{"f22": "ipc", "f28": UUID, "f29": handle, "f30": 0, **changes}), [memfd(META)]


def fd(bytes_=1 << 21, **changes):
    return stream(**{"f22": "fd", "f28": UUID, "f32": bytes_, **changes}), [memfd(META), memfd(1 << 21)]


def host(first=0, **changes):
    """Its two batches begin at position `first`."""
    records = b""
    for seq in range(2):
        position = first + seq * BATCH
        records += RECORD.pack(seq, 0, position, 0, position + BATCH, BATCH, BATCH, 400, *[0] * 39)
        records += bytes(RECORD_BYTES - RECORD.size)
    return stream(**{"f28": UUID, **changes}), [memfd(META, content=records), memfd(RING)]


class Daemon(threading.Thread):
    """Answers OPEN by OPEN, refuses the ATTACHes to streams of some numbers, and confirms others where it is asked to; a
    connection ends when its two batches have come back."""

    def __init__(self, path, answers, connections=1, refused=()):
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen()
        self.answers, self.connections, self.refused = list(answers), connections, refused
        self.opens, self.closed, self.attached, self.confirmed = [], [], [], []

    def run(self):
        for _ in range(self.connections):
            peer, _ = self.listener.accept()
            peer.settimeout(20)
            with peer:
                released = 0
                while released < 2 and (packet := peer.recv(65536)):
                    released += self.answer(peer, HEADER.unpack_from(packet)[2], rawclient.decode(packet[HEADER.size :]))

    def answer(self, peer, type_, fields):
        """@return batches that came back"""

        def send(type_, body, fds=()):
            socket.send_fds(peer, [HEADER.pack(MAGIC, 1, type_, 0) + body], fds)

        if type_ == HELLO:
            send(WELCOME, encode({1: "0.1.0"}))
        elif type_ == OPEN:
            self.opens.append(fields)
            body, fds = self.answers.pop(0)
            send(STREAM, body + encode({1: fields[1]}), fds)
        elif type_ == CLOSE:
            self.closed += fields[1]
        elif type_ == ATTACH:
            number = fields[1][0]
            self.attached.append(number)
            if number in self.refused:
                send(ERROR, encode({2: number, 3: -10, 4: "ATTACH without having mapped its ring"}))
                return 0
            if fields.get(3) == [1]:
                self.confirmed.append(number)
                send(MEMBERS, encode({1: number, 2: 1}))
            send(READY, encode({1: fields[1][0], 2: packed([0, 1]), 3: packed([0, 1])}))
        elif type_ == RELEASE:
            return len(rawclient.unpack(fields[2][0]))
        return 0


def run_feedctl(folder, daemon, *args, batches=2, **env):
    """With one GPU, and nothing of CUDA's left at the end."""
    leaks = folder / "leaks"
    env = {**ENVIRONMENT, "FEEDD_FAKE_GPUS": "1", "FEEDD_FAKE_CUDA_LEAKS": str(leaks), **env}
    command = [FEEDCTL, "--socket", folder / "s", "cat", "data", "--batches", str(batches), "--json", *args]
    daemon.start()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, env=env)
    daemon.listener.close()
    check_output(done.stderr, "feedctl")
    for line in leaks.read_text().splitlines() if leaks.exists() else []:
        assert not any(int(word.split("=")[1]) for word in line.split()[1:]), line
    return done


def opened(done):
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return json.loads(done.stdout.splitlines()[-1])


def test_asks_again_without_what_it_cannot_map(folder):
    daemon = Daemon(folder / "s", [ipc(f2=7), fd(f2=8), host(f2=9)])
    end = opened(run_feedctl(folder, daemon, "--device", "cuda"))
    assert (end["batches"], end["transport"], end["device"], end["normalize"]) == (2, "host", UUID, "client")
    assert [message[14] for message in daemon.opens] == [ALL, ALL[1:], ALL[2:]]
    assert daemon.closed[:2] == [7, 8] and daemon.attached == [9]
    assert [message[1] for message in daemon.opens] == [[1]] * 3  # the request that nobody else has used meanwhile
    first, second, third = (message.get(25, [b""])[0].decode() for message in daemon.opens)
    assert first == ""
    assert second.startswith("ipc: opening the daemon's GPU memory by CUDA IPC: ") and "fd: " not in second
    assert third.startswith(second[:100]) and "; fd: importing the daemon's GPU memory by its descriptor: " in third
    assert len(third) < 256 and third.isprintable() and third.isascii()


ALLOCATE = """
import ctypes, sys
cuda, pointer, handle = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p(), (ctypes.c_char * 64)()
assert cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 21)) == 0
assert cuda.cudaIpcGetMemHandle(handle, pointer) == 0
sys.stdout.buffer.write(bytes(handle))
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.fixture
def slab():
    """The IPC handle of memory that a client can map, and that isn't the daemon's ring."""
    env = {**python_environment(), "FEEDD_FAKE_GPUS": "1"}
    command = [sys.executable, "-c", ALLOCATE, FAKE]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    handle = process.stdout.read(64)
    assert len(handle) == 64
    yield handle
    process.communicate()


def test_memory_that_proves_nothing(folder, slab):
    """Mapped, but the daemon doesn't take what is read there: the next transport; the caller sees the last one."""
    daemon = Daemon(folder / "s", [ipc(handle=slab, f2=5), host(f2=6)], refused=[5])
    end = opened(run_feedctl(folder, daemon, "--device", "cuda"))
    assert (end["transport"], end["batches"]) == ("host", 2)
    assert daemon.attached == [5, 6] and daemon.closed[0] == 5 and daemon.confirmed == [6]
    assert [message[14] for message in daemon.opens] == [ALL, ALL[1:]]
    assert daemon.opens[1][25] == [b"ipc: ATTACH without having mapped its ring"]


def test_memory_that_proves_nothing_as_asked_for(folder, slab):
    daemon = Daemon(folder / "s", [ipc(handle=slab)], refused=[1])
    done = run_feedctl(folder, daemon, "--device", "cuda", "--transport", "ipc")
    parse_failure(done, "without having mapped")
    assert len(daemon.opens) == 1 and daemon.confirmed == []


@pytest.mark.parametrize("asked", ["ipc", "fd", "host"])
@pytest.mark.parametrize("way", ["option", "environment"])
def test_explicit_transport(folder, asked, way):
    """Nothing else is tried, and the error is the caller's."""
    answer = {"ipc": ipc, "fd": fd, "host": host}[asked]()
    args, env = (["--transport", asked], {}) if way == "option" else ([], {"FEEDD_TRANSPORT": asked})
    daemon = Daemon(folder / "s", [answer, host()])
    env["FEEDD_FAKE_CUDA_FAIL"] = "cudaHostRegister:1:cudaErrorMemoryAllocation" if asked == "host" else ""
    done = run_feedctl(folder, daemon, "--device", "cuda", *args, **env)
    parse_failure(done, {"ipc": "by CUDA IPC", "fd": "by its descriptor", "host": "registering"}[asked])
    assert [message[14] for message in daemon.opens] == [[asked.encode()]]


def test_option_before_environment(folder):
    daemon = Daemon(folder / "s", [host()])
    env = {"FEEDD_TRANSPORT": "ipc"}
    assert opened(run_feedctl(folder, daemon, "--device", "cuda", "--transport", "host", **env))["transport"] == "host"


def test_the_last_failure_is_the_callers(folder):
    daemon = Daemon(folder / "s", [ipc(), fd(), host()])
    fail = {"FEEDD_FAKE_CUDA_FAIL": "cudaHostRegister:*:cudaErrorNotSupported"}
    parse_failure(run_feedctl(folder, daemon, "--device", "cuda", **fail), "registering", "cudaErrorNotSupported")
    assert len(daemon.opens) == 3


def test_drops_what_was_answered(folder):
    """And not what stands first."""
    daemon = Daemon(folder / "s", [fd(f2=3), host(f2=4)])
    opened(run_feedctl(folder, daemon, "--device", "cuda"))
    assert [message[14] for message in daemon.opens] == [ALL, [b"ipc", b"host"]]


WRONG = {
    "a transport that wasn't asked for": (["--transport", "ipc"], fd, "transport fd, which wasn't asked for"),
    "no such transport": ([], lambda: host(f22="pigeon"), "transport pigeon, which wasn't asked for"),
    "another GPU": ([], lambda: ipc(f28=OTHER_UUID), f"batches for {OTHER_UUID}, which wasn't asked for"),
    "no handle": ([], lambda: ipc(f29=[]), "without a handle"),
    "a short handle": ([], lambda: ipc(handle=bytes(63)), "without a handle"),
    "no size of the memory": ([], lambda: fd(f32=[]), f"without {RING} bytes of GPU memory"),
    "too little memory": ([], lambda: fd(bytes_=RING - 1), f"without {RING} bytes of GPU memory"),
    "no descriptor of the memory": ([], lambda: (fd()[0], [memfd(META)]), f"without {RING} bytes of GPU memory"),
    "memory of a GPU for the CPU": ([], lambda: ipc(f28=[]), "transport ipc, which wasn't asked for"),
    "a mode of later versions": ([], lambda: host(f31=4), "normalize 4"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_answers(folder, kind):
    """Such a daemon isn't asked again."""
    args, answer, words = WRONG[kind]
    daemon = Daemon(folder / "s", [answer(), host()])
    parse_failure(run_feedctl(folder, daemon, "--device", "cuda", *args), words)
    assert len(daemon.opens) == 1


def test_gpu_without_having_asked(folder):
    daemon = Daemon(folder / "s", [host()])
    parse_failure(run_feedctl(folder, daemon), f"batches for {UUID}, which wasn't asked for")


def test_auto_may_end_in_host_memory(folder):
    daemon = Daemon(folder / "s", [host(f28=[])])
    end = opened(run_feedctl(folder, daemon, "--device", "auto", "--transport", "ipc"))
    assert (end["transport"], end["device"]) == ("host", None)
    assert daemon.opens[0][22] == [1]


def test_opens_again_as_it_was(folder):
    """After a restart of the daemon: by the transport that it came to, and by no other."""
    daemon = Daemon(folder / "s", [ipc(), host(f31=3), host(first=2 * BATCH, f31=3)], connections=2)
    end = opened(run_feedctl(folder, daemon, "--device", "auto", "--reconnect", batches=3))
    assert [message[14] for message in daemon.opens] == [ALL, ALL[1:], [b"host"]]
    assert [message.get(26) for message in daemon.opens] == [None, None, [3]]
    assert [message.get(22) for message in daemon.opens] == [[1], [1], None]
    assert end["normalize"] == "cpu" and end["batches"] == 3


@pytest.mark.parametrize("change", [{"f22": "host", "f28": []}, {"f31": 2}])
def test_comes_back_otherwise(folder, change):
    """A daemon that serves it in another way now: the stream ends, and says so."""
    daemon = Daemon(folder / "s", [host(), host(**change)], connections=2)
    args = ["--device", "cuda", "--transport", "host", "--reconnect"]
    parse_failure(run_feedctl(folder, daemon, *args, batches=3), "in another way")
