"""`TextOffsets`: the offsets of tokens in a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...calls.completion import TokenLogprob
from ..base.token_texts import TokenTexts

__all__ = ["TextOffsets", "offsets_of"]

_HALF = "\ufffd"  # in the text of a token that is a part of a character
_MOST_PARTS = 8  # tokens: a character has at most four bytes, so that more parts never form one


class TextOffsets:
    """Counts the characters of a text by its tokens. Several tokens can form one character.

    texts: the texts of the tokens, all known. start: the offset of the first token.
    """

    def __init__(self, texts: TokenTexts, start: int = 0) -> None:
        self._texts = texts
        self._whole = start  # characters before the parts
        self._parts: list[int] = []
        self.end = start
        """The number of complete characters."""

    async def add(self, token_ids: Iterable[int]) -> list[int]:
        """Return the number of complete characters before each of the next tokens."""
        offsets = []
        for token in token_ids:
            offsets.append(self.end)
            if _HALF in self._texts[token]:
                self._parts.append(token)
                await self._join()
            else:
                if self._parts:  # no later token completes them
                    await self._join(is_over=True)
                    offsets[-1] = self.end
                self.end += len(self._texts[token])
                self._whole = self.end
        return offsets

    async def _join(self, is_over: bool = False) -> None:
        """Count the characters that the parts form so far."""
        text = await self._texts.joined(self._parts)
        is_over = is_over or len(self._parts) == _MOST_PARTS or not text.endswith(_HALF)
        self.end = self._whole + len(text if is_over else text.rstrip(_HALF))
        if is_over:
            self._whole = self.end
            self._parts.clear()


async def offsets_of(
    texts: TokenTexts,
    logprobs: Iterable[TokenLogprob],
    before: tuple[str, Sequence[int]] | None,
    is_told: bool,
) -> list[int]:
    """Return the offsets of tokens in the text of a choice. before: the echoed prompt.

    is_told: the offsets of the prompt's tokens come first. Special tokens before the prompt's text,
        and the space that its first token loses there, do not count.
    """
    drawn = [one.token_id for one in logprobs]
    if before is None:
        return await TextOffsets(texts).add(drawn)
    told: list[int] = []
    length = len(before[0])
    if is_told:
        prompt = TextOffsets(texts)
        told = await prompt.add(before[1])
        surplus = max(0, prompt.end - length)
        told = [max(0, offset - surplus) for offset in told]
    return told + await TextOffsets(texts, length).add(drawn)
