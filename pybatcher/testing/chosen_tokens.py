"""Outputs whose tokens are chosen: those of a text, or any that a constraint allows.

Both take the place of the matcher of a structured output: the scheduler passes them on to the
`FakeEngine`, which asks them for the next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

from ..text import Tokenizer
from ..text.grammars import OutputMatcher

__all__ = ["NextToken", "ScriptedTokens", "ValidTokens"]

_CLOSING = ("}", "]", '"')  # only the last one closes something inside a text
_SEPARATORS_AT_MOST = 8
_DIGITS_AT_MOST = 12  # 0 to 9, e and E: more letters are those of a text
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_SEPARATORS = " !#$%&'()*+,-./:;<=>?@[\\^_`{|~"


@runtime_checkable
class NextToken(Protocol):
    """Chooses the next token of an output."""

    def next_token(self, output: Sequence[int]) -> int:
        """Return the token after `output`."""


class ScriptedTokens:
    """The tokens of an answer, then the end token.

    tokens: all tokens of the output, those that it came with included.
    """

    is_complete = False

    def __init__(self, tokens: tuple[int, ...], end: int) -> None:
        self._tokens = tokens
        self._end = end

    def follow(self, output: Sequence[int]) -> None:
        """Do nothing: the position is the length of the output."""

    def next_token(self, output: Sequence[int]) -> int:
        """Return the token after `output`."""
        return self._tokens[len(output)] if len(output) < len(self._tokens) else self._end


class ValidTokens:
    """Tokens that a constraint allows, chosen so that the output ends soon.

    The choice is a function of the output: the end as soon as it is allowed, then a character that
    closes a list, an object or a text, then a letter or a digit, or one of a few separators.

    matcher: the state of the constraint. end: the end token.
    """

    def __init__(self, matcher: OutputMatcher, tokenizer: Tokenizer, end: int) -> None:
        self._matcher = matcher
        self._end = end
        self._closing, self._letters, self._separators = _tokens_of(tokenizer)

    @property
    def is_complete(self) -> bool:
        """True when only an end token is allowed."""
        return self._matcher.is_complete

    def follow(self, output: Sequence[int]) -> None:
        """Move to the end of `output`."""
        self._matcher.follow(output)

    def next_token(self, output: Sequence[int]) -> int:
        """Return the token after `output`."""
        self.follow(output)
        matcher: Any = self._matcher.matcher
        if matcher.is_stopped():
            return self._end
        mask = matcher.compute_bitmask()

        def is_allowed(token: int) -> bool:
            return bool(mask[token // 8] >> token % 8 & 1)

        if is_allowed(self._end):
            return self._end
        letters = [token for token in self._letters if is_allowed(token)]
        closing = self._closing[-1:] if len(letters) > _DIGITS_AT_MOST else self._closing
        for token in closing:
            if is_allowed(token):
                return token
        digest = blake2b(repr(tuple(output)).encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "little")
        separators = [token for token in self._separators if is_allowed(token)]
        few = 0 < len(separators) <= _SEPARATORS_AT_MOST
        if separators and (not letters or (few and number % 2)):
            return separators[number // 2 % len(separators)]
        if letters:
            return letters[number // 2 % len(letters)]
        others = [i for i in range(8 * len(mask)) if is_allowed(i)]
        return others[number % len(others)] if others else self._end


@lru_cache(maxsize=8)
def _tokens_of(tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of single characters: closing ones, letters and digits, separators."""

    def tokens(characters: Sequence[str]) -> tuple[int, ...]:
        made = (tokenizer.encode(one, add_special_tokens=False) for one in characters)
        return tuple(ids[0] for ids in made if len(ids) == 1)

    return tokens(_CLOSING), tokens(_LETTERS), tokens(_SEPARATORS)
