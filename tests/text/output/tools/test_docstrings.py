from __future__ import annotations

from pybatcher.text.output.tools.docstrings import read_docstring

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
