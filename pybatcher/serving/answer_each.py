"""`answer_each`: runs any number of requests of one caller, a limited number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..calls.reply import Reply
from ..calls.scores import Answer
from ..scheduling import Request

__all__ = ["answer_each"]

T = TypeVar("T")

_AT_ONCE = 32
"""The most requests that are sent, and results that are made, in one turn of the loop."""

_WINDOW = 1024
"""The most requests in flight: more than any step holds, and few compared to a queue's limit."""


async def answer_each(
    request: Callable[[int], Awaitable[Request]],
    n_requests: int,
    *,
    send: Callable[[int, Request, Reply], None],
    cancel: Callable[[int], None],
    result: Callable[[Request, Answer], T],
    most_requests: int,
    most_tokens: int,
) -> list[T]:
    """Return `result(request, answer)` of each of n requests, in their order.

    request: makes request i; awaited in the order of the requests, each when it is sent.
    send: submits request i; its answer goes to the reply, as that of index i.
    cancel: cancels request i.
    most_requests, most_tokens: limits of the requests in flight; one request is always allowed,
        whatever its length, so any number of requests passes through a queue of any size.

    The first error, or the cancellation of the caller, cancels all requests in flight.
    """
    reply = Reply(n=n_requests)
    window = max(1, min(_WINDOW, most_requests))
    in_flight: dict[int, Request] = {}
    results: dict[int, T] = {}
    n_made = n_tokens = 0
    next_request: Request | None = None
    try:
        while len(results) < n_requests:
            together: list[tuple[int, Request]] = []
            while n_made < n_requests and len(together) < _AT_ONCE:
                if next_request is None:
                    next_request = await request(n_made)
                    # tokenising many short texts takes as long as tokenising a long one
                    await asyncio.sleep(0)
                length = len(next_request.prompt)
                n_open = len(in_flight) + len(together)
                if n_open and (n_open >= window or n_tokens + length > most_tokens):
                    break
                together.append((n_made, next_request))
                n_tokens += length
                n_made, next_request = n_made + 1, None
            for i, own in together:
                in_flight[i] = own
                send(i, own, reply)
            if not together or reply.failed:
                await reply.wait_for_result()
            for n_taken, (i, answer) in enumerate(reply.take_answers(), start=1):
                own = in_flight.pop(i)
                n_tokens -= len(own.prompt)
                results[i] = result(own, answer)
                if n_taken % _AT_ONCE == 0:
                    await asyncio.sleep(0)
    except BaseException:
        for i in in_flight:
            cancel(i)
        raise
    return [results[i] for i in range(n_requests)]
