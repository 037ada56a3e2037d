"""Resume tokens: a run that is stopped anywhere goes on with exactly the rest, with the same bytes."""

import shutil

import oracle
import pytest
import rawclient
from harness import finish_cat, parse_cat
from oracle import Token, check_batches, plan

EPOCHS = 3
STEPS = 16  # of an epoch of `small`, batch 64, tail = partial


def same_batches(batches, expected):
    """Equal in everything but the count since OPEN."""
    assert [{**b, "seq": 0} for b in batches] == [{**b, "seq": 0} for b in expected]
    assert [b["seq"] for b in batches] == list(range(len(batches)))


@pytest.fixture
def whole(feedd, small):
    """A run that nobody stops, and the dataset's fingerprint."""
    batches, end = feedd.cat("train", "--seed", 5, "--epochs", EPOCHS)
    check_batches(batches, plan(1000, 64, "partial", EPOCHS), small, {})
    return batches, Token.parse(end["token"])


def token_at(whole, step, batch_size=64):
    """The token of a run that has had `step` batches, as token.h says it."""
    epoch, position = plan(1000, batch_size, "partial", EPOCHS)[step - 1].next if step else (0, 0)
    return Token(oracle.SHUFFLE, 1000, whole[1].fingerprint, 5, epoch, position)


@pytest.mark.parametrize("stop", [1, 2, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS + 7, EPOCHS * STEPS])
@pytest.mark.parametrize("source", ["train", "small"])
def test_stop_and_go_on(feedd, whole, source, stop):
    """Neither order nor seed are said again: the token's hold, whatever the stream or dataset is configured to."""
    batches, end = feedd.cat("train", "--seed", 5, "--batches", stop, "--epochs", EPOCHS)
    same_batches(batches, whole[0][:stop])
    assert Token.parse(end["token"]) == token_at(whole, stop)
    rest, end = feedd.cat(source, "--tail", "partial", "--epochs", EPOCHS, "--resume", end["token"])
    same_batches(rest, whole[0][stop:])
    assert Token.parse(end["token"]) == token_at(whole, EPOCHS * STEPS)


def test_stop_before_the_first_batch(feedd, whole):
    """A token of the very beginning, and of a run that had nothing left to do."""
    rest, end = feedd.cat("small", "--tail", "partial", "--epochs", EPOCHS, "--resume", token_at(whole, 0).text())
    same_batches(rest, whole[0])
    nothing, again = feedd.cat("small", "--tail", "partial", "--epochs", EPOCHS, "--resume", end["token"])
    assert nothing == [] and again["token"] == end["token"]


def test_every_step(feedd, whole):
    """Stopped after each single batch of an epoch and a half, each time with the token of the run before."""
    token, seen = token_at(whole, 0).text(), []
    for _ in range(24):
        batches, end = feedd.cat("small", "--tail", "partial", "--batches", 1, "--resume", token)
        seen += batches
        token = end["token"]
    assert [{**b, "seq": 0} for b in seen] == [{**b, "seq": 0} for b in whole[0][:24]]


@pytest.mark.tsan
@pytest.mark.parametrize(
    "stop, first, second", [(5, (4, 16), (2, 32)), (STEPS - 1, (2, 32), (8, 8)), (STEPS + 3, (8, 8), (1, 64))]
)
def test_other_world_size(feedd, whole, stop, first, second):
    """The run goes on with more ranks and smaller batches, twice: the same steps, split over the ranks."""

    def ranks(token, world, batch_size, *args):
        common = ["--tail", "partial", "--resume", token, "--world", world, "--batch-size", batch_size, *args]
        running = [feedd.start_cat("small", "--rank", rank, *common) for rank in range(world)]
        runs = [parse_cat(finish_cat(process)) for process in running]
        assert len({end["token"] for _, end in runs}) == 1
        steps = [
            sorted(i for batches, _ in runs for i in batches[k]["indices"][: batches[k]["valid"]])
            for k in range(len(runs[0][0]))
        ]
        return steps, runs[0][1]["token"]

    expected = [sorted(batch["indices"]) for batch in whole[0]]
    steps, token = ranks(token_at(whole, stop).text(), *first, "--batches", 7)
    assert steps == expected[stop : stop + 7]
    assert Token.parse(token) == token_at(whole, stop + 7)
    steps, token = ranks(token, *second, "--epochs", EPOCHS)
    assert steps == expected[stop + 7 :]
    assert Token.parse(token) == token_at(whole, EPOCHS * STEPS)


@pytest.mark.parametrize("tail", ["drop", "pad", "partial"])
def test_other_step_size(feedd, whole, small, tail):
    """With another world size x batch size the steps are others, but each position is still delivered once."""
    order = {}
    check_batches(whole[0], plan(1000, 64, "partial", EPOCHS), small, order)
    at = token_at(whole, 5)
    for rank in range(3):
        batches, _ = feedd.cat(
            "small",
            "--tail",
            tail,
            "--epochs",
            2,
            "--resume",
            at.text(),
            "--rank",
            rank,
            "--world",
            3,
            "--batch-size",
            30,
        )
        check_batches(batches, plan(1000, 30, tail, 2, rank, 3, (at.epoch, at.position)), small, order)


