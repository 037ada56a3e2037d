#!/usr/bin/env python3
"""seeds.py FOLDER - writes the inputs that fuzzing starts from: FOLDER/wire, FOLDER/unpack and so on, one a target.

Each says something that its target understands, so that the fuzzer has depth to begin with. What it found from there
is in corpus/.
"""
import gzip
import struct
import sys
import zlib
from pathlib import Path

seeds = {}  # "target/name" -> bytes


def seed(target, name, data):
    seeds[f"{target}/{name}"] = data


# wire: operations as fuzz_wire.c numbers them, each with the client that it is about.
OPERATIONS = ("connect hello open attach release close status read turn settle raw framed fds squeeze tick shutdown "
              "hang_up stop starve wait join verify cancel").split()
SOURCES = ("train once few bad fat digits more gone plain none train_ both later small black strict rot rots photos "
           "rotten @/photos @/list.tsv @/rotten @/nowhere @/feedd.conf plain/b some plain/d photos/rest "
           "@/photos/a").split()
GROUPS = [None, "", "a", "b", "train", "both"]
NOW, GATE, NEXT_EPOCH = 1, 2, 3


def op(name, *taken, client=0):
    return bytes([OPERATIONS.index(name), client, *taken])


GREETED = op("connect") + op("hello", 0)


def ask(source, present=0, *values, client=0):
    """OPEN; `present` has a bit for each field that follows."""
    return op("open", SOURCES.index(source), present & 255, present >> 8, *values, client=client)


def opened(source, present=0, *values, client=0):
    """From nothing to a stream that is open and attached, first batches read."""
    return (op("connect", client=client) + op("hello", 4, *b"seed", client=client)
            + ask(source, present, *values, client=client) + op("settle") + op("read", 0, client=client)
            + op("attach", 0, 0, client=client) + op("settle") + op("read", 0, client=client))


def answered():
    return op("settle") + op("read", 0)


def epoch(rounds=3):
    """Gives everything back and reads on, a few times."""
    return (op("release", 0, 255, 0) + answered()) * rounds


seed("wire", "hello", op("connect") + op("turn", 0) + op("hello", 4, *b"seed") + op("turn", 0) + op("read", 0))
for source in SOURCES:
    seed("wire", "open-" + source.replace("/", "-"), opened(source) + epoch() + op("close", 0) + answered())
seed("wire", "open-batch-size-1", opened("digits", 0x83, 1, 2, 2) + epoch())
seed("wire", "open-rank", opened("train", 0x77, 7, 2, 2, 9, 1, 3) + epoch())
seed("wire", "open-resumed", opened("train") + ask("train", 0x100, 0, 2, 1, 3, 64) + answered())
seed("wire", "two-streams", opened("once") + ask("few") + answered() + op("attach", 1, 0) + answered()
     + op("release", 1, 1, 0) + op("hang_up"))
seed("wire", "many-clients", b"".join(opened("few", client=c) for c in range(4)) + op("hang_up", client=1))
seed("wire", "memory", opened("digits") + opened("more", client=1) + opened("digits", client=2))
seed("wire", "memory-at-once", GREETED + ask("train") + ask("more") + answered() + ask("more") + answered())
seed("wire", "status", opened("train") + op("tick", 1) + op("status", 0) + op("turn", 0) + op("read", 0))
seed("wire", "status-while-opening", GREETED + (ask("bad") + op("status", 3) + op("turn", 0) + answered()) * 3)
seed("wire", "never-reads", opened("train") + op("squeeze") + op("status", 127) + op("turn", 3) * 8 + op("read", 9)
     + op("turn", 3) * 4 + op("status", 127) + op("turn", 3) * 8)
seed("wire", "reads-late", opened("train") + op("squeeze") + op("status", 40) + op("release", 0, 255, 0)
     + (op("turn", 3) + answered()) * 12 + epoch())
for kind, name in enumerate(("twice", "any", "wrong-seq", "uneven"), 251):
    seed("wire", f"release-{name}", opened("train") + op("release", 0, 1, kind, 1, 9) + answered())
