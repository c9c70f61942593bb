"""The RC11 memory model for tools/rc11.py: all consistent executions of a few small threads.

An execution is built one event at a time, each read taking its value from a write that is already
there: RC11 forbids cycles of program order and reads-from, so nothing is missed. A state is kept
once, however it was reached. Release sequences are those of C++20 (read-modify-writes only).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

Op = tuple[object, ...]
Thread = Callable[[], Generator[Op, int, object]]
Identity = tuple[int, int]  # thread, number in it; thread -1: what was there at the start


@dataclass
class Event:
    """One access. `source` is the write that a read reads from."""

    identity: Identity
    location: str
    order: str  # "plain" for accesses that may race
    reads: bool
    writes: bool
    value: int = 0
    source: Identity | None = None
    before: frozenset[Identity] = frozenset()  # happens-before, strictly
    passes: frozenset[Identity] | None = None  # what an acquiring reader of this write gets to know


@dataclass
class Execution:
    """A consistent execution, complete or not."""

    events: dict[Identity, Event] = field(default_factory=dict)
    modification: dict[str, list[Identity]] = field(default_factory=dict)
    heard: list[list[int]] = field(default_factory=list)  # what each thread's accesses returned
    lengths: list[int] = field(default_factory=list)

    def text(self) -> str:
        """The accesses in the order of their threads, for people."""
        lines = []
        for event in sorted(self.events.values(), key=lambda e: e.identity):
            if event.identity[0] >= 0:
                reads = "" if event.source is None else f" reads {self.events[event.source].value}"
                writes = f" writes {event.value}" if event.writes else ""
                thread = event.identity[0]
                lines.append(f"    thread {thread}: {event.location}{reads}{writes}, {event.order}")
        return "\n".join(lines)

    def key(self) -> object:
        rf = tuple(
            sorted((e.identity, e.source) for e in self.events.values() if e.source is not None)
        )
        mo = tuple(sorted((loc, tuple(order)) for loc, order in self.modification.items()))
        return tuple(self.lengths), rf, mo

    def copy(self) -> Execution:
        return Execution(
            dict(self.events),
            {loc: list(order) for loc, order in self.modification.items()},
            [list(values) for values in self.heard],
            list(self.lengths),
        )


def _acquires(order: str) -> bool:
    return order in ("acquire", "acq_rel", "seq_cst")


def _releases(order: str) -> bool:
    return order in ("release", "acq_rel", "seq_cst")


def _replay(thread: Thread, heard: list[int]) -> tuple[Op | None, object]:
    """The next access of a thread that heard these values, or None and what it returned."""
    steps = thread()
    try:
        op = next(steps)
        for value in heard:
            op = steps.send(value)
    except StopIteration as end:
        return None, end.value
    return op, None


def _coherent_read(x: Execution, location: str, source: Identity, before: set[Identity]) -> bool:
    """No write, and no other read's write, between the source and what is known already."""
    order = x.modification[location]
    place = order.index(source)
    for later in order[place + 1 :]:
        if later in before:
            return False
    for known in before:
        event = x.events[known]
        if event.location == location and event.source is not None:
            if order.index(event.source) > place:
                return False
    return True


def _coherent_write(x: Execution, location: str, place: int, before: set[Identity]) -> bool:
    """All that is known of the location comes before the place in modification order."""
    for index, write in enumerate(x.modification[location]):
        if index >= place and write in before:
            return False
    for known in before:
        event = x.events[known]
        if event.location == location and event.source is not None:
            if x.modification[location].index(event.source) >= place:
                return False
    return True


def _splits_update(x: Execution, location: str, place: int) -> bool:
    """Would a write here stand between a read-modify-write and what it read?"""
    order = x.modification[location]
    if place >= len(order):
        return False
    following = x.events[order[place]]
    return following.reads and following.source == order[place - 1]


def _sequential(x: Execution) -> bool:
    """The partial order of the seq_cst accesses has no cycle (psc of RC11, without fences)."""
    nodes = [e for e in x.events.values() if e.order == "seq_cst"]
    place = {w: i for order in x.modification.values() for i, w in enumerate(order)}

    def program_order(a: Event, b: Event) -> bool:
        return a.identity[0] == b.identity[0] and a.identity[1] < b.identity[1]

    def step(a: Event, b: Event) -> bool:
        if program_order(a, b):
            return True
        if a.location == b.location:
            if a.identity in b.before:
                return True
            if a.writes and b.writes and place[a.identity] < place[b.identity]:
                return True
            # a read what b overwrote
            if a.source is not None and b.writes and place[a.source] < place[b.identity]:
                return True
        for c in x.events.values():
            if c.location != a.location and program_order(a, c):
                for d in x.events.values():
                    if (
                        d.location != b.location
                        and program_order(d, b)
                        and (c.identity in d.before)
                    ):
                        return True
        return False

    following = {
        a.identity: [b.identity for b in nodes if a is not b and step(a, b)] for a in nodes
    }
    done: set[Identity] = set()
    active: set[Identity] = set()

    def cyclic(node: Identity) -> bool:
        active.add(node)
        for other in following[node]:
            if other in active or (other not in done and cyclic(other)):
                return True
        active.discard(node)
        done.add(node)
        return False

    return not any(node.identity not in done and cyclic(node.identity) for node in nodes)


