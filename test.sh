#!/usr/bin/env bash
# test.sh [--quick] - installs what the tests need, builds every variant and runs all tests of this machine.
# --quick: only the dev build (address and undefined behaviour sanitizers).
#
# Happy path: packages, Python environment, formatting, then build, unit tests and integration tests of dev, tsan and
# release, with dev and release the Python package, and once, with dev, the parts that Python loads against their
# oracles. A failed stage doesn't stop the others; each counts: a check or a build as one, a test run by its tests.
# The last line sums up; the exit code is 0 only when nothing failed.
#
# FEEDD_TEST_DATA  folder of the data that some tests need (default ../shared/data); they skip without it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec </dev/null

case ${1-} in
"") variants=(dev tsan release) ;;
--quick) variants=(dev) ;;
*)
    echo "usage: ./test.sh [--quick]" >&2
    exit 2
    ;;
esac

export LC_ALL=C.UTF-8
FEEDD_TEST_DATA=$(realpath -m "${FEEDD_TEST_DATA:-../shared/data}")
export FEEDD_TEST_DATA
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1

passed=0 failed=0 skipped=0
broken=() # titles of the stages in which something failed
results=build/results # of the latest run: JUnit files and logs
mkdir -p $results
rm -f $results/*

# stage TITLE COMMAND... - runs a command under a heading and prints how long it took; its exit code is in $code.
code=0
stage() {
    local began=$SECONDS
    printf '\n== %s\n' "$1"
    code=0
    "${@:2}" || code=$?
    printf -- '-- %s: %s, %d s\n' "$1" "$( ((code == 0)) && echo ok || echo FAILED)" $((SECONDS - began))
}

# check TITLE COMMAND... - a stage that counts as one test.
check() {
    stage "$@"
    if ((code == 0)); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        broken+=("$1")
    fi
}

# total FILE NAME - adds up one attribute of the test suites in a JUnit file.
total() {
    tr '\n\t' '  ' <"$1" | { grep -o '<testsuite [^>]*>' || true; } | { grep -oE " $2=\"[0-9]+\"" || true; } |
        tr -dc '0-9\n' | awk '{ sum += $1 } END { print sum + 0 }'
}

# suite TITLE unit|integration|oracles|loaders VARIANT - a stage that counts by the JUnit file it writes.
suite() {
    local file=$PWD/$results/$3-$2.xml tests=0 bad=0 left_out=0
    stage "$1" "$2" "$3" "$file"
    if [[ -s $file ]]; then
        tests=$(total "$file" tests)
        bad=$(($(total "$file" failures) + $(total "$file" errors)))
        left_out=$(($(total "$file" skipped) + $(total "$file" disabled)))
    fi
    passed=$((passed + tests - bad - left_out))
    skipped=$((skipped + left_out))
    if ((bad == 0 && (code != 0 || tests == 0))); then # it broke before or after its tests, or had none
        bad=1
    fi
    failed=$((failed + bad))
    ((bad == 0)) || broken+=("$1")
}

# quiet LOG COMMAND... - shows the output of a command only when it fails.
quiet() {
    local rc=0
    "${@:2}" >"$1" 2>&1 || rc=$?
    ((rc == 0)) || cat "$1"
    return $rc
}

python_environment() {
    cmp -s tests/requirements.txt .venv/installed && .venv/bin/python -c 'import pytest' && return
    rm -rf .venv
    python3 -m venv .venv &&
        .venv/bin/pip install --quiet --disable-pip-version-check --no-input -r tests/requirements.txt &&
        cp tests/requirements.txt .venv/installed
}

shell_scripts() {
    find . \( -path ./build -o -path ./.venv -o -path ./.git \) -prune -o -type f \( -name '*.sh' -o -path './.ci/run' \) \
        -print0 | xargs -0 shellcheck
}

build() {
    cmake --preset "$1" -DFEEDD_TESTS=ON -DFEEDD_WERROR=ON && cmake --build "build/$1"
}

# unit, integration, oracles, loaders VARIANT FILE: the variant's tests, results to a JUnit file.
unit() {
    "${before[@]}" ctest --test-dir "build/$1" -j 2 --no-tests=error --output-on-failure --output-junit "$2"
}

integration() {
    FEEDD_BUILD_DIR=$PWD/build/$1 "${before[@]}" .venv/bin/python -m pytest tests/integration -q -rs \
        -p no:cacheprovider --timeout=120 "${marked[@]}" --junitxml="$2"
}

oracles() {
    FEEDD_BUILD_DIR=$PWD/build/$1 .venv/bin/python -B -m pytest tests/python -q -rs -p no:cacheprovider --timeout=120 \
        --junitxml="$2"
}

loaders() {
    local runtime=() # of the address sanitizer: it has to be in Python from the start, whose own leaks are not ours
    [[ $1 != dev ]] || runtime=(env ASAN_OPTIONS=detect_leaks=0
        LD_PRELOAD="$(ldd build/dev/client/libfeedd.so | awk '/libasan/ { print $3 }')")
    FEEDD_BUILD_DIR=$PWD/build/$1 "${runtime[@]}" .venv/bin/python -B -m pytest tests/loader -q -rs \
        -p no:cacheprovider --timeout=120 --junitxml="$2"
}

# The thread sanitizer of GCC 12 refuses a memory map that the kernel randomises by more than 28 bits.
fixed_map=()
if (($(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 32) > 28)); then
    fixed_map=(setarch -R)
fi

stage "packages" tests/scripts/packages.sh build demo test
((code == 0)) || exit 1
stage "Python environment" quiet $results/python.log python_environment
((code == 0)) || exit 1
check "formatting" tests/scripts/format.sh
check "shell scripts" shell_scripts

for variant in "${variants[@]}"; do
    before=() marked=()
    case $variant in
    tsan) before=("${fixed_map[@]}") marked=(-m tsan) ;;
    release) marked=(-m release) ;;
    esac
    check "$variant: build" quiet $results/"$variant"-build.log build "$variant"
    ((code == 0)) || continue
    suite "$variant: unit tests" unit "$variant"
    suite "$variant: integration tests" integration "$variant"
    # What Python loads is built without sanitizers in every variant: once is enough.
    [[ $variant != dev ]] || suite "$variant: oracle tests" oracles "$variant"
    [[ $variant == tsan ]] || suite "$variant: Python package" loaders "$variant"
done

printf '\n-- everything: %d s\n' $SECONDS
((failed == 0)) || printf 'FAILED: %s\n' "${broken[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
