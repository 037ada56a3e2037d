"""libfeedd.py - feedd.h through ctypes, no more than the scenarios need."""

import ctypes
import os
from ctypes import (
    POINTER,
    Structure,
    byref,
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

OK, E_ARGUMENT, E_NOT_FOUND, E_LIMIT, E_UNSUPPORTED, E_CONNECTION = 0, -1, -2, -4, -8, -11
E_TIMEOUT, E_LEASES, E_TOKEN, E_STATE, E_FORK, E_SHUTDOWN, E_END = -12, -13, -14, -15, -16, -17, -19
MAX_DIMS, TIMES = 6, 7


class Error(Structure):
    _fields_ = [("status", c_int32), ("message", c_char * 1020)]


class Options(Structure):
    _fields_ = [
        ("size", c_size_t), ("batch_size", c_uint32), ("order", c_int32), ("tail", c_int32), ("has_seed", c_int32),
        ("seed", c_uint64), ("has_epochs", c_int32), ("rank", c_uint32), ("epochs", c_uint64), ("world_size", c_uint32),
        ("depth", c_uint32), ("resume", c_char_p), ("resume_force", c_int32), ("share", c_int32), ("device", c_char_p),
        ("group", c_char_p), ("members", c_uint32), ("join", c_int32), ("gate_timeout_ms", c_uint32),
        ("reconnect", c_int32), ("reconnect_timeout_ms", c_uint32), ("transform", c_char_p),
        ("transport", c_char_p), ("normalize", c_int32), ("output", c_void_p),
    ]  # fmt: skip


class Field(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int32), ("ndim", c_uint32), ("shape", c_uint64 * MAX_DIMS)]


class Schema(Structure):
    _fields_ = [
        ("source", c_char_p), ("dataset", c_char_p), ("sample_count", c_uint64), ("steps_per_epoch", c_uint64),
        ("field_count", c_uint32), ("fields", POINTER(Field)),
        ("class_count", c_uint32), ("class_names", POINTER(c_char_p)),
        ("batch_size", c_uint32), ("depth", c_uint32), ("rank", c_uint32), ("world_size", c_uint32), ("order", c_int32),
        ("tail", c_int32), ("seed", c_uint64), ("epochs", c_uint64), ("share", c_int32), ("group", c_char_p),
        ("slot_bytes", c_uint64), ("transport", c_char_p), ("mode_reason", c_char_p), ("device", c_char_p),
        ("device_ordinal", c_int32), ("normalize", c_int32), ("views_on_host", c_int32),
    ]  # fmt: skip


class BatchInfo(Structure):
    _fields_ = [
        ("seq", c_uint64), ("epoch", c_uint64), ("position", c_uint64), ("count", c_uint32), ("valid", c_uint32),
        ("indices", POINTER(c_int64)), ("flags", POINTER(c_uint32)), ("time_ns", c_uint64 * TIMES),
        ("next_epoch", c_uint64), ("next_position", c_uint64),
    ]  # fmt: skip


class View(Structure):
    _fields_ = [
        ("data", c_void_p), ("dtype", c_int32), ("ndim", c_uint32), ("shape", c_uint64 * (MAX_DIMS + 1)),
        ("bytes", c_uint64),
    ]  # fmt: skip


class Window(Structure):
    _fields_ = [("y", c_uint32), ("x", c_uint32), ("flip", c_uint32)]


class NormalizeOptions(Structure):
    _fields_ = [
        ("size", c_size_t), ("dtype", c_int32), ("nchw", c_int32), ("height", c_uint32), ("width", c_uint32),
        ("mean", c_double * 4), ("std", c_double * 4), ("scale", c_double), ("windows", POINTER(Window)),
    ]  # fmt: skip


class Stats(Structure):
    _fields_ = [
        ("batches", c_uint64),
        ("samples", c_uint64),
        ("wait_ns", c_uint64),
        ("held", c_uint32),
        ("ready", c_uint32),
        ("members", c_uint32),
        ("reconnects", c_uint32),
        ("away", c_uint32),
    ]


