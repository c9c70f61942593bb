"""Enumerate the RC11 executions of the protocol's edges, with the orders of docs/PROTOCOL.md.

RC11 is the repaired C11 memory model of Lahav et al., "Repairing Sequential Consistency in C/C++11"
(PLDI 2017). For each edge of the table a small program (a litmus shape) has an outcome that must
not be: two unordered accesses to one buffer, or a value that nobody may see. The script shows that

- with the orders of the column "orders" no execution has that outcome,
- nor with those of the column "needed", all of them at once,
- with one of the needed orders weakened by one step, all else as written, some execution has.

No sequentially consistent model can show the last, and no x86 processor, which reorders too little.

Usage: rc11.py [--table docs/PROTOCOL.md] [--edge E4]. Exit 1: the table is wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from edge_table import Edge, read_table
from rc11_model import Execution, explore
from rc11_shapes import (
    Shape,
    Site,
    address_under_claim,
    all_true,
    any_true,
    attach_again_against_publish,
    attach_against_publish,
    claim_after_drop,
    claim_after_recover,
    count_appended,
    count_for_other,
    fork_moves_pins,
    pin_against_publish,
    pin_against_removal,
    publish_chunk,
    recover_then_refill,
    row_taken_again,
    sleep_against_wake,
    unpin_against_close,
    unpin_then_refill,
    version_of_old,
)

# One step down; a seq_cst access goes to its own kind of acquire and release.
WEAKER = {"acq_rel": "relaxed", "acquire": "relaxed", "release": "relaxed"}


COMMIT = Site("E1", 0, "rmw", "commit")
RECHECK = Site("E1", 1, "load", "re-check")
PIN = Site("E4", 0, "rmw", "pin")
SCAN = Site("E4", 1, "load", "scan")
UNPIN = Site("E10", 0, "rmw", "unpin")
LAST = Site("E10", 1, "load", "scan")

SHAPES = [
    Shape(
        "pin against publish",
        {
            "commit": COMMIT,
            "recheck": RECHECK,
            "pin": PIN,
            "scan": SCAN,
            "name": Site("E3", 1, "load", "name check"),
        },
        ("commit", "recheck", "pin", "scan", "name"),
        pin_against_publish,
    ),
    Shape(
        "commit, then name check",
        {
            "commit": Site("E3", 0, "rmw", "commit"),
            "recheck": RECHECK,
            "pin": PIN,
            "scan": SCAN,
            "name": Site("E3", 1, "load", "name check"),
        },
        ("commit", "name"),
        pin_against_publish,
    ),
    Shape(
        "attach against publish",
        {
            "commit": COMMIT,
            "recheck": RECHECK,
            "pin": PIN,
            "scan": SCAN,
            "mark": Site("E8", 0, "rmw", "mark"),
            "high": Site("E8", 1, "load", "mark in scan"),
        },
        ("mark", "high"),
        attach_against_publish,
    ),
    Shape(
        "attach again against publish",
        {
            "commit": COMMIT,
            "recheck": RECHECK,
            "pin": PIN,
            "scan": SCAN,
            "mark": Site("E8", 0, "rmw", "mark"),
            "high": Site("E8", 1, "load", "mark in scan"),
            "counted": Site("E8", 0, "store", "counted"),
            "known": Site("E8", 1, "load", "counted"),
        },
        ("mark", "high"),
        attach_again_against_publish,
    ),
    Shape(
        "publish a chunk",
        {"commit": COMMIT, "recheck": RECHECK, "pin": PIN},
        (),
        publish_chunk,
    ),
    Shape(
        "unpin, then refill", {"unpin": UNPIN, "scan": LAST}, ("unpin", "scan"), unpin_then_refill
    ),
    Shape(
        "recover, then refill",
        {"unpin": Site("E10", 0, "rmw", "fetch-and of recover"), "scan": LAST},
        ("unpin", "scan"),
        recover_then_refill,
    ),
    Shape(
        "version of the old chunk",
        {"commit": Site("E2", 0, "rmw", "commit"), "seen": Site("E2", 1, "load", "publish")},
        ("commit", "seen"),
        version_of_old,
        any_true,
    ),
    Shape(
        "count an appended chunk",
        {"size": Site("E5", 0, "rmw", "size"), "look": Site("E5", 1, "load", "size")},
        ("size", "look"),
        count_appended,
        any_true,
    ),
    Shape(
        "count another's chunk",
        {"size": Site("E5", 0, "rmw", "size, by the loser"), "look": Site("E5", 1, "load", "size")},
        ("size", "look"),
        count_for_other,
        any_true,
    ),
    Shape(
        "claim after a drop",
        {"drop": Site("E6", 0, "store", "drop"), "claim": Site("E6", 1, "rmw", "claim")},
        ("drop", "claim"),
        claim_after_drop,
    ),
    Shape(
        "claim after a recovery",
        {"drop": Site("E6", 0, "rmw", "drop by recover"), "claim": Site("E6", 1, "rmw", "claim")},
        ("drop", "claim"),
        claim_after_recover,
    ),
    Shape(
        "slot number under the claim",
        {"drop": Site("E6", 0, "store", "drop"), "claim": Site("E6", 1, "rmw", "claim")},
        ("drop", "claim"),
        address_under_claim,
        any_true,
    ),
    Shape(
        "row taken again",
        {"free": Site("E7", 0, "store", "FREE"), "state": Site("E7", 1, "load", "state")},
        (),
        row_taken_again,
        any_true,
        ("free", "state"),
    ),
    Shape(
        "fork moves pins",
        {
            "copy": Site("E9", 0, "rmw", "copied pins"),
            "move": Site("E9", 0, "rmw", "moves"),
            "before": Site("E9", 1, "load", "moves before the scan"),
            "after": Site("E9", 1, "load", "moves after the scan"),
        },
        ("move", "before"),
        fork_moves_pins,
        idle=("copy", "after"),
    ),
    Shape(
        "unpin against close",
        {
            "unpin": Site("E12", 0, "rmw", "unpin"),
            "look": Site("E11", 1, "load", "closing"),
            "closing": Site("E11", 0, "store", "closing"),
            "sum": Site("E12", 1, "load", "own pins"),
        },
        ("unpin", "look", "closing", "sum"),
        unpin_against_close,
        all_true,
    ),
    Shape(
        "pin against removal",
        {
            "retire": Site("E13", 0, "rmw", "retired"),
            "look": Site("E13", 1, "load", "retired"),
            "pin": PIN,
            "scan": SCAN,
        },
        ("retire", "look", "pin", "scan"),
        pin_against_removal,
    ),
    Shape(
        "sleep against wake",
        {
            "mark": Site("E14", 0, "rmw", "mark"),
            "seen": Site("E14", 1, "load", "mark"),
            "event": Site("E15", 0, "rmw", "event"),
            "look": Site("E15", 1, "load", "condition"),
        },
        ("mark", "seen", "event", "look"),
        sleep_against_wake,
        all_true,
    ),
]


def weaken(order: str, site: Site) -> str:
    """The order one step below; a relaxed one has none."""
    if order == "seq_cst":
        return "acq_rel" if site.kind == "rmw" else ("release", "acquire")[site.side]
    return WEAKER[order]


def run(shape: Shape, orders: dict[str, str]) -> tuple[int, Execution | None]:
    threads, start = shape.build(orders)
    return explore(threads, start, shape.bad)


def judge_shape(shape: Shape, table: dict[str, Edge]) -> tuple[list[str], list[str]]:
    """What was found about one shape, and what contradicts the table."""
    written = {key: table[site.edge].orders[site.side] for key, site in shape.sites.items()}
    needed = {key: table[site.edge].needed[site.side] for key, site in shape.sites.items()}
    found = []
    wrong = []
    for name, orders in (("as written", written), ("as needed", needed)):
        count, bad = run(shape, orders)
        found.append(f"{name}: {count} executions, {'bad one found' if bad else 'none bad'}")
        if bad is not None:
            wrong.append(f"{shape.name}: {name} there is a bad execution:\n{bad.text()}")
    for key in shape.bears:
        site = shape.sites[key]
        if needed[key] == "relaxed":
            wrong.append(
                f"{shape.name}: {site.edge} {site.label} is load-bearing, the table says no"
            )
            continue
        weaker = weaken(needed[key], site)
        _, bad = run(shape, {**written, key: weaker})
        found.append(
            f"{site.edge} {site.label}: {needed[key]} needed, {weaker} alone: "
            f"{'bad execution found' if bad else 'none bad'}"
        )
        if bad is None:
            wrong.append(f"{shape.name}: {site.edge} {site.label} may be {weaker}: none is bad")
    for key in shape.idle:
        site = shape.sites[key]
        _, bad = run(shape, {**written, key: "relaxed"})
        found.append(
            f"{site.edge} {site.label}: relaxed alone: "
            f"{'bad execution found' if bad else 'none bad, not load-bearing'}"
        )
        if bad is not None:
            wrong.append(f"{shape.name}: {site.edge} {site.label} is load-bearing after all")
    return found, wrong


def judge_cover(table: dict[str, Edge]) -> list[str]:
    """Both sides of every edge have a shape that says whether they bear."""
    wrong = []
    judged = {
        (shape.sites[key].edge, shape.sites[key].side)
        for shape in SHAPES
        for key in shape.bears + shape.idle
    }
    for edge in table.values():
        for side, name in enumerate(("store", "load")):
            if (edge.name, side) not in judged:
                wrong.append(f"{edge.name}: no shape judges its {name} side")
        if edge.needed != edge.orders and "kept for" not in edge.text:
            wrong.append(
                f"{edge.name}: stronger than needed, and the table does not say kept for what"
            )
        if "relaxed" in edge.needed and "not load-bearing" not in edge.text:
            wrong.append(f"{edge.name}: needs no order, and the table does not say so")
    for shape in SHAPES:
        for site in shape.sites.values():
            if site.edge not in table:
                wrong.append(f"{shape.name}: the table has no edge {site.edge}")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description="RC11 executions of the edges of docs/PROTOCOL.md")
    parser.add_argument("--table", type=Path, default=root / "docs" / "PROTOCOL.md")
    parser.add_argument("--edge", help="only shapes with this edge, for example E4")
    options = parser.parse_args(arguments)
    table = read_table(options.table)
    wrong = judge_cover(table)
    if wrong:
        print("\n".join(wrong))
        return 1
    for shape in SHAPES:
        if options.edge and all(site.edge != options.edge for site in shape.sites.values()):
            continue
        found, contradictions = judge_shape(shape, table)
        wrong += contradictions
        print(shape.name)
        print("".join(f"    {line}\n" for line in found), end="")
    print(
        "\n".join(wrong) if wrong else f"{len(table)} edges, {len(SHAPES)} shapes: the table holds"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
