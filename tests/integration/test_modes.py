"""Who normalises, by every transport, on the fake CUDA runtime: the same numbers as NumPy's, or a refusal that says why.

NumPy's are worked out in float64 from the pixels of the files; what is a float32 in normalize.h is rounded to one, and
the last rounding is the dtype's."""

import itertools
import os
import signal
import subprocess
import sys

import harness
import numpy as np
import oracle
import pytest
import xxhash
from harness import FEEDCTL, finish_cat, parse_cat, parse_failure, wait_for
from oracle import idx_bytes, plan
from test_access import OTHER, needs_namespaces, needs_root
from test_gpu import FAKE, SLAB, Gpu, uuid
from test_library import python_environment

pytestmark = pytest.mark.skipif(not FAKE.exists(), reason="not built with FEEDD_CUDA=FAKE, for which CUDA's headers are needed")

MODES = ("client", "daemon", "cpu")
TRANSPORTS = ("ipc", "fd", "host")
MEAN, STD = (0.485, 0.456, 0.406, 0.5), (0.229, 0.224, 0.225, 0.25)
OUTPUTS = {  # what is asked for: dtype, layout, mean, std, scale
    "f32": ("float32", "nchw", MEAN, STD, 255),
    "f16": ("float16", "nhwc", MEAN, STD, 255),
    "bf16": ("bfloat16", "nchw", (0.0,) * 4, (1.0,) * 4, 100),
    "i8": ("int8", "nhwc", (0.5,) * 4, (1 / 255,) * 4, 255),
    "u8": ("uint8", "nchw", (0.0,) * 4, (1.0,) * 4, 255),
}
OUTPUT = OUTPUTS["f32"]


# ---- datasets ----


def make(folder, name, count, *shape):
    """A dataset of random pixels; shape: height, width, channels."""
    random = np.random.default_rng(len(name) + sum(shape))
    images, labels = random.integers(0, 256, (count, *shape), np.uint8), random.integers(0, 10, count, np.uint8)
    paths = []
    for kind, array in ("images", images), ("labels", labels):
        paths.append(folder / f"{name}-{kind}")
        paths[-1].write_bytes(idx_bytes(array))
    return oracle.Dataset(*paths)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modes")
    return {
        "rgb": make(folder, "rgb", 100, 7, 9, 3),
        "rgba": make(folder, "rgba", 60, 5, 3, 4),
        "two": make(folder, "two", 60, 4, 6, 2),
        "dot": make(folder, "dot", 60, 1, 1, 1),
        "gray": make(folder, "gray", 60, 3, 5, 1),
        "photo": make(folder, "photo", 9, 223, 225, 3),
    }


@pytest.fixture
def gpu(daemons, sets, small, tiny, folder):
    folder.chmod(0o755)

    def start(**options):
        return Gpu(daemons, {**sets, "small": small, "tiny": tiny}, **options)

    return start


# ---- the oracle ----


def normalised(pixels, output):
    dtype, layout, mean, std, scale = output
    channels = pixels.shape[-1]
    if layout == "nchw":
        pixels = pixels.transpose(0, 3, 1, 2)
    if dtype == "uint8":
        return pixels
    axes = (channels, 1, 1) if layout == "nchw" else (channels,)

    def rounded(values):
        return values.astype(np.float32).astype(np.float64)

    offset = rounded(np.array(mean[:channels]) * scale).reshape(axes)
    factor = rounded(1 / (np.array(std[:channels]) * scale)).reshape(axes)
    values = (rounded(pixels.astype(np.float64) - offset) * factor).astype(np.float32)
    if dtype == "float32":
        return values
    if dtype == "float16":
        return values.astype(np.float16)
    if dtype == "int8":
        return np.clip(np.rint(values), -128, 127).astype(np.int8)
    bits = values.view(np.uint32).astype(np.uint64)  # bfloat16: the upper half, rounded half to even
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def digest(array):
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).tobytes())


def check(batches, dataset, output):
    """These are batches of the dataset, and their images what was asked for."""
    assert batches
    for batch in batches:
        expected = dataset.digests(batch["indices"])
        if output is not None:
            expected["image"] = digest(normalised(dataset.images[batch["indices"]], output))
        assert batch["digests"] == expected, batch["seq"]


