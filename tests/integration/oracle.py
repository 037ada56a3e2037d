"""oracle.py - what feedd should deliver, worked out without any code of feedd's.

Datasets are read with gzip and numpy, digests are python-xxhash's, batches follow the rules of feedd.h and sampler.h
as they are written there, and tokens are packed by hand as token.h describes them.
"""

import base64
import dataclasses
import gzip
import struct

import numpy as np
import xxhash

SEQUENTIAL, SHUFFLE = 1, 2
DROP, PAD, PARTIAL = 1, 2, 3
TAILS = {"drop": DROP, "pad": PAD, "partial": PARTIAL}
FLAG_PADDING = 1


# ---- IDX files ----


def idx_bytes(array):
    """An array of uint8 as an IDX file."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_array(path):
    """The array in an IDX file of uint8, gzip'ed or not."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    assert data[:3] == b"\0\0\x08", path
    ndim = data[3]
    shape = struct.unpack_from(f">{ndim}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * ndim).reshape(shape)


class Dataset:
    """Two files for feedd, and their content as numpy sees it."""

    def __init__(self, images, labels):
        self.images_path, self.labels_path = images, labels
        pixels = idx_array(images)
        self.images = pixels[..., None] if pixels.ndim == 3 else pixels  # feedd says height, width, channels
        self.labels = idx_array(labels).astype(np.int64)
        self.count = len(self.images)
        assert len(self.labels) == self.count

    def config(self, **more):
        return {"reader": "idx", "images": str(self.images_path), "labels": str(self.labels_path), **more}

    def fields(self, indices):
        """The bytes of each field of a batch of these samples."""
        indices = np.asarray(indices, np.int64)
        return {
            "image": self.images[indices].tobytes(),
            "label": self.labels[indices].tobytes(),
            "index": indices.tobytes(),
        }

    def digests(self, indices):
        return {name: xxhash.xxh3_64_hexdigest(data) for name, data in self.fields(indices).items()}


def make_dataset(folder, count, height=6, width=5, seed=1, name="small", compress=False):
    """Writes a dataset in which no two samples are alike."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, height, width), np.uint8)
    images[:, 0, :4] = np.arange(count, dtype="<u4").view(np.uint8).reshape(count, 4)
    labels = rng.integers(0, 10, count, np.uint8)
    paths = []
    for kind, array in ("images", images), ("labels", labels):
        path = folder / f"{name}-{kind}-idx{array.ndim}-ubyte{'.gz' if compress else ''}"
        data = idx_bytes(array)
        path.write_bytes(gzip.compress(data, 1) if compress else data)
        paths.append(path)
    return Dataset(*paths)


# ---- which positions make up which batch ----


@dataclasses.dataclass
class Planned:
    epoch: int
    position: int
    positions: list  # of all samples, padding included
    valid: int
    next: tuple  # (epoch, position) where a run goes on that has had this batch

    @property
    def flags(self):
        return [0] * self.valid + [FLAG_PADDING] * (len(self.positions) - self.valid)


def plan(n, batch_size, tail, epochs, rank=0, world=1, start=(0, 0)):
    """All batches of one rank, from `start` to where epoch `epochs` would begin."""
    batches = []
    epoch, begin = start
    while epoch < epochs:
        left = n - begin
        step = world * batch_size
        steps = left // step if tail == "drop" else -(-left // step)
        for k in range(steps):
            at = begin + k * step
            rest = n - at
            if rest >= step:
                positions, valid = range(at + rank * batch_size, at + (rank + 1) * batch_size), batch_size
            elif tail == "pad":
                positions = range(at + rank * batch_size, at + (rank + 1) * batch_size)
                valid = min(max(n - positions[0], 0), batch_size)
            else:
                first, last = rank * rest // world, (rank + 1) * rest // world
                positions = range(at + first, at + max(last, first + 1))
                valid = last - first
            after = (epoch, at + step) if k + 1 < steps else (epoch + 1, 0)
            batches.append(Planned(epoch, positions[0], [p % n for p in positions], valid, after))
        epoch, begin = epoch + 1, 0
    return batches


# ---- tokens ----

TOKEN = struct.Struct("<BBIQQQQQ")


@dataclasses.dataclass
class Token:
    order: int
    count: int
    fingerprint: int
    seed: int
    epoch: int
    position: int
    parameter: int = 0

    def text(self):
        body = TOKEN.pack(
            1, self.order, self.parameter, self.count, self.fingerprint, self.seed, self.epoch, self.position
        )
        body += struct.pack("<I", xxhash.xxh3_64_intdigest(body) & 0xFFFFFFFF)
        return "feedd1." + base64.urlsafe_b64encode(body).decode().rstrip("=")

    @classmethod
    def parse(cls, text):
        assert text.startswith("feedd1.")
        body = base64.urlsafe_b64decode(text[7:] + "=" * (-len(text[7:]) % 4))
        assert len(body) == 50
        assert struct.unpack_from("<I", body, 46)[0] == xxhash.xxh3_64_intdigest(body[:46]) & 0xFFFFFFFF
        version, order, parameter, count, fingerprint, seed, epoch, position = TOKEN.unpack_from(body)
        assert version == 1
        return cls(order, count, fingerprint, seed, epoch, position, parameter)


# ---- what `feedctl cat --json` printed ----


def check_batches(batches, planned, dataset, order=None):
    """The batches are exactly the planned ones, and their bytes are those of the files.

    order: {epoch: {position: index}} of a shuffle, None = the dataset's own order. What isn't in it yet is added from
    the batches, so that several runs can be compared, and check_permutation() can look at all of it.
    """
    assert len(batches) == len(planned)
    first = batches[0]["seq"] if batches else 0
    for seq, (batch, expected) in enumerate(zip(batches, planned, strict=True)):
        assert batch["seq"] == first + seq
        assert (batch["epoch"], batch["position"]) == (expected.epoch, expected.position)
        assert (batch["count"], batch["valid"]) == (len(expected.positions), expected.valid)
        assert batch["flags"] == expected.flags
        indices = batch["indices"]
        if order is None:
            assert indices == expected.positions
        else:
            found = order.setdefault(expected.epoch, {})
            for position, index in zip(expected.positions, indices, strict=True):
                assert found.setdefault(position, index) == index
        assert batch["digests"] == dataset.digests(indices)


def check_permutation(found, n):
    """One epoch's {position: index} is complete and holds every index once."""
    assert sorted(found) == list(range(n))
    assert sorted(found.values()) == list(range(n))
