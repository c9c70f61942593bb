"""A loader for directories of ``.npy`` files."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path

import numpy as np

from sharedvector.dtypes import encode_dtype, is_extension
from sharedvector.loaders.base import Chunk, no_meta, place_of, read_error
from sharedvector.loaders.casting import CutFractions, cast_volume, resolve_numpy_dtype
from sharedvector.loaders.volumes import as_path, check_directory, kind_of, shorten

__all__ = ["NumpyLoader"]

_log = logging.getLogger("sharedvector")


class NumpyLoader:
    """One chunk per ``.npy`` file of a directory, in order of their names.

    Args:
        directory: where the files are, a path or a ``file://`` URL.
        pattern: which files, as for `pathlib.Path.glob`. What matches and is no file, such as a
            link to nothing, is named in the log and left out.
        dtype: the dtype of the chunks; other files are cast by `cast_volume`.

    Attributes:
        chunk_dtype: dtype of the chunks, as text.

    Raises:
        FileNotFoundError: no such directory, or no file in it matches.
        ValueError: a bad ``dtype`` (see `resolve_numpy_dtype`).
    """

    def __init__(
        self, directory: Path | str, pattern: str = "*.npy", dtype: str = "float32"
    ) -> None:
        self._dtype = resolve_numpy_dtype(dtype)
        self.chunk_dtype = encode_dtype(self._dtype)
        self._fractions = CutFractions(self._dtype)
        root = as_path("directory", directory).absolute()
        check_directory(root, "arrays")
        self._paths = _files(root, pattern)

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self._paths)

    @property
    def chunk_size(self) -> int:
        """Bytes of the largest chunk. It opens every file, and reads the header alone.

        Raises:
            OSError: no file can be read as an array; the message has the error of one of them.
        """
        largest, failure = 0, None
        for path in self._paths:
            try:
                shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
            except Exception as error:  # as one source it is skipped, and named in the log
                failure = read_error(path, error)
            else:
                largest = max(largest, math.prod(shape) * self._dtype.itemsize, 1)
        if not largest:
            raise OSError(f"no array tells how large chunks are: {failure}; pass chunk_size=")
        return largest

    def __call__(self, source_index: int) -> list[Chunk]:
        """Read one file.

        Returns:
            One chunk, C-contiguous, without metadata. A scalar file gives shape (1,).

        Raises:
            IndexError: no such source.
            OSError, ValueError: the file cannot be read as an array; the message names it.
        """
        path = self._paths[place_of(source_index, len(self))]
        try:
            array = np.load(path, allow_pickle=False)
        except Exception as error:
            raise read_error(path, error) from error
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{path} holds several arrays; a source should be one .npy array")
        if array.dtype.kind == "V" and array.dtype.names is None and is_extension(self._dtype):
            # .npy files keep only the size of bfloat16 and float8
            if array.dtype.itemsize == self._dtype.itemsize:
                array = array.view(self._dtype)
        try:
            data = np.ascontiguousarray(cast_volume(array, self._dtype))
        except (TypeError, ValueError) as error:
            raise read_error(path, error) from error
        levels = self._fractions.watch(str(path), array.dtype)
        if levels is not None:
            levels.add(data)
            if levels.few:
                self._fractions.look(str(path), [array])
        return [Chunk(data, no_meta())]


def _files(root: Path, pattern: str) -> list[Path]:
    """The files that match; the log names what else does, and directories that hide theirs."""
    others: list[str] = []
    if "/" in pattern or "**" in pattern:  # glob() passes over what it may not read

        def hidden(error: OSError) -> None:
            others.append(f"{error.filename} (a directory: {error.strerror})")

        for _ in os.walk(root, onerror=hidden):
            pass
    else:
        os.listdir(root)
    paths = []
    for path in sorted(root.glob(pattern)):
        kind, _ = kind_of(path)
        if kind == "file":
            paths.append(path)
        else:
            others.append(
                f"{path.relative_to(root)} ({kind if kind != 'directory' else 'a directory'})"
            )
    if not paths:
        only = f", only {shorten(others)}" if others else ""
        raise FileNotFoundError(f"no file under {root} matches {pattern!r}{only}")
    if others:
        _log.warning(
            "%s: %d of %d entries that %r could mean are left out: %s",
            root, len(others), len(others) + len(paths), pattern, shorten(others),
        )  # fmt: skip
    return paths
