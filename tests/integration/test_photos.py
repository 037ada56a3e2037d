"""Datasets of photos: the pixels are Pillow's, labels and order torchvision's, and each file is read once an epoch."""

import os
import re
import shutil
import subprocess
from collections import Counter

import numpy as np
import photos
import pytest
from conftest import DATA
from crowd import Crowd, finish_all
from photos import digests, image_folder, make_photos, validation
from rawclient import Client, Stream
from test_pixels import random_crop, random_resized_crop

FIT = {"resize": 48, "center_crop": 40}
E_ARGUMENT = -1
BROADCAST = 2


@pytest.fixture(scope="module")
def imagenet():
    if not (DATA / "imagenet-sample").is_dir():
        pytest.skip(f"{DATA / 'imagenet-sample'} is missing (FEEDD_TEST_DATA)")
    return DATA / "imagenet-sample"


@pytest.fixture(scope="session")
def album(made):
    return make_photos(made / "album", 60)


@pytest.fixture(scope="session")
def one_size(made):
    """60 photos that need no transform."""
    return make_photos(made / "one-size", 60, size=(41, 30))


@pytest.fixture
def serve(daemons, folder):
    """A daemon with one dataset and a stream `s` of it."""

    def start(dataset, workers=2, more=None, **stream):
        return daemons(
            {
                "daemon": {"cache_dir": str(folder / "cache")},
                "datasets": {"d": dataset, **(more or {})},
                "streams": {"s": {"dataset": "d", "batch_size": 8, "tail": "partial", **stream}},
            },
            workers=workers,
        )

    return start


def of_folder(root, **more):
    return {"reader": "folder", "root": str(root), **more}


def check(batches, samples, make, label_type=np.int64):
    """The batches hold these samples, in whatever order: make(path, batch, number in it) gives the pixels."""
    seen = []
    for batch in batches:
        indices = batch["indices"]
        assert batch["flags"] == [0] * batch["count"]
        images = [make(samples[index][0], batch, i) for i, index in enumerate(indices)]
        assert batch["digests"] == digests(images, [samples[i][1] for i in indices], indices, label_type), batch["seq"]
        seen += indices
    assert sorted(seen) == list(range(len(samples)))
    return seen


def class_names(feedd, source):
    with Client(feedd.socket) as client:
        stream = Stream(client, source)
        (fd,) = stream.other_fds
        names = os.pread(fd, stream.answer.one(9), 0).split(b"\0")
        assert names.pop() == b"" and len(names) == stream.answer.one(8)
        stream.close_fds()
    return [name.decode() for name in names]


# ---- pixels, labels, order ----


def test_imagenet(serve, imagenet):
    """What torchvision's validation pipeline makes of 200 real photos, 12 of them gray."""
    classes, samples = image_folder(imagenet)
    assert len(samples) == 200
    feedd = serve(of_folder(imagenet), transform={"resize": 256, "center_crop": 224})
    batches, _ = feedd.cat("s")
    assert check(batches, samples, lambda path, *_: validation(path, 256, 224)) == list(range(200))
    assert class_names(feedd, "s") == classes


@pytest.mark.tsan
def test_made_photos(serve, album):
    classes, samples = image_folder(album)
    feedd = serve(of_folder(album), transform=FIT)
    batches, _ = feedd.cat("s")
    assert check(batches, samples, lambda path, *_: validation(path, 48, 40)) == list(range(60))
    assert class_names(feedd, "s") == classes == [f"class-{i}" for i in range(4)]


def test_shuffled_and_mirrored(serve, album):
    """Which are mirrored depends on seed, epoch and position, and on nothing else."""
    _, samples = image_folder(album)
    feedd = serve(of_folder(album), transform={**FIT, "flip": 0.5}, order="shuffle", seed=5)
    batches, _ = feedd.cat("s", "--epochs", 2)
    flips = []

    def make(path, batch, i):
        flips.append(photos.is_flipped(0.5, 5, batch["epoch"], batch["position"] + i))
        return validation(path, 48, 40, flips[-1])

    orders = [check([b for b in batches if b["epoch"] == epoch], samples, make) for epoch in (0, 1)]
    assert orders[0] != orders[1] and 30 < sum(flips) < 90
    pixels = {b["position"]: b["digests"]["image"] for b in batches if b["epoch"] == 1}
    again, _ = feedd.cat("s", "--epochs", 2, "--batch-size", 60)
    merged = [b for b in again if b["epoch"] == 1]
    assert check(merged, samples, make) == orders[1] and len(pixels) == 8


