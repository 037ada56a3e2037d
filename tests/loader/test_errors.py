"""A daemon that is missing, or something else; what is said, and what to do."""

import os
import socket
import struct
import threading

import feedd
import pytest
from conftest import python


def test_no_daemon(folder, monkeypatch):
    for missing in (folder / "nobody", None):
        monkeypatch.setenv("FEEDD_SOCKET", str(folder / "elsewhere"))
        with pytest.raises(feedd.DaemonError) as raised:
            feedd.NumpyLoader("small", batch_size=8, socket=missing)
        text = str(raised.value)
        assert str(missing or folder / "elsewhere") in text and "start it" in text and "autostart=True" in text, text
        assert isinstance(raised.value, ConnectionError) and raised.value.status == -11


def test_a_daemon_of_another_version(folder):
    """It answers in another version of the protocol, as one of later times would."""
    path = str(folder / "s")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(path)
    server.listen()

    def answer():
        client, _ = server.accept()
        client.recv(4096)
        client.send(struct.pack("=HHHH", 0xFEED, 2, 2, 0))
        client.recv(4096)
        client.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(feedd.VersionError, match="one version"):
        feedd.NumpyLoader("small", batch_size=8, socket=path)
    thread.join()
    server.close()


def test_no_such_source(loaders):
    with pytest.raises(LookupError, match="nothing"):
        loaders("nothing")
    with pytest.raises(feedd.NotFoundError, match="No such file"):
        loaders("/nonexistent/photos")


def test_other_frameworks_that_are_missing(daemon):
    """A clear word, and only when they are asked for."""
    code = """
import sys
for name in ("torch", "jax", "cupy"):
    sys.modules[name] = None
import feedd, json
assert not any(name in sys.modules and sys.modules[name] for name in ("torch", "jax", "cupy", "numpy"))
said = []
for kind in feedd.DataLoader, feedd.JaxLoader, feedd.CupyLoader:
    try:
        kind("small", batch_size=8, device="cpu", socket=sys.argv[1])
    except ImportError as error:
        said.append(str(error))
print(json.dumps(said))
"""
    said = python(code, daemon.socket)
    assert ["torch" in said[0], "jax" in said[1], "cupy" in said[2]] == [True] * 3, said
    assert all("NumpyLoader" in text and "isn't installed" in text for text in said)


def test_no_library():
    code = """
import json, sys, feedd
try:
    feedd.NumpyLoader("small", batch_size=8)
except ImportError as error:
    print(json.dumps(str(error)))
"""
    assert "FEEDD_LIBRARY" in python(code, env={"FEEDD_LIBRARY": "/nonexistent/libfeedd.so"})
    assert "another version" in python(code, env={"FEEDD_LIBRARY": "libc.so.6"})


def test_after_a_fork(loaders):
    """The child is told; the parent notices nothing."""
    loader = loaders(zero_copy=True)
    loop = iter(loader)
    images, _ = next(loop)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (lambda: next(loop), lambda: loader.path(0), lambda: iter(loader)):
                try:
                    call()
                except feedd.ForkError as error:
                    assert "after the fork" in str(error)
                else:
                    raise AssertionError("no error")
            images.sum()
            loader.close()
            images.sum()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len([0 for _ in loop]) == 14
