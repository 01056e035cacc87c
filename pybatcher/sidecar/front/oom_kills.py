"""`OomKills`: tells whether the kernel has killed processes for lack of memory."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from ...machine.cgroups import memory_cgroups

__all__ = ["OomKills", "prefer_to_front"]

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_ADJUSTMENT = 200  # thousandths of the memory that the limit allows


class OomKills:
    """The count of OOM kills in the memory cgroup of this process, in which its children are too.

    The file is memory.events (cgroup v2) or memory.oom_control (v1). Where there is none, the count
    is that of the whole system (/proc/vmstat).

    proc: the directory of the proc file system.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._seen: dict[Path, int] = {}
        self.rose()

    def rose(self) -> bool | None:
        """Return whether a process was killed since the last call; None if that is unknown."""
        files = [
            folder / ("memory.events" if is_v2 else "memory.oom_control")
            for folder, _, is_v2 in memory_cgroups(self._proc)
        ]
        for file in (*files, self._proc / "vmstat"):
            try:
                found = _COUNT.search(file.read_text())
            except (OSError, UnicodeDecodeError):
                continue
            if found is not None:
                # a process can be moved to another cgroup, whose count begins at 0
                before, self._seen[file] = self._seen.get(file, 0), int(found[1])
                return int(found[1]) > before
        return None


def prefer_to_front() -> None:
    """Have the kernel kill this process, a worker, before its front where memory is lacking.

    The front has the journal, from which another worker continues all calls. Does nothing where the
    system has no such preference.
    """
    file = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        file.write_text(str(min(int(file.read_text()) + _ADJUSTMENT, 1000)))
