"""The memory limit of the control groups (container, job) that this process is in."""

from __future__ import annotations

from collections.abc import Iterator

_UNLIMITED = 1 << 62  # what version 1 shows for "no limit" is a little below 1 << 63


def memory_limit(groups: str = "/proc/self/cgroup", mount: str = "/sys/fs/cgroup") -> int | None:
    """Bytes that this process and those in its control groups may use together; None: no limit.

    Both versions of control groups. The limit of any group above binds as well; inside a container
    the path may be that of the host, of which only the mount itself, the container's group, is
    seen.
    """
    try:
        with open(groups) as file:
            lines = file.read().splitlines()
    except OSError:
        return None  # no control groups here
    return min((limit for line in lines for limit in _limits(line, mount)), default=None)


def _limits(line: str, mount: str) -> Iterator[int]:
    """The limits on the way from the group of one line, "number:controllers:path", to the root."""
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if controllers == "":
        file = "memory.max"
    elif "memory" in controllers.split(","):
        mount, file = f"{mount}/memory", "memory.limit_in_bytes"
    else:
        return
    parts = path.strip("/").split("/")
    for depth in range(len(parts), -1, -1):
        try:
            with open("/".join([mount, *parts[:depth], file])) as opened:
                text = opened.read().strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) < _UNLIMITED:
            yield int(text)
