"""test_pixels.py - pixels against independent oracles: djpeg decodes, Pillow scales, Python's own arithmetic chooses.

    FEEDD_BUILD_DIR=build/release pytest tests/python

FEEDD_TEST_DATA is the folder of real data (default: ../shared/data beside the repository); tests that need it skip
without it, and those that need djpeg (Debian package libjpeg-turbo-progs) without that.

The decoder and the resizer are the same two objects in all tests: each test also shows that nothing of the tests
before it is left in them.
"""

import ctypes
import os
import random
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FEEDD_BUILD_DIR", ROOT / "build" / "dev")).resolve()
LIBRARY = BUILD / "tests" / "python" / "feedd_pixels_test.so"
DATA = Path(os.environ.get("FEEDD_TEST_DATA", ROOT / ".." / "shared" / "data"))

CORRUPT, UNSUPPORTED, LIMIT = -7, -8, -4  # enum feedd_status
NONE, RESIZE_CENTER_CROP = 1, 2  # enum transform_kind
PIXELS_MAX = 40_000_000

u32, u64, bytes_, pointer = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
SIGNATURES = {
    "pixels_open": [u64],
    "pixels_find": [ctypes.c_char_p, bytes_, pointer],
    "pixels_probe": [ctypes.c_char_p, bytes_, pointer, pointer],
    "pixels_decode": [ctypes.c_char_p, bytes_, pointer, pointer, bytes_, pointer],
    "pixels_choose": [ctypes.c_int] + [u32] * 3 + [ctypes.c_double] + [u64] * 3 + [u32] * 2 + [pointer] * 2,
    "pixels_resize": [pointer, u32, u32, bytes_] + [u32] * 3 + [pointer, ctypes.c_int, pointer],
}


class Pixels:
    """The C code, with bytes and arrays. Methods return (status, result or message)."""

    def __init__(self):
        self.library = ctypes.CDLL(str(LIBRARY))
        for name, arguments in SIGNATURES.items():
            getattr(self.library, name).argtypes = arguments
        assert self.library.pixels_open(PIXELS_MAX) == 0
        self.message = ctypes.create_string_buffer(1020)

    def answer(self, status, result):
        if status >= 0:
            return status, result
        message = self.message.value.decode()
        assert message and "\n" not in message
        return status, message

    def find(self, data):
        return self.answer(self.library.pixels_find(data, len(data), self.message), None)

    def probe(self, data):
        out = (u32 * 2)()
        return self.answer(self.library.pixels_probe(data, len(data), out, self.message), tuple(out))

    def decode(self, data, crop):
        """crop: x, y, width, height. Every byte is written over two poisons, and none between the rows."""
        x, y, width, height = crop
        stride = 3 * width + 5
        results = []
        for poison in 0x00, 0xA5:
            out = numpy.full((height, stride), poison, numpy.uint8)
            status = self.library.pixels_decode(
                data, len(data), (u32 * 4)(*crop), out.ctypes.data, stride, self.message
            )
            assert (out[:, 3 * width:] == poison).all()
            results.append((status, out[:, : 3 * width].reshape(height, width, 3).copy()))
        assert results[0][0] == results[1][0]
        if results[0][0] == 0:
            assert (results[0][1] == results[1][1]).all(), "some bytes weren't written"
        return self.answer(*results[0])

    def choose(self, kind, resize, height, width, image, flip=0.0, seed=0, epoch=0, position=0):
        """image: (width, height). The result: crop (4), scaled width and height, window (4), flip."""
        out = (u32 * 11)()
        status = self.library.pixels_choose(
            kind, resize, height, width, flip, seed, epoch, position, *image, out, self.message
        )
        return self.answer(status, tuple(out))

    def resize(self, image, scaled, window, flip=False, gap=0):
        """image: uint8 [height, width, channels]; scaled: (width, height); gap: bytes between the rows of the input."""
        height, width, channels = image.shape
        rows = numpy.full((height, width * channels + gap), 0x5A, numpy.uint8)
        rows[:, : width * channels] = image.reshape(height, -1)
        x, y, w, h = window
        out = numpy.full(h * w * channels + 64, 0xA5, numpy.uint8)
        assert 0 == self.library.pixels_resize(
            rows.ctypes.data, width, height, rows.shape[1], channels, *scaled, (u32 * 4)(*window), flip, out.ctypes.data
        )
        assert (out[h * w * channels:] == 0xA5).all(), "written past the end"
        return out[: h * w * channels].reshape(h, w, channels)


