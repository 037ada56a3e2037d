"""Once a stream runs, neither the daemon nor libfeedd allocates anything: not a batch, not a second."""

import subprocess

import pytest
from harness import ENVIRONMENT, PROGRAMS, check_output

pytestmark = pytest.mark.release


class Counter:
    """What alloc_counter.so has counted in one process."""

    def __init__(self, folder, name):
        self.path = folder / name
        self.env = {"LD_PRELOAD": str(PROGRAMS / "alloc_counter.so"), "FEEDD_ALLOC_COUNTER": str(self.path)}

    def read(self):
        return int.from_bytes(self.path.read_bytes(), "little")


def test_nothing_is_allocated(daemons, folder, small):
    """Between batches 1,000 and 2,000, half of them taken slowly: more than two of the daemon's ticks pass."""
    counters = Counter(folder, "daemon-calls"), Counter(folder, "client-calls")
    feedd = daemons(
        {
            "datasets": {"small": small.config()},
            "streams": {"train": {"dataset": "small", "batch_size": 64, "order": "shuffle", "tail": "partial"}},
        },
        env=counters[0].env,
    )
    client = subprocess.Popen(
        [PROGRAMS / "steady_client", feedd.socket, "train", "1000", "1000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, **counters[1].env},
    )
    try:
        assert client.stdout.readline() == b"taken 1000\n"
        before = [counter.read() for counter in counters]
        assert min(before) > 5  # starting and opening allocate: the counters count
        client.stdin.write(b"\n")
        client.stdin.flush()
        assert client.stdout.readline() == b"taken 2000\n"
        after = [counter.read() for counter in counters]
        assert after == before
        feedd.report()
        assert counters[0].read() > after[0]  # they still do
        client.stdin.write(b"\n")
        client.stdin.close()
        assert client.wait(20) == 0
    finally:
        client.kill()
        client.wait()
        check_output(client.stderr.read(), "steady_client")
        client.stdout.close()
        client.stderr.close()
