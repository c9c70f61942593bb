"""Run the Spin models and their mutations; docs/MODELS.md says what they show.

A model must have no error. A mutation is a model with one rule taken away by a macro: it must have
one, or the model could not see the rule at all. A search for states must reach each of them.

Usage: run.py [--quick] [--only WORD] [--keep DIR]
MODEL_SECONDS: time for one search (default 900, --quick 60); a search that is stopped says so.
MODEL_MEMORY:  MiB for one search (default 10000).
Exit 1: an error in a model, none in a mutation, or a state that is not reached. Exit 2: no spin.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from searches import BITSTATE, EXHAUSTIVE, SEARCHES, Search, mutations

HERE = Path(__file__).resolve().parent
SPIN_HINT = "spin is missing: apt-get install spin (6.5.2), or https://spinroot.com"


@dataclass
class Outcome:
    """What the checker printed."""

    states: str = "0"
    depth: str = "0"
    errors: int = -1
    memory: str = "?"
    what: str = ""
    reached: frozenset[str] = frozenset()
    whole: bool = True
    seconds: float = 0.0
    trouble: str = ""


def build(search: Search, folder: Path, memory: int, fast_compile: bool) -> str:
    """Make the checker; returns what went wrong, or nothing."""
    spin = ["spin", *search.macros.split(), "-a", str(HERE / search.model)]
    made = subprocess.run(spin, cwd=folder, capture_output=True, text=True, timeout=120)
    if made.returncode != 0 or "Error" in made.stdout:
        return f"spin: {made.stdout[-300:]}{made.stderr[-300:]}"
    flags = ["-w", "-O0" if fast_compile else "-O2", f"-DMEMLIM={memory}"]
    # The reduction of orders does not go with fairness.
    flags += ["-DNP", "-DNOREDUCE"] if search.live else ["-DSAFETY", "-DNOFAIR"]
    if search.mode == BITSTATE:
        flags.append("-DBITSTATE")
    elif search.deep:
        flags.append("-DCOLLAPSE")
    made = subprocess.run(
        ["gcc", *flags, "-o", "pan", "pan.c"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return "" if made.returncode == 0 else f"gcc: {made.stderr[-300:]}"


def read_output(text: str, outcome: Outcome) -> None:
    """Take the figures out of what the checker printed."""
    if found := re.search(r"depth reached (\d+), errors: (\d+)", text):
        outcome.depth, outcome.errors = found.group(1), int(found.group(2))
    if found := re.search(r"^\s*(\S+) states, stored", text, re.MULTILINE):
        outcome.states = f"{float(found.group(1)):,.0f}"
    if found := re.search(r"(\S+)\s+total actual memory usage", text):
        outcome.memory = f"{float(found.group(1)):,.0f} MiB"
    if found := re.search(r"^pan:\d+: (.*?) \(at depth", text, re.MULTILINE):
        outcome.what = " ".join(found.group(1).split())
    outcome.reached = frozenset(re.findall(r"^reached: (.*)$", text, re.MULTILINE))
    if "max search depth too small" in text:
        outcome.trouble = "search depth too small"
        outcome.whole = False
    if "out of memory" in text or "memory exhausted" in text:
        outcome.trouble = "out of memory"
        outcome.whole = False


def run(search: Search, folder: Path, seconds: int, memory: int, quick: bool) -> Outcome:
    """Build and run one search, for `seconds` at most."""
    outcome = Outcome()
    started = time.monotonic()
    outcome.trouble = build(search, folder, memory, quick or search.want == "error")
    if outcome.trouble:
        return outcome
    large = search.deep and not quick and search.want != "error"
    arguments = ["./pan", f"-m{30_000_000 if large else 2_000_000}", f"-w{27 if large else 22}"]
    if search.mode == BITSTATE:
        arguments = ["./pan", "-m20000000", "-w33", "-k3"]
    if search.live:
        arguments += ["-l", "-f", "-E"]
    with (folder / "out").open("w+") as out:
        process = subprocess.Popen(arguments, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            outcome.whole = False
            process.send_signal(signal.SIGINT)  # it prints what it has
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        out.seek(0)
        read_output(out.read(), outcome)
    outcome.seconds = time.monotonic() - started
    return outcome


def judge(search: Search, outcome: Outcome, seconds: int) -> tuple[bool, str]:
    """Is it as it must be, and in a few words why (not)."""
    if outcome.errors < 0:
        return False, outcome.trouble or "the checker printed no result"
    if search.want == "error":
        if outcome.errors > 0:
            return True, f"caught: {outcome.what}"
        return False, "NOT CAUGHT" + ("" if outcome.whole else f", {outcome.trouble or 'stopped'}")
    if outcome.errors > 0:
        return False, f"ERROR: {outcome.what}"
    missing = search.want - outcome.reached if isinstance(search.want, frozenset) else frozenset()
    if missing:
        return False, f"never reached: {', '.join(sorted(missing))}"
    if outcome.trouble and search.mode == EXHAUSTIVE:
        return False, outcome.trouble
    if not outcome.whole:
        return True, f"no error; stopped after {seconds} s, not exhaustive"
    if search.mode == BITSTATE:
        return True, "no error; bitstate, not exhaustive"
    reached = f", {len(search.want)} states reached" if isinstance(search.want, frozenset) else ""
    return True, f"no error; exhaustive{reached}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Spin models of the protocol, and mutations")
    parser.add_argument("--quick", action="store_true", help="small models, all mutations")
    parser.add_argument("--only", metavar="WORD", default="", help="searches with WORD in the name")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep traces and checkers there")
    options = parser.parse_args()
    if shutil.which("spin") is None or shutil.which("gcc") is None:
        print(SPIN_HINT if shutil.which("spin") is None else "gcc is missing: apt-get install gcc")
        return 2
    seconds = int(os.environ.get("MODEL_SECONDS", "60" if options.quick else "900"))
    memory = int(os.environ.get("MODEL_MEMORY", "10000"))
    failed = []
    chosen = [
        s
        for s in SEARCHES + mutations()
        if options.only.lower() in s.name.lower() and (s.quick or not options.quick)
    ]
    print(f"{'search':<50} {'states':>13} {'depth':>9} {'errors':>6} {'memory':>10} {'s':>6}")
    for number, search in enumerate(chosen):
        with tempfile.TemporaryDirectory(prefix="sharedvector-model-") as temporary:
            folder = Path(temporary)
            if options.keep is not None:
                folder = options.keep / f"{number:02}-{re.sub(r'[^A-Za-z0-9]+', '-', search.name)}"
                folder.mkdir(parents=True, exist_ok=True)
            # What must be found has more time: on a slow machine it is not missing yet.
            limit = seconds if search.want == "none" else 10 * seconds
            outcome = run(search, folder, limit, memory, options.quick)
        good, words = judge(search, outcome, seconds)
        name = f"mutation {search.name}" if search.want == "error" else search.name
        if search.live and search.want == "error":
            name = f"mutation {search.name} (progress)"
        print(
            f"{name:<50} {outcome.states:>13} {outcome.depth:>9} {outcome.errors:>6} "
            f"{outcome.memory:>10} {outcome.seconds:>6.1f}\n"
            f"    {'ok' if good else 'FAILED'}: {words}",
            flush=True,
        )
        if not good:
            failed.append(name)
    caught = sum(1 for s in chosen if s.want == "error")
    print(
        f"{len(chosen) - caught} models and searches, {caught} mutations: "
        + (f"FAILED: {'; '.join(failed)}" if failed else "all as they must be")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
