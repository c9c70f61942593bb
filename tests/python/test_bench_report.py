"""What the benchmark says about given samples."""

from __future__ import annotations

import pytest

from sharedvector.cli.bench.jobs import METHODS
from sharedvector.cli.bench.report import (
    Measured,
    Outcome,
    Spread,
    advice,
    describe,
    describe_sweep,
)

# Milliseconds of a run in which every choice is clear.
TOOK = {
    "in_process": 3.0,
    "empty": 1.0,
    "threads": 2.0,
    "shared": 4.0,
    "first": 6.0,
    "share": 20.0,
    "attached": 8.0,
    "recipe": 60.0,
    "slices": 100.0,
    "loaded": 4.0,
    "loads": 150.0,
}


def run(size: int = 80_000_000, **took: float) -> Measured:
    """Three rounds: the figures, the same less a tenth, and more."""
    labels = {method.key: method.label for method in METHODS}
    outcomes = {}
    for key, middle in {**TOOK, **took}.items():
        seconds = [middle * factor / 1e3 for factor in (1.0, 0.9, 1.1)]
        base = (took.get("in_process", 3.0) + took.get("empty", 1.0)) / 1e3
        ratios = [one / (base * factor) for one, factor in zip(seconds, (1, 0.9, 1.1), strict=True)]
        outcomes[key] = Outcome(labels[key], seconds, ratios)
    outcomes["whole"] = Outcome(labels["whole"], note="left out: for a reason")
    return Measured(size, 8, "spawn", 104, outcomes)


def test_spread() -> None:
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0)
    assert Spread.of([4.0, 1.0, 2.0, 3.0]) == Spread(2.5, 1.75, 3.25)


def test_what_to_take_for_one_job_and_for_several() -> None:
    said = advice(run())
    assert said.startswith("80 MB, 8 workers: ")
    assert "best done in threads, 2 ms to 4 ms in processes" in said
    assert '"sharedvector, copy in and removal included" (20 ms) for a single job' in said
    assert '"sharedvector, shared before" (4 ms) for several' in said


@pytest.mark.parametrize(
    ("took", "named"),
    [
        ({"slices": 21.0}, 'take "slices pickled" (21 ms) for a single job'),
        ({"slices": 3.0}, 'for processes take "slices pickled" (3 ms).'),
        ({"recipe": 10.0}, '"SharedMemory, copy in and removal included" (10 ms)'),
        ({"loaded": 3.0}, '"initializer has loaded it from disk" (3 ms) for several'),
        ({"shared": 1.0}, "processes are faster than np.sum in threads, 1 ms to 2 ms"),
        ({"threads": 2.8}, "is best done in this process, 3 ms to"),
    ],
)
def test_the_simplest_within_a_tenth_of_the_fastest(took: dict[str, float], named: str) -> None:
    assert named in advice(run(**took))


def test_the_table() -> None:
    lines = describe(run()).splitlines()
    assert lines[0].endswith("104 bytes pickled for a slice that is shared")
    row = next(line for line in lines if line.startswith("sharedvector, shared before"))
    assert row.split()[3:] == "4 ms 3.8 ms to 4.2 ms 1.00 1.00 to 1.00".split()
    assert any(line.endswith("  left out: for a reason") for line in lines)
    assert (
        "  2.00 (2.00 to 2.00)  SharedMemory, filled before / sharedvector, shared before" in lines
    )
    assert lines[-1] == advice(run())


def test_where_sharing_begins_to_pay() -> None:
    small = run(10_000, slices=1.0, in_process=0.1)
    medium = run(1_000_000, slices=10.0, in_process=1.0)
    text = describe_sweep([small, medium, run()])
    assert "sharing for a single job beats pickled slices: from 80 MB on" in text
    assert "an array shared before beats pickled slices: from 1 MB on" in text
    assert "beats doing np.sum in this process: at no size here" in text
    assert text.splitlines()[0].split() == ["10", "kB", "1", "MB", "80", "MB"]


def test_figures_for_json() -> None:
    found = run().as_dict()
    assert found["workers"] == 8 and found["cores"] >= 1 and found["advice"] == advice(run())
    assert found["methods"]["shared"]["seconds"]["median"] == pytest.approx(0.004)
    assert found["methods"]["shared"]["ratio"]["median"] == pytest.approx(1.0)
    assert found["methods"]["whole"]["seconds"] is None
    assert found["methods"]["whole"]["note"] == "left out: for a reason"
