"""`Follower`: says whether texts follow a grammar."""

from __future__ import annotations

import pytest

__all__ = ["Follower"]


class Follower:
    """Says whether texts follow a grammar; a token is a byte, or a marker where those are special.

    The vocabulary of the byte tokenizer of llguidance is the bytes; its own markers come after.
    """

    def __init__(self, lark: str) -> None:
        llguidance = pytest.importorskip("llguidance")
        self._tokenizer = llguidance.LLTokenizer("byte")
        grammar = llguidance.grammar_from("lark", lark)
        error = llguidance.LLMatcher.validate_grammar(grammar, self._tokenizer)
        assert not error, f"{error}\n{lark}"
        self._new = lambda: llguidance.LLMatcher(self._tokenizer, grammar)

    def follows(self, text: str) -> bool:
        matcher = self._new()
        ids = list(text.encode())
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
