"""tools/compare.py: what counts as the same, and that nothing unexplained gets through."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
sys.path.insert(0, str(TOOLS))

import compare  # noqa: E402

SELF = ["self", "POSITIONAL_OR_KEYWORD", ""]
INDEX = ["index", "POSITIONAL_OR_KEYWORD", ""]
META = ["meta", "POSITIONAL_OR_KEYWORD", "None"]


def value(result: Any) -> dict[str, Any]:
    return {"id": "call", "value": result}


def raises(*names: str) -> dict[str, Any]:
    return {"id": "call", "raises": list(names), "message": "text"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (value(1), value(1), True),
        (value(1), value(2), False),
        (value(1), None, False),
        (value(1), raises("ValueError"), False),
        (raises("ValueError"), value(1), False),
        (raises("RuntimeError"), raises("sharedvector.InUseError", "RuntimeError"), True),
        (raises("sharedvector.InUseError", "RuntimeError"), raises("RuntimeError"), False),
        ({**raises("SystemExit"), "code": 2}, {**raises("SystemExit"), "code": 2}, True),
        ({**raises("SystemExit"), "code": 2}, {**raises("SystemExit"), "code": 0}, False),
    ],
)
def test_same(old: dict[str, Any], new: dict[str, Any] | None, expected: bool) -> None:
    assert compare.same(old, new) is expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([SELF, INDEX], [SELF, INDEX], True),
        ([SELF, INDEX], [SELF, INDEX, META], True),
        ([SELF, INDEX, META], [SELF, INDEX], False),
        ([SELF, INDEX], [SELF, ["slot", "POSITIONAL_OR_KEYWORD", ""]], False),
        ([SELF, ["arg0", "POSITIONAL_OR_KEYWORD", ""]], [SELF, INDEX], True),
        ([SELF, INDEX], [SELF, INDEX, ["array", "POSITIONAL_OR_KEYWORD", ""]], False),
        ([SELF, META], [SELF, ["meta", "POSITIONAL_OR_KEYWORD", "0"]], False),
        ([SELF, INDEX], [SELF, ["index", "POSITIONAL_ONLY", ""]], False),
        ([SELF, INDEX], [SELF, ["index", "KEYWORD_ONLY", ""]], False),
        ([["mode", "KEYWORD_ONLY", "'a'"]], [["mode", "POSITIONAL_OR_KEYWORD", "'a'"]], True),
        ([SELF, INDEX, META], [SELF, META, INDEX], False),
    ],
)
def test_same_parameters(old: list[list[str]], new: list[list[str]], expected: bool) -> None:
    assert compare.same_parameters(old, new) is expected


def test_names_need_their_kind_and_their_catchers() -> None:
    error = {"id": "names.E", "value": {"exception": ["sharedvector.E", "Exception"]}}
    wider = {"id": "names.E", "value": {"exception": ["sharedvector.E", "OSError", "Exception"]}}
    assert compare.same(error, wider) and not compare.same(wider, error)
    method = {"id": "names.C.f", "value": {"kind": "method", "parameters": [SELF]}}
    readable = {"id": "names.C.f", "value": {"kind": "property"}}
    attribute = {"id": "names.C.f", "value": {"kind": "attribute"}}
    assert compare.same(readable, attribute) and not compare.same(method, readable)


def test_only_listed_differences_pass() -> None:
    old = {"a.x": value(1), "a.y": value(1), "b": value(1)}
    new = {"a.x": value(2), "a.y": value(2), "b": value(1), "c": value(1)}
    listed = compare.Reason("D1", ("a.*",), "why")
    result = compare.compare(old, new, [listed])
    assert result.ok and result.explained == {"D1": ["a.x", "a.y"]}
    assert result.same == ["b"] and result.added == ["c"]
    result = compare.compare(old, new, [compare.Reason("D1", ("a.x",), "why")])
    assert not result.ok and result.unexplained == ["a.y"]
    result = compare.compare(old, new, [listed, compare.Reason("D2", ("b",), "why")])
    assert not result.ok and result.unseen == ["D2"]
    documented_only = compare.Reason("D3", (), "why")
    assert compare.compare(old, new, [listed, documented_only]).ok


def test_reasons_come_from_the_table(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text(
        "# Title\n| D9 | `no` | - |\n## Differences from 0.1.0\ntext\n"
        "| id | calls | why |\n|---|---|---|\n| D1 | `a.*`, `b` | because |\n| D2 | | other |\n"
        "## Next\n| D3 | `c` | no |\n"
    )
    first, second = compare.read_reasons(document)
    assert first == compare.Reason("D1", ("a.*", "b"), "because")
    assert second.patterns == ()
    document.write_text("# Title\n")
    with pytest.raises(ValueError, match=r"Differences from 0\.1\.0"):
        compare.read_reasons(document)


def test_records_are_told_from_other_output() -> None:
    text = 'wrote x\n{"id": "a", "value": [NaN]}\n{"id": "b", "value": 1}\n'
    records = compare.parse_records(text)
    assert list(records) == ["a", "b"]
    assert compare.same(records["a"], compare.parse_records(text)["a"])


def test_the_projects_own_table_is_read() -> None:
    reasons = compare.read_reasons(compare.DOCUMENT)
    assert len({reason.id for reason in reasons}) == len(reasons) > 10
    assert all(reason.text for reason in reasons)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(tmp_path: Path, signum: signal.Signals) -> None:
    command = [sys.executable, TOOLS / "compare.py", "--old", sys.executable]
    process = subprocess.Popen(
        [*command, "--new", sys.executable, "--records", tmp_path],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )

    def found() -> set[str]:
        """Which of the two sides has files."""
        sides = (f"svold{process.pid}-", f"svnew{process.pid}-")
        return {side for side in sides for name in os.listdir("/dev/shm") if name.startswith(side)}

    try:
        deadline = time.monotonic() + 120
        while len(found()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(found()) == 2
        process.send_signal(signum)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (128 + signum, b"")
    assert not found()


@pytest.mark.timeout(700)  # calls that wait, by the hundreds
def test_calls_run_on_this_package(tmp_path: Path) -> None:
    """The script of calls ends, and its signature records carry what 0.1.0 promised."""
    done = subprocess.run(
        [sys.executable, TOOLS / "compare_calls.py", f"svcalls-{os.getpid()}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    records = compare.parse_records(done.stdout)
    assert "end" in records
    assert records["replace.in_use"]["raises"][:2] == ["sharedvector.InUseError", "RuntimeError"]
    assert records["create.slots_1MiB_in_64MiB"]["value"] == 63
    parameters = records["names.SharedVector.append"]["value"]["parameters"]
    promised = [SELF, ["array", "POSITIONAL_OR_KEYWORD", ""], META]
    assert compare.same_parameters(promised, parameters)
