"""What torch keeps for each thread, carried over to a thread that works for another one."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

import torch

__all__ = ["like_this_thread"]

_AUTOCAST_DEVICES = ("cpu", "cuda")

_kept = threading.local()


def like_this_thread() -> Callable[[], None]:
    """Return a function that makes the thread that calls it like the present one.

    Carried over are grad mode, inference mode, autocast, the default device, the CUDA device with
    its current stream, and context variables (NumPy's error handling is one). Everything else
    that torch lets users set holds for all threads.

    The function is for a new thread, which keeps the state until it ends.
    """
    context = contextvars.copy_context()
    inference = torch.is_inference_mode_enabled()
    grad = torch.is_grad_enabled()
    device = torch.get_default_device()
    cache = torch.is_autocast_cache_enabled()
    autocast = [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in _AUTOCAST_DEVICES
    ]
    # To ask a process that does not use CUDA would make it do so.
    stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def prepare() -> None:
        for variable, value in context.items():
            variable.set(value)
        if inference:
            _kept.inference = torch.inference_mode()
            _kept.inference.__enter__()
        torch.set_grad_enabled(grad)
        if device != torch.get_default_device():
            _kept.device = device
            device.__enter__()
        for kind, enabled, dtype in autocast:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(cache)
        if stream is not None:
            torch.cuda.set_stream(stream)

    return prepare