def wanted(output):
    if output is None:
        return []
    dtype, layout, mean, std, scale = output
    values = [("--mean", mean), ("--std", std)] if dtype != "uint8" else []
    return ["--dtype", dtype, "--layout", layout, "--scale", scale,
            *itertools.chain.from_iterable((name, ",".join(map(repr, value))) for name, value in values)]  # fmt: skip


def for_channels(output, channels):
    """With as many means as channels, as people write it."""
    return (*output[:2], output[2][:channels], output[3][:channels], output[4])


# ---- every pair ----


@pytest.mark.tsan
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_mode_by_every_transport(gpu, sets, mode, transport):
    it = gpu()
    refused = (mode, transport) == ("daemon", "host")
    for name, source in itertools.product(OUTPUTS, ("rgb", "rgba", "two", "gray", "dot", "photo")):
        dataset, channels = sets[source], sets[source].images.shape[3]
        output = for_channels(OUTPUTS[name], channels)
        args = ("--transport", transport, "--normalize", mode, "--batch-size", 7, "--depth", 5, "--tail", "partial", *wanted(output))
        if refused:
            it.cat_fails(source, *args, words=("normalize = daemon", "transport ipc or fd is needed"))
            continue
        batches, end = it.cat(source, *args)
        check(batches, dataset, output)
        assert sum(batch["count"] for batch in batches) == dataset.count
        nothing = name == "u8" and channels == 1
        assert (end["transport"], end["device"]) == (transport, uuid(0))
        assert end["normalize"] == ("client" if nothing else mode), (name, source)
        assert end["mode_reason"].startswith(f"{transport}: ")
        assert ("nothing to normalise" if nothing else "as it was asked for") in end["mode_reason"]
    it.wait_quiet()
    it.feedd.stop()
    it.check_no_leaks()


def test_every_mode_in_host_memory(gpu, sets):
    it = gpu()
    for name, output in OUTPUTS.items():
        output = for_channels(output, 3)
        for mode in "client", "cpu", "auto":
            batches, end = it.cat("rgb", "--normalize", mode, *wanted(output), device="host")
            check(batches, sets["rgb"], output)
            assert (end["normalize"], end["device"]) == ("client" if mode == "auto" else mode, None), name
        it.cat_fails("rgb", "--normalize", "daemon", *wanted(output), device="host",
                     words=("normalize = daemon is a kernel on a GPU", "normalize = cpu"))  # fmt: skip


@pytest.mark.parametrize("mode", ["auto", *MODES])
def test_nothing_to_normalise(gpu, sets, mode):
    """uint8 as decoded: whoever was asked, batches are what was decoded, and nothing is launched for it."""
    it = gpu()
    for args in (), ("--normalize", mode, *wanted(("uint8", "nhwc", (0,), (1,), 255))):
        batches, end = it.cat("rgb", *args)
        check(batches, sets["rgb"], None)
        assert end["normalize"] == "client" and "nothing to normalise" in end["mode_reason"]
    it.feedd.stop()
    assert it.calls(function="normalize_cuda_launch") == []


def test_the_daemons_kernel_runs_once_a_batch(gpu, sets):
    it = gpu()
    options = ("--normalize", "daemon", "--share", "broadcast", "--members", 3, "--epochs", 2, *wanted(for_channels(OUTPUT, 3)))
    members = [it.start_cat("rgb", *options, "--transport", transport) for transport in ("ipc", "ipc", "ipc")]
    read = [parse_cat(finish_cat(member))[0] for member in members]
    assert read[0] == read[1] == read[2]
    check(read[0], sets["rgb"], for_channels(OUTPUT, 3))
    it.feedd.stop()
    assert len(it.calls(it.feedd.pid, "normalize_cuda_launch")) == len(read[0])
    assert {line[0] for line in it.calls(function="normalize_cuda_launch")} == {str(it.feedd.pid)}
    it.check_no_leaks()


@pytest.mark.tsan
@pytest.mark.parametrize("delays", ["normalize_cuda_launch:5000", "cudaMemcpyAsync:2000"])
def test_the_kernel_is_waited_for(gpu, sets, delays):
    """However long kernels take, or copies: nobody is handed a batch before it is made, no image is overwritten that a
    kernel still reads, and no kernel reads one that isn't there yet."""
    it = gpu(env={"FEEDD_FAKE_CUDA_DELAY_US": delays})
    output = for_channels(OUTPUT, 3)
    for transport in "ipc", "fd":
        batches, _ = it.cat("rgb", "--transport", transport, "--normalize", "daemon", "--batch-size", 4, "--epochs", 2,
                            "--depth", 4, *wanted(output))  # fmt: skip
        check(batches, sets["rgb"], output)


