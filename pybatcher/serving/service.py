"""`Service`: checks the calls of a started batcher and sends them to its coordinator."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from typing_extensions import override

from ..calls.arguments import (
    check_name,
    check_pooling,
    check_several,
    check_timeout,
    check_top_logprobs,
    check_truncate,
)
from ..calls.call import Call, CallOptions, Question
from ..calls.lifecycle import RunningService
from ..calls.model_info import ModelInfo
from ..calls.prefix_info import Prefixes, PrefixInfo, check_prefix_name
from ..calls.questions import (
    AddPrefix,
    Describe,
    DescribeModel,
    Detokenize,
    DetokenizeEach,
    EmbedTexts,
    ListPrefixes,
    ReadHealth,
    ReadStatistics,
    Reload,
    RemovePrefix,
    ScoreContinuations,
    TokenBytes,
    Tokenize,
)
from ..calls.reply import Reply, sample_seed
from ..calls.scores import Answer, Embedding, Score
from ..calls.statistics import BatcherStatistics, Health
from ..calls.telemetry import Handler, Telemetry
from ..calls.threads.remote_calls import RemoteCalls
from ..errors import BatcherClosedError, ConfigError, DeadlineExceededError, InvalidRequestError
from ..errors.distribution import version
from ..params.config import SchedulerConfig, SupervisionConfig
from ..params.embedding_defaults import EmbeddingDefaults
from ..scheduling import Request
from .answer_each import answer_each
from .call_reader import CallReader, check_samples
from .coordinator import Coordinator
from .mailbox import (
    Cancel,
    Close,
    ForgetImages,
    HoldPrefix,
    ReleasePrefix,
    SharePrefix,
    WithdrawPrefix,
)
from .prompts import Truncation
from .request_state import RequestState
from .runtime import Runtime

__all__ = ["Service"]

T = TypeVar("T")


class Service(RunningService):
    """The calls of a running coordinator, for its own loop and process.

    Construct it on the event loop that it runs on. Raises ConfigError for a system prompt that does
    not fit into KV.

    limits: the limits that `Describe` returns, by name.
    reader: makes the reader of calls, from the arguments of `CallReader`.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: SchedulerConfig,
        supervision: SupervisionConfig,
        system_prompt: str | None,
        clock: Callable[[], float],
        telemetry: Telemetry,
        limits: Mapping[str, int],
        reader: Callable[..., CallReader] = CallReader,
    ) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._runtime = runtime
        self._config = config
        self._clock = clock
        self._telemetry = telemetry
        self._limits = limits
        self._n_request_ids = 0
        self._coordinator = Coordinator(
            runtime.engine, config, supervision, clock=clock, telemetry=telemetry
        )
        self._mailbox = self._coordinator.mailbox
        self._handlers: dict[type, Callable[[Any], Awaitable[Any]]] = {
            ScoreContinuations: self._score,
            EmbedTexts: self._embed,
            Tokenize: self._tokenize,
            Detokenize: self._detokenize,
            DetokenizeEach: self._detokenize,
            TokenBytes: self._token_bytes,
            AddPrefix: self._add_prefix,
            RemovePrefix: self._remove_prefix,
            ListPrefixes: self._list_prefixes,
            ReadStatistics: self._read_statistics,
            ReadHealth: self._read_health,
            Describe: self._describe,
            DescribeModel: self._describe_model,
            Reload: self._reload,
        }
        self._reader = reader(
            runtime,
            system_prompt,
            lambda tokens: self._mailbox.put(SharePrefix(tokens)),
            lambda: self._mailbox.put_threadsafe(ForgetImages()),
        )
        if self._reader.before_texts:
            try:
                self._coordinator.share_prefix(self._reader.before_texts)
            except InvalidRequestError as error:
                raise ConfigError(f"system_prompt: {error}") from error
        self._task = self._loop.create_task(self._coordinator.run(), name="pybatcher-coordinator")
        self._remote_calls = RemoteCalls()
        self._task.add_done_callback(lambda _: self._remote_calls.close())

    @property
    def runtime(self) -> Runtime:
        """Engine, tokenizer and chat template."""
        return self._runtime

    @override
    async def submit(self, call: Call, reply: Reply) -> range:
        if not self._runtime.generates:
            raise self._runtime.only_embeds()
        submitted, common = self._check(call)
        params = self._reader.params(call)
        tenant = f"{common['tenant']}\n{common['namespace']}"
        async with _reading(submitted, common["deadline"]):
            output = await self._reader.output(call, params)
            read = await self._reader.read(call, params, tenant)
            (prompt, images), form, end_token_ids, respond = read
            if params.n > 1:
                check_samples(params.n, len(prompt), self._config)
            matchers = await self._reader.matchers(form, params.n, output, tenant)
            stops = await self._reader.stops(params)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        request_ids = self._new_ids(params.n)
        reply.expect(params.n)
        if reply.backpressure is not None:
            self._mailbox.watch(reply.backpressure, request_ids)
        for i, request_id in enumerate(request_ids):
            request = Request(
                **common,
                request_id=request_id,
                prompt=prompt,
                params=params,
                seed=sample_seed(seed, i),
                end_token_ids=end_token_ids,
                output=output,
                matcher=matchers[i],
                images=images,
            )
            state = RequestState(
                request,
                reply,
                submitted,
                self._telemetry,
                self._runtime.tokenizer,
                stops=stops,
                response=None if respond is None else respond(request.seed),
                is_chat=call.chat is not None,
                index=i,
                siblings=request_ids,
            )
            if output:
                await state.replay_output(self._reader.most_output(request))
            self._coordinator.check_open()
            if state.finish_reason is None:
                self._mailbox.put(state)
            else:
                state.end_with_given(self._clock())
        return request_ids

    @override
    def cancel(self, request_ids: range) -> None:
        for request_id in request_ids:
            self._mailbox.put_threadsafe(Cancel(request_id))

    @override
    async def ask(self, question: Question[T]) -> T:
        answer: T = await self._handlers[type(question)](question)
        return answer

    @override
    def attach(self, handler: Handler) -> Callable[[], None]:
        return self._telemetry.attach(handler)

    # -- questions --------------------------------------------------------------------------

    async def _tokenize(self, question: Tokenize) -> tuple[int, ...]:
        self.check_home()
        if not question.add_special_tokens:
            return await self._reader.prompts.read(
                question.content, add_special_tokens=False, any_length=True
            )
        return await self._reader.prompt_tokens(question.content, question.chat)

    async def _detokenize(self, question: Detokenize | DetokenizeEach) -> str | list[str]:
        self.check_home()
        prompts, each = self._reader.prompts, isinstance(question, DetokenizeEach)
        return await (prompts.detokenize_each if each else prompts.detokenize)(question.token_ids)

    async def _token_bytes(self, question: TokenBytes) -> list[bytes]:
        self.check_home()
        return await self._reader.prompts.token_bytes(question.token_ids)

    async def _score(self, question: ScoreContinuations) -> list[Score]:
        if not self._runtime.generates:
            raise self._runtime.only_embeds()
        submitted, common = self._check(question)
        deadline, tenant = common["deadline"], f"{common['tenant']}\n{common['namespace']}"
        async with _reading(submitted, deadline):
            begin = await self._reader.prompts.read(
                question.prompt, before=self._reader.before_texts, tenant=tenant
            )
        continuations = check_several("continuations", question.continuations)
        common["n_top"] = check_top_logprobs("top_logprobs", question.top_logprobs)

        async def request(i: int) -> Request:
            one, field = continuations[i], f"continuations[{i}]"
            async with _reading(self._clock(), deadline):
                tokens = await self._reader.prompts.read(
                    one, before=begin, field=field, tenant=tenant
                )
            asked = tokens[len(begin) :] if isinstance(one, str) else tokens
            return Request(request_id=0, **common, prompt=(begin + asked)[:-1], targets=asked)

        def score(request: Request, answer: Answer) -> Score:
            total = math.fsum(answer.logprobs)
            return Score(total, answer.logprobs, request.targets, answer.top_logprobs)

        return await self._answer_each(request, len(continuations), submitted, score)

    async def _embed(self, question: EmbedTexts) -> list[Embedding]:
        submitted, common = self._check(question)
        pooling = check_pooling(question.pooling)
        own = self._runtime.embedding.with_pooling(pooling)
        common |= {"pooling": own.pooling, "takes_whole": self._runtime.is_encoder}
        limit = self._truncation(own, check_truncate(question.truncate))
        texts = check_several("texts", question.texts)
        deadline, tenant = common["deadline"], f"{common['tenant']}\n{common['namespace']}"

        async def request(i: int) -> Request:
            field = f"texts[{i}]"
            async with _reading(self._clock(), deadline):
                prompt = await self._reader.prompts.read_embedded(
                    texts[i], limit, field=field, prefix=own.prompt, tenant=tenant
                )
            if own.padding_token in prompt:
                raise InvalidRequestError(
                    f"{field} has the padding token {own.padding_token}, after which the model "
                    "numbers positions in another way, which is not computed; leave it out",
                    field=field,
                )
            return Request(request_id=0, **common, prompt=prompt, where=field)

        return await self._answer_each(
            request, len(texts), submitted, lambda one, made: made.embedding(len(one.prompt), own)
        )

    def _truncation(self, own: EmbeddingDefaults, truncate: bool | int) -> Truncation:
        """Return the limit of a text to embed. truncate: the argument of `embed`."""
        n_positions = self._runtime.engine.max_sequence_length
        if truncate is False:
            most = own.max_tokens or n_positions
            return Truncation(most, False, own.cuts_left, _WAY_OUT.format(most))
        is_whole = self._runtime.is_encoder or own.pooling != "last"
        limits = [n_positions, own.max_tokens, self._config.n_batch if is_whole else 0]
        if truncate is not True:
            limits.append(truncate)
        return Truncation(min(filter(None, limits)), True, own.cuts_left, "")

    async def _answer_each(
        self,
        request: Callable[[int], Awaitable[Request]],
        n_requests: int,
        submitted: float,
        result: Callable[[Request, Answer], T],
    ) -> list[T]:
        """Send n requests, a limited number at a time, and return their results in order."""
        self._coordinator.check_open()
        request_ids = self._new_ids(n_requests)

        def send(i: int, own: Request, reply: Reply) -> None:
            if i == 0 and reply.backpressure is not None:
                self._mailbox.watch(reply.backpressure, request_ids)
            self._coordinator.check_open()
            own = replace(own, request_id=request_ids[i])
            self._mailbox.put(RequestState(own, reply, submitted, self._telemetry, index=i))

        return await answer_each(
            request,
            n_requests,
            send=send,
            cancel=lambda i: self._mailbox.put(Cancel(request_ids[i])),
            result=result,
            most_requests=self._config.max_queue_requests // 2,
            most_tokens=self._config.max_queue_tokens // 2,
        )

    async def _add_prefix(self, question: AddPrefix) -> PrefixInfo:
        self.check_home()
        self._coordinator.check_open()
        self._runtime.check_prefixes()
        name = None if question.name is None else check_prefix_name(question.name)
        namespace, timeout = (
            check_name("namespace", question.namespace),
            check_timeout(question.timeout),
        )
        submitted = self._clock()
        deadline = None if timeout is None else submitted + timeout
        async with _reading(submitted, deadline):
            tokens = await self._reader.prompts.read(
                question.prefix,
                before=self._reader.before_texts,
                field="prefix",
                tenant=f"\n{question.namespace}",
            )
        self._coordinator.check_open()
        message = HoldPrefix(tokens, name, namespace, self._loop.create_future())
        self._mailbox.put(message)
        late = f"the prefix, of {len(tokens)} tokens, was not computed within {timeout} s (timeout)"
        async with _until(deadline, self._clock(), f"{late}; it is not kept; raise timeout"):
            try:
                return await message.added
            except asyncio.CancelledError:  # of the caller, or at the deadline
                self._mailbox.put(WithdrawPrefix(message))
                raise

    async def _remove_prefix(self, question: RemovePrefix) -> None:
        self.check_home()
        self._coordinator.check_open()
        name, namespace = (
            check_prefix_name(question.name),
            check_name("namespace", question.namespace),
        )
        message = ReleasePrefix(name, namespace, self._loop.create_future())
        self._mailbox.put(message)
        await message.removed

    async def _list_prefixes(self, _: ListPrefixes) -> Prefixes:
        return self.prefixes()

    async def _read_statistics(self, _: ReadStatistics) -> BatcherStatistics:
        return self.statistics()

    async def _read_health(self, _: ReadHealth) -> Health:
        return self.health()

    async def _describe(self, _: Describe) -> dict[str, Any]:
        n_positions = self._runtime.engine.max_sequence_length
        return {
            "version": version(),
            "model": self._runtime.name,
            "limits": {"max_sequence_length": n_positions, **self._limits},
        }

    async def _describe_model(self, _: DescribeModel) -> ModelInfo:
        template = self._runtime.chat_template
        takes_tools, takes_thinking, takes_images = await asyncio.to_thread(
            lambda: (
                template.takes_tools(),
                bool(template.thinking_variables()),
                self._runtime.takes_images(),
            )
        )
        limits = self._runtime.image_limits if takes_images else {}
        return ModelInfo(
            name=self._runtime.name,
            fingerprint=self._runtime.fingerprint,
            max_sequence_length=self._runtime.engine.max_sequence_length,
            vocab_size=self._runtime.engine.vocab_size,
            kv_block_size=self._runtime.engine.block_size,
            special_tokens=template.special_tokens,
            chat_template=template.source,
            sampling=self._runtime.sampling,
            takes_tools=takes_tools,
            takes_thinking=takes_thinking,
            takes_images=takes_images,
            **limits,
        )

    async def _reload(self, _: Reload) -> dict[str, Any]:
        raise InvalidRequestError("a reload is not for this process; ask `pybatcher serve`")

    def prefixes(self) -> Prefixes:
        """Return all shared prefixes."""
        return Prefixes(self._coordinator.prefixes.infos())

    def statistics(self) -> BatcherStatistics:
        """Return the counts since the start; after `close` the last ones."""
        return self._coordinator.statistics()

    def health(self) -> Health:
        """Return whether requests are served. In a fork of the process they are not."""
        try:
            self._check_process()
        except BatcherClosedError as error:
            return Health("closed", str(error))
        return self._coordinator.health()

    # -- life -------------------------------------------------------------------------------

    @override
    async def close(self, drain: bool, timeout: float | None) -> None:
        self.check_home()
        self._mailbox.put(Close(drain))
        if drain and timeout is not None:
            await asyncio.wait({self._task}, timeout=timeout)
            self._mailbox.put(Close(drain=False))
        limit = None if timeout is None else max(timeout, _LEAST_STEP_WAIT)
        _, unfinished = await asyncio.wait({self._task}, timeout=limit)
        if unfinished:  # the engine thread is in a step, and closes the engine after it
            self._task.cancel()
            await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()

    @override
    def abandon(self) -> None:
        self._coordinator.abandon()

    def check_idle(self) -> None:
        """Raise an EngineError that names the leftovers, as `Batcher.check_idle` does."""
        self._coordinator.check_idle()

    def heartbeat(self) -> tuple[bool, int]:
        """Return whether the engine has a job under way, and its `StepEngine.progress`.

        A busy engine without progress for a long time hangs. From any thread; never waits.
        """
        return self._coordinator.heartbeat()

    def remote_calls(self) -> RemoteCalls:
        """Return the `RemoteCalls` of this loop. Raises BatcherClosedError in a fork."""
        self._check_process()
        return self._remote_calls

    def check_home(self) -> None:
        """Raise an error in a process or loop other than the one that started the batcher."""
        self._check_process()
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidRequestError(
                "the batcher was started in another event loop; call it there, or use "
                "`batcher.threadsafe`, or a BlockingBatcher"
            )

    # -- inside -----------------------------------------------------------------------------

    def _check(self, call: CallOptions) -> tuple[float, dict[str, Any]]:
        """Return the time of a call, and the fields that all its requests have in common."""
        self.check_home()
        self._coordinator.check_open()
        submitted = self._clock()
        return submitted, self._reader.common(call, submitted)

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


