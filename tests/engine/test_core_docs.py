"""The stub `_core.pyi` documents the compiled extension: names and docstrings are the same."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import pybatcher
from pybatcher import _core

STUB = Path(pybatcher.__file__).parent / "_core.pyi"
CLASSES = (_core.Engine, _core.KvCache, _core.MappedFiles, _core.TokenMasks)
SPECIAL = ("__init__", "__enter__", "__exit__")


def documented() -> dict[str, str]:
    """Return the docstrings of the stub by name, those of members as "Class.member"."""
    found = {}
    owners = [("", ast.parse(STUB.read_text()).body)]
    for prefix, body in owners:
        for node in body:
            if isinstance(node, ast.ClassDef):
                owners.append((f"{node.name}.", node.body))
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node)
                if text:
                    found[prefix + node.name] = text
    return found


def compiled() -> dict[str, str]:
    """Return the docstrings of the extension by name, of what the extension itself defines."""
    found = {}
    for name, value in vars(_core).items():
        if callable(value):
            found[name] = inspect.getdoc(value) or ""
    for owner in CLASSES:
        for name in vars(owner):
            if name in SPECIAL or not name.startswith("_"):
                found[f"{owner.__name__}.{name}"] = inspect.getdoc(getattr(owner, name)) or ""
    return found


def test_the_extension_has_the_docstrings_of_the_stub() -> None:
    assert compiled() == documented()


@pytest.mark.parametrize("owner", CLASSES, ids=lambda owner: owner.__name__)
def test_signatures_are_those_of_the_stub_alone(owner: type) -> None:
    """pybind11 would put signatures of its own in front of the docstrings."""
    assert "self:" not in (owner.__init__.__doc__ or "")
