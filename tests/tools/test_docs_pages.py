"""The pages of the site: all links stay inside, and the navigation has every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import anchors, links_of

from tools.docs import pages
from tools.docs.pages import (
    ROOT,
    linked_files,
    navigation,
    page_of,
    rewritten,
    with_names,
    write_pages,
)

REFERENCE = {"Some names": "# Some names\n\n## Thing\n\nSee `Thing`\n"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    write_pages(folder, REFERENCE)
    return folder


def test_no_link_leaves_the_site(site: Path) -> None:
    broken = []
    for page in site.rglob("*.md"):
        for line, target in links_of(page):
            path, _, fragment = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            found = (page.parent / path) if path else page
            if not found.is_file() or (fragment and fragment not in anchors(found)):
                broken.append(f"{page.relative_to(site)}:{line}: {target}")
    assert broken == []


def test_the_navigation_has_every_page_of_the_documentation(site: Path) -> None:
    listed = [
        path
        for entry in navigation(REFERENCE)
        for title, found in entry.items()
        for path in (
            [found] if isinstance(found, str) else [p for one in found for p in one.values()]
        )
    ]
    made = {page.relative_to(site).as_posix() for page in site.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert {path for path in made if not path.startswith("repository/")} <= set(listed)
    assert set(listed) <= made
    titles = [title for entry in navigation(REFERENCE) for title in entry]
    assert titles == [
        *("Start", "Tasks", "Reference", "Public names", "Operation", "Internals", "Benchmarks")
    ]


def test_links_outside_of_the_documentation_lead_to_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "DOCS", tmp_path / "docs")
    (tmp_path / "docs" / "adr").mkdir(parents=True)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("print(1)\n")
    page = tmp_path / "docs" / "adr" / "page.md"
    page.write_text(
        "[`a`](../../code/a.py) [b](../../code) ![c](../images/c.svg) [d](https://d.e) [e](#e)\n"
        "`[f](../../code)` [g](../../code/no.py) [h](page.md#x)\n```text\n[i](../../code)\n```\n"
    )
    assert rewritten(page) == (
        "[`a`](../repository/code/a.py.md) [b](../repository/code.md) ![c](../images/c.svg) "
        "[d](https://d.e) [e](#e)\n"
        "`[f](../../code)` [g](../../code/no.py) [h](page.md#x)\n```text\n[i](../../code)\n```\n"
    )
    assert linked_files(page) == [tmp_path / "code" / "a.py", tmp_path / "code", page]
    write_pages(tmp_path / "out", {})
    made = (tmp_path / "out" / "repository" / "code" / "a.py.md").read_text()
    assert made == "# code/a.py\n\n````python\nprint(1)\n````\n"
    assert "- `a.py`" in (tmp_path / "out" / "repository" / "code.md").read_text()


def test_pipes_in_the_code_of_a_table_have_no_backslash() -> None:
    text = rewritten(ROOT / "docs" / "options.md")
    assert "`<|im_end|>`" in text
    assert "\\|" not in text


def test_classes_are_linked_to_the_reference(site: Path) -> None:
    names = {"Thing": "reference/some-names.md#thing"}
    rest = "[`Thing`](a.md) `Thing()` `Other`\n```text\n`Thing`\n```\n"
    place = "../reference/some-names.md#thing"
    assert with_names(f"# `Thing`\n`Thing`, `pybatcher.Thing` {rest}", "adr/page.md", names) == (
        f"# `Thing`\n[`Thing`]({place}), [`pybatcher.Thing`]({place}) {rest}"
    )
    own = (site / "reference" / "some-names.md").read_text()
    assert own.endswith("See [`Thing`](some-names.md#thing)\n")


def test_a_file_outside_of_the_checkout_is_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path / "checkout")
    (tmp_path / "checkout").mkdir()
    (tmp_path / "secret.md").write_text("secret")
    page = tmp_path / "checkout" / "page.md"
    page.write_text("[a](../secret.md)")
    assert linked_files(page) == []


def test_pages_have_their_places() -> None:
    assert page_of(ROOT / "docs" / "chats.md") == "chats.md"
    assert page_of(ROOT / "CONTRIBUTING.md") == "repository/CONTRIBUTING.md"
    assert page_of(ROOT / "examples" / "agent.py") == "repository/examples/agent.py.md"
