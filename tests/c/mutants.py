"""Take one rule of the protocol out of the core, and see that the C tests notice.

``mutants.py [--only NAME] [--jobs N]`` copies the sources to build/mutants, changes one place at a
time, builds and runs the tests until one fails, and prints a table: what was taken out, what
caught it. Exit status 1 if nothing did, or if the place to change is not there any more.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
SOURCES = ("CMakeLists.txt", "CMakePresets.json", "cmake", "include", "src/core", "tests/c")
SECONDS = 300


class Mutant(NamedTuple):
    """One change: in `file`, the text `old`, which occurs once, becomes `new`."""

    name: str
    rule: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "no-recheck",
        "P2",
        "pin.c",
        "if (__builtin_expect(svi_load_seq(word) == seen, 1)) { /* E1 */",
        "if (svi_load_seq(word) != 0) {",
    ),
    Mutant(
        "no-scan",
        "W2",
        "reserve.c",
        "} else if (svi_buffer_is_pinned(m, buffer)) {",
        "} else if (buffer > m->g.buffer_count && svi_buffer_is_pinned(m, buffer)) {",
    ),
    Mutant(
        "no-claim",
        "W1",
        "reserve.c",
        "    if (!svi_cas_seq(&header->b_writer, 0, (uint64_t)row + 1)) { /* E6 */\n"
        "        return TAKE_BUSY;",
        "    svi_store_seq(&header->b_writer, (uint64_t)row + 1);\n"
        "    if (buffer > m->g.buffer_count) {\n        return TAKE_BUSY;",
    ),
    Mutant(
        "no-name-check",
        "W2",
        "reserve.c",
        "    if (reserve_is_named(m, rw, buffer)) {\n        result = TAKE_NAMED;",
        "    if (buffer > m->g.buffer_count) {\n        result = TAKE_NAMED;",
    ),
    Mutant(
        "scan-before-name",
        "W2",
        "reserve.c",
        "    if (reserve_is_named(m, rw, buffer)) {\n"
        "        result = TAKE_NAMED;\n"
        "    } else if (svi_buffer_is_pinned(m, buffer)) {\n"
        "        result = TAKE_PINNED;\n    }",
        "    if (svi_buffer_is_pinned(m, buffer)) {\n"
        "        result = TAKE_PINNED;\n"
        "    } else if (reserve_is_named(m, rw, buffer)) {\n"
        "        result = TAKE_NAMED;\n    }",
    ),
    Mutant(
        "claim-dropped-early",
        "W3",
        "publish.c",
        '        SVI_STEP("publish.addressed");',
        '        svi_store_seq(&fresh->b_writer, 0);\n        SVI_STEP("publish.addressed");',
    ),
    Mutant(
        "no-counting-of-filled-slots",
        "A3",
        "recover.c",
        "        (void)svi_cas_seq(&header->h_size, size, size + 1);",
        "        if (size <= m->g.slot_count) {\n            return;\n        }",
    ),
    Mutant(
        "mark-is-no-maximum",
        "R3",
        "row.c",
        "    svi_max_seq(&svi_header_at(page)->h_high_rows,\n"
        "                (uint64_t)hold->row + 1);",
        "    svi_store_seq(&svi_header_at(page)->h_high_rows, (uint64_t)hold->row + 1);",
    ),
    Mutant(
        "mark-not-raised",
        "R3",
        "row.c",
        "    svi_max_seq(&svi_header_at(page)->h_high_rows,\n"
        "                (uint64_t)hold->row + 1);",
        "    svi_max_seq(&svi_header_at(page)->h_high_rows, (uint64_t)hold->row);",
    ),
    Mutant(
        "counted-believed-above-the-mark",
        "R3",
        "row.c",
        "    if (svi_load_seq(&hold->map->r_counted) == 0 || /* E8 */\n"
        "        hold->row >= svi_high_rows(m)) {\n",
        "    if (svi_load_seq(&hold->map->r_counted) == 0) {\n",
    ),
    Mutant(
        "cells-as-they-were-found",
        "R4",
        "row.c",
        "        svi_row_clear(m, m->hold.map, buffer / SVI_CELL_GROUP);\n",
        "",
    ),
    Mutant(
        "row-not-live",
        "R3",
        "row.c",
        "    svi_store_seq(&hold->map->r_state, SVI_ROW_LIVE); /* E8 */",
        "    svi_store_seq(&hold->map->r_state, SVI_ROW_FREE); /* E8 */",
    ),
    Mutant(
        "unlocked-before-cleaning",
        "R5",
        "recover.c",
        '        SVI_STEP("recover.locked");',
        '        (void)svi_os_unlock(fd, SVI_LOCK_ROW + row);\n        SVI_STEP("recover.locked");',
    ),
    Mutant(
        "claims-stay",
        "R5",
        "recover.c",
        "            (void)svi_cas_seq(&header->b_writer, (uint64_t)row + 1, 0); /* E6 */",
        "            (void)header;",
    ),
    Mutant(
        "cleaning-forgets-reads",
        "R5",
        "recover.c",
        "            svi_and_seq(&r->r_cells[b], ~SVI_PINS_MASK); /* E10 */",
        "            svi_store_seq(&r->r_cells[b], 0);",
    ),
    Mutant(
        "anchor-inherited",
        "R2",
        "os_map.c",
        "    if (!inherit && madvise(address, bytes, MADV_DONTFORK) != 0) {",
        "    if (fd < 0 && !inherit) {",
    ),
    Mutant(
        "no-pins-for-the-child",
        "F2",
        "fork.c",
        "            svi_add_seq(&m->child.map->r_cells[b], pins * SVI_PIN); /* E9 */",
        "            (void)pins;",
    ),
    Mutant(
        "moves-not-looked-at",
        "F2",
        "reserve.c",
        "        if (svi_load_seq(&header->h_moves) == moves) { /* E9 */",
        "        if (svi_load_seq(&header->h_moves) >= moves) {",
    ),
    Mutant(
        "last-view-does-not-look",
        "V2",
        "pin.c",
        "    if (__builtin_expect(svi_load_seq(&m->closing) != 0, 0)) { /* E11 (V2) */",
        "    if (buffer > m->g.buffer_count) {",
    ),
    Mutant(
        "created-without-its-lock",
        "S2",
        "segment.c",
        "        status = svi_lockfile_take(&creating, ",
        "        status = creating.anchor == NULL ? 0 : svi_lockfile_take(&creating, ",
    ),
    Mutant(
        "lock-of-a-lost-file",
        "O1",
        "lockfile.c",
        "        if (named == 1) {",
        "        if (named >= 0) {",
    ),
    Mutant(
        "unlocked-before-unlinked",
        "O2",
        "lockfile.c",
        "    if (unlink && lockfile_is_named(",
        "    svi_os_unmap(lock->anchor, SVI_PAGE);\n    if (unlink && lockfile_is_named(",
    ),
    Mutant(
        "marker-not-compared",
        "O4",
        "pool.c",
        "    if (strcmp(info.generation, generation) != 0) {",
        "    if (generation[0] == '\\0') {",
    ),
    Mutant(
        "marker-not-cleared-first",
        "O3",
        "pool.c",
        "    if ((status = sv_ready_clear(owner, err)) != 0) {\n        return status;\n    }\n"
        "    wanted.owned = 1;",
        "    if (!sv_owner_held(owner)) {\n        return sv_ready_clear(owner, err);\n    }\n"
        "    wanted.owned = 1;",
    ),
    Mutant(
        "failed-attach-keeps-its-anchor",
        "R3",
        "row.c",
        "    if (status != 0) {\n        svi_os_unmap(hold.anchor, m->g.row_stride);",
        "    if (status != 0) {",
    ),
    Mutant(
        "interrupted-lock-not-repeated",
        "R1",
        "os_linux.c",
        "    } while (status != 0 && errno == EINTR);\n    if (status != 0) {\n"
        "        return errno == EACCES ? -EAGAIN : -errno;",
        "    } while (false);\n    if (status != 0) {\n"
        "        return errno == EACCES ? -EAGAIN : -errno;",
    ),
    Mutant(
        "reads-without-their-base",
        "C1",
        "publish.c",
        "svi_reads_since(svi_buffer_reads(m, old.buffer), old.read_base)",
        "svi_buffer_reads(m, old.buffer) + old.read_base * 0",
    ),
    Mutant(
        "nothing-left-for-who-shares",
        "F3",
        "share.c",
        "            svi_add_seq(&m->hold.map->r_cells[b], SVI_PIN); /* E4 */\n",
        "",
    ),
    Mutant(
        "left-pins-taken-back-early",
        "F3",
        "share.c",
        "svi_os_lock_test(probe, SVI_LOCK_SHARED + m->hold.row) != 0) {",
        "svi_os_lock_test(probe, SVI_LOCK_SHARED + m->hold.row) < 0) {",
    ),
    Mutant(
        "shared-row-dies-with-its-process",
        "F3",
        "share.c",
        "(void)svi_os_pass_to_children(m->hold.anchor, m->g.row_stride, true);",
        "(void)svi_os_pass_to_children(m->hold.anchor, m->g.row_stride, false);",
    ),
    Mutant(
        "removal-not-looked-at",
        "B2",
        "pin.c",
        "    if (__builtin_expect(m->g.kind == SVI_KIND_BLOCK, 0) && svi_block_is_removed(m)) {",
        "    if (m->g.kind > SVI_KIND_BLOCK && svi_block_is_removed(m)) {",
    ),
    Mutant(
        "emptied-under-a-view",
        "B2",
        "block.c",
        "           !svi_buffer_is_pinned(m, 0) && ",
        "           (!svi_buffer_is_pinned(m, 0) || m->handles != 0) && ",
    ),
    Mutant(
        "scanned-before-retired",
        "B2",
        "block.c",
        "    svi_mapping *m = look.m;\n",
        "    svi_mapping *m = look.m;\n"
        "    if (!svi_buffer_is_pinned(m, 0)) {\n"
        "        svi_os_punch(look.probe, m->g.off_payload, m->g.buffer_stride);\n    }\n",
    ),
    Mutant(
        "pins-of-the-dead-keep-a-block",
        "B2",
        "block.c",
        "!block_empty(m) && svi_recover(m, 0, NULL, NULL) == 0",
        "!block_empty(m) && m->handles == 0",
    ),
    Mutant(
        "last-views-keep-a-removed-block",
        "B2",
        "block.c",
        "    if (__builtin_expect(svi_block_is_removed(m), 0)) {",
        "    if (svi_block_is_removed(m) && m->handles > 1) {",
    ),
    Mutant(
        "late-readers-keep-a-removed-block",
        "B2",
        "pin.c",
        "        svi_block_unpin(m, buffer);\n        return SV_ENOENT;",
        "        svi_unpin_buffer(m, buffer);\n        return SV_ENOENT;",
    ),
    Mutant(
        "unmapped-under-a-look",
        "V2",
        "mapping.c",
        " && svi_load_seq(&m->looking) == 0; /* E12 */",
        ";",
    ),
    Mutant(
        "unmapped-under-views-without-pins",
        "B5",
        "fork.c",
        "m->stays = m->stays || !handlers_ran || m->keeping || m->sharing;",
        "m->stays = m->stays || !handlers_ran || m->sharing;",
    ),
    Mutant(
        "emptied-under-a-child-without-a-row",
        "B5",
        "block.c",
        "svi_store_seq(&svi_header_at(rw)->h_kept, 1); /* B5 */",
        "svi_store_seq(&svi_header_at(rw)->h_kept, 0); /* B5 */",
    ),
    Mutant(
        "removed-by-anybody",
        "B3",
        "block.c",
        "    if (!m->owner) {",
        "    if (!m->mapped) {",
    ),
    Mutant(
        "living-makers-swept",
        "B3",
        "sweep.c",
        "item->owned == 0 || item->owner_live != 0 || item->uid",
        "item->owned == 0 || item->uid",
    ),
    Mutant(
        "swept-without-the-owners-lock",
        "O3",
        "sweep.c",
        "        return status == SV_EBUSY ? SVI_ERETRY : status;\n    }\n"
        "    status = sv_ready_clear(owner, err);",
        "        return sv_segment_remove(item->name, job->directory, err);\n    }\n"
        "    status = sv_ready_clear(owner, err);",
    ),
    Mutant(
        "children-unlink-their-parents-names",
        "B4",
        "block.c",
        "== LISTING_ARMED && l->pid == getpid() &&",
        "== LISTING_ARMED &&",
    ),
    Mutant(
        "fired-places-used-again",
        "B4",
        "block.c",
        "if (svi_load_seq(&l->state) == LISTING_FREE) {",
        "if (svi_load_seq(&l->state) != LISTING_ARMED) {",
    ),
    Mutant(
        "names-not-listed",
        "B4",
        "create.c",
        "(status = create_test_locks(m, err)) != 0 || (status = svi_block_list(m, err)) != 0) {",
        "(status = create_test_locks(m, err)) != 0) {",
    ),
)


def run(command: list[str], log: Path) -> bool:
    """Runs a command in the copy; its output goes to the log."""
    with log.open("w") as out:
        try:
            done = subprocess.run(
                command, cwd=WORK, stdout=out, stderr=out, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def copy_sources() -> None:
    """Brings the copy up to date; unchanged files keep their time, so that little is built."""
    for name in SOURCES:
        source = ROOT / name
        for path in [source] if source.is_file() else sorted(source.rglob("*")):
            target = WORK / path.relative_to(ROOT)
            if path.is_file() and (not target.exists() or target.read_bytes() != path.read_bytes()):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


def without_notes(text: str) -> str:
    """Without the notes behind the lines (edges, rules), which change more often than the code."""
    return re.sub(r"[ \t]*/\*[^*\n]*\*/", "", text)


def caught_by(log: Path) -> str:
    """The tests of ctest's output that failed, and the first broken check."""
    text = log.read_text(errors="replace")
    tests = re.findall(r"^\s*\d+ - (\S+) \(", text, re.MULTILINE)
    functions = re.findall(r"^not ok \d+ - (\S+)", text, re.MULTILINE)
    return f"{', '.join(tests[:3]) or '?'}: {', '.join(functions[:2]) or 'crash or timeout'}"


