"""The state of a thread of torch, carried over to another one."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from sharedvector.training.thread_state import like_this_thread  # noqa: E402

Answer = Callable[[], Any]

_variable: contextvars.ContextVar[int] = contextvars.ContextVar("_variable")


def in_a_thread(ask: Answer, prepare: Callable[[], object] | None) -> Any:
    found: list[Any] = []

    def work() -> None:
        if prepare is not None:
            prepare()
        found.append(ask())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    return found[0]


def autocast() -> tuple[bool, Any, bool]:
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
    )


STATES: dict[str, tuple[Callable[[], Any], Answer]] = {
    "no_grad": (torch.no_grad, torch.is_grad_enabled),
    "inference": (torch.inference_mode, torch.is_inference_mode_enabled),
    "autocast": (
        lambda: torch.autocast("cpu", dtype=torch.float16, cache_enabled=False),
        autocast,
    ),
    "device": (lambda: torch.device("meta"), lambda: torch.zeros(1).device),
    "numpy": (lambda: np.errstate(divide="raise"), np.geterr),
}


@pytest.mark.parametrize("state", STATES)
def test_state_of_the_maker(state: str) -> None:
    enter, ask = STATES[state]
    before = ask()
    with enter():
        inside = ask()
        assert inside != before
        prepare = like_this_thread()
    assert in_a_thread(ask, None) == before
    assert in_a_thread(ask, prepare) == inside
    assert ask() == before and in_a_thread(ask, like_this_thread()) == before


def test_context_variables() -> None:
    _variable.set(7)
    prepare = like_this_thread()
    _variable.set(8)
    assert in_a_thread(_variable.get, prepare) == 7


def test_cuda_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> None:
        raise AssertionError("a process without CUDA was made to start it")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", never)
    like_this_thread()()
    streams: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "stream 3 of cuda:1")
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    prepare = like_this_thread()
    assert not streams
    in_a_thread(lambda: None, prepare)
    assert streams == ["stream 3 of cuda:1"]
