"""test_pixels.py - samples as workers make them, against independent oracles: Pillow decodes, turns, cuts and scales;
Python's own arithmetic chooses.

    FEEDD_BUILD_DIR=build/release pytest tests/python

FEEDD_TEST_DATA is the folder of real data (default: ../shared/data beside the repository); tests that need it skip
without it. The scratch is one in all tests: each of them also shows that nothing of the samples before is left in it.
"""

import ctypes
import io
import math
import os
import random
import shutil
import subprocess
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy
import pytest
from PIL import Image, ImageOps
from PIL import __version__ as pillow_version

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FEEDD_BUILD_DIR", ROOT / "build" / "dev")).resolve()
LIBRARY = BUILD / "tests" / "python" / "feedd_pixels_test.so"
DATA = Path(os.environ.get("FEEDD_TEST_DATA", ROOT / ".." / "shared" / "data"))

LIMIT, IO, CORRUPT, UNSUPPORTED = -4, -6, -7, -8  # enum feedd_status
NONE, RESIZE, RANDOM_RESIZED_CROP, RANDOM_CROP = 1, 2, 3, 4  # enum transform_kind
PIXELS_MAX, BYTES_MAX = 40_000_000, 5_000_000

u32, u64, size_t, pointer, text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p
SAMPLE = [pointer, u64, u64, u64, pointer, size_t, pointer, pointer]
SIGNATURES = {
    "pixels_open": [u64, u64],
    "pixels_choose": [pointer, u32, u32, u64, u64, u64, u32, u32, pointer, pointer],
    "pixels_file": [text, *SAMPLE],
    "pixels_memory": [pointer, u32, u32, u32, *SAMPLE],
}


@dataclass(frozen=True)
class Transform:
    """struct transform_spec, in the order of transform_list()."""

    kind: int = NONE
    resize: int = 0
    resize_height: int = 0
    resize_width: int = 0
    height: int = 0
    width: int = 0
    scale: tuple = (0.08, 1.0)
    ratio: tuple = (3.0 / 4.0, 4.0 / 3.0)
    padding: tuple = (0, 0, 0, 0)
    flip: float = 0.0
    fast: bool = False
    ignore_orientation: bool = False
    accept_truncated: bool = False
    channels: int = 0

    def numbers(self):
        values = []
        for value in astuple(self):
            values += value if isinstance(value, tuple) else (value,)
        return (ctypes.c_double * len(values))(*values)


def random_resized_crop(height, width, scale=(0.08, 1.0), ratio=(3.0 / 4.0, 4.0 / 3.0), **more):
    return Transform(RANDOM_RESIZED_CROP, height=height, width=width, scale=scale, ratio=ratio, **more)


def random_crop(height, width, padding=(0, 0, 0, 0), **more):
    return Transform(RANDOM_CROP, height=height, width=width, padding=padding, **more)


def validation(resize, height, width, **more):
    return Transform(RESIZE, resize, height=height, width=width, **more)


@dataclass(frozen=True)
class Geometry:
    """struct geometry; crop and window: x, y, width, height."""

    crop: tuple
    scaled: tuple  # width, height
    window: tuple
    flip: bool
    place: tuple  # x, y


class Pixels:
    """The C code, with arrays. Methods return (status, result or message)."""

    def __init__(self):
        self.library = ctypes.CDLL(str(LIBRARY))
        for name, arguments in SIGNATURES.items():
            getattr(self.library, name).argtypes = arguments
        assert self.library.pixels_open(PIXELS_MAX, BYTES_MAX) == 0
        self.message = ctypes.create_string_buffer(1020)

    def answer(self, status, result):
        if status == 0:
            return 0, result
        message = self.message.value.decode()
        assert message and "\n" not in message
        return status, message

    def choose(self, transform, image, seed=0, epoch=0, position=0, out=None):
        """image: (width, height); out: (height, width) of what is delivered, where the transform doesn't say it."""
        height, width = out or (transform.height, transform.width)
        n = (u32 * 13)()
        status = self.library.pixels_choose(
            transform.numbers(), height, width, seed, epoch, position, *image, n, self.message
        )
        return self.answer(
            status, Geometry(tuple(n[:4]), tuple(n[4:6]), tuple(n[6:10]), bool(n[10]), tuple(n[11:13]))
        )

    def sample(self, call, *source, transform, room, seed=0, epoch=0, position=0):
        """Some twice, over two poisons: every byte of a sample is written."""
        results = []
        for poison in (0x00, 0xA5) if position % 4 == 0 else (0xA5,):
            out = numpy.full(room, poison, numpy.uint8)
            shape = (u32 * 3)()
            status = call(
                *source, transform.numbers(), seed, epoch, position, out.ctypes.data, room, shape, self.message
            )
            if status != 0:
                return self.answer(status, None)
            results.append(out[: math.prod(shape)].reshape(shape).copy())
        assert (results[0] == results[-1]).all(), "some bytes weren't written"
        return 0, results[0]

    def file(self, path, transform, room=None, **place):
        room = room or transform.height * transform.width * 3
        return self.sample(self.library.pixels_file, str(path).encode(), transform=transform, room=room, **place)

    def memory(self, image, transform, room=None, **place):
        """image: uint8 [height, width, channels]"""
        image = numpy.ascontiguousarray(image)
        room = room or transform.height * transform.width * 4
        source = (image.ctypes.data, *image.shape)
        return self.sample(self.library.pixels_memory, *source, transform=transform, room=room, **place)


