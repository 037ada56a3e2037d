"""_cupy.py - batches as CuPy arrays on a GPU, written on CuPy's current stream."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import cupy

from ._dlpack import View
from ._numpy import check_like


class Framework:
    name = "CuPy"
    version = cupy.__version__

    def __init__(self, device: str):
        kind, _, number = device.partition(":")
        if kind != "cuda":
            raise ValueError(f'CuPy arrays are on a GPU, and device is {device!r}: pass "cuda" or "cuda:N"')
        self.device = cupy.cuda.Device(int(number)) if number else cupy.cuda.Device()
        self.device_name = f"cuda:{self.device.id}".encode()

    no_views_of = ()

    def current_stream(self) -> Optional[int]:
        return cupy.cuda.get_current_stream(self.device.id).ptr

    def dtype(self, name: str) -> Any:
        if name == "bfloat16":
            raise TypeError("CuPy has no bfloat16: use float16 or float32")
        return cupy.dtype(name)

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        with self.device:
            return cupy.empty(shape, dtype)

    def address(self, array: Any) -> int:
        return array.data.ptr

    def check_out(self, array: Any, shape: Sequence[int], dtype: Any) -> None:
        if not isinstance(array, cupy.ndarray) or not array.flags.c_contiguous or array.device != self.device:
            raise TypeError(f"out: {type(array).__name__}: it has to be a C-contiguous cupy.ndarray on {self.device}")
        check_like(array.shape, array.dtype, shape, dtype)

    def view(self, view: View) -> Any:
        view.legacy = True
        return cupy.from_dlpack(view)

    def channels_first(self, array: Any) -> Any:
        return array.transpose(0, 3, 1, 2)
