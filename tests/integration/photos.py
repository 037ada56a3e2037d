"""photos.py - photos on disk, and what feedd should make of them, by Pillow and numpy alone."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash

Image = pytest.importorskip("PIL.Image", reason="needs Pillow (tests/requirements.txt)")
from PIL import ImageOps  # noqa: E402

sys.path.append(str(Path(__file__).parents[1] / "python"))

from test_pixels import (  # noqa: E402
    RANDOM_CROP,
    chosen_random_crop,
    chosen_random_resized_crop,
    cut,
    philox,
    pillow,
    random_words,
    torchvision_sizes,
)

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def picture(rng, width, height, mode="RGB"):
    """Smooth colours with some noise, as photos have."""
    y, x = np.mgrid[0:height, 0:width]
    phases = rng.uniform(0, 6, 3)
    waves = [np.sin(x / rng.uniform(5, 40) + p) + np.cos(y / rng.uniform(5, 40) - p) for p in phases]
    pixels = np.stack(waves, axis=2) * 55 + 128 + rng.normal(0, 6, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode)


def image_folder(root):
    """torchvision.datasets.ImageFolder: (class names, [(path, label)])."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for label, name in enumerate(classes):
        for where, _, files in sorted(os.walk(Path(root) / name, followlinks=True)):
            samples += [(Path(where) / f, label) for f in sorted(files) if f.lower().endswith(EXTENSIONS)]
    return classes, samples


def decoded(path):
    return np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB"))


def validation(path, resize, crop, flip=False):
    """torchvision's Resize(resize), CenterCrop(crop) of a photo; then mirrored."""
    image = decoded(path)
    height, width = image.shape[:2]
    sizes = torchvision_sizes(resize, crop, crop, width, height)
    return pillow(image, sizes[4:6], sizes[6:10], flip)


def is_flipped(probability, seed, epoch, position):
    """As geometry.h says."""
    return random_words(seed, epoch, position, 0)[0] / 2**32 < probability


def augmented(path, transform, seed, epoch, position):
    """A random crop or random resized crop of a photo. @param transform: test_pixels.Transform"""
    image = decoded(path)
    size = image.shape[1], image.shape[0]
    out = transform.width, transform.height
    if transform.kind == RANDOM_CROP:
        left, top, right, bottom = transform.padding
        image = np.pad(image, ((top, bottom), (left, right), (0, 0)))
        crop = (*chosen_random_crop(transform, size, seed, epoch, position), *out)
    else:
        crop = chosen_random_resized_crop(transform, size, seed, epoch, position)
    flip = is_flipped(transform.flip, seed, epoch, position)
    return pillow(np.ascontiguousarray(cut(image, crop)), out, (0, 0, *out), flip)


def digests(images, labels, indices, label_type=np.int64):
    arrays = {
        "image": np.stack(images).astype(np.uint8),
        "label": np.asarray(labels, label_type),
        "index": np.asarray(indices, np.int64),
    }
    return {name: xxhash.xxh3_64_hexdigest(array.tobytes()) for name, array in arrays.items()}


def make_photos(root, count, classes=4, seed=1, size=None):
    """A folder of class folders: some sizes, some gray, some progressive. @return root"""
    rng = np.random.default_rng(seed)
    for i in range(count):
        place = root / f"class-{i % classes}"
        place.mkdir(parents=True, exist_ok=True)
        width, height = size or (int(v) for v in rng.integers(30, 120, 2))
        mode = "L" if i % 7 == 3 else "RGB"
        options = {} if mode == "L" else {"subsampling": i % 3}
        picture(rng, width, height, mode).save(
            place / f"{i:04}.jpg", quality=int(rng.integers(60, 96)), progressive=i % 5 == 4, **options
        )
    return root
