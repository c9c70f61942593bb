#!/bin/sh
# Builds a preset and runs its C tests; results go to build/results/<result>.xml.
# Usage: run_c_tests.sh RESULT PRESET [arguments of ctest]   Environment: JOBS
set -eu
cd "$(dirname "$0")/.."
result=$1
preset=$2
shift 2
jobs=${JOBS:-2}
mkdir -p build/results
rm -f "build/results/$result.xml"
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" -j "$jobs" >"build/results/$result.log" 2>&1 || {
    tail -n 60 "build/results/$result.log"
    exit 1
}
ctest --preset "$preset" -j "$jobs" --no-tests=error "$@" \
    --output-junit "$PWD/build/results/$result.xml" </dev/null
