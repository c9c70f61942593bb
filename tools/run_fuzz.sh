#!/bin/sh
# Fuzzes attaching and every verb with hostile segments for FUZZ_SECONDS (60): with clang by
# libFuzzer, else by the mutations that the harness makes itself, both under ASan and UBSan.
# Environment: JOBS, FUZZ_CC (clang)
set -eu
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
jobs=${JOBS:-2}
clang=${FUZZ_CC:-clang}
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

has_libfuzzer() {
    command -v "$clang" >/dev/null || return 1
    echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { (void)d; (void)n; return 0; }' \
        >build/fuzz/probe.c
    "$clang" -fsanitize=fuzzer,address,undefined build/fuzz/probe.c -o build/fuzz/probe 2>/dev/null
}

if has_libfuzzer; then
    echo "libFuzzer ($("$clang" --version | head -n 1)) for $seconds s"
    built cmake -S . -B build/fuzz/clang -DCMAKE_C_COMPILER="$clang" -DBUILD_TESTING=ON \
        -DSHAREDVECTOR_FUZZER=fuzzer -DSHAREDVECTOR_SANITIZE=address,undefined
    built cmake --build build/fuzz/clang -j "$jobs" --target fuzz_attach
    mkdir -p build/fuzz/corpus
    exec build/fuzz/clang/fuzz_attach -max_total_time="$seconds" -timeout=10 -max_len=65536 \
        -rss_limit_mb=2048 -artifact_prefix=build/fuzz/ -print_final_stats=1 -verbosity=0 \
        build/fuzz/corpus "$corpus"
fi
echo "no libFuzzer (install clang and its compiler-rt for guided fuzzing): own mutations, $seconds s"
built cmake --preset asan
built cmake --build --preset asan -j "$jobs" --target fuzz_attach
FUZZ_SECONDS=$seconds exec build/asan/fuzz_attach "$corpus"
