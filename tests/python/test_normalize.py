"""test_normalize.py - the host kernels against NumPy: float32 arithmetic, its own casts, its own slicing.

    FEEDD_BUILD_DIR=build/release pytest tests/python

Both kernels are called, the vector and the scalar one, and every call is made twice into memory that held something
else, between guards.
"""

import ctypes
import itertools
import os
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FEEDD_BUILD_DIR", ROOT / "build" / "dev")).resolve()
LIBRARY = BUILD / "kernels" / "feedd_kernels_test.so"

DTYPES = {"u8": 1, "i8": 2, "f16": 3, "bf16": 4, "f32": 5}
STORED = {"u8": np.uint8, "i8": np.int8, "f16": np.uint16, "bf16": np.uint16, "f32": np.uint32}  # f*: the bits
LAYOUTS = {"NHWC": 1, "NCHW": 2}
KERNELS = "normalize_host", "normalize_scalar"
GUARD = 64
IMAGENET = dict(mean=[0.485, 0.456, 0.406, 0.5], std=[0.229, 0.224, 0.225, 0.25], scale=255)


class Params(ctypes.Structure):  # struct normalize_params
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in ("batch", "in_height", "in_width", "channels", "out_height", "out_width")
    ] + [
        ("dtype", ctypes.c_int),
        ("layout", ctypes.c_int),
        ("mean", ctypes.c_double * 4),
        ("std", ctypes.c_double * 4),
        ("scale", ctypes.c_double),
    ]


@pytest.fixture(scope="module")
def library():
    library = ctypes.CDLL(str(LIBRARY))
    for kernel in KERNELS:
        getattr(library, kernel).argtypes = [ctypes.POINTER(Params)] + [ctypes.c_void_p] * 3
        getattr(library, kernel).restype = None
    library.normalize_check.restype = library.normalize_host_name.restype = ctypes.c_char_p
    library.normalize_bytes.restype = ctypes.c_size_t
    return library


def parameters(images, dtype, layout, mean, std, scale, size=None):
    batch, height, width, channels = images.shape
    out_height, out_width = size or (height, width)
    return Params(
        batch, height, width, channels, out_height, out_width, DTYPES[dtype], LAYOUTS[layout],
        (ctypes.c_double * 4)(*mean), (ctypes.c_double * 4)(*std), scale,
    )


def run(library, kernel, params, images, windows, dtype):
    """The output's elements in a row; floats as their bits."""
    assert library.normalize_check(ctypes.byref(params)) is None
    size = library.normalize_bytes(ctypes.byref(params))
    results = []
    for poison in 0xA5, 0x5A:
        memory = np.full(GUARD + size + GUARD, poison, np.uint8)
        getattr(library, kernel)(
            params, images.ctypes.data, None if windows is None else windows.ctypes.data, memory.ctypes.data + GUARD
        )
        assert (memory[:GUARD] == poison).all() and (memory[GUARD + size :] == poison).all()
        results.append(memory[GUARD : GUARD + size].copy())
    assert (results[0] == results[1]).all(), "bytes that were not written"
    return results[0].view(STORED[dtype])


def cast(values, dtype):
    """float32 to the bits of another type."""
    if dtype == "f32":
        return values.view(np.uint32)
    if dtype == "f16":
        with np.errstate(over="ignore", under="ignore"):
            return values.astype(np.float16).view(np.uint16)
    if dtype == "bf16":  # halfway up, but to even: the upper half of the bits as integers
        upper, lower = values.view(np.uint32) >> 16, values.view(np.uint32) & 0xFFFF
        return (upper + ((lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1)))).astype(np.uint16)
    return np.clip(np.rint(values), -128, 127).astype(np.int8)


def oracle(images, windows, dtype, layout, mean, std, scale, size):
    channels = images.shape[3]
    samples = []
    for n, image in enumerate(images):
        y, x, flip = (0, 0, 0) if windows is None else (int(v) for v in windows[n])
        sample = image[y : y + size[0], x : x + size[1]]
        samples.append(sample[:, ::-1] if flip else sample)
    pixels = np.stack(samples)
    if layout == "NCHW":
        pixels = pixels.transpose(0, 3, 1, 2)
    if dtype == "u8":
        return pixels.ravel()
    shape = (channels, 1, 1) if layout == "NCHW" else (channels,)
    offset = np.array(mean[:channels]) * scale
    factor = 1 / (np.array(std[:channels]) * scale)
    values = pixels.astype(np.float32) - offset.astype(np.float32).reshape(shape)
    values *= factor.astype(np.float32).reshape(shape)
    assert values.dtype == np.float32
    return cast(values.ravel(), dtype)


def some_windows(random, batch, in_size, out_size, flips):
    return np.stack(
        [
            random.integers(0, in_size[0] - out_size[0] + 1, batch),
            random.integers(0, in_size[1] - out_size[1] + 1, batch),
            random.integers(0, 2, batch) if flips is None else np.full(batch, flips),
        ],
        axis=1,
    ).astype(np.uint32)


def test_vector_instructions_are_used(library):
    flags = set(Path("/proc/cpuinfo").read_text().split())
    assert library.normalize_host_name() == (b"avx2" if {"avx2", "f16c"} <= flags else b"scalar")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "batch, in_size, out_size",
    [
        (1, (1, 1), (1, 1)),
        (3, (3, 5), (3, 5)),
        (1, (223, 225), (223, 225)),
        (2, (224, 224), (224, 224)),
        (2, (256, 240), (224, 224)),
        (1024, (5, 7), (4, 5)),
        (2, (31, 97), (30, 67)),
    ],
)
def test_places(library, batch, in_size, out_size, dtype, layout):
    random = np.random.default_rng(batch + in_size[1])
    for channels in 1, 2, 3, 4:
        images = random.integers(0, 256, (batch, *in_size, channels), np.uint8)
        params = parameters(images, dtype, layout, **IMAGENET, size=out_size)
        choices = [None] + [some_windows(random, batch, in_size, out_size, flips) for flips in (0, 1, None)]
        for windows, kernel in itertools.product(choices, KERNELS):
            result = run(library, kernel, params, images, windows, dtype)
            right = oracle(images, windows, dtype, layout, **IMAGENET, size=out_size)
            np.testing.assert_array_equal(result, right, err_msg=f"{kernel}, {channels} channels")


