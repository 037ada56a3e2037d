"""state_dict(): what is left is delivered, once, by a new process, a second time, by another number of ranks."""

import json

import feedd
import pytest
from conftest import python

REST = """
import json, sys, feedd
socket, state, options, stop = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
loader = feedd.NumpyLoader("small", socket=socket, fields=["index"], **options)
loader.load_state_dict(state)
read = []
for batch in loader:
    read.append(batch["index"].tolist())
    if len(read) == stop:
        break
print(json.dumps([read, loader.state_dict()]))
"""


def rest(daemon, state, stop=0, **options):
    """[the batches, the state after them] of a new process that loads a state."""
    return python(REST, daemon.socket, json.dumps(state), json.dumps({"batch_size": 64, "seed": 3, **options}), stop)


def begin(loaders, count, **options):
    """A loader that is `count` batches into its second epoch, and the whole of that."""
    loader, again = (loaders(fields=["index"], seed=3, **options) for _ in range(2))
    again.set_epoch(1)
    whole = [batch["index"].tolist() for batch in again]
    for _ in loader:
        pass
    for number, _ in enumerate(loader, 1):
        if number == count:
            break
    return loader, whole


@pytest.mark.parametrize("tail", ["drop", "partial", "pad"])
def test_in_a_new_process_and_a_second_time(daemon, loaders, tail):
    loader, whole = begin(loaders, 4, tail=tail)
    read, state = rest(daemon, loader.state_dict(), tail=tail)
    assert read == whole[4:]
    assert state == {**state, "version": 1}
    first, state = rest(daemon, loader.state_dict(), stop=3, tail=tail)
    second, state = rest(daemon, state, stop=2, tail=tail)
    third, _ = rest(daemon, state, tail=tail)
    assert first + second + third == whole[4:]


def test_on_another_world_size(daemon, loaders):
    """Three ranks go on where one stood: every position once."""
    loader, whole = begin(loaders, 4)
    state = loader.state_dict()
    ranks = [rest(daemon, state, batch_size=32, tail="partial", rank=r, world_size=3) for r in range(3)]
    assert len({after["token"] for _, after in ranks}) == 1  # the same for all
    assert len({len(read) for read, _ in ranks}) == 1
    everything = loaders(fields=["index"], seed=3, tail="partial")
    everything.set_epoch(1)
    order = [i for batch in everything for i in batch["index"].tolist()]
    left = [i for read, _ in ranks for batch in read for i in batch]
    assert sorted(left) == sorted(order[4 * 64 :])
    steps = zip(*(read for read, _ in ranks))
    assert [i for step in steps for batch in step for i in batch] == order[4 * 64 :]


def test_set_epoch_after_loading(daemon, loaders):
    """The usual loop says set_epoch(epoch) again: that doesn't go back to the epoch's start. Then they are whole."""
    loader, whole = begin(loaders, 4)
    fresh = loaders(fields=["index"], seed=3)
    fresh.load_state_dict(loader.state_dict())
    fresh.set_epoch(1)
    assert [batch["index"].tolist() for batch in fresh] == whole[4:]
    fresh.set_epoch(2)
    assert len([0 for _ in fresh]) == 15
    fresh.set_epoch(1)
    assert [batch["index"].tolist() for batch in fresh] == whole
    again = loaders(fields=["index"], seed=3, resume=loader.state_dict())
    again.set_epoch(1)
    assert [batch["index"].tolist() for batch in again] == whole[4:]
    other = loaders(fields=["index"], seed=3, resume=loader.state_dict()["token"])
    assert [batch["index"].tolist() for batch in other] == whole[4:]
    assert len([0 for _ in other]) == 15


def test_at_the_edges(loaders):
    """Before the first batch, and after the last one of an epoch."""
    loader = loaders(fields=["index"], seed=3)
    start = loader.state_dict()
    whole = [batch["index"].tolist() for batch in loader]
    end = loader.state_dict()
    other = loaders(fields=["index"], seed=3)
    other.load_state_dict(start)
    assert [batch["index"].tolist() for batch in other] == whole
    other.load_state_dict(end)
    assert len([0 for _ in other]) == 15 and other.batch.epoch == 1
    loader.load_state_dict(start)  # also the one that has moved
    assert [batch["index"].tolist() for batch in loader] == whole


def test_an_old_loop_after_loading(loaders):
    loader = loaders(seed=3)
    loop = iter(loader)
    next(loop)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError):
        next(loop)


def test_states_that_do_not_fit(loaders, tiny):
    state = loaders(seed=3).state_dict()
    for options, words in (({"seed": 4}, ["seed", "3"]), ({"order": "sequential", "seed": 3}, ["order"])):
        with pytest.raises(feedd.TokenError) as raised:
            loaders(**options).load_state_dict(state)
        assert all(word in str(raised.value) for word in words), raised.value
    with pytest.raises(feedd.TokenError, match="another dataset"):
        loaders("tiny", batch_size=8, seed=3, resume=state)
    for nonsense, error in (("feedd1.nonsense", feedd.TokenError), ({"version": 1}, TypeError), (7, TypeError)):
        with pytest.raises(error):
            loaders(resume=nonsense)
        with pytest.raises(error):
            loaders().load_state_dict(nonsense)


def test_a_batch_that_could_not_be_delivered_comes_again(loaders, monkeypatch):
    """No memory for its arrays, say: the state stands before it, and the loop goes on with it."""
    loader = loaders(fields=["index"], seed=3)
    whole = [batch["index"].tolist() for batch in loaders(fields=["index"], seed=3)]
    loop = iter(loader)
    read = [next(loop)["index"].tolist() for _ in range(3)]
    state = loader.state_dict()

    def no_memory(*arguments):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(loader._framework, "empty", no_memory)
        with pytest.raises(MemoryError):
            next(loop)
    assert loader.state_dict() == state and loader.stats()["held"] == 0
    read += [batch["index"].tolist() for batch in loop]
    assert read == whole
