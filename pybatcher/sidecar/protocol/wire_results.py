"""Codecs of results: deltas, completions, scores, vectors and prefixes, to and from the wire.

    delta       {seq, text, token_ids, index?, logprobs?, finish_reason?, reasoning?, tool_calls?}
    completion  {text, token_ids, finish_reason, usage, timeline, logprobs?, choices?, reasoning?,
                tool_calls?, notes?}
    score       {logprob, token_logprobs, token_ids, top_logprobs?}
    embed       {embeddings, usage}

`seq` counts from 1. `index` is of `n` > 1 and not 0. A logprob is [token_id, logprob, top], `top`
a list of [token_id, logprob], and has `true` at its end if the token is an end token.
`top_logprobs` has such a list for each token. `choices` are the others of `n` > 1, as the first
is. A tool call is {id, name, arguments, raw, text?, is_cut?}, its arguments a JSON text and `text`
the arguments as they were written; of a delta {index, id?, name?, arguments?, call?, note?}.
Numbers come back bit for bit. The functions that read raise ProtocolError and
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any, get_args

from ...calls.completion import Completion, FinishReason, Piece, Timeline, TokenLogprob, Usage
from ...calls.prefix_info import PrefixInfo
from ...calls.scores import Embedding, Score
from ...scheduling.plan import TopLogprobs
from .wire_fields import ANSWERED
from .wire_tool_calls import (
    call_delta_to_wire,
    call_deltas_from_wire,
    call_to_wire,
    calls_from_wire,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "completion_from_wire",
    "completion_to_wire",
    "delta_of",
    "embeddings_from_wire",
    "embeddings_to_wire",
    "piece_of",
    "prefix_info_from_wire",
    "prefix_info_to_wire",
    "scores_from_wire",
    "scores_to_wire",
]

_USAGE = {
    field.name: None if field.default is MISSING else field.default for field in fields(Usage)
}
"""The counts, with their values if an older version of pybatcher sends none."""
_TIMES = ("submitted", "admitted", "first_token", "finished")
_COUNTS = ("preemptions", "recomputed_tokens")
_ENDS: dict[object, FinishReason] = {reason: reason for reason in get_args(FinishReason)}


def delta_of(piece: Piece, seq: int = 1) -> dict[str, Any]:
    """Return the delta of a piece of a stream, as a map."""
    delta: dict[str, Any] = {"seq": seq, "text": piece.text, "token_ids": piece.token_ids}
    if piece.index:
        delta["index"] = piece.index
    if piece.logprobs is not None:
        delta["logprobs"] = _logprobs_to_wire(piece.logprobs)
    if piece.finish_reason is not None:
        delta["finish_reason"] = piece.finish_reason
    if piece.reasoning:
        delta["reasoning"] = piece.reasoning
    if piece.tool_calls:
        delta["tool_calls"] = [call_delta_to_wire(one) for one in piece.tool_calls]
    return delta


def piece_of(delta: object) -> Piece:
    """Return the piece of a delta. Raises ProtocolError."""
    # nearly all deltas are of this form
    if type(delta) is dict and len(delta) == 3 and "seq" in delta:
        text: object = delta.get("text")
        token_ids: Any = delta.get("token_ids")
        is_one = type(token_ids) is list and len(token_ids) == 1
        if is_one and type(text) is str and text.isascii():
            (token,) = token_ids
            if type(token) is int and token >= 0:
                return Piece(text, (token,), None)
    said = ANSWERED.map(delta, "the delta")
    return Piece(
        ANSWERED.text(said.get("text"), "the delta's text"),
        ANSWERED.wholes(said.get("token_ids"), "the delta's token_ids"),
        _logprobs_from_wire(said.get("logprobs")),
        None if said.get("finish_reason") is None else _finish_reason(said),
        ANSWERED.whole(said.get("index", 0), "the delta's index"),
        ANSWERED.text(said.get("reasoning", ""), "the delta's reasoning"),
        call_deltas_from_wire(said.get("tool_calls", ())),
    )


def completion_to_wire(completion: Completion) -> dict[str, Any]:
    """Return the map of a completion with all its choices."""
    timeline = completion.timeline
    wire = {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "usage": {name: getattr(completion.usage, name) for name in _USAGE},
        "timeline": {
            **{name: getattr(timeline, name) for name in _TIMES},
            "token_times": timeline.token_times,
            **{name: getattr(timeline, name) for name in _COUNTS},
        },
    }
    if completion.logprobs is not None:
        wire["logprobs"] = _logprobs_to_wire(completion.logprobs)
    if completion.other_choices:
        wire["choices"] = [completion_to_wire(other) for other in completion.other_choices]
    if completion.reasoning:
        wire["reasoning"] = completion.reasoning
    if completion.tool_calls:
        wire["tool_calls"] = [call_to_wire(call) for call in completion.tool_calls]
    if completion.notes:
        wire["notes"] = completion.notes
    return wire


def completion_from_wire(wire: object) -> Completion:
    """Return a completion equal to the sent one. Raises ProtocolError."""
    said = ANSWERED.map(wire, "the completion")
    first = _choice(said)
    others = said.get("choices")
    if others is None:
        return first
    choices = tuple(
        _choice(ANSWERED.map(other, f"choices[{i}]"))
        for i, other in enumerate(ANSWERED.items(others, "choices"))
    )
    return replace(first, other_choices=choices)


def scores_to_wire(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Return the list of maps of the scores of continuations."""
    wire = []
    for score in scores:
        said: dict[str, Any] = {
            "logprob": score.logprob,
            "token_logprobs": score.token_logprobs,
            "token_ids": score.token_ids,
        }
        if score.top_logprobs:
            said["top_logprobs"] = score.top_logprobs
        wire.append(said)
    return wire


