from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from batcher_helpers import until
from replicas_double import ReplicasDouble, replicas_double

from pybatcher.errors import (
    BatcherClosedError,
    DeadlineExceededError,
    EngineFailedError,
    InvalidRequestError,
)
from pybatcher.metrics import Metrics
from pybatcher.ray import ReplicatedBatcher

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@pytest.fixture
async def replicas() -> AsyncIterator[ReplicasDouble]:
    async with replicas_double(chat_template=CHAT, max_prefixes=2) as made:
        yield made


@pytest.fixture
async def batcher(replicas: ReplicasDouble) -> AsyncIterator[ReplicatedBatcher]:
    async with ReplicatedBatcher(replicas) as made:
        yield made


async def test_answers_are_those_of_one_batcher(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    one, messages = replicas.batchers[0], [{"role": "user", "content": "héllo"}]
    assert str(await batcher.chat(messages, seed=3)) == str(await one.chat(messages, seed=3))
    several = await batcher.generate(["a", "b"], max_tokens=5)
    assert [one.token_ids for one in several] == [
        made.token_ids for made in await one.generate(["a", "b"], max_tokens=5)
    ]
    assert await batcher.tokenize(messages) == await one.tokenize(messages)
    assert await batcher.detokenize([104, 105]) == await one.detokenize([104, 105])
    assert await batcher.score("a", ["b", "c"]) == await one.score("a", ["b", "c"])
    ids = np.array([104, 105])
    (mine,), (theirs,) = await batcher.embed([ids]), await one.embed([ids])
    assert mine.vector.tobytes() == theirs.vector.tobytes()
    wanted = await one.generate("ab", max_tokens=3, prompt_logprobs=True)
    made = await batcher.generate("ab", max_tokens=3, prompt_logprobs=True)
    assert made.prompt_logprobs == wanted.prompt_logprobs
    assert batcher.model_name == "fake"


async def test_an_output_begun_elsewhere_goes_on(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    whole = await batcher.generate("abc", max_tokens=20, seed=1, ignore_eos=True)
    rest = await batcher.generate(
        "abc", max_tokens=20, seed=1, ignore_eos=True, output=whole.token_ids[:7]
    )
    assert rest.token_ids == whole.token_ids[7:]


async def test_statistics_are_sums_and_the_health_is_of_the_healthiest(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    before = (await batcher.statistics()).completed
    for _ in range(4):
        await batcher.generate("abc", max_tokens=1)
    assert (await batcher.statistics()).completed == before + 4
    assert [one.statistics().completed for one in replicas.batchers] == [before // 2 + 2] * 2
    await replicas.batchers[0].close()
    health = await batcher.health()
    assert health.ok
    assert health.reason.startswith("1 of 2 replicas are ready")
    await replicas.batchers[1].close()
    assert not (await batcher.health()).ok


async def test_metrics_are_of_all_replicas(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    before = (await batcher.statistics()).completed
    metrics = Metrics(batcher)
    for _ in range(3):
        await batcher.generate("abc", max_tokens=2, ignore_eos=True)
    await metrics.refresh()
    text = metrics.exposition().decode()
    assert 'time_to_first_token_seconds_count{model_name="fake"} 3.0' in text
    assert (await batcher.statistics()).completed == before + 3


async def test_prefixes_are_for_all_replicas(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    info = await batcher.add_prefix("a" * 100)
    for one in replicas.batchers:
        assert [kept.name for kept in one.prefixes()] == [info.name]
    assert [kept.name for kept in await batcher.prefixes()] == [info.name]
    await replicas.batchers[0].remove_prefix(str(info.name))  # as if it had started later
    await batcher.remove_prefix(str(info.name))
    assert not replicas.batchers[1].prefixes()
    with pytest.raises(InvalidRequestError):
        await batcher.remove_prefix(str(info.name))


async def test_a_question_whose_replica_dies_is_asked_again(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    replicas.lost_questions = 2
    text = await replicas.batchers[0].detokenize([104])
    assert await batcher.detokenize([104]) == text
    replicas.lost_questions = 3
    with pytest.raises(EngineFailedError, match="3 replicas were lost with this question"):
        await batcher.detokenize([104])


async def test_questions_wait_for_full_replicas(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher
) -> None:
    for replica in replicas.replicas:
        replica._most = 0
    scoring = asyncio.create_task(batcher.score([5, 6, 7], [[5]]))
    assert await batcher.detokenize([104])
    assert (await batcher.health()).ok
    assert not scoring.done()
    for replica in replicas.replicas:
        replica._most = 1
    assert await scoring == await replicas.batchers[0].score([5, 6, 7], [[5]])


async def test_a_prompt_that_cannot_be_read_in_time(
    replicas: ReplicasDouble, batcher: ReplicatedBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(method: str, params: list[object]) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(replicas, "ask", never)
    with pytest.raises(DeadlineExceededError, match="before the prompt could be read"):
        await batcher.generate("abc", timeout=0.01)


async def test_close_drains_or_fails_what_is_in_flight(replicas: ReplicasDouble) -> None:
    for drain in (True, False):
        batcher = ReplicatedBatcher(replicas)
        await batcher.start()
        asked = asyncio.ensure_future(batcher.generate("abc", max_tokens=200, ignore_eos=True))
        service = batcher._running_service()
        await until(lambda: bool(service._outputs))  # type: ignore[attr-defined]  # noqa: B023
        await batcher.close(drain=drain)
        if drain:
            assert (await asked).usage.completion_tokens == 200
        else:
            with pytest.raises(BatcherClosedError, match="before this request had ended"):
                await asked
        with pytest.raises(BatcherClosedError, match="closed"):
            await batcher.generate("abc")
        assert (await batcher.health()).status == "closed"


async def test_another_loop_is_told_so(batcher: ReplicatedBatcher) -> None:
    def elsewhere() -> None:
        with pytest.raises(InvalidRequestError, match="another event loop"):
            asyncio.run(_generate(batcher))

    await asyncio.to_thread(elsewhere)


async def _generate(batcher: ReplicatedBatcher) -> None:
    await batcher.generate("abc")


SHOWS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|image|>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}{% endfor %}<assistant>"
)


def picture(value: int) -> list[dict[str, Any]]:
    parts = [
        {"type": "image", "image": np.full((96, 96, 3), value, np.uint8)},
        {"type": "text", "text": "What is it?"},
    ]
    return [{"role": "user", "content": parts}]


async def test_images_go_along_to_each_replica() -> None:
    async with replicas_double(chat_template=SHOWS) as replicas, ReplicatedBatcher(replicas) as own:
        one = replicas.batchers[0]
        assert (await own.model_info()).takes_images
        for value in (1, 2):
            mine = await own.chat(picture(value), seed=3, max_tokens=20)
            assert (
                mine.token_ids == (await one.chat(picture(value), seed=3, max_tokens=20)).token_ids
            )
            assert mine.usage.image_tokens == 9
        assert await own.tokenize(picture(1)) == await one.tokenize(picture(1))
        with pytest.raises(InvalidRequestError, match="is no PNG"):
            await own.chat([{"role": "user", "content": [{"type": "image", "image": b"x"}]}])
        # Chats that begin alike go to the same replica, and others need not.
        whole = await own.chat(picture(1), max_tokens=3)
        await own.chat([*picture(1), whole.message, *picture(2)], max_tokens=3)
        await own.chat(picture(3), max_tokens=3)
        first, later, other = (routing.prefix for routing in replicas.routings[-3:])
        assert first
        assert later[: len(first)] == first
        assert later[: len(first)] != other[: len(first)]


async def test_a_chat_with_images_outlives_its_replica() -> None:
    async with replicas_double(chat_template=SHOWS) as replicas, ReplicatedBatcher(replicas) as own:
        expected = await own.chat(picture(5), seed=1, max_tokens=40, ignore_eos=True)
        replicas.lives = [7]
        made = await own.chat(picture(5), seed=1, max_tokens=40, ignore_eos=True)
        assert made.token_ids == expected.token_ids
        assert made.usage.image_tokens == 9
        assert len(replicas.routings) == 3