def test_zeroed_and_padded_samples(gpu, sets):
    it = gpu()
    output = for_channels(OUTPUT, 3)
    for mode in MODES:
        batches, _ = it.cat("rgb", "--normalize", mode, "--batch-size", 64, "--tail", "pad", *wanted(output))
        check(batches, sets["rgb"], output)
        assert [batch["valid"] for batch in batches] == [64, 36]


# ---- what is chosen ----


def start(it, source, *args, **env):
    """A reader that goes on, and its stream in the report."""
    reader = it.start_cat(source, "--epochs", 0, "--pause", 5, *args, **env)
    report = it.feedd.wait_report(
        lambda r: r["streams"] and r["streams"][0]["state"] == "running" and r["streams"][0]["batches"] > 4, what="a stream"
    )
    return reader, report["streams"][0]


def end(reader):
    reader.terminate()
    return parse_cat(finish_cat(reader))


@pytest.mark.parametrize("client, daemon, transport, words", [
    ({}, {}, "ipc", ("ipc: the client asked for it and can map it",)),
    ({"FEEDD_FAKE_NO_IPC": "1"}, {}, "fd", ("fd: ", "ipc: ", "cudaErrorMapBufferObjectFailed")),
    ({"FEEDD_FAKE_NO_IPC": "cudaErrorInvalidResourceHandle"}, {}, "fd", ("fd: ", "cudaErrorInvalidResourceHandle")),
    ({"FEEDD_FAKE_NO_IPC": "1"}, {"FEEDD_FAKE_NO_VMM": "1"}, "host", ("host: ", "ipc: ", "cudaErrorMapBufferObjectFailed")),
    ({"FEEDD_FAKE_NO_IPC": "1", "FEEDD_FAKE_NO_VMM": "1"}, {}, "host", ("host: ", "ipc: ", "fd: ")),
    ({"FEEDD_TRANSPORT": "fd"}, {}, "fd", ("fd: the client asked for it and can map it",)),
    ({"FEEDD_TRANSPORT": "host"}, {}, "host", ("host: ",)),
], ids=str)  # fmt: skip
def test_the_transport_that_works(gpu, sets, client, daemon, transport, words):
    """Shown with its reason by the library, by status, and in the table of it."""
    it = gpu(env=daemon)
    output = for_channels(OUTPUT, 3)
    if not daemon:
        client = {"FEEDD_FAKE_NO_VMM": "", **client}
    reader, stream = start(it, "rgb", *wanted(output), **client)
    assert (stream["transport"], stream["device"]) == (transport, uuid(0) if transport != "host" else stream["device"])
    (site,) = stream["sites"]
    assert site["transport"] == transport and all(word in site["reason"] for word in words), site
    text = it.feedctl("status").stdout.decode()
    assert transport in text
    batches, last = end(reader)
    check(batches, sets["rgb"], output)
    assert last["transport"] == transport and last["device"] == uuid(0) and last["normalize"] == "client"
    assert all(word in last["mode_reason"] for word in words) and len(last["mode_reason"]) < 256
    it.wait_quiet()
    it.feedd.stop()
    it.check_no_leaks()


def test_a_transport_that_was_asked_for_and_fails(gpu):
    it = gpu()
    it.cat_fails("rgb", "--transport", "ipc", words=("CUDA IPC", "cudaErrorMapBufferObjectFailed"), FEEDD_FAKE_NO_IPC="1")
    it.cat_fails("rgb", "--transport", "fd", words=("descriptor",), FEEDD_FAKE_NO_VMM="1")
    it.cat_fails("rgb", "--transport", "fd", words=("by its descriptor", "unknown error"),
                 FEEDD_FAKE_CUDA_FAIL="cuMemImportFromShareableHandle:*:CUDA_ERROR_UNKNOWN")  # fmt: skip
    it.cat_fails("rgb", "--transport", "host", words=("cudaErrorNotSupported",),
                 FEEDD_FAKE_CUDA_FAIL="cudaHostRegister:*:cudaErrorNotSupported")  # fmt: skip
    it.cat_fails("rgb", "--transport", "ipc", device="host", words=("ipc", "host"))
    it.cat_fails("rgb", "--transport", "tcp", words=("'tcp'", "allowed are auto, ipc, fd and host"))
    for args in ("--normalize", "gpu"), ("--dtype", "float64"), ("--layout", "hwc"):
        done = it.feedctl("cat", "rgb", "--device", "cuda", *args)
        assert done.returncode == 2 and b"allowed are" in done.stderr, done.stderr
    it.wait_quiet()
    it.feedd.stop()
    it.check_no_leaks()
    old = gpu(env={"FEEDD_FAKE_NO_VMM": "1"})
    old.cat_fails("rgb", "--transport", "fd", words=(uuid(0), "can't share memory by descriptors"))


