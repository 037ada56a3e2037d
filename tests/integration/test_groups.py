"""Broadcast groups: a member gets every batch from where it joins, whoever else comes, waits, stands still or dies."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import harness
import oracle
import pytest
from crowd import BROADCAST, GATE, NEXT_EPOCH, NOW, Crowd, finish, finish_all, forked, kill, wait_printed
from neighbour import Neighbour
from oracle import check_batches, check_permutation, plan
from rawclient import E_ARGUMENT, E_LIMIT, E_TIMEOUT, ERROR, Client, Stream, refusal
from test_library import python_environment

HERE = Path(__file__).parent
TRAIN = {"dataset": "small", "batch_size": 16, "order": "shuffle", "seed": 1, "tail": "partial", "depth": 8}
STEPS = 63  # batches of an epoch of TRAIN


@pytest.fixture
def feedd(daemons, small, tiny):
    return daemons(
        {
            "datasets": {
                "small": small.config(),
                "tiny": tiny.config(),
                "halves": small.config(splits={"a": 0.5, "b": 0.5}),
            },
            "streams": {
                "train": TRAIN,
                "flipped": {**TRAIN, "transform": {"flip": 0.5}},
                "strict": {**TRAIN, "on_error": "fail"},
                "other": {**TRAIN, "dataset": "tiny"},
                "half-a": {**TRAIN, "dataset": "halves/a"},
                "half-b": {**TRAIN, "dataset": "halves/b"},
                "configured": {**TRAIN, "share": "broadcast", "members": 2},
            },
        }
    )


@pytest.fixture
def members(feedd):
    """Opens members by hand, each with a connection of its own."""
    with contextlib.ExitStack() as stack:

        def join(source="train", **options):
            client = stack.enter_context(Client(feedd.socket, name=options.pop("name", "member")))
            stream = Stream(client, source, share=BROADCAST, **options)
            stack.callback(stream.close_fds)
            return stream

        yield join


def take(stream, count):
    """The next batches, given back."""
    batches = []
    for _ in range(count):
        batch = stream.next()
        stream.release(batch)
        batches.append(batch)
    return batches


def take_equal(streams, count):
    """Members read in turn: the same batches. @return them"""
    rows = [[take(stream, 1)[0] for stream in streams] for _ in range(count)]
    for first, *others in rows:
        for other in others:
            assert other == first
    return [row[0] for row in rows]


def stream_report(feedd, group="train"):
    return next(s for s in feedd.report()["streams"] if s["group"] == group)


def quiet(stream, seconds=0.5):
    """Nothing is published to this member."""
    with pytest.raises(TimeoutError):
        while True:
            stream.take_packet(stream.client.receive(seconds))
            assert not stream.ready


# ---- the same for all ----


@pytest.mark.tsan
@pytest.mark.parametrize("count", [2, 4])
def test_every_member_gets_every_batch(feedd, small, count):
    with Crowd(feedd) as crowd:
        batches = finish_all(crowd.start_all(count, "train", "--epochs", 4))
    order = {}
    check_batches(batches, plan(1000, 16, "partial", 4), small, order)
    for epoch in range(4):
        check_permutation(order[epoch], 1000)


def test_as_configured(feedd, small):
    """share and members from the configuration: the second one opens the gate."""
    with Crowd(feedd) as crowd:
        processes = [crowd.start("configured", "--epochs", 1) for _ in range(2)]
        check_batches(finish_all(processes), plan(1000, 16, "partial", 1), small, {})


def test_one_decode_for_all(feedd, members):
    streams = [members(members=3) for _ in range(3)]
    take_equal(streams, 30)
    report = feedd.report()
    assert len(report["streams"]) == 1 and report["datasets"][0]["users"] == 1
    mine = report["streams"][0]
    assert (mine["share"], mine["group"], mine["members"], mine["members_max"]) == ("broadcast", "train", 3, 3)
    # No memory of the members' own; and each knows how many they are.
    assert report["memory"]["ring_bytes"] == mine["ring_bytes"]
    assert [stream.members for stream in streams] == [3, 3, 3]


@pytest.mark.parametrize("scenario", ["crosswise", "hoarders", "counts"])
def test_scenario(feedd, small, scenario):
    """Of libfeedd's: see group_scenarios.py."""
    done = subprocess.run(
        [sys.executable, HERE / "group_scenarios.py", scenario, feedd.socket, small.images_path, small.labels_path],
        env=python_environment(),
        capture_output=True,
        timeout=60,
    )
    harness.check_output(done.stderr, scenario)
    assert done.returncode == 0, done.stderr.decode()


