"""Faults happen when they are due; otherwise a faulty engine behaves as the wrapped one."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from pybatcher import Batcher, EngineFailedError
from pybatcher.engine import Engine
from pybatcher.scheduling import StepEntry, StepPlan, StepResult
from pybatcher.serving.engine_executor import StepEngine
from pybatcher.testing import (
    FailAtRandom,
    FailRestart,
    FailStep,
    FailWhen,
    FakeEngine,
    Fault,
    FaultyEngine,
    HangStep,
    InjectedError,
    SlowStep,
    StepFacts,
    computes,
    fake_batcher,
)
from pybatcher.testing.checkpoints import make_checkpoint


def step(engine: StepEngine, seq_id: int, *tokens: int, n_draft: int = 0) -> StepResult:
    entry = StepEntry(seq_id, tokens, True, n_draft)
    return engine.step(StepPlan((entry,), 0, len(tokens)))


def failures(engine: FaultyEngine, n_steps: int) -> list[int]:
    """Return the numbers of the steps that failed."""
    seq_id, failed = engine.seq_new(), []
    for _ in range(n_steps):
        try:
            step(engine, seq_id, 1)
        except InjectedError:
            failed.append(engine.n_steps)
    return failed


def test_steps_fail_by_number_before_or_after_they_are_computed() -> None:
    before = FaultyEngine(FakeEngine(), FailStep(at=(3, 7)))
    assert failures(before, 9) == [3, 7]
    assert before.seq_length(0) == 7
    after = FaultyEngine(FakeEngine(), FailStep(at=(3, 7), after=True))
    assert failures(after, 9) == [3, 7]
    assert after.seq_length(0) == 9


def test_random_failures_are_those_of_the_seed() -> None:
    runs = [
        failures(FaultyEngine(FakeEngine(), FailAtRandom(0.3, seed)), 200) for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert all(30 < len(run) < 90 for run in runs)
    assert failures(FaultyEngine(FakeEngine(), FailAtRandom(0.0, 1)), 50) == []
    assert failures(FaultyEngine(FakeEngine(), FailAtRandom(1.0, 1)), 5) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("chunk", [1, 2, 3, 9])
@pytest.mark.parametrize("shared", [0, 4, 6])
def test_poison_fails_however_it_is_cut(chunk: int, shared: int) -> None:
    """Also where the sequence begins with a copy or a match."""
    prompt, poison_ends = [9, 9, 9, 9, 5, 6, 7, 8], 7
    engine = FaultyEngine(FakeEngine(block_size=4), FailWhen(computes((5, 6, 7))))
    source, seq_id = engine.seq_new(), engine.seq_new()
    if shared == 4:
        step(engine, source, 9, 9, 9, 9, 1)
        assert engine.seq_match(seq_id, prompt) == 4
    elif shared == 6:
        step(engine, source, *prompt[:6], 1)
        engine.seq_copy(source, seq_id, 6)
    for start in range(shared, len(prompt), chunk):
        tokens = prompt[start : start + chunk]
        if start < poison_ends <= start + len(tokens):
            for _ in range(2):
                with pytest.raises(InjectedError):
                    step(engine, seq_id, *tokens)
            break
        step(engine, seq_id, *tokens)
    else:
        pytest.fail("it was computed")
    step(engine, source, 6, 7)  # not after a 5
    engine.restart()
    with pytest.raises(InjectedError):
        step(engine, engine.seq_new(), *prompt)


def test_rejected_drafts_are_not_part_of_a_sequence() -> None:
    seen: list[tuple[int, ...]] = []

    class Watch(Fault):
        def after_step(self, facts: StepFacts) -> None:
            seen.append(facts.sequences[0])

    engine = FaultyEngine(FakeEngine(), Watch())
    seq_id = engine.seq_new()
    (right,) = step(engine, seq_id, 1).sampled[seq_id]
    step(engine, seq_id, right.token_id, 300 % 258, 4, n_draft=2)
    length = engine.seq_length(seq_id)
    step(engine, seq_id, 77)
    engine.seq_remove(seq_id, 1)
    step(engine, seq_id, 5)
    assert seen[2] == (*seen[1][:length], 77)
    assert seen[3] == (1, 5)


def test_slow_and_hanging_steps() -> None:
    release = threading.Event()
    engine = FaultyEngine(FakeEngine(), SlowStep(0.05, at=(1,)), HangStep(2, release))
    seq_id = engine.seq_new()
    begin = time.monotonic()
    step(engine, seq_id, 1)
    assert time.monotonic() - begin >= 0.05
    thread = threading.Thread(target=step, args=(engine, seq_id, 1))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    release.set()
    thread.join()
    assert engine.seq_length(seq_id) == 2
    step(engine, seq_id, 1)


def test_restarts_fail_so_many_times() -> None:
    engine = FaultyEngine(FakeEngine(), FailRestart(times=2))
    seq_id = engine.seq_new()
    step(engine, seq_id, 1)
    for _ in range(2):
        with pytest.raises(InjectedError):
            engine.restart()
        assert engine.seq_length(seq_id) == 1
    engine.restart()
    assert engine.n_restarts == 3
    assert engine.kv_free_blocks == engine.kv_total_blocks
    assert engine.seq_new() == 0


def test_it_wraps_the_real_engine(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", tokenizer=False)
    real = Engine.load(tmp_path, n_ctx=256, n_threads=1)
    engine = FaultyEngine(real, FailStep(at=(2,), after=True))
    seq_id = engine.seq_new()
    (first,) = step(engine, seq_id, 1, 2, 3).sampled[seq_id]
    with pytest.raises(InjectedError):
        step(engine, seq_id, first.token_id)
    engine.restart()
    assert step(engine, engine.seq_new(), 1, 2, 3).sampled[0] == (first,)
    assert engine.statistics()["computed_tokens"] == 7
    engine.check_integrity()
    engine.close()


async def test_a_batcher_runs_on_it() -> None:
    async with fake_batcher(FakeEngine()) as plain:
        expected = await plain.generate("hello", max_tokens=5, ignore_eos=True)
    batcher: Batcher
    async with fake_batcher(FaultyEngine(FakeEngine(), SlowStep(0.001))) as batcher:
        got = await batcher.generate("hello", max_tokens=5, ignore_eos=True)
    assert got.token_ids == expected.token_ids
    async with fake_batcher(FaultyEngine(FakeEngine(), FailAtRandom(1.0, 1))) as batcher:
        with pytest.raises(EngineFailedError):
            await batcher.generate("hello", max_tokens=5)
