"""test_hard_jpegs.py - JPEG as Pillow decodes it: real photos, and every file of hard-jpegs, which is a hundred ways to
be odd or damaged; all codecs there are, for some of those files are no JPEG.

    FEEDD_BUILD_DIR=build/release pytest tests/python/test_hard_jpegs.py -s     (prints the table)

FEEDD_TEST_DATA is the folder of real data (default: ../shared/data beside the repository); tests skip without it.
Pillow brings a libjpeg-turbo of its own, of a later version (3.x) than most systems have: the two agree byte for byte.

Where we follow Pillow and where we don't:

    what the file has                                   Pillow          feedd
    bytes before a marker that belong to nothing        delivers        delivers, in image data up to 32 at a time
    data that end early                                 refuses         refuses; accept_truncated: what is there
    a missing end of image, all rows there              refuses         refuses crops with the last row
    bad codes, lost data, restarts out of step          delivers        refuses; accept_truncated: what is there
    damage below the crop                               (has no crops)  delivers; refuses in files of several scans
    CMYK and YCCK                                       inverts them    inverts them
    samples of 12 bits, hierarchical, no data           refuses         refuses
    lossless                                            delivers 8 bit  as far as the system's library does

Damage that Pillow delivers is mostly in the picture, and a training set has enough other pictures.
"""

import ctypes
import io
import os
import random
import warnings
from pathlib import Path

import numpy
import pytest
from PIL import Image, ImageFile

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FEEDD_BUILD_DIR", ROOT / "build" / "dev")).resolve()
LIBRARY = BUILD / "tests" / "python" / "feedd_codecs_test.so"
DATA = Path(os.environ.get("FEEDD_TEST_DATA", ROOT / ".." / "shared" / "data"))

CORRUPT, UNSUPPORTED, LIMIT = -7, -8, -4  # enum feedd_status
PIXELS_MAX = 40_000_000
ORIENTATION = 0x0112

DAMAGED = "the data are damaged, and Pillow delivers what comes out"
NO_CODEC = "a format without a decoder of ours"

# Files of which Pillow and feedd don't say the same, and why. Everything else has to be equal, or refused by both.
DIFFERENCES = {
    "coding/partial_progressive.jpg": f"{DAMAGED}: its scans end early",
    "damaged/cve_2013_6629_182.jpg": f"{DAMAGED}: scans of a sequential file that overlap and end early",
    "damaged/imagetestsuite_1cbb1bb3.jpg": f"{DAMAGED}: one scan ends early, which is hard to see",
    "damaged/mozilla_1050342_000.jpg": f"{DAMAGED}: bad Huffman codes, coloured stripes",
    "damaged/subtract-with-overflow.jpg": f"{DAMAGED}: bytes of a scan are left over, noise",
    "metadata/hopper_bad_exif.jpg": f"{DAMAGED}: most bytes of each restart interval are left over, noise",
    "misnamed/renamed_avif.jpg": NO_CODEC,
    "misnamed/renamed_bmp.jpg": NO_CODEC,
    "misnamed/renamed_tif.jpg": NO_CODEC,
    "size/small-img-8x8192.jpg": f"{DAMAGED}: 452 bytes for 65,536 pixels",
}

# The same, where it depends on the system's libjpeg-turbo: 3.0 and later decode these.
MAY_DIFFER = {
    "coding/lossless_8bit_psv2_pt7.jpg": "lossless: Pillow's library can, libjpeg-turbo 2.1 can't",
}

# What later versions say instead of REFUSED.
LATER = {
    "coding/lossless_12bit_gray_photo.jpg": (UNSUPPORTED, "a JPEG of 12 bits a sample"),
    "coding/lossless_sel1.jpg": (UNSUPPORTED, "a JPEG of 16 bits a sample"),
    "damaged/github_670_poc3min.jpg": (LIMIT, "152176896 pixels"),
    "damaged/invalid-prediction-shift.jpg": (CORRUPT, "Invalid progressive/lossless parameters"),
}

