"""How a Zarr array is laid out, from the text of its ``zarr.json``; no file is opened here."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Layout", "NotDirectError", "Shards", "read_layout"]

_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 "
    "complex64 complex128".split()
)
# Members of zarr.json that say how data are stored, or that do not matter to that.
_MEMBERS = frozenset(
    "zarr_format node_type shape data_type chunk_grid chunk_key_encoding fill_value codecs "
    "attributes dimension_names storage_transformers".split()
)
# Codecs whose chunks are decoded straight into their place, by their names in zarr.json.
CODECS = {"zstd": "zstd", "blosc": "blosc", "gzip": "gzip", "numcodecs.lz4": "lz4"}


class NotDirectError(ValueError):
    """A layout that the direct engine does not read; the text says which part of it."""


class Shards(NamedTuple):
    """Files that hold several chunks each, and an index of them."""

    chunks: tuple[int, ...]  # in one file, along each axis
    index_first: bool  # at the start of the file, not at its end


class Layout(NamedTuple):
    """What the direct engine needs to know of an array."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]  # shape of what is decoded at once: of the inner chunks in shards
    dtype: np.dtype[Any]
    fill: Any  # scalar of that dtype: the value of missing chunks
    codec: str | None  # name in numcodecs; None: chunks are not compressed
    checksum: bool  # 4 bytes of CRC-32C end each encoded chunk
    shards: Shards | None
    prefix: str  # of the names of files
    separator: str

    @property
    def chunk_bytes(self) -> int:
        """Size of a decoded chunk; those at the edges are padded to it."""
        return math.prod(self.chunk) * self.dtype.itemsize

    @property
    def plain(self) -> bool:
        """Whether the files hold nothing but the elements."""
        return self.codec is None and not self.checksum

    @property
    def grid(self) -> tuple[int, ...]:
        """How many chunks there are along each axis."""
        return tuple(-(-size // part) for size, part in zip(self.shape, self.chunk, strict=True))

    def file_name(self, index: tuple[int, ...]) -> str:
        """The name of a chunk's, or shard's, file below the directory of the array."""
        return self.prefix + self.separator.join(map(str, index))


def read_layout(metadata: dict[str, Any]) -> Layout:
    """Return the layout that a parsed ``zarr.json`` describes.

    Raises:
        NotDirectError: anything in it that the direct engine does not read, be it valid or not.
    """
    if metadata.get("zarr_format") != 3:
        raise NotDirectError("it is not of Zarr v3")
    for name, value in metadata.items():
        if name not in _MEMBERS and not (
            isinstance(value, dict) and value.get("must_understand") is False
        ):
            raise NotDirectError(f"zarr.json has a member {name!r}")
    if metadata.get("storage_transformers"):
        raise NotDirectError("it has storage transformers")
    dtype = _dtype(metadata.get("data_type"))
    shape = _sizes(metadata.get("shape"), "shape", 0)
    grid, configuration = _named(metadata.get("chunk_grid"), "chunk_grid")
    if grid != "regular":
        raise NotDirectError(f"its chunk grid is {grid!r}, not regular")
    chunk = _sizes(configuration.get("chunk_shape"), "chunk_shape", 1)
    codecs = metadata.get("codecs")
    shards = None
    if isinstance(codecs, list) and len(codecs) == 1:
        name, configuration = _named(codecs[0], "codec")
        if name == "sharding_indexed":
            inner = _sizes(configuration.get("chunk_shape"), "chunk_shape", 1)
            shards = _shards(configuration, chunk, inner)
            codecs, chunk = configuration.get("codecs"), inner
    if not len(shape) == len(chunk) > 0:
        raise NotDirectError(f"shape {shape} and chunk_shape {chunk} do not go together")
    prefix, separator = _keys(metadata.get("chunk_key_encoding"))
    fill = _fill(metadata.get("fill_value"), dtype)
    codec, checksum = _codec(codecs, dtype)
    return Layout(shape, chunk, dtype, fill, codec, checksum, shards, prefix, separator)


def _named(value: object, what: str) -> tuple[str, dict[str, Any]]:
    """Name and configuration of an extension point of the format."""
    if isinstance(value, str):
        return value, {}
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        configuration = value.get("configuration", {})
        if isinstance(configuration, dict):
            return value["name"], configuration
    raise NotDirectError(f"its {what} is {value!r}")


def _sizes(value: object, what: str, least: int) -> tuple[int, ...]:
    if isinstance(value, list) and all(type(size) is int and size >= least for size in value):
        return tuple(value)
    raise NotDirectError(f"its {what} is {value!r}")


def _dtype(name: object) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in _DTYPES:
        raise NotDirectError(f"its data_type is {name!r}")
    return np.dtype(name)


def _keys(value: object) -> tuple[str, str]:
    """Prefix and separator of the names of chunk files."""
    name, configuration = _named(value, "chunk_key_encoding")
    separator = configuration.get("separator", "/" if name == "default" else ".")
    if name not in ("default", "v2") or separator not in ("/", "."):
        raise NotDirectError(f"its chunk_key_encoding is {value!r}")
    return f"c{separator}" if name == "default" else "", separator


def _codec(codecs: object, dtype: np.dtype[Any]) -> tuple[str | None, bool]:
    """What follows ``bytes``: at most one codec, as numcodecs names it, and a checksum."""
    if not isinstance(codecs, list) or not codecs:
        raise NotDirectError(f"its codecs are {_names(codecs)}")
    first, configuration = _named(codecs[0], "codec")
    endian = configuration.get("endian", sys.byteorder)
    if first == "bytes" and dtype.itemsize > 1 and endian != sys.byteorder:
        raise NotDirectError(f"its bytes are {endian}-endian")
    rest = [_named(codec, "codec")[0] for codec in codecs[1:]]
    checksum = rest[-1:] == ["crc32c"]
    if checksum:
        rest.pop()
    if first != "bytes" or len(rest) > 1 or any(name not in CODECS for name in rest):
        raise NotDirectError(f"its codecs are {_names(codecs)}")
    return (CODECS[rest[0]] if rest else None), checksum


def _names(codecs: object) -> str:
    if not isinstance(codecs, list):
        return repr(codecs)
    return ", ".join(str(c.get("name")) if isinstance(c, dict) else str(c) for c in codecs)


def _shards(
    configuration: dict[str, Any], outer: tuple[int, ...], inner: tuple[int, ...]
) -> Shards:
    index = configuration.get("index_codecs")
    names = [_named(codec, "index codec") for codec in index] if isinstance(index, list) else []
    little = bool(names) and names[0][1].get("endian") == "little"
    if [name for name, _ in names] != ["bytes", "crc32c"] or not little:
        raise NotDirectError(f"the index of its shards has codecs {_names(index)}")
    location = configuration.get("index_location", "end")
    if location not in ("start", "end"):
        raise NotDirectError(f"the index of its shards is at {location!r}")
    if len(outer) != len(inner) or any(o % i for o, i in zip(outer, inner, strict=True)):
        raise NotDirectError(f"its shards {outer} are no multiple of their chunks {inner}")
    chunks = tuple(o // i for o, i in zip(outer, inner, strict=True))
    return Shards(chunks, location == "start")


def _fill(value: object, dtype: np.dtype[Any]) -> Any:
    """The fill value as a scalar of the dtype."""
    try:
        if dtype.kind == "c":
            real, imaginary = value if isinstance(value, list) else (None, None)
            part = np.dtype(f"f{dtype.itemsize // 2}")
            return dtype.type(complex(_fill(real, part), _fill(imaginary, part)))
        if dtype.kind == "b" and isinstance(value, bool):
            return dtype.type(value)
        if dtype.kind in "iu" and type(value) is int:
            return dtype.type(value)
        if dtype.kind == "f" and type(value) in (int, float):
            return dtype.type(value)
        if dtype.kind == "f" and value in ("NaN", "Infinity", "-Infinity"):
            return dtype.type(value)
    except (OverflowError, ValueError, TypeError):
        pass
    raise NotDirectError(f"its fill_value is {value!r}")