for name, mode, dtype, nchw, can, sources in (
        ("cpu-f32", 3, 5, 0, 0, "train small"), ("cpu-f32-planes", 3, 5, 1, 1, "train small black"),
        ("cpu-u8-planes", 3, 1, 1, 0, "train small"), ("cpu-f16", 3, 3, 1, 0, "train"),
        ("auto-f32", 0, 5, 0, 0, "small"), ("auto-client", 0, 5, 0, 1, "train"),
        ("daemon-without-gpu", 2, 5, 0, 1, "train"), ("client-can-not", 1, 5, 0, 0, "train"),
        ("dtype-i64", 3, 7, 0, 1, "train")):
    output = mode, dtype, nchw, can, 11, 9, 12, 13, 14, 15, 9, 11, 12, 13, 14  # scale 1; means 2 to 5, stds 1 to 4
    for source in sources.split():
        seed("wire", f"open-{name}-{source}", opened(source, 0xE000, *output) + epoch() + op("close", 0) + answered())
MEANS = ((0, 0, (), 0, ()), (11, 3, (1, 2, 3), 0, ()), (11, 9, (0,) * 4, 0, ()), (11, 0, (), 9, (4, 5, 6, 10)),
         (5, 9, (5,) * 4, 9, (6,) * 4))
seed("wire", "open-means", GREETED + b"".join(ask("train", 0xE000, 3, 5, 0, 1, scale, means, *values, stds, *more)
     for scale, means, values, stds, more in MEANS) + answered())
seed("wire", "attach-twice", opened("train") + op("attach", 0, 0) + answered())
seed("wire", "attach-wrong-nonce", GREETED + ask("train") + answered() + op("attach", 0, 255) + answered())
seed("wire", "other-version", op("connect") + op("framed", 33, 0) + answered())
seed("wire", "framed", GREETED + op("framed", 3, 4, 8, 1, 18, 0) + op("turn", 1) + op("raw", 255))
seed("wire", "descriptors", op("connect") + op("fds", 3) + op("hello", 0) + op("turn", 1))
seed("wire", "no-hello", op("connect") + op("turn", 1) + op("tick", 9) + op("read", 0))
seed("wire", "no-descriptors", op("starve", 1) + op("connect") + op("turn", 1) + op("tick", 0) + op("hang_up")
     + b"".join(op("starve", n) + op("tick", 0) + opened("train") + op("status", 0) + op("hang_up")
                for n in range(2, 8)))
seed("wire", "no-descriptors-to-queue", opened("train") + op("squeeze") + op("starve", 2) + op("status", 40)
     + op("turn", 3) * 3 + op("read", 0) + op("turn", 3))
seed("wire", "close-while-opening", GREETED + ask("train") + op("turn", 0) + op("close", 129) + op("hang_up")
     + GREETED + ask("train") + op("settle"))
seed("wire", "reopen-while-closing", opened("train") + op("connect", client=1) + op("hello", 0, client=1)
     + op("settle") + op("close", 0) + (op("turn", 0) + op("wait")) * 2 + ask("train", client=1) + op("turn", 0)
     + op("settle") + op("read", 0, client=1))
seed("wire", "half-closed", opened("train") + op("shutdown", 0) + op("turn", 0) + op("shutdown", 1) + op("turn", 0))
seed("wire", "stop", opened("train") + ask("train") + op("turn", 0) + op("stop"))
# READY to a client that can't be sent to any more: closing it frees both of its streams, in the middle of their list.
seed("wire", "crash-flush-after-close", GREETED + ask("train") + ask("once") + answered() + op("shutdown", 0)
     + op("attach", 0, 0) + op("attach", 1, 0) + op("settle"))


# Groups: what op_join() takes before what op_open() does.
def join(source, group=None, *, members=None, when=None, timeout=None, back=False, incarnation=None, of=None,
         share=None, present=0, values=(), client=0):
    options = (members, when, timeout, None, incarnation, of, share)
    flags = sum(1 << bit for bit, value in enumerate(options) if value is not None) | back << 3
    taken = [value for value in options if value is not None]
    return op("join", flags, GROUPS.index(group), *taken, SOURCES.index(source), present & 255, present >> 8, *values,
              client=client)


def greeted(*clients):
    return b"".join(op("connect", client=c) + op("hello", 0, client=c) for c in clients)


def all_read(*clients):
    return op("settle") + b"".join(op("read", 0, client=c) for c in clients)


def attached(*clients, view=0):
    return b"".join(op("attach", view, 0, client=c) for c in clients) + all_read(*clients)


