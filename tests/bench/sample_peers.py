"""sample_peers.py - what bench_sample measures, by those that people use: Pillow, and torchvision where it is installed.

    sample_peers.py [--size PIXELS] [--samples N] [--runs N] ROOT

The same files in the same order, the same crops and flips as bench_sample's (seed 1, epoch 0), one thread, files from
the page cache, uint8 pixels height x width x 3 at the end. Rows in turn in every run, of which the median counts.
Figures are of this machine: quote ratios to bench_sample's, run before and after it, of CPU time.
"""

import argparse
import io
import os
import statistics
import sys
import time
from pathlib import Path

import numpy
import PIL
from PIL import Image, ImageOps

sys.path.append(str(Path(__file__).parents[1] / "python"))
from test_pixels import chosen_random_resized_crop, random_resized_crop, random_words  # noqa: E402

try:
    import torch
    import torchvision
    from torchvision.transforms.v2 import functional
except ImportError:
    torch = None

SEED = 1


def pillow_decode(path):
    """As torchvision's ImageFolder loads a file."""
    with open(path, "rb") as file:
        return Image.open(io.BytesIO(file.read())).convert("RGB")


def pillow_sample(path, crop, flip, size):
    x, y, width, height = crop
    image = pillow_decode(path)
    ImageOps.exif_transpose(image, in_place=True)
    image = image.crop((x, y, x + width, y + height)).resize((size, size), Image.Resampling.BILINEAR)
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return numpy.array(image)


def torchvision_decode(path):
    return torchvision.io.decode_jpeg(
        torchvision.io.read_file(path), torchvision.io.ImageReadMode.RGB, apply_exif_orientation=True
    )


def torchvision_sample(path, crop, flip, size):
    x, y, width, height = crop
    image = functional.resized_crop(torchvision_decode(path), y, x, height, width, [size, size], antialias=True)
    if flip:
        image = functional.horizontal_flip(image)
    return image.permute(1, 2, 0).contiguous()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()

    classes = sorted(entry.name for entry in os.scandir(options.root) if entry.is_dir())
    paths = [str(path) for name in classes for path in sorted((options.root / name).iterdir())]
    transform = random_resized_crop(options.size, options.size)
    sizes = [ImageOps.exif_transpose(Image.open(path)).size for path in paths]
    samples = []
    for i in range(options.samples):
        crop = chosen_random_resized_crop(transform, sizes[i % len(paths)], SEED, 0, i)
        samples.append((paths[i % len(paths)], crop, random_words(SEED, 0, i, 0)[0] < 2**31, options.size))

    rows = {
        "Pillow": lambda: [pillow_sample(*sample) for sample in samples],
        "Pillow, decoding alone": lambda: [pillow_decode(path) for path, *_ in samples],
    }
    if torch is None:
        print("torchvision is not installed: no rows of it")
    else:
        torch.set_num_threads(1)
        rows["torchvision"] = lambda: [torchvision_sample(*sample) for sample in samples]
        rows["torchvision, decoding alone"] = lambda: [torchvision_decode(path) for path, *_ in samples]
    times = {name: [] for name in rows}
    for run in range(options.runs + 1):  # the first is for the caches, and doesn't count
        for name, row in rows.items():
            wall, cpu = time.perf_counter(), time.process_time()
            row()
            if run > 0:
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))

    print(f"{len(paths)} photos, {options.samples} samples of {options.size} x {options.size}, "
          f"median of {options.runs} runs; Pillow {PIL.__version__}"
          + (f", torchvision {torchvision.__version__}" if torch else ""))  # fmt: skip
    print("row                            images/s  images/CPU second  CPU us/image")
    for name, measured in times.items():
        wall, cpu = (statistics.median(values) for values in zip(*measured, strict=True))
        print(f"{name:28} {options.samples / wall:10.0f} {options.samples / cpu:18.0f} {cpu / options.samples * 1e6:13.0f}")


if __name__ == "__main__":
    main()
