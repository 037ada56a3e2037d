"""_numpy.py - batches as NumPy arrays in host memory."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy

from ._dlpack import View


class Framework:
    name = "NumPy"
    version = numpy.__version__

    def __init__(self, device: str):
        if device != "cpu":
            raise ValueError(f'NumPy arrays are in host memory, and device is {device!r}: pass device="cpu", or use '
                             "feedd.DataLoader (torch), feedd.CupyLoader, feedd.JaxLoader")  # fmt: skip

    device_name = b"host"
    no_views_of = ("bfloat16",)  # DLPack has it, NumPy doesn't

    def current_stream(self) -> Optional[int]:
        return None

    def dtype(self, name: str) -> Any:
        if name == "bfloat16":
            try:
                import ml_dtypes
            except ImportError:
                raise TypeError(
                    "NumPy has no bfloat16 of its own: install ml_dtypes, or use float16 or float32"
                ) from None
            return numpy.dtype(ml_dtypes.bfloat16)
        return numpy.dtype(name)

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        return numpy.empty(shape, dtype)

    def address(self, array: Any) -> int:
        return array.ctypes.data

    def check_out(self, array: Any, shape: Sequence[int], dtype: Any) -> None:
        if not isinstance(array, numpy.ndarray) or not array.flags.c_contiguous or not array.flags.writeable:
            raise TypeError(f"out: {type(array).__name__}: it has to be a writable C-contiguous numpy.ndarray")
        check_like(array.shape, array.dtype, shape, dtype)

    def view(self, view: View) -> Any:
        array = numpy.from_dlpack(view)
        array.flags.writeable = False
        return array

    def channels_first(self, array: Any) -> Any:
        return array.transpose(0, 3, 1, 2)


def check_like(its_shape: Sequence[int], its_dtype: Any, shape: Sequence[int], dtype: Any) -> None:
    """Of an array in `out`. Raises ValueError."""
    if tuple(its_shape) != tuple(shape) or its_dtype != dtype:
        raise ValueError(f"out: an array of {tuple(its_shape)} {its_dtype}; batches are {tuple(shape)} {dtype}")
