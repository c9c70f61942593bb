"""Chunk files: decoded into place, and refused when damaged."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharedvector import _core
from sharedvector.loaders.zarr.engines import chunks
from sharedvector.loaders.zarr.engines.base import Scratch, as_bytes
from sharedvector.loaders.zarr.engines.chunks import ChunkReader
from sharedvector.loaders.zarr.metadata import read_layout

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
numcodecs = pytest.importorskip("numcodecs", reason="numcodecs is not installed")

VOLUME = np.random.default_rng(0).normal(0, 500, (6, 8, 8)).astype(np.int16)
INDEX = (1, 0, 0)  # of the chunk that gets damaged


@pytest.fixture(params=["read", "mapped"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How encoded bytes come from a file: every test is run both ways."""
    if request.param == "mapped":
        _core.guard_file_maps()
        monkeypatch.setattr(chunks, "_MAPPED_BYTES", 1)
    return str(request.param)


def compressors() -> dict[str, Any]:
    codecs = zarr.codecs
    return {
        "none": None,
        "zstd": codecs.ZstdCodec(),
        "zstd-checksum": codecs.ZstdCodec(checksum=True),
        "blosc": codecs.BloscCodec(cname="lz4", shuffle="shuffle"),
        "gzip": codecs.GzipCodec(),
        "crc": codecs.Crc32cCodec(),
    }


def make(root: Path, kind: str, **settings: Any) -> tuple[ChunkReader, Path]:
    """A reader of VOLUME, and the file of the chunk at INDEX."""
    settings = {"chunks": (2, 8, 8), "compressors": compressors()[kind], **settings}
    array = zarr.create_array(root / "v", shape=VOLUME.shape, dtype="int16", **settings)
    array[...] = VOLUME
    layout = read_layout(json.loads((root / "v" / "zarr.json").read_text()))
    return ChunkReader(root / "v", layout, Scratch()), root / "v" / layout.file_name(INDEX)


def buffer() -> np.ndarray[Any, Any]:
    return np.full(2 * 8 * 8, -1, np.int16)


@pytest.mark.parametrize("kind", sorted(compressors()))
def test_decode(tmp_path: Path, kind: str) -> None:
    reader, path = make(tmp_path, kind)
    with reader:
        out = buffer()
        assert reader.decode(INDEX, as_bytes(out))
        assert np.array_equal(out.reshape(2, 8, 8), VOLUME[2:4])
        path.unlink()
        out[...] = 5
        assert not reader.decode(INDEX, as_bytes(out)) and (out == 5).all()


Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "cut": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"x" * 9,
    "much longer": lambda data: data + b"x" * 200_000,
    "garbage": lambda data: bytes(range(256)) * (len(data) // 256 + 1),
}


@pytest.mark.parametrize("damage", sorted(DAMAGES))
@pytest.mark.parametrize("kind", sorted(compressors()))
def test_damage_of_the_size_is_found(tmp_path: Path, kind: str, damage: str) -> None:
    reader, path = make(tmp_path, kind)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with reader, pytest.raises(ValueError, match=r"chunk c/1/0/0: ."):
        reader.decode(INDEX, as_bytes(buffer()))


def settle(path: Path) -> None:
    """Wait until the next change of a file has another time than the last one."""
    later = path.with_name("later")
    later.touch()
    while later.stat().st_ctime_ns <= path.stat().st_ctime_ns:
        time.sleep(0.002)
        later.touch()


