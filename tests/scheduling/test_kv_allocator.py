"""What is asked of KV, and which way out is advised where there is too little."""

from __future__ import annotations

import pytest
from scheduler_driver import Driver, numbers

from pybatcher.errors import EngineFailedError, RequestTooLongError
from pybatcher.scheduling.kv_allocator import blocks_for, free_sequence, obtainable_blocks
from pybatcher.testing import FakeEngine


def test_blocks() -> None:
    assert [blocks_for(n, 16) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
    assert obtainable_blocks(FakeEngine(n_ctx=64, block_size=16)) == 4


def test_kv_that_cannot_be_given_back_is_the_engines_failure() -> None:
    engine = FakeEngine()
    free_sequence(engine, engine.seq_new())
    assert engine.used_sequences == 0
    with pytest.raises(EngineFailedError, match="sequence 0"):
        free_sequence(engine, 0)


@pytest.mark.parametrize(
    ("max_positions", "advice"),
    [(None, "shorten the prompt or raise n_ctx$"), (50, "the model has no more positions$")],
)
def test_raising_n_ctx_is_advised_only_where_it_is_the_limit(
    max_positions: int | None, advice: str
) -> None:
    driver = Driver(n_ctx=64, block_size=16, max_positions=max_positions, max_prefixes=1)
    with pytest.raises(RequestTooLongError, match=advice):
        driver.submit(0, numbers(70), max_tokens=1)
    with pytest.raises(RequestTooLongError, match=advice.replace("the prompt", "it")):
        driver.scheduler.add_prefix(numbers(70) if max_positions is None else numbers(49))
