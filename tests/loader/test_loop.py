"""A loader in a training script: loops, epochs, what is asked of it, and what is refused."""

import pickle
import threading

import feedd
import numpy
import pytest


def epoch_of(loader):
    return [(loader.batch.epoch, loader.batch.position) for _ in loader]


def test_several_epochs(loaders):
    loader = loaders(fields=["index"])
    assert len(loader) == 15 and len(loader.dataset) == 1000 and loader.batch_size == 64
    seen = [[batch["index"] for batch in loader] for _ in range(3)]
    assert [len(epoch) for epoch in seen] == [15, 15, 15]
    assert [loader.stats()[key] for key in ("epoch", "position")] == [3, 0]
    orders = {tuple(numpy.concatenate(epoch)) for epoch in seen}
    assert len(orders) == 3 and all(len(set(order)) == 960 for order in orders)


def test_a_loop_that_is_left_is_over(loaders):
    """The next one begins the next epoch, from its start, as torch's does."""
    loader = loaders()
    for _ in range(3):
        next(iter(loader))
    assert loader.batch[:2] == (2, 0)
    for _ in loader:
        if loader.batch.position == 4 * 64:
            break
    assert loader.batch.epoch == 3
    assert epoch_of(loader) == [(4, 64 * i) for i in range(15)]
    assert epoch_of(loader)[0] == (5, 0)


def test_set_epoch(loaders):
    """As a DistributedSampler's: the order is that of the epoch, however one comes to it."""
    order = {e: [b["index"].tolist() for b in loader] for loader in [loaders(fields=["index"])] for e in range(4)}
    loader = loaders(fields=["index"])
    for epoch in (3, 0, 1, 2, 2, 0):
        loader.set_epoch(epoch)
        assert [b["index"].tolist() for b in loader] == order[epoch], epoch
    loader.set_epoch(3)
    next(iter(loader))
    loader.set_epoch(3)
    assert [b["index"].tolist() for b in loader] == order[3]  # left early, and from its start again
    with pytest.raises(ValueError, match="epoch"):
        loader.set_epoch(-1)


def test_epochs_end(loaders):
    loader = loaders(epochs=2)
    assert [len(epoch_of(loader)) for _ in range(4)] == [15, 15, 0, 0]
    loader.set_epoch(1)
    assert len(epoch_of(loader)) == 15
    loader.set_epoch(7)
    assert epoch_of(loader) == []


def test_train_and_validation_at_once(loaders):
    train, validation = loaders(subset="a"), loaders(subset="b", order="sequential", tail="partial", batch_size=100)
    for epoch in range(2):
        for number, _ in enumerate(train):
            if number == 5:
                assert [batch.count for batch in (validation.batch for _ in validation)] == [100, 100, 50]
        assert number == len(train) - 1 == 10
    assert train.batch.epoch == validation.batch.epoch == 1


def test_two_loops_over_one_loader(loaders):
    loader = loaders()
    first, second = iter(loader), iter(loader)
    next(second)
    with pytest.raises(RuntimeError, match="another one"):
        next(first)
    next(second)


def test_questions(loaders, small, daemon):
    loader = loaders()
    assert loader.classes == [f"class {i}" for i in range(10)]
    assert loader.dataset.class_to_idx["class 3"] == 3 and loaders("tiny").classes is None
    assert loader.path(numpy.int64(12)) == f"{small.images_path}[12]"
    with pytest.raises(LookupError, match="1000"):
        loader.path(1000)
    assert repr(loader).startswith("<feedd.NumpyLoader small: 1000 samples, batches of 64, 15 an epoch, rank 0 of 1")
    stats = loader.stats()
    assert (stats["batches"], stats["held"], stats["rank_source"], stats["device"]) == (0, 0, "alone", "host memory")
    for _ in loader:
        pass
    stats = loader.stats()
    assert (stats["batches"], stats["samples"], stats["held"], stats["order"]) == (15, 960, 0, "shuffle")
    (stream,) = (stream for stream in daemon.report()["streams"] if stream["dataset"] == "small")
    assert (stream["order"], stream["seed"], stream["epochs"]) == ("shuffle", 0, 0)


def test_as_configured(loaders):
    """None leaves it to feedd.conf."""
    loader = loaders("train", batch_size=None, order=None, seed=None, tail=None)
    stats = loader.stats()
    assert (loader.batch_size, stats["order"], stats["seed"], stats["tail"]) == (64, "shuffle", 1, "partial")


def test_closed(loaders):
    with loaders() as loader:
        loop = iter(loader)
        next(loop)
    loader.close()
    for call in (lambda: next(loop), lambda: next(iter(loader)), loader.stats, lambda: loader.path(0)):
        with pytest.raises(feedd.Error, match="closed"):
            call()
    assert len(loader) == 15 and loader.batch_size == 64


def test_closed_by_another_thread(loaders):
    """While it waits for a gate that doesn't open."""
    loader = loaders(share="broadcast", members=2)
    errors = []

    def wait():
        try:
            next(iter(loader))
        except feedd.Error as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    loader.close()
    thread.join(10)
    assert not thread.is_alive() and "closed" in errors[0]


