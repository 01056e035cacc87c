"""The free memory is what the system and every memory cgroup around the process leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybatcher.machine.cgroups import free_memory, memory_cgroups

MIB = 2**20
NAMES = {
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    "cgroup2": ("memory.max", "memory.current", ""),
}


def proc_of(tmp_path: Path, kind: str) -> Path:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    groups = {"cgroup": "4:memory:/jobs/7\n0::/\n", "cgroup2": "0::/jobs/7\n"}
    (proc / "self/cgroup").write_text(groups[kind])
    options = "rw,memory" if kind == "cgroup" else "rw"
    mount = f"35 31 0:32 / {tmp_path}/mount rw - {kind} {kind} {options}\n"
    (proc / "self/mountinfo").write_text(mount)
    (proc / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {900 * 1024} kB\n")
    return proc


def limit(folder: Path, kind: str, most: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    limit_file, use_file, prefix = NAMES[kind]
    (folder / limit_file).write_text(f"{most}\n")
    (folder / use_file).write_text(f"{used}\n")
    stat = f"cache 5\n{prefix}inactive_file {cached}\n{prefix}active_file {cached}\n"
    (folder / "memory.stat").write_text(stat)


@pytest.mark.parametrize("kind", NAMES)
def test_the_least_of_what_is_left(tmp_path: Path, kind: str) -> None:
    proc, group = proc_of(tmp_path, kind), tmp_path / "mount/jobs/7"
    assert memory_cgroups(proc) == [(group, tmp_path / "mount", kind == "cgroup2")]
    assert free_memory(proc) == 900 * MIB
    limit(group, kind, str(100 * MIB), 80 * MIB, 5 * MIB)
    assert free_memory(proc) == 30 * MIB  # files in the page cache can be dropped
    limit(group.parent, kind, str(200 * MIB), 190 * MIB, 0)
    assert free_memory(proc) == 10 * MIB
    limit(group.parent, kind, "max" if kind == "cgroup2" else str(2**63 - 4096), 190 * MIB, 0)
    assert free_memory(proc) == 30 * MIB
    limit(group, kind, str(2000 * MIB), 80 * MIB, 0)
    assert free_memory(proc) == 900 * MIB


@pytest.mark.parametrize("broken", ["", "x", "0::", "35 31 - cgroup2 rw", "a b c d e - cgroup2"])
def test_nothing_is_known_of_a_system_without_these_files(tmp_path: Path, broken: str) -> None:
    assert free_memory(tmp_path) is None
    (tmp_path / "self").mkdir()
    for name in ("self/cgroup", "self/mountinfo", "meminfo"):
        (tmp_path / name).write_text(broken)
    assert free_memory(tmp_path) is None
    assert memory_cgroups(tmp_path) == []
