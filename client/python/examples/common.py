"""common.py - what the examples share: the network of the digits, the folders of data, a way to measure."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

FASHION = Path("/usr/share/datasets/fashion-mnist")  # of Debian's dataset-fashion-mnist


def digits_config(folder: str) -> dict:
    """feedd.conf for a folder of MNIST's four files."""
    place = Path(folder)
    suffix = ".gz" if (place / "train-images-idx3-ubyte.gz").exists() else ""
    return {
        "datasets": {
            name: {
                "reader": "idx",
                "images": str(place / f"{prefix}-images-idx3-ubyte{suffix}"),
                "labels": str(place / f"{prefix}-labels-idx1-ubyte{suffix}"),
            }
            for name, prefix in (("train", "train"), ("test", "t10k"))
        }
    }


def write_config(config: dict, folder: str) -> str:
    """As feedd reads it (JSON is YAML); for autostart."""
    import json

    path = Path(folder) / "feedd.conf"
    path.write_text(json.dumps(config))
    return str(path)


def cnn() -> Any:
    """conv 32, relu, pool, conv 64, relu, pool, linear 10."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 10),
    )  # fmt: skip


def parser(text: str) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.add_argument("--device", default="cuda", help='"cuda", "cuda:N" or "cpu"')
    options.add_argument("--socket", help="where feedd listens; without: a private one")
    return options


class Timer:
    """with Timer() as t: ...; t.seconds"""

    def __enter__(self) -> "Timer":
        self._began = time.perf_counter()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.seconds = time.perf_counter() - self._began
