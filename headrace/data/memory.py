"""How much memory this process may still use: the machine's, or its container's if that is less."""

import os
from pathlib import Path

__all__ = ["available_memory_bytes"]


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that can be used without swapping; what only caches files counts as available.

    Args:
        root: where proc and sys are mounted.
    """
    available = _machine(root)
    for limit, usage, cache in _GROUP_FILES:
        try:
            allowed = int((root / limit).read_text())
            used = int((root / usage).read_text())
            cached = _statistic(root / cache, "inactive_file") + _statistic(
                root / cache, "active_file"
            )
        except (OSError, ValueError):
            continue  # no such group, or "max": no limit
        available = min(available, max(0, allowed - used + cached))
    return available


# Limit, usage and statistics of the container's control group: version 2, version 1.
_GROUP_FILES = (
    (
        "sys/fs/cgroup/memory.max",
        "sys/fs/cgroup/memory.current",
        "sys/fs/cgroup/memory.stat",
    ),
    (
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        "sys/fs/cgroup/memory/memory.usage_in_bytes",
        "sys/fs/cgroup/memory/memory.stat",
    ),
)


def _machine(root: Path) -> int:
    try:
        return _statistic(root / "proc/meminfo", "MemAvailable:") * 1024
    except OSError:
        pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _statistic(path: Path, name: str) -> int:
    """The number behind a name, in a file of lines `name number`; 0 if it is not there."""
    for line in path.read_text().splitlines():
        words = line.split()
        if words[:1] == [name]:
            return int(words[1])
    return 0
