"""Five processes try to own one pool, again and again: ``owner_rounds.py LOCK_DIR ROUNDS``.

Prints how many owners each round had, and whether the lock ended with a killed owner although a
child that it had forked lived on.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import sys
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Barrier
from pathlib import Path

from sharedvector import OwnerLock, PoolPaths

PROCESSES = 5
LIMIT = 30.0  # seconds for any wait


def try_to_own(
    paths: PoolPaths, rounds: int, meeting: Barrier, owners: SynchronizedArray[int]
) -> None:
    for n in range(rounds):
        meeting.wait(LIMIT)
        lock = OwnerLock.try_acquire(paths, grace=0)
        meeting.wait(LIMIT)  # every process has tried by now
        if lock is not None:
            if lock.held:
                owners[n] += 1  # one owner at most: nobody else writes
            meeting.wait(LIMIT)
            lock.release()
        else:
            meeting.wait(LIMIT)


def own_and_fork(paths: PoolPaths, said: int, ends: int) -> None:
    lock = OwnerLock.try_acquire(paths, grace=0)
    assert lock is not None
    if os.fork() == 0:
        assert not lock.held
        os.write(said, b"!")
        os.read(ends, 1)  # until the main process ends
        os._exit(0)
    signal.pause()


def main(lock_dir: str, rounds: int) -> None:
    context = multiprocessing.get_context("fork")
    paths = PoolPaths(f"rounds{os.getpid()}", Path(lock_dir))
    owners = context.Array("i", rounds)
    meeting = context.Barrier(PROCESSES)
    arguments = (paths, rounds, meeting, owners)
    processes = [context.Process(target=try_to_own, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT * 2)
    print("owners", sorted(set(owners[:])), "ends", sorted({str(p.exitcode) for p in processes}))

    (heard, said), (ends, open_end) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(open_end)
        own_and_fork(paths, said, ends)
    assert select.select([heard], [], [], LIMIT)[0]
    before = OwnerLock.try_acquire(paths, grace=0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    after = OwnerLock.try_acquire(paths, grace=0)
    print("before its death", before is not None, "after it", after is not None)
    if after is not None:
        after.release()
    print("left", os.listdir(lock_dir))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
