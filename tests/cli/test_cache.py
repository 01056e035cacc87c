from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pybatcher.cli import make_app
from pybatcher.engine import Engine
from pybatcher.testing.checkpoints import make_checkpoint


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    checkpoint = make_checkpoint(tmp_path / "fox", "llama", tokenizer=False)
    directory = tmp_path / "pybatcher"
    for dtype in ("f32", "bf16"):
        Engine.load(checkpoint, n_ctx=64, dtype=dtype, weights_cache=directory).close()
    (directory / "notes").write_text("mine")
    return directory


def run(*arguments: str) -> str:
    result = CliRunner().invoke(make_app(), ["cache", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_it_lists_the_files(directory: Path) -> None:
    output = run("--directory", str(directory))
    assert output.count("fox-") == 2
    assert "2 files" in output


def test_it_removes_its_own_files_and_no_others(directory: Path) -> None:
    assert "removed 2 files" in run("--directory", str(directory), "--clear")
    assert [path.name for path in directory.iterdir()] == ["notes"]
    assert "0 files, 0.0 MB" in run("--directory", str(directory))


def test_the_default_directory_need_not_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    assert "0 files" in run()
    assert not (tmp_path / "none").exists()