@pytest.fixture(scope="module")
def pixels():
    assert LIBRARY.exists(), f"{LIBRARY} is missing: build first, and name the build folder in FEEDD_BUILD_DIR"
    pixels = Pixels()
    yield pixels
    pixels.library.pixels_close()


def data_folder(name):
    if not (DATA / name).is_dir():
        pytest.skip(f"{DATA / name} is missing (FEEDD_TEST_DATA)")
    return DATA / name


@pytest.fixture(scope="module")
def photos():
    """Paths of real photos."""
    return sorted(data_folder("imagenet-sample").glob("*/*.JPEG"))


@pytest.fixture(scope="module")
def hard_files():
    """Paths of files that are damaged, odd or not JPEG at all."""
    return sorted(p for p in data_folder("hard-jpegs").glob("*/*") if p.is_file())


def djpeg(data):
    """(exit code, messages, pixels) of djpeg -rgb."""
    if shutil.which("djpeg") is None:
        pytest.skip("djpeg is missing (Debian package libjpeg-turbo-progs)")
    run = subprocess.run(["djpeg", "-rgb", "-ppm"], input=data, capture_output=True, check=False)
    pixels = None
    if run.returncode in (0, 2):
        magic, sizes, most, data = run.stdout.split(b"\n", 3)
        assert (magic, most) == (b"P6", b"255")
        width, height = map(int, sizes.split())
        pixels = numpy.frombuffer(data, numpy.uint8).reshape(height, width, 3)
    return run.returncode, run.stderr.decode(), pixels


def whole(image_or_size):
    width, height = image_or_size
    return 0, 0, width, height


def random_crop(rng, width, height):
    w, h = rng.randint(1, width), rng.randint(1, height)
    return rng.randint(0, width - w), rng.randint(0, height - h), w, h


# Decoding


def test_photos_equal_djpeg(pixels, photos):
    gray = 0
    for path in photos:
        data = path.read_bytes()
        code, messages, due = djpeg(data)
        assert (code, messages) == (0, ""), path.name
        assert pixels.find(data) == (0, None), path.name
        height, width = due.shape[:2]
        assert pixels.probe(data) == (0, (width, height)), path.name
        status, got = pixels.decode(data, (0, 0, width, height))
        assert status == 0, f"{path.name}: {got}"
        assert (got == due).all(), path.name
        gray += (due[:, :, 0] == due[:, :, 1]).all() and (due[:, :, 0] == due[:, :, 2]).all()
    assert len(photos) >= 200 and gray >= 12