def released(*clients, most=255, newest=0):
    return b"".join(op("release", 0, most, newest, client=c) for c in clients) + all_read(*clients)


def group(source, *clients, **options):
    """From nothing to a group whose members are attached and have read what there is."""
    return (greeted(*clients) + b"".join(join(source, client=c, **options) for c in clients) + all_read(*clients)
            + attached(*clients))


seed("wire", "group-gate", group("train", 0, 1, members=2) + released(0, 1) * 3 + op("close", 0, client=1)
     + released(0) * 2)
seed("wire", "group-late", group("train", 0) + released(0) + group("train", 1) + released(0, 1) * 3
     + op("hang_up") + released(1) * 2)
seed("wire", "group-next-epoch", group("later", 0) + released(0) + group("later", 1) + released(0) * 2
     + released(0, 1) * 4)
seed("wire", "group-configured", group("both", 0, 1) + released(0, 1) * 2 + group("both", 2))
seed("wire", "group-crosswise", group("both", 0, 1)
     + (op("release", 0, 1, 0) + op("release", 0, 1, 1, client=1) + all_read(0, 1)) * 5 + released(0, 1))
seed("wire", "group-never-attached", greeted(0, 1) + join("train", "a") + join("train", "a", client=1) + all_read(0, 1)
     + attached(0) + released(0) * 3 + op("hang_up", client=1) + released(0))
seed("wire", "group-gate-times-out", group("train", 0, 1, members=3, timeout=232) + op("tick", 15) + all_read(0, 1))
seed("wire", "group-gate-member-leaves", group("train", 0, members=2, when=GATE) + op("hang_up")
     + group("train", 1, 2, members=2, when=GATE) + released(1, 2))
seed("wire", "group-unequal", group("train", 0) + greeted(1) + join("once", "train", client=1)
     + join("train", "train", present=1, values=(7,), client=1) + join("train", "train", members=5, client=1)
     + join("photos", "train", client=1) + all_read(0, 1))
seed("wire", "group-full", group("both", 0, 1, 2))
seed("wire", "group-twice-in-one-client", greeted(0) + join("train", "a") + join("train", "a") + all_read(0)
     + op("attach", 0, 0) + op("attach", 1, 0) + all_read(0) + released(0) * 2 + op("close", 1) + released(0))
seed("wire", "group-five", group("small", 0, 1, 2, 3, when=NEXT_EPOCH) + released(0, 1, 2, 3) * 4)
seed("wire", "group-one-leaves-while-opening", greeted(0, 1) + join("train") + join("train", client=1) + op("turn", 0)
     + op("hang_up") + op("turn", 1) + all_read(1) + attached(1))
seed("wire", "group-fails", group("strict", 0, 1) + released(0, 1) * 4 + op("status", 129) + all_read(0, 1))
seed("wire", "group-fails-behind-gate", group("rots", 0, 1) + released(0, 1) * 3)
seed("wire", "group-ends", group("once", 0, 1) + released(0, 1) * 3 + group("once", 2) + released(2) * 2)
# The last batch is published between OPEN and its answer: workers have to be quick, so it is tried three times.
SHORT = dict(present=0x91, values=(2, 1, 2))  # batches of 2, one epoch, two slots: three batches
seed("wire", "crash-group-joined-as-it-ends",
     (greeted(0, 1) + join("plain/b", "a", **SHORT) + all_read(0) + attached(0) + op("release", 0, 255, 0)
      + join("plain/b", "a", **SHORT, client=1) + op("turn", 0) + all_read(0, 1) + op("hang_up")
      + op("hang_up", client=1)) * 3)
seed("wire", "group-arguments", greeted(0) + join("train", members=255, when=9) + join("train", when=GATE)
     + join("train", share=1) + join("train", share=3) + join("none") + op("turn", 1) * 3 + all_read(0))
seed("wire", "group-resumed", group("train", 0) + released(0) + op("close", 0)
     + join("train", present=0x100, values=(0, 2, 1, 0, 64)) + all_read(0)
     + join("train", present=0x100, values=(0, 2, 1, 0, 32)) + all_read(0))