@pytest.fixture(scope="module")
def pixels():
    assert LIBRARY.exists(), f"{LIBRARY} is missing: build first, and name the build folder in FEEDD_BUILD_DIR"
    pixels = Pixels()
    yield pixels
    pixels.library.pixels_close()


@pytest.fixture(scope="module")
def photos():
    """Paths of real photos."""
    if not (DATA / "imagenet-sample").is_dir():
        pytest.skip(f"{DATA / 'imagenet-sample'} is missing (FEEDD_TEST_DATA)")
    return sorted((DATA / "imagenet-sample").glob("*/*.JPEG"))


# Pillow: turned, cut, scaled, mirrored, one after the other


def upright(path, mode="RGB"):
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image).convert(mode)


def rows_first(size, scaled):
    """Does Pillow 13 begin with the rows? When many more of them go; before it, and here, the columns come first."""
    return size[1] - scaled[1] > max(0, 2 * (size[0] - scaled[0]))


def pillow(image, scaled, window, flip):
    """Columns, then rows, whatever Pillow: scaling one side alone is one pass."""
    picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    if rows_first(picture.size, scaled):
        picture = picture.resize((scaled[0], picture.height), Image.Resampling.BILINEAR)
    picture = picture.resize(scaled, Image.Resampling.BILINEAR)
    x, y, w, h = window
    picture = picture.crop((x, y, x + w, y + h))
    if flip:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return numpy.asarray(picture).reshape(h, w, image.shape[2])


def cut(image, crop):
    x, y, width, height = crop
    return image[y : y + height, x : x + width]


def applied(image, geometry, height, width):
    """What a geometry makes of an array [height, width, channels]."""
    out = numpy.zeros((height, width, image.shape[2]), numpy.uint8)
    x, y = geometry.place
    if geometry.window[2] > 0:
        part = pillow(cut(image, geometry.crop), geometry.scaled, geometry.window, geometry.flip)
        out[y : y + part.shape[0], x : x + part.shape[1]] = part
    return out


def as_array(picture):
    return numpy.asarray(picture).reshape(picture.height, picture.width, -1)


# Choosing: geometry.h in Python


def philox(key, counter):
    """Philox4x32-10 in unbounded integers."""
    k, c, mask = list(key), list(counter), 2**32 - 1
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def words(value):
    return value & (2**32 - 1), value >> 32


def random_words(seed, epoch, position, use, attempt=0):
    s = philox(words(seed), words(position) + words(epoch))
    return philox(s[:2], (use, attempt, s[2], s[3]))


def below(word, n):
    return word * n >> 32


def power(base, word):
    """base ** (word / 2**32), by square roots."""
    p, q = 1.0, base
    for bit in reversed(range(32)):
        q = math.sqrt(q)
        if word >> bit & 1:
            p *= q
    return p


def torchvision_sizes(resize, crop_height, crop_width, width, height):
    """_compute_resized_output_size() and center_crop() of torchvision.transforms.functional."""
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = resize, int(resize * long / short)
    new_width, new_height = (new_short, new_long) if width <= height else (new_long, new_short)
    top = int(round((new_height - crop_height) / 2.0))
    left = int(round((new_width - crop_width) / 2.0))
    return (0, 0, width, height, new_width, new_height, left, top, crop_width, crop_height, 0)


def torchvision_random_resized_crop(width, height, scale, ratio, draw_scale, draw_ratio, draw_offset):
    """RandomResizedCrop.get_params(), with other random numbers: x, y, width, height."""
    for attempt in range(10):
        target_area = width * height * draw_scale(attempt)
        aspect_ratio = draw_ratio(attempt)
        w = int(round(math.sqrt(target_area * aspect_ratio)))
        h = int(round(math.sqrt(target_area / aspect_ratio)))
        if 0 < w <= width and 0 < h <= height:
            top, left = draw_offset(attempt, height - h + 1, width - w + 1)
            return left, top, w, h
    in_ratio = float(width) / float(height)
    w, h = width, height
    if in_ratio < min(ratio):
        h = int(round(w / min(ratio)))
    elif in_ratio > max(ratio):
        w = int(round(h * max(ratio)))
    w, h = max(w, 1), max(h, 1)  # torchvision's would be empty
    return (width - w) // 2, (height - h) // 2, w, h


