"""`RoutedService`: a `CallService` whose calls are served by replicas, which may die."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from typing_extensions import override

from ..calls.arguments import check_timeout, merge_params
from ..calls.call import Call, CallOptions, Question
from ..calls.lifecycle import RunningService
from ..calls.questions import AddPrefix, ReadHealth, ReadStatistics, RemovePrefix, Tokenize
from ..calls.reply import Reply
from ..calls.telemetry import Handler, Telemetry
from ..errors import BatcherClosedError, DeadlineExceededError, InvalidRequestError
from ..sidecar.protocol.codecs import Codec, codec_of
from ..sidecar.protocol.wire_calls import read_content
from ..sidecar.protocol.wire_images import PackedImage, has_images, pack_images
from ..sidecar.replay.journal import PendingGeneration
from ..sidecar.replay.remote_service import plain_fields
from .merged_answers import answer_of, merged
from .prefix_hashes import prefix_hashes
from .replicas import (
    FULL,
    MOST_DEATHS,
    Message,
    Params,
    ReplicaLostError,
    Replicas,
    given_up,
    with_images,
)
from .retry_queue import RetryQueue
from .routed_output import RoutedOutput

__all__ = ["RoutedService"]

T = TypeVar("T")

_LOGGER = logging.getLogger("pybatcher")
_ANY_TOKEN = 2**63  # only the replicas know the size of the vocabulary
_MOST_BLOCKS = 4096  # blocks of a prompt that are hashed for its routing
_OF_ALL = (AddPrefix, ReadHealth, ReadStatistics, RemovePrefix)


class RoutedService(RunningService):
    """Sends calls and questions of its own loop to replicas. Constructed on that loop.

    telemetry: gets an event at the end of each request, with times of this process's clock.
    """

    def __init__(self, replicas: Replicas, telemetry: Telemetry) -> None:
        self._loop = asyncio.get_running_loop()
        self._replicas = replicas
        self._room = RetryQueue()
        self._telemetry = telemetry
        self._clock = time.monotonic
        self._last_number = 0
        self._outputs: dict[int, tuple[RoutedOutput, asyncio.Task[None]]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closing = False

    # -- calls ------------------------------------------------------------------------------

    @override
    async def submit(self, call: Call, reply: Reply) -> range:
        self._check_open()
        now = self._clock()
        timeout = check_timeout(call.timeout)
        deadline = None if timeout is None else now + timeout
        params = merge_params(call.params, call.sampling, vocab_size=_ANY_TOKEN)
        images: tuple[PackedImage, ...] = ()
        known: Sequence[int]
        if call.chat is not None and has_images(call.content):
            # Ids of images are those of one replica, so that each renders the chat again.
            content, images = await asyncio.to_thread(pack_images, call.content)
            known = _characters(content)
            call = replace(call, content=read_content(content, True))
        else:
            # A template may read the clock, so a chat is rendered once; the router also needs its
            # tokens.
            tokens = await self._tokens_of(call, timeout)
            call = replace(call, content=tokens)
            known = [*tokens, *(int(token) for token in call.output)]
        prefix = prefix_hashes(known, call.namespace, _MOST_BLOCKS).tobytes()
        self._check_open()
        ids = range(self._last_number + 1, self._last_number + 1 + params.n)
        self._last_number += params.n
        reply.expect(params.n)
        for entry in PendingGeneration.of_samples(
            call, params, reply, ids, submitted=now, deadline=deadline, images=images
        ):
            self._start(entry, prefix)
        return ids

    @override
    def cancel(self, request_ids: range) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel, request_ids)

    @override
    async def ask(self, question: Question[T]) -> T:
        self._check_open()
        question = plain_fields(question)
        images: tuple[PackedImage, ...] = ()
        if isinstance(question, Tokenize) and question.chat and has_images(question.content):
            content, images = await asyncio.to_thread(pack_images, question.content)
            packed: Any = replace(question, content=content)
            question = packed
        codec = codec_of(question)
        params = codec.write(_named(question))
        answer: T
        if isinstance(question, _OF_ALL):
            messages = await self._replicas.ask_all(codec.method, params)
            answer = merged(question, codec, messages)
            return answer
        for _ in range(MOST_DEATHS):
            try:
                message = await self._answer(codec, with_images(params, images))
            except ReplicaLostError as error:
                _LOGGER.warning("a replica was lost with a question: %s", error)
            else:
                answer = answer_of(codec, message)
                return answer
        raise given_up("this question")

    @override
    def attach(self, handler: Handler) -> Callable[[], None]:
        return self._telemetry.attach(handler)

    # -- the end ----------------------------------------------------------------------------

    @override
    async def close(self, drain: bool, timeout: float | None) -> None:
        self._is_closing = True
        if drain and self._outputs:
            waiting = asyncio.ensure_future(self._idle.wait())
            await asyncio.wait({waiting}, timeout=timeout)
            waiting.cancel()
        self._end()
        tasks = [task for _, task in self._outputs.values()]
        await asyncio.gather(*tasks, return_exceptions=True)

    @override
    def abandon(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._is_closing = True
        for output, task in self._outputs.values():
            output.close()
            task.cancel()

    # -- inside -----------------------------------------------------------------------------

    async def _answer(self, codec: Codec[Any], params: Params) -> Message:
        """Ask a replica; if the model computes the answer, one that has room."""
        if not issubclass(codec.question, CallOptions):
            return await self._replicas.ask(codec.method, params)
        try:
            await self._room.enter()
            while (message := await self._replicas.ask(codec.method, params))[0] == FULL[0]:
                await self._room.refused()
        finally:
            self._room.try_next()
        return message

    def _check_open(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidRequestError(
                "the batcher was started in another event loop; call it there, or start one in "
                "each loop"
            )
        if self._is_closing:
            raise BatcherClosedError("the batcher of replicas is closed; make another")

    async def _tokens_of(self, call: Call, timeout: float | None) -> tuple[int, ...]:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                return await self.ask(Tokenize(content=call.content, chat=call.chat))
        except TimeoutError:
            why = "the time was over before the prompt could be read; raise timeout"
            raise DeadlineExceededError(why) from None

    def _start(self, entry: PendingGeneration, prefix: bytes) -> None:
        output = RoutedOutput(
            entry, prefix, self._replicas, self._room, self._telemetry, self._clock
        )
        task = self._loop.create_task(output.run(), name="pybatcher-routed")
        self._outputs[entry.number] = output, task
        self._idle.clear()
        task.add_done_callback(lambda _: self._forget(entry))

    def _forget(self, entry: PendingGeneration) -> None:
        self._outputs.pop(entry.number, None)
        if entry.reply.failed:  # the other samples of the reply have no reader
            self._cancel(entry.siblings)
        if not self._outputs:
            self._idle.set()

    def _cancel(self, numbers: range) -> None:
        for number in numbers:
            if (found := self._outputs.get(number)) is not None:
                found[1].cancel()


def _characters(messages: list[Any]) -> Sequence[int]:
    """Return numbers for the router that begin alike for chats that begin alike.

    messages: refer to images by digest. Each number stands for four bytes of their JSON, about as
    much text as a token has.
    """
    text = json.dumps(messages, default=repr).encode().rstrip(b"]")
    return [int.from_bytes(text[i : i + 4], "little") for i in range(0, len(text), 4)]


def _named(question: Question[Any]) -> Question[Any]:
    """Return a question in which a prefix has a name; each replica would generate another."""
    if isinstance(question, AddPrefix) and question.name is None:
        return replace(question, name=f"prefix-{secrets.token_hex(6)}")
    return question
