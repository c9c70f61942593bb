"""What the samples of ``python -m sharedvector bench share`` say: tables, and which way to take."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Measured", "Outcome", "Spread", "advice", "bytes_text", "describe", "describe_sweep"]

# One job over an array that is in this process; many jobs over one array; no workers. Where they
# are as fast, the first is the simplest.
_ONE_JOB = ("slices", "share", "recipe")
_MANY_JOBS = ("slices", "shared", "attached", "loaded")
_HERE = ("in_process", "threads")


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass
class Outcome:
    """What one method took.

    Attributes:
        label: what the method is.
        seconds: one figure per round.
        ratios: the same, over this process plus empty tasks in the same round.
        note: what has to be known to judge them; why there are none.
    """

    label: str
    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Measured:
    """A run: the outcome of each method by its key, and of what."""

    size_bytes: int
    workers: int
    start_method: str
    pickled_bytes: int
    outcomes: dict[str, Outcome]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        methods = {
            key: {
                "label": outcome.label,
                "note": outcome.note,
                "seconds": vars(Spread.of(outcome.seconds)) if outcome.seconds else None,
                "ratio": vars(Spread.of(outcome.ratios)) if outcome.ratios else None,
                "samples": outcome.seconds,
            }
            for key, outcome in self.outcomes.items()
        }
        plain = {key: value for key, value in vars(self).items() if key != "outcomes"}
        return {**plain, "cores": _cores(), "methods": methods, "advice": advice(self)}


def advice(measured: Measured) -> str:
    """What to take at this size, and why, in one sentence."""
    outcomes = measured.outcomes
    took = {key: outcome.median for key, outcome in outcomes.items() if outcome.seconds}
    here, one, many = (_best(took, keys) for keys in (_HERE, _ONE_JOB, _MANY_JOBS))
    place = "in this process" if here == "in_process" else "in threads"
    if took[many] < took[here]:
        first = f"processes are faster than np.sum {place}, {_ms(took[many])} to {_ms(took[here])}"
    else:
        first = (
            f"what is as short as np.sum and releases the GIL like it is best done {place},"
            f" {_ms(took[here])} to {_ms(took[many])} in processes"
        )
    then = f'take "{outcomes[one].label}" ({_ms(took[one])})'
    if one != many:
        then += f' for a single job, "{outcomes[many].label}" ({_ms(took[many])}) for several'
    what = f"{bytes_text(measured.size_bytes)}, {measured.workers} workers"
    return f"{what}: {first}; for processes {then}."


def _best(took: dict[str, float], keys: Sequence[str]) -> str:
    """The first that is no more than a tenth slower than the fastest: the simplest come first."""
    present = [key for key in keys if key in took]
    limit = 1.1 * min(took[key] for key in present)
    return next(key for key in present if took[key] <= limit)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def bytes_text(size: int) -> str:
    """A round size in decimal units."""
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} bytes"


def _table(measured: Measured) -> str:
    rows = [("", "median", "quartiles", "ratio", "quartiles", "")]
    for outcome in measured.outcomes.values():
        if not outcome.seconds:
            rows.append((outcome.label, "", "", "", "", outcome.note))
            continue
        took, ratio = Spread.of(outcome.seconds), Spread.of(outcome.ratios)
        rows.append(
            (
                outcome.label,
                _ms(took.median),
                f"{_ms(took.low)} to {_ms(took.high)}",
                f"{ratio.median:.2f}",
                f"{ratio.low:.2f} to {ratio.high:.2f}",
                outcome.note,
            )
        )
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)


def describe(measured: Measured) -> str:
    """The table of one run, and what to take."""
    return (
        f"{bytes_text(measured.size_bytes)} of float64, {measured.workers} workers"
        f" ({measured.start_method}, started), one slice each, np.sum; {_cores()} cores;"
        f" {measured.pickled_bytes} bytes pickled for a slice that is shared\n\n"
        f"{_table(measured)}\n\n"
        f"ratio: to the sum of the first two, round by round\n\n{_against(measured)}\n\n"
        f"{advice(measured)}"
    )


def _against(measured: Measured) -> str:
    """How the two ways over shared memory compare, round by round."""
    lines = ["how many times as fast as SharedMemory:"]
    for stdlib, ours in (("attached", "shared"), ("attached", "first"), ("recipe", "share")):
        upper, lower = (measured.outcomes[key].seconds for key in (stdlib, ours))
        spread = Spread.of([above / below for above, below in zip(upper, lower, strict=True)])
        labels = " / ".join(measured.outcomes[key].label for key in (stdlib, ours))
        lines.append(f"  {spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})  {labels}")
    return "\n".join(lines)


def describe_sweep(runs: Sequence[Measured]) -> str:
    """The ratios of runs of growing size, and from which size on sharing pays."""
    rows = [("", *(bytes_text(run.size_bytes) for run in runs), "")]
    for key, outcome in runs[0].outcomes.items():
        if not outcome.seconds:
            continue
        ratios = [statistics.median(run.outcomes[key].ratios) for run in runs]
        rows.append((outcome.label, *(f"{ratio:.2f}" for ratio in ratios), ""))
    bases = [run.outcomes["in_process"].median + run.outcomes["empty"].median for run in runs]
    rows.append(("in this process + tasks that do nothing", *map(_ms, bases), ""))
    pays = [
        f"{text}: {_begins(runs, better, worse)}"
        for text, better, worse in (
            ("sharing for a single job beats pickled slices", "share", "slices"),
            ("an array shared before beats pickled slices", "shared", "slices"),
            ("an array shared before beats doing np.sum in this process", "shared", "in_process"),
        )
    ]
    return "\n".join([_aligned(rows), "", "ratios to the last line, medians of rounds", *pays])


def _begins(runs: Sequence[Measured], better: str, worse: str) -> str:
    """The smallest size from which on one method is faster than another."""
    start = None
    for run in reversed(runs):
        if run.outcomes[better].median >= run.outcomes[worse].median:
            break
        start = run
    return "at no size here" if start is None else f"from {bytes_text(start.size_bytes)} on"


def _cores() -> int:
    return len(os.sched_getaffinity(0))
