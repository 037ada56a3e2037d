"""_dlpack.py - a field of a batch as frameworks take it over: by the DLPack protocol of Python.

The tensor and its deleter are libfeedd's (dlpack.c); here it is only put into a capsule.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Optional, Tuple

from ._lib import check, library

if TYPE_CHECKING:
    from ._client import Client

_NAMES = (b"dltensor", b"dltensor_versioned")  # a capsule points to its name
_python = ctypes.pythonapi


@functools.lru_cache(maxsize=None)
def _destructor() -> Any:
    def address(function: Any) -> int:
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    new = _python.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return library().capsule_destructor(address(_python.PyCapsule_IsValid), address(_python.PyCapsule_GetPointer))


def lend(client: Client, field: int, stream: Optional[int], versioned: bool = False) -> Any:
    """A capsule around a read-only tensor of one field of the batch taken last, read on `stream`. Raises Error."""
    status = client.batch_dlpack(client.batch, field, versioned, stream, client.lent_ref, client.error_ref)
    if status != 0:
        check(status, client.error)
    return _python.PyCapsule_New(client.lent, _NAMES[versioned], _destructor())


class View:
    """What from_dlpack() of a framework takes; within the loader's own call alone."""

    __slots__ = ("client", "device", "field", "legacy", "stream")

    def __init__(self, client: Client, field: int, device: Tuple[int, int], stream: Optional[int]):
        self.client, self.field, self.device, self.stream = client, field, device, stream
        self.legacy = False  # always as DLPack 0.8 has it, which can't say read-only: for who takes nothing that is

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.device

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        # The batch has arrived before it is handed out: no stream has to wait for anything. 1 and 2 are the legacy
        # and the per-thread default stream, which CUDA knows by these numbers too; -1: none.
        reader = self.stream if stream is None or stream == -1 else stream
        return lend(
            self.client, self.field, reader, not self.legacy and max_version is not None and max_version >= (1, 0)
        )
