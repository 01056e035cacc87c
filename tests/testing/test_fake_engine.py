"""The fake engine keeps the real engine's rules, so that tests with it hold for both."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybatcher.errors import (
    EngineError,
    InvalidRequestError,
    KvCacheFullError,
    NoFreeSequenceError,
    PybatcherError,
)
from pybatcher.params import SamplingParams
from pybatcher.scheduling import SampledToken, StepEntry, StepPlan
from pybatcher.testing import FakeEngine


def compute(engine: FakeEngine, *rows: tuple[int, list[int]]) -> dict[int, SampledToken]:
    """Run one step that appends to each sequence and samples."""
    entries = tuple(StepEntry(seq_id, tuple(tokens), True) for seq_id, tokens in rows)
    sampled = engine.step(StepPlan(entries, 0, sum(len(e.tokens) for e in entries))).sampled
    return {seq_id: only for seq_id, (only,) in sampled.items()}


def drawn(engine: FakeEngine, seq_id: int, tokens: list[int]) -> int:
    return compute(engine, (seq_id, tokens))[seq_id].token_id


def test_the_next_token_depends_on_all_tokens_before_and_on_nothing_else() -> None:
    engine = FakeEngine(block_size=4)
    a, b, c = (engine.seq_new() for _ in range(3))
    first = compute(engine, (a, list(range(10))), (b, [1, 2, 3]))[a]
    for token in range(9):
        drawn(engine, c, [token])
    assert drawn(engine, c, [9]) == first.token_id
    others = {
        drawn_new(FakeEngine(vocab_size=100_000), tokens)
        for tokens in ([0, 1], [1, 0], [1], [1, 0, 0])
    }
    others |= {drawn(_fresh(temperature=1.0, seed=seed), 0, [1]) for seed in range(1, 5)}
    assert len(others) == 8


def _fresh(*, temperature: float, seed: int) -> FakeEngine:
    engine = FakeEngine(vocab_size=100_000)
    engine.seq_sampling(engine.seq_new(), SamplingParams(temperature=temperature), seed=seed)
    return engine


def test_the_seed_matters_only_with_a_temperature() -> None:
    assert drawn(_fresh(temperature=0.0, seed=1), 0, [5]) == drawn(
        _fresh(temperature=0.0, seed=2), 0, [5]
    )


def drawn_new(engine: FakeEngine, tokens: list[int]) -> int:
    return drawn(engine, engine.seq_new(), tokens)


def test_min_tokens_and_logprobs() -> None:
    engine = FakeEngine()
    seq_id = engine.seq_new()
    allowed = 77
    forbidden = [token for token in range(258) if token != allowed]
    params = SamplingParams(min_tokens=2, logprobs=3)
    engine.seq_sampling(seq_id, params, n_prompt=4, stop_token_ids=forbidden)
    first = compute(engine, (seq_id, [1, 2, 3, 4]))[seq_id]
    second = compute(engine, (seq_id, [first.token_id]))[seq_id]
    assert first.token_id == second.token_id == allowed
    assert first.logprob is not None
    assert [p for _, p in first.top_logprobs] == sorted(
        (p for _, p in first.top_logprobs), reverse=True
    )
    assert first.logprob <= first.top_logprobs[0][1]
    assert any(drawn(engine, seq_id, [allowed]) != allowed for _ in range(3))


def test_accepted_drafts_stay_and_the_rest_leaves_no_trace() -> None:
    plain, engine = FakeEngine(block_size=4), FakeEngine(block_size=4)
    alone = plain.seq_new()
    tokens = [1, 2, 3]
    while len(tokens) < 9:
        tokens.append(drawn(plain, alone, tokens[plain.seq_length(alone) :]))
    seq_id = engine.seq_new()
    drafted = (*tokens[:6], tokens[6] ^ 1, tokens[7], tokens[8])
    result = engine.step(StepPlan((StepEntry(seq_id, drafted, True, 6),), 0, 3))
    assert [token.token_id for token in result.sampled[seq_id]] == tokens[3:7]
    assert engine.seq_length(seq_id) == 6
    counts = engine.statistics()
    assert (counts["proposed_tokens"], counts["accepted_tokens"]) == (6, 3)
    assert (counts["computed_tokens"], counts["logits_rows"]) == (9, 7)
    assert [drawn(engine, seq_id, [token]) for token in tokens[6:8]] == tokens[7:9]
    engine.seq_remove(seq_id)
    assert engine.seq_match(engine.seq_new(), drafted) == 4
    engine.check_integrity()


def test_drafts_need_room_and_a_token_before_them() -> None:
    engine = FakeEngine(n_ctx=64, block_size=16, max_positions=40)
    seq_id = engine.seq_new()
    compute(engine, (seq_id, [1] * 38))
    for entry in (
        StepEntry(seq_id, (1, 2, 3), True, 2),  # past its positions
        StepEntry(seq_id, (1, 2), True, 2),
        StepEntry(seq_id, (1, 2), True, -1),
        StepEntry(seq_id, (1, 2), False, 1),
    ):
        with pytest.raises(InvalidRequestError):
            engine.step(StepPlan((entry,), 0, 0))
        assert engine.seq_length(seq_id) == 38
    engine.step(StepPlan((StepEntry(seq_id, (1, 2), True, 1),), 0, 0))


def test_sequences_run_out() -> None:
    engine = FakeEngine(n_parallel=2)
    assert [engine.seq_new(), engine.seq_new()] == [0, 1]
    with pytest.raises(NoFreeSequenceError, match="all 2 sequences"):
        engine.seq_new()
    engine.seq_remove(0)
    assert engine.seq_new() == 0


def test_copy_shares_full_blocks_and_copies_a_partial_one() -> None:
    engine = FakeEngine(n_ctx=64, block_size=16)
    src = engine.seq_new()
    compute(engine, (src, list(range(40))))
    assert engine.kv_free_blocks == 1
    dst = engine.seq_new()
    engine.seq_copy(src, dst, 33)
    assert engine.seq_length(dst) == 33
    assert engine.kv_free_blocks == 0
    assert [engine.seq_exclusive_blocks(seq_id) for seq_id in (src, dst)] == [1, 1]
    assert drawn(engine, dst, [33]) == drawn_new(FakeEngine(), list(range(34)))
    assert drawn(engine, src, [40]) == drawn_new(FakeEngine(), list(range(41)))
    engine.check_integrity()
    full = engine.seq_new()
    engine.seq_copy(src, full, 32)
    with pytest.raises(KvCacheFullError):
        engine.seq_copy(src, engine.seq_new(), 33)
    for seq_id in (src, dst, full):
        engine.seq_remove(seq_id)
    assert engine.kv_free_blocks + engine.kv_cached_blocks == 4


def test_match_gives_whole_blocks_of_the_same_namespace_and_leaves_one_token() -> None:
    engine = FakeEngine(block_size=16)
    tokens = list(range(64))
    seq_id = engine.seq_new("a")
    compute(engine, (seq_id, tokens))
    matches = {}
    for name, namespace, asked in [
        ("all", "a", tokens),
        ("more", "a", [*tokens, 1]),
        ("other", "b", tokens),
        ("differs", "a", [*tokens[:20], 0, *tokens[21:]]),
        ("none", "a", []),
    ]:
        other = engine.seq_new(namespace)
        matches[name] = engine.seq_match(other, asked)
        assert engine.seq_length(other) == matches[name]
        engine.seq_remove(other)
    assert matches == {"all": 48, "more": 64, "other": 0, "differs": 16, "none": 0}


def test_cached_blocks_are_evicted_least_recently_used_first() -> None:
    engine = FakeEngine(n_ctx=64, block_size=16)
    for start in (0, 100):
        seq_id = engine.seq_new()
        compute(engine, (seq_id, list(range(start, start + 32))))
        engine.seq_remove(seq_id)
    assert (engine.kv_free_blocks, engine.kv_cached_blocks) == (0, 4)
    seq_id = engine.seq_new()
    compute(engine, (seq_id, list(range(200, 216))))
    engine.seq_remove(seq_id)
    recent, old = engine.seq_new(), engine.seq_new()
    assert engine.seq_match(recent, list(range(100, 140))) == 32
    assert engine.seq_match(old, list(range(40))) < 32


def test_a_failed_step_changes_nothing() -> None:
    engine = FakeEngine(n_ctx=64, block_size=16, max_positions=40)
    a, b = engine.seq_new(), engine.seq_new()
    compute(engine, (a, [1] * 10))
    bad_plans = [
        [(a, [1] * 31)],  # past its positions
        [(a, [1]), (b, [258])],  # not in the vocabulary
        [(a, [1]), (b, [-1])],
        [(a, [1]), (7, [1])],  # no such sequence
        [(a, [1]), (a, [2])],  # twice
        [(a, [1]), (b, [])],
        [(a, [1] * 30), (b, [1] * 40)],  # no room
    ]
    for rows in bad_plans:
        with pytest.raises(PybatcherError):
            compute(engine, *rows)
        assert (engine.seq_length(a), engine.seq_length(b)) == (10, 0)
        assert engine.kv_free_blocks == 3
        engine.check_integrity()


def test_remove_takes_only_tails() -> None:
    engine = FakeEngine(block_size=16)
    seq_id = engine.seq_new()
    compute(engine, (seq_id, list(range(40))))
    for start, end in [(-1, -1), (41, -1), (0, 39), (5, 6)]:
        with pytest.raises(InvalidRequestError):
            engine.seq_remove(seq_id, start, end)
    engine.seq_remove(seq_id, 35, 40)
    engine.seq_remove(seq_id, 20)
    assert engine.seq_length(seq_id) == 20
    assert drawn(engine, seq_id, [9]) == drawn_new(FakeEngine(), [*range(20), 9])
    engine.check_integrity()
    engine.seq_remove(seq_id)
    with pytest.raises(InvalidRequestError, match="not in use"):
        engine.seq_length(seq_id)


def test_one_call_at_a_time() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def block(plan: StepPlan) -> None:
        inside.set()
        go_on.wait(10)

    engine = FakeEngine(before_step=block)
    seq_id = engine.seq_new()
    thread = threading.Thread(target=compute, args=(engine, (seq_id, [1])))
    thread.start()
    assert inside.wait(10)
    for call in (engine.seq_new, engine.check_integrity):
        with pytest.raises(EngineError, match="one call at a time"):
            call()
    assert engine.kv_free_blocks == engine.kv_total_blocks, "facts and counts are always there"
    go_on.set()
    thread.join()
    assert engine.seq_length(seq_id) == 1


def test_restart_forgets_all_but_statistics() -> None:
    engine = FakeEngine(block_size=4)
    seq_id, other = engine.seq_new(), engine.seq_new()
    engine.seq_sampling(other, SamplingParams(temperature=1.0), seed=3)
    first = drawn(engine, seq_id, list(range(10)))
    engine.seq_remove(seq_id)
    counts = engine.statistics()
    engine.restart()
    assert engine.statistics() == counts
    assert (engine.used_sequences, engine.kv_cached_blocks) == (0, 0)
    assert engine.kv_free_blocks == engine.kv_total_blocks
    engine.check_integrity()
    assert [engine.seq_new(), engine.seq_new()] == [0, 1]
    assert engine.seq_match(0, list(range(10))) == 0
    assert drawn(engine, 1, list(range(10))) == first


def test_closed() -> None:
    engine = FakeEngine()
    engine.close()
    engine.close()
    for call in (engine.seq_new, engine.restart):
        with pytest.raises(EngineError, match="closed"):
            call()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_blocks_hold_what_each_sequence_was_given(data: st.DataObject) -> None:
    engine = FakeEngine(n_ctx=96, block_size=8, n_parallel=4)
    model: dict[int, list[int]] = {}
    for _ in range(data.draw(st.integers(1, 30))):
        operation = data.draw(st.sampled_from(["new", "append", "copy", "remove", "match"]))
        used = st.sampled_from(sorted(model)) if model else None
        try:
            if operation == "new":
                model[engine.seq_new()] = []
            elif used is not None and operation == "append":
                seq_id = data.draw(used)
                tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=20))
                compute(engine, (seq_id, tokens))
                model[seq_id] += tokens
            elif used is not None and operation == "copy":
                src, dst = data.draw(used), data.draw(used)
                n_tokens = data.draw(st.integers(0, 40))
                engine.seq_copy(src, dst, n_tokens)
                model[dst] = model[src][:n_tokens]
            elif used is not None and operation == "remove":
                seq_id = data.draw(used)
                start = data.draw(st.integers(0, 40))
                exclusive = engine.seq_exclusive_blocks(seq_id)
                available = engine.kv_free_blocks + engine.kv_cached_blocks
                engine.seq_remove(seq_id, start)
                if start == 0:
                    available += exclusive
                    assert engine.kv_free_blocks + engine.kv_cached_blocks == available
                model[seq_id] = model[seq_id][:start]
                if start == 0:
                    del model[seq_id]
            elif used is not None:
                seq_id = data.draw(used)
                tokens = data.draw(st.lists(st.integers(0, 1), max_size=40))
                model[seq_id] = tokens[: engine.seq_match(seq_id, tokens)]
        except PybatcherError:
            pass
        engine.check_integrity()
        for seq_id, tokens in model.items():
            assert engine._kv.tokens(seq_id) == tokens
            assert engine.seq_length(seq_id) == len(tokens)
