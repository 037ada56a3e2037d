"""sections.py - what run.sh runs: feedd on a GPU, section by section, checked and measured.

Usage: sections.py --bundle DIR [--quick] [--fake] [SECTION...]

Happy path: datasets of random pixels are made, then each section starts the daemons and clients that it needs, prints a
line for each verdict as it comes, and one for the table at the end.
What can fail: a section, or a step of it; it says why, and the next one begins. Without a GPU every section that needs
one is skipped. --fake: the programs are built with the fake CUDA runtime: everything runs small, figures have no goals.
"""

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from modes import Modes
from rig import Both, Rig, Skipped, checksum, interrupted, median, write_idx

MIB = 1 << 20
DEPTH_MAX = 1024  # FEEDD_MAX_DEPTH
USERS = (1001, 1002)  # the daemon's and the client's; they need no entry in passwd


class Sections(Modes):
    def __init__(self, rig):
        self.rig = rig
        self.fake = rig.fake
        data = rig.folder / "data"
        data.mkdir()
        digits = (2000 if self.fake else 60000, 28, 28)
        images = (256, 16, 16, 3) if self.fake else (256, 224, 224, 3)
        self.digits = write_idx(data / "digits", 1, *digits)
        self.labels = write_idx(data / "labels", 2, digits[0])
        write_idx(data / "images", 3, *images)
        write_idx(data / "odd", 4, 1000, 33, 17, 3)
        write_idx(data / "rgba", 5, 300, 31, 29, 4)
        self.image_bytes = images[1] * images[2] * images[3]
        self.config = {
            "daemon": {"ring_memory_max": "16G", "gpu_memory_max": "1G" if self.fake else "16G", "pinned_max": "16G"},
            "datasets": {
                "digits": {"reader": "idx", "images": str(data / "digits"), "labels": str(data / "labels")},
                "images": {"reader": "idx", "images": str(data / "images")},
                "odd": {"reader": "idx", "images": str(data / "odd")},
                "rgba": {"reader": "idx", "images": str(data / "rgba")},
            },
        }

    def start(self):
        return self.rig.daemon(self.config).start()

    def need_gpu(self):
        """@return bytes free on the GPU, as a process of its own sees them. Skips the section where there is none."""
        return self.rig.client("memory")["free"]

    def goal(self, s, reached, text):
        """A figure with a goal, which nothing has on the fake GPU."""
        if self.fake:
            s.line("PASS", f"{text} (no goal here)")
        else:
            s.check(reached, text)

    # ---- 1 ----

    def probes(self, s):
        """What the machine allows."""
        s.say(time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))
        s.say(f"{' '.join(os.uname()[i] for i in (0, 2, 4))}, {len(os.sched_getaffinity(0))} CPUs, uid {os.getuid()}")
        gpu = "the fake GPU" if self.fake else nvidia_smi(s)
        for name, probe in ("sealed memfds", seal), ("pidfd_open", pidfd), ("other users", become_another):
            try:
                probe()
                s.say(f"{name}: possible")
            except (OSError, Skipped) as error:
                s.say(f"{name}: {error}")
        s.say(f"compute-sanitizer: {compute_sanitizer() or 'not found'}")
        free = self.need_gpu()
        s.figure = f"{gpu}, {free // MIB} MiB free"
        s.line("PASS", "a GPU answers")

    # ---- 2 ----

    def correctness(self, s):
        self.need_gpu()
        try:
            process = self.rig.run("kernel_check 97" if self.rig.quick else "kernel_check")
            s.check(process.popen.returncode == 0, process.output().strip().splitlines()[-1])
        except Skipped as reason:
            s.skip(str(reason))
        daemon = self.start()
        for source, batch_size in ("digits", 64), ("images", 32), ("odd", 7):
            s.attempt(daemon, self.compare, source, batch_size)
        s.attempt(daemon, self.compare_files)
        daemon.wait_streams(0)
        daemon.stop()
        s.figure = f"{s.count()} equal"

    def compare(self, s, daemon, source, batch_size):
        """The GPU's batches with the host's."""
        batches = 2 if self.rig.quick else 6
        words = f"{source} --batch-size {batch_size} --order shuffle --seed 5 --batches {batches}"
        result = daemon.run(f"check {words}", codes=(0, 1))
        s.check(
            result["failed"] == 0 and result["batches"] == batches,
            f"check {source}: {result['cases']} cases, {result['values']} values, {result['failed']} failed",
        )
        on_gpu, on_host = (daemon.run(f"digest {words} --device {device}") for device in ("cuda", "host"))
        s.check(
            on_gpu["batches"] == on_host["batches"] and len(on_gpu["batches"]) == batches and on_gpu["device"] != "",
            f"digest {source}: {len(on_gpu['batches'])} batches, GPU and CPU equal",
        )
        cat = [daemon.feedctl(f"cat {words} --json --device {device}") for device in ("cuda", "host")]
        gpu_lines, host_lines = (text.splitlines()[:-1] for text in cat)
        s.check(
            gpu_lines == host_lines and len(gpu_lines) == batches,
            f"feedctl cat {source}: {len(gpu_lines)} batches, GPU and host equal",
        )

    def compare_files(self, s, daemon):
        """Nothing of ours but feedd and a kernel stands between the files and these checksums."""
        first = daemon.run("digest digits --batch-size 64 --batches 1")["batches"][0]["checksums"]
        labels = b"".join(label.to_bytes(8, "little") for label in self.labels[:64])
        expected = [f"{checksum(data):016x}" for data in (self.digits[: 64 * 28 * 28], labels)]
        s.check(first[:2] == expected, "the first digits and labels are those of the files, computed by Python")

    # ---- 3 ----

    def kernels(self, s):
        self.need_gpu()
        process = self.rig.run("bench_normalize_cuda")
        lines = process.output().strip().splitlines()
        for line in lines:
            s.say(line)
        s.figure = lines[-1].removeprefix("bench_normalize_cuda: ")
        s.check(process.popen.returncode == 0, "every dtype, layout and kind of window reaches its goal")

    # ---- 4 ----

    def throughput(self, s):
        self.need_gpu()
        daemon = self.start()
        figures = []
        for batch_size in 64, 128, 256:
            s.attempt(daemon, self.against_copies, batch_size, figures)
        s.attempt(daemon, self.small_batches, figures)
        daemon.wait_streams(0)
        daemon.stop()
        s.figure = "; ".join(figures)

    def feed(self, s, daemon, source, batch_size, seconds):
        """A client that takes all it can. @return its result"""
        feed = daemon.client(f"feed {source} --order shuffle --batch-size {batch_size} --seconds 600")
        return self.watch(s, daemon, [feed], seconds)[0]

    def watch(self, s, daemon, feeds, seconds):
        """Lets clients run for so long, and shows what the daemon says of it. @return their results"""
        for feed in feeds:
            feed.wait_word("feeding")
        time.sleep(seconds)
        s.say(status_excerpt(daemon.status()))
        for feed in feeds:
            feed.signal(signal.SIGTERM)
        return [feed.result() for feed in feeds]

    def copies(self, size, seconds):
        """@return GB/s"""
        return self.rig.client(f"copies --bytes {size} --seconds {seconds}")["sizes"][0]["gb_per_s"]

    def against_copies(self, s, daemon, batch_size, figures):
        """In turns, so that both meet the machine in the same moods."""
        seconds, rounds = (0.3, 1) if self.fake else (2.5, 3)
        fed, copies = [], []
        for _ in range(rounds):
            fed.append(self.feed(s, daemon, "images", batch_size, seconds))
            copies.append(self.copies(fed[-1]["batch_bytes"], min(seconds, 1)))
        rate, link = median([result["gb_per_s"] for result in fed]), median(copies)
        figures.append(f"{batch_size}: {rate / link:.1%}")
        self.goal(
            s,
            rate >= 0.95 * link,
            f"images, batch {batch_size} ({fed[0]['batch_bytes'] / 1e6:.1f} MB, ring of {fed[0]['depth']}): {rate:.2f} "
            f"GB/s, copies {link:.2f} GB/s, {rate / link:.1%} of them; {describe(fed)}",
        )
        s.say(f"the same copies while workers write as many bytes elsewhere: {self.copies_beside(daemon, batch_size, fed)}")

    def copies_beside(self, daemon, batch_size, fed):
        """What the memory leaves to copies: workers fill batches in host memory that nobody copies, at the same rate."""
        size = fed[-1]["batch_bytes"]
        feed = daemon.client(f"feed images --device host --order shuffle --batch-size {batch_size} --seconds 600")
        feed.wait_word("feeding")
        beside = self.copies(size, 0.3 if self.fake else 1)
        feed.signal(signal.SIGTERM)
        written = feed.result()
        return f"{beside:.2f} GB/s beside {written['gb_per_s']:.2f} GB/s written"

    def small_batches(self, s, daemon, figures):
        seconds, rounds = (0.3, 1) if self.fake else (2.5, 3)
        fed = [self.feed(s, daemon, "digits", 64, seconds) for _ in range(rounds)]
        rate = median([result["batches_per_s"] for result in fed])
        figures.append(f"digits: {rate:.0f}/s")
        self.goal(s, rate >= 20000, f"digits, batch 64, one client: {describe(fed)}")

    # ---- 5 ----

    def trainer(self, s):
        self.need_gpu()
        window, rounds = (0.2, 1) if self.fake else (2, 5)
        daemon = self.start()
        source = f"images --batch-size {64 if self.fake else 256} --order shuffle"
        result = daemon.run(f"trainer {source} --seconds {window} --rounds {rounds}", codes=(0, 1))
        medians, fed, taken = (result[key] for key in ("medians", "fed_slowdown_percent", "taken_slowdown_percent"))
        for name, rates in result["kernels_per_s"].items():
            s.say(
                f"{name}: {medians[name]:.1f} kernels/s of {' '.join(f'{rate:.1f}' for rate in rates)}; "
                f"{median(result['steps_per_s'][name]):.1f} steps/s"
            )
        s.figure = f"{fed:.2f} %, without normalising {taken:.2f} %"
        self.goal(s, 900 < medians["alone"] < 1001, f"kernels of 1 ms: {medians['alone']:.1f} a second when alone")
        steps = [median(result["steps_per_s"][name]) for name in ("own_kernel", "taken", "fed")]
        self.goal(s, min(steps) > 95, f"100 steps a second were asked for, at least {min(steps):.1f} made")
        self.goal(s, fed <= 1, f"fed by feedd, against kernels of its own: {fed:.2f} % slower")
        self.goal(s, taken <= 1, f"batches taken and given back, against nothing: {taken:.2f} % slower")
        # The measure has to see what does cost something.
        other = daemon.client(f"feed {source} --normalize --hold-ms 9 --seconds 600")
        other.wait_word("feeding")
        control = daemon.run(f"trainer {source} --seconds {window} --rounds 1", codes=(0, 1))["medians"]["alone"]
        other.signal(signal.SIGTERM)
        rate = other.result()["batches_per_s"]
        slower = (1 - control / medians["alone"]) * 100
        self.goal(
            s, slower > 1, f"control: beside {rate:.0f} kernels a second of another process {slower:.2f} % slower"
        )
        daemon.wait_streams(0)
        daemon.stop()

    # ---- 6 ----

    def group(self, s):
        self.need_gpu()
        daemon = self.start()
        source = f"images --batch-size {64 if self.fake else 256} --order shuffle"
        s.attempt(daemon, self.one_copy, source)
        daemon.wait_streams(0)
        s.attempt(daemon, self.together, source)
        daemon.wait_streams(0)
        daemon.stop()

    def one_copy(self, s, daemon, source):
        batches = 40 if self.fake else 300
        words = f"feed {source} --batches {batches} --every-checksum"
        reference = daemon.run(words)["checksum"]
        daemon.wait_streams(0)
        before = daemon.status()["gpus"][0]["copies"]
        members = [daemon.client(f"{words} --group a --members 4 --linger-ms 2500") for _ in range(4)]
        for member in members:
            member.wait_text('"checksum"', 120)
        time.sleep(0.7)  # the ring fills up, and all is still
        status = daemon.status()
        stream, copies = status["streams"][0], status["gpus"][0]["copies"] - before
        checksums = {member.result()["checksum"] for member in members}
        s.check(
            checksums == {reference},
            f"4 members, {batches} batches: checksum {', '.join(sorted(checksums))}, of a private stream {reference}",
        )
        s.check(
            stream["members"] == 4 and stream["batches"] >= batches and copies == stream["batches"],
            f"one copy a batch: {stream['batches']} batches published to {stream['members']} members, {copies} copies",
        )

    def together(self, s, daemon, source):
        members = [daemon.client(f"feed {source} --seconds 600 --group b --members 4") for _ in range(4)]
        results = self.watch(s, daemon, members, 0.5 if self.fake else 4)
        link = self.copies(results[0]["batch_bytes"], 0.3 if self.fake else 1)
        images, delivered = (sum(result[key] for result in results) for key in ("images_per_s", "gb_per_s"))
        s.line(
            "PASS",
            f"together {images:.0f} images/s, {delivered:.1f} GB/s delivered over a link of {link:.1f} GB/s: "
            f"{delivered / link:.2f} times what it carries",
        )
        s.figure = f"{images:.0f} images/s, {delivered:.1f} GB/s over {link:.1f}"

    # ---- 7 ----

    def robustness(self, s):
        before = self.need_gpu()
        rounds = 1 if self.rig.quick or self.fake else 3
        for number in range(1, rounds + 1):
            s.say(f"round {number} of {rounds}")
            daemon = self.start()
            daemon.run("digest images --batches 1")  # what a first stream leaves in the contexts
            daemon.wait_streams(0)
            idle = self.need_gpu()
            for step in self.kill_member, self.stop_member, self.late:
                s.attempt(daemon, step)
            daemon.wait_streams(0)
            left = idle - self.need_gpu()
            if not self.fake:
                s.check(left < 2 * MIB, f"idle again, the daemon has {left} bytes of the GPU more than before")
            s.attempt(daemon, self.kill_daemon)
            s.attempt(daemon, self.other_users)
            daemon.wait_streams(0)
            daemon.stop()
            after = self.need_gpu()
            if not self.fake:
                s.check(after == before, f"free on the GPU with nothing of ours on it: {before} before, {after} after")
        s.figure = f"{s.count()} in {rounds} round{'s' * (rounds > 1)}"

    def kill_member(self, s, daemon):
        """A member that dies in mid-kernel holds nobody up."""
        batches, batch_size = (30, 16) if self.fake else (100, 64)
        source = f"images --batch-size {batch_size} --order shuffle --depth 8"
        feed = f"feed {source} --batches {batches} --every-checksum"
        reference = daemon.run(f"{feed} --device host")["checksum"]
        victim = daemon.client(f"hold {source} --group a --members 2 --spin-ms 5000")
        survivor = daemon.client(f"{feed} --group a --members 2")
        victim.wait_word("holding")
        survivor.wait_word("feeding")
        time.sleep(1)
        victim.signal(signal.SIGKILL)
        killed = victim.wait() == -signal.SIGKILL
        died = time.monotonic()
        result = survivor.result()
        spent, waited_ms = time.monotonic() - died, result["longest_gap_ms"]
        s.check(
            killed and waited_ms > 300 and result["checksum"] == reference,
            f"a: a member killed in mid-kernel, for which the other had waited {waited_ms:.0f} ms; it went on, and had "
            f"the {batches} batches of a host stream {spent:.2f} s later",
        )

    def stop_member(self, s, daemon):
        """A member that is stopped holds up its group, until it goes on, and nobody else."""
        seconds = 2 if self.fake else 10
        batches = 200
        feed = f"feed digits --batch-size 64 --order shuffle --depth 8 --batches {batches} --every-checksum"
        reference = daemon.run(f"{feed} --device host")["checksum"]
        other = daemon.client(f"feed odd --batch-size 64 --order shuffle --seconds {seconds + 2}")
        members = [daemon.client(f"{feed} --group b --members 2 --hold-ms 10") for _ in range(2)]
        for process in other, *members:
            process.wait_word("feeding")
        time.sleep(0.2)
        members[0].signal(signal.SIGSTOP)
        time.sleep(seconds)
        waiting = members[1].running()
        members[0].signal(signal.SIGCONT)
        results = [member.result() for member in members]
        undisturbed = other.result()
        gap_s = results[1]["longest_gap_ms"] / 1e3
        s.check(
            waiting and seconds - 1 < gap_s < seconds + 1.5 and {r["checksum"] for r in results} == {reference},
            f"b: a member stopped for {seconds} s; the other waited {gap_s:.2f} s, then both had the {batches} batches "
            "of a host stream",
        )
        self.goal(
            s,
            undisturbed["longest_gap_ms"] < 100,
            f"b: a private stream meanwhile, whose longest gap may be 100 ms: {describe([undisturbed])}",
        )

    def late(self, s, daemon):
        """Batches that are given back before they are read keep their bytes until then."""
        batches, spin_ms = (40, 10) if self.fake else (200, 50)
        result = daemon.run(f"late digits --order shuffle --batches {batches} --spin-ms {spin_ms}", codes=(0, 1))
        s.check(
            result["wrong"] == 0 and result["batches"] == batches and result["in_flight"] > 1,
            f"d: {batches} batches given back {spin_ms} ms and more before they were read, up to {result['in_flight']} "
            f"at a time: {result['wrong']} wrong",
        )

    def kill_daemon(self, s, daemon):
        """Clients go on after a restart of the daemon, without gap or repeat."""
        batches = 300
        digest = f"digest digits --batch-size 64 --order shuffle --batches {batches}"
        reference = daemon.run(f"{digest} --device host")["batches"]
        lasting = f"{digest} --reconnect --hold-ms 10"
        clients = [daemon.client(f"{lasting} --group c --members 2") for _ in range(2)] + [daemon.client(lasting)]
        for client in clients:
            client.wait_word("feeding")
        time.sleep(0.3)
        daemon.kill()
        time.sleep(1)
        daemon.start()
        results = [client.result() for client in clients]
        reconnects = [result["reconnects"] for result in results]
        s.check(
            min(reconnects) >= 1 and all(result["batches"] == reference for result in results),
            f"c: the daemon killed, and started again after 1 s; two members and a private client had the {batches} "
            f"batches of a host stream, reconnects {reconnects}",
        )

    def other_users(self, s, _):
        """The daemon is one user, its client another."""
        if self.fake:
            raise Skipped("e: the fake GPU's memory is shared through /proc, which other users may not read")
        become_another()
        rig = self.rig.readable()
        daemon = rig.daemon(self.config, before=as_user(USERS[0]), env={"HOME": "/"})
        os.chown(daemon.folder, USERS[0], USERS[0])
        daemon.start()
        uid = os.stat(f"/proc/{daemon.process.popen.pid}").st_uid
        digest = "digest digits --batch-size 64 --order shuffle --batches 50"
        options = {"before": as_user(USERS[1]), "env": {"HOME": "/"}}
        results = [daemon.run(f"{digest} --device {device}", **options)["batches"] for device in ("cuda", "host")]
        client = daemon.client("hold digits --spin-ms 1", **options)
        client.wait_word("holding")
        uids = [uid, daemon.status()["clients"][0]["uid"]]
        client.kill()
        daemon.stop()
        s.check(
            results[0] == results[1] and len(results[0]) == 50 and uids == list(USERS),
            f"e: the daemon as user {uids[0]}, its client as user {uids[1]}: {len(results[0])} batches, GPU and host "
            "equal",
        )

    # ---- 8 ----

    def large_ring(self, s):
        """What opening and closing a large ring does to a stream beside it."""
        self.need_gpu()
        seconds, want = (1, 128 * MIB) if self.fake else (3, 4096 * MIB)
        depth = min(DEPTH_MAX, -(-want // (256 * self.image_bytes)))
        daemon = self.start()
        feed = "feed digits --batch-size 64 --order shuffle --seconds"
        without = daemon.run(f"{feed} {seconds}")
        beside = daemon.client(f"{feed} 600")
        beside.wait_word("feeding")
        time.sleep(0.3)
        began = time.monotonic()
        large = daemon.client(f"feed images --batch-size 256 --depth {depth} --batches 1 --linger-ms 500")
        large.wait_word("feeding", 60)
        spent = time.monotonic() - began
        ring_bytes = max(stream["gpu_bytes"] for stream in daemon.status()["streams"])
        large.result()
        daemon.wait_streams(1)
        time.sleep(0.3)
        beside.signal(signal.SIGTERM)
        with_it = beside.result()
        s.figure = f"longest gap {with_it['longest_gap_ms']:.1f} ms, without {without['longest_gap_ms']:.1f} ms"
        s.check(
            ring_bytes >= want,
            f"a ring of {ring_bytes / MIB:.0f} MiB, its first batch after {spent:.2f} s, opened and closed beside "
            f"another stream; that with it: {describe([with_it])}; without: {describe([without])}",
        )
        daemon.wait_streams(0)
        daemon.stop()

    def sanitizer(self, s):
        self.need_gpu()
        tool = compute_sanitizer()
        if self.fake or tool is None:
            raise Skipped("compute-sanitizer needs a real GPU" if self.fake else "compute-sanitizer is not installed")
        memcheck = [tool, "--tool", "memcheck", "--leak-check", "full", "--error-exitcode", "9"]
        check = "check digits --batch-size 32 --batches 1"
        daemon = self.start()
        client = daemon.client(check, before=memcheck)
        code = client.wait(120)
        s.check(code == 0, f"memcheck of gpu_client check: exit code {code}; {last_words(client)}")
        daemon.wait_streams(0)
        daemon.stop()
        daemon = self.rig.daemon(self.config, before=memcheck).start(60)
        result = daemon.run(check, codes=(0, 1))
        daemon.wait_streams(0)
        os.kill(daemon.status()["daemon"]["pid"], signal.SIGTERM)
        code = daemon.process.wait(60)
        s.check(
            code == 0 and result["failed"] == 0,
            f"memcheck of feedd, while a client checks: exit code {code}; {last_words(daemon.process)}",
        )
        racecheck = [tool, "--tool", "racecheck", "--error-exitcode", "9"]
        process = self.rig.run("kernel_check 997", before=racecheck)
        code = process.popen.returncode
        s.check(code == 0, f"racecheck of kernel_check: exit code {code}; {last_words(process)}")
        s.figure = f"{s.count()} without a report"


def seal():
    """What feedd does to its rings, which is Linux 5.1's."""
    future_write = 0x10
    fd = os.memfd_create("probe", os.MFD_ALLOW_SEALING)
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | future_write | fcntl.F_SEAL_SEAL)
    finally:
        os.close(fd)


def pidfd():
    os.close(os.pidfd_open(os.getpid()))


def as_user(uid):
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def become_another():
    """Skips where there is no other user to be."""
    if os.getuid() != 0:
        raise Skipped("e: only root may be another user")
    if shutil.which("setpriv") is None:
        raise Skipped("e: setpriv is not installed")
    done = subprocess.run([*as_user(USERS[0]), "true"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Skipped(f"e: setpriv: {done.stderr.strip()}")


def nvidia_smi(s):
    query = "name,driver_version,clocks.sm,clocks.mem,pcie.link.gen.current,pcie.link.width.current,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        s.say("nvidia-smi: not found")
        return "a GPU"
    s.say(f"{query}: {done.stdout.strip() or done.stderr.strip()}")
    return ", driver ".join(done.stdout.split(", ")[:2])


def compute_sanitizer():
    return shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")


def last_words(process):
    """compute-sanitizer's summary, and its first complaint."""
    marked = [line for line in (process.output() + process.errors()).splitlines() if line.startswith("=========")]
    lines = [line.lstrip("= ") for line in marked if line.strip("= ")]
    return "; ".join(lines[-1:] + lines[1:4] if len(lines) > 2 else lines) or "no summary"


def describe(results):
    """One or several runs of `gpu_client feed`: medians, and the worst gap."""
    keys = "batches_per_s", "gb_per_s", "wait_p50_ms", "wait_p99_ms"
    rate, gb, p50, p99 = (median([result[key] for result in results]) for key in keys)
    gap = max(result["longest_gap_ms"] for result in results)
    return f"{rate:.0f} batches/s, {gb:.2f} GB/s, wait p50 {p50:.3f} p99 {p99:.3f} ms, longest gap {gap:.2f} ms"


def status_excerpt(status):
    gpu, stream = status["gpus"][0], status["streams"][0]
    return (
        f"status: {gpu['copied_bytes_per_s'] / 1e9:.2f} GB/s in {gpu['copies_per_s']:.0f} copies/s, copying "
        f"{gpu['copying']:.0%} of the time, workers {status['daemon']['workers_busy']:.0%} busy; "
        f"{stream['bottleneck']['stage']}: {stream['bottleneck']['text']}"
    )


def main():
    parser = argparse.ArgumentParser(usage="run.sh [--bundle DIR] [--quick] [--fake] [SECTION...]")
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("sections", nargs="*", type=int)
    arguments = parser.parse_intermixed_args()
    if os.environ.get("OUT"):
        sys.stdout = Both(sys.stdout, open(Path(os.environ["OUT"]) / "log", "w"))  # noqa: SIM115
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
        signal.signal(number, interrupted)
    rig = Rig(arguments.bundle, arguments.fake, arguments.quick)
    try:
        sections = Sections(rig)
        every = (
            (1, "machine", "-", sections.probes, True),
            (2, "correctness", "all equal", sections.correctness, True),
            (3, "kernels against copies", "see above", sections.kernels, False),
            (4, "throughput, batches of", "95 % of copies; digits 20,000/s", sections.throughput, False),
            (5, "slowdown of a trainer", "1 %", sections.trainer, False),
            (6, "four processes, one group", "equal; one copy a batch", sections.group, True),
            (7, "robustness", "all; no GPU memory left", sections.robustness, True),
            (8, "a large ring beside a stream", "opens and closes", sections.large_ring, False),
            (8, "compute-sanitizer", "no report", sections.sanitizer, False),
            (9, "modes and transports", "all equal", sections.modes, True),
            (10, "what each mode costs", "uint8 3.8 times floats", sections.cost_of_modes, False),
        )
        for number, title, goal, run, quick in every:
            if number in arguments.sections or (not arguments.sections and (quick or not arguments.quick)):
                with rig.section(number, title, goal) as section:
                    run(section)
        return rig.table()
    finally:
        rig.close()


if __name__ == "__main__":
    sys.exit(main())
