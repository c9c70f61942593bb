#!/bin/sh
# Fuzzes attaching and every verb with hostile segments for FUZZ_SECONDS (60): with clang by
# libFuzzer, with FUZZ_CC=afl-clang-fast by AFL++, else by the mutations that the harness makes
# itself; always under ASan and UBSan. What was found is in build/fuzz.
# Environment: JOBS, FUZZ_CC (clang)
set -eu
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
jobs=${JOBS:-2}
compiler=${FUZZ_CC:-clang}
corpus=$PWD/tests/c/fuzz/corpus
export UBSAN_OPTIONS=print_stacktrace=1
mkdir -p build/fuzz
: >build/fuzz/build.log

# built COMMAND...: shows its output only if it fails
built() {
    "$@" >>build/fuzz/build.log 2>&1 || {
        tail -n 60 build/fuzz/build.log
        exit 1
    }
}

# What an engine kills cannot clean up.
within() {
    WORLD_WITHIN=$(mktemp -d /dev/shm/svfuzz-XXXXXX)
    export WORLD_WITHIN
    trap 'rm -rf "$WORLD_WITHIN"' EXIT
    trap 'exit 130' INT TERM
}

# instrumented DIRECTORY: the harness for an engine
instrumented() {
    built cmake -S . -B "$1" -DCMAKE_C_COMPILER="$compiler" -DBUILD_TESTING=ON \
        -DSHAREDVECTOR_FUZZER=fuzzer -DSHAREDVECTOR_SANITIZE=address,undefined
    built cmake --build "$1" -j "$jobs" --target fuzz_attach
    within
}

has_libfuzzer() {
    command -v "$compiler" >/dev/null || return 1
    echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { (void)d; (void)n; return 0; }' \
        >build/fuzz/probe.c
    "$compiler" -fsanitize=fuzzer,address,undefined build/fuzz/probe.c -o build/fuzz/probe 2>/dev/null
}

case $compiler in
*afl-*)
    echo "AFL++ ($("$compiler" --version 2>/dev/null | head -n 1)) for $seconds s"
    instrumented build/fuzz/afl
    rm -rf build/fuzz/found
    unset UBSAN_OPTIONS # afl-fuzz sets what it needs
    AFL_NO_UI=1 AFL_NO_AFFINITY=1 AFL_SKIP_CPUFREQ=1 AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES=1 \
        afl-fuzz -V "$seconds" -i "$corpus" -o build/fuzz/found -m none -t 5000 -G 65536 \
        ${SEED:+-s "$SEED"} -- build/fuzz/afl/fuzz_attach >build/fuzz/afl.log 2>&1 || {
        tail -n 30 build/fuzz/afl.log
        exit 1
    }
    grep -E '^(execs_done|edges_found|saved_)' build/fuzz/found/default/fuzzer_stats
    found=$(find build/fuzz/found/default/crashes build/fuzz/found/default/hangs -name 'id*')
    [ -z "$found" ] || {
        echo "$found"
        exit 1
    }
    exit 0
    ;;
esac

if has_libfuzzer; then
    echo "libFuzzer ($("$compiler" --version | head -n 1)) for $seconds s"
    instrumented build/fuzz/clang
    mkdir -p build/fuzz/corpus
    build/fuzz/clang/fuzz_attach -max_total_time="$seconds" -timeout=60 -max_len=65536 \
        -rss_limit_mb=2048 -artifact_prefix=build/fuzz/ -print_final_stats=1 -verbosity=0 \
        ${SEED:+-seed="$SEED"} build/fuzz/corpus "$corpus"
    exit
fi
echo "no libFuzzer (install clang and its compiler-rt for guided fuzzing): own mutations, $seconds s"
built cmake --preset asan
built cmake --build --preset asan -j "$jobs" --target fuzz_attach
FUZZ_SECONDS=$seconds exec build/asan/fuzz_attach "$corpus"