def test_one_size_as_it_is(serve, one_size):
    """Without a transform the pixels are the decoder's: the whole image, color and gray."""
    _, samples = image_folder(one_size)
    batches, _ = serve(of_folder(one_size)).cat("s")
    check(batches, samples, lambda path, *_: photos.decoded(path))


def test_list(serve, album, folder):
    """Paths and labels from a list, in its order: twice the same file, blanks, absolute paths."""
    _, samples = image_folder(album)
    chosen = [(path, label) for path, label in reversed(samples[::2])] + [(samples[4][0], 99)]
    lines = ["# a comment", ""]
    for i, (path, label) in enumerate(chosen):
        lines.append(f"{path if i % 5 == 0 else path.relative_to(album)}\t{label}")
    (folder / "list.tsv").write_text("\r\n".join(lines))
    feedd = serve({"reader": "list", "list": str(folder / "list.tsv"), "root": str(album)}, transform=FIT)
    batches, _ = feedd.cat("s")
    assert check(batches, chosen, lambda path, *_: validation(path, 48, 40)) == list(range(31))


def test_list_of_targets(serve, album, folder):
    """One label with a point: all of them are floats."""
    chosen = [(path, i / 4) for i, (path, _) in enumerate(image_folder(album)[1])]
    (folder / "list.tsv").write_text("".join(f"{path}\t{target:g}\n" for path, target in chosen))
    batches, _ = serve({"reader": "list", "list": str(folder / "list.tsv"), "root": str(album)}, transform=FIT).cat("s")
    check(batches, chosen, lambda path, *_: validation(path, 48, 40), np.float32)


def test_order_of_odd_names(serve, made):
    """Folders in folders, links, either case, other files: as ImageFolder sees them."""
    root = made / "odd"
    source = sorted(make_photos(made / "odd-source", 20, classes=1).glob("*/*.jpg"))
    names = (
        "b/2.jpg", "b/10.jpg", "b/1.JPG", "b/a/z.jpeg", "b/a-b/y.jpg", "b/a/b/x.JpEg", "B/upper.jpg", "a b/blank .jpg",
        "\u00e9/\u00fc.jpg", "10/x.jpg", "9/x.jpg", "b/z.jpg.txt", "b/.hidden.jpg", "b/README.md", "top.jpg",
    )  # fmt: skip
    for name, photo in zip(names, source, strict=False):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, root / name)
    (root / "b" / "link.jpg").symlink_to("../9/x.jpg")
    (root / "linked").symlink_to("b/a")
    (root / "b" / "absolute.jpg").symlink_to(root / "10" / "x.jpg")
    classes, samples = image_folder(root)
    assert "linked" in classes and len(samples) == 16
    feedd = serve(of_folder(root), transform=FIT)
    batches, _ = feedd.cat("s")
    assert check(batches, samples, lambda path, *_: validation(path, 48, 40)) == list(range(16))
    assert class_names(feedd, "s") == classes


def test_path_outside_the_configuration(serve, album, one_size, folder):
    """A folder or a list by its path, for the daemon's own user."""
    _, samples = image_folder(one_size)
    feedd = serve(of_folder(album))
    batches, _ = feedd.cat(one_size, "--batch-size", 8, "--tail", "partial")
    check(batches, samples, lambda path, *_: photos.decoded(path))
    chosen = [(path, label + 5) for path, label in samples[::3]]
    shutil.copytree(one_size, folder / "below")
    (folder / "below.tsv").write_text("".join(f"below/{p.relative_to(one_size)}\t{label}\n" for p, label in chosen))
    batches, _ = feedd.cat(folder / "below.tsv", "--batch-size", 20)
    check(batches, chosen, lambda path, *_: photos.decoded(path))
    feedd.cat_fails(album / "nowhere", words=["nowhere"])
    feedd.wait_report(lambda r: [d["name"] for d in r["datasets"]] == ["d"], what="the end of what was opened by path")


def test_digests_do_not_depend_on_workers(serve, album):
    runs = []
    for workers in 1, 7:
        feedd = serve(of_folder(album), workers=workers, transform={**FIT, "flip": 0.5}, order="shuffle", seed=3)
        runs.append(feedd.cat("s", "--epochs", 2)[0])
    assert runs[0] == runs[1]


# ---- transforms ----


