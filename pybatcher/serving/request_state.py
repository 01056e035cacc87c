"""`RequestState`: turns the tokens of one request into text and delivers them to its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from ..calls.completion import (
    Completion,
    FinishReason,
    Piece,
    Timeline,
    TokenLogprob,
    Usage,
)
from ..calls.reply import Reply
from ..calls.scores import Answer
from ..calls.telemetry import RequestEvent, Telemetry
from ..errors import DeadlineExceededError, PybatcherError
from ..scheduling import Answered, Request, SampledToken
from ..text import Detokenizer, StopMatcher, StopTexts, Tokenizer
from .chat_response import ChatResponse, ResponsePart

__all__ = ["RequestState"]


class RequestState:
    """Turns the tokens of a request into text, stamps times, fills the reply, emits the last event.

    As a message in the mailbox it submits its request. All times are seconds of the telemetry's
    clock.
    tokenizer: the model's tokenizer; None for a scored or embedded request, which has no text.
    stops: the automaton of the stop texts, which all samples share; None: made of those of the
        parameters.
    response: the reader of a chat's response, which separates its parts; None for a prompt.
    submitted: time of the call.
    is_chat: True if the prompt consists of messages.
    index: the index of the sample in its reply.
    siblings: ids of all requests of the reply; if one fails, all do.
    """

    __slots__ = (
        "_admitted",
        "_cached_tokens",
        "_detokenizer",
        "_ended",
        "_index",
        "_is_chat",
        "_is_cut",
        "_logprobs",
        "_preemptions",
        "_reasoning",
        "_recomputed_tokens",
        "_response",
        "_stops",
        "_submitted",
        "_telemetry",
        "_text",
        "_token_ids",
        "_token_times",
        "_tokenizer",
        "finish_reason",
        "reply",
        "request",
        "siblings",
    )

    def __init__(
        self,
        request: Request,
        reply: Reply,
        submitted: float,
        telemetry: Telemetry,
        tokenizer: Tokenizer | None = None,
        *,
        stops: StopTexts | None = None,
        response: ChatResponse | None = None,
        is_chat: bool = False,
        index: int = 0,
        siblings: range = range(0),
    ) -> None:
        self.request = request
        self.reply = reply
        self.siblings = siblings
        self.finish_reason: FinishReason | None = None
        self._index = index
        self._is_chat = is_chat
        self._is_cut = False  # the output ended, and the model did not end it
        self._submitted = submitted
        self._telemetry = telemetry
        self._admitted: float | None = None
        self._cached_tokens = self._preemptions = self._recomputed_tokens = 0
        self._ended = False
        self._token_times: list[float] = []
        self._response = response
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._token_ids: list[int] = []
        params = request.params
        self._logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self._detokenizer: Detokenizer | None = None
        self._stops: StopMatcher | None = None
        if tokenizer is not None:
            prompt, images = request.prompt, request.images
            if images is not None:
                prompt = images.plain(prompt)
            self._detokenizer = Detokenizer(
                tokenizer,
                skip_special_tokens=params.skip_special_tokens,
                prompt_ids=prompt,
                kept_ids=frozenset() if response is None else response.kept_ids,
            )
            self._tokenizer = tokenizer
            if params.stop:
                self._stops = StopMatcher(params.stop if stops is None else stops)

    # -- before the first token ---------------------------------------------------------------

    async def replay_output(self, max_output: int) -> None:
        """Replay the tokens that the request came with, up to one that ends the output.

        Their text is not delivered again. max_output: most tokens of the whole output. Does not
            block the loop.
        """
        request = self.request
        is_complete = request.matcher is not None and request.matcher.is_complete
        for n_output, token_id in enumerate(request.output, start=1):
            reason = request.finish_reason(token_id, n_output, max_output)
            if is_complete and n_output == len(request.output):
                reason = "stop"
            text = self._next_text(token_id, reason)
            if self._response is not None:
                self._part(text, is_last=self.finish_reason is not None)
            if self.finish_reason is not None:
                break
            if n_output % _SLICE == 0:
                await asyncio.sleep(0)

    def end_with_given(self, now: float) -> None:
        """End an output whose given tokens have already ended it, without a new token."""
        assert self.finish_reason is not None
        self._end_without_token("", self.finish_reason, now)

    # -- what happens to the request ----------------------------------------------------------

    def admitted(self, cached_tokens: int, now: float) -> None:
        """Record that the request was admitted with `cached_tokens` whose KV was present."""
        self._admitted = now
        self._cached_tokens = cached_tokens

    def preempted(self) -> None:
        """Record that the request lost its KV to others and waits again."""
        self._preemptions += 1

    def resumed(self, recomputed_tokens: int) -> None:
        """Record that the request has KV again, and how many of its tokens are recomputed."""
        self._recomputed_tokens += recomputed_tokens

    def token(self, token: SampledToken, finish_reason: FinishReason | None, now: float) -> bool:
        """Deliver the next token. Return True if the output has ended with it.

        A `finish_reason` or a complete stop text ends an output.
        """
        token_id = token.token_id
        self._token_ids.append(token_id)
        self._token_times.append(now)
        logprobs: tuple[TokenLogprob, ...] | None = None
        if self._logprobs is not None and token.logprob is not None:
            is_end = self._is_end(token_id, finish_reason)
            logprobs = (TokenLogprob(token_id, token.logprob, token.top_logprobs, is_end),)
            self._logprobs.extend(logprobs)
        text = self._next_text(token_id, finish_reason)
        if self._response is not None:
            self._take_part(text, (token_id,), logprobs)
        else:
            self._text.append(text)
            if self.reply.streams:
                piece = Piece(text, (token_id,), logprobs, self.finish_reason, self._index)
                self.reply.push(piece)
        if self.finish_reason is None:
            return False
        self._finish(self.finish_reason, now)
        return True

    def answered(self, answer: Answered, now: float) -> None:
        """End a scored or embedded request with its answer."""
        result = Answer(answer.logprobs, answer.vector, self._cached_tokens, answer.top_logprobs)
        self.reply.finish(result, self._index)
        self._tell("scored" if self.request.targets else "embedded", now)

    def expire(self, now: float) -> None:
        """End the request at its deadline, with the output so far.

        Without a token, the reply gets DeadlineExceededError.
        """
        if self._token_ids or self.request.output:
            self._end_without_token(self._rest_of_text()[0], "deadline", now)
            return
        what = "token" if self.request.samples else "answer"
        self.fail(
            DeadlineExceededError(
                f"no {what} came within {now - self._submitted:.3f} s; raise timeout, or "
                "send less at once"
            )
        )

    def fail(self, error: PybatcherError) -> None:
        """End the request, and its reply, with an error."""
        self.reply.fail(error)
        self._tell(type(error).__name__, self._telemetry.now())

    def cancelled(self) -> None:
        """End the request; the reply gets nothing."""
        self._tell("cancelled", self._telemetry.now())

    # -- inside -------------------------------------------------------------------------------

    def _next_text(self, token_id: int, finish_reason: FinishReason | None) -> str:
        """Return the text that may be delivered with this token, and set `finish_reason`.

        An end token has no text. A complete stop text ends the output before the stop text, which
        may contain the texts of tokens that have none in the output.
        """
        assert self._detokenizer is not None
        is_end = self._is_end(token_id, finish_reason)
        text = "" if is_end else self._detokenizer.push(token_id)
        stopped = False
        if self._stops is not None:
            text, stopped = self._stops.push(text)
            if not stopped and (is_end or self._detokenizer.skips(token_id)):
                hidden = self._tokenizer.token(token_id)
                if hidden and self._stops.occurs(hidden):
                    more, stopped = self._stops.push(hidden, hidden=True)
                    text += more
        if not stopped and finish_reason is not None:
            rest, stopped = self._rest_of_text()
            text += rest
        self.finish_reason = "stop" if stopped else finish_reason
        self._is_cut = stopped or finish_reason == "length"
        return text

    def _is_end(self, token_id: int, finish_reason: FinishReason | None) -> bool:
        return finish_reason == "stop" and token_id in self.request.end_token_ids

    def _part(self, text: str, *, is_last: bool) -> ResponsePart:
        """Return the part of a chat's response that a text adds, and set `finish_reason`.

        A response without parallel calls ends with its first call.
        """
        assert self._response is not None
        part = self._response.feed(text, is_last=is_last, is_cut=self._is_cut)
        if self._response.is_over:
            self.finish_reason = "stop"
        if self.finish_reason == "stop" and self._response.may_be_run:
            self.finish_reason = "tool_calls"
        return part

    def _take_part(
        self,
        text: str,
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...] | None,
    ) -> None:
        """Keep the part of a chat's response that a text adds; push it as a piece if the reply
        streams.
        """
        part = self._part(text, is_last=self.finish_reason is not None)
        self._text.append(part.text)
        if part.reasoning:
            self._reasoning.append(part.reasoning)
        if self.reply.streams:
            told = (logprobs, self.finish_reason, self._index, part.reasoning, part.tool_calls)
            self.reply.push(Piece(part.text, token_ids, *told))

    def _rest_of_text(self) -> tuple[str, bool]:
        """Return the text that was held back, and whether it completes a stop text."""
        assert self._detokenizer is not None
        text = self._detokenizer.flush()
        if self._stops is None:
            return text, False
        text, stopped = self._stops.push(text)
        return (text, True) if stopped else (text + self._stops.flush(), False)

    def _end_without_token(self, text: str, finish_reason: FinishReason, now: float) -> None:
        self.finish_reason = finish_reason
        self._is_cut = self._is_cut or finish_reason == "deadline"
        logprobs = None if self._logprobs is None else ()
        if self._response is not None:
            self._take_part(text, (), logprobs)
        else:
            self._text.append(text)
            if self.reply.streams:
                self.reply.push(Piece(text, (), logprobs, finish_reason, self._index))
        self._finish(self.finish_reason, now)

    def _finish(self, finish_reason: FinishReason, now: float) -> None:
        times = self._token_times
        self.reply.finish(
            Completion(
                text="".join(self._text),
                token_ids=tuple(self._token_ids),
                finish_reason=finish_reason,
                usage=Usage(
                    len(self.request.prompt),
                    self._cached_tokens,
                    len(self._token_ids),
                    self.request.n_image_tokens,
                ),
                timeline=Timeline(
                    submitted=self._submitted,
                    admitted=self._submitted if self._admitted is None else self._admitted,
                    first_token=times[0] if times else now,
                    finished=now,
                    token_times=tuple(times),
                    preemptions=self._preemptions,
                    recomputed_tokens=self._recomputed_tokens,
                ),
                logprobs=None if self._logprobs is None else tuple(self._logprobs),
                reasoning="".join(self._reasoning),
                tool_calls=() if self._response is None else self._response.tool_calls,
                notes=() if self._response is None else self._response.notes,
            ),
            self._index,
        )
        self._tell(finish_reason, now)

    def _tell(self, finish_reason: str, now: float) -> None:
        """Emit the request's one event, if there are handlers."""
        first, self._ended = not self._ended, True
        if not (first and self._telemetry.has_handlers):
            return
        times: Sequence[float] = self._token_times
        self._telemetry.emit(
            RequestEvent(
                when=now,
                request_id=self.request.request_id,
                namespace=self.request.namespace,
                priority=self.request.priority,
                finish_reason=finish_reason,
                prompt_tokens=len(self.request.prompt),
                cached_tokens=self._cached_tokens,
                generated_tokens=len(times),
                queued=(now if self._admitted is None else self._admitted) - self._submitted,
                ttft=times[0] - self._submitted if times else None,
                itl=tuple(later - sooner for sooner, later in pairwise(times)),
                total=now - self._submitted,
                preemptions=self._preemptions,
                recomputed_tokens=self._recomputed_tokens,
                kind=self._kind,
                trace_headers=self.request.trace_headers,
                max_tokens=self.request.params.max_tokens,
                temperature=self.request.params.temperature,
                top_p=self.request.params.top_p,
            )
        )

    @property
    def _kind(self) -> str:
        if self.request.samples:
            return "chat" if self._is_chat else "generate"
        return "score" if self.request.targets else "embed"


_SLICE = 128
"""Tokens that are detokenized in one turn of the loop; they take well under a millisecond."""
