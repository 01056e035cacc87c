"""The end of `pybatcher demo`: structured outputs and function calls instead of prose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from rich.text import Text

from ..batcher import Batcher
from ..errors import PybatcherError
from ..errors.distribution import install_extra

__all__ = ["values_shown"]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer"},
        "colour": {"type": "string"},
    },
    "required": ["name", "count", "colour"],
    "additionalProperties": False,
}
SENTENCES = ("Mia has 3 red apples.", "Sam lives in Paris and has 5 green pears.")
QUESTIONS = ("What is 12 plus 30?", "What is the weather in Oslo?")


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def weather(city: str) -> str:
    """Tells the weather in a city."""
    return "sunny" if len(city) % 2 == 0 else "rainy"


TOOLS: dict[str, Callable[..., object]] = {"add": add, "weather": weather}


async def values_shown(batcher: Batcher) -> list[Text]:
    """Return the lines to show: objects that follow a schema, and functions that the model called.

    No lines for a model without chats, or whose template refuses tools.
    """
    try:
        lines = [*_heading("Objects, by a JSON schema:"), *await _objects(batcher)]
        return [*lines, *_heading("Functions, called by the model:"), *await _calls(batcher)]
    except PybatcherError:
        return []


def _heading(text: str) -> Iterator[Text]:
    yield Text(f"\n{text}", style="bold")


async def _objects(batcher: Batcher) -> list[Text]:
    if find_spec("llguidance") is None:
        return [Text("    for these: " + install_extra("structured"))]
    lines = []
    for sentence in SENTENCES:
        asked = [{"role": "user", "content": f"{sentence} Write it as JSON."}]
        completion = await batcher.chat(asked, json_schema=SCHEMA, max_tokens=64)
        lines.append(Text(f"    {sentence:42} {completion.parsed}"))
    return lines


async def _calls(batcher: Batcher) -> list[Text]:
    lines = []
    for question in QUESTIONS:
        messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
        tools = list(TOOLS.values())
        completion = await batcher.chat(messages, tools=tools, max_tokens=64)
        called = ""
        if completion.tool_calls:
            messages.append(dict(completion.message))
            for call in completion.tool_calls:
                result = _result(call.name, call.arguments)
                given = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
                called += f"{call.name}({given}) = {result}  "
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            completion = await batcher.chat(messages, tools=tools, max_tokens=64)
        lines.append(Text(f"    {question:30} {called:34} {completion.text.strip()}"))
    return lines


def _result(name: str, arguments: Any) -> str:
    """Call a function; the model's mistakes become its result."""
    try:
        return str(TOOLS[name](**arguments))
    except (KeyError, TypeError) as error:
        return f"error: {error}"