def chosen_random_resized_crop(transform, image, seed, epoch, position):
    (low, high), (narrow, wide) = transform.scale, transform.ratio

    def r(attempt):
        return random_words(seed, epoch, position, 1, attempt)

    return torchvision_random_resized_crop(
        *image,
        transform.scale,
        transform.ratio,
        lambda t: low + (high - low) * (r(t)[0] / 2**32),
        lambda t: narrow * power(wide / narrow, r(t)[1]),
        lambda t, rows, columns: (below(r(t)[2], rows), below(r(t)[3], columns)),
    )


def chosen_random_crop(transform, image, seed, epoch, position):
    """x, y of the crop in the padded image"""
    left, top, right, bottom = transform.padding
    r = random_words(seed, epoch, position, 2)
    return (
        below(r[1], image[0] + left + right - transform.width + 1),
        below(r[0], image[1] + top + bottom - transform.height + 1),
    )


def any_place(rng):
    """seed, epoch, position"""
    return tuple(rng.choice((rng.randrange(4), rng.getrandbits(64))) for _ in range(3))


def test_sizes_as_torchvision(pixels):
    rng = random.Random(11)
    cases = [(256, 224, 224, 500, 375), (256, 224, 224, 375, 500), (232, 224, 224, 256, 256), (1, 1, 1, 65500, 1),
             (16384, 16384, 16384, 1, 65500), (224, 224, 224, 224, 900)]  # fmt: skip
    for _ in range(20000):
        resize = rng.choice((256, rng.randint(1, 600), rng.randint(1, 16384)))
        most = rng.choice((600, 65500))
        cases.append(
            (resize, rng.randint(1, resize), rng.randint(1, resize), rng.randint(1, most), rng.randint(1, most))
        )
    for resize, crop_height, crop_width, width, height in cases:
        status, got = pixels.choose(validation(resize, crop_height, crop_width), (width, height))
        due = torchvision_sizes(resize, crop_height, crop_width, width, height)
        assert (status, got) == (0, Geometry(due[:4], due[4:6], due[6:10], False, (0, 0)))


def test_resize_of_both_sides(pixels):
    """Resize([h, w]), and CenterCrop after it."""
    rng = random.Random(13)
    for _ in range(2000):
        height, width = rng.randint(1, 900), rng.randint(1, 900)
        h, w = rng.choice(((height, width), (rng.randint(1, height), rng.randint(1, width))))
        image = rng.randint(1, 5000), rng.randint(1, 5000)
        top, left = int(round((height - h) / 2.0)), int(round((width - w) / 2.0))
        status, got = pixels.choose(Transform(RESIZE, 0, height, width, h, w), image)
        assert (status, got) == (0, Geometry((0, 0, *image), (width, height), (left, top, w, h), False, (0, 0)))


def test_flips_as_documented(pixels):
    rng = random.Random(12)
    flips = 0
    for _ in range(3000):
        place = any_place(rng)
        probability = rng.choice((0.0, 0.25, 0.5, 1.0))
        _, got = pixels.choose(Transform(flip=probability), (4, 5), *place, out=(5, 4))
        assert got.flip == (random_words(*place, 0)[0] / 2**32 < probability)
        flips += got.flip
    assert 1000 < flips < 1600


def test_random_resized_crops_as_documented(pixels):
    """Also images in which no try, or only a late one, finds room."""
    rng = random.Random(14)
    whole = 0
    for _ in range(4000):
        image = rng.choice(((500, 375), (rng.randint(1, 3000), rng.randint(1, 3000)), (rng.randint(1, 4000), 3)))
        image = rng.choice((image, image[::-1]))
        scale = rng.choice(((0.08, 1.0), (0.0, 1e-6), (0.9, 1.0), tuple(sorted((rng.random(), rng.random())))))
        ratio = rng.choice(
            ((3 / 4, 4 / 3), (1.0, 1.0), (0.01, 100.0), tuple(sorted((rng.uniform(0.1, 9), rng.uniform(0.1, 9)))))
        )
        if scale[1] == 0:
            continue
        transform = random_resized_crop(rng.randint(1, 512), rng.randint(1, 512), scale, ratio)
        place = any_place(rng)
        status, got = pixels.choose(transform, image, *place)
        due = chosen_random_resized_crop(transform, image, *place)
        out = transform.width, transform.height
        assert (status, got) == (0, Geometry(due, out, (0, 0, *out), False, (0, 0))), (transform, image, place)
        whole += due[2:] == image
    assert whole > 50


