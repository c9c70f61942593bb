#!/bin/sh
# Formatting, lint, types and compiler warnings. Every step runs; the failed ones are named last.
# Environment: PYTHON (the interpreter of .venv), JOBS (parallel compilations).
set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
python=${PYTHON:-.venv/bin/python}
jobs=${JOBS:-2}
log=$root/build/lint.log
mkdir -p build
failed=

# step NAME COMMAND...: prints one line, and the command's output only if it fails.
step() {
    name=$1
    shift
    if "$@" >"$log" 2>&1 </dev/null; then
        echo "ok      $name"
    else
        echo "FAILED  $name"
        tail -n 80 "$log"
        failed="$failed $name"
    fi
}

c_format() {
    find include src tests tools examples -name '*.[ch]' -print0 2>/dev/null |
        xargs -0 clang-format --dry-run -Werror
}

# Both ways of building the extension: for this interpreter alone, as for free-threaded ones, and
# (in the wheel) against the limited API.
warnings() {
    cmake -S . -B build/warnings -DBUILD_TESTING=ON -DSHAREDVECTOR_BUILD_PYTHON=ON \
        -DSHAREDVECTOR_WERROR=ON -DPython_EXECUTABLE="$python" &&
        cmake --build build/warnings -j "$jobs"
}
warnings_limited_api() {
    "$python" -m pip wheel -qq --disable-pip-version-check --no-build-isolation --no-deps \
        -C build-dir=build/warnings-wheel -C cmake.define.SHAREDVECTOR_WERROR=ON \
        -w build/warnings-wheel/dist .
}

# stubtest imports the package, so it runs outside the tree; the stubs are those of the tree.
stubtest() {
    (cd build && MYPYPATH="$root/python" "$python" -m mypy.stubtest sharedvector \
        --mypy-config-file "$root/pyproject.toml" \
        --allowlist "$root/tools/stubtest_allowlist.txt")
}

step ruff-check "$python" -m ruff check .
step ruff-format "$python" -m ruff format --check .
step clang-format c_format
step mypy "$python" -m mypy --config-file pyproject.toml
step stubtest stubtest
[ ! -e tools/check_edges.py ] || step edges "$python" tools/check_edges.py
step layers "$python" tools/check_layers.py
step warnings warnings
step warnings-limited-api warnings_limited_api

if [ -n "$failed" ]; then
    echo "lint failed:$failed"
    exit 1
fi
