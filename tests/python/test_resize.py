"""test_resize.py - scaling against Pillow, byte by byte, by every implementation that this CPU has.

    FEEDD_BUILD_DIR=build/release pytest tests/python

Pillow scales columns and then rows, as resize.c does, but for images of which many more rows go than columns: rows come
first there, and roundings differ. Scaling one side at a time gives columns first everywhere.

The resizers are the same ones in all tests: each test also shows that nothing of the jobs before it is left in them.
"""

import ctypes
import os
import random
from pathlib import Path

import numpy
import pytest
from PIL import Image
from PIL import __version__ as pillow_version

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FEEDD_BUILD_DIR", ROOT / "build" / "dev")).resolve()
LIBRARY = BUILD / "tests" / "python" / "feedd_resize_test.so"
PILLOW_MAJOR = int(pillow_version.split(".")[0])

u32, double, size_t, pointer = ctypes.c_uint32, ctypes.c_double, ctypes.c_size_t, ctypes.c_void_p
SIGNATURES = {
    "scaling_open": [],
    "scaling_close": [],
    "scaling_name": [ctypes.c_uint],
    "scaling_source": [pointer] * 3,
    "scaling_apply": [ctypes.c_uint] + [pointer] * 4 + [size_t, pointer],
}
MODES = {1: "L", 3: "RGB", 4: "CMYK"}  # what Pillow doesn't convert before it scales; two channels are L each
GUARD = 64


class Scaling:
    def __init__(self):
        self.library = ctypes.CDLL(str(LIBRARY))
        for name, arguments in SIGNATURES.items():
            getattr(self.library, name).argtypes = arguments
        self.library.scaling_name.restype = ctypes.c_char_p
        assert self.library.scaling_open() == 0
        self.names = []
        while name := self.library.scaling_name(len(self.names)):
            self.names.append(name.decode())

    @staticmethod
    def numbers(shape, box, scaled, window, flip):
        height, width, channels = shape
        x0, y0, x1, y1 = box
        return (u32 * 10)(width, height, *scaled, *window, flip, channels), (double * 4)(x0, y0, x1 - x0, y1 - y0)

    def source(self, shape, box, scaled, window):
        """x, y, width, height of what is read."""
        out = (u32 * 4)()
        self.library.scaling_source(*self.numbers(shape, box, scaled, window, False), out)
        return tuple(out)

    def apply(self, implementation, image, box, scaled, window, flip, held, gap):
        """What is outside of `held` isn't handed over; `gap` bytes lie between the rows of it."""
        x, y, width, height = held
        channels = image.shape[2]
        rows = numpy.full((height, width * channels + gap), 0x5A, numpy.uint8)
        rows[:, : width * channels] = image[y : y + height, x : x + width].reshape(height, -1)
        out_bytes = window[2] * window[3] * channels
        out = numpy.full(GUARD + out_bytes + GUARD, 0xA5, numpy.uint8)
        status = self.library.scaling_apply(
            implementation, *self.numbers(image.shape, box, scaled, window, flip), rows.ctypes.data,
            (u32 * 4)(*held), rows.shape[1], out.ctypes.data + GUARD,
        )  # fmt: skip
        assert status == 0
        assert (out[:GUARD] == 0xA5).all() and (out[GUARD + out_bytes :] == 0xA5).all()
        return out[GUARD : GUARD + out_bytes].reshape(window[3], window[2], channels)


@pytest.fixture(scope="module")
def scaling():
    assert LIBRARY.exists(), f"{LIBRARY} is missing: build first, and name the build folder in FEEDD_BUILD_DIR"
    scaling = Scaling()
    yield scaling
    scaling.library.scaling_close()


def rows_first(image, scaled):
    """ImagingResampleInner() of Pillow 13; Image.resize() before it. Where both directions are scaled."""
    height, width = image.shape[:2]
    if PILLOW_MAJOR < 13:
        return height > 100 * width and height > scaled[1]
    return height > scaled[1] and height - scaled[1] > 2 * (width - scaled[0])