def test_crops_are_cuts_of_the_whole(pixels, photos):
    rng = random.Random(1)
    for path in photos[::8]:
        data = path.read_bytes()
        _, (width, height) = pixels.probe(data)
        _, image = pixels.decode(data, (0, 0, width, height))
        corners = [(0, 0, 1, 1), (width - 1, height - 1, 1, 1), (0, height // 2, width, 1), (width // 2, 0, 1, height)]
        for x, y, w, h in corners + [random_crop(rng, width, height) for _ in range(3)]:
            status, got = pixels.decode(data, (x, y, w, h))
            assert status == 0 and (got == image[y : y + h, x : x + w]).all(), f"{path.name} {(x, y, w, h)}"


def test_crop_outside_is_refused(pixels, photos):
    data = photos[0].read_bytes()
    _, (width, height) = pixels.probe(data)
    for crop in (1, 0, width, 1), (0, 1, 1, height), (width + 1, 0, 0, 1), (0, 2**32 - 1, 1, 2):
        out = numpy.full(16, 7, numpy.uint8)
        status = pixels.library.pixels_decode(
            data, len(data), (u32 * 4)(*crop), out.ctypes.data, 0, pixels.message
        )
        assert status == -1 and (out == 7).all(), crop


def test_hard_files_as_djpeg_says(pixels, hard_files):
    """What djpeg decodes in silence is equal; what it warns of is corrupt; what it refuses is refused."""
    decoded = 0
    for path in hard_files:
        data = path.read_bytes()
        code, messages, due = djpeg(data)
        found = pixels.find(data)
        status, probed = pixels.probe(data)
        if status == 0:
            width, height = probed
            status, got = pixels.decode(data, (0, 0, width, height))
        else:
            got = probed
        if code == 0 and messages == "":
            assert found[0] == 0 and status == 0, f"{path.name}: {got}"
            assert got.shape == due.shape and (got == due).all(), path.name
            decoded += 1
        elif code == 2:
            assert found[0] == 0 and status == CORRUPT, f"{path.name}: {status} {got}"
        else:
            assert status in (CORRUPT, UNSUPPORTED, LIMIT), f"{path.name}: {status} {got}"
        if code == 1 and "Unsupported" in messages and "Corrupt" not in messages:
            assert status == UNSUPPORTED, f"{path.name}: {status} {got}"
    assert decoded >= 40


def test_other_formats_are_named(pixels, hard_files):
    names = {
        "datastore.jpg": "PNG",
        "deeplake.favicon.png": "WebP",
        "renamed_avif.jpg": "AVIF",
        "renamed_bmp.jpg": "BMP",
        "renamed_png.JPEG": "PNG",
        "renamed_tif.jpg": "TIFF",
        "decompression_bomb.gif": "GIF",
        "empty.jpg": "empty",
    }
    seen = set()
    for path in hard_files:
        if path.name in names:
            status, message = pixels.find(path.read_bytes())
            assert status == UNSUPPORTED and names[path.name] in message and "JPEG" in message, path.name
            seen.add(path.name)
        elif path.suffix in (".md", ".tsv"):
            assert pixels.find(path.read_bytes())[0] == UNSUPPORTED
    assert seen == set(names)


def test_photos_cut_short(pixels, photos):
    rng = random.Random(2)
    good = photos[0].read_bytes()
    _, (width, height) = pixels.probe(good)
    _, due = pixels.decode(good, (0, 0, width, height))
    for path in photos[1::40]:
        data = path.read_bytes()
        _, (w, h) = pixels.probe(data)
        for end in [len(data) - 1, len(data) - 2] + [rng.randrange(3, len(data)) for _ in range(10)]:
            status, message = pixels.decode(data[:end], (0, 0, w, h))
            assert status == CORRUPT and "cut short" in message and str(end) in message, f"{path.name} {end}: {message}"
        status, got = pixels.decode(good, (0, 0, width, height))
        assert status == 0 and (got == due).all()


def test_limit_is_checked_from_the_header(pixels):
    """A few bytes that claim 65,500 x 65,500 pixels; hard_files has a valid file of 36 million, which is allowed."""
    bomb = bytes.fromhex("ffd8ffc0001108ffdcffdc03012200021101031101ffda000c03010002110311003f00")
    status, message = pixels.probe(bomb)
    assert status == LIMIT and "65500 x 65500" in message and str(PIXELS_MAX) in message
    status, message = pixels.decode(bomb, (0, 0, 1, 1))
    assert status == LIMIT


# Scaling: Pillow


def pillow(image, scaled, window, flip):
    """Columns, then rows. Pillow 13 begins with the rows when many more of them go; one side alone is one pass."""
    picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    lost_columns, lost_rows = picture.width - scaled[0], picture.height - scaled[1]
    if lost_rows > max(0, 2 * lost_columns):
        picture = picture.resize((scaled[0], picture.height), Image.Resampling.BILINEAR)
    picture = picture.resize(scaled, Image.Resampling.BILINEAR)
    x, y, w, h = window
    picture = picture.crop((x, y, x + w, y + h))
    if flip:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return numpy.asarray(picture).reshape(h, w, image.shape[2])


def check_resize(pixels, image, scaled, window, flip, gap=0):
    got, due = pixels.resize(image, scaled, window, flip, gap), pillow(image, scaled, window, flip)
    what = f"{image.shape} to {scaled}, window {window}, flip {flip}"
    assert (got == due).all(), f"{what}: {(got != due).sum()} bytes differ, first at {numpy.argwhere(got != due)[0]}"


def noise(rng, height, width, channels):
    """Any bytes, or black and white only: the largest steps."""
    image = numpy.frombuffer(rng.randbytes(height * width * channels), numpy.uint8).reshape(height, width, channels)
    return image if rng.random() < 0.7 else numpy.where(image < 128, 0, 255).astype(numpy.uint8)


def side(rng):
    return rng.choice((rng.randint(1, 600), rng.randint(1, 600), rng.randint(1, 20)))


@pytest.mark.parametrize("seed", range(8))
def test_resize_equals_pillow(pixels, seed):
    rng = random.Random(seed)
    for number in range(50):
        width, height, scaled = side(rng), side(rng), (side(rng), side(rng))
        if number % 10 == 0:  # one side, or both, stay as they are
            scaled = rng.choice(((width, scaled[1]), (scaled[0], height), (width, height)))
        image = noise(rng, height, width, rng.choice((1, 3, 3)))
        flip = rng.random() < 0.5
        check_resize(pixels, image, scaled, whole(scaled), flip, gap=rng.choice((0, 7)))
        check_resize(pixels, image, scaled, random_crop(rng, *scaled), not flip)


@pytest.mark.parametrize("size", [(1, 1), (1, 600), (600, 1), (2, 2), (3, 599)])
@pytest.mark.parametrize("scaled", [(1, 1), (1, 600), (600, 1), (2, 3), (600, 600)])
def test_resize_extremes(pixels, size, scaled):
    rng = random.Random(repr((size, scaled)))
    for channels in 1, 3:
        check_resize(pixels, noise(rng, size[1], size[0], channels), scaled, whole(scaled), channels == 3)


def test_resize_long_sides(pixels):
    """Weights of thousands of pixels, whose rounding errors add up; and the longest side that a JPEG has."""
    rng = random.Random(9)
    cases = ((65500, 3), (7, 2)), ((2, 65500), (5, 1)), ((20000, 2), (19999, 3)), ((9, 7), (9000, 7))
    for (width, height), scaled in cases:
        for image in noise(rng, height, width, 3), numpy.full((height, width, 3), 255, numpy.uint8):
            check_resize(pixels, image, scaled, whole(scaled), False)


def test_resize_two_and_four_channels(pixels):
    """Channels are scaled on their own, as four pictures of one."""
    rng = random.Random(10)
    for channels in 2, 4:
        image = noise(rng, 90, 117, channels)
        got = pixels.resize(image, (64, 71), (5, 6, 50, 60))
        for c in range(channels):
            assert (got[:, :, c] == pillow(image[:, :, c : c + 1], (64, 71), (5, 6, 50, 60), False)[:, :, 0]).all()


def test_resize_photos(pixels, photos):
    for number, path in enumerate(photos[::4]):
        data = path.read_bytes()
        _, (width, height) = pixels.probe(data)
        _, image = pixels.decode(data, (0, 0, width, height))
        check_resize(pixels, image, (224, 224), (0, 0, 224, 224), number % 2 == 0)
        check_resize(pixels, image, (width // 3 + 1, height * 5 // 4), (0, 0, width // 3 + 1, height), number % 2 == 1)


# Choosing: Python's arithmetic, as torchvision uses it


def torchvision_sizes(resize, crop_height, crop_width, width, height):
    """_compute_resized_output_size() and center_crop() of torchvision.transforms.functional."""
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = resize, int(resize * long / short)
    new_width, new_height = (new_short, new_long) if width <= height else (new_long, new_short)
    top = int(round((new_height - crop_height) / 2.0))
    left = int(round((new_width - crop_width) / 2.0))
    return (0, 0, width, height, new_width, new_height, left, top, crop_width, crop_height, 0)


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
        status, got = pixels.choose(RESIZE_CENTER_CROP, resize, crop_height, crop_width, (width, height))
        assert status == 0
        assert got == torchvision_sizes(resize, crop_height, crop_width, width, height)


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


def test_flips_as_documented(pixels):
    rng = random.Random(12)
    flips = 0
    for _ in range(3000):
        seed, epoch, position = (rng.choice((rng.randrange(4), rng.getrandbits(64))) for _ in range(3))
        probability = rng.choice((0.0, 0.25, 0.5, 1.0))
        s = philox(words(seed), words(position) + words(epoch))
        r = philox(s[:2], (0, 0, s[2], s[3]))
        _, got = pixels.choose(NONE, 0, 5, 4, (4, 5), probability, seed, epoch, position)
        assert got[10] == (r[0] / 2**32 < probability)
        flips += got[10]
    assert 1000 < flips < 1600


# All of it: what a validation pipeline of torchvision does to a photo, with djpeg's pixels


def test_photos_to_samples(pixels, photos):
    for position, path in enumerate(photos[::5]):
        data = path.read_bytes()
        _, size = pixels.probe(data)
        status, g = pixels.choose(RESIZE_CENTER_CROP, 256, 224, 224, size, 0.5, 7, 3, position)
        assert status == 0
        _, image = pixels.decode(data, g[:4])
        sizes = torchvision_sizes(256, 224, 224, *size)
        due = pillow(djpeg(data)[2], sizes[4:6], sizes[6:10], g[10])
        assert (pixels.resize(image, g[4:6], g[6:10], g[10]) == due).all(), path.name
