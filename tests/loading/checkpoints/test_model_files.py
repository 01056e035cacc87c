"""The files of a model: each opened once, of one version, and known again by their contents."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints import model_files
from pybatcher.loading.checkpoints.model_files import (
    ModelFiles,
    is_file,
    map_file,
    read_file,
    reading,
)
from pybatcher.loading.loader import SHIPPED_MODEL, open_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "weights").write_text("w" * 5000)
    (made / "config").write_text("c")
    return made


def opened(folder: Path) -> ModelFiles:
    files = ModelFiles(folder)
    with reading(files):
        map_file(folder / "weights")
        read_file(folder / "config", 100)
        assert not is_file(folder / "absent")
    return files


def fingerprint(folder: Path) -> str:
    return opened(folder).fingerprint()


@pytest.mark.parametrize("hashed_whole", [2**20, 100], ids=["hashed", "sampled"])
def test_the_same_files_have_the_same_fingerprint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, hashed_whole: int
) -> None:
    monkeypatch.setattr(model_files, "_HASHED_WHOLE", hashed_whole)
    before = fingerprint(folder)
    assert len(before) == 64
    (folder / "weights").chmod(0o400)
    os.link(folder / "weights", folder / "a second name")
    (folder / "another file").write_text("")
    folder.rename(folder.parent / "moved")
    assert fingerprint(folder.parent / "moved") == before


@pytest.mark.parametrize("name", ["weights", "config"])
@pytest.mark.parametrize("hashed_whole", [2**20, 100], ids=["hashed", "sampled"])
def test_other_contents_have_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch, hashed_whole: int, name: str
) -> None:
    """Also of the same length, inode and time."""
    monkeypatch.setattr(model_files, "_HASHED_WHOLE", hashed_whole)
    before, path = opened(folder), folder / name
    status = path.stat()
    with path.open("r+b") as file:
        file.write(b"X")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = opened(folder)
    assert after.fingerprint() != before.fingerprint()
    of_weights = [files.fingerprint(weights_only=True) for files in (before, after)]
    assert (of_weights[0] != of_weights[1]) == (name == "weights")


def test_a_sampled_file_is_known_by_its_time_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint(folder)
    os.utime(folder / "weights", ns=(1, 1))
    assert fingerprint(folder) == before
    monkeypatch.setattr(model_files, "_HASHED_WHOLE", 100)
    before = fingerprint(folder)
    os.utime(folder / "weights", ns=(2, 2))
    assert fingerprint(folder) != before


def test_a_folder_that_is_replaced_is_not_mixed_with_the_next(folder: Path) -> None:
    files = ModelFiles(folder)
    with reading(files):
        read_file(folder / "config", 100)
        folder.rename(folder.parent / "old")
        folder.mkdir()
        (folder / "weights").write_text("n" * 5000)
        assert bytes(map_file(folder / "weights")) == b"w" * 5000
        assert files.are_current()


def test_files_that_are_replaced_are_noticed(folder: Path) -> None:
    for change in (
        lambda: (folder / "config").unlink(),
        lambda: (folder / "config").write_text("d"),
        lambda: (folder / "absent").write_text("here"),
        lambda: (folder / "config").write_text("other"),
    ):
        files = opened(folder)
        assert files.are_current()
        status = (folder / "config").stat()
        change()
        if (folder / "config").exists():
            os.utime(folder / "config", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        assert not files.are_current()
        (folder / "absent").unlink(missing_ok=True)
        (folder / "config").write_text("c")


def test_files_that_are_written_while_they_are_loaded_are_noticed(folder: Path) -> None:
    files = opened(folder)
    (folder / "new").write_text("n")
    (folder / "new").rename(folder / "weights")
    files.check_unchanged()  # the opened file is as it was
    files = opened(folder)
    with (folder / "weights").open("ab") as file:
        file.write(b"more")
    with pytest.raises(ModelFormatError, match=r"weights: was changed while .*from 1 to 5 bytes"):
        files.check_unchanged()


def test_a_file_is_opened_once(folder: Path) -> None:
    with reading(ModelFiles(folder)):
        assert read_file(folder / "config", 100) == b"c"
        (folder / "new").write_text("n")
        (folder / "new").rename(folder / "config")
        assert read_file(folder / "config", 100) == b"c"
    assert read_file(folder / "config", 100) == b"n"


def test_what_is_no_file_is_refused_at_once(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "circle").symlink_to("circle")
    for name in ("pipe", ".", "absent", "circle", "\0", "n" * 5000):
        for read in (map_file, lambda path: read_file(path, 100)):
            with pytest.raises(ModelFormatError):
                read(folder / name)
        assert not is_file(folder / name)


def test_mapped_files_are_guarded_as_long_as_they_are_needed(folder: Path) -> None:
    state = ["before"]

    @contextmanager
    def guard(mapped: object) -> Iterator[None]:
        state.append("begun")
        yield
        state.append("ended")

    files = ModelFiles(folder, guard)
    read_fds = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with reading(files):
        read_file(folder / "config", 100)
        assert state == ["before"]
        map_file(folder / "weights")
    assert state == ["before", "begun"]
    del files
    assert state == ["before", "begun", "ended"]
    if read_fds:
        assert len(os.listdir("/proc/self/fd")) < read_fds + 1


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0a1b\nsize 99\n"
NAMES = ("config.json", "tokenizer.json", "tokenizer.model", "model.safetensors", "m.gguf")


@pytest.mark.parametrize("name", NAMES)
def test_pointers_of_git_lfs(name: str, tmp_path: Path) -> None:
    shutil.copytree(SHIPPED_MODEL, tmp_path / "model")
    if name == "tokenizer.model":
        (tmp_path / "model" / "tokenizer.json").unlink()
    path = tmp_path / "model" / name
    path.write_bytes(POINTER)
    with pytest.raises(ModelFormatError, match=f"{name}: is a pointer of Git LFS.*git lfs pull"):
        open_model(path if path.suffix == ".gguf" else path.parent)


def test_a_text_that_begins_like_a_pointer_of_git_lfs(folder: Path) -> None:
    (folder / "long").write_bytes(POINTER + bytes(1000))
    assert len(read_file(folder / "long", 2000)) == len(POINTER) + 1000
