"""`TokenTexts`: the texts of single tokens, which log-probabilities show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...calls.any_batcher import AnyBatcher
from ...calls.completion import Completion, Piece, TokenLogprob

__all__ = ["TokenTexts"]

_BEFORE = "a"  # a text that any token can follow


class TokenTexts:
    """The texts of tokens by their ids. `learn` fetches the texts that are not known yet."""

    def __init__(self, batcher: AnyBatcher) -> None:
        self._batcher = batcher
        self._texts: dict[int, str] = {}
        self._before: tuple[tuple[int, ...], str] | None = None

    def __getitem__(self, token_id: int) -> str:
        return self._texts[token_id]

    def described(self, one: TokenLogprob) -> dict[str, Any]:
        """Return a token's log-probability and its alternatives in the form of OpenAI's API."""
        top = [self._described(token, logprob) for token, logprob in one.top]
        return {**self._described(one.token_id, one.logprob), "top_logprobs": top}

    def _described(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self[token_id]
        return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}

    async def learn(self, token_ids: Iterable[int]) -> None:
        """Fetch the missing texts of these tokens with one call of the batcher.

        Each token is decoded after another one, because many vocabularies strip the space of a
        first token.
        """
        missing = [token for token in set(token_ids) if token not in self._texts]
        if missing:
            ids, text = await self._first()
            found = await self._batcher.detokenize([[*ids, token] for token in missing])
            texts = (one.removeprefix(text) for one in found)
            self._texts.update(zip(missing, texts, strict=True))

    async def joined(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens when they follow another token."""
        ids, text = await self._first()
        return (await self._batcher.detokenize([*ids, *token_ids])).removeprefix(text)

    async def _first(self) -> tuple[tuple[int, ...], str]:
        """Return the tokens of `_BEFORE` and their text."""
        if self._before is None:
            ids = await self._batcher.tokenize(_BEFORE, add_special_tokens=False)
            self._before = ids, await self._batcher.detokenize(ids)
        return self._before

    async def learn_of(self, made: Completion | Iterable[Piece]) -> None:
        """Fetch the texts of all tokens in the log-probabilities of an output."""
        tokens: set[int] = set()
        if isinstance(made, Completion):
            for top in made.prompt_top_logprobs or ():
                tokens.update(token for token, _ in top)
        for part in made.choices if isinstance(made, Completion) else made:
            for one in part.logprobs or ():
                tokens.add(one.token_id)
                tokens.update(token for token, _ in one.top)
        await self.learn(tokens)
