"""A script written for sharedvector 0.1.0: prints what every public call returns or raises.

`python compare_calls.py PREFIX`: one JSON record per line on standard output. It must run on both
packages without a change; compare.py starts it in two environments and compares the lines.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from compare_files import record_files
from compare_names import record_names
from compare_pool import Constant, record_pool, spec
from compare_record import Recorder
from compare_vector import record_vector

from sharedvector import pool


class Local(Constant):
    """A loader of the main script, which a producer in another process must be able to load."""


def local_loader(recorder: Recorder) -> int:
    with pool(recorder.name("local"), 2, producer=spec(Local())) as handle:
        return len(handle.attach())


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="compare-") as work:
        recorder = Recorder(Path(work).resolve(), sys.argv[1])
        record_names(recorder)
        record_vector(recorder)
        record_files(recorder)
        record_pool(recorder)
        recorder.call("pool.loader_of_main", lambda: local_loader(recorder))
    recorder.fact("end", True)


if __name__ == "__main__":
    main()
