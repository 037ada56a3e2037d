"""Restarts of the daemon under clients that asked to survive them: each gets every sample once, and in order."""

import contextlib
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import harness
import pytest
from crowd import BROADCAST, Crowd, failure, finish, finish_all, kill, printed, wait_printed
from oracle import SHUFFLE, Token, check_batches, check_permutation, plan
from rawclient import Client, Stream
from test_library import python_environment

HERE = Path(__file__).parent
TRAIN = {"dataset": "small", "batch_size": 16, "order": "shuffle", "seed": 1, "tail": "partial", "depth": 8}


@pytest.fixture
def config(small, tiny):
    return {"datasets": {"small": small.config(), "tiny": tiny.config()}, "streams": {"train": TRAIN}}


@pytest.fixture
def feedd(daemons, config):
    return daemons(config)


def check_all(batches, dataset, epochs):
    """The batches of so many epochs: each sample once in each."""
    order = {}
    check_batches(batches, plan(1000, 16, "partial", epochs), dataset, order)
    for epoch in range(epochs):
        check_permutation(order[epoch], 1000)


def restart(feedd, away_s=0.0):
    feedd.kill()
    time.sleep(away_s)
    feedd.start()


@pytest.mark.tsan
def test_restarted_at_random_moments(feedd, small):
    """kill -9 of the daemon, twenty times, under four members that are differently slow."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    epochs = 15
    restarts = 0
    with Crowd(feedd) as crowd:
        members = [
            crowd.start("train", "--members", 4, "--epochs", epochs, "--reconnect", "--pause", pause)
            for pause in (5, 12, 8, 10)
        ]
        for member in members:  # opening isn't covered: feedd_next() is what comes back
            wait_printed(member, 1)
        for _ in range(20):
            time.sleep(rng.choice((0, rng.uniform(0, 0.1), rng.uniform(0, 0.6))))
            restarts += all(member.poll() is None for member in members)
            restart(feedd, rng.uniform(0, 0.1))
        check_all(finish_all(members, 60), small, epochs)
    assert restarts == 20, "the members were done before the restarts were"


def test_stopped_and_started(feedd, small):
    """SIGTERM, as an upgrade does it."""
    with Crowd(feedd) as crowd:
        members = crowd.start_all(3, "train", "--epochs", 3, "--reconnect", "--pause", 5)
        for count in 20, 60, 110:
            wait_printed(members[0], count)
            feedd.stop()
            feedd.start()
        check_all(finish_all(members), small, 3)


@pytest.mark.parametrize("count", [1, 3])
def test_batches_outlive_the_daemon(feedd, small, count):
    """What has been announced stays as it is, when the daemon is asked to stop too: it must not fill it anew."""
    share = {"share": BROADCAST, "members": count} if count > 1 else {}
    for _ in range(5):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Client(feedd.socket)) for _ in range(count)]
            streams = [Stream(client, "train", **share) for client in clients]
            held = [[stream.next() for _ in range(8)] for stream in streams]
            feedd.stop()
            for stream, batches in zip(streams, held, strict=True):
                for batch in batches:
                    at = batch.slot * stream.slot_bytes
                    image = stream.ring[at : at + len(batch.fields["image"])]
                    assert image == batch.fields["image"] == small.fields(batch.indices)["image"], batch.seq
                stream.close_fds()
        feedd.start()


@pytest.mark.tsan
def test_private_streams(feedd, small):
    """Each goes on where it stood."""
    with Crowd(feedd) as crowd:
        alone = [
            crowd.start("train", "--epochs", 3, "--reconnect", "--pause", pause, share="private") for pause in (3, 10)
        ]
        for count in 10, 50:
            wait_printed(alone[1], count)
            restart(feedd, 0.2)
        for process in alone:
            check_all(finish(process), small, 3)


def test_member_that_does_not_come_back(feedd, small):
    """Killed while the daemon is away: the others wait 10 s for it, then go on without."""
    with Crowd(feedd) as crowd:
        members = crowd.start_all(3, "train", "--epochs", 3, "--reconnect", "--pause", 5)
        for member in members:
            wait_printed(member, 30)
        feedd.kill()
        kill(members.pop(1))
        began = time.monotonic()
        counts = [len(printed(member)) for member in members]
        feedd.start()
        wait_printed(members[0], counts[0] + 20)
        assert 9 < time.monotonic() - began < 13
        check_all(finish_all(members), small, 3)
    feedd.wait_log("formed again with 2 members")


@pytest.mark.parametrize("raw_first", [False, True])
def test_member_behind_the_others(feedd, small, raw_first):
    """The group goes back to where the last one stands, whoever is back first; those ahead get nothing twice.

    One member is made by hand: what it has been told of is more than it says.
    """
    steps = plan(1000, 16, "partial", 2)
    with Crowd(feedd) as crowd:
        member = crowd.start("train", "--members", 2, "--epochs", 2, "--reconnect", "--pause", 2)
        with Client(feedd.socket) as client:
            stream = Stream(client, "train", share=BROADCAST, members=2, epochs=2)
            for _ in range(30):
                stream.release(stream.next())
            wait_printed(member, 30)
            first = stream.answer
            stream.close_fds()
            if raw_first:
                member.send_signal(harness.signal.SIGSTOP)
            restart(feedd)
        back = {
            "incarnation": first.one(26),
            "incarnation_members": 2,
            "resume": Token(SHUFFLE, 1000, first.one(5), 1, 0, 160).text(),
        }
        if not raw_first:
            feedd.wait_report(lambda r: r["clients"] and r["clients"][0]["streams"], what="the other")
        with Client(feedd.socket) as client:
            if raw_first:  # the answer comes when both are back: SIGCONT has to come in between
                threading.Timer(0.5, member.send_signal, [harness.signal.SIGCONT]).start()
            stream = Stream(client, "train", share=BROADCAST, members=2, epochs=2, **back)
            for step in steps[10:]:
                batch = stream.next()
                assert (batch.epoch, batch.position) == (step.epoch, step.position)
                stream.release(batch)
            assert stream.next() is None
            stream.close_fds()
        check_all(finish(member), small, 2)


@pytest.mark.parametrize("newcomer_first", [False, True])
def test_restarted_before_the_gate_opens(feedd, small, newcomer_first):
    """Nobody has had anything: the group waits for its third member as before, whoever is back first."""
    args = ("--members", 3, "--epochs", 1, "--reconnect")
    with Crowd(feedd) as crowd:
        members = [crowd.start("train", *args) for _ in range(2)]
        feedd.wait_report(
            lambda r: [s["state"] for c in r["clients"] for s in c["streams"]] == ["waiting"] * 2,
            what="two at the gate",
        )
        if newcomer_first:
            for member in members:
                member.send_signal(harness.signal.SIGSTOP)
        restart(feedd)
        if not newcomer_first:
            feedd.wait_report(lambda r: r["streams"] and r["streams"][0]["members"] == 2, what="two members")
        members.append(crowd.start("train", *args))
        if newcomer_first:
            feedd.wait_report(lambda r: r["streams"] and r["streams"][0]["members"] == 1, what="one member")
            for member in members[:2]:
                member.send_signal(harness.signal.SIGCONT)
        check_all(finish_all(members, 30), small, 1)


def test_daemon_away_for_long(feedd, small):
    with Crowd(feedd) as crowd:
        members = crowd.start_all(2, "train", "--epochs", 2, "--reconnect", "--pause", 2)
        wait_printed(members[0], 20)
        restart(feedd, 4)
        check_all(finish_all(members), small, 2)


@contextlib.contextmanager
def scenario(feedd, dataset, name):
    """One of group_scenarios.py, up to where the daemon may go."""
    process = subprocess.Popen(
        [sys.executable, HERE / "group_scenarios.py", name, feedd.socket, dataset.images_path, dataset.labels_path],
        env=python_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        yield
        _, errors = process.communicate("go on\n", timeout=60)
        harness.check_output(errors.encode(), name)
        assert process.returncode == 0, errors
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", ["held_over_a_restart", "poll_over_a_restart"])
def test_scenario(feedd, small, name):
    with scenario(feedd, small, name):
        restart(feedd)


@pytest.mark.parametrize("name", ["no_daemon", "without_reconnect"])
def test_scenario_without_a_daemon(feedd, small, name):
    with scenario(feedd, small, name):
        feedd.kill()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"streams": {"train": {**TRAIN, "dataset": "tiny"}}}, ["dataset"]),
        ({"streams": {"train": {**TRAIN, "transform": {"flip": 0.5}}}}, ["another way"]),
        ({"streams": {}}, ["'train'"]),
    ],
    ids=["dataset", "transform", "no stream"],
)
@pytest.mark.parametrize("share", ["private", "broadcast"])
def test_another_configuration(feedd, daemons, config, small, share, change, words):
    """A daemon that comes back serving something else is refused with one clear line, after what was right."""
    with Crowd(feedd) as crowd:
        process = crowd.start("train", "--epochs", 20, "--reconnect", "--pause", 2, share=share)
        wait_printed(process, 10)
        feedd.kill()
        again = daemons({**config, **change}, name=feedd.folder.name)
        assert again.socket == feedd.socket
        batches, _ = failure(process, *words)
        check_batches(batches, plan(1000, 16, "partial", 20)[: len(batches)], small, {})


def test_defaults_of_the_configuration_may_change(feedd, daemons, config, small):
    """What was effective when the stream was opened holds."""
    with Crowd(feedd) as crowd:
        process = crowd.start("train", "--epochs", 2, "--reconnect", "--pause", 2)
        wait_printed(process, 10)
        feedd.kill()
        daemons(
            {**config, "streams": {"train": {**TRAIN, "batch_size": 50, "seed": 9, "order": "sequential", "depth": 4}}},
            name=feedd.folder.name,
        )
        check_all(finish(process), small, 2)


def test_who_comes_too_late(feedd, small):
    """Stopped over the restart, for longer than the group waits: it would have missed batches, and is told so."""
    with Crowd(feedd) as crowd:
        members = crowd.start_all(2, "train", "--epochs", 8, "--reconnect", "--pause", 5)
        for member in members:
            wait_printed(member, 30)
        late = members.pop()
        late.send_signal(harness.signal.SIGSTOP)
        restart(feedd)
        feedd.wait_log("formed again with 1 members", seconds=15)
        count = len(printed(members[0]))
        wait_printed(members[0], count + 30)
        late.send_signal(harness.signal.SIGCONT)
        batches, line = failure(late, "group 'train'", "while feedd was away")
        assert re.search(r"epoch \d+, position \d+", line)
        check_batches(batches, plan(1000, 16, "partial", 8)[: len(batches)], small, {})
        check_all(finish(members[0]), small, 8)
