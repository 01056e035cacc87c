"""Docstrings stand alone, and methods that override others say so.

A docstring begins with a verb or a noun: not with a reference ("See Engine."), with a pronoun that
has no noun ("What it holds."), or with an error alone ("ConfigError if ..."). A method that
overrides one of a base class carries @override, and no docstring: the base class has it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
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
