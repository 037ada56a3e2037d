"""group_scenarios.py - groups as libfeedd's callers see them: group_scenarios.py SCENARIO SOCKET IMAGES LABELS.

One process a scenario, started by test_groups.py and test_reconnect.py; see library_scenarios.py.
"""

import random
import select
import sys
import threading
import time
from pathlib import Path

import oracle
from crowd import BROADCAST
from libfeedd import E_CONNECTION, E_LEASES, E_STATE, E_TIMEOUT, Client, Failure
from library_scenarios import compare, fails

SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def join(path, **options):
    return Client(path).open("train", share=BROADCAST, **options)


@scenario
def crosswise(path, dataset):
    """Each keeps a batch that the other has given back: both are told, none waits, and both go on."""
    a, b = join(path, members=2), join(path, members=2)
    depth = a.schema.depth
    assert (a.schema.share, a.schema.group) == (BROADCAST, b"train")
    kept = {}
    for i in range(depth):
        for stream, keep in (a, 0), (b, 1):
            batch = stream.next()
            assert compare(batch, dataset).seq == i
            if i == keep:
                kept[stream] = batch
            else:
                stream.release(batch)
    fails(E_LEASES, a.next)
    batch = b.next()  # its oldest is one batch younger
    assert compare(batch, dataset).seq == depth
    b.release(batch)
    fails(E_LEASES, b.next)
    fails(E_LEASES, a.next, 0)
    for stream in a, b:
        compare(kept[stream], dataset)
        stream.release(kept[stream])
    for i in range(depth, 5 * depth):
        for stream in a, b:
            if (stream, i) == (b, depth):
                continue
            batch = stream.next()
            assert compare(batch, dataset).seq == i
            stream.release(batch)


@scenario
def hoarders(path, dataset):
    """Members that keep batches as they please, and give back the oldest one only when told: nobody waits for good."""
    count, batches = 4, 400
    failures, seen = [], [[] for _ in range(count)]

    def run(number):
        try:
            rng = random.Random(number)
            stream = join(path, members=count, depth=4)
            held = []
            while len(seen[number]) < batches:
                try:
                    batch = stream.next(10000)
                except Failure as failure:
                    assert failure.status == E_LEASES, failure
                    stream.release(held.pop(0))
                    continue
                seen[number].append(compare(batch, dataset).seq)
                if rng.random() < 0.5:
                    held.append(batch)
                else:
                    stream.release(batch)
                if held and rng.random() < 0.3:
                    stream.release(held.pop(rng.randrange(len(held))))
                if rng.random() < 0.05:
                    time.sleep(0.005)
            stream.close()
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert seen == [list(range(batches))] * count


@scenario
def counts(path, dataset):
    """Every member is told how many they are."""
    a = join(path)
    a.release(a.next())
    assert a.stats().members == 1
    b = join(path)
    for stream, due in (a, 2), (b, 2):
        while stream.stats().members != due:
            stream.release(stream.next())
            (a if stream is b else b).release((a if stream is b else b).next())
    b.close()
    while a.stats().members != 1:
        a.release(a.next())


def away(path):
    """Tells the test that the daemon may go now, and waits until it is back."""
    print("ready", flush=True)
    assert sys.stdin.readline() == "go on\n"


@scenario
def held_over_a_restart(path, dataset):
    """What is held stays readable and unchanged, and can be given back; the stream goes on behind what was taken."""
    stream = Client(path).open("train", share=BROADCAST, reconnect=1)
    held, seqs = [], []

    def take():
        batch = stream.next()
        i = compare(batch, dataset)
        seqs.append((i.seq, i.epoch, i.position))
        held.append((batch, seqs[-1], list(i.indices[: i.count])))

    for _ in range(5):
        take()
    away(path)
    while stream.stats().ready:  # announced before the daemon went
        stream.release(held.pop(0)[0])
        take()
    kept = held[:]
    for _ in range(150):
        take()
        stream.release(held.pop()[0])
        for batch, seq, indices in kept:
            i = compare(batch, dataset)
            assert ((i.seq, i.epoch, i.position), list(i.indices[: i.count])) == (seq, indices)
    assert stream.stats().reconnects == 1 and stream.stats().held == len(kept) == 5
    steps = [(p.epoch, p.position) for p in oracle.plan(dataset.count, 16, "partial", 5)]
    assert seqs == [(seq, *steps[seq]) for seq in range(len(seqs))]
    for batch, *_ in kept:
        stream.release(batch)
        fails(E_STATE, stream.release, batch)
    assert stream.stats().held == 0
    stream.close()


@scenario
def no_daemon(path, dataset):
    """Nobody comes back: FEEDD_E_TIMEOUT until the patience of the options is over, then FEEDD_E_CONNECTION."""
    stream = Client(path).open("train", reconnect=1, reconnect_timeout_ms=1500)
    stream.release(stream.next())
    away(path)
    while stream.stats().ready:
        stream.release(stream.next())
    began = time.monotonic()
    fails(E_TIMEOUT, stream.next, 0)
    fails(E_TIMEOUT, stream.next, 100)
    assert time.monotonic() - began < 0.5
    assert "come back" in fails(E_CONNECTION, stream.next, -1)
    assert 1 < time.monotonic() - began < 4
    fails(E_CONNECTION, stream.next, 0)


@scenario
def without_reconnect(path, dataset):
    """Who doesn't ask for it is told at once."""
    stream = Client(path).open("train")
    stream.release(stream.next())
    away(path)
    while stream.stats().ready:
        stream.release(stream.next())
    fails(E_CONNECTION, stream.next, -1)


@scenario
def poll_over_a_restart(path, dataset):
    """feedd_stream_fd() stays the same descriptor, and wakes its caller also when the daemon is back."""
    stream = Client(path).open("train", reconnect=1)
    fd = stream.fd()
    poll = select.poll()
    poll.register(fd, select.POLLIN)

    def read(count):
        taken = 0
        while taken < count:
            assert poll.poll(10000), "not woken"
            try:
                batch = stream.next(0)
            except Failure as failure:
                assert failure.status == E_TIMEOUT, failure
                continue
            assert compare(batch, dataset).seq == len(seen)
            seen.append(batch)
            stream.release(batch)
            taken += 1

    seen = []
    read(20)
    away(path)
    read(100)
    assert stream.fd() == fd and stream.stats().reconnects == 1


if __name__ == "__main__":
    name, path, images, labels = sys.argv[1:]
    SCENARIOS[name](path, oracle.Dataset(Path(images), Path(labels)))