def pillow(image, box, scaled):
    height, width, channels = image.shape
    if channels == 2:
        return numpy.concatenate([pillow(image[:, :, c : c + 1], box, scaled) for c in range(2)], axis=2)
    x0, y0, x1, y1 = box
    picture = Image.frombytes(MODES[channels], (width, height), image.tobytes())
    if rows_first(image, scaled):
        picture = picture.resize((scaled[0], height), Image.Resampling.BILINEAR, box=(x0, 0, x1, height))
        picture = picture.resize(scaled, Image.Resampling.BILINEAR, box=(0, y0, scaled[0], y1))
    else:
        picture = picture.resize(scaled, Image.Resampling.BILINEAR, box=box)
    return numpy.asarray(picture).reshape(scaled[1], scaled[0], channels)


def whole(width, height):
    return 0, 0, width, height


def part(rng, width, height):
    w, h = rng.randint(1, width), rng.randint(1, height)
    return rng.randint(0, width - w), rng.randint(0, height - h), w, h


def between(rng, least, all_of):
    """A rectangle that contains `least`, within 0, 0, *all_of."""
    x, y, width, height = least
    left, top = rng.choice((x, rng.randint(0, x))), rng.choice((y, rng.randint(0, y)))
    right = rng.choice((x + width, rng.randint(x + width, all_of[0])))
    bottom = rng.choice((y + height, rng.randint(y + height, all_of[1])))
    return left, top, right - left, bottom - top


def check(scaling, rng, image, box, scaled, windows=1):
    """Every implementation: all of it, and windows of it, of which some are mirrored."""
    height, width = image.shape[:2]
    due = pillow(image, box, scaled)
    for number in range(1 + windows):
        window = whole(*scaled) if number == 0 else part(rng, *scaled)
        flip = rng.random() < 0.5
        x, y, w, h = window
        cut = due[y : y + h, x : x + w]
        cut = cut[:, ::-1] if flip else cut
        held = between(rng, scaling.source(image.shape, box, scaled, window), (width, height))
        for implementation, name in enumerate(scaling.names):
            got = scaling.apply(implementation, image, box, scaled, window, flip, held, rng.choice((0, 7)))
            what = f"{name}: {image.shape}, box {box} to {scaled}, window {window}, held {held}, flip {flip}"
            wrong = numpy.argwhere(got != cut)
            assert len(wrong) == 0, f"{what}: {len(wrong)} bytes differ, first at {wrong[0]}"


def noise(rng, height, width, channels):
    """Any bytes, or black and white only: the largest steps."""
    image = numpy.frombuffer(rng.randbytes(height * width * channels), numpy.uint8).reshape(height, width, channels)
    return image if rng.random() < 0.7 else numpy.where(image < 128, 0, 255).astype(numpy.uint8)


def side(rng):
    return rng.choice((rng.randint(1, 512), rng.randint(1, 512), rng.randint(1, 20)))


def interval(rng, length):
    """Part of 0 to length: all of it, whole pixels, eighths as scaled JPEG decoding has them, or anything."""
    kind = rng.randrange(5)
    if kind == 0:
        return 0, length
    if kind == 1:
        begin = rng.randrange(length)
        return begin, rng.randint(begin + 1, length)
    if kind == 2:
        begin, end = sorted(rng.sample(range(8 * length + 1), 2))
        return begin / 8, end / 8
    begin, end = sorted((rng.uniform(0, length), rng.uniform(0, length)))
    if kind == 3:
        end = min(length, begin + rng.choice((1e-3, 0.3, 1, 2)))
    return begin, end


def any_box(rng, width, height):
    """In single precision, as Pillow takes it, so that it is the same in double."""
    x0, x1 = (float(numpy.float32(x)) for x in interval(rng, width))
    y0, y1 = (float(numpy.float32(y)) for y in interval(rng, height))
    return (x0, y0, x1, y1) if x0 < x1 and y0 < y1 else whole(width, height)


def test_all_implementations_are_here(scaling):
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    due = [name for name, flag in (("avx2", " avx2"), ("sse4.1", " sse4_1")) if flag in flags]
    assert scaling.names == due + ["scalar"]


