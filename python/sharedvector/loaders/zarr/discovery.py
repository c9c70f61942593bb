"""Which volumes a database has: the Zarr arrays directly under a directory, zip file or URL."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sharedvector.loaders.volumes import (
    METADATA_FILES,
    check_directory,
    is_local,
    kind_of,
    shorten,
)

__all__ = ["Skipped", "choose_volumes", "find_volumes", "survey"]

_log = logging.getLogger("sharedvector")

Metadata = dict[str, Any]


class Skipped(NamedTuple):
    """Why something in a database is not one of its volumes.

    Attributes:
        why: in words.
        lost: whether it is or was a volume, as far as can be told.
    """

    why: str
    lost: bool = False


_GROUP = Skipped("a Zarr group, not an array")


def find_volumes(root: Path | str) -> dict[str, Metadata]:
    """Return the metadata of the Zarr arrays directly under ``root``, by name, sorted.

    The metadata are the content of ``zarr.json``; of a Zarr v2 array that of ``.zarray``, with
    ``.zattrs`` as "attributes". What else is there is named in one log line, with the reason, but
    for plain files.

    Args:
        root: as `as_root` gives it. What is not `is_local` needs zarr.

    Raises:
        FileNotFoundError: ``root`` is not there, holds no array, or is one itself.
        ImportError: zarr, or what it needs to read that URL, is not installed.
        OSError: the store cannot be listed.
    """
    return choose_volumes(root, survey(root))


def choose_volumes(
    root: Path | str, found: Mapping[str, Metadata | Skipped]
) -> dict[str, Metadata]:
    """Return those of the findings of `survey` that are volumes; as `find_volumes`."""
    volumes = {name: value for name, value in found.items() if isinstance(value, dict)}
    others = [
        f"{name} ({value.why})"
        for name, value in found.items()
        if isinstance(value, Skipped)
        if name
    ]
    volumes.pop("", None)
    if not volumes and isinstance(found.get(""), dict):
        raise FileNotFoundError(
            f"{root} is itself a Zarr array; give {_parent(root)}, or whatever has arrays in it"
        )
    if not volumes:
        content = f"only {shorten(others)}" if others else "no directory"
        raise FileNotFoundError(f"wanted Zarr arrays directly under {root}, found {content}")
    if others:
        _log.warning(
            "%s: %d of %d entries are not counted as volumes: %s",
            root, len(others), len(others) + len(volumes), shorten(others),
        )  # fmt: skip
    return dict(sorted(volumes.items()))


def survey(root: Path | str) -> dict[str, Metadata | Skipped]:
    """Return metadata, or why there are none, of ``root`` itself (as "") and of what is in it.

    Plain files are left out.

    Args and raises as `find_volumes`, but that nothing has to be found.
    """
    return _look_locally(Path(root)) if is_local(root) else _look_remotely(root)


def _parent(root: Path | str) -> str:
    return str(root.parent) if isinstance(root, Path) else root.rpartition("/")[0]


def _look_locally(root: Path) -> dict[str, Metadata | Skipped]:
    check_directory(root, "Zarr volumes")
    found: dict[str, Metadata | Skipped] = {}
    for path in sorted(root.iterdir()):
        kind, lost = kind_of(path)
        if kind == "directory":
            found[path.name] = _describe(_Files(path))
        elif kind != "file":
            found[path.name] = Skipped(kind, lost)
    return {**found, "": _describe(_Files(root))}


def _look_remotely(root: Path | str) -> dict[str, Metadata | Skipped]:
    try:
        from sharedvector.loaders.zarr.engines import read_metadata_files
    except ImportError as error:
        raise ImportError(
            f"reading {root} needs: pip install 'sharedvector[zarr]' ({error})"
        ) from error
    files = read_metadata_files(root, _consolidated)
    listed = _consolidated(files[""])
    seen = {name: _describe(content) for name, content in files.items()}
    new = sorted(set(seen) - {""})
    if listed and new:
        _log.warning(
            "%s: the consolidated metadata lack %d entries that are there: %s; consolidate them "
            "again",
            root, len(new), shorten(new),
        )  # fmt: skip
    return {**seen, **listed}


def _consolidated(own: Mapping[str, bytes]) -> dict[str, Metadata | Skipped]:
    """What the consolidated metadata of a group describe, if it has some, of either format."""
    found: dict[str, Metadata | Skipped] = {}
    try:
        if "zarr.json" in own:
            members = json.loads(own["zarr.json"])["consolidated_metadata"]["metadata"]
            for name, value in members.items():
                if "/" not in name:
                    found[name] = value if value.get("node_type") == "array" else _GROUP
            return found
        members = json.loads(own[".zmetadata"])["metadata"]
        for key, value in members.items():
            name, _, file = key.rpartition("/")
            if not name or "/" in name:
                continue
            if file == ".zgroup":
                found[name] = _GROUP
            elif file == ".zarray":
                found[name] = {**value, "attributes": members.get(f"{name}/.zattrs", {})}
        return found
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


class _Files(Mapping[str, bytes]):
    """Metadata files of one local directory, read when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getitem__(self, name: str) -> bytes:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            raise KeyError(name) from None

    def __iter__(self) -> Any:
        return iter(METADATA_FILES)

    def __len__(self) -> int:
        return len(METADATA_FILES)


def _describe(files: Mapping[str, bytes]) -> Metadata | Skipped:
    """The metadata of an array, or why there is none."""
    try:
        name = next((name for name in METADATA_FILES[:2] if name in files), None)
        if name is None:
            return _GROUP if ".zgroup" in files else Skipped("no zarr.json")
        metadata = json.loads(files[name])
        version = 3 if name == "zarr.json" else 2
        if not isinstance(metadata, dict) or metadata.get("zarr_format") != version:
            return Skipped(f"{name} is not of Zarr v{version}")
        if version == 2:
            return {**metadata, "attributes": json.loads(files.get(".zattrs", b"{}"))}
    except (OSError, ValueError) as error:
        return Skipped(f"unreadable metadata: {error}", lost=True)
    node = metadata.get("node_type")
    return metadata if node == "array" else Skipped(f"a Zarr {node}, not an array")
