"""feedctl bench transfer, dtypes and memory: the figures fit together and fit what was really copied, all three forms
say the same, and what can't be measured says why. GPUs by way of the fake CUDA runtime (tests/fake_cuda)."""

import contextlib
import csv
import io
import json
import math
import os
import pty
import re
import shutil
import subprocess
import termios
import time
import xml.etree.ElementTree
from pathlib import Path

import harness
import pytest
from harness import ENVIRONMENT, FEEDCTL, check_output, run, wait_for
from PIL import Image

FAKE = harness.BUILD / "tests" / "fake_cuda" / "libfake_cudart.so"
NO_GPU = {**ENVIRONMENT, "FEEDD_FAKE_GPUS": "0"}
GPU = {**ENVIRONMENT, "FEEDD_FAKE_GPUS": "1"}
ELEMENT_BYTES = {"u8": 1, "i8": 1, "f16": 2, "bf16": 2, "f32": 4}
MIB = 1 << 20

needs_fake = pytest.mark.skipif(not FAKE.exists(), reason="not built with FEEDD_CUDA=FAKE, which needs CUDA's headers")
needs_gnuplot = pytest.mark.skipif(shutil.which("gnuplot") is None, reason="gnuplot is missing (Debian: gnuplot-nox)")


def bench(*words, env=GPU, code=0):
    done = run([FEEDCTL, "bench", *words], env=env)
    assert done.returncode == code, done.stderr.decode()
    assert code == 2 or done.stderr == b""
    return done.stdout.decode()


def bench_json(*words, env=GPU):
    return json.loads(bench(*words, "--json", env=env))


def elements(shape):
    return math.prod(int(n) for n in shape.split("x"))


def decimals(column):
    """How many digits follow the point, as the columns are documented."""
    return 1 if column.endswith("_us") else 2 if column.endswith(("_per_s", "speedup")) else 0


def near(printed, numerator, denominator, unit=1.0, places=2):
    """Whether `printed` is numerator / denominator * unit, both of which are (value, how it was rounded)."""
    (n, dn), (d, dd) = numerator, denominator
    slack = 0.5000001 * 10**-places
    low = (n - dn) / (d + dd) * unit - slack
    high = (n + dn) / (d - dd) * unit + slack if d > dd else math.inf
    return low <= printed <= high


def us(row, column):
    return row[column], 0.05


# --- transfer ---

SHAPES = "1x28x28", "3x40x56", "4x3x16x16"
BATCHES = 2, 8


@needs_fake
def test_transfer_arithmetic():
    report = bench_json("transfer", "--batch", "2,8", "--shape", ",".join(SHAPES), "--repeat", "5")
    assert report["command"] == "transfer"
    assert report["parameters"]["batch"] == list(BATCHES) and report["parameters"]["shape"] == list(SHAPES)
    assert report["parameters"]["repeat"] == 5
    assert report["machine"]["gpu"]["name"] == "Fake GPU 0"
    assert report["machine"]["gpu"]["uuid"] == "GPU-feedd000-fa4e-4000-8000-000000000000"
    rows = report["rows"]
    assert [(r["shape"], r["batch"], r["memory"], r["mode"]) for r in rows] == [
        (shape, batch, memory, mode)
        for shape in SHAPES
        for batch in BATCHES
        for memory in ("pinned", "pageable")
        for mode in ("serial", "pipelined")
    ]
    for row in rows:
        assert "absent" not in row and all(row[c["name"]] is not None for c in report["columns"])
        size = row["batch"] * elements(row["shape"])
        assert row["client_bytes"] == size and row["traditional_bytes"] == 4 * size
        for way in "traditional", "client":
            assert near(row[f"{way}_gb_per_s"], (row[f"{way}_bytes"], 0), us(row, f"{way}_copy_us"), 1e-3)
            assert near(row[f"{way}_samples_per_s"], (row["batch"], 0), us(row, f"{way}_total_us"), 1e6, places=0)
        assert near(row["speedup"], us(row, "traditional_total_us"), us(row, "client_total_us"))
        assert near(row["daemon_speedup"], us(row, "traditional_total_us"), us(row, "daemon_total_us"))
        assert near(row["copy_speedup"], us(row, "traditional_copy_us"), us(row, "client_copy_us"))


