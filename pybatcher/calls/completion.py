"""`Completion` and `Piece`: the results that callers get, and the values inside them.

Plain frozen values without behaviour beyond arithmetic on their own fields.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Generic, Literal, cast

from typing_extensions import TypeVar

from ..scheduling.plan import TopLogprobs
from ..text.tool_call import ToolCall, ToolCallDelta

__all__ = [
    "Completion",
    "FinishReason",
    "Piece",
    "Timeline",
    "TokenLogprob",
    "Usage",
    "prompt_alone",
]

T = TypeVar("T", default=Any)

FinishReason = Literal["stop", "length", "deadline", "tool_calls"]
"""The reason why an output ended.

stop: an end token or a stop text. length: `max_tokens`, or the sequence's last position. deadline:
    the request's `timeout` ran out after its first token. tool_calls: as "stop", and the output has
    tool calls. The reason is also one of these if the tokens that a request came with (`output`)
    had already ended its output.
"""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of a sampled token, in nats, and those of the likeliest tokens.

    top: (token id, log-probability) of the n likeliest tokens, best first, where
        `SamplingParams.logprobs` is n.
    is_end: True for the end token of the output, which has no text.
    """

    token_id: int
    logprob: float
    top: TopLogprobs = ()
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request.

    `cached_tokens` is the part of `prompt_tokens` whose KV was already present (a shared system
    prompt or the prefix cache) and not computed again. `image_tokens` is the part of
    `prompt_tokens` that stands for images.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    image_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """The times of a request: seconds of one monotonic clock.

    A token's time is the time of its delivery to the caller's stream. A step that accepted draft
    tokens delivers several at once.

    submitted, admitted: when the request was queued, and when it left the queue and got KV.
    token_times: one entry for each generated token.
    first_token: the first of `token_times`; equal to `finished` for a request that came with
        `output` and has no new token.
    preemptions: how often the request gave up its KV to other requests and was queued again.
    recomputed_tokens: tokens that were computed again because of preemptions.
    """

    submitted: float
    admitted: float
    first_token: float
    finished: float
    token_times: tuple[float, ...]
    preemptions: int = 0
    recomputed_tokens: int = 0

    @property
    def queued(self) -> float:
        """Seconds from submit to admission."""
        return self.admitted - self.submitted

    @property
    def ttft(self) -> float:
        """Time to first token: seconds from submit."""
        return self.first_token - self.submitted

    @property
    def tpot(self) -> float:
        """Time per output token after the first: (last - first) / (n - 1); 0.0 where n = 1."""
        n = len(self.token_times)
        return (self.token_times[-1] - self.token_times[0]) / (n - 1) if n > 1 else 0.0

    @property
    def itl(self) -> tuple[float, ...]:
        """Inter-token latencies: the n - 1 gaps between neighbouring tokens."""
        times = self.token_times
        return tuple(later - sooner for sooner, later in pairwise(times))


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of an output that one token added to a stream. `str(piece)` is its text.

    token_ids: the token; several if pieces were merged for a slow reader, none if a piece only has
        text that was held back, or only the end.
    logprobs: the log-probabilities of these tokens; None unless requested.
    reasoning, tool_calls: what the token added to the reasoning and tool calls of a chat; they are
        not part of `text`.

    The joined texts of a stream's pieces are the completion's text; the same holds for the token
    ids. A token may come without text (half a character, or the beginning of a possible stop text),
    and text may come later than its token. Only the last piece has a `finish_reason`. With `n` > 1
    this holds for the pieces of each `index`; pieces of several samples are interleaved.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: FinishReason | None = None
    index: int = 0
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, repr=False)
class Completion(Generic[T]):
    """A finished output. `str(completion)` is its text; `repr` shows its beginning.

    text: the output up to an end token or a stop text, in a chat without reasoning and tool calls.
    token_ids: all generated tokens, the end token included.
    finish_reason: why the output ended: "stop", "length", "deadline" or "tool_calls"
        (`FinishReason`).
    timeline: when the request was submitted and admitted, and when its tokens came.
    logprobs: one entry for each token; None unless requested.
    usage: token counts of the whole call: with `n` > 1 the tokens of all choices, and the prompt
        once.
    prompt_logprobs: the log-probability of each token of the prompt, given the tokens before it, in
        nats; None for the first token. None unless requested.
    prompt_top_logprobs: for each token of the prompt, (token id, log-probability) of the likeliest
        tokens at its position, best first; empty for the first token. None unless requested.
    reasoning: in a chat, the text that the model wrote between its reasoning markers.
    tool_calls: in a chat with `tools`, the calls in their order.
    notes: in a chat, the faults of text that looked like a tool call and therefore stayed in
        `text`.

    For a request that came with `output`, these fields have the new tokens only, except
    `tool_calls` and `notes`. With `n` > 1 the completion is the first of its `choices`.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timeline: Timeline
    logprobs: tuple[TokenLogprob, ...] | None = None
    other_choices: tuple[Completion[T], ...] = ()
    prompt_logprobs: tuple[float | None, ...] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    notes: tuple[str, ...] = ()
    prompt_top_logprobs: tuple[TopLogprobs, ...] | None = None
    parse: Callable[[str], Any] | None = field(default=None, compare=False)

    @property
    def parsed(self) -> T:
        """The value of a structured output: a Python value for JSON, the text for choices.

        With a type as `json_schema`, an instance of that type; exceptions of its validators are
        raised. None if the output was cut (`finish_reason` is not "stop"), if it continues an
        `output` that was given, and for a regex or a grammar;
        type checkers see the type alone, so look at `finish_reason` first.
        """
        if self.parse is None or self.finish_reason != "stop":
            return cast(T, None)
        value: T = self.parse(self.text)
        return value

    @property
    def message(self) -> dict[str, Any]:
        """The response as the assistant's message, to be appended to the chat.

        Results of tools follow it: {"role": "tool", "tool_call_id": call.id, "content": ...}.
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for call in self.tool_calls
            ]
        return message

    @property
    def choices(self) -> tuple[Completion[T], ...]:
        """All `n` outputs, this one first."""
        return (self, *self.other_choices)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and those of all choices, as a dict that `json.dumps` takes.

            line = json.dumps(completion.to_dict())

        Fields that have their default (None, or empty) are left out. So is `parsed`, whose value
        `text` has as JSON.
        """
        own = fields(self)[:-1]  # all but the parser
        values = {one.name: getattr(self, one.name) for one in own}
        return {
            one.name: _plain(values[one.name]) for one in own if values[one.name] != one.default
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parsed value instead of its parser, whose type may be local to a function."""
        values = [getattr(self, one.name) for one in fields(self)[:-1]]
        try:
            value = self.parsed
        except Exception:  # the type's own validators refuse the value
            value = None
        return Completion, (*values, None if value is None else _Known(value))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + "..."
        more = f", {len(self.choices)} choices" if self.other_choices else ""
        return f"<Completion {shown!r}, {len(self.token_ids)} tokens, {self.finish_reason}{more}>"


@dataclass(frozen=True, slots=True)
class _Known:
    """Replaces the parser of an output that was pickled."""

    value: object

    def __call__(self, text: str) -> object:
        return self.value


def _plain(value: Any) -> Any:
    """Return a copy of a field's value as dicts, lists, texts, numbers and None."""
    if isinstance(value, Completion):
        return value.to_dict()
    if isinstance(value, (Usage, Timeline, TokenLogprob, ToolCall)):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


_SHOWN = 40
"""Characters of a text that `repr` shows."""


def prompt_alone(
    token_ids: Sequence[int],
    prompt_logprobs: tuple[float | None, ...],
    prompt_top_logprobs: tuple[TopLogprobs, ...] | None,
    began: float,
) -> Completion:
    """Return the completion of a prompt without a generated token: its log-probabilities.

    began: time of the call, in seconds of `time.monotonic`.
    """
    now = time.monotonic()
    return Completion(
        text="",
        token_ids=(),
        finish_reason="length",
        usage=Usage(len(token_ids), 0, 0),
        timeline=Timeline(began, began, now, now, ()),
        prompt_logprobs=prompt_logprobs,
        prompt_top_logprobs=prompt_top_logprobs,
    )
