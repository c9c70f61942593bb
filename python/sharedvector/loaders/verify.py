"""Decode a whole Zarr database once, and name every chunk that is damaged or missing."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sharedvector.loaders.volumes import as_root, is_local
from sharedvector.loaders.zarr import (
    ChunkReader,
    Layout,
    NotDirectError,
    Scratch,
    Skipped,
    choose_volumes,
    read_layout,
    survey,
)

__all__ = ["Problem", "Report", "verify_database"]

Finding = tuple[str, str] | None  # kind and text of a problem; None: the chunk is whole


class Problem(NamedTuple):
    """What is wrong with one chunk, or with a volume as a whole."""

    volume: str
    kind: str  # "damaged" or "missing"
    text: str  # names the chunk, or says what became of the volume


@dataclass(frozen=True)
class Report:
    """What `verify_database` found."""

    volumes: int
    chunks: int
    problems: tuple[Problem, ...]  # in the order of the volumes' names

    def count(self, kind: str) -> int:
        """Return how many problems are "damaged", or "missing"."""
        return sum(problem.kind == kind for problem in self.problems)


def verify_database(
    root: Path | str, threads: int | None = None, progress: Callable[[int], Any] | None = None
) -> Report:
    """Read and decode every chunk of every volume of a database.

    Sizes are always compared; contents only where a checksum is stored with them (zstd with
    ``checksum=True``, gzip, crc32c, the index of shards).

    Args:
        root: directory, zip file or URL, as for `ZarrLoader`.
        threads: how many volumes are read at the same time; None: one per core.
        progress: called after each volume with the number of all.

    Returns:
        What was found. Missing chunks need not be damage: Zarr stores none where all elements have
        the fill value.

    Raises:
        FileNotFoundError: no such ``root``, or nothing in it that is or was a volume.
        ImportError: zarr is not installed, or what reads that URL.
    """
    root = as_root(root)
    found = survey(root)
    problems = [
        Problem(name, "damaged", value.why)
        for name, value in found.items()
        if name and isinstance(value, Skipped) and value.lost
    ]
    volumes: Mapping[str, Any] = {}
    try:
        volumes = choose_volumes(root, found)
    except FileNotFoundError:
        if not problems:
            raise
    local = threading.local()

    def work(name: str) -> tuple[str, list[Finding]]:
        if not hasattr(local, "scratch"):
            local.scratch = Scratch()
        try:
            findings = list(_look_at(root, name, volumes[name], local.scratch))
        except MemoryError:  # sizes come from its metadata
            findings = [("damaged", "its chunks need more memory than there is")]
        if progress is not None:
            progress(len(volumes))
        return name, findings

    chunks = 0
    with ThreadPoolExecutor(threads or os.cpu_count()) as executor:
        try:
            for name, findings in executor.map(work, volumes):
                chunks += len(findings)
                problems += [Problem(name, *finding) for finding in findings if finding]
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise
    return Report(len(volumes), chunks, tuple(sorted(problems, key=lambda p: p.volume)))


def _look_at(
    root: Path | str, name: str, metadata: dict[str, Any], scratch: Scratch
) -> Iterator[Finding]:
    """One finding for each chunk of a volume."""
    if is_local(root):
        with contextlib.suppress(NotDirectError):
            layout = read_layout(metadata)
            return _look_directly(Path(root) / name, layout, scratch)
    return _look_with_zarr(root, name)


def _look_directly(directory: Path, layout: Layout, scratch: Scratch) -> Iterator[Finding]:
    out = scratch.take("decoded", layout.chunk_bytes)
    with ChunkReader(directory, layout, scratch) as reader:
        for index in itertools.product(*map(range, layout.grid)):
            try:
                there = reader.decode(index, out)
            except (OSError, ValueError) as error:
                yield "damaged", str(error)
            else:
                yield None if there else ("missing", f"chunk {reader.describe(index)}")


def _look_with_zarr(root: Path | str, name: str) -> Iterator[Finding]:
    import zarr

    from sharedvector.loaders.zarr import open_store, watch

    store, absent = watch(open_store(root))
    try:
        array: Any = zarr.open_array(store=store, path=name, mode="r", zarr_format=None)
        grid = [range(0, size, part) for size, part in zip(array.shape, array.chunks, strict=True)]
    except Exception as error:  # libraries raise what they like
        yield "damaged", f"cannot be opened: {type(error).__name__}: {error}"
        return
    for begins in itertools.product(*grid):
        ends = (begin + part for begin, part in zip(begins, array.chunks, strict=True))
        before = len(absent)
        try:
            array.get_basic_selection(tuple(map(slice, begins, ends)))
        except Exception as error:
            yield "damaged", f"chunk at {begins}: {type(error).__name__}: {error}"
        else:
            missing = absent[before:]
            yield ("missing", f"chunk {missing[0].removeprefix(f'{name}/')}") if missing else None
