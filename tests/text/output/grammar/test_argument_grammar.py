"""Members of arguments that no JSON says; calls as a whole are tested with `response_grammar`."""

from __future__ import annotations

from typing import Any

import pytest

from pybatcher.text.output.grammar.argument_grammar import (
    ARG_KEYS,
    XML_PARAMETERS,
    gemma_arguments,
    tagged_parameters,
)
from pybatcher.text.output.grammar.grammar_rules import GrammarRules


def follows(rules: GrammarRules, start: str, text: str) -> bool:
    llguidance = pytest.importorskip("llguidance")
    tokenizer = llguidance.LLTokenizer("byte")
    grammar = llguidance.grammar_from("lark", rules.text(start))
    assert not llguidance.LLMatcher.validate_grammar(grammar, tokenizer)
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


NODE: dict[str, Any] = {
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["v"],
}
SCHEMA: dict[str, Any] = {
    "properties": {
        "b": {"enum": ["x", 1, None, True]},
        "a": {"type": ["string", "null"]},
        "n": {"$ref": "#/$defs/node"},
        "l": {"type": "array", "items": {"type": "boolean"}},
        "f": {"type": "number"},
        "any": {},
    },
    "$defs": {"node": {"type": "object", **NODE}},
}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("{}", True),
        ("{a:null}", True),
        ("{a:'it',b:'x'}", True),
        ("{b:1,l:[true,false]}", True),
        ("{f:-1.5e3,l:[]}", True),
        ("{n:{next:{v:2},v:1}}", True),
        ("{any:{k:[1,'x',{}]}}", True),
        ("{any:1,f:1,n:{v:1}}", True),
        ("{a:1}", False),
        ("{b:2}", False),
        ("{b:'y'}", False),
        ("{l:[1]}", False),
        ("{n:{next:{},v:1}}", False),
        ("{f:01}", False),
        ("{c:1}", False),
        ("{a:null,}", False),
        ("{,a:null}", False),
    ],
)
def test_members_in_the_manner_of_gemma(text: str, fits: bool) -> None:
    rules = GrammarRules({})
    assert follows(rules, gemma_arguments(rules, SCHEMA, "'"), text) is fits


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


XML_SCHEMA: dict[str, Any] = {
    **SCHEMA,
    "properties": {**SCHEMA["properties"], "b": {"enum": [1, True]}, "e": {"enum": ['"x"', "y z"]}},
}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        (parameter("a", "two\nlines"), True),
        (parameter("b", "1") + parameter("a", ""), True),
        (parameter("n", '{"v": 1, "next": {"v": 2}}'), True),
        (parameter("l", "[true, false]") + parameter("f", "1.5"), True),
        (parameter("any", "all of it"), True),
        (parameter("e", '"x"'), True),
        (parameter("e", "y z"), True),
        (parameter("e", "x"), False),
        (parameter("b", "2"), False),
        (parameter("n", '{"v": "x"}'), False),
        (parameter("l", "[1]"), False),
        (parameter("f", "x"), False),
        (parameter("c", "x"), False),
        (parameter("f", "1") + parameter("l", "[]"), False),
    ],
)
def test_xml_parameters(text: str, fits: bool) -> None:
    rules = GrammarRules({})
    assert follows(rules, tagged_parameters(rules, XML_SCHEMA, XML_PARAMETERS), text) is fits


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("<arg_key>a</arg_key><arg_value>two\nlines</arg_value>", True),
        ("<arg_key>b</arg_key>\n<arg_value>1</arg_value>\n<arg_key>l</arg_key>\n"
         "<arg_value>[true, false]</arg_value>\n", True),
        ("<arg_key>b</arg_key><arg_value>\n1</arg_value>", False),
        ("<arg_key>c</arg_key><arg_value>1</arg_value>", False),
    ],
)  # fmt: skip
def test_parameters_as_keys_and_values(text: str, fits: bool) -> None:
    rules = GrammarRules({})
    assert follows(rules, tagged_parameters(rules, XML_SCHEMA, ARG_KEYS), text) is fits


@pytest.mark.parametrize("value", ["true", "True", "\nfalse\n", "False\n", "tRue", "1", ""])
def test_truth_values_may_be_pythons(value: str) -> None:
    rules = GrammarRules({})
    schema = {"properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    start = tagged_parameters(rules, schema, XML_PARAMETERS)
    fits = value.strip() in ("true", "True", "false", "False")
    assert follows(rules, start, f"<parameter=a>{value}</parameter>\n") is fits


def test_a_tool_without_named_parameters() -> None:
    for schema, fits in (({}, True), ({"properties": {}}, False)):
        rules = GrammarRules({})
        start = tagged_parameters(rules, schema, XML_PARAMETERS) or '""'
        assert follows(rules, start, parameter("k", "v") + parameter("l", "w")) is fits
        assert follows(rules, start, "")
