"""How the owner starts its supervisor: a new interpreter, with all that it needs in a parcel.

Never a fork, and never a second run of the user's main module.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from typing import IO, Any

from sharedvector._coordination import PoolSpawnError
from sharedvector._producer import entry
from sharedvector._producer.failures import describe
from sharedvector._producer.payload import REMEDY, Job, write_parcel

_MAIN_MODULES = ("__main__", "__mp_main__")
_DEEPEST = 8  # attributes of attributes that are looked through for what cannot be pickled
_LEAVE_OUT = (
    "leave what cannot be pickled (an open file, a lock, a connection) out by __getstate__, and "
    "make it when the loader is first called"
)

# Workers share the processors among themselves: libraries should not start threads of their own.
_THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "BLOSC_NTHREADS",
)


class _Pickler(pickle.Pickler):
    """Notes what would be looked up in the main module, which the children do not have."""

    of_main: str | None = None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, types.FunctionType)) and obj.__module__ in _MAIN_MODULES:
            self.of_main = obj.__qualname__
        return NotImplemented


def pack_loader(loader: object) -> bytes:
    """Pickle a loader for the producer workers.

    What belongs to the main module, and what pickle refuses, goes by cloudpickle.

    Raises:
        PoolSpawnError: it cannot be sent; the message says why and what to do.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    try:
        pickler.dump(loader)
    except (pickle.PicklingError, AttributeError) as error:  # no module has it: a lambda, a closure
        return _pack_by_value(loader, f"{type(error).__name__}: {error}", REMEDY)
    except Exception as error:
        return _pack_by_value(loader, f"{type(error).__name__}: {error}", _LEAVE_OUT)
    if pickler.of_main is not None:
        return _pack_by_value(loader, f"{pickler.of_main} is defined in the main program", REMEDY)
    return buffer.getvalue()


def _pack_by_value(loader: object, why: str, remedy: str) -> bytes:
    refusal = f"the loader cannot be sent to the producer processes ({why})"
    try:
        import cloudpickle
    except ImportError:
        raise PoolSpawnError(f"{refusal}; {remedy}") from None
    # A child of multiprocessing's spawn has its main module under a second name.
    spawned = sys.modules.get("__mp_main__")
    if spawned is not None:
        cloudpickle.register_pickle_by_value(spawned)
    try:
        return bytes(cloudpickle.dumps(loader))
    except Exception as error:
        part = _refused_part(cloudpickle.dumps, loader)
        raise PoolSpawnError(
            f"{refusal} (cloudpickle: {describe(error)}{part}); {_LEAVE_OUT}"
        ) from error
    finally:
        if spawned is not None:
            cloudpickle.unregister_pickle_by_value(spawned)


def _refused_part(dumps: Callable[[Any], bytes], loader: object) -> str:
    """Name the innermost attribute that ``dumps`` refuses, in words; empty when none is found."""
    value: Any = loader
    path = ""
    for _ in range(_DEEPEST):
        for name, part in _parts(value):
            try:
                dumps(part)
            except Exception:
                path, value = f"{path}{name}", part
                break
        else:
            break
    return f", at loader{path}, a {type(value).__qualname__}" if path else ""


def _parts(value: Any) -> list[tuple[str, Any]]:
    """What an object consists of when it is pickled, each part with how it is written in Python."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{place}]", part) for place, part in enumerate(value)]
    try:
        state = value.__getstate__()
    except Exception:
        return []
    slots: dict[str, Any] = {}
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        state, slots = state
    named = {**(state if isinstance(state, dict) else {}), **slots}
    return [(f".{name}", part) for name, part in named.items()]


def open_parcel(job: Job, loader: bytes) -> IO[bytes]:
    """Put a job and its loader into a nameless file. The caller closes it."""
    file: IO[bytes]
    try:
        file = os.fdopen(os.memfd_create("sharedvector-job"), "w+b")
    except OSError:
        import tempfile

        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        write_parcel(file, job, loader)
    except BaseException:
        file.close()
        raise
    return file


def start_supervisor(
    parcel_fd: int, owner_fd: int, report_fd: int, limit: float
) -> subprocess.Popen[bytes]:
    """Start a supervisor in a session of its own, out of reach of the terminal's signals.

    Args:
        parcel_fd: file of `open_parcel`.
        owner_fd: pidfd of this process, or -1.
        report_fd: write end of a pipe that this process reads, or -1.
        limit: seconds that a worker may take to end.

    Raises:
        OSError: it cannot be started.
        PoolSpawnError: this program has no Python interpreter to start, or its environment is
            larger than that of a new process can be.
    """
    if not sys.executable:
        raise PoolSpawnError("sys.executable is empty: set it to a Python interpreter")
    descriptors = (parcel_fd, owner_fd, report_fd)
    # Inherited: a SIGTERM to all that runs here must not end it before it can bury its owner.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        return subprocess.Popen(
            [
                *(sys.executable, "-S", "-P", entry.__file__, "supervisor"),
                *map(str, (*descriptors, limit)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=_standard_error(),
            env={**dict.fromkeys(_THREAD_LIMITS, "1"), **os.environ},
            cwd=_working_directory(),
            pass_fds=[fd for fd in descriptors if fd >= 0],
            start_new_session=True,
        )
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        name = max(os.environ, key=lambda key: len(os.environ[key]))
        size = len(os.fsencode(os.environ[name]))
        raise PoolSpawnError(
            f"no process can be started with this environment: {error.strerror}; its largest "
            f"variable, {name}, has {size} bytes; remove or shorten it (os.environ)"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _working_directory() -> str | None:
    """Where children start: here, or in / if this directory was removed.

    There an interpreter does not start if ``PYTHONPATH`` has a relative entry.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        return "/"
    return None


def _standard_error() -> int:
    """Where a child's standard output goes: what a loader prints must not mix with the owner's."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
