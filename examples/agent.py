"""An agent: a loop with two tools. The model chooses what to call; the program calls it.

    python examples/agent.py [MODEL] [QUESTION]

Without a model it is the one that ships with pybatcher, which knows little.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from pybatcher import Batcher, ToolCall

MOST_ROUNDS = 5


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return "rain" if len(city) % 2 else "sun"


TOOLS: dict[str, Callable[..., Any]] = {"add": add, "weather": weather}


def run(call: ToolCall) -> str:
    """Call a tool. What goes wrong is told to the model, which may try again."""
    try:
        return str(TOOLS[call.name](**call.arguments))
    except Exception as error:
        return f"error: {error}"


async def ask(batcher: Batcher, question: str) -> str:
    """Return the model's answer, after all calls that it wants."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(MOST_ROUNDS):
        answer = await batcher.chat(messages, tools=list(TOOLS.values()), max_tokens=200)
        messages.append(answer.message)
        if answer.finish_reason != "tool_calls":
            return answer.text
        for call in answer.tool_calls:
            result = run(call)
            print(f"{call.name}({call.arguments}) -> {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "no answer"


async def main(model: str | None = None, question: str = "What is 3 plus 4?") -> None:
    """Answer one question."""
    async with Batcher(model) as batcher:
        print(await ask(batcher, question))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
