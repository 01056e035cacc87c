"""Code blocks and links of the project's Markdown files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DIAGRAM", "ROOT", "Block", "anchors", "blocks_of", "links_of"]

ROOT = Path(__file__).resolve().parents[3]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)\s*$")
_LIST_ITEM = re.compile(r"^\s*([-*]|\d+\.) ")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_INLINE_CODE = re.compile(r"`[^`]*`")
INDENT = "    "
DIAGRAM = "text"  # the language of a block that is a drawing


@dataclass(frozen=True)
class Block:
    """A code block. `line`: where its code begins, from 1. `language`: "" where none is named."""

    file: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def blocks_of(file: Path) -> list[Block]:
    """All fenced blocks, and those that are only indented, whose language is ""."""
    lines = file.read_text().splitlines()
    return [*_fenced(file, lines), *_indented(file, _without_fenced(lines))]


def _fenced(file: Path, lines: list[str]) -> Iterator[Block]:
    start: tuple[int, str, str] | None = None
    for number, line in enumerate(lines, 1):
        if (fence := _FENCE.match(line)) is None:
            continue
        if start is None:
            start = (number, fence["language"], fence["indent"])
        else:
            begin, language, indent = start
            code = (inner.removeprefix(indent) for inner in lines[begin : number - 1])
            yield Block(file, begin + 1, language, "\n".join(code) + "\n")
            start = None
    assert start is None, f"{file}:{start and start[0]}: a code block has no end"


def _without_fenced(lines: list[str]) -> list[str]:
    """The same lines, those of fenced blocks empty."""
    inside, kept = False, []
    for line in lines:
        is_fence = _FENCE.match(line) is not None
        kept.append("" if inside or is_fence else line)
        inside ^= is_fence
    return kept


def _indented(file: Path, lines: list[str]) -> Iterator[Block]:
    """Four spaces after an empty line begin a block, except inside a list."""
    in_list, before = False, ""
    for number, line in enumerate(lines, 1):
        if line and not line.startswith(" "):
            in_list = False
        if _LIST_ITEM.match(line) and not line.startswith(INDENT):
            in_list = True
        if line.startswith(INDENT) and not before.strip() and not in_list:
            yield Block(file, number, "", line.strip())
        before = line


def links_of(file: Path) -> list[tuple[int, str]]:
    """Line and target of every link and picture, but for those inside code."""
    lines = _without_fenced(file.read_text().splitlines())
    return [
        (number, target)
        for number, line in enumerate(lines, 1)
        for target in _LINK.findall(_INLINE_CODE.sub("code", line))
    ]


def anchors(file: Path) -> set[str]:
    """The fragments that a link to the file may name: its headings as GitHub spells them."""
    headings = re.findall(
        r"^#+ +(.*)$", "\n".join(_without_fenced(file.read_text().splitlines())), re.M
    )
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }
