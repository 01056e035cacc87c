"""The fake engine's calls besides `step`, and its refusals, which are the real engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pybatcher import errors
from pybatcher.engine import Engine
from pybatcher.scheduling import StepEntry, StepPlan
from pybatcher.testing import FakeEngine
from pybatcher.testing.checkpoints import make_checkpoint

PROMPT = [5, 200, 17, 3, 3, 90]


def step(engine: FakeEngine | Engine, *entries: StepEntry) -> None:
    engine.step(StepPlan(entries, 0, sum(len(entry.tokens) for entry in entries)))


def test_prefill_and_decode_are_steps() -> None:
    engine = FakeEngine()
    a, b, stepped = (engine.seq_new() for _ in range(3))
    assert engine.prefill_chunk(a, PROMPT[:4]) is None
    logits = engine.prefill_chunk(a, np.array(PROMPT[4:]), logits=True)
    assert logits is not None
    assert (logits.dtype, logits.shape) == (np.float32, (258,))
    assert engine.statistics()["logits_rows"] == 1
    plan = StepPlan((StepEntry(stepped, tuple(PROMPT), True),), 0, 6)
    (token,) = engine.step(plan).sampled[stepped]
    assert int(logits.argmax()) == token.token_id
    engine.prefill_chunk(b, PROMPT)
    passes = engine.statistics()["forward_passes"]
    drawn, rows = engine.decode_batch([b, a], [token.token_id, 7], logits=True)
    assert engine.statistics()["forward_passes"] == passes + 1
    assert (drawn.dtype, rows.shape) == (np.int32, (2, 258))
    assert drawn.tolist() == rows.argmax(axis=1).tolist()
    (after,) = engine.decode_batch([stepped], [token.token_id])
    assert after == drawn[0]
    assert engine.statistics()["sampled_tokens"] == 4


def test_embed_is_a_step_that_pools() -> None:
    engine = FakeEngine()
    for seq_id, pooling in enumerate(("mean", "last")):
        made = engine.embed(engine.seq_new(), PROMPT, pooling)
        assert (made.dtype, made.shape) == (np.float32, (engine.hidden_size,))
        assert engine.seq_length(seq_id) == len(PROMPT)
        entry = StepEntry(engine.seq_new(str(seq_id)), tuple(PROMPT), False, pooling=pooling)  # type: ignore[arg-type]
        expected = engine.step(StepPlan((entry,), 0, 6)).embeddings[entry.seq_id]
        assert made.tobytes() == expected.tobytes()
        engine.seq_remove(entry.seq_id)


def test_a_sequence_that_fails_fails_calls_of_its_own_before_they_append() -> None:
    engine = FakeEngine(fail_sequences=lambda plan: {0: "its logits are not finite"})
    seq_id = engine.seq_new()
    calls: list[Callable[[], object]] = [
        lambda: engine.prefill_chunk(seq_id, PROMPT, logits=True),
        lambda: engine.decode_batch([seq_id], [1]),
        lambda: engine.embed(seq_id, PROMPT),
    ]
    for call in calls:
        with pytest.raises(errors.EngineError, match="finite"):
            call()
        assert engine.seq_length(seq_id) == 0
    assert engine.prefill_chunk(seq_id, PROMPT) is None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return make_checkpoint(
        path, "llama", tokenizer=False, vocab_size=258, max_position_embeddings=40
    )


@pytest.fixture(params=["fake", "real"])
def engine(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[FakeEngine | Engine]:
    """Sequence 0 has 30 tokens, 1 is empty, 2 has another namespace; 2 blocks of 4 are left."""
    options = {"n_ctx": 64, "n_parallel": 3, "block_size": 16}
    made: FakeEngine | Engine = (
        FakeEngine(**options, max_positions=40)  # type: ignore[arg-type]
        if request.param == "fake"
        else Engine.load(checkpoint, n_threads=1, **options)  # type: ignore[arg-type]
    )
    for namespace in ("", "", "other"):
        made.seq_new(namespace)
    made.prefill_chunk(0, [1] * 30)
    yield made
    made.check_integrity()
    made.close()


REFUSED: list[tuple[type[errors.PybatcherError], Callable[[FakeEngine | Engine], object]]] = [
    (errors.NoFreeSequenceError, lambda e: e.seq_new()),
    (errors.InvalidRequestError, lambda e: e.seq_length(3)),
    (errors.InvalidRequestError, lambda e: e.seq_exclusive_blocks(3)),
    (errors.InvalidRequestError, lambda e: e.seq_remove(3)),
    (errors.InvalidRequestError, lambda e: e.seq_remove(0, 31)),
    (errors.InvalidRequestError, lambda e: e.seq_remove(0, 3, 5)),
    (errors.InvalidRequestError, lambda e: e.seq_match(0, [1, 1])),
    (errors.InvalidRequestError, lambda e: e.seq_copy(0, 0, 1)),
    (errors.InvalidRequestError, lambda e: e.seq_copy(0, 2, 1)),
    (errors.InvalidRequestError, lambda e: e.seq_copy(0, 1, 31)),
    (errors.InvalidRequestError, lambda e: e.seq_copy(1, 0, 0)),
    (errors.InvalidRequestError, lambda e: e.seq_sampling(3, None)),
    (errors.InvalidRequestError, lambda e: step(e)),
    (errors.InvalidRequestError, lambda e: step(e, StepEntry(0, (), True))),
    (errors.InvalidRequestError, lambda e: step(e, StepEntry(3, (1,), True))),
    (errors.InvalidRequestError, lambda e: step(e, StepEntry(0, (258,), True))),
    (errors.InvalidRequestError, lambda e: step(e, StepEntry(0, (1,), True, 1))),
    (errors.InvalidRequestError, lambda e: step(e, *[StepEntry(0, (1,), True)] * 2)),
    (errors.InvalidRequestError, lambda e: step(e, StepEntry(0, (1,), False, 0, (1, 2)))),
    (errors.InvalidRequestError, lambda e: step(e, StepEntry(0, (1,), False, 0, (258,)))),
    (errors.InvalidRequestError, lambda e: step(e, StepEntry(0, (1,), True, pooling="mean"))),
    (errors.InvalidRequestError, lambda e: e.prefill_chunk(0, [])),
    (errors.InvalidRequestError, lambda e: e.prefill_chunk(0, [-1])),
    (errors.InvalidRequestError, lambda e: e.decode_batch([0], [1, 2])),
    (errors.InvalidRequestError, lambda e: e.decode_batch([], [])),
    (errors.InvalidRequestError, lambda e: e.embed(1, [1], "max")),
    (errors.RequestTooLongError, lambda e: e.prefill_chunk(0, [1] * 11)),
    (errors.RequestTooLongError, lambda e: step(e, StepEntry(1, (1,) * 41, True))),
    (
        errors.KvCacheFullError,
        lambda e: step(e, StepEntry(0, (1,) * 5, True), StepEntry(2, (1,) * 30, True)),
    ),
]


@pytest.mark.parametrize(("error", "call"), REFUSED)
def test_what_both_refuse(
    engine: FakeEngine | Engine,
    error: type[errors.PybatcherError],
    call: Callable[[FakeEngine | Engine], object],
) -> None:
    free, cached = engine.kv_free_blocks, engine.kv_cached_blocks
    with pytest.raises(error) as raised:
        call(engine)
    assert type(raised.value) is error
    assert [engine.seq_length(i) for i in range(3)] == [30, 0, 0]
    assert (engine.kv_free_blocks, engine.kv_cached_blocks) == (free, cached)
