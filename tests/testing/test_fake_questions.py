"""Log-probabilities and pooled vectors of the fake engine follow the rules of the real one."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybatcher.errors import InvalidRequestError
from pybatcher.params import SamplingParams
from pybatcher.scheduling import StepEntry, StepPlan, StepResult
from pybatcher.testing import FakeEngine

PROMPT = (5, 200, 17, 3, 3, 90)


def step(engine: FakeEngine, *entries: StepEntry) -> StepResult:
    return engine.step(StepPlan(entries, 0, sum(len(entry.tokens) for entry in entries)))


def greedy(n: int) -> tuple[list[int], list[float]]:
    """Return the tokens sampled after PROMPT, and their log-probabilities."""
    engine = FakeEngine(block_size=4)
    seq_id = engine.seq_new()
    engine.seq_sampling(seq_id, SamplingParams(logprobs=0))
    drawn, logprobs, tokens = [], [], PROMPT
    for _ in range(n):
        (token,) = step(engine, StepEntry(seq_id, tokens, True)).sampled[seq_id]
        assert token.logprob is not None
        drawn.append(token.token_id)
        logprobs.append(token.logprob)
        tokens = (token.token_id,)
    return drawn, logprobs


@given(cut=st.integers(1, 13), n_targets=st.integers(1, 8))
def test_scores_are_those_of_draws_however_the_prompt_is_cut(cut: int, n_targets: int) -> None:
    drawn, expected = greedy(8)
    whole = (*PROMPT, *drawn[:-1])
    engine = FakeEngine(block_size=4)
    seq_id, other = engine.seq_new(), engine.seq_new()
    scores: list[float] = []
    for start in range(0, len(whole), cut):
        chunk = whole[start : start + cut]
        first = max(start, len(whole) - n_targets)
        targets = tuple((*whole, drawn[-1])[first + 1 : start + len(chunk) + 1])
        entries = StepEntry(other, (9, 9), True), StepEntry(seq_id, chunk, False, 0, targets)
        result = step(engine, *entries)
        assert set(result.sampled) == {other}
        assert set(result.logprobs) == ({seq_id} if targets else set())
        scores += result.logprobs.get(seq_id, ())
    assert scores == expected[-n_targets:]
    assert engine.seq_length(seq_id) == len(whole)
    assert engine.statistics()["logits_rows"] == n_targets + -(-len(whole) // cut)


def test_pooling() -> None:
    engine = FakeEngine(block_size=4)
    mean, last, part = (engine.seq_new() for _ in range(3))
    made = step(
        engine,
        StepEntry(mean, PROMPT, False, pooling="mean"),
        StepEntry(last, PROMPT, False, pooling="last"),
    ).embeddings
    assert made[mean] != made[last]
    assert len(made[mean]) == engine.hidden_size
    states = []
    for token in PROMPT:
        result = step(engine, StepEntry(part, (token,), False, pooling="mean"))
        states.append(result.embeddings[part])
    assert made[last] == states[-1]
    means = (sum(column) / len(states) for column in zip(*states, strict=True))
    assert made[mean] == pytest.approx(array("f", means), abs=1e-6)
    assert engine.statistics()["logits_rows"] == 0


def test_a_sequence_that_failed_has_no_answer() -> None:
    engine = FakeEngine(fail_sequences=lambda plan: {0: "not finite"})
    bad, good = engine.seq_new(), engine.seq_new()
    entries = [StepEntry(i, PROMPT, False, 0, (1,), "mean") for i in (bad, good)]
    result = step(engine, *entries)
    assert set(result.logprobs) == set(result.embeddings) == {good}
    assert result.failed == {bad: "not finite"}
    assert engine.seq_length(bad) == len(PROMPT)


@pytest.mark.parametrize(
    "entry",
    [
        StepEntry(0, (1, 2), False, 0, (1, 2, 3)),
        StepEntry(0, (1, 2), False, 0, (258,)),
        StepEntry(0, (1, 2), False, 0, (-1,)),
        StepEntry(0, (1, 2), True, 0, (1,)),
        StepEntry(0, (1, 2), True, 1, (1,)),
        StepEntry(0, (1, 2), True, pooling="mean"),
        StepEntry(0, (1, 2), False, pooling="max"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_asked(entry: StepEntry) -> None:
    engine = FakeEngine()
    engine.seq_new()
    with pytest.raises(InvalidRequestError):
        step(engine, entry)
    assert engine.seq_length(0) == 0
