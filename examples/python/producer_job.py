"""A producer as a job step of its own: it feeds the pool until SIGINT or SIGTERM.

The command does the same without a line of Python:
sharedvector-producer --name volumes --slot-count 8 --chunk-size-mb 1 \
    --loader-class sharedvector.loaders:NumpyLoader --loader-args '{"directory": "data"}'
"""

from __future__ import annotations

import os

from sharedvector import NumpyLoader, ProducerService

loader = NumpyLoader("data", dtype="float32")
service = ProducerService(
    os.environ.get("POOL", "volumes"),
    loader,
    source_size=len(loader),
    slot_count=8,
    chunk_size=1 << 20,
    num_producers=2,
)
service.run()
