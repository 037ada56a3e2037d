"""conftest.py - what tests ask for: folders, datasets, daemons.

    FEEDD_BUILD_DIR=build/dev pytest tests/integration             everything
    FEEDD_BUILD_DIR=build/tsan pytest tests/integration -m tsan    what the thread sanitizer should see
    FEEDD_BUILD_DIR=build/release pytest tests/integration -m release

FEEDD_TEST_DATA is the folder of real data (default: ../shared/data beside the repository); tests skip without it.
"""

import os
import shutil
import tempfile
from pathlib import Path

import harness
import oracle
import pytest

DATA = Path(os.environ.get("FEEDD_TEST_DATA", harness.ROOT / ".." / "shared" / "data"))
FASHION = Path("/usr/share/datasets/fashion-mnist")


def pytest_configure():
    for program in harness.FEEDD, harness.FEEDCTL:
        if not program.exists():
            raise pytest.UsageError(f"{program} is missing: build first, and name the build folder in FEEDD_BUILD_DIR")


def pytest_collection_modifyitems(items):
    kind = harness.sanitizer()
    if kind is None:
        return
    skip = pytest.mark.skip(reason=f"needs a build without sanitizers; this one has -fsanitize={kind}")
    for item in items:
        if "release" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def folder():
    """A folder with a short name: the name of a socket may have 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="feedd-"))
    if len(str(path)) > 60:
        path.rmdir()
        path = Path(tempfile.mkdtemp(prefix="feedd-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def daemons(folder):
    """Starts daemons. Those that still run when the test has passed have to stop cleanly."""
    running = []

    def start(config, name=None, **options):
        place = folder / (name or f"d{len(running)}")
        place.mkdir(exist_ok=True)
        daemon = harness.Feedd(place, config, **options)
        running.append(daemon)
        return daemon

    yield start
    try:
        for daemon in running:
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.stop()
            if daemon.log.exists():
                harness.check_output(daemon.log.read_bytes(), "feedd")
    finally:
        for daemon in running:
            daemon.kill()


@pytest.fixture(scope="session")
def made():
    """The folder of datasets that tests make once for all of them."""
    path = Path(tempfile.mkdtemp(prefix="feedd-data-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def small(made):
    """1000 samples: 15 batches of 64, and 40 more."""
    return oracle.make_dataset(made, 1000, compress=True)


@pytest.fixture(scope="session")
def tiny(made):
    """100 samples, not compressed."""
    return oracle.make_dataset(made, 100, 3, 4, seed=2, name="tiny")


@pytest.fixture(scope="session")
def fashion():
    if not FASHION.is_dir():
        pytest.skip(f"{FASHION} is missing (Debian package dataset-fashion-mnist)")
    return oracle.Dataset(FASHION / "train-images-idx3-ubyte.gz", FASHION / "train-labels-idx1-ubyte.gz")


@pytest.fixture(scope="session")
def digits():
    place = DATA / "mnist"
    if not place.is_dir():
        pytest.skip(f"{place} is missing (FEEDD_TEST_DATA)")
    return oracle.Dataset(place / "t10k-images-idx3-ubyte.gz", place / "t10k-labels-idx1-ubyte.gz")


@pytest.fixture
def feedd(daemons, small, tiny):
    """A daemon with both made datasets, and a shuffled stream of each."""
    return daemons(
        {
            "datasets": {"small": small.config(), "tiny": tiny.config()},
            "streams": {
                "train": {"dataset": "small", "batch_size": 64, "order": "shuffle", "seed": 1, "tail": "partial"},
                "tiny-train": {"dataset": "tiny", "batch_size": 8, "order": "shuffle", "seed": 1},
            },
        }
    )
