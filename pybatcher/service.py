"""`Service`: what a batcher is between start and close. From a call to a message, on the loop."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from .arguments import check_namespace, check_timeout, merge_params
from .config import SchedulerConfig
from .coordinator import Coordinator
from .errors import BatcherClosedError, ConfigError, InvalidRequestError
from .mailbox import Cancel, Close, SharePrefix, Submit
from .params import SamplingParams
from .prompts import Messages, Prompt, PromptReader
from .runtime import Runtime
from .scheduling import Request
from .statistics import BatcherStatistics, Health
from .stream import Reply
from .system_prompt import SHARED_PREFIXES, SystemPrompt
from .telemetry import Telemetry

__all__ = ["Call", "Service"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a caller asked for, not checked yet: a prompt, or messages if it `is_chat`."""

    content: Prompt | Messages
    is_chat: bool = False
    params: SamplingParams | None
    timeout: float | None
    namespace: str | None
    sampling: Mapping[str, Any]


class Service:
    """A running coordinator, and the way to it from calls of its own loop and process.

    Made on the event loop it is to run on. Raises ConfigError for a system
    prompt that there is no room for.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: SchedulerConfig,
        system_prompt: str | None,
        clock: Callable[[], float],
        telemetry: Telemetry,
    ) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._runtime = runtime
        self._clock = clock
        self._vocab_size = runtime.engine.vocab_size
        self._request_ids = count(1)
        self._prompts = PromptReader(
            runtime.tokenizer, runtime.chat_template, vocab_size=self._vocab_size
        )
        self._system_prompt: SystemPrompt | None = None
        self._first_chat = asyncio.Lock()
        self._chats_share_beginning = False
        self._coordinator = Coordinator(
            runtime.engine,
            runtime.tokenizer,
            config,
            reserved_sequences=0 if system_prompt is None else SHARED_PREFIXES,
            clock=clock,
            telemetry=telemetry,
        )
        if system_prompt is not None:
            try:
                self._system_prompt = SystemPrompt(
                    system_prompt, self._prompts, runtime.chat_template
                )
                self._coordinator.share_prefix(self._system_prompt.tokens)
            except InvalidRequestError as error:
                raise ConfigError(f"system_prompt: {error}") from error
        self._task = self._loop.create_task(self._coordinator.run(), name="pybatcher-coordinator")

    @property
    def runtime(self) -> Runtime:
        """Engine, tokenizer and chat template."""
        return self._runtime

    async def submit(self, call: Call, reply: Reply) -> int:
        """Check a call and send it; the id of the request. What comes of it goes to `reply`.

        Nothing is sent if it raises, or is cancelled on the way.
        """
        self.check_home()
        self._coordinator.check_open()
        submitted = self._clock()
        params = merge_params(call.params, call.sampling, vocab_size=self._vocab_size)
        timeout = check_timeout(call.timeout)
        namespace = check_namespace(call.namespace)
        prompt = await self._tokens(call)
        request = Request(
            request_id=next(self._request_ids),
            prompt=prompt,
            params=params,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            end_token_ids=self._end_token_ids(params),
            namespace=namespace,
            deadline=None if timeout is None else submitted + timeout,
        )
        self._coordinator.check_open()
        self._coordinator.mailbox.put(Submit(request, reply, submitted))
        return request.request_id

    def cancel(self, request_id: int) -> None:
        """Nobody waits for it any more. From any thread; never waits."""
        self._coordinator.mailbox.put_threadsafe(Cancel(request_id))

    async def close(self, drain: bool, patience: float | None) -> None:
        """See `Batcher.close`."""
        self.check_home()
        mailbox = self._coordinator.mailbox
        mailbox.put(Close(drain))
        _, unfinished = await asyncio.wait({self._task}, timeout=patience if drain else None)
        if unfinished:
            mailbox.put(Close(drain=False))
            await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()

    def abandon(self) -> None:
        """See `Coordinator.abandon`."""
        self._coordinator.abandon()

    def statistics(self) -> BatcherStatistics:
        """See `BatcherStatistics`."""
        return self._coordinator.statistics()

    def health(self) -> Health:
        """See `Health`."""
        return self._coordinator.health()

    def check_home(self) -> None:
        """Raise where this is not the process or not the loop that the batcher was started in."""
        if os.getpid() != self._pid:
            raise BatcherClosedError(
                f"the batcher runs in process {self._pid} and this is a fork of it, without its "
                "threads; make a batcher in each process, after the fork"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidRequestError(
                "the batcher was started in another event loop; call it there "
                "(asyncio.run_coroutine_threadsafe), or use a BlockingBatcher"
            )

    def _end_token_ids(self, params: SamplingParams) -> frozenset[int]:
        """What ends an output: the model's own end tokens, those it can draw, and the caller's."""
        asked = frozenset(params.stop_token_ids)
        own = () if params.ignore_eos else self._runtime.tokenizer.eos_token_ids
        return asked.union(token for token in own if token < self._vocab_size)

    async def _tokens(self, call: Call) -> tuple[int, ...]:
        system_prompt = self._system_prompt
        if call.is_chat:
            messages: object = call.content
            if system_prompt is not None:
                messages = system_prompt.before_messages(messages)
                await self._share_beginning_of_chats(system_prompt)
            return await self._prompts.read_chat(messages)
        before = () if system_prompt is None else system_prompt.tokens
        return await self._prompts.read(call.content, before=before)

    async def _share_beginning_of_chats(self, system_prompt: SystemPrompt) -> None:
        """Once, at the first chat; the others wait until it is known what they share."""
        async with self._first_chat:
            if not self._chats_share_beginning:
                tokens = await asyncio.to_thread(system_prompt.chat_tokens)
                self._coordinator.mailbox.put(SharePrefix(tokens))
                self._chats_share_beginning = True