@asynccontextmanager
async def _reading(submitted: float, deadline: float | None) -> AsyncIterator[None]:
    """Keep a call's deadline while it is read. Raises DeadlineExceededError."""
    allowed = 0.0 if deadline is None else deadline - submitted
    late = (
        f"the call was not read within {allowed:g} s (timeout): its prompt, template or form "
        "takes longer; raise timeout, or make them simpler"
    )
    async with _until(deadline, submitted, late):
        yield


@asynccontextmanager
async def _until(deadline: float | None, now: float, late: str) -> AsyncIterator[None]:
    """Cancel what is inside at the deadline. Raises DeadlineExceededError with the text `late`."""
    left = None if deadline is None else min(deadline - now, _LONGEST_TIMER)
    timer = asyncio.timeout(left)
    try:
        async with timer:
            yield
    except TimeoutError:
        if not timer.expired():
            raise
        raise DeadlineExceededError(late) from None


_LONGEST_TIMER = 1e8
"""The most seconds of a timer, less than an event loop may refuse."""

_WAY_OUT = (
    "the files of the model (max_seq_length) allow {}: shorten it, or pass truncate=True, which "
    "cuts it"
)
"""The remedy against a text with more tokens than the model's files allow."""
_LEAST_STEP_WAIT = 5.0
"""Least seconds that a `close` with a timeout waits for the step under way."""
