"""Which volumes a database has: the Zarr arrays directly under a directory, zip file or URL."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "METADATA_FILES",
    "UNREADABLE",
    "as_path",
    "as_root",
    "check_directory",
    "choose_volumes",
    "find_volumes",
    "is_local",
    "shorten",
    "survey",
]

_log = logging.getLogger("sharedvector")

_SHOWN = 5  # names in one message
_FILE = "file://"

# Files that tell what a directory is, in the order of `_describe`.
UNREADABLE = "unreadable metadata"
METADATA_FILES = ("zarr.json", ".zarray", ".zattrs", ".zgroup")

Metadata = dict[str, Any]


def as_root(directory: Path | str) -> Path | str:
    """Return an absolute path, for workers that run elsewhere, or the URL without a last slash.

    ValueError for a ``file://`` URL with the name of a host.
    """
    if _scheme(directory) not in ("", _FILE):
        return str(directory).rstrip("/")
    return Path(os.path.abspath(as_path("directory", directory)))


def as_path(what: str, place: Path | str) -> Path:
    """Return the path of what has to be on this machine: a path, or a ``file://`` URL.

    Args:
        what: name of the argument, for the message.
        place: the escapes of a URL (``%20``) are taken out of it; ``?`` and ``#`` are as in paths.

    Raises:
        FileNotFoundError: a URL of another kind.
        ValueError: a ``file://`` URL with the name of a host.
    """
    scheme = _scheme(place)
    if not scheme:
        return Path(place)
    if scheme != _FILE:
        raise FileNotFoundError(
            f"{what} should be a path or a file:// URL, got {place}; copy it to this machine"
        )
    from urllib.parse import unquote_to_bytes

    host, _, path = str(place)[len(_FILE) :].partition("/")
    if host.lower() not in ("", "localhost"):
        raise ValueError(f"{place} is on another host; mount it, and give its path here")
    return Path(os.fsdecode(unquote_to_bytes(f"/{path}")))


def _scheme(place: Path | str) -> str:
    """What a URL begins with, such as "s3://" or "simplecache::"; "" for a path."""
    found = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:(//|:)", place) if isinstance(place, str) else None
    return found[0].lower() if found else ""


def is_local(root: Path | str) -> bool:
    """Return whether volumes are directories below ``root``, not members of a zip file or URL."""
    return isinstance(root, Path) and not (root.suffix == ".zip" and root.is_file())


def find_volumes(root: Path | str) -> dict[str, Metadata]:
    """Return the metadata of the Zarr arrays directly under ``root``, by name, sorted.

    The metadata are the content of ``zarr.json``; of a Zarr v2 array that of ``.zarray``, with
    ``.zattrs`` as "attributes". What is no array is named in one log line, with the reason.

    Args:
        root: as `as_root` gives it. What is not `is_local` needs zarr.

    Raises:
        FileNotFoundError: ``root`` is not there, holds no array, or is one itself.
        ImportError: zarr, or what it needs to read that URL, is not installed.
        OSError: the store cannot be listed.
    """
    return choose_volumes(root, survey(root))


def choose_volumes(root: Path | str, found: Mapping[str, Metadata | str]) -> dict[str, Metadata]:
    """Return those of the findings of `survey` that are volumes; as `find_volumes`."""
    volumes = {name: value for name, value in found.items() if isinstance(value, dict)}
    others = [
        f"{name} ({value})" for name, value in found.items() if isinstance(value, str) if name
    ]
    volumes.pop("", None)
    if not volumes and isinstance(found.get(""), dict):
        raise FileNotFoundError(
            f"{root} is itself a Zarr array; give {_parent(root)}, or whatever has arrays in it"
        )
    if others:
        _log.warning(
            "%s: %d directories are not counted as volumes: %s", root, len(others), shorten(others)
        )
    if not volumes:
        content = f"only {shorten(others)}" if others else "no directory"
        raise FileNotFoundError(f"wanted Zarr arrays directly under {root}, found {content}")
    return dict(sorted(volumes.items()))


def survey(root: Path | str) -> dict[str, Metadata | str]:
    """Return metadata, or why there are none, of ``root`` itself (as "") and each directory in it.

    Args and raises as `find_volumes`, but that nothing has to be found.
    """
    return _look_locally(Path(root)) if is_local(root) else _look_remotely(root)


def check_directory(root: Path, content: str) -> None:
    """Raise FileNotFoundError unless ``root``, which should hold ``content``, is a directory."""
    if not root.is_dir():
        problem = "is not a directory" if root.exists() else "does not exist"
        raise FileNotFoundError(f"wanted a directory of {content}, but {root} {problem}")


def shorten(items: Sequence[str]) -> str:
    """Return the first few of ``items`` in one line, and how many more there are."""
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


def _parent(root: Path | str) -> str:
    return str(root.parent) if isinstance(root, Path) else root.rpartition("/")[0]


def _look_locally(root: Path) -> dict[str, Metadata | str]:
    check_directory(root, "Zarr volumes")
    paths = {path.name: path for path in sorted(root.iterdir()) if path.is_dir()}
    return {name: _describe(_Files(path)) for name, path in {**paths, "": root}.items()}


def _look_remotely(root: Path | str) -> dict[str, Metadata | str]:
    try:
        from sharedvector._zarr_store import read_metadata_files
    except ImportError as error:
        raise ImportError(
            f"reading {root} needs: pip install 'sharedvector[zarr]' ({error})"
        ) from error
    files = read_metadata_files(root)
    inline = _consolidated(files.get("", {}))
    if inline:
        return inline
    return {name: _describe(content) for name, content in files.items()}


def _consolidated(files: Mapping[str, bytes]) -> dict[str, Metadata | str]:
    """Arrays that the group's own ``zarr.json`` describes, if it does."""
    try:
        text = json.loads(files.get("zarr.json", b"{}"))
        members = text["consolidated_metadata"]["metadata"]
        return {
            name: value if value.get("node_type") == "array" else "a Zarr group, not an array"
            for name, value in members.items()
            if "/" not in name
        }
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


def _describe(files: Mapping[str, bytes]) -> Metadata | str:
    """The metadata of an array, or why there is none."""
    try:
        name = next((name for name in METADATA_FILES[:2] if name in files), None)
        if name is None:
            return "a Zarr group, not an array" if ".zgroup" in files else "no zarr.json"
        metadata = json.loads(files[name])
        version = 3 if name == "zarr.json" else 2
        if not isinstance(metadata, dict) or metadata.get("zarr_format") != version:
            return f"{name} is not of Zarr v{version}"
        if version == 2:
            return {**metadata, "attributes": json.loads(files.get(".zattrs", b"{}"))}
    except (OSError, ValueError) as error:
        return f"{UNREADABLE}: {error}"
    node = metadata.get("node_type")
    return metadata if node == "array" else f"a Zarr {node}, not an array"
