from __future__ import annotations

import functools
from typing import Any, Literal

import pytest

from pybatcher.errors import InvalidRequestError
from pybatcher.text.output.tools.function_tools import describe_function, read_docstring

NOTHING = object()
DOCSTRING = """\
Look the weather up.

Note: it is: a forecast.

Args:
    city: where,
        with the country
        region: too
    days (int): how many
    unit (Literal["C", "F"], optional):
        of the
        temperature
    *rest: no parameter of a tool

Returns:
    city: not of a parameter

Arguments:
    late: of a second section
"""


def get_weather(
    city: str, days: int = 1, *, unit: Literal["C", "F"] = "C", where: Any = NOTHING, free=None
) -> str:
    """Look the weather up.

    Args:
        city: where
        days (int): how many
    """
    return f"{city} {days} {unit} {where} {free}"


class Service:
    def look(self, key: str) -> str:
        """Look a key up."""
        return key


def test_a_function_is_described() -> None:
    assert describe_function(get_weather, "tools[0]") == {
        "name": "get_weather",
        "description": "Look the weather up.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where"},
                "days": {"type": "integer", "description": "how many", "default": 1},
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                "where": {},
                "free": {"default": None},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    }


def test_a_bound_method_has_no_self() -> None:
    described = describe_function(Service().look, "tools[0]")
    assert described["name"] == "look"
    assert list(described["parameters"]["properties"]) == ["key"]


def positional(a: int, /) -> None: ...


def variadic(*args: int) -> None: ...


def keywords(**kwargs: int) -> None: ...


def undefined(a: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (positional, "the parameter a: "),
        (variadic, r"the parameter \*args"),
        (keywords, r"the parameter \*\*kwargs"),
        (undefined, "NoSuchType"),
        (functools.partial(positional, 1), "no signature can be read"),
    ],
)
def test_what_no_tool_can_be_is_named(function: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"tools\\[0\\].*{says}"):
        describe_function(function, "tools[0]")


def test_the_description_ends_where_the_sections_begin() -> None:
    description, parameters = read_docstring(DOCSTRING)
    assert description == "Look the weather up.\n\nNote: it is: a forecast."
    assert parameters == {
        "city": "where, with the country region: too",
        "days": "how many",
        "unit": "of the temperature",
        "rest": "no parameter of a tool",
        "late": "of a second section",
    }


def test_a_docstring_without_sections_is_the_description() -> None:
    assert read_docstring("") == ("", {})
    assert read_docstring("One line.") == ("One line.", {})
    assert read_docstring("Args:\n    none of the form") == ("", {})
