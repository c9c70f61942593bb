"""``sharedvector-producer``: a pool and its producer as a job step of its own."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sharedvector._common import level_number
from sharedvector._coordination import PoolBusyError, PoolSpawnError
from sharedvector._pool import PRODUCER_KINDS, PoolConfig, ProducerService
from sharedvector.cli.errors import EXIT_BUSY, Parser, failed
from sharedvector.vector import PoolStalledError

if TYPE_CHECKING:
    from sharedvector.loaders import Loader

__all__ = [
    "EXIT_BUSY",
    "PoolBusyError",
    "instantiate_loader",
    "producer_main",
    "resolve_source_size",
]

_MIB = 1 << 20

logger = logging.getLogger("sharedvector")


def instantiate_loader(spec: str, args_json: str | None) -> Loader:
    """Make a loader from ``package.module:Class`` and its keyword arguments as a JSON object.

    Raises:
        ValueError: ``spec`` has another form, or the text is no JSON.
        ImportError, AttributeError: no such module or class.
        TypeError: the JSON is no object, or the class does not take these arguments.
    """
    module, separator, name = spec.partition(":")
    if not separator or not module or not name:
        raise ValueError(f"--loader-class should be 'package.module:Class', got {spec!r}")
    arguments: Any = {}
    if args_json is not None:
        try:
            arguments = json.loads(args_json)
        except json.JSONDecodeError as error:
            raise ValueError(f"--loader-args is no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise TypeError(
            f'--loader-args should be a JSON object such as {{"dtype": "int16"}}, got {args_json}'
        )
    loader: Any = importlib.import_module(module)
    for part in name.split("."):
        loader = getattr(loader, part)
    return cast("Loader", loader(**arguments))


def resolve_source_size(loader: Loader, override: int | None) -> int:
    """Return ``override``, or the loader's length. ValueError when it has none."""
    if override is not None:
        return override
    try:
        return len(loader)
    except TypeError as error:
        raise ValueError(
            f"--source-size is needed: {type(loader).__name__} has no length ({error})"
        ) from error


def producer_main(argv: Sequence[str] | None = None) -> int:
    """Run ``sharedvector-producer``: own a pool until SIGTERM or SIGINT.

    Returns:
        0 after an end by signal, 2 when another owner holds the pool, 1 after an error, which is
        told in one line on standard error. A wrong call raises SystemExit(64).
    """
    options = _producer_parser().parse_args(argv)
    text = options.log_level
    try:
        level = level_number("--log-level", int(text) if text.isdecimal() else text)
    except ValueError as error:
        return _failed(str(error))
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # A loader given by name may lie beside the job script.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        loader = instantiate_loader(options.loader_class, options.loader_args)
        service = ProducerService(
            name=options.name,
            loader=loader,
            source_size=resolve_source_size(loader, options.source_size),
            slot_count=options.slot_count,
            chunk_size=_chunk_size(options.chunk_size_mb),
            num_producers=options.num_producers,
            sleep_seconds=options.sleep_seconds,
            producer_join_timeout=options.producer_join_timeout,
            dtype=options.dtype,
            lock_dir=options.lock_dir,
            log_level=level,
            spare_buffers=options.spare_buffers,
            producer_kind=options.producer_kind,
            processes=options.processes,
        )
        logger.info(
            "pool %r: %d slots of %g MiB, %s", service.name, options.slot_count,
            service.config.chunk_size / _MIB, service.config.dtype,
        )  # fmt: skip
        service.run()
    except PoolBusyError as error:
        _failed(str(error))
        return EXIT_BUSY
    except (PoolSpawnError, PoolStalledError) as error:
        return _failed(str(error))
    except Exception as error:  # a loader's class may raise anything
        logger.debug("sharedvector-producer failed:", exc_info=error)
        return _failed(f"{type(error).__name__}: {error}")
    return 0


def _producer_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="sharedvector-producer",
        description="Own a pool: fill and refresh it until SIGTERM. Trainers attach by its name.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--name", required=True, help="name of the pool")
    add("--slot-count", required=True, type=int, help="chunks to keep in shared memory")
    add("--chunk-size-mb", type=float, help="largest chunk, in MiB, if not what the loader says")
    add("--dtype", help="dtype of the chunks, such as int16, if not what the loader says")
    add("--num-producers", type=int, default=PoolConfig.num_producers, help="workers")
    add(
        "--sleep-seconds", type=float, default=PoolConfig.sleep_seconds,
        help="pause after a source without a chunk",
    )  # fmt: skip
    add(
        "--producer-join-timeout", type=float, default=PoolConfig.producer_join_timeout,
        help="seconds that workers may take to end",
    )  # fmt: skip
    add("--loader-class", required=True, help="loader, as package.module:Class")
    add("--loader-args", help="its keyword arguments, as a JSON object")
    add("--source-size", type=int, help="number of sources, if not the loader's length")
    add("--lock-dir", help="directory of the lock and the ready marker, if not /dev/shm")
    add("--log-level", default="INFO", help="DEBUG, INFO, WARNING, ERROR, or a number")
    add("--spare-buffers", type=int, help="buffers beyond the slots, if not one per worker")
    add(
        "--producer-kind", default=PoolConfig.producer_kind, choices=PRODUCER_KINDS,
        help="workers are processes, threads of one process, or what suits the loader",
    )  # fmt: skip
    add("--processes", type=int, help="attached processes whose memory is reserved with the pool")
    return parser


def _chunk_size(mebibytes: float | None) -> int | None:
    if mebibytes is None:
        return None
    if not 1 <= mebibytes * _MIB < 1 << 64:  # nor NaN
        raise ValueError(
            "--chunk-size-mb should make a chunk_size from 1 byte to 2**64 - 1, got "
            f"{mebibytes:g} MiB"
        )
    return int(mebibytes * _MIB)


def _failed(text: str) -> int:
    return failed(text, "sharedvector-producer")
