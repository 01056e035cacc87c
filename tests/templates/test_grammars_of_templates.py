"""A call that a real template writes is one that the family's grammar lets a model write."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from real_templates import TEMPLATES, TOOLS, TURNS, response_format, turn_of

from pybatcher.loading import open_model
from pybatcher.params import StructuredOutput
from pybatcher.text import Tokenizer
from pybatcher.text.grammars import GrammarCompiler
from pybatcher.text.grammars.matcher import OutputMatcher
from pybatcher.text.output import (
    FORMATS,
    parse_response,
    read_tool_choice,
    read_tools,
    response_grammar,
    schemas_of,
)

pytest.importorskip("llguidance")

READ = read_tools(TOOLS)
ONE_LINE = "the grammar writes JSON on one line"
PYTHON = "the grammar writes calls as JSON, which the family reads as well"

# Turns with calls that the grammar would not write, and why.
OTHERWISE = {
    ("tool_chat_template_granite", "call"): ONE_LINE,
    ("tool_chat_template_granite", "calls"): ONE_LINE,
    ("MiniMax-M1", "call"): "the grammar writes a list, the template objects in a row",
    ("MiniMax-M1", "calls"): "the grammar writes a list, the template objects in a row",
    ("LFM2.5-8B-A1B", "call"): PYTHON,
    ("LFM2.5-8B-A1B", "calls"): PYTHON,
    ("tool_chat_template_llama4_pythonic", "call"): PYTHON,
    ("ByteDance-Seed-OSS", "calls"): "the template writes a list as Python does",
    ("Reka-Edge", "call"): "the template writes JSON in ASCII",
    ("Reka-Edge", "calls"): "the template writes JSON in ASCII",
    ("tool_chat_template_functiongemma", "call"): "the template quotes numbers",
    ("tool_chat_template_functiongemma", "calls"): "the template quotes numbers",
    ("tool_chat_template_llama4_json", "calls"): "the grammar writes '; ' between two calls",
    ("tool_chat_template_phi4_mini", "calls"): "the grammar writes '; ' between two calls",
    **{
        (f"tool_chat_template_deepseek{version}", label): "the template writes stray blanks"
        for version in ("v3", "v31")
        for label in ("call", "calls")
    },
    (
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "call",
    ): "the template ends a single call without the marker that ends the calls",
}


class Follower:
    """Says whether a text follows a grammar, with the tokenizer of the shipped model."""

    def __init__(self) -> None:
        parts = open_model(None).tokenizer
        self._tokenizer = Tokenizer(parts.backend, eos_token_ids=parts.eos_token_ids)
        self._compiler = GrammarCompiler(self._tokenizer, 2048)

    def follows(self, lark: str, text: str) -> bool:
        form = StructuredOutput("grammar", lark)
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        assert self._tokenizer.decode(tokens) == text
        matcher = self._compiler.matcher(form)
        return matcher.matcher.validate_tokens(list(tokens)) == len(tokens) and _accepts(
            matcher, tokens
        )


def _accepts(matcher: OutputMatcher, tokens: Sequence[int]) -> bool:
    matcher.follow(tokens)
    return bool(matcher.matcher.is_accepting())


@pytest.fixture(scope="module")
def follower() -> Follower:
    return Follower()


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_that_a_template_writes_follow_the_grammar(name: str, follower: Follower) -> None:
    format = response_format(name)
    for label in ("call", "calls"):
        turn = turn_of(name, TURNS[label])
        if turn is None:
            continue
        text = turn.text.strip("\n")
        response = parse_response(text, format, schemas=schemas_of(READ))
        n_calls = len(response.tool_calls)
        if not n_calls or response.content:
            continue
        follows = (name, label) not in OTHERWISE
        required = response_grammar(format, READ, read_tool_choice("required", READ))
        assert follower.follows(required, text) is follows, f"{label}: {text!r}"
        if follows:
            free = response_grammar(format, READ, read_tool_choice("auto", READ))
            assert follower.follows(free, text), f"{label}: {text!r}"


def test_each_format_is_written_by_a_real_template() -> None:
    written = {response_format(name).name for name in TEMPLATES}
    assert written == set(FORMATS)
