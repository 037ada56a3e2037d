"""Batches on a GPU, by way of the fake CUDA runtime (tests/fake_cuda): daemon, libfeedd and feedctl as they are, each
call of CUDA failing in its turn, and nothing left behind."""

import collections
import contextlib
import json
import re
import signal
import subprocess
import time

import harness
import pytest
from harness import BUILD, finish_cat, parse_cat, parse_failure, wait_for
from oracle import check_batches, plan
from rawclient import E_DEVICE, E_PROTOCOL, E_UNSUPPORTED, Client

FAKE = BUILD / "tests" / "fake_cuda" / "libfake_cudart.so"
CLIENT = BUILD / "tests" / "gpu" / "gpu_client"
SLAB = 2 << 20

pytestmark = pytest.mark.skipif(not FAKE.exists(), reason="not built with FEEDD_CUDA=FAKE, for which CUDA's headers are needed")


def uuid(number):
    return f"GPU-feedd0{number:02x}-fa4e-4000-8000-{number:012x}"


class Gpu:
    """A daemon on fake GPUs; what it and its clients have called, and what they left behind."""

    def __init__(self, daemons, datasets, gpus=1, daemon=None, env=None, **options):
        config = {
            "daemon": daemon or {},
            "datasets": {name: dataset.config() for name, dataset in datasets.items()},
            "streams": {
                "train": {"dataset": "small", "batch_size": 64, "order": "shuffle", "seed": 1, "tail": "partial"},
            },
        }
        fake = {"FEEDD_FAKE_GPUS": str(gpus)}
        self.feedd = daemons(config, env={**fake, **(env or {})}, start=False, **options)
        self.calls_path = self.feedd.folder / "calls"
        self.leaks_path = self.feedd.folder / "leaks"
        self.feedd.env["FEEDD_FAKE_CUDA_LOG"] = str(self.calls_path)
        self.feedd.env["FEEDD_FAKE_CUDA_LEAKS"] = str(self.leaks_path)
        self.client_env = {**self.feedd.env, **fake, "FEEDD_FAKE_CUDA_FAIL": "", "FEEDD_FAKE_CUDA_DELAY_US": ""}
        self.feedd.start()

    def calls(self, pid=None, function=None, **words):
        """The logged calls, as lists of words."""
        lines = [line.split() for line in self.calls_path.read_text().splitlines()]
        wanted = [f"{key}={value}" for key, value in words.items()]
        return [
            line
            for line in lines
            if (pid is None or line[0] == str(pid))
            and (function is None or line[2] == function)
            and all(word in line for word in wanted)
        ]

    def leaks(self):
        """{pid: what it had when it exited}"""
        out = {}
        for line in self.leaks_path.read_text().splitlines():
            pid, *counts = line.split()
            out[int(pid)] = {name: int(value) for name, value in (count.split("=") for count in counts)}
        return out

    def check_no_leaks(self):
        left = {pid: counts for pid, counts in self.leaks().items() if any(counts.values())}
        assert left == {}

    def feedctl(self, *args, **env):
        return harness.run(self.feedd.feedctl_command(*args), env={**self.client_env, **env})

    def cat(self, source, *args, device="cuda", **env):
        return parse_cat(self.feedctl("cat", source, "--json", "--device", device, *args, **env))

    def cat_fails(self, source, *args, device="cuda", words=(), **env):
        return parse_failure(self.feedctl("cat", source, "--device", device, *args, **env), *words)

    def start_cat(self, source, *args, **env):
        saved, self.feedd.env = self.feedd.env, {**self.client_env, **env}
        try:
            return self.feedd.start_cat(source, "--device", "cuda", *args)
        finally:
            self.feedd.env = saved

    def client(self, command, source, *args, **env):
        """gpu_client: a program as trainers are, whose kernels run on streams of its own."""
        words = [CLIENT, command, source, "--socket", self.feedd.socket, *args]
        done = harness.run(words, env={**self.client_env, **env})
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout.splitlines()[-1])

    def wait_quiet(self):
        """Nothing is open any more: rings, GPU memory and pinned memory are given back."""

        def quiet(report):
            memory = report["memory"]
            return (
                not report["streams"]
                and memory["ring_bytes"] == memory["pinned_bytes"] == 0
                and all(gpu["ring_bytes"] == 0 for gpu in report["gpus"])
            )

        return self.feedd.wait_report(quiet, what="nothing open")


