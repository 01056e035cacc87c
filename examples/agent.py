"""An agent with two tools. The model chooses the calls, and `act` runs them until it answers.

    python examples/agent.py [MODEL] [QUESTION]

Without a model it is the one that ships with pybatcher, which knows little.
"""

from __future__ import annotations

import asyncio
import sys

from pybatcher import Batcher


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return "rain" if len(city) % 2 else "sun"


async def ask(batcher: Batcher, question: str) -> str:
    """Return the model's answer, after all calls that it wants."""
    asked = [{"role": "user", "content": question}]
    answer, messages = await batcher.act(asked, [add, weather], max_turns=5, max_tokens=200)
    for message in messages[1:]:
        for call in message.get("tool_calls", ()):
            print("calls", call["function"])
        if message["role"] == "tool":
            print("result", message["content"])
    return answer.text


async def main(model: str | None = None, question: str = "What is 3 plus 4?") -> None:
    """Answer one question."""
    async with Batcher(model) as batcher:
        print(await ask(batcher, question))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
