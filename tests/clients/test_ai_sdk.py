"""Vercel's AI SDK and Anthropic's package of npm against `pybatcher serve`."""

from __future__ import annotations

from typing import Any

import pytest
from client_programs import Server, run_node, unit

from pybatcher import Batcher

MESSAGES = [{"role": "user", "content": "Once upon a time"}]


@pytest.fixture(scope="module")
def said(shipped: Server, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_node("ask_ai_sdk.mjs", shipped, tmp_path_factory.mktemp("ai"))


async def test_it_says_what_the_batcher_says(said: Any, batcher: Batcher) -> None:
    sampled = await batcher.chat(MESSAGES, temperature=1.0, seed=7, max_tokens=24)
    likeliest = await batcher.chat(MESSAGES, temperature=0, max_tokens=24)
    for api, made in (("openai", sampled), ("anthropic", likeliest)):
        assert said[api]["whole"] == said[api]["streamed"] == made.text
        assert said[api]["usage"] == [made.usage.prompt_tokens, made.usage.completion_tokens]
    assert said["sdk"]["whole"] == said["sdk"]["streamed"] == likeliest.text
    assert said["sdk"]["counted"] == likeliest.usage.prompt_tokens
    vectors = await batcher.embed(["an owl", "a river"])
    assert said["vectors"] == [unit(one.vector) for one in vectors]


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_outputs_have_their_types(said: Any, api: str) -> None:
    assert said[api]["kind"] in ("barn owl", "tawny owl")
    assert said[api]["rivers"]
    assert set(said[api]["rivers"]) <= {"Ouse", "Cam"}
