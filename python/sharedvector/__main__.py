"""``python -m sharedvector``: what there is to run, and the pools of this node."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharedvector import _core
from sharedvector.coordination import PoolPaths, attach, probe_owner, read_marker
from sharedvector.stats import collect_stats

_COMMANDS = """\
commands:
  sharedvector-producer          own a pool and feed it (--help)
  sharedvector-spacing-manifest  collect the spacings of a Zarr database (--help)
  sharedvector-zarr-verify       decode a Zarr database, name what is damaged (--help)
  python -m sharedvector list    the segments of this node
  python -m sharedvector info    one of them in detail
"""
_MIB = 2**20
_WIDEST_COMMAND = 60  # characters


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0, or 1 after an error, told in one line."""
    parser = argparse.ArgumentParser(
        prog="python -m sharedvector",
        description=f"sharedvector {_core.__version__}: pools of array chunks in shared memory.",
        epilog=_COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="{list,info}")
    commands.add_parser("list", help="list the segments of this node")
    info = commands.add_parser("info", help="describe one segment")
    info.add_argument("name")
    info.add_argument("--lock-dir", help="directory of the lock and the ready marker")
    options = parser.parse_args(argv)
    try:
        if options.command == "list":
            return _list()
        if options.command == "info":
            return _info(PoolPaths.for_name(options.name, options.lock_dir))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"sharedvector: {error}", file=sys.stderr)
        return 1
    parser.print_help()
    return 0


def _list() -> int:
    found = sorted(_core.list_segments(), key=lambda item: str(item["name"]))
    if not found:
        print("no segments")
    for item in found:
        print(f"{item['name']}  {item['bytes'] / _MIB:.1f} MiB  {_state(item)}")
    return 0


def _state(item: dict[str, Any]) -> str:
    words = ["no pool"]
    if item["owned"]:
        words = ["pool" if item["owner_live"] else "orphaned pool"]
    words.append("in use" if item["attached"] else "not in use")
    return ", ".join(words)


def _info(paths: PoolPaths) -> int:
    vector = attach(paths)
    alive, _, pid = probe_owner(paths)
    facts: list[tuple[str, object]] = [
        ("segment", f"{vector.directory}/{vector.name}"),
        ("generation", vector.generation),
        ("slots", f"{len(vector)} of {vector.capacity} filled, {vector.spare_buffers} spare"),
        ("chunks", f"{vector.dtype}, at most {vector.chunk_size / _MIB:g} MiB"),
        ("memory", f"{vector.segment_bytes / _MIB:.1f} MiB"),
        ("owner", f"process {pid}" if alive else "none"),
        ("ready", read_marker(paths) == vector.generation),
        ("retired", vector.retired_reason or "no"),
    ]
    facts += [(key, value) for key, value in collect_stats(vector).as_dict(prefix="").items()]
    for row in vector.rows():
        state = "alive" if row["live"] else "dead"
        held = f"{row['pins']} pins, {row['claims']} claims"
        who = "this command" if row["pid"] == os.getpid() and row["live"] else _command(row)
        facts.append((f"process {row['pid']}", f"{state}, {held}, {who}"))
    width = max(len(key) for key, _ in facts)
    for key, value in facts:
        print(f"{key:{width}}  {value}")
    return 0


def _command(row: dict[str, Any]) -> str:
    """The end of a process's command line, which tells programs of one interpreter apart."""
    command = str(row["command"])  # the segment keeps only its beginning
    process = Path(f"/proc/{row['pid']}")
    try:
        started = int(process.joinpath("stat").read_text().rsplit(")", 1)[1].split()[19])
        if started == row["start_time"]:  # not so for a pid of another namespace
            whole = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ")
            command = whole.decode(errors="replace")
    except (OSError, IndexError):
        pass  # it has ended
    command = " ".join(command.split())
    if len(command) <= _WIDEST_COMMAND:
        return command
    return f"...{command[-_WIDEST_COMMAND:]}"


if __name__ == "__main__":
    sys.exit(main())
