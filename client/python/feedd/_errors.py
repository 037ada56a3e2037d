"""_errors.py - what feedd raises. Each message says what is wrong and what to do."""

from __future__ import annotations

E_CONNECTION, E_TIMEOUT, E_LEASES, E_SHUTDOWN, E_DEVICE, E_END = -11, -12, -13, -17, -18, -19


class Error(RuntimeError):
    """Any failure of feedd. `status`: the number in feedd_types.h."""

    status = -20


class ArgumentError(Error, ValueError):
    """Something was asked for that makes no sense, or another stream than the group's."""


class NotFoundError(Error, LookupError):
    """There is no such stream, dataset, sample."""


class AccessError(Error, PermissionError):
    """Not for this user."""


class OutOfMemoryError(Error, MemoryError):
    """Not enough memory, on the host, on a GPU, or within a limit of the daemon's."""


class VersionError(Error):
    """Daemon and package are of versions that don't understand each other."""


class DaemonError(Error, ConnectionError):
    """No daemon is there, or it has gone and not come back."""


class LeasesError(Error):
    """zero_copy: tensors of earlier batches are kept for so long that the next batch can't be made."""


class TokenError(Error, ValueError):
    """A state that doesn't fit this dataset, order or seed."""


class ForkError(Error):
    """A loader is used in a process that was forked from the one that made it."""


class DeviceError(Error):
    """A GPU is missing, or has failed."""


_CLASSES = {
    -1: (ArgumentError, ""),
    -2: (NotFoundError, ""),
    -3: (AccessError, ""),
    -5: (OutOfMemoryError, ""),
    -9: (VersionError, "Install daemon and package of one version, and start the daemon again"),
    E_CONNECTION: (DaemonError, "For a daemon of your own pass autostart=True, or the path of a dataset"),
    E_LEASES: (LeasesError, "zero_copy tensors of earlier batches are still there: delete them, copy what has to stay "
                            "(x.clone(), x.copy()), or give the stream a larger `depth` in feedd.conf"),
    -14: (TokenError, ""),
    -16: (ForkError, "Make the loader in the process that uses it, after the fork"),
    E_SHUTDOWN: (DaemonError, "Start it again"),
    E_DEVICE: (DeviceError, 'device="cpu" works without a GPU'),
}  # fmt: skip


def make(status: int, message: str) -> Error:
    """The exception for a status of libfeedd."""
    kind, hint = _CLASSES.get(status, (Error, ""))
    error = kind(f"{message}. {hint}" if hint else message)
    error.status = status
    return error
