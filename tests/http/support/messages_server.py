"""Anthropic's Messages API of a batcher, behind a real server: what tests ask it for, and how."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import httpx
from http_served import served

from pybatcher import Batcher
from pybatcher.http import application

__all__ = ["HI", "WEATHER", "MessagesServer", "ask", "messages_server", "sdk"]

KEY = "a-key"
DRAWS = ("temperature", "top_k", "top_p", "seed")
HI = [{"role": "user", "content": "What is the weather in Rome?"}]
WEATHER = {
    "name": "weather",
    "description": "Tell the weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


class MessagesServer(NamedTuple):
    """client: Anthropic's own. plain: one that can send anything. Both have the key."""

    batcher: Batcher
    url: str
    client: Any
    plain: httpx.AsyncClient


@asynccontextmanager
async def messages_server(model: Path) -> AsyncIterator[MessagesServer]:
    """Serve a model, as "m"."""
    headers = {"authorization": f"Bearer {KEY}"}
    async with (
        Batcher(model, n_threads=1, n_parallel=4) as batcher,
        served(application({"m": batcher}, api_keys=[KEY])) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as client,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as plain,
    ):
        yield MessagesServer(batcher, url, client, plain)


def ask(**more: Any) -> dict[str, Any]:
    """Return a body."""
    return {"model": "m", "max_tokens": 60, "temperature": 0, "messages": HI, **more}


def sdk(**more: Any) -> dict[str, Any]:
    """Return a body as the SDK takes it, which has no keywords for how to draw."""
    body = ask(**more)
    own = {name: body.pop(name) for name in DRAWS if name in body}
    return {**body, "extra_body": own}
