"""_jax.py - batches as JAX arrays: always a copy, made by a function that XLA compiles.

JAX has no stream that others could enqueue on, and may keep or donate what it is given. So a batch is lent to it for one
function, which converts, normalises and lays out as the kernels of feedd do (normalize.h: subtract and multiply in
float32, each rounded, then one rounding to the dtype). It goes back when the next batch is taken, by when the function
has run: nothing waits for the step that was enqueued behind it.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy

from ._dlpack import View
from ._lib import DTYPE_NAMES


class Framework:
    name = "JAX"
    version = jax.__version__

    def __init__(self, device: str):
        kind, _, number = device.partition(":")
        if kind not in ("cpu", "cuda"):
            raise ValueError(f'device {device!r}: allowed are "cpu", "cuda" and "cuda:N"')
        self.device_name = b"host" if kind == "cpu" else f"cuda:{number or 0}".encode()
        self._number = int(number or 0)
        self._function: Any = None
        self._pending: Tuple[Any, Any] = (None, None)

    def current_stream(self) -> Optional[int]:
        return None

    def dtype(self, name: str) -> Any:
        return jnp.dtype(name)

    def view(self, view: View) -> Any:
        return jax.dlpack.from_dlpack(view)

    def to_device(self, views: List[Any]) -> List[Any]:
        """Of views in host memory (transport "host"); they have to stay until they are copied."""
        return jax.device_put(views, jax.devices("cuda")[self._number])

    def convert(self, views: List[Any], plan: List[Any], copy: bool) -> List[Any]:
        """@return the arrays of a batch; `views` go when the next one is converted. copy: they are in host memory, and
        the arrays are to be on the GPU"""
        if self._function is None:
            self._function = _compile(
                [one.normalize and one.normalize._obj for one in plan], [one.shape for one in plan]
            )
        arrays, mark = self._function(self.to_device(views) if copy else views)
        self.settle()
        self._pending = (views, mark)
        return arrays

    def settle(self) -> None:
        """Waits until the function has run, and lets the batch go."""
        _, mark = self._pending
        if mark is not None:
            mark.block_until_ready()
        self._pending = (None, None)


def _compile(options: List[Any], shapes: List[Any]) -> Any:
    """A function from the fields of a batch to its arrays, and a number that is there when all of them are."""

    def convert(views: List[Any]) -> Any:
        arrays = [_convert(view, one, shape) for view, one, shape in zip(views, options, shapes)]
        return arrays, sum(array.ravel()[0].astype(jnp.float32) for array in arrays)

    return jax.jit(convert)


def _convert(pixels: Any, options: Any, shape: Any) -> Any:
    if options is None:  # as it is; JAX's own integers have 32 bits unless it is told otherwise
        return jnp.copy(pixels.astype(jax.dtypes.canonicalize_dtype(pixels.dtype)).reshape(pixels.shape[0], *shape))
    name, channels = DTYPE_NAMES[options.dtype], pixels.shape[3]
    if name == "uint8":
        out = jnp.copy(pixels)
    else:
        mean, std = (numpy.array(values[:channels]) * options.scale for values in (options.mean, options.std))
        out = (pixels.astype(jnp.float32) - mean.astype(numpy.float32)) * (1 / std).astype(numpy.float32)
        out = jnp.clip(jnp.rint(out), -128, 127).astype(jnp.int8) if name == "int8" else out.astype(name)
    return out.transpose(0, 3, 1, 2) if options.nchw else out
