"""`Engine.step` with entries that ask for log-probabilities or pooled states."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import VOCAB, ids, state

from pybatcher import _core, errors
from pybatcher.engine import Engine
from pybatcher.scheduling.plan import StepEntry, StepPlan, StepResult
from pybatcher.testing.checkpoints import make_checkpoint


def step(engine: Engine, *entries: StepEntry) -> StepResult:
    return engine.step(StepPlan(entries, 0, sum(len(entry.tokens) for entry in entries)))


def test_one_pass_draws_scores_and_pools(engine: Engine) -> None:
    drawing, scoring, mean, last = (engine.seq_new(str(i)) for i in range(4))
    prompt = tuple(ids(40))
    entries = (
        StepEntry(drawing, prompt[:5], True),
        StepEntry(scoring, prompt, False, 0, (7, 8, 9), n_top=4),
        StepEntry(mean, prompt, False, pooling="mean"),
        StepEntry(last, prompt, False, pooling="last"),
    )
    result = step(engine, *entries)
    counts = engine.statistics()
    assert (counts["forward_passes"], counts["logits_rows"], counts["sampled_tokens"]) == (1, 4, 1)
    assert set(result.sampled) == {drawing}
    assert set(result.logprobs) == set(result.top_logprobs) == {scoring}
    assert set(result.embeddings) == {mean, last}
    assert not result.failed
    engine.restart()
    for pooling, seq_id in (("mean", mean), ("last", last)):
        expected = engine.embed(engine.seq_new(), prompt, pooling)
        made = np.asarray(result.embeddings[seq_id])
        assert made.dtype == np.float32
        assert np.array_equal(made, expected)
    for i, target in enumerate((7, 8, 9)):
        seq_id = engine.seq_new(str(i))
        logits = engine.prefill_chunk(seq_id, prompt[: 38 + i], logits=True).astype(np.float64)
        engine.seq_remove(seq_id)
        expected = logits[target] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert result.logprobs[scoring][i] == pytest.approx(expected, abs=1e-5)
        likeliest = np.argsort(-logits, kind="stable")[:4]
        top = dict(result.top_logprobs[scoring][i])
        assert list(top) == likeliest.tolist()
        logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert list(top.values()) == pytest.approx(logprobs[likeliest], abs=1e-5)


def test_the_likeliest_token_has_the_very_number_of_a_target(engine: Engine) -> None:
    prompt = tuple(ids(20))
    asked = StepEntry(engine.seq_new("a"), prompt, False, 0, (0,), n_top=1)
    ((token, logprob),) = step(engine, asked).top_logprobs[asked.seq_id][0]
    target = StepEntry(engine.seq_new("b"), prompt, False, 0, (token,))
    result = step(engine, target)
    assert result.logprobs[target.seq_id] == (logprob,)
    assert not result.top_logprobs


def test_a_vocabulary_of_fewer_tokens_than_asked_for(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", tokenizer=False, vocab_size=9)
    engine = Engine.load(tmp_path, n_ctx=64)
    entry = StepEntry(engine.seq_new(), (1, 2), False, 0, (3, 4), n_top=32)
    for top in step(engine, entry).top_logprobs[entry.seq_id]:
        assert sorted(token for token, _ in top) == list(range(9))
    engine.close()


def test_what_cannot_be_asked(engine: Engine) -> None:
    seq_id = engine.seq_new()
    before = state(engine)
    for entry in (
        StepEntry(seq_id, (1, 2), False, 0, (1, 2, 3)),
        StepEntry(seq_id, (1, 2), False, 0, (VOCAB,)),
        StepEntry(seq_id, (1, 2), False, 0, (-1,)),
        StepEntry(seq_id, (1, 2), True, 0, (1,)),
        StepEntry(seq_id, (1, 2), True, 1, (1,)),
        StepEntry(seq_id, (1, 2), True, pooling="last"),
        StepEntry(seq_id, (1, 2), False, 1, (1,)),
        StepEntry(seq_id, (1, 2), False, pooling="max"),  # type: ignore[arg-type]
        StepEntry(seq_id, (1, 2), False, 0, (1,), n_top=33),
        StepEntry(seq_id, (1, 2), False, 0, (1,), n_top=-1),
    ):
        with pytest.raises(errors.InvalidRequestError):
            step(engine, entry)
        assert state(engine) == before


@pytest.mark.parametrize(
    "asked",
    [
        {"n_draft": 1.5},
        {"targets": 1},
        {"targets": None},
        {"targets": "1"},
        {"targets": [1.5]},
        {"targets": [1], "n_top": (1,)},
        {"targets": [1], "n_top": 1.5},
        {"n_top": -1},
        {"pooling": ""},
        {"pooling": b"mean"},
        {"pooling": 1},
        {"pooling": ["mean"]},
        {"pooling": "\udc80"},
    ],
    ids=repr,
)
def test_arguments_of_another_kind(engine: Engine, asked: dict[str, Any]) -> None:
    seq_id = engine.seq_new()
    before = state(engine)
    with pytest.raises(errors.InvalidRequestError, match=r"entries\[0\]: "):
        engine.run_step([StepEntry(seq_id, (1,), False)._replace(**asked)])
    assert state(engine) == before


def test_targets_may_be_arrays_and_entries_a_list_that_changes(engine: Engine) -> None:
    entries: list[Any] = [(engine.seq_new("a"), [1], False, 0, np.array([3], np.uint8))]

    class Index:
        def __index__(self) -> int:
            entries.clear()
            return 3

    expected = engine.run_step(entries)[0][3]
    b, c = engine.seq_new("b"), engine.seq_new("c")
    entries[:] = [(b, [1], False, 0, [Index()]), (c, np.array([1]), False, 0, (3,))]
    results = engine.run_step(entries)
    assert entries == []
    assert [(result[0], result[3]) for result in results] == [(b, expected), (c, expected)]


def test_masks_are_of_entries(engine: Engine) -> None:
    seq_id, other = engine.seq_new(), engine.seq_new()
    masks = _core.TokenMasks(1, engine.vocab_size)
    ctypes.memset(masks.address, 0, masks.row_bytes)
    before = state(engine)
    for rows in ({seq_id: 1}, {seq_id: -1}, {other: 0}, {seq_id: "0"}, {"0": 0}):
        with pytest.raises(errors.InvalidRequestError, match="mask_rows"):
            engine.run_step([(seq_id, [1], True)], masks, rows)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRequestError, match="vocab_size"):
        engine.run_step([(seq_id, [1], True)], _core.TokenMasks(1, 32 * engine.vocab_size))
    assert state(engine) == before
    ((_, sampled, failure, *_),) = engine.run_step([(seq_id, [1], True)], masks, {seq_id: 0})
    assert sampled == ()
    assert failure == _core.ALL_FORBIDDEN
