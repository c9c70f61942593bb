"""`make compare`: the same calls on sharedvector 0.1.0 and on this tree, and what came out.

Exit code 0 only if every difference is listed in docs/RATIONALE.md, section "Differences from
0.1.0", and every difference listed there with calls was seen.

An error counts as the same when every `except` clause that catches 0.1.0's also catches ours. A
signature counts as the same when every call that 0.1.0 accepts binds the same way here.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parent / "docs" / "RATIONALE.md"
HEADING = "Differences from 0.1.0"
SECONDS = 300

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Reason:
    """A row of the document's table: an id, patterns of calls, and why."""

    id: str
    patterns: tuple[str, ...]
    text: str


def read_reasons(document: Path) -> list[Reason]:
    """Rows of the first table below the heading; first cell the id, second the calls, last why.

    Raises ValueError if there is no such section or it has no rows.
    """
    lines = document.read_text().splitlines()
    headings = [n for n, line in enumerate(lines) if re.fullmatch(rf"#+ {HEADING}", line.strip())]
    if not headings:
        raise ValueError(f"{document} has no section {HEADING!r}")
    reasons = []
    for line in lines[headings[0] + 1 :]:
        if line.startswith("#"):
            break
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(r"D\d+", cells[0]):
            reasons.append(Reason(cells[0], tuple(re.findall(r"`([^`]+)`", cells[1])), cells[-1]))
    if not reasons:
        raise ValueError(f"section {HEADING!r} of {document} has no rows `| D1 | ... |`")
    return reasons


def same_parameters(old: Sequence[Sequence[str]], new: Sequence[Sequence[str]]) -> bool:
    """Whether every call that binds to `old` binds to `new` in the same way.

    Parameters are [name, kind, default]; a name argN is one that the extension left unnamed.
    """
    if any(kind.startswith("VAR") for _, kind, _ in new) and list(old) != list(new):
        return False
    by_name = {name: (kind, default) for name, kind, default in new}
    order = [name for name, kind, _ in new if kind.startswith("POSITIONAL")]
    matched = set()
    for position, (name, kind, default) in enumerate(old):
        if re.fullmatch(r"arg\d", name) or (position == 0 and name == "self"):
            if position >= len(order):
                return False
            matched.add(order[position])
            continue
        if name not in by_name:
            return False
        matched.add(name)
        new_kind, new_default = by_name[name]
        # What 0.1.0 asks for is always passed: whether it has a default here makes no difference.
        if default and new_default != default:
            return False
        if kind == "POSITIONAL_ONLY" or kind == "POSITIONAL_OR_KEYWORD":
            if position >= len(order) or order[position] != name:
                return False
            if kind == "POSITIONAL_OR_KEYWORD" and new_kind == "POSITIONAL_ONLY":
                return False
        elif new_kind == "POSITIONAL_ONLY":
            return False
    return all(default for name, _, default in new if name not in matched)


def same_fact(old: Mapping[str, Any], new: Any) -> bool:
    """Compare two facts about a name: its kind, its signature, what catches it."""
    if not isinstance(new, Mapping):
        return False
    for key, value in old.items():
        other = new.get(key)
        if key == "exception":
            if not set(value) <= set(other or ()):
                return False
        elif key == "parameters":
            if value is not None and (other is None or not same_parameters(value, other)):
                return False
        elif key == "kind":
            # A property and a plain attribute read alike.
            if {value, other} - {"property", "attribute"} and value != other:
                return False
        elif value != other:
            return False
    return True


def same(old: Record, new: Record | None) -> bool:
    """Whether a call did the same in both packages."""
    if new is None:
        return False
    if "raises" in old:
        return set(old["raises"]) <= set(new.get("raises", ())) and old.get("code") == new.get(
            "code"
        )
    if "raises" in new:
        return False
    if old["id"].startswith("names.") and isinstance(old["value"], Mapping):
        return same_fact(old["value"], new["value"])
    return bool(old["value"] == new["value"])


@dataclass(frozen=True)
class Comparison:
    """Ids of calls by outcome."""

    same: list[str]
    explained: dict[str, list[str]]
    unexplained: list[str]
    unseen: list[str]
    added: list[str]

    @property
    def ok(self) -> bool:
        return not self.unexplained and not self.unseen


def compare(
    old: Mapping[str, Record], new: Mapping[str, Record], reasons: Sequence[Reason]
) -> Comparison:
    equal: list[str] = []
    explained: dict[str, list[str]] = {reason.id: [] for reason in reasons if reason.patterns}
    unexplained: list[str] = []
    for key, record in old.items():
        if same(record, new.get(key)):
            equal.append(key)
            continue
        ids = [r.id for r in reasons if any(fnmatch.fnmatchcase(key, p) for p in r.patterns)]
        for found in ids:
            explained[found].append(key)
        if not ids:
            unexplained.append(key)
    return Comparison(
        same=equal,
        explained=explained,
        unexplained=unexplained,
        unseen=[reason for reason, keys in explained.items() if not keys],
        added=[key for key in new if key not in old],
    )


