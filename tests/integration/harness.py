"""harness.py - the build under test, a feedd of one's own, and feedctl against it.

Every process that is started here is waited for, and what it wrote is searched for sanitizer reports: a test that
passes has also shown that nothing leaked, raced or read where it must not.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import rawclient

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FEEDD_BUILD_DIR", ROOT / "build" / "dev")).resolve()
FEEDD = BUILD / "daemon" / "feedd"
FEEDCTL = BUILD / "client" / "feedctl"
LIBRARY = BUILD / "client" / "libfeedd.so"
PROGRAMS = BUILD / "tests" / "integration"

STOP_S = 20  # from SIGTERM to exit, in the slowest build
REPORTS = re.compile(rb"(ERROR|WARNING): \w*Sanitizer|runtime error:|bug at ")

ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1",
    **os.environ,
    "LC_ALL": "C.UTF-8",
}
ENVIRONMENT.pop("FEEDD_SOCKET", None)


def sanitizer():
    """What the daemon was built with: "address", "thread", or None."""
    binary = FEEDD.read_bytes()
    return "address" if b"__asan_init" in binary else "thread" if b"__tsan_init" in binary else None


def check_output(output, whose):
    """No sanitizer has complained in what a process wrote to standard error."""
    found = REPORTS.search(output)
    assert found is None, f"{whose}:\n{output[max(0, found.start() - 200) :][:6000].decode(errors='replace')}"


def wait_for(condition, seconds=10, what="it"):
    """Calls condition() until it returns something true, and returns that."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} didn't happen within {seconds} s"
        time.sleep(0.01)


def run(command, timeout=60, env=ENVIRONMENT, **popen):
    """Runs a program of ours to its end."""
    command = [str(word) for word in command]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, env=env, **popen)
    check_output(done.stderr, command[0])
    return done


class Feedd:
    """A daemon that serves `config` on a socket in `folder`."""

    def __init__(self, folder, config, workers=2, env=None, before=(), start=True, **popen):
        self.folder = Path(folder)
        self.socket = self.folder / "s"
        self.config = self.folder / "feedd.conf"
        self.log = self.folder / "log"
        self.env = {**ENVIRONMENT, **(env or {})}
        daemon = {"socket": str(self.socket), "workers": workers, **config.get("daemon", {})}
        # JSON is YAML.
        self.config.write_text(json.dumps({**config, "daemon": daemon}, indent=1))
        self.command = [*before, str(FEEDD), "--config", str(self.config)]
        self.popen = popen
        self.process = None
        if start:
            self.start()

    def start(self):
        began = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=self.env,
                **self.popen,
            )
        try:
            ready = re.compile(rb" \d+ workers, ")  # of its last word before it serves: signals are handled by then
            wait_for(
                lambda: ready.search(self.log.read_bytes(), began) or self.process.poll() is not None, 20, "the start"
            )
        finally:
            running = self.process.poll() is None
        assert running, self.log_text()

    @property
    def pid(self):
        return self.process.pid

    def log_text(self):
        return self.log.read_text(errors="replace")

    def wait_log(self, *words, seconds=10):
        wait_for(lambda: all(word in self.log_text() for word in words), seconds, f"{words} in feedd's log")

    def check_running(self):
        assert self.process.poll() is None, f"feedd has gone: {self.process.poll()}\n{self.log_text()[-6000:]}"

    def stop(self, number=signal.SIGTERM):
        """Asks it to stop: it has to exit with 0, having leaked nothing."""
        self.check_running()
        self.process.send_signal(number)
        code = self.process.wait(STOP_S)
        check_output(self.log.read_bytes(), "feedd")
        assert code == 0, f"feedd exited with {code}\n{self.log_text()[-6000:]}"

    def kill(self):
        """However the test ended, nothing of it stays behind."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def report(self):
        """The status report, by hand; without the client that asks."""
        with rawclient.Client(self.socket, name="report") as client:
            packet = client.status()
            text = os.pread(packet.fds[0], packet.one(2), 0)
            os.close(packet.fds[0])
        report = json.loads(text)
        report["clients"] = [c for c in report["clients"] if c["name"] != "report"]
        return report

    def wait_report(self, condition, seconds=10, what="a condition"):
        return wait_for(
            lambda: (report := self.report()) and condition(report) and report, seconds, f"{what} in the report"
        )

    def fd_count(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def settled_fd_count(self):
        """The count of descriptors, once what has just ended is closed."""
        counts = [-1]
        while len(counts) < 5 or len(set(counts[-5:])) > 1:
            counts.append(self.fd_count())
            time.sleep(0.02)
        return counts[-1]

    def memory_bytes(self):
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    # ---- feedctl ----

    def feedctl_command(self, *args):
        return [str(FEEDCTL), "--socket", str(self.socket), *(str(arg) for arg in args)]

    def feedctl(self, *args):
        return run(self.feedctl_command(*args), env=self.env)

    def cat(self, source, *args):
        """feedctl cat --json, which has to succeed. @return its batches, and the line of the end"""
        return parse_cat(self.feedctl("cat", source, "--json", *args))

    def cat_fails(self, source, *args, words=()):
        """feedctl cat, which has to fail with one clear line. @return that line"""
        return parse_failure(self.feedctl("cat", source, *args), *words)

    def start_cat(self, source, *args, stdout=None):
        """feedctl cat --json in the background; finish_cat() collects it."""
        name = self.folder / f"cat-{time.monotonic_ns()}"
        with open(name.with_suffix(".err"), "wb") as err, contextlib.ExitStack() as stack:
            process = subprocess.Popen(
                self.feedctl_command("cat", source, "--json", *args),
                stdin=subprocess.DEVNULL,
                stdout=stdout if stdout is not None else stack.enter_context(open(name.with_suffix(".out"), "wb")),
                stderr=err,
                env=self.env,
            )
        process.outputs = name
        return process


def parse_lines(stdout):
    lines = [json.loads(line) for line in stdout.splitlines()]
    return lines[:-1], lines[-1]


def parse_cat(done):
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    batches, end = parse_lines(done.stdout)
    assert end["end"] is True and end["batches"] == len(batches) and end["samples"] == sum(b["valid"] for b in batches)
    return batches, end


def parse_failure(done, *words):
    text = done.stderr.decode()
    assert done.returncode == 1, f"exit {done.returncode}: {text}"
    assert text.startswith("feedctl: ") and text.endswith("\n"), repr(text)
    rawclient.check_line(text.rstrip("\n"), *words)
    return text.rstrip("\n")


def finish_cat(process, timeout=60):
    """Waits for a start_cat(). @return it, as subprocess.run() would have"""
    code = process.wait(timeout)
    out, err = process.outputs.with_suffix(".out"), process.outputs.with_suffix(".err").read_bytes()
    check_output(err, "feedctl")
    return subprocess.CompletedProcess(process.args, code, out.read_bytes() if out.exists() else b"", err)