@pytest.mark.parametrize(
    "keys, transform",
    [
        ({"random_resized_crop": 40, "flip": 0.5}, random_resized_crop(40, 40, flip=0.5)),
        (
            {"random_resized_crop": {"size": [24, 48], "scale": [0.5, 0.6], "ratio": ["1/2", 2.0]}},
            random_resized_crop(24, 48, (0.5, 0.6), (0.5, 2.0)),
        ),
        ({"random_crop": {"size": 32, "padding": 4}, "flip": 0.5}, random_crop(32, 32, (4, 4, 4, 4), flip=0.5)),
        ({"random_crop": {"size": [60, 30], "padding": [9, 20, 1, 20]}}, random_crop(60, 30, (9, 20, 1, 20))),
    ],
    ids=["resized", "resized, in a mapping", "crop", "crop, as many pixels as there are"],
)
def test_random_crops(serve, album, keys, transform):
    """What is cut out depends on seed, epoch and position, and on nothing else."""
    _, samples = image_folder(album)
    runs = []
    for workers, batch_size in (1, 8), (7, 60):
        feedd = serve(of_folder(album), workers=workers, transform=keys, order="shuffle", seed=2**63 + 7)
        batches, _ = feedd.cat("s", "--epochs", 2, "--batch-size", batch_size)

        def make(path, batch, i):
            return photos.augmented(path, transform, 2**63 + 7, batch["epoch"], batch["position"] + i)

        runs.append([check([b for b in batches if b["epoch"] == epoch], samples, make) for epoch in (0, 1)])
    assert runs[0] == runs[1]


def test_crop_larger_than_an_image(serve, one_size):
    """Such an image is a bad sample; it is named, with what it is too small for."""
    feedd = serve(of_folder(one_size), transform={"random_crop": [30, 42]}, on_error="fail")
    feedd.cat_fails("s", words=["class-0", "41 x 30", "42 x 30"])


def test_channels(serve, album, made):
    """Luma of photos as it is coded; digits become three equal channels."""

    def luma(path, *_):
        with photos.Image.open(path) as image:
            image.draft("L", image.size)
            pixels = np.asarray(image.convert("L"))[:, :, None]
        sizes = photos.torchvision_sizes(48, 40, 40, pixels.shape[1], pixels.shape[0])
        return photos.pillow(pixels, sizes[4:6], sizes[6:10], False)

    _, samples = image_folder(album)
    batches, _ = serve(of_folder(album), transform=FIT, channels=1).cat("s")
    check(batches, samples, luma)
    digits = np.arange(20 * 7 * 5, dtype=np.uint8).reshape(20, 7, 5)
    header = bytes((0, 0, 8, 3)) + np.array(digits.shape, ">u4").tobytes()
    (made / "digits.idx").write_bytes(header + digits.tobytes())
    batches, _ = serve({"reader": "idx", "images": str(made / "digits.idx")}, channels=3).cat("s")
    for batch in batches:
        images = digits[batch["indices"], :, :, None].repeat(3, axis=3)
        assert batch["digests"]["image"] == digests(images, [], [])["image"]


def test_orientation(serve, made):
    """Upright by default; as they are coded on demand."""
    root = made / "turned"
    for orientation in range(1, 9):
        (path,) = make_photos(root / f"{orientation}", 1, classes=1, seed=orientation).glob("*/*.jpg")
        exif = photos.Image.Exif()
        exif[0x0112] = orientation
        with photos.Image.open(path) as image:
            image.save(path, exif=exif, quality=95)
    _, samples = image_folder(root)
    batches, _ = serve(of_folder(root), transform={"resize": [30, 40]}).cat("s")
    check(batches, samples, lambda path, *_: photos.pillow(photos.decoded(path), (40, 30), (0, 0, 40, 30), False))

    def as_coded(path, *_):
        pixels = np.asarray(photos.Image.open(path).convert("RGB"))
        return photos.pillow(pixels, (40, 30), (0, 0, 40, 30), False)

    batches, _ = serve(of_folder(root), transform={"resize": [30, 40]}, orientation="ignore").cat("s")
    check(batches, samples, as_coded)


def test_truncated(serve, album, made):
    root = shutil.copytree(album, made / "cut")
    path = image_folder(root)[1][3][0]
    path.write_bytes(path.read_bytes()[:-100])
    serve(of_folder(root), transform=FIT, on_error="fail").cat_fails("s", words=[path.name])
    batches, _ = serve(of_folder(root), transform=FIT, on_error="fail", truncated="accept").cat("s")
    assert [index for batch in batches for index in batch["indices"]] == list(range(60))


