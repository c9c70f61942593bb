"""The commands for Zarr databases: their spacings in one file, and what of them is damaged."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sharedvector.cli.errors import Parser, failed
from sharedvector.loaders import verify_database, write_spacing_manifest

__all__ = ["spacing_manifest_main", "verify_main"]

_EXIT_PROBLEMS = 1
_EXIT_NOTHING = 2


def spacing_manifest_main(argv: Sequence[str] | None = None) -> int:
    """Run ``sharedvector-spacing-manifest``: write the spacings of a Zarr database as JSON.

    Returns:
        0, or 1 after an error, which is told in one line on standard error.
    """
    parser = Parser(
        prog="sharedvector-spacing-manifest",
        description="Write the spacing (x, y, z) of each volume of a Zarr database to a JSON file.",
    )
    parser.add_argument("root", help="directory of the database")
    parser.add_argument("--output", help="file to write (default: spacing.json in the database)")
    parser.add_argument(
        "--attr-key", default="spacing", help="attribute with the spacing (default: %(default)s)"
    )
    parser.add_argument(
        "--skip-missing", action="store_true", help="leave volumes without a spacing out"
    )
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    try:
        path = write_spacing_manifest(
            options.root, options.output, options.attr_key, strict=not options.skip_missing
        )
    except (OSError, ValueError, ImportError) as error:
        return failed(str(error), "sharedvector-spacing-manifest")
    print(path)
    return 0


def verify_main(argv: Sequence[str] | None = None) -> int:
    """Run ``sharedvector-zarr-verify``.

    Returns:
        0 when every chunk is there and whole, 1 when one is damaged or missing, 2 when there is
        nothing to verify. A wrong call raises SystemExit(64).
    """
    parser = Parser(
        prog="sharedvector-zarr-verify",
        description="Decode every chunk of a Zarr database once; name those damaged or missing.",
    )
    parser.add_argument("root", help="directory, zip file or URL of the database")
    parser.add_argument(
        "--allow-missing",
        action="store_true",
        help="count missing chunks without naming them; they hold the fill value",
    )
    parser.add_argument("--threads", type=int, help="volumes read at once (default: one per core)")
    options = parser.parse_args(argv)
    if options.threads is not None and options.threads < 1:
        parser.error(f"--threads should be at least 1, got {options.threads}")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        with _progress(options.root) as progress:
            report = verify_database(options.root, options.threads, progress)
    except (OSError, ImportError, ValueError) as error:
        print(f"sharedvector-zarr-verify: {error}", file=sys.stderr)
        return _EXIT_NOTHING
    named = [p for p in report.problems if p.kind == "damaged" or not options.allow_missing]
    for problem in named:
        print(f"{problem.kind}: {problem.volume}: {problem.text}")
    print(
        f"{report.volumes} volumes, {report.chunks} chunks: {report.count('damaged')} damaged, "
        f"{report.count('missing')} missing"
    )
    return _EXIT_PROBLEMS if named else 0


@contextlib.contextmanager
def _progress(root: str) -> Iterator[Callable[[int], Any] | None]:
    """A bar on a terminal, where tqdm is installed."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield None
        return
    lock = threading.Lock()
    with tqdm(desc=f"verifying {root}", unit="volume") as bar:

        def advance(total: int) -> None:
            with lock:
                bar.total = total
                bar.update()

        yield advance