def test_threads_share_a_loop(loaders):
    loader = loaders(fields=["index"])
    loop, seen, lock = iter(loader), [], threading.Lock()

    def read():
        for batch in loop:
            with lock:
                seen.append(batch["index"])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 15 and len(set(numpy.concatenate(seen))) == 960


def test_pickle(loaders):
    with pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(loaders())


@pytest.mark.parametrize(
    "options, words",
    [
        ({"layout": "hwc"}, ["nchw", "nhwc"]),
        ({"order": "random"}, ["shuffle", "sequential"]),
        ({"tail": "keep"}, ["partial"]),
        ({"share": "all"}, ["broadcast"]),
        ({"normalize": "gpu"}, ["client", "daemon", "cpu"]),
        ({"transport": "tcp"}, ["ipc", "fd", "host"]),
        ({"transport": "ipc"}, ["ipc", "host"]),
        ({"dtype": "float64"}, ["float32"]),
        ({"dtype": int}, ["dtype", "float32"]),
        ({"mean": 0.5}, ["dtype"]),
        ({"dtype": "float32", "mean": [0.5, 0.5, 0.5]}, ["3 channels", "1"]),
        ({"dtype": "float32", "mean": [0.5, 0.5], "std": [1, 1, 1]}, ["mean", "std"]),
        ({"dtype": "float32", "std": 0}, ["std"]),
        ({"dtype": "float32", "scale": -1}, ["scale"]),
        ({"batch_size": 0}, ["batch_size"]),
        ({"batch_size": 2000}, ["tail"]),
        ({"epochs": 0}, ["epochs"]),
        ({"rank": 1}, ["world_size"]),
        ({"rank": 3, "world_size": 3}, ["rank 3 of 3"]),
        ({"device": "cuda"}, ["host memory", "cpu"]),
        ({"zero_copy": True, "dtype": "float32"}, ["zero_copy", "daemon", "cpu"]),
        ({"zero_copy": True, "dtype": "float32", "normalize": "client"}, ["zero_copy", "daemon", "cpu"]),
        ({"dtype": "float32", "std": 0, "normalize": "cpu"}, ["std"]),
        ({"dtype": "float32", "mean": [0.5, 0.5, 0.5], "normalize": "cpu"}, ["3 channels", "1"]),
        ({"dtype": "float32", "layout": "nhwc", "mean": [0.5] * 3, "normalize": "cpu"}, ["3 channels", "1"]),
        ({"members": 3}, ["broadcast"]),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense(loaders, options, words):
    with pytest.raises(ValueError) as raised:
        loader = loaders(**options)
        next(iter(loader))
    assert all(word in str(raised.value) for word in words), raised.value


def test_transforms():
    from feedd._transforms import text

    r, c, rrc, rc, f = (
        feedd.Resize,
        feedd.CenterCrop,
        feedd.RandomResizedCrop,
        feedd.RandomCrop,
        feedd.RandomHorizontalFlip,
    )
    assert text(None) is None and text("{resize: 1}") == "{resize: 1}"
    assert text([r(256), c((224, 200)), f()]) == '{"resize": 256, "center_crop": [224, 200], "flip": 0.5}'
    assert text(rrc(224)) == '{"random_resized_crop": 224}'
    assert text([rrc([200, 224], scale=(0.5, 1)), f(0.25)]) == (
        '{"random_resized_crop": {"size": [200, 224], "scale": [0.5, 1]}, "flip": 0.25}'
    )
    assert text([f(p=1), rc(32, padding=4)]) == '{"flip": 1.0, "random_crop": {"size": 32, "padding": 4}}'
    assert text(rc(32, padding=(1, 2, 3, 4))) == '{"random_crop": {"size": 32, "padding": [1, 2, 3, 4]}}'
    assert text(r((100, 90))) == '{"resize": [100, 90]}' and text(rc((8,))) == '{"random_crop": 8}'
    for wrong, kind in (([c(5), r(6)], ValueError), ([f(), f()], ValueError), (r(0), ValueError), (r((1, 2, 3)), ValueError),
                        ([r(5), abs], TypeError)):  # fmt: skip
        with pytest.raises(kind):
            text(wrong)


def test_transforms_that_the_daemon_refuses(loaders):
    """By the parser of feedd.conf, which says what is wrong."""
    for transform, words in (
        ("{nonsense: 1}", ["nonsense"]),
        ([feedd.RandomHorizontalFlip(2)], ["flip", "0 to 1"]),
        ([feedd.Resize(10)], ["center_crop"]),
    ):
        with pytest.raises(feedd.ArgumentError) as raised:
            loaders(transform=transform)
        assert all(word in str(raised.value) for word in words), raised.value


def test_flip(loaders, small):
    batch = next(iter(loaders(transform=feedd.RandomHorizontalFlip(1), fields=["image", "index"], layout="nhwc")))
    assert numpy.array_equal(batch["image"], small.images[batch["index"]][:, :, ::-1])