def test_a_gpu_that_the_daemon_does_not_drive(gpu, sets):
    """Host memory serves it too, when it asks for that first; else it is told."""
    it = gpu(gpus=2, daemon={"gpus": [uuid(0)]})
    batches, last = it.cat("rgb", "--transport", "host", device="cuda:1")
    check(batches, sets["rgb"], None)
    assert (last["transport"], last["device"]) == ("host", uuid(1))
    it.cat_fails("rgb", device="cuda:1", words=(uuid(1), "drives"))
    assert it.cat("rgb", device="auto")[0] == batches
    none = gpu(gpus=1, daemon={"gpus": "none"})
    assert none.cat("rgb", "--transport", "host")[0] == batches


# ---- others ----


@needs_root
@pytest.mark.parametrize("args", [(), ("--transport", "fd"), ("--transport", "host")], ids=str)
def test_another_user(gpu, sets, args):
    """Of the fake runtime's memory another user can't open the handle, as with old drivers; a descriptor it can."""
    it = gpu()
    for path in it.calls_path, it.leaks_path:
        path.touch()
        path.chmod(0o666)
    output = for_channels(OUTPUT, 3)
    done = harness.run(it.feedd.feedctl_command("cat", "rgb", "--json", "--device", "cuda", *args, *wanted(output)),
                       env=it.client_env, user=OTHER, group=OTHER, extra_groups=[])  # fmt: skip
    batches, last = parse_cat(done)
    check(batches, sets["rgb"], output)
    assert last["transport"] == (args[1] if args else "fd") and last["device"] == uuid(0)
    it.wait_quiet()
    it.feedd.stop()
    it.check_no_leaks()


@pytest.mark.parametrize("mode", ["auto", "daemon"])
def test_another_pid_namespace(gpu, sets, folder, mode):
    needs_namespaces()
    it = gpu()
    inside = folder / "inside"
    inside.touch()
    output = for_channels(OUTPUT, 3)
    script = f'mount --bind "{it.feedd.socket}" "{inside}" && exec "$@"'
    command = ["unshare", "-Urpmf", "--mount-proc", "--kill-child", "sh", "-c", script, "sh", FEEDCTL, "--socket", inside,
               "cat", "rgb", "--json", "--device", "cuda", "--normalize", mode, *wanted(output)]  # fmt: skip
    batches, last = parse_cat(harness.run(command, env={**it.client_env, "ASAN_OPTIONS": "detect_leaks=0"}))
    check(batches, sets["rgb"], output)
    assert (last["transport"], last["normalize"]) == ("fd", "client" if mode == "auto" else "daemon")
    assert "ipc: " in last["mode_reason"] and "cudaErrorInvalidResourceHandle" in last["mode_reason"]


# ---- who writes where only reading is meant ----

SCRIBBLE = """
import ctypes, os, signal, sys
sys.path[:0] = sys.argv[1].split(os.pathsep)
import libfeedd
from libfeedd import Client, lib
_, _, path, transport, how, group, fake = sys.argv
cuda = ctypes.CDLL(fake)
stream = Client(path).open("small", device=b"cuda", transport=transport.encode(), share=2, group=group.encode(),
                           batch_size=64, depth=4)
assert stream.schema.transport == transport.encode(), stream.schema.mode_reason
batch = stream.next()
view = libfeedd.view(batch, 0)
print(view.data, flush=True)
sys.stdin.readline()
if how == "host":
    ctypes.memset(view.data, 0xDD, view.bytes)
elif how == "copy":
    print(cuda.cudaMemset(ctypes.c_void_p(view.data), 0xDD, ctypes.c_size_t(view.bytes)), flush=True)
else:
    print(cuda.gpu_fill(ctypes.c_void_p(view.data), ctypes.c_size_t(view.bytes), ctypes.c_uint8(0xDD), None), flush=True)
    print(cuda.cudaDeviceSynchronize(), flush=True)
sys.stdin.readline()
"""


