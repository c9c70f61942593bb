"""One task of a call: what its worker is sent, and what becomes of it there."""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import Pool, ThreadPool
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from sharedvector._common import Mailbox

__all__ = ["Events", "Job", "Packer", "array_of", "in_this_process", "raise_first", "work"]


Events: TypeAlias = Mailbox[int | None]  # numbers of ended tasks; None: cancelled


class Job(NamedTuple):
    """What one task gets: parts of the inputs, and the part of the output or None."""

    parts: tuple[Any, ...]
    target: Any


def in_this_process(executor: Any) -> bool:
    """Whether tasks run in threads of this process and interpreter, so that nothing is pickled."""
    if isinstance(executor, ThreadPoolExecutor):
        # The pool of interpreters is derived from the pool of threads.
        return type(executor).__name__ != "InterpreterPoolExecutor"
    return isinstance(executor, ThreadPool)


class Packer:
    """Makes the arguments of tasks, and their results of what comes back.

    Pools of processes carry bytes both ways: what cannot be unpickled would end a worker before the
    task begins, or the thread for results, and hang the pool. Executors with a pickler of their own
    get ``fn`` as it is.
    """

    def __init__(self, executor: Any, fn: Callable[..., Any]) -> None:
        self._here = in_this_process(executor)
        self._fn: Any = fn
        if not self._here and isinstance(executor, (ProcessPoolExecutor, Pool)):
            self._fn = _pickled(fn)

    def pack(self, job: Job, board: Any = None, index: int = 0) -> tuple[Any, Any]:
        arguments = (*job, board, index)
        return self._fn, arguments if self._here else bytes(ForkingPickler.dumps(arguments))

    def unpack(self, result: Any) -> Any:
        if not isinstance(self._fn, bytes):
            return result
        try:
            return pickle.loads(result)
        except Exception as error:
            error.add_note("the result of fn could not be loaded in the calling process")
            raise


def _pickled(fn: Callable[..., Any]) -> bytes:
    try:
        return bytes(ForkingPickler.dumps(fn))
    except Exception as error:
        error.add_note(
            "fn goes to the workers by pickle: define it at the top level of a module (no lambda, "
            "no function within a function), or use threads"
        )
        raise


def work(fn: Any, arguments: Any) -> Any:
    """One task, in its worker."""
    if not isinstance(arguments, bytes):
        return _run(fn, *arguments)
    try:
        result = _run(fn, *pickle.loads(arguments))
        return bytes(ForkingPickler.dumps(result)) if isinstance(fn, bytes) else result
    except Exception as error:
        text = _text_of_unportable(error)
        if text is None:
            raise
    raise RuntimeError(text)


def _run(fn: Any, parts: tuple[Any, ...], target: Any, board: Any, index: int) -> Any:
    state = None if board is None else array_of(board)
    try:
        if state is not None:
            state[index, 0] = threading.get_native_id()  # of the main thread: the process id
            if state[-1, 0]:
                return None  # called off: nobody waits for it
        return _apply(_loaded(fn), parts, target)
    finally:
        if state is not None:
            state[index, 1] = 1


def _loaded(fn: Any) -> Callable[..., Any]:
    if not isinstance(fn, bytes):
        return fn  # type: ignore[no-any-return]
    try:
        return pickle.loads(fn)  # type: ignore[no-any-return]
    except Exception as error:
        error.add_note(
            "fn could not be loaded in the worker: define it in a module that workers can import, "
            "before the pool is started"
        )
        raise


def _apply(fn: Callable[..., Any], parts: tuple[Any, ...], target: Any) -> Any:
    views = [array_of(part) for part in parts]
    for view in views:
        view.flags.writeable = False
    result = fn(*views)
    if target is None:
        return result
    if result is None:
        raise TypeError("fn returned None; with out= it should return the values for its slice")
    array = array_of(target)
    try:
        np.copyto(array, result, casting="same_kind")
    except (TypeError, ValueError) as error:
        error.add_note(
            f"fn returned {_described(result)} for a slice of `out` of shape {array.shape} and "
            f"dtype {array.dtype}"
        )
        raise
    return None


def array_of(part: Any) -> Any:
    return part[:] if isinstance(part, np.ndarray) else part.array


def _described(result: Any) -> str:
    if hasattr(result, "shape") and hasattr(result, "dtype"):
        return f"an array of shape {tuple(result.shape)} and dtype {result.dtype}"
    return f"an object of type {type(result).__name__}"


def _text_of_unportable(error: Exception) -> str | None:
    """The traceback of an exception that would not survive the way to the caller, else None."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return None
    except Exception:
        pass  # pickling may raise anything, and the exception itself is what matters
    text = "".join(traceback.format_exception(error))
    return f"fn raised {type(error).__name__}, which cannot be pickled and unpickled:\n{text}"


def raise_first(errors: list[BaseException]) -> NoReturn:
    """Raise the first one, and leave no circle of it and this frame."""
    try:
        raise errors[0]
    finally:
        errors.clear()
