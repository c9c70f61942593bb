"""What `make chaos` judges by notices what it is there for; the run is a target of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "chaos"))

from stamps import SHAPE, SOURCES, Stamped, StampedInPlace, fault_of, stamped


def chunk(source: int = 3) -> tuple[np.ndarray, np.ndarray]:
    data, meta = stamped(np.empty(SHAPE, "int32"), source)
    return data, np.array(meta)


def test_whole_chunks_pass() -> None:
    for source in range(SOURCES):
        for data, meta in Stamped()(source):
            assert fault_of(data, meta) is None
            assert fault_of(data[2:4, :8, :8], meta) is None  # a crop
    arrays = [
        data for data, _ in StampedInPlace().load_into(1, lambda shape: np.empty(shape, "i4"))
    ]
    assert all(fault_of(data, None) is None for data in arrays)


def test_two_loads_of_a_source_differ() -> None:
    assert len({int(Stamped()(5)[0].data.flat[0]) for _ in range(40)}) > 30


@pytest.mark.parametrize("where", [0, 1000, -1])
def test_one_foreign_word_is_torn(where: int) -> None:
    data, meta = chunk()
    data.flat[where] ^= 1
    assert "torn" in (fault_of(data, meta) or "")


def test_foreign_metadata_and_unknown_sources_are_faults() -> None:
    data, meta = chunk()
    assert "metadata" in (fault_of(data, meta + np.array([0, 1])) or "")
    assert "metadata" in (fault_of(data, meta + np.array([1, 0])) or "")
    data, meta = chunk(SOURCES)
    assert "no source" in (fault_of(data, meta) or "")
