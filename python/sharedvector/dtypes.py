"""The dtypes of segments as text: what a segment stores, and what ``SharedVector.dtype`` shows."""

from __future__ import annotations

import ast
import functools
import sys
from typing import Any, TypeAlias

import numpy as np

from sharedvector import _core

__all__ = ["as_dtype", "decode_dtype", "encode_dtype"]

DTypeLike: TypeAlias = Any

# Kinds whose native name alone says everything: "float32", "datetime64[ns]".
_NAMED_KINDS = "biufcmM"


def as_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return ``numpy.dtype(dtype)``; also understands the texts of :func:`encode_dtype`.

    Raises:
        ValueError: it is no dtype, or one that cannot live in shared memory (see encode_dtype).
        ImportError: it is one of ml_dtypes', which is not installed.
    """
    if isinstance(dtype, str):
        found = decode_dtype(dtype)
    else:
        try:
            found = np.dtype(dtype)
        except (OverflowError, SyntaxError, TypeError) as error:
            raise ValueError(f"not a dtype: {dtype!r}") from error
    _check(found)
    return found


def encode_dtype(dtype: np.dtype[Any]) -> str:
    """Return the text that stands for ``dtype``; equal dtypes give equal texts.

    A plain name for native numbers, booleans and dates ("float32", "datetime64[ns]") and for the
    types of ml_dtypes ("bfloat16"); NumPy's short form otherwise (">i2", "|S5"); a Python literal
    for structured dtypes.

    Raises:
        TypeError: it is no numpy.dtype.
        ValueError: the dtype holds objects or has no fixed size, is a subarray, has field titles,
            its text is longer than 255 bytes, or it has a type of ml_dtypes in swapped byte order.
    """
    if not isinstance(dtype, np.dtype):
        raise TypeError(f"dtype should be a numpy.dtype, got {dtype!r}; make one by numpy.dtype()")
    _check(dtype)
    spelled = _spell(dtype)
    text = spelled if isinstance(spelled, str) else _compact(spelled)
    size = len(text.encode())
    if size >= _core.DTYPE_BYTES:
        raise ValueError(
            f"the text of a dtype has at most {_core.DTYPE_BYTES - 1} bytes, found {size} for "
            f"{dtype}; use fewer fields or shorter names"
        )
    return text


def decode_dtype(text: str) -> np.dtype[Any]:
    """Return the dtype that ``text`` stands for.

    Raises:
        TypeError: it is no text.
        ValueError: no dtype has this text.
        ImportError: the dtype comes from ml_dtypes, which is not installed.
    """
    if not isinstance(text, str):
        raise TypeError(f"text should be a str, got {text!r}; as_dtype() takes other dtypes")
    if text[:1] in ("[", "{"):
        try:
            return _build(ast.literal_eval(text))
        except (IndexError, KeyError, OverflowError, SyntaxError, TypeError) as error:
            raise ValueError(f"not a dtype: {text!r}") from error
    return _decode_name(text)


@functools.lru_cache(maxsize=128)  # a fifth of what a further handle costs
def _decode_name(text: str) -> np.dtype[Any]:
    """The dtype of a name or of NumPy's short form; nobody can change one of these."""
    try:
        return np.dtype(text)
    except (SyntaxError, TypeError, ValueError):  # SyntaxError: "f4,(2"
        return _extension_dtype(text)


def _check(dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise ValueError(f"dtype {dtype} holds references, which mean nothing to other processes")
    if dtype.subdtype is not None:
        raise ValueError(f"dtype {dtype} is a subarray: give the base dtype and a longer shape")
    if dtype.itemsize == 0:
        raise ValueError(f"dtype {dtype} has no size: give one, as in 'S8' or 'U8'")
    _check_order(dtype)


def _check_order(dtype: np.dtype[Any]) -> None:
    """Refuse a type of ml_dtypes in swapped byte order: its values are misread, all but astype().

    Looks at each field by itself, as isnative overlooks a subarray.
    """
    if dtype.subdtype is not None:
        _check_order(dtype.subdtype[0])
    elif dtype.fields is not None:
        for field in dtype.fields.values():
            _check_order(field[0])
    elif is_extension(dtype) and dtype.itemsize > 1 and not dtype.isnative:
        raise ValueError(
            f"{dtype.type.__name__} should have this machine's byte order, got the other one, in "
            "which NumPy and ml_dtypes misread it; use dtype.newbyteorder('=')"
        )


def is_extension(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is one of ml_dtypes'."""
    return dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def _compact(value: Any) -> str:
    """``repr`` without blanks between items; those in names stay."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{k!r}:{_compact(item)}" for k, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ",".join(map(_compact, value)) + (",)" if len(value) == 1 else ")")
    return repr(value)


def _spell(dtype: np.dtype[Any]) -> Any:
    """One dtype as the nested literal that _build() reads."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return (_spell(base), shape)
    if dtype.names is not None:
        return _spell_fields(dtype, dtype.names)
    if is_extension(dtype) or (dtype.isnative and dtype.kind in _NAMED_KINDS):
        return dtype.name
    return dtype.str


def _spell_fields(dtype: np.dtype[Any], names: tuple[str, ...]) -> Any:
    fields = []
    packed_offset = 0
    packed = not dtype.isalignedstruct
    for name in names:
        # A third item is the title: a second name, which a text cannot tell from the first.
        field = dtype.fields[name] if dtype.fields is not None else ()
        if len(field) != 2:
            raise ValueError(f"field {name!r} of dtype {dtype} has a title; leave it out")
        packed = packed and field[1] == packed_offset
        packed_offset += field[0].itemsize
        fields.append((name, _spell(field[0]), field[1]))
    if packed and packed_offset == dtype.itemsize:
        return [(name, spelled) for name, spelled, _ in fields]
    return {
        "names": [name for name, _, _ in fields],
        "formats": [spelled for _, spelled, _ in fields],
        "offsets": [offset for _, _, offset in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def _build(spelled: Any) -> np.dtype[Any]:
    if isinstance(spelled, str):
        return decode_dtype(spelled)
    if isinstance(spelled, tuple):
        base, shape = spelled
        return np.dtype((_build(base), shape))
    if isinstance(spelled, list):
        return np.dtype([(item[0], _build_item(item)) for item in spelled])
    return np.dtype(
        {
            "names": spelled["names"],
            "formats": [_build(format_) for format_ in spelled["formats"]],
            "offsets": spelled["offsets"],
            "itemsize": spelled["itemsize"],
        },
        align=bool(spelled.get("aligned", False)),
    )


def _build_item(item: tuple[Any, ...]) -> np.dtype[Any]:
    # A subarray field is (name, base, shape) in NumPy's spelling, (name, (base, shape)) in ours.
    return _build(item[1]) if len(item) == 2 else np.dtype((_build(item[1]), item[2]))


def _extension_dtype(text: str) -> np.dtype[Any]:
    native = text[:1] in ("=", "<" if sys.byteorder == "little" else ">")
    name = text[1:] if native else text
    if not name.isidentifier():
        raise ValueError(f"not a dtype: {text!r}")
    try:
        import ml_dtypes
    except ImportError:
        if name == "bfloat16" or name.startswith(("float4_", "float6_", "float8_")):
            raise ImportError(f"dtype {name} needs: pip install ml_dtypes") from None
        raise ValueError(f"not a dtype: {text!r}") from None
    scalar = getattr(ml_dtypes, name, None)
    if not isinstance(scalar, type):
        raise ValueError(f"not a dtype: {text!r}; NumPy and ml_dtypes have none of this name")
    return np.dtype(scalar)