def load(path):
    lib = ctypes.CDLL(path)
    for name, result, *arguments in (
        ("version", c_char_p),
        ("status_name", c_char_p, c_int),
        ("dtype_bytes", c_uint32, c_int),
        ("dtype_name", c_char_p, c_int),
        ("connect", c_int, c_char_p, POINTER(c_void_p), POINTER(Error)),
        ("client_close", None, c_void_p),
        ("open", c_int, c_void_p, c_char_p, POINTER(Options), POINTER(c_void_p), POINTER(Error)),
        ("open_begin", c_int, c_void_p, c_char_p, POINTER(Options), POINTER(c_void_p), POINTER(Error)),
        ("open_wait", c_int, c_void_p, c_int, POINTER(Error)),
        ("stream_close", None, c_void_p),
        ("stream_schema", POINTER(Schema), c_void_p),
        ("next", c_int, c_void_p, c_int, POINTER(c_void_p), POINTER(Error)),
        ("release", c_int, c_void_p, c_void_p, POINTER(Error)),
        ("stream_fd", c_int, c_void_p, POINTER(Error)),
        ("batch_info", None, c_void_p, POINTER(BatchInfo)),
        ("batch_view", c_int, c_void_p, c_uint32, POINTER(View)),
        ("batch_copy", c_int, c_void_p, c_uint32, c_void_p, c_size_t, c_void_p, POINTER(Error)),
        ("batch_dlpack", c_int, c_void_p, c_uint32, c_int, c_void_p, POINTER(c_void_p), POINTER(Error)),
        ("batch_record", c_int, c_void_p, c_void_p, POINTER(Error)),
        ("token_read", c_int, c_char_p, POINTER(c_uint64), POINTER(c_uint64), POINTER(Error)),
        ("token_move", c_int, c_char_p, c_uint64, c_uint64, c_char_p, POINTER(Error)),
        ("sample_path", c_int, c_void_p, c_uint64, POINTER(c_void_p), POINTER(Error)),
        ("stream_token", None, c_void_p, c_char_p),
        ("stream_stats", None, c_void_p, POINTER(Stats)),
        ("status_json", c_int, c_void_p, POINTER(c_void_p), POINTER(Error)),
        ("normalize", c_int, c_void_p, c_uint32, POINTER(NormalizeOptions), c_void_p, c_size_t, c_void_p,
         POINTER(Error)),
    ):
        function = getattr(lib, f"feedd_{name}")
        function.restype, function.argtypes = result, arguments
    return lib


lib = load(os.environ["FEEDD_LIBRARY"])
libc = ctypes.CDLL(None)
libc.free.argtypes = [c_void_p]


class Failure(Exception):
    def __init__(self, error):
        super().__init__(error.message.decode())
        self.status = error.status


def check(status, error):
    if status != OK:
        assert status < 0 and error.status == status and error.message and b"\n" not in error.message
        raise Failure(error)


def take_text(text):
    value = ctypes.string_at(text)
    libc.free(text)
    return value


class Client:
    def __init__(self, path):
        handle, error = c_void_p(), Error()
        check(lib.feedd_connect(path.encode(), byref(handle), byref(error)), error)
        self.handle = handle

    def open(self, source, **options):
        return Stream(self, source, **options)

    def status_json(self):
        text, error = c_void_p(), Error()
        check(lib.feedd_status_json(self.handle, byref(text), byref(error)), error)
        return take_text(text)

    def close(self):
        lib.feedd_client_close(self.handle)
        self.handle = None


class Stream:
    def __init__(self, client, source, **options):
        values = Options(size=ctypes.sizeof(Options))
        for name, value in options.items():
            setattr(values, name, value)
            if name in ("seed", "epochs"):
                setattr(values, f"has_{name}", 1)
        handle, error = c_void_p(), Error()
        check(lib.feedd_open(client.handle, source.encode(), byref(values), byref(handle), byref(error)), error)
        self.handle = handle
        self.schema = lib.feedd_stream_schema(handle).contents

    def next(self, timeout_ms=10000):
        batch, error = c_void_p(12345), Error()
        status = lib.feedd_next(self.handle, timeout_ms, byref(batch), byref(error))
        assert status == OK or batch.value == 12345  # outputs are untouched on failure
        check(status, error)
        return batch

    def release(self, batch):
        error = Error()
        check(lib.feedd_release(batch, None, byref(error)), error)

    def fd(self):
        error = Error()
        fd = lib.feedd_stream_fd(self.handle, byref(error))
        if fd < 0:
            check(fd, error)
        return fd

    def token(self):
        text = ctypes.create_string_buffer(128)
        lib.feedd_stream_token(self.handle, text)
        return text.value

    def stats(self):
        stats = Stats()
        lib.feedd_stream_stats(self.handle, byref(stats))
        return stats

    def close(self):
        lib.feedd_stream_close(self.handle)
        self.handle = None


def info(batch):
    out = BatchInfo()
    lib.feedd_batch_info(batch, byref(out))
    return out


def view(batch, field):
    out = View()
    assert lib.feedd_batch_view(batch, field, byref(out)) == OK
    return out


def data(batch, field):
    out = view(batch, field)
    return ctypes.string_at(out.data, out.bytes)
