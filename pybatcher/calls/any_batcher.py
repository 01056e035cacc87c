"""`AnyBatcher`: the calls and the life cycle that a `Batcher` and a `Client` have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, overload

from typing_extensions import Unpack

from ..errors import InvalidRequestError
from ..params import SamplingParams
from .arguments import several_prompts
from .bounded import map_bounded, retry_beside_others
from .call import (
    Call,
    Messages,
    Prompt,
    Prompts,
    Question,
    chat_call,
    only_typed_errors,
    prompt_call,
)
from .completion import Completion
from .lifecycle import Lifecycle
from .model_info import ModelInfo
from .options import (
    ChatOptions,
    CompleteOptions,
    EmbedOptions,
    GenerateOptions,
    PrefixOptions,
    ScoreOptions,
    TokenizeOptions,
    check_names,
)
from .prefix_info import PrefixInfo
from .prompt_logprobs import check_prompt_logprobs, complete_with_prompt
from .questions import (
    AddPrefix,
    DescribeModel,
    Detokenize,
    EmbedTexts,
    ListPrefixes,
    ReadHealth,
    ReadStatistics,
    RemovePrefix,
    ScoreContinuations,
    Tokenize,
)
from .reply import Reply
from .scores import Embedding, Score
from .statistics import BatcherStatistics, Health
from .stream import Stream
from .structured_output import with_structured_output
from .telemetry import Handler

__all__ = ["AnyBatcher"]

T = TypeVar("T")
_MOST_AT_ONCE = 256
"""Most prompts of one `generate` of a list that are in flight at a time."""


class AnyBatcher(Lifecycle):
    """Base of what serves requests: a `Batcher` in this process, or a `Client` of a sidecar.

        async def summarise(batcher: pybatcher.AnyBatcher, text: str) -> str:
            return str(await batcher.generate(f"{text}\\nIn short:", max_tokens=64))

    `statistics`, `health` and `prefixes` are awaited. A `Batcher` returns their values at once,
    and they may be used without `await`.
    """

    # -- outputs ----------------------------------------------------------------------------

    @overload  # a str is a Sequence[str] too, and the first signature that fits is taken
    async def generate(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[CompleteOptions],
    ) -> Completion: ...

    @overload
    async def generate(
        self,
        prompt: Prompts,
        params: SamplingParams | None = None,
        **options: Unpack[CompleteOptions],
    ) -> list[Completion]: ...

    async def generate(
        self,
        prompt: Prompt | Prompts,
        params: SamplingParams | None = None,
        **options: Unpack[CompleteOptions],
    ) -> Completion | list[Completion]:
        """Continue `prompt`; of a list of prompts, each, in their order.

        prompt: a text, or token ids; or a list of either. If one prompt of a list fails, all do.
        params: how to draw. The fields of `SamplingParams` may also be given as keywords, or
            both; keywords win.
        priority: the lower, the sooner it is served; waiting makes up for it
            (`priority_aging`). From -1000 to 1000.
        timeout: seconds from now. After them, the output so far is returned
            (finish_reason "deadline"), or DeadlineExceededError is raised where there
            is no token yet, nor one in `output`.
        namespace: cached prefixes are shared with requests of the same namespace only.
        trace_headers: the trace that the request belongs to, by the headers of W3C Trace Context;
            {}: none. By default that of OpenTelemetry's current span, if there is one.
        output: token ids that were drawn for this prompt already. The new tokens are
            those that an undisturbed run would have drawn after them (when sampling:
            with the same `seed`). Only they are returned and counted, and their text
            begins where a stream of the given tokens would have been; `max_tokens` and
            `min_tokens` count both. For one output only (`n` = 1). Where the given
            tokens have ended the output, the completion is returned at once, without
            a new token.
        prompt_logprobs: True: `Completion.prompt_logprobs` has the log-probability of each token
            of the prompt, by one more request that shares its KV. A number k: and
            `prompt_top_logprobs` the k likeliest tokens at each place, as `logprobs=k` has
            them. With it `max_tokens` may be 0: then nothing is drawn.

        Cancelling the task that awaits cancels the request. Raises
        InvalidRequestError, RequestTooLongError, QueueFullError,
        DeadlineExceededError, EngineFailedError, BatcherClosedError.
        """
        own: dict[str, Any] = {**options}
        complete: Callable[[Call], Awaitable[Completion]] = self._complete
        if "prompt_logprobs" in own:
            n_top = check_prompt_logprobs(own)
            del own["prompt_logprobs"]
            if n_top is not None:
                complete = partial(
                    complete_with_prompt, n_top=n_top, ask=self._ask, complete=complete
                )
        prompts = several_prompts(prompt)
        if prompts is None:
            return await complete(prompt_call(prompt, params, own, CompleteOptions))
        if "output" in own:
            raise InvalidRequestError("output goes with one prompt, and there is a list of them")
        calls = [prompt_call(one, params, own, CompleteOptions) for one in prompts]
        return await map_bounded(retry_beside_others(complete), calls, _MOST_AT_ONCE)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """Continue `prompt` in pieces as they come: `async for piece in batcher.stream(prompt)`.

        Arguments and errors are those of `generate`, but for `prompt_logprobs`; the errors come
        with the first piece, that of an unknown keyword at once.
        """
        return self._stream(prompt_call(prompt, params, options))

    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion:
        """Return the assistant's next turn, by the model's own chat template.

            answer = await batcher.chat(messages, tools=[weather])
            for call in answer.tool_calls:
                print(call.name, call.arguments)

        messages: [{"role": "user", "content": "..."}, ...]; or the token ids that `tokenize` gave
            for them. An assistant's message may have `tool_calls`; their results are messages of
            role "tool", with `tool_call_id`.
        tools: that the model may call: functions with type hints and docstrings, or dicts as of
            OpenAI's API. The calls are in `Completion.tool_calls`; nothing is run. Of a tool with
            `strict: True`, calls follow its schema for certain.
        tool_choice: "auto": the model decides; "none"; "required": it calls one at least;
            `{"name": ...}`: it calls that one. Calls that are required follow their schemas.
        parallel_tool_calls: False: the response ends with its first call.
        enable_thinking, reasoning_effort: variables of the chat template, if it knows them.
        max_reasoning_tokens: the reasoning ends after so many tokens at the latest, and the answer
            begins. `max_tokens` counts both.
        chat_template_kwargs: further variables of the chat template.

        Reasoning is in `Completion.reasoning`. A form of the output (`json_schema`, ...) is that of
        the text: reasoning may come before it, and calls in its place. Other arguments and errors
        are those of `generate`.
        """
        return await self._complete(chat_call(messages, params, options))

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Stream:
        """Stream the assistant's next turn. Arguments and errors are those of `chat`."""
        return self._stream(chat_call(messages, params, options))

    # -- questions --------------------------------------------------------------------------

    async def tokenize(
        self, content: Prompt | Messages, **options: Unpack[TokenizeOptions]
    ) -> tuple[int, ...]:
        """Return the token ids that `generate` would go on from, or `chat` for messages.

        The special tokens and the system prompt that come before are included; of a text with
        `add_special_tokens=False`, nothing but the text. options: of a chat, those that its
        template sees. Raises InvalidRequestError, BatcherClosedError.
        """
        return await self._ask(Tokenize.of(content, options))

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included. Raises InvalidRequestError."""
        return await self._ask(Detokenize(token_ids=token_ids))

    async def score(
        self,
        prompt: Prompt,
        continuations: Sequence[Prompt],
        **options: Unpack[ScoreOptions],
    ) -> list[Score]:
        """Return how likely each continuation of `prompt` is, in the order given.

            yes, no = await batcher.score("Is the sky blue? Answer:", [" yes", " no"])
            yes.logprob > no.logprob

        prompt: a text, or token ids; begins as it would in `generate`.
        continuations: texts, or token ids, at least one, any number. A text becomes tokens by
            itself, without special tokens: where a tokenizer would join it with the prompt's
            end in another way, hand in token ids.
        top_logprobs: how many of the likeliest tokens `Score.top_logprobs` has for each token,
            up to 32.
        priority, timeout, namespace: as of `generate`. After the timeout,
            DeadlineExceededError is raised.

        Each continuation is a request of its own in the queue; they share the KV of the
        prompt. If one fails, all do. A score has the same bits as a completion's `logprobs`.
        Cancelling cancels all. Raises the errors of `generate`.
        """
        check_names(options, ScoreOptions)
        return await self._ask(
            ScoreContinuations(prompt=prompt, continuations=continuations, **options)
        )

    @overload  # as of `generate`
    async def embed(  # type: ignore[overload-overlap]
        self, texts: str, **options: Unpack[EmbedOptions]
    ) -> Embedding: ...

    @overload
    async def embed(
        self, texts: Sequence[Prompt], **options: Unpack[EmbedOptions]
    ) -> list[Embedding]: ...

    async def embed(
        self, texts: str | Sequence[Prompt], **options: Unpack[EmbedOptions]
    ) -> Embedding | list[Embedding]:
        """Return each text as one vector: the model's states after its last norm, pooled.

            cat, dog = await batcher.embed(["a cat", "a dog"], pooling="mean")
            float(cat.vector @ dog.vector)

        texts: texts, or token ids, at least one, any number; or one str, which gives one
            Embedding. No system prompt comes before them.
        pooling: None: as the model's own files say (those of sentence-transformers, which may
            also say that vectors have length 1, or go through dense layers); where they say
            nothing "last", or "mean" for an encoder.
            "last": the state of the last token; a long text may take several steps.
            "mean": the mean of the states of all tokens; "cls": the state of the first token.
            The text is then computed in one step, as every text of an encoder is,
            whatever `max_prefill_tokens` and `itl_target` say, so it can have `n_batch`
            tokens at most. Up to `n_batch - n_parallel` tokens fit into a step with
            generating requests; a longer text waits until enough of these have ended, and
            newcomers wait behind it.
        priority, timeout, namespace: as of `generate`. After the timeout,
            DeadlineExceededError is raised.

        Each text is a request of its own in the queue. If one fails, all do. Cancelling
        cancels all. Raises the errors of `generate`, and RequestTooLongError for a text that
        is too long for its pooling.
        """
        check_names(options, EmbedOptions)
        is_one = issubclass(type(texts), str)  # isinstance would ask a hostile object
        asked: Any = [texts] if is_one else texts
        made = await self._ask(EmbedTexts(texts=asked, **options))
        return made[0] if is_one else made

    async def add_prefix(self, prefix: Prompt, **options: Unpack[PrefixOptions]) -> PrefixInfo:
        """Compute the KV of a beginning that many prompts will have, and keep it.

            await batcher.add_prefix(manual, name="manual")
            await batcher.generate(manual + question)      # only `question` is computed

        Returns when the KV is computed. Prompts of the namespace that begin so use it from then
        on, whatever the cache evicts; its blocks are taken from `n_ctx` until it is removed.

        prefix: a text, or token ids. A text becomes tokens as the beginning of a prompt does,
            special tokens and the system prompt before it. A prompt shares the first tokens
            that are the same: around the seam a tokenizer may join `prefix + rest` in another
            way, and the last token or two of the prefix are then computed with the rest.
            Chats go through a template: for their beginnings, hand in token ids.
        name: for `remove_prefix`, unique in its namespace. None: one is made up. The same tokens
            under another name share the KV; the same name and tokens again count one more
            holder, and need one more removal.
        namespace: None is the common one.

        Cancelling undoes the call. Raises InvalidRequestError, also where the name is that of
        other tokens, RequestTooLongError where KV has no room for the prefix,
        NoFreeSequenceError past `max_prefixes`, EngineFailedError, BatcherClosedError.
        """
        check_names(options, PrefixOptions)
        return await self._ask(AddPrefix(prefix=prefix, **options))

    async def remove_prefix(self, name: str, namespace: str | None = None) -> None:
        """Undo one `add_prefix`. With the last, KV that no request uses is freed.

        Raises InvalidRequestError where there is no such name.
        """
        await self._ask(RemovePrefix(name=name, namespace=namespace))

    def prefixes(self) -> Awaitable[tuple[PrefixInfo, ...]]:
        """Return all prefixes that are kept: the system prompt (no name), then as added."""
        return self._ask(ListPrefixes())

    def statistics(self) -> Awaitable[BatcherStatistics]:
        """Return the counts since the start; of a `Batcher`, after `close` the last ones.

        Raises BatcherClosedError before `start`.
        """
        return self._ask(ReadStatistics())

    def health(self) -> Awaitable[Health]:
        """Return whether requests are served, and if not, why."""
        return self._ask(ReadHealth())

    async def model_info(self) -> ModelInfo:
        """Return a description of the model that is served now.

        Raises BatcherClosedError, and the errors of a connection.
        """
        return await self._ask(DescribeModel())

    @abstractmethod
    def attach(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event from now on. Return a function that detaches it.

        Events are a `StepEvent` after each step, and a `RequestEvent` at the end of each request.
        There may be several handlers, attached and detached before the start, after it, and from
        any thread. They run on the batcher's event loop and block it: each must be quick. One
        that raises is detached, with a line in the log "pybatcher", and does no other harm. A
        handler is kept as long as the batcher runs: one that refers to the batcher keeps it from
        closing itself when it is dropped. Raises ConfigError for what cannot be called with one
        event.
        """

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The name of the model, for people. Raises BatcherClosedError before `start`."""

    # -- inside -----------------------------------------------------------------------------

    async def _complete(self, call: Call) -> Completion:
        """Submit a call and wait for its output."""
        service, reply = self._running_service(), Reply()
        with only_typed_errors("this call"):
            request_ids = await service.submit(with_structured_output(call, reply), reply)
        try:
            while not reply.ended:
                await reply.wait()
        except BaseException:  # the task was cancelled
            service.cancel(request_ids)
            raise
        result = reply.result()
        assert isinstance(result, Completion)
        return result

    def _stream(self, call: Call) -> Stream:
        """Make a stream. It refers to the batcher, which closes itself when it is collected."""

        async def submit(reply: Reply) -> range:
            with only_typed_errors("this call"):
                return await self._running_service().submit(
                    with_structured_output(call, reply), reply
                )

        return Stream(submit, lambda ids: self._running_service().cancel(ids))

    async def _ask(self, question: Question[T]) -> T:
        service = self._running_service()
        with only_typed_errors("this call"):
            return await service.ask(question)
