"""Which volumes a database has: the Zarr arrays directly under a directory, zip file or URL."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sharedvector.loaders.volumes import METADATA_FILES, check_directory, is_local, shorten

__all__ = ["UNREADABLE", "choose_volumes", "find_volumes", "survey"]

_log = logging.getLogger("sharedvector")

UNREADABLE = "unreadable metadata"

Metadata = dict[str, Any]


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


def _parent(root: Path | str) -> str:
    return str(root.parent) if isinstance(root, Path) else root.rpartition("/")[0]


def _look_locally(root: Path) -> dict[str, Metadata | str]:
    check_directory(root, "Zarr volumes")
    paths = {path.name: path for path in sorted(root.iterdir()) if path.is_dir()}
    return {name: _describe(_Files(path)) for name, path in {**paths, "": root}.items()}


def _look_remotely(root: Path | str) -> dict[str, Metadata | str]:
    try:
        from sharedvector.loaders.zarr.engines import read_metadata_files
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
