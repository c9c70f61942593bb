#!/bin/sh
# Runs ctest, then pytest with the given arguments; both always run. Results go to
# build/results/*.xml, and the last line counts them. Exit 0 only if everything passed.
# Environment: PYTHON (the interpreter of .venv), JOBS (parallel tests).
set -u
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-.venv/bin/python}
jobs=${JOBS:-2}
results=$PWD/build/results
mkdir -p "$results"
rm -f "$results/ctest.xml" "$results/pytest.xml"
status=0

{
    cmake -S . -B build/ctest -DBUILD_TESTING=ON -DSHAREDVECTOR_BUILD_PYTHON=OFF &&
        cmake --build build/ctest -j "$jobs"
} >"$results/build.log" 2>&1 || {
    tail -n 60 "$results/build.log"
    echo "the C tests could not be built (all of the output: $results/build.log)"
    status=1
}
if [ $status -eq 0 ]; then
    ctest --test-dir build/ctest -j "$jobs" --output-on-failure --no-tests=error \
        --output-junit "$results/ctest.xml" </dev/null || status=1
fi

"$python" -m pytest -q -n "$jobs" --junitxml="$results/pytest.xml" "$@" </dev/null || status=1

"$python" tools/count_tests.py "$results/ctest.xml" "$results/pytest.xml" || status=1
exit $status
