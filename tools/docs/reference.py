"""The reference of public names, made from signatures and docstrings: Markdown pages.

A docstring's lines `name: text` and `a, b: text` describe fields and arguments. Fields of a class
become a table, arguments of a function a list.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any, get_origin, get_type_hints, is_typeddict

import pybatcher
import pybatcher.http
import pybatcher.metrics
import pybatcher.ray
import pybatcher.testing
import pybatcher.web
from pybatcher.calls import options as call_options
from pybatcher.params import batcher_options

from .pages import reference_file

__all__ = ["reference_pages"]

# Pages of names of `pybatcher`, in their order. Names that no pattern takes are on the last page.
_PAGES: Mapping[str, str] = {
    "Batchers": r"\w*Batcher|\w*Client",
    "Results": r"Acted|Completion|MapResult|FinishReason|Piece|\w*Stream|Usage|Timeline"
    r"|TokenLogprob|ToolCall\w*|Score|Embedding|PrefixInfo|ModelInfo",
    "Options": r"SamplingParams|\w+Config",
    "Errors": r"\w+Error",
    "Figures and events": r"BatcherStatistics|Health|\w*Event|Tracing",
    "Engine and helpers": r"\w+",
}
_MODULES: Mapping[str, ModuleType] = {
    "pybatcher.http": pybatcher.http,
    "pybatcher.metrics": pybatcher.metrics,
    "pybatcher.testing": pybatcher.testing,
    "pybatcher.web": pybatcher.web,
    "pybatcher.ray": pybatcher.ray,
}
_KEYWORDS = "Keywords of calls"
_MODULES_OF_OPTIONS = ("pybatcher.sidecar.client.client", "pybatcher.ray.deployment")
_KINDS: Mapping[str, Any] = {
    name: kind
    for module in (call_options, batcher_options, *map(import_module, _MODULES_OF_OPTIONS))
    for name, kind in vars(module).items()
    if is_typeddict(kind)
}
_PUBLIC = {getattr(pybatcher, name) for name in pybatcher.__all__ if name != "FinishReason"}
_MADE_BY_CALLS = re.compile(r"AnyBatcher|ThreadsafeBatcher|\w*Stream")
_INTERNAL = {"other_choices", "parse"}  # fields of Completion that are not for users
_NEXT_ENTRY = re.compile(r"(?<=\.) (?=[a-z_]+: )")  # a second entry in the same line
_ENTRY = re.compile(r"^([a-z_*]\w*(?:, [\w*]+)*): (.*(?:\n +.*)*)", re.MULTILINE)


def reference_pages() -> dict[str, str]:
    """Return the text of each page by its title."""
    left, pages = list(pybatcher.__all__), {}
    for title, pattern in _PAGES.items():
        names = [name for name in left if re.fullmatch(pattern, name)]
        left = [name for name in left if name not in names]
        values = {name: getattr(pybatcher, name) for name in names}
        pages[title] = _page(title, "pybatcher", values)
    pages[_KEYWORDS] = _page(_KEYWORDS, "", _KINDS)
    for title, module in _MODULES.items():
        values = {name: getattr(module, name) for name in module.__all__}
        pages[title] = _page(title, title, values)
    return pages


def _page(title: str, module: str, values: Mapping[str, Any]) -> str:
    parts = [f"# {title}"]
    if module:
        parts.append(f"Import them from `{module}`.")
    for name, value in values.items():
        parts.append(f"## {name}")
        if is_typeddict(value):
            parts += _typed_dict(value)
        elif inspect.isclass(value):
            parts += _class(value)
        elif inspect.isroutine(value):
            parts += [_signature(name, value), _text(inspect.getdoc(value) or "")]
        else:
            parts += [f"`{_shown(value)}`", _text(_doc_of_alias(name))]
    text = "\n\n".join(part for part in parts if part) + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


def _typed_dict(kind: Any) -> Iterator[str]:
    yield _text(inspect.getdoc(kind) or "")
    hints = get_type_hints(kind)
    yield _table(("keyword", "type"), [(f"`{name}`", f"`{_shown(hints[name])}`") for name in hints])


def _class(kind: type) -> Iterator[str]:
    public = next((base for base in kind.__mro__[1:] if base in _PUBLIC), None)
    builtin = [one for one in kind.__bases__ if one.__module__ == "builtins" and one is not object]
    bases = [base.__name__ for base in (public, *builtin) if base is not None]
    if bases:
        yield "Derives from " + " and ".join(f"`{name}`" for name in bases) + "."
    text = inspect.getdoc(kind) or ""
    if dataclasses.is_dataclass(kind):
        meanings = _entries(text)
        yield _text(_ENTRY.sub("", text))
        yield _table(
            ("field", "type", "default", "meaning"),
            [
                (f"`{one.name}`", f"`{one.type}`", _default(one), meanings.get(one.name, ""))
                for one in dataclasses.fields(kind)
                if not one.name.startswith("_") and one.name not in _INTERNAL
            ],
        )
    else:
        made = vars(kind).get("__init__")
        if made is None or issubclass(kind, Exception) or _MADE_BY_CALLS.fullmatch(kind.__name__):
            yield _text(text)
        else:
            yield _signature(kind.__name__, kind)
            yield _text(text)
            yield _text(inspect.cleandoc(made.__doc__ or ""))
    for name, member in _members(kind):
        yield f"### {kind.__name__}.{name}"
        yield from _member(name, member)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a class, with those of bases that the reference leaves out."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base is not kind and (base in _PUBLIC or not base.__module__.startswith("pybatcher")):
            break
        for name, member in vars(base).items():
            found.setdefault(name, member)
    fields = (
        {one.name for one in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else ()
    )
    for name, member in found.items():
        routine = inspect.isroutine(member) or isinstance(member, (property, classmethod))
        if routine and not name.startswith("_") and name not in fields:
            yield name, member


def _member(name: str, member: Any) -> Iterator[str]:
    if isinstance(member, property):
        returned = getattr(member.fget, "__annotations__", {}).get("return")
        yield f"Property: `{_shown(returned)}`" if returned else "Property"
    else:
        function = getattr(member, "__func__", member)
        yield _signature(name, function)
    yield _text(inspect.getdoc(member) or "")


def _signature(name: str, function: Callable[..., Any]) -> str:
    try:
        shown = inspect.signature(function)
    except ValueError:  # a function of the extension: its docstring has the signature
        return ""
    arguments = []
    had_star = False
    for one in shown.parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.VAR_POSITIONAL:
            had_star = True
        if one.kind is one.KEYWORD_ONLY and not had_star:
            arguments.append("*")
            had_star = True
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        text = star + one.name
        if one.annotation is not one.empty:
            text += f": {_shown(one.annotation)}"
        if one.default is not one.empty:
            text += f" = {one.default!r}"
        arguments.append(text)
    returned = "" if shown.return_annotation is shown.empty else _shown(shown.return_annotation)
    result = f" -> {returned}" if returned and not inspect.isclass(function) else ""
    prefix = "await " if inspect.iscoroutinefunction(function) else ""
    line = f"{prefix}{name}({', '.join(arguments)}){result}"
    if len(line) > 88:
        line = f"{prefix}{name}(\n    " + ",\n    ".join(arguments) + f",\n){result}"
    keywords = re.findall(r"Unpack\[(\w+)\]", line)
    more = "".join(
        f"\n\nThe options are [{kind}]({reference_file(_KEYWORDS)}#{kind.lower()})."
        for kind in keywords
        if kind in _KINDS
    )
    return f"```python\n{line}\n```{more}"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    return "made anew" if field.default_factory is not dataclasses.MISSING else ""


def _shown(annotation: Any) -> str:
    """Return an annotation as it is written, without the modules of its names."""
    if isinstance(annotation, str):
        return annotation
    if inspect.isclass(annotation) and get_origin(annotation) is None:
        return annotation.__name__
    return re.sub(r"\b(?:\w+\.)+(?=[A-Za-z_])", "", str(annotation))


def _entries(text: str) -> dict[str, str]:
    return {
        name.strip(): meaning
        for names, meaning in _ENTRY.findall(_one_entry_a_line(text))
        for name in names.split(",")
    }


def _one_entry_a_line(text: str) -> str:
    return _ENTRY.sub(lambda found: _NEXT_ENTRY.sub("\n", " ".join(found[0].split())), text)


def _text(docstring: str) -> str:
    """Return a docstring as Markdown: entries become a list, indented lines code."""
    lines: list[str] = []
    entry = code = False
    for line in _one_entry_a_line(docstring).splitlines():
        indented = line.startswith("    ")
        if code and (indented or not line.strip()):
            lines.append(line[4:])
            continue
        if code:
            while not lines[-1]:
                lines.pop()
            lines += ["```", ""]
            code = False
        found = _ENTRY.match(line)
        if indented and not entry and (not lines or not lines[-1]):
            lines += ["```python", line[4:]]
            code = True
        elif found is not None:
            if not entry and lines and lines[-1]:
                lines.append("")
            names = ", ".join(f"`{name.strip()}`" for name in found[1].split(","))
            lines.append(f"- {names}: {found[2]}")
            entry = True
        else:
            if entry and line:
                lines.append("")
            entry = False
            lines.append(line.strip())
    if code:
        lines.append("```")
    return "\n".join(lines).strip()


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ("---",) * len(head), *rows))


def _doc_of_alias(name: str) -> str:
    """Return the text below the assignment of a name in the module that makes it."""
    for module in [one for key, one in sys.modules.items() if key.startswith("pybatcher.")]:
        if name not in vars(module):
            continue
        body = ast.parse(inspect.getsource(module)).body
        for node, after in pairwise(body):
            made = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
            if made and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                return inspect.cleandoc(str(after.value.value))
    return ""
