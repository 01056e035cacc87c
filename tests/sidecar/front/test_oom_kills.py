"""OOM kills are counted in the own memory cgroup, of version 1 or 2, else for the system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pybatcher.sidecar.front.oom_kills import OomKills

V1 = "4:memory:/jobs/7\n3:cpuset:/\n0::/\n"
V2 = "0::/jobs/7\n"


def proc_of(tmp_path: Path, groups: str, kind: str, options: str, root: str = "/") -> Path:
    """A proc file system whose process has these cgroups, mounted at `tmp_path`/mount."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(groups)
    mounts = f"31 23 0:28 / /proc rw - proc proc rw\n35 31 0:32 {root} {tmp_path}/mount rw - "
    (proc / "self/mountinfo").write_text(f"{mounts}{kind} {kind} {options}\n")
    return proc


@pytest.mark.parametrize(
    ("groups", "kind", "options", "name"),
    [
        (V1, "cgroup", "rw,memory", "memory.oom_control"),
        (V2, "cgroup2", "rw", "memory.events"),
    ],
)
@pytest.mark.parametrize(("root", "below"), [("/", "jobs/7"), ("/jobs/7", ""), ("/jobs", "7")])
def test_the_count_of_the_own_memory_cgroup(
    tmp_path: Path, groups: str, kind: str, options: str, name: str, root: str, below: str
) -> None:
    proc = proc_of(tmp_path, groups, kind, options, root)
    (proc / "vmstat").write_text("oom_kill 100\n")
    file = tmp_path / "mount" / below / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("oom 9\noom_kill 3\noom_group_kill 0\n")
    kills = OomKills(proc)
    assert kills.rose() is False
    (proc / "vmstat").write_text("oom_kill 101\n")  # somewhere else
    assert kills.rose() is False
    file.write_text("oom 9\noom_kill 4\noom_group_kill 0\n")
    assert kills.rose() is True
    assert kills.rose() is False


def test_without_a_memory_cgroup_the_count_of_the_system(tmp_path: Path) -> None:
    proc = proc_of(tmp_path, "2:cpu:/\n", "cgroup", "rw,cpu")
    (proc / "vmstat").write_text("pgfault 9\noom_kill 3\n")
    kills = OomKills(proc)
    assert kills.rose() is False
    (proc / "vmstat").write_text("pgfault 9\noom_kill 5\n")
    assert kills.rose() is True


def test_a_process_that_was_moved_has_another_count(tmp_path: Path) -> None:
    proc = proc_of(tmp_path, V2, "cgroup2", "rw")
    for name, count in (("7", 3), ("8", 0)):
        (tmp_path / "mount/jobs" / name).mkdir(parents=True)
        (tmp_path / "mount/jobs" / name / "memory.events").write_text(f"oom_kill {count}\n")
    kills = OomKills(proc)
    (proc / "self/cgroup").write_text("0::/jobs/8\n")
    assert kills.rose() is False
    (tmp_path / "mount/jobs/8/memory.events").write_text("oom_kill 1\n")
    assert kills.rose() is True


@pytest.mark.parametrize("broken", ["", "x", "0::", "35 31 - cgroup2 rw", "a b c d e - cgroup2"])
def test_where_nothing_can_be_read_it_is_unknown(tmp_path: Path, broken: str) -> None:
    assert OomKills(tmp_path).rose() is None
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(broken)
    (tmp_path / "self/mountinfo").write_text(broken)
    assert OomKills(tmp_path).rose() is None


@pytest.mark.skipif(sys.platform != "linux", reason="the preference is that of Linux")
def test_a_worker_is_preferred_to_its_front() -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    code = (
        "from pybatcher.sidecar.front.oom_kills import prefer_to_front\nprefer_to_front()\n"
        "print(open('/proc/self/oom_score_adj').read())"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(made.stdout) == min(own + 200, 1000)
