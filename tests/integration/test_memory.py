"""What a client gets is for reading: no descriptor that the daemon passes lets anybody change or cut its memory."""

import ctypes
import errno
import fcntl
import mmap
import os

import pytest
from harness import Feedd
from rawclient import Client, Stream

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]

F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE, SEAL_FUTURE_WRITE = 1, 2, 4, 8, 16
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE = 1, 2, 16
REFUSED = {errno.EPERM, errno.EACCES, errno.EOPNOTSUPP}


@pytest.fixture(params=["ring", "meta", "class names", "report"])
def passed(request, daemons, small):
    """A descriptor that the daemon has passed, and its size."""
    classes = [f"class {i}" for i in range(10)]
    feedd = daemons({"datasets": {"small": small.config(classes=classes)}})
    with Client(feedd.socket) as client, Client(feedd.socket) as asking:
        stream = Stream(client, "small", epochs=0)
        stream.next()
        assert len(stream.other_fds) == 1
        fd = {"ring": stream.ring_fd, "meta": stream.meta_fd, "class names": stream.other_fds[0]}.get(request.param)
        if fd is None:
            fd = asking.status().fds[0]
            stream.other_fds.append(fd)
        size = os.fstat(fd).st_size
        before = os.pread(fd, 64, 0) if request.param == "class names" else None
        yield fd, size
        assert os.fstat(fd).st_size == size
        if before is not None:
            assert (
                before
                == b"class 0\0class 1\0class 2\0class 3\0class 4\0class 5\0class 6\0class 7\0"
                == os.pread(fd, 64, 0)
            )
        feedd.check_running()
        stream.close_fds()


def refused(result):
    return result == -1 and ctypes.get_errno() in REFUSED


def test_descriptor(passed):
    fd, size = passed
    assert fcntl.fcntl(fd, F_GET_SEALS) & ~SEAL_WRITE == SEAL_SEAL | SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE
    for attempt in (
        lambda: os.write(fd, b"x"),
        lambda: os.pwrite(fd, b"x", 0),
        lambda: os.ftruncate(fd, 0),
        lambda: os.ftruncate(fd, size + 4096),
        lambda: os.posix_fallocate(fd, size, 4096),
        lambda: fcntl.fcntl(fd, F_ADD_SEALS, SEAL_WRITE),
        lambda: mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
        lambda: mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_WRITE),
    ):
        with pytest.raises(OSError) as failure:
            attempt()
        assert failure.value.errno in REFUSED
    for mode in FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, FALLOC_ZERO_RANGE:
        assert refused(libc.fallocate(fd, mode, 0, 4096))


def test_mapping_cannot_be_made_writable(passed):
    fd, size = passed
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    assert address not in (None, ctypes.c_void_p(-1).value)
    assert refused(libc.mprotect(address, size, mmap.PROT_READ | mmap.PROT_WRITE))
    libc.munmap(address, size)


def test_reopened(passed):
    """Through /proc it can be opened once more, for writing: the seals are the file's, not the descriptor's."""
    fd, size = passed
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    for attempt in (
        lambda: os.write(again, b"x"),
        lambda: os.ftruncate(again, 0),
        lambda: mmap.mmap(again, size, mmap.MAP_SHARED, mmap.PROT_WRITE),
    ):
        with pytest.raises(OSError) as failure:
            attempt()
        assert failure.value.errno in REFUSED
    os.close(again)


def test_private_copy(passed):
    """A private mapping may be written: it changes nobody else's bytes."""
    fd, size = passed
    copy = mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    other = copy[0] ^ 0xFF
    copy[0] = other
    assert os.pread(fd, 1, 0)[0] != other
    copy.close()


def test_daemon_still_writes(feedd: Feedd, small):
    """Sealed for everybody else, the ring is still the daemon's to fill: slots are used again and again."""
    with Client(feedd.socket) as client:
        stream = Stream(client, "train", depth=2)
        seen = {}
        for _ in range(50):
            batch = stream.next()
            assert batch.fields == small.fields(batch.indices)
            seen.setdefault(batch.slot, set()).add(tuple(batch.indices))
            stream.release(batch)
        assert {slot: len(batches) for slot, batches in seen.items()} == {0: 25, 1: 25}
        stream.close_fds()
