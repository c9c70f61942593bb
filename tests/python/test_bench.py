"""bench/: the statistics and the table say what the samples say, and a question can be asked."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import harness  # noqa: E402
import limits  # noqa: E402
import report as reports  # noqa: E402
import run as bench_run  # noqa: E402
from report import Line, Report, Spread, Wanted, at_least, at_most  # noqa: E402


@pytest.fixture
def example() -> Report:
    return Report(
        "example",
        "an example",
        series={"a, ours": [1.0, 2.0, 3.0], "a, 0.1.0": [2.0, 8.0, 9.0], "size": [5.0, 5.0, 5.0]},
        lines=[
            Line("faster", "a, 0.1.0", "a, ours", at_least(3)),
            Line("slower", "a, ours", "a, 0.1.0", at_most(0.3)),
            Line("so large", "size", None, None, "MiB"),
        ],
        payload={"a, ours": 2_000_000_000},
        notes=["a note"],
    )


# --- statistics ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([4.0], (4.0, 4.0, 4.0)),
        ([1.0, 2.0, 3.0, 4.0, 5.0], (3.0, 2.0, 4.0)),
        ([5.0, 1.0, 4.0, 2.0, 3.0], (3.0, 2.0, 4.0)),
        ([1.0, 2.0], (1.5, 1.25, 1.75)),
    ],
)
def test_spread(values: list[float], expected: tuple[float, float, float]) -> None:
    spread = Spread.of(values)
    assert (spread.median, spread.low, spread.high) == expected


def test_no_samples_have_no_spread() -> None:
    with pytest.raises(ValueError, match="no samples"):
        Spread.of([])


def test_a_ratio_is_taken_round_by_round(example: Report) -> None:
    # The ratio of the medians would be 8 / 2.
    assert example.spread(example.lines[0]) == Spread(3.0, 2.5, 3.5)
    assert example.spread(example.lines[2]).median == 5.0


def test_series_of_different_rounds_are_refused(example: Report) -> None:
    example.series["a, ours"].append(4.0)
    with pytest.raises(ValueError, match="longer"):
        example.spread(example.lines[0])


@pytest.mark.parametrize(
    ("wanted", "value", "met"),
    [
        (at_least(3), 3.0, True),
        (at_least(3), 2.99, False),
        (at_most(3), 3.0, True),
        (at_most(3), 3.01, False),
        (at_most(3), math.nan, False),
    ],
)
def test_limits(wanted: Wanted, value: float, met: bool) -> None:
    assert wanted.met_by(value) is met


# --- what is printed ----------------------------------------------------------------------------


def test_verdicts(example: Report) -> None:
    assert [example.verdict(line) for line in example.lines] == ["met", "missed", ""]
    assert reports.counts([example]) == {"met": 1, "missed": 1}


def test_table(example: Report) -> None:
    head, *rows = reports.table(example).splitlines()
    assert head.split() == ["median", "quartiles", "wanted"]
    assert rows[0].split() == ["faster", "3.00", "2.50", "to", "3.50", ">=", "3", "met"]
    assert rows[1].split() == ["slower", "0.333", "0.292", "to", "0.417", "<=", "0.3", "missed"]
    assert rows[2].split() == ["so", "large", "5.00", "MiB", "5.00", "to", "5.00"]
    assert rows[0].index("3.00") + 4 == rows[2].index("5.00 MiB") + 8  # a column ends in one place


def test_times_have_units_and_throughput(example: Report) -> None:
    lines = [line.split() for line in reports.times(example).splitlines()]
    assert ["a,", "ours", "2.00", "s", "1.00", "GB/s"] in lines
    assert ["a,", "0.1.0", "8.00", "s"] in lines
    assert ["size", "5.00", "MiB"] in lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (7.04e-8, "70.4 ns"),
        (1e-6, "1.00 us"),
        (9.9994e-7, "1,000 ns"),
        (0.0123456, "12.3 ms"),
        (123.4, "123 s"),
        (0.0, "0 ns"),
    ],
)
def test_seconds_text(seconds: float, text: str) -> None:
    assert reports.seconds_text(seconds) == text


def test_markdown_and_publication(example: Report, tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text(f"before\n{bench_run.BEGIN}old\n{bench_run.END}after\n")
    bench_run.publish([example], document)
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| faster | 3.00 | 2.50 to 3.50 | >= 3 | met |\n" in text and "a note" in text
    bench_run.publish([example], document)
    assert document.read_text() == text
    document.write_text("no marks\n")
    with pytest.raises(RuntimeError, match="results: begin"):
        bench_run.publish([example], document)
    assert document.read_text() == "no marks\n"


def test_json_has_what_the_table_has(example: Report) -> None:
    content = json.loads(json.dumps(example.as_dict()))
    assert [ratio["verdict"] for ratio in content["ratios"]] == ["met", "missed", None]
    assert content["ratios"][0]["median"] == 3.0 and content["ratios"][0]["limit"] == 3
    assert content["samples"]["a, 0.1.0"] == [2.0, 8.0, 9.0]


def test_speedups_point_one_way(example: Report) -> None:
    faster, slower = reports.speedups([example])
    assert faster == ("example: faster", Spread(3.0, 2.5, 3.5), 3)
    assert slower[1].median == pytest.approx(3.0)
    assert slower[1].low == pytest.approx(2.4) and slower[1].high == pytest.approx(24 / 7)
    assert slower[2] == pytest.approx(1 / 0.3)


def test_charts_are_drawn(example: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: requirements/bench.txt")
    import charts

    (path,) = charts.draw([example], tmp_path / "img")
    assert path.name == "bench-speedup.png" and path.read_bytes().startswith(b"\x89PNG")


# --- turns and workers --------------------------------------------------------------------------


def test_turns_change_their_order_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []

    def turn(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    names = ("a", "b", "c")
    samples = harness.interleave(6, {name: lambda name=name: turn(name) for name in names})
    rounds = ["".join(calls[at : at + 3]) for at in range(0, len(calls), 3)]
    assert len(rounds) == 7 and all(sorted(each) == list(names) for each in rounds)
    assert {each[0] for each in rounds[1:]} == set(names)
    assert {len(values) for values in samples.values()} == {6}
    assert min(samples["a"] + samples["b"] + samples["c"]) == 4.0


def test_hot_slots_are_as_many_in_every_pool() -> None:
    for places in (16, 1_000, 100_000):
        chosen = limits.indices(places, 5_000, hot=16)
        assert len(set(chosen)) == 16 and max(chosen) < places
        assert max(chosen) >= places * 15 // 16
    assert limits.indices(100, 1_000) == limits.indices(100, 1_000)
    assert set(limits.indices(100, 5_000)) == set(range(100))


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[harness.Worker]:
    (tmp_path / "calls.py").write_text(
        textwrap.dedent(
            """
            import os, time
            def add(state, number):
                print("noise on standard output")
                state["sum"] = state.get("sum", 0) + number
                return state["sum"]
            def fail(state):
                raise ValueError("so it goes")
            def leave(state):
                os._exit(3)
            def hang(state):
                time.sleep(60)
            """
        )
    )
    made = harness.Worker(Path(sys.executable), environment={"PYTHONPATH": str(tmp_path)})
    yield made
    made.close()


def test_worker_answers_and_keeps_its_state(worker: harness.Worker) -> None:
    assert worker.call("calls.add", number=2) == 2
    with pytest.raises(harness.BenchError, match="ValueError: so it goes"):
        worker.call("calls.fail")
    assert worker.call("calls.add", number=3) == 5


def test_worker_that_ends_is_an_error(worker: harness.Worker) -> None:
    with pytest.raises(harness.BenchError, match="exit status 3"):
        worker.call("calls.leave")
    with pytest.raises(harness.BenchError, match="has ended"):
        worker.call("calls.add", number=1)


def test_worker_that_hangs_is_an_error(worker: harness.Worker) -> None:
    worker.ask("calls.hang")
    with pytest.raises(harness.BenchError, match="no answer within"):
        worker.answer(seconds=0.3)


def test_files_of_a_question_do_not_outlive_it() -> None:
    with harness.Bench({"ours": Path(sys.executable)}, quick=True) as bench:
        worker = bench.worker("ours")
        worker.call("vectors.create", name=bench.name("left"), slots=4, chunk=4096)
        assert (harness.SHM / bench.name("left")).exists()
        folder = bench.folder()
        assert bench.have("ours", "0.1.0") == ["ours"]
    assert not (harness.SHM / bench.name("left")).exists() and not folder.exists()


# --- the command --------------------------------------------------------------------------------


def ask(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "run.py"), "--quick", "--no-others"]
    sides = ["--ours", sys.executable, "--old", sys.executable]
    return subprocess.run(
        [*command, *sides, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_question_runs_and_leaves_its_figures(tmp_path: Path) -> None:
    done = ask("--only", "handover", "--json", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out: iceoryx2: --no-others" in done.stdout
    assert (
        "64 KiB: ours / SharedMemory" in done.stdout and "0 met, 0 missed, 0 failed" in done.stdout
    )
    content = json.loads((tmp_path / "handover.json").read_text())
    assert content["quick"] is True and content["left_out"]["SPDL"] == "--no-others"
    samples = content["samples"]["8 MiB, ours"]
    assert len(samples) == 9 and all(0 < seconds < 100 for seconds in samples)


def test_wrong_data_fail_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A worker that finds other data than were written makes the exit status 1."""
    import bench_publish

    monkeypatch.setattr(bench_publish, "SIZES", {"4 KiB": 4096})

    def damaged(bench: harness.Bench) -> Report:
        worker = bench.worker("ours")
        name = bench.name("damaged")
        worker.call("vectors.create", name=name, slots=4, chunk=4096)
        with (harness.SHM / name).open("r+b") as stream:
            stream.seek(-6 * 4096, os.SEEK_END)
            stream.write(bytes(6 * 4096))  # the buffers
        worker.call("vectors.get", calls=100)
        raise AssertionError("not reached")

    monkeypatch.setattr(bench_publish, "measure", damaged)
    python = ("--ours", sys.executable, "--old", sys.executable, "--no-others")
    status = bench_run.main([*python, "--only", "publish", "--json", str(tmp_path)])
    out = capsys.readouterr().out
    assert status == 1 and "holds what was written to" in out and "1 failed" in out
