"""conftest.py - what the tests of the Python package ask for: those of tests/integration, and the package itself.

    FEEDD_BUILD_DIR=build/release pytest tests/loader

A build with the address sanitizer has to be given its runtime first: LD_PRELOAD=libasan.so ASAN_OPTIONS=detect_leaks=0
(Python's own leaks; the daemons that tests start are checked as ever).
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration"), str(HERE.parents[1] / "client" / "python")]

import harness  # noqa: E402

os.environ.pop("FEEDD_SOCKET", None)
os.environ["FEEDD_LIBRARY"] = str(harness.LIBRARY)
os.environ["FEEDD_PROGRAM"] = str(harness.FEEDD)
os.environ["FEEDD_FAKE_GPUS"] = "1"  # in builds with the fake CUDA runtime; daemons of tests have none unless they ask
# Daemons and feedctl bring the sanitizer's runtime themselves, and show what they leak.
harness.ENVIRONMENT.pop("LD_PRELOAD", None)
harness.ENVIRONMENT["FEEDD_FAKE_GPUS"] = "0"
harness.ENVIRONMENT["ASAN_OPTIONS"] = "detect_leaks=1:detect_stack_use_after_return=1"

_spec = importlib.util.spec_from_file_location("integration_conftest", HERE.parent / "integration" / "conftest.py")
_integration = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_integration)
folder, daemons, made, small, tiny = (
    getattr(_integration, name) for name in ("folder", "daemons", "made", "small", "tiny")
)
DATA, FASHION = _integration.DATA, _integration.FASHION


def pytest_configure():
    kind = harness.sanitizer()
    if kind == "thread" or (kind == "address" and "libasan" not in os.environ.get("LD_PRELOAD", "")):
        raise pytest.UsageError(
            f"{harness.BUILD} has -fsanitize={kind}, and Python has to begin with its runtime: conftest.py"
        )


pytest_collection_modifyitems = _integration.pytest_collection_modifyitems


@pytest.fixture
def daemon(daemons, small, tiny):
    """A daemon with both made datasets, `train` (shuffled, partial tail) and `short` (a ring of 4)."""
    names = [f"class {i}" for i in range(10)]
    return daemons(
        {
            "datasets": {
                "small": small.config(classes=names, splits={"a": 0.75, "b": 0.25}),
                "tiny": tiny.config(),
            },
            "streams": {
                "train": {"dataset": "small", "batch_size": 64, "order": "shuffle", "seed": 1, "tail": "partial"},
                "short": {"dataset": "small", "batch_size": 50, "depth": 4},
            },
        }
    )


@pytest.fixture
def loaders(daemon):
    """Makes NumpyLoaders on the daemon; closes them in the end."""
    import feedd

    made = []

    def make(source="small", kind=feedd.NumpyLoader, **options):
        options.setdefault("batch_size", 64)
        loader = kind(source, socket=daemon.socket, **options)
        made.append(loader)
        return loader

    yield make
    for loader in made:
        loader.close()


def python(code, *args, timeout=60, env=None, **popen):
    """Runs Python code in a process of its own, which imports what the tests do. @return what it printed, as JSON"""
    done = subprocess.run(python_command(code, *args), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
                          env=python_environment(env), **popen)  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-6000:]
    return json.loads(done.stdout) if done.stdout else None


def python_command(code, *args):
    return [sys.executable, "-B", "-c", code, *(str(arg) for arg in args)]


def python_environment(env=None):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:3]), **(env or {})}
