"""`pip install`: what is built, what is in it, and that it works on its own."""

import ctypes
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import python_environment
from harness import ENVIRONMENT, ROOT
from photos import make_photos
from test_autostart import private  # noqa: F401

PACKAGE = ROOT / "client" / "python"


def test_versions_agree():
    version = re.search(r"VERSION (\d+\.\d+\.\d+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert f'version = "{version}"' in (PACKAGE / "pyproject.toml").read_text()
    assert f'VERSION = "{version}"' in (PACKAGE / "feedd" / "_lib.py").read_text()


def test_binding_is_the_header(folder):
    """Each structure of _lib.py has the size, and each member the place, that a C compiler gives it."""
    from feedd import _lib

    structures = {
        "feedd_error": _lib.Error, "feedd_open_options": _lib.OpenOptions, "feedd_field": _lib.Field,
        "feedd_schema": _lib.Schema, "feedd_batch_info": _lib.BatchInfo, "feedd_stream_stats": _lib.Stats,
        "feedd_normalize_options": _lib.NormalizeOptions,
    }  # fmt: skip
    lines = []
    for name, kind in structures.items():
        lines.append(f'printf("%zu\\n", sizeof(struct {name}));')
        lines += [f'printf("%zu\\n", offsetof(struct {name}, {member}));' for member, _ in kind._fields_]
    source = folder / "layout.c"
    source.write_text(
        "#include <stdio.h>\n#include <stddef.h>\n#include <feedd.h>\nint main(void) {\n" + "\n".join(lines) + "\n}\n"
    )
    include = ["-I", ROOT / "client", "-I", ROOT / "proto"]
    subprocess.run(["gcc", "-std=c99", *include, source, "-o", folder / "layout"], check=True, env=ENVIRONMENT)
    printed = subprocess.run([folder / "layout"], capture_output=True, check=True, env=ENVIRONMENT).stdout.split()
    ours = []
    for kind in structures.values():
        ours.append(ctypes.sizeof(kind))
        ours += [getattr(kind, member).offset for member, _ in kind._fields_]
    assert [int(number) for number in printed] == ours


@pytest.mark.release
@pytest.mark.timeout(400)
def test_wheel(folder, private):  # noqa: F811
    """Built from the tree, installed elsewhere, and used with nothing set: it finds its library and its daemon."""
    pytest.importorskip("scikit_build_core", reason="needs scikit-build-core (tests/requirements.txt)")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q", "-w", folder, PACKAGE],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("feedd-*.whl")
    assert re.fullmatch(r"feedd-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    modules = {f"feedd/{path.name}" for path in (PACKAGE / "feedd").iterdir() if path.suffix in (".py", ".typed")}
    assert {name for name in names if not name.startswith("feedd-")} == modules | {
        "feedd/lib/libfeedd.so.0",
        "feedd/bin/feedd",
    }
    site = folder / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel], check=True)
    photos = make_photos(folder / "photos", 20, size=(20, 16))
    code = (
        "import json, feedd, numpy\n"
        f"loader = feedd.NumpyLoader({str(photos)!r}, batch_size=5, dtype='float32')\n"
        "print(json.dumps([feedd.__file__, len([0 for _ in loader]), loader.classes]))\n"
    )
    env = python_environment(
        {"PYTHONPATH": str(site), "FEEDD_LIBRARY": "", "FEEDD_PROGRAM": "", "PATH": "/usr/bin:/bin"}
    )
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, env=env, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr.decode()
    where, batches, classes = json.loads(done.stdout)
    assert Path(where).is_relative_to(site) and batches == 4 and len(classes) == 4
    shutil.rmtree(site)
