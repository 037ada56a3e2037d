"""Batches for a GPU in host memory (transport "host"): what the GPU makes of them, when they go back, what is left. By
the fake CUDA runtime, on which a copy takes its time."""

import pytest
from test_gpu import FAKE, Gpu

pytestmark = [
    pytest.mark.tsan,
    pytest.mark.skipif(not FAKE.exists(), reason="not built with FEEDD_CUDA=FAKE, for which CUDA's headers are needed"),
]
HOST = {"FEEDD_TRANSPORT": "host"}


@pytest.fixture
def gpu(daemons, small, tiny):
    def start(**options):
        return Gpu(daemons, {"small": small, "tiny": tiny}, **options)

    return start


def test_normalised_and_copied_as_on_the_host(gpu):
    """feedd_normalize() and feedd_batch_read(), every dtype and layout, windows and flips: bit for bit."""
    it = gpu()
    for source in "train", "tiny":
        answer = it.client("check", source, "--batches", "5", **HOST)
        assert answer["failed"] == 0 and answer["batches"] == 5 and answer["values"] > 0
    assert it.calls(function="cudaHostRegister", flags=8)  # for reading alone
    it.wait_quiet()
    it.feedd.stop()
    it.check_no_leaks()


def test_goes_back_when_the_gpu_has_read_it(gpu):
    """Given back at once, while what reads it is still queued: the workers don't fill the slot again before."""
    it = gpu()
    answer = it.client("late", "train", "--batches", "150", "--spin-ms", "3", **HOST)
    assert answer["wrong"] == 0 and 2 <= answer["in_flight"] <= answer["depth"]
    it.wait_quiet()
    it.feedd.stop()
    it.check_no_leaks()


def test_no_gpu_memory_and_nothing_pinned(gpu):
    """Where every member reads from host memory the daemon copies nothing, and needs no GPU."""
    it = gpu(daemon={"gpus": []})
    answer = it.client("digest", "train", "--batches", "5", **HOST)
    expected = it.client("digest", "train", "--batches", "5", "--device", "host")
    assert answer["batches"] == expected["batches"] and answer["transport"] == "host" and answer["device"]
    report = it.feedd.report()
    assert report["memory"]["pinned_bytes"] == 0 and not report["gpus"]
    it.feedd.stop()
    it.check_no_leaks()
