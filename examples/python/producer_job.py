"""A producer as a job step of its own: it feeds the pool until SIGINT or SIGTERM.

The command does the same without a line of Python, in this directory:
PYTHONPATH=. sharedvector-producer --name volumes --slot-count 8 --chunk-size-mb 1 \
    --loader-class gradients:Gradients
"""

from __future__ import annotations

import os

from gradients import Gradients

from sharedvector import ProducerService

loader = Gradients()
service = ProducerService(
    os.environ.get("POOL", "volumes"),
    loader,
    source_size=len(loader),
    slot_count=8,
    chunk_size=1 << 20,
    num_producers=2,
)
service.run()
