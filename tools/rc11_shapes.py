"""The litmus programs of tools/rc11.py: small threads, one set for each way to rely on an edge."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from rc11_model import Op, Thread


@dataclass(frozen=True)
class Site:
    """One access of a shape that takes its order from an edge."""

    edge: str
    side: int  # 0 store, 1 load
    kind: str  # "store", "load" or "rmw"
    label: str = ""


@dataclass(frozen=True)
class Shape:
    """A litmus program: `sites` name the accesses whose orders come from the table.

    `build` takes an order for each site and gives the threads and the values at the start; `bad`
    judges what the threads returned (a data race is always bad). `bears` are the sites that this
    shape shows to be load-bearing, `idle` those that it shows not to be.
    """

    name: str
    sites: dict[str, Site]
    bears: tuple[str, ...]
    build: Callable[[dict[str, str]], tuple[list[Thread], dict[str, int]]]
    bad: Callable[[list[object]], bool] = lambda results: False
    idle: tuple[str, ...] = ()


# Each thread is a generator: it yields accesses and is sent what they read. "data" is a buffer, its
# accesses are plain and may race. Values of a slot: 0 the old buffer, 1 the new one.


def pin_against_publish(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """A reader pins; one writer displaces the buffer, another one finds it free and refills it."""

    def reader() -> Generator[Op, int, object]:
        if (yield ("load", "slot", "relaxed")) == 0:
            yield ("add", "cell", 1, o["pin"])
            if (yield ("load", "slot", o["recheck"])) == 0:
                yield ("read", "data")
        return None

    def publisher() -> Generator[Op, int, object]:
        yield ("cas", "slot", 0, 1, o["commit"])
        return None

    def refiller() -> Generator[Op, int, object]:
        if (yield ("load", "slot", o["name"])) == 1 and (yield ("load", "cell", o["scan"])) == 0:
            yield ("write", "data", 1)
        return None

    return [reader, publisher, refiller], {"slot": 0, "cell": 0, "data": 0}


def attach_against_publish(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """The same with a row that is new: the scan covers it only when it sees the mark."""

    def reader() -> Generator[Op, int, object]:
        yield ("cas", "mark", 0, 1, o["mark"])
        yield ("add", "cell", 1, o["pin"])
        if (yield ("load", "slot", o["recheck"])) == 0:
            yield ("read", "data")
        return None

    def publisher() -> Generator[Op, int, object]:
        yield ("cas", "slot", 0, 1, o["commit"])
        if (yield ("load", "mark", o["high"])) == 1 and (yield ("load", "cell", o["scan"])) != 0:
            return None
        yield ("write", "data", 1)
        return None

    return [reader, publisher], {"slot": 0, "cell": 0, "mark": 0, "data": 0}


def attach_again_against_publish(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """The same with a row whose earlier holder raised the mark, as its word `counted` says."""

    def earlier() -> Generator[Op, int, object]:
        yield ("cas", "mark", 0, 1, o["mark"])
        yield ("store", "counted", 1, o["counted"])
        return None

    def reader() -> Generator[Op, int, object]:
        if (yield ("load", "counted", o["known"])) == 1:
            yield ("add", "cell", 1, o["pin"])
            if (yield ("load", "slot", o["recheck"])) == 0:
                yield ("read", "data")
        return None

    attach, start = attach_against_publish(o)
    return [earlier, reader, *attach[1:]], {**start, "counted": 0}


def publish_chunk(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """Message passing: who sees the new slot word sees the whole chunk."""

    def writer() -> Generator[Op, int, object]:
        yield ("write", "data", 1)
        yield ("cas", "slot", 0, 1, o["commit"])
        return None

    def reader() -> Generator[Op, int, object]:
        yield ("add", "cell", 1, o["pin"])
        if (yield ("load", "slot", o["recheck"])) == 1:
            yield ("read", "data")
        return None

    return [writer, reader], {"slot": 0, "cell": 0, "data": 0}


def unpin_then_refill(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """The last look at a view comes before the refilling. The cell holds one pin."""

    def reader() -> Generator[Op, int, object]:
        yield ("read", "data")
        yield ("add", "cell", -1, o["unpin"])
        return None

    def refiller() -> Generator[Op, int, object]:
        if (yield ("load", "cell", o["scan"])) == 0:
            yield ("write", "data", 1)
        return None

    return [reader, refiller], {"cell": 1, "data": 0}


def recover_then_refill(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """The same when the reader dies: its lock ends, the recoverer takes it and the pin away."""

    def reader() -> Generator[Op, int, object]:
        yield ("read", "data")
        yield ("store", "lock", 0, "release")
        return None

    def recoverer() -> Generator[Op, int, object]:
        yield ("await", "lock", 0)
        yield ("and", "cell", 0, o["unpin"])
        return None

    def refiller() -> Generator[Op, int, object]:
        if (yield ("load", "cell", o["scan"])) == 0:
            yield ("write", "data", 1)
        return None

    return [reader, recoverer, refiller], {"lock": 1, "cell": 1, "data": 0}


def version_of_old(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """A publisher continues the version of the chunk it displaces, which another one just made."""

    def first() -> Generator[Op, int, object]:
        yield ("store", "version", 5, "relaxed")
        yield ("cas", "slot", 0, 1, o["commit"])
        return None

    def second() -> Generator[Op, int, object]:
        if (yield ("load", "slot", o["seen"])) != 1:
            return None
        version = yield ("load", "version", "relaxed")
        won = (yield ("cas", "slot", 1, 2, "seq_cst")) == 1
        return won and version != 5

    return [first, second], {"slot": 0, "version": 4}


def count_appended(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """Who sees the size finds a chunk in every slot below. 0 is EMPTY."""

    def appender() -> Generator[Op, int, object]:
        yield ("cas", "slot", 0, 1, "seq_cst")
        yield ("cas", "size", 0, 1, o["size"])
        return None

    def reader() -> Generator[Op, int, object]:
        if (yield ("load", "size", o["look"])) != 1:
            return None
        return (yield ("load", "slot", "relaxed")) == 0

    return [appender, reader], {"slot": 0, "size": 0}


def count_for_other(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """The same when an appender that lost raises the size for the one that won."""

    def winner() -> Generator[Op, int, object]:
        yield ("cas", "slot", 0, 1, "seq_cst")
        return None

    def loser() -> Generator[Op, int, object]:
        if (yield ("cas", "slot", 0, 2, "seq_cst")) != 0:
            yield ("cas", "size", 0, 1, o["size"])
        return None

    def reader() -> Generator[Op, int, object]:
        if (yield ("load", "size", o["look"])) != 1:
            return None
        return (yield ("load", "slot", "relaxed")) == 0

    return [winner, loser, reader], {"slot": 0, "size": 0}


def claim_after_drop(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """Two writers, one after the other, fill a buffer."""

    def first() -> Generator[Op, int, object]:
        yield ("write", "data", 1)
        yield ("store", "claim", 0, o["drop"])
        return None

    def second() -> Generator[Op, int, object]:
        if (yield ("cas", "claim", 0, 2, o["claim"])) == 0:
            yield ("write", "data", 2)
        return None

    return [first, second], {"claim": 1, "data": 0}


def claim_after_recover(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """The same when the first one dies and the recoverer drops its claim."""

    def first() -> Generator[Op, int, object]:
        yield ("write", "data", 1)
        yield ("store", "lock", 0, "release")
        return None

    def recoverer() -> Generator[Op, int, object]:
        yield ("await", "lock", 0)
        yield ("cas", "claim", 1, 0, o["drop"])
        return None

    def second() -> Generator[Op, int, object]:
        if (yield ("cas", "claim", 0, 2, o["claim"])) == 0:
            yield ("write", "data", 2)
        return None

    return [first, recoverer, second], {"lock": 1, "claim": 1, "data": 0}


def address_under_claim(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """A buffer's own slot number is read under the claim, or a current buffer looks free."""

    def publisher() -> Generator[Op, int, object]:
        yield ("store", "b_slot", 1, "relaxed")
        yield ("cas", "slot", 0, 1, "seq_cst")
        yield ("store", "claim", 0, o["drop"])
        return None

    def taker() -> Generator[Op, int, object]:
        if (yield ("cas", "claim", 0, 2, o["claim"])) != 0:
            return None
        return (yield ("load", "b_slot", "relaxed")) == 0

    return [publisher, taker], {"claim": 1, "slot": 0, "b_slot": 0}


