"""Exceptions from the handlers of signals: whatever line they hit, the next call works."""

from __future__ import annotations

import re

import pytest
from pool_support import HERE, run, unique

VERBS = {
    "ensure_pool": 19,
    "pool": 23,
    "with_ensure_pool": 29,
    "close": 5,
    "service": 11,
    "share": 5,
    "pool_loader": 7,
}


def interrupted(verb: str, step: int) -> int:
    """Interrupt a call at every ``step``-th line; how many lines that were."""
    if verb == "pool_loader":
        pytest.importorskip("torch", reason="torch is not installed")
    code = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    script = str(HERE / "interrupts.py")
    status, out, err = run(code, script, verb, str(step), unique(verb), seconds=1500)
    told = re.fullmatch(r"tried (\d+)\n", out)
    assert status == 0 and told is not None, out + err
    assert "Exception ignored" not in err and "Traceback" not in err
    return int(told[1])


@pytest.mark.parametrize("verb", VERBS)
def test_some_lines(verb: str) -> None:
    assert interrupted(verb, VERBS[verb]) >= 3


if __name__ == "__main__":  # `make interrupts`: every line, which takes most of an hour
    for every in VERBS:
        print(f"{every}: {interrupted(every, 1)} lines", flush=True)
