"""Diagnostics and pool statistics for Prometheus; needs prometheus_client, unlike the package."""

from __future__ import annotations

from sharedvector.monitoring import DiagnosticsCollector, PoolSource, exposition

__all__ = [
    "DiagnosticsCollector",
    "PoolSource",
    "exposition",
]
