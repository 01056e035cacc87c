"""`Delivery`: from the tokens of one request to the text its caller gets."""

from __future__ import annotations

from .completion import Completion, FinishReason, Piece, Timeline, TokenLogprob, Usage
from .errors import DeadlineExceededError, PybatcherError
from .request_tale import RequestTale
from .scheduling import Request, SampledToken
from .stream import Reply
from .telemetry import Telemetry
from .text import Detokenizer, StopMatcher, Tokenizer

__all__ = ["Delivery"]


class Delivery(RequestTale):
    """Detokenises, looks for stop texts, stamps times, fills the reply, and tells of the end.

    submitted: when the caller asked. All times: seconds of the telemetry's clock.
    """

    def __init__(
        self,
        request: Request,
        reply: Reply,
        tokenizer: Tokenizer,
        submitted: float,
        telemetry: Telemetry,
    ) -> None:
        params = request.params
        super().__init__(request, submitted, telemetry)
        self._reply = reply
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            prompt_ids=request.prompt,
        )
        self._stops = StopMatcher(tuple(params.stop))
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []

    def token(self, token: SampledToken, finish_reason: FinishReason | None, now: float) -> bool:
        """The next token. True if with it the output has ended.

        It ends where `finish_reason` says so, and where a stop text is complete.
        An end token has no text.
        """
        self._token_ids.append(token.token_id)
        self._token_times.append(now)
        logprobs: tuple[TokenLogprob, ...] | None = None
        if self._logprobs is not None and token.logprob is not None:
            logprobs = (TokenLogprob(token.token_id, token.logprob, token.top_logprobs),)
            self._logprobs.extend(logprobs)
        drawn_text = "" if finish_reason == "stop" else self._detokenizer.push(token.token_id)
        text, stopped = self._stops.push(drawn_text)
        if stopped:
            finish_reason = "stop"
        elif finish_reason is not None:
            rest, stopped = self._rest()
            text += rest
            finish_reason = "stop" if stopped else finish_reason
        self._text.append(text)
        if self._reply.streams:
            self._reply.push(Piece(text, (token.token_id,), logprobs, finish_reason))
        if finish_reason is not None:
            self._finish(finish_reason, now)
        return finish_reason is not None

    def expire(self, now: float) -> None:
        """The deadline has passed: what there is of the output is all of it."""
        if not self._token_ids:
            self.fail(
                DeadlineExceededError(
                    f"no token came within {now - self._submitted:.3f} s; raise timeout, or "
                    "send less at once"
                )
            )
            return
        text, _ = self._rest()
        self._text.append(text)
        if self._reply.streams:
            logprobs = None if self._logprobs is None else ()
            self._reply.push(Piece(text, (), logprobs, "deadline"))
        self._finish("deadline", now)

    def fail(self, error: PybatcherError) -> None:
        """The request ends without a completion."""
        self._reply.fail(error)
        self._tell(type(error).__name__, self._telemetry.now())

    def _rest(self) -> tuple[str, bool]:
        """The text that was held back; whether a stop text came out of it."""
        text, stopped = self._stops.push(self._detokenizer.flush())
        return (text, True) if stopped else (text + self._stops.flush(), False)

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
                    first_token=self._token_times[0],
                    finished=now,
                    token_times=tuple(self._token_times),
                    preemptions=self._preemptions,
                    recomputed_tokens=self._recomputed_tokens,
                ),
                logprobs=None if self._logprobs is None else tuple(self._logprobs),
            )
        )
        self._tell(finish_reason, now)
