"""Grammars of responses whose text has a form, behind reasoning and beside calls of tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grammar_follower import Follower

from pybatcher.errors import InvalidRequestError
from pybatcher.params import StructuredOutput
from pybatcher.text.output.formats.formats import FORMATS
from pybatcher.text.output.grammar.response_grammar import response_grammar
from pybatcher.text.output.read.parser import parse_response
from pybatcher.text.output.tools.tool_choice import read_tool_choice
from pybatcher.text.output.tools.tools import read_tools

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SCHEMA["additionalProperties"] = False
# Of each kind of form: texts that have it, and texts that have not.
FORMS: dict[str, tuple[StructuredOutput, list[str], list[str]]] = {
    "json_schema": (
        StructuredOutput("json_schema", json.dumps(SCHEMA)),
        ['{"a": 1}', '{"a": -20}'],
        ["", '{"a":1}', '{"a": 1.5}', '{"b": 1}', 'so {"a": 1}', '{"a": 1} so'],
    ),
    "json_object": (
        StructuredOutput("json_object", ""),
        ["{}", '{"x": [1, {}]}'],
        ["[]", "1", "{"],
    ),
    "regex": (
        StructuredOutput("regex", "[a/]+\\/b\nc\t?(\\\\|\\n)"),
        ["a/b\nc\\", "//a/b\nc\t\n"],
        ["a/b c\\", "b\nc\\", "a/b\nc"],
    ),
    "choices": (
        StructuredOutput("choices", json.dumps(["yes", 'ä "b"\n', "no/"])),
        ["yes", 'ä "b"\n', "no/"],
        ["", "ye", "yes no/", "no"],
    ),
    "grammar": (
        StructuredOutput("grammar", 'start: "<" word ("," word)* ">"\nword: /[a-z]{2}/'),
        ["<ab>", "<ab,cd>"],
        ["<>", "<abc>", "ab"],
    ),
}
NO_CALLS = read_tool_choice(None, ())
THINKING = sorted(name for name, format in FORMATS.items() if format.think)


def grammar(name: str, form: StructuredOutput | None, **options: Any) -> str:
    return response_grammar(FORMATS[name], (), NO_CALLS, form=form, **options)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name", ["hermes", "mistral", "gemma4"])
def test_reasoning_may_come_before_a_form(name: str, kind: str) -> None:
    form, right, wrong = FORMS[kind]
    think = FORMATS[name].think[0]
    before = f'{think.open}\nhm, {{ "a" }}\n{think.close}\n\n'
    may = Follower(grammar(name, form))
    inside = Follower(grammar(name, form, in_reasoning=True))
    never = Follower(grammar(name, form, may_reason=False))
    for text in right:
        assert may.follows(text)
        assert may.follows(before + text)
        assert inside.follows(f"hm\n{think.close}\n{text}")
        assert not inside.follows(text)
        assert never.follows(text)
        assert not never.follows(before + text)
    for text in wrong:
        assert not may.follows(text)
        assert not may.follows(before + text)
        assert not inside.follows(f"hm{think.close}{text}")


@pytest.mark.parametrize("name", THINKING)
def test_every_family_that_thinks_does_before_a_form(name: str) -> None:
    think = FORMATS[name].think[0]
    follower = Follower(grammar(name, FORMS["choices"][0]))
    assert follower.follows(f"{think.open}why?{think.close}yes")
    assert not follower.follows(f"{think.open}why?{think.close}maybe")
    assert not follower.follows(f"{think.open}why?yes")


def test_in_harmony_a_form_is_that_of_the_final_message() -> None:
    follower = Follower(grammar("harmony", FORMS["choices"][0]))
    final = "<|channel|>final<|message|>"
    analysis = "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant"
    assert follower.follows(f"{final}yes")
    assert follower.follows(f"{analysis}{final}yes")
    assert not follower.follows(f"{analysis}{final}maybe")
    assert not follower.follows("yes")
    comment = analysis.replace("analysis", "commentary")  # it would become a part of the text
    assert not follower.follows(f"{comment}{final}yes")
    assert Follower(grammar("harmony", None)).follows(f"{comment}{final}yes")
    text = f"{analysis}{final}yes"
    assert parse_response(text, FORMATS["harmony"]).content == "yes"


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"harmony"}))
def test_calls_may_come_in_place_of_a_form(name: str) -> None:
    tools = read_tools([{"name": "ping"}])
    choice = read_tool_choice("auto", tools)
    both = response_grammar(FORMATS[name], tools, choice, form=FORMS["choices"][0])
    required = response_grammar(FORMATS[name], tools, read_tool_choice("required", tools))
    follower = Follower(both)
    assert follower.follows("yes")
    assert not follower.follows("maybe")
    assert not Follower(required).follows("yes")


def test_a_limit_of_reasoning_takes_a_marker_that_is_a_token() -> None:
    for name in (*THINKING, "harmony"):
        with pytest.raises(InvalidRequestError, match="max_reasoning_tokens: the model ends its"):
            grammar(name, None, in_reasoning=True, max_reasoning_tokens=5)
        close = "<|end|>" if name == "harmony" else FORMATS[name].think[0].close
        limited = grammar(
            name, None, in_reasoning=True, max_reasoning_tokens=5, special_tokens={close: 7}
        )
        assert "[max_tokens=5]" in limited
        assert "<[7]>" in limited
