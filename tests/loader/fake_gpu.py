"""fake_gpu.py - arrays on the fake GPU (tests/fake_cuda), as a framework would have them; no more than the tests need."""

import ctypes
import math

import numpy
from harness import BUILD

PATH = BUILD / "tests" / "fake_cuda" / "libfake_cudart.so"
D2H = 2


class Managed(ctypes.Structure):
    """DLManagedTensor, as DLPack 0.8 has it."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]  # fmt: skip


class Cuda:
    """The calls of the fake runtime; each has to succeed."""

    def __init__(self):
        self.library = ctypes.CDLL(str(PATH))

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            error = function(*arguments)
            assert error == 0, f"{name}: {error}"

        return call

    def stream(self):
        stream = ctypes.c_void_p()
        self.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
        return stream.value

    def read(self, address, shape, dtype, stream):
        """Once all that the stream has been given is done."""
        self.cudaStreamSynchronize(ctypes.c_void_p(stream))
        out = numpy.empty(shape, dtype)
        self.cudaMemcpy(ctypes.c_void_p(out.ctypes.data), ctypes.c_void_p(address), ctypes.c_size_t(out.nbytes), D2H)
        return out


class Array:
    """Memory of the framework's own."""

    def __init__(self, cuda, shape, dtype):
        self.cuda, self.shape, self.dtype = cuda, tuple(shape), numpy.dtype(dtype)
        address = ctypes.c_void_p()
        cuda.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(max(1, math.prod(self.shape) * self.dtype.itemsize)))
        self.address = address.value

    def __len__(self):
        return self.shape[0]

    def __del__(self):
        self.cuda.cudaFree(ctypes.c_void_p(self.address))

    def numpy(self, stream):
        return self.cuda.read(self.address, self.shape, self.dtype, stream)


class Lent:
    """What came through DLPack."""

    def __init__(self, cuda, capsule):
        python = ctypes.pythonapi
        python.PyCapsule_GetPointer.restype = ctypes.c_void_p
        python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
        self.cuda, self.pointer = cuda, python.PyCapsule_GetPointer(capsule, b"dltensor")
        python.PyCapsule_SetName(capsule, b"used_dltensor")
        self.managed = Managed.from_address(self.pointer)
        self.shape = tuple(self.managed.shape[: self.managed.ndim])
        self.dtype = numpy.dtype(f"{'iuf'[self.managed.code]}{self.managed.bits // 8}")

    def __del__(self):
        self.managed.deleter(self.pointer)

    def numpy(self, stream):
        return self.cuda.read(self.managed.data, self.shape, self.dtype, stream)


class Framework:
    name, version, device_name, no_views_of = "fake", "0", b"cuda", ()

    def __init__(self, device):
        self.cuda = Cuda()
        self.stream = self.cuda.stream()

    def current_stream(self):
        return self.stream

    def dtype(self, name):
        return numpy.dtype(name)

    def empty(self, shape, dtype):
        return Array(self.cuda, shape, dtype)

    def address(self, array):
        return array.address

    def check_out(self, array, shape, dtype):
        assert (array.shape, array.dtype) == (tuple(shape), dtype)

    def view(self, view):
        assert view.__dlpack_device__() == (2, 0)  # kDLCUDA
        return Lent(self.cuda, view.__dlpack__())

    def channels_first(self, array):
        return array
