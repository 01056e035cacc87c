"""What the forms of calls allow; that they are found in responses is tested with the parser."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from response_texts import deepseek

from pybatcher.text.output.formats.formats import FORMATS
from pybatcher.text.output.read.parser import parse_response

SCHEMAS = {
    "f": {
        "properties": {
            "s": {"type": "string"},
            "n": {"type": "integer"},
            "o": {"type": "object"},
            "u": {"type": ["string", "null"]},
        }
    }
}
PYTHON_SCHEMAS = {"f": {"properties": {"a": {}, "b": {}}}, "g": {}}


def arguments_of(name: str, text: str) -> object:
    """The arguments of the only call of a response; what it is if it has none."""
    response = parse_response(text, FORMATS[name], schemas=SCHEMAS)
    if not response.tool_calls:
        assert response.content == text
        return None
    assert [call.name for call in response.tool_calls] == ["f"]
    assert not response.content
    return response.tool_calls[0].arguments


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ('{"name": "f", "arguments": {"n": 1}}', {"n": 1}),
        ('{"id": [1], "parameters": {"n": 1}, "name": "f"}', {"n": 1}),
        ('{"function": {"name": "f", "arguments": {"n": 1}}}', {"n": 1}),
        ('{"function": "f", "arguments": {"n": 1}}', {"n": 1}),
        ('[{"name": "f", "arguments": null}]', {}),
        ('{"name": "f", "arguments": ""}', {}),
        ("{}", None),
        ("[]", None),
        ('{"name": 7, "arguments": {}}', None),
        ('{"name": "f", "arguments": {}, "parameters": {}}', None),
        ('{"name": "f", "name": "f"}', None),
        ('["f"]', None),
    ],
)
def test_json(inside: str, arguments: object) -> None:
    assert arguments_of("hermes", f"<tool_call>\n{inside}\n</tool_call>") == arguments


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ("<parameter=s>\n\n 12 \n\n</parameter>", {"s": "\n 12 \n"}),
        ("<parameter=s>a</parameter><parameter=n> 7 </parameter>", {"s": "a", "n": 7}),
        ("<parameter=s>\r\na</b>\r\n</parameter>\n", {"s": "a</b>"}),
        ("<parameter=u>\nnull\n</parameter>", {"u": None}),
        ('<parameter=o>{"a": [1]}</parameter>', {"o": {"a": [1]}}),
        ("<parameter=n>many</parameter>", {"n": "many"}),
        ('{"n": 1}\n', {"n": 1}),
        ("", {}),
        ("<parameter=s>a</parameter><parameter=s>b</parameter>", None),
        ("<parameter=>a</parameter>", None),
        ("text", None),
    ],
)
def test_xml(inside: str, arguments: object) -> None:
    text = f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"
    assert arguments_of("qwen_xml", text) == arguments


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ('f[ARGS]{"n": 1}', {"n": 1}),
        ('f[CALL_ID]123456789[ARGS]{"n": 1}', {"n": 1}),
        (' f {"n": 1}', {"n": 1}),
        ('{"name": "f", "arguments": {"n": 1}}', {"n": 1}),
        ('f[CALL_ID]{"n": 1}', None),
        ("f[ARGS][1]", None),
    ],
)
def test_mistral(inside: str, arguments: object) -> None:
    assert arguments_of("mistral", "[TOOL_CALLS]" + inside) == arguments


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ('function{sep}f\n```json\n{"n": 1}\n```', {"n": 1}),
        ('f{sep}{"n": 1}', {"n": 1}),
        ('function{sep}f\n```json\n{"n": 1}\n', None),
        ("function{sep}f\n", None),
        ('f{"n": 1}', None),
    ],
)
def test_deepseek(inside: str, arguments: object) -> None:
    text = deepseek("call begin") + inside.replace("{sep}", deepseek("sep"))
    assert arguments_of("deepseek", text) == arguments


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ("{}", {}),
        ('{s:<|"|>}, {"n":<|"|>, n : -1.5e2 }', {"s": '}, {"n":', "n": -150.0}),
        ('{o:{a:[],<|"|>b c<|"|>:[1,[true,null]]}}', {"o": {"a": [], "b c": [1, [True, None]]}}),
        ('{"s":"a\\n",u:word}', {"s": "a\n", "u": "word"}),
        ("{s:}", None),
        ("{s:1,s:2}", None),
        ("{s:1", None),
        ("{o:" + "[" * 80 + "]" * 80 + "}", None),
    ],
)
def test_gemma(inside: str, arguments: object) -> None:
    text = f"<|tool_call>call:f{inside}<tool_call|>"
    assert arguments_of("gemma4", text) == arguments


def calls_of(text: str) -> list[tuple[str, object]]:
    response = parse_response(
        f"```tool_code\n{text}\n```", FORMATS["gemma3"], schemas=PYTHON_SCHEMAS
    )
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
