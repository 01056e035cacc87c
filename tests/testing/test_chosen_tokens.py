"""Tokens that are chosen: of a script, and those that a constraint allows."""

from __future__ import annotations

import re

import pytest

from pybatcher.params import StructuredOutput
from pybatcher.testing import byte_tokenizer
from pybatcher.testing.chosen_tokens import NextToken, ScriptedTokens, ValidTokens
from pybatcher.text.grammars import GrammarCompiler

END = 257


def test_a_script_ends_with_the_end_token() -> None:
    script = ScriptedTokens((5, 6), END)
    assert isinstance(script, NextToken)
    assert [script.next_token(range(i)) for i in range(4)] == [5, 6, END, END]


@pytest.mark.parametrize(
    "regex", ["a", "[a-z]+@[a-z]+", "(日本|🙂)x", "[^a]{4}", "\\(\\d{3}\\)", "a{0,9}", "\\s+b"]
)
def test_an_output_is_valid_and_a_function_of_its_tokens(regex: str) -> None:
    tokenizer = byte_tokenizer()
    compiler = GrammarCompiler(tokenizer, 258)

    def new() -> ValidTokens:
        return ValidTokens(compiler.matcher(StructuredOutput("regex", regex)), tokenizer, END)

    valid = new()
    assert isinstance(valid, NextToken)
    output: list[int] = []
    while (token := valid.next_token(output)) != END:
        output.append(token)
        assert len(output) < 500
    assert re.fullmatch(regex, tokenizer.decode(output))
    assert [new().next_token(output[:i]) for i in range(len(output))] == output
    assert [valid.next_token(output[:i]) for i in (0, len(output) // 2)] == [
        new().next_token(output[:i]) for i in (0, len(output) // 2)
    ]
