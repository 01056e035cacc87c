from __future__ import annotations

import pytest

from pybatcher.text.message_forms import joins_of, message_forms_of
from pybatcher.text.sandbox import Sandbox

CALLS = "{% for m in messages %}{% for c in m.tool_calls %}{% set f = c.function %}"
END = "{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("written", "form"),
    [
        ("{{ f.arguments | tojson }}", "mapping"),
        ("{{ f | tojson }}", "mapping"),
        ("{% for k, v in f.arguments | items %}{{ k }}={{ v }}{% endfor %}", "mapping"),
        ("{{ f.arguments if f.arguments is string else f.arguments | tojson }}", "mapping"),
        ("{{ '[' + f.arguments + ']' }}", "text"),
        ("{{ f.arguments }}", "text"),
        ("{{ '[' ~ f.arguments ~ ']' }}", "text"),
        ("{% if f.arguments is not string %}{{ raise_exception('no text') }}{% endif %}"
         "{{ f.arguments }}", "text"),
        ("{{ raise_exception('no calls') }}", "mapping"),
        ("{{ c.nothing.at.all }}", "mapping"),
        ("no calls", "mapping"),
    ],
)  # fmt: skip
def test_the_form_is_found(written: str, form: str) -> None:
    assert message_forms_of(Sandbox(CALLS + written + END).render).arguments == form


@pytest.mark.parametrize(
    ("template", "beside_calls", "several"),
    [
        ("{{ m.content }}{{ calls(m) }}", ("",), True),  # it would write "None"
        ("{{ m.content or '' }}{{ calls(m) }}", (None, ""), True),
        ("{% if m.content is none %}{{ calls(m) }}{% endif %}", (None,), True),
        ("{{ m.content | length if m.reasoning_content is not none }}{{ calls(m) }}", ("",), True),
        ("{{ '<t>' in m.content }}{{ calls(m) }}", ("",), True),
        ("{{ m.content or '' }}{{ one(m) }}", (None, ""), False),
        (
            "{% if m.tool_calls | length > 1 %}{{ raise_exception('') }}{% endif %}{{ calls(m) }}",
            (None, ""),
            False,
        ),
        ("no calls", (None, ""), True),
        ("{{ raise_exception('no') }}", ("",), True),
    ],
)
def test_an_empty_content_has_the_form_that_shows_the_calls(
    template: str, beside_calls: tuple[str | None, ...], several: bool
) -> None:
    macros = (
        "{% macro calls(m) %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}"
        "{% endfor %}{% endmacro %}"
        "{% macro one(m) %}{{ m.tool_calls[0].function.arguments | tojson }}{% endmacro %}"
    )
    body = "{% for m in messages %}{% if m.tool_calls %}" + template + "{% endif %}{% endfor %}"
    forms = message_forms_of(Sandbox(macros + body).render)
    assert (forms.beside_calls, forms.several_calls) == (beside_calls, several)
    call = {"function": {"name": "f", "arguments": {}}}
    for content in (None, ""):
        message = {"role": "assistant", "content": content, "tool_calls": [call]}
        (made,) = forms.with_contents([message])
        assert made["content"] in beside_calls
        assert made["content"] == content or content not in beside_calls


TEXT = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
ROLES = ("user", "system", "assistant", "tool")


@pytest.mark.parametrize(
    ("written", "join"),
    [
        ("{% for one in m.content %}{{ one.text }}{% endfor %}", ("", False)),
        ("{% for one in m.content %}{{ one.text | trim }}{% endfor %}", ("", True)),
        ("{{ m.content | map(attribute='text') | join('\\n') }}", ("\n", False)),
        ("{% for one in m.content %}{{ one.text | trim + ' ' }}{% endfor %}", (" ", True)),
        ("{{ m.content }}", None),  # in Python's notation
        ("{{ m.content[0].text }}", None),
        ("{% for one in m.content %}<part>{{ one.text }}</part>{% endfor %}", None),
        ("{{ m.content + '' }}", None),
    ],
)
def test_how_parts_are_joined(written: str, join: tuple[str, bool] | None) -> None:
    found = joins_of(Sandbox(TEXT + written + "{% endif %}{% endfor %}").render)
    assert found == ({} if join is None else dict.fromkeys(ROLES, join))


def test_parts_are_joined_by_role() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' and m.content is not string %}"
        "{{ m.content | map(attribute='text') | join(' ') }}"
        "{% else %}{{ m.role + m.content }}{% endif %}{% endfor %}"
    )
    assert joins_of(Sandbox(template).render) == {"user": (" ", False)}
