"""What a process that reads a pool costs in memory, counted as PSS."""

from __future__ import annotations

import numpy as np
from core_support import fresh_name
from pool_support import run

from sharedvector import SharedVector

SLOTS, CHUNK_BYTES = 64, 1 << 20

# Pss of the segment's mappings, how many those are, and of all anonymous memory, in bytes. Files of
# the interpreter and of libraries are left out: what they weigh depends on who else runs.
READER = """
    import sys
    import numpy
    from sharedvector import SharedVector

    name, inode = sys.argv[1], sys.argv[2]

    def count():
        segment = mappings = anonymous = 0
        for line in open("/proc/self/smaps"):
            field, *rest = line.split()
            if "-" in field and not field.endswith(":"):
                ours, nameless = rest[3] == inode, rest[3] == "0"
                mappings += ours
            elif field == "Pss:":
                segment += int(rest[0]) * 1024 * ours
                anonymous += int(rest[0]) * 1024 * nameless
        return segment, mappings, anonymous

    def read(vector):
        return sum(int(vector.get(slot)[::4096].sum()) for slot in range(len(vector)))

    count()  # buffers for the reading of smaps exist now
    before = count()
    first = SharedVector(name, create=False)
    assert read(first) == 64 * 256
    one = count()
    further = [SharedVector(name, create=False) for _ in range(20)]
    assert sum(map(read, further)) == 20 * 64 * 256
    print(*before, *one, *count())
"""


def test_reader_costs_less_than_a_mebibyte() -> None:
    with (
        fresh_name() as name,
        SharedVector(name, CHUNK_BYTES, slot_count=SLOTS, dtype="uint8") as vector,
    ):
        for _ in range(SLOTS):
            vector.append(np.ones(CHUNK_BYTES, np.uint8))
        status, out, err = run(READER, name, str(vector.inode))
    assert (status, err) == (0, "")
    numbers = list(map(int, out.split()))
    (no_segment, no_mapping, before), (segment, mappings, one), (_, still, many) = (
        numbers[:3],
        numbers[3:6],
        numbers[6:],
    )
    assert (no_segment, no_mapping) == (0, 0)
    # Each page of a chunk that was read is counted half here and half in this process. A huge page
    # reaches into the spare buffers behind the last slot, whose memory is there anyway.
    payload = SLOTS * CHUNK_BYTES // 2
    if segment >= payload + (256 << 10):
        payload = (SLOTS + 2) * CHUNK_BYTES // 2
    assert segment < payload + (256 << 10)
    assert segment - payload + one - before < 1 << 20
    # Further handles share mapping and row.
    assert still == mappings
    assert many - one < 256 << 10
