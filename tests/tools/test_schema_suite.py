from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tools import schema_suite as tool
from tools.schema_suite import Case, Instance

CASE = {
    "description": "a count",
    "schema": {"type": "integer"},
    "tests": [
        {"description": "one", "data": 1, "valid": True},
        {"description": "a text", "data": "1", "valid": False},
    ],
}
TOP = f"{tool.PACKAGE}-{tool.VERSION}"


def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """Write an archive as pip would."""
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    folder = Path(command[command.index("--dest") + 1])
    file = folder / "made" / TOP / tool.TESTS / "optional" / "type.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps([CASE]))
    with tarfile.open(folder / f"{TOP}.tar.gz", "w:gz") as archive:
        archive.add(folder / "made" / TOP, TOP)
    return subprocess.CompletedProcess(command, 0, "", "")


def no_pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution\n")


def test_it_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool.subprocess, "run", pip)
    tests = tool.fetch(tmp_path / "suite")
    monkeypatch.setattr(tool.subprocess, "run", no_pip)
    assert tool.fetch(tmp_path / "suite") == tests
    instances = (Instance("one", 1, True), Instance("a text", "1", False))
    assert list(tool.read_cases(tests)) == [
        Case("optional/type: a count", {"type": "integer"}, instances)
    ]


def test_without_a_registry_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool.subprocess, "run", no_pip)
    with pytest.raises(SystemExit) as ended:
        tool.fetch(tmp_path)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "no registry answers" in said
    assert "No matching distribution" in said


def test_a_download_without_end_is_no_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(tool.subprocess, "run", slow)
    with pytest.raises(SystemExit):
        tool.fetch(tmp_path)
