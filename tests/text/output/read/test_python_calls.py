from __future__ import annotations

import ast
import io
import tokenize
import warnings

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pybatcher.text.output.formats.formats import FORMATS
from pybatcher.text.output.read.parser import parse_response

SCHEMAS = {"f": {"properties": {"a": {}, "b": {}}}, "g": {}}


def calls_of(text: str) -> list[tuple[str, object]]:
    response = parse_response(f"```tool_code\n{text}\n```", FORMATS["gemma3"], schemas=SCHEMAS)
    assert response.tool_calls or text in response.content
    return [(call.name, call.arguments) for call in response.tool_calls]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("f()", {}),
        ("f(a=1, b = 'x',)", {"a": 1, "b": "x"}),
        ("f('x', 2.5)", {"a": "x", "b": 2.5}),
        (
            "f(-1, b=[True, None, (1, 2,), {'k': []}])",
            {"a": -1, "b": [True, None, [1, 2], {"k": []}]},
        ),
        (r"""f(a='\'\n\x41\u00e9\d\\', b="it's")""", {"a": "'\nAé\\d\\", "b": "it's"}),
        ('f(a="""one "two"\n""")', {"a": 'one "two"\n'}),
        ("print(f(a=')'))", {"a": ")"}),
        ("""f(a='x' "y"\n'z', b=""" """"")""", {"a": "xyz", "b": ""}),
        ("f.call(a=true)", {"a": True}),
    ],
)
def test_literals(text: str, arguments: object) -> None:
    assert calls_of(text) == [("f", arguments)]


def test_a_list_of_calls() -> None:
    assert calls_of("[f(a=1), g()]") == [("f", {"a": 1}), ("g", {})]


@pytest.mark.parametrize(
    "text",
    [
        "f(a=b)",
        "f(a=1+1)",
        "f(1, 2, 3)",
        "f(1, a=2)",
        "f(**x)",
        "f(a={1: 2})",
        "f(a=1e999)",
        "f(a=nan)",
        "f(a='x)",
        r"f(a='\ud800')",
        r"f(a='\xzz')",
        r"f(a='\U00110000')",
        "f(a=" + "(" * 80 + ")" * 80 + ")",
        "print(f()",
        "f",
        "(1)",
    ],
)
def test_what_is_no_call_of_literals(text: str) -> None:
    assert calls_of(text) == []


@settings(deadline=None)
@given(st.text(alphabet="ab'\"\\nx1u\n ", max_size=12), st.sampled_from(["'", '"', '"""']))
@example('""', '"""')  # several literals beside each other, which Python joins, are none here
def test_texts_mean_what_they_mean_in_python(text: str, quote: str) -> None:
    literal = repr(text) if len(quote) == 1 else f'"""{text}"""'
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that Python does not know
            value = ast.literal_eval(literal)
    except (SyntaxError, ValueError):
        return
    names = [token.type for token in tokenize.generate_tokens(io.StringIO(literal).readline)]
    assume(names.count(tokenize.STRING) == 1)
    assert calls_of(f"f(a={literal})") == [("f", {"a": value})]