# ---- joining ----


@pytest.mark.tsan
def test_join_now(feedd, members):
    """From the next batch that is published: those that are there already are not the newcomer's."""
    first = members()
    head = take(first, 10)
    report = feedd.wait_report(lambda r: r["streams"][0]["ready"] == 8, what="a full ring")
    published = report["streams"][0]["batches"]
    assert published == 18
    late = members(join=NOW)
    quiet(late)
    behind = take(first, published - 10)
    together = take_equal([first, late], 100)
    assert [b.seq for b in head + behind + together] == list(range(published + 100))


@pytest.mark.tsan
def test_gate(feedd, members):
    streams = [members(members=3) for _ in range(2)]
    late = members(members=3, name="unmapped", attach=False)
    for stream in streams:
        quiet(stream)
    mine = stream_report(feedd)
    assert mine["batches"] == 0 and mine["bottleneck"]["stage"] == "gate" and "of 3" in mine["bottleneck"]["text"]
    late.attach()  # only who has mapped the ring is there
    batches = take_equal([*streams, late], 2 * STEPS)
    assert [b.seq for b in batches] == list(range(2 * STEPS))


def test_gate_timeout(feedd, members):
    """The gate doesn't open: every member is told, and the group can be made anew."""
    waiting = [members(members=3, gate_timeout_ms=1500) for _ in range(2)]
    began = time.monotonic()
    for stream in waiting:
        while (packet := stream.client.expect_any()).type != ERROR:
            stream.take_packet(packet)
        refused = refusal(packet)
        assert (refused.status, refused.stream) == (E_TIMEOUT, stream.number)
        for word in "train", "2 of 3 members", "gate":
            assert word in refused.message, refused.message
    assert 1 < time.monotonic() - began < 5
    take_equal([members(members=2) for _ in range(2)], 20)


def test_gate_survives_a_death(feedd, members):
    """Who dies before the gate opens is not counted; another may come."""
    waiting = members(members=2, gate_timeout_ms=20000)
    with Client(feedd.socket) as client:
        Stream(client, "train", share=BROADCAST, members=2, attach=False).close_fds()
    feedd.wait_report(lambda r: r["streams"][0]["members"] == 1, what="its leave")
    quiet(waiting)
    take_equal([waiting, members(members=2)], 20)


@pytest.mark.tsan
def test_join_next_epoch(feedd, members):
    first = members()
    take(first, 10)
    late = members(join=NEXT_EPOCH)
    quiet(late)
    rest = take(first, STEPS - 10)
    assert rest[-1].next == (1, 0)
    batches = take_equal([first, late], 2 * STEPS)
    assert (batches[0].epoch, batches[0].position, batches[0].seq) == (1, 0, STEPS)
    assert [b.seq for b in batches] == list(range(STEPS, 3 * STEPS))


def test_join_next_epoch_alone(feedd, members):
    """At the start of an epoch there is nothing to wait for; and nobody has to read what is left of one."""
    first = members(join=NEXT_EPOCH)
    assert take(first, 1)[0].position == 0
    late = members(join=NEXT_EPOCH)
    quiet(late)
    first.client.close()  # the rest of the epoch is for nobody
    batches = take(late, STEPS)
    assert (batches[0].epoch, batches[0].position) == (1, 0) and batches[-1].next == (2, 0)


@pytest.mark.parametrize(
    "field, of_group, asked",
    [
        ("batch_size", {}, {"batch_size": 17}),
        ("order", {}, {"order": oracle.SEQUENTIAL}),
        ("tail", {}, {"tail": oracle.PAD}),
        ("seed", {}, {"seed": 2}),
        ("epochs", {}, {"epochs": 7}),
        ("rank", {"world_size": 2}, {"world_size": 2, "rank": 1}),
        ("world_size", {}, {"world_size": 2}),
        ("depth", {}, {"depth": 9}),
        ("members", {"members": 2, "join": NOW}, {"members": 3, "join": NOW}),
        ("dataset", {}, {"source": "other"}),
        ("transform", {}, {"source": "flipped"}),
        ("on_error", {}, {"source": "strict"}),
        ("split a", {"source": "half-a"}, {"source": "half-b"}),
    ],
)
def test_another_spec_is_refused(feedd, members, field, of_group, asked):
    """With the name of the field; nothing happens to the group, and who asks for the same is let in."""
    first = members(**{"source": "train", "group": "g", **of_group})
    with Client(feedd.socket) as client:
        client.open(**{"source": "train", "group": "g", "share": BROADCAST, **asked})
        client.expect_refusal(E_ARGUMENT, "group 'g'", field)
    assert take(first, 3)[-1].seq == 2
    if field != "members":
        members(**{"source": "train", "group": "g", **of_group})


