"""libfeedd: what its callers may rely on, from Python, from C99 and from C++, and what of it is visible."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import BUILD, ENVIRONMENT, LIBRARY, PROGRAMS, ROOT, check_output, run, sanitizer

HERE = Path(__file__).parent
SCENARIOS = re.findall(r"^@scenario\ndef (\w+)", (HERE / "library_scenarios.py").read_text(), re.MULTILINE)
FUNCTIONS = sorted(
    set(re.findall(r"\b(feedd_\w+)\(", (ROOT / "client" / "feedd.h").read_text().split("#ifndef FEEDD_H")[1]))
)

PROGRAM = """
#include <feedd.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    struct feedd_open_options options = FEEDD_OPEN_OPTIONS_INIT;
    struct feedd_error err;
    struct feedd_client *client;
    struct feedd_stream *stream;
    const struct feedd_batch *batch;
    unsigned long samples = 0;
    int rc;
    options.has_epochs = 1;
    options.epochs = 1;
    if (argc != 2 || feedd_connect(argv[1], &client, &err) || feedd_open(client, "train", &options, &stream, &err))
        return fprintf(stderr, "%s\\n", err.message), 1;
    while ((rc = feedd_next(stream, -1, &batch, &err)) == FEEDD_OK) {
        struct feedd_batch_info info;
        feedd_batch_info(batch, &info);
        samples += info.valid;
        feedd_release(batch, NULL, &err);
    }
    feedd_client_close(client);
    printf("%s: %s after %lu samples\\n", feedd_version(), feedd_status_name(rc), samples);
    return 0;
}
"""


def python_environment():
    """The environment in which Python can load the library: a sanitizer's runtime has to come first."""
    env = {**ENVIRONMENT, "FEEDD_LIBRARY": str(LIBRARY), "PYTHONDONTWRITEBYTECODE": "1"}
    kind = sanitizer()
    if kind == "thread":
        pytest.skip("Python can't load a library of the thread sanitizer; C clients run under it")
    if kind == "address":
        linked = subprocess.run(["ldd", LIBRARY], capture_output=True, text=True, check=True).stdout
        env["LD_PRELOAD"] = re.search(r"=> (\S*libasan\S*)", linked)[1]
        env["ASAN_OPTIONS"] = "detect_leaks=0"  # Python's own; feedctl and the C clients are checked for ours
    return env


def test_scenarios_were_found():
    assert "fork" in SCENARIOS and "leases" in SCENARIOS and len(SCENARIOS) == len(set(SCENARIOS))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(daemons, small, scenario):
    names = ["a", "\u00e9\u00e8", "a"] + [f"c{i}" for i in range(7)]
    feedd = daemons({"datasets": {"small": small.config(), "named": small.config(classes=names)}})
    command = [
        sys.executable,
        HERE / "library_scenarios.py",
        scenario,
        feedd.socket,
        small.images_path,
        small.labels_path,
    ]
    done = run(command, env=python_environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), done.stderr.decode()[-6000:]
    if "daemon" in scenario:  # which the scenario has stopped
        assert feedd.process.wait(20) == 0
        check_output(feedd.log.read_bytes(), "feedd")
    else:
        feedd.wait_report(lambda r: not r["streams"] and not r["clients"], what="nothing left")


@pytest.mark.tsan
def test_lent_to_other_threads(daemons, small):
    """Read and deleted by them while the caller goes on, and after it has closed everything."""
    feedd = daemons({"datasets": {"small": small.config()}})
    done = run([PROGRAMS / "lending_client", feedd.socket, "small", 3000])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"3000\n", b""), done.stderr.decode()
    feedd.wait_report(lambda r: not r["streams"] and not r["clients"], what="nothing left")


# ---- the header ----


