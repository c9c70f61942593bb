"""What the package costs next to 0.1.0, to others and to the machine: `python bench/run.py`.

Every package runs in its own environment and worker processes, and they take turns round by round:
compare the ratios of one run, not times of two runs. `make bench` makes the environments first.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import BUILD, Bench, BenchError  # noqa: E402
from report import Report, counts, markdown, table, times  # noqa: E402

QUESTIONS = (
    "get",
    "replace",
    "publish",
    "attach",
    "create",
    "start",
    "batch",
    "zarr",
    "handover",
    "memory",
    "growth",
)
DOCS = HERE.parent / "docs"
DOCUMENT = DOCS / "BENCHMARKS.md"
BEGIN, END = "<!-- results: begin -->\n", "<!-- results: end -->\n"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ratios to 0.1.0, to others and to the machine.")
    parser.add_argument("--quick", action="store_true", help="under two minutes: a first look")
    parser.add_argument(
        "--only", metavar="QUESTION", nargs="+", choices=QUESTIONS, help=", ".join(QUESTIONS)
    )
    parser.add_argument("--ours", type=Path, help="python with this tree, instead of a new one")
    parser.add_argument("--old", type=Path, help="python with 0.1.0, instead of a new one")
    parser.add_argument("--no-others", action="store_true", help="only this tree and 0.1.0")
    parser.add_argument("--json", type=Path, default=BUILD, help="folder of the figures")
    parser.add_argument(
        "--publish", action="store_true", help="charts and tables into docs/ as well"
    )
    parser.add_argument("--strict", action="store_true", help="exit status 1 if a line is missed")
    return parser.parse_args(arguments)


def sides(arguments: argparse.Namespace) -> tuple[dict[str, Path], dict[str, str]]:
    """Pythons by side, and why others are left out."""
    given = {"ours": arguments.ours, "0.1.0": arguments.old}
    given = {side: path for side, path in given.items() if path is not None}
    import peers

    return peers.pythons(given, others=not arguments.no_others)


def measure(
    names: Sequence[str], pythons: dict[str, Path], *, quick: bool
) -> tuple[list[Report], dict[str, str]]:
    """Reports of the questions, printed as they come, and what went wrong with others."""
    reports, failures = [], {}
    for name in names:
        start = time.monotonic()
        try:
            with Bench(pythons, quick=quick) as bench:
                report: Report = importlib.import_module(f"bench_{name}").measure(bench)
                lines = f"{table(report)}\n\n{times(report)}"
        except (BenchError, OSError, RuntimeError, ImportError) as error:
            failures[name] = str(error)
            print(f"== {name}: FAILED\n{error}\n", flush=True)
            continue
        reports.append(report)
        print(f"== {name}: {report.text} ({time.monotonic() - start:.0f} s)\n{lines}")
        print("".join(f"\nnote: {note}" for note in report.notes), flush=True)
    return reports, failures


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def write(reports: Sequence[Report], arguments: argparse.Namespace, left_out: object) -> None:
    arguments.json.mkdir(parents=True, exist_ok=True)
    for report in reports:
        content = {"machine": machine(), "quick": arguments.quick, **report.as_dict()}
        content["left_out"] = left_out
        path = arguments.json / f"{report.name}.json"
        path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"figures: {arguments.json}/*.json")
    try:
        import charts
    except ModuleNotFoundError as error:
        print(f"no charts: {error.name} is not installed (requirements/bench.txt)")
    else:
        for path in charts.draw(reports, DOCS / "img" if arguments.publish else arguments.json):
            print(f"chart: {path}")
    if arguments.publish:
        publish(reports, DOCUMENT)


def publish(reports: Sequence[Report], document: Path) -> None:
    """Put the tables of a run between the marks of a document."""
    before, mark, rest = document.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise RuntimeError(f"{document} should have the lines {BEGIN.strip()} and {END.strip()}")
    where = machine()
    text = f"{where['processor']}, {where['cores']} cores, Linux {where['kernel']}.\n\n"
    document.write_text(before + mark + "\n" + text + markdown(reports) + "\n" + end + after)
    print(f"tables: {document}")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    pythons, left_out = sides(options)
    for side, reason in left_out.items():
        print(f"left out: {side}: {reason}")
    names = [name for name in QUESTIONS if options.only is None or name in options.only]
    reports, failures = measure(names, pythons, quick=options.quick)
    write(reports, options, left_out)
    result = counts(reports)
    print(f"{result['met']} met, {result['missed']} missed, {len(failures)} failed")
    for report in reports:
        for line in report.lines:
            if report.verdict(line) == "missed":
                median = report.spread(line).median
                print(f"missed: {report.name}: {line.text}: {median:.3g}, wanted {line.wanted}")
    return 1 if failures or (options.strict and result["missed"]) else 0


if __name__ == "__main__":
    sys.exit(main())