# What feedd says of the files that it refuses.
REFUSED = {
    "coding/8x8_420_tables.jpg": (CORRUPT, "contains no image"),
    "coding/lossless_12bit_gray_photo.jpg": (UNSUPPORTED, "a lossless JPEG"),
    "coding/lossless_8bit_psv2_pt7.jpg": (UNSUPPORTED, "a lossless JPEG"),
    "coding/lossless_sel1.jpg": (UNSUPPORTED, "a lossless JPEG"),
    "coding/monkey12.jpg": (UNSUPPORTED, "a JPEG of 12 bits a sample"),
    "coding/partial_progressive.jpg": (CORRUPT, "premature end of data segment"),
    "coding/random12_420_rgb.jpg": (UNSUPPORTED, "a JPEG of 12 bits a sample"),
    "damaged/corrupt.jpg": (CORRUPT, "bad Huffman code"),
    "damaged/corrupt34_2.jpg": (CORRUPT, "cut short: its 755 bytes"),
    "damaged/corrupt34_4.jpg": (CORRUPT, "cut short: its 5092 bytes"),
    "damaged/cve_2013_6629_182.jpg": (CORRUPT, "premature end of data segment"),
    "damaged/derive-huffman-codes-overflow.jpg": (CORRUPT, "Bogus Huffman table"),
    "damaged/empty.jpg": (UNSUPPORTED, "an empty file"),
    "damaged/github_670_poc3min.jpg": (UNSUPPORTED, "a lossless JPEG"),
    "damaged/imagetestsuite_1cbb1bb3.jpg": (CORRUPT, "premature end of data segment"),
    "damaged/imagetestsuite_b4103df9.jpg": (CORRUPT, "premature end of data segment"),
    "damaged/invalid-prediction-shift.jpg": (UNSUPPORTED, "a lossless JPEG"),
    "damaged/missing-frame-image-1410.jpg": (CORRUPT, "contains no image"),
    "damaged/missing-sos.jpg": (CORRUPT, "missing SOS"),
    "damaged/mozilla_1050342_000.jpg": (CORRUPT, "bad Huffman code"),
    "damaged/oss-fuzz-36829.jpeg": (CORRUPT, "premature end of data segment"),
    "damaged/peacock.default.truncated.jpeg": (CORRUPT, "cut short: its 1024 bytes"),
    "damaged/subtract-with-overflow.jpg": (CORRUPT, "956 extraneous bytes"),
    "damaged/truncated_10000.jpg": (CORRUPT, "cut short: its 10000 bytes"),
    "metadata/hopper_bad_exif.jpg": (CORRUPT, "1214 extraneous bytes"),
    "misnamed/jpeg_named.gif": (CORRUPT, "precision 128"),
    "misnamed/renamed_avif.jpg": (UNSUPPORTED, "AVIF"),
    "misnamed/renamed_bmp.jpg": (UNSUPPORTED, "BMP"),
    "misnamed/renamed_tif.jpg": (UNSUPPORTED, "TIFF"),
    "other/broken_data_stream.png": (CORRUPT, "PNG"),
    "other/decompression_bomb.gif": (UNSUPPORTED, "GIF"),
    "other/hippopotamus.interlaced.truncated.gif": (UNSUPPORTED, "GIF"),
    "other/truncated_image.png": (CORRUPT, "cut short"),
    "size/invalid-dimensions.jpg": (CORRUPT, "Empty JPEG image"),
    "size/null_height.jpg": (CORRUPT, "Empty JPEG image"),
    "size/small-img-8x8192.jpg": (CORRUPT, "bad Huffman code"),
}

