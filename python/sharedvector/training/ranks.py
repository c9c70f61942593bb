"""Which of the processes that share a pool this one is, by what the launchers leave behind."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from sharedvector._common import integer

__all__ = ["rank_of"]


class _Launcher(NamedTuple):
    """Where a launcher says who a process is on its node, and how many processes there are.

    Attributes:
        name: who sets the variables.
        rank: of the process among those of its node.
        size: how many the node has; Slurm's is a list of all nodes.
        world: how many there are on all nodes.
    """

    name: str
    rank: str
    size: str
    world: str


# The innermost first: torchrun is started by srun or mpirun, and mpirun within a step of Slurm.
_LAUNCHERS = (
    _Launcher("torchrun, Ray Train or Accelerate", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    _Launcher("DeepSpeed", "LOCAL_RANK", "LOCAL_SIZE", "WORLD_SIZE"),
    _Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_SIZE",
    ),
    _Launcher("MPICH or Intel MPI", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_SIZE"),
    _Launcher("PMI", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", "PMI_SIZE"),
    _Launcher(
        "MVAPICH",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
        "MV2_COMM_WORLD_SIZE",
    ),
    _Launcher("Slurm", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"),
)
_WORLD = ("RANK", "WORLD_SIZE")
_REMEDY = (
    "pass rank= and world_size=, this process's number among those of its node and how many they "
    "are"
)

Rank = tuple[int, int]


def rank_of(rank: int | None, world_size: int | None) -> Rank:
    """Return this process's place among those that share the pool, and how many they are.

    A pool belongs to a node. So what is not given comes from the innermost launcher that says who
    the process is on its node: torchrun, Ray Train, Accelerate and DeepSpeed, Open MPI, MPICH,
    Intel MPI and MVAPICH, Slurm. Without one it comes from torch.distributed, else from RANK and
    WORLD_SIZE. A process that none of them has started is alone: 0 of 1.

    Raises:
        ValueError: only one of the two is given; they do not fit; a launcher started several
            processes and does not say how many the node has (PyTorch Lightning's sets LOCAL_RANK
            alone); two sources contradict each other; a variable is no number.
        TypeError: one is no integer.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank and world_size go together, got {rank} and {world_size}")
    if rank is None or world_size is None:
        return _rank_around(os.environ, _process_group())
    rank, world_size = integer("rank", rank), integer("world_size", world_size)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank should be from 0 to world_size - 1, got {rank} of {world_size}")
    return rank, world_size


def _process_group() -> Rank | None:
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None


def _rank_around(environment: Mapping[str, str], group: Rank | None) -> Rank:
    for launcher in _LAUNCHERS:
        if launcher.rank in environment and launcher.size in environment:
            return _rank_of_launcher(launcher, environment, group)
    if group is not None and group[1] == 1:
        return group
    _refuse_half(environment)
    if group is not None:
        return group
    if all(name in environment for name in _WORLD):
        rank, size = (_number(environment, name) for name in _WORLD)
        return _checked(rank, size, *_WORLD)
    for name, other in (_WORLD, _WORLD[::-1]):
        if name in environment:
            raise ValueError(f"{name} is set and {other} is not: set it, or {_REMEDY}")
    for launcher in _LAUNCHERS:
        if launcher.world in environment and _number(environment, launcher.world) > 1:
            raise ValueError(
                f"{launcher.name} has started {environment[launcher.world]} processes "
                f"({launcher.world}), and {launcher.rank} and {launcher.size} are not set: "
                f"{_REMEDY}"
            )
    return 0, 1


def _refuse_half(environment: Mapping[str, str]) -> None:
    """Raise ValueError for one of LOCAL_RANK and LOCAL_WORLD_SIZE without the other.

    A process group does not help: it counts the processes of all nodes.
    """
    names = _LAUNCHERS[0].rank, _LAUNCHERS[0].size
    for name, other in (names, names[::-1]):
        if name in environment:
            raise ValueError(
                f"{name} is set and {other} is not (PyTorch Lightning sets LOCAL_RANK alone): set "
                f"it, or {_REMEDY}"
            )


def _rank_of_launcher(
    launcher: _Launcher, environment: Mapping[str, str], group: Rank | None
) -> Rank:
    rank = _number(environment, launcher.rank)
    if launcher.name == "Slurm":
        size = _tasks_of_node(environment)
    else:
        size = _number(environment, launcher.size)
    # A launcher of one process says nothing about processes that were started later.
    seen = {launcher.rank: (rank, _LAUNCHERS[0].rank)}
    if launcher.world in environment:
        world = _number(environment, launcher.world)
        if group is not None and group[1] != world:
            raise _contradiction(launcher.world, world, "torch.distributed's world size", group[1])
        seen[launcher.world] = (world, _LAUNCHERS[0].world)
    for name, (value, other) in seen.items():
        if other in environment and _number(environment, other) != value:
            raise _contradiction(name, value, other, _number(environment, other))
    return _checked(rank, size, launcher.rank, launcher.size)


def _contradiction(name: str, value: int, other: str, other_value: int) -> ValueError:
    return ValueError(f"{name} is {value} and {other} is {other_value}: {_REMEDY}")


def _tasks_of_node(environment: Mapping[str, str]) -> int:
    """Tasks of a step of Slurm on this node, out of a list such as "2(x3),1"."""
    text = environment["SLURM_STEP_TASKS_PER_NODE"]
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,6})\))?", part)
        if found is None:
            raise ValueError(
                "SLURM_STEP_TASKS_PER_NODE should be a list of numbers such as 2(x3),1, got "
                f"{text!r}: {_REMEDY}"
            )
        counts += [int(found[1])] * int(found[2] or 1)
    if len(set(counts)) == 1:
        return counts[0]
    if "SLURM_NODEID" not in environment:
        raise ValueError(
            f"SLURM_STEP_TASKS_PER_NODE is {text}, and SLURM_NODEID is not set: {_REMEDY}"
        )
    node = _number(environment, "SLURM_NODEID")
    if not 0 <= node < len(counts):  # the parts of a heterogeneous job count their nodes together
        raise ValueError(
            f"SLURM_NODEID is {node}, and SLURM_STEP_TASKS_PER_NODE={text} has {len(counts)} "
            f"nodes: {_REMEDY}"
        )
    return counts[node]


def _checked(rank: int, size: int, rank_name: str, size_name: str) -> Rank:
    if not 0 <= rank < size:
        raise ValueError(
            f"{rank_name} should be from 0 to {size_name} - 1, got {rank} of {size}: {_REMEDY}"
        )
    return rank, size


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ValueError(f"{name} should be an integer, got {environment[name]!r}") from None
