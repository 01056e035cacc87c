from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest
from batcher_helpers import until

from pybatcher import Batcher
from pybatcher.errors import EngineFailedError
from pybatcher.ray.prefix_hashes import prefix_hashes
from pybatcher.ray.replica import Replica
from pybatcher.ray.replicas import FULL
from pybatcher.testing import fake_batcher


@pytest.fixture
async def batcher() -> AsyncIterator[Batcher]:
    async with fake_batcher(n_ctx=2048, n_parallel=4, block_size=16) as made:
        yield made


@pytest.fixture
async def replica(batcher: Batcher) -> Replica:
    made = Replica(batcher)
    await made.start()
    return made


PROMPT = list(range(100, 170))


async def messages(replica: Replica, opts: dict[str, Any], **routing: Any) -> list[Any]:
    answers = replica.stream("generate", [PROMPT, opts], **routing)
    return [message async for several in answers for message in several]


async def test_messages_begin_with_the_fingerprint_and_end_with_the_completion(
    replica: Replica,
) -> None:
    told = await messages(replica, {"max_tokens": 5, "ignore_eos": True})
    names = [name for name, _ in told]
    assert names == ["began", *["deltas"] * (len(told) - 2), "end"]
    assert told[0][1] == replica.record_replica_metadata()["fingerprint"] != ""
    tokens = [token for _, deltas in told[1:-1] for one in deltas for token in one["token_ids"]]
    assert tokens == list(told[-1][1]["token_ids"])
    assert len(tokens) == 5


async def test_a_full_replica_refuses_what_takes_long(replica: Replica) -> None:
    replica._most = 1
    asked = {"max_tokens": 5, "ignore_eos": True}
    begun = replica.stream("generate", [PROMPT, asked])
    assert (await anext(begun))[0][0] == "began"
    for _ in range(2):
        assert await messages(replica, asked) == [FULL]
        assert await replica.ask("score", [PROMPT, [[5]]]) == FULL
        assert await replica.ask("embed", [[PROMPT]]) == FULL
        assert (await replica.ask("health", []))[0] == "end"
        assert (await replica.ask("statistics", []))[0] == "end"
        assert (await replica.ask("tokenize", ["a"]))[0] == "end"
    await begun.aclose()
    name, scores = await replica.ask("score", [PROMPT, [[5]]])
    assert (name, len(scores)) == ("end", 1)
    name, error = await replica.ask("score", [PROMPT, []])
    assert (name, error["code"]) == ("error", "invalid_request")
    assert (await messages(replica, {"temperature": -1}))[0][0] == "error"
    assert (await messages(replica, asked))[-1][0] == "end"


async def test_errors_are_messages(replica: Replica, batcher: Batcher) -> None:
    ((name, error),) = await messages(replica, {"temperature": -1})
    assert (name, error["code"]) == ("error", "invalid_request")
    ((name, error),) = await messages(replica, {"output": [1]}, fingerprint="another")
    assert (name, error["type"]) == ("error", "EngineFailedError")
    name, error = await replica.ask("detokenize", [[-1]])
    assert (name, error["code"]) == ("error", "invalid_request")
    text = await batcher.detokenize([104, 105])
    assert await replica.ask("detokenize", [[104, 105]]) == ("end", text)


async def test_one_with_its_own_fingerprint_goes_on(replica: Replica) -> None:
    own = replica.record_replica_metadata()["fingerprint"]
    told = await messages(replica, {"output": [105], "max_tokens": 3}, fingerprint=own)
    assert told[-1][0] == "end"


async def test_closing_the_generator_cancels(replica: Replica, batcher: Batcher) -> None:
    answers = replica.stream("generate", [PROMPT, {"max_tokens": 1500, "ignore_eos": True}])
    await anext(answers)
    await anext(answers)
    assert replica.record_routing_stats()["ongoing"] == 1
    await answers.aclose()
    await until(lambda: batcher.statistics().cancelled == 1)
    assert replica.record_routing_stats()["ongoing"] == 0


async def test_blocks_of_the_prompt_are_held_at_once_and_the_outputs_at_the_end(
    replica: Replica,
) -> None:
    hashes = prefix_hashes(PROMPT, None, 100)
    answers = replica.stream(
        "generate", [PROMPT, {"max_tokens": 40, "ignore_eos": True}], prefix=hashes.tobytes()
    )
    await anext(answers)
    assert array("Q", replica.record_routing_stats()["held"]) == hashes
    told = [message async for several in answers for message in several]
    whole = prefix_hashes([*PROMPT, *told[-1][1]["token_ids"]], None, 100)
    assert len(whole) == len(hashes) + 1
    assert array("Q", replica.record_routing_stats()["held"]) == whole


async def test_the_load_is_told(replica: Replica, batcher: Batcher) -> None:
    assert replica.record_autoscaling_stats() == {"queued_tokens": 0.0, "busy": 0.0}
    streams = [batcher.stream(PROMPT, max_tokens=200, ignore_eos=True) for _ in range(2)]
    for stream in streams:
        await anext(stream)
    assert replica.record_autoscaling_stats() == {"queued_tokens": 0.0, "busy": 0.5}
    for stream in streams:
        stream.close()


async def test_the_health_is_that_of_the_batcher(replica: Replica, batcher: Batcher) -> None:
    replica.check_health()
    await batcher.close()
    with pytest.raises(EngineFailedError, match="closed"):
        replica.check_health()
