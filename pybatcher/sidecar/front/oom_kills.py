"""`OomKills`: tells whether the kernel has killed processes for lack of memory."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

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
        for file in (*_files_of_cgroup(self._proc), self._proc / "vmstat"):
            try:
                found = _COUNT.search(file.read_text())
            except (OSError, UnicodeDecodeError):
                continue
            if found is not None:
                # a process can be moved to another cgroup, whose count begins at 0
                before, self._seen[file] = self._seen.get(file, 0), int(found[1])
                return int(found[1]) > before
        return None


def _files_of_cgroup(proc: Path) -> list[Path]:
    """Return the files that may have the count of this process's memory cgroup."""
    try:
        groups = (proc / "self/cgroup").read_text().splitlines()
        mounts = (proc / "self/mountinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    files = []
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
            if kind == "cgroup2" and number == "0":
                name = "memory.events"
            elif kind == "cgroup" and "memory" in controllers.split(","):
                name = "memory.oom_control"
            else:
                continue
            # a container may see its own cgroup as the root of the mount
            below = path.removeprefix(fields[3]) if fields[3] != "/" else path
            files.append(Path(fields[4]) / below.strip("/") / name)
    return files


def prefer_to_front() -> None:
    """Have the kernel kill this process, a worker, before its front where memory is lacking.

    The front has the journal, from which another worker continues all calls. Does nothing where the
    system has no such preference.
    """
    file = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        file.write_text(str(min(int(file.read_text()) + _ADJUSTMENT, 1000)))
