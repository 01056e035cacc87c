from __future__ import annotations

import os
from pathlib import Path

import pytest

from pybatcher.loading.checkpoints.fingerprint import fingerprint


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "a", tmp_path / "b"]
    for path in made:
        path.write_text(path.name)
    return made


def test_it_stays_while_nothing_changes(files: list[Path], tmp_path: Path) -> None:
    before = fingerprint(files)
    assert len(before) == 64
    files[0].read_text()
    (tmp_path / "c").write_text("another file")
    assert fingerprint(files) == before


def test_another_set_or_place_of_files_has_another(files: list[Path], tmp_path: Path) -> None:
    others = {fingerprint(files[:1]), fingerprint(files[1:]), fingerprint(files[::-1])}
    assert len({fingerprint(files), *others}) == 4
    before = fingerprint(files)
    files[0].rename(tmp_path / "moved")
    assert fingerprint([tmp_path / "moved", files[1]]) != before


def test_contents_of_the_same_length_and_date_have_another(files: list[Path]) -> None:
    before, status = fingerprint(files), files[0].stat()
    files[0].write_text("A")
    os.utime(files[0], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fingerprint(files) != before


def test_a_link_is_what_it_leads_to(files: list[Path], tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("a")
    assert fingerprint([link]) == fingerprint([files[0]])
    link.unlink()
    link.symlink_to("b")
    assert fingerprint([link]) == fingerprint([files[1]])


def test_files_that_cannot_be_asked_have_none(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    for name in ("missing", "circle"):
        assert fingerprint([tmp_path / name]) == ""
