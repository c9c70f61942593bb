"""Calls on pools, services, datasets and coordination files, as a script for 0.1.0 makes them."""

from __future__ import annotations

import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from compare_files import exit_code
from compare_record import Recorder

from sharedvector import (
    Chunk,
    Loader,
    OwnerLock,
    PoolHandle,
    PoolPaths,
    ProducerService,
    ProducerSpec,
    SharedMemoryDataset,
    SharedVector,
    ensure_pool,
    no_meta,
    pool,
    probe_ready,
    remove_shared_memory,
)
from sharedvector.coordination import (
    attach,
    clear_marker,
    owner_alive,
    read_generation,
    read_marker,
    validate_name,
    wait_until_ready,
    write_marker,
)

SHAPE = (2, 3, 4)
BYTES = 2 * 3 * 4 * 4


class Constant:
    """Loader of `sources` sources with one chunk each: all ones, so that every read is the same."""

    def __init__(self, sources: int = 4, meta: bool = True, dtype: str = "float32") -> None:
        self.sources = sources
        self.meta = meta
        self.dtype = dtype

    def __len__(self) -> int:
        return self.sources

    def __call__(self, source_index: int) -> list[Chunk]:
        meta = np.array([1.0, 2.0, 3.0]) if self.meta else no_meta()
        return [Chunk(np.ones(SHAPE, self.dtype), meta)]


def double(item: dict[str, Any]) -> dict[str, Any]:
    item["data"] = item["data"] * 2
    return item


def add_one(item: dict[str, Any]) -> dict[str, Any]:
    item["data"] = item["data"] + 1
    return item


def spec(loader: Loader | None = None, **options: Any) -> ProducerSpec:
    loader = Constant() if loader is None else loader
    options = {"num_producers": 1, "sleep_seconds": 0.05, **options}
    return ProducerSpec(loader, options.pop("chunk_size", BYTES), **options)


def coordination_calls(r: Recorder) -> None:
    for label, name in (
        ("plain", "abc"),
        ("unicode", "ü"),
        ("space", " "),
        ("empty", ""),
        ("slash", "a/b"),
        ("nul", "a\0b"),
        ("leading_dot", ".x"),
        ("lock_suffix", "x.lock"),
        ("ready_suffix", "x.ready"),
        ("too_long", "x" * 300),
    ):
        r.call(f"coordination.name_{label}", lambda n=name: validate_name(n))  # type: ignore[misc]
    name = r.name("coordination")
    paths = PoolPaths.for_name(name, r.work)
    r.call("coordination.paths_type", lambda: type(paths).__name__)
    r.call("coordination.paths_equal", lambda: paths == PoolPaths.for_name(name, str(r.work)))
    r.call("coordination.paths_made", lambda: paths == PoolPaths(name, r.work))
    r.call("coordination.lock", lambda: paths.lock == r.work / f"{name}.lock")
    r.call("coordination.marker", lambda: paths.marker == r.work / f"{name}.ready")
    r.call("coordination.segment", lambda: str(paths.segment) == f"/dev/shm/{name}")
    r.call("coordination.default_directory", lambda: PoolPaths.for_name(name).lock_dir)
    ready = ready_reader(r, paths)
    ready("coordination.probe_nothing", 4)
    r.call("coordination.marker_none", lambda: read_marker(paths))
    r.call("coordination.generation_none", lambda: read_generation(paths))
    r.call("coordination.alive_none", lambda: owner_alive(paths))
    lock: Any = r.call("coordination.acquire", lambda: OwnerLock.try_acquire(paths))
    r.call("coordination.held", lambda: lock.held)
    r.call("coordination.generation", lambda: read_generation(paths) == lock.generation)
    r.call("coordination.generation_type", lambda: type(lock.generation).__name__)
    r.call("coordination.alive", lambda: owner_alive(paths))
    r.call("coordination.acquire_again", lambda: OwnerLock.try_acquire(paths, 0.1, 0.02))
    r.call("coordination.write_marker", lambda: write_marker(paths, lock.generation))
    r.call("coordination.read_marker", lambda: read_marker(paths) == lock.generation)
    ready("coordination.probe_no_segment", 4)
    vector = SharedVector(name, 4096, 1 << 20)
    for _ in range(3):
        vector.append(np.zeros(3, np.float32))
    ready("coordination.probe_three_of_four", 4)
    ready("coordination.probe_three_of_three", 3)
    ready("coordination.probe_three_of_two", 2)
    r.call(
        "coordination.wait_timeout",
        lambda: wait_until_ready(paths, 9, time.monotonic() + 0.2, poll_interval=0.02),
    )
    r.call(
        "coordination.wait_abort",
        lambda: wait_until_ready(paths, 9, time.monotonic() + 5, abort=lambda: "gone"),
    )
    r.call(
        "coordination.wait_ready", lambda: wait_until_ready(paths, 3, time.monotonic() + 5).ready
    )
    r.call("coordination.attach", lambda: len(attach(paths)))
    r.call("coordination.clear_marker", lambda: clear_marker(paths))
    r.call("coordination.clear_marker_again", lambda: clear_marker(paths))
    r.call("coordination.release", lambda: lock.release())
    r.call("coordination.release_again", lambda: lock.release())
    r.call("coordination.held_after", lambda: lock.held)
    r.call("coordination.alive_after", lambda: owner_alive(paths))
    del vector
    remove_shared_memory(name)
    r.call("coordination.attach_missing", lambda: attach(paths))


