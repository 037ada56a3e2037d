#!/usr/bin/env python3
"""loader.py - what a loader's next() costs, and how many images a second it gives, as a table.

    FEEDD_LIBRARY=... FEEDD_PROGRAM=... PYTHONPATH=client/python tests/bench/loader.py [--device cuda|cpu] [--fake DIR]

Overhead: microseconds of one next() when a batch is ready (median, and 90th of 100, of all that found one), for 64 digits:
zero_copy against a goal of 30, with allocation and launch (float32) against 60. Between two of them the process is busy
for half a millisecond, on a GPU launching kernels, as trainers are; beside it, without a goal, what it costs after having
slept that long, when the core has to wake up and finds its caches cold. On the CPU float32 includes the arithmetic of 64
digits, which on a GPU the kernel does later. --fake: with the fake CUDA runtime of that build
(FEEDD_CUDA=FAKE), which is slower than a real one. Throughput: the loader alone, images/s, and torch's DataLoader with
--workers workers beside it, where torch is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "client" / "python" / "examples"), str(ROOT / "client" / "python")]

import common  # noqa: E402


def fake_kind(build: str):
    os.environ["FEEDD_BUILD_DIR"] = build
    sys.path += [str(ROOT / "tests" / "loader"), str(ROOT / "tests" / "integration")]
    import fake_gpu

    import feedd

    class Framework(fake_gpu.Framework):
        """With an allocator that keeps what was freed, as frameworks have: on one stream it can be used again at once."""

        kept = []

        def empty(self, shape, dtype):
            array = next(
                (one for one in self.kept if sys.getrefcount(one) <= 3 and one.shape == shape and one.dtype == dtype),
                None,
            )
            if array is None:
                array = super().empty(shape, dtype)
                self.kept.append(array)
            return array

    class Loader(feedd.DataLoader):
        def _load(self, device):
            return Framework(device)

    return Loader


def launch_kernels():
    """A step of a trainer, as far as its CPU sees it: some thirty launches, half a millisecond."""
    import torch

    values = torch.zeros(64, 64, device="cuda")
    began = time.perf_counter_ns()
    while time.perf_counter_ns() - began < 500_000:
        values = values + 1


def spin():
    began = time.perf_counter_ns()
    while time.perf_counter_ns() - began < 500_000:
        pass


def overhead(loader, batches: int, step):
    """(median, 90th percentile) in microseconds of next() when a batch is there, after step()."""
    times = []
    while len(times) < batches:
        for _ in loader:
            break
        loop = iter(loader)
        for _ in range(len(loader) - 1):
            step()
            before = loader._client.stats().wait_ns
            began = time.perf_counter_ns()
            batch = next(loop)
            spent = time.perf_counter_ns() - began
            del batch
            if loader._client.stats().wait_ns == before:
                times.append(spent / 1000)
    times.sort()
    return times[len(times) // 2], times[len(times) * 9 // 10]


def images_per_s(loader, seconds: float, batch_size: int) -> float:
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in loader:
            count += 1
            if time.perf_counter() - began >= seconds:
                break
    return count * batch_size / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--fake", metavar="DIR", help="build folder with the fake CUDA runtime")
    parser.add_argument("--data", default=str(common.FASHION), help="folder of MNIST's four files")
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--workers", type=int, default=16)
    options = parser.parse_args()
    if options.fake:
        os.environ["FEEDD_FAKE_GPUS"] = "1"  # of this process and of the daemon that it starts
    import feedd

    torch = importlib.util.find_spec("torch") is not None and not options.fake
    kind = fake_kind(options.fake) if options.fake else feedd.DataLoader if torch else feedd.NumpyLoader
    config = common.write_config(common.digits_config(options.data), tempfile.mkdtemp())
    same = {"batch_size": 64, "device": "cuda" if options.fake else options.device, "autostart": config}

    def loader(**more):
        return kind("train", **same, **more)

    title = f"{loader().stats()['framework']}, device {same['device']}{' (fake)' if options.fake else ''}"
    print(f"{title}: 64 digits a batch\n{'':38}{'median':>10}{'90 %':>10}{'goal':>8}{'':6}{'after a sleep':>16}{'90 %':>10}")
    busy = launch_kernels if torch and options.device.startswith("cuda") else spin
    for name, goal, more in (
        ("next(), zero_copy", 30, {"zero_copy": True}),
        ("next(), uint8 copied", 60, {}),
        ("next(), float32", 60, {"dtype": "float32", "mean": 0.5, "std": 0.5}),
    ):
        with loader(**more) as one:
            median, most = overhead(one, options.batches, busy)
            slept = overhead(one, options.batches, lambda: time.sleep(0.0005))
        print(f"{name:38}{median:8.1f}us{most:8.1f}us{goal:6}us {'ok' if median < goal else 'MISS':5}"
              f"{slept[0]:14.1f}us{slept[1]:8.1f}us", flush=True)  # fmt: skip
    print(f"{'':38}{'images/s':>14}")
    rows = [
        ("the loader alone, zero_copy", lambda: images_per_s(loader(zero_copy=True), options.seconds, 64)),
        ("the loader alone, uint8", lambda: images_per_s(loader(), options.seconds, 64)),
        ("the loader alone, float32", lambda: images_per_s(loader(dtype="float32"), options.seconds, 64)),
    ]
    if torch:
        import digits
        from torch.utils.data import DataLoader

        def torchs():
            data = digits.Digits(options.data, "train")
            pinned = options.device != "cpu"
            return images_per_s(DataLoader(data, 64, shuffle=True, num_workers=options.workers, pin_memory=pinned,
                                           persistent_workers=options.workers > 0), options.seconds, 64)  # fmt: skip

        rows.append((f"torch's DataLoader, {options.workers} workers, float32", torchs))
    for name, measure in rows:
        print(f"{name:38}{measure():14,.0f}", flush=True)


if __name__ == "__main__":
    main()