def test_random_crops_as_documented(pixels):
    rng = random.Random(15)
    empty = partial = 0
    for _ in range(4000):
        height, width = rng.randint(1, 40), rng.randint(1, 40)
        padding = rng.choice(((0, 0, 0, 0), (4, 4, 4, 4), tuple(rng.choice((0, rng.randint(0, 50))) for _ in range(4))))
        image = rng.randint(1, 60), rng.randint(1, 60)
        transform = random_crop(height, width, padding, flip=rng.choice((0.0, 1.0)))
        place = any_place(rng)
        status, got = pixels.choose(transform, image, *place)
        left, top, right, bottom = padding
        if image[0] + left + right < width or image[1] + top + bottom < height:
            assert status == UNSUPPORTED and f"{image[0]} x {image[1]}" in got and f"{width} x {height}" in got
            continue
        assert status == 0
        # A numbered pixel each, so that what is delivered says where it comes from.
        numbers = numpy.arange(1, image[0] * image[1] + 1).reshape(image[1], image[0])
        x, y = chosen_random_crop(transform, image, *place)
        due = cut(numpy.pad(numbers, ((top, bottom), (left, right))), (x, y, width, height))
        due = due[:, ::-1] if transform.flip else due
        delivered = numpy.zeros((height, width), int)
        part = cut(numbers, got.crop)
        assert got.scaled == got.crop[2:] and got.window == (0, 0, *got.scaled) and got.flip == bool(transform.flip)
        part = part[:, ::-1] if got.flip else part
        delivered[got.place[1] : got.place[1] + part.shape[0], got.place[0] : got.place[0] + part.shape[1]] = part
        assert (delivered == due).all(), (transform, image, place)
        empty += part.size == 0
        partial += 0 < part.size < height * width
    assert empty > 50 and partial > 500


def kolmogorov_smirnov(a, b):
    """The largest distance of two samples' distribution functions."""
    points = numpy.concatenate((a, b))
    a, b = numpy.sort(a), numpy.sort(b)
    return numpy.abs(
        numpy.searchsorted(a, points, "right") / len(a) - numpy.searchsorted(b, points, "right") / len(b)
    ).max()


@pytest.mark.parametrize("image", [(500, 375), (300, 300), (200, 450)])
def test_distribution_is_that_of_torchvision(pixels, image):
    """Area, ratio and place of crops, against torchvision's algorithm with NumPy's random numbers."""
    n = 12000
    width, height = image
    scale, ratio = (0.08, 1.0), (3 / 4, 4 / 3)
    generator = numpy.random.default_rng(16)
    due = numpy.array([
        torchvision_random_resized_crop(
            *image, scale, ratio,
            lambda t: generator.uniform(*scale),
            lambda t: math.exp(generator.uniform(math.log(ratio[0]), math.log(ratio[1]))),
            lambda t, rows, columns: (generator.integers(rows), generator.integers(columns)),
        ) for _ in range(n)
    ])  # fmt: skip
    transform = random_resized_crop(224, 224)
    got = numpy.array([pixels.choose(transform, image, 17, 0, position)[1].crop for position in range(n)])
    # What two samples of one distribution stay below but for once in a hundred thousand times.
    bound = math.sqrt(-math.log(1e-5 / 2) / 2) * math.sqrt(2 / n)
    for name, value in {
        "area": lambda c: c[:, 2] * c[:, 3] / (width * height),
        "ratio": lambda c: c[:, 2] / c[:, 3],
        "x": lambda c: (c[:, 0] + generator.random(n)) / (width - c[:, 2] + 1),
        "y": lambda c: (c[:, 1] + generator.random(n)) / (height - c[:, 3] + 1),
    }.items():
        distance = kolmogorov_smirnov(value(got), value(due))
        assert distance < bound, f"{name}: {distance:.4f}, and {bound:.4f} is allowed"


def test_draws_are_unrelated(pixels):
    """Area, ratio, x, y and flip of one sample, and of neighbours in position, epoch and seed: no correlation. Every
    crop fits at the first try: that large ones can't be narrow would be one."""
    n = 6000
    transform = random_resized_crop(8, 8, (0.05, 0.45), (0.5, 2.0), flip=0.5)

    def draws(seed, epoch, position):
        _, g = pixels.choose(transform, (4000, 4000), seed, epoch, position)
        x, y, w, h = g.crop
        return w * h, w / h, x / (4001 - w), y / (4001 - h), g.flip

    here = numpy.array([draws(1, 1, i) for i in range(n)], float)
    columns = [here]
    columns += [numpy.array([draws(*place(i)) for i in range(n)], float)
                for place in (lambda i: (1, 1, i + 1), lambda i: (1, 2, i), lambda i: (2, 1, i))]  # fmt: skip
    correlation = numpy.corrcoef(numpy.concatenate(columns, axis=1).T)
    numpy.fill_diagonal(correlation, 0)
    assert numpy.abs(correlation).max() < 5 / math.sqrt(n), numpy.abs(correlation).max()


def test_flip_rate(pixels):
    for probability in 0.1, 0.5, 0.9:
        flips = sum(pixels.choose(random_resized_crop(8, 8, flip=probability), (9, 9), 3, 1, p)[1].flip
                    for p in range(20000))  # fmt: skip
        assert abs(flips - 20000 * probability) < 5 * math.sqrt(20000 * probability * (1 - probability))


# Photos