@needs_fake
def test_transfer_copies_what_it_says(folder):
    """The runtime's own account: sizes of all copies, how often each, by which process, and nothing left behind."""
    env = {**GPU, "FEEDD_FAKE_CUDA_LOG": str(folder / "calls"), "FEEDD_FAKE_CUDA_LEAKS": str(folder / "leaks")}
    bench("transfer", "--batch", "8", "--shape", "3x40x56", "--repeat", "5", env=env)
    calls = [line.split() for line in (folder / "calls").read_text().splitlines()]
    copies = [c for c in calls if c[2] == "cudaMemcpyAsync"]
    assert all("kind=H2D" in c for c in copies)
    of_size = lambda size: [c for c in copies if f"bytes={size}" in c]
    pixels, floats = of_size(8 * 3 * 40 * 56), of_size(4 * 8 * 3 * 40 * 56)
    assert len(pixels) + len(floats) == len(copies)
    parent = floats[0][0]
    daemon = [c for c in pixels if c[0] != parent]
    assert {c[0] for c in floats} == {parent} and len({c[0] for c in daemon}) == 1
    # Of each kind of memory: serial 2 to warm up, 5 and 5; pipelined 3 to fill the ring and 5, twice.
    assert len(floats) == len(pixels) - len(daemon) == 2 * (2 + 5 + 5 + 2 * (3 + 5))
    assert len(daemon) == 2 * 2 * (3 + 5)
    kernels = [c for c in calls if c[2] == "normalize_cuda_launch"]
    assert len(kernels) == len(pixels) and all(c[-1] == "cudaSuccess" for c in calls)
    assert len([c for c in calls if c[2] == "cudaHostRegister"]) == 2 + 2  # pixels and floats here, pixels there, twice
    for line in (folder / "leaks").read_text().splitlines():
        assert re.fullmatch(r"\d+( \w+=0)+", line), line


@needs_fake
def test_transfer_times(folder):
    """With copies that take 20 ms and kernels that take 30: what is added up, and what overlaps."""
    env = {**GPU, "FEEDD_FAKE_CUDA_DELAY_US": "cudaMemcpyAsync:20000,normalize_cuda_launch:30000"}
    report = bench_json("transfer", "--batch", "2", "--shape", "1x8x8", "--repeat", "6", env=env)
    for row in report["rows"]:
        if row["memory"] == "pageable":
            continue  # such a copy holds its caller up
        assert 20e3 <= row["traditional_copy_us"] < 29e3 and 20e3 <= row["client_copy_us"] < 29e3
        assert 30e3 <= row["client_kernel_us"] < 39e3
        assert 20e3 <= row["traditional_total_us"] < 29e3  # the CPU's work takes microseconds
        least = 50e3 if row["mode"] == "serial" else 30e3
        assert least <= row["client_total_us"] < least + 14e3 and least <= row["daemon_total_us"] < least + 14e3


@needs_fake
def test_transfer_cpu_time_overlaps():
    """In a pipeline the CPU's work and the copy go on at once; one after the other they add up. On a busy machine it may
    take a few tries to see it."""
    env = {**GPU, "FEEDD_FAKE_CUDA_DELAY_US": "cudaMemcpyAsync:3000"}
    for _ in range(5):
        report = bench_json("transfer", "--batch", "16", "--shape", "3x224x224", "--repeat", "20", env=env)
        serial, pipelined = (r for r in report["rows"] if r["memory"] == "pinned")
        assert serial["traditional_total_us"] > serial["traditional_cpu_us"] + 3e3
        assert pipelined["traditional_total_us"] >= 3e3
        if pipelined["traditional_total_us"] < pipelined["traditional_cpu_us"] + pipelined["traditional_copy_us"]:
            break
    else:
        if os.getloadavg()[0] > os.cpu_count():
            pytest.skip(f"the machine is too busy to see it: a load of {os.getloadavg()[0]} on {os.cpu_count()} cores")
        pytest.fail("the CPU's work has not overlapped the copies")


