"""`Service`: what a batcher is between start and close. From a call to a message, on the loop."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..calls.arguments import (
    check_namespace,
    check_pooling,
    check_priority,
    check_several,
    check_timeout,
    merge_params,
)
from ..calls.call import Call, CallOptions, CallService
from ..calls.inquiry import Answer, Embedding, Inquiry, Score
from ..calls.prefix_info import PrefixInfo, check_prefix_name
from ..calls.samples import Samples, sample_seed
from ..calls.statistics import BatcherStatistics, Health
from ..calls.stream import Reply
from ..calls.telemetry import Telemetry
from ..config import SchedulerConfig, SupervisionConfig
from ..errors import BatcherClosedError, ConfigError, InvalidRequestError, RequestTooLongError
from ..params import SamplingParams
from ..scheduling import Request
from ..threads.remote_calls import RemoteCalls
from .coordinator import Coordinator
from .delivery import Delivery
from .mailbox import (
    AddPrefix,
    Cancel,
    Close,
    RemovePrefix,
    SharePrefix,
    Submit,
    WithdrawPrefix,
)
from .output_text import OutputText, text_after_output
from .prompts import PromptReader
from .runtime import Runtime
from .system_prompt import SystemPrompt

__all__ = ["Service"]


class Service(CallService):
    """A running coordinator, and the way to it from calls of its own loop and process.

    Made on the event loop it is to run on. Raises ConfigError for a system
    prompt that there is no room for.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: SchedulerConfig,
        supervision: SupervisionConfig,
        system_prompt: str | None,
        clock: Callable[[], float],
        telemetry: Telemetry,
    ) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._runtime = runtime
        self._clock = clock
        self._telemetry = telemetry
        self._vocab_size = runtime.engine.vocab_size
        self._n_request_ids = 0
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
            supervision,
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
        self._remote_calls = RemoteCalls()
        self._task.add_done_callback(lambda _: self._remote_calls.close())

    @property
    def runtime(self) -> Runtime:
        """Engine, tokenizer and chat template."""
        return self._runtime

    async def submit(self, call: Call, reply: Reply) -> range:
        """Check a call and send it; the ids of its requests. What comes of it goes to `reply`.

        Nothing is sent if it raises, or is cancelled on the way.
        """
        submitted, of_all = self._of_all(call)
        params = merge_params(call.params, call.sampling, vocab_size=self._vocab_size)
        output = await self._prompts.read_ids(call.output, field="output", may_be_empty=True)
        if output and params.n > 1:
            raise InvalidRequestError(
                f"n is {params.n}; with output, which one sample has drawn, it must be 1"
            )
        prompt = await self.tokenize(call.content, call.is_chat)
        request_ids = self._new_ids(params.n)
        request = replace(
            of_all,
            request_id=request_ids[0],
            prompt=prompt,
            params=params,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            end_token_ids=self._end_token_ids(params),
            output=output,
        )
        text = await self._text_after(request) if output else None
        self._coordinator.check_open()
        if text is not None and text.finish_reason is not None:
            delivery = Delivery(request, reply, text, submitted, self._telemetry)
            delivery.end_with_given(self._clock())
            return request_ids
        mailbox = self._coordinator.mailbox
        if params.n == 1:
            mailbox.put(Submit(request, reply, submitted, text))
            return request_ids
        samples = Samples(reply, params.n, lambda: self.cancel(request_ids))
        for i, request_id in enumerate(request_ids):
            seed = sample_seed(request.seed, i)
            sample = replace(request, request_id=request_id, seed=seed)
            mailbox.put(Submit(sample, samples.replies[i], submitted))
        return request_ids

    def cancel(self, request_ids: range) -> None:
        """Nobody waits for them any more. From any thread; never waits."""
        for request_id in request_ids:
            self._coordinator.mailbox.put_threadsafe(Cancel(request_id))

    async def tokenize(self, content: object, is_chat: bool) -> tuple[int, ...]:
        """See `Batcher.tokenize`."""
        self.check_home()
        system_prompt = self._system_prompt
        if not is_chat:
            return await self._prompts.read(content, before=self._before_texts)
        if system_prompt is not None:
            content = system_prompt.before_messages(content)
            await self._share_beginning_of_chats(system_prompt)
        return await self._prompts.read_chat(content)

    async def detokenize(self, token_ids: object) -> str:
        """See `Batcher.detokenize`."""
        self.check_home()
        ids = await self._prompts.read_ids(token_ids, field="token_ids")
        return await asyncio.to_thread(
            self._runtime.tokenizer.decode, ids, skip_special_tokens=False
        )

    async def score(
        self, prompt: object, continuations: object, beside: CallOptions
    ) -> list[Score]:
        """See `Batcher.score`."""
        submitted, of_all = self._of_all(beside)
        begin = await self._prompts.read(prompt, before=self._before_texts)
        asked = []
        for i, one in enumerate(check_several("continuations", continuations)):
            tokens = await self._prompts.read(one, before=begin, field=f"continuations[{i}]")
            asked.append(tokens[len(begin) :] if isinstance(one, str) else tokens)
            await asyncio.sleep(0)  # many short texts are as long as a long one
        answers = await self._inquire(
            (replace(of_all, prompt=(begin + tokens)[:-1], targets=tokens) for tokens in asked),
            len(asked),
            submitted,
        )
        scores = []
        for tokens, answer in zip(asked, answers, strict=True):
            scores.append(Score(math.fsum(answer.logprobs), answer.logprobs, tokens))
            if len(scores) % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return scores

    async def embed(self, texts: object, pooling: object, beside: CallOptions) -> list[Embedding]:
        """See `Batcher.embed`."""
        import numpy as np

        submitted, of_all = self._of_all(beside)
        how = check_pooling(pooling)
        requests = []
        for i, one in enumerate(check_several("texts", texts)):
            tokens = await self._prompts.read(one, field=f"texts[{i}]")
            requests.append(replace(of_all, prompt=tokens, pooling=how))
            await asyncio.sleep(0)
        answers = await self._inquire(requests, len(requests), submitted)
        made = []
        for request, answer in zip(requests, answers, strict=True):
            vector, n_tokens = np.array(answer.vector), len(request.prompt)
            made.append(Embedding(vector, n_tokens, answer.cached_tokens))
            if len(made) % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return made

    def _of_all(self, beside: CallOptions) -> tuple[float, Request]:
        """When a call was made, and what its requests have in common."""
        self.check_home()
        self._coordinator.check_open()
        timeout, submitted = check_timeout(beside.timeout), self._clock()
        return submitted, Request(
            request_id=0,
            prompt=(),
            namespace=check_namespace(beside.namespace),
            priority=check_priority(beside.priority),
            deadline=None if timeout is None else submitted + timeout,
        )

    async def _inquire(
        self, requests: Iterable[Request], n_requests: int, submitted: float
    ) -> Sequence[Answer]:
        """Send all, and wait for all."""
        self._coordinator.check_open()
        mailbox, inquiry = self._coordinator.mailbox, Inquiry(n_requests)
        request_ids = self._new_ids(n_requests)
        try:
            for i, (request_id, request) in enumerate(zip(request_ids, requests, strict=True)):
                if i and i % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                    if inquiry.answers.done():  # one has failed already
                        break
                own = replace(request, request_id=request_id)
                mailbox.put(Submit(own, inquiry.replies[i], submitted))
            return await inquiry.answers
        except BaseException:  # one failed, or nobody waits any more
            for request_id in request_ids:
                mailbox.put(Cancel(request_id))
            raise

    async def add_prefix(self, prefix: object, name: object, namespace: object) -> PrefixInfo:
        """See `Batcher.add_prefix`."""
        self.check_home()
        self._coordinator.check_open()
        own_name = None if name is None else check_prefix_name(name)
        space = check_namespace(namespace)
        tokens = await self._prompts.read(prefix, before=self._before_texts, field="prefix")
        self._coordinator.check_open()
        message = AddPrefix(tokens, own_name, space, self._loop.create_future())
        mailbox = self._coordinator.mailbox
        mailbox.put(message)
        try:
            return await message.added
        except asyncio.CancelledError:
            mailbox.put(WithdrawPrefix(message))
            raise

    async def remove_prefix(self, name: object, namespace: object) -> None:
        """See `Batcher.remove_prefix`."""
        self.check_home()
        self._coordinator.check_open()
        message = RemovePrefix(
            check_prefix_name(name), check_namespace(namespace), self._loop.create_future()
        )
        self._coordinator.mailbox.put(message)
        await message.removed

    def prefixes(self) -> tuple[PrefixInfo, ...]:
        """See `Batcher.prefixes`."""
        return self._coordinator.prefixes.infos()

    async def close(self, drain: bool, patience: float | None) -> None:
        """See `Batcher.close`."""
        self.check_home()
        mailbox = self._coordinator.mailbox
        mailbox.put(Close(drain))
        if drain and patience is not None:
            await asyncio.wait({self._task}, timeout=patience)
            mailbox.put(Close(drain=False))
        limit = None if patience is None else max(patience, _LEAST_PATIENCE)
        _, unfinished = await asyncio.wait({self._task}, timeout=limit)
        if unfinished:  # the engine thread is in a step: it closes the engine after that
            self._task.cancel()
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

    def check_idle(self) -> None:
        """Raise EngineError that names what is left, as `Batcher.check_idle` says."""
        self._coordinator.check_idle()

    def heartbeat(self) -> tuple[bool, int]:
        """Whether the engine has a job under way, and how far it has come: `StepEngine.progress`.

        Busy, and for long no further, it hangs. From any thread; never waits.
        """
        return self._coordinator.heartbeat()

    def remote_calls(self) -> RemoteCalls:
        """The way here from other threads. Raises in a fork."""
        self._check_process()
        return self._remote_calls

    def check_home(self) -> None:
        """Raise where this is not the process or not the loop that the batcher was started in."""
        self._check_process()
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidRequestError(
                "the batcher was started in another event loop; call it there, or use "
                "`batcher.threadsafe`, or a BlockingBatcher"
            )

    def _new_ids(self, n: int) -> range:
        first = self._n_request_ids + 1
        self._n_request_ids += n
        return range(first, first + n)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise BatcherClosedError(
                f"the batcher runs in process {self._pid} and this is a fork of it, without its "
                "threads; make a batcher in each process, after the fork"
            )

    async def _text_after(self, request: Request) -> OutputText:
        """What the tokens that it comes with said. RequestTooLongError where they have no room."""
        n_prompt, n_output = len(request.prompt), len(request.output)
        n_positions = self._runtime.engine.max_sequence_length
        if n_prompt + n_output > n_positions:
            raise RequestTooLongError(
                f"prompt ({n_prompt} tokens) and output ({n_output}) have {n_prompt + n_output} "
                f"tokens; a sequence has {n_positions} positions: shorten them or raise n_ctx"
            )
        max_output = request.max_output(n_positions)
        return await text_after_output(request, self._runtime.tokenizer, max_output)

    def _end_token_ids(self, params: SamplingParams) -> frozenset[int]:
        """What ends an output: the model's own end tokens, those it can draw, and the caller's."""
        asked = frozenset(params.stop_token_ids)
        own = () if params.ignore_eos else self._runtime.tokenizer.eos_token_ids
        return asked.union(token for token in own if token < self._vocab_size)

    @property
    def _before_texts(self) -> tuple[int, ...]:
        """What every prompt that is a text is put after."""
        return () if self._system_prompt is None else self._system_prompt.tokens

    async def _share_beginning_of_chats(self, system_prompt: SystemPrompt) -> None:
        """Once, at the first chat; the others wait until it is known what they share."""
        async with self._first_chat:
            if not self._chats_share_beginning:
                tokens = await asyncio.to_thread(system_prompt.chat_tokens)
                if tokens:
                    self._coordinator.mailbox.put(SharePrefix(tokens))
                self._chats_share_beginning = True


_AT_ONCE = 32
"""Requests of one inquiry that are sent, and answers taken, without letting the loop go on."""

_LEAST_PATIENCE = 5.0
"""Seconds that a step under way is waited for, at least, by a `close` with a timeout."""
