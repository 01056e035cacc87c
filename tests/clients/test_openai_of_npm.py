"""The package openai of npm against `pybatcher serve`."""

from __future__ import annotations

from typing import Any

import pytest
from client_programs import Server, run_node, unit

from pybatcher import Batcher, SamplingParams


@pytest.fixture(scope="module")
def said(shipped: Server, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_node("ask_openai.mjs", shipped, tmp_path_factory.mktemp("openai"))


async def test_it_says_what_the_batcher_says(said: Any, batcher: Batcher) -> None:
    messages = [{"role": "user", "content": "Once upon a time"}]
    made = await batcher.chat(messages, SamplingParams.for_chat(seed=7, max_tokens=24))
    assert said["whole"] == said["streamed"] == said["helper"] == said["response"] == made.text
    assert said["usage"] == [made.usage.prompt_tokens, made.usage.completion_tokens]
    vectors = await batcher.embed(["an owl", "a river"])
    assert said["vectors"] == [unit(one.vector) for one in vectors]


def test_its_tools_run(said: Any) -> None:
    assert said["rivers"]
    assert set(said["rivers"]) <= {"Ouse", "Cam"}
    assert said["models"] == ["shipped"]
