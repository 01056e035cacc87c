"""`Entry`: what has to be known of a call so that another worker can go on with it. Pure.

By schedule invariance a request's tokens follow from its prompt, its parameters, its seed and
the tokens it has: whoever has these can go on with it as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ...calls.call import Call
from ...calls.completion import Completion, Piece, Timeline, TokenLogprob, Usage
from ...calls.reply import Reply
from ...errors import PybatcherError

__all__ = ["Entry", "PendingGeneration", "PendingQuestion", "bytes_of"]

_BYTES_OF_INT = 36  # an int, and its place in a list


def bytes_of(*values: Any) -> int:
    """Of memory that texts, token ids, and lists of either take, about."""
    total = 0
    for value in values:
        if isinstance(value, (str, bytes)):
            total += len(value)
        elif isinstance(value, (list, tuple)) and value:
            if isinstance(value[0], int):
                total += _BYTES_OF_INT * len(value)
            else:
                total += bytes_of(*value)
        elif isinstance(value, dict):
            total += bytes_of(*value.values())
    return total


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """One call in flight.

    number: what its owner knows it by.
    call_id: of the link it was sent over; None: it waits to be sent.
    starts: how often it was sent.
    n_bytes: of memory that it takes, about.
    seen_length: as of a `Suspect`.
    """

    number: int
    call_id: int | None = None
    starts: int = 0
    n_bytes: int = 0
    ended: bool = False
    seen_length: int = -1

    @property
    def num_tokens(self) -> int:
        """Tokens that it has so far."""
        return 0


@dataclass(slots=True, eq=False, kw_only=True)
class PendingQuestion(Entry):
    """A call whose result comes in one piece: asked again, it is computed again.

    end: what is called with its error, or with its result.
    """

    method: str
    params: list[Any]
    end: Callable[[PybatcherError | None, Any], None]


@dataclass(slots=True, eq=False, kw_only=True)
class PendingGeneration(Entry):
    """One output that somebody waits for. Times: seconds of the owner's clock.

    call: of one sample, with its seed.
    index, siblings: of the sample, and the numbers of all samples of the reply.
    submitted, deadline: when it was asked for, and until when (None: no end).
    """

    call: Call
    reply: Reply
    index: int = 0
    siblings: range = range(0)
    submitted: float
    deadline: float | None
    token_ids: list[int] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _logprobs: list[TokenLogprob] = field(default_factory=list)
    _token_times: list[float] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens that it has so far."""
        return len(self.token_ids)

    def next_call(self, now: float) -> Call:
        """What is to be asked so that it goes on from where it is.

        With what is left of its time, which may be none or less.
        """
        timeout = None if self.deadline is None else self.deadline - now
        if not self.token_ids:
            return replace(self.call, timeout=timeout)
        return replace(self.call, timeout=timeout, output=(*self.call.output, *self.token_ids))

    def take(self, piece: Piece, now: float) -> None:
        """More of it has come."""
        self.token_ids += piece.token_ids
        self._text.append(piece.text)
        if piece.logprobs:
            self._logprobs += piece.logprobs
        self._token_times += [now] * len(piece.token_ids)

    def whole(self, last: Completion, now: float) -> Completion:
        """All of the output, of which `last` is what came from the one who finished it."""
        timeline = replace(last.timeline, submitted=self.submitted)
        logprobs = tuple(self._logprobs) if self._logprobs else last.logprobs
        if self.starts <= 1:
            return replace(last, timeline=timeline, logprobs=logprobs)
        usage = last.usage
        times = tuple(self._token_times)
        first = times[0] if times else now
        return replace(
            last,
            text="".join(self._text),
            token_ids=tuple(self.token_ids),
            usage=Usage(usage.prompt_tokens, usage.cached_tokens, len(self.token_ids)),
            logprobs=None if self._n_logprobs is None else tuple(self._logprobs),
            timeline=replace(
                timeline,
                admitted=min(timeline.admitted, first),
                first_token=first,
                finished=now,
                token_times=times,
            ),
        )

    def expired(self, now: float) -> Completion:
        """What there is of the output, where its time is over. Only with at least a token."""
        times = tuple(self._token_times)
        return Completion(
            text="".join(self._text),
            token_ids=tuple(self.token_ids),
            finish_reason="deadline",
            usage=Usage(self._prompt_tokens, 0, len(self.token_ids)),
            timeline=Timeline(self.submitted, self.submitted, times[0], now, times),
            logprobs=None if self._n_logprobs is None else tuple(self._logprobs),
        )

    @property
    def _prompt_tokens(self) -> int:
        """As far as it is known here: a text's tokens were never counted by anybody who is left."""
        return 0 if isinstance(self.call.content, str) else len(self.call.content)

    @property
    def _n_logprobs(self) -> int | None:
        """How many log-probabilities of each token are asked for; None: none."""
        params = self.call.params
        return None if params is None else params.logprobs
