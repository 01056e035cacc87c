"""Every operation that a template can reach has a cost, and the cost bounds the time it takes."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import jinja2
import pytest

from pybatcher.text import metering
from pybatcher.text.sandbox import Sandbox
from pybatcher.text.template_costs import METHODS, OPERATORS
from pybatcher.text.template_filters import FILTERS, TESTS

# Values that make some operation slow: long, repetitive, huge, deep, wide.
VALUES: dict[str, Any] = {
    "t": "a" * 300_000,
    "u": "\u65e5 \u00e9\n&" * 40_000,
    "h": "a" * 100_000 + "b" + "a" * 50_000,
    "w": "a" * 49 + "b" + "a" * 48,
    "s": [str(i % 7) * 20 for i in range(5_000)],
    "rows": [{"a": {"a": i}, "b": "x"} for i in range(1_000)],
    "d": {str(i): i for i in range(5_000)},
    "n": (1 << 4095) - 1,
    "k": 100_000_000,
    "z": "%(a)999999999d %999999999d {:>99999999}",
    "p": "%s" * 100_000,
    "g": "{}" * 50_000,
    "path": "a." * 20_000 + "a",
}
OPERANDS = [*VALUES, "range(99999)", "s | map('upper')", "t | e", "d.items()", "[s, s]"]
ARGUMENTS = ["", "t", "h", "k", "path", "range(99999)", "t, h", "'b', h", "attribute=path",
             "9, 'ceil'", "0, 16", "chars=h"]  # fmt: skip
_UNITS = 4_000


def expressions() -> dict[str, list[str]]:
    """Expressions by the operation that they try."""
    found = {
        f"|{name}": [f"({value}) | {name}({given})" for value in OPERANDS for given in ARGUMENTS]
        for name in FILTERS
        if name.isidentifier()
    }
    for name in TESTS:
        if name.isidentifier():
            given = ["", "t", "n", "s", "h", "range(99999)"]
            found[f"is {name}"] = [f"({one}) is {name}({x})" for one in OPERANDS for x in given]
    owners: dict[type, list[str]] = {
        str: ["t", "u", "h", "p", "g", "z", "(t | e)"],
        dict: ["d"],
        list: ["s", "rows"],
    }
    for kind, methods in METHODS.items():
        for name in methods:
            found[f"{kind.__name__}.{name}"] = [
                f"{owner}.{name}({given})"
                for owner in owners.get(kind, ["(s, s)"])
                for given in ARGUMENTS
            ]
    for operator in [*OPERATORS, "==", "<", "in", "not in", "~"]:
        found[operator] = [f"({one}) {operator} ({x})" for one in OPERANDS for x in OPERANDS]
    for function in ("dict", "namespace", "range", "strftime_now", "raise_exception"):
        found[function] = [f"{function}({one})" for one in OPERANDS]
    found["subscript"] = [f"({one})[{x}]" for one in OPERANDS for x in OPERANDS]
    found["slice"] = [f"({one})[::{x}]" for one in OPERANDS for x in ("1", "-1", "n", "2")]
    found["dictionary"] = [f"{{({one}): 1}}" for one in OPERANDS]
    found["sign"] = [f"-({one})" for one in OPERANDS]
    return found


EXPRESSIONS = expressions()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_no_operation_works_past_its_cost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat each operation until the units are spent, which are worth some 2 ms.

    An operation whose cost is missing or too low by a large factor takes seconds.
    """
    monkeypatch.setattr(metering, "_BASE_UNITS", _UNITS)
    monkeypatch.setattr(metering, "_UNITS_PER_INPUT_UNIT", 0)
    tried = EXPRESSIONS[name]
    for expression in tried[:: 1 + len(tried) // 15]:
        loop = "{% for i in range(99999) %}{% set zz = " + expression + " %}{% endfor %}"
        try:
            sandbox = Sandbox(loop)
        except jinja2.TemplateError:
            continue  # not one of the filter's forms
        began = time.thread_time()
        with suppress(Exception):  # of any type: most arguments are not the operation's own
            sandbox.render(VALUES)
        assert time.thread_time() - began < 3.0, expression


@pytest.mark.parametrize("kind", METHODS)
def test_a_method_without_a_cost_cannot_be_called(kind: type) -> None:
    owner = {str: "'x'", dict: "{}", list: "[]", tuple: "(1,)", int: "(1)", float: "(1.5)"}[kind]
    for name in dir(kind):
        if name not in METHODS[kind] and name != "format_map":
            template = Sandbox(f"{{{{ {owner}.{name}() }}}}")
            with pytest.raises((jinja2.exceptions.SecurityError, jinja2.UndefinedError)):
                template.render({})


def test_every_operator_has_a_cost() -> None:
    assert OPERATORS.keys() == jinja2.sandbox.SandboxedEnvironment.default_binop_table.keys()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'b' in 'abc'", "True"),
        ("'b' not in ['a', 'c']", "True"),
        ("2 in range(3)", "True"),
        ("'x' in {'x': 1}", "True"),
        ("{'a': 1} in [{'a': 1}]", "True"),
        ("'A' in (['a'] | map('upper'))", "True"),
        ("'B' in (['a'] | map('upper'))", "False"),
        ("1.0 in [1]", "True"),
        ("none in [none]", "True"),
        ("'a b c'.rsplit(' ', 1)", "['a b', 'c']"),
        ("'a b c'.split(maxsplit=1)", "['a', 'b c']"),
        ("'xaxbx'.rfind('x') ~ 'xaxbx'.find('x', 1)", "42"),
        ("{'a': 1}.get('b', 2)", "2"),
        ("('a' | groupby('x') | first).list", "['a']"),
        ("[7 // 2, 7 % 4, 7 - 9, 7 / 2]", "[3, 3, -2, 3.5]"),
        ("{'a': 1, 'b': 2}.keys() - ['a']", "{'b'}"),
    ],
)
def test_the_results_are_pythons_own(expression: str, expected: str) -> None:
    assert Sandbox(f"{{{{ {expression} }}}}").render({}) == expected
