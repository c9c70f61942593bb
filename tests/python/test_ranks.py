"""Who a process is among those of its node: the variables of launchers, one row for each case."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest

from sharedvector.training.ranks import rank_of

torch = pytest.importorskip("torch", reason="torch is not installed")

SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_NTASKS": "7",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_ID": "0",
}
SLURM_ALONE = {
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
# The script itself, which srun has not started.
SLURM_BATCH = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "6",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
MPICH = {"PMI_RANK": "6", "PMI_SIZE": "8", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4"}
PMI = {"PMI_RANK": "6", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "2", "PMI_LOCAL_SIZE": "4"}
MVAPICH = {"MV2_COMM_WORLD_LOCAL_RANK": "2", "MV2_COMM_WORLD_LOCAL_SIZE": "4"}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
}
DEEPSPEED = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_SIZE": "4",
    "CROSS_RANK": "1",
    "CROSS_SIZE": "2",
}
LIGHTNING = {"NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
# What job scripts export for torch's env:// out of the variables of Slurm.
BY_HAND = {**SLURM, "RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "1"}

Environment = Mapping[str, str]
Group = tuple[int, int] | None


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Any:
    """around(environment, group) is what `rank_of` finds with only these around it."""

    def ask(environment: Environment, group: Group) -> tuple[int, int]:
        monkeypatch.setattr(os, "environ", dict(environment))
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: group is not None)
        if group is not None:
            monkeypatch.setattr(torch.distributed, "get_rank", lambda: group[0])
            monkeypatch.setattr(torch.distributed, "get_world_size", lambda: group[1])
        return rank_of(None, None)

    return ask


@pytest.mark.parametrize(
    ("environment", "group", "wanted"),
    [
        ({}, None, (0, 1)),
        ({}, (6, 9), (6, 9)),
        ({"RANK": "5", "WORLD_SIZE": "8"}, None, (5, 8)),
        ({"RANK": "5", "WORLD_SIZE": "8"}, (6, 9), (6, 9)),
        ({"RANK": "5"}, (6, 9), (6, 9)),
        (TORCHRUN, None, (1, 4)),
        (TORCHRUN, (5, 8), (1, 4)),
        ({**TORCHRUN, **SLURM}, None, (1, 4)),
        (DEEPSPEED, (5, 8), (1, 4)),
        (SLURM, None, (1, 2)),
        (SLURM, (5, 7), (1, 2)),
        ({**SLURM, "SLURM_NODEID": "3", "SLURM_LOCALID": "0"}, None, (0, 1)),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "3(x4)", "SLURM_NODEID": "9"}, None, (1, 3)),
        (SLURM_ALONE, None, (0, 1)),
        (SLURM_BATCH, None, (0, 1)),
        (BY_HAND, None, (1, 2)),
        (OPEN_MPI, None, (2, 4)),
        ({**OPEN_MPI, **SLURM_ALONE}, None, (2, 4)),
        (MPICH, None, (2, 4)),
        (PMI, None, (2, 4)),
        (MVAPICH, None, (2, 4)),
        ({**SLURM, "PMI_RANK": "5", "PMI_SIZE": "7"}, None, (1, 2)),
        (LIGHTNING, (0, 1), (0, 1)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None, (0, 1)),
    ],
)
def test_who_a_process_is(
    around: Any, environment: Environment, group: Group, wanted: tuple[int, int]
) -> None:
    assert around(environment, group) == wanted


@pytest.mark.parametrize("group", [None, (3, 4)])
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (LIGHTNING, "^LOCAL_RANK is set and LOCAL_WORLD_SIZE is not .*Lightning"),
        ({"LOCAL_WORLD_SIZE": "4"}, "^LOCAL_WORLD_SIZE is set and LOCAL_RANK is not"),
        ({**BY_HAND, "LOCAL_RANK": "0"}, "SLURM_LOCALID is 1 and LOCAL_RANK is 0|world size is 4"),
        ({**SLURM, "WORLD_SIZE": "4"}, "SLURM_STEP_NUM_TASKS is 7 and .*(WORLD_SIZE|size) is 4"),
        ({**SLURM_ALONE, **LIGHTNING}, "SLURM_.* is . and .*(WORLD_SIZE|LOCAL_RANK|size) is"),
        ({**TORCHRUN, "LOCAL_RANK": "4", "WORLD_SIZE": "4"}, "LOCAL_RANK .* got 4 of 4"),
        ({**TORCHRUN, "LOCAL_RANK": "one"}, "LOCAL_RANK should be an integer, got 'one'"),
        (
            {**SLURM, "SLURM_STEP_NUM_TASKS": "4", "SLURM_NODEID": "4"},
            "SLURM_NODEID is 4, .* 4 nodes",
        ),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x"}, "should be a list of numbers .*'2\\(x'"),
    ],
)
def test_contradictions_are_errors_that_say_what_to_pass(
    around: Any, environment: Environment, group: Group, said: str
) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        around(environment, group)
    assert "rank= and world_size=" in str(raised.value) or "integer" in str(raised.value)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "1"}, "^RANK is set and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "^WORLD_SIZE is set and RANK is not"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK .* got 2 of 2"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "has started 4 processes .*MPI_LOCALRANKID"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI has started 2 .*OMPI_COMM_WORLD_LOCAL_RANK"),
        ({"SLURM_STEP_NUM_TASKS": "3"}, "Slurm has started 3 .*SLURM_STEP_TASKS_PER_NODE"),
    ],
)
def test_nobody_takes_itself_for_the_only_one(
    around: Any, environment: Environment, said: str
) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        around(environment, None)
    assert "rank= and world_size=" in str(raised.value)


def test_a_process_of_one_that_made_several(around: Any) -> None:
    """torch.multiprocessing.spawn under srun: the step has one task, the group has four."""
    with pytest.raises(ValueError, match=r"SLURM_STEP_NUM_TASKS is 1 and torch.*size is 4"):
        around(SLURM_ALONE, (2, 4))


def test_what_is_given_counts(around: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert rank_of(2, 3) == (2, 3)


@pytest.mark.parametrize(("rank", "world_size"), [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0)])
def test_ranks_that_do_not_fit(rank: int | None, world_size: int | None) -> None:
    with pytest.raises(ValueError, match="rank"):
        rank_of(rank, world_size)


@pytest.mark.parametrize(("rank", "world_size"), [(0.5, 2), (0, 2.0), ("0", "2")])
def test_ranks_that_are_no_integers(rank: Any, world_size: Any) -> None:
    with pytest.raises(TypeError, match="integer"):
        rank_of(rank, world_size)
