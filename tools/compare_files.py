"""Calls on loaders, spacing, statistics, life cycle and commands, as a script for 0.1.0 does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from compare_record import Recorder

from sharedvector import (
    Chunk,
    LifecycleGuard,
    NumpyLoader,
    SharedVector,
    ZarrLoader,
    cast_volume,
    collect_spacings,
    collect_stats,
    no_meta,
    remove_shared_memory,
    stats_capacity_for,
    write_spacing_manifest,
)
from sharedvector.cli import (
    EXIT_BUSY,
    instantiate_loader,
    producer_main,
    resolve_source_size,
    spacing_manifest_main,
)
from sharedvector.lifecycle import ParentWatchdog, install_parent_death_signal
from sharedvector.loaders import resolve_numpy_dtype
from sharedvector.service import partition


def numpy_loader_calls(r: Recorder) -> None:
    directory = r.work / "arrays"
    directory.mkdir()
    for number in (2, 0, 1):
        np.save(directory / f"{number}.npy", np.full((2, 2), number + 0.6))
    np.save(directory / "other.dat.npy", np.array([-4e4, 4e4, np.nan]))
    (r.work / "empty").mkdir()
    loader = NumpyLoader(directory, "[0-9].npy")
    r.call("numpy.length", lambda: len(loader))
    r.call("numpy.first", lambda: loader(0))
    r.call("numpy.last", lambda: loader(2)[0].data)
    r.call("numpy.past_end", lambda: loader(3))
    r.call("numpy.all_files", lambda: len(NumpyLoader(str(directory))))
    r.call("numpy.int16", lambda: NumpyLoader(directory, "other*", dtype="int16")(0)[0].data)
    r.call("numpy.missing", lambda: NumpyLoader(r.work / "no-such"))
    r.call("numpy.empty", lambda: NumpyLoader(r.work / "empty"))
    r.call("numpy.no_match", lambda: NumpyLoader(directory, "*.txt"))
    r.call("numpy.no_meta", lambda: [no_meta(), no_meta().shape])
    r.call("numpy.chunk", lambda: [*Chunk(np.ones(1), no_meta())])
    r.call("numpy.chunk_fields", lambda: Chunk._fields)


def cast_calls(r: Recorder) -> None:
    volume = np.array([-1e6, -1.9, -0.5, 0.5, 1.9, 1e6, np.nan, np.inf])
    for dtype in ("int16", "float32"):
        r.call(f"cast.{dtype}", lambda d=dtype: cast_volume(volume, np.dtype(d)))  # type: ignore[misc]
    r.call("cast.integers", lambda: cast_volume(np.array([70000, -5]), np.dtype("int16")))
    r.call("cast.same_object", lambda: is_same(np.ones(3, np.int16)))
    r.call("cast.known_dtype", lambda: str(resolve_numpy_dtype("int16")))
    r.call("cast.unknown_dtype", lambda: resolve_numpy_dtype("no-such"))
    r.call("cast.float64", lambda: str(resolve_numpy_dtype("float64")))


def is_same(volume: Any) -> bool:
    return cast_volume(volume, np.dtype("int16")) is volume


def make_volumes(root: Path) -> None:
    root.mkdir()
    rng = np.random.default_rng(0)
    for number, depth in enumerate((7, 4, 2)):
        values = rng.integers(-900, 900, (depth, 3, 4)).astype(np.int16)
        # Mirror images along axis 0, so that a drawn flip changes nothing.
        values[(depth + 1) // 2 :] = values[: depth // 2][::-1]
        array = zarr.create_array(
            root / f"v{number}", shape=values.shape, dtype="int16", chunks=(2, 3, 4)
        )
        array[:] = values
        array.attrs["spacing"] = [0.5, 0.75, 2.0 + number]


def zarr_loader_calls(r: Recorder) -> None:
    root = r.work / "volumes"
    make_volumes(root)
    r.call("zarr.length", lambda: len(ZarrLoader(root, 3)))
    r.call("zarr.whole", lambda: ZarrLoader(root, 0)(1))
    r.call("zarr.whole_float", lambda: ZarrLoader(root, 0, dtype="float32")(1)[0].data)
    r.call("zarr.slabs", lambda: [chunk.data.shape for chunk in ZarrLoader(root, 3, seed=1)(0)])
    r.call("zarr.exact", lambda: [chunk.data.shape for chunk in ZarrLoader(root, 2)(1)])
    r.call("zarr.thin", lambda: ZarrLoader(root, 3)(2))
    r.call("zarr.past_end", lambda: ZarrLoader(root, 3)(3))
    r.call("zarr.no_spacing", lambda: ZarrLoader(str(root), 4)(1)[0].meta)
    r.call("zarr.contiguous", lambda: ZarrLoader(root, 2)(0)[1].data.flags.c_contiguous)
    r.call("zarr.stray_directories", lambda: count_with_strays(r.work / "strays"))
    r.call("zarr.missing", lambda: ZarrLoader(r.work / "no-such", 3))
    r.call("zarr.empty", lambda: ZarrLoader(r.work / "empty", 3))
    r.call("zarr.negative_slices", lambda: [c.data.shape for c in ZarrLoader(root, -1)(1)])
    spacing_calls(r, root)
    manifest = root / "spacing.json"
    r.call("zarr.spacing", lambda: ZarrLoader(root, 2, manifest)(1)[1].meta)
    partial = r.work / "partial.json"
    partial.write_text(json.dumps({"v0": [1, 1, 1]}))
    r.call("zarr.spacing_partial", lambda: ZarrLoader(root, 2, partial))
    partial.write_text(json.dumps({"v0": None, "v1": [1, 1, 1], "v2": [1, 1, float("nan")]}))
    r.call("zarr.spacing_null", lambda: ZarrLoader(root, 2, partial))
    r.call("zarr.spacing_no_file", lambda: ZarrLoader(root, 2, r.work / "no.json"))


def count_with_strays(root: Path) -> int:
    make_volumes(root)
    (root / "notes").mkdir()
    zarr.create_group(root / "group")
    return len(ZarrLoader(root, 2))


def spacing_calls(r: Recorder, root: Path) -> None:
    r.call("spacing.collect", lambda: sorted(collect_spacings(root).items()))
    r.call("spacing.collect_other_key", lambda: collect_spacings(root, attr_key="voxel"))
    r.call("spacing.collect_lax", lambda: collect_spacings(root, "voxel", strict=False))
    r.call("spacing.collect_missing", lambda: collect_spacings(r.work / "no-such"))
    r.call("spacing.collect_empty", lambda: collect_spacings(r.work / "empty"))
    r.call("spacing.write", lambda: write_spacing_manifest(root))
    manifest = root / "spacing.json"
    r.call("spacing.content", lambda: sorted(json.loads(manifest.read_text()).items()))
    output = r.work / "elsewhere.json"
    r.call("spacing.output", lambda: write_spacing_manifest(str(root), output) == output)
    r.call("spacing.strict", lambda: write_spacing_manifest(root, output, "voxel"))
    r.call("spacing.command", lambda: spacing_manifest_main([str(root), "--output", str(output)]))
    r.call(
        "spacing.command_skip",
        lambda: spacing_manifest_main(
            [str(root), "--output", str(output), "--attr-key", "voxel", "--skip-missing"]
        ),
    )
    r.call("spacing.command_missing", lambda: exit_code("spacing_manifest_main", r.work / "no"))
    r.call("spacing.command_no_root", lambda: spacing_manifest_main([]))


def exit_code(function: str, *arguments: str | Path) -> int:
    """Exit code of a command, run as a process of its own."""
    code = f"import sys; from sharedvector.cli import {function} as run; sys.exit(run())"
    command = [sys.executable, "-c", code, *(str(argument) for argument in arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.run(
        command, env=environment, capture_output=True, timeout=60, check=False
    ).returncode


def stats_calls(r: Recorder) -> None:
    for slots in (0, 1, 2048, 5000):
        r.call(f"stats.capacity_{slots}", lambda n=slots: stats_capacity_for(n))  # type: ignore[misc]
    name = r.name("stats")
    vector = SharedVector(name, 64, 1 << 16)
    r.call("stats.no_slots", lambda: collect_stats(vector))
    for _ in range(4):
        vector.append(np.zeros(4, np.float32))
    r.call("stats.no_writes", lambda: collect_stats(vector))
    for reads in (1, 2, 4, 8, 3):
        for _ in range(reads):
            vector.get(reads % 3)
        vector.replace(reads % 3, np.zeros(4, np.float32))
    vector.get(3)
    r.call("stats.collected", lambda: collect_stats(vector))
    r.call("stats.as_dict", lambda: collect_stats(vector).as_dict())
    r.call("stats.prefix", lambda: sorted(collect_stats(vector).as_dict("x."))[0])
    r.call("stats.frozen", lambda: setattr(collect_stats(vector), "slots", 1))
    remove_shared_memory(name)


def lifecycle_calls(r: Recorder) -> None:
    runs: list[int] = []
    guard = LifecycleGuard(lambda: runs.append(1))
    state = lambda: [guard.armed, guard.cleaned, len(runs)]  # noqa: E731
    r.call("lifecycle.fresh", state)
    r.call("lifecycle.arm", lambda: guard.arm())
    r.call("lifecycle.armed", state)
    r.call("lifecycle.trigger", lambda: guard.trigger())
    r.call("lifecycle.triggered", state)
    r.call("lifecycle.trigger_again", lambda: guard.trigger())
    r.call("lifecycle.triggered_once", state)
    r.call("lifecycle.disarm", lambda: guard.disarm())
    r.call("lifecycle.disarmed", state)
    failing = LifecycleGuard(lambda: fail())
    r.call("lifecycle.failing", lambda: failing.trigger())
    r.call("lifecycle.failing_cleaned", lambda: failing.cleaned)
    watchdog = ParentWatchdog(lambda: None, interval=0.05)
    r.call("lifecycle.watchdog", lambda: [watchdog.daemon, watchdog.is_alive()])
    r.call("lifecycle.watchdog_start", lambda: watchdog.start())
    r.call("lifecycle.watchdog_stop", lambda: watchdog.stop())
    r.call("lifecycle.death_signal", lambda: install_parent_death_signal(0))


def fail() -> None:
    raise ZeroDivisionError


def command_calls(r: Recorder) -> None:
    ordered = "collections:OrderedDict"
    r.call("cli.exit_busy", lambda: EXIT_BUSY)
    r.call("cli.no_arguments", lambda: producer_main([]))
    r.call("cli.unknown_option", lambda: producer_main(["--no-such"]))
    r.call("cli.loader", lambda: instantiate_loader(ordered, '{"a": 1}'))
    r.call("cli.loader_no_arguments", lambda: instantiate_loader(ordered, None))
    r.call("cli.loader_no_module", lambda: instantiate_loader("no_such_module:X", None))
    r.call("cli.loader_no_class", lambda: instantiate_loader("collections:NoSuch", None))
    r.call("cli.loader_no_colon", lambda: instantiate_loader("collections", None))
    r.call("cli.loader_list", lambda: instantiate_loader(ordered, "[1]"))
    r.call("cli.loader_bad_json", lambda: instantiate_loader(ordered, "{bad"))
    sized: Any = [1, 2]
    r.call("cli.source_size", lambda: resolve_source_size(sized, None))
    r.call("cli.source_size_given", lambda: resolve_source_size(sized, 5))
    unsized: Any = object()
    r.call("cli.source_size_unknown", lambda: resolve_source_size(unsized, None))
    for total, parts in ((10, 3), (2, 3), (0, 3), (4, 1)):
        r.call(f"cli.partition_{total}_{parts}", lambda t=total, p=parts: partition(t, p))  # type: ignore[misc]


def record_files(r: Recorder) -> None:
    numpy_loader_calls(r)
    cast_calls(r)
    zarr_loader_calls(r)
    stats_calls(r)
    lifecycle_calls(r)
    command_calls(r)