@pytest.mark.parametrize("seed", range(10))
def test_sizes_and_boxes(scaling, seed):
    rng = random.Random(seed)
    for number in range(60):
        image = noise(rng, side(rng), side(rng), rng.choice((1, 2, 3, 3, 3, 4)))
        height, width = image.shape[:2]
        scaled = (side(rng), side(rng))
        if number % 10 == 0:  # one side, or both, stay as they are
            scaled = rng.choice(((width, scaled[1]), (scaled[0], height), (width, height)))
        box = whole(width, height) if number % 3 == 0 else any_box(rng, width, height)
        check(scaling, rng, image, box, scaled)


def test_boxes_of_any_double(scaling):
    """Not only those that single precision has: both sides round them."""
    rng = random.Random(20)
    for _ in range(200):
        image = noise(rng, rng.randint(1, 90), rng.randint(1, 90), 3)
        height, width = image.shape[:2]
        x, y = rng.uniform(0, width * 0.7), rng.uniform(0, height * 0.7)
        box = (x, y, x + rng.uniform(0.01, 0.3) * width, y + rng.uniform(0.01, 0.3) * height)
        check(scaling, rng, image, box, (rng.randint(1, 64), rng.randint(1, 64)))


@pytest.mark.parametrize("pixels", range(1, 26))
def test_every_number_of_taps(scaling, pixels):
    """Scales from a tenth to 12 in steps that have every length of span, at every remainder of the output's width."""
    rng = random.Random(pixels)
    for channels in 1, 3, 4:
        for scaled in range(1, 22):
            width = max(1, round(pixels / 2 * scaled))
            image = noise(rng, 9, width, channels)
            check(scaling, rng, image, whole(width, 9), (scaled, 5))
            image = noise(rng, width, 9, channels)
            check(scaling, rng, image, whole(9, width), (5, scaled))


@pytest.mark.parametrize("size", [(1, 1), (1, 600), (600, 1), (2, 2), (3, 599), (5, 4)])
@pytest.mark.parametrize("scaled", [(1, 1), (1, 600), (600, 1), (2, 3), (600, 600)])
def test_extremes(scaling, size, scaled):
    rng = random.Random(repr((size, scaled)))
    for channels in 1, 3, 4:
        check(scaling, rng, noise(rng, size[1], size[0], channels), whole(*size), scaled)


@pytest.mark.parametrize("size, scaled", [
    ((4000, 3), (1, 2)), ((3, 4000), (2, 1)), ((1, 2), (4000, 3)), ((2, 1), (3, 4000)), ((4000, 4000), (1, 1)),
    ((65500, 3), (7, 2)), ((2, 65500), (5, 1)), ((20000, 2), (19999, 3)), ((9, 7), (9000, 7)),
])  # fmt: skip
def test_long_sides(scaling, size, scaled):
    """Weights of thousands of pixels, whose rounding errors add up; and the longest side that a JPEG has."""
    rng = random.Random(9)
    for image in noise(rng, size[1], size[0], 3), numpy.full((size[1], size[0], 3), 255, numpy.uint8):
        check(scaling, rng, image, whole(*size), scaled)


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (256, 256), (341, 256), (100, 100), (224, 224), (448, 448)])
def test_what_networks_read(scaling, size):
    rng = random.Random(repr(size))
    for channels in 1, 3:
        image = noise(rng, size[1], size[0], channels)
        check(scaling, rng, image, whole(*size), (224, 224))
        check(scaling, rng, image, any_box(rng, *size), (224, 224))
        check(scaling, rng, image, (0.5, 0.5, size[0] - 0.5, size[1] - 0.5), (299, 299))


def test_rows_first_is_seen(scaling):
    """The oracle's way round Pillow is needed, and where it says."""
    rng = random.Random(3)
    width = 60 if PILLOW_MAJOR >= 13 else 3
    image = noise(rng, 400, width, 3)
    for rows, differs in (400, True), (50, False):
        picture = Image.frombytes("RGB", (width, rows), image[:rows].tobytes())
        one_call = numpy.asarray(picture.resize((50, 40), Image.Resampling.BILINEAR))
        assert rows_first(image[:rows], (50, 40)) == differs
        assert (one_call != pillow(image[:rows], whole(width, rows), (50, 40))).any() == differs
    check(scaling, rng, image, whole(width, 400), (50, 40))
