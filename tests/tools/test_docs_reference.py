"""The generated reference has every public name, field, method and keyword."""

from __future__ import annotations

import dataclasses
import inspect
import re
from types import ModuleType

import pytest

import pybatcher
import pybatcher.http
import pybatcher.metrics
import pybatcher.ray
import pybatcher.testing
import pybatcher.web
from pybatcher.calls.options import ChatOptions
from tools.docs.reference import reference_pages

PAGES = reference_pages()
OWN = [page for title, page in PAGES.items() if not title.startswith("pybatcher.")]
MODULES = [pybatcher.http, pybatcher.metrics, pybatcher.ray, pybatcher.testing, pybatcher.web]


def section(name: str, pages: list[str]) -> str:
    """Return the text below the only heading of a name."""
    (text,) = re.findall(
        rf"^## {re.escape(name)}$(.*?)(?=^## |\Z)", "\n".join(pages), re.MULTILINE | re.DOTALL
    )
    return text


@pytest.mark.parametrize("name", pybatcher.__all__)
def test_every_public_name_has_a_section_with_text(name: str) -> None:
    value = getattr(pybatcher, name)
    text = section(name, OWN)
    first = (inspect.getdoc(value) or "").split("\n")[0] if inspect.isroutine(value) else ""
    assert first in text
    assert len(text.split()) > 5
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            assert f"\n| `{field.name}` | " in text or field.name in ("other_choices", "parse")
    if inspect.isclass(value):
        for member, made in vars(value).items():
            if not member.startswith("_") and (inspect.isroutine(made) or type(made) is property):
                assert f"\n### {name}.{member}\n" in text


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_of_other_modules_has_a_section(module: ModuleType) -> None:
    for name in module.__all__:
        assert len(section(name, [PAGES[module.__name__]]).split()) > 5


def test_a_section_has_signature_arguments_and_fields() -> None:
    text = section("AnyBatcher", OWN)
    assert "await generate(\n    prompt: Prompt | Prompts,\n" in text
    assert "[CompleteOptions](keywords-of-calls.md#completeoptions)" in text
    assert "\n- `timeout`: seconds from now. After the timeout" in text
    assert '```python\ncat, dog = await batcher.embed(["a cat", "a dog"], pooling="mean")\n' in text
    usage = section("Usage", OWN)
    assert "| `prompt_tokens` | `int` |" in usage
    inline = section("ModelInfo", OWN)  # its docstring has two fields in one line
    assert "| `fingerprint` | `str` |  | identifies the model's files" in inline
    assert "`Literal['stop', 'length', 'deadline', 'tool_calls']`" in section("FinishReason", OWN)
    assert "`prefill_chunk" not in text
    assert "### Engine.prefill_chunk" in section("Engine", OWN)


def test_keywords_of_calls_have_their_types() -> None:
    text = section("ChatOptions", OWN)
    assert all(f"| `{name}` | `" in text for name in ChatOptions.__optional_keys__)
    assert "| `max_tokens` | `int` |" in text
    assert "| `seed` | `int | None` |" in text
