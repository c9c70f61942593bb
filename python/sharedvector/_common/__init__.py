"""What every folder uses: checks of arguments, work that no signal's handler interrupts, and names
that are imported at their first use.

Promises: a refused argument is named in the error; work that a handler's exception gives up is
undone. Uses: NumPy, and nothing of this package.
Tests: ``test_arguments.py``, ``test_interrupts.py``; the lazy names: ``test_vector.py`` and
``test_tools_layers.py``.
"""

from __future__ import annotations

from importlib import import_module
from sys import modules

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sharedvector._common.arguments import duration, integer, level_number, seconds
    from sharedvector._common.work import (
        Abandoned,
        Mailbox,
        NoThreadError,
        Work,
        aside,
        check_wanted,
        current_work,
        here_or_aside,
        in_caller,
        leave_aside,
        nap,
    )

__all__ = [
    "Abandoned",
    "Mailbox",
    "NoThreadError",
    "Work",
    "aside",
    "check_wanted",
    "current_work",
    "duration",
    "here_or_aside",
    "in_caller",
    "integer",
    "lazy_names",
    "leave_aside",
    "level_number",
    "nap",
    "seconds",
]


def lazy_names(
    package: str, homes: dict[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose names lie in modules.

    A module is imported when the first of its names is used: a process that needs one part of a
    folder, such as a producer worker, does not import the others.

    Args:
        package: ``__name__`` of the package.
        homes: modules, as an import statement in the package names them, and the names of each.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home, package), name)
        setattr(modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(modules[package]), *home_of})

    return get, names


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".arguments": "duration integer level_number seconds",
        ".work": (
            "Abandoned Mailbox NoThreadError Work aside check_wanted current_work "
            "here_or_aside in_caller leave_aside nap"
        ),
    },
)
