"""crowd.py - the members of broadcast groups: several at a time, and what they have to agree on."""

import contextlib
import json
import os
import signal

from harness import finish_cat, parse_cat, parse_lines, wait_for

PRIVATE, BROADCAST = 1, 2
NOW, GATE, NEXT_EPOCH = 1, 2, 3


class Crowd:
    """Starts `feedctl cat --json`, and leaves none behind."""

    def __init__(self, feedd):
        self.feedd = feedd
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def start(self, source, *args, share="broadcast"):
        process = self.feedd.start_cat(source, "--share", share, *args)
        self.processes.append(process)
        return process

    def start_all(self, count, source, *args):
        """`count` members behind a gate."""
        return [self.start(source, "--members", count, *args) for _ in range(count)]


def printed(process):
    """The batches that a process has printed whole. Without --pause it prints them in blocks of some kilobytes."""
    batches = []
    for line in process.outputs.with_suffix(".out").read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError):
            batches.append(json.loads(line))
    return [batch for batch in batches if "end" not in batch]


def wait_printed(process, count, seconds=20):
    wait_for(lambda: len(printed(process)) >= count, seconds, f"{count} batches of a member")


def finish(process, timeout=60):
    """A member that has to succeed. @return its batches"""
    return parse_cat(finish_cat(process, timeout))[0]


def finish_all(processes, timeout=60):
    """Members that have to succeed, with the same batches: numbers, indices, flags and bytes. @return them, once"""
    first, *others = [finish(process, timeout) for process in processes]
    for other in others:
        assert other == first
    return first


def kill(process, number=signal.SIGKILL):
    """@return the batches that it had printed"""
    process.send_signal(number)
    process.wait(20)
    return printed(process)


def failure(process, *words, timeout=60):
    """A member that has to fail with one line. @return (its batches, the line)"""
    done = finish_cat(process, timeout)
    text = done.stderr.decode()
    assert done.returncode == 1 and text.startswith("feedctl: ") and text.count("\n") == 1, (done.returncode, text)
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"
    return (parse_lines(done.stdout)[0] if done.stdout else []), text.rstrip("\n")


@contextlib.contextmanager
def forked(function):
    """Runs function() in a child that doesn't come back into pytest: it ends by os._exit(), with nothing closed.

    The child has what it needs open before the parent goes on: function() gets a descriptor to write one byte to.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            function(writing)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"!", "the child failed"
        yield pid
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
