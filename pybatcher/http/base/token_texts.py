"""`TokenTexts`: the bytes and texts of single tokens, which log-probabilities show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

from ...calls.any_batcher import AnyBatcher
from ...calls.completion import Completion, Piece, TokenLogprob

__all__ = ["TokenTexts"]

_AT_ONCE = 2**14  # tokens of one call
_BEFORE = "a"  # a text that any token can follow


class TokenTexts:
    """The texts and bytes of tokens by their ids. `learn` fetches those that are not known yet.

    A text is that of the token alone after another token, so that a part of a character is U+FFFD;
    the joined bytes of tokens are their text in UTF-8.
    """

    _is_by_id = False

    def __init__(self, batcher: AnyBatcher) -> None:
        self._batcher = batcher
        self._bytes: dict[int, bytes] = {}
        self._before: tuple[tuple[int, ...], str] | None = None

    def named_by_id(self) -> TokenTexts:
        """Return these texts for an answer that names tokens as `token_id:N`."""
        other = copy(self)  # with the same map of bytes
        other._is_by_id = True
        return other

    def __getitem__(self, token_id: int) -> str:
        return self._bytes[token_id].decode("utf-8", "replace")

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token."""
        return self._bytes[token_id]

    def name(self, token_id: int) -> str:
        """Return the text of a token in OpenAI's completions.

        A token that is not whole characters is written as its bytes, such as `bytes:\\xf0\\x9f`.
        """
        if self._is_by_id:
            return f"token_id:{token_id}"
        spelled = self.bytes_of(token_id)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return f"bytes:{str(spelled)[2:-1]}"

    def described(self, one: TokenLogprob) -> dict[str, Any]:
        """Return a token's log-probability and its alternatives in the form of OpenAI's API."""
        top = [self._described(token, logprob) for token, logprob in one.top]
        return {**self._described(one.token_id, one.logprob), "top_logprobs": top}

    def _described(self, token_id: int, logprob: float) -> dict[str, Any]:
        spelled = list(self.bytes_of(token_id))
        text = self.name(token_id) if self._is_by_id else self[token_id]
        return {"token": text, "logprob": logprob, "bytes": spelled}

    async def learn(self, token_ids: Iterable[int]) -> None:
        """Fetch the missing bytes of these tokens, mostly with one call of the batcher."""
        missing = [token for token in set(token_ids) if token not in self._bytes]
        for start in range(0, len(missing), _AT_ONCE):
            part = missing[start : start + _AT_ONCE]
            self._bytes.update(zip(part, await self._batcher.token_bytes(part), strict=True))

    async def joined(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens when they follow another token.

        A run of bytes that are no character has as many U+FFFD as the tokenizer writes.
        """
        ids, text = await self._first()
        return (await self._batcher.detokenize([*ids, *token_ids])).removeprefix(text)

    async def _first(self) -> tuple[tuple[int, ...], str]:
        """Return the tokens of `_BEFORE` and their text."""
        if self._before is None:
            ids = await self._batcher.tokenize(_BEFORE, add_special_tokens=False)
            self._before = ids, await self._batcher.detokenize(ids)
        return self._before

    async def learn_of(self, made: Completion | Iterable[Piece]) -> None:
        """Fetch the bytes of all tokens in the log-probabilities of an output."""
        tokens: set[int] = set()
        if isinstance(made, Completion):
            for top in made.prompt_top_logprobs or ():
                tokens.update(token for token, _ in top)
        for part in made.choices if isinstance(made, Completion) else made:
            for one in part.logprobs or ():
                tokens.add(one.token_id)
                tokens.update(token for token, _ in one.top)
        await self.learn(tokens)