seed("wire", "group-comes-back", group("train", 0, 1, members=2) + released(0, 1) + released(0) + op("stop")
     + greeted(0, 1) + join("train", members=2, back=True) + all_read(0)
     + join("train", members=2, back=True, client=1) + all_read(0, 1) + attached(0, 1) + released(0, 1) * 3)
seed("wire", "group-comes-back-in-part", group("train", 0, 1) + released(0, 1) + op("stop") + greeted(0, 1)
     + join("train", back=True) + all_read(0) + op("tick", 11) + all_read(0) + attached(0) + released(0)
     + join("train", back=True, client=1) + all_read(1) + released(0) * 2)
seed("wire", "group-came-back-never-attached", group("train", 0, 1) + released(0, 1) + op("stop") + greeted(0, 1)
     + join("train", back=True) + join("train", back=True, client=1) + all_read(0, 1) + attached(0) + op("tick", 12)
     + all_read(0) + attached(1) + released(0, 1) * 2)
seed("wire", "group-of-others", greeted(0, 1) + join("train", incarnation=7, of=2) + all_read(0)
     + join("train", client=1) + all_read(0, 1) + attached(0, 1)
     + join("train", incarnation=8, present=0x100, values=(0, 2, 1, 0, 32), client=1) + all_read(1))
seed("wire", "group-forms-alone", greeted(0) + join("train", incarnation=7, of=4) + all_read(0) + op("status", 0)
     + all_read(0) + op("hang_up"))
for source, name in (("photos", "path-shared"), ("list.tsv", "path-list-shared"),
                     ("rotten", "crash-goes-on-after-failing")):
    seed("wire", name, group(f"@/{source}", 0, 1, present=1, values=(2,)) + released(0, 1) * 4
         + op("status", 0) + op("status", 128) + all_read(0, 1))
# A dataset at a path goes with its last user, also when the OPEN fails that brought it, and not before.
seed("wire", "crash-path-refused", greeted(0) + ask("@/photos", 128, 1) + op("turn", 1) + all_read(0))
seed("wire", "crash-path-forgotten", greeted(0, 1)
     + join("@/photos", incarnation=7, of=2, present=1, values=(2,)) + op("turn", 1)
     + ask("@/photos", 1, 2, client=1) + all_read(0, 1) + op("close", 0, client=1) + all_read(1)
     + op("tick", 12) + all_read(0) + attached(0))
# Both members of one client go when telling the first one fails.
seed("wire", "crash-gone-while-opening", greeted(0) + join("train", "a") + join("train", "a") + op("turn", 1)
     + op("shutdown", 0) + all_read(0))
seed("wire", "crash-gone-while-failing", greeted(0) + join("bad", "a") + join("bad", "a") + op("turn", 1)
     + op("shutdown", 0) + all_read(0))
seed("wire", "crash-gone-while-timing-out", greeted(0) + join("train", "a", members=4, timeout=3)
     + join("train", "a", members=4, timeout=3) + all_read(0) + op("shutdown", 0) + op("tick", 9) + all_read(0))
seed("wire", "crash-gone-while-forming", greeted(0) + join("train", "a", members=4, timeout=3) + all_read(0)
     + join("train", "b", incarnation=7, of=3) + op("turn", 1) + op("shutdown", 0) + op("tick", 9) + all_read(0))


# Verifications: what op_verify() takes is source and flags.
def verify(source, flags=0, *values, client=0):
    return op("verify", SOURCES.index(source), flags, *values, client=client)


for source in "digits some photos photos/rest rotten rots bad gone none @/list.tsv @/nowhere".split():
    seed("wire", "verify-" + source.replace("/", "-"), greeted(0) + verify(source) + op("turn", 1) + op("status", 0)
         + all_read(0))
seed("wire", "verify-errors-max", greeted(0) + verify("rotten", 1, 3) + all_read(0) + verify("rotten", 1, 0)
     + all_read(0))
seed("wire", "verify-twice", greeted(0) + verify("photos", 2, 3) + all_read(0) + verify("rotten") + all_read(0))
seed("wire", "verify-too-many", greeted(0, 1, 2, 3) + b"".join(verify("photos", client=c) for c in range(4))
     + op("turn", 0) + verify("photos", 2, 3) + all_read(0, 1, 2, 3))
