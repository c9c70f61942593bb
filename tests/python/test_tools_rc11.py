"""tools/rc11.py: its model of memory against shapes with known answers, and the table of edges."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import edge_table  # noqa: E402
import rc11  # noqa: E402
import rc11_model  # noqa: E402

TABLE = ROOT / "docs" / "PROTOCOL.md"
Body = Generator[tuple[object, ...], int, object]


def never(_results: list[object]) -> bool:
    return False


def outcomes(threads: list[rc11_model.Thread], *locations: str) -> set[tuple[object, ...]]:
    """Everything that the threads can return together."""
    found: set[tuple[object, ...]] = set()

    def collect(results: list[object]) -> bool:
        found.add(tuple(results))
        return False

    _, race = rc11_model.explore(threads, dict.fromkeys(locations, 0), collect)
    assert race is None
    return found


def store(location: str, value: int, order: str) -> rc11_model.Thread:
    def body() -> Body:
        yield ("store", location, value, order)
        return None

    return body


def store_then_load(mine: str, other: str, write: str, read: str) -> rc11_model.Thread:
    def body() -> Body:
        yield ("store", mine, 1, write)
        return (yield ("load", other, read))

    return body


def load_twice(first: str, second: str, order: str) -> rc11_model.Thread:
    def body() -> Body:
        a = yield ("load", first, order)
        b = yield ("load", second, order)
        return a, b

    return body


@pytest.mark.parametrize(
    ("write", "read", "both_miss"),
    [("seq_cst", "seq_cst", False), ("release", "seq_cst", True), ("seq_cst", "acquire", True)],
)
def test_store_buffering(write: str, read: str, both_miss: bool) -> None:
    threads = [store_then_load("x", "y", write, read), store_then_load("y", "x", write, read)]
    assert ((0, 0) in outcomes(threads, "x", "y")) is both_miss


@pytest.mark.parametrize(
    ("write", "read", "race"),
    [
        ("release", "acquire", False),
        ("relaxed", "acquire", True),
        ("release", "relaxed", True),
        ("seq_cst", "seq_cst", False),
    ],
)
def test_message_passing(write: str, read: str, race: bool) -> None:
    def sender() -> Body:
        yield ("write", "data", 1)
        yield ("store", "flag", 1, write)
        return None

    def receiver() -> Body:
        if (yield ("load", "flag", read)) == 1:
            yield ("read", "data")
        return None

    _, found = rc11_model.explore([sender, receiver], {"data": 0, "flag": 0}, never)
    assert (found is not None) is race


@pytest.mark.parametrize(("order", "disagree"), [("seq_cst", False), ("acquire", True)])
def test_readers_agree_on_independent_writes(order: str, disagree: bool) -> None:
    write = "seq_cst" if order == "seq_cst" else "release"
    threads = [
        store("x", 1, write),
        store("y", 1, write),
        load_twice("x", "y", order),
        load_twice("y", "x", order),
    ]
    found = outcomes(threads, "x", "y")
    assert ((None, None, (1, 0), (1, 0)) in found) is disagree


def test_one_location_is_coherent() -> None:
    found = outcomes(
        [
            store("x", 1, "relaxed"),
            store("x", 2, "relaxed"),
            load_twice("x", "x", "relaxed"),
            load_twice("x", "x", "relaxed"),
        ],
        "x",
    )
    assert (None, None, (1, 2), (1, 2)) in found
    assert (None, None, (1, 2), (2, 1)) not in found
    assert (None, None, (1, 0), (0, 0)) not in found


def test_nothing_comes_out_of_thin_air() -> None:
    def body(mine: str, other: str) -> rc11_model.Thread:
        def run() -> Body:
            value = yield ("load", other, "relaxed")
            yield ("store", mine, value, "relaxed")
            return value

        return run

    assert outcomes([body("x", "y"), body("y", "x")], "x", "y") == {(0, 0)}


def test_updates_lose_nothing() -> None:
    def add() -> Body:
        return (yield ("add", "x", 1, "relaxed"))

    assert outcomes([add, add, add], "x") == {
        (a, b, c) for a in range(3) for b in range(3) for c in range(3) if {a, b, c} == {0, 1, 2}
    }


def test_release_sequence_goes_through_updates() -> None:
    def sender() -> Body:
        yield ("write", "data", 1)
        yield ("add", "cell", 1, "release")
        return None

    def other() -> Body:
        yield ("add", "cell", 2, "relaxed")
        return None

    def receiver() -> Body:
        if (yield ("load", "cell", "acquire")) == 3:
            yield ("read", "data")
        return None

    start = {"data": 0, "cell": 0}
    assert rc11_model.explore([sender, other, receiver], start, never)[1] is None


def test_table_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert rc11.main(["--table", str(TABLE)]) == 0
    assert "the table holds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("edge", "column", "value"),
    [
        ("E4", "orders", "release / seq_cst"),
        ("E4", "orders", "seq_cst / acquire"),
        ("E5", "orders", "seq_cst / relaxed"),
        ("E6", "needed", "seq_cst / seq_cst"),
        ("E9", "needed", "relaxed / acquire"),
        ("E10", "orders", "relaxed / seq_cst"),
    ],
)
def test_wrong_table_is_refused(
    tmp_path: Path, edge: str, column: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    header = next(line for line in lines if line.startswith("| edge |"))
    place = [cell.strip() for cell in header.strip("|").split("|")].index(column)
    for number, line in enumerate(lines):
        if line.startswith(f"| {edge} |"):
            cells = line.strip("|").split("|")
            cells[place] = f" {value} "
            lines[number] = f"|{'|'.join(cells)}|"
    changed = tmp_path / "PROTOCOL.md"
    changed.write_text("\n".join(lines), encoding="utf-8")
    assert rc11.main(["--table", str(changed)]) == 1
    assert edge in capsys.readouterr().out


def test_table_without_a_column_is_refused(tmp_path: Path) -> None:
    text = TABLE.read_text(encoding="utf-8").replace("| needed |", "| wanted |")
    changed = tmp_path / "PROTOCOL.md"
    changed.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="no column 'needed'"):
        edge_table.read_table(changed)
