"""The sdist: what it takes to build and no more, of tracked files only."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tools.wheels.sdist import copy_tracked

ROOT = Path(__file__).resolve().parents[2]

NEEDED = {
    *("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"),
    "pybatcher/http/page/files/vendor/LICENSES.txt",
    *("cmake/wheels.cmake", "csrc/base/a.cc", "pybatcher/__init__.py", "pybatcher/http/page/a.js"),
}
OTHERS = {
    *("notes.txt", "Makefile", ".gitignore", ".ci/run", "tests/cmake/a.py", "tools/README.md"),
    *("build/a.o", "dist/pybatcher.whl", "a checkpoint/model.safetensors", "pybatcher.egg-info/a"),
}


def _write(root: Path, names: set[str]) -> None:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)


def _git(root: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)


def test_the_sdist_has_what_is_compiled_and_nothing_that_lies_beside_it(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    _write(checkout, NEEDED | OTHERS)
    shutil.copy(ROOT / "pyproject.toml", checkout)
    build = "from scikit_build_core.build import build_sdist as b; print(b('..'))"
    subprocess.run([sys.executable, "-c", build], cwd=checkout, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert names == NEEDED | {"PKG-INFO"}


def test_files_are_copied_as_they_are_if_they_are_tracked(tmp_path: Path) -> None:
    checkout, copy = tmp_path / "checkout", tmp_path / "copy"
    _write(checkout, {"csrc/a.cc", "csrc/deleted.cc", "zwölf und mehr.txt", "changed"})
    _git(checkout, "init")
    _git(checkout, "add", ".")
    _write(checkout, {"untracked.txt", "csrc/untracked.cc"})
    (checkout / "changed").write_text("later")
    (checkout / "csrc" / "deleted.cc").unlink()

    copy_tracked(checkout, copy)

    files = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert files == {"csrc/a.cc", "zwölf und mehr.txt", "changed"}
    assert (copy / "changed").read_text() == "later"


def test_what_is_no_checkout_has_no_sdist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(subprocess.CalledProcessError):
        copy_tracked(tmp_path, tmp_path / "copy")