def parse_records(text: str) -> dict[str, Record]:
    """Records by id; lines that are not records (commands print too) are left out."""
    records: dict[str, Record] = {}
    for line in text.splitlines():
        if line.startswith('{"id": '):
            # As text, because NaN is not equal to itself.
            record = json.loads(line, parse_constant=str)
            records[record["id"]] = record
    return records


def start(python: Path, prefix: str, work: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    with (work / f"{prefix}.out").open("wb") as out, (work / f"{prefix}.err").open("wb") as err:
        return subprocess.Popen(
            [python, HERE / "compare_calls.py", prefix],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=work,
            env=environment,
            start_new_session=True,  # so that all it starts can be ended at once
        )


def collect(process: subprocess.Popen[bytes], prefix: str, work: Path) -> dict[str, Record]:
    """Records of a finished run. Raises RuntimeError with the end of its output if it failed."""
    try:
        code = process.wait(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = -1
    records = parse_records((work / f"{prefix}.out").read_text())
    if code != 0 or "end" not in records:
        tail = "\n".join((work / f"{prefix}.err").read_text().splitlines()[-20:])
        reached = next(reversed(records), "nothing")
        why = f"no end after {SECONDS} s" if code == -1 else f"exit code {code}"
        raise RuntimeError(f"{prefix}: {why}, last record {reached}\n{tail}")
    return records


def end(process: subprocess.Popen[bytes], prefix: str) -> None:
    """End a run with all its processes, and remove its files from shared memory.

    0.1.0 leaves its lock files even after a run that came to its end.
    """
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing of it runs any more
    process.wait()
    for pattern in (f"{prefix}-*", f".{prefix}-*"):
        for left in Path("/dev/shm").glob(pattern):
            left.unlink(missing_ok=True)


def on_signal(number: int, frame: object) -> None:
    # One is enough: a second must not break the cleaning up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def outcome(record: Record | None) -> str:
    if record is None:
        return "missing"
    if "raises" in record:
        return f"raises {record['raises'][0]}: {record['message'].splitlines()[0][:90]!r}"
    return json.dumps(record["value"])[:100]


def print_result(
    result: Comparison,
    old: Mapping[str, Record],
    new: Mapping[str, Record],
    reasons: Sequence[Reason],
) -> None:
    on_purpose = sorted({key for keys in result.explained.values() for key in keys})
    print("different on purpose:")
    for reason in reasons:
        for key in result.explained.get(reason.id, ()):
            print(f"  {reason.id:<4} {key}: {outcome(old[key])} -> {outcome(new.get(key))}")
    if result.unexplained:
        print("DIFFERENT, and no reason is listed:")
        for key in result.unexplained:
            print(f"  {key}: {outcome(old[key])} -> {outcome(new.get(key))}")
    if result.unseen:
        print(f"listed, but not seen: {', '.join(result.unseen)}")
    print(
        f"\n{len(old)} calls and names of 0.1.0: {len(result.same)} same, {len(on_purpose)} "
        f"different on purpose, {len(result.unexplained)} DIFFERENT; {len(result.added)} names "
        "are new here"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare this tree with sharedvector 0.1.0.")
    parser.add_argument("--old", type=Path, help="python with sharedvector 0.1.0")
    parser.add_argument("--new", type=Path, help="python with this tree installed")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="where reasons are listed")
    parser.add_argument("--records", type=Path, help="directory that keeps the records")
    arguments = parser.parse_args()
    reasons = read_reasons(arguments.document)
    old_python, new_python = arguments.old, arguments.new
    if old_python is None or new_python is None:
        from compare_env import environments

        made = environments()
        old_python, new_python = old_python or made[0], new_python or made[1]
    with tempfile.TemporaryDirectory(prefix="compare-") as scratch:
        work = Path(scratch) if arguments.records is None else arguments.records.resolve()
        work.mkdir(parents=True, exist_ok=True)
        runs: dict[str, subprocess.Popen[bytes]] = {}
        signal.signal(signal.SIGINT, on_signal)
        signal.signal(signal.SIGTERM, on_signal)
        print("running the calls on both packages", flush=True)
        try:
            for prefix, python in (
                (f"svold{os.getpid()}", old_python),
                (f"svnew{os.getpid()}", new_python),
            ):
                runs[prefix] = start(python, prefix, work)
            old, new = (collect(process, prefix, work) for prefix, process in runs.items())
        except RuntimeError as error:
            print(f"compare: {error}", file=sys.stderr)
            return 1
        finally:
            for prefix, process in runs.items():
                end(process, prefix)
    result = compare(old, new, reasons)
    print_result(result, old, new, reasons)
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