@pytest.mark.parametrize(
    "command",
    [
        ["gcc", "-x", "c", "-std=c99", "-pedantic-errors"],
        ["gcc", "-x", "c", "-std=c11", "-pedantic-errors"],
        ["g++", "-x", "c++", "-std=c++11", "-pedantic-errors"],
        ["g++", "-x", "c++", "-std=c++20", "-pedantic-errors"],
        ["clang", "-x", "c", "-std=c99", "-pedantic-errors", "-Weverything", "-Wno-padded"],
    ],
    ids=" ".join,
)
def test_header_is_strict(folder, command):
    """Alone and twice; and in a program that uses it."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is missing")
    flags = ["-Wall", "-Wextra", "-Werror", "-Wconversion", "-I", str(ROOT / "client"), "-I", str(ROOT / "proto")]
    for number, text in enumerate(["#include <feedd.h>\n#include <feedd.h>\nextern int nothing;\n", PROGRAM]):
        source = folder / f"{number}.c"
        source.write_text(text)
        if number == 1 and "-Weverything" in command:  # of the header, not of the program
            command = [flag for flag in command if not flag.startswith("-W")]
        done = run([*command, *flags, "-fsyntax-only", source])
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()


def test_header_macros_have_a_prefix(folder):
    """feedd.h adds no macro to its user's program that doesn't say whose it is."""
    macros = {}
    for name, text in ("with", "#include <feedd.h>\n"), ("without", "#include <stddef.h>\n#include <stdint.h>\n"):
        source = folder / f"{name}.c"
        source.write_text(text)
        done = run(["gcc", "-std=c99", "-dM", "-E", "-I", ROOT / "client", "-I", ROOT / "proto", source])
        macros[name] = {line.split()[1].split("(")[0] for line in done.stdout.decode().splitlines()}
    added = macros["with"] - macros["without"]
    assert added and all(name.startswith("FEEDD_") for name in added), added


# ---- the shared object ----


def symbols(*options):
    done = run(["nm", "-D", *options, LIBRARY])
    assert done.returncode == 0
    return [line.split()[-1].split("@")[0] for line in done.stdout.decode().splitlines()]


def test_exported_symbols():
    """What feedd.h declares and nothing else; each with a version, so that an ABI can be replaced by another."""
    defined = [name for name in symbols("--defined-only") if name != "FEEDD_0"]
    assert sorted(defined) == FUNCTIONS and "feedd_next" in FUNCTIONS
    lines = run(["nm", "-D", "--defined-only", "--with-symbol-versions", LIBRARY]).stdout.decode().splitlines()
    assert all(line.endswith("@@FEEDD_0") for line in lines if " T " in line)


def test_soname_and_dependencies():
    text = run(["readelf", "-d", LIBRARY]).stdout.decode()
    assert "[libfeedd.so.0]" in re.search(r"SONAME.*", text)[0]
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", text)) - {"libfake_cudart.so"}  # CUDA's own is linked in
    assert not any("uv" in name or "yaml" in name or "cuda" in name for name in needed), needed
    assert "TEXTREL" not in text and "RPATH" not in text


@pytest.mark.release
def test_installed(folder, feedd):
    """`cmake --install` into any prefix: pkg-config finds the library there, and a C program is built and runs."""
    prefix = folder / "prefix"
    done = run(["cmake", "--install", BUILD, "--prefix", prefix])
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    installed = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}
    assert {"include/feedd.h", "include/feedd_types.h", "bin/feedctl", "sbin/feedd"} <= installed
    assert not any(name.endswith((".a", "_client", "alloc_counter.so")) for name in installed), installed
    config = next(prefix.rglob("feedd.pc"))
    env = {**ENVIRONMENT, "PKG_CONFIG_PATH": str(config.parent)}
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "feedd"], capture_output=True, text=True, env=env, check=True
    )
    assert str(prefix) in flags.stdout, f"feedd.pc points elsewhere: {flags.stdout}"
    source = folder / "program.c"
    source.write_text(PROGRAM)
    done = run(["gcc", "-std=c99", "-Wall", "-Werror", source, "-o", folder / "program", *flags.stdout.split()])
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    library = next(prefix.rglob("libfeedd.so.0")).parent
    done = run([folder / "program", feedd.socket], env={**ENVIRONMENT, "LD_LIBRARY_PATH": str(library)})
    assert (done.returncode, done.stdout) == (0, b"0.1.0: end of stream after 1000 samples\n"), (
        done.stdout + done.stderr
    )
    assert os.path.realpath(library / "libfeedd.so.0").startswith(str(prefix))