def test_from_the_middle_of_an_endless_epoch_count(feedd, tiny):
    """Epochs are 64 bits: the last one but one still ends in an orderly way."""
    _, end = feedd.cat("tiny", "--batch-size", 50)
    at = Token.parse(end["token"])
    at.epoch, at.position = 2**64 - 2, 40
    with rawclient.Client(feedd.socket) as client:
        stream = rawclient.Stream(client, "tiny", resume=at.text(), batch_size=60)
        batch = stream.next()
        assert (batch.epoch, batch.position, batch.indices) == (2**64 - 2, 40, list(range(40, 100)))
        assert batch.next == (2**64 - 1, 0)
        stream.release(batch)
        assert stream.next() is None
        stream.close_fds()


# ---- refused ----


def variants(token):
    """What becomes of a token that is copied by hand, and what the message has to say."""
    middle = len(token) // 2
    other = "A" if token[middle] != "A" else "B"
    return {
        "one character": (token[:middle] + other + token[middle + 1 :], "mistyped"),
        "cut": (token[:-1], "cut short"),
        "too long": (token + "A", "too long"),
        "no base64": (token[:middle] + "*" + token[middle + 1 :], "mistyped"),
        "something else": ("0123456789", "feedd1."),
        "a later version": ("feedd2." + token[7:], "version 2"),
        "enormous": (token * 500, "too long"),
    }


@pytest.mark.parametrize("kind", variants("feedd1.abcdef"))
def test_mistyped(feedd, kind):
    _, end = feedd.cat("train", "--batches", 3)
    token, words = variants(end["token"])[kind]
    feedd.cat_fails("train", "--resume", token, words=["resume token", words])


@pytest.mark.parametrize("force", [False, True])
def test_token_of_nonsense(feedd, whole, force):
    """The check of a token is right, and its content makes no sense: still one clear line."""
    args = ["--force-resume"] if force else []
    token = token_at(whole, 3)
    token.position = 1001
    feedd.cat_fails("small", "--resume", token.text(), *args, words=["position 1001", "0 to 1000"])
    token = token_at(whole, 3)
    token.order = 77
    feedd.cat_fails("small", "--resume", token.text(), *args, words=["order 77", "sequential", "shuffle"])
    feedd.report()


def test_other_seed(feedd, whole):
    token = token_at(whole, 3).text()
    feedd.cat_fails("train", "--seed", 6, "--resume", token, words=["resume token", "seed 5", "6 was asked for"])
    same, _ = feedd.cat("train", "--seed", 5, "--resume", token, "--epochs", EPOCHS)
    same_batches(same, whole[0][3:])


def test_other_order(feedd, whole):
    token = token_at(whole, 3).text()
    feedd.cat_fails(
        "train", "--order", "sequential", "--resume", token, words=["resume token", "shuffle", "sequential"]
    )
    same, _ = feedd.cat("train", "--order", "shuffle", "--resume", token, "--epochs", EPOCHS)
    same_batches(same, whole[0][3:])


def test_other_dataset(daemons, folder, small, tiny):
    """Refused: another count, a file of another name, a file of another size. Not refused: another folder."""
    names = {"moved": None, "renamed": "train-images.gz", "grown": None}
    datasets = {"small": small.config(), "tiny": tiny.config()}
    for kind, name in names.items():
        (folder / kind).mkdir()
        images = folder / kind / (name or small.images_path.name)
        shutil.copy(small.images_path, images)
        labels = folder / kind / small.labels_path.name
        shutil.copy(small.labels_path, labels)
        datasets[kind] = oracle.Dataset(images, labels).config()
    grown = folder / "grown" / small.images_path.name
    grown.write_bytes(
        grown.read_bytes() + oracle.gzip.compress(b"")
    )  # an empty member: the same content, a larger file
    feedd = daemons({"datasets": datasets})

    _, end = feedd.cat("small", "--batches", 3)
    for other in "tiny", "renamed", "grown":
        message = feedd.cat_fails(other, "--resume", end["token"], words=["resume token", "another dataset", other])
        assert "1000 samples" in message
    rest, _ = feedd.cat("moved", "--resume", end["token"])
    check_batches(rest, plan(1000, 64, "drop", 1, start=(0, 192)), small)


def test_force(feedd, whole, small, tiny):
    """--force-resume takes the position, and what was asked for goes before what the token says."""
    token = token_at(whole, 3).text()
    order = {}
    reference, _ = feedd.cat("train", "--seed", 6)
    check_batches(reference, plan(1000, 64, "partial", 1), small, order)
    rest, end = feedd.cat("train", "--seed", 6, "--resume", token, "--force-resume")
    check_batches(rest, plan(1000, 64, "partial", 1, start=(0, 192)), small, order)
    assert Token.parse(end["token"]).seed == 6

    rest, _ = feedd.cat("train", "--order", "sequential", "--resume", token, "--force-resume")
    check_batches(rest, plan(1000, 64, "partial", 1, start=(0, 192)), small)

    token = token_at(whole, 1).text()  # position 64, and tiny has 100
    rest, end = feedd.cat("tiny", "--order", "sequential", "--batch-size", 9, "--resume", token, "--force-resume")
    check_batches(rest, plan(100, 9, "drop", 1, start=(0, 64)), tiny)
    assert Token.parse(end["token"]).count == 100
    token = token_at(whole, 2).text()  # position 128
    feedd.cat_fails("tiny", "--resume", token, "--force-resume", words=["position 128", "0 to 100"])
