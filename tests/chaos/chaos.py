"""The whole Python stack under random deaths: ``make chaos``.

Four ranks share one pool (`ensure_pool`; DataLoader workers, PoolLoader, items, views that are held
and inherited by forks). Meanwhile ranks, the owner, DataLoader workers, producer workers and
supervisors are ended at random, by SIGKILL or SIGTERM. Every round ends in another way: all ranks
told to stop, all of them killed or terminated at once, or every process of the job killed at once.

What counts as a failure:
  torn   a chunk, a batch or a held view that is not what one publication wrote (`stamps`)
  lost   a rank that ends by itself or hangs, a pool that is not refreshed any more, or one whose
         invariants do not hold
  left   a file in shared memory or a process that is still there half a minute after a round; where
         nobody was left alive to clean up, after `sharedvector.sweep`

Environment: CHAOS_SECONDS (600), CHAOS_KILL_MS (400: mean time between two kills), CHAOS_ROUND (30
seconds), SEED (printed; the same seed makes the same choices, as far as the machine lets it).
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ranks import READY_LIMIT, Rank

import sharedvector

WORLD = 4
TOKEN = "SHAREDVECTOR_CHAOS"
HANG_LIMIT = READY_LIMIT + 30.0  # seconds without a word from a rank
END_LIMIT = 60.0  # ... that ranks may take to stop when told
CLEAN_LIMIT = 30.0  # ... until nothing may be left of a round
ORPHAN_LIMIT = 12.0  # ... until torch's own workers should have seen that their parent died
REFRESH_LIMIT = 60.0
SHM = Path(os.environ.get("SHAREDVECTOR_SHM_DIR", "/dev/shm"))

# How often which kind of process is chosen, and the share of SIGTERM among the signals.
WEIGHTS = {"producer": 8, "supervisor": 2, "child": 5, "rank": 2, "owner": 1}
TERM_SHARE = 0.3


class Member:
    """A living rank: its process, its end of the pipe, and when it was last heard of."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self.pipe = pid, pipe
        self.heard = time.monotonic()
        self.text = b""
        self.doomed = False  # we sent it a signal


