"""zero_copy: what is kept is never overwritten, can't be written, and keeps its slot no longer than it is there."""

import gc
import threading

import feedd
import numpy
import pytest


def test_hold_three_ask_for_a_hundred(loaders, small):
    """Of a ring of 4: the exception comes and says what to do, the data stay; with room again it goes on."""
    loader = loaders("short", batch_size=50, zero_copy=True, order="sequential")
    loop, held = iter(loader), []
    with pytest.raises(feedd.LeasesError, match="clone.*depth"):
        for _ in range(100):
            batch = next(loop)
            if len(held) < 3:
                held.append(batch)
            del batch
    for number, (images, labels) in enumerate(held):
        samples = slice(50 * number, 50 * number + 50)
        assert numpy.array_equal(images.transpose(0, 2, 3, 1), small.images[samples])
        assert numpy.array_equal(labels, small.labels[samples])
    with pytest.raises(feedd.LeasesError):
        next(loop)
    assert loader.stats()["held"] == 3
    del held, images, labels
    assert len([0 for _ in loop]) == 20 - 4 and loader.stats()["held"] == 0


def test_read_only(loaders):
    images, labels = next(iter(loaders(zero_copy=True)))
    for array in images, labels, images[1:3], labels.view():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(ValueError, match="WRITEABLE|writeable"):
        labels.flags.writeable = True


def test_a_view_of_a_view_keeps_the_slot(loaders, small):
    loader = loaders("short", batch_size=50, zero_copy=True, order="sequential")
    loop = iter(loader)
    one = next(loop)[0][7, 0]  # one picture
    for _ in range(3):
        next(loop)
    with pytest.raises(feedd.LeasesError):
        next(loop)
    assert numpy.array_equal(one, small.images[7, ..., 0])
    del one
    next(loop)


def test_beyond_the_end_of_the_loader(loaders, daemon, small):
    loader = loaders("short", batch_size=50, zero_copy=True, order="sequential")
    kept = [next(iter(loader))[0]]
    loader.close()
    assert numpy.array_equal(kept[0].transpose(0, 2, 3, 1), small.images[:50])
    daemon.wait_report(lambda r: len(r["streams"]) == 1, what="the stream of what is kept")
    thread = threading.Thread(target=kept.clear)  # wherever it happens to go
    thread.start()
    thread.join()
    daemon.wait_report(lambda r: not r["streams"] and not r["clients"], what="nothing left")


def test_a_loader_that_is_forgotten(daemon):
    """Without close(): it goes with its last reference, in the middle of an epoch."""
    loader = feedd.NumpyLoader("small", batch_size=64, socket=daemon.socket)
    next(iter(loader))
    del loader
    gc.collect()
    daemon.wait_report(lambda r: not r["streams"] and not r["clients"], what="nothing left")


def test_capsules(loaders):
    """One that nobody takes gives its lease back; the versioned one says that it is read-only."""
    from feedd._dlpack import View

    loader = loaders("short", batch_size=50, zero_copy=True)
    client = loader._client
    for version in None, (0, 8), (1, 0), (1, 1):
        client.take()
        view = View(client, 0, (1, 0), None)
        capsule = view.__dlpack__(max_version=version)
        assert repr(capsule).startswith(
            f'<capsule object "dltensor{"_versioned" if version and version >= (1, 0) else ""}"'
        )
        array = numpy.from_dlpack(view)
        client.release(None)
        assert not array.flags.writeable and loader.stats()["held"] == 1
        del array
        assert loader.stats()["held"] == 1
        del capsule
    for _ in range(20):
        client.take()
        client.release(None)
