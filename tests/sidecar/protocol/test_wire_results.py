"""Results over the wire: equal to the ones that were sent."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_values import (
    ANYTHING,
    COUNTS,
    LOGPROBS,
    PIECES,
    TEXTS,
    TOKENS,
    TOP_LOGPROBS,
    completions,
    over_the_wire,
)

from pybatcher.calls.completion import Completion, Piece, Timeline, Usage
from pybatcher.calls.prefix_info import PrefixInfo
from pybatcher.calls.scores import Embedding, Score
from pybatcher.errors import ProtocolError
from pybatcher.sidecar.protocol import wire


@pytest.mark.slow
@given(completions())
def test_a_completion_equals_the_one_that_was_sent(completion: Completion) -> None:
    got = wire.completion_from_wire(over_the_wire(wire.completion_to_wire(completion)))
    assert got == completion
    assert repr(got) == repr(completion)  # to the bit, and in types


@given(PIECES, st.integers(1, 2**32))
def test_a_piece_equals_the_one_that_was_sent(piece: Piece, seq: int) -> None:
    delta = over_the_wire(wire.delta_of(piece, seq))
    assert delta["seq"] == seq
    assert repr(wire.piece_of(delta)) == repr(piece)


@pytest.mark.parametrize("token_ids", [[-1], [True], ["a"], [1.0], [1, -1], 5, None])
def test_a_delta_whose_tokens_are_none_is_refused(token_ids: object) -> None:
    with pytest.raises(ProtocolError, match="the delta's token_ids"):
        wire.piece_of({"seq": 1, "text": "", "token_ids": token_ids})


def test_a_delta_says_only_what_there_is_to_say() -> None:
    assert wire.delta_of(Piece("a", (1,), None), 7) == {"seq": 7, "text": "a", "token_ids": (1,)}


SCORES = st.builds(
    Score,
    LOGPROBS,
    st.lists(LOGPROBS).map(tuple),
    TOKENS,
    st.lists(TOP_LOGPROBS, max_size=3).map(tuple),
)


@given(st.lists(SCORES, max_size=3))
def test_scores_equal_those_that_were_sent(scores: list[Score]) -> None:
    assert wire.scores_from_wire(over_the_wire(wire.scores_to_wire(scores))) == scores


def test_an_older_peer_gets_no_field_that_it_does_not_know() -> None:
    (said,) = wire.scores_to_wire([Score(-1.0, (-1.0,), (3,))])
    assert set(said) == {"logprob", "token_logprobs", "token_ids"}
    (found,) = wire.scores_from_wire([said])
    assert found.top_logprobs == ()
    said["top_logprobs"] = [[[1, -1.0, 2]]]
    with pytest.raises(ProtocolError, match=r"scores\[0\]\.top_logprobs"):
        wire.scores_from_wire([said])


@given(st.lists(st.tuples(st.lists(st.integers(0, 2**32 - 1)), COUNTS, COUNTS), max_size=3))
def test_vectors_keep_every_bit(sent: list[tuple[list[int], int, int]]) -> None:
    embeddings = []
    for bits, prompt_tokens, cached_tokens in sent:
        vector = np.frombuffer(struct.pack(f"{len(bits)}I", *bits), np.float32)
        quiet = np.where(np.isnan(vector), np.float32(0), vector)  # no model gives a NaN
        embeddings.append(Embedding(quiet, prompt_tokens, cached_tokens))
    got = wire.embeddings_from_wire(over_the_wire(wire.embeddings_to_wire(embeddings)))
    assert len(got) == len(embeddings)
    for one, other in zip(got, embeddings, strict=True):
        assert one.vector.dtype == np.float32
        assert one.vector.tobytes() == other.vector.tobytes()
        assert (one.prompt_tokens, one.cached_tokens) == (other.prompt_tokens, other.cached_tokens)


@given(st.builds(PrefixInfo, st.none() | TEXTS, st.none() | TEXTS, COUNTS, COUNTS, COUNTS))
def test_a_prefix_equals_the_one_that_was_sent(info: PrefixInfo) -> None:
    assert wire.prefix_info_from_wire(over_the_wire(wire.prefix_info_to_wire(info))) == info


READERS = [
    wire.completion_from_wire,
    wire.piece_of,
    wire.scores_from_wire,
    wire.embeddings_from_wire,
    wire.prefix_info_from_wire,
]
RIGHT: list[Any] = [
    wire.completion_to_wire,
    wire.delta_of,
    wire.scores_to_wire,
    wire.embeddings_to_wire,
    wire.prefix_info_to_wire,
]
KEYS = st.sampled_from(
    [
        *("text", "token_ids", "finish_reason", "usage", "timeline", "logprobs", "choices"),
        *("seq", "index", "logprob", "token_logprobs", "embeddings", "name", "n_tokens"),
    ]
)


@pytest.mark.slow
@given(
    st.sampled_from(READERS),
    ANYTHING | st.dictionaries(KEYS, ANYTHING) | st.lists(st.dictionaries(KEYS, ANYTHING)),
)
def test_whatever_comes_is_read_or_refused(reader: Any, come: object) -> None:
    with suppress(ProtocolError):
        reader(come)


@pytest.mark.slow
@given(completions(), KEYS, ANYTHING)
def test_a_completion_with_anything_wrong_is_refused_or_read(
    completion: Completion, key: str, instead: object
) -> None:
    come = over_the_wire(wire.completion_to_wire(completion))
    come[key] = instead
    with suppress(ProtocolError):
        assert isinstance(wire.completion_from_wire(come), Completion)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": 5}, "text is 5; it must be a text"),
        ({"token_ids": [1, -1]}, r"token_ids\[1\] is -1"),
        ({"finish_reason": "bored"}, "finish_reason is 'bored'; it must be one of stop"),
        ({"usage": {}}, "usage.prompt_tokens is None"),
        ({"logprobs": [[1, 2.0]]}, r"logprobs\[0\] is \[1, 2.0\]"),
        ({"logprobs": [[1, 2.0, [], False]]}, r"logprobs\[0\] is .*, and true for an end token"),
    ],
)
def test_what_is_wrong_with_an_answer_is_named(change: dict[str, Any], message: str) -> None:
    timeline = Timeline(0.0, 0.0, 0.0, 0.0, ())
    completion = Completion("", (), "stop", Usage(1, 0, 0), timeline)
    with pytest.raises(ProtocolError, match=message):
        wire.completion_from_wire({**wire.completion_to_wire(completion), **change})


def test_image_tokens_of_an_older_version_are_none() -> None:
    timeline = Timeline(0.0, 0.0, 0.0, 0.0, ())
    sent = wire.completion_to_wire(Completion("", (), "stop", Usage(9, 0, 1, 4), timeline))
    assert wire.completion_from_wire(sent).usage.image_tokens == 4
    del sent["usage"]["image_tokens"]
    assert wire.completion_from_wire(sent).usage == Usage(9, 0, 1)