seed("wire", "verify-cancelled", greeted(0) + op("cancel", 0) + verify("photos") + op("cancel", 0) + op("turn", 1)
     + all_read(0) + verify("photos") + op("turn", 1) + op("cancel", 200, 7) + op("cancel", 0) + all_read(0)
     + op("cancel", 0) + all_read(0))
seed("wire", "verify-hang-up", greeted(0) + verify("photos") + op("turn", 0) + op("hang_up") + greeted(0)
     + verify("photos") + op("turn", 1) + op("wait") + op("turn", 0) + op("hang_up"))
seed("wire", "verify-hang-up-as-it-ends", greeted(0) + verify("plain") + (op("turn", 0) + op("wait")) * 4
     + op("hang_up"))
seed("wire", "verify-path-fails", greeted(0, 1) + verify("@/photos/a") + all_read(0) + verify("@/photos/a")
     + ask("@/photos/a", client=1) + all_read(0, 1) + verify("@/photos/a") + op("turn", 0) + op("hang_up"))
seed("wire", "verify-beside-a-stream", opened("small") + verify("photos") + epoch() + all_read(0) + epoch())
seed("wire", "verify-stop", greeted(0, 1) + verify("photos") + verify("rotten", client=1) + op("turn", 1) + op("stop"))
seed("wire", "verify-no-descriptors", greeted(0) + op("starve", 2) + verify("photos/rest") + op("turn", 3) * 3
     + op("starve", 0) + all_read(0))
seed("wire", "verify-never-reads", greeted(0) + op("squeeze") + op("status", 60) + verify("rotten") + op("turn", 3) * 4
     + op("settle") + all_read(0))


# unpack: protobuf by hand.
def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def text(field, value):
    value = value if isinstance(value, bytes) else value.encode()
    return varint(field << 3 | 2) + varint(len(value)) + value


def packed(field, values):
    return text(field, b"".join(map(varint, values)))


field = text(1, "image") + number(2, 1) + packed(3, [28, 28, 1])
bodies = [
    text(1, "seed") + text(2, "0.1.0"),
    text(1, "0.1.0") + number(2, 1234),
    number(1, 1) + text(2, "train") + number(3, 64) + number(6, 1 << 63) + text(11, "feedd1.x") + number(12, 1)
    + text(13, "GPU-0") + text(14, "ipc") + text(14, "host"),
    number(1, 1) + number(2, 1) + text(3, "fashion") + number(4, 60000) + number(5, 1 << 60) + number(6, 937)
    + text(7, field) * 2 + b"".join(number(n, 1) for n in range(8, 22)) + text(22, "host") + text(23, "why"),
    number(1, 1) + number(2, (1 << 64) - 1),
    number(1, 1) + packed(2, range(4)) + packed(3, range(200, 204)),
    number(1, 1) + number(2, 5) + number(2, 6) + packed(3, [1, 2]),
    number(1, 1),
    number(1, 1) + text(99, "unknown"),
    number(1, 1),
    number(1, 1) + number(2, 4096),
    number(1, 1) + number(3, (1 << 64) - 1) + text(4, "it failed"),
    field,
    number(1, 1) + number(2, 3),
    number(1, 1) + text(2, "photos") + number(3, 10000),
    number(1, 1) + number(2, 5) + number(3, 1 << 40) + number(4, 1) + number(5, 1 << 50),
    number(1, 1),
]
for i, body in enumerate(bodies):
    seed("unpack", f"type-{i + 1:02}", bytes([i]) + body)
seed("unpack", "larger-than-the-arena", bytes([128 + 2]) + number(1, 1) + text(2, "") + text(14, ""))

# token
seed("token", "text", b"\0feedd1." + b"A" * 67)
seed("token", "later", b"\0feedd2.AAAA")
seed("token", "values", b"\1" + struct.pack("<6Q", 2, 60000, 1 << 63, 1, 3, 640))
for name, edits in ("value", b"\x14B"), ("unused-bits", b"\x49B"), ("longer", b"\x4AA"), ("shorter", b"\x49\0"):
    seed("token", f"edited-{name}", b"\1" + struct.pack("<6Q", 1, 10, 1, 0, 0, 0) + edits)


# idx
def idx(kind, shape, content):
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape) + content


def dataset(name, images, labels=b"", packing=0, flags=1, classes=0, cut=0):
    seed("idx", name, bytes([flags | packing << 1 | packing << 3, classes, cut]) + struct.pack(">H", len(images))
         + images + labels)


