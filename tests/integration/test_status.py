"""The status report says what is so."""

import os

from rawclient import Client, Stream, encode


def test_report(feedd, small, tiny):
    """Every figure of one client with two streams, of which it has taken, held and given back so many batches."""
    report = feedd.report()
    assert report["bottleneck"]["stage"] == "idle" and report["streams"] == report["clients"] == []
    assert [d["name"] for d in report["datasets"]] == ["small", "tiny"]
    assert all((d["state"], d["users"], d["reader"]) == ("closed", 0, "idx") for d in report["datasets"])
    with Client(feedd.socket, name="looked at") as client:
        one = Stream(client, "train", depth=6)
        batches = [one.next() for _ in range(6)]
        one.release(*batches[:2])
        batches += [one.next() for _ in range(2)]
        two = Stream(client, "tiny", attach=False, batch_size=10, rank=1, world_size=2, tail=2, epochs=9, seed=5)
        report = feedd.wait_report(lambda r: r["streams"][1]["filled"] == 45, what="the second stream's batches")

        daemon = report["daemon"]
        assert (daemon["pid"], daemon["workers"], daemon["refused"]) == (feedd.pid, 2, 0)
        assert (daemon["config"], daemon["socket"]) == (str(feedd.config), str(feedd.socket))
        assert 0 <= daemon["uptime_s"] < 100 and 0 <= daemon["workers_busy"] <= 1
        for dataset, files in zip(report["datasets"], (small, tiny), strict=True):
            assert (dataset["state"], dataset["users"], dataset["samples"]) == ("open", 1, files.count)
            exact = files.images.nbytes + files.labels.nbytes
            assert exact <= dataset["memory_bytes"] < exact + 64
        memory = report["memory"]
        assert memory["dataset_bytes"] == sum(d["memory_bytes"] for d in report["datasets"])
        assert memory["ring_bytes"] == sum(s.ring_bytes + s.meta_bytes for s in (one, two))
        assert [s["ring_bytes"] for s in report["streams"]] == [s.ring_bytes + s.meta_bytes for s in (one, two)]

        first, second = report["streams"]
        assert (first["state"], first["order"], first["seed"], first["tail"]) == ("running", "shuffle", 1, "partial")
        assert (first["batch_size"], first["rank"], first["world_size"], first["depth"]) == (64, 0, 1, 6)
        assert (first["ready"], first["filling"], first["filled"]) == (6, 0, 0)
        assert (first["batches"], first["samples"], first["epoch"], first["position"]) == (8, 512, 0, 512)
        assert (second["dataset"], second["order"], second["seed"], second["tail"]) == ("tiny", "sequential", 5, "pad")
        assert (second["rank"], second["world_size"], second["epochs"]) == (1, 2, 9)
        assert (second["state"], second["batches"], second["ready"], second["filled"]) == ("running", 0, 0, 45)
        assert [(s["share"], s["group"], s["members"]) for s in report["streams"]] == [("private", None, 1)] * 2

        (shown,) = report["clients"]
        assert (shown["name"], shown["pid"], shown["uid"]) == ("looked at", os.getpid(), os.getuid())
        assert (shown["state"], shown["queued"]) == ("serving", 0)
        mine = {s["source"]: s for s in shown["streams"]}
        assert [mine["train"][key] for key in ("state", "held", "untold", "released")] == ["active", 6, 0, 2]
        assert [mine["tiny"][key] for key in ("state", "held", "untold", "released")] == ["joining", 0, 0, 0]
        for stream in one, two:
            stream.close_fds()


def test_refused_is_counted(feedd):
    for count in 1, 2, 3:
        with Client(feedd.socket) as client:
            client.send(77)
            assert client.receive() and client.receive() is None
        assert feedd.report()["daemon"]["refused"] == count


def test_text(feedd):
    """The first line says what holds things up; datasets, streams and clients are named."""
    with Client(feedd.socket, name="somebody") as client:
        stream = Stream(client, "tiny", depth=4)
        while len(stream.ready) < 4:
            stream.take_packet(client.receive())
        feedd.wait_report(lambda r: r["bottleneck"]["stage"] == "client", what="the client as bottleneck")
        done = feedd.feedctl("status")
        assert (done.returncode, done.stderr) == (0, b"")
        lines = done.stdout.decode().splitlines()
        assert lines[0].startswith("client: somebody[") and "4 of 4 batches" in lines[0]
        assert lines[1].startswith("feedd 0.1.0, pid ") and "2 workers" in lines[1]
        assert any(line.startswith("tiny ") and " open " in line for line in lines)
        assert any("somebody" in line and str(os.getpid()) in line for line in lines[2:])
        stream.close_fds()


def test_odd_names(feedd):
    """Whatever a client calls itself, the report is JSON, and a terminal shows it harmlessly."""
    with Client(feedd.socket, hello=False) as client:
        client.send(1, encode({1: b'\xff"\\\x1b]0;\x07\xc3'}))
        client.expect(2)
        assert feedd.report()["clients"][0]["name"] == '?"\\?]0;??'
        assert all(line.isprintable() for line in feedd.feedctl("status").stdout.decode().splitlines())
