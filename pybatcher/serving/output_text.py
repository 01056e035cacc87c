"""`OutputText`: the text of one output, token by token, and where a stop text ends it."""

from __future__ import annotations

import asyncio

from ..calls.completion import FinishReason
from ..scheduling import Request
from ..text import Detokenizer, StopMatcher, Tokenizer

__all__ = ["OutputText", "text_after_output"]


class OutputText:
    """Detokenises, and looks for the request's stop texts.

    finish_reason: why the output has ended; None: it goes on.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        params = request.params
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            prompt_ids=request.prompt,
        )
        self._stops = StopMatcher(tuple(params.stop))
        self.finish_reason: FinishReason | None = None

    def push(self, token_id: int, finish_reason: FinishReason | None) -> str:
        """The text that may be told with this token; the last one where `finish_reason` says so.

        It is also the last where a stop text is complete. An end token has no text.
        """
        drawn_text = "" if finish_reason == "stop" else self._detokenizer.push(token_id)
        text, stopped = self._stops.push(drawn_text)
        if not stopped and finish_reason is not None:
            rest, stopped = self._rest()
            text += rest
        self.finish_reason = "stop" if stopped else finish_reason
        return text

    def flush(self) -> str:
        """No token comes any more: the text that was held back."""
        return self._rest()[0]

    def _rest(self) -> tuple[str, bool]:
        """The text that was held back; whether a stop text came out of it."""
        text, stopped = self._stops.push(self._detokenizer.flush())
        return (text, True) if stopped else (text + self._stops.flush(), False)


async def text_after_output(request: Request, tokenizer: Tokenizer, max_output: int) -> OutputText:
    """As it is when the tokens of `request.output` are told, up to one that ends the output.

    max_output: most tokens of it. Lets the loop go on meanwhile.
    """
    text = OutputText(request, tokenizer)
    for n_output, token_id in enumerate(request.output, start=1):
        text.push(token_id, request.finish_reason(token_id, n_output, max_output))
        if text.finish_reason is not None:
            break
        if n_output % _SLICE == 0:
            await asyncio.sleep(0)
    return text


_SLICE = 128
"""Tokens whose text is looked at without letting the loop go on: well under a millisecond."""
