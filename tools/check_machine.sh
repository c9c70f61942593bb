#!/bin/sh
# Says in one line each what this machine lacks for building: a C compiler, Python >= 3.11 with
# venv, and its headers. Everything else is installed from PyPI. Usage: check_machine.sh PYTHON
python=${1:-python3}
missing=0

lacks() {
    echo "missing: $1 (Debian, Ubuntu: apt-get install $2)" >&2
    missing=1
}

if [ "$(uname -s)" != Linux ]; then
    echo "sharedvector needs Linux, found $(uname -s)" >&2
    exit 1
fi
if ! echo 'int main(void) { return 0; }' | "${CC:-cc}" -x c -o /dev/null - 2>/dev/null; then
    lacks "a working C compiler, '${CC:-cc}'" "gcc libc6-dev"
fi
if ! command -v "$python" >/dev/null 2>&1; then
    lacks "'$python', Python 3.11 or later" "python3 python3-venv python3-dev"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    found=$("$python" -c 'import platform; print(platform.python_version())')
    echo "missing: Python 3.11 or later, '$python' is $found;" \
        "install a newer one and pass PYTHON=<path> to make" >&2
    missing=1
else
    minor=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        lacks "venv for '$python' (ensurepip)" "python$minor-venv"
    fi
    if ! "$python" -c 'import os, sys, sysconfig
path = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(not os.path.exists(path))'; then
        lacks "C headers for '$python' (Python.h)" "python$minor-dev"
    fi
fi
exit $missing