def djpeg(path):
    """The pixels of djpeg -rgb."""
    if shutil.which("djpeg") is None:
        pytest.skip("djpeg is missing (Debian package libjpeg-turbo-progs)")
    run = subprocess.run(["djpeg", "-rgb", "-ppm", path], capture_output=True, check=True)
    magic, sizes, most, data = run.stdout.split(b"\n", 3)
    assert (magic, most) == (b"P6", b"255")
    width, height = map(int, sizes.split())
    return numpy.frombuffer(data, numpy.uint8).reshape(height, width, 3)


def test_whole_photos_equal_djpeg(pixels, photos):
    gray = 0
    for path in photos:
        due = djpeg(path)
        status, got = pixels.file(path, Transform(ignore_orientation=True), due.size)
        assert status == 0, f"{path.name}: {got}"
        assert got.shape == due.shape and (got == due).all(), path.name
        gray += (due[:, :, 0] == due[:, :, 1]).all() and (due[:, :, 0] == due[:, :, 2]).all()
    assert len(photos) >= 200 and gray >= 12


def any_crop(rng):
    """A random resized crop of any size and shape to 1 to 512 pixels: shrunk, grown, narrow, wide."""
    def side():
        return rng.choice((224, rng.randint(1, 512), rng.randint(1, 64)))

    scale = rng.choice(((0.08, 1.0), (0.0, 0.05), (0.5, 1.0)))
    ratio = rng.choice(((3 / 4, 4 / 3), (1 / 8, 8.0)))
    return random_resized_crop(side(), side(), scale, ratio, flip=0.5)


def test_crops_equal_pillow(pixels, photos):
    """20 random crops of every photo: the bytes of Pillow's two passes, columns first. Its resize() in one call differs
    by a level at most, and not at all but where Pillow 13 begins with the rows."""
    rng = random.Random(18)
    values, different = {True: 0, False: 0}, {True: 0, False: 0}
    grown = shrunk = 0
    for path in photos:
        image = upright(path)
        array = as_array(image)
        for position in range(20):
            transform = any_crop(rng)
            _, g = pixels.choose(transform, image.size, 19, 0, position)
            status, got = pixels.file(path, transform, seed=19, position=position)
            what = f"{path.name}: {g}"
            assert status == 0, f"{what}: {got}"
            assert (got == applied(array, g, transform.height, transform.width)).all(), what
            x, y, w, h = g.crop
            due = image.crop((x, y, x + w, y + h)).resize(g.scaled, Image.Resampling.BILINEAR)
            due = due.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if g.flip else due
            difference = numpy.abs(got.astype(int) - as_array(due))
            assert difference.max() <= 1, what
            other_order = rows_first((w, h), g.scaled)
            different[other_order] += (difference > 0).sum()
            values[other_order] += difference.size
            grown += g.scaled[0] > w and g.scaled[1] > h
            shrunk += g.scaled[0] < w and g.scaled[1] < h
    for other_order, name in (False, "columns first"), (True, "rows first in Pillow 13"):
        print(f"Pillow {pillow_version}, {name}: {values[other_order]} values, "
              f"{1 - different[other_order] / values[other_order]:.4%} equal")  # fmt: skip
    assert different[False] == 0
    assert grown > 200 and shrunk > 200


def test_validation_equals_pillow(pixels, photos):
    """What torchvision's validation pipelines make of a photo."""
    for position, path in enumerate(photos):
        image = as_array(upright(path))
        height, width = image.shape[:2]
        sizes = torchvision_sizes(256, 224, 224, width, height)
        for transform, scaled, window in (
            (validation(256, 224, 224, flip=0.5), sizes[4:6], sizes[6:10]),
            (Transform(RESIZE, 0, 240, 200, 224, 180, flip=0.5), (200, 240), (10, 8, 180, 224)),
        ):
            _, g = pixels.choose(transform, (width, height), 7, 3, position)
            status, got = pixels.file(path, transform, seed=7, epoch=3, position=position)
            assert status == 0 and (got == pillow(image, scaled, window, g.flip)).all(), path.name


def test_random_crop_equals_pillow(pixels, photos):
    """Straight from the codec into the cell, within black borders, mirrored or not."""
    rng = random.Random(20)
    for position, path in enumerate(photos):
        image = upright(path)
        padding = rng.choice(((0, 0, 0, 0), (4, 4, 4, 4), (30, 0, 7, 100)))
        room = image.width + padding[0] + padding[2], image.height + padding[1] + padding[3]
        size = rng.choice((tuple(rng.randint(1, side) for side in room), room))
        transform = random_crop(size[1], size[0], padding, flip=0.5)
        _, g = pixels.choose(transform, image.size, 21, 0, position)
        x, y = chosen_random_crop(transform, image.size, 21, 0, position)
        due = ImageOps.expand(image, padding).crop((x, y, x + size[0], y + size[1]))
        due = due.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if g.flip else due
        status, got = pixels.file(path, transform, seed=21, position=position)
        assert status == 0 and (got == as_array(due)).all(), f"{path.name}: {g}"