def _known(x: Execution, thread: int) -> set[Identity]:
    """What happens before the thread's next event, without what that event learns by reading."""
    known = {e.identity for e in x.events.values() if e.identity[0] == -1}
    if x.lengths[thread]:
        last = x.events[(thread, x.lengths[thread] - 1)]
        known |= last.before
        known.add(last.identity)
    return known


def _races(x: Execution, event: Event) -> bool:
    return any(
        other.location == event.location
        and (other.writes or event.writes)
        and other.identity != event.identity
        and other.identity not in event.before
        for other in x.events.values()
    )


def _written(op: Op, old: int) -> int | None:
    """What a read-modify-write stores over `old`; None: a compare-and-swap that fails."""
    kind, amount = op[0], op[2]
    assert isinstance(amount, int)
    if kind == "add":
        return old + amount
    if kind == "and":
        return old & amount
    return op[3] if old == amount and isinstance(op[3], int) else None


def _steps(x: Execution, thread: int, op: Op) -> list[Execution]:
    """Every consistent way to do the thread's next access."""
    kind, location = op[0], op[1]
    assert isinstance(location, str)
    order = {"read": "plain", "write": "plain", "await": "acquire"}.get(str(kind), str(op[-1]))
    identity = (thread, x.lengths[thread])
    known = _known(x, thread)
    results = []

    def add(event: Event, place: int | None, heard: int) -> None:
        y = x.copy()
        y.events[identity] = event
        if place is not None:
            y.modification[location].insert(place, identity)
        y.heard[thread].append(heard)
        y.lengths[thread] += 1
        if _sequential(y):
            results.append(y)

    if kind in ("store", "write"):
        value = op[2]
        assert isinstance(value, int)
        for place in range(1, len(x.modification[location]) + 1):
            if _splits_update(x, location, place):
                continue
            if not _coherent_write(x, location, place, known):
                continue
            passes = frozenset(known | {identity}) if _releases(order) else None
            add(
                Event(
                    identity, location, order, False, True, value, None, frozenset(known), passes
                ),
                place,
                0,
            )
        return results

    for source in x.modification[location]:
        write = x.events[source]
        if kind == "await" and write.value != op[2]:
            continue
        before = set(known)
        if _acquires(order) and write.passes is not None:
            before |= write.passes
        if not _coherent_read(x, location, source, before):
            continue
        written = None if kind in ("load", "read", "await") else _written(op, write.value)
        event = Event(
            identity, location, order, True, written is not None, 0, source, frozenset(before)
        )
        if written is None:
            add(event, None, write.value)
            continue
        place = x.modification[location].index(source) + 1
        if _splits_update(x, location, place):
            continue
        if not _coherent_write(x, location, place, before):
            continue
        event.value = written
        # A read-modify-write goes on with the release sequence that it read from.
        handed = set(write.passes or ())
        if _releases(order):
            handed |= before | {identity}
        event.passes = frozenset(handed) if handed else None
        add(event, place, write.value)
    return results


def explore(
    threads: list[Thread], start: dict[str, int], bad: Callable[[list[object]], bool]
) -> tuple[int, Execution | None]:
    """All executions of the threads. Gives how many complete ones there are, and the first that
    races or whose results are bad (None: there is no such)."""
    first = Execution(heard=[[] for _ in threads], lengths=[0] * len(threads))
    for number, (location, value) in enumerate(start.items()):
        identity = (-1, number)
        first.events[identity] = Event(identity, location, "plain", False, True, value)
        first.modification[location] = [identity]
    seen = {first.key()}
    todo = [first]
    complete = 0
    while todo:
        x = todo.pop()
        results: list[object] = []
        for thread, body in enumerate(threads):
            op, result = _replay(body, x.heard[thread])
            if op is None:
                results.append(result)
                continue
            for y in _steps(x, thread, op):
                event = y.events[(thread, y.lengths[thread] - 1)]
                if event.order == "plain" and _races(y, event):
                    return complete, y
                key = y.key()
                if key not in seen:
                    seen.add(key)
                    todo.append(y)
        if len(results) == len(threads):
            complete += 1
            if bad(results):
                return complete, x
    return complete, None
