"""Voxel spacing of a directory of Zarr volumes: found, gathered into one file, read back."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sharedvector.loaders.volumes import as_path, as_root, check_directory, is_local, shorten
from sharedvector.loaders.zarr import find_volumes

__all__ = ["collect_spacings", "write_spacing_manifest"]

_log = logging.getLogger("sharedvector.spacing")


def collect_spacings(
    root: Path | str, attr_key: str = "spacing", strict: bool = True
) -> dict[str, list[float]]:
    """Read the spacing attribute of every Zarr array directly under a directory.

    Only the metadata of each array is read. Directories that are no arrays (groups, stray
    directories) are named in the log and left out.

    Args:
        root: the directory; each of its directories is one volume. Also a zip file or a URL, as for
            `ZarrLoader`; those need zarr.
        attr_key: the attribute that holds the spacing: three finite numbers (x, y, z), in
            millimetres or whatever unit the volumes use.
        strict: raise for a volume without such an attribute; otherwise name it in the log and
            leave it out.

    Returns:
        ``{volume name: [x, y, z]}``, sorted by name.

    Raises:
        FileNotFoundError: ``root`` is not there, or holds no array.
        ValueError: (``strict``) a volume whose attribute is missing or no such triple.
    """
    root = as_root(root)
    spacings: dict[str, list[float]] = {}
    for name, metadata in _progress(find_volumes(root).items()):
        attributes = metadata.get("attributes")
        value = attributes.get(attr_key) if isinstance(attributes, dict) else None
        triple = _as_triple(value)
        if triple is not None:
            spacings[name] = triple
            continue
        problem = (
            f"volume {name!r} under {root}: attribute {attr_key!r} should be three finite numbers "
            f"(x, y, z), found {'nothing' if value is None else repr(value)}"
        )
        if strict:
            raise ValueError(
                f"{problem}; set it, name another attribute, or leave such volumes out "
                "(strict=False, --skip-missing)"
            )
        _log.warning("%s; left out", problem)
    return spacings


def write_spacing_manifest(
    root: Path | str,
    output: Path | str | None = None,
    attr_key: str = "spacing",
    strict: bool = True,
) -> Path:
    """Write what `collect_spacings` finds as a JSON file ``{volume name: [x, y, z]}``.

    The file appears by rename: readers see the old one or the new one, and a failure leaves the
    old one as it was. A symbolic link stays one, and what is no regular file is written into.

    Args:
        root: the directory of volumes.
        output: the file to write, a path or a ``file://`` URL; ``<root>/spacing.json`` when None.
            Its directory must exist. A ``root`` that is no directory needs one.
        attr_key: see `collect_spacings`.
        strict: see `collect_spacings`.

    Returns:
        The path written, as it was given.

    Raises:
        FileNotFoundError: as in `collect_spacings`, or the directory of ``output`` is missing.
        OSError: ``output`` is a directory, or cannot be written. Such errors come before the work.
        ValueError: as in `collect_spacings`, or ``output`` is missing.
    """
    place = as_root(root)
    if output is None and not is_local(place):
        raise ValueError(f"{root} is no directory that could hold the file; say where to (output)")
    written = Path(place) / "spacing.json" if output is None else as_path("output", output)
    if output is None:
        check_directory(written.parent, "Zarr volumes")
    # Where a link leads to; a pipe or device, such as /dev/stdout, is written to by its own name.
    target = written.absolute() if _is_special(written) else written.resolve()
    _check_target(target)
    spacings = collect_spacings(root, attr_key, strict)
    lines = [f"  {json.dumps(name)}: {json.dumps(triple)}" for name, triple in spacings.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n" if lines else "{}\n"
    _replace_file(target, text)
    return written


def read_spacings(manifest: Path, names: Sequence[str]) -> list[list[float]]:
    """Return the (x, y, z) of each of ``names`` from a spacing manifest, in that order.

    Raises:
        FileNotFoundError: ``manifest`` is no file.
        ValueError: it is no JSON object, lacks a name, or has no three finite numbers for one.
    """
    if not manifest.is_file():
        raise FileNotFoundError(
            f"no spacing file at {manifest}; sharedvector-spacing-manifest writes one"
        )
    try:
        entries = json.loads(manifest.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"spacing file {manifest} is not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise ValueError(
            f"spacing file {manifest} should hold an object {{volume name: [x, y, z]}}, found a "
            f"{type(entries).__name__}"
        )
    missing = [name for name in names if name not in entries]
    if missing:
        raise ValueError(
            f"spacing file {manifest} lacks {len(missing)} of {len(names)} volumes: "
            f"{shorten(missing)}; write it again or remove those volumes"
        )
    triples = {name: _as_triple(entries[name]) for name in names}
    wrong = [f"{name}: {entries[name]!r}" for name, triple in triples.items() if triple is None]
    if wrong:
        raise ValueError(
            f"spacing file {manifest} should give three finite numbers (x, y, z) for each volume, "
            f"found {shorten(wrong)}"
        )
    return [triple for triple in triples.values() if triple is not None]


def _as_triple(value: object) -> list[float] | None:
    """Three finite floats, or None. Numbers written as text pass, as they always did."""
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        return None
    if not all(isinstance(part, (int, float, str)) for part in value):
        return None
    if any(isinstance(part, bool) for part in value):
        return None
    try:
        triple = [float(part) for part in value]
    except (ValueError, OverflowError):
        return None
    return triple if all(map(math.isfinite, triple)) else None


def _progress(
    items: Iterable[tuple[str, Mapping[str, Any]]],
) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """A bar on a terminal, where tqdm is installed; nothing in logs and pipes."""
    if not sys.stderr.isatty():
        return items
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    bar: Iterable[tuple[str, Mapping[str, Any]]] = tqdm(
        list(items), desc="reading spacings", unit="volume"
    )
    return bar


def _check_target(target: Path) -> None:
    """Raise what writing the file would raise after all volumes have been looked at."""
    if _is_special(target):
        return
    directory = target.parent
    if target.is_dir():
        raise IsADirectoryError(
            f"wanted a file to write, but {target} is a directory; name a file in it"
        )
    if not directory.exists():
        raise FileNotFoundError(
            f"wanted to write {target.name}, but {directory} does not exist; make it first"
        )
    if not directory.is_dir():
        raise NotADirectoryError(f"wanted to write {target}, but {directory} is no directory")
    if not os.access(directory, os.W_OK):
        raise PermissionError(
            f"wanted to write {target.name}, but {directory} cannot be written; say where to "
            "(output)"
        )


def _is_special(path: Path) -> bool:
    """Whether it is a pipe or a device, which is written into and not replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _replace_file(target: Path, text: str) -> None:
    if _is_special(target):
        target.write_text(text, encoding="utf-8")
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
