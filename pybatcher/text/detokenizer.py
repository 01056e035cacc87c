"""`Detokenizer`: turns token ids into text, one at a time, in whole characters."""

from __future__ import annotations

from collections.abc import Iterable

from .decoding import build_stages, flushed, through
from .tokenizer import Tokenizer

__all__ = ["Detokenizer"]


class Detokenizer:
    """Turns token ids into text as they come, each in constant time.

    The joined pieces, with the result of `flush` at the end, equal `tokenizer.decode(ids)`. A
    character whose bytes are spread over several tokens comes whole, with the last of them; bytes
    that cannot become a character are U+FFFD, as in `decode`. With a decoder of an unknown kind,
    all text comes from `flush`.

    skip_special_tokens: special tokens add no text, except those of `kept_ids`.
    prompt_ids: the tokens before the ids. If they have any text, the space that some tokenizers
        drop at the start of a text is kept.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        prompt_ids: Iterable[int] = (),
        kept_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        special = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._skipped = special - kept_ids if kept_ids else special
        goes_on = any(self._visible(i) is not None for i in prompt_ids)
        self._stages = build_stages(tokenizer.decoder_settings, at_start=not goes_on)
        self._all_ids: list[int] = []

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; "" while a character is incomplete."""
        token = self._visible(token_id)
        if token is None:
            return ""
        if self._stages is None:
            self._all_ids.append(token_id)
            return ""
        return through(self._stages, [token])

    def skips(self, token_id: int) -> bool:
        """Return whether this token adds no text: a special one, or an id without a token."""
        return self._visible(token_id) is None

    def flush(self) -> str:
        """Return the text that was held back. No token follows."""
        if self._stages is None:
            ids, self._all_ids = self._all_ids, []
            return self._tokenizer.decode(ids, skip_special_tokens=False)
        return flushed(self._stages)

    def _visible(self, token_id: int) -> str | None:
        return None if token_id in self._skipped else self._tokenizer.token(token_id)
