"""Every relative link of the documents leads to a file that is there, and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import DIAGRAM, ROOT, anchors, blocks_of, links_of

FOLDERS = ["docs", "examples", "csrc", "pybatcher/models"]
FILES = [
    *ROOT.glob("*.md"),
    *(f for folder in FOLDERS for f in sorted((ROOT / folder).rglob("*.md"))),
]
FILES = [file for file in FILES if "node_modules" not in file.parts]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_resolve(file: Path) -> None:
    assert [f"{file.name}:{line}: {target}" for line, target in broken(file)] == []


def broken(file: Path) -> list[tuple[int, str]]:
    return [(line, target) for line, target in links_of(file) if not resolves(file, target)]


def resolves(file: Path, target: str) -> bool:
    if target.startswith(("https://", "http://")):
        return True
    path, _, fragment = target.partition("#")
    found = file if not path else file.parent / path
    if not found.exists():
        return False
    return not fragment or fragment in anchors(found)


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What code in the text names as a file: of the checkout, or of the package.
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")
_PATH_IN_DIAGRAM = re.compile(r"(?<![\w/.])((?:[\w.-]+/)+[\w.-]*)")
_NOT_OURS = {
    "path/to/model",
    "path/to/encoder",
    "bench/results/",
}  # ... or made when needed
_NOT_OURS |= {"Qwen/Qwen3-0.6B"}  # a name on a hub


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_that_are_named_are_there(file: Path) -> None:
    assert {path for path in paths_named_in(file) if not is_there(path)} == set()


def paths_named_in(file: Path) -> set[str]:
    drawn = [block.text for block in blocks_of(file) if block.language == DIAGRAM]
    paths = _PATH.findall(file.read_text()) + _PATH_IN_DIAGRAM.findall("\n".join(drawn))
    return set(paths) - _NOT_OURS


def test_paths_are_found_in_text_and_diagrams(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Read `a/b.py`, or c/d.py.\n```text\nbox e/f/ --> (g/h.cc)\n```\n")
    assert paths_named_in(page) == {"a/b.py", "e/f/", "g/h.cc"}


def test_the_folder_of_a_pattern_must_be_there() -> None:
    assert is_there("cli/NAME.py")
    assert not is_there("no_such_room/NAME.py")


def is_there(path: str) -> bool:
    if "NAME" in path:  # the pattern of a file to be made, in a folder that is there
        path = path.rpartition("/")[0]
    return any((folder / path).exists() for folder in (ROOT, ROOT / "pybatcher", ROOT / "csrc"))


def test_what_is_broken_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A heading: `code` & more\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#a-heading-code--more) [c](#here) `[d](no.md)`\n# Here\n"
        "![e](no.svg)\n[f](other.md#no)\n[`g`](no.md)\n```\n[h](no.md)\n```\n"
    )
    assert broken(page) == [(3, "no.svg"), (4, "other.md#no"), (5, "no.md")]