images = idx(8, (3, 2, 2), bytes(range(12)))
labels = idx(8, (3,), b"\0\1\2")
dataset("plain", images, labels)
dataset("gzip", images, labels, packing=1)
dataset("members", images, labels, packing=2)
dataset("cut", images, labels, packing=3, cut=5)
dataset("no-labels", images, flags=0)
dataset("own-gzip", gzip.compress(images, mtime=0), gzip.compress(labels, mtime=0))
dataset("channels", idx(8, (2, 2, 1, 3), bytes(12)), idx(9, (2,), b"\xff\1"))
dataset("wide-labels", images, idx(0x0C, (3,), struct.pack(">3i", -1, 7, 0)), classes=10)
dataset("any-labels", images, idx(0x0C, (3,), struct.pack(">3i", 1, 7, 2)))
dataset("label-too-large", images, labels, classes=2)
dataset("too-large", gzip.compress(idx(8, (70, 100, 10), bytes(70000)), mtime=0), flags=0)
dataset("short-labels", images, idx(0x0B, (3,), struct.pack(">3h", -1, 700, 0)))
dataset("huge", idx(8, ((1 << 32) - 1,) * 3, b""), labels)
dataset("huge-gzip", idx(8, (1 << 20, 1 << 10, 1 << 10), b""), labels, packing=1)
dataset("disagree", images, idx(8, (4,), bytes(4)))
dataset("disagree-gzip", images, idx(8, (4,), bytes(4)), packing=1)
dataset("trailing", images + b"x", labels)
dataset("trailing-gzip", images + b"x", labels, packing=1)

# list: flags, classes, text.
for name, content in {
    "plain": b"a\t1\nsub/b\t0\n",
    "floats": b"# one turns all\na\t1\nin\t-0.5\nout\t1e-3\n",
    "crlf": b"a\t0\r\n\r\nin\t3",
    "no-labels": b"\xef\xbb\xbfa\nsub/b\nsub\npipe\nnone\n",
    "mixed": b"a\t1\nin\n",
    "tabs": b"a\t1\t2\n",
    "empty": b"#\n\n",
    "leads-out": b"../c\t1\nsub/../../c\t1\n/etc/passwd\t1\n",
    "nul": b"a\0b\t1\n",
    "negative": b"a\t-1\nin\t-2\n",
    "long": b"a\t9223372036854775807\nin\t9223372036854775808\n",
    "huge": b"a\t1e39\n",
    "blank": b" a \t 1\n",
    "no-label": b"a\t\n",
}.items():
    seed("list", name, b"\0\0" + content)
    seed("list", f"{name}-classes", b"\1\2" + content)
seed("list", "words", b"\2\0\0" + b"1\n\1\3\2/a\t7\n")

# index: flags, additions, changes.
seed("index", "real", b"\3\0")
seed("index", "raw", b"\7" + bytes(72))
for offset in range(0, 72, 8):
    seed("index", f"header-{offset}", bytes([3, 0, 0, offset, 1]))
    seed("index", f"header-{offset}-damaged", bytes([0, 0, 0, offset, 1]))
for offset in range(72, 72 + 4 * 40 + 6 * 24, 8):  # four folders and six samples
    seed("index", f"tables-{offset}", bytes([3, 0, offset >> 8, offset & 255, 2]))
seed("index", "cut", bytes([3, 0, 128, 100]))
seed("index", "longer", bytes([3, 0, 131, 0]))
for number in range(12):
    seed("index", f"added-{number}", bytes([3, 2, 2, 2, 60 + 12 + number, 0, 4, 0, 5]) + b"1.jpg")
    seed("index", f"added-sample-{number}", bytes([3, 1, 0, 1, 9, 60 + 12 + number]))