def test_resized_crop_of_torchvision(pixels, photos):
    functional = pytest.importorskip("torchvision.transforms.functional", reason="torchvision is not installed")
    rng = random.Random(22)
    for position, path in enumerate(photos[::4]):
        image = upright(path)
        transform = random_resized_crop(rng.randint(1, 300), rng.randint(1, 300))
        _, g = pixels.choose(transform, image.size, 23, 0, position)
        x, y, w, h = g.crop
        due = as_array(functional.resized_crop(image, y, x, h, w, [transform.height, transform.width]))
        status, got = pixels.file(path, transform, seed=23, position=position)
        assert status == 0 and numpy.abs(got.astype(int) - due).max() <= 1, path.name


def test_luma(pixels, photos):
    """channels: 1 is Y as it is coded, which Pillow's draft mode gives too."""
    for position, path in enumerate(photos[::5]):
        with Image.open(path) as image:
            image.draft("L", image.size)
            due = as_array(image.convert("L"))
        size = due.shape[1], due.shape[0]
        status, got = pixels.file(path, Transform(channels=1), due.size)
        assert status == 0 and (got == due).all(), path.name
        transform = random_resized_crop(100, 120, flip=0.5, channels=1)
        _, g = pixels.choose(transform, size, 24, 0, position)
        status, got = pixels.file(path, transform, seed=24, position=position)
        assert status == 0 and (got == applied(due, g, 100, 120)).all(), path.name


# Orientation


@pytest.fixture(scope="module")
def turned(photos, tmp_path_factory):
    """Photos of odd sizes and all samplings in each of the eight orientations."""
    folder = tmp_path_factory.mktemp("turned")
    paths = []
    for number, path in enumerate(photos[::25]):
        with Image.open(path) as image:
            image = image.convert("RGB").crop((0, 0, image.width - number % 3, image.height - number % 5))
        for orientation in range(1, 9):
            exif = Image.Exif()
            exif[0x0112] = orientation
            paths.append(folder / f"{number}-{orientation}.jpg")
            image.save(paths[-1], exif=exif, subsampling=number % 3, quality=90)
    return paths


def test_orientations_equal_pillow(pixels, turned):
    rng = random.Random(25)
    for number, path in enumerate(turned):
        image = as_array(upright(path))
        height, width = image.shape[:2]
        place = {"seed": 26, "position": number}
        status, got = pixels.file(path, Transform(), image.size)
        assert status == 0 and got.shape == image.shape and (got == image).all(), path.name
        transforms = [any_crop(rng) for _ in range(4)]
        transforms += [validation(100, 70, 90, flip=0.5), random_crop(height, 50, (4, 9, 20, 0), flip=0.5)]
        for transform in transforms:
            _, g = pixels.choose(transform, (width, height), **place)
            status, got = pixels.file(path, transform, **place)
            due = applied(image, g, transform.height, transform.width)
            assert status == 0 and (got == due).all(), f"{path.name}: {g}"


@pytest.mark.parametrize("suffix, options", [("png", {}), ("webp", {"lossless": True})])
def test_other_codecs(pixels, photos, tmp_path, suffix, options):
    """Their crops and orientations take the same way; they can't shrink while they decode, so that fast is exact."""
    rng = random.Random(33)
    path = tmp_path / f"photo.{suffix}"
    for number, photo in enumerate(photos[3::40]):
        exif = Image.Exif()
        exif[0x0112] = rng.randint(1, 8)
        with Image.open(photo) as image:
            image.convert("RGB").save(path, exif=exif, **options)
        image = as_array(upright(path))
        for position in range(4 * number, 4 * number + 4):
            transform = replace(any_crop(rng), fast=position % 2 == 0)
            _, g = pixels.choose(transform, (image.shape[1], image.shape[0]), 34, 0, position)
            status, got = pixels.file(path, transform, seed=34, position=position)
            assert status == 0 and (got == applied(image, g, transform.height, transform.width)).all(), f"{photo}: {g}"


def test_orientation_ignored(pixels, turned):
    for path in turned:
        with Image.open(path) as image:
            due = as_array(image.convert("RGB"))
        status, got = pixels.file(path, Transform(ignore_orientation=True), due.size)
        assert status == 0 and got.shape == due.shape and (got == due).all(), path.name


# decode: fast


def shrink_of(g):
    """sample.c: the most that leaves the crop no smaller than what it becomes."""
    shrink = 1
    while shrink < 8 and g.crop[2] // (2 * shrink) >= g.scaled[0] and g.crop[3] // (2 * shrink) >= g.scaled[1]:
        shrink *= 2
    return shrink


