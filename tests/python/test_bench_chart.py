"""The charts of the benchmark: files that other programs can read, of what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_bench_report import run

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from sharedvector.cli.bench import chart


def test_bars_name_what_was_measured_only(tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        chart.draw([run()], tmp_path / "bars.svg")
    text = (tmp_path / "bars.svg").read_text()
    assert "sharedvector, shared before" in text and "80 MB, 8 workers, np.sum" in text
    assert "whole array pickled" not in text


def test_lines_over_sizes(tmp_path: Path) -> None:
    runs = [run(10_000), run(1_000_000), run()]
    chart.draw(runs, tmp_path / "lines.png")
    assert (tmp_path / "lines.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["chart", "chart.txt", "chart."])
def test_a_suffix_that_is_no_format(name: str) -> None:
    with pytest.raises(ValueError, match=r"should end in one of: .*\.png.*\.svg"):
        chart.check(Path(name))


def test_a_suffix_that_is_one() -> None:
    chart.check(Path("a/b.PNG"))
    chart.check(Path("b.svg"))