# jpeg: sides, colour space, sampling, coding, quality, noise; edits of three bytes; choices: a crop, 1/2^n and luma.
for i, recipe in enumerate([
    (7, 7, 0, 0, 0, 99, 0), (30, 20, 0, 5, 0, 90, 1), (30, 20, 0, 1, 1, 90, 1), (17, 33, 1, 0, 0, 95, 9),
    (12, 40, 2, 0, 1, 50, 3), (9, 9, 3, 0, 0, 75, 1), (9, 9, 4, 0, 0, 75, 1), (24, 24, 0, 5, 2, 80, 1),
    (24, 24, 0, 5, 4, 80, 1), (24, 24, 0, 3, 16, 80, 1), (24, 24, 0, 0, 32, 80, 1), (0, 47, 2, 0, 0, 10, 1),
    (47, 0, 0, 15, 12, 10, 1), (40, 40, 0, 5, 65, 90, 3), (40, 40, 0, 1, 132, 90, 3), (40, 40, 0, 0x53, 1, 90, 3),
    (40, 40, 1, 0x11, 3, 90, 3), (40, 40, 4, 5, 1, 90, 3),
]):
    for name, choices in {"whole": (0, 0, 0, 0, 0), "crop": (60, 128, 3, 200, 0), "half": (101, 30, 20, 25, 1),
                          "quarter-luma": (0, 200, 64, 60, 6), "luma": (255, 200, 64, 60, 4)}.items():
        seed("jpeg", f"{i:02}-{name}", bytes(recipe + choices + (0, 0, 0)))
    seed("jpeg", f"{i:02}-cut", bytes(recipe) + b"\xff\x40\0" + bytes(8))
    seed("jpeg", f"{i:02}-damaged", bytes(recipe) + b"\1\x60\x55\0\xa5\xff" + bytes(8))

# exif: a header, a directory of two entries.
for order in "<", ">":
    block = struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, 8)
    block += struct.pack(order + "HHHIHHHHIHHI", 2, 0x0110, 3, 1, 2, 0, 0x0112, 3, 1, 6, 0, 0)
    name = "little" if order == "<" else "big"
    seed("exif", name, block)
    seed("exif", f"{name}-prefixed", b"Exif\0\0" * 2 + block)
    seed("exif", f"{name}-cut", block[:-8])