def test_depth_of_the_rule(members):
    """Who names no depth takes the ring that there is; who names it has to name the one that the rule made."""
    rule = members(source="small")
    members(source="small", depth=rule.depth)
    members(source="small")
    named = members(source="small", group="named", depth=5)
    assert named.depth == 5 and members(source="small", group="named").depth == 5


def test_full(feedd, members):
    streams = [members(members=2) for _ in range(2)]
    take_equal(streams, 3)
    with Client(feedd.socket) as client:
        client.open("train", share=BROADCAST, members=2)
        client.expect_refusal(E_LIMIT, "group 'train'", "all its 2 members")
    streams[1].client.close()
    feedd.wait_report(lambda r: r["streams"][0]["members"] == 1, what="room")
    again = members(members=2)  # the gate has been opened: it joins now
    first = take(streams[0], 10)
    began = take(again, 1)[0].seq
    assert began > 2 and began in [b.seq for b in first]


def test_what_makes_no_sense(feedd):
    with Client(feedd.socket) as client:
        for words, options in (
            (("share 3", "allowed"), {"share": 3}),
            (("join 4", "allowed"), {"share": BROADCAST, "join": 4}),
            (("gate", "members"), {"share": BROADCAST, "join": GATE}),
            (("share = broadcast",), {"members": 2}),
            (("share = broadcast",), {"join": NOW}),
            (("share = broadcast",), {"group": "g"}),
            (("256 bytes", "255"), {"share": BROADCAST, "group": "g" * 256}),
            (("members 1025", "1024"), {"share": BROADCAST, "members": 1025}),
        ):
            client.open("train", **options)
            client.expect_refusal(E_ARGUMENT, *words)


def test_groups_are_independent(feedd, members, small):
    """Of two groups with the same spec one stands still; the other, and a private stream, go on."""
    still, also_still = members(group="still", members=2), members(group="still", members=2)
    moving = [members(group="moving", members=2) for _ in range(2)]
    take_equal([still, also_still], 5)
    with Neighbour(feedd, small) as neighbour:
        batches = take_equal(moving, 2 * STEPS)
        neighbour.read(50)
    assert [b.seq for b in batches] == list(range(2 * STEPS))
    assert stream_report(feedd, "still")["batches"] == 5 + 8
    assert [b.seq for b in take_equal([still, also_still], 20)] == list(range(5, 25))


def test_ends_for_all(feedd, members):
    """END comes to each behind its last batch; who joins afterwards makes the group anew."""
    streams = [members(members=2, epochs=1) for _ in range(2)]
    take_equal(streams, STEPS)
    assert [stream.next() for stream in streams] == [None, None]
    take_equal([members(members=2, epochs=1) for _ in range(2)], STEPS)


# ---- deaths ----


@pytest.mark.tsan
def test_gone_with_several_members(feedd, members):
    """A client that is a member three times over, and goes before it is told that the stream is open."""
    for _ in range(5):
        with Client(feedd.socket) as client:
            client.socket.shutdown(socket.SHUT_RD)  # the daemon can still read, and its next send fails
            with contextlib.suppress(BrokenPipeError):  # it may be told, and closed, before the last one
                for _ in range(3):
                    client.open("train", share=BROADCAST, members=4)
            feedd.wait_report(lambda r: not r["clients"] and not r["streams"], what="nothing left")
    take_equal([members(members=2) for _ in range(2)], 20)


@pytest.mark.tsan
def test_gone_with_several_members_before_the_gate_fails(feedd, members):
    """Likewise, and the first that it would be told is that the gate stays closed."""
    for _ in range(3):
        with Client(feedd.socket) as client:
            streams = [
                Stream(client, "train", share=BROADCAST, members=4, gate_timeout_ms=100, attach=False) for _ in range(3)
            ]
            client.socket.shutdown(socket.SHUT_RD)
            feedd.wait_report(lambda r: not r["clients"] and not r["streams"], what="nothing left")
            for stream in streams:
                stream.close_fds()
    take_equal([members(members=2) for _ in range(2)], 20)