def scores_from_wire(wire: object) -> list[Score]:
    """Return the received scores. Raises ProtocolError."""
    scores = []
    for i, one in enumerate(ANSWERED.items(wire, "the scores")):
        said = ANSWERED.map(one, f"scores[{i}]")
        scores.append(
            Score(
                ANSWERED.number(said.get("logprob"), f"scores[{i}].logprob"),
                ANSWERED.numbers(said.get("token_logprobs"), f"scores[{i}].token_logprobs"),
                ANSWERED.wholes(said.get("token_ids", ()), f"scores[{i}].token_ids"),
                tuple(
                    _top_from_wire(top, f"scores[{i}].top_logprobs")
                    for top in ANSWERED.items(
                        said.get("top_logprobs", ()), f"scores[{i}].top_logprobs"
                    )
                ),
            )
        )
    return scores


def embeddings_to_wire(embeddings: Sequence[Embedding]) -> dict[str, Any]:
    """Return the map of embeddings. Every float32 is exact as a float64.

    `usage` has the counts of all texts, and in `of_each` [prompt_tokens, cached_tokens] of each.
    """
    of_each = [[one.prompt_tokens, one.cached_tokens] for one in embeddings]
    return {
        "embeddings": [one.vector.tolist() for one in embeddings],
        "usage": {
            "prompt_tokens": sum(prompt for prompt, _ in of_each),
            "cached_tokens": sum(cached for _, cached in of_each),
            "of_each": of_each,
        },
    }


def embeddings_from_wire(wire: object) -> list[Embedding]:
    """Return the received vectors, bit for bit. Raises ProtocolError."""
    said = ANSWERED.map(wire, "the result")
    vectors = ANSWERED.items(said.get("embeddings"), "embeddings")
    usage = ANSWERED.map(said.get("usage"), "usage")
    counts = ANSWERED.items(usage.get("of_each"), "usage.of_each")
    if len(counts) != len(vectors):
        raise ANSWERED.bad("usage.of_each", counts, f"of {len(vectors)} texts")
    made = []
    for i, (vector, count) in enumerate(zip(vectors, counts, strict=True)):
        pair = ANSWERED.wholes(count, f"usage.of_each[{i}]")
        if len(pair) != 2:
            raise ANSWERED.bad(f"usage.of_each[{i}]", count, "[prompt_tokens, cached_tokens]")
        made.append(Embedding(_vector(vector, f"embeddings[{i}]"), *pair))
    return made