# resize: what is scaled to what, as size_of(), box_side(), window_side() and held_side() in fuzz_resize.c take it.
def resize_sides(*sides):
    return b"".join(bytes([side - 1]) if side <= 240 else bytes([239 + -(-side // 256), -side % 256]) for side in sides)


WHOLE = bytes([0, 0, 0, 0, 0, 0])  # boxes, windows
EIGHTHS = bytes([2, 0x20, *bytes(6), 0xC0, *bytes(6)])
for name, sides in {"photo": (125, 94, 56, 56), "grown": (50, 50, 112, 112), "little": (128, 128, 112, 112),
                    "copy": (33, 21, 33, 21), "narrow": (1, 900, 7, 5), "wide": (4000, 1, 1, 3), "dot": (1, 1, 5, 5),
                    "eight-taps": (200, 31, 51, 64)}.items():
    for channels in 1, 2, 3, 4:
        head = resize_sides(*sides[:2]) + bytes([channels - 1]) + resize_sides(*sides[2:])
        seed("resize", f"{name}-{channels}", head + WHOLE + bytes([channels % 2, 0, 0, 0, 0, 7]))
    seed("resize", f"{name}-cut", head + EIGHTHS * 2 + bytes([3, 0, 4, 1, 2, 0, 5, 0x23, 3, 1, 2, 0, 7, 9, 1, 4, 8]))


# png: choices at the end; a file, or sides, kind, coding, colours and rows.
def png_chunk(name, content=b""):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_file(*chunks, kind=2, depth=8, width=3, interlaced=0, rows=b"\1123456789\2123456789"):
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, 2, depth, kind, 0, 0, interlaced))
            + b"".join(chunks) + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND"))


PNG_CHOICES = {"whole": bytes(7) + b"\1", "crop": bytes([60, 128, 3, 200, 0, 0, 0, 1]),
               "end": bytes([250, 9, 250, 9]) + bytes(4)}
for kind in range(15):
    for coding in 0x08, 0x19, 0x2d, 0x36:
        rows = bytes(range(5)) * 9
        name, choices = list(PNG_CHOICES.items())[(kind + coding) % 3]
        seed("png", f"{kind:02}-{coding:02x}-{name}", bytes([16 - kind, kind, kind, coding, 20]) + rows + choices)
seed("png", "large", bytes([47, 47, 13, 0x20, 255])
     + bytes(1 + i // 48 % 4 if i % 192 == 0 else i % 251 for i in range(2000)) + bytes(8))
for name, data in {
    "rgb": png_file(), "interlaced": png_file(interlaced=1, rows=b"\0123\0123\4123456789"),
    "palette": png_file(png_chunk(b"PLTE", b"123456789"), png_chunk(b"tRNS", b"12"), kind=3, depth=2,
                        rows=b"\0\x1b\0\xe4"),
    "exif": png_file(png_chunk(b"eXIf", b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0")),
    "ancillary": png_file(png_chunk(b"gAMA", b"1234"), png_chunk(b"iCCP", b"a\0\0" + zlib.compress(b"x")),
                          png_chunk(b"zTXt", b"a\0\0" + zlib.compress(b"y")), png_chunk(b"acTL", bytes(8))),
    "critical": png_file(png_chunk(b"ABCD", b"1")), "two-headers": png_file(png_chunk(b"IHDR", bytes(13))),
    "bomb": png_file(width=1 << 15), "short": png_file(rows=b"\1123"), "filter": png_file(rows=b"\5123456789" * 2),
    "tail": png_file() + b"more", "stored-eof": png_file()[:-20],
}.items():
    for choices in b"\0", b"\1":
        seed("png", f"file-{name}-{choices[0]}", data + bytes(7) + choices)

# webp: sides, container, coding, quality, noise; edits of three bytes; choices.
for i, recipe in enumerate([
    (7, 7, 0, 0, 90, 1), (30, 20, 0, 0, 5, 0), (47, 47, 0, 16, 60, 9), (17, 33, 0, 1, 50, 0), (12, 40, 0, 3, 100, 5),
    (9, 9, 0, 2, 75, 1), (24, 24, 0, 64, 80, 1), (24, 24, 0, 32, 0, 1), (0, 0, 0, 1, 9, 3), (0, 47, 0, 0, 30, 1),
    (20, 21, 4, 0, 75, 2), (20, 21, 8, 1, 75, 2), (20, 21, 0x16, 0, 75, 2), (20, 21, 0x5b, 1, 75, 2),
    (20, 21, 0x3f, 2, 75, 2),
]):
    for name, choices in {"whole": bytes(8), "crop": bytes([60, 128, 3, 200]) + bytes(4),
                          "end": bytes([250, 9, 250, 9]) + bytes(4)}.items():
        seed("webp", f"{i:02}-{name}", bytes(recipe) + choices)
    seed("webp", f"{i:02}-cut", bytes(recipe) + b"\xff\x40\0" + bytes(8))
    seed("webp", f"{i:02}-damaged", bytes(recipe) + b"\0\x60\x55\0\x85\xff" + bytes(8))
seed("webp", "file-extended", b"RIFF\x1a\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0\x1f\0\0\x1f\0\0ANIM" + bytes(8))
seed("webp", "file-bomb", b"RIFF\x1e\0\0\0WEBPVP8L\x11\0\0\0\x2f\xff\xff\xff\x0f" + bytes(21))

# config
FASHION = "datasets:\n  fashion:\n    reader: idx\n    images: a.gz\n"
seed("config", "full", ("""# everything
daemon:
  socket: /run/feedd/feedd.sock
  workers: auto
  ring_memory_max: 512M
  dataset_memory_max: 4GiB
  clients_max: 256
  streams_per_client_max: 16
""" + FASHION + """    labels: b.gz
    classes: [T-shirt/top, "Trouser", 'coat']
streams:
  train: {dataset: fashion, batch_size: 64, order: shuffle, seed: 1, epochs: 0, tail: drop, depth: auto}
""").encode())
seed("config", "empty", b"# nothing\n")
seed("config", "flow", b"{datasets: {a: {reader: idx, images: x}}, streams: {s: {dataset: a, batch_size: 1}}}")
seed("config", "alias", b"datasets: &a {x: *a}\n")
seed("config", "repeated", FASHION.encode() + FASHION.encode())
seed("config", "no-batch", b"{datasets: {a: {reader: idx, images: x}}, streams: {s: {dataset: a, batch_size: 0}}}")
seed("config", "no-name", b"datasets:\n  'a b': {reader: idx, images: x}\n")
seed("config", "unknown", b"daemon:\n  speed: 11\n")

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for path, data in seeds.items():
        file = Path(sys.argv[1], path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
