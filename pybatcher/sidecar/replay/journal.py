"""`Entry`: the record of a call in flight, from which another worker can resume it. Pure.

By schedule invariance a request's next tokens follow from its prompt, its parameters, its seed and
the tokens it has: with these, any worker of the same model resumes it with the same output.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ...calls.arguments import are_token_ids
from ...calls.backpressure import Backpressure
from ...calls.call import Call
from ...calls.completion import Completion, Piece, Timeline, TokenLogprob, Usage
from ...calls.reply import Reply, sample_seed
from ...errors import PybatcherError
from ...params import SamplingParams
from ...params.sampling_params import with_valid
from ...text.tool_call import ToolCall
from ..protocol.wire_images import PackedImage

if TYPE_CHECKING:
    from asyncio import TimerHandle

__all__ = ["Entry", "PendingGeneration", "PendingQuestion", "bytes_of"]

_BYTES_OF_NUMBER = 36  # a number and its slot in a list
_BYTES_OF_ITEM, _BYTES_OF_CONTAINER = 8, 64
_BYTES_OF_TOKEN = 160  # a token of an output: its id, its time and its text
_BYTES_OF_TOP = 120  # one of the likeliest tokens with its log-probability
_MOST_VALUES = 2**20
_NUMBERS = frozenset({int, float, bool, type(None)})


def bytes_of(*values: Any) -> int:
    """Return the approximate bytes of memory of plain values and of dataclasses of them.

    Every text, number, key and field counts, however deep it is; of endless values, such as a list
    that contains itself or a map without an end, as many as no message has.
    """
    total, left = 0, list(values)
    for _ in range(_MOST_VALUES):
        if not left:
            break
        value = left.pop()
        if isinstance(value, (str, bytes)):
            total += sys.getsizeof(value)
        elif isinstance(value, (list, tuple)):
            total += _BYTES_OF_CONTAINER + _BYTES_OF_ITEM * len(value)
            if _NUMBERS.issuperset(map(type, value)):
                total += (_BYTES_OF_NUMBER - _BYTES_OF_ITEM) * len(value)
            else:
                left += islice(value, _MOST_VALUES)
        elif isinstance(value, Mapping):
            total += _BYTES_OF_CONTAINER + 2 * _BYTES_OF_ITEM * len(value)
            keys = list(islice(value, min(len(value), _MOST_VALUES)))
            left += keys
            left += [value[key] for key in keys]
        elif is_dataclass(value) and not isinstance(value, type):
            left += (getattr(value, one.name) for one in fields(value))
        elif value is not None:
            total += _BYTES_OF_NUMBER
    return total


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """One call in flight. Times: seconds of the owner's clock.

    number: the id of the call for its owner.
    submitted: time of the call. deadline: None without one.
    call_id: the id of the call on its link; None while it waits to be sent.
    starts: how often it was sent.
    n_bytes: approximate memory of the call.
    seen_length: number of tokens it had when a worker last died with it; -1 if none did.
    n_cleared: how often it ran alone, as a suspect, and was cleared.
    backpressure: paused while the results are not read; None: reading is not watched.
    sent_paused: the pause state that the other end knows. sent_lately: True shortly after a
        notification.
    images: the images of its messages, which refer to them. n_resent: how often the other end did
        not have one of them any more.
    timer: the timer of its deadline while it waits. unwatch: ends the watching of `backpressure`.
    """

    number: int
    submitted: float
    deadline: float | None
    call_id: int | None = None
    starts: int = 0
    n_bytes: int = 0
    ended: bool = False
    seen_length: int = -1
    n_cleared: int = 0
    backpressure: Backpressure | None = None
    sent_paused: bool = False
    sent_lately: bool = False
    images: tuple[PackedImage, ...] = ()
    n_resent: int = 0
    timer: TimerHandle | None = None
    unwatch: Callable[[], None] | None = None

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the call has so far."""
        return 0


@dataclass(slots=True, eq=False, kw_only=True)
class PendingQuestion(Entry):
    """A call whose result comes in one piece. Sent again, it is computed from its beginning.

    end: called once, with the error or the result.
    """

    method: str
    params: list[Any]
    end: Callable[[PybatcherError | None, Any], None]

    def next_params(self, now: float) -> list[Any]:
        """Return the params to send. Their timeout is the time left until the deadline."""
        if self.deadline is None:
            return self.params
        *asked, opts = self.params
        return [*asked, {**opts, "timeout_ms": (self.deadline - now) * 1000}]


