"""What run.py searches: the models, the states that must be reached, and the mutations."""

from __future__ import annotations

from dataclasses import dataclass

# Small forms of the models, as macros.
PINS = "-DSTATIC_ROWS -DNREADERS=1 -DNWRITERS=2"
PINS_TINY = "-DSTATIC_ROWS -DNREADERS=1 -DNWRITERS=1 -DNSPARES=1"
ROWS = "-DNREADERS=2 -DNWRITERS=1 -DNROWS=2 -DNSPARES=1 -DOUTSIDE_WRITER"
ROWS_MORTAL = "-DNREADERS=1 -DNWRITERS=1 -DNROWS=2 -DNSPARES=1"
ROWS_LATE = "-DNREADERS=1 -DNWRITERS=2 -DNROWS=1 -DNSPARES=1 -DOUTSIDE_WRITER"
APPEND = "-DSTATIC_ROWS -DNREADERS=1 -DNWRITERS=2 -DNSLOTS=2 -DNSPARES=1 -DAPPEND -DAPPEND_ONLY"
LIVE = "-DLIVENESS -DSTATIC_ROWS -DNREADERS=1 -DNWRITERS=2 -DNSPARES=1"
RUDE = "-DRUDE=2 -DNDEATHS=1"  # so many names are removed
LIVE_APPEND = f"-DLIVENESS {APPEND}"
GRANDCHILD = "-DNPROCS=3 -DNROWS=3 -DNBUFS=2 -DNFORKS=2"

EXHAUSTIVE = "exhaustive"
BITSTATE = "bitstate"


@dataclass(frozen=True)
class Search:
    """One run of the checker. `want` is "none", "error" or the states that must be reached."""

    name: str
    model: str
    macros: str
    want: str | frozenset[str] = "none"
    mode: str = EXHAUSTIVE
    quick: bool = True
    deep: bool = False  # needs a large stack and compressed states

    @property
    def live(self) -> bool:
        return "-DLIVENESS" in self.macros


DEATHS = (
    "pin.added",
    "view",
    "reserve.claimed",
    "reserve.named",
    "reserve.scanning",
    "reserve.filling",
    "publish.seen",
    "publish.claimed",
    "publish.addressed",
    "publish.committed",
    "publish.released",
    "recover.cleaning",
)
DEATHS_ROWS = (
    "attach.locked",
    "attach.live",
    "attach.counted",
    "attach.remembered",
    "attach.cleaning",
)
DEATHS_APPEND = ("append.addressed", "append.committed", "append.counted")


def deaths(*names: str) -> frozenset[str]:
    return frozenset(f"recovered after a death at {name}" for name in names)


