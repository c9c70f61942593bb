"""Worker functions that write Zarr volumes and load them into the slots of a pool."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

import sharedvector as sv

SLICES = 16
HEIGHT = WIDTH = 512
SLABS = 5
PLACES = SLABS + 1  # buffers that a worker goes round: its slots and a spare one
REST = 4  # slices that fill no slab and are dropped
DEPTH = SLABS * SLICES + REST
SLOT_BYTES = SLICES * HEIGHT * WIDTH * 2


def write(state: dict[str, Any], folder: str, layout: str, count: int) -> float:
    """Volumes like scans of a body in `folder`; returns stored bytes per byte of data."""
    import zarr
    from zarr.codecs import BloscCodec

    slab, slice_ = (SLICES, HEIGHT, WIDTH), (1, HEIGHT, WIDTH)
    lz4 = BloscCodec(cname="lz4", shuffle="shuffle")
    blosc_zstd = BloscCodec(cname="zstd", clevel=5, shuffle="shuffle")
    settings: dict[str, Any] = {
        "zstd, 16-slice chunks": {"chunks": slab},
        "zstd, 1-slice chunks": {"chunks": slice_},
        "zstd, shards of 1-slice chunks": {"chunks": slice_, "shards": (2 * SLICES, HEIGHT, WIDTH)},
        "zstd, no rest": {"chunks": slab},
        "blosc-zstd, no rest": {"chunks": slab, "compressors": blosc_zstd},
        "blosc-lz4": {"chunks": slab, "compressors": lz4},
        "uncompressed": {"chunks": slab, "compressors": None},
        "automatic chunks": {"chunks": "auto"},
        "float32 to int16": {"chunks": slab, "compressors": lz4},
    }[layout]
    dtype = "float32" if layout == "float32 to int16" else "int16"
    stored = 0
    for number in range(count):
        volume = _body(state, number).astype(dtype)
        if layout.endswith("no rest"):
            volume = volume[:-REST]
        if dtype == "float32":
            volume += np.float32(0.25)
        array = zarr.create_array(
            Path(folder) / f"v{number}", shape=volume.shape, dtype=dtype, **settings
        )
        array[...] = volume
        stored += sum(path.stat().st_size for path in (Path(folder) / f"v{number}").rglob("c/**/*"))
    return stored / (count * volume.nbytes)


def _body(state: dict[str, Any], number: int) -> np.ndarray[Any, Any]:
    """Noisy tissue in air, which compresses about as CT does."""
    known = state.setdefault("bodies", {})
    if number not in known:
        draw = np.random.default_rng(number)
        z, y, x = np.ogrid[:DEPTH, :HEIGHT, :WIDTH]
        tissue = 600 * np.sin(z / 9 + number) + 500 * np.cos(y / 37) * np.sin(x / 41 + number)
        tissue = tissue + 12 * draw.standard_normal((DEPTH, HEIGHT, WIDTH), np.float32)
        outside = (y - HEIGHT // 2) ** 2 + (x - WIDTH // 2) ** 2 > 230**2
        known[number] = np.where(outside, -1000, tissue).astype(np.int16)
    body: np.ndarray[Any, Any] = known[number]
    return body


def start(state: dict[str, Any], folder: str, name: str, create: bool, part: int) -> None:
    """A loader, and the pool whose `part`-th SLABS slots it fills."""
    if hasattr(sv, "_core") and hasattr(sv._core, "guard_file_maps"):
        sv._core.guard_file_maps()  # as a producer process of a pool does
    loader = sv.ZarrLoader(folder, slices_per_chunk=SLICES, dtype="int16", seed=part)
    memory = 2 * SLABS * (SLOT_BYTES + 4096) + (1 << 20)
    more: dict[str, Any] = {}
    if create and hasattr(loader, "load_into"):
        more = {"slot_count": 2 * SLABS, "spare_buffers": 2 * loader.buffers_at_once}
    vector = sv.SharedVector(name, SLOT_BYTES, memory, "int16", create, **more)
    if create:
        for _ in range(2 * SLABS):
            vector.append(np.zeros((SLICES, HEIGHT, WIDTH), np.int16))
    state.update(vector=vector, name=name, loader=loader, first=part * SLABS, folder=folder)


def load(
    state: dict[str, Any],
    check: bool,
    clock: str = "perf_counter",
    turn: bool = True,
    repeat: int = 1,
) -> float:
    """Seconds per slot for all volumes, each over the same slots, `repeat` times.

    `clock` is a function of time; "process_time" counts those that the processor worked. Half of
    the volumes are turned end to end, or none.
    """
    now = getattr(time, clock)
    if not turn:
        state["loader"]._draw = lambda: False
    load_one = _load_into if hasattr(state["loader"], "load_into") else _call_and_replace
    count = len(state["loader"])
    start = now()
    for source in list(range(count)) * repeat:
        if load_one(state, source) != SLABS:
            raise RuntimeError(f"volume {source} gave another number of chunks than {SLABS}")
        if check:
            _check(state, source)
    return float(now() - start) / (count * SLABS * repeat)


def _load_into(state: dict[str, Any], source: int) -> int:
    vector, slot, filled = state["vector"], state["first"], []

    def allocate(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        reservation = vector.reserve(shape)
        array: np.ndarray[Any, Any] = reservation.array
        filled.append((array, reservation))
        return array

    for chunk in state["loader"].load_into(source, allocate):
        place = next(i for i, (array, _) in enumerate(filled) if array is chunk.data)
        filled.pop(place)[1].publish(slot, chunk.meta)
        slot += 1
    return int(slot - state["first"])


def _call_and_replace(state: dict[str, Any], source: int) -> int:
    chunks = state["loader"](source)
    for number, chunk in enumerate(chunks):
        state["vector"].replace(state["first"] + number, chunk.data, chunk.meta)
    return len(chunks)


def _check(state: dict[str, Any], source: int) -> None:
    """The slots hold what zarr and cast_volume give, in one of the two directions."""
    import zarr

    path = sorted(Path(state["folder"]).iterdir())[source]
    plain = sv.cast_volume(np.asarray(zarr.open_array(path, mode="r")[:]), np.dtype("int16"))
    got = np.concatenate([state["vector"].get(state["first"] + slab) for slab in range(SLABS)])
    same = (np.array_equal(got, way[: SLABS * SLICES]) for way in (plain, plain[::-1]))
    if not any(same):
        raise RuntimeError(f"the slots differ from what zarr reads from {path}")


def start_decode(state: dict[str, Any], folder: str, name: str) -> None:
    """Encoded chunks in memory, and places to decode them into: buffers of a pool, and the heap.

    As many chunks, and as many places, as a worker of `load` has.
    """
    import zarr
    from numcodecs import Blosc, Zstd

    paths = sorted(Path(folder).iterdir())
    arrays: list[Any] = [zarr.open_array(path, mode="r") for path in paths]
    codec = type(arrays[0].metadata.codecs[-1]).__name__
    state["decoder"] = Blosc() if codec == "BloscCodec" else Zstd()
    state["files"] = [p / "c" / str(slab) / "0" / "0" for p in paths for slab in range(SLABS)]
    state["encoded"] = [file.read_bytes() for file in state["files"]]
    shape = (SLICES, HEIGHT, WIDTH)
    vector = sv.SharedVector(name, SLOT_BYTES, dtype="int16", slot_count=1, spare_buffers=PLACES)
    buffers = [vector.reserve(shape) for _ in range(PLACES)]
    # NumPy asks for huge pages for its memory; that of a pool has those that its mount has.
    state["decoded"] = {
        "slots": [buffer.array for buffer in buffers],
        "heap": list(np.zeros((PLACES, *shape), np.int16)),
    }
    state.update(vector=vector, buffers=buffers, name=name)
    last = np.asarray(arrays[-1][(SLABS - 1) * SLICES : SLABS * SLICES])
    for into in state["decoded"]:
        decode(state, 1, into)
        place = (len(state["encoded"]) - 1) % PLACES
        if not np.array_equal(state["decoded"][into][place], last):
            raise RuntimeError(f"a decoded chunk differs from what zarr reads from {paths[-1]}")


def stop_decode(state: dict[str, Any]) -> None:
    """Give the buffers and the segment back."""
    del state["decoded"]
    for buffer in state.pop("buffers"):
        buffer.cancel()
    state.pop("vector").close()
    sv.remove_shared_memory(state.pop("name"))


def decode(state: dict[str, Any], repeat: int, into: str, reading: bool = False) -> float:
    """Processor seconds per slot for decode(out=), or also reading the files into one buffer."""
    decoder = state["decoder"]
    buffer = bytearray(max(map(len, state["encoded"])))
    chunks = list(zip(state["files"], state["encoded"], strict=True)) * repeat
    places = state["decoded"][into]
    start = time.process_time()
    for number, (file, encoded) in enumerate(chunks):
        out = places[number % PLACES]
        if reading:
            descriptor = os.open(file, os.O_RDONLY)
            length = os.preadv(descriptor, [buffer], 0)
            os.close(descriptor)
            decoder.decode(memoryview(buffer)[:length], out=out)
        else:
            decoder.decode(encoded, out=out)
    return (time.process_time() - start) / len(chunks)


def memory(state: dict[str, Any]) -> float:
    """Peak of what Python and NumPy allocate for a new loader and its volumes, in slots."""
    tracemalloc.start()
    state["loader"] = sv.ZarrLoader(state["folder"], slices_per_chunk=SLICES, dtype="int16", seed=1)
    load(state, check=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / SLOT_BYTES
