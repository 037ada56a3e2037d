"""_lib.py - feedd.h by ctypes: its structures, its functions with their types, and what a status is raised as.

library() loads libfeedd once: $FEEDD_LIBRARY, or the one in this package, or the system's.
What can fail: there is none, or it is of another version (ImportError).
Threads: any. Calls that may take long let other threads of Python run; the few that only look don't.
"""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from . import _errors

VERSION = "0.1.0"
PACKAGE = Path(__file__).parent

MAX_DIMS, TIMES, TOKEN_TEXT = 6, 7, 128
ORDERS = {"sequential": 1, "shuffle": 2}
TAILS = {"drop": 1, "pad": 2, "partial": 3}
SHARES = {"private": 1, "broadcast": 2}
NORMALIZE = {"auto": 0, "client": 1, "daemon": 2, "cpu": 3}
DTYPES = {"uint8": 1, "int8": 2, "float16": 3, "bfloat16": 4, "float32": 5, "int32": 6, "int64": 7}
DTYPE_NAMES = {code: name for name, code in DTYPES.items()}
DTYPE_BYTES = {"uint8": 1, "int8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "int64": 8}


class Error(Structure):
    _fields_ = [("status", c_int32), ("message", c_char * 1020)]


class OpenOptions(Structure):
    _fields_ = [
        ("size", c_size_t), ("batch_size", c_uint32), ("order", c_int32), ("tail", c_int32), ("has_seed", c_int32),
        ("seed", c_uint64), ("has_epochs", c_int32), ("rank", c_uint32), ("epochs", c_uint64), ("world_size", c_uint32),
        ("depth", c_uint32), ("resume", c_char_p), ("resume_force", c_int32), ("share", c_int32), ("device", c_char_p),
        ("group", c_char_p), ("members", c_uint32), ("join", c_int32), ("gate_timeout_ms", c_uint32),
        ("reconnect", c_int32), ("reconnect_timeout_ms", c_uint32), ("transform", c_char_p), ("transport", c_char_p),
        ("normalize", c_int32), ("output", c_void_p),
    ]  # fmt: skip


class Field(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int32), ("ndim", c_uint32), ("shape", c_uint64 * MAX_DIMS)]


class Schema(Structure):
    _fields_ = [
        ("source", c_char_p), ("dataset", c_char_p), ("sample_count", c_uint64), ("steps_per_epoch", c_uint64),
        ("field_count", c_uint32), ("fields", POINTER(Field)), ("class_count", c_uint32),
        ("class_names", POINTER(c_char_p)), ("batch_size", c_uint32), ("depth", c_uint32), ("rank", c_uint32),
        ("world_size", c_uint32), ("order", c_int32), ("tail", c_int32), ("seed", c_uint64), ("epochs", c_uint64),
        ("share", c_int32), ("group", c_char_p), ("slot_bytes", c_uint64), ("transport", c_char_p),
        ("mode_reason", c_char_p), ("device", c_char_p), ("device_ordinal", c_int32), ("normalize", c_int32),
        ("views_on_host", c_int32),
    ]  # fmt: skip


class BatchInfo(Structure):
    _fields_ = [
        ("seq", c_uint64), ("epoch", c_uint64), ("position", c_uint64), ("count", c_uint32), ("valid", c_uint32),
        ("indices", POINTER(c_int64)), ("flags", POINTER(c_uint32)), ("time_ns", c_uint64 * TIMES),
        ("next_epoch", c_uint64), ("next_position", c_uint64),
    ]  # fmt: skip


class NormalizeOptions(Structure):
    _fields_ = [
        ("size", c_size_t), ("dtype", c_int32), ("nchw", c_int32), ("height", c_uint32), ("width", c_uint32),
        ("mean", c_double * 4), ("std", c_double * 4), ("scale", c_double), ("windows", c_void_p),
    ]  # fmt: skip


class Stats(Structure):
    _fields_ = [
        ("batches", c_uint64), ("samples", c_uint64), ("wait_ns", c_uint64), ("held", c_uint32), ("ready", c_uint32),
        ("members", c_uint32), ("reconnects", c_uint32), ("away", c_uint32),
    ]  # fmt: skip