@dataclass(slots=True, eq=False, kw_only=True)
class PendingGeneration(Entry):
    """One output in flight, with the tokens it has so far.

    call: the call of one sample, with its seed.
    index, siblings: the index of the sample, and the numbers of all samples of the reply.
    token_times: time of each token.
    """

    call: Call
    reply: Reply
    index: int = 0
    siblings: range = range(0)
    token_ids: list[int] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _tool_calls: list[ToolCall] = field(default_factory=list)
    _begun_calls: dict[int, list[str]] = field(default_factory=dict)
    _logprobs: list[TokenLogprob] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)

    @classmethod
    def of_samples(
        cls, call: Call, params: SamplingParams, reply: Reply, numbers: range, **times: Any
    ) -> Iterator[PendingGeneration]:
        """Return the samples of a call, each with a seed of its own.

        params: the checked parameters of the call, which replace its own. numbers: one for each
            sample.
        times: `submitted`, `deadline`, `images` and, if memory is limited, `n_bytes`. The samples
            share the images, whose bytes count once.
        """
        n_image_bytes = sum(len(image.data) for image in times.get("images", ()))
        seed = secrets.randbits(64) if params.seed is None else params.seed
        for i, number in enumerate(numbers):
            own = with_valid(params, n=1, seed=sample_seed(seed, i))
            entry = cls(
                number=number,
                call=replace(call, params=own, sampling={}),
                reply=reply,
                backpressure=reply.backpressure,
                index=i,
                siblings=numbers,
                **times,
            )
            entry.n_bytes += n_image_bytes if i == 0 else 0
            yield entry

    @property
    @override
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def next_call(self, now: float) -> Call:
        """Return the call that resumes the output after its tokens so far.

        Its timeout is the time left until the deadline.
        """
        timeout = None if self.deadline is None else self.deadline - now
        if not self.token_ids:
            return replace(self.call, timeout=timeout)
        return replace(self.call, timeout=timeout, output=(*self.call.output, *self.token_ids))

    def take(self, piece: Piece, now: float) -> int:
        """Append a piece of the output that came at `now`. Return its bytes of memory."""
        self.token_ids += piece.token_ids
        self._text.append(piece.text)
        if piece.reasoning:
            self._reasoning.append(piece.reasoning)
        for delta in piece.tool_calls:
            if delta.name:
                self._begun_calls[delta.index] = [delta.id, delta.name]
            self._begun_calls.get(delta.index, []).append(delta.arguments)
            if delta.call is not None:
                self._tool_calls.append(delta.call)
            if delta.call is not None or delta.note:
                self._begun_calls.pop(delta.index, None)
        if piece.logprobs:
            self._logprobs += piece.logprobs
        self.token_times += [now] * len(piece.token_ids)
        size = _BYTES_OF_TOKEN * len(piece.token_ids) + len(piece.text) + len(piece.reasoning)
        size += bytes_of(piece.tool_calls) if piece.tool_calls else 0
        n_top = sum(1 + len(one.top) for one in piece.logprobs or ())
        size += _BYTES_OF_TOP * n_top
        self.n_bytes += size
        return size

    def whole(self, last: Completion, now: float) -> Completion:
        """Return the completion of the whole output. last: the part that the last worker made."""
        timeline = replace(last.timeline, submitted=self.submitted)
        logprobs = tuple(self._logprobs) if self._logprobs else last.logprobs
        if self.starts <= 1:
            return replace(last, timeline=timeline, logprobs=logprobs)
        usage = last.usage
        times = tuple(self.token_times)
        first = times[0] if times else now
        return replace(
            last,
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            token_ids=tuple(self.token_ids),
            usage=replace(usage, completion_tokens=len(self.token_ids)),
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
        """Return the completion of an output past its deadline. It must have a token."""
        times = tuple(self.token_times)
        cut = [
            ToolCall.cut(call_id, name, "", "".join(texts))
            for call_id, name, *texts in self._begun_calls.values()
        ]
        return Completion(
            text="".join(self._text),
            token_ids=tuple(self.token_ids),
            finish_reason="deadline",
            usage=Usage(self.prompt_tokens, 0, len(self.token_ids)),
            timeline=Timeline(self.submitted, self.submitted, times[0], now, times),
            logprobs=None if self._n_logprobs is None else tuple(self._logprobs),
            reasoning="".join(self._reasoning),
            tool_calls=(*self._tool_calls, *cut),
        )

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the prompt; 0 if only the lost worker tokenized it."""
        is_read = are_token_ids(self.call.content)
        return len(self.call.content) if is_read else 0

    @property
    def _n_logprobs(self) -> int | None:
        """Number of requested likeliest tokens with log-probabilities; None without logprobs."""
        params = self.call.params
        return None if params is None else params.logprobs
