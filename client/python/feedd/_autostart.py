"""_autostart.py - a private daemon, for who has none: `feedd --private`, found again by every process of this user.

Happy path: run it; it prints its socket, and goes on in the background, or leaves at once where one runs already. It
goes when nobody has used it for a while.
What can fail: there is no feedd to run, or it can't start (DaemonError with what it said).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, Callable, List, Optional

from . import _errors
from ._lib import PACKAGE

START_S = 20
_children: List["subprocess.Popen[bytes]"] = []  # that are to be waited for, once they have ended


def finder(socket: Any, autostart: Any, is_path: bool) -> Callable[[], Optional[bytes]]:
    """What says where the daemon listens, having started it where that is ours to do. None: where libfeedd looks."""
    if socket is not None:
        return lambda: os.fsencode(socket)
    if os.environ.get("FEEDD_SOCKET") or not (autostart or is_path):
        return lambda: None
    config = os.environ.get("FEEDD_CONFIG") if autostart is True or not autostart else os.fspath(autostart)
    command = [_program(), "--private", *(["--config", os.path.abspath(config)] if config else [])]
    return lambda: _start(command)


def _program() -> str:
    bundled = PACKAGE / "bin" / "feedd"
    program = os.environ.get("FEEDD_PROGRAM") or (str(bundled) if bundled.exists() else shutil.which("feedd"))
    if program is None:
        raise _errors.make(
            _errors.E_CONNECTION, "there is no feedd to start: install the package with pip, or set FEEDD_PROGRAM"
        )
    return program


def _open_log() -> BinaryIO:
    """What a daemon says that outlives who started it: not to its standard error, which may be a pipe that somebody
    reads to the end."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(cache if os.path.isabs(cache) else Path.home() / ".cache") / "feedd"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open(folder / "private.log", "ab")
    except OSError:
        return tempfile.TemporaryFile()


def _start(command: List[str]) -> bytes:
    with _open_log() as log:
        began = log.seek(0, os.SEEK_END)
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd="/", start_new_session=True
            )
        except OSError as error:
            raise _errors.make(_errors.E_CONNECTION, f"{command[0]} can't be run: {error}") from None
        line = process.stdout.readline()  # type: ignore[union-attr]
        process.stdout.close()  # type: ignore[union-attr]
        if line.endswith(b"\n"):
            _children.append(process)
            _children[:] = [child for child in _children if child.poll() is None]
            return line[:-1]
        process.wait(START_S)
        with open(f"/proc/self/fd/{log.fileno()}", "rb") as said:
            said.seek(began)
            reason = said.read().decode(errors="replace").strip().rpartition("\n")[2]
    raise _errors.make(_errors.E_CONNECTION, f"{' '.join(command)} didn't start: {reason or process.returncode}")