def prefix_info_to_wire(info: PrefixInfo) -> dict[str, Any]:
    """Return the map of a prefix."""
    return {field.name: getattr(info, field.name) for field in fields(PrefixInfo)}


def prefix_info_from_wire(wire: object) -> PrefixInfo:
    """Return the received prefix. Raises ProtocolError."""
    said = ANSWERED.map(wire, "the prefix")
    name, namespace = said.get("name"), said.get("namespace")
    return PrefixInfo(
        None if name is None else ANSWERED.text(name, "the prefix's name"),
        None if namespace is None else ANSWERED.text(namespace, "the prefix's namespace"),
        *(
            ANSWERED.whole(said.get(key), f"the prefix's {key}")
            for key in ("n_tokens", "computed_tokens", "holders")
        ),
    )


def _choice(said: Mapping[str, Any]) -> Completion:
    usage = ANSWERED.map(said.get("usage"), "usage")
    times = ANSWERED.map(said.get("timeline"), "timeline")
    return Completion(
        ANSWERED.text(said.get("text"), "text"),
        ANSWERED.wholes(said.get("token_ids"), "token_ids"),
        _finish_reason(said),
        Usage(
            **{
                name: ANSWERED.whole(usage.get(name, default), f"usage.{name}")
                for name, default in _USAGE.items()
            }
        ),
        Timeline(
            token_times=ANSWERED.numbers(times.get("token_times"), "timeline.token_times"),
            preemptions=ANSWERED.whole(times.get("preemptions", 0), "timeline.preemptions"),
            recomputed_tokens=ANSWERED.whole(
                times.get("recomputed_tokens", 0), "timeline.recomputed_tokens"
            ),
            **{name: ANSWERED.number(times.get(name), f"timeline.{name}") for name in _TIMES},
        ),
        _logprobs_from_wire(said.get("logprobs")),
        reasoning=ANSWERED.text(said.get("reasoning", ""), "reasoning"),
        tool_calls=calls_from_wire(said.get("tool_calls", ())),
        notes=tuple(
            ANSWERED.text(note, f"notes[{i}]")
            for i, note in enumerate(ANSWERED.items(said.get("notes", ()), "notes"))
        ),
    )


def _finish_reason(said: Mapping[str, Any]) -> FinishReason:
    reason = ANSWERED.text(said.get("finish_reason"), "finish_reason")
    if reason not in _ENDS:
        raise ANSWERED.bad("finish_reason", reason, "one of " + ", ".join(map(str, _ENDS)))
    return _ENDS[reason]


def _logprobs_to_wire(logprobs: Sequence[TokenLogprob]) -> list[Any]:
    return [
        [one.token_id, one.logprob, one.top, *((True,) if one.is_end else ())] for one in logprobs
    ]


def _logprobs_from_wire(wire: object) -> tuple[TokenLogprob, ...] | None:
    if wire is None:
        return None
    made = []
    for i, one in enumerate(ANSWERED.items(wire, "logprobs")):
        name = f"logprobs[{i}]"
        said = ANSWERED.items(one, name)
        if len(said) != 3 and list(said[3:]) != [True]:
            raise ANSWERED.bad(name, one, "[token_id, logprob, top], and true for an end token")
        top = _top_from_wire(said[2], name)
        made.append(TokenLogprob(*_likely(said[:2], name), top, len(said) == 4))
    return tuple(made)


def _top_from_wire(wire: object, name: str) -> TopLogprobs:
    return tuple(_likely(pair, name) for pair in ANSWERED.items(wire, name))


def _likely(pair: object, name: str) -> tuple[int, float]:
    said = ANSWERED.items(pair, name)
    if len(said) != 2:
        raise ANSWERED.bad(name, pair, "[token_id, logprob]")
    return ANSWERED.whole(said[0], name), ANSWERED.number(said[1], name)


def _vector(wire: object, name: str) -> NDArray[np.float32]:
    import numpy as np

    with np.errstate(over="ignore"):
        return np.array(ANSWERED.numbers(wire, name), np.float32)