def row_taken_again(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """A row is cleaned under its lock, then taken: no late cleaning takes the new one's pin."""

    def recoverer() -> Generator[Op, int, object]:
        yield ("and", "cell", 0, "relaxed")
        yield ("store", "state", 0, o["free"])
        yield ("store", "lock", 0, "release")
        return None

    def attacher() -> Generator[Op, int, object]:
        yield ("await", "lock", 0)
        if (yield ("load", "state", o["state"])) != 0:
            yield ("and", "cell", 0, "relaxed")
        yield ("add", "cell", 1, "seq_cst")
        return (yield ("load", "cell", "relaxed")) != 1

    return [recoverer, attacher], {"lock": 1, "state": 1, "cell": 1}


def fork_moves_pins(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """The parent copies its pin to the child's row, counts the move, forks and unpins."""

    def parent() -> Generator[Op, int, object]:
        yield ("add", "child", 1, o["copy"])
        yield ("add", "moves", 1, o["move"])
        yield ("store", "fork", 1, "release")
        yield ("add", "parent", -1, "seq_cst")
        return None

    def child() -> Generator[Op, int, object]:
        yield ("await", "fork", 1)
        yield ("read", "data")
        return None

    def refiller() -> Generator[Op, int, object]:
        before = yield ("load", "moves", o["before"])
        if (yield ("load", "child", "seq_cst")) != 0 or (yield ("load", "parent", "seq_cst")) != 0:
            return None
        if (yield ("load", "moves", o["after"])) == before:
            yield ("write", "data", 1)
        return None

    start = {"child": 0, "parent": 1, "moves": 0, "fork": 0, "data": 0}
    return [parent, child, refiller], start


def unpin_against_close(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """The last view and the last handle go at once: one of the two must see the other."""

    def viewer() -> Generator[Op, int, object]:
        yield ("add", "cell", -1, o["unpin"])
        return (yield ("load", "closing", o["look"])) == 0

    def closer() -> Generator[Op, int, object]:
        yield ("store", "closing", 1, o["closing"])
        return (yield ("load", "cell", o["sum"])) != 0

    return [viewer, closer], {"cell": 1, "closing": 0}


def sleep_against_wake(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """A sleeper marks the word, sees no event; a waker brings it about and sees no mark."""

    def sleeper() -> Generator[Op, int, object]:
        yield ("add", "word", 1, o["mark"])
        return (yield ("load", "condition", o["look"])) == 0

    def waker() -> Generator[Op, int, object]:
        yield ("cas", "condition", 0, 1, o["event"])
        return (yield ("load", "word", o["seen"])) == 0

    return [sleeper, waker], {"word": 0, "condition": 0}


def pin_against_removal(o: dict[str, str]) -> tuple[list[Thread], dict[str, int]]:
    """A block is pinned while its maker removes it and gives its memory back, a write of zeros."""

    def reader() -> Generator[Op, int, object]:
        yield ("add", "cell", 1, o["pin"])
        if (yield ("load", "retired", o["look"])) == 0:
            yield ("read", "data")
        return None

    def remover() -> Generator[Op, int, object]:
        yield ("cas", "retired", 0, 1, o["retire"])
        if (yield ("load", "cell", o["scan"])) == 0:
            yield ("write", "data", 0)
        return None

    return [reader, remover], {"cell": 0, "retired": 0, "data": 1}


def any_true(results: list[object]) -> bool:
    return any(result is True for result in results)


def all_true(results: list[object]) -> bool:
    return all(result is True for result in results)
