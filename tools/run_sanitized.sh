#!/bin/sh
# Runs the C tests under a sanitizer, and for asan the extension's tests too. With SHORT=1 only the
# C tests of the modules, and the corpus of the fuzzer.
# Usage: run_sanitized.sh asan|tsan   Environment: PYTHON, JOBS, SHORT
set -eu
cd "$(dirname "$0")/.."
kind=$1
python=${PYTHON:-.venv/bin/python}
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1

if [ -n "${SHORT:-}" ]; then
    exec sh tools/run_c_tests.sh "$kind" "$kind" -L 'unit|fuzz|torture'
fi
sh tools/run_c_tests.sh "$kind" "$kind"
[ "$kind" = asan ] || exit 0

# The editable install in .venv hides every other copy of the package. So the instrumented one gets
# an environment of its own, which borrows all other packages from .venv.
venv=$PWD/build/asan-python
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
test -x "$venv/bin/python" || "$python" -m venv --without-pip "$venv"
site "$python" >"$(site "$venv/bin/python")/borrowed.pth"
"$python" -m pip --disable-pip-version-check install -qq --no-build-isolation --no-deps --upgrade \
    --target "$(site "$venv/bin/python")" \
    -C build-dir=build/asan-extension -C install.strip=false -C cmake.build-type=RelWithDebInfo \
    -C cmake.define.SHAREDVECTOR_SANITIZE=address,undefined .

tests=$(ls tests/python/test_core_*.py tests/python/test_vector.py 2>/dev/null || true)
if [ -z "$tests" ]; then
    echo "no tests of the extension in tests/python" >&2
    exit 1
fi
cc=${CC:-cc}
# Leaks are not looked for: CPython leaves thousands of small ones of its own.
# shellcheck disable=SC2086
LD_PRELOAD="$($cc -print-file-name=libasan.so) $($cc -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=0 \
    "$venv/bin/python" -m pytest -q -p no:xdist -o addopts=-ra -m 'not slow' $tests