SEARCHES = [
    # ---- models ----------------------------------------------------------------------------------
    Search("1 reader, 2 writers, 1 slot + 2 spares", "pool.pml", PINS, quick=False, deep=True),
    Search(
        "1 reader, 1 writer, 1 slot + 2 spares",
        "pool.pml",
        "-DSTATIC_ROWS -DNREADERS=1 -DNWRITERS=1",
    ),
    Search(
        "2 readers, 1 writer, 1 slot + 1 spare",
        "pool.pml",
        "-DSTATIC_ROWS -DNREADERS=2 -DNWRITERS=1 -DNSPARES=1",
    ),
    Search(
        "2 readers, 2 writers, 1 slot + 2 spares",
        "pool.pml",
        "-DSTATIC_ROWS -DNREADERS=2 -DNWRITERS=2",
        quick=False,
        deep=True,
    ),
    Search(
        "2 readers, 2 writers, 2 slots + 2 spares",
        "pool.pml",
        "-DSTATIC_ROWS -DNREADERS=2 -DNWRITERS=2 -DNSLOTS=2",
        mode=BITSTATE,
        quick=False,
    ),
    Search("rows: reader and writer attach, die, detach", "pool.pml", ROWS_MORTAL),
    Search("rows: 2 readers attach, die, detach", "pool.pml", ROWS),
    Search(
        "rows: 2 readers and a writer attach, die, detach",
        "pool.pml",
        "-DNREADERS=2 -DNWRITERS=1 -DNROWS=3 -DNSPARES=1",
        mode=BITSTATE,
        quick=False,
    ),
    Search("rows: one is taken while 2 writers are at work", "pool.pml", ROWS_LATE),
    Search(
        "append: 2 writers, 1 reader, 2 slots + 1 spare", "pool.pml", APPEND, quick=False, deep=True
    ),
    Search(
        "append and publish: 1 writer, 1 reader",
        "pool.pml",
        "-DSTATIC_ROWS -DNREADERS=1 -DNWRITERS=1 -DNSLOTS=2 -DNSPARES=1 -DAPPEND",
    ),
    Search("reads are kept by recover", "pool.pml", f"{PINS_TINY} -DCOUNT_READS"),
    Search("fork: parent and child", "fork.pml", ""),
    Search("fork: grandchild, 3 rows", "fork.pml", GRANDCHILD, quick=False, deep=True),
    Search("wait: 2 sleepers, 2 wakers", "wait.pml", ""),
    Search("wait: the same, wakers are killed", "wait.pml", "-DKILLS"),
    Search("close: 2 views, 1 handle, 2 rounds", "close.pml", ""),
    Search("close: 3 views, 1 handle, 2 rounds", "close.pml", "-DNTHREADS=3", quick=False),
    Search("owner: 2 candidates, supervisors, a follower", "owner.pml", ""),
    Search("owner: names are removed behind the living", "owner.pml", RUDE, quick=False),
    Search(
        "owner: 3 candidates, supervisors, a follower",
        "owner.pml",
        "-DNPROCS=3 -DNDEATHS=1",
        quick=False,
        deep=True,
    ),
    Search("progress: a writer among the dead", "pool.pml", LIVE),
    Search(
        "progress: 2 readers and a writer that die",
        "pool.pml",
        "-DLIVENESS -DSTATIC_ROWS -DNREADERS=2 -DNWRITERS=2",
        quick=False,
        deep=True,
    ),
    Search("progress: an appender among the dead", "pool.pml", LIVE_APPEND),
    Search("progress: a candidate among the dead", "owner.pml", "-DLIVENESS"),
    # ---- states that must be reached -------------------------------------------------------------
    Search(
        "reach: pins and publications",
        "pool.pml",
        f"{PINS} -DIMMORTAL -DREACH",
        frozenset(
            {
                "a late pin on a displaced buffer",
                "a view of a displaced buffer",
                "a scan that finds a pin",
                "a publisher that goes on without the old claim",
                "a commit that another publisher beat",
            }
        ),
    ),
    Search(
        "reach: every death is recovered",
        "pool.pml",
        f"{PINS_TINY} -DREACH -DDEATHS",
        deaths(*DEATHS),
    ),
    Search(
        "reach: every death, rows",
        "pool.pml",
        f"{ROWS_MORTAL} -DREACH -DDEATHS",
        deaths(*DEATHS, *DEATHS_ROWS),
        quick=False,
        deep=True,
    ),
    Search(
        "reach: every death, append",
        "pool.pml",
        f"{APPEND} -DREACH -DDEATHS",
        deaths(*DEATHS_APPEND) | {"an appender that lost its slot", "a slot counted by recover"},
        quick=False,
        deep=True,
    ),
    Search(
        "reach: fork",
        "fork.pml",
        "-DREACH",
        frozenset(
            {
                "a child with a row of its own",
                "a fork that failed",
                "a scan that saw a move",
                "a row that fork made, recovered",
                "a child that shares a row",
                "a pin left behind, taken back",
            }
        ),
    ),
    Search(
        "reach: wait",
        "wait.pml",
        "-DREACH -DKILLS",
        frozenset(
            {
                "a waker killed before its wake",
                "a lost swap",
                "asleep",
                "the word changed before the sleep",
            }
        ),
    ),
    Search(
        "reach: close",
        "close.pml",
        "-DREACH",
        frozenset(
            {
                "unmapped by the last view",
                "unmapped by the last handle",
                "opened again while views live",
                "a late look that finds nothing to do",
            }
        ),
    ),
    Search(
        "reach: owner",
        "owner.pml",
        "-DREACH",
        frozenset(
            {
                "the lock of a file that lost its name",
                "a supervisor that found a new owner",
                "taking over from the dead",
                "a marker of another generation",
                "a pool whose owner is dead",
            }
        ),
    ),
    Search(
        "reach: names that are removed behind the living",
        "owner.pml",
        f"{RUDE} -DREACH",
        frozenset(
            {
                "a lock file that its owner makes or takes anew",
                "an old owner that leaves the marker to the new one",
                "a marker of another who owned the name",
            }
        ),
    ),
]


