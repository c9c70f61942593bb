"""``python -m sharedvector``: what there is to run, and the pools and blocks of this node."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharedvector import _core
from sharedvector._coordination import PoolPaths, probe_owner, read_marker
from sharedvector.cli import bench
from sharedvector.cli.errors import Parser
from sharedvector.monitoring import diagnostics, sweep
from sharedvector.stats import collect_stats
from sharedvector.vector import SharedVector

_COMMANDS = """\
commands:
  sharedvector-producer          own a pool and feed it (--help)
  sharedvector-spacing-manifest  collect the spacings of a Zarr database (--help)
  sharedvector-zarr-verify       decode a Zarr database, name what is damaged (--help)
  python -m sharedvector list    the segments of this node
  python -m sharedvector info    one of them in detail
  python -m sharedvector sweep   remove what dead processes left behind
  python -m sharedvector diagnostics  what takes shared memory, and what is left of it
  python -m sharedvector bench share  give an array to workers in every way, measured here
  sharedvector recover, check, remove  mend a segment by its name, without Python
"""
_MIB = 2**20
_WIDEST_COMMAND = 72  # characters


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0, or 1 after an error, told in one line."""
    parser = Parser(
        prog="python -m sharedvector",
        description=f"sharedvector {_core.__version__}: pools of array chunks in shared memory.",
        epilog=_COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="{list,info,sweep,diagnostics,bench}")
    commands.add_parser("list", help="list the segments of this node")
    info = commands.add_parser("info", help="describe one segment")
    info.add_argument("name")
    info.add_argument("--lock-dir", help="directory of the lock and the ready marker")
    info.add_argument("--mode", type=_mode, default=0o600, help="its permission bits, octal (600)")
    _add_sweep_and_diagnostics(commands)
    measure = commands.add_parser("bench", help="measure on this machine")
    questions = measure.add_subparsers(dest="question", metavar="{share}", required=True)
    text = "Each worker sums its slice of an array; every way of getting the slices there."
    bench.add_arguments(
        questions.add_parser("share", help="ways to give an array to workers", description=text)
    )
    options = parser.parse_args(argv)
    try:
        if options.command == "bench":
            return bench.run(options)
        if options.command == "list":
            return _list()
        if options.command == "sweep":
            return _sweep(options)
        if options.command == "diagnostics":
            return _diagnostics(options)
        if options.command == "info":
            return _info(PoolPaths.for_name(options.name, options.lock_dir), options.mode)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        print(f"sharedvector: {error}", file=sys.stderr)
        return 1
    parser.print_help()
    return 0


def _add_sweep_and_diagnostics(commands: Any) -> None:
    swept = commands.add_parser(
        "sweep",
        help="remove what dead processes left behind",
        description="Remove the blocks and pools of this user whose makers are dead. Nothing that "
        "lives is touched, in whatever container it runs; nor are plain segments, which record no "
        "maker (see: list).",
    )
    swept.add_argument(
        "--prefix", help="only blocks made with this prefix=, and pools whose names begin with it"
    )
    swept.add_argument("--dry-run", action="store_true", help="remove nothing, only tell")
    told = commands.add_parser(
        "diagnostics",
        help="tell what takes shared memory, and what is left of it",
        description="Tell what takes shared memory, what dead processes left behind, and how much "
        "memory is free.",
    )
    told.add_argument("--prometheus", action="store_true", help="in Prometheus' text format")
    for parser in (swept, told):
        parser.add_argument("--lock-dir", help="directory of the pools' lock files")


def _list() -> int:
    found = sorted(_core.list_segments(), key=lambda item: str(item["name"]))
    if not found:
        print("no segments")
    for item in found:
        print(f"{item['name']}  {item['bytes'] / _MIB:.1f} MiB  {_state(item)}")
    return 0


def _state(item: dict[str, Any]) -> str:
    words = "no pool"
    if item["block"]:
        maker = f"process {item['owner_pid']}" if item["owner_pid"] else "an unknown process"
        words = f"block of {maker}, {'alive' if item['owner_live'] else 'dead'}"
    elif item["owned"]:
        words = "pool" if item["owner_live"] else "orphaned pool"
    return f"{words}, {'in use' if item['attached'] else 'not in use'}"


