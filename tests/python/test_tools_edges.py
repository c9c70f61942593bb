"""tools/check_edges.py: the core has no orphans, and every kind of orphan is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_edges  # noqa: E402

TABLE = ROOT / "docs" / "PROTOCOL.md"

SMALL_TABLE = """
- **R1** A rule.

| edge | store | load | orders | needed | publishes | if weaker |
|---|---|---|---|---|---|---|
| E1 | commit | look | seq_cst / acquire | release / acquire | all | kept for reading |
"""

SMALL_CODE = """
void
publish(void)
{
    svi_store_seq(&s->s_word, 1); /* E1 */
    /* the count stands on the line above: counter */
    svi_add_seq(&s->s_count, 1);
    if (svi_load_acquire(&s->s_word) == 1 && /* E1 */
        svi_load_seq(&r->r_state) == 2) {    /* R1 */
        svi_store_relaxed(&r->r_pid, 3);
    }
}
"""


def check(tmp_path: Path, code: str, table: str = SMALL_TABLE) -> list[str]:
    (tmp_path / "PROTOCOL.md").write_text(table, encoding="utf-8")
    (tmp_path / "code.c").write_text(code, encoding="utf-8")
    return check_edges.check(tmp_path / "PROTOCOL.md", tmp_path)[1]


def test_core_has_no_orphans(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_edges.main([]) == 0, capsys.readouterr().out


def test_core_is_read() -> None:
    count, _ = check_edges.check(TABLE, ROOT / "src" / "core")
    assert count > 100


def test_small_example_is_good(tmp_path: Path) -> None:
    assert check(tmp_path, SMALL_CODE) == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("1); /* E1 */", "1);", "code.c:5: svi_store_seq names no edge"),
        (": counter", "", "code.c:7: svi_add_seq names no edge"),
        ("/* R1 */", "", "svi_load_seq names no edge"),
        ("/* R1 */", "/* R7 */", "no rule R7"),
        ("1); /* E1 */", "1); /* E9 */", "the table has no edge E9"),
        ("svi_store_seq(&s", "svi_store_release(&s", "svi_store_release is weaker than E1"),
        ("svi_load_acquire(", "svi_load_relaxed(", "svi_load_relaxed is weaker than E1"),
        ("svi_load_acquire(", "svi_load_seq(", "E1: no load in the code is acquire"),
        ("svi_store_relaxed(&r->r_pid", "svi_store_relaxed(&r->r_state", "names no edge"),
    ],
)
def test_orphan_in_code(tmp_path: Path, old: str, new: str, found: str) -> None:
    assert old in SMALL_CODE
    wrong = check(tmp_path, SMALL_CODE.replace(old, new, 1))
    assert any(found in line for line in wrong), wrong


def test_edge_that_code_does_not_name(tmp_path: Path) -> None:
    more = SMALL_TABLE + "| E2 | a | b | seq_cst / seq_cst | seq_cst / seq_cst | x | y |\n"
    wrong = check(tmp_path, SMALL_CODE, more)
    assert wrong == ["E2: no access names its store side", "E2: no access names its load side"]


def test_relaxed_look_says_why(tmp_path: Path) -> None:
    look = "    x = svi_load_relaxed(word); /* E1, relaxed: a hint */\n"
    code = SMALL_CODE.replace("    svi_store_seq(", f"{look}    svi_store_seq(")
    assert check(tmp_path, code) == []
