"""Diagnostics and pool statistics for Prometheus; needs prometheus_client, unlike the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sharedvector.monitoring.families import PoolSource, diagnostics_metrics, pool_metrics, text_of
from sharedvector.monitoring.usage import Diagnostics, diagnostics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["DiagnosticsCollector", "exposition"]


class DiagnosticsCollector:
    """Gives :func:`sharedvector.diagnostics` and the statistics of pools to a Prometheus registry.

    Everything is looked up when the registry is scraped::

        REGISTRY.register(DiagnosticsCollector(handle))

    The numbers are ``sharedvector_<field of Diagnostics>``, orphans with the label ``kind`` (block
    or pool), and ``sharedvector_pool_<field of PoolStats>`` with the label ``pool``.
    ``sharedvector_pool_readable`` is 0 for a pool whose statistics cannot be read any more; its
    others are left out then. What has no value (no container limit) is left out. The collector
    looks at the process that it is in: prometheus_client's multiprocess mode does not carry it.

    Args:
        pools: handles, datasets or services; each pool once.

    Raises:
        TypeError: one of them has no name and no statistics.
        ValueError: two of them have the same name.
    """

    def __init__(self, *pools: PoolSource) -> None:
        for place, pool in enumerate(pools):
            if not (isinstance(getattr(pool, "name", None), str) and hasattr(pool, "stats")):
                raise TypeError(
                    f"pools[{place}] should be a pool's handle, dataset or service, got {pool!r}"
                )
        names = [pool.name for pool in pools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"pools must have different names; found twice: {', '.join(twice)}")
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        """What a registry calls at each scrape."""
        yield from diagnostics_metrics(diagnostics())
        if self._pools:
            yield from pool_metrics(self._pools)


def exposition(found: Diagnostics) -> str:
    """One Diagnostics in Prometheus' text format."""
    if not isinstance(found, Diagnostics):
        raise TypeError(f"found should be a Diagnostics, got {found!r}; diagnostics() makes one")
    return text_of(found)
