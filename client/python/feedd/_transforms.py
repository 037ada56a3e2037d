"""_transforms.py - what the daemon makes of each image: torchvision's names and parameters.

    transform=[feedd.RandomResizedCrop(224), feedd.RandomHorizontalFlip()]
    transform=[feedd.Resize(256), feedd.CenterCrop(224)]

They only say what is to be done; the daemon decodes, crops and scales (bilinear, with antialiasing, as Pillow does).
Normalising is the loader's (mean, std, dtype), after the copy. What is random depends on seed, epoch and position alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

Size = Union[int, Sequence[int]]


def _size(size: Size) -> Any:
    """224 or [height, width], as feedd.conf has it."""
    values = [size] if isinstance(size, int) else [int(value) for value in size]
    if not 1 <= len(values) <= 2 or any(value < 1 for value in values):
        raise ValueError(f"size {size!r}: a number of pixels, or (height, width)")
    return values[0] if len(values) == 1 else values


@dataclass(frozen=True)
class Resize:
    """Scales the shorter side to `size` pixels (goes with CenterCrop), or to (height, width)."""

    size: Size

    def _items(self) -> dict:
        return {"resize": _size(self.size)}


@dataclass(frozen=True)
class CenterCrop:
    """Takes `size` pixels from the middle of what Resize makes."""

    size: Size

    def _items(self) -> dict:
        return {"center_crop": _size(self.size)}


@dataclass(frozen=True)
class RandomResizedCrop:
    """Scales a random part, of `scale` of the area and `ratio` of width to height, to `size`."""

    size: Size
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)

    def _items(self) -> dict:
        more = {name: list(value) for name, value, default in (
            ("scale", self.scale, (0.08, 1.0)), ("ratio", self.ratio, (3 / 4, 4 / 3))
        ) if tuple(value) != default}  # fmt: skip
        return {"random_resized_crop": {"size": _size(self.size), **more} if more else _size(self.size)}


@dataclass(frozen=True)
class RandomCrop:
    """Takes `size` pixels from a random place, after putting `padding` black ones around."""

    size: Size
    padding: Optional[Size] = None

    def _items(self) -> dict:
        if self.padding is None:
            return {"random_crop": _size(self.size)}
        padding = self.padding if isinstance(self.padding, int) else list(self.padding)
        return {"random_crop": {"size": _size(self.size), "padding": padding}}


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirrors left to right with probability `p`."""

    p: float = 0.5

    def _items(self) -> dict:
        return {"flip": float(self.p)}


_KINDS = (Resize, CenterCrop, RandomResizedCrop, RandomCrop, RandomHorizontalFlip)
Transform = Union[Resize, CenterCrop, RandomResizedCrop, RandomCrop, RandomHorizontalFlip]


def text(transform: Union[None, str, Transform, Sequence[Transform]]) -> Optional[str]:
    """As the daemon reads it: JSON, which is YAML. A text is taken as it is, in feedd.conf's syntax."""
    if transform is None or isinstance(transform, str):
        return transform
    items: dict = {}
    for one in transform if isinstance(transform, (list, tuple)) else [transform]:
        if not isinstance(one, _KINDS):
            raise TypeError(f"transform {one!r}: allowed are feedd.{', feedd.'.join(kind.__name__ for kind in _KINDS)}; "
                            "floats and normalisation are dtype, mean and std of the loader")  # fmt: skip
        new = one._items()
        if new.keys() & items.keys():
            raise ValueError(f"transform: {type(one).__name__} stands there twice")
        if isinstance(one, Resize) and "center_crop" in items:
            raise ValueError("transform: Resize has to stand before CenterCrop")
        items.update(new)
    return json.dumps(items)