def test_fast(serve, imagenet):
    """Other pixels, of the same samples, the same in every run."""
    runs = [
        serve(of_folder(imagenet), workers=workers, transform={"random_resized_crop": 32}, **keys).cat("s")[0]
        for workers, keys in ((2, {}), (1, {"decode": "fast"}), (7, {"decode": "fast"}))
    ]
    assert runs[1] == runs[2]
    for exact, fast in zip(*runs[:2], strict=True):
        assert exact["indices"] == fast["indices"] and exact["digests"]["label"] == fast["digests"]["label"]
        assert exact["digests"]["image"] != fast["digests"]["image"]


def test_limits_of_an_image(daemons, folder, made):
    """One image has a pixel more than is allowed, one a byte more."""
    root = made / "large"
    for name, size in ("a", (50, 50)), ("b", (50, 51)), ("c", (40, 40)):
        make_photos(root / name, 1, classes=1, size=size)
    paths = [path for path, _ in image_folder(root)[1]]
    paths[2].write_bytes(paths[2].read_bytes() + bytes(20000))
    feedd = daemons(
        {
            "daemon": {"image_pixels_max": 2500, "image_bytes_max": 20000, "cache_dir": str(folder / "cache")},
            "datasets": {"d": of_folder(root)},
            "streams": {"s": {"dataset": "d", "batch_size": 3, "transform": FIT, "on_error": "zero"}},
        }
    )
    (batch,), _ = feedd.cat("s", "--epochs", 1)
    assert [flags != 0 for flags in batch["flags"]] == [False, True, True]
    lines = feedd.feedctl("errors").stdout.decode()
    assert "50 x 51" in lines and "2500" in lines and f"{paths[2].stat().st_size} bytes" in lines


GROUP = {"random_resized_crop": {"size": [8, 9], "scale": [0.1, 0.9], "ratio": [0.5, 2]}, "flip": 0.5}
CROP = {"random_crop": {"size": [8, 9], "padding": [1, 2, 3, 4]}}
RESIZE = {"resize": [20, 30], "center_crop": [8, 9]}


@pytest.mark.parametrize(
    "name, group, asked",
    [
        ("transform random_resized_crop", {"transform": GROUP}, {"transform": CROP}),
        ("flip 0.5", {"transform": GROUP}, {"transform": {**GROUP, "flip": 0.25}}),
        ("scale (least)", {"transform": GROUP}, {"transform": {"random_resized_crop": {
            **GROUP["random_resized_crop"], "scale": [0.2, 0.9]}, "flip": 0.5}}),
        ("ratio (most)", {"transform": GROUP}, {"transform": {"random_resized_crop": {
            **GROUP["random_resized_crop"], "ratio": [0.5, 3]}, "flip": 0.5}}),
        ("padding (bottom)", {"transform": CROP}, {"transform": {"random_crop": {
            "size": [8, 9], "padding": [1, 2, 3, 5]}}}),
        ("transform width", {"transform": CROP}, {"transform": {"random_crop": {
            "size": [8, 8], "padding": [1, 2, 3, 4]}}}),
        ("resize (height)", {"transform": RESIZE}, {"transform": {**RESIZE, "resize": [21, 30]}}),
        ("transform.resize 20", {"transform": {**RESIZE, "resize": 20}}, {"transform": {**RESIZE, "resize": 21}}),
        ("decode exact, and fast", {}, {"decode": "fast"}),
        ("orientation ignore, and exif", {"orientation": "ignore"}, {}),
        ("truncated fail, and accept", {}, {"truncated": "accept"}),
        ("channels the dataset's own, and 1", {}, {"channels": 1}),
    ],
)  # fmt: skip
def test_group_of_another_transform(daemons, folder, one_size, name, group, asked):
    """Refused, with the field's name."""
    common = {"dataset": "d", "batch_size": 4, "share": "broadcast"}
    feedd = daemons(
        {
            "daemon": {"cache_dir": str(folder / "cache")},
            "datasets": {"d": of_folder(one_size)},
            "streams": {"a": {**common, **group}, "same": {**common, **group}, "b": {**common, **asked}},
        }
    )
    with Client(feedd.socket) as first, Client(feedd.socket) as second:
        streams = [Stream(first, "a", group="g")]
        second.open("b", group="g")
        second.expect_refusal(E_ARGUMENT, "group 'g'", name)
        streams.append(Stream(second, "same", group="g"))
        for stream in streams:
            stream.close_fds()


# ---- splits ----


def share(n, begin, end):
    """The samples whose places in one fixed shuffle are in [begin, end), as reader.c describes it."""
    place = list(range(n))
    for i in range(n - 1, 0, -1):
        r = photos.philox((0xFEEDD5E1, 0x1EC7ED00), ((i + 1) & 0xFFFFFFFF, (i + 1) >> 32, 0, 0))
        j = ((r[1] << 32 | r[0]) * (i + 1)) >> 64
        place[i], place[j] = place[j], place[i]
    return [i for i in range(n) if begin <= place[i] < end]


