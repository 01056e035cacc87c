"""The text of grammars; what they accept is tested with `response_grammar`."""

from __future__ import annotations

import pytest

from pybatcher import InvalidRequestError
from pybatcher.text.output.grammar.grammar_rules import GrammarRules


def test_literals_name_special_tokens_by_their_ids() -> None:
    rules = GrammarRules({"<a>": 7, "<a><b>": 8})
    assert rules.literal('x<a>"\n<a><b>') == r'"x" <[7]> "\"\n" <[8]>'
    assert rules.literal("") == ""


def test_the_same_rule_is_written_once() -> None:
    rules = GrammarRules({"<a>": 7})
    assert rules.rule("/x/", options="[lazy]") == "r0"
    assert rules.rule("/x/") == "r1"
    assert rules.rule("/x/", options="[lazy]") == "r0"
    assert rules.one_of(["a", "b", "a"]) == "r2"
    assert rules.reserve() == "r3"
    rules.define("r3", "r2")
    assert rules.text("r3").splitlines() == [
        "%llguidance {}",
        "start: r3",
        "r0[lazy]: /x/",
        "r1: /x/",
        "r2: a | b",
        "r3: r2",
    ]


def test_a_text_ends_at_its_marker() -> None:
    rules = GrammarRules({"<a>": 7})
    assert rules.until("<a>") == "r0 <[7]>"
    assert rules.until("</b c>\n") == "r1"
    assert rules.text("r1").splitlines()[2:] == ["r0: /(?s:.*)/", r"r1[lazy]: /(?s:.*)<\/b c>\n/"]


def test_json_has_bounded_blanks() -> None:
    rules = GrammarRules({})
    assert rules.json({"type": "object"}) == "r0"
    assert '"whitespace_flexible": false' in rules.text("r0")


def test_json_is_kept_to_the_letter() -> None:
    """By the rules that are tested in tests/text/grammars/test_schemas.py."""
    rules = GrammarRules({})
    rules.json({"type": "number", "exclusiveMinimum": 0, "x-guidance": {"lenient": True}})
    assert '"minimum": 1e-20' in rules.text("r0")
    assert "lenient" not in rules.text("r0")
    assert "json_allowed_escapes" in rules.text("r0")
    with pytest.raises(InvalidRequestError, match=r"^tools\.parameters has minProperties"):
        rules.json({"minProperties": 2})


def test_json_of_a_tool_that_is_not_strict_leaves_out_what_cannot_be_enforced() -> None:
    rules = GrammarRules({})
    schema = {"type": "array", "items": {"type": "string", "pattern": "(?=a)"}, "uniqueItems": True}
    rules.begin_arguments("tools[3]", is_strict=False)
    rules.json(schema)
    assert '"items": {"type": "string"}, "x-guidance"' in rules.text("r0")
    rules.begin_arguments("tools[4]", is_strict=True)
    with pytest.raises(InvalidRequestError) as raised:
        rules.json(schema, ".properties.a")
    assert raised.value.field == "tools[4]"
    assert str(raised.value).startswith("tools[4].parameters.properties.a has uniqueItems, which")
