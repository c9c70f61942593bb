#!/bin/sh
# Runs the C tests under valgrind. With SHORT=1 only those of the reading and writing path.
# Environment: JOBS, SHORT
set -eu
cd "$(dirname "$0")/.."
if ! command -v valgrind >/dev/null; then
    echo "make valgrind needs valgrind: install it with your package manager (apt install valgrind)"
    exec sh tools/run_step.sh valgrind sh -c 'exit 77' # noted as skipped
fi
# Without a label: tests that a machine with a virtual processor finishes in minutes.
select="-L unit|fuzz"
[ -z "${SHORT:-}" ] || select="-R unit.test_(pin|publish|segment|stats|check|copy|fork)$|fuzz"
# shellcheck disable=SC2086
exec sh tools/run_c_tests.sh valgrind valgrind $select
