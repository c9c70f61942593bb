"""What fills a pool: the supervisor, its worker processes, and the work of one producer.

Promises: a worker or supervisor that dies is started again. When the owner dies, its files go.
Whatever a worker has started ends with it.
Nothing imports NumPy before the first worker process has been started.
Uses: `_coordination`, `loaders`, the segment.
Tests: ``test_supervisor.py``, ``test_worker.py``, ``test_producer.py``, ``test_store.py``,
``test_order.py``, ``test_events.py``, ``test_held_views.py``, ``test_crashes.py``.
"""

from __future__ import annotations

from sharedvector._common import lazy_names

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from sharedvector._producer.events import EventReader, wait_ready
    from sharedvector._producer.monitor import status_words
    from sharedvector._producer.payload import Job
    from sharedvector._producer.producer import optional, producer_worker
    from sharedvector._producer.source_order import seed_of
    from sharedvector._producer.spawn import open_parcel, pack_loader, start_supervisor

__all__ = [
    "EventReader",
    "Job",
    "open_parcel",
    "optional",
    "pack_loader",
    "producer_worker",
    "seed_of",
    "start_supervisor",
    "status_words",
    "wait_ready",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".events": "EventReader wait_ready",
        ".monitor": "status_words",
        ".payload": "Job",
        ".producer": "optional producer_worker",
        ".source_order": "seed_of",
        ".spawn": "open_parcel pack_loader start_supervisor",
    },
)
