"""What travels from the owner to the supervisor and the producer workers, and how they start.

Children are new interpreters, never forks and never a second run of the user's main module.
Everything they need travels through an inherited memory file.
"""

from __future__ import annotations

import contextlib
import io
import logging
import mmap
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sharedvector import _core
from sharedvector.coordination import OwnerLock, PoolPaths, PoolSpawnError, read_marker
from sharedvector.vector import SharedVector

logger = logging.getLogger("sharedvector")

# Exit statuses of children; others are Python's own or signals.
EXIT_FATAL = 3  # the bootstrap cannot succeed; the event said why
EXIT_STALE = 4  # the segment is not this reign's any more

_MAIN_MODULES = ("__main__", "__mp_main__")
REMEDY = "move the loader to a module that can be imported, or pip install cloudpickle"


@dataclass(frozen=True)
class Job:
    """One reign as its producers see it; plain values only.

    Attributes:
        name, directory, lock_dir, generation: the pool, where its files are, and whose it is.
        slot_count: slots to fill.
        source_size: sources to draw from.
        num_producers: workers.
        sleep_seconds: pause after a source that gave nothing; ten of them are the brake.
        join_timeout: seconds that a worker may take to end.
        log_level: of the children.
        seed: of the order of sources.
        loader: the pickled loader.
    """

    name: str
    directory: str
    lock_dir: str
    generation: str
    slot_count: int
    source_size: int
    num_producers: int
    sleep_seconds: float
    join_timeout: float
    log_level: int
    seed: int
    loader: bytes


@dataclass(frozen=True)
class _Parcel:
    """A job and the owner's interpreter settings."""

    job: Job
    sys_path: list[str]
    python_path: str | None


class _Pickler(pickle.Pickler):
    """Notes what would be looked up in the main module, which the children do not have."""

    of_main: str | None = None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, types.FunctionType)) and obj.__module__ in _MAIN_MODULES:
            self.of_main = obj.__qualname__
        return NotImplemented


def pack_loader(loader: object) -> bytes:
    """Pickle a loader for the producer workers.

    What belongs to the main module, and what pickle refuses, goes by cloudpickle if installed.

    Raises:
        PoolSpawnError: it cannot be sent; the message says why and what to do.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    try:
        pickler.dump(loader)
    except Exception as error:
        return _pack_by_value(loader, f"{type(error).__name__}: {error}")
    if pickler.of_main is not None:
        return _pack_by_value(loader, f"{pickler.of_main} is defined in the main program")
    return buffer.getvalue()


def _pack_by_value(loader: object, why: str) -> bytes:
    refusal = f"the loader cannot be sent to the producer processes ({why}); {REMEDY}"
    try:
        import cloudpickle
    except ImportError:
        raise PoolSpawnError(refusal) from None
    # A child of multiprocessing's spawn has its main module under a second name.
    spawned = sys.modules.get("__mp_main__")
    if spawned is not None:
        cloudpickle.register_pickle_by_value(spawned)
    try:
        return bytes(cloudpickle.dumps(loader))
    except Exception as error:
        raise PoolSpawnError(f"{refusal} (cloudpickle: {error})") from error
    finally:
        if spawned is not None:
            cloudpickle.unregister_pickle_by_value(spawned)


def open_parcel(job: Job) -> IO[bytes]:
    """Put a job into a nameless file whose descriptor children inherit. The caller closes it."""
    paths = [str(Path(entry).absolute()) for entry in sys.path if isinstance(entry, str)]
    parcel = pickle.dumps(_Parcel(job, paths, os.environ.get("PYTHONPATH")))
    file: IO[bytes]
    try:
        file = os.fdopen(os.memfd_create("sharedvector-job"), "w+b")
    except OSError:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        file.write(parcel)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def start_child(
    module: str, parcel_fd: int, arguments: list[int], *, session: bool, fds: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    """Start ``python -m sharedvector.<module> parcel_fd arguments...``.

    Args:
        module: last part of the module's name.
        parcel_fd: from `open_parcel`.
        arguments: numbers for its command line.
        session: give it a session of its own, out of reach of the terminal's signals.
        fds: further descriptors to inherit.

    Raises:
        OSError: it cannot be started.
        PoolSpawnError: this program has no Python interpreter to start.
    """
    if not sys.executable:
        raise PoolSpawnError("sys.executable is empty: set it to a Python interpreter")
    # The whole path, as the package (or NumPy) may come from an entry that was added by hand.
    path = os.pathsep.join(str(Path(p).absolute()) for p in sys.path if os.pathsep not in p)
    command = [sys.executable, "-P", "-m", f"sharedvector.{module}", str(parcel_fd)]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=_standard_error(),
        env={**os.environ, "PYTHONPATH": path},
        pass_fds=(parcel_fd, *fds),
        start_new_session=session,
    )


def _standard_error() -> int:
    """Where a child's standard output goes: what a loader prints must not mix with the owner's."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


def receive(parcel_fd: int) -> Job:
    """In a child: take the job and the owner's settings over, and set up logging and signals."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})
    os.set_inheritable(parcel_fd, False)
    # Mapped, not read: the file's offset is shared with the other children.
    with mmap.mmap(parcel_fd, 0, prot=mmap.PROT_READ) as content:
        parcel: _Parcel = pickle.loads(content)
    sys.path[:] = parcel.sys_path
    if parcel.python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = parcel.python_path
    os.environ["SHAREDVECTOR_SHM_DIR"] = parcel.job.directory
    _log_to_stderr(parcel.job.log_level)
    return parcel.job


def attach_job(job: Job) -> SharedVector | None:
    """Attach to the job's segment; None when the name is gone or another reign's."""
    try:
        vector = SharedVector(job.name, create=False)
    except FileNotFoundError:
        return None
    return vector if vector.generation == job.generation else None


def remove_pool_files(lock: OwnerLock, paths: PoolPaths, inode: int, directory: str) -> None:
    """Remove what a reign has left: its marker, then its segment. Nothing of another reign.

    Args:
        lock: held, and of the generation that is to be removed.
        paths: of the pool.
        inode: of the segment.
        directory: of the segment.
    """
    if read_marker(paths) == lock.generation:
        lock.clear_ready()
    with contextlib.suppress(FileNotFoundError):
        _core.remove_exact(paths.name, inode, lock.generation, directory)


def _log_to_stderr(level: int) -> None:
    logging.raiseExceptions = False  # a closed terminal is no reason for noise
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s sharedvector[%(process)d]: %(message)s")
    )
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level)
