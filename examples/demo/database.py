"""The demo's Zarr database: a real head, a dozen "subjects", and a pool that fits /dev/shm.

The head is the MNI152 T1 template at 1 mm (197 x 233 x 189 voxels), which PyPI's `nilearn` wheel
carries as a NIfTI file. Only that file is used, so the wheel needs none of its dependencies.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TEMPLATE_NAME = "mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz"
MIB = 1 << 20
MOST_SLOTS = 64
MOST_SLICES = 16
FEWEST_SLOTS = 8


def template_path() -> Path:
    """Where the installed `nilearn` wheel keeps the template.

    Raises FileNotFoundError, with the command that helps, if the wheel or the file is missing.
    """
    remedy = "install it with `pip install --no-deps nilearn`, or pass a database with --data"
    try:
        files = importlib.metadata.files("nilearn") or []
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(f"the nilearn wheel is not installed: {remedy}") from None
    for entry in files:
        if entry.name == TEMPLATE_NAME:
            return Path(os.fspath(entry.locate()))
    raise FileNotFoundError(f"the installed nilearn carries no {TEMPLATE_NAME}: {remedy}")


def read_template() -> tuple[NDArray[np.uint8], tuple[float, float, float]]:
    """The template as uint8 (z, y, x), and its voxel spacing (x, y, z) in millimetres."""
    import nibabel

    image: Any = nibabel.load(template_path())
    x, y, z = (float(size) for size in image.header.get_zooms()[:3])
    voxels = np.asarray(image.dataobj, dtype=np.uint8)
    return np.ascontiguousarray(voxels.transpose(2, 1, 0)), (x, y, z)


def make_subject(template: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.int16]:
    """One "subject": the template under a random contrast curve and a smooth receive field.

    Returns int16 of the template's shape, about 0 to 1,500.
    """
    curve = (np.linspace(0, 1, 256) ** rng.uniform(0.7, 1.4) * 1000).astype(np.float32)
    field = np.full(template.shape, 1.0, dtype=np.float32)
    for _ in range(3):
        depth, height, width = (
            np.cos(np.linspace(0, np.pi, size) * rng.uniform(0.5, 2) + rng.uniform(0, 2 * np.pi))
            for size in template.shape
        )
        wave = rng.uniform(0.05, 0.15) * np.outer(depth, np.outer(height, width))
        field += wave.reshape(template.shape).astype(np.float32)
    return (curve[template] * field).astype(np.int16)


def write_database(
    root: Path,
    template: NDArray[np.uint8],
    spacing: Sequence[float],
    subjects: int = 12,
    seed: int = 0,
) -> Iterator[Path]:
    """Write one Zarr v3 array per subject below `root`; yields each path once it is complete.

    int16, chunks of 16 slices, blosc-lz4 (it decodes four times as fast as zarr's default codec at
    the same stored size), attribute "spacing" (x, y, z) in millimetres.
    """
    import zarr
    from zarr.codecs import BloscCodec

    rng = np.random.default_rng(seed)
    for number in range(subjects):
        path = root / f"subject-{number:02d}"
        array = zarr.create_array(
            store=path,
            shape=template.shape,
            chunks=(min(16, template.shape[0]), *template.shape[1:]),
            dtype="int16",
            compressors=BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
            attributes={"spacing": list(spacing)},
            zarr_format=3,
        )
        array[:] = make_subject(template, rng)
        yield path


def volume_shapes(root: Path) -> dict[str, tuple[int, int, int]]:
    """Shapes of the 3-D Zarr v3 arrays directly below `root`, by directory name.

    Raises FileNotFoundError if there are none, or no such directory, and ValueError if planes are
    thinner than two voxels.
    """
    if not root.is_dir():
        problem = "is not a directory" if root.exists() else "does not exist"
        raise FileNotFoundError(f"wanted a directory of Zarr volumes, but {root} {problem}")
    shapes: dict[str, tuple[int, int, int]] = {}
    for metadata in sorted(root.glob("*/zarr.json")):
        node = json.loads(metadata.read_text())
        if node.get("node_type") == "array" and len(node["shape"]) == 3:
            depth, height, width = (int(size) for size in node["shape"])
            if min(height, width) < 2:
                raise ValueError(f"{metadata.parent}: planes of {height} x {width} are too small")
            shapes[metadata.parent.name] = (depth, height, width)
    if not shapes and (root / "zarr.json").exists():
        raise FileNotFoundError(
            f"{root} is itself a Zarr array or an empty group; give its parent directory "
            f"{root.parent}, or a directory of volumes"
        )
    if not shapes:
        raise FileNotFoundError(
            f"no 3-D Zarr v3 arrays below {root}: expected a directory with a zarr.json per volume"
        )
    return shapes


@dataclass(frozen=True)
class Plan:
    """How the demo cuts volumes into chunks and how many of them the pool holds (bytes)."""

    slices: int
    slots: int
    spares: int
    chunk_bytes: int
    crop: tuple[int, int, int]
    batch_bytes: int
    queue_bytes: int
    free_bytes: int
    chunks_in_database: int

    @property
    def pool_bytes(self) -> int:
        return (self.slots + self.spares) * self.chunk_bytes


def plan_pool(
    shapes: Iterable[tuple[int, int, int]],
    free_bytes: int,
    *,
    ranks: int,
    workers: int,
    batch_size: int,
    producers: int,
    prefetch: int = 2,
) -> Plan:
    """Fit a pool of int16 slabs into `free_bytes` of shared memory.

    Batches travel from DataLoader workers to their rank through /dev/shm too, so their share is
    set aside first. Raises OSError if not even FEWEST_SLOTS slots of one slice fit.
    """
    sizes = list(shapes)
    plane_bytes = 2 * max(height * width for _, height, width in sizes)
    # Even, because the network halves the plane and doubles it again.
    edge_y = min(48, min(height for _, height, _ in sizes) // 2 * 2)
    edge_x = min(48, min(width for _, _, width in sizes) // 2 * 2)
    slices = min(MOST_SLICES, max(depth for depth, _, _ in sizes))
    while True:
        chunk_bytes = slices * plane_bytes
        batch_bytes = batch_size * slices * edge_y * edge_x * 2
        queue_bytes = 2 * ranks * (workers * prefetch + 2) * batch_bytes
        room = int(0.8 * (free_bytes - queue_bytes - 2 * MIB)) // chunk_bytes
        spares = min(producers, max(1, MOST_SLOTS // 8))
        slots = min(MOST_SLOTS, room - spares)
        if slots >= FEWEST_SLOTS:
            break
        if slices == 1:
            raise OSError(
                f"/dev/shm has {free_bytes / MIB:.1f} MiB free, the demo needs about "
                f"{((FEWEST_SLOTS + spares) * chunk_bytes / 0.8 + queue_bytes) / MIB + 2:.1f} MiB: "
                "enlarge it (docker run --shm-size=256m, or mount -o remount,size=256m /dev/shm)"
            )
        slices = max(1, slices // 2)
    return Plan(
        slices=slices,
        slots=slots,
        spares=spares,
        chunk_bytes=chunk_bytes,
        crop=(slices, edge_y, edge_x),
        batch_bytes=batch_bytes,
        queue_bytes=queue_bytes,
        free_bytes=free_bytes,
        chunks_in_database=sum(depth // slices for depth, _, _ in sizes),
    )
