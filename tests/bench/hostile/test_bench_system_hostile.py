from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.common import results
from bench.hostile import system_hostile as tool
from bench.hostile.system_hostile import Scene, new_cgroup
from pybatcher.errors import InvalidRequestError, ModelFormatError


def test_the_tool_kills_a_worker_whose_file_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(tool, "_SETTLE", 0.5)
    monkeypatch.setattr(sys, "argv", ["system_hostile", "--kinds", "a renamed file"])
    tool.main()
    (row,) = json.loads((tmp_path / "system-hostile.json").read_text())["rows"]
    assert row["wrong"] == []
    assert not row["is_same_worker"]
    assert "a renamed file: 0 calls" in tool._line_of(row)


async def test_without_a_cgroup_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    groups = [(Path("/sys/fs/cgroup/x"), Path("/sys/fs/cgroup"), True)]
    monkeypatch.setattr(tool, "memory_cgroups", lambda: groups)
    monkeypatch.setattr(tool.Path, "mkdir", refused)
    with new_cgroup() as reason:
        assert "/sys/fs/cgroup/x is not writable: [Errno 30] Read-only" in str(reason)
    monkeypatch.setattr(tool, "memory_cgroups", list)
    row = await tool.run_kind("lack of memory", 8)
    assert row["skipped"] == "this process is in no memory cgroup"
    assert tool._line_of(row).endswith(": skipped: this process is in no memory cgroup")


async def test_a_call_that_should_have_failed_is_told() -> None:
    scene = Scene(*[SimpleNamespace()] * 3)  # type: ignore[arg-type]

    async def ending(error: Exception | None) -> Any:
        if error is not None:
            raise error

    await scene.expect_error("a", ending(ModelFormatError("x")), "ModelFormatError")
    await scene.expect_error("b", ending(InvalidRequestError("x")))
    assert scene.wrong == []
    await scene.expect_error("c", ending(InvalidRequestError("x")), "ModelFormatError")
    await scene.expect_error("d", ending(None))
    assert scene.ends == [
        "a: ModelFormatError", "b: InvalidRequestError", "c: InvalidRequestError", "d: an answer",
    ]  # fmt: skip
    assert scene.wrong == ["c ended with InvalidRequestError", "d ended with an answer"]


def test_the_inputs_of_the_tests_are_found() -> None:
    assert {"loops", "a text times"} <= set(tool._templates())
    assert {"nine Replace", "a long Prepend"} <= set(tool._growing())