@pytest.mark.tsan
def test_killed(feedd, small):
    """Members are killed at random moments: those that are left lose and repeat nothing."""
    rng = random.Random(4)
    with Crowd(feedd) as crowd, Neighbour(feedd, small) as neighbour:
        processes = crowd.start_all(5, "train", "--epochs", 6, "--pause", 2)
        for process in processes[:3]:
            time.sleep(rng.uniform(0.05, 0.3))
            had = kill(process)
            check_batches(had, plan(1000, 16, "partial", 6)[: len(had)], small, {})
            neighbour.read(5)
        check_batches(finish_all(processes[3:]), plan(1000, 16, "partial", 6), small, {})
    feedd.wait_report(lambda r: not r["streams"] and r["memory"]["ring_bytes"] == 0, what="nothing left")


def test_killed_while_it_holds_up_the_others(feedd, members, small):
    """One holds a whole ring, so that nobody gets on; its death is what the others wait for."""
    survivors = [members(members=3) for _ in range(2)]

    def hold(told):
        stream = Stream(Client(feedd.socket), "train", share=BROADCAST, members=3)
        for _ in range(4):
            stream.next()
        os.write(told, b"!")
        time.sleep(60)

    with forked(hold) as pid:
        head = take_equal(survivors, 8)
        for stream in survivors:
            quiet(stream, 0.3)
        os.kill(pid, signal.SIGKILL)
        batches = head + take_equal(survivors, 2 * STEPS)
    assert [b.seq for b in batches] == list(range(8 + 2 * STEPS))


def test_exit_without_close(feedd, members):
    survivors = [members(members=3) for _ in range(2)]

    def leave(told):
        stream = Stream(Client(feedd.socket), "train", share=BROADCAST, members=3)
        take(stream, 5)
        stream.next()
        os.write(told, b"!")

    with forked(leave):
        batches = take_equal(survivors, 2 * STEPS)
    assert [b.seq for b in batches] == list(range(2 * STEPS))
    feedd.wait_report(lambda r: r["streams"][0]["members"] == 2, what="its leave")


def test_parent_of_a_fork_killed(feedd, members):
    """A child still has the socket, so that end of file never comes: the process is what counts."""
    survivors = [members(members=3) for _ in range(2)]

    def fork(told):
        stream = Stream(Client(feedd.socket), "train", share=BROADCAST, members=3)
        stream.next()
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        os.write(told, b"!" + child.to_bytes(4, "little"))
        time.sleep(60)

    with forked(fork) as pid:
        child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        try:
            head = take_equal(survivors, 8)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            batches = head + take_equal(survivors, STEPS)
            assert any("socket:" in os.readlink(f"/proc/{child}/fd/{fd}") for fd in os.listdir(f"/proc/{child}/fd"))
        finally:
            os.kill(child, signal.SIGKILL)
    assert [b.seq for b in batches] == list(range(8 + STEPS))


@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL])
def test_stopped(feedd, small, then):
    """Survivors wait, status says for whom after 5 s, and they go on when it does, or dies."""
    with Crowd(feedd) as crowd:
        processes = crowd.start_all(3, "train", "--epochs", 4, "--pause", 2)
        for process in processes:
            wait_printed(process, 10)
        stopped = processes.pop(1)
        stopped.send_signal(signal.SIGSTOP)

        def named(report):
            b = report["streams"][0]["bottleneck"]
            return b["stage"] == "client" and f"feedctl[{stopped.pid}] holds up the other 2" in b["text"]

        began = time.monotonic()
        feedd.wait_report(named, 9, "the name of the one that stands still")
        assert time.monotonic() - began > 4
        first_line = feedd.feedctl("status").stdout.decode().splitlines()[0]
        assert f"feedctl[{stopped.pid}]" in first_line
        before = stream_report(feedd)["batches"]
        time.sleep(max(0, began + 10 - time.monotonic()))
        assert stream_report(feedd)["batches"] == before
        assert all(process.poll() is None for process in processes)
        stopped.send_signal(then)
        batches = finish_all(processes)
        check_batches(batches, plan(1000, 16, "partial", 4), small, {})
        if then == signal.SIGCONT:
            assert finish(stopped) == batches
