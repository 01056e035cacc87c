"""A whole batcher without a model: its options reach the engine or the scheduler they are of."""

from __future__ import annotations

import pytest

from pybatcher import ConfigError
from pybatcher.testing import FakeClock, FakeEngine, fake_batcher


async def test_its_engine_is_made_from_the_options() -> None:
    async with fake_batcher(n_ctx=640, n_parallel=3, block_size=16) as batcher:
        engine = batcher.runtime.engine
        assert isinstance(engine, FakeEngine)
        assert (engine.n_ctx, engine.block_size) == (640, 16)
        assert engine.n_parallel >= 3


async def test_an_engine_that_is_given_is_taken_as_it_is() -> None:
    engine = FakeEngine(n_parallel=5)
    async with fake_batcher(engine) as batcher:
        assert batcher.runtime.engine is engine
        assert (await batcher.generate("abc", max_tokens=4, ignore_eos=True)).token_ids
    assert engine.closed


async def test_times_are_those_of_the_clock_that_is_given() -> None:
    clock = FakeClock(1000.0)
    async with fake_batcher(clock=clock, batch_size=1) as batcher:
        timeline = (await batcher.generate("abc", max_tokens=1)).timeline
    assert (timeline.submitted, timeline.finished) == (1000.0, 1000.0)


async def test_a_template_and_a_system_prompt_are_those_of_its_chats() -> None:
    template = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"
    async with fake_batcher(chat_template=template, system_prompt="Be brief.") as batcher:
        ids = await batcher.tokenize([{"role": "user", "content": "Hi"}])
        assert await batcher.detokenize(ids) == "<Be brief.><Hi>"


def test_an_option_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="n_contexts"):
        fake_batcher(n_contexts=5)
