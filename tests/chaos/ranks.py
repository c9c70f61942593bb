"""A rank of the job: reads the pool in every way there is, checks all it sees, and never gives up.

It tells its parent what it did by lines of JSON in a pipe. Whatever it meets that no reader should
meet is a line "bad"; errors that the documentation promises (the pool's owner died, ...) are
answered as it says: by the next call of `ensure_pool`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from stamps import CHUNK_SIZE, DTYPE, SHAPE, Stamped, StampedInPlace, fault_of
from torch.utils.data import DataLoader

from sharedvector import (
    DataModifiedError,
    PoolHandle,
    PoolLoader,
    PoolSpawnError,
    PoolStalledError,
    ProducerSpec,
    SharedMemoryDataset,
    ensure_pool,
)

SLOTS = 24
READY_LIMIT = 120.0
VIEW_LIMIT = 2.0  # seconds that a view is held at most

# The pool went away under this rank. FileNotFoundError and PoolGoneError are PoolStalledErrors.
OVER = (PoolStalledError,)


class Rank:
    """One training process.

    Args:
        name: of the pool.
        lock_dir: of the pool.
        number: of this rank among ``world``.
        seed: of its choices.
        out: descriptor that the parent reads.
    """

    def __init__(
        self, name: str, lock_dir: str | None, number: int, world: int, seed: int, out: int
    ) -> None:
        self._name, self._lock_dir, self._number, self._world = name, lock_dir, number, world
        self._random = random.Random(seed)
        self._out = out
        self._stop = False
        self._done = {"batches": 0, "views": 0, "pools": 0, "retries": 0}
        self._told = 0.0

    def run(self) -> None:
        """Read until told to stop (SIGUSR2), through as many pools as it takes."""
        signal.signal(signal.SIGUSR2, self._told_to_stop)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        while not self._stop:
            # torch raises the death of a DataLoader worker from a signal handler, that is, at any
            # line of this process: of ours, of a with statement's end, of the pool's own code.
            with _worker_deaths(self._retry):
                self._use_a_pool()
        with _worker_deaths(self._retry):
            self._tell(force=True)

    def _use_a_pool(self) -> None:
        handle = self._open()
        if handle is None:
            return
        with handle:
            self._done["pools"] += 1
            while not self._stop and self._guarded(self._random.choice(self._ways()), handle):
                pass

    def _told_to_stop(self, number: int, frame: object) -> None:
        self._stop = True

    def _ways(self) -> list[Callable[[PoolHandle], None]]:
        return [self._with_workers, self._with_pool_loader, self._with_items, self._with_views]

    def _open(self) -> PoolHandle | None:
        loader = self._random.choice([Stamped, StampedInPlace])()
        spec = ProducerSpec(
            loader=loader, chunk_size=CHUNK_SIZE, dtype=DTYPE, num_producers=2, spare_buffers=4
        )
        self._tell(force=True)
        try:
            return ensure_pool(
                self._name,
                SLOTS,
                producer=spec,
                ready_timeout=READY_LIMIT,
                poll_interval=0.05,
                lock_dir=self._lock_dir,
            )
        except (PoolStalledError, PoolSpawnError) as error:
            # Its processes were killed faster than it could be filled, or it ended right then.
            self._retry(error)
            return None
        except BaseException as error:
            if not _is_worker_death(error):
                self._bad("ensure_pool: " + traceback.format_exc())
            raise

    def _guarded(self, way: Callable[[PoolHandle], None], handle: PoolHandle) -> bool:
        """Read in one way; False when the pool is over."""
        try:
            way(handle)
        except OVER as error:
            self._retry(error)
            return False
        except BaseException as error:
            if not _is_worker_death(error):
                self._bad(f"{way.__name__}: " + traceback.format_exc())
            raise
        return True

    # -- the ways to read

    def _with_workers(self, handle: PoolHandle) -> None:
        """An unchanged DataLoader; one of its workers may be killed."""
        dataset = SharedMemoryDataset.from_pool(handle)
        batches = DataLoader(dataset, batch_size=4, num_workers=2, shuffle=True, timeout=60)
        for batch in batches:
            self._check_batch(batch)
            if self._stop:
                break

    def _with_pool_loader(self, handle: PoolHandle) -> None:
        crop = self._random.choice([None, (8, 16, 16)])
        batches = PoolLoader(
            handle, batch_size=4, crop=crop, rank=self._number, world_size=self._world, steps=20
        )
        kept: deque[Any] = deque(maxlen=3)  # batches that are kept must not change
        for batch in batches:
            self._check_batch(batch)
            kept.append((batch, batch["data"].clone()))
            if self._stop:
                break
        for batch, copy in kept:
            if not torch.equal(batch["data"], copy):
                self._bad("a batch that was kept has changed")

    def _with_items(self, handle: PoolHandle) -> None:
        dataset = SharedMemoryDataset.from_pool(handle)
        for _ in range(40):
            item = dataset[self._random.randrange(SLOTS)]
            self._check(item["data"].numpy(), item["spacing"].numpy())
            self._done["batches"] += 1
            self._tell()

    def _with_views(self, handle: PoolHandle) -> None:
        """Hold a few views, here and in a forked child; what they show must stay."""
        vector = handle.attach()
        held: list[tuple[np.ndarray[Any, Any], int]] = []
        for _ in range(self._random.randint(1, 3)):
            with contextlib.suppress(DataModifiedError):
                view = vector.get(self._random.randrange(len(vector)))
                self._check(view, None)
                held.append((view, int(view.flat[0])))
        child = os.fork() if held and self._random.random() < 0.5 else -1
        until = time.monotonic() + self._random.uniform(0.0, VIEW_LIMIT)
        while time.monotonic() < until:
            for view, stamp in held:
                if not (view == stamp).all():
                    if child == 0:
                        os._exit(9)
                    self._bad(f"a held view has changed from stamp {stamp}")
                self._done["views"] += 1
            time.sleep(0.01)
        if child == 0:
            os._exit(0)
        if child > 0:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status == 9 or status in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT):
                self._bad(f"a forked child that held views ended with {status}")
        self._tell()

    # -- checks and reports

    def _check_batch(self, batch: dict[str, Any]) -> None:
        data, meta = batch["data"].numpy(), batch["spacing"].numpy()
        if data.shape[1] != 1 or data.ndim != len(SHAPE) + 2:
            self._bad(f"a batch of shape {data.shape}")
        for item, values in zip(data, meta, strict=True):
            self._check(item, values)
        self._done["batches"] += 1
        self._tell()

    def _check(self, data: np.ndarray[Any, Any], meta: Any) -> None:
        fault = fault_of(data, meta)
        if fault is not None:
            self._bad(fault)

    def _retry(self, error: BaseException) -> None:
        self._done["retries"] += 1
        self._say({"retry": f"{type(error).__name__}: {error}"[:400]})
        time.sleep(0.05)

    def _bad(self, text: str) -> None:
        self._say({"bad": text[-3000:]})

    def _tell(self, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._told > 0.25:
            self._told = now
            self._say(dict(self._done))
            self._done = dict.fromkeys(self._done, 0)

    def _say(self, what: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._out, (json.dumps(what) + "\n").encode()[:4000])


def _is_worker_death(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "exited unexpectedly" in text or "is killed by signal" in text
    )


@contextlib.contextmanager
def _worker_deaths(retry: Callable[[BaseException], None]) -> Iterator[None]:
    """Go on after torch's report of a DataLoader worker that was killed."""
    try:
        yield
    except RuntimeError as error:
        if not _is_worker_death(error):
            raise
        retry(error)
