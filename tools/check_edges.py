"""Compare the atomic accesses of the C core with the table of edges in docs/PROTOCOL.md.

Every atomic access (svi_load_*, svi_store_*, svi_add_*, svi_sub_*, svi_and_*, svi_or_*, svi_cas_*,
svi_max_*) says in a comment, in its statement or on the line above it, which edge (E4) or rule (V2)
it serves, or that it is a counter or a hint. A relaxed access of a word that carries no edge needs
no comment.
Every edge of the table is named at a store and at a load, and the orders agree: no access is weaker
than the table says, unless its comment says "relaxed", and on each side one is exactly as strong.

Usage: check_edges.py [--table docs/PROTOCOL.md] [--source src/core]. Exit 1: an orphan.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edge_table import Edge, read_table

ACCESS = re.compile(
    r"\bsvi_(load|store|add|sub|and|or|cas|max)_(relaxed|acquire|release|acq_rel|seq)\("
)
COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
EDGE = re.compile(r"\bE[0-9]+\b")
RULE = re.compile(r"\b[IPWARFVSOBCN][0-9]+\b")
REMARK = re.compile(r"\b(relaxed|counters?|hints?)\b")
# Words that edges run through: even a relaxed access of one of them says why it may be.
PROTOCOL_WORD = re.compile(
    r"\b(s_word|r_cells|cells|b_writer|b_slot|h_size|h_high_rows|h_moves|r_state|closing|word)\b"
)
STRENGTH = {"relaxed": 0, "acquire": 1, "release": 1, "acq_rel": 2, "seq_cst": 3, "seq": 3}
SIDES = ("store", "load")
NO_ACCESS = ("atomic.h", "cell.h")


@dataclass(frozen=True)
class Access:
    """One call in the source, with the comments that speak about it."""

    place: str
    verb: str
    order: str
    arguments: str
    comment: str

    @property
    def sides(self) -> tuple[int, ...]:
        """0 the store side of an edge, 1 the load side; a read-modify-write is on both."""
        return {"store": (0,), "load": (1,)}.get(self.verb, (0, 1))


def _blank_comments(text: str) -> str:
    """The same text with spaces for comments, so that places stay."""
    return COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)


def _statement(code: str, at: int) -> tuple[int, int]:
    """Where the statement around `at` begins and ends: after and at one of ; { }."""
    begin = max(code.rfind(mark, 0, at) for mark in ";{}") + 1
    ends = [code.find(mark, at) for mark in ";{"]
    end = min((place for place in ends if place >= 0), default=len(code))
    # A for (;;) keeps its parts on one line; the comment behind the statement belongs to it.
    newline = code.find("\n", end)
    return begin, len(code) if newline < 0 else newline


def _own_comments(text: str, code: str, begin: int, at: int, end: int) -> str:
    """The comments on the access's own line if they name an edge, else those of its statement."""
    line_begin = text.rfind("\n", 0, at) + 1
    line_end = text.find("\n", at)
    line = " ".join(COMMENT.findall(text[line_begin:line_end]))
    if EDGE.search(line) or RULE.search(line) or REMARK.search(line):
        return line
    # What stands behind the statement before, on its last line, is about that one; what stands
    # beside another access is about that access.
    first = begin
    if code[first : code.find("\n", first)].strip() == "":
        first = code.find("\n", first)
    place = first
    spoken = []
    for part in text[first:end].split("\n"):
        if not ACCESS.search(code[place : place + len(part)]) or place <= at <= place + len(part):
            spoken.append(part)
        place += len(part) + 1
    return " ".join(COMMENT.findall("\n".join(spoken)))


def find_accesses(path: Path) -> Iterator[Access]:
    """All atomic accesses of one C file."""
    text = path.read_text(encoding="utf-8")
    code = _blank_comments(text)
    for match in ACCESS.finditer(code):
        begin, end = _statement(code, match.start())
        line = text.count("\n", 0, match.start()) + 1
        yield Access(
            f"{path.name}:{line}",
            match.group(1),
            match.group(2),
            code[match.end() : end],
            _own_comments(text, code, begin, match.start(), end),
        )


def _first_argument(arguments: str) -> str:
    """Up to the comma or bracket that ends the first argument."""
    depth = 0
    for place, letter in enumerate(arguments):
        if letter in "([":
            depth += 1
        elif letter in ")]":
            if depth == 0:
                return arguments[:place]
            depth -= 1
        elif letter == "," and depth == 0:
            return arguments[:place]
    return arguments


def judge_access(access: Access, edges: dict[str, Edge], rules: set[str]) -> Iterator[str]:
    """What is wrong with one access."""
    named = EDGE.findall(access.comment)
    cited = RULE.findall(access.comment)
    for name in named:
        if name not in edges:
            yield f"{access.place}: the table has no edge {name}"
    for name in cited:
        if name not in rules:
            yield f"{access.place}: PROTOCOL.md has no rule {name}"
    quiet = access.order == "relaxed" and not PROTOCOL_WORD.search(
        _first_argument(access.arguments)
    )
    if not named and not cited and not REMARK.search(access.comment) and not quiet:
        yield (
            f"{access.place}: svi_{access.verb}_{access.order} names no edge, no rule, and is not "
            "said to be a counter or a hint"
        )
    for name in named:
        if name not in edges or "relaxed" in access.comment:
            continue
        # A read-modify-write may stand on either side: it must do for one of them.
        wanted = min(STRENGTH[edges[name].orders[side]] for side in access.sides)
        if STRENGTH[access.order] < wanted:
            yield (
                f"{access.place}: svi_{access.verb}_{access.order} is weaker than {name} in the "
                f"table ({' / '.join(edges[name].orders)})"
            )


def judge_edge(edge: Edge, accesses: list[Access]) -> Iterator[str]:
    """What is wrong with one edge: a side that no access names, or an order that none has."""
    for side, name in enumerate(SIDES):
        found = [a for a in accesses if side in a.sides and edge.name in EDGE.findall(a.comment)]
        if not found:
            yield f"{edge.name}: no access names its {name} side"
        elif all(STRENGTH[a.order] != STRENGTH[edge.orders[side]] for a in found):
            yield f"{edge.name}: no {name} in the code is {edge.orders[side]}"


def check(table: Path, source: Path) -> tuple[int, list[str]]:
    """The number of accesses, and everything that is wrong."""
    edges = read_table(table)
    rules = set(
        re.findall(r"(?:\*\*|^- )([IPWARFVSOBCN][0-9]+)\b", table.read_text(), re.MULTILINE)
    )
    accesses = [
        access
        for path in sorted((*source.glob("*.c"), *source.glob("*.h")))
        if path.name not in NO_ACCESS
        for access in find_accesses(path)
    ]
    wrong = [line for access in accesses for line in judge_access(access, edges, rules)]
    wrong += [line for edge in edges.values() for line in judge_edge(edge, accesses)]
    return len(accesses), wrong


def main(arguments: list[str] | None = None) -> int:
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description="atomic accesses against the table of edges")
    parser.add_argument("--table", type=Path, default=root / "docs" / "PROTOCOL.md")
    parser.add_argument("--source", type=Path, default=root / "src" / "core")
    options = parser.parse_args(arguments)
    count, wrong = check(options.table, options.source)
    for line in wrong:
        print(line)
    if not wrong:
        print(f"{count} atomic accesses, no orphans")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
