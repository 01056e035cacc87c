"""`memory_cgroups`, `free_memory`: the memory cgroups of this process, and what they leave."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["free_memory", "memory_cgroups"]

_PROC = Path("/proc")
_NO_LIMIT = 2**60
_FILES = {  # of version 1 and 2: limit, use, and the sizes of cached files in memory.stat
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", r"total_(?:in)?active_file"),
    True: ("memory.max", "memory.current", r"(?:in)?active_file"),
}


def memory_cgroups(proc: Path = _PROC) -> list[tuple[Path, Path, bool]]:
    """Return the folders that may be the memory cgroup of this process.

    Each has its folder, the folder where its hierarchy is mounted, and whether it is of version 2.
    proc: the directory of the proc file system.
    """
    try:
        groups = (proc / "self/cgroup").read_text().splitlines()
        mounts = (proc / "self/mountinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found = []
    for mount in mounts:
        own, _, rest = mount.partition(" - ")
        kind, _, options = (*rest.split(" "), "", "")[:3]
        fields = own.split(" ")
        if kind not in ("cgroup", "cgroup2") or len(fields) < 5:
            continue
        if kind == "cgroup" and "memory" not in options.split(","):
            continue
        for group in groups:
            number, controllers, path = (*group.split(":", 2), "", "")[:3]
            is_own = number == "0" if kind == "cgroup2" else "memory" in controllers.split(",")
            if is_own:
                # a container may see its own cgroup as the root of the mount
                below = path.removeprefix(fields[3]) if fields[3] != "/" else path
                root = Path(fields[4])
                found.append((root / below.strip("/"), root, kind == "cgroup2"))
    return found


def free_memory(proc: Path = _PROC) -> int | None:
    """Return the bytes that can be allocated before the kernel ends a process; None: unknown.

    The least of what the system has available and of what the limit of each memory cgroup around
    this process leaves. Files in the page cache count as free, as the kernel drops them first.
    """
    found = list(_left_by_cgroups(proc))
    with suppress(OSError, UnicodeDecodeError):
        if available := re.search(
            r"^MemAvailable: +(\d+) kB", (proc / "meminfo").read_text(), re.M
        ):
            found.append(1024 * int(available[1]))
    return min(found, default=None)


def _left_by_cgroups(proc: Path) -> Iterator[int]:
    for folder, root, is_v2 in memory_cgroups(proc):
        limit_file, use_file, cached = _FILES[is_v2]
        for group in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # the root has no limit, and v2 may say "max"
                limit = int((group / limit_file).read_text())
                used = int((group / use_file).read_text())
                sizes = re.findall(rf"^{cached} (\d+)$", (group / "memory.stat").read_text(), re.M)
                if limit < _NO_LIMIT:
                    yield limit - used + sum(map(int, sizes))
            if group == root:
                break