_HANDLE = POINTER(c_void_p)
_FUNCTIONS = {
    "version": (c_char_p,),
    "connect": (c_int, c_char_p, _HANDLE, POINTER(Error)),
    "client_close": (None, c_void_p),
    "open_begin": (c_int, c_void_p, c_char_p, POINTER(OpenOptions), _HANDLE, POINTER(Error)),
    "open_wait": (c_int, c_void_p, c_int, POINTER(Error)),
    "stream_close": (None, c_void_p),
    "stream_schema": (POINTER(Schema), c_void_p),
    "next": (c_int, c_void_p, c_int, _HANDLE, POINTER(Error)),
    "release": (c_int, c_void_p, c_void_p, POINTER(Error)),
    "batch_copy": (c_int, c_void_p, c_uint32, c_void_p, c_size_t, c_void_p, POINTER(Error)),
    "batch_dlpack": (c_int, c_void_p, c_uint32, c_int, c_void_p, _HANDLE, POINTER(Error)),
    "batch_record": (c_int, c_void_p, c_void_p, POINTER(Error)),
    "normalize": (c_int, c_void_p, c_uint32, POINTER(NormalizeOptions), c_void_p, c_size_t, c_void_p, POINTER(Error)),
    "sample_path": (c_int, c_void_p, c_uint64, _HANDLE, POINTER(Error)),
    "capsule_destructor": (c_void_p, c_void_p, c_void_p),
}
_QUICK = {  # without letting other threads of Python run
    "batch_info": (None, c_void_p, POINTER(BatchInfo)),
    "stream_token": (None, c_void_p, c_char_p),
    "stream_stats": (None, c_void_p, POINTER(Stats)),
    "token_read": (c_int, c_char_p, POINTER(c_uint64), POINTER(c_uint64), POINTER(Error)),
    "token_move": (c_int, c_char_p, c_uint64, c_uint64, c_char_p, POINTER(Error)),
}


class Library:
    """The functions of feedd.h, without their prefix."""

    def __getattr__(self, name: str) -> Any:  # for type checkers: __init__() has set them all
        raise AttributeError(name)

    def __init__(self, path: str):
        for library, functions in ((ctypes.CDLL(path), _FUNCTIONS), (ctypes.PyDLL(path), _QUICK)):
            for name, (result, *arguments) in functions.items():
                try:
                    function = getattr(library, f"feedd_{name}")
                except AttributeError:
                    raise ImportError(f"{path} has no feedd_{name}: it is of another version than this package, "
                                      f"{VERSION}; install both together, or set FEEDD_LIBRARY") from None  # fmt: skip
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
        found = self.version().decode()
        if found != VERSION:
            raise ImportError(f"{path} is libfeedd {found}, and this package feedd {VERSION}: install both together, "
                              "or set FEEDD_LIBRARY")  # fmt: skip


@functools.lru_cache(maxsize=None)
def library() -> Library:
    """Loads libfeedd, once. Raises ImportError."""
    bundled = PACKAGE / "lib" / "libfeedd.so.0"
    path = os.environ.get("FEEDD_LIBRARY") or (str(bundled) if bundled.exists() else "libfeedd.so.0")
    try:
        return Library(path)
    except OSError as error:
        raise ImportError(f"libfeedd can't be loaded: {error}. Install the package with pip, which builds it, or set "
                          "FEEDD_LIBRARY to libfeedd.so") from None  # fmt: skip


def check(status: int, error: Error) -> None:
    """Raises what `error` says unless the status is 0."""
    if status != 0:
        raise _errors.make(status, error.message.decode(errors="replace"))


def take_text(text: c_void_p) -> bytes:
    """What the library wrote into memory of its own, which is freed."""
    value = ctypes.string_at(text)
    _free(text)
    return value


_free = ctypes.CDLL(None).free
_free.restype, _free.argtypes = None, [c_void_p]
