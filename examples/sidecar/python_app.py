"""An asyncio app whose model is in another process, shared with whoever else asks there.

pybatcher serve                                   once on this machine
python examples/sidecar/python_app.py [SOCKET]    as many as you like
"""

from __future__ import annotations

import asyncio
import sys

import pybatcher

STORY = "Once upon a time"
QUESTIONS = ["What is 2 plus 3?", "What is the capital of France?", "Tell me about a fox."]


async def tell(client: pybatcher.Client) -> None:
    """A stream, printed as it comes."""
    async with client.stream(STORY, max_tokens=24) as pieces:
        async for piece in pieces:
            print(piece.text, end="", flush=True)
    print()


async def ask(client: pybatcher.Client, question: str) -> str:
    """One of many callers. Asked again where the sidecar is too busy, or nobody serves there."""
    while True:
        try:
            messages = [{"role": "user", "content": question}]
            return str(await client.chat(messages, max_tokens=32))
        except pybatcher.QueueFullError as error:
            await asyncio.sleep(error.retry_after)


async def lose_interest(client: pybatcher.Client) -> None:
    """Leaving `async with` cancels what is not finished, also at the other end."""
    async with client.stream(STORY, max_tokens=1000, ignore_eos=True) as pieces:
        async for _ in pieces:
            break


async def main(path: str | None) -> None:
    """All of it, over one connection."""
    async with pybatcher.Client(path) as client:
        await tell(client)
        answers = await asyncio.gather(*(ask(client, question) for question in QUESTIONS))
        for question, answer in zip(QUESTIONS, answers, strict=True):
            print(f"{question} {answer.strip()}")
        await lose_interest(client)
        counts = await client.statistics()
        print(f"== {client.model_name} has completed {counts.completed}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or [None]))