class Scribbler:
    """A member of a group that holds the first batch, and then writes to it."""

    def __init__(self, it, transport, how, group):
        env = {**python_environment(), **{k: v for k, v in it.client_env.items() if k.startswith(("FEEDD", "CUDA"))},
               "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0"}  # fmt: skip
        command = [sys.executable, "-B", "-c", SCRIBBLE, os.path.dirname(__file__), it.feedd.socket, transport, how, group, FAKE]
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, env=env, text=True)  # fmt: skip
        self.said = self.process.stdout.readline().strip()
        assert self.said, self.process.stderr.read()

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def read(self):
        return int(self.process.stdout.readline())

    def kill(self):
        self.process.kill()
        return self.process.communicate()


@pytest.mark.parametrize("how", ["host", "copy", "kernel"])
def test_a_write_through_fd_kills_the_writer_alone(gpu, small, how):
    it = gpu()
    options = ("--share", "broadcast", "--group", "g", "--transport", "fd", "--batch-size", 64, "--depth", 4)
    survivor = it.start_cat("small", *options, "--epochs", 0, "--batches", 200)
    it.feedd.wait_report(lambda r: r["streams"] and r["streams"][0]["batches"] > 0, what="a stream")
    writer = Scribbler(it, "fd", how, "g")
    writer.go()
    if how == "host":
        assert writer.process.wait(20) == -signal.SIGSEGV
    elif how == "copy":
        assert writer.read() == 1  # cudaErrorInvalidValue: it isn't even tried
    else:
        assert (writer.read(), writer.read()) == (0, 700)  # cudaErrorIllegalAddress: its GPU is lost to it
    writer.kill()
    batches = parse_cat(finish_cat(survivor))[0]
    check(batches, small, None)
    assert len(batches) == 200
    it.feedd.check_running()
    it.wait_quiet()


def test_a_poisoned_slot_is_never_seen_by_a_survivor(gpu, small):
    """By ipc members can write: who holds a batch alone, spoils it and is killed leaves a slot that is made anew."""
    it = gpu()
    options = ("--share", "broadcast", "--group", "g", "--transport", "ipc", "--batch-size", 64, "--depth", 4)
    survivor = it.start_cat("small", *options, "--epochs", 0, "--batches", 300, "--pause", 1)
    it.feedd.wait_report(lambda r: r["streams"] and r["streams"][0]["batches"] > 0, what="a stream")
    for _ in range(3):
        writer = Scribbler(it, "ipc", "kernel", "g")
        # The ring stands still: all is the writer's, and given back by the survivor, which must not have it spoilt.
        wait_for(lambda: leases(it) == {survivor.pid: 0, writer.process.pid: 4}, what="the ring's standstill")
        writer.go()
        assert (writer.read(), writer.read()) == (0, 0)
        writer.kill()
    batches = parse_cat(finish_cat(survivor))[0]
    check(batches, small, None)
    assert [batch["seq"] for batch in batches] == list(range(batches[0]["seq"], batches[0]["seq"] + 300))
    it.wait_quiet()


def leases(it):
    """{pid: slots that its client holds, or hasn't taken yet}"""
    return {client["pid"]: sum(s["held"] for s in client["streams"]) for client in it.feedd.report()["clients"]}


# ---- one group, several places ----


def sites(report):
    return {(site["transport"], site["device"]): site for site in report["streams"][0]["sites"]}


@pytest.mark.tsan
@pytest.mark.parametrize("mode", ["client", "cpu"])
def test_one_group_on_two_gpus_and_the_host(gpu, sets, mode):
    """One decode, one copy to each GPU; one that dies doesn't hold up the others."""
    it = gpu(gpus=2)
    output = for_channels(OUTPUT, 3)
    options = ("--share", "broadcast", "--batch-size", 16, "--normalize", mode, "--tail", "partial", *wanted(output))
    gate = ("--members", 3, "--epochs", 6)
    first = it.start_cat("rgb", *options, *gate, CUDA_VISIBLE_DEVICES="0")
    second = it.start_cat("rgb", *options, *gate, CUDA_VISIBLE_DEVICES="1")
    third = parse_cat(it.feedctl("cat", "rgb", "--json", "--device", "host", *options, *gate))[0]
    read = [parse_cat(finish_cat(reader))[0] for reader in (first, second)]
    assert read[0] == read[1] == third
    check(third, sets["rgb"], output)
    assert len(third) == 6 * 7
    it.wait_quiet()
    copies = [g["copies"] for g in it.feedd.report()["gpus"]]
    assert copies == [len(third)] * 2
    it.feedd.stop()
    copied = it.calls(it.feedd.pid, "cudaMemcpyAsync", kind="H2D")
    assert len(copied) == 2 * len(third) + 2  # and the two nonces
    it.check_no_leaks()


