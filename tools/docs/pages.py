"""The pages of the documentation's site, made from the Markdown files of the checkout.

The folder `docs/` keeps its layout. Another file that a page links to becomes a page below
`repository/`, so that no link leaves the site. `docs/README.md` is the list of pages: its headings
are the sections of the navigation.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from os.path import relpath
from pathlib import Path
from urllib.parse import unquote

__all__ = [
    "ROOT",
    "Section",
    "linked_files",
    "navigation",
    "page_of",
    "reference_file",
    "rewritten",
    "with_names",
    "write_pages",
]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REPOSITORY, REFERENCE = "repository", "reference"

Section = dict[str, list[dict[str, str]]]
_LINK_OR_CODE = re.compile(
    r"(?P<begin>!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<target>[^)\s]+)\)"
    r"|^ *```.*?^ *```$|`[^`\n]*`",
    re.MULTILINE | re.DOTALL,
)
_CLASS_OR_OTHER = re.compile(
    r"`(?:pybatcher\.)?(?P<name>[A-Z]\w+)`"
    r"|^#[^\n]*|^ *```.*?^ *```$|!?\[[^\n]*?\]\([^)\s]+\)|`[^`\n]*`",
    re.MULTILINE | re.DOTALL,
)
_PIPE_IN_CODE = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".mjs": "javascript"}
_NOT_SHOWN = {"__pycache__", "node_modules"}


def write_pages(folder: Path, reference: Mapping[str, str]) -> None:
    """Write all pages of the site into an empty or new folder. reference: texts by title."""
    shutil.rmtree(folder, ignore_errors=True)
    names = {
        name: f"{REFERENCE}/{reference_file(title)}#{name.lower()}"
        for title, text in reference.items()
        for name in re.findall(r"^## (\w+)$", text, re.MULTILINE)
    }
    for file in sorted(DOCS.rglob("*")):
        if file.is_file() and file.suffix != ".md":
            _copy(file, folder)
    todo, done = sorted(DOCS.rglob("*.md")), set[Path]()
    while todo:
        file = todo.pop()
        if file in done:
            continue
        done.add(file)
        if file.is_file() and file.suffix in (".svg", ".png"):
            _copy(file, folder)
            continue
        target = folder / page_of(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(with_names(_page(file), page_of(file), names))
        if file.suffix == ".md":
            todo += linked_files(file)
    shutil.copyfile(Path(__file__).with_name("extra.css"), folder / "extra.css")
    for title, text in reference.items():
        target = folder / REFERENCE / reference_file(title)
        target.parent.mkdir(exist_ok=True)
        target.write_text(with_names(text, f"{REFERENCE}/{reference_file(title)}", names))


def navigation(reference: Mapping[str, str]) -> list[dict[str, str] | Section]:
    """Return the sections and pages of `docs/README.md`, with the generated reference."""
    sections: list[dict[str, str] | Section] = [{"Start": "README.md"}]
    for heading, text in re.findall(
        r"^## (.+?)$(.*?)(?=^## |\Z)", (DOCS / "README.md").read_text(), re.MULTILINE | re.DOTALL
    ):
        rows = re.findall(r"^\| \[([^\]]+)\]\(([^)#]+)\) \|", text, re.MULTILINE)
        pages = [{title: page_of((DOCS / path).resolve())} for title, path in rows]
        if heading == "Internals":
            pages += [
                {file.read_text().partition("\n")[0].lstrip("# "): f"adr/{file.name}"}
                for file in sorted((DOCS / "adr").glob("[0-9]*.md"))
            ]
        if pages:
            sections.append({heading: pages})
        if heading == "Reference":
            names = [{title: f"{REFERENCE}/{reference_file(title)}"} for title in reference]
            sections.append({"Public names": names})
    return sections


def reference_file(title: str) -> str:
    """Return the name of the file of a page of the reference."""
    return title.lower().replace(" ", "-") + ".md"


def page_of(path: Path) -> str:
    """Return the place of a file's or folder's page in the site."""
    if path.is_relative_to(DOCS):
        name = path.relative_to(DOCS).as_posix()
    else:
        name = f"{REPOSITORY}/{path.relative_to(ROOT).as_posix()}"
    return name if path.suffix in (".md", ".svg", ".png") else f"{name}.md"


def linked_files(file: Path) -> list[Path]:
    """Return the files and folders of the checkout that a page links to."""
    targets = (found["target"] for found in _LINK_OR_CODE.finditer(file.read_text()))
    resolved = (_resolved(file, target) for target in targets if target is not None)
    return [path for path in resolved if path is not None]


def rewritten(file: Path) -> str:
    """Return the text of a page with its links to files replaced by links to their pages."""

    def replace(found: re.Match[str]) -> str:
        path = None if found["target"] is None else _resolved(file, found["target"])
        if path is None:
            return found[0]
        _, hash_sign, fragment = found["target"].partition("#")
        here = (Path("/") / page_of(file)).parent
        return f"{found['begin']}{relpath(Path('/') / page_of(path), here)}{hash_sign}{fragment})"

    text = _LINK_OR_CODE.sub(replace, file.read_text())
    # GitHub wants a backslash before a pipe in a table, also in code; Python-Markdown shows it.
    return _PIPE_IN_CODE.sub(lambda found: found[0].replace("\\|", "|"), text)


def with_names(text: str, page: str, names: Mapping[str, str]) -> str:
    """Return the text of a page with links from classes in code to their places in the reference.

    names: page and anchor by the name of a class. Headings, links and blocks stay as they are.
    """
    here = (Path("/") / page).parent

    def replace(found: re.Match[str]) -> str:
        place = names.get(found["name"] or "")
        return f"[{found[0]}]({relpath(Path('/') / place, here)})" if place else found[0]

    return _CLASS_OR_OTHER.sub(replace, text)


def _resolved(file: Path, target: str) -> Path | None:
    path = unquote(target.partition("#")[0])
    if not path or re.match(r"[a-z]+:", target):
        return None
    found = (file.parent / path).resolve()
    if found.is_dir() and (found / "README.md").is_file():
        found /= "README.md"
    return found if found.exists() and found.is_relative_to(ROOT) else None


def _page(file: Path) -> str:
    name = file.relative_to(ROOT).as_posix()
    if file.suffix == ".md":
        return rewritten(file)
    if file.is_dir():
        names = sorted(f"- `{one.name}`" for one in file.iterdir() if one.name not in _NOT_SHOWN)
        return f"# {name}\n\nThe files of this folder:\n\n" + "\n".join(names) + "\n"
    fence = "`" * 4
    return f"# {name}\n\n{fence}{_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}{fence}\n"


def _copy(file: Path, folder: Path) -> None:
    target = folder / page_of(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