@needs_fake
def test_transfer_gpu_memory():
    """What is too large for the GPU is a row that says so; the others are measured."""
    env = {**GPU, "FEEDD_FAKE_GPU_MEMORY": "1M"}
    report = bench_json("transfer", "--batch", "2,64", "--shape", "3x40x56", "--repeat", "5", env=env)
    for row in report["rows"]:
        if row["batch"] == 2:
            assert "absent" not in row
            continue
        assert row["traditional_bytes"] == 64 * 3 * 40 * 56 * 4 and row["client_bytes"] == 64 * 3 * 40 * 56
        empty = {name for name, value in row.items() if value is None}
        assert empty == set(row["absent"]) and {"traditional_total_us", "daemon_total_us", "speedup"} <= empty
        assert all(reason.startswith("GPU out of memory: ") for reason in row["absent"].values())


@needs_fake
@pytest.mark.parametrize(
    "fail, words",
    [
        ("cudaMemcpyAsync:20:719:sticky", "unspecified launch failure"),
        ("normalize_cuda_launch:9:719:async", "unspecified launch failure"),
        ("cudaIpcOpenMemHandle:1:400", "opening another process' memory"),
        ("cudaIpcGetMemHandle:1:400", "sharing memory of the GPU"),
        ("cudaHostRegister:3:304", "pinning host memory"),
        ("cudaEventCreateWithFlags:9:2", "an event"),
    ],
)
def test_transfer_failing_gpu(folder, fail, words):
    env = {**GPU, "FEEDD_FAKE_CUDA_FAIL": fail, "FEEDD_FAKE_CUDA_LEAKS": str(folder / "leaks")}
    report = bench_json("transfer", "--batch", "4,8", "--shape", "3x16x16", "--repeat", "6", env=env)
    assert len(report["rows"]) == 8
    reasons = {reason for row in report["rows"] for reason in row.get("absent", {}).values()}
    assert any(words in reason for reason in reasons), reasons
    for line in (folder / "leaks").read_text().splitlines():
        assert re.fullmatch(r"\d+( \w+=0)+", line), line


def ended(pid):
    """Gone, or waiting for whoever has inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@needs_fake
def test_transfer_killed(folder):
    """The second process ends with the first."""
    env = {**GPU, "FEEDD_FAKE_CUDA_LOG": str(folder / "calls"), "FEEDD_FAKE_CUDA_DELAY_US": "cudaMemcpyAsync:5000"}
    command = [str(FEEDCTL), "bench", "transfer", "--batch", "2", "--shape", "1x8x8", "--seconds", "0.3"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:

            def second():
                calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
                return {int(line.split()[0]) for line in calls} - {process.pid}

            (pid,) = wait_for(second, 30, "the second process' first call")
            process.kill()
            wait_for(lambda: ended(pid), 10, "the second process' end")
        finally:
            process.kill()


def test_second_process_alone():
    assert bench("--peer") == ""


def check_no_gpu(report, command):
    assert report["command"] == command and report["machine"]["gpu"] is None and report["machine"]["gpu_reason"]
    reasons = {reason for row in report["rows"] for reason in row["absent"].values()}
    assert reasons == {"no GPU: " + report["machine"]["gpu_reason"]}


def test_no_gpu():
    """The host's part, and why there is no other."""
    words = "--batch", "2,8", "--shape", "3x40x56"
    report = bench_json("transfer", *words, "--repeat", "5", "--threads", "3", env=NO_GPU)
    check_no_gpu(report, "transfer")
    assert [(r["batch"], r["memory"], r["mode"]) for r in report["rows"]] == [(b, "pageable", "serial") for b in (2, 8)]
    for row in report["rows"]:
        assert row["traditional_cpu_us"] > 0
        assert row["traditional_bytes"] == 4 * row["client_bytes"] == 4 * row["batch"] * 3 * 40 * 56
        assert set(row["absent"]) == {name for name, value in row.items() if value is None}
        assert {"traditional_total_us", "client_total_us", "speedup"} <= set(row["absent"])
    assert any("3 threads" in note for note in report["notes"])
    assert "Each time is of 5 runs." in report["notes"]

    report = bench_json("dtypes", *words, env=NO_GPU)
    check_no_gpu(report, "dtypes")
    assert [r["pcie_bytes"] for r in report["rows"][:4]] == [2 * 3 * 40 * 56 * n for n in (1, 1, 2, 4)]

    report = bench_json("memory", *words, "--depth", "4", env=NO_GPU)
    check_no_gpu(report, "memory")
    assert all(row["host_measured_bytes"] == row["host_bytes"] for row in report["rows"])


