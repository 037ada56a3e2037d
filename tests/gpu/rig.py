"""rig.py - what sections.py works with: the programs of a bundle, a daemon of its own, clients, datasets, verdicts.

Every process that is started here ends with this one, however that ends: close() kills what is left, and the kernel
does when Python itself is killed.
"""

import copy
import ctypes
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

FOLDERS = {  # of a build tree; a bundle has all in one
    "feedd": "daemon",
    "feedctl": "client",
    "gpu_client": "tests/gpu",
    "kernel_check": "tests/gpu",
    "bench_normalize_cuda": "tests/bench",
}
NO_GPU = 77  # exit code of the programs where there is no GPU
FAKE_GPU = {"FEEDD_FAKE_GPUS": "1", "FEEDD_FAKE_GPU_MEMORY": "2G"}
PR_SET_PDEATHSIG = 1


class Failed(Exception):
    """Something that a section needs didn't happen: the section ends there."""


class Skipped(Exception):
    """A section can't run here; the reason."""


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for(condition, seconds, what, pause=0.01):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"{what} didn't happen within {seconds:g} s")
        time.sleep(pause)
    return value


class Process:
    """A program in the background, its outputs in files."""

    def __init__(self, rig, name, command, env=None):
        self.name = name
        self.out = rig.folder / f"{len(rig.processes)}-{name}.out"
        self.err = self.out.with_suffix(".err")
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.popen = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**rig.env, **(env or {})},
                preexec_fn=end_with_parent,
                process_group=0,
            )
        rig.processes.append(self)

    def output(self):
        return self.out.read_text(errors="replace")

    def errors(self):
        return self.err.read_text(errors="replace")

    def running(self):
        return self.popen.poll() is None

    def wait_text(self, text, seconds=30):
        """Until it has printed this."""
        wait_for(lambda: text in self.output() or not self.running(), seconds, f"{text!r} of {self.name}")
        if text not in self.output():
            self.result()
            raise Failed(f"{self.name} ended without {text!r}")

    def wait_word(self, word, seconds=30):
        """Until it has printed a line that is this word."""
        self.wait_text(f"{word}\n", seconds)

    def signal(self, number):
        self.popen.send_signal(number)

    def kill(self):
        """With what it has started."""
        if self.running():
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def wait(self, seconds=60):
        """@return its exit code"""
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"{self.name} didn't end within {seconds:g} s: {self.errors()[-2000:]}") from None

    def result(self, seconds=60, codes=(0,)):
        """Waits for its end. @return the JSON object of its last line"""
        code = self.wait(seconds)
        if code == NO_GPU:
            raise Skipped(self.errors().strip().removeprefix("SKIP: "))
        if code not in codes:
            raise Failed(f"{self.name} exited with {code}: {self.errors()[-2000:]}{self.output()[-500:]}")
        return json.loads(self.output().splitlines()[-1])


