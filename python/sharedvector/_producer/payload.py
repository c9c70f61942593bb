"""What travels from the owner to the supervisor and the producer workers.

It lies in a file without a name whose descriptor the children inherit: the import path, a line of
JSON, then the pickled loader. Nothing that has no bound travels in arguments or the environment.

Whatever imports NumPy is imported by the functions that need it: the supervisor has to start the
first worker before that.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import types

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from typing import IO

    from sharedvector.vector import SharedVector

# Exit statuses of children; others are Python's own or signals.
# Not what a loader that ends its process by itself is likely to give.
EXIT_FATAL = 213  # the bootstrap cannot succeed; the event said why
EXIT_STALE = 214  # the segment is not this reign's any more

REMEDY = "move the loader to a module that can be imported, or pip install cloudpickle"


class Job(types.SimpleNamespace):
    """One reign as its producers see it; plain values only.

    Attributes:
        name, directory, lock_dir, generation: the pool, where its files are, and whose it is.
        slot_count: slots to fill.
        source_size: sources to draw from.
        num_producers: workers.
        threads: workers in one process: 1, or all of them.
        sleep_seconds: pause after a source that gave nothing; ten of them are the brake.
        join_timeout: seconds that a worker may take to end.
        log_level: of the children.
        seed: of the order of sources.
    """

    name: str
    directory: str
    lock_dir: str
    generation: str
    slot_count: int
    source_size: int
    num_producers: int
    threads: int
    sleep_seconds: float
    join_timeout: float
    log_level: int
    seed: int


def write_parcel(file: IO[bytes], job: Job, loader: bytes) -> None:
    """Write this interpreter's import path, a job, and a pickled loader.

    The path comes first, in a form that is read without importing anything: the length of the part
    in digits, a newline, and the entries with a NUL between them.

    Args:
        file: empty; its descriptor goes to the children.
        job: what to do.
        loader: from `pack_loader`.
    """
    paths = b"\0".join(map(os.fsencode, import_path()))
    file.write(b"%d\n" % len(paths) + paths)
    file.write(json.dumps(vars(job)).encode() + b"\n")
    file.write(loader)
    file.flush()


def import_path() -> list[str]:
    """Return the entries of ``sys.path`` that Python looks at, made absolute.

    What is no text is ignored by Python. A relative entry stays the directory that it was when it
    was first used, whatever the working directory is now; Python remembers that.
    """
    found = []
    for entry in sys.path:
        if not isinstance(entry, str) or "\0" in entry:
            continue
        finder = sys.path_importer_cache.get(entry)
        known = getattr(finder, "path", None)
        try:
            found.append(known if isinstance(known, str) and entry else os.path.abspath(entry))
        except FileNotFoundError:
            continue  # relative to a working directory that was removed: nothing can lie there
    return found


def receive(parcel_fd: int) -> Job:
    """In a child: take the job over; Ctrl-C is the owner's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Mapped, not read: the file's offset is shared with the other children.
    with mmap.mmap(parcel_fd, 0, prot=mmap.PROT_READ) as content:
        content.seek(_after_path(content))
        job = Job(**json.loads(content.readline()))
    os.environ["SHAREDVECTOR_SHM_DIR"] = job.directory
    return job


def _after_path(content: mmap.mmap) -> int:
    """Where the job begins."""
    length = int(content.readline())
    return content.tell() + length


def make_loader(parcel_fd: int) -> object:
    """Make the loader; each call makes another one. Raises what its pickle raises."""
    import pickle

    with mmap.mmap(parcel_fd, 0, prot=mmap.PROT_READ) as content:
        content.seek(_after_path(content))
        content.readline()
        with memoryview(content) as whole, whole[content.tell() :] as packed:
            return pickle.loads(packed)


def attach_job(job: Job) -> SharedVector | None:
    """Attach to the job's segment; None when the name is gone or another reign's."""
    from sharedvector.vector import SharedVector

    try:
        vector = SharedVector(job.name, create=False)
    except FileNotFoundError:
        return None
    return vector if vector.generation == job.generation else None


def log_to_stderr(level: int) -> None:
    """Set up the children's log."""
    import logging

    logging.raiseExceptions = False  # a closed terminal is no reason for noise
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s sharedvector[%(process)d]: %(message)s")
    )
    logger = logging.getLogger("sharedvector")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level)
