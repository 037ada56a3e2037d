"""The examples run: --help everywhere; small runs where what they need is installed."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DATA, FASHION, python_environment
from photos import make_photos
from test_autostart import pids

EXAMPLES = Path(__file__).parents[2] / "client" / "python" / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "common")


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


@pytest.fixture
def run(folder):
    (folder / "run").mkdir(mode=0o700)
    env = python_environment({"XDG_RUNTIME_DIR": str(folder / "run"), "XDG_CACHE_HOME": str(folder / "cache"),
                              "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"})  # fmt: skip

    def start(script, *args, before=(), **more):
        command = [*before, EXAMPLES / f"{script}.py", *args]
        done = subprocess.run(list(map(str, command if before else [sys.executable, "-B", *command])), capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=110, env={**env, **more}, cwd=folder)  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()[-4000:]
        return done.stdout.decode()

    yield start
    for pid in pids(folder):  # the private daemons of this test
        os.kill(pid, signal.SIGTERM)


@pytest.fixture
def digits():
    for place in FASHION, DATA / "mnist":
        if (place / "train-images-idx3-ubyte.gz").exists():
            return place
    pytest.skip(f"{FASHION} is missing (Debian package dataset-fashion-mnist)")


def last_line(text):
    return json.loads(text.splitlines()[-1])


def test_all_are_known():
    assert SCRIPTS == ["digits", "imagenet", "jax_digits", "sweep", "trace"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(run, script):
    needed = "jax" if script.startswith("jax") else "torch"
    if script != "sweep" and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    assert "usage:" in run(script, "--help")


@needs("torch")
@pytest.mark.parametrize("options", [(), ("--half",), ("--loader", "torch", "--workers", "0")], ids=str)
def test_digits(run, digits, options):
    out = last_line(run("digits", "--device", "cpu", "--data", digits, "--epochs", 1, "--batch-size", 250, *options))
    assert out["accuracy"] > 70 and out["images_per_s"] > 0


@needs("torch")
@pytest.mark.parametrize("loader", ["feedd", "torch"])
def test_sweep(run, digits, folder, loader):
    options = ["--device", "cpu", "--trainers", 2, "--steps", 6, "--batch-size", 8, "--loader", loader, "--workers", 0]
    text = run("sweep", "--data", digits, *options)
    assert last_line(text)["cpu_seconds"] > 0 and text.count("learning rate") == 2
    photos = make_photos(folder / "photos", 40, size=(40, 36))
    assert last_line(run("sweep", "--data", photos, "--size", 28, *options))["images_per_s"] > 0


@needs("torch")
def test_imagenet(run, folder):
    """Under torchrun; interrupted in an epoch of 2 ranks, and gone on with by one."""
    photos = make_photos(folder / "photos", 64, size=(40, 36))
    checkpoint = folder / "checkpoint"
    options = ["--train", photos, "--val", photos, "--arch", "small", "--size", 28, "--batch-size", 4, "--device", "cpu",
               "--center-crop", "--checkpoint", checkpoint]  # fmt: skip
    torchrun = [sys.executable, "-B", "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29517"]
    text = run("imagenet", *options, "--steps", 3, before=torchrun)
    ranks = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert sorted(one["rank"] for one in ranks) == [0, 1] and all(one["position"] == [0, 24] for one in ranks)
    out = last_line(run("imagenet", *options))
    assert (out["steps"], out["position"], out["world_size"]) == (10, [1, 0], 1)


@needs("torch")
def test_trace(run, digits, folder):
    out = last_line(run("trace", "--device", "cpu", "--data", digits, "--steps", 3, "--trace", folder / "trace.json"))
    assert out["named"] == ["feedd.next"] and "feedd.next" in (folder / "trace.json").read_text()


@needs("jax")
def test_jax_digits(run, digits):
    out = last_line(run("jax_digits", "--device", "cpu", "--data", digits, "--epochs", 1, "--batch-size", 250))
    assert out["accuracy"] > 70