def ready_reader(r: Recorder, paths: PoolPaths) -> Any:
    def record(key: str, slots: int) -> None:
        # The reason is prose, so only that there is one.
        r.call(key, lambda: [probe_ready(paths, slots).ready, bool(probe_ready(paths, slots)[1])])

    return record


def spec_calls(r: Recorder) -> None:
    made = ProducerSpec(Constant(7), 64)
    defaults = ("source_size", "dtype", "num_producers", "sleep_seconds", "producer_join_timeout")
    r.call("spec.defaults", lambda: [getattr(made, name) for name in defaults])
    r.call("spec.source_size", lambda: made.resolve_source_size())
    r.call("spec.source_size_given", lambda: spec(source_size=9).resolve_source_size())
    r.call("spec.no_length", lambda: ProducerSpec(double, 64).resolve_source_size())  # type: ignore[arg-type]
    r.call("spec.frozen", lambda: setattr(made, "dtype", "int16"))
    r.call("spec.pickle", lambda: pickle.loads(pickle.dumps(made)).chunk_size)


def ensure_error_calls(r: Recorder) -> None:
    name = r.name("errors")
    r.call("ensure.auto_without_producer", lambda: ensure_pool(name, 4))
    r.call("ensure.spawn_without_producer", lambda: ensure_pool(name, 4, mode="spawn"))
    r.call("ensure.bad_mode", lambda: ensure_pool(name, 4, mode="no-such"))  # type: ignore[arg-type]
    r.call(
        "ensure.attach_timeout",
        lambda: ensure_pool(name, 4, mode="attach", ready_timeout=0.2, poll_interval=0.02),
    )
    r.call("ensure.bad_name", lambda: ensure_pool("a/b", 4, mode="attach", ready_timeout=0.2))


