"""The download of templates: nothing but what was asked for is taken."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from tests.templates import download

FOLDER = "vendor/llama.cpp/models/templates"


def archive(*names: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as members:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            members.addfile(member, io.BytesIO(name.encode()))
    return packed.getvalue()


SENT = archive(
    f"pkg-1/{FOLDER}/a.jinja", f"pkg-1/{FOLDER}/b/c.jinja", f"pkg-1/{FOLDER}/d.txt", "pkg-1/e.jinja"
)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What the index answers, by address."""
    page = "https://index/simple/llama-cpp-python/"
    name = "llama_cpp_python-0.3.36.tar.gz"
    found = {page: f'<a href="../../x/{name}#sha256=0">'.encode(), f"https://index/x/{name}": SENT}
    source = dataclasses.replace(download.SOURCES[0], sha256=hashlib.sha256(SENT).hexdigest())
    monkeypatch.setattr(download, "SOURCES", [source])
    monkeypatch.setattr(download, "_setting", {"index-url": "https://index/simple/"}.get)
    monkeypatch.setattr(download, "_get", found.__getitem__)
    return found


def test_templates_of_one_folder_are_taken_once(answers: dict[str, bytes], tmp_path: Path) -> None:
    for _ in range(2):
        assert download.main(tmp_path) == 0
        answers.clear()
    assert [path.name for path in tmp_path.rglob("*.jinja")] == ["a.jinja"]
    assert (tmp_path / "llama-cpp-python-0.3.36" / "a.jinja").read_text().endswith("a.jinja")


@pytest.mark.parametrize("broken", ["no index", "no such file", "other bytes"])
def test_what_is_wrong_is_said(
    broken: str, answers: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, address = answers
    if broken == "no index":
        del answers[page]
    elif broken == "no such file":
        answers[page] = b"<a href='../other-1.tar.gz'>"
    else:
        answers[address] = archive("pkg-1/x.jinja")
    assert download.main(tmp_path) == 1
    said = capsys.readouterr().err
    assert "could not be had from https://index/simple/" in said
    assert "needs a package index" in said
    assert ("SHA-256" in said) is (broken == "other bytes")
    assert not list(tmp_path.iterdir())
