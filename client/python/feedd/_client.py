"""_client.py - one connection to a daemon and the one stream that a loader has on it.

Happy path: open() -> take() until StopIteration, each batch given back by release() -> close(), or open() again
elsewhere.
What can fail: what feedd.h says, raised as _errors has it. Waiting wakes up ten times a second, so that signals (Ctrl-C)
are handled and close() from another thread is noticed.
Threads: one at a time; the loader sees to that.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import _errors
from ._lib import (
    DTYPE_NAMES,
    NORMALIZE,
    ORDERS,
    SHARES,
    TAILS,
    TOKEN_TEXT,
    BatchInfo,
    Error,
    OpenOptions,
    Stats,
    check,
    library,
    take_text,
)

WAIT_MS = 100
REOPEN_S = 60  # as long as libfeedd looks for a daemon that went away


class Field(NamedTuple):
    number: int
    name: str
    dtype: str
    shape: Tuple[int, ...]  # of one sample


class Schema(NamedTuple):
    """What a stream delivers."""

    dataset: str
    sample_count: int
    steps_per_epoch: int
    fields: List[Field]
    classes: Optional[List[str]]
    batch_size: int
    depth: int
    rank: int
    world_size: int
    order: str
    tail: str
    seed: int
    share: str
    group: str
    transport: str
    mode_reason: str
    device: str  # UUID; "": host memory
    device_ordinal: int
    normalize: str  # "client": images are uint8; "daemon", "cpu": what `output` said
    views_on_host: bool


def _name_of(names: Dict[str, int], code: int) -> str:
    return next((name for name, value in names.items() if value == code), str(code))


def _read_schema(s: Any) -> Schema:
    fields = [
        Field(number, f.name.decode(), DTYPE_NAMES[f.dtype], tuple(f.shape[: f.ndim]))
        for number, f in enumerate(s.fields[: s.field_count])
    ]
    classes = [name.decode(errors="replace") for name in s.class_names[: s.class_count]] if s.class_names else None
    return Schema(
        s.dataset.decode(errors="replace"), s.sample_count, s.steps_per_epoch, fields, classes, s.batch_size, s.depth,
        s.rank, s.world_size, _name_of(ORDERS, s.order), _name_of(TAILS, s.tail), s.seed, _name_of(SHARES, s.share),
        s.group.decode(), s.transport.decode(), s.mode_reason.decode(), s.device.decode(), s.device_ordinal,
        _name_of(NORMALIZE, s.normalize), bool(s.views_on_host),
    )  # fmt: skip


class Handles:
    """What has to be closed, apart from the loader so that it can be when that has gone."""

    def __init__(self) -> None:
        self.client: Optional[int] = None
        self.stream: Optional[int] = None

    def close(self) -> None:
        client, self.client, self.stream = self.client, None, None
        if client is not None:
            library().client_close(client)


class Client:
    def __init__(self, find_socket: Callable[[], Optional[bytes]], source: bytes, options: Dict[str, Any]):
        """find_socket: says where the daemon is, having started it where that is ours to do; None: the default."""
        self._lib = library()
        self._find_socket = find_socket
        self._source = source
        self._options = options
        self.error = Error()
        self.error_ref = ctypes.byref(self.error)
        self.handles = Handles()
        self.closing = False
        self.batch = ctypes.c_void_p()
        self.info = BatchInfo()
        self._batch_ref, self._info_ref = ctypes.byref(self.batch), ctypes.byref(self.info)
        self.lent = ctypes.c_void_p()  # where batch_dlpack() puts a tensor
        self.lent_ref = ctypes.byref(self.lent)
        # What is called for each batch, without looking for it each time.
        self.batch_dlpack, self._next = self._lib.batch_dlpack, self._lib.next
        self._release, self._batch_info = self._lib.release, self._lib.batch_info
        self._open_once(None)

    def _check(self, status: int) -> None:
        if status != 0:
            check(status, self.error)

    # ---- opening ----

    def _connect(self) -> None:
        self.handles.close()
        handle = ctypes.c_void_p()
        for _ in range(3):  # a private daemon may leave between having been found and being asked
            status = self._lib.connect(self._find_socket(), ctypes.byref(handle), self.error_ref)
            if status != _errors.E_CONNECTION:
                break
        self._check(status)
        self.handles.client = handle.value

    def _open_once(self, token: Optional[bytes]) -> None:
        if self.handles.client is None:
            self._connect()
        options = OpenOptions(size=ctypes.sizeof(OpenOptions), reconnect=1, **self._options)
        if token is not None:
            options.resume = token
        stream = ctypes.c_void_p()
        self._check(self._lib.open_begin(self.handles.client, self._source, ctypes.byref(options),
                                         ctypes.byref(stream), self.error_ref))  # fmt: skip
        try:
            status = _errors.E_TIMEOUT
            while status == _errors.E_TIMEOUT:
                status = self._lib.open_wait(stream, WAIT_MS, self.error_ref)
            self._check(status)
        except BaseException:
            self._lib.stream_close(stream)
            raise
        self.handles.stream = stream.value
        self.schema = _read_schema(self._lib.stream_schema(stream).contents)

    def open(self, token: bytes) -> None:
        """Closes the stream and opens it again where the token says; waits for a daemon that is away."""
        self.close_stream()
        deadline = time.monotonic() + REOPEN_S
        while True:
            try:
                return self._open_once(token)
            except _errors.DaemonError:
                self.handles.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(WAIT_MS / 1000)

    @property
    def is_open(self) -> bool:
        return self.handles.stream is not None

    def _stream(self) -> int:
        if self.handles.stream is None:  # opening it elsewhere has failed, which was raised then
            raise _errors.make(-15, "the loader's stream isn't open: begin another loop")
        return self.handles.stream

    def close_stream(self) -> None:
        stream, self.handles.stream = self.handles.stream, None
        if stream is not None:
            self._lib.stream_close(stream)

    # ---- batches ----

    def take(self) -> None:
        """Waits for the next batch: self.batch and self.info. Raises StopIteration after the last one."""
        status = self._next(self._stream(), 0, self._batch_ref, self.error_ref)
        if status != 0:
            self._wait(status)
        self._batch_info(self.batch, self._info_ref)

    def _wait(self, status: int) -> None:
        waits = 0
        while status == _errors.E_TIMEOUT:
            if self.closing:
                raise _errors.Error("the loader was closed while another thread waited for a batch")
            status = self._next(self._stream(), WAIT_MS, self._batch_ref, self.error_ref)
            waits += 1
            if status == _errors.E_TIMEOUT and waits % 10 == 0 and self.stats().away:
                self._find_socket()  # a private daemon that was killed is ours to start again
        if status == _errors.E_END:
            raise StopIteration
        self._check(status)

    def release(self, stream: Optional[int]) -> None:
        status = self._release(self.batch, stream, self.error_ref)
        if status != 0:
            check(status, self.error)

    def record(self, stream: Optional[int]) -> None:
        self._check(self._lib.batch_record(self.batch, stream, self.error_ref))

    # ---- questions ----

    def token(self) -> bytes:
        """Where the stream began, as long as nothing was taken."""
        text = ctypes.create_string_buffer(TOKEN_TEXT)
        self._lib.stream_token(self._stream(), text)
        return text.value

    def stats(self) -> Stats:
        stats = Stats()
        self._lib.stream_stats(self._stream(), ctypes.byref(stats))
        return stats

    def path(self, index: int) -> str:
        text = ctypes.c_void_p()
        self._check(self._lib.sample_path(self._stream(), index, ctypes.byref(text), self.error_ref))
        return os.fsdecode(take_text(text))


def read_token(token: bytes) -> Tuple[int, int]:
    """(epoch, position). Raises TokenError."""
    epoch, position, error = ctypes.c_uint64(), ctypes.c_uint64(), Error()
    check(library().token_read(token, ctypes.byref(epoch), ctypes.byref(position), ctypes.byref(error)), error)
    return epoch.value, position.value


def move_token(token: bytes, epoch: int, position: int) -> bytes:
    """The token of the same order that stands elsewhere."""
    out, error = ctypes.create_string_buffer(TOKEN_TEXT), Error()
    check(library().token_move(token, epoch, position, out, ctypes.byref(error)), error)
    return out.value