class Daemon:
    """A feedd that serves `config`. Its socket lies in a folder that everybody can reach."""

    def __init__(self, rig, name, config, before=(), env=None):
        self.rig = rig
        self.folder = rig.folder / name
        self.folder.mkdir()
        self.socket = self.folder / "s"
        self.config = self.folder / "feedd.conf"
        self.before = before
        self.env = env
        daemon = {"socket": str(self.socket), **config.get("daemon", {})}
        self.config.write_text(json.dumps({**config, "daemon": daemon}, indent=1))  # JSON is YAML
        self.process = None

    def start(self, seconds=30):
        command = [*self.before, self.rig.program("feedd"), "--config", self.config]
        self.process = Process(self.rig, "feedd", command, self.env)
        wait_for(lambda: " workers, " in self.process.errors() or not self.process.running(), seconds, "feedd's start")
        if not self.process.running():
            raise Failed(f"feedd didn't start: {self.process.errors()[-2000:]}")
        return self

    def stop(self, seconds=30):
        """It has to leave in good order."""
        if not self.process.running():
            raise Failed(f"feedd has gone ({self.process.popen.returncode}): {self.process.errors()[-2000:]}")
        os.kill(self.status()["daemon"]["pid"], signal.SIGTERM)  # `before` may stand between it and us
        code = self.process.wait(seconds)
        if code != 0 or "Sanitizer" in self.process.errors():
            raise Failed(f"feedd exited with {code}: {self.process.errors()[-4000:]}")

    def kill(self):
        self.process.kill()

    def client(self, words, before=(), env=None):
        """A gpu_client in the background. @param words  command, source, options"""
        command, *rest = words.split()
        program = self.rig.program("gpu_client")
        return Process(self.rig, command, [*before, program, command, "--socket", self.socket, *rest], env)

    def run(self, words, seconds=90, codes=(0,), **options):
        """A gpu_client to its end. @return what it printed"""
        return self.client(words, **options).result(seconds, codes)

    def feedctl(self, words):
        command = [str(self.rig.program("feedctl")), "--socket", str(self.socket), *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=self.rig.env)
        if done.returncode != 0:
            raise Failed(f"feedctl {words}: {done.stderr}")
        return done.stdout

    def status(self):
        return json.loads(self.feedctl("status --json"))

    def wait_streams(self, count):
        """Until no more than so many streams are open."""
        wait_for(lambda: len(self.status()["streams"]) <= count, 60, "the end of streams", pause=0.1)


class Section:
    """One section's lines, as they come, and what the table says of it."""

    def __init__(self, rig, number, title, goal):
        self.rig, self.number, self.title, self.goal = rig, number, title, goal
        self.figure = ""
        self.verdicts = []

    def say(self, text):
        print(f"       {text}", flush=True)

    def line(self, verdict, text):
        self.verdicts.append(verdict)
        print(f"{verdict:6} {text}", flush=True)

    def check(self, good, text):
        self.line("PASS" if good else "FAIL", text)
        return good

    def skip(self, text):
        self.line("SKIP", text)

    def error(self, error):
        """What an exception means."""
        if isinstance(error, Skipped):
            self.skip(str(error))
        elif isinstance(error, Failed):
            self.line("FAIL", str(error).strip())
        else:
            self.line("FAIL", "".join(traceback.format_exception(error)).strip())

    def attempt(self, daemon, step, *args):
        """A step that may fail without ending the section: the daemon is there for the next one, and no client."""
        try:
            step(self, daemon, *args)
        except Exception as error:
            self.error(error)
            self.rig.stop_all(but=daemon.process)
            if not daemon.process.running():
                self.say(
                    f"feedd has gone ({daemon.process.popen.returncode}): {daemon.process.errors()[-2000:].strip()}"
                )
                daemon.start()

    def count(self):
        """How many of its checks passed, in words."""
        return f"{self.verdicts.count('PASS')} of {len(self.verdicts) - self.verdicts.count('SKIP')}"

    def verdict(self):
        return next((verdict for verdict in ("FAIL", "PASS") if verdict in self.verdicts), "SKIP")

    def __enter__(self):
        self.began = time.monotonic()
        print(f"\n== {self.number} {self.title}", flush=True)
        return self

    def __exit__(self, kind, error, trace):
        if isinstance(error, Exception):
            self.error(error)
        for line in self.rig.new_leaks():
            self.check(False, f"left on the fake GPU: {line}")
        self.say(f"{time.monotonic() - self.began:.1f} s")
        self.rig.sections.append(self)
        self.rig.stop_all()
        return isinstance(error, Exception)