def pool_calls(r: Recorder) -> None:
    name = r.name("pool")
    handle: Any = r.call("pool.spawn", lambda: ensure_pool(name, 4, producer=spec(), mode="spawn"))
    r.call(
        "pool.attributes",
        lambda: [handle.name == name, handle.slot_count, handle.is_owner, handle.closed],
    )
    r.call("pool.signal_handler", lambda: signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    r.call("pool.lock_dir", lambda: handle.lock_dir)
    r.call(
        "pool.generation", lambda: read_generation(PoolPaths.for_name(name)) == handle.generation
    )
    r.call("pool.same_object", lambda: ensure_pool(name, 4, producer=spec()) is handle)
    r.call("pool.same_object_attach", lambda: ensure_pool(name, 4, mode="attach") is handle)
    r.call("pool.other_slot_count", lambda: ensure_pool(name, 3, producer=spec()))
    r.call("pool.attach", lambda: [len(handle.attach()), handle.attach().dtype])
    r.call("pool.chunk", lambda: handle.attach().get(0))
    r.call("pool.meta", lambda: handle.attach().get_meta(3))
    r.call("pool.refreshes", lambda: refreshes(handle))
    r.call("pool.stats", lambda: sorted(handle.stats().as_dict()))
    r.call("pool.stats_slots", lambda: handle.stats().slots)
    r.call("pool.probe", lambda: probe_ready(PoolPaths.for_name(name), 4).ready)
    r.call("pool.pickle", lambda: follower_of(handle))
    r.call("pool.command_while_owned", lambda: producer_exit_code(name))
    dataset_calls(r, handle)
    r.call("pool.close", lambda: handle.close())
    r.call("pool.close_again", lambda: handle.close())
    r.call("pool.closed", lambda: handle.closed)
    r.call("pool.gone", lambda: gone(name))
    r.call("pool.attach_after_close", lambda: handle.attach())
    r.call("pool.context", lambda: context_use(r))
    r.call("pool.context_of_handle", lambda: handle_context(r))
    r.call("pool.lock_dir_given", lambda: in_lock_dir(r))
    r.call("pool.int16", lambda: of_dtype(r, "int16"))
    r.call("pool.in_a_thread", lambda: in_thread(r))
    r.call("pool.loader_fails", lambda: ensure_pool(r.name("fails"), 2, producer=spec(Broken())))


def producer_exit_code(name: str) -> int:
    loader = ("--loader-class", "compare_pool:Constant", "--chunk-size-mb", "0.01")
    return exit_code("producer_main", "--name", name, "--slot-count", "4", *loader)


class Broken(Constant):
    """Loader whose every source raises."""

    def __call__(self, source_index: int) -> list[Chunk]:
        raise OSError(f"source {source_index} is truncated")


def refreshes(handle: PoolHandle) -> bool:
    vector = handle.attach()
    before = int(vector.write_counts().sum())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for index in range(len(vector)):
            vector.get(index)
        if int(vector.write_counts().sum()) >= before + 4:
            return True
        time.sleep(0.02)
    return False


def follower_of(handle: PoolHandle) -> list[object]:
    copy = pickle.loads(pickle.dumps(handle))
    result = [copy.name == handle.name, copy.is_owner, copy.slot_count, len(copy.attach())]
    copy.close()
    return [*result, copy.closed, handle.closed]


def start_second(name: str) -> None:
    with ProducerService(name, Constant(), 4, 2, BYTES, 1, log_level=40):
        ProducerService(name, Constant(), 4, 2, BYTES, 1, log_level=40).start()


def gone(name: str) -> bool:
    paths = PoolPaths.for_name(name)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not Path(paths.segment).exists() and not paths.marker.exists():
            return True
        time.sleep(0.05)
    return False


def context_use(r: Recorder) -> list[object]:
    name = r.name("context")
    with pool(name, 2, producer=spec(), ready_timeout=60) as handle:
        inside = [len(handle.attach()), handle.is_owner]
    return [*inside, handle.closed, gone(name)]


def handle_context(r: Recorder) -> list[object]:
    name = r.name("with")
    with ensure_pool(name, 2, producer=spec()) as handle:
        inside = handle.closed
    return [inside, handle.closed]


def in_lock_dir(r: Recorder) -> list[object]:
    name = r.name("lockdir")
    with pool(name, 2, producer=spec(), lock_dir=r.work) as handle:
        files = sorted(path.suffix for path in r.work.glob(f"{name}.*"))
        return [handle.lock_dir == r.work, files]


def of_dtype(r: Recorder, dtype: str) -> list[object]:
    loader = Constant(dtype=dtype)
    with pool(r.name(dtype), 2, producer=spec(loader, dtype=dtype)) as handle:
        vector = handle.attach()
        return [vector.dtype, str(vector.get(0).dtype)]


def in_thread(r: Recorder) -> object:
    """0.1.0 works from the main thread alone; whatever happens is the result."""
    outcome: list[object] = []

    def work() -> None:
        try:
            with pool(r.name("thread"), 2, producer=spec()) as handle:
                outcome.append(len(handle.attach()))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    return outcome


def dataset_calls(r: Recorder, handle: PoolHandle) -> None:
    dataset = SharedMemoryDataset.from_pool(handle)
    iterable: Any = dataset
    r.call("dataset.length", lambda: [len(dataset), dataset.name == handle.name])
    r.call("dataset.item", lambda: dataset[0])
    r.call("dataset.item_types", lambda: [[k, str(v.dtype)] for k, v in dataset[1].items()])
    r.call("dataset.numpy_index", lambda: sorted(dataset[np.int64(2)]))
    r.call("dataset.past_end", lambda: dataset[4])
    r.call("dataset.negative", lambda: dataset[-1])
    r.call(
        "dataset.transforms",
        lambda: SharedMemoryDataset.from_pool(handle, transforms=(double, add_one))[0]["data"],
    )
    r.call(
        "dataset.meta_key",
        lambda: sorted(SharedMemoryDataset.from_pool(handle, meta_key="voxel")[0]),
    )
    r.call(
        "dataset.by_name",
        lambda: SharedMemoryDataset(handle.name, 4, 5.0, 0.1, (), "spacing", True)[0]["data"],
    )
    r.call("dataset.pickle", lambda: pickle.loads(pickle.dumps(dataset))[0]["data"])
    r.call("dataset.item_is_a_copy", lambda: item_is_a_copy(dataset))
    r.call("dataset.stats", lambda: type(dataset.stats()).__name__)
    r.call("dataset.iterates", lambda: sum(1 for _ in iterable))
    r.call("dataset.fewer_slots", lambda: len(SharedMemoryDataset(handle.name, 2)))
    r.call(
        "dataset.timeout",
        lambda: SharedMemoryDataset(r.name("no-pool"), 2, ready_timeout=0.2, poll_interval=0.05),
    )
    for workers in (0, 1):
        r.call(f"dataset.loader_{workers}", lambda w=workers: loader_batch(dataset, w))  # type: ignore[misc]


def item_is_a_copy(dataset: SharedMemoryDataset) -> object:
    dataset[0]["data"].mul_(0)
    return dataset[0]["data"]


def loader_batch(dataset: SharedMemoryDataset, workers: int) -> list[object]:
    from torch.utils.data import DataLoader

    batches = list(DataLoader(dataset, batch_size=2, num_workers=workers))
    return [len(batches), *(batches[0][key] for key in sorted(batches[0]))]


def service_calls(r: Recorder) -> None:
    name = r.name("service")
    r.call(
        "service.no_producers",
        lambda: ProducerService(name, Constant(), 4, 4, BYTES, num_producers=0),
    )
    r.call("service.no_sources", lambda: ProducerService(name, Constant(), 0, 4, BYTES))
    r.call(
        "service.more_workers_than_slots", lambda: ProducerService(name, Constant(), 4, 3, BYTES)
    )
    service = ProducerService(
        name, Constant(), 4, 4, BYTES, num_producers=1, lock_dir=r.work, log_level=40
    )
    r.call("service.fresh", lambda: [service.name == name, service.started])
    r.call("service.generation_type", lambda: type(service.generation).__name__)
    r.call("service.stats_before_start", lambda: service.stats())
    r.call("service.start", lambda: service.start())
    r.call("service.started", lambda: service.started)
    r.call("service.slots", lambda: service.stats().slots)
    r.call("service.probe", lambda: probe_ready(PoolPaths.for_name(name, r.work), 4).ready)
    r.call("service.attach_handle", lambda: attached_use(name, r.work))
    r.call("service.attach_fewer_slots", lambda: attached_use(name, r.work, 2))
    r.call("service.attach_more_slots", lambda: attached_use(name, r.work, 6))
    r.call("service.stop", lambda: service.stop())
    r.call("service.stop_again", lambda: service.stop())
    r.call("service.stopped", lambda: service.started)
    r.call("service.segment_gone", lambda: Path(f"/dev/shm/{name}").exists())
    r.call("service.context", lambda: service_context(r))
    r.call("service.start_on_live_pool", lambda: start_second(r.name("second")))


def attached_use(name: str, lock_dir: Path, slots: int = 4) -> list[object]:
    with ensure_pool(name, slots, mode="attach", ready_timeout=1.0, lock_dir=lock_dir) as handle:
        return [handle.is_owner, len(handle.attach()), handle.attach().get(0)]


def service_context(r: Recorder) -> list[object]:
    name = r.name("servicewith")
    with ProducerService(name, Constant(), 4, 2, BYTES, 1, lock_dir=r.work) as service:
        inside = [service.started, len(SharedVector(name, create=False))]
    return [*inside, service.started, Path(f"/dev/shm/{name}").exists()]


def record_pool(r: Recorder) -> None:
    coordination_calls(r)
    spec_calls(r)
    ensure_error_calls(r)
    pool_calls(r)
    service_calls(r)
