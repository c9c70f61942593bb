"""Record what calls return or raise, in a form that two packages can be compared by."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import sharedvector


def describe(value: object) -> Any:
    """JSON form of a result: values with their types, nothing that differs from run to run."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": "nan" if math.isnan(value) else float(f"{value:.12g}")}
    if isinstance(value, np.ndarray):
        return {"array": str(value.dtype), "shape": list(value.shape), "values": value.tolist()}
    if isinstance(value, np.generic):
        return {"scalar": str(value.dtype), "value": value.item()}
    if isinstance(value, Path):
        return {"path": value.name}
    if isinstance(value, BaseException):
        return {"catchers": catchers(type(value))}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {
            "dataclass": type(value).__name__,
            **{n: describe(getattr(value, n)) for n in names},
        }
    if isinstance(value, Mapping):
        return {"dict": [[describe(key), describe(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [describe(item) for item in value]}
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        return {
            "tensor": str(getattr(value, "dtype", "")),
            "shape": list(getattr(value, "shape", ())),
            "values": value.tolist(),  # type: ignore[attr-defined]
        }
    return {"object": type(value).__name__}


def catchers(kind: type[BaseException]) -> list[str]:
    """What an `except` clause may name to catch `kind`: built-ins and public names."""
    names = []
    for base in kind.__mro__:
        if base.__module__ == "builtins":
            names.append(base.__name__)
        elif getattr(sharedvector, base.__name__, None) is base:
            names.append(f"sharedvector.{base.__name__}")
    return [name for name in names if name not in ("object", "BaseException")]


class Recorder:
    """Writes one JSON line per call to standard output."""

    def __init__(self, work: Path, prefix: str) -> None:
        self.work = work
        self.prefix = prefix
        self._seen: set[str] = set()

    def name(self, tag: str) -> str:
        """A pool or segment name of this run."""
        return f"{self.prefix}-{tag}"

    def call(self, key: str, function: Callable[[], object]) -> Any:
        """Record `function()` under `key`; returns its value, or None if it raised."""
        value: object = None
        try:
            value = function()
        except (Exception, SystemExit) as error:
            record = {"id": key, "raises": catchers(type(error))}
            if isinstance(error, SystemExit):
                record["code"] = describe(error.code)
            record["message"] = str(error)[:300]
        else:
            record = {"id": key, "value": describe(value)}
        self._write(key, record)
        return value

    def fact(self, key: str, value: object) -> None:
        """Record a value that is JSON already."""
        self._write(key, {"id": key, "value": value})

    def _write(self, key: str, record: Mapping[str, object]) -> None:
        if key in self._seen:
            raise ValueError(f"two calls are recorded as {key!r}: ids must differ")
        self._seen.add(key)
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()
