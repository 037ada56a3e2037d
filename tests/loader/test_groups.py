"""Members of a group: processes that get equal data from one decode."""

import json
import subprocess

import feedd
import pytest
from conftest import python_command, python_environment

MEMBER = """
import hashlib, json, sys, feedd
socket, options = sys.argv[1], json.loads(sys.argv[2])
loader = feedd.NumpyLoader("small", socket=socket, batch_size=64, share="broadcast", fields=["image", "label", "index"],
                           **options)
read = []
for epoch in range(2):
    for batch in loader:
        read.append(hashlib.sha256(b"".join(array.tobytes() for array in batch.values())).hexdigest())
print(json.dumps([read, loader.stats()["members"]]))
"""


def start_members(daemon, count, **options):
    command = python_command(MEMBER, daemon.socket, json.dumps({"members": count, **options}))
    return [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         env=python_environment())
        for _ in range(count)
    ]  # fmt: skip


def finish(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()[-6000:]
    return json.loads(out)


@pytest.mark.parametrize("zero_copy", [False, True])
def test_four_processes_get_equal_data(daemon, loaders, zero_copy):
    members = [finish(process) for process in start_members(daemon, 4, zero_copy=zero_copy)]
    assert all(read == members[0][0] for read, _ in members) and len(set(members[0][0])) == 30
    assert max(count for _, count in members) == 4
    alone = loaders(fields=["image", "label", "index"], zero_copy=zero_copy)
    assert [batch["index"].shape for batch in alone] == [(64,)] * 15


def test_a_loop_that_is_left_in_a_group(loaders):
    """The others go on, so the next loop begins where the next epoch begins for all."""
    one, other = (loaders(share="broadcast", members=2, fields=["index"]) for _ in range(2))
    whole = iter(other)
    for step, _ in enumerate(one):
        next(whole)
        if step == 2:
            break
    assert len(list(whole)) == 12
    loops = iter(one), iter(other)
    for step in range(15):
        a, b = (next(loop)["index"].tolist() for loop in loops)
        assert a == b and one.batch == other.batch and one.batch[:2] == (1, step * 64)


def test_resume_in_a_group(loaders):
    one = loaders(seed=3)
    for number, _ in enumerate(one):
        if number == 4:
            break
    state = one.state_dict()
    members = [loaders(seed=3, share="broadcast", members=2, resume=state) for _ in range(2)]
    for member in members:
        next(iter(member))
        assert member.batch[:2] == (0, 5 * 64)
    with pytest.raises(feedd.Error, match="resume=state"):
        members[0].load_state_dict(state)


def test_unequal_members(loaders):
    loaders(share="broadcast", group="g")
    for options, word in (({"batch_size": 32}, "batch_size"), ({"seed": 1}, "seed"),
                          ({"transform": feedd.RandomHorizontalFlip()}, "transform")):  # fmt: skip
        with pytest.raises(feedd.ArgumentError, match=word):
            loaders(share="broadcast", group="g", **options)
