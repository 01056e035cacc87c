"""`answer_each`: any number of requests through a window; whatever ends it, all are given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from batcher_helpers import until

from pybatcher import EngineError, InvalidRequestError
from pybatcher.calls.reply import Reply
from pybatcher.calls.scores import Answer
from pybatcher.scheduling import Request
from pybatcher.serving.answer_each import answer_each


class Queue:
    """Where requests are sent: notes who is in it, and answers when a test says so.

    lengths: tokens of each request's prompt.
    """

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.in_flight: dict[int, Request] = {}
        self.n_made = 0
        self.cancelled: list[int] = []
        self.most_requests = self.most_tokens = 0
        self.before_send: Callable[[int], object] = lambda i: None
        self.before_request: Callable[[int], object] = lambda i: None
        self.reply = Reply()

    async def request(self, i: int) -> Request:
        assert i == self.n_made
        self.before_request(i)
        self.n_made += 1
        return Request(request_id=i, prompt=(7,) * self.lengths[i])

    def send(self, i: int, request: Request, reply: Reply) -> None:
        self.before_send(i)
        self.reply = reply
        self.in_flight[i] = request
        n_tokens = sum(len(one.prompt) for one in self.in_flight.values())
        self.most_requests = max(self.most_requests, len(self.in_flight))
        if len(self.in_flight) > 1:
            self.most_tokens = max(self.most_tokens, n_tokens)

    def answer(self, i: int) -> None:
        request = self.in_flight.pop(i)
        answer = Answer((-1.0,), None, cached_tokens=len(request.prompt))
        self.reply.finish(answer, i)

    def ask(self, most_requests: int = 10_000, most_tokens: int = 10**6) -> asyncio.Task[list[int]]:
        return asyncio.create_task(
            answer_each(
                self.request,
                len(self.lengths),
                send=self.send,
                cancel=self.cancelled.append,
                result=lambda request, answer: 100 * request.request_id + answer.cached_tokens,
                most_requests=most_requests,
                most_tokens=most_tokens,
            )
        )

    async def answer_all(self, task: asyncio.Task[list[int]]) -> list[int]:
        """Answer the latest that is in flight, again and again."""
        async with asyncio.timeout(30):
            while not task.done():
                if self.in_flight:
                    self.answer(max(self.in_flight))
                await asyncio.sleep(0)
        return task.result()

    @property
    def results(self) -> list[int]:
        return [100 * i + length for i, length in enumerate(self.lengths)]


@pytest.mark.parametrize("window", [1, 7, 10_000])
async def test_any_number_in_their_order_and_never_more_than_the_window(window: int) -> None:
    queue = Queue([1, 2, 3] * 100)
    assert await queue.answer_all(queue.ask(most_requests=window)) == queue.results
    assert queue.most_requests <= window
    assert queue.cancelled == []


async def test_the_window_is_filled() -> None:
    queue = Queue([1] * 50)
    task = queue.ask(most_requests=40)
    await until(lambda: len(queue.in_flight) == 40)
    queue.answer(5)
    await until(lambda: sorted(queue.in_flight) == [i for i in range(41) if i != 5])
    assert await queue.answer_all(task) == queue.results
    assert queue.most_requests == 40


async def test_never_more_than_a_thousand_and_some_however_long_the_queue() -> None:
    queue = Queue([1] * 1100)
    task = queue.ask()
    await until(lambda: len(queue.in_flight) == 1024)
    assert await queue.answer_all(task) == queue.results
    assert queue.most_requests == 1024


async def test_tokens_are_limited_but_of_one_request() -> None:
    queue = Queue([3, 4, 5, 50, 1, 12, 2, 2, 2] * 20)
    assert await queue.answer_all(queue.ask(most_tokens=12)) == queue.results
    assert queue.most_tokens == 12


async def test_tokens_that_were_answered_make_room() -> None:
    queue = Queue([4] * 20)
    task = queue.ask(most_tokens=13)
    await until(lambda: sorted(queue.in_flight) == [0, 1, 2])
    queue.answer(1)
    await until(lambda: sorted(queue.in_flight) == [0, 2, 3])
    assert await queue.answer_all(task) == queue.results


async def test_the_first_error_is_raised_and_all_in_flight_are_given_back() -> None:
    queue, error = Queue([1] * 20), EngineError("it is not finite")
    task = queue.ask(most_requests=8)
    await until(lambda: len(queue.in_flight) == 8)
    queue.answer(3)
    await until(lambda: 8 in queue.in_flight)
    queue.reply.fail(error)
    queue.reply.fail(EngineError("a later one"))
    with pytest.raises(EngineError) as raised:
        await task
    assert raised.value is error
    assert sorted(queue.cancelled) == [0, 1, 2, 4, 5, 6, 7, 8]


async def test_cancelled_it_gives_all_back() -> None:
    queue = Queue([1] * 20)
    task = queue.ask(most_requests=8)
    await until(lambda: len(queue.in_flight) == 8)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(queue.cancelled) == list(range(8))


@pytest.mark.parametrize("where", ["request", "send"])
async def test_one_that_is_none_ends_all(where: str) -> None:
    def refuse(i: int) -> None:
        if i == 5:
            raise InvalidRequestError("texts[5] is ''")

    queue = Queue([1] * 20)
    if where == "send":
        queue.before_send = refuse
    else:
        queue.before_request = refuse
    with pytest.raises(InvalidRequestError, match=r"texts\[5\]"):
        await queue.answer_all(queue.ask(most_requests=4))
    assert set(queue.cancelled) >= set(queue.in_flight)
    assert 6 not in queue.in_flight


async def test_the_loop_goes_on_while_requests_are_made() -> None:
    queue, seen = Queue([1] * 200), [0]
    task = queue.ask()
    while seen[-1] < 200:
        await asyncio.sleep(0)
        seen.append(queue.n_made)
    assert max(later - sooner for sooner, later in pairwise(seen)) <= 2
    assert await queue.answer_all(task) == queue.results


async def test_none_of_none() -> None:
    assert await Queue([]).ask() == []
