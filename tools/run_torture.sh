#!/bin/sh
# Shakes the core for TORTURE_SECONDS (60): three quarters of them with processes of which one is
# killed every TORTURE_KILL_MS (50) on average, the rest with threads. SEED=n repeats the choices.
# Environment: JOBS
set -eu
cd "$(dirname "$0")/.."
seconds=${TORTURE_SECONDS:-60}
threads=$(((seconds + 3) / 4))
mkdir -p build/results
{
    cmake --preset dev &&
        cmake --build --preset dev -j "${JOBS:-2}" --target torture_processes torture_pin_publish
} >build/results/torture.log 2>&1 || {
    tail -n 60 build/results/torture.log
    exit 1
}
status=0
TORTURE_SECONDS=$((seconds - threads)) TORTURE_KILL_MS=${TORTURE_KILL_MS:-50} \
    build/dev/torture_processes || status=1
TORTURE_SECONDS=$threads build/dev/torture_pin_publish || status=1
exit $status
