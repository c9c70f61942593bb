"""The charts of ``python -m sharedvector bench share --plot``; matplotlib is needed here only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

if TYPE_CHECKING:
    from sharedvector.cli.bench.report import Measured

__all__ = ["check", "draw"]

_OURS, _STDLIB, _OTHER, _BASE = "#1f6fb4", "#c44e52", "#8c8c8c", "#55a868"
_COLORS = {
    **dict.fromkeys(("in_process", "empty"), _BASE),
    **dict.fromkeys(("shared", "first", "share"), _OURS),
    **dict.fromkeys(("attached", "recipe"), _STDLIB),
}
_LINES = {
    "shared": (_OURS, "-"),
    "share": (_OURS, "--"),
    "attached": (_STDLIB, "-"),
    "recipe": (_STDLIB, "--"),
    "slices": (_OTHER, "-"),
    "threads": (_OTHER, ":"),
    "in_process": (_BASE, "-"),
}


def check(path: Path) -> None:
    """ValueError when the suffix is no format that matplotlib writes."""
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        raise ValueError(f"{path} should end in one of: .{', .'.join(sorted(formats))}")


def draw(runs: Sequence[Measured], path: Path) -> None:
    """Bars of one run, or lines over the sizes of several, as a file of the suffix's format.

    OSError when the file cannot be written.
    """
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    if len(runs) == 1:
        _bars(axes, runs[0])
    else:
        _lines(axes, runs)
    figure.savefig(path, dpi=110)


def _bars(axes: Any, run: Measured) -> None:
    done = [(key, outcome) for key, outcome in run.outcomes.items() if outcome.seconds]
    for place, (key, outcome) in enumerate(reversed(done)):
        values = [1e3 * seconds for seconds in outcome.seconds]
        middle = statistics.median(values)
        low, _, high = (
            statistics.quantiles(values, n=4, method="inclusive") if values[1:] else values * 3
        )
        error = [[middle - low], [high - middle]]
        axes.barh(place, middle, xerr=error, color=_COLORS.get(key, _OTHER), height=0.7)
        axes.text(max(high, middle) * 1.1, place, _digits(middle), va="center", size=8)
    axes.set_yticks(range(len(done)), [outcome.label for _, outcome in reversed(done)], fontsize=8)
    axes.set(
        xscale="log",
        xlabel="milliseconds (median, quartiles)",
        title=f"{run.size_bytes / 1e6:g} MB, {run.workers} workers, np.sum",
    )
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    axes.margins(x=0.12, y=0.02)
    axes.grid(axis="x", alpha=0.3)


def _lines(axes: Any, runs: Sequence[Measured]) -> None:
    sizes = [run.size_bytes / 1e6 for run in runs]
    for key, (color, style) in _LINES.items():
        ratios = [statistics.median(run.outcomes[key].ratios) for run in runs]
        axes.plot(
            sizes, ratios, style, color=color, marker="o", ms=3, label=runs[0].outcomes[key].label
        )
    axes.axhline(1, color="black", lw=0.6)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=f"MB shared among {runs[0].workers} workers",
        ylabel="time over this process + empty tasks",
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_plain))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _plain(value: float, _: object) -> str:
    return f"{value:g}"
