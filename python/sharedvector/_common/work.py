"""Work that no signal's handler interrupts: a thread does it, and whoever asked for it waits.

Python runs the handlers of signals in the main thread, between any two lines, and they may raise
there. What has to be undone if it is left half-way is therefore never done by the caller's own
thread. An interrupt ends the caller's wait; the work is told so, undoes itself, and is waited for
at exit. What the caller's thread uses itself are single operations of the interpreter, which no
exception can leave half-way, and which a handler or a finaliser may use while it interrupts them.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import contextvars
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

__all__ = [
    "Abandoned",
    "Mailbox",
    "NoThreadError",
    "Work",
    "aside",
    "check_wanted",
    "current_work",
    "here_or_aside",
    "in_caller",
    "leave_aside",
    "nap",
]

T = TypeVar("T")
A = TypeVar("A")

# Seconds.
_LOOK_EVERY = 1.0  # an exception may have swallowed what it waits for
_ANSWER_EVERY = 0.05  # between two looks whether there is still somebody who could answer
_AFTER_INTERRUPT = 30.0  # for abandoned work to undo itself
_AT_EXIT = 30.0


class Abandoned(Exception):
    """Nobody waits any more for what this thread is making."""


class NoThreadError(RuntimeError):
    """The system, or an interpreter that is ending, gives no further thread."""


class Flag:
    """A flag that can be set from anywhere, a signal's handler included, and waited for."""

    def __init__(self) -> None:
        self.is_set = False
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def set(self) -> None:
        """Set it, for good."""
        self.is_set = True
        with contextlib.suppress(RuntimeError):  # it was set before
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, at most so long. Returns whether it is. One thread may wait."""
        deadline = time.monotonic() + seconds
        while not self.is_set and (left := deadline - time.monotonic()) > 0:
            self._lock.acquire(timeout=min(left, _LOOK_EVERY))
        return self.is_set


class Mailbox(Generic[T]):
    """A queue for one reader, which a signal's handler may write to and interrupt for any time.

    ``queue.SimpleQueue`` waits without a limit when a handler has taken longer than its time-out.
    """

    def __init__(self) -> None:
        self._letters: deque[T] = deque()
        self._bell = _thread.allocate_lock()
        self._bell.acquire()

    def put(self, letter: T) -> None:
        """Add a letter."""
        self._letters.append(letter)
        with contextlib.suppress(RuntimeError):  # it rings already
            self._bell.release()

    def get(self, timeout: float) -> T:
        """Take the oldest letter; ``queue.Empty`` when none has come within so many seconds."""
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(IndexError):
                return self._letters.popleft()
            left = deadline - time.monotonic()
            if left <= 0:
                raise queue.Empty
            self._bell.acquire(timeout=min(left, _LOOK_EVERY))


Questions: TypeAlias = Mailbox[Callable[[], object] | None]


class Work(Generic[T]):
    """A call that a thread of its own makes.

    Args:
        call: what to do. `check_wanted`, `nap` and `in_caller` in it refer to this work.
        attended: whether the thread that makes this will wait for it.
    """

    def __init__(self, call: Callable[[], T], attended: bool = True) -> None:
        self._call: Callable[[], T] | None = call
        self._context = contextvars.copy_context()
        self._questions = _questions()
        self._caller = threading.get_ident()
        self._attended = attended
        self._answering = False
        self._outcome: list[Any] = []
        self._failed = False
        self._to_begin = [True]  # whoever pops it decides: the thread begins, or nobody does
        self._abandoned = Flag()
        self._ended = False

    def start(self) -> None:
        """Begin. NoThreadError, here or as the result, when there is no thread for it."""
        # The start of a thread takes a lock of Python's own, which a handler must not wait for
        # while it interrupts the main thread's use of it: so another thread starts it.
        thread = threading.Thread(target=self._run, name="sharedvector-work", daemon=True)
        try:
            _thread.start_new_thread(self._launch, (thread,))
        except RuntimeError as error:
            raise NoThreadError(str(error)) from error

    def _launch(self, thread: threading.Thread) -> None:
        try:
            self._to_begin.pop()
        except IndexError:
            return
        _running.add(self)
        try:
            thread.start()
        except BaseException as error:
            self._end(NoThreadError(str(error)), failed=True)

    def _run(self) -> None:
        call, self._call = self._call, None
        assert call is not None
        _thread_local.work = self
        try:
            value = self._context.run(call)
        except BaseException as error:
            self._end(error, failed=True)
        else:
            self._end(value, failed=False)

    def _end(self, outcome: T | BaseException, failed: bool) -> None:
        self._outcome.append(outcome)
        self._failed = failed
        self._ended = True
        _running.discard(self)
        self._questions.put(None)

    def wait(self, limit: float = math.inf) -> bool:
        """Wait for the end, at most so many seconds; meanwhile answer what `in_caller` asks."""
        deadline = time.monotonic() + limit
        while not self._ended and (left := deadline - time.monotonic()) > 0:
            try:
                question = self._questions.get(timeout=min(left, _LOOK_EVERY))
            except queue.Empty:
                continue
            if question is not None:
                question()
        return self._ended

    def abandon(self, limit: float) -> None:
        """Tell it that nobody waits for what it makes, and wait until it has undone that."""
        self._abandoned.set()
        try:
            self._to_begin.pop()
        except IndexError:
            self.wait(limit)

    def check_wanted(self) -> None:
        """Raise Abandoned if it was abandoned."""
        self.nap(0.0)

    def nap(self, seconds: float) -> None:
        """Sleep, and raise Abandoned if it is abandoned meanwhile."""
        if self._abandoned.wait(seconds):
            raise Abandoned("nobody waits any more for what this thread makes")

    def waits_for_caller_of(self, other: Work[Any]) -> bool:
        """Whether the thread that waits for the other one is about to answer this one.

        A handler has interrupted it, and made it wait for the other one: neither can end.
        """
        return self._answering and self._caller == other._caller

    def result(self) -> T:
        """Return what the call returned, or raise what it raised: once, after the end."""
        outcome = self._outcome.pop()
        try:
            if self._failed:
                raise outcome
            return outcome  # type: ignore[no-any-return]
        finally:
            del outcome  # its traceback refers to this frame

    def ask(self, question: Callable[[], A]) -> A:
        """Let the waiting thread make a call. What it raises is raised there and abandons this."""
        if not self._attended:
            return question()
        answers: Mailbox[A] = Mailbox()

        def answer() -> None:
            self._answering = True
            try:
                answers.put(question())
            finally:
                self._answering = False

        self._questions.put(answer)
        while True:
            try:
                return answers.get(timeout=_ANSWER_EVERY)
            except queue.Empty:
                self.check_wanted()


_running: set[Work[Any]] = set()
_thread_local = threading.local()  # of who works: `work`; of who waits: `questions`


def _questions() -> Questions:
    """What this thread is asked, and told.

    By all that it waits for: if a signal's handler waits while it interrupts another wait, it
    answers for both, as the one may be waiting for the other.
    """
    found: Questions | None = getattr(_thread_local, "questions", None)
    if found is None:
        found = _thread_local.questions = Mailbox()
    return found


def current_work() -> Work[Any] | None:
    """What this thread works at for another one; None: nothing."""
    return getattr(_thread_local, "work", None)


def aside(call: Callable[[], T]) -> T:
    """Make a call in a thread of its own, and return or raise what it does.

    An exception that a handler raises here ends the wait: `check_wanted` and `nap` tell the call
    so, and it is waited for once more, at most 30 s or until that is interrupted as well.

    Raises:
        NoThreadError: the system, or an interpreter that is ending, gives no thread.
    """
    work = Work(call)
    try:
        work.start()
        work.wait()
    except BaseException:
        work.abandon(_AFTER_INTERRUPT)
        raise
    return work.result()


def here_or_aside(call: Callable[[], T]) -> T:
    """As `aside`; in the caller's own thread where there is no other one."""
    try:
        return aside(call)
    except NoThreadError:
        return call()


def leave_aside(call: Callable[[], object]) -> None:
    """Have a call made and do not wait for it: for finalisers, which interrupt anything."""
    with contextlib.suppress(NoThreadError):
        Work(call, attended=False).start()


def check_wanted() -> None:
    """Raise Abandoned in a call of `aside` that nobody waits for any more."""
    nap(0.0)


def nap(seconds: float) -> None:
    """Sleep; in a call of `aside` that nobody waits for any more, raise Abandoned at once."""
    work = current_work()
    if work is None:
        time.sleep(seconds)
    else:
        work.nap(seconds)


def in_caller(call: Callable[[], T]) -> T:
    """Make a call in the thread that waits for this call of `aside`; elsewhere at once.

    That is where code of the user belongs, and whatever may import: it may be bound to its thread,
    or need a module that the thread is importing, or was until an interrupt; the lock of such a
    module is kept for all other threads.
    """
    work = current_work()
    return call() if work is None else work.ask(call)


def _end_all() -> None:
    deadline = time.monotonic() + _AT_EXIT
    for work in list(_running):
        work.abandon(max(0.0, deadline - time.monotonic()))


atexit.register(_end_all)
os.register_at_fork(after_in_child=_running.clear)  # the child has none of these threads