def test_status_of_several_sites(gpu, sets):
    it = gpu(gpus=2)
    output = for_channels(OUTPUT, 3)
    options = ("--share", "broadcast", "--batch-size", 16, "--epochs", 0, "--pause", 2, "--normalize", "cpu", *wanted(output))
    first = it.start_cat("rgb", *options, "--members", 3, CUDA_VISIBLE_DEVICES="0")
    second = it.start_cat("rgb", *options, "--members", 3, "--transport", "fd", CUDA_VISIBLE_DEVICES="1")
    third = it.feedd.start_cat("rgb", *options, "--members", 3, "--device", "host")
    report = it.feedd.wait_report(
        lambda r: r["streams"] and [s["copies"] >= 16 for s in sites(r).values() if s["transport"] != "host"] == [True] * 2,
        what="copies to both GPUs",
    )
    (stream,) = report["streams"]
    assert stream["normalize"] == "cpu" and "as it was asked for" in stream["normalize_reason"]
    assert stream["output"] == {"dtype": "f32", "layout": "nchw", "mean": list(MEAN[:3]), "std": list(STD[:3]), "scale": 255.0}
    places = sites(report)
    assert set(places) == {("ipc", uuid(0)), ("fd", uuid(1)), ("host", None)}
    slots = stream["slot_bytes"] * stream["depth"]
    for (transport, _), site in places.items():
        assert site["members"] == site["attached"] == 1 and site["reason"].startswith(f"{transport}: ")
        assert site["gpu_bytes"] == (0 if transport == "host" else -(-(slots + 4096) // SLAB) * SLAB)
        if transport == "host":
            assert site["copies"] == 0
        else:
            assert site["copied_bytes"] > site["copies"] * 15 * (7 * 9 * 3 * 4 + 8 + 8)
    assert stream["gpu_bytes"] == sum(site["gpu_bytes"] for site in places.values())
    assert [g["ring_bytes"] for g in report["gpus"]] == [places["ipc", uuid(0)]["gpu_bytes"], places["fd", uuid(1)]["gpu_bytes"]]
    assert uuid(1) in it.feedctl("status").stdout.decode()

    first.kill()  # the others go on
    first.wait()
    report = it.feedd.wait_report(lambda r: len(r["streams"][0]["sites"]) == 2, what="its site's end")
    assert report["gpus"][0]["ring_bytes"] == 0 and set(sites(report)) == {("fd", uuid(1)), ("host", None)}
    batches = report["streams"][0]["batches"]
    it.feedd.wait_report(lambda r: r["streams"][0]["batches"] > batches + 20, what="more batches")
    again = it.start_cat("rgb", *options, "--members", 3, "--join", "now", CUDA_VISIBLE_DEVICES="0", FEEDD_FAKE_NO_IPC="1")
    it.feedd.wait_report(lambda r: ("fd", uuid(0)) in sites(r) and sites(r)["fd", uuid(0)]["copies"] > 5, what="a new site")
    for reader in again, second, third:
        check(end(reader)[0], sets["rgb"], output)
    it.wait_quiet()


def test_a_group_agrees(gpu):
    """In mode and output, when the daemon makes what slots hold; else not."""
    it = gpu()
    share = ("--share", "broadcast", "--group", "g", "--epochs", 0, "--pause", 5)
    daemon = (*share, "--normalize", "daemon")
    reader, _ = start(it, "rgb", *daemon, *wanted(for_channels(OUTPUT, 3)))
    for name, words in (("f16", ("output.dtype",)), ("f32", ("output.mean",))):
        output = for_channels(OUTPUTS[name], 3)
        if name == "f32":
            output = (*output[:2], (0.1, 0.2, 0.3), *output[3:])
        it.cat_fails("rgb", *daemon, *wanted(output), words=words)
    it.cat_fails("rgb", *share, "--normalize", "cpu", *wanted(for_channels(OUTPUT, 3)), words=("normalize",))
    it.cat_fails("rgb", *daemon, *wanted(for_channels(OUTPUT, 3)), device="host", words=("normalize = daemon is a kernel on a GPU",))
    end(reader)
    it.wait_quiet()
    reader, _ = start(it, "rgb", *share, *wanted(for_channels(OUTPUT, 3)))
    other = it.start_cat("rgb", *share, *wanted(for_channels(OUTPUTS["i8"], 3)))
    it.feedd.wait_report(lambda r: r["streams"][0]["members"] == 2, what="both")
    end(other)
    end(reader)


def test_a_site_that_does_not_fit_is_refused_alone(gpu, sets):
    it = gpu(gpus=2, daemon={"gpu_memory_max": "4M"})
    share = ("--share", "broadcast", "--group", "g", "--epochs", 0, "--pause", 5)
    reader, _ = start(it, "rgb", *share, CUDA_VISIBLE_DEVICES="0")
    others = [start(it, "tiny", CUDA_VISIBLE_DEVICES="1")[0], it.start_cat("tiny", "--epochs", 0, "--pause", 5, CUDA_VISIBLE_DEVICES="1")]
    it.feedd.wait_report(lambda r: r["gpus"][1]["ring_bytes"] == 2 * SLAB, what="a full GPU")
    it.cat_fails("rgb", *share, words=("0 of gpu_memory_max of GPU-",), CUDA_VISIBLE_DEVICES="1")
    report = it.feedd.report()
    group = next(stream for stream in report["streams"] if stream["dataset"] == "rgb")
    assert group["state"] == "running" and len(group["sites"]) == 1
    for process in reader, *others:
        end(process)
    it.wait_quiet()
    assert it.feedd.report()["gpus"][1]["ring_bytes"] == 0


# ---- failures ----

DAEMON_CALLS = {  # by transport and mode: which call of each to fail
    ("fd", "client"): {
        "cuMemGetAllocationGranularity": (1,), "cuMemCreate": (1,), "cuMemAddressReserve": (1,), "cuMemMap": (1,),
        "cuMemSetAccess": (1,), "cuMemExportToShareableHandle": (1,), "cudaMemcpyAsync": (1, 2),
    },
    ("ipc", "daemon"): {
        "cudaMalloc": (1, 2), "normalize_cuda_launch": (1, 4), "cudaStreamWaitEvent": (1, 5), "cudaEventRecord": (1, 2, 6),
        "cudaEventCreateWithFlags": (1, 3, 6), "cudaMemcpyAsync": (1, 2, 3, 6),
    },
    ("fd", "daemon"): {"cudaMalloc": (1,), "cuMemCreate": (1,), "cuMemMap": (1,)},
    ("host", "cpu"): {},
}  # fmt: skip
FREEING = {("fd", "client"): ("cuMemUnmap", "cuMemAddressFree", "cuMemRelease"), ("ipc", "daemon"): ("cudaFree",)}


@pytest.mark.parametrize("transport, mode, function, number", [
    (*pair, function, number) for pair, calls in DAEMON_CALLS.items() for function, numbers in calls.items() for number in numbers
])  # fmt: skip
def test_a_call_of_the_daemon_fails(gpu, sets, transport, mode, function, number):
    """The member that it was for is told in one line, and what follows works."""
    error = "CUDA_ERROR_INVALID_VALUE" if function.startswith("cuMem") else "cudaErrorInvalidValue"
    it = gpu(env={"FEEDD_FAKE_CUDA_FAIL": f"{function}:{number}:{error}"})
    output = for_channels(OUTPUT, 3)
    args = ("--batch-size", 8, "--depth", 4, "--transport", transport, "--normalize", mode, *wanted(output))
    line = it.cat_fails("rgb", *args)
    assert "CUDA_ERROR_INVALID_VALUE" in line or "cudaErrorInvalidValue" in line or "invalid argument" in line, line
    it.wait_quiet()
    check(it.cat("rgb", *args)[0], sets["rgb"], output)
    it.wait_quiet()
    it.feedd.stop()
    it.check_no_leaks()


@pytest.mark.parametrize("transport, mode, function", [(*pair, function) for pair, names in FREEING.items() for function in names])
def test_giving_back_fails(gpu, sets, transport, mode, function):
    """What couldn't be given back is said, and is all that is left."""
    it = gpu(env={"FEEDD_FAKE_CUDA_FAIL": f"{function}:1:{'CUDA_ERROR_UNKNOWN' if function.startswith('cuMem') else 'cudaErrorUnknown'}"})
    output = for_channels(OUTPUT, 3)
    check(it.cat("rgb", "--transport", transport, "--normalize", mode, *wanted(output))[0], sets["rgb"], output)
    it.feedd.wait_log("rror")
    it.feedd.wait_report(lambda r: not r["streams"], what="the stream's end")
    check(it.cat("rgb", "--transport", transport, "--normalize", mode, *wanted(output))[0], sets["rgb"], output)
    it.feedd.stop()
    left = it.leaks()[it.feedd.pid]
    assert 1 <= sum(left.values()) <= 3, left


def test_out_of_memory_by_descriptor(gpu):
    it = gpu(daemon={"gpu_memory_max": "1G"}, env={"FEEDD_FAKE_GPU_MEMORY": "3M"})
    reader, _ = start(it, "rgb", "--transport", "fd")
    it.cat_fails("rgb", "--transport", "fd", words=(uuid(0), f"{SLAB} bytes", f"{1 << 20} of {3 << 20} are free"))
    end(reader)
    it.wait_quiet()


CLIENT_CALLS = {
    "ipc": {"cudaIpcOpenMemHandle": 1},
    "fd": {
        "cudaGetDriverEntryPointByVersion": 4, "cuMemImportFromShareableHandle": 1, "cuMemAddressReserve": 1, "cuMemMap": 1,
        "cuMemSetAccess": 1,
    },
    "host": {"cudaHostRegister": 1},
}  # fmt: skip


def has_entry_point_by_version():
    return b"cudaGetDriverEntryPointByVersion" in FAKE.read_bytes()


@pytest.mark.parametrize("transport, function, number", [
    (transport, function, number + 1) for transport, calls in CLIENT_CALLS.items() for function, count in calls.items()
    for number in range(count)
])  # fmt: skip
def test_a_call_of_the_client_fails(gpu, sets, transport, function, number):
    """When the transport was asked for: one line; else the next one that works. Nothing stays behind."""
    if function.startswith("cudaGetDriver") and not has_entry_point_by_version():
        function = "cudaGetDriverEntryPoint"
    it = gpu()
    error = "CUDA_ERROR_OPERATING_SYSTEM" if function.startswith("cuMem") else "cudaErrorOperatingSystem"
    fail = {"FEEDD_FAKE_CUDA_FAIL": f"{function}:{number}:{error}"}
    before = it.feedd.settled_fd_count()
    done = it.feedctl("cat", "rgb", "--device", "cuda", "--transport", transport, **fail)
    assert [line[-1] for line in it.calls(function=function)].count(error) == 1
    parse_failure(done, "OS call failed")
    prefix = "" if transport == "ipc" else "cudaIpcOpenMemHandle:*:cudaErrorMapBufferObjectFailed,"
    if transport != "host":
        batches, last = it.cat("rgb", FEEDD_FAKE_CUDA_FAIL=prefix + fail["FEEDD_FAKE_CUDA_FAIL"])
        check(batches, sets["rgb"], None)
        assert last["transport"] == {"ipc": "fd", "fd": "host"}[transport]
    it.wait_quiet()
    wait_for(lambda: it.feedd.fd_count() == before, what="the descriptors' return")
    it.feedd.stop()
    it.check_no_leaks()


@pytest.mark.parametrize("transport, mode", [pair for pair in itertools.product(TRANSPORTS, MODES) if pair != ("host", "daemon")])
def test_after_a_restart(gpu, sets, transport, mode):
    """The same transport and mode, and no batch missed or repeated."""
    it = gpu()
    output = for_channels(OUTPUT, 3)
    reader = it.start_cat("rgb", "--epochs", 30, "--batch-size", 16, "--reconnect", "--pause", 2, "--transport", transport,
                          "--normalize", mode, *wanted(output))  # fmt: skip
    it.feedd.wait_report(lambda r: r["streams"] and r["streams"][0]["batches"] > 10, what="batches")
    it.feedd.process.send_signal(signal.SIGKILL)
    it.feedd.process.wait()
    it.feedd.start()
    batches, last = parse_cat(finish_cat(reader))
    check(batches, sets["rgb"], output)
    assert [(b["epoch"], b["position"]) for b in batches] == [(p.epoch, p.position) for p in plan(100, 16, "drop", 30)]
    assert (last["transport"], last["normalize"]) == (transport, mode)
    it.wait_quiet()
