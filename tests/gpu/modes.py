"""modes.py - sections of run.sh: who normalises, and how batches reach a client's GPU.

Happy path: every way gives the host's batches; then what each way costs, side by side in one run.
What can fail: a way, a comparison, a goal; sections.py goes on with the next.
"""

import json
import signal

from rig import Failed, median

MIB = 1 << 20
MODES = "client", "daemon", "cpu"
TRANSPORTS = "ipc", "fd", "host"
NAMES = "auto", *MODES  # as enum feedd_normalize_mode counts
OUTPUTS = "f32-nchw", "f32-nhwc", "f16-nchw", "bf16-nhwc", "i8-nchw", "i8-nhwc", "u8-nchw"


class Modes:
    """What Sections has besides."""

    # ---- 9 ----

    def modes(self, s):
        self.need_gpu()
        daemon = self.start()
        for source, batch_size in ("images", 32), ("odd", 7), ("digits", 64), ("rgba", 9):
            for output in OUTPUTS if source in ("images", "rgba") else OUTPUTS[:3]:
                s.attempt(daemon, self.equal_ways, f"{source} --batch-size {batch_size} --order shuffle --seed 5", output)
        daemon.wait_streams(0)
        for step in self.write_through_fd, self.poisoned_slot:
            s.attempt(daemon, step)
            daemon.wait_streams(0)
        daemon.stop()
        s.figure = s.count()

    def equal_ways(self, s, daemon, words, output):
        batches = 2 if self.rig.quick or self.fake else 6
        digest = f"digest {words} --batches {batches} --output {output}"
        reference = daemon.run(f"{digest} --device host --mode cpu")["batches"]
        equal, refused = [], []
        for mode in MODES:
            for transport in TRANSPORTS:
                client = daemon.client(f"{digest} --mode {mode} --transport {transport}")
                if client.wait() != 0:
                    refused.append(f"{mode} by {transport}")
                    if (mode, transport) != ("daemon", "host"):
                        raise Failed(f"{output}, {mode} by {transport}: {client.errors()[-500:]}")
                    continue
                result = client.result()
                as_asked = result["transport"] == transport and (
                    NAMES[result["normalize"]] == mode or (output[:2] == "u8" and words.startswith("digits"))
                )
                if result["batches"] != reference or not as_asked:
                    raise Failed(f"{output}, {mode} by {transport}: other batches than the host's, or another way")
                equal.append(f"{mode} by {transport}")
        s.check(
            len(reference) == batches and len(equal) == 8,
            f"{words.split()[0]}, {output}: {batches} batches equal to the host's in {len(equal)} ways, refused: "
            f"{', '.join(refused)}",
        )

    def write_through_fd(self, s, daemon):
        """Who writes to a batch that it may only read dies alone."""
        batches = 100
        feed = f"feed images --batch-size 16 --order shuffle --batches {batches} --every-checksum"
        reference = daemon.run(f"{feed} --device host")["checksum"]
        daemon.wait_streams(0)
        neighbour = daemon.client(f"{feed} --group w --members 2 --hold-ms 5 --transport fd")
        writer = daemon.client("poke images --batch-size 16 --order shuffle --group w --members 2 --transport fd")
        code = writer.wait()
        error = writer.result()["error"] if code == 0 else f"signal {-code}"
        equal = neighbour.result()["checksum"] == reference
        s.check(
            error != "cudaSuccess" and equal,
            f"a kernel that writes through a mapping by fd: {error}; the {batches} batches of the other member are "
            f"{'as ever' if equal else 'SPOILT'}",
        )

    def poisoned_slot(self, s, daemon):
        """By CUDA IPC a member can write. When it has died, nobody sees what it has written."""
        batches = 100
        feed = f"feed images --batch-size 16 --order shuffle --depth 8 --batches {batches} --every-checksum"
        reference = daemon.run(f"{feed} --device host")["checksum"]
        daemon.wait_streams(0)
        member = "images --batch-size 16 --order shuffle --depth 8 --group p --members 2 --transport ipc"
        victim = daemon.client(f"poison {member} --hold-ms 1000")
        survivor = daemon.client(f"{feed} --group p --members 2 --transport ipc")
        victim.wait_word("poisoned")
        victim.signal(signal.SIGKILL)
        result = survivor.result()
        s.check(
            result["checksum"] == reference and result["longest_gap_ms"] > 300,
            f"a member writes to the batch that it holds, and is killed: the survivor, which had waited "
            f"{result['longest_gap_ms']:.0f} ms, had the {batches} batches of a host stream",
        )

    # ---- 10 ----

    def cost_of_modes(self, s):
        self.need_gpu()
        daemon = self.start()
        s.attempt(daemon, self.memory_of_modes)
        s.attempt(daemon, self.throughput_of_modes)
        s.attempt(daemon, self.trainer_of_modes)
        daemon.wait_streams(0)
        daemon.stop()

    def memory_of_modes(self, s, daemon):
        """As the status computes it, and as the GPU's free memory and the daemon's shared pages show it."""
        batch_size = 8 if self.fake else 256
        words = f"images --batch-size {batch_size} --order shuffle --depth 4 --output f32-nchw"
        daemon.run(f"digest {words} --batches 1 --mode daemon --transport fd")  # what first streams leave
        daemon.run(f"digest {words} --batches 1 --mode daemon --transport ipc")
        daemon.wait_streams(0)
        s.say(f"{'':16} {'GPU, computed':>14} {'measured':>10} {'host, computed':>14} {'measured':>10} {'pinned':>10}   MiB, "
              f"{batch_size} images, 4 slots")  # fmt: skip
        ways = ("client", "ipc"), ("daemon", "ipc"), ("daemon", "fd"), ("cpu", "ipc"), ("client", "host"), ("cpu", "host")
        for mode, transport in ways:
            pid = daemon.status()["daemon"]["pid"]
            shared = shared_bytes(pid)
            client = daemon.client(f"ring {words} --mode {mode} --transport {transport} --linger-ms 60000")
            client.wait_text('"ring"')
            measured = json.loads(client.output().splitlines()[-1])["gpu_bytes"]
            stream, shared = daemon.status()["streams"][0], shared_bytes(pid) - shared
            client.kill()
            daemon.wait_streams(0)
            s.say(
                f"{mode + ' by ' + transport:16} {stream['gpu_bytes'] / MIB:14.1f} {measured / MIB:10.1f} "
                f"{stream['ring_bytes'] / MIB:14.1f} {shared / MIB:10.1f} {stream['pinned_bytes'] / MIB:10.1f}"
            )
            self.goal(
                s,
                abs(measured - stream["gpu_bytes"]) <= 2 * MIB and abs(shared - stream["ring_bytes"]) <= 2 * MIB,
                f"{mode} by {transport}: bytes of GPU and host as computed",
            )

    def throughput_of_modes(self, s, daemon):
        """uint8 over the link and floats made on the GPU, against floats over the link; all pipelined."""
        seconds, rounds = (0.3, 1) if self.fake else (2.5, 3)
        batch_size = 16 if self.fake else 256
        source = f"images --order shuffle --batch-size {batch_size} --output f32-nchw --seconds 600"
        rates = {mode: [] for mode in MODES}
        for _ in range(rounds):
            for mode in MODES:
                feed = daemon.client(f"feed {source} --mode {mode} --transport ipc")
                rates[mode].append(self.watch(s, daemon, [feed], seconds)[0]["batches_per_s"])
                daemon.wait_streams(0)
        rate = {mode: median(values) for mode, values in rates.items()}
        image = batch_size * self.image_bytes
        links = [self.copies(4 * image, 0.2 if self.fake else 1) for _ in range(rounds)]
        floats = median(links) * 1e9 / (4 * image)
        s.say(f"batches/s: {', '.join(f'{mode} {rate[mode]:.1f}' for mode in MODES)}; bare copies of floats {floats:.1f}")
        s.figure = f"uint8 {rate['daemon'] / rate['cpu']:.2f} times floats, {rate['daemon'] / floats:.2f} times bare copies"
        self.goal(
            s, rate["daemon"] >= 3.8 * floats, f"daemon mode: {rate['daemon'] / floats:.2f} times bare copies of floats"
        )
        self.goal(s, rate["daemon"] >= 3.8 * rate["cpu"], f"daemon mode: {rate['daemon'] / rate['cpu']:.2f} times cpu mode")
        self.goal(
            s,
            rate["daemon"] >= 0.97 * rate["client"],
            f"daemon mode: {rate['daemon'] / rate['client']:.3f} of client mode, whose kernels the client runs",
        )

    def trainer_of_modes(self, s, daemon):
        """What a trainer loses that has its images in each mode, against kernels alone."""
        window, rounds = (0.2, 1) if self.fake else (1.5, 3)
        batch_size = 16 if self.fake else 256
        s.say(f"{'':10} {'batches/s':>22} {'kernels/s alone':>16} {'fed':>8} {'slower':>8} {'but for its own':>16}")
        for rate in 100, 1000:
            for mode in MODES:
                words = f"trainer images --batch-size {batch_size} --order shuffle --mode {mode} --output f32-nchw"
                result = daemon.run(f"{words} --transport ipc --rate {rate} --seconds {window} --rounds {rounds}", codes=(0, 1))
                medians, steps = result["medians"], median(result["steps_per_s"]["fed"])
                slower = (1 - medians["fed"] / medians["alone"]) * 100
                asked = f"{steps:.0f} of {rate} asked"
                s.say(
                    f"{mode:10} {asked:>22} {medians['alone']:16.1f} {medians['fed']:8.1f} {slower:6.2f} % "
                    f"{result['fed_slowdown_percent']:14.2f} %"
                )
                daemon.wait_streams(0)
        s.line("PASS", "each mode at 100 batches a second, and as many as come: see above")


def shared_bytes(pid):
    """Of a process' shared memory that is there: its rings."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssShmem"))