@pytest.fixture
def gpu(daemons, small, tiny):
    def start(**options):
        return Gpu(daemons, {"small": small, "tiny": tiny}, **options)

    return start


# ---- delivery ----


@pytest.mark.tsan
def test_same_bytes_as_in_host_memory(gpu, small):
    it = gpu()
    for options in ((), ("--depth", 2), ("--batch-size", 7, "--epochs", 1), ("--tail", "pad", "--epochs", 3)):
        batches, _ = it.cat("train", *options)
        assert batches == it.cat("train", *options, device="host")[0]
    check_batches(it.cat("train", "--epochs", 2)[0], plan(1000, 64, "partial", 2), small, {})
    it.wait_quiet()
    it.feedd.stop()
    it.check_no_leaks()


@pytest.mark.tsan
def test_ready_comes_after_the_copy(gpu, small):
    """However long copies take: nobody is handed a slot before its bytes are there."""
    it = gpu(env={"FEEDD_FAKE_CUDA_DELAY_US": "cudaMemcpyAsync:4000"})
    check_batches(it.cat("train", "--epochs", 3, "--depth", 4)[0], plan(1000, 64, "partial", 3), small, {})


@pytest.mark.tsan
def test_normalised_on_the_gpu_as_on_the_host(gpu):
    """Every dtype and layout, windows and flips: bit for bit."""
    it = gpu()
    for source in "train", "tiny":
        answer = it.client("check", source, "--batches", "5")
        assert answer["failed"] == 0 and answer["batches"] == 5 and answer["values"] > 0
    it.feedd.stop()
    it.check_no_leaks()


@pytest.mark.tsan
def test_a_batch_goes_back_when_the_gpu_has_read_it(gpu):
    """Kernels that begin long after feedd_release() has returned still see the batch that was released."""
    it = gpu()
    answer = it.client("late", "train", "--batches", "40", "--spin-ms", "5", "--depth", "4")
    assert answer["wrong"] == 0 and answer["batches"] == 40 and answer["in_flight"] > 1
    it.wait_quiet()
    it.feedd.stop()
    it.check_no_leaks()


@pytest.mark.tsan
def test_one_copy_a_batch_for_four_members(gpu, small):
    it = gpu()
    options = ("--share", "broadcast", "--members", 4, "--epochs", 2)
    members = [it.start_cat("train", *options) for _ in range(4)]
    read = [parse_cat(finish_cat(member))[0] for member in members]
    assert read[0] == read[1] == read[2] == read[3]
    check_batches(read[0], plan(1000, 64, "partial", 2), small, {})
    it.wait_quiet()
    it.feedd.stop()
    copies = it.calls(it.feedd.pid, "cudaMemcpyAsync", kind="H2D")
    assert len(copies) == len(read[0]) + 1  # and the nonce
    assert len(it.calls(it.feedd.pid, "cudaMalloc")) == 1
    imports = collections.Counter(line[0] for line in it.calls(function="cudaIpcOpenMemHandle"))
    assert list(imports.values()) == [1] * 4
    it.check_no_leaks()