class Rig:
    def __init__(self, bundle, fake, quick):
        self.bundle, self.fake, self.quick = Path(bundle).resolve(), fake, quick
        self.processes, self.sections = [], []
        self.daemons = self.leak_lines = 0
        os.umask(0o022)
        self.folder = Path(tempfile.mkdtemp(prefix="feedd-gpu-", dir="/tmp"))  # a socket's name may have 107 bytes
        self.folder.chmod(0o755)
        self.leaks = self.folder / "leaks"
        self.env = {**os.environ, "LC_ALL": "C.UTF-8"}
        self.env.update({**FAKE_GPU, "FEEDD_FAKE_CUDA_LEAKS": str(self.leaks)} if fake else {})
        self.env.pop("FEEDD_SOCKET", None)
        self.use_libraries()

    def use_libraries(self):
        if (self.bundle / "lib").is_dir():
            self.env["LD_LIBRARY_PATH"] = str(self.bundle / "lib")

    def readable(self):
        """The same rig, with a copy of the programs that every user may run."""
        other = copy.copy(self)
        other.bundle = self.folder / "bundle"
        other.env = dict(self.env)
        if not other.bundle.exists():
            other.bundle.mkdir()
            for name in "feedd", "feedctl", "gpu_client":
                shutil.copy(self.program(name), other.bundle / name)
            if (self.bundle / "lib").is_dir():
                shutil.copytree(self.bundle / "lib", other.bundle / "lib")
        other.use_libraries()
        return other

    def program(self, name):
        for path in self.bundle / name, self.bundle / FOLDERS[name] / name:
            if path.exists():
                return path
        raise Skipped(f"{name} is not in {self.bundle}")

    def section(self, number, title, goal):
        return Section(self, number, title, goal)

    def daemon(self, config, **options):
        """One that isn't started yet."""
        self.daemons += 1
        return Daemon(self, f"d{self.daemons}-{len(self.processes)}", config, **options)

    def run(self, words, before=(), seconds=120):
        """A program, and what it is given, to its end."""
        name, *rest = words.split()
        process = Process(self, name, [*before, self.program(name), *rest])
        process.wait(seconds)
        return process

    def client(self, words, seconds=60):
        """A gpu_client that needs no daemon. @return what it printed"""
        return self.run(f"gpu_client {words}", seconds=seconds).result()

    def new_leaks(self):
        """What processes have not given back to the fake GPU, a line each, since the last call."""
        lines = self.leaks.read_text().splitlines() if self.leaks.exists() else []
        new, self.leak_lines = lines[self.leak_lines :], len(lines)
        return [line for line in new if any(not count.endswith("=0") for count in line.split()[1:])]

    def stop_all(self, but=None):
        for process in reversed(self.processes):
            if process is not but:
                process.kill()

    def close(self):
        self.stop_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def table(self):
        """One line a section. @return the exit code"""
        rows = [("", "section", "figure", "goal", "verdict")]
        rows += [(str(s.number), s.title, s.figure, s.goal, s.verdict()) for s in self.sections]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        print()
        for row in rows:
            print("  ".join(word.ljust(width) for word, width in zip(row, [*widths, 0], strict=True)).rstrip())
        verdicts = [section.verdict() for section in self.sections]
        print(f"{verdicts.count('PASS')} passed, {verdicts.count('FAIL')} failed, {verdicts.count('SKIP')} skipped")
        return 1 if "FAIL" in verdicts else 0 if "PASS" in verdicts else NO_GPU


class Both:
    """What is printed goes to a file too."""

    def __init__(self, *files):
        self.files = files

    def write(self, text):
        for file in self.files:
            file.write(text)

    def flush(self):
        for file in self.files:
            file.flush()


def write_idx(path, seed, *shape):
    """Random unsigned bytes in the IDX format. @return them"""
    count = 1
    for size in shape:
        count *= size
    values = random.Random(seed).randbytes(count)
    path.write_bytes(struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + values)
    return values


def checksum(data):
    """gpu_kernels.h's, from its definition."""
    return sum((byte + 1) * (i * 2654435761 + 12345) for i, byte in enumerate(data)) % 2**64


def median(values):
    return sorted(values)[len(values) // 2]


def interrupted(number, frame):
    sys.exit(128 + number)