# With accept_truncated as with Pillow's LOAD_TRUNCATED_IMAGES, but for errors: behind one there is nothing to show, and
# Pillow delivers black or what it has.
STILL_REFUSED = {
    "damaged/derive-huffman-codes-overflow.jpg": "a table makes no sense",
    "damaged/oss-fuzz-36829.jpeg": "a scan of a component that isn't there",
}

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
        return status, result if status == 0 else self.message.value.decode()

    def probe(self, data):
        """width, height, orientation"""
        out = (u32 * 3)()
        return self.answer(self.library.codecs_probe(data, len(data), out, self.message), tuple(out))

    def decode(self, data, channels=3, truncated=False, crop=None):
        """crop: x, y, width, height; all when there is none."""
        status, probed = self.probe(data)
        if status != 0:
            return status, probed
        crop = crop or (0, 0, probed[0], probed[1])
        out = numpy.empty((crop[3], crop[2], channels), numpy.uint8)
        status = self.library.codecs_decode(
            data, len(data), (u32 * 4)(*crop), channels, truncated, out.ctypes.data, crop[2] * channels, self.message
        )
        return self.answer(status, out)


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


@pytest.fixture(scope="module")
def hard_files():
    """name -> bytes"""
    folder = data_folder("hard-jpegs")
    files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("*/*")) if p.is_file()}
    assert len(files) >= 100
    return files


def pillow(data, channels=3, truncated=False):
    """height x width x channels, or the exception. Luma of JPEG as coded, by Pillow's draft mode."""
    mode = "RGB" if channels == 3 else "L"
    ImageFile.LOAD_TRUNCATED_IMAGES = truncated
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data))
            if channels == 1:
                image.draft("L", None)
            return numpy.asarray(image.convert(mode)).reshape(image.height, image.width, channels)
    except Exception as error:
        return error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def same(got, due):
    return got.shape == due.shape and (got == due).all()


def test_as_pillow(codecs, hard_files):
    refused, different = {}, set()
    for name, data in hard_files.items():
        due = pillow(data)
        status, got = codecs.decode(data)
        if status != 0:
            refused[name] = status, got
        if isinstance(due, Exception) != (status != 0) or (status == 0 and not same(got, due)):
            different.add(name)
        theirs = str(due).partition(" <")[0] if isinstance(due, Exception) else "delivers"
        reason = {**DIFFERENCES, **MAY_DIFFER}.get(name, "") if name in different else ""
        print(f"{name:45} Pillow: {theirs:50.50} feedd: {'the same' if status == 0 else got:75.75} {reason}")
    assert different - set(MAY_DIFFER) == set(DIFFERENCES)
    for name, (status, message) in refused.items():
        answers = [REFUSED[name], LATER.get(name, REFUSED[name])]
        assert any(status == due and words in message for due, words in answers), f"{name}: {status} {message}"
    assert set(REFUSED) - set(refused) <= set(MAY_DIFFER)


def test_accepted_as_pillow(codecs, hard_files):
    """Damaged files when damage is accepted: the same pixels, also the gray ones."""
    accepted = 0
    for name, data in hard_files.items():
        if REFUSED.get(name, (0, ""))[0] != CORRUPT:
            continue
        due = pillow(data, truncated=True)
        status, got = codecs.decode(data, truncated=True)
        if name in STILL_REFUSED:
            assert status == CORRUPT and not isinstance(due, Exception), name
        elif isinstance(due, Exception):
            assert status == CORRUPT, name
        else:
            assert status == 0 and same(got, due), f"{name}: {got if status else ''}"
            accepted += 1
    assert accepted >= 14


def test_luma_as_pillow(codecs, hard_files):
    for name, data in hard_files.items():
        if name not in REFUSED:
            status, got = codecs.decode(data, channels=1)
            assert status == 0 and same(got, pillow(data, channels=1)), name