@pytest.mark.parametrize("at_work", ["good", "last byte", "fails"])
def test_what_is_cut_short_while_it_is_decoded(
    tmp_path: Path, way: str, at_work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, path = make(tmp_path, "zstd")
    settle(path)
    seen = []

    def decode(encoded: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
        os.truncate(path, path.stat().st_size - 1 if at_work == "last byte" else 0)
        seen.append(encoded.any())
        if at_work == "fails":
            raise RuntimeError("what is this?")

    monkeypatch.setattr(reader, "_decode", decode)
    with reader:
        if way == "read" and at_work != "fails":  # the bytes were here before
            assert reader.decode(INDEX, as_bytes(buffer()))
        else:
            text = "what is this" if way == "read" else "it ends too early"
            with pytest.raises(ValueError, match=f"chunk c/1/0/0: {text}"):
                reader.decode(INDEX, as_bytes(buffer()))
    assert seen == [way == "read" or at_work == "last byte"]


def test_what_changes_while_it_is_decoded_is_read(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, path = make(tmp_path, "zstd")
    settle(path)
    seen, decode = [], reader._decode

    def change(encoded: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
        seen.append(encoded.base is not None)
        os.chmod(path, 0o600)
        decode(encoded, out)

    monkeypatch.setattr(reader, "_decode", change)
    out = buffer()
    with reader:
        assert reader.decode(INDEX, as_bytes(out))
    assert np.array_equal(out.reshape(2, 8, 8), VOLUME[2:4])
    assert len(seen) == (2 if way == "mapped" else 1)


def test_only_large_chunks_without_a_checksum_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _core.guard_file_maps()
    asked, map_file = [], _core.map_file

    def spy(fd: int, offset: int, size: int) -> Any:
        asked.append(size)
        return map_file(fd, offset, size)

    monkeypatch.setattr(_core, "map_file", spy)
    for limit, count in ((10**6, 0), (1, 1)):
        monkeypatch.setattr(chunks, "_MAPPED_BYTES", limit)
        for kind in ("crc", "zstd"):
            (tmp_path / f"{kind}{count}").mkdir()
            reader, path = make(tmp_path / f"{kind}{count}", kind)
            with reader:
                assert reader.decode(INDEX, as_bytes(buffer()))
        assert asked == [path.stat().st_size] * count


@pytest.mark.parametrize("kind", ["zstd-checksum", "gzip", "crc"])
def test_flipped_bits_are_found_by_checksums(tmp_path: Path, kind: str) -> None:
    reader, path = make(tmp_path, kind)
    good = path.read_bytes()
    # not in gzip's time and flags of the origin, which nothing depends on
    for place in range(10, len(good), 7):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x40]) + good[place + 1 :])
        with pytest.raises(ValueError, match="chunk c/1/0/0"):
            reader.decode(INDEX, as_bytes(buffer()))


@pytest.mark.parametrize("kind", ["zstd", "blosc", "gzip"])
@pytest.mark.parametrize("elements", [1, 127, 129])
def test_frames_of_another_size(tmp_path: Path, kind: str, elements: int) -> None:
    reader, path = make(tmp_path, kind)
    codec = {"zstd": numcodecs.Zstd(), "blosc": numcodecs.Blosc(), "gzip": numcodecs.GZip()}[kind]
    path.write_bytes(codec.encode(np.arange(elements, dtype=np.int16)))
    with reader, pytest.raises(ValueError, match=rf"decodes to {elements * 2} bytes.*has 256"):
        reader.decode(INDEX, as_bytes(buffer()))


def test_several_frames_make_a_chunk(tmp_path: Path) -> None:
    for kind, codec in (("zstd", numcodecs.Zstd()), ("gzip", numcodecs.GZip())):
        (tmp_path / kind).mkdir()
        reader, path = make(tmp_path / kind, kind)
        path.write_bytes(codec.encode(VOLUME[2].tobytes()) + codec.encode(VOLUME[3].tobytes()))
        out = buffer()
        with reader:
            assert reader.decode(INDEX, as_bytes(out))
        assert np.array_equal(out.reshape(2, 8, 8), VOLUME[2:4])


def test_zstd_frame_without_its_size(tmp_path: Path) -> None:
    reader, path = make(tmp_path, "zstd")
    # One raw block of 256 bytes: window descriptor instead of the size of the content.
    header = b"\x28\xb5\x2f\xfd\x00\x00" + (256 << 3 | 1).to_bytes(3, "little")
    path.write_bytes(header + VOLUME[2:4].tobytes())
    out = buffer()
    with reader:
        assert reader.decode(INDEX, as_bytes(out))
        assert np.array_equal(out.reshape(2, 8, 8), VOLUME[2:4])
        short = b"\x28\xb5\x2f\xfd\x00\x00" + (100 << 3 | 1).to_bytes(3, "little") + b"\0" * 100
        path.write_bytes(short)
        with pytest.raises(ValueError, match="c/1/0/0"):
            reader.decode(INDEX, as_bytes(out))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 1000, 65_791, 65_792, 100_000])
def test_zstd_size_in_every_form_of_header(size: int) -> None:
    frame = numcodecs.Zstd(level=1).encode(bytes(size)) if size else b"\x28\xb5\x2f\xfd\x20\x00"
    assert chunks._zstd_size(np.frombuffer(frame, np.uint8)) == size


def test_errors_of_the_system_keep_their_number(tmp_path: Path) -> None:
    reader, path = make(tmp_path, "zstd")
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError, match="chunk c/1/0/0"):
        reader.decode(INDEX, as_bytes(buffer()))


@pytest.mark.parametrize("kind", ["none", "zstd"])
def test_a_pipe_of_that_name_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    reader, path = make(tmp_path, kind)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="chunk c/1/0/0"):
        reader.decode(INDEX, as_bytes(buffer()))


