"""What the samples say: ratios with spread, against what is wanted; as a table and as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """ValueError when there is no value."""
        if not values:
            raise ValueError("no samples")
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Wanted:
    """A limit on a median."""

    limit: float
    at_least: bool

    def met_by(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


def at_least(limit: float) -> Wanted:
    return Wanted(limit, at_least=True)


def at_most(limit: float) -> Wanted:
    return Wanted(limit, at_least=False)


@dataclass(frozen=True)
class Line:
    """A row of the table: the ratio of two series round by round, or one series as it is.

    Attributes:
        text: what is compared with what.
        upper: name of the series above the bar.
        lower: name of the series below; None: no ratio, the samples themselves.
        wanted: what the median should be; None: for information.
        unit: of a value that is no ratio.
    """

    text: str
    upper: str
    lower: str | None
    wanted: Wanted | None = None
    unit: str = ""


@dataclass
class Report:
    """Answer to one question.

    Attributes:
        name: of the question.
        text: what was measured, and how.
        series: samples in seconds (unless a line names a unit), one per round, all of the same
            rounds.
        lines: of the table.
        payload: bytes that one call of a series moves, for its throughput.
        notes: what the reader has to know to judge the figures.
    """

    name: str
    text: str
    series: dict[str, list[float]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    payload: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def spread(self, line: Line) -> Spread:
        upper = self.series[line.upper]
        if line.lower is None:
            return Spread.of(upper)
        pairs = zip(upper, self.series[line.lower], strict=True)
        return Spread.of([above / below for above, below in pairs])

    def verdict(self, line: Line) -> str:
        """ "met", "missed", or "" when nothing is wanted."""
        if line.wanted is None:
            return ""
        return "met" if line.wanted.met_by(self.spread(line).median) else "missed"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "text": self.text,
            "ratios": [
                {
                    "text": line.text,
                    **vars(self.spread(line)),
                    "unit": line.unit,
                    "wanted": str(line.wanted) if line.wanted else None,
                    "limit": line.wanted.limit if line.wanted else None,
                    "verdict": self.verdict(line) or None,
                }
                for line in self.lines
            ],
            "series": {name: vars(Spread.of(values)) for name, values in self.series.items()},
            "samples": self.series,
            "payload": self.payload,
            "notes": self.notes,
        }


def seconds_text(seconds: float) -> str:
    """Three digits and a unit that suits."""
    for factor, unit in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{digits(seconds * factor)} {unit}"
    return f"{digits(seconds)} s"


def digits(value: float) -> str:
    """A number with three significant digits, without an exponent where it is legible."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 6)}f}"


HEAD = ("", "median", "quartiles", "wanted", "")


def table(report: Report) -> str:
    """Ratios with quartiles, wanted value and verdict."""
    return aligned(HEAD, _rows(report))


def markdown(reports: Sequence[Report]) -> str:
    """The same of several reports, as tables of a document."""
    parts = []
    for report in reports:
        rows = ["| " + " | ".join(row) + " |" for row in (HEAD, ("---",) * 5, *_rows(report))]
        notes = [f"\n{note}" for note in report.notes]
        parts.append("\n".join([f"**{report.name}**: {report.text}.\n", *rows, *notes]))
    return "\n\n".join(parts) + "\n"


def _rows(report: Report) -> list[tuple[str, ...]]:
    rows = []
    for line in report.lines:
        spread = report.spread(line)
        unit = f" {line.unit}" if line.unit else ""
        rows.append(
            (
                line.text,
                digits(spread.median) + unit,
                f"{digits(spread.low)} to {digits(spread.high)}",
                str(line.wanted or ""),
                report.verdict(line),
            )
        )
    return rows


def times(report: Report) -> str:
    """The series themselves: absolute times, which hold for this machine and hour only."""
    unit_of = {line.upper: line.unit for line in report.lines if line.unit}
    rows = []
    for name, values in report.series.items():
        spread = Spread.of(values)
        if unit := unit_of.get(name):
            rows.append((name, f"{digits(spread.median)} {unit}", ""))
            continue
        size = report.payload.get(name)
        rate = f"{digits(1e-9 * size / spread.median)} GB/s" if size else ""
        rows.append((name, seconds_text(spread.median), rate))
    return aligned(("median", "time", "throughput"), rows)


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest text; the first one to the left, the others to the right."""
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    text = []
    for row in [head, *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def counts(reports: Sequence[Report]) -> Mapping[str, int]:
    """How many lines are met, and how many missed."""
    verdicts = [report.verdict(line) for report in reports for line in report.lines]
    return {word: verdicts.count(word) for word in ("met", "missed")}


def speedups(reports: Sequence[Report]) -> list[tuple[str, Spread, float | None]]:
    """Label, how many times as fast as 0.1.0, and how many are wanted, for each such line."""
    found = []
    for report in reports:
        for line in report.lines:
            spread, wanted = report.spread(line), line.wanted.limit if line.wanted else None
            if _of(line.upper, "0.1.0") and _of(line.lower, "ours"):
                found.append((_label(report, line), spread, wanted))
            elif _of(line.upper, "ours") and _of(line.lower, "0.1.0"):
                turned = Spread(1 / spread.median, 1 / spread.high, 1 / spread.low)
                found.append((_label(report, line), turned, 1 / wanted if wanted else None))
    return found


def _of(series: str | None, side: str) -> bool:
    return series is not None and series.endswith(f", {side}")


def _label(report: Report, line: Line) -> str:
    text = line.text
    for part in (", ours / 0.1.0", ": ours / 0.1.0", ": times as fast as 0.1.0"):
        text = text.replace(part, "")
    return f"{report.name}: {text}"
