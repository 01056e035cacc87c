"""Docstrings stand alone, methods that override others say so, comments and commits are plain.

A docstring begins with a verb or a noun: not with a reference ("See Engine."), with a pronoun that
has no noun ("What it holds."), or with an error alone ("ConfigError if ..."). A method that
overrides one of a base class carries @override, and no docstring: the base class has it.

No sentence of a comment or docstring begins with a word that stands for a noun of another line
("Of kernels that differ ...", "Whether so many rows ..."). The subject of a commit is imperative
and has at most 72 characters.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import subprocess
import tokenize
import typing
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import pybatcher

ROOT = Path(pybatcher.__file__).parent
FILES = sorted([*ROOT.rglob("*.py"), ROOT / "_core.pyi"])
MODULES = [path for path in FILES if path.suffix == ".py" and path.name != "__main__.py"]
BAD_BEGINNING = re.compile(
    r"(See|Or|And|As|It|Its|They|Their|That|Those|What|Whatever|Who|Whoever|Whose)\b|\w+Error\b"
)
BAD_SENTENCE = re.compile(r"(What|Whatever|Who|Whoever|Whom|Whose|Of|Those|Whether)\b")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
CPP_FILES = sorted(
    path
    for path in (ROOT.parent / "csrc").rglob("*")
    if path.suffix in {".h", ".cc", ".cuh", ".cu", ".def"}
)

FIRST_COMMIT = "48fa18ba57a64b5474376864d9ac4c5363c4e5f1"  # later subjects follow the rule
AREA = re.compile(r"[\w.-]+(, [\w.-]+)*: ")
NOT_IMPERATIVE = re.compile(
    r"(a|an|the|this|that|these|those|it|its|they|what|who|whose|of|whether|when|where|how|why|wip"
    r"|and|or|adds|changes|fixes|makes|moves|removes|renames|replaces|rewrites|updates|uses"
    r"|(?!embed\b|feed\b|need\b|seed\b|speed\b|shed\b)\w+ed|(?!bring\b|string\b)\w+ing)\b",
    re.IGNORECASE,
)

DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NOT_OURS = (object, typing.Generic, typing.Protocol)


def bad_docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the first line of each docstring that begins badly, with its place."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *DEFINITIONS)):
            text = ast.get_docstring(node) or ""
            if BAD_BEGINNING.match(text):
                where = "module" if isinstance(node, ast.Module) else node.name
                yield f"line {node.body[0].lineno}, {where}: {text.splitlines()[0]}"


def methods(tree: ast.Module) -> dict[tuple[str, str], ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the methods of a module's classes by class and name; of several, the first."""
    found: dict[tuple[str, str], ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            for node in owner.body:
                if isinstance(node, DEFINITIONS[1:]):
                    found.setdefault((owner.name, node.name), node)
    return found


def is_marked(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(item).endswith("override") for item in method.decorator_list)


def overridden(owner: type, name: str) -> str | None:
    """Return the base class that has `name` too; None where there is none."""
    for base in owner.__mro__[1:]:
        if base not in NOT_OURS and name in vars(base):
            return base.__name__
    return None


def unmarked_overrides(path: Path) -> Iterator[str]:
    """Yield the public methods of a module that override others without saying so."""
    tree, module = parsed(path), imported(path)
    for (class_name, name), method in methods(tree).items():
        owner = getattr(module, class_name, None)
        if name.startswith("_") or not inspect.isclass(owner) or is_marked(method):
            continue
        if (base := overridden(owner, name)) is not None:
            yield f"line {method.lineno}, {class_name}.{name} overrides {base}'s"


def documented_overrides(tree: ast.Module) -> Iterator[str]:
    """Yield the methods that carry both @override and a docstring."""
    for (class_name, name), method in methods(tree).items():
        if is_marked(method) and ast.get_docstring(method) is not None:
            yield f"line {method.lineno}, {class_name}.{name}"


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> object:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return importlib.import_module(".".join(part for part in parts if part != "__init__"))


def none_of(paths: list[Path], found: Callable[[Path], Iterable[str]]) -> None:
    """Fail with all that is found in the files, each after the file's name."""
    assert paths
    wrong = [f"{path.relative_to(ROOT)}, {where}" for path in paths for where in found(path)]
    assert not wrong, "\n".join(wrong)


def cpp_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a C++ source with their first lines; lines of a block are joined."""
    block: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], start=1):
        stripped = line.strip()
        if stripped.startswith("//"):
            block.append(stripped.lstrip("/<!").strip())
            continue
        if block:
            yield number - len(block), " ".join(block)
            block = []
        code = re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)
        if (start := code.find("//")) >= 0:
            yield number, code[start:].lstrip("/<!").strip()


def python_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and docstrings of a Python source with their first lines."""
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            number, alone = token.start[0], token.line.lstrip().startswith("#")
            if block and not (alone and number == last + 1):
                yield last - len(block) + 1, " ".join(block)
                block = []
            block.append(token.string.lstrip("# "))
            last = number
            if not alone:
                yield number, block.pop()
    if block:
        yield last - len(block) + 1, " ".join(block)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for paragraph in re.split(r"\n\s*\n|\n(?=\s*[\w, `]+: )", str(node.value.value)):
                yield node.lineno, " ".join(paragraph.split())


def bad_sentences(comments: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yield the sentences that begin badly, with their lines."""
    for number, text in comments:
        for sentence in SENTENCE_END.split(text):
            if BAD_SENTENCE.match(sentence):
                yield f"line {number}: {sentence[:60]}"


def bad_subject(subject: str) -> str | None:
    """Return the fault of the subject of a commit; None for a good one."""
    words = AREA.sub("", subject, count=1)
    if len(subject) > 72:
        return "it has more than 72 characters"
    if subject.endswith("."):
        return "it ends with a period"
    if NOT_IMPERATIVE.match(words):
        return f"{words.split()[0]!r} is not imperative"
    return None


def test_docstrings_stand_alone() -> None:
    none_of(FILES, lambda path: bad_docstrings(parsed(path)))


def test_overrides_say_so() -> None:
    none_of(MODULES, unmarked_overrides)


def test_overrides_leave_their_docstring_to_the_base_class() -> None:
    none_of(MODULES, lambda path: documented_overrides(parsed(path)))


@pytest.mark.parametrize(
    "text",
    [
        "See `Engine`.",
        "Or BatcherClosedError.",
        "What is found.",
        "Who asks.",
        "It has ended.",
        "Those that wait.",
        "ConfigError if it is absurd.",
    ],
)
def test_bad_beginnings_are_found(text: str) -> None:
    tree = ast.parse(f'class Door:\n    def open(self):\n        """{text}"""')
    assert list(bad_docstrings(tree)) == [f"line 3, open: {text}"]


@pytest.mark.parametrize(
    "text", ["Return the service.", "Seconds until the end.", "Organise it.", "Itself."]
)
def test_good_beginnings_are_not(text: str) -> None:
    assert list(bad_docstrings(ast.parse(f'"""{text}"""'))) == []


def test_overrides_are_found() -> None:
    class Base:
        def run(self) -> None:
            pass

    class Derived(Base):
        def run(self) -> None:
            pass

        def walk(self) -> None:
            pass

    assert overridden(Derived, "run") == "Base"
    assert overridden(Derived, "walk") is None
    marked = "class A(B):\n @property\n @override\n def f(self):\n  {}\n def g(self): pass"
    found = methods(ast.parse(marked.format("pass")))
    assert is_marked(found["A", "f"])
    assert not is_marked(found["A", "g"])
    documented = ast.parse(marked.format('"""Do it."""'))
    assert list(documented_overrides(documented)) == ["line 4, A.f"]


def test_comments_in_cpp_name_their_subjects() -> None:
    csrc = ROOT.parent / "csrc"
    assert CPP_FILES
    wrong = [
        f"{path.relative_to(csrc)}, {where}"
        for path in CPP_FILES
        for where in bad_sentences(cpp_comments(path.read_text(encoding="utf-8")))
    ]
    assert not wrong, "\n".join(wrong)


def test_comments_in_python_name_their_subjects() -> None:
    none_of(MODULES, lambda path: bad_sentences(python_comments(path.read_text(encoding="utf-8"))))


def test_bad_sentences_are_found() -> None:
    cpp = 'auto url = "http://x";  // Whether it is one.\n/// The rows.\n/// Of all, some.\nint x;'
    assert list(bad_sentences(cpp_comments(cpp))) == [
        "line 1: Whether it is one.",
        "line 2: Of all, some.",
    ]
    python = 'x = 1  # What is one.\n# The rest\n# is fine.\n"""Good.\n\nname: Those of it.\n"""'
    assert list(bad_sentences(python_comments(python))) == ["line 1: What is one."]
    python = '"""Good. Who knows.\n\nOf these."""'
    assert list(bad_sentences(python_comments(python))) == [
        "line 1: Who knows.",
        "line 1: Of these.",
    ]


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(ROOT.parent), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_subjects_of_commits() -> None:
    if not (ROOT.parent / ".git").exists() or git("cat-file", "-e", FIRST_COMMIT).returncode:
        pytest.skip("an sdist or a shallow clone has no history")
    subjects = git("log", "--no-merges", "--format=%s", f"{FIRST_COMMIT}..HEAD").stdout.splitlines()
    wrong = [f"{one}: {fault}" for one in subjects if (fault := bad_subject(one)) is not None]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "subject",
    [
        "Use one wrapper",
        "cuda: fuse rope into the KV store",
        "serving, calls: embed early",
        "Bring x",
    ],
)
def test_good_subjects(subject: str) -> None:
    assert bad_subject(subject) is None


@pytest.mark.parametrize(
    "subject",
    [
        *("Use one wrapper.", "x" * 73, "The scheduler's promises hold", "Added a test"),
        *("docs: What nobody reads waits", "cuda: adding a test", "Fixes a test", "WIP tests"),
    ],
)
def test_bad_subjects(subject: str) -> None:
    assert bad_subject(subject) is not None