def test_read_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_IOV_MAX", 2)
    reader, path = make(tmp_path, "none")
    out = buffer().reshape(2, 8, 8)
    rows = [as_bytes(out[i // 8, i % 8]) for i in range(15, 0, -1)]
    assert reader.read(INDEX, rows[::-1], 16)
    assert (out[0, 0] == -1).all()
    assert np.array_equal(out.reshape(16, 8)[1:], VOLUME[2:4].reshape(16, 8)[1:])
    os.truncate(path, 200)
    with pytest.raises(ValueError, match=r"chunk c/1/0/0: 200 bytes, a chunk has 256"):
        reader.read(INDEX, rows, 16)
    path.unlink()
    assert not reader.read(INDEX, rows, 16)


# --- shards


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("kind", ["none", "zstd", "blosc", "crc"])
def test_shards(tmp_path: Path, kind: str, location: str) -> None:
    shards = {"shape": (4, 8, 8), "index_location": location}
    reader, _ = make(tmp_path, kind, chunks=(1, 4, 8), shards=shards)
    out = np.empty(32, np.int16)
    with reader:
        for z in range(6):
            for y in range(2):
                assert reader.decode((z, y, 0), as_bytes(out))
                assert np.array_equal(out.reshape(4, 8), VOLUME[z, 4 * y : 4 * y + 4])
        assert len(reader._shards) == 1
    assert not reader._shards


def sharded(root: Path) -> tuple[ChunkReader, Path]:
    """The same with its one shard of a 2 x 1 x 1 grid of shards."""
    reader, _ = make(root, "zstd", chunks=(2, 8, 8), shards=(4, 8, 8))
    return reader, root / "v" / "c" / "0" / "0" / "0"


def test_missing_shards_and_chunks_of_shards(tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "v", shape=(8, 4), chunks=(2, 4), shards=(4, 4), dtype="int16"
    )
    array[:2] = 1
    layout = read_layout(json.loads((tmp_path / "v" / "zarr.json").read_text()))
    with ChunkReader(tmp_path / "v", layout, Scratch()) as reader:
        out = np.full(8, 9, np.int16)
        assert [reader.decode((i, 0), as_bytes(out)) for i in range(4)] == [True] + [False] * 3
        assert (out == 1).all()


def test_damaged_index(tmp_path: Path) -> None:
    reader, path = sharded(tmp_path)
    good = path.read_bytes()
    for place in range(-36, 0, 5):
        data = bytearray(good)
        data[place] ^= 1
        path.write_bytes(data)
        with reader, pytest.raises(ValueError, match=r"\(1, 0, 0\) of shard c/0/0/0: checksum"):
            reader.decode(INDEX, as_bytes(buffer()))
    path.write_bytes(good[-20:])
    with reader, pytest.raises(ValueError, match=r"shard c/0/0/0: 20 bytes, the index"):
        reader.decode(INDEX, as_bytes(buffer()))


@pytest.mark.parametrize("entry", [(10**9, 5), (0, 10**9), (2**64 - 2, 2**64 - 2), (5, 2**64 - 1)])
def test_index_that_leads_out_of_the_file(tmp_path: Path, entry: tuple[int, int]) -> None:
    import google_crc32c

    reader, path = sharded(tmp_path)
    index = np.frombuffer(path.read_bytes()[-36:-4], "<u8").copy()
    index[2:] = entry
    crc = google_crc32c.value(index.tobytes()).to_bytes(4, "little")
    path.write_bytes(path.read_bytes()[:-36] + index.tobytes() + crc)
    with reader, pytest.raises(ValueError, match=r"shard c/0/0/0: its index says bytes"):
        reader.decode(INDEX, as_bytes(buffer()))


def open_below(directory: Path) -> int:
    """How many files of a directory this process has open; others come and go by themselves."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += directory in descriptor.readlink().parents
    return found


def test_few_shards_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_MAX_FILES", 2)
    reader, _ = make(tmp_path, "zstd", chunks=(1, 2, 8), shards=(2, 2, 8))
    out = np.empty(16, np.int16)
    with reader:
        for z in range(6):
            for y in range(4):
                assert reader.decode((z, y, 0), as_bytes(out))
                assert np.array_equal(out.reshape(2, 8), VOLUME[z, 2 * y : 2 * y + 2])
                assert 0 < open_below(tmp_path) <= 2
    assert open_below(tmp_path) == 0


def test_scratch_grows_and_stays() -> None:
    scratch = Scratch()
    first = scratch.take("a", 10)
    assert scratch.take("a", 5).base is first.base
    assert scratch.take("b", 5).base is not first.base
    assert scratch.take("a", 20).nbytes == 20
    assert scratch.take("a", 10).base.nbytes == 20
