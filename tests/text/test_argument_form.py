from __future__ import annotations

import pytest

from pybatcher.text.chat import argument_form_of
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
    assert argument_form_of(Sandbox(CALLS + written + END).render) == form
