#!/bin/sh
# Runs all models and mutations; see run.py. PYTHON: the interpreter (default python3).
exec "${PYTHON:-python3}" "$(dirname "$0")/run.py" "$@"
