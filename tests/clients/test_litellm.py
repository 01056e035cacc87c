"""litellm against `pybatcher serve`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from client_programs import Server, run_python, unit

from pybatcher import Batcher, SamplingParams


@pytest.fixture(scope="module")
def said(shipped: Server, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("litellm")
    return run_python("ask_litellm.py", shipped, folder, LITELLM_LOCAL_MODEL_COST_MAP="True")


async def test_every_api_says_what_the_batcher_says(said: Any, batcher: Batcher) -> None:
    options: Any = {"temperature": 1.0, "seed": 7, "max_tokens": 24}
    messages = [{"role": "user", "content": "Once upon a time"}]
    made = await batcher.chat(messages, SamplingParams.for_chat(seed=7, max_tokens=24))
    assert said["whole"] == said["streamed"] == made.text
    assert said["of_vllm"] == said["response"] == made.text
    assert said["usage"] == [made.usage.prompt_tokens, made.usage.completion_tokens]
    assert said["finish_reason"] == made.finish_reason
    likeliest = await batcher.chat(messages, temperature=0, max_tokens=24)
    assert said["of_anthropic"] == likeliest.text
    assert said["text"] == (await batcher.generate("Once upon a time", **options)).text


async def test_vectors_are_those_of_the_batcher(said: Any, batcher: Batcher) -> None:
    made = await batcher.embed(["an owl", "a river"])
    assert said["vectors"] == [unit(one.vector) for one in made]


def test_tools_are_called_and_errors_have_their_class(said: Any) -> None:
    (call,) = said["calls"]
    assert call["name"] == "sum"
    assert json.loads(call["arguments"]) in ({"a": 3}, {"a": 5})
    assert "another" in said["refused"]