def orientation_by_pillow(data):
    """What ImageOps.exif_transpose() goes by, EXIF alone: it also looks into XMP, which says nothing here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = Image.open(io.BytesIO(data)).getexif().get(ORIENTATION, 1)
    except Exception:
        return 1  # of a block that is no TIFF
    return value if value in range(1, 9) else 1


def test_orientation_as_pillow(codecs, hard_files):
    seen = []
    for name, data in hard_files.items():
        status, probed = codecs.probe(data)
        if status == 0:
            assert probed[2] == orientation_by_pillow(data), name
            seen.append(probed[2])
    assert {1, 3, 4, 6, 7, 8} <= set(seen)


def test_orientations_made_by_pillow(codecs, hard_files):
    picture = Image.new("RGB", (5, 4))
    good = io.BytesIO()
    picture.save(good, "JPEG")
    for value in range(0, 12):
        exif = Image.Exif()
        exif[0x010F] = "a maker"
        exif[ORIENTATION] = value
        for endian in "<", ">":
            exif.endian = endian
            block = exif.tobytes()
            for prefix in b"", b"Exif\0\0":
                file = io.BytesIO()
                picture.save(file, "JPEG", exif=prefix + block)
                data = file.getvalue()
                status, probed = codecs.probe(data)
                assert status == 0 and probed[2] == orientation_by_pillow(data), (value, endian, prefix)
                assert probed[2] == (value if 1 <= value <= 8 else 1)


def test_cmyk_as_pillow(codecs):
    """Noise reaches most pairs of a colour and K."""
    rng = random.Random(1)
    pairs = set()
    for subsampling in 0, 2:
        pixels = numpy.frombuffer(rng.randbytes(200 * 150 * 4), numpy.uint8).reshape(150, 200, 4)
        file = io.BytesIO()
        Image.fromarray(pixels, "CMYK").save(file, "JPEG", quality=100, subsampling=subsampling)
        data = file.getvalue()
        coded = numpy.asarray(Image.open(io.BytesIO(data)))
        pairs |= set(map(tuple, coded[:, :, (0, 3)].reshape(-1, 2)))
        for channels in 1, 3:
            status, got = codecs.decode(data, channels)
            assert status == 0 and same(got, pillow(data, channels))
    assert len(pairs) > 30_000


def test_photos_as_pillow(codecs):
    rng = random.Random(2)
    paths = sorted(data_folder("imagenet-sample").glob("*/*.JPEG"))
    for path in paths:
        data = path.read_bytes()
        for channels in 1, 3:
            due = pillow(data, channels)
            status, got = codecs.decode(data, channels)
            assert status == 0 and same(got, due), path.name
            height, width = due.shape[:2]
            w, h = rng.randint(1, width), rng.randint(1, height)
            x, y = rng.randint(0, width - w), rng.randint(0, height - h)
            status, got = codecs.decode(data, channels, crop=(x, y, w, h))
            assert status == 0 and same(got, due[y : y + h, x : x + w]), path.name
    assert len(paths) >= 200


def test_photos_cut_short_as_pillow(codecs):
    """By default refused wherever they are cut, as by Pillow, which may miss one or two bytes; accepted, what Pillow
    makes of them. Progressive ones have to be near: unfinished blocks are smoothed, in libjpeg-turbo 3.0.1 and later a
    little otherwise. Where one ends within a table Pillow shows black, and we what was there before."""
    rng = random.Random(3)
    for path in sorted(data_folder("imagenet-sample").glob("*/*.JPEG"))[::10]:
        sequential = path.read_bytes()
        file = io.BytesIO()
        Image.open(path).save(file, "JPEG", progressive=True)
        for data in sequential, file.getvalue():
            for lost in 1, 2, rng.randrange(3, len(data) // 2), rng.randrange(3, len(data) - 1):
                cut = data[:-lost]
                status, message = codecs.decode(cut)
                assert status == CORRUPT and "cut short" in message, f"{path.name} {lost}: {message}"
                assert lost < 3 or isinstance(pillow(cut), Exception), f"{path.name} {lost}"
                status, got = codecs.decode(cut, truncated=True)
                due = pillow(cut, truncated=True)
                if isinstance(due, Exception):
                    assert status == CORRUPT, f"{path.name} {lost}: {due}"
                else:
                    assert status == 0, f"{path.name} {lost}: {got}"
                    off = numpy.abs(got.astype(int) - due).mean()
                    in_table = data is not sequential and not due.any() and got.any()
                    assert off == 0 or in_table or (data is not sequential and off < 1), f"{path.name} {lost}: {off}"
