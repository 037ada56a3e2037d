"""test_codecs.py - PNG and WebP against Pillow and NumPy: pixels, crops, luma, orientation, damage, limits.

    FEEDD_BUILD_DIR=build/release pytest tests/python

Files are made here: by Pillow as far as it writes what is wanted, otherwise by the formats' own specifications (PNG:
ISO 15948; WebP's container: RFC 9649). FEEDD_TEST_DATA is the folder of real data (default: ../shared/data beside the
repository); tests that need it skip without it.

The decoders are the same objects in all tests: each test also shows that nothing of the tests before it is left in
them.
"""

import ctypes
import io
import itertools
import os
import random
import re
import resource
import struct
import warnings
import zlib
from pathlib import Path

import numpy
import pytest
from PIL import Image, ImageFile, ImageOps, PngImagePlugin

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FEEDD_BUILD_DIR", ROOT / "build" / "dev")).resolve()
LIBRARY = BUILD / "tests" / "python" / "feedd_codecs_test.so"
DATA = Path(os.environ.get("FEEDD_TEST_DATA", ROOT / ".." / "shared" / "data"))

ARGUMENT, LIMIT, CORRUPT, UNSUPPORTED = -1, -4, -7, -8  # enum feedd_status
PIXELS_MAX = 40_000_000

u32, u64, bytes_, pointer = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p


class Codecs:
    """The C code, with bytes and arrays. Methods return (status, result or message)."""

    def __init__(self):
        self.library = ctypes.CDLL(str(LIBRARY))
        self.library.codecs_open.argtypes = [u64]
        self.library.codecs_probe.argtypes = [ctypes.c_char_p, bytes_, pointer, pointer]
        self.library.codecs_decode.argtypes = [
            ctypes.c_char_p, bytes_, pointer, u32, ctypes.c_int, pointer, bytes_, pointer
        ]  # fmt: skip
        assert self.library.codecs_open(PIXELS_MAX) == 0
        self.message = ctypes.create_string_buffer(1020)

    def answer(self, status, result):
        message = self.message.value.decode()
        if status >= 0:
            assert message == ""
            return status, result
        assert message and "\n" not in message
        return status, message

    def probe(self, data):
        """width, height, orientation"""
        out = (u32 * 3)()
        return self.answer(self.library.codecs_probe(data, len(data), out, self.message), tuple(out))

    def decode(self, data, crop, channels=3, accept_truncated=False):
        """crop: x, y, width, height. Every byte is written over two poisons, and none between the rows."""
        _, _, width, height = crop
        stride = channels * width + 5
        results = []
        for poison in 0x00, 0xA5:
            out = numpy.full((height, stride), poison, numpy.uint8)
            status = self.library.codecs_decode(
                data, len(data), (u32 * 4)(*crop), channels, accept_truncated, out.ctypes.data, stride, self.message
            )
            assert (out[:, channels * width :] == poison).all()
            results.append((status, out[:, : channels * width].reshape(height, width, channels).copy()))
        assert results[0][0] == results[1][0]
        if results[0][0] == 0:
            assert (results[0][1] == results[1][1]).all(), "some bytes weren't written"
        return self.answer(*results[0])

    def whole(self, data, channels=3, accept_truncated=False):
        status, size = self.probe(data)
        assert status == 0, size
        return self.decode(data, (0, 0, size[0], size[1]), channels, accept_truncated)


@pytest.fixture(scope="module")
def codecs():
    assert LIBRARY.exists(), f"{LIBRARY} is missing: build first, and name the build folder in FEEDD_BUILD_DIR"
    codecs = Codecs()
    yield codecs
    codecs.library.codecs_close()


def data_folder(name):
    if not (DATA / name).is_dir():
        pytest.skip(f"{DATA / name} is missing (FEEDD_TEST_DATA)")
    return DATA / name