def _sweep(options: argparse.Namespace) -> int:
    found = sweep(options.prefix, options.dry_run, lock_dir=options.lock_dir)
    verb = "would remove" if options.dry_run else "removed"
    for item in found:
        print(f"{verb} {item.kind} {item.name}  {item.bytes / _MIB:.1f} MiB")
    total = sum(item.bytes for item in found) / _MIB
    print(f"{verb} {len(found)} segment(s), {total:.1f} MiB" if found else "nothing to remove")
    return 0


def _diagnostics(options: argparse.Namespace) -> int:
    found = diagnostics(lock_dir=options.lock_dir)
    if options.prometheus:
        sys.stdout.write(found.prometheus())
    else:
        print(found)
    return 0


def _mode(text: str) -> int:
    """Permission bits in octal, with or without Python's 0o."""
    digits = text.removeprefix("0o")
    if not re.fullmatch("0*[0-7]{1,3}", digits) or int(digits, 8) == 0:
        raise argparse.ArgumentTypeError(
            f"should be permission bits in octal, such as 640 or 0o640, got {text!r}"
        )
    return int(digits, 8)


def _info(paths: PoolPaths, mode: int) -> int:
    listed = [item for item in _core.list_segments() if item["name"] == paths.name]
    # It may take the row of a dead maker.
    vector = SharedVector(paths.name, create=False, mode=mode)
    if vector.block and listed:
        _print_facts([*_block_facts(vector, listed[0]), *_process_facts(vector)])
        return 0
    alive, _, pid = probe_owner(paths)
    facts: list[tuple[str, object]] = [
        ("segment", f"{vector.directory}/{vector.name}"),
        ("generation", vector.generation),
        ("slots", f"{len(vector)} of {vector.capacity} filled, {vector.spare_buffers} spare"),
        ("chunks", f"{vector.dtype}, at most {vector.chunk_size / _MIB:g} MiB"),
        ("memory", f"{vector.segment_bytes / _MIB:.1f} MiB"),
        ("made for", f"{vector.processes} processes" if vector.processes else "not said"),
        *_owner_facts(paths, vector, pid if alive else None),
        ("retired", vector.retired_reason or "no"),
    ]
    facts += [(key, value) for key, value in collect_stats(vector).as_dict(prefix="").items()]
    _print_facts([*facts, *_process_facts(vector)])
    return 0


def _owner_facts(
    paths: PoolPaths, vector: SharedVector, pid: int | None
) -> list[tuple[str, object]]:
    if pid is None and vector.owner_live():
        return [
            ("owner", f"alive, with its lock not in {paths.lock_dir}: see --lock-dir"),
            ("ready", "unknown, as its marker is where its lock is"),
        ]
    return [
        ("owner", "none" if pid is None else f"process {pid}"),
        ("ready", read_marker(paths) == vector.generation),
    ]


def _block_facts(vector: SharedVector, listed: dict[str, Any]) -> list[tuple[str, object]]:
    return [
        ("segment", f"{vector.directory}/{vector.name}"),
        ("generation", vector.generation),
        ("kind", _state(listed)),
        ("dtype", vector.dtype),
        ("memory", f"{vector.segment_bytes / _MIB:.1f} MiB ({vector.segment_bytes} bytes)"),
    ]


def _process_facts(vector: SharedVector) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = []
    for row in vector.rows():
        state = "alive" if row["live"] else "dead"
        held = f"{row['pins']} pins, {row['claims']} claims"
        who = "this command" if row["pid"] == os.getpid() and row["live"] else _command(row)
        facts.append((f"process {row['pid']}", f"{state}, {held}, {who}"))
    return facts


def _print_facts(facts: list[tuple[str, object]]) -> None:
    width = max(len(key) for key, _ in facts)
    for key, value in facts:
        print(f"{key:{width}}  {value}")


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
