"""Prometheus: what a registry is given, and the text that it makes of it."""

from __future__ import annotations

import dataclasses
import gc
import os
import re
import signal
import tempfile
from typing import Any

import numpy as np
import pytest
from core_support import filled, fresh_name, in_child
from pool_support import run
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sharedvector import (
    Diagnostics,
    PoolStats,
    SharedVector,
    collect_stats,
    diagnostics,
    share,
    sweep,
    warn_above,
)
from sharedvector.metrics import DiagnosticsCollector, exposition
from sharedvector.vector import PoolStalledError

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """(name, labels) -> value; every name must be a legal one that is told once."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith(".") and family.type in ("gauge", "counter")
        for sample in family.samples:
            assert re.fullmatch(r"sharedvector_[a-z0-9_]+", sample.name)
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def scrape(collector: DiagnosticsCollector) -> Samples:
    registry = CollectorRegistry()
    registry.register(collector)
    return samples(generate_latest(registry).decode())


class Pool:
    """A pool handle of which only name and statistics count."""

    def __init__(self, name: str, vector: SharedVector) -> None:
        self.name = name
        self.vector = vector

    def stats(self) -> PoolStats:
        return collect_stats(self.vector)


class Gone(Pool):
    def stats(self) -> PoolStats:
        raise PoolStalledError("its owner has gone")


def test_every_number_of_the_diagnostics() -> None:
    warn_above(1 << 40)
    try:
        with share(np.arange(1000)):
            found = dataclasses.replace(diagnostics(), container_limit_bytes=1 << 33)
            told = samples(found.prometheus())
    finally:
        warn_above(None)
    numbers = {name: v for name, v in found.as_dict("sharedvector_").items() if "pid" not in name}
    plain = {name: value for (name, labels), value in told.items() if not labels}
    orphans = {name for name in numbers if "orphans" in name}
    assert orphans == {"sharedvector_orphans", "sharedvector_orphans_bytes"}
    assert plain == {name: value for name, value in numbers.items() if name not in orphans}
    for name in orphans:
        kinds = {labels: value for (key, labels), value in told.items() if key == name}
        assert set(kinds) == {(("kind", "block"),), (("kind", "pool"),)}
        assert sum(kinds.values()) == numbers[name]
    assert told["sharedvector_blocks_made", ()] >= 1


def test_what_is_none_is_left_out() -> None:
    found = dataclasses.replace(
        diagnostics(), container_limit_bytes=None, memory_free_bytes=None, warn_above_bytes=None
    )
    names = {name for name, _ in samples(exposition(found))}
    assert not names & {
        "sharedvector_container_limit_bytes",
        "sharedvector_memory_free_bytes",
        "sharedvector_warn_above_bytes",
    }
    assert "sharedvector_shm_bytes" in names


def test_orphans_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def die() -> None:
        kept = share(np.zeros(1 << 17))
        os.kill(os.getpid(), signal.SIGKILL)
        del kept

    with tempfile.TemporaryDirectory(prefix=f"svtest-{os.getpid()}-", dir="/dev/shm") as apart:
        monkeypatch.setenv("SHAREDVECTOR_SHM_DIR", apart)  # other tests leave orphans and sweep
        assert in_child(die) == -signal.SIGKILL
        told = scrape(DiagnosticsCollector())
        assert told["sharedvector_orphans", (("kind", "block"),)] == 1
        assert told["sharedvector_orphans", (("kind", "pool"),)] == 0
        (swept,) = sweep()
        assert told["sharedvector_orphans_bytes", (("kind", "block"),)] == swept.bytes >= 1 << 20


def test_a_scrape_looks_anew() -> None:
    registry = CollectorRegistry()
    registry.register(DiagnosticsCollector())

    def made() -> float:
        return samples(generate_latest(registry).decode())["sharedvector_blocks_made", ()]

    gc.collect()  # blocks that earlier tests left to it are not to go while others are counted
    before = made()
    with share(np.arange(10)):
        assert made() == before + 1
    assert made() == before


def test_statistics_of_pools() -> None:
    with fresh_name() as one, fresh_name() as two, filled(one) as first, filled(two, 2) as second:
        for _ in range(5):
            first.get(0)
        first.replace(0, np.zeros((3, 4), np.float32))
        pools = [Pool("first", first), Gone("gone", second), Pool('q"\\', second)]
        told = scrape(DiagnosticsCollector(*pools))
        stats = collect_stats(first).as_dict("")
    label = (("pool", "first"),)
    mine = {name: value for (name, labels), value in told.items() if labels == label}
    assert mine.pop("sharedvector_pool_readable") == 1
    assert len(mine) == len(stats)
    for name, value in stats.items():
        key = f"sharedvector_pool_{name}"
        total = f"{key.removesuffix('_total')}_total"
        assert mine[key if key in mine else total] == value, name
    assert mine["sharedvector_pool_replace_events_total"] == 1
    assert mine["sharedvector_pool_reads_at_replace_total"] == 5
    assert {k: v for k, v in told.items() if k[1] == (("pool", "gone"),)} == {
        ("sharedvector_pool_readable", (("pool", "gone"),)): 0
    }
    assert told["sharedvector_pool_slots", (("pool", 'q"\\'),)] == 2


def test_pools_have_different_names() -> None:
    pool: Any = type("Named", (), {"name": "run42", "stats": lambda self: None})()
    with pytest.raises(ValueError, match="run42"):
        DiagnosticsCollector(pool, pool)


@pytest.mark.parametrize(
    "pool",
    [3, "run42", None, [], Pool, type("Named", (), {"name": "run42"})()],
    ids=lambda it: type(it).__name__,
)
def test_what_is_no_pool_is_refused_by_its_place(pool: Any) -> None:
    known: Any = Pool("known", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"pools\[1\] should be a pool's handle, dataset or serv"):
        DiagnosticsCollector(known, pool)


def test_the_text_is_that_of_diagnostics() -> None:
    with pytest.raises(TypeError, match=r"found should be a Diagnostics, got 3; diagnostics\(\)"):
        exposition(3)  # type: ignore[arg-type]


def test_without_prometheus_client_the_error_says_what_to_install() -> None:
    code = """
    import sys
    sys.modules["prometheus_client"] = None
    import sharedvector
    found = sharedvector.diagnostics()
    try:
        found.prometheus()
    except ImportError as error:
        print(error)
    from sharedvector.cli import main
    sys.exit(main(["diagnostics", "--prometheus"]))
    """
    status, out, err = run(code)
    words = "pip install 'sharedvector[prometheus]'"
    assert status == 1 and words in out, err
    assert words in err and err.count("\n") == 1


def test_every_field_of_diagnostics_is_told_or_left_out_on_purpose() -> None:
    from sharedvector.monitoring import families

    fields = {field.name for field in dataclasses.fields(Diagnostics)}
    other = {"pid", "orphans", "orphans_bytes", "directory", "memory_limit", "made", "orphaned"}
    assert set(families._GAUGES) == fields - other
    fields = {field.name for field in dataclasses.fields(PoolStats)}
    assert set(families._POOL_COUNTERS) | set(families._POOL_GAUGES) == fields - {"held_by"}
    assert not set(families._POOL_COUNTERS) & set(families._POOL_GAUGES)