def test_other_statistics(library):
    """All pixels, means and standard deviations from everyday to absurd, in every type."""
    random = np.random.default_rng(1)
    images = np.repeat(np.arange(256, dtype=np.uint8), 4).reshape(1, 16, 16, 4)
    for i in range(300):
        spread = i / 10
        statistics = dict(
            mean=random.normal(0.5, 10 ** (spread / 3), 4),
            std=10.0 ** random.uniform(-spread, spread / 2, 4),
            scale=float(random.choice([1, 255, 65535])),
        )
        for dtype, layout, kernel in itertools.product(DTYPES, LAYOUTS, KERNELS):
            params = parameters(images, dtype, layout, **statistics)
            right = oracle(images, None, dtype, layout, **statistics, size=(16, 16))
            np.testing.assert_array_equal(run(library, kernel, params, images, None, dtype), right)


def rounded(library, kernel, values, dtype):
    """Any finite values but 0: each the negated mean of a pixel that is 0, four channels a call."""
    image = np.zeros((1, 1, 1, 4), np.uint8)
    params = parameters(image, dtype, "NHWC", [0] * 4, [1] * 4, 1)
    function, address, means = getattr(library, kernel), image.ctypes.data, -values.astype(np.float64).reshape(-1, 4)
    out = np.empty(means.shape, STORED[dtype])
    start, step = out.ctypes.data, out.strides[0]
    for i, mean in enumerate(means.tolist()):
        params.mean[:] = mean
        function(params, address, None, start + i * step)
    return out.ravel()


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_f16(library, kernel):
    """Every number of binary16, every middle of two, the floats beside it, and all negatives."""
    numbers = np.arange(0, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    numbers = np.append(numbers, np.float32(65536))  # rounds as if it were the next
    middles = (numbers[1:] + numbers[:-1]) / 2
    around = [np.nextafter(middles, np.float32(0)), middles, np.nextafter(middles, np.float32(np.inf))]
    positive = np.concatenate([numbers[1:], *around])
    values = np.concatenate([positive, -positive])
    right = cast(values, "f16")
    assert np.isinf(right.view(np.float16)).sum() == 2 * 3 and len(np.unique(right)) == 2 * 0x7C00 + 2
    np.testing.assert_array_equal(rounded(library, kernel, values, "f16"), right)


@pytest.mark.parametrize("dtype", ["i8", "f16", "bf16", "f32"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_random_floats(library, kernel, dtype):
    random = np.random.default_rng(2)
    any_bits = random.integers(0, 2**32, 40000, np.uint32)
    halfway = any_bits & 0xFFFF0000 | 0x8000  # of two bfloat16
    scaled = np.float32(2) ** random.integers(-28, 18, 40000) * random.uniform(-1, 1, 40000).astype(np.float32)
    values = np.concatenate([any_bits.view(np.float32), halfway.view(np.float32), scaled.astype(np.float32)])
    values = values[np.isfinite(values) & (values != 0)]
    values = values[: len(values) // 4 * 4]
    np.testing.assert_array_equal(rounded(library, kernel, values, dtype), cast(values, dtype))


@pytest.mark.parametrize("kernel", KERNELS)
def test_near_float64(library, kernel):
    """Within 1e-6 of what torchvision's formula gives in double arithmetic; other types within their own half unit."""
    images = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(1, 16, 16, 3)
    for mean, std in [
        ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),  # ImageNet
        ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]),
        ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),  # CIFAR-10
        ([0.1307, 0.2860, 0.0], [0.3081, 0.3530, 1.0]),  # MNIST, Fashion-MNIST, none
        ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]),  # CLIP
    ]:
        exact = (images.reshape(-1, 3) / 255.0 - mean) / std
        for dtype, unit in ("f32", 0.0), ("f16", 2.0**-11), ("bf16", 2.0**-8):
            params = parameters(images, dtype, "NHWC", mean + [0], std + [1], 255)
            bits = run(library, kernel, params, images, None, dtype).reshape(-1, 3)
            if dtype == "bf16":
                bits = bits.astype(np.uint32) << 16
            values = bits.view(np.float16 if dtype == "f16" else np.float32).astype(np.float64)
            assert (np.abs(values - exact) < 1e-6 + unit * np.abs(exact)).all()


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"batch": 0}, b"at least 1"),
        ({"channels": 5}, b"channels"),
        ({"out_width": 9}, b"wider"),
        ({"dtype": 9}, b"dtype"),
        ({"layout": 0}, b"layout"),
        ({"scale": float("nan")}, b"scale must"),
        ({"scale": float("inf")}, b"scale must"),
        ({"batch": 2**32 - 1, "in_height": 2**32 - 1}, b"2^62"),
    ],
)
def test_refused(library, change, reason):
    params = parameters(np.zeros((1, 8, 8, 3), np.uint8), "f32", "NCHW", **IMAGENET)
    assert library.normalize_check(ctypes.byref(params)) is None
    for name, value in change.items():
        setattr(params, name, value)
    assert reason in library.normalize_check(ctypes.byref(params))