def pillow(data, mode="RGB", truncated=False):
    """height x width x channels, or the exception; `truncated`: Pillow takes what is there."""
    ImageFile.LOAD_TRUNCATED_IMAGES = truncated
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transparency in bytes
            picture = Image.open(io.BytesIO(data))
            pixels = numpy.asarray(picture.convert(mode))
        return pixels.reshape(picture.height, picture.width, -1)
    except Exception as error:
        return error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def luma(rgb):
    """L24() of Pillow's Convert.c."""
    r, g, b = (rgb[:, :, i].astype(numpy.uint32) for i in range(3))
    return ((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16).astype(numpy.uint8)[:, :, None]


def random_crop(rng, width, height):
    w, h = rng.randint(1, width), rng.randint(1, height)
    return rng.randint(0, width - w), rng.randint(0, height - h), w, h


def check(codecs, data, due, rng, what, crops=4):
    """The file gives `due` (RGB), its luma, and any part of both."""
    height, width = due.shape[:2]
    gray = luma(due)
    status, size = codecs.probe(data)
    assert status == 0 and size[:2] == (width, height), f"{what}: {size}"
    regions = [(0, 0, width, height)]
    if crops:
        regions += [(0, 0, 1, 1), (width - 1, height - 1, 1, 1), (width // 2, 0, 1, height), (0, height // 2, width, 1)]
        regions += [random_crop(rng, width, height) for _ in range(crops)]
    for x, y, w, h in regions:
        crop = x, y, w, h
        for channels, whole in (3, due), (1, gray):
            status, got = codecs.decode(data, crop, channels)
            assert status == 0, f"{what}, {crop}: {got}"
            assert (got == whole[y : y + h, x : x + w]).all(), f"{what}, {crop}, {channels} channels"


def smooth(rng, height, width, channels=3):
    """A picture with edges and slopes, so that it compresses as photos do; a little noise."""
    y, x = numpy.mgrid[:height, :width]
    planes = []
    for _ in range(channels):
        a, b, c = (rng.uniform(0.05, 3) for _ in range(3))
        planes.append(128 + 60 * numpy.sin(x * a / 9 + c) + 50 * numpy.sin(y * b / 11) + 20 * ((x // 13 + y // 7) % 2))
    noise = numpy.frombuffer(rng.randbytes(height * width * channels), numpy.uint8).reshape(height, width, channels) % 5
    return numpy.clip(numpy.stack(planes, -1) + noise, 0, 255).astype(numpy.uint8)


def saved(array_or_picture, kind, **options):
    picture = array_or_picture
    if isinstance(picture, numpy.ndarray):
        picture = Image.fromarray(picture[:, :, 0] if picture.shape[2] == 1 else picture)
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


# PNG, by its specification

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GRAY, TRUECOLOUR, PALETTE, GRAY_ALPHA, TRUECOLOUR_ALPHA = 0, 2, 3, 4, 6
SAMPLES = {GRAY: 1, TRUECOLOUR: 3, PALETTE: 1, GRAY_ALPHA: 2, TRUECOLOUR_ALPHA: 4}
KINDS = [(GRAY, depth) for depth in (1, 2, 4, 8, 16)] + [(PALETTE, depth) for depth in (1, 2, 4, 8)]
KINDS += list(itertools.product((TRUECOLOUR, GRAY_ALPHA, TRUECOLOUR_ALPHA), (8, 16)))
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def chunk(name, data=b""):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def packed(row, depth):
    """One row of samples to bytes."""
    if depth == 16:
        return row.astype(">u2").tobytes()
    if depth == 8:
        return row.astype(numpy.uint8).tobytes()
    bits = "".join(format(value, f"0{depth}b") for value in row.tolist())
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def filtered(kind, row, above, step):
    out = bytearray([kind])
    for i, value in enumerate(row):
        a, b, c = row[i - step] if i >= step else 0, above[i], above[i - step] if i >= step else 0
        p = a + b - c
        paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        out.append((value - (0, a, b, (a + b) // 2, paeth)[kind]) & 255)
    return bytes(out)


def scanlines(rng, samples, depth, interlaced):
    """samples: height x width x samples of a pixel."""
    step = max(1, samples.shape[2] * depth // 8)
    out = b""
    for x, y, dx, dy in ADAM7 if interlaced else ((0, 0, 1, 1),):
        part = samples[y::dy, x::dx]
        above = None
        for row in part if part.shape[1] else ():
            row = packed(row.reshape(-1), depth)
            out += filtered(rng.randrange(5), row, above or bytes(len(row)), step)
            above = row
    return out


def png(rng, samples, colour, depth, interlaced=0, palette=None, before=b"", between=b"", after=b"", idat=None):
    """between: PLTE and IDAT; idat: sizes of the chunks are up to it."""
    height, width = samples.shape[:2]
    data = zlib.compress(scanlines(rng, samples, depth, interlaced), rng.choice((0, 1, 6, 9)))
    out = SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)) + before
    if palette is not None:
        out += chunk(b"PLTE", palette.tobytes())
    out += between
    while data:
        size = rng.randint(0, idat) if idat else len(data)
        out += chunk(b"IDAT", data[:size])
        data = data[size:]
    return out + after + chunk(b"IEND")


def any_samples(rng, height, width, colour, depth):
    count = height * width * SAMPLES[colour]
    values = numpy.frombuffer(rng.randbytes(2 * count), numpy.uint16) >> (16 - depth)
    return values.reshape(height, width, SAMPLES[colour])


def any_palette(rng, count):
    return numpy.frombuffer(rng.randbytes(3 * count), numpy.uint8).reshape(count, 3)


def any_png(rng, height, width, colour, depth, **options):
    palette = any_palette(rng, 1 << depth) if colour == PALETTE else None
    return png(rng, any_samples(rng, height, width, colour, depth), colour, depth, palette=palette, **options)


def rgb_of(samples, colour, depth, palette):
    """What the specification says, without Pillow; 16 bits to their high byte."""
    if colour == PALETTE:
        full = numpy.zeros((256, 3), numpy.uint8)
        full[: len(palette)] = palette
        return full[samples[:, :, 0]]
    eight = samples >> 8 if depth == 16 else samples * (255 // ((1 << depth) - 1))
    eight = eight.astype(numpy.uint8)
    return eight[:, :, :3] if colour in (TRUECOLOUR, TRUECOLOUR_ALPHA) else numpy.repeat(eight[:, :, :1], 3, 2)


SIZES = [(1, 1), (1, 9), (9, 1), (2, 2), (3, 5), (5, 3), (4, 8), (8, 8), (33, 17), (40, 64)]


@pytest.mark.parametrize("colour, depth", KINDS)
@pytest.mark.parametrize("interlaced", (0, 1))
def test_png_kinds(codecs, colour, depth, interlaced):
    """All colour types and depths, all filters, chunks of any size: as the specification and as Pillow say."""
    rng = random.Random(repr((colour, depth, interlaced)))
    for height, width in SIZES + [(rng.randint(1, 50), rng.randint(1, 50)) for _ in range(6)]:
        samples = any_samples(rng, height, width, colour, depth)
        palette = any_palette(rng, rng.randint(1, 1 << depth)) if colour == PALETTE else None
        data = png(rng, samples, colour, depth, interlaced, palette, idat=rng.choice((None, 7, 100)))
        due = rgb_of(samples, colour, depth, palette)
        what = f"{width} x {height}"
        check(codecs, data, due, rng, what)
        if (colour, depth) == (GRAY, 16):  # Pillow clips these at 255
            assert (pillow(data)[:, :, 0] == numpy.minimum(samples[:, :, 0], 255)).all()
        else:
            assert (pillow(data) == due).all() and (pillow(data, "L") == luma(due)).all(), what


def test_png_as_pillow_writes(codecs):
    rng = random.Random(20)
    for _ in range(6):
        photo = Image.fromarray(smooth(rng, rng.randint(1, 90), rng.randint(1, 90)))
        for mode in "1", "L", "LA", "P", "RGB", "RGBA":
            for options in {}, {"optimize": True}, {"compress_level": 0}:
                data = saved(photo.convert(mode), "png", **options)
                check(codecs, data, pillow(data), rng, mode, 2)
        for bits in 1, 2, 4:
            data = saved(photo.convert("P", palette=Image.Palette.ADAPTIVE, colors=1 << bits), "png", bits=bits)
            check(codecs, data, pillow(data), rng, f"P, {bits} bits", 2)
        gray = numpy.asarray(photo.convert("L")).astype(numpy.uint16) * 257
        data = saved(Image.fromarray(gray), "png")
        check(codecs, data, numpy.repeat((gray >> 8).astype(numpy.uint8)[:, :, None], 3, 2), rng, "I;16", 2)


def test_png_transparency_is_dropped(codecs):
    """Of a palette, of a colour, of alpha: convert("RGB") doesn't blend."""
    rng = random.Random(21)
    for interlaced in 0, 1:
        for colour, depth, trns in (
            (PALETTE, 8, bytes(range(200))), (PALETTE, 2, b"\0\x80"), (GRAY, 8, b"\0\x07"), (GRAY, 1, b"\0\1"),
            (TRUECOLOUR, 8, b"\0\1\0\2\0\3"), (TRUECOLOUR, 16, b"\1\1\2\2\3\3"), (GRAY, 8, b"\0"),
            (GRAY_ALPHA, 8, b"\0\1"),
        ):  # fmt: skip
            data = any_png(rng, 20, 23, colour, depth, interlaced=interlaced, between=chunk(b"tRNS", trns))
            due = pillow(data)
            if not isinstance(due, Exception):  # what isn't as it should be stops Pillow, and not us
                check(codecs, data, due, rng, f"{colour}, {depth}")
            else:
                assert trns == b"\0" and codecs.whole(data)[0] == 0
        for mode in "P", "RGB", "L":
            picture = Image.fromarray(smooth(rng, 30, 31)).convert(mode)
            data = saved(picture, "png", transparency=(1, 2, 3) if mode == "RGB" else 5)
            check(codecs, data, pillow(data), rng, mode)


def test_png_palette_index_behind_the_end_is_black(codecs):
    rng = random.Random(22)
    for depth in 1, 2, 4, 8:
        samples = any_samples(rng, 30, 30, PALETTE, depth)
        data = png(rng, samples, PALETTE, depth, palette=any_palette(rng, 1))
        assert (pillow(data)[samples[:, :, 0] > 0] == 0).all()
        check(codecs, data, pillow(data), rng, depth)


def test_png_ancillary_chunks_change_nothing(codecs):
    rng = random.Random(23)
    chunks = {
        "gAMA": struct.pack(">I", 30000), "cHRM": struct.pack(">8I", *range(31000, 31008)), "sRGB": b"\1",
        "sBIT": b"\1\2\3", "bKGD": bytes(6), "pHYs": bytes(9), "tEXt": b"a\0b", "tIME": bytes(7), "hIST": bytes(8),
        "iCCP": b"a\0\0" + zlib.compress(b"no profile"), "zTXt": b"a\0\0" + zlib.compress(b"text"),
        "iTXt": b"a\0\1\0\0\0" + zlib.compress(b"text"), "sPLT": b"a\0\10" + bytes(6), "prVt": b"any",
        "cICP": b"\x09\x10\0\1",
    }  # fmt: skip
    due = None
    for name, content in chunks.items():
        one = chunk(name.encode(), content)
        data = any_png(random.Random(24), 20, 20, TRUECOLOUR, 8, before=one, after=one)
        due = codecs.whole(any_png(random.Random(24), 20, 20, TRUECOLOUR, 8))[1]
        check(codecs, data, due, rng, name)
        assert (pillow(data) == due).all(), name
        broken = data.replace(one, one[:-1] + bytes([one[-1] ^ 1]))  # CRC: Pillow refuses; nothing depends on it
        check(codecs, broken, due, rng, name)
        for bad in b"", b"\xff" * 5:  # content that makes no sense
            one = chunk(name.encode(), bad)
            check(codecs, any_png(random.Random(24), 20, 20, TRUECOLOUR, 8, before=one), due, rng, name)


def edited(data, name, offset, value):
    """The first chunk of a name with a byte changed, `offset` from the start of its data; the CRC stays."""
    at = data.index(name) + 4 + offset
    assert data[at] != value
    return data[:at] + bytes([value]) + data[at + 1 :]


def test_png_checksums(codecs):
    """Of IHDR and PLTE they have to be right. IDAT's CRC counts here, zlib's checksum of the whole image for Pillow;
    with accept_truncated neither does. IEND's isn't looked at."""
    rng = random.Random(25)
    for colour, interlaced, width in itertools.product((TRUECOLOUR, PALETTE), (0, 1), (9, 2)):
        data = any_png(rng, 9, width, colour, 8, interlaced=interlaced)
        due = pillow(data)
        for name in b"IHDR", b"PLTE", b"IDAT", b"IEND":
            if name not in data:
                continue
            length = struct.unpack(">I", data[data.index(name) - 4 : data.index(name)])[0]
            bad = edited(data, name, length, data[data.index(name) + 4 + length] ^ 255)
            status, message = codecs.decode(bad, (0, 0, width, 9))
            truncated = codecs.decode(bad, (0, 0, width, 9), accept_truncated=True)
            if name in (b"IHDR", b"PLTE"):
                assert status == CORRUPT and "CRC" in message and truncated[0] == CORRUPT
                assert codecs.probe(bad)[0] == CORRUPT
                assert isinstance(pillow(bad), Exception) and isinstance(pillow(bad, truncated=True), Exception)
            else:
                assert status == (CORRUPT if name == b"IDAT" else 0) and (status == 0 or "CRC" in message)
                assert (truncated[1] == due).all()
                assert (pillow(bad) == due).all()
                assert codecs.decode(bad, (0, 0, width, 5))[0] == 0 or (interlaced and name == b"IDAT")
        for junk in b"\xff\xff\xff\xffjunk", b"\0\0\1\0tEXt", b"\0", b"":  # behind the image: Pillow reads on
            assert (codecs.whole(data[:-12] + junk)[1] == due).all()
        stored = data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8]
        half = len(stored) // 2
        first, rest = chunk(b"IDAT", stored[:half]), chunk(b"IDAT", stored[half:])
        bad = data.replace(chunk(b"IDAT", stored), edited(first, b"IDAT", half, first[-4] ^ 255) + rest)
        assert codecs.whole(bad)[0] == CORRUPT and (pillow(bad) == due).all()
        assert (codecs.whole(bad, accept_truncated=True)[1] == due).all()
        wrong = data.replace(chunk(b"IDAT", stored), chunk(b"IDAT", stored[:-1] + bytes([stored[-1] ^ 1])))
        assert wrong != data and codecs.whole(wrong)[0] == CORRUPT and isinstance(pillow(wrong), Exception)


def test_png_bit_errors(codecs):
    """All of what is decoded to its end; of a crop that ends before its chunk does, what zlib and filters notice."""
    rng = random.Random(26)
    count = {"whole image": [0, 0], "upper half": [0, 0], "upper half of chunks of 1000 bytes": [0, 0]}
    for _ in range(20):
        one = saved(smooth(rng, 120, 160), "png")
        due = pillow(one)
        stream = b"".join(re.findall(rb"IDAT(.*)....\0\0\0\0IEND", one, re.DOTALL))
        many = b"".join(chunk(b"IDAT", stream[i : i + 1000]) for i in range(0, len(stream), 1000))
        many = one[: one.index(b"IDAT") - 4] + many + chunk(b"IEND")
        for _ in range(50):
            for what, data, rows in zip(count, (one, one, many), (120, 60, 60)):
                at = rng.randrange(data.index(b"IDAT") + 4, len(data) - 12)
                bad = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
                status, got = codecs.decode(bad, (0, 0, 160, rows))
                assert status in (0, CORRUPT)
                if status == CORRUPT or (got != due[:rows]).any():
                    count[what][status == 0] += 1
    for what, (noticed, unnoticed) in count.items():
        print(f"{what}: {noticed} of {noticed + unnoticed} single wrong bits noticed")
    assert count["whole image"] == [1000, 0]
    assert count["upper half"][1] > count["upper half of chunks of 1000 bytes"][1]


def test_png_damage_as_pillow_says(codecs):
    """Any byte of a file is changed: what both decode is equal. Who refuses what is test_png_checksums()'s affair, and
    Pillow reads a chunk whose length has its highest bit set, which the specification forbids."""
    rng = random.Random(27)
    decoded = refused = 0
    for colour, depth in KINDS:
        data = any_png(rng, 11, 10, colour, depth, interlaced=rng.randrange(2), idat=90)
        for _ in range(150):
            at = rng.randrange(len(data))
            bad = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            status, size = codecs.probe(bad)
            due = pillow(bad)
            if status != 0:
                assert status in (CORRUPT, LIMIT, UNSUPPORTED) and isinstance(due, Exception), size
                refused += 1
                continue
            assert size == (10, 11, 1)  # or else IHDR's CRC were wrong
            status, got = codecs.whole(bad)
            if status == 0 and isinstance(due, Exception):
                assert at < bad.index(b"IDAT") or at > bad.rindex(b"IDAT"), due  # an ancillary chunk's name or CRC
            elif status == 0:
                assert (got == due).all() or (colour, depth) == (GRAY, 16)
                decoded += 1
            else:
                assert status == CORRUPT
                assert isinstance(due, Exception) or re.search("out of range|CRC", got), got
                refused += 1
            assert codecs.whole(bad, accept_truncated=True)[0] == 0
    assert decoded > 100 and refused > 300


@pytest.mark.parametrize("colour, depth", KINDS)
@pytest.mark.parametrize("interlaced", (0, 1))
def test_png_cut_short(codecs, colour, depth, interlaced):
    """Every length: an error, or with accept_truncated what Pillow's LOAD_TRUNCATED_IMAGES gives; a crop that is there
    is good."""
    rng = random.Random(repr((colour, depth, interlaced, 28)))
    data = any_png(rng, 30, 27, colour, depth, interlaced=interlaced, idat=rng.choice((None, 200)))
    due = codecs.whole(data)[1]
    begin = data.index(b"IDAT") + 4
    states = set()
    for end in range(0, len(data), 1 + len(data) // 400):
        cut = data[:end]
        status, got = codecs.probe(cut)
        if end < begin:
            assert status in (CORRUPT, UNSUPPORTED), got
            assert codecs.decode(cut, (0, 0, 27, 30), accept_truncated=True)[0] in (CORRUPT, UNSUPPORTED)
            continue
        assert status == 0 and got == (27, 30, 1)
        status, whole = codecs.whole(cut, accept_truncated=True)
        assert status == 0
        there = (whole == due).all(-1)
        assert (whole[~there] == 0).all()
        what_pillow_says = pillow(cut, truncated=True)
        if not isinstance(what_pillow_says, Exception) and colour != PALETTE and (colour, depth) != (GRAY, 16):
            assert (whole == what_pillow_says).all(), end  # a palette's missing pixels are its first colour there
        for crop in [(0, 0, 27, 30), (3, 2, 9, 5), (0, 20, 27, 4)]:
            x, y, w, h = crop
            part = due[y : y + h, x : x + w]
            status, got = codecs.decode(cut, crop)
            if status == 0:
                assert (got == part).all()
            else:
                assert status == CORRUPT and "cut short" in got and str(end) in got and not there[y : y + h].all()
            states.add((crop, status))
            assert (codecs.decode(cut, crop, 3, True)[1] == whole[y : y + h, x : x + w]).all()
            assert codecs.decode(cut, crop, 1, True)[0] == 0
    assert len(states) == 6
    assert (codecs.whole(data)[1] == due).all()


def test_png_rows_below_the_crop_do_not_count(codecs):
    """Neither zlib's damage, nor a filter that there isn't, nor bytes that are missing; and the other way round."""
    rng = random.Random(29)
    samples = any_samples(rng, 60, 20, TRUECOLOUR, 8)
    rows = scanlines(rng, samples, 8, 0)
    header = SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", 20, 60, 8, TRUECOLOUR, 0, 0, 0))
    bad_filter = rows[: 61 * 40] + b"\5" + rows[61 * 40 + 1 :]
    stored = zlib.compress(rows, 0)
    broken = zlib.compress(rows[: 61 * 40], 0)[:-9] + b"\7\7\7\7\7\7\7\7\7"
    for word, body in (
        ("filter", zlib.compress(bad_filter)), ("cut short", zlib.compress(rows[: 61 * 40])), ("damaged", broken),
        ("cut short", stored[: 61 * 41]),
    ):  # fmt: skip
        data = header + chunk(b"IDAT", body) + chunk(b"IEND")
        status, got = codecs.decode(data, (2, 3, 15, 20))
        assert status == 0 and (got == samples[3:23, 2:17]).all(), got
        status, got = codecs.decode(data, (2, 3, 15, 50))
        assert status == CORRUPT and word in got, got
        status, got = codecs.decode(data, (2, 3, 15, 50), accept_truncated=True)
        assert status == 0 and (got[:30] == samples[3:33, 2:17]).all() and (got[-12:] == 0).all()


def test_png_headers_that_make_no_sense(codecs):
    def header(width=9, height=9, depth=8, colour=2, compression=0, filters=0, interlace=0):
        return struct.pack(">IIBBBBB", width, height, depth, colour, compression, filters, interlace)

    rest = chunk(b"IDAT", zlib.compress(bytes(28 * 9))) + chunk(b"IEND")
    assert codecs.whole(SIGNATURE + chunk(b"IHDR", header()) + rest)[0] == 0
    bad = [header(width=0), header(height=0), header(width=1 << 31), header(depth=3), header(depth=4), header(depth=0),
           header(colour=1), header(colour=5), header(colour=7), header(compression=1), header(filters=1),
           header(interlace=2), header()[:12], header() + b"\0", header(depth=16, colour=3)]  # fmt: skip
    for content in bad:
        data = SIGNATURE + chunk(b"IHDR", content) + rest
        for status, message in codecs.probe(data), codecs.decode(data, (0, 0, 1, 1), accept_truncated=True):
            assert status == CORRUPT and message.startswith("PNG: "), content
    for data, word in (
        (SIGNATURE, "cut short"), (SIGNATURE + rest, "IHDR"),
        (SIGNATURE + chunk(b"IHDR", header()), "cut short"),
        (SIGNATURE + chunk(b"IHDR", header()) + chunk(b"IEND"), ""),
        (SIGNATURE + chunk(b"IHDR", header(colour=3)) + rest, "PLTE"),
        (SIGNATURE + chunk(b"IHDR", header(colour=3)) + chunk(b"PLTE", b"1234") + rest, "PLTE"),
        (SIGNATURE + chunk(b"IHDR", header()) + chunk(b"ABCD", b"") + rest, "ABCD"),
        (SIGNATURE + chunk(b"IHDR", header()) * 2 + rest, "IHDR"),
        (SIGNATURE + chunk(b"IHDR", header()) + chunk(b"a\0cD", b"") + rest, ""),
    ):  # fmt: skip
        status, message = codecs.probe(data)
        assert status == CORRUPT and message.startswith("PNG: ") and word in message, message
        assert codecs.decode(data, (0, 0, 1, 1), accept_truncated=True)[0] == CORRUPT


def test_png_window_smaller_than_said(codecs):
    """Some writers' zlib headers say a window that is smaller than their distances; Pillow doesn't care."""
    rng = random.Random(30)
    tile = numpy.frombuffer(rng.randbytes(30 * 100 * 3), numpy.uint8).reshape(30, 100, 3)
    rows = zlib.compress(b"".join(b"\0" + row.tobytes() for row in numpy.concatenate((tile, tile))), 9)
    lied = b"\x18\x19" + rows[2:]  # 512 bytes (RFC 1950), and the sum that goes with it
    header = SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", 100, 60, 8, TRUECOLOUR, 0, 0, 0))
    data, lied = (header + chunk(b"IDAT", stream) + chunk(b"IEND") for stream in (rows, lied))
    assert (pillow(lied) == pillow(data)).all()
    check(codecs, lied, pillow(data), rng, "window")


def test_png_animated_shows_the_default_image(codecs):
    rng = random.Random(31)
    frames = [Image.fromarray(smooth(rng, 40, 50)) for _ in range(3)]
    for options in {}, {"default_image": True}:
        data = saved(frames[0], "png", save_all=True, append_images=frames[1:], **options)
        assert b"acTL" in data and b"fdAT" in data
        check(codecs, data, numpy.asarray(frames[0]), rng, options)
        assert (pillow(data) == numpy.asarray(frames[0])).all()


def exif_of(orientation, order="<"):
    head = b"II*\0" if order == "<" else b"MM\0*"
    return head + struct.pack(order + "IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def pillow_orientation(data):
    """Which of the eight turns exif_transpose() makes of a picture in which they all differ."""
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # EXIF that is cut short
        coded = numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        upright = numpy.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    turns = (coded, coded[:, ::-1], coded[::-1, ::-1], coded[::-1], coded.transpose(1, 0, 2),
             numpy.rot90(coded, -1), numpy.rot90(coded, 2).transpose(1, 0, 2), numpy.rot90(coded))  # fmt: skip
    same = [i for i, turned in enumerate(turns, 1) if turned.shape == upright.shape and (turned == upright).all()]
    assert len(same) == 1
    return same[0]


def test_png_orientation(codecs):
    rng = random.Random(32)
    for order, orientation in itertools.product("<>", range(11)):
        block = exif_of(orientation, order)
        for content in block, b"Exif\0\0" + block, block[:-9], block[:6], b"":
            one, other = chunk(b"eXIf", content), chunk(b"eXIf", exif_of(3))
            for places in (
                {"before": one}, {"between": one}, {"after": one}, {"before": one, "after": other},
                {"before": other, "after": one}, {"before": other + one},
            ):  # fmt: skip
                data = any_png(rng, 5, 7, TRUECOLOUR, 8, idat=40, **places)
                try:
                    due = pillow_orientation(data)
                except (struct.error, SyntaxError):  # a block that is cut short
                    due = 1
                assert codecs.probe(data) == (0, (7, 5, due)), f"{order}{orientation} {content} {places}"


def test_png_text_and_profiles_are_not_inflated(codecs):
    """Chunks of 260 KB that would be 256 MiB. Peak memory is of the process: it only grows."""
    rng = random.Random(33)
    bomb = zlib.compressobj(9)
    content = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(1 << 8)) + bomb.flush()
    chunks = b"".join(
        chunk(name, start + content)
        for name, start in ((b"iCCP", b"a\0\0"), (b"zTXt", b"a\0\0"), (b"iTXt", b"a\0\1\0\0\0"))
    )
    data = any_png(rng, 9, 9, TRUECOLOUR, 8, before=chunks, after=chunks)
    del content
    codecs.whole(data)
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(5):
        assert codecs.whole(data)[0] == 0
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_maxrss - before.ru_maxrss < 20_000  # KiB
    assert after.ru_utime - before.ru_utime < 1


def test_png_limits(codecs):
    def claims(width, height, colour=TRUECOLOUR_ALPHA, depth=16, interlaced=0):
        header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
        return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for width, height in ((0x7FFFFFFF, 0x7FFFFFFF), (6325, 6325), (PIXELS_MAX + 1, 1), (1, PIXELS_MAX + 1)):
        data = claims(width, height)
        for status, message in codecs.probe(data), codecs.decode(data, (0, 0, 1, 1), accept_truncated=True):
            assert status == LIMIT and f"{width} x {height}" in message and str(PIXELS_MAX) in message
    data = claims(1_000_001, 1)
    assert codecs.probe(data)[0] == LIMIT and "1000000" in codecs.probe(data)[1]
    for interlaced in 0, 1:
        for width, height in ((1_000_000, 40), (1, PIXELS_MAX)):
            assert codecs.probe(claims(width, height, interlaced=interlaced)) == (0, (width, height, 1))
            status, message = codecs.decode(claims(width, height, interlaced=interlaced), (0, 39, 1, 1))
            assert status == CORRUPT and "cut short" in message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000  # KiB: rows of 8 bytes a pixel


# WebP


def riff(*chunks):
    body = b"WEBP" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def part(name, data=b""):
    return name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def u24(*values):
    return b"".join(struct.pack("<I", value)[:3] for value in values)


def parts_of(data):
    """(name, content) of a WebP file's chunks."""
    out, at = [], 12
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 4)[0]
        out.append((data[at : at + 4], data[at + 8 : at + 8 + size]))
        at += 8 + size + size % 2
    return out


def image_parts(data):
    return b"".join(part(*p) for p in parts_of(data) if p[0] in (b"VP8 ", b"VP8L", b"ALPH"))


ALPHA, EXIF, ANIMATION = 0x10, 0x08, 0x02


def extended(flags, width, height, *chunks):
    return riff(part(b"VP8X", struct.pack("<I", flags) + u24(width - 1, height - 1)), *chunks)


def animation(width, height, *frames, flags=0, background=b"\x11\x22\x33\xff", after=b""):
    """frames: (x, y, width, height, encoded image)"""
    out = [part(b"ANIM", background + b"\0\0")]
    for x, y, w, h, data in frames:
        out.append(part(b"ANMF", u24(x // 2, y // 2, w - 1, h - 1, 100) + b"\0" + image_parts(data)))
    return extended(ANIMATION | ALPHA | flags, width, height, *out, after)


def with_alpha(rng, rgb):
    alpha = smooth(rng, rgb.shape[0], rgb.shape[1], 1)
    alpha[: rgb.shape[0] // 2, : rgb.shape[1] // 2] = 0  # colours under it stay, or are the encoder's affair
    return numpy.concatenate((rgb, alpha), 2)


WEBP_SIZES = [(1, 1), (1, 2), (2, 1), (3, 3), (1, 40), (40, 1), (16, 16), (17, 15), (31, 64), (100, 75), (75, 100)]


@pytest.mark.parametrize("quality", (0, 1, 10, 30, 50, 75, 80, 90, 95, 100))
@pytest.mark.parametrize("method", (0, 4, 6))
def test_webp_lossy(codecs, quality, method):
    """Crops need chroma from around them, and filters more rows than they have."""
    rng = random.Random(repr((quality, method)))
    for height, width in WEBP_SIZES + [(rng.randint(1, 200), rng.randint(1, 200)) for _ in range(3)]:
        data = saved(smooth(rng, height, width), "webp", quality=quality, method=method)
        assert parts_of(data)[0][0] == b"VP8 "
        check(codecs, data, pillow(data), rng, f"{width} x {height}", 8)


def test_webp_noise(codecs):
    rng = random.Random(40)
    for quality in 0, 5, 40, 100:
        noise = numpy.frombuffer(rng.randbytes(120 * 130 * 3), numpy.uint8).reshape(120, 130, 3)
        for picture in noise, numpy.where(noise < 128, 0, 255).astype(numpy.uint8):
            data = saved(picture, "webp", quality=quality)
            check(codecs, data, pillow(data), rng, quality, 60)


def test_webp_lossless(codecs):
    rng = random.Random(41)
    for height, width in WEBP_SIZES:
        rgb = smooth(rng, height, width)
        few = rgb // 64 * 64  # colours that are indexed
        for picture, exact in itertools.product((rgb, few, with_alpha(rng, rgb), with_alpha(rng, few)), (False, True)):
            data = saved(picture, "webp", lossless=True, exact=exact)
            assert b"VP8L" in [name for name, _ in parts_of(data)]
            due = pillow(data)
            if exact or picture.shape[2] == 3:
                assert (due == picture[:, :, :3]).all()
            check(codecs, data, due, rng, f"{picture.shape}")


def test_webp_alpha_is_dropped(codecs):
    rng = random.Random(42)
    for height, width in WEBP_SIZES:
        for quality, alpha_quality in ((80, 100), (30, 20), (100, 0)):
            picture = with_alpha(rng, smooth(rng, height, width))
            data = saved(picture, "webp", quality=quality, alpha_quality=alpha_quality)
            check(codecs, data, pillow(data), rng, f"{width} x {height}")
    names = [name for name, _ in parts_of(data)]
    assert names == [b"VP8X", b"ALPH", b"VP8 "]
    at = data.index(b"ALPH")
    broken = data[: at + 8] + b"\xff" * 9 + data[at + 17 :]  # isn't read at all
    assert isinstance(pillow(broken), Exception)
    check(codecs, broken, pillow(data), rng, "broken alpha")


def test_webp_animated_shows_the_first_frame(codecs):
    """On a black canvas, without the background's colour, whatever it covers; Pillow composes the oracle."""
    rng = random.Random(43)
    images = [smooth(rng, 40, 50) for _ in range(3)]
    pictures = [Image.fromarray(image) for image in images]
    for options in {"quality": 60}, {"lossless": True}, {"quality": 60, "background": (9, 8, 7, 255)}:
        data = saved(pictures[0], "webp", save_all=True, append_images=pictures[1:], duration=50, **options)
        assert [name for name, _ in parts_of(data)].count(b"ANMF") == 3
        check(codecs, data, pillow(data), rng, options)
    uncovered = 0
    for number in range(60):
        width, height = rng.randint(2, 90), rng.randint(2, 90)
        w, h = rng.randint(1, width), rng.randint(1, height)
        x, y = rng.randint(0, width - w) // 2 * 2, rng.randint(0, height - h) // 2 * 2
        rgb = smooth(rng, h, w)
        first = saved(with_alpha(rng, rgb) if number % 3 else rgb, "webp", quality=70, lossless=number % 2 == 0)
        rest = (0, 0, width, height, saved(smooth(rng, height, width), "webp"))
        data = animation(width, height, (x, y, w, h, first), rest)
        due = pillow(data)
        assert not isinstance(due, Exception), due
        check(codecs, data, due, rng, f"{w} x {h} at {x}, {y} of {width} x {height}", 12)
        uncovered += w < width and h < height
        cut = data[: data.index(b"ANMF", data.index(b"ANMF") + 4)]  # the second frame and all behind it
        assert isinstance(pillow(cut), Exception)
        check(codecs, cut, due, rng, "cut behind the first frame")
        cut = data[: data.index(b"ANMF") + 40]
        status, message = codecs.probe(cut)
        assert status == CORRUPT and "cut short" in message
    assert uncovered > 40
    assert codecs.probe(animation(50, 40, (2, 0, 50, 40, saved(images[0], "webp"))))[0] == CORRUPT  # beside the canvas


def test_webp_orientation(codecs):
    rng = random.Random(44)
    picture = smooth(rng, 21, 34)
    for order, orientation in itertools.product("<>", range(11)):
        block = exif_of(orientation, order)
        for content, options in itertools.product(
            (block, b"Exif\0\0" + block, block[:-9], block[:6]), ({}, {"lossless": True})
        ):
            image = image_parts(saved(picture, "webp", **options))
            one, other = part(b"EXIF", content), part(b"EXIF", exif_of(3))
            files = [extended(EXIF, 34, 21, image, one), extended(EXIF, 34, 21, one, image),
                     extended(EXIF, 34, 21, image, one, other), extended(0, 34, 21, image, one),
                     extended(EXIF, 34, 21, image, part(b"XMP ", b"x"), part(b"ABCD", b"123"), one),
                     animation(34, 21, (0, 0, 34, 21, saved(picture, "webp")), flags=EXIF, after=one)]  # fmt: skip
            for number, data in enumerate(files):
                try:
                    due = pillow_orientation(data)
                except (struct.error, SyntaxError):  # a block that is cut short
                    due = 1
                assert codecs.probe(data) == (0, (34, 21, due)), f"{order}{orientation} {content} {number}"
    data = saved(picture, "webp", exif=b"Exif\0\0" + exif_of(6))
    assert codecs.probe(data) == (0, (34, 21, 6))


WEBP_CUT = {
    "lossy": {"quality": 80}, "noise": {"quality": 100}, "lossless": {"lossless": True}, "alpha": {"quality": 70}
}  # fmt: skip


@pytest.mark.parametrize("kind", WEBP_CUT)
def test_webp_cut_short(codecs, kind):
    """Every length: an error, or with accept_truncated the rows that are there, and black. Pillow has no such thing."""
    rng = random.Random(kind)
    picture = smooth(rng, 90, 47)
    if kind == "noise":
        picture = numpy.frombuffer(rng.randbytes(picture.size), numpy.uint8).reshape(picture.shape)
    if kind == "alpha":
        picture = with_alpha(rng, picture)
    data = saved(picture, "webp", **WEBP_CUT[kind])
    due = pillow(data)
    states, most = set(), 0
    begun = data.index(b"VP8L") if kind == "lossless" else data.index(b"VP8 ")
    for end in range(0, len(data), 1 + len(data) // 700):
        cut = data[:end]
        status, size = codecs.probe(cut)
        if status != 0:
            assert end < begun + 20
            assert status == CORRUPT and "cut short" in size or status == UNSUPPORTED and end < 12, size
            assert codecs.decode(cut, (0, 0, 1, 1), accept_truncated=True)[0] == status
            continue
        assert size == (47, 90, 1)
        status, whole = codecs.whole(cut, accept_truncated=True)
        assert status == 0
        there = (whole == due).all((1, 2))
        rows = there.argmin() if not there.all() else 90
        assert (whole[rows:] == 0).all() and rows >= most, end  # whole rows, in order, and never fewer of more bytes
        most = rows
        for crop in [(0, 0, 47, 90), (3, 2, 21, 15), (0, 50, 47, 7)]:
            x, y, w, h = crop
            region = due[y : y + h, x : x + w]
            status, got = codecs.decode(cut, crop)
            if status == 0:
                assert (got == region).all()
            else:
                assert status == CORRUPT and "cut short" in got and str(end) in got, got
                assert rows < y + h + 32
            states.add((crop, status))
            got = codecs.decode(cut, crop, 3, True)[1]
            gone = (got != region).any((1, 2))
            assert (got[gone] == 0).all() and (got[: max(0, rows - y)] == region[: max(0, rows - y)]).all()
            assert (codecs.decode(cut, crop, 1, True)[1] == luma(got)).all()
    assert len(states) >= 5  # a whole image may need the last byte
    assert most > 50


def test_webp_damage(codecs):
    """Any byte is changed: where Pillow decodes, we give the same; and it never harms the next image."""
    rng = random.Random(45)
    good = saved(smooth(rng, 60, 61), "webp")
    due = pillow(good)
    decoded = refused = 0
    for number in range(12):
        picture = smooth(rng, rng.randint(1, 70), rng.randint(1, 70))
        height, width = picture.shape[:2]
        if number % 3 == 1:
            picture = with_alpha(rng, picture)
        data = saved(picture, "webp", lossless=number % 2 == 0, quality=rng.randint(0, 100), exif=exif_of(6))
        for _ in range(150):
            at = rng.randrange(len(data))
            bad = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            what_pillow_says = pillow(bad)
            status, size = codecs.probe(bad)
            assert status in (0, CORRUPT, UNSUPPORTED, LIMIT)
            if status == 0 and size[0] * size[1] < 100_000:
                status, got = codecs.decode(bad, (0, 0, *size[:2]))
                assert status in (0, CORRUPT)
                assert codecs.decode(bad, (0, 0, *size[:2]), accept_truncated=True)[0] == 0
            if not isinstance(what_pillow_says, Exception) and what_pillow_says.size < 300_000:
                assert status == 0 and (got == what_pillow_says).all(), f"{status} {at}"
                decoded += 1
            refused += status != 0
        assert (codecs.whole(good)[1] == due).all()
    assert decoded > 300 and refused > 100


def test_webp_limits(codecs):
    rng = random.Random(46)
    image = image_parts(saved(smooth(rng, 2, 2), "webp"))
    for width, height in ((1 << 14, 1 << 14), (1 << 24, 255), (6325, 6325)):
        anmf = part(b"ANMF", u24(0, 0, 1, 1, 100) + b"\0" + image)
        data = extended(ANIMATION, width, height, part(b"ANIM", bytes(6)), anmf)
        for status, message in codecs.probe(data), codecs.decode(data, (0, 0, 1, 1), accept_truncated=True):
            assert status == LIMIT and f"{width} x {height}" in message and str(PIXELS_MAX) in message
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lossless = struct.pack("<BI", 0x2F, (16383) | (16383 << 14))
    lossy = b"\x30\1\0\x9d\1\x2a" + struct.pack("<HH", 16383, 16383) + bytes(20)
    for data in riff(part(b"VP8L", lossless + bytes(20))), riff(part(b"VP8 ", lossy)):
        assert codecs.probe(data)[0] == LIMIT
    data = riff(part(b"VP8 ", b"\x30\1\0\x9d\1\x2a" + struct.pack("<HH", 16383, 2000) + bytes(20)))
    assert codecs.probe(data) == (0, (16383, 2000, 1))
    status, message = codecs.decode(data, (0, 0, 16, 16))
    assert status == CORRUPT
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000  # KiB


def test_specifications_that_make_no_sense(codecs):
    rng = random.Random(47)
    picture = smooth(rng, 10, 12)
    for data in saved(picture, "png"), saved(picture, "webp"):
        for crop in (0, 0, 13, 1), (0, 0, 1, 11), (12, 0, 1, 1), (0, 10, 1, 1), (1, 0, 0xFFFFFFFF, 1), (0, 0, 0, 5):
            out = numpy.full(64, 7, numpy.uint8)
            for channels in 1, 3:
                status = codecs.library.codecs_decode(
                    data, len(data), (u32 * 4)(*crop), channels, True, out.ctypes.data, 0, codecs.message
                )
                assert status == ARGUMENT and (out == 7).all() and b"12 x 10" in codecs.message.value
        for channels in 0, 2, 4:
            assert codecs.decode(data, (0, 0, 1, 1), channels)[0] == ARGUMENT


# Files of others


def test_hard_files(codecs):
    """PNG and WebP files of hard-jpegs, whatever their names: as Pillow says."""
    rng = random.Random(48)
    folder = data_folder("hard-jpegs")
    seen = {}
    for path in sorted(p for p in folder.glob("*/*") if p.is_file()):
        data = path.read_bytes()
        if not data.startswith(SIGNATURE) and data[8:12] != b"WEBP":
            continue
        due = pillow(data)
        status, size = codecs.probe(data)
        assert status == 0, f"{path.name}: {size}"
        if isinstance(due, Exception):
            status, message = codecs.whole(data)
            assert status == CORRUPT, path.name
            status, got = codecs.whole(data, accept_truncated=True)
            due = pillow(data, truncated=True)
            assert status == 0 and (got == due).all(), path.name
            seen[path.name] = message
        else:
            check(codecs, data, due, rng, path.name, 10)
            seen[path.name] = "as Pillow"
    for name, what in seen.items():
        print(f"{name}: {what}")
    assert len(seen) >= 9
    assert {name for name, what in seen.items() if what != "as Pillow"} == {
        "broken_data_stream.png", "truncated_image.png"
    }  # fmt: skip


def test_photos(codecs):
    """Real photos, encoded here: all of them, and crops."""
    rng = random.Random(49)
    for path in sorted(data_folder("imagenet-sample").glob("*/*.JPEG"))[::16]:
        photo = Image.open(path).convert("RGB")
        for data in saved(photo, "png"), saved(photo, "webp", quality=rng.randint(20, 100)):
            check(codecs, data, pillow(data), rng, path.name)
        data = saved(photo.convert("P", palette=Image.Palette.ADAPTIVE), "webp", lossless=True)
        check(codecs, data, pillow(data), rng, path.name, 1)
