"""Which engine reads which volume of a Zarr database, and how it is opened."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sharedvector.loaders.volumes import is_local, shorten
from sharedvector.loaders.zarr import engines
from sharedvector.loaders.zarr.metadata import NotDirectError, read_layout
from sharedvector.loaders.zarr.slabs import Cut

__all__ = ["ENGINES", "Opener"]

ENGINES = ("direct", "zarr", "tensorstore")

logger = logging.getLogger("sharedvector")

_told: set[tuple[Path | str, str]] = set()  # what this process has logged: database, engine

Metadata = Mapping[str, Any]


class Opener:
    """Opens volumes of one database, each with the engine that ``engine`` asks for.

    Pickles without what is open. One thread uses it.

    Args:
        root: as `as_root` gives it.
        step: slices of a slab; 0: all of a volume.
        engine: one of `ENGINES`, or "auto": direct where that reads the volume, zarr elsewhere.
        missing: "fill" or "error".
        volumes: metadata of the volumes by name.

    Attributes:
        buffers_at_once: the most slabs of a volume that are open at the same time.
        releases_gil: whether threads read as well as processes.

    Raises:
        ValueError: another ``engine`` or ``missing``; the engine cannot read one of the volumes;
            with the reason.
        ImportError: the engine is not installed.
    """

    def __init__(
        self,
        root: Path | str,
        step: int,
        engine: str,
        missing: str,
        volumes: Mapping[str, Metadata],
    ) -> None:
        for name, value, known in (
            ("engine", engine, ("auto", *ENGINES)),
            ("missing", missing, ("fill", "error")),
        ):
            if value not in known:
                raise ValueError(f"{name} should be one of {', '.join(known)}, got {value!r}")
        self._root = root
        self._step = step
        self._engine = engine
        self._refuse_missing = missing == "error"
        self._old = frozenset(
            name for name, metadata in volumes.items() if metadata.get("zarr_format") == 2
        )
        self._check(volumes)
        self.buffers_at_once = max(self._slabs_at_once(m) for m in volumes.values())
        self.releases_gil = all(self._choose(m)[0] != "zarr" for m in volumes.values())
        self.__setstate__(self.__dict__)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_scratch", "_store")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin with nothing open."""
        self.__dict__.update(state)
        self._scratch: Any = None
        self._store: tuple[int, Any] | None = None

    def open(self, name: str) -> tuple[str, engines.Source]:
        """Return the engine of a volume and the volume, opened by it.

        Raises:
            OSError, ValueError, RuntimeError: it cannot be opened.
            ImportError: the engine is not installed.
        """
        try:
            return self._open(name)
        except ImportError as error:
            raise ImportError(
                f"reading {self._root} needs: pip install 'sharedvector[zarr]' ({error})"
            ) from error

    def _open(self, name: str) -> tuple[str, engines.Source]:
        metadata: Any = {"zarr_format": 2} if name in self._old else {}
        if is_local(self._root) and name not in self._old:
            metadata = json.loads((Path(self._root) / name / "zarr.json").read_bytes())
            if not isinstance(metadata, dict):
                raise ValueError("its zarr.json holds no object")
        engine, reason, layout = self._choose(metadata)
        if (self._root, engine) not in _told:
            _told.add((self._root, engine))
            logger.info(
                "%s: engine %s for %s and its like%s",
                self._root, engine, name, f": {reason}" if reason else "",
            )  # fmt: skip
        if self._scratch is None:
            self._scratch = engines.Scratch()
        if layout is not None:
            place = Path(self._root) / name
            direct = engines.DirectSource(place, layout, self._refuse_missing, self._scratch)
            return engine, direct
        settings = (self._step, self._refuse_missing, self._scratch)
        if engine == "tensorstore":
            at = self._root / name if isinstance(self._root, Path) else f"{self._root}/{name}"
            return engine, engines.TensorStoreSource(at, 2 if name in self._old else 3, *settings)
        remote = isinstance(self._root, str)
        return engine, engines.ZarrSource(self._opened_store(), name, remote, *settings)

    def _opened_store(self) -> Any:
        """The store, opened once in each process."""
        if self._store is None or self._store[0] != os.getpid():
            self._store = (os.getpid(), engines.open_store(self._root))
        return self._store[1]

    def _choose(self, metadata: Metadata) -> tuple[str, str, Any]:
        """Engine for a volume, why it is not the direct one, and the layout if it is."""
        if self._engine in ("zarr", "tensorstore"):
            return self._engine, "as asked for", None
        try:
            if not is_local(self._root):
                raise NotDirectError("it is not in a local directory")
            return "direct", "", read_layout(dict(metadata))
        except NotDirectError as error:
            if self._engine == "direct":
                raise
            return "zarr", str(error), None

    def _check(self, volumes: Mapping[str, Metadata]) -> None:
        """Raise for what is known from metadata not to work."""
        if self._engine == "tensorstore":
            reason = engines.why_not_tensorstore(self._root)
            if reason is not None:
                kind = ImportError if "pip install" in reason else ValueError
                raise kind(f"engine='tensorstore' cannot read {self._root}: {reason}")
        if self._engine == "direct":
            self._refuse(volumes, lambda metadata: (self._choose(metadata), "")[1])
        if self._refuse_missing:
            self._refuse(volumes, self._hides_missing)

    def _refuse(
        self, volumes: Mapping[str, Metadata], problem_of: Callable[[Metadata], str]
    ) -> None:
        """Raise ValueError if there is a problem with any volume; it names some of them."""
        problems = []
        for name, metadata in volumes.items():
            try:
                problem = problem_of(metadata)
            except NotDirectError as error:
                problem = str(error)
            if problem:
                problems.append(f"{name}: {problem}")
        if problems:
            raise ValueError(
                f"engine={self._engine!r} with missing="
                f"{'error' if self._refuse_missing else 'fill'!r} cannot read {len(problems)} of "
                f"{len(volumes)} volumes of {self._root}: {shorten(problems)}"
            )

    def _hides_missing(self, metadata: Metadata) -> str:
        if self._choose(metadata)[0] == "zarr" and _sharding(metadata) is not None:
            return "the engine zarr cannot tell which chunks are missing within a shard"
        return ""

    def _slabs_at_once(self, metadata: Metadata) -> int:
        """The most slabs of a volume that are open together; 1 where its metadata are damaged."""
        engine, _, layout = self._choose(metadata)
        try:
            shape = tuple(metadata["shape"])
            step = self._step or shape[0]
            if engine == "direct":
                rows = layout.chunk[0]
            else:
                rows = engines.rows_of(shape, _chunk(metadata), step, isinstance(self._root, str))
            return max(1, *(Cut(shape[0], step, f).slabs_at_once(rows) for f in (False, True)))
        except (LookupError, TypeError, ValueError, ZeroDivisionError):
            return 1


def _sharding(metadata: Metadata) -> dict[str, Any] | None:
    """Configuration of the sharding codec, where there is one."""
    codecs = metadata.get("codecs")
    for codec in codecs if isinstance(codecs, list) else []:
        if isinstance(codec, dict) and codec.get("name") == "sharding_indexed":
            return dict(codec.get("configuration", {}))
    return None


def _chunk(metadata: Metadata) -> tuple[int, ...]:
    """Shape of what is decoded at once, of either format."""
    if metadata.get("zarr_format") == 2:
        return tuple(metadata["chunks"])
    inner = _sharding(metadata)
    grid = metadata["chunk_grid"]["configuration"] if inner is None else inner
    return tuple(grid["chunk_shape"])
