"""langchain-openai against `pybatcher serve`."""

from __future__ import annotations

from typing import Any

import pytest
from client_programs import Server, run_python, unit

from pybatcher import Batcher, SamplingParams


@pytest.fixture(scope="module")
def said(shipped: Server, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_python("ask_langchain.py", shipped, tmp_path_factory.mktemp("langchain"))


async def test_every_api_says_what_the_batcher_says(said: Any, batcher: Batcher) -> None:
    options: Any = {"temperature": 1.0, "seed": 7, "max_tokens": 24}
    messages = [{"role": "user", "content": "Once upon a time"}]
    made = await batcher.chat(messages, SamplingParams.for_chat(seed=7, max_tokens=24))
    assert said["whole"] == said["streamed"] == made.text
    assert said["responses"] == said["responses_streamed"] == made.text
    assert said["batch"] == [made.text] * 4
    assert said["usage"] == [made.usage.prompt_tokens, made.usage.completion_tokens]
    assert said["text"] == (await batcher.generate("Once upon a time", **options)).text


async def test_vectors_are_those_of_the_batcher(said: Any, batcher: Batcher) -> None:
    made = await batcher.embed(["an owl", "a river"])
    assert said["vectors"] == [unit(one.vector) for one in made]
    assert said["vector"] == said["vectors"][0]


def test_outputs_have_their_types(said: Any) -> None:
    assert set(said["forms"]) == {"json_schema", "function_calling"}
    for owl in said["forms"].values():
        assert owl["kind"] in ("barn owl", "tawny owl")
        assert isinstance(owl["is_awake"], bool)
    assert said["calls"]
    for name, arguments in said["calls"]:
        assert name == "count"
        assert arguments in ({"river": "Ouse"}, {"river": "Cam"})
