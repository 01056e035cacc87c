"""What a template does with tools, system messages and variables is found by rendering it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pybatcher.text.sandbox import Sandbox
from pybatcher.text.template_uses import THINKING_VARIABLES, TemplateUses

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHAT
ONLY_SYSTEM = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}" + CHAT
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
BROKEN = "{{ raise_exception('never') }}{{ tools }}{{ enable_thinking }}"


def uses_of(source: str) -> TemplateUses:
    return TemplateUses(source, Sandbox(source).render)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHAT, False),
        (CHAT + "{{ tools | tojson }}", True),
        (CHAT + "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}", True),
        (CHAT + "{% if tools %}{{ raise_exception('no tools') }}{% endif %}", False),
        (CHAT + "{% if tools %}Tools.{% endif %}", False),
        (CHAT + "{# tools #}", False),
        (CHAT + "{{ my_tools }}", False),
        (NO_SYSTEM + "{{ tools }}", True),
        (ONLY_SYSTEM + "{{ tools }}", True),
        (ONLY_SYSTEM + "{{ 'tools' }}", False),
        (BROKEN, True),
    ],
)
def test_tools(source: str, expected: bool) -> None:
    assert uses_of(source).tools is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHAT, True),
        (NO_SYSTEM, False),
        ("{{ messages[-1].content }}", False),
        (BROKEN, True),
    ],
)
def test_system_messages(source: str, expected: bool) -> None:
    assert uses_of(source).system is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{{ m.content }}", False),
        ("{{ m.content or '' }}" + CALLS, True),
        ("{{ '' + m.content }}" + CALLS, True),  # None beside calls would fail
        ("{{ m.content or '' }}" + CALLS.replace("| tojson", "+ ''"), True),
        ("{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m.content or '' }}"
         + CALLS, False),
        ("{% if m.role == 'tool' %}{{ raise_exception('') }}{% endif %}{{ m.content }}", False),
    ],
)  # fmt: skip
def test_turns_of_tools(body: str, expected: bool) -> None:
    source = "{% for m in messages %}" + body + "{% endfor %}"
    assert uses_of(source).tool_turns is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHAT, ()),
        (CHAT + "{{ enable_thinking }}", ("enable_thinking",)),
        (
            CHAT + "{% if enable_thinking is false %}<think></think>{% endif %}",
            ("enable_thinking",),
        ),
        (CHAT + "{% if not enable_thinking %}no{% endif %}", ("enable_thinking",)),
        (CHAT + "{% set enable_thinking = true %}{{ enable_thinking }}", ()),
        (CHAT + "{{ 'enable_thinking' }}", ()),
        (CHAT + "{{ reasoning_effort | default('medium') }}", ("reasoning_effort",)),
        (CHAT + "{% if reasoning_effort == 'high' %}!{% endif %}", ("reasoning_effort",)),
        (CHAT + "{% if tools and enable_thinking %}!{% endif %}", ("enable_thinking",)),
        (BROKEN, ("enable_thinking",)),
    ],
)
def test_variables_of_reasoning(source: str, expected: tuple[str, ...]) -> None:
    uses = uses_of(source)
    assert tuple(filter(uses.takes, THINKING_VARIABLES)) == expected


def test_each_use_is_found_once() -> None:
    source = CHAT + "{{ tools }}{{ enable_thinking }}"
    rendered: list[Mapping[str, Any]] = []

    def render(values: Mapping[str, Any]) -> str:
        rendered.append(values)
        return Sandbox(source).render(values)

    uses = TemplateUses(source, render)
    assert not rendered
    for _ in range(2):
        assert uses.tools
        assert uses.system
        assert not uses.tool_turns
        assert uses.takes("enable_thinking")
        first = len(rendered)
        assert first
    assert len(rendered) == first
    assert not uses.takes("reasoning_effort")
    assert len(rendered) == first


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHAT, True),
        (CHAT + "{{ type }}", True),
        ("{% for p in messages[0].content %}{{ p['text'] }}{% endfor %}", True),
        ("{% for p in messages[0].content %}{{ p['type'] }}{{ p['text'] }}{% endfor %}", False),
        ("{{ raise_exception('never') }}{{ type }}", True),
    ],
)
def test_contents_that_are_texts(source: str, expected: bool) -> None:
    assert uses_of(source).text_contents is expected
