"""_torch.py - batches as torch tensors, in host memory or on a GPU.

On a GPU the tensor comes from torch's allocator and is written on torch's current stream, like a tensor of any operation.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch
from torch.utils.dlpack import from_dlpack

from . import _errors
from ._dlpack import View, lend
from ._numpy import check_like


class Framework:
    name = "torch"
    version = torch.__version__

    def __init__(self, device: str):
        where = torch.device(device)
        if where.type not in ("cpu", "cuda"):
            raise ValueError(f'device {device!r}: allowed are "cpu", "cuda" and "cuda:N"')
        if where.type == "cuda":
            if not torch.cuda.is_available():
                raise _errors.make(_errors.E_DEVICE, f"device {device}: torch {torch.__version__} finds no GPU")
            where = torch.device("cuda", torch.cuda.current_device() if where.index is None else where.index)
        self.device = where
        self.device_name = b"host" if where.type == "cpu" else str(where).encode()
        # The number alone, where this torch has that: an object of torch.cuda.Stream takes longer than all else here.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        # What from_dlpack() makes of a capsule, without its questions about objects.
        self._from_capsule = getattr(torch._C, "_from_dlpack", from_dlpack)

    no_views_of = ()

    def current_stream(self) -> Optional[int]:
        if self.device.index is None:
            return None
        if self._raw_stream is not None:
            return self._raw_stream(self.device.index)
        return torch.cuda.current_stream(self.device).cuda_stream

    def dtype(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def check_out(self, array: Any, shape: Sequence[int], dtype: Any) -> None:
        if not isinstance(array, torch.Tensor) or not array.is_contiguous() or array.device != self.device:
            raise TypeError(f"out: {type(array).__name__}: it has to be a contiguous tensor on {self.device}")
        check_like(array.shape, array.dtype, shape, dtype)

    def view(self, view: View) -> Any:
        # A capsule, which torch takes as it is: for an object it would have its stream wait for another one.
        return self._from_capsule(lend(view.client, view.field, view.stream))

    def channels_first(self, array: Any) -> Any:
        return array.permute(0, 3, 1, 2)

    def profiling(self) -> bool:
        return torch.autograd._profiler_enabled()

    def span(self, name: str) -> Any:
        """A named range in torch.profiler's trace, and in NVTX under torch.autograd.profiler.emit_nvtx()."""
        return torch.profiler.record_function(name)
