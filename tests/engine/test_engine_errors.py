"""Every error of `Engine`; a failed call leaves everything unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_helpers import VOCAB, ids, plan, state

from pybatcher import errors
from pybatcher.engine import Engine
from pybatcher.params import SamplingParams

# -- errors: each leaves everything unchanged ---------------------------------------------------

BAD_TOKENS = [
    [],
    [VOCAB],
    [-1],
    [2**40],
    [-(2**70)],
    [1.0],
    [True],
    [None],
    ["1"],
    [[1, 2]],
    1,
    None,
    "12",
    b"12",
    {1, 2},
    np.array([1.0]),
    np.array([True]),
    np.array([[1, 2]]),
    np.array(3),
    np.array(["1"]),
    np.array([2**63], dtype=np.uint64),
    np.array([2**31 + 1]),
    np.array([1 + 1j]),
    np.array([None]),
]


@pytest.mark.parametrize("tokens", BAD_TOKENS, ids=repr)
def test_bad_tokens(engine: Engine, tokens: Any) -> None:
    seq_id, other = engine.seq_new(), engine.seq_new()
    engine.prefill_chunk(seq_id, ids(20))
    before = state(engine)
    calls: list[Callable[[], object]] = [
        lambda: engine.prefill_chunk(seq_id, tokens),
        lambda: engine.prefill_chunk(seq_id, tokens, logits=True),
        lambda: engine.embed(seq_id, tokens),
        lambda: engine.decode_batch([seq_id], tokens),
    ]
    if not (isinstance(tokens, list) and not tokens):  # an empty prompt matches nothing
        calls.append(lambda: engine.seq_match(other, tokens))
    for call in calls:
        with pytest.raises(errors.InvalidRequestError, match="tokens"):
            call()
    assert state(engine) == before


@pytest.mark.parametrize("seq_id", [1, -1, 4, 2**40, -(2**70), 0.0, True, None, "0"], ids=repr)
def test_bad_sequence_ids(engine: Engine, seq_id: Any) -> None:
    good = engine.seq_new()
    engine.prefill_chunk(good, ids(20))
    before = state(engine)
    calls: list[Callable[[], object]] = [
        lambda: engine.seq_length(seq_id),
        lambda: engine.seq_exclusive_blocks(seq_id),
        lambda: engine.seq_remove(seq_id),
        lambda: engine.seq_copy(seq_id, good, 1),
        lambda: engine.seq_copy(good, seq_id, 1),
        lambda: engine.seq_match(seq_id, ids(20)),
        lambda: engine.seq_sampling(seq_id, None),
        lambda: engine.seq_sampling(seq_id, SamplingParams()),
        lambda: engine.prefill_chunk(seq_id, ids(3)),
        lambda: engine.embed(seq_id, ids(3)),
        lambda: engine.decode_batch([good, seq_id], [1, 2]),
        lambda: engine.step(plan((good, [1], True), (seq_id, [1], True))),
    ]
    for call in calls:
        with pytest.raises(errors.InvalidRequestError):
            call()
    assert state(engine) == before


def test_contradictory_calls(engine: Engine) -> None:
    good, empty = engine.seq_new(), engine.seq_new()
    engine.prefill_chunk(good, ids(20))
    before = state(engine)
    calls: list[Callable[[], object]] = [
        lambda: engine.seq_copy(good, good, 1),
        lambda: engine.seq_copy(good, empty, 21),
        lambda: engine.seq_copy(good, empty, -1),
        lambda: engine.seq_copy(empty, good, 0),
        lambda: engine.seq_match(good, ids(20)),
        lambda: engine.seq_remove(good, 21),
        lambda: engine.seq_remove(good, -1),
        lambda: engine.seq_remove(good, 5, 10),
        lambda: engine.seq_remove(good, 5, 2**40),
        lambda: engine.decode_batch([good], [1, 2]),
        lambda: engine.decode_batch([good, good], [1, 2]),
        lambda: engine.decode_batch([], []),
        lambda: engine.step(plan()),
        lambda: engine.step(plan((good, [1], True), (empty, [], True))),
        lambda: engine.step(plan((good, [1], True), (good, [1], True))),
        lambda: engine.run_step([]),
        lambda: engine.run_step([(good, [1])]),
        lambda: engine.run_step([[good, [1], True]]),  # type: ignore[list-item]
        lambda: engine.run_step([(good, [], True)]),
        lambda: engine.run_step([(good, [1], 1)]),
        lambda: engine.run_step([(good, [1], True, -1)]),
        lambda: engine.run_step([(good, [1], True), (good, [1], True)]),
        lambda: engine.embed(empty, ids(3), "max"),
        lambda: engine.seq_sampling(good, SamplingParams(logit_bias={VOCAB: 1.0})),
        lambda: engine.seq_sampling(good, SamplingParams(), stop_token_ids=[VOCAB]),
        lambda: engine.seq_sampling(good, SamplingParams(), seed=-1),
        lambda: engine.seq_sampling(good, SamplingParams(), seed=2**64),
        lambda: engine.seq_sampling(good, SamplingParams(), n_prompt=-1),
        lambda: engine.set_sampling(good, temperature=float("nan")),
        lambda: engine.set_sampling(good, top_p=0.0),
        lambda: engine.set_sampling(good, logprobs=33),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(errors.InvalidRequestError):
            call()
        assert state(engine) == before, number


def test_too_long(engine: Engine) -> None:
    seq_id, other = engine.seq_new(), engine.seq_new()
    engine.prefill_chunk(seq_id, ids(200))
    before = state(engine)
    for call in (
        lambda: engine.prefill_chunk(seq_id, [1]),
        lambda: engine.prefill_chunk(other, ids(201)),
        lambda: engine.decode_batch([other, seq_id], [1, 1]),
        lambda: engine.step(plan((other, [1], True), (seq_id, [1], True))),
        lambda: engine.embed(other, ids(1000)),
    ):
        with pytest.raises(errors.RequestTooLongError, match="200"):
            call()
    assert state(engine) == before


def test_kv_full(engine: Engine) -> None:
    full, partial, new = (engine.seq_new() for _ in range(3))
    engine.prefill_chunk(full, ids(200))  # 13 of 16 blocks
    engine.prefill_chunk(partial, ids(40, 1))  # 3
    before = state(engine)
    for call in (
        lambda: engine.prefill_chunk(new, [1]),
        lambda: engine.seq_copy(full, new, 199),
        lambda: engine.step(plan((partial, [1], True), (new, [1], True))),
        lambda: engine.embed(partial, ids(9)),
    ):
        with pytest.raises(errors.KvCacheFullError, match="n_ctx"):
            call()
        assert state(engine) == before
    assert set(engine.step(plan((partial, [1], True))).sampled) == {partial}
