"""Environments of the packages that are measured: this tree, 0.1.0, and others from PyPI.

All live under build/compare and share NumPy, zarr and torch; tools/compare_env.py makes them.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import compare_env  # noqa: E402

OTHERS = {"iceoryx2": "iceoryx2==0.10.0", "SPDL": "spdl-core==0.8.0"}


def pythons(given: dict[str, Path], *, others: bool) -> tuple[dict[str, Path], dict[str, str]]:
    """Pythons by side, and the reasons why others are left out.

    Args:
        given: sides that need no environment of their own.
        others: also those that are not sharedvector.

    Raises:
        RuntimeError: 0.1.0 cannot be installed, or this tree not built.
    """
    found, left_out = dict(given), {}
    if "0.1.0" not in found:
        found["0.1.0"] = compare_env.peer("old", compare_env.PEER, "--no-deps")
    if "ours" not in found:
        found["ours"] = compare_env.this_tree()
    for side, requirement in OTHERS.items():
        if not others:
            left_out[side] = "--no-others"
            continue
        try:
            found[side] = compare_env.peer(f"peer-{side.lower()}", requirement)
        except RuntimeError as error:
            left_out[side] = f"cannot be installed: {str(error).splitlines()[-1]}"
    return found, left_out
