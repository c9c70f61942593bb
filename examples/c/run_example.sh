#!/bin/sh
# Run producer and consumer against each other: run_example.sh PRODUCER CONSUMER
# Exit 0 only if both were content and nothing is left in /dev/shm.
set -u

if [ $# -ne 2 ]; then
    echo "usage: $0 PRODUCER CONSUMER" >&2
    exit 2
fi
name="example-c-$$"
dir=${SHAREDVECTOR_SHM_DIR:-/dev/shm}
locks=${SHAREDVECTOR_LOCK_DIR:-/dev/shm}

"$1" "$name" 30 &
producer=$!
"$2" "$name" 2000 &
first=$!
"$2" "$name" 2000
second_code=$?
wait "$first"
first_code=$?
kill -TERM "$producer"
wait "$producer"
producer_code=$?

code=0
if [ $((first_code + second_code + producer_code)) -ne 0 ]; then
    echo "run_example: exit codes: consumers $first_code and $second_code, producer $producer_code" >&2
    code=1
fi
left=$(ls -A "$dir" "$locks" | grep -F -- "$name")
if [ -n "$left" ]; then
    echo "run_example: left behind:" $left >&2
    code=1
fi
exit $code