def test_only_what_is_used_is_copied(gpu):
    """A batch of the tail is shorter, and so is its copy."""
    it = gpu()
    sizes = {batch["seq"]: batch["count"] for batch in it.cat("train", "--epochs", 1)[0]}
    it.feedd.stop()
    copies = [
        int(word.split("=")[1])
        for line in it.calls(it.feedd.pid, "cudaMemcpyAsync", kind="H2D")[1:]
        for word in line
        if word.startswith("bytes=")
    ]
    fields = (30, 8, 8)  # image, label, index: each at a multiple of 256

    def used(count):
        at = 0
        for size in fields:
            at = -(-at // 256) * 256
            at += size * (64 if size is not fields[-1] else count)
        return at

    starts = [0, 2048, 2560]  # of the fields in a slot of 64: 1920, 512 and 512 bytes
    assert copies[: len(sizes)] == [starts[2] + 8 * sizes[seq] for seq in sorted(sizes)], used(64)


def test_two_gpus_that_client_and_daemon_number_differently(gpu, small):
    it = gpu(gpus=2, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    for number, visible in ((0, "0"), (1, "1"), (0, "1,0"), (1, uuid(1))):
        ordinal = 1 if visible == "1,0" else 0
        it.cat("train", "--batches", 3, device=f"cuda:{ordinal}", CUDA_VISIBLE_DEVICES=visible)
        report = it.feedd.report()
        assert [g["gpu"] for g in report["gpus"]] == [uuid(0), uuid(1)]
    copies = [g["copies"] for g in it.feedd.report()["gpus"]]
    assert all(count >= 6 for count in copies)


def test_status_says_where_and_why(gpu):
    it = gpu(gpus=2)
    reader = it.start_cat("train", "--epochs", 0, "--pause", 5)
    report = it.feedd.wait_report(
        lambda r: r["streams"] and r["streams"][0]["state"] == "running" and r["gpus"][0]["copies_per_s"] > 0,
        what="copies",
    )
    (stream,) = report["streams"]
    assert (stream["backend"], stream["transport"], stream["device"], stream["normalize"]) == ("cuda", "ipc", uuid(0), "client")
    assert stream["mode_reason"] == "ipc: the client asked for it and can map it; nothing to normalise"
    slots = stream["slot_bytes"] * stream["depth"]
    assert stream["gpu_bytes"] == -(-(slots + 4096) // SLAB) * SLAB and stream["pinned_bytes"] == slots + 4096
    assert report["memory"]["pinned_bytes"] == stream["pinned_bytes"] < report["memory"]["ring_bytes"]
    first, second = report["gpus"]
    assert first["state"] == second["state"] == "up" and first["name"] == "Fake GPU 0"
    assert first["ring_bytes"] == stream["gpu_bytes"] and second["ring_bytes"] == 0
    assert first["copied_bytes"] >= first["copies"] * 64 * 46 * 0.5 and first["copied_bytes_per_s"] > 0
    text = it.feedctl("status").stdout.decode()
    assert re.search(rf"^{uuid(0)} +Fake GPU 0 +up ", text, re.M) and f"{uuid(0)} by ipc" in text and "nothing to normalise" in text
    assert [g["gpu"] for g in json.loads(it.feedctl("gpus", "--json").stdout)] == [uuid(0), uuid(1)]
    reader.terminate()
    finish_cat(reader)


# ---- where there is no GPU ----


def test_cuda_without_a_gpu_says_what_is_missing(gpu):
    it = gpu(gpus=0)
    host = it.cat("train", "--batches", 3, device="host")[0]
    it.cat_fails("train", words=("cuda", "no CUDA-capable device"), FEEDD_FAKE_GPUS="0")
    it.cat_fails("train", words=("cuda", "no NVIDIA driver is installed"), FEEDD_FAKE_GPUS="nodriver")
    it.cat_fails("train", words=("no CUDA-capable device", "CUDA_VISIBLE_DEVICES"), FEEDD_FAKE_GPUS="1", CUDA_VISIBLE_DEVICES="")
    it.cat_fails("train", words=(uuid(0), "feedd drives no GPU", "no CUDA-capable device"), FEEDD_FAKE_GPUS="1")
    it.cat_fails("train", device="cuda:2", words=("cuda:2", "sees 1 GPUs"), FEEDD_FAKE_GPUS="1")
    it.cat_fails("train", device=uuid(5), words=(uuid(5), "not among the 1"), FEEDD_FAKE_GPUS="1")
    for name in "gpu", "cuda:", "cuda:-1", "cuda:1x", "CUDA", "Host":
        it.cat_fails("train", device=name, words=(f"'{name}'", "allowed are host, auto, cuda"), FEEDD_FAKE_GPUS="1")
    for env, why in (({"FEEDD_FAKE_GPUS": "0"}, "auto: device cuda: no CUDA-capable"), ({"FEEDD_FAKE_GPUS": "1"}, "feedd drives no GPU")):
        reader = it.feedd.start_cat("train", "--device", "host")  # to have the daemon at work
        assert it.cat("train", "--batches", 3, device="auto", **env)[0] == host
        finish_cat(reader)
        waiting = subprocess.Popen(
            it.feedd.feedctl_command("cat", "train", "--device", "auto", "--epochs", 0, "--pause", 100),
            stdout=subprocess.DEVNULL,
            env={**it.client_env, **env},
        )
        report = it.feedd.wait_report(lambda r: r["streams"] and r["streams"][0]["state"] == "running", what="a stream")
        assert report["streams"][0]["device"] is None and why in report["streams"][0]["mode_reason"]
        assert "no CUDA-capable device" in report["no_gpu"]
        waiting.terminate()
        waiting.wait(20)
    it.wait_quiet()


def test_gpus_of_the_configuration(gpu, daemons, small):
    it = gpu(gpus=3, daemon={"gpus": [uuid(2), uuid(0)]})
    assert [g["gpu"] for g in it.feedd.report()["gpus"]] == [uuid(0), uuid(2)]
    it.cat("train", "--batches", 2, device="cuda:2")
    it.cat_fails("train", device="cuda:1", words=(uuid(1), "drives 2", uuid(0)))
    it.feedd.stop()
    none = gpu(gpus=1, daemon={"gpus": "none"})
    assert none.feedd.report()["gpus"] == [] and not none.calls_path.exists()
    none.cat_fails("train", words=("gpus: none",))
    none.feedd.stop()
    with pytest.raises(AssertionError, match=f"{uuid(7)} isn't here"):
        gpu(gpus=1, daemon={"gpus": [uuid(7)]})


def test_a_gpu_that_does_not_come_up(gpu):
    it = gpu(gpus=2, env={"FEEDD_FAKE_CUDA_FAIL": "cudaStreamCreateWithFlags:1:cudaErrorDevicesUnavailable"})
    report = it.feedd.wait_report(lambda r: sorted(g["state"] for g in r["gpus"]) == ["down", "up"], what="one up, one down")
    down = next(g for g in report["gpus"] if g["state"] == "down")
    assert "making a context" in down["error"] and "cudaErrorDevicesUnavailable" in down["error"]
    good, bad = ("cuda:1", "cuda:0") if down["gpu"] == uuid(0) else ("cuda:0", "cuda:1")
    it.cat("train", "--batches", 3, device=good)
    it.cat_fails("train", device=bad, words=(down["gpu"], "is down", "cudaErrorDevicesUnavailable"))
    it.feedd.stop()
    it.check_no_leaks()


# ---- budgets ----


def test_budgets(gpu):
    it = gpu(daemon={"gpu_memory_max": "4M", "pinned_max": "3M"})
    reader = it.start_cat("train", "--epochs", 0, "--pause", 20)
    it.feedd.wait_report(lambda r: r["streams"] and r["streams"][0]["state"] == "running", what="a stream")
    line = it.cat_fails("train", "--batch-size", 4096, "--depth", 64, words=("a ring of 64 batches of 4096", "pinned_max are free"))
    assert re.search(r"needs \d+ bytes; \d+ of pinned_max", line)
    second = it.start_cat("train", "--epochs", 0, "--pause", 20)
    it.feedd.wait_report(lambda r: [s["state"] for s in r["streams"]] == ["running"] * 2, what="two streams")
    it.cat_fails("train", words=(f"needs {SLAB} bytes; 0 of gpu_memory_max of GPU-",))
    it.cat("train", "--batches", 2, device="host")
    for process in reader, second:
        process.terminate()
        finish_cat(process)
    it.wait_quiet()
    it.cat("train", "--batches", 2)


def test_out_of_gpu_memory(gpu):
    it = gpu(daemon={"gpu_memory_max": "1G"}, env={"FEEDD_FAKE_GPU_MEMORY": "3M"})
    reader = it.start_cat("train", "--epochs", 0, "--pause", 20)
    it.feedd.wait_report(lambda r: r["streams"] and r["streams"][0]["state"] == "running", what="a stream")
    it.cat_fails("train", words=(uuid(0), f"needs {SLAB} bytes", f"{1 << 20} of {3 << 20} are free"))
    reader.terminate()
    finish_cat(reader)
    it.wait_quiet()


# ---- failures ----

CALLS = {  # of the daemon, until its first batches are out: which of each to fail
    "cudaMalloc": (1,),
    "cudaHostRegister": (1,),
    "cudaEventCreateWithFlags": (1, 4),
    "cudaMemcpyAsync": (1, 2, 5),
    "cudaStreamSynchronize": (1,),
    "cudaIpcGetMemHandle": (1,),
    "cudaEventRecord": (1, 3),
    "cudaEventSynchronize": (1, 3),
    "cudaEventDestroy": (1,),
    "cudaHostUnregister": (1,),
    "cudaFree": (1,),
}
FREEING = ("cudaEventDestroy", "cudaHostUnregister", "cudaFree")


@pytest.mark.parametrize("function, number", [(f, n) for f, numbers in CALLS.items() for n in numbers])
@pytest.mark.parametrize("error", ["cudaErrorInvalidValue", "cudaErrorMemoryAllocation"])
def test_a_call_of_the_daemon_fails(gpu, function, number, error):
    """Only the stream that it was for ends, with one line that says what; the next one works."""
    it = gpu(env={"FEEDD_FAKE_CUDA_FAIL": f"{function}:{number}:{error}"})
    host = it.cat("train", "--batches", 8, device="host")[0]
    before = it.feedd.settled_fd_count()
    if function in FREEING:
        assert it.cat("train", "--batches", 8)[0] == host
        it.feedd.wait_log(error)
    else:
        words = (uuid(0),) if (function, error) == ("cudaMalloc", "cudaErrorMemoryAllocation") else ()
        line = it.cat_fails("train", "--batches", 8, "--depth", 4, words=words)
        assert error in line or "are free" in line or "can't be pinned" in line
    it.wait_quiet()
    if function in FREEING:  # what couldn't be given back is all that is left
        it.feedd.stop()
        assert sum(it.leaks()[it.feedd.pid].values()) == 1
        return
    assert it.cat("train", "--batches", 8)[0] == host
    it.wait_quiet()
    assert it.feedd.settled_fd_count() == before
    it.feedd.stop()
    it.check_no_leaks()


@pytest.mark.parametrize("function", ["cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaSetDevice"])
def test_starting_with_a_failing_call(gpu, function):
    it = gpu(env={"FEEDD_FAKE_CUDA_FAIL": f"{function}:*:cudaErrorUnknown"})
    it.cat("train", "--batches", 2, device="host")
    it.cat_fails("train", words=("GPU",))
    it.feedd.stop()
    it.check_no_leaks()


STICKY = [
    ("cudaMemcpyAsync", 3, "sticky"),
    ("cudaMemcpyAsync", 3, "async"),
    ("cudaMemcpyAsync", 1, "async"),
    ("cudaEventSynchronize", 2, "sticky"),
    ("cudaEventRecord", 2, "sticky"),
    ("cudaMalloc", 1, "sticky"),
    ("cudaHostRegister", 1, "sticky"),
]


@pytest.mark.parametrize("function, number, kind", STICKY)
def test_a_gpu_that_fails_for_good(gpu, function, number, kind):
    """Every client is told, the daemon leaves with an exit code that makes systemd start it again."""
    it = gpu(env={"FEEDD_FAKE_CUDA_FAIL": f"{function}:{number}:cudaErrorIllegalAddress:{kind}"})
    with Client(it.feedd.socket) as idle:
        reader = it.start_cat("train", "--epochs", 0)
        line = parse_failure(finish_cat(reader), "feedd")
        idle.expect_closed(E_DEVICE, "a GPU has failed", uuid(0), "cudaErrorIllegalAddress")
    assert it.feedd.process.wait(20) == 1, line
    assert "leaving: a GPU has failed" in it.feedd.log_text()
    harness.check_output(it.feedd.log.read_bytes(), "feedd")
    assert not it.feedd.socket.exists()
    it.check_no_leaks()


def test_clients_resume_after_the_gpu_failed(gpu, small):
    it = gpu(env={"FEEDD_FAKE_CUDA_FAIL": "cudaMemcpyAsync:9:cudaErrorIllegalAddress:sticky"})
    reader = it.start_cat("train", "--epochs", 3, "--reconnect")
    assert it.feedd.process.wait(20) == 1
    it.feedd.env["FEEDD_FAKE_CUDA_FAIL"] = ""
    it.feedd.start()
    check_batches(parse_cat(finish_cat(reader))[0], plan(1000, 64, "partial", 3), small, {})
    it.wait_quiet()
    it.feedd.stop()
    it.check_no_leaks()


CLIENT_CALLS = {
    "cudaGetDeviceCount": 1,
    "cudaGetDevice": 3,
    "cudaGetDeviceProperties": 1,
    "cudaIpcOpenMemHandle": 1,
    "cudaStreamCreateWithFlags": 3,
    "cudaMemcpyAsync": 3,
    "cudaStreamSynchronize": 3,
    "cudaThreadExchangeStreamCaptureMode": 1,
    "cudaStreamIsCapturing": 2,
    "cudaStreamQuery": 2,
}


@pytest.mark.parametrize("function, numbers", CLIENT_CALLS.items())
def test_a_call_of_the_client_fails(gpu, function, numbers):
    """One clear line; the daemon and other clients notice nothing."""
    it = gpu()
    with contextlib.ExitStack() as stack:
        other = it.start_cat("train", "--epochs", 0, "--pause", 1)
        stack.callback(other.wait)
        stack.callback(other.terminate)
        it.feedd.wait_report(lambda r: r["streams"] and r["streams"][0]["batches"] > 0, what="a stream")
        before = it.feedd.settled_fd_count()
        for number in range(1, numbers + 1):
            it.cat_fails(
                "train", "--batches", 8, "--transport", "ipc",
                words=("cudaErrorUnknown",) if function != "cudaGetDeviceCount" else ("unknown error",),
                FEEDD_FAKE_CUDA_FAIL=f"{function}:{number}:cudaErrorUnknown",
            )  # fmt: skip
            it.feedd.wait_report(lambda r: len(r["streams"]) == 1, what="the other stream alone")
        wait_for(lambda: it.feedd.fd_count() == before, what="the descriptors' return")
        it.feedd.check_running()
    it.wait_quiet()
    it.feedd.stop()
    it.check_no_leaks()


@pytest.mark.parametrize("function", ["cudaEventCreateWithFlags", "cudaEventRecord"])
@pytest.mark.parametrize("number", [2, 4])  # the odd ones are the program's own
def test_a_batch_that_can_not_be_marked(gpu, function, number):
    """Giving back a batch that the GPU still reads fails: it is held on, and closing the stream gives it back."""
    it = gpu()
    env = {**it.client_env, "FEEDD_FAKE_CUDA_FAIL": f"{function}:{number}:cudaErrorUnknown"}
    words = [CLIENT, "late", "train", "--socket", it.feedd.socket, "--batches", "20", "--spin-ms", "20"]
    done = harness.run(words, env=env)
    assert done.returncode == 2 and b"cudaErrorUnknown" in done.stderr
    it.wait_quiet()


# ---- death ----


@pytest.mark.tsan
def test_a_client_that_is_killed_while_its_kernels_run(gpu, small):
    it = gpu()
    options = ("--share", "broadcast", "--group", "g")
    survivor = it.start_cat("train", *options, "--epochs", 0, "--batches", 600)
    it.feedd.wait_report(lambda r: r["streams"] and r["streams"][0]["batches"] > 0, what="a stream")
    words = [CLIENT, "hold", "train", "--socket", it.feedd.socket, "--group", "g", "--spin-ms", "20000"]
    holder = subprocess.Popen(words, env=it.client_env, stdout=subprocess.PIPE)
    assert b"holding" in holder.stdout.readline()
    time.sleep(0.3)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    batches = parse_cat(finish_cat(survivor))[0]
    check_batches(batches, plan(1000, 64, "partial", 40)[:600], small, {})
    it.wait_quiet()
    it.feedd.stop()
    left = {pid: counts for pid, counts in it.leaks().items() if pid != holder.pid and any(counts.values())}
    assert left == {}


def test_the_daemon_is_killed(gpu, small):
    it = gpu()
    reader = it.start_cat("train", "--epochs", 6, "--reconnect", "--pause", 5)
    it.feedd.wait_report(lambda r: r["streams"] and r["streams"][0]["batches"] > 10, what="batches")
    it.feedd.process.send_signal(signal.SIGKILL)
    it.feedd.process.wait()
    it.feedd.start()
    check_batches(parse_cat(finish_cat(reader))[0], plan(1000, 64, "partial", 6), small, {})
    it.wait_quiet()


def test_a_ring_that_was_not_mapped(gpu):
    """The nonce stands in the GPU's memory alone: who guesses it is not attached."""
    it = gpu()
    with Client(it.feedd.socket) as client:
        client.open("train", device=uuid(0), transports=["ipc"])
        packet = client.expect(4)
        assert len(packet.fds) == 1  # the records: no descriptor of the data
        client.send(5, bytes([8, 1, 16, 0]))
        refused = client.expect_refusal(E_PROTOCOL, "without having mapped its ring")
        assert refused.stream == packet.one(2)  # of the stream alone: another transport may do better
    it.wait_quiet()


def test_transports_that_do_not_fit(gpu):
    it = gpu()
    with Client(it.feedd.socket) as client:
        client.open("train", device=uuid(0), transports=["smoke", "mirrors"])
        client.expect_refusal(E_UNSUPPORTED, uuid(0), "none of the 2 transports", "ipc, fd and host")
        client.open("train", device="GPU-nonsense\n", transports=["ipc"])
        client.expect_refusal(E_DEVICE, "doesn't drive GPU")


@pytest.mark.tsan
def test_large_rings_come_and_go_beside_a_stream(gpu, small):
    """Registering and freeing go on in steps, between which the copies of others go on."""
    it = gpu(env={"FEEDD_FAKE_CUDA_DELAY_US": "cudaHostRegister:20000"})
    reader = it.start_cat("train", "--epochs", 30)
    for _ in range(3):
        it.cat("train", "--batch-size", 4096, "--depth", 64, "--batches", 2, "--epochs", 0)
    check_batches(parse_cat(finish_cat(reader))[0], plan(1000, 64, "partial", 30), small, {})
    it.wait_quiet()
    it.feedd.stop()
    it.check_no_leaks()
