"""`OutputMatcher`: the position of one output in its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["ANY_TOKEN", "OutputMatcher"]

ANY_TOKEN = -1
"""Replaces the only allowed token if more than one is allowed."""


class OutputMatcher:
    """Follows the tokens of one output through a grammar. For one thread at a time.

    Its state is a pure function of the output: it may be rebuilt or rolled back at any time.

    matcher: an llguidance `LLMatcher` at the beginning of its grammar.
    tokens: the `LLTokenizer` that it was made with.
    goes_back: False for a grammar with `max_tokens` or `stop`, in which llguidance cannot roll
        back: its outputs have no drafts.
    """

    __slots__ = ("_n_tokens", "_start", "_tokens", "matcher")

    def __init__(self, matcher: Any, tokens: Any, *, goes_back: bool = True) -> None:
        self.matcher = matcher
        self._tokens = tokens
        self._start = None if goes_back else matcher.deep_copy()
        self._n_tokens = 0

    @property
    def error(self) -> str:
        """The reason why the grammar cannot be followed further; "" if it can."""
        return str(self.matcher.get_error()).strip() if self.matcher.is_error() else ""

    @property
    def is_complete(self) -> bool:
        """True when only an end token is allowed."""
        return bool(self.matcher.is_stopped())

    def follow(self, output: Sequence[int]) -> None:
        """Move to the end of `output`, which extends or shortens the tokens of the previous call.

        The cost is proportional to the new tokens. A token that is not allowed sets `error`.
        """
        n_new = len(output) - self._n_tokens
        if n_new < 0 and self._start is not None:
            self.matcher = self._start.deep_copy()
            self.matcher.consume_tokens(list(output))
        elif n_new < 0:
            self.matcher.rollback(-n_new)
        elif n_new:
            self.matcher.consume_tokens(list(output[self._n_tokens :]))
        self._n_tokens = len(output)

    def allowed(self, draft: Sequence[int]) -> tuple[int, list[int]]:
        """Return how many tokens of a draft are allowed, and the only allowed token of each
        position.

        The positions are those of the allowed tokens and the one after them; ANY_TOKEN if there is
        a choice. A forced text has the tokens of the tokenizer: the same text in other tokens is
        not allowed. The matcher does not move.
        """
        matcher, only = self.matcher, [self._only()]
        for token in () if self._start is not None else draft:
            wanted = only[-1]
            fits = token == wanted if wanted >= 0 else matcher.validate_tokens([token]) == 1
            if not fits:
                break
            matcher.consume_token(token)
            only.append(self._only())
        if len(only) > 1:
            matcher.rollback(len(only) - 1)
        return len(only) - 1, only

    def advance(self, tokens: Sequence[int]) -> int:
        """Follow sampled tokens up to the one that completes the output. Return their number."""
        for i, token in enumerate(tokens, start=1):
            self.matcher.consume_token(token)
            self._n_tokens += 1
            if self.matcher.is_stopped():
                return i
        return len(tokens)

    def forced(self) -> tuple[int, ...]:
        """Return tokens of the text that must come next; empty if there is a choice.

        If the text spells a special token, the tokenizer encodes it as that token, which is no text
        and not allowed: the longest token that the text begins with comes instead.
        """
        forced = self.matcher.compute_ff_tokens()
        n_valid = self.matcher.validate_tokens(forced) if forced else 0
        if forced and not n_valid:
            text = self.matcher.compute_ff_bytes().decode("utf-8", "ignore")
            forced = self._tokens.greedy_tokenize(text)[:1]
            n_valid = self.matcher.validate_tokens(forced)
        return tuple(forced[:n_valid])

    def _only(self) -> int:
        return next(iter(self.forced()), ANY_TOKEN)
