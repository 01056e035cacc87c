"""Every ADR has the same form: four sections, at most 60 lines of at most 100 columns, one title.

docs/adr/0001-record-decisions.md states the form, and docs/adr/README.md lists all records.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import ROOT

FOLDER = ROOT / "docs" / "adr"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
SECTIONS = ["Status", "Context", "Decision", "Consequences"]
LONGEST, WIDEST = 60, 100  # lines, columns
TITLE = re.compile(r"# (\d{4}): (?!(?:What|Who|Whoever|Of|Those)\b)(\S.*[^.\s])")
STATUS = re.compile(
    r"(Accepted|Superseded by \[?ADR \d{4}.*?|Proposed) on \d{4}-\d\d-\d\d\b", re.DOTALL
)


def faults(name: str, text: str) -> list[str]:
    """Return what is wrong with the form of a record."""
    lines = text.splitlines()
    found = [
        f"line {n} has {len(line)} columns" for n, line in enumerate(lines, 1) if len(line) > WIDEST
    ]
    if len(lines) > LONGEST:
        found.append(f"{len(lines)} lines")
    title = TITLE.fullmatch(lines[0])
    if title is None or not name.startswith(f"{title[1]}-"):
        found.append(f"title {lines[0]!r}")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)[1:]
    if headings != SECTIONS:
        found.append(f"sections {headings}")
    status = text.partition("## Status\n\n")[2]
    if not STATUS.match(status):
        found.append("status without a state and a date")
    return found


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_the_form(record: Path) -> None:
    assert faults(record.name, record.read_text()) == []


def test_the_index_lists_every_record_with_its_title() -> None:
    index = (FOLDER / "README.md").read_text()
    rows = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \|$", index, re.MULTILINE)
    titles = [path.read_text().splitlines()[0] for path in RECORDS]
    assert [(f"# {number}: {title}", name) for number, name, title in rows] == [
        (title, path.name) for title, path in zip(titles, RECORDS, strict=True)
    ]


def test_numbers_are_unique() -> None:
    numbers = [path.name[:4] for path in RECORDS]
    assert len(numbers) == len(set(numbers)) > 50


GOOD = """# 0001: Record decisions

## Status

Accepted on 2026-11-21.

## Context

Text.

## Decision

Text.

## Consequences

Text.
"""


def test_a_good_form_passes() -> None:
    assert faults("0001-record.md", GOOD) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# 0001: Record", "# 0002: Record"),
        ("# 0001: Record", "# 0001: What we record"),
        ("Accepted on 2026-11-21", "Accepted"),
        ("## Consequences", "## Alternatives"),
        ("## Consequences\n", "## Consequences\n\n## Alternatives\n"),
        ("Text.", "Text, " * 20),
        ("Text.", "Text.\n" * 20),
    ],
)
def test_a_bad_form_is_found(before: str, after: str) -> None:
    assert faults("0001-record.md", GOOD.replace(before, after)) != []
