"""Names, kinds and signatures of every submodule with an `__all__`, by inspection."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from types import ModuleType
from typing import Any

from compare_record import Recorder, catchers

import sharedvector

PRIVATE_BUT_PROMISED = ("__init__", "__call__", "__len__", "__enter__", "__exit__")


def parameters(target: Any) -> list[list[str]] | None:
    """[name, kind, default] of each parameter; None where nothing tells.

    Extension functions that `inspect` cannot read say their signature in the docstring's first
    line.
    """
    try:
        found = inspect.signature(target).parameters.values()
        return [[p.name, p.kind.name, default_text(p.default)] for p in found]
    except (TypeError, ValueError):
        return parameters_of_text(inspect.getdoc(target) or "")


def default_text(default: object) -> str:
    return "" if default is inspect.Parameter.empty else repr(default)


def parameters_of_text(text: str) -> list[list[str]] | None:
    lines = text.splitlines()
    match = re.match(r"\w+\((.*)\) -> ", lines[0] if lines else "")
    if match is None:
        return None
    result = []
    for part in re.split(r", (?![^\[]*\])", match[1]):
        pattern = r"(\w+)(?:: (.*?))?(?: = (.*))?$"
        fields = re.match(pattern, part)
        if fields is None:
            continue
        result.append([fields[1], "POSITIONAL_OR_KEYWORD", fields[3] or ""])
    return result


def member_kind(owner: type, name: str) -> str:
    """One of "attribute", "property", "classmethod", "staticmethod", "method"."""
    for base in owner.__mro__:
        if name in vars(base):
            found = vars(base)[name]
            if isinstance(found, classmethod | staticmethod):
                return type(found).__name__
            if isinstance(found, property) or inspect.isdatadescriptor(found):
                return "property"
            return "method" if callable(found) else "attribute"
    return "attribute"


def record_class(recorder: Recorder, key: str, kind: type) -> None:
    if issubclass(kind, BaseException):
        recorder.fact(key, {"exception": catchers(kind)})
        return
    recorder.fact(key, {"class": True})
    for name in dir(kind):
        if name.startswith("_") and name not in PRIVATE_BUT_PROMISED:
            continue
        if name in PRIVATE_BUT_PROMISED and not any(
            name in vars(base) for base in kind.__mro__[:-1]
        ):
            continue
        member = {"kind": member_kind(kind, name)}
        if member["kind"] in ("method", "classmethod", "staticmethod"):
            member["parameters"] = parameters(getattr(kind, name))  # type: ignore[assignment]
        recorder.fact(f"{key}.{name}", member)


def record_module(recorder: Recorder, short: str, module: ModuleType) -> None:
    names = getattr(module, "__all__", None)
    if names is None:
        return
    for name in sorted(names):
        key = f"names.{short}{name}"
        value = getattr(module, name)
        if inspect.isclass(value):
            record_class(recorder, key, value)
        elif inspect.isroutine(value):
            recorder.fact(key, {"function": True, "parameters": parameters(value)})
        elif isinstance(value, int | str) and name != "__version__":
            recorder.fact(key, {"constant": value})
        else:
            recorder.fact(key, {"name": True})


def record_names(recorder: Recorder) -> None:
    """Record the package itself and each of its modules that imports."""
    record_module(recorder, "", sharedvector)
    for info in pkgutil.iter_modules(sharedvector.__path__):
        if info.name.startswith("_"):
            continue
        try:
            module = importlib.import_module(f"sharedvector.{info.name}")
        except ImportError:
            continue  # it needs an optional library that neither environment has
        recorder.fact(f"names.{info.name}:module", {"all": hasattr(module, "__all__")})
        record_module(recorder, f"{info.name}:", module)