class Chaos:
    def __init__(self, seconds: float, kill_every: float, round_seconds: float, seed: int) -> None:
        self._seconds, self._kill_every, self._round = seconds, kill_every, round_seconds
        self._random = random.Random(seed)
        self._ranks: dict[int, Member] = {}  # by number
        self._name = ""
        self._lock_dir: str | None = None
        self.counts: Counter[str] = Counter()
        self.bad: list[str] = []
        self.retries: Counter[str] = Counter()

    # -- a round

    def run(self) -> None:
        until = time.monotonic() + self._seconds
        for number in range(10**6):
            left = until - time.monotonic()
            if left <= 0 or self.bad:
                return
            with tempfile.TemporaryDirectory(prefix="sharedvector-chaos-") as scratch:
                self._name = f"chaos{os.getpid()}-{number}"
                self._lock_dir = scratch if number % 2 else None
                self._play(min(self._round, left))
                self._end(self._random.choice(["stop", "kill", "term", "all"]))

    def _play(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        due = time.monotonic() + 2.0
        while (now := time.monotonic()) < until and not self.bad:
            self._keep_ranks()
            if now >= due:
                self._kill_one()
                due = now + self._random.expovariate(1.0 / self._kill_every)
            time.sleep(0.02)
        self._audit()

    def _end(self, how: str) -> None:
        self.counts[f"end_{how}"] += 1
        if how == "all":
            self._kill_family()
        for member in self._ranks.values():
            number = {"stop": signal.SIGUSR2, "term": signal.SIGTERM}.get(how, signal.SIGKILL)
            member.doomed = number != signal.SIGUSR2
            send(member.pid, number)
        deadline = time.monotonic() + END_LIMIT
        while self._ranks and time.monotonic() < deadline:
            self._listen()
            self._reap(restart=False)
            time.sleep(0.02)
        for member in self._ranks.values():
            self._lost(f"a rank does not end ({how})", member)
            member.doomed = True
            send(member.pid, signal.SIGKILL)
        self._reap(restart=False)
        self._find_leftovers(how)

    def _find_leftovers(self, how: str) -> None:
        if how == "all":  # nobody is left who could have cleaned up
            wait_until(lambda: not self._kill_family(), CLEAN_LIMIT)
            sharedvector.sweep(prefix=self._name, lock_dir=self._lock_dir)
        if not wait_until(lambda: not self._family() and not self._files(), ORPHAN_LIMIT):
            self._end_orphans()
        if wait_until(lambda: not self._family() and not self._files(), CLEAN_LIMIT):
            return
        if how != "stop" and not self._family():
            # An owner that was killed before it had a supervisor; or both at once.
            self.counts["swept"] += 1
            sharedvector.sweep(prefix=self._name, lock_dir=self._lock_dir)
            if not self._files():
                return
        self.counts["left"] += 1
        what = [f"process {pid} {command_of(pid)}" for pid in self._family()] + self._files()
        self.bad.append(f"left after a round that ended by {how!r}: {what}")
        self._kill_family()
        for path in self._files():
            Path(path).unlink(missing_ok=True)

    def _end_orphans(self) -> None:
        """DataLoader workers of ranks that died while torch was starting them.

        A worker of torch asks every five seconds whether its parent is still the one that it saw
        when it began; one whose parent was gone before that never ends. That is not ours to mend,
        and what they hold of the pool goes with the others' recovery.
        """
        for pid in self._family():
            if Path(__file__).name in command_of(pid) and parent_of(pid) != os.getpid():
                self.counts["orphans"] += 1
                send(pid, signal.SIGKILL)

    # -- ranks

    def _keep_ranks(self) -> None:
        self._listen()
        self._reap(restart=True)
        for number in range(WORLD):
            if number not in self._ranks:
                self._start(number)
        for member in self._ranks.values():
            if time.monotonic() - member.heard > HANG_LIMIT:
                self._lost("a rank hangs", member)

    def _start(self, number: int) -> None:
        read_end, write_end = os.pipe()
        seed = self._random.getrandbits(32)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(read_end)
                Rank(self._name, self._lock_dir, number, WORLD, seed, write_end).run()
                status = 0
            except BaseException as error:
                print(f"rank {number}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        os.close(write_end)
        os.set_blocking(read_end, False)
        self._ranks[number] = Member(pid, read_end)
        self.counts["begun"] += 1

    def _listen(self) -> None:
        for number, member in self._ranks.items():
            with contextlib.suppress(BlockingIOError):
                while got := os.read(member.pipe, 65536):
                    member.text += got
            *lines, member.text = member.text.split(b"\n")
            for line in lines:
                member.heard = time.monotonic()
                self._heard(number, line)

    def _heard(self, number: int, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            self.bad.append(f"rank {number} was cut off: {line[:3000]!r}")
            return
        if "bad" in said:
            self.counts[
                "torn" if "torn" in said["bad"] or "changed" in said["bad"] else "lost"
            ] += 1
            self.bad.append(f"rank {number}: {said['bad']}")
        elif "retry" in said:
            self.retries[said["retry"].split(":")[0]] += 1
        else:
            self.counts.update(said)

    def _reap(self, *, restart: bool) -> None:
        for number, member in list(self._ranks.items()):
            pid, status = os.waitpid(member.pid, os.WNOHANG)
            if pid == 0:
                continue
            self._listen()
            os.close(member.pipe)
            del self._ranks[number]
            code = os.waitstatus_to_exitcode(status)
            expected = member.doomed or (code == 0 and not restart)
            if not expected:
                self.counts["lost"] += 1
                self.bad.append(f"rank {number} ended by itself with status {code}")

    def _lost(self, what: str, member: Member) -> None:
        send(member.pid, signal.SIGUSR1)  # its threads' tracebacks go to the log
        time.sleep(0.5)
        self.counts["lost"] += 1
        self.bad.append(f"{what}: pid {member.pid}")

    # -- kills

    def _kill_one(self) -> None:
        kinds = self._kinds()
        kind = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if not kinds.get(kind):
            return
        victim = self._random.choice(kinds[kind])
        number = signal.SIGTERM if self._random.random() < TERM_SHARE else signal.SIGKILL
        for member in self._ranks.values():
            member.doomed = member.doomed or member.pid == victim
        send(victim, number)
        self.counts[f"{kind}s"] += 1
        self.counts["kills" if number == signal.SIGKILL else "terms"] += 1

    def _kinds(self) -> dict[str, list[int]]:
        """The living processes of the job, by what they are."""
        ranks = [member.pid for member in self._ranks.values() if not member.doomed]
        family = {pid: parent_of(pid) for pid in self._family()}
        supervisors = [pid for pid in family if "supervisor" in command_of(pid)]
        owners = {family[pid] for pid in supervisors}
        return {
            "producer": [pid for pid, parent in family.items() if parent in supervisors],
            "supervisor": supervisors,
            "child": [pid for pid, p in family.items() if p in ranks and pid not in supervisors],
            "rank": [pid for pid in ranks if pid not in owners],
            "owner": [pid for pid in ranks if pid in owners],
        }

    def _family(self) -> list[int]:
        """All living processes of the job but this one."""
        mark = f"{TOKEN}={os.environ[TOKEN]}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def _kill_family(self) -> list[int]:
        """Kill all processes of the job that are to be seen now; another may have begun since."""
        family = self._family()
        for pid in family:
            send(pid, signal.SIGKILL)
        return family

    def _files(self) -> list[str]:
        directories = [SHM, *([Path(self._lock_dir)] if self._lock_dir else [])]
        return sorted(
            str(path) for d in directories for path in d.iterdir() if self._name in path.name
        )

    # -- the pool itself

    def _audit(self) -> None:
        """In a process of its own: the pool is whole, and still refreshed for its readers."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                faulthandler.register(signal.SIGUSR1, all_threads=True)
                audit(self._name)
                status = 0
            except BaseException as error:
                print(f"audit: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        self.counts["audits"] += 1
        deadline = time.monotonic() + 4 * REFRESH_LIMIT
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
            self._keep_ranks()
            if time.monotonic() > deadline:
                send(pid, signal.SIGUSR1)
                time.sleep(0.5)
                send(pid, signal.SIGKILL)
            time.sleep(0.02)
        if ended[1] != 0:
            self.counts["lost"] += 1
            self.bad.append(f"the audit of {self._name} failed; the log says why")


def audit(name: str) -> None:
    """Raise what is wrong with a pool that nobody is killed around any more."""
    began = time.monotonic()
    while True:
        with contextlib.suppress(FileNotFoundError):
            vector = sharedvector.SharedVector(name, create=False)
            if not vector.retired and audit_segment(vector):
                return
        if time.monotonic() - began > REFRESH_LIMIT:
            raise AssertionError(f"pool {name} did not come back")
        time.sleep(0.05)


def audit_segment(vector: sharedvector.SharedVector) -> bool:
    """False when the pool's owner ended meanwhile; AssertionError when it is not sound."""
    before = int(vector.write_counts().sum())

    def refreshed() -> bool:
        return vector.retired or int(vector.write_counts().sum()) >= before + 5

    def nothing_held_by_the_dead() -> bool:
        vector.recover()
        rows = vector.rows()
        return not any(row["pins"] or row["claims"] for row in rows if not row["live"])

    if not wait_until(refreshed, REFRESH_LIMIT):
        raise AssertionError(f"{vector.name} is not refreshed: {vector.rows()}")
    if not wait_until(nothing_held_by_the_dead, REFRESH_LIMIT):
        raise AssertionError(f"recover() leaves what dead processes held: {vector.rows()}")
    vector.check()
    return not vector.retired


# -- helpers


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until(what: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return text.decode(errors="replace")[:300]
    return ""


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def main() -> int:
    if TOKEN not in os.environ:  # /proc shows the environment that a process began with
        here = str(Path(__file__).resolve().parent)
        path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, TOKEN: secrets.token_hex(8), "PYTHONPATH": path}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    seed = int(os.environ.get("SEED") or secrets.randbits(32))
    seconds = float(os.environ.get("CHAOS_SECONDS") or 600)
    kill_every = float(os.environ.get("CHAOS_KILL_MS") or 400) / 1000
    chaos = Chaos(seconds, kill_every, float(os.environ.get("CHAOS_ROUND") or 30), seed)
    print(f"SEED={seed} CHAOS_SECONDS={seconds:g} CHAOS_KILL_MS={kill_every * 1000:g}", flush=True)
    chaos.run()
    for text in chaos.bad[:20]:
        print(text)
    counts = chaos.counts
    print("retries:", dict(chaos.retries))
    print("ended:", {kind: counts[f"{kind}s"] for kind in WEIGHTS}, "ranks begun:", counts["begun"])
    names = "kills terms pools batches views audits orphans swept torn lost left".split()
    print(*(f"{name}={counts[name]}" for name in names))
    if not counts["batches"] or not counts["audits"]:
        print("nothing was tried")
        return 1
    return 1 if chaos.bad else 0


if __name__ == "__main__":
    sys.exit(main())