def try_mutant(mutant: Mutant, jobs: int) -> str:
    """What caught it, or an empty string."""
    copy_sources()
    target = WORK / "src" / "core" / mutant.file
    text = without_notes(target.read_text())
    old = without_notes(mutant.old)
    if text.count(old) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.file} does not have that place once any more")
    target.write_text(text.replace(old, mutant.new))
    configure = ["cmake", "-S", ".", "-B", "out", "-DBUILD_TESTING=ON"]
    if not (
        run(configure, WORK / "configure.log")
        and run(["cmake", "--build", "out", "-j", str(jobs)], WORK / "build.log")
    ):
        raise SystemExit(f"{mutant.name}: cannot be built, see {WORK / 'build.log'}")
    test = ["ctest", "--test-dir", "out", "-j", str(jobs), "--output-on-failure"]
    for label in ("unit", "fault", "torture"):  # the quickest first
        log = WORK / f"{mutant.name}.{label}.log"
        if not run([*test, "--stop-on-failure", "-L", label], log):
            return caught_by(log)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="take rules out, see that tests notice")
    parser.add_argument("--only", help="this mutant alone")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS", "2")))
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if arguments.only in (None, m.name)]
    WORK.mkdir(parents=True, exist_ok=True)
    alive = 0
    for mutant in chosen:
        caught = try_mutant(mutant, arguments.jobs)
        alive += not caught
        print(f"{mutant.name:28} {mutant.rule:4} {caught or 'NOT CAUGHT'}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} mutants caught by the C tests")
    return 1 if alive or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
