"""Where a database of volumes is: paths and URLs, and the files of metadata that it may have."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "METADATA_FILES",
    "ROOT_FILES",
    "as_path",
    "as_root",
    "check_directory",
    "is_local",
    "kind_of",
    "shorten",
]

_SHOWN = 5  # names in one message
_LONGEST = 300  # characters of one of them, with its reason
_FILE = "file://"

METADATA_FILES = ("zarr.json", ".zarray", ".zattrs", ".zgroup")  # in the order that they are read
ROOT_FILES = ("zarr.json", ".zmetadata", *METADATA_FILES[1:])  # the second: consolidated, of v2


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


def check_directory(root: Path, content: str) -> None:
    """Raise FileNotFoundError unless ``root``, which should hold ``content``, is a directory."""
    if not root.is_dir():
        problem = "is not a directory" if root.exists() else "does not exist"
        raise FileNotFoundError(f"wanted a directory of {content}, but {root} {problem}")


def kind_of(path: Path) -> tuple[str, bool]:
    """Return what has a name, and whether it is lost: there is a name and nothing to read.

    Links are followed. The text is "directory", "file", or says what else it is.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "a link that leads to itself", True
        if error.errno == errno.ENOENT and path.is_symlink():
            return f"a link to {os.readlink(path)}, where nothing is", True
        return f"it cannot be looked at: {error.strerror}", True
    if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
        return ("directory" if stat.S_ISDIR(mode) else "file"), False
    return ("a socket" if stat.S_ISSOCK(mode) else "a pipe or a device"), False


def shorten(items: Sequence[str]) -> str:
    """Return the first few of ``items`` in one line, and how many more there are."""
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(map(_printable, items[:_SHOWN])) + more


def _printable(item: str) -> str:
    """An item without line ends and the like, which names of files may have, and not too long."""
    text = item if item.isprintable() else ascii(item)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"
