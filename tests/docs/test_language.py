"""Sentences of the documents name their subject: none begins with What, Who, Of or Those."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks_of

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / name for name in ("examples/README.md", "csrc/cpu/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BAD_BEGINNING = re.compile(
    r"(?:^[ \t]*(?:[-*#]+ |\d+\. |\| )?|[.:!?] |\| )[*_`]*((?:What|Who|Of|Those)(?:ever)?)\b",
    re.MULTILINE,
)


def bad_beginnings(text: str) -> list[str]:
    """Return the first words of sentences, list items and cells that begin badly."""
    return [text[found.start(1) :].splitlines()[0][:60] for found in BAD_BEGINNING.finditer(text)]


def prose_of(page: Path) -> str:
    text = page.read_text()
    for block in blocks_of(page):
        text = text.replace(block.text, "")
    return text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_name_their_subject(page: Path) -> None:
    assert bad_beginnings(prose_of(page)) == []


@pytest.mark.parametrize(
    "text",
    [
        "What waits is slow.",
        "It ends. Who comes later waits.",
        "- Of two, one.",
        "| a | Those that wait |",
        "### What it costs",
        "1. **Whoever** asks.",
    ],
)
def test_a_bad_beginning_is_found(text: str) -> None:
    assert len(bad_beginnings(text)) == 1


def test_a_good_beginning_is_not() -> None:
    assert bad_beginnings("The part of a step. It is what it is; those wait.\n- Offers") == []