# --- dtypes, memory ---


@needs_fake
def test_dtypes(folder):
    env = {**GPU, "FEEDD_FAKE_CUDA_LOG": str(folder / "calls")}
    report = bench_json("dtypes", "--batch", "8", "--shape", "3x40x56", "--repeat", "5", env=env)
    rows = report["rows"]
    names = "u8", "i8", "f16", "f32"
    assert [(r["shipped"], r["delivered"]) for r in rows] == [(n, n) for n in names] + [("u8", n) for n in names[1:]]
    direct = {row["delivered"]: row for row in rows[:4]}
    for row in rows:
        assert row["pcie_bytes"] == 8 * 3 * 40 * 56 * ELEMENT_BYTES[row["shipped"]]
        assert near(row["gb_per_s"], (row["pcie_bytes"], 0), us(row, "copy_us"), 1e-3)
        assert near(row["speedup"], us(direct[row["delivered"]], "total_us"), us(row, "total_us"))
        assert (row["kernel_us"] is None) == (row["shipped"] == row["delivered"])
    calls = (folder / "calls").read_text()
    for size in {row["pcie_bytes"] for row in rows}:
        assert f"bytes={size} " in calls
    assert calls.count("normalize_cuda_launch") == 3 * (2 + 5 + 5)


def up(value, multiple):
    return -(-value // multiple) * multiple


def expected_memory(shape, batch, depth, dtype):
    """DESIGN.md's rings, computed anew: slots of whole pages, a page behind them, GPU memory in pieces of 2 MiB."""
    size = batch * elements(shape)
    floats = size * ELEMENT_BYTES[dtype]
    slot, float_slot = up(size, 4096), up(floats, 4096)
    ring, float_ring = slot * depth + 4096, float_slot * depth + 4096
    return {
        # over PCIe, host, slots, scratch, output
        "traditional": (floats, float_slot * depth, 0, 0, floats),
        "cpu": (floats, float_ring, up(float_ring, 2 * MIB), 0, 0),
        "client": (size, ring, up(ring, 2 * MIB), 0, floats),
        "daemon": (size, ring, up(float_ring, 2 * MIB), up(3 * slot, 2 * MIB), 0),
    }


@needs_fake
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("shape, batch, depth", [("1x28x28", 100, None), ("3x64x48", 256, None), ("4x3x16x16", 7, 5)])
def test_memory(shape, batch, depth, dtype):
    words = ("--depth", depth) if depth else ()
    report = bench_json("memory", "--batch", batch, "--shape", shape, "--dtype", dtype, *words,
                        env={**GPU, "FEEDD_FAKE_GPU_MEMORY": "2G"})  # fmt: skip
    slot = up(batch * elements(shape), 4096)
    depth = depth or min(max(64 * MIB // slot, 4), 64)
    expected = expected_memory(shape, batch, depth, dtype)
    assert [row["way"] for row in report["rows"]] == list(expected)
    for row in report["rows"]:
        pcie, host, slots, scratch, output = expected[row["way"]]
        assert row["depth"] == depth
        assert (row["pcie_bytes"], row["host_bytes"]) == (pcie, host)
        assert (row["gpu_slot_bytes"], row["gpu_scratch_bytes"], row["gpu_output_bytes"]) == (slots, scratch, output)
        assert row["gpu_bytes"] == slots + scratch + output == row["gpu_measured_bytes"]
        assert row["host_measured_bytes"] == host


def test_memory_larger_than_the_machine():
    """It is computed all the same."""
    report = bench_json("memory", "--batch", "65536", "--shape", "3x224x224", "--depth", "64", env=NO_GPU)
    row = report["rows"][0]
    assert row["host_bytes"] == 65536 * 3 * 224 * 224 * 4 * 64 and row["host_measured_bytes"] is None
    assert row["absent"]["host_measured_bytes"].startswith("host out of memory: ")


# --- forms ---


def read_text(text, report):
    """The rows of the text table, by column; there is one part."""
    lines = text.splitlines()
    assert lines[0].startswith(f"feedctl bench {report['command']}, ") and "2 cores" not in lines[2]
    names = [c["name"] for c in report["columns"]]
    return [dict(zip(names, line.split(), strict=True)) for line in lines[6 : 6 + len(report["rows"])]]


@pytest.mark.parametrize("env", [NO_GPU, pytest.param(GPU, marks=needs_fake)])
def test_forms_agree(env):
    """All that memory says is the same in every run."""
    words = "memory", "--batch", "3,16", "--shape", "3x40x56,1x28x28", "--depth", "4"
    report = bench_json(*words, env=env)
    text = bench(*words, env=env)
    rows = list(csv.DictReader(io.StringIO(bench(*words, "--csv", env=env)), strict=True))
    shown = read_text(text, report)
    assert len(rows) == len(shown) == len(report["rows"]) == 16
    for row, in_text, of_json in zip(rows, shown, report["rows"], strict=True):
        reasons = of_json.get("absent", {})
        assert row.pop("absent") == "; ".join(dict.fromkeys(reasons.values()))
        assert list(row) == [c["name"] for c in report["columns"]]
        for name, value in row.items():
            assert value == ("" if of_json[name] is None else str(of_json[name]))
            assert in_text[name] == ("(a)" if name in reasons else value)
    for reason in {r for row in report["rows"] for r in row.get("absent", {}).values()}:
        assert f"\n(a) {reason}" in text
    squeezed = " ".join(text.split())
    assert report["notes"] and all(" ".join(note.split()) in squeezed for note in report["notes"])


@needs_fake
def test_csv_of_reasons():
    """Commas and quotes come through, and numbers have as many digits as in JSON."""
    env = {**GPU, "FEEDD_FAKE_GPU_MEMORY": "1M"}
    out = bench("transfer", "--batch", "2,64", "--shape", "3x40x56", "--repeat", "5", "--csv", env=env)
    assert "\r" not in out
    rows = list(csv.DictReader(io.StringIO(out), strict=True))
    assert len(rows) == 8 and all(None not in row and None not in row.values() for row in rows)
    assert [row["absent"] != "" for row in rows] == [False] * 4 + [True] * 4
    assert re.fullmatch(r"GPU out of memory: \d+ bytes more, \d+ of 1048576 are free", rows[4]["absent"])
    for row in rows[:4]:
        for name, value in row.items():
            if name.endswith(("_us", "_gb_per_s", "speedup")):
                assert re.fullmatch(rf"\d+\.\d{{{decimals(name)}}}", value), (name, value)


@needs_fake
def test_text_is_readable():
    """What an operator's terminal can show, and the units of all columns."""
    text = bench("transfer", "--batch", "2,8", "--shape", "1x28x28,3x40x56", "--repeat", "5")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 160
    assert "Fake GPU 0 (driver for CUDA " in lines[1]
    heads = [i for i, line in enumerate(lines) if line.startswith("shape ")]
    assert len(heads) == 2  # two parts
    for i in heads:
        assert lines[i + 1].split() and set(lines[i + 1].split()) <= {"us", "x", "B", "GB/s", "1/s"}
        assert lines[i + 2].startswith("1x28x28") and len({len(line) for line in lines[i + 2 : i + 18]}) == 1


# --- plots ---

LINES = (
    "CPU normalise + float32 copy, serial",
    "CPU normalise + float32 copy, pipelined",
    "uint8 copy + GPU normalise, serial",
    "uint8 copy + GPU normalise, pipelined",
)


def plot(path, *words, env=GPU, code=0):
    return bench("transfer", "--batch", "2,4,8", "--shape", "1x28x28,3x40x56", "--repeat", "5", "--plot", path, *words,
                 env=env, code=code)  # fmt: skip


@needs_fake
@needs_gnuplot
def test_plot_svg(folder):
    path = folder / "it's a plot.svg"
    plot(path)
    root = xml.etree.ElementTree.parse(path).getroot()
    texts = {"".join(t.itertext()).strip() for t in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"batch size (samples)", "time a batch (us)", "2", "4", "8", *LINES} <= texts
    assert "From uint8 pixels in pinned memory to float32 on the GPU, 1x28x28" in texts
    assert list(folder.iterdir()) == [path]  # no draft
    plot(path, "--plot-shape", "3x40x56")
    assert "float32 on the GPU, 3x40x56" in path.read_text()


@needs_fake
@needs_gnuplot
def test_plot_png(folder):
    path = folder / "plot.PNG"
    old = os.umask(0o027)
    try:
        plot(path)
    finally:
        os.umask(old)
    with Image.open(path) as image:
        assert image.format == "PNG" and image.width <= 900
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20)}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73), (0xCC, 0x79, 0xA7)} <= colours
    assert path.stat().st_mode & 0o777 == 0o640


def refused(*words, env=NO_GPU, code=2):
    """@return the one line that says why"""
    done = run([FEEDCTL, "bench", *words], env=env)
    assert done.returncode == code and done.stderr.count(b"\n") == 1 and done.stderr.startswith(b"feedctl: ")
    if code == 2:
        assert done.stdout == b""  # nothing was measured
    return done.stderr.decode()


def test_plot_without_gnuplot(folder):
    env = {**NO_GPU, "PATH": str(folder)}
    message = refused("transfer", "--plot", folder / "x.svg", env=env)
    assert "gnuplot" in message and "gnuplot-nox" in message and "--csv" in message
    assert list(folder.iterdir()) == []


@needs_gnuplot
def test_plot_refused(folder):
    message = refused("transfer", "--plot", folder / "x.pdf")
    assert "x.pdf" in message and ".png" in message and ".svg" in message
    assert "has no plot" in refused("memory", "--plot", folder / "x.svg")
    assert "has no plot" in refused("dtypes", "--plot", folder / "x.svg")
    words = "transfer", "--batch", "2", "--shape", "1x8x8", "--repeat", "1", "--plot"
    assert "nothing was measured" in refused(*words, folder / "x.svg", code=1)  # without a GPU
    assert list(folder.iterdir()) == []


@needs_fake
def test_plot_fails(folder):
    """gnuplot that fails, and a folder that isn't there: the table is printed, and what was there stays."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "gnuplot").write_text("#!/bin/sh\necho half a picture\nexit 3\n")
    (programs / "gnuplot").chmod(0o755)
    (folder / "x.svg").write_text("before")
    env = {**GPU, "PATH": f"{programs}:{os.environ['PATH']}"}
    words = "transfer", "--batch", "2", "--shape", "1x8x8", "--repeat", "1", "--plot"
    message = refused(*words, folder / "x.svg", env=env, code=1)
    assert "gnuplot failed (exit status 3)" in message
    assert (folder / "x.svg").read_text() == "before"
    assert sorted(p.name for p in folder.iterdir()) == ["bin", "x.svg"]
    assert "No such file or directory" in refused(*words, folder / "none" / "x.svg", env=env, code=1)


# --- the command line ---


@pytest.mark.parametrize(
    "words, message",
    [
        (["nothing"], "no benchmark 'nothing'"),
        (["transfer", "--batch", "0"], "--batch 0: a whole number from 1 to 65536"),
        (["transfer", "--batch", "65537"], "--batch 65537"),
        (["transfer", "--batch", "8,,16"], "--batch : a whole number"),
        (["transfer", "--batch", "8,16,8"], "8 is there twice"),
        (["transfer", "--batch", "8x"], "--batch 8x"),
        (["transfer", "--batch", ",".join(map(str, range(1, 34)))], "at most 32"),
        (["transfer", "--shape", "3x224"], "--shape 3x224: right is CxHxW or FxCxHxW"),
        (["transfer", "--shape", "5x8x8"], "C from 1 to 4"),
        (["transfer", "--shape", "3x0x8"], "--shape 3x0x8"),
        (["transfer", "--shape", "3x8193x8"], "H and W from 1 to 8192"),
        (["transfer", "--shape", "257x3x8x8"], "F from 1 to 256"),
        (["transfer", "--shape", "1x3x8x8x8"], "--shape 1x3x8x8x8"),
        (["transfer", "--shape", "3x8x8,3x8x8"], "3x8x8 is there twice"),
        (["transfer", "--shape", "3x8x-8"], "--shape 3x8x-8"),
        (["transfer", "--shape", ",".join(f"1x1x{n}" for n in range(1, 34))], "at most 32"),
        (["transfer", "--threads", "0"], "--threads 0: a whole number from 1 to 256"),
        (["transfer", "--plot-shape", "3x9x9"], "not among the shapes"),
        (["transfer", "--repeat", "0"], "--repeat 0"),
        (["transfer", "--seconds", "0"], "--seconds 0: a number from 0.001 to 3600"),
        (["transfer", "--seconds", "1e3"], "--seconds 1e3"),
        (["transfer", "--seconds", "nan"], "--seconds nan"),
        (["transfer", "--csv", "--json"], "one of them"),
        (["transfer", "what"], "takes no argument 'what'"),
        (["dtypes", "--batch", "-1"], "--batch -1"),
        (["memory", "--depth", "1025"], "--depth 1025: a whole number from 1 to 1024"),
        (["memory", "--dtype", "f64"], "--dtype f64: right are f32, f16, bf16"),
    ],
)
def test_wrong_arguments(words, message):
    assert message in refused(*words)


def test_unknown_option():
    for command in "transfer", "dtypes", "memory":
        done = run([FEEDCTL, "bench", command, "--depht", "4"], env=NO_GPU)
        assert done.returncode == 2 and b"unrecognized option '--depht'" in done.stderr and done.stdout == b""


def test_too_large_a_batch():
    """For a slot: a terabyte."""
    assert "256x4x8192x8192: a batch of at most 1099511627776 bytes" in refused("memory", "--batch", "65536", "--shape", "256x4x8192x8192", code=1)
    report = bench_json("transfer", "--batch", "65536", "--shape", "256x4x8192x8192", "--repeat", "1", env=NO_GPU)
    assert report["rows"][0]["traditional_cpu_us"] is None
    assert "host out of memory" in report["rows"][0]["absent"]["traditional_cpu_us"]


def test_help():
    done = run([FEEDCTL, "bench"], env=NO_GPU)
    assert done.returncode == 2 and done.stderr.startswith(b"usage: feedctl bench COMMAND") and done.stdout == b""
    text = bench("--help")
    assert text.encode() == done.stderr and all(name in text for name in ("transfer", "dtypes", "memory"))
    for command in "transfer", "dtypes", "memory":
        text = bench(command, "--help")
        assert text.startswith(f"usage: feedctl bench {command} [options]\n")
        assert all(word in text for word in ("--batch LIST", "--shape LIST", "--csv", "--json", "--plot FILE"))
        assert max(map(len, text.splitlines())) <= 120
    assert b"\n  bench " in run([FEEDCTL, "--help"]).stdout


# --- progress ---


@contextlib.contextmanager
def on_terminal(*words):
    """The command, with its standard error on a terminal. @return what it wrote there, when it has ended"""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 50))
    command = [str(FEEDCTL), "bench", *words]
    written = bytearray()
    with subprocess.Popen(command, env=NO_GPU, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(ours, 4096):
                written += chunk
        assert process.wait() == 0
    os.close(ours)
    check_output(bytes(written), "feedctl")
    yield bytes(written)


SLOW = "transfer", "--shape", "3x512x512", "--batch", "4,5,6,7", "--seconds", "1"


def test_progress_on_a_terminal():
    """A line that is rewritten in place, and taken away; nothing of what is over soon."""
    with on_terminal(*SLOW) as written:
        lines = written.split(b"\r\x1b[K")
        assert lines[0] == lines[-1] == b""
        assert any(re.fullmatch(rb"4 of 4, \d+s left: 3x512x512, batches of 7, pag.*", x) for x in lines)
        assert not any(b"batches of 4" in x for x in lines)  # less than two seconds had passed
        assert max(map(len, lines)) == 49  # cut: the terminal has 50 columns
    with on_terminal("transfer", "--shape", "1x8x8", "--batch", "4,5,6,7", "--repeat", "5") as written:
        assert written == b""


def test_no_progress_elsewhere():
    began = time.monotonic()
    bench(*SLOW, "--csv", env=NO_GPU)  # which sees that nothing was written to standard error
    assert time.monotonic() - began > 3
