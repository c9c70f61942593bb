"""The table of edges in docs/PROTOCOL.md, as rc11.py and check_edges.py read it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ORDERS = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")


@dataclass(frozen=True)
class Edge:
    """One row: `orders` of the code and what is `needed`, each as (store, load)."""

    name: str
    orders: tuple[str, str]
    needed: tuple[str, str]
    text: str


def _pair(cell: str, line: str) -> tuple[str, str]:
    found = [word for word in re.findall(r"[a-z_]+", cell) if word in ORDERS]
    if len(found) < 2:
        raise ValueError(f"wanted 'order / order', found {cell!r} in: {line}")
    return found[0], found[1]


def read_table(path: Path) -> dict[str, Edge]:
    """The edges by name.

    Raises:
        ValueError: There is no table, a column is missing, or a row is damaged or there twice.
    """
    edges: dict[str, Edge] = {}
    columns: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0] == "edge":
            columns = cells
            for wanted in ("store", "load", "orders", "needed"):
                if wanted not in columns:
                    raise ValueError(f"the table of edges in {path} has no column {wanted!r}")
        elif columns and re.fullmatch(r"E[0-9]+", cells[0]):
            if len(cells) != len(columns) or cells[0] in edges:
                raise ValueError(f"damaged or repeated row of the table of edges: {line}")
            row = dict(zip(columns, cells, strict=True))
            edges[cells[0]] = Edge(
                cells[0], _pair(row["orders"], line), _pair(row["needed"], line), line
            )
    if not edges:
        raise ValueError(f"no table of edges in {path}")
    return edges
