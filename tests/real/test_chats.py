"""A chat, a value by a schema and a tool call of SmolLM2, greedy, in the formats of its file."""

from __future__ import annotations

import pytest

from pybatcher import Batcher
from tests.real.conftest import FOLDER
from tests.real.download import SMOLLM2

pytestmark = pytest.mark.filterwarnings("ignore:.*matrices are rounded:UserWarning")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


def get_weather(city: str) -> str:
    """Return the weather in a city."""
    return f"sunny in {city}"


@pytest.mark.parametrize("dtype", ["auto", "f32", "bf16", "int8"])
async def test_a_chat_ends_with_a_sensible_answer(dtype: str) -> None:
    question = {"role": "user", "content": "What is the capital of France? Answer in English."}
    async with Batcher(FOLDER / SMOLLM2, dtype=dtype) as batcher:
        answer = await batcher.chat([question], max_tokens=40, temperature=0)
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"


async def test_values_and_calls_have_what_the_messages_say() -> None:
    async with Batcher(FOLDER / SMOLLM2) as batcher:
        text = "Anna is 34 years old and lives in Oslo. Write the person as JSON."
        answer = await batcher.chat(
            [{"role": "user", "content": text}], json_schema=PERSON, max_tokens=60, temperature=0
        )
        assert answer.parsed == {"name": "Anna", "age": 34, "city": "Oslo"}

        # The model's template has no place for tools: the grammar alone knows them.
        question = {"role": "user", "content": "What is the weather in Paris?"}
        asked = await batcher.chat(
            [question],
            tools=[get_weather],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=60,
            temperature=0,
        )
        (call,) = asked.tool_calls
        assert asked.finish_reason == "tool_calls"
        assert (call.name, call.arguments) == ("get_weather", {"city": "Paris"})
