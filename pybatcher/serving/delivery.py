"""`Delivery`: from the tokens of one request to the text its caller gets."""

from __future__ import annotations

from ..calls.completion import Completion, FinishReason, Piece, Timeline, TokenLogprob, Usage
from ..calls.stream import Reply
from ..calls.telemetry import Telemetry
from ..errors import DeadlineExceededError, PybatcherError
from ..scheduling import Request, SampledToken
from .output_text import OutputText
from .request_record import RequestRecord

__all__ = ["Delivery"]


class Delivery(RequestRecord):
    """Turns tokens into text, stamps times, fills the reply, and tells of the end.

    text: of the output so far; of what the request came with all is told already.
    submitted: when the caller asked. All times: seconds of the telemetry's clock.
    """

    def __init__(
        self,
        request: Request,
        reply: Reply,
        text: OutputText,
        submitted: float,
        telemetry: Telemetry,
    ) -> None:
        super().__init__(request, submitted, telemetry)
        self._reply = reply
        self._output_text = text
        self._text: list[str] = []
        self._token_ids: list[int] = []
        wants_logprobs = request.params.logprobs is not None
        self._logprobs: list[TokenLogprob] | None = [] if wants_logprobs else None

    def token(self, token: SampledToken, finish_reason: FinishReason | None, now: float) -> bool:
        """The next token. True if with it the output has ended.

        It ends where `finish_reason` says so, and where a stop text is complete.
        """
        self._token_ids.append(token.token_id)
        self._token_times.append(now)
        logprobs: tuple[TokenLogprob, ...] | None = None
        if self._logprobs is not None and token.logprob is not None:
            logprobs = (TokenLogprob(token.token_id, token.logprob, token.top_logprobs),)
            self._logprobs.extend(logprobs)
        text = self._output_text.push(token.token_id, finish_reason)
        finish_reason = self._output_text.finish_reason
        self._text.append(text)
        if self._reply.streams:
            self._reply.push(Piece(text, (token.token_id,), logprobs, finish_reason))
        if finish_reason is not None:
            self._finish(finish_reason, now)
        return finish_reason is not None

    def expire(self, now: float) -> None:
        """The deadline has passed: what there is of the output is all of it."""
        if not self._token_ids and not self._request.output:
            self.fail(
                DeadlineExceededError(
                    f"no token came within {now - self._submitted:.3f} s; raise timeout, or "
                    "send less at once"
                )
            )
            return
        self._end_without_token(self._output_text.flush(), "deadline", now)

    def end_with_given(self, now: float) -> None:
        """The tokens that the request came with have ended the output: nothing is new."""
        assert self._output_text.finish_reason is not None
        self._end_without_token("", self._output_text.finish_reason, now)

    def fail(self, error: PybatcherError) -> None:
        """The request ends without a completion."""
        self._reply.fail(error)
        self._tell(type(error).__name__, self._telemetry.now())

    def _end_without_token(self, text: str, finish_reason: FinishReason, now: float) -> None:
        self._text.append(text)
        if self._reply.streams:
            logprobs = None if self._logprobs is None else ()
            self._reply.push(Piece(text, (), logprobs, finish_reason))
        self._finish(finish_reason, now)

    def _finish(self, finish_reason: FinishReason, now: float) -> None:
        self._reply.finish(
            Completion(
                text="".join(self._text),
                token_ids=tuple(self._token_ids),
                finish_reason=finish_reason,
                usage=Usage(len(self._request.prompt), self._cached_tokens, len(self._token_ids)),
                timeline=Timeline(
                    submitted=self._submitted,
                    admitted=self._submitted if self._admitted is None else self._admitted,
                    first_token=self._token_times[0] if self._token_times else now,
                    finished=now,
                    token_times=tuple(self._token_times),
                    preemptions=self._preemptions,
                    recomputed_tokens=self._recomputed_tokens,
                ),
                logprobs=None if self._logprobs is None else tuple(self._logprobs),
            )
        )
        self._tell(finish_reason, now)