def test_fast_is_near(pixels, photos, turned):
    """Crops in all four scales of the codec, against exact ones: what its filter costs, which is not the triangle."""
    rng = random.Random(27)
    errors = {1: [], 2: [], 4: [], 8: []}
    for path in photos + turned:
        size = upright(path).size
        for position in range(4):
            side = rng.choice((16, 32, 64, 128))
            transform = random_resized_crop(side, side, (0.3, 1.0), flip=0.5)
            _, g = pixels.choose(transform, size, 28, 0, position)
            _, exact = pixels.file(path, transform, seed=28, position=position)
            status, got = pixels.file(path, replace(transform, fast=True), seed=28, position=position)
            assert status == 0, f"{path.name}: {got}"
            errors[shrink_of(g)].append(numpy.abs(got.astype(int) - exact).mean())
    for shrink, all_of_one in errors.items():
        print(f"shrink {shrink}: {len(all_of_one)} crops, mean error {numpy.mean(all_of_one):.2f} levels, "
              f"worst crop {max(all_of_one):.2f}")  # fmt: skip
        assert len(all_of_one) > 50 and numpy.mean(all_of_one) < 2 and max(all_of_one) < 12


TURNS = {
    1: None, 2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270",
    7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip


def drafted(path, shrink):
    """Pillow's decoder at a fraction of the size, turned upright."""
    with Image.open(path) as image:
        size = image.size
        image.draft("RGB", (size[0] // shrink, size[1] // shrink))
        assert image.size == tuple(-(-side // shrink) for side in size)
        orientation = image.getexif().get(0x0112)
        orientation = orientation if orientation in TURNS else 1
        return numpy.asarray(image.convert("RGB")), orientation, size


def coded_rect(orientation, size, rect):
    """Where a part of the upright image lies in the coded one of this size: by turning a picture of it."""
    upright_size = size[::-1] if orientation >= 5 else size
    inverse = {6: 8, 8: 6}.get(orientation, orientation)
    mark = numpy.zeros(upright_size[::-1], numpy.uint8)
    cut(mark, rect)[:] = 1
    picture = Image.fromarray(mark)
    if TURNS[inverse]:
        picture = picture.transpose(getattr(Image.Transpose, TURNS[inverse]))
    left, top, right, bottom = picture.getbbox()
    return left, top, right - left, bottom - top


def test_fast_is_where_it_should_be(pixels, photos, turned):
    """The place of a shrunk crop, to a fraction of a pixel, against Pillow's draft mode: its box within the pixels that
    the crop touches, turned."""
    rng = random.Random(29)
    seen = set()
    for path in photos + turned:
        size = upright(path).size
        side = rng.choice((11, 32, 64, 100))
        transform = rng.choice((
            random_resized_crop(side, side + 3, (0.3, 1.0), fast=True),
            validation(side + 3, side - 10, side, fast=True),
        ))  # fmt: skip
        _, g = pixels.choose(transform, size, 30, 0, 0)
        shrink = shrink_of(g)
        if shrink == 1:
            continue
        image, orientation, coded_size = drafted(path, shrink)
        x, y, w, h = coded_rect(orientation, coded_size, g.crop)
        left, top, right, bottom = x // shrink, y // shrink, -(-(x + w) // shrink), -(-(y + h) // shrink)
        region = Image.fromarray(image[top:bottom, left:right])
        # Edges of the box, turned as the pixels are: the distances from the region's four edges change places.
        before = {"left": x / shrink - left, "top": y / shrink - top,
                  "right": right - (x + w) / shrink, "bottom": bottom - (y + h) / shrink}  # fmt: skip
        if TURNS[orientation]:
            region = region.transpose(getattr(Image.Transpose, TURNS[orientation]))
        order = {1: "left top right bottom", 2: "right top left bottom", 3: "right bottom left top",
                 4: "left bottom right top", 5: "top left bottom right", 6: "bottom left top right",
                 7: "bottom right top left", 8: "top right bottom left"}[orientation].split()  # fmt: skip
        edges = [before[edge] for edge in order]
        box = (edges[0], edges[1], region.width - edges[2], region.height - edges[3])
        rows, columns = (0, box[1], g.scaled[0], box[3]), (box[0], 0, box[2], region.height)
        due = region.resize((g.scaled[0], region.height), Image.Resampling.BILINEAR, box=columns)
        due = cut(as_array(due.resize(g.scaled, Image.Resampling.BILINEAR, box=rows)), g.window)
        status, got = pixels.file(path, transform, seed=30)
        assert status == 0 and (got == due).all(), f"{path.name}: {g}, shrunk by {shrink}"
        seen.add((shrink, orientation))
    assert {shrink for shrink, _ in seen} == {2, 4, 8} and len({o for _, o in seen}) == 8


# Pixels in memory


def test_memory_equals_pillow(pixels):
    """IDX datasets: every transform, 1 to 4 channels, and the channels that a stream wants."""
    rng = random.Random(31)
    for position in range(300):
        height, width, channels = rng.randint(1, 40), rng.randint(1, 40), rng.choice((1, 1, 3, 3, 2, 4))
        image = numpy.frombuffer(rng.randbytes(height * width * channels), numpy.uint8)
        image = image.reshape(height, width, channels)
        wanted = rng.choice((0, 0, 1, 3)) if channels in (1, 3) else 0
        transform = rng.choice((
            Transform(flip=0.5),
            any_crop(rng),
            Transform(RESIZE, 0, 20, 30, 11, 30, flip=0.5),
            random_crop(rng.randint(1, height + 8), rng.randint(1, width + 8), (4, 4, 4, 4), flip=0.5),
        ))  # fmt: skip
        transform = replace(transform, channels=wanted)
        out = (transform.height or height, transform.width or width)
        _, g = pixels.choose(transform, (width, height), 32, 0, position, out=out)
        due = image
        if wanted == 3 and channels == 1:
            due = image.repeat(3, axis=2)
        elif wanted == 1 and channels == 3:
            due = as_array(Image.fromarray(image).convert("L"))
        due = numpy.concatenate([applied(due[:, :, c : c + 1], g, *out) for c in range(due.shape[2])], axis=2)
        status, got = pixels.memory(image, transform, 4 * out[0] * out[1], seed=32, position=position)
        assert status == 0, got
        assert got.shape == due.shape and (got == due).all(), f"{image.shape}: {transform}"


def test_channels_that_cannot_be(pixels):
    for channels in 2, 4:
        status, message = pixels.memory(numpy.zeros((5, 5, channels), numpy.uint8), Transform(channels=3), 100)
        assert status == UNSUPPORTED and f"have {channels}" in message


# What is refused


def test_limits(pixels, tmp_path):
    """A few bytes that claim 65,500 x 65,500 pixels, and a file of more bytes than are allowed."""
    bomb = tmp_path / "bomb.jpg"
    bomb.write_bytes(bytes.fromhex("ffd8ffc0001108ffdcffdc03012200021101031101ffda000c03010002110311003f00"))
    status, message = pixels.file(bomb, random_resized_crop(8, 8))
    assert status == LIMIT and str(bomb) in message and "65500 x 65500" in message and str(PIXELS_MAX) in message
    large = tmp_path / "large.jpg"
    large.write_bytes(b"\xff\xd8\xff")
    os.truncate(large, BYTES_MAX + 1)
    status, message = pixels.file(large, random_resized_crop(8, 8))
    assert status == LIMIT and str(large) in message and str(BYTES_MAX) in message
    os.truncate(large, BYTES_MAX)
    assert pixels.file(large, random_resized_crop(8, 8))[0] == CORRUPT
    status, message = pixels.file(tmp_path / "nothing.jpg", Transform())
    assert status == IO and "No such file" in message


def test_other_sizes_are_refused(pixels, photos):
    size = upright(photos[0]).size
    status, message = pixels.file(photos[0], Transform(height=10, width=20))
    assert status == UNSUPPORTED and f"{size[0]} x {size[1]}" in message and "20 x 10" in message
    status, message = pixels.file(photos[0], random_crop(10, size[0] + 1))
    assert status == UNSUPPORTED and f"{size[0]} x {size[1]}" in message and f"{size[0] + 1} x 10" in message


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_of_a_giant_is_given_back(pixels, photos, tmp_path):
    """Its pixels stay in the scratch until the next sample, and no longer."""
    giant = tmp_path / "giant.jpg"
    Image.new("RGB", (6000, 6000), (1, 2, 3)).save(giant)
    transform = random_crop(100, 100, flip=1.0)
    assert pixels.file(photos[0], transform)[0] == 0
    before = resident_bytes()
    assert pixels.file(giant, Transform(flip=1.0), 6000 * 6000 * 3, position=1)[0] == 0
    while_held = resident_bytes()
    assert pixels.file(photos[0], transform)[0] == 0
    assert while_held - before > 100_000_000 and resident_bytes() - before < 10_000_000


def test_truncated(pixels, photos, tmp_path):
    """By default an error; accepted, what is there is as it was, and the rest is there too."""
    data = photos[0].read_bytes()
    path = tmp_path / "cut.jpg"
    path.write_bytes(data[: len(data) // 2])
    image = upright(photos[0])
    status, message = pixels.file(path, Transform(), image.width * image.height * 3)
    assert status == CORRUPT and str(path) in message
    status, got = pixels.file(path, Transform(accept_truncated=True), image.width * image.height * 3)
    assert status == 0 and got.shape == as_array(image).shape
    assert (got[: image.height // 4] == as_array(image)[: image.height // 4]).all()
    # Damage below the crop is not the crop's business.
    seed = next(s for s in range(1000) if pixels.choose(random_crop(16, 64), image.size, s)[1].crop[1] < 100)
    crop = pixels.choose(random_crop(16, 64), image.size, seed)[1].crop
    status, got = pixels.file(path, random_crop(16, 64), seed=seed)
    assert status == 0 and (got == cut(as_array(image), crop)).all()
    buffer = io.BytesIO()
    image.save(buffer, "JPEG")
    path.write_bytes(buffer.getvalue())
    assert pixels.file(path, Transform(), image.width * image.height * 3)[0] == 0