def mutations() -> list[Search]:
    """One search for each rule that is taken away."""
    table = [
        (
            "pool.pml",
            PINS,
            (
                "NO_RECHECK",
                "NO_CLAIM",
                "NO_NAME_CHECK",
                "NO_SCAN",
                "NAME_BEFORE_CLAIM",
                "SCAN_BEFORE_NAME",
                "SCAN_BEFORE_CLAIM",
                "UNPIN_EARLY",
                "CLAIM_DROPPED_BEFORE_COMMIT",
                "NO_OLD_CLAIM",
                "OLD_DROPPED_BEFORE_COMMIT",
                "COMMIT_STORE",
                "NO_UNPIN_DEAD",
                "NO_UNCLAIM_DEAD",
                "FREE_FIRST",
            ),
        ),
        (
            "pool.pml",
            f"{ROWS} -DNO_OBSERVER",
            ("MARK_STORE", "PIN_BEFORE_MARK", "COUNTED_FIRST", "CLEAN_UNLOCKED", "HOLES"),
        ),
        ("pool.pml", ROWS, ("PIN_BEFORE_LIVE", "NO_CLEAN_AT_ATTACH", "UNLOCK_FIRST")),
        ("pool.pml", f"{ROWS_MORTAL} -DNO_OBSERVER", ("LATE_UNCLAIM",)),
        ("pool.pml", ROWS_LATE, ("MARK_EARLY",)),
        ("pool.pml", APPEND, ("SIZE_EARLY", "SIZE_STORE", "SIZE_ADD")),
        ("pool.pml", f"{PINS_TINY} -DCOUNT_READS", ("STORE_ZERO",)),
        ("pool.pml", LIVE, ("NO_RECOVER", "NO_UNPIN_DEAD", "NO_UNCLAIM_DEAD", "WAIT_FOR_EVER")),
        ("pool.pml", LIVE_APPEND, ("SIZE_WINNER_ONLY",)),
        (
            "fork.pml",
            "-DNFORKS=1",
            (
                "NO_MOVES",
                "MOVES_FIRST",
                "COPY_BEFORE_LIVE",
                "COPY_AFTER_FORK",
                "ANCHOR_EARLY",
                "PARENT_ROW",
                "ANCHOR_INHERITED",
                "NOTHING_LEFT",
                "SETTLED_EARLY",
                "SHARED_WITHOUT_ANCHOR",
            ),
        ),
        ("fork.pml", GRANDCHILD, ("GRANDCHILD_KEEPS",)),
        ("wait.pml", "", ("LOOK_FIRST", "TELL_FIRST", "NO_COUNT", "NO_COMPARE")),
        (
            "close.pml",
            "",
            ("LOOK_FIRST", "SUM_FIRST", "SETTLE_BLIND", "SETTLE_UNLOCKED", "STRUCT_FREED"),
        ),
        (
            "owner.pml",
            "",
            (
                "NO_FILE_CHECK",
                "LOCK_UNLINKED_EARLY",
                "UNLOCKED_FIRST",
                "MARKER_LAST",
                "SEGMENT_FIRST",
                "MARKED_EARLY",
                "CLEANED_BY_OTHERS",
                "NO_COMPARISON",
            ),
        ),
        ("owner.pml", RUDE, ("NAME_NOT_HELD", "MARKER_FIRST_OF_ALL", "ANY_MARKER")),
        ("owner.pml", "-DLIVENESS", ("LOCK_INHERITED",)),
    ]
    return [
        Search(name, model, f"{macros} -D{name}", "error")
        for model, macros, names in table
        for name in names
    ]