def test_splits(serve, one_size):
    """Disjoint, they cover everything, and they are the same always: an oracle makes them anew."""
    _, samples = image_folder(one_size)
    feedd = serve(
        of_folder(one_size, splits={"train": 0.7, "val": 0.2, "test": 0.1}),
        more={"some": of_folder(one_size, subset=0.25)},
    )
    parts = {}
    for name in "train", "val", "test":
        batches, _ = feedd.cat(f"d/{name}", "--batch-size", 6, "--tail", "partial")
        parts[name] = [index for b in batches for index in b["indices"]]
    for begin, end, name in (0, 42, "train"), (42, 54, "val"), (54, 60, "test"):
        assert parts[name] == share(60, begin, end)
    assert sorted(sum(parts.values(), [])) == list(range(60))
    batches, _ = feedd.cat("some", "--batch-size", 15)
    assert [index for b in batches for index in b["indices"]] == share(60, 0, 15)
    assert {samples[i][1] for i in parts["train"]} == {0, 1, 2, 3}
    feedd.cat_fails("d/nothing", words=["d/nothing"])


def test_splits_by_file(serve, one_size, folder):
    """In the file's order; a shuffle is one of the split alone."""
    (folder / "mine.txt").write_text("# mine\n7\n3\r\n\n 59 \n0\n7\n")
    (folder / "two.txt").write_text("1\n2\n")
    (folder / "bad.txt").write_text("1\n60\n")
    feedd = serve(
        of_folder(one_size, splits={"mine": str(folder / "mine.txt"), "two": str(folder / "two.txt")}),
        more={"half": of_folder(one_size, subset=0.5), "bad": of_folder(one_size, subset=str(folder / "bad.txt"))},
    )
    (batch,), _ = feedd.cat("d/mine", "--batch-size", 5)
    assert batch["indices"] == [7, 3, 59, 0, 7]
    batches, _ = feedd.cat("half", "--batch-size", 5, "--order", "shuffle", "--epochs", 2)
    epochs = [[i for b in batches if b["epoch"] == epoch for i in b["indices"]] for epoch in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == share(60, 0, 30) and epochs[0] != epochs[1]
    line = feedd.cat_fails("bad", words=["bad.txt:2", "'60'", "0 to 59"])
    assert "\n" not in line


# ---- one decode for all members ----


def test_each_file_is_opened_once(daemons, folder, album):
    """strace counts: four members, two epochs, two opens of each file."""
    if shutil.which("strace") is None:
        pytest.skip("strace is missing (Debian package strace)")
    if subprocess.run(["strace", "-D", "-o", folder / "probe", "true"], capture_output=True).returncode != 0:
        pytest.skip("tracing is not permitted here")
    trace = folder / "trace"
    _, samples = image_folder(album)
    feedd = daemons(
        {
            "daemon": {"cache_dir": str(folder / "cache")},
            "datasets": {"d": of_folder(album)},
            "streams": {
                "s": {"dataset": "d", "batch_size": 8, "tail": "partial", "order": "shuffle", "transform": FIT}
            },
        },
        before=["strace", "-D", "-f", "-qq", "-e", "trace=open,openat,openat2", "-o", trace],
        env={"ASAN_OPTIONS": "detect_leaks=0"},  # which is by ptrace too
    )
    with Crowd(feedd) as crowd:
        batches = finish_all(crowd.start_all(4, "s", "--epochs", 2))
    feedd.stop()
    for epoch in 0, 1:
        check([b for b in batches if b["epoch"] == epoch], samples, lambda path, *_: validation(path, 48, 40))
    opened = Counter(re.findall(r'"(class-[^"]*\.jpg)"', trace.read_text()))
    assert opened == {str(path.relative_to(album)): 2 for path, _ in samples}


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.release
def test_members_cost_nothing(serve, imagenet):
    """The daemon's CPU time with four members is at most 1.15 times that with one."""
    spent = {}
    for count in 1, 4:
        feedd = serve(of_folder(imagenet), transform={"resize": 256, "center_crop": 224})
        with Crowd(feedd) as crowd:
            finish_all(crowd.start_all(count, "s", "--epochs", 3))
        spent[count] = cpu_seconds(feedd.pid)
    print(f"CPU seconds of feedd: {spent[1]:.2f} with one member, {spent[4]:.2f} with four")
    assert spent[4] <= 1.15 * spent[1]
