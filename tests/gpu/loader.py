#!/usr/bin/env python3
"""loader.py - the Python package on a machine with a GPU, from a bundle (loader_bundle.sh); builds nothing.

    python3 tests/gpu/loader.py [--device cuda|cpu] [--quick] [--only CHECK...]

Byte equality of torch, JAX, CuPy and NumPy with the digests of feedctl cat, and of floats made on the GPU with those made
on the CPU; what next() costs; the seed experiment against torch's DataLoader, three seeds; a sweep of four trainers on
photos against four DataLoaders; ResNet-50 with random resized crops; a trace. The table comes last: ok or MISS against the goal, or why it was left out. The
exit code is 0 only when nothing missed. OUT: folder to which everything is written too. --device cpu and --quick are to
try the script itself where there is no GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
EXAMPLES = HERE / "client" / "python" / "examples"
sys.path[:0] = [str(EXAMPLES), str(HERE / "client" / "python")]
rows = []


def row(what: str, figure: str, verdict: str) -> None:
    rows.append((what, figure, verdict))
    print(f"-- {what}: {figure}: {verdict}", flush=True)


def goal(met: bool) -> str:
    return "ok" if met else "MISS"


def run(*command: object, timeout: int = 300) -> str:
    """@return its output, which is shown too; "" after a failure, which is a row of the table."""
    words = [str(word) for word in command]
    print(f"\n$ {' '.join(words)}", flush=True)
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as late:
        print(late.output, flush=True)
        row(Path(words[1]).name, f"longer than {timeout} s", "MISS")
        return ""
    print(done.stdout, flush=True)
    if done.returncode != 0:
        row(" ".join(Path(word).name for word in words[1:3]), f"exit code {done.returncode}", "MISS")
    return done.stdout if done.returncode == 0 else ""


def last_json(text: str) -> dict:
    return json.loads(text.splitlines()[-1]) if text else {}


def missing(*modules: str) -> str:
    return ", ".join(name for name in modules if importlib.util.find_spec(name) is None)


# ---- equality ----


def check_digests(options: argparse.Namespace, config: str) -> None:
    """Raw batches by each framework, and what feedctl prints of the same ones."""
    import feedd
    import numpy

    xxhash = ctypes.CDLL(HERE / "lib" / "libxxhash.so.0")
    xxhash.XXH3_64bits.restype, xxhash.XXH3_64bits.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]

    def digest(array: numpy.ndarray) -> str:
        return f"{xxhash.XXH3_64bits(array.tobytes(), array.nbytes):016x}"

    probe = feedd.NumpyLoader("train", batch_size=64, autostart=config)
    socket = os.fsdecode(probe._client._find_socket())
    text = run(options.feedctl, "--socket", socket, "cat", "train", "--json", "--batches", 40, "--batch-size", 64,
               "--order", "shuffle", "--seed", 3)  # fmt: skip
    expected = [json.loads(line)["digests"] for line in text.splitlines()[:-1]]
    to_numpy = {
        "torch": lambda x: x.cpu().numpy(), "jax": numpy.asarray, "cupy": lambda x: x.get(), "numpy": numpy.asarray,
    }  # fmt: skip
    kinds = {"torch": feedd.DataLoader, "jax": feedd.JaxLoader, "cupy": feedd.CupyLoader, "numpy": feedd.NumpyLoader}
    for module, kind in kinds.items():
        for zero_copy in (False, True):
            what = f"{module}, {'zero_copy' if zero_copy else 'copied'}: digests of feedctl cat"
            device = "cpu" if module == "numpy" else options.device
            if missing(module) or (module == "cupy" and device == "cpu") or (module == "jax" and zero_copy):
                if not zero_copy:
                    row(what, "", f"left out: {missing(module) or 'no GPU'}")
                continue
            same = 0
            with kind("train", batch_size=64, seed=3, layout="nhwc", fields=["image", "label", "index"], device=device,
                      autostart=config, zero_copy=zero_copy) as loader:  # fmt: skip
                for batch, digests in zip(loader, expected):
                    arrays = {name: numpy.ascontiguousarray(to_numpy[module](array)) for name, array in batch.items()}
                    if module == "jax":  # whose integers have 32 bits
                        arrays.update({name: arrays[name].astype(numpy.int64) for name in ("label", "index")})
                    same += digests == {n: digest(a) for n, a in arrays.items()}
                    del batch
            row(what, f"{same} of {len(expected)} batches", goal(same == len(expected) > 0))


def check_floats(options: argparse.Namespace, config: str) -> None:
    """Floats made on the device are those made by the CPU, to the bit."""
    import feedd
    import numpy

    for module, kind in (("torch", feedd.DataLoader), ("jax", feedd.JaxLoader), ("cupy", feedd.CupyLoader)):
        if missing(module) or (module == "cupy" and options.device == "cpu"):
            row(f"{module}: floats as on the CPU", "", f"left out: {missing(module) or 'no GPU'}")
            continue
        for dtype in (
            "float32",
            "float16",
            "int8",
            *(["bfloat16"] if module != "cupy" and not missing("ml_dtypes") else []),
        ):
            same = {
                "dtype": dtype,
                "mean": 0.4,
                "std": 1 / 255 if dtype == "int8" else 0.3,
                "batch_size": 64,
                "autostart": config,
            }
            equal = count = 0
            for (a, _), (b, _) in zip(kind("train", device=options.device, **same), feedd.NumpyLoader("train", **same)):
                if module == "torch":
                    import torch

                    kinds = {
                        "bfloat16": torch.int16,
                        "float16": torch.int16,
                        "float32": torch.int32,
                        "int8": torch.int8,
                    }
                    a = a.view(kinds[dtype]).cpu().numpy()
                else:
                    a = numpy.asarray(a.get() if module == "cupy" else a)
                equal += numpy.ascontiguousarray(a).tobytes() == b.tobytes()
                count += 1
                if count == 100:
                    break
            row(f"{module}: {dtype} as on the CPU", f"{equal} of {count} batches", goal(equal == count > 0))


# ---- figures ----


def check_overhead(options: argparse.Namespace) -> None:
    text = run(sys.executable, HERE / "tests/bench/loader.py", "--device", options.device, "--data", options.fashion,
               "--batches", 200 if options.quick else 5000, "--seconds", 1 if options.quick else 5,
               "--workers", options.workers)  # fmt: skip
    for name, median, aim, slept in re.findall(
        r"^(next\(\), .*?) +([\d.]+)us +[\d.]+us +(\d+)us \w+ +([\d.]+)us", text, re.MULTILINE
    ):
        row(name, f"{median} us, goal {aim} us; {slept} us after a sleep", goal(float(median) < float(aim)))
    rates = dict(re.findall(r"^(the loader alone, \w+|torch's DataLoader).*? +([\d,]+)$", text, re.MULTILINE))
    numbers = {name: float(value.replace(",", "")) for name, value in rates.items()}
    theirs = numbers.get("torch's DataLoader")
    for name in ("the loader alone, uint8", "the loader alone, float32"):
        if theirs and name in numbers:
            ratio = numbers[name] / theirs
            row(
                name,
                f"{numbers[name]:,.0f} images/s, {ratio:.1f} x DataLoader's {theirs:,.0f}, goal 10 x",
                goal(ratio >= 10),
            )


def check_seed_experiment(options: argparse.Namespace) -> None:
    if missing("torch"):
        row("the seed experiment", "", "left out: torch")
        return
    results = {}
    for loader in ("feedd", "torch"):
        outs = []
        for seed in range(1 if options.quick else 3):
            outs.append(last_json(run(
                sys.executable, EXAMPLES / "digits.py", "--device", options.device, "--data", options.fashion, "--loader", loader,
                "--seed", seed, "--epochs", 1 if options.quick else 5, "--workers", options.workers,
                "--batch-size", 64, timeout=550,
            )))  # fmt: skip
        if not all(outs):
            return
        results[loader] = [sum(out[key] for out in outs) / len(outs) for key in ("accuracy", "images_per_s")]
    ours, theirs = results["feedd"], results["torch"]
    row("the seed experiment, mean accuracy", f"{ours[0]:.2f} %, with DataLoader {theirs[0]:.2f} %, goal within 0.5",
        goal(abs(ours[0] - theirs[0]) <= 0.5))  # fmt: skip
    row("the seed experiment, end to end", f"{ours[1]:,.0f} images/s, with DataLoader {theirs[1]:,.0f}", "printed")
    half = last_json(run(sys.executable, EXAMPLES / "digits.py", "--device", options.device, "--data", options.fashion, "--half",
                         "--epochs", 1 if options.quick else 5, timeout=550))  # fmt: skip
    if half:
        row("the same in half precision", f"{half['accuracy']} %, {half['images_per_s']:,} images/s", "printed")


def many_photos(options: argparse.Namespace, folder: Path) -> Path:
    """Ten copies of each photo: the sample is too small for an epoch of four loaders."""
    many = folder / "photos"
    for place in () if many.exists() else (HERE / "data" / "imagenet-sample").iterdir():
        for photo in place.glob("*") if place.is_dir() else ():
            (many / place.name).mkdir(parents=True, exist_ok=True)
            for copy in range(1 if options.quick else 10):
                shutil.copy(photo, many / place.name / f"{copy}-{photo.name}")
    return many


def no_photos() -> str:
    return missing("torch") or ("" if (HERE / "data" / "imagenet-sample").is_dir() else "no photos")


def check_imagenet(options: argparse.Namespace, folder: Path) -> None:
    lacking = no_photos() or missing("torchvision")
    if lacking:
        row("ResNet-50 on photos", "", f"left out: {lacking}")
        return
    many = many_photos(options, folder)
    small = ["--arch", "small", "--size", 64, "--batch-size", 8, "--steps", 2] if options.quick else ["--batch-size", 128]
    out = last_json(run(sys.executable, EXAMPLES / "imagenet.py", "--device", options.device, "--train", many, "--val", many,
                        "--epochs", 3, *small))  # fmt: skip
    if out:
        row("ResNet-50 on photos, end to end", f"{out['images_per_s']:,} images/s, loss {out['loss']}", "printed")


def check_sweep(options: argparse.Namespace, folder: Path) -> None:
    if no_photos():
        row("the sweep", "", f"left out: {no_photos()}")
        return
    many = many_photos(options, folder)
    out = {}
    for loader in ("feedd", "torch"):
        out[loader] = last_json(run(
            sys.executable, EXAMPLES / "sweep.py", "--device", options.device, "--data", many, "--size", 224, "--loader", loader,
            "--steps", 3 if options.quick else 200, "--batch-size", 32, "--workers", options.workers, timeout=550,
        ))  # fmt: skip
    if all(out.values()):
        ours, theirs = out["feedd"], out["torch"]
        row(
            "a sweep of 4 on photos, images/s",
            f"{ours['images_per_s']:,}, with four DataLoaders {theirs['images_per_s']:,}",
            "printed",
        )
        row(
            "a sweep of 4, CPU-seconds a 1,000 images",
            f"{ours['cpu_seconds_per_1000_images']}, with four DataLoaders {theirs['cpu_seconds_per_1000_images']}",
            "printed",
        )


def check_trace(options: argparse.Namespace, folder: Path) -> None:
    if missing("torch"):
        row("the trace", "", "left out: torch")
        return
    where = Path(os.environ["OUT"]) / "trace.json" if "OUT" in os.environ else folder / "trace.json"
    out = last_json(
        run(
            sys.executable,
            EXAMPLES / "trace.py",
            "--device",
            options.device,
            "--data",
            options.fashion,
            "--trace",
            where,
        )
    )
    if out:
        wanted = ["feedd.next"] if options.device == "cpu" else ["feedd.next", "normalize", "Memcpy"]
        found = all(any(word in name for name in out["named"]) for word in wanted)
        row("the trace names", ", ".join(out["named"])[:100], goal(found))


def check_jax_example(options: argparse.Namespace) -> None:
    if missing("jax"):
        row("the JAX example", "", "left out: jax")
        return
    out = last_json(
        run(sys.executable, EXAMPLES / "jax_digits.py", "--device", options.device, "--data", options.fashion)
    )
    if out:
        row("the JAX example", f"{out['accuracy']} %, {out['images_per_s']:,} images/s", goal(out["accuracy"] > 75))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workers", type=int, default=16, help="of torch's loaders")
    parser.add_argument("--only", nargs="+", metavar="CHECK", help="digests, floats, overhead...: what check_* is named")
    options = parser.parse_args()
    options.fashion = HERE / "data" / "fashion-mnist"
    options.feedctl = HERE / "bin" / "feedctl"
    folder = Path(tempfile.mkdtemp(prefix="feedd-"))
    (folder / "run").mkdir(mode=0o700)
    os.environ.update(
        XDG_RUNTIME_DIR=str(folder / "run"), XDG_CACHE_HOME=str(folder / "cache"), FEEDD_PROGRAM=str(HERE / "bin" / "feedd"),
        FEEDD_LIBRARY=str(HERE / "lib" / "libfeedd.so.0"), PYTHONUNBUFFERED="1",
        PYTHONPATH=os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
    )  # fmt: skip
    import common

    config = common.write_config(common.digits_config(str(options.fashion)), str(folder))
    for check, *more in (
        (check_digests, config), (check_floats, config), (check_overhead,), (check_trace, folder), (check_jax_example,),
        (check_seed_experiment,), (check_sweep, folder), (check_imagenet, folder),
    ):  # fmt: skip
        if options.only and check.__name__.removeprefix("check_") not in options.only:
            continue
        print(f"\n== {check.__name__}", flush=True)
        try:
            check(options, *more)
        except Exception as error:  # the others go on; the table says it
            import traceback

            traceback.print_exc()
            row(check.__name__, f"{type(error).__name__}: {error}"[:100], "MISS")
    lines = [f"{what:55} {figure:75} {verdict}" for what, figure, verdict in rows]
    text = "\n".join(["", *lines, f"{sum(r[2] == 'MISS' for r in rows)} of {len(rows)} missed"])
    print(text)
    if "OUT" in os.environ:
        (Path(os.environ["OUT"]) / "loader-table.txt").write_text(text + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    return int(any(verdict == "MISS" for _, _, verdict in rows))


if __name__ == "__main__":
    sys.exit(main())
