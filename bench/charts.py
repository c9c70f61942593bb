"""The charts of the benchmark, for the README and for a look at a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter
from report import Report, Spread, digits, speedups

OURS, OLD, OTHER, LIMIT = "#1f6fb4", "#c44e52", "#8c8c8c", "#55a868"


def draw(reports: Sequence[Report], folder: Path) -> list[Path]:
    """One PNG per chart whose questions were asked; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    by_name = {report.name: report for report in reports}
    charts: tuple[tuple[str, Callable[..., Any], tuple[str, ...]], ...] = (
        ("bench-flat", _flat, ("get", "replace")),
        ("bench-batch", _batch, ("batch",)),
        ("bench-zarr", _zarr, ("zarr",)),
        ("bench-handover", _handover, ("handover",)),
    )
    made = []
    if figure := _speedups(reports):
        made.append(_save(figure, folder / "bench-speedup.png"))
    for name, chart, needed in charts:
        if all(question in by_name for question in needed):
            figure = chart(*(by_name[question] for question in needed))
            made.append(_save(figure, folder / f"{name}.png"))
    return made


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path


def _speedups(reports: Sequence[Report]) -> Any:
    """How many times as fast as 0.1.0, with a mark where the aim is."""
    bars = speedups(reports)
    if not bars:
        return None
    figure, axes = plt.subplots(figsize=(8, 0.28 * len(bars) + 1))
    for place, (_, spread, wanted) in enumerate(reversed(bars)):
        error = [[max(0, spread.median - spread.low)], [max(0, spread.high - spread.median)]]
        axes.barh(place, spread.median, xerr=error, color=OURS, ecolor="#333333", height=0.7)
        axes.text(
            max(spread.high, wanted or 0) * 1.06, place, digits(spread.median), va="center", size=8
        )
        if wanted:
            axes.plot([wanted, wanted], [place - 0.42, place + 0.42], color="black", lw=1.6)
    axes.set_yticks(range(len(bars)), [label for label, _, _ in reversed(bars)], fontsize=8)
    axes.axvline(1, color=OLD, lw=1.2)
    axes.set(xscale="log", xlabel="times as fast as 0.1.0 (red line: as fast; black mark: the aim)")
    _plain_numbers(axes.xaxis)
    axes.margins(x=0.15, y=0.02)
    axes.grid(axis="x", alpha=0.3, which="both")
    return figure


def _plain_numbers(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _bars(
    axes: Any, report: Report, names: Sequence[str], value: Callable[[str, float], float]
) -> None:
    """Horizontal bars of series, the first on top, with quartiles; `value` maps a time."""
    for place, name in enumerate(reversed(names)):
        spread = Spread.of(report.series[name])
        middle = value(name, spread.median)
        low, high = sorted((value(name, spread.low), value(name, spread.high)))
        colour = OTHER
        if "limit" in name or "alone" in name:
            colour = LIMIT
        elif "ours" in name:
            colour = OURS
        elif "0.1.0" in name:
            colour = OLD
        error = [[max(0, middle - low)], [max(0, high - middle)]]
        axes.barh(place, middle, xerr=error, color=colour, ecolor="#333333", height=0.7)
        axes.text(high, place, f"  {digits(middle)}", va="center", fontsize=8)
    axes.set_yticks(range(len(names)), list(reversed(names)), fontsize=8)
    axes.margins(x=0.12, y=0.02)
    axes.grid(axis="x", alpha=0.3)


def _flat(get: Report, replace: Report) -> Any:
    """Cost against the number of slots, in units of that of the smallest pool."""
    figure, panes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    titles = ("get() + release", "replace() of 4 KiB")
    for axes, report, title in zip(panes, (get, replace), titles, strict=True):
        for ending, style, colour, label in (
            ("slots, 16 of them", "o-", OURS, "16 slots in use"),
            ("slots, all of them", "s--", OURS, "all in use, at random"),
            ("words", "^:", LIMIT, "the machine: atomic addition"),
            ("places", "^:", LIMIT, "the machine: bare memcpy"),
        ):
            names = [name for name in report.series if name.endswith(ending)]
            if not names:
                continue
            slots = [_number(name) for name in names]
            medians = [Spread.of(report.series[name]).median for name in names]
            factors = [median / medians[0] for median in medians]
            axes.plot(slots, factors, style, color=colour, label=label)
        axes.set(xscale="log", yscale="log", xlabel="slots in the pool", title=title)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_yticks([1, 2, 5, 10, 20])
        _plain_numbers(axes.yaxis)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="upper left")
    panes[0].set_ylabel("time per call / with 16 slots")
    figure.tight_layout()
    return figure


def _number(name: str) -> int:
    """The number in the name of a series."""
    digits_only = (word.replace(",", "") for word in name.split())
    return next(int(word) for word in digits_only if word.isdigit())


def _batch(report: Report) -> Any:
    figure, axes = plt.subplots(figsize=(8, 0.35 * len(report.payload) + 1))
    _bars(
        axes,
        report,
        list(report.payload),
        lambda name, seconds: 1e-9 * report.payload[name] / seconds,
    )
    axes.set(xlabel="GB/s of batches", title="Batches of tensors from a pool of 8 MiB chunks")
    return figure


def _zarr(report: Report) -> Any:
    names = list(report.payload)
    figure, axes = plt.subplots(figsize=(8, 0.28 * len(names) + 1))
    _bars(axes, report, names, lambda name, seconds: 1e-9 * report.payload[name] / seconds)
    axes.set(xlabel="GB/s of int16 data in slots, 2 processes", title="Zarr volumes into slots")
    return figure


def _handover(report: Report) -> Any:
    names = [name for name in report.payload if name.startswith("8 MiB")]
    figure, axes = plt.subplots(figsize=(8, 0.35 * len(names) + 1))
    _bars(axes, report, names, lambda name, seconds: 1e-9 * report.payload[name] / seconds)
    axes.set(xlabel="GB/s", title="Hand-over of an array of 8 MiB, one copy")
    return figure
