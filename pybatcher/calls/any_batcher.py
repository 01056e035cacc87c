"""`AnyBatcher`: the calls and the life cycle that a `Batcher` and a `Client` have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, overload

from typing_extensions import Unpack

from ..errors import InvalidRequestError
from ..params import SamplingParams
from .arguments import are_lists, several_prompts
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
from .composed.bounded import map_bounded, retry_beside_others
from .composed.composed_calls import ComposedCalls
from .composed.prompt_logprobs import check_prompt_logprobs, complete_with_prompt
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
    TypedChatOptions,
    TypedCompleteOptions,
    TypedGenerateOptions,
    check_names,
)
from .prefix_info import PrefixInfo
from .questions import (
    AddPrefix,
    DescribeModel,
    Detokenize,
    DetokenizeEach,
    EmbedTexts,
    ListPrefixes,
    ReadHealth,
    ReadStatistics,
    RemovePrefix,
    ScoreContinuations,
    TokenBytes,
    Tokenize,
)
from .reply import Reply
from .scores import Embedding, Score
from .statistics import BatcherStatistics, Health
from .stream import Stream
from .structured_output import with_structured_output
from .telemetry import CURRENT_COUNTS, Handler

__all__ = ["AnyBatcher"]

T = TypeVar("T")
_MOST_AT_ONCE = 256
"""The most prompts of one `generate` call with a list that are in flight at a time."""


class AnyBatcher(Lifecycle, ComposedCalls):
    """Base of `Batcher`, which runs in this process, and of `Client`, which talks to a sidecar.

        async def summarise(batcher: pybatcher.AnyBatcher, text: str) -> str:
            return str(await batcher.generate(f"{text}\\nIn short:", max_tokens=64))

    `statistics`, `health` and `prefixes` are awaited. A `Batcher` returns their values at once, so
    that they may be used without `await`.
    """

    # -- outputs ----------------------------------------------------------------------------

    @overload  # a str is a Sequence[str] too; type checkers take the first signature that fits
    async def generate(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedCompleteOptions],
    ) -> Completion[T]: ...

    @overload
    async def generate(
        self,
        prompt: Prompts,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedCompleteOptions],
    ) -> list[Completion[T]]: ...

    @overload
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
        """Continue `prompt`, or each prompt of a list, and return the results in the same order.

        prompt: a text or token ids, or a list of either. If one prompt of a list fails, all do.
        params: the sampling parameters. Fields of `SamplingParams` may also be given as keywords,
            or both; keywords win.
        priority: from -1000 to 1000; a request with a lower number is served sooner. Waiting makes
            up for it (`priority_aging`).
        timeout: seconds from now. After the timeout the output so far is returned (finish_reason
            "deadline"); DeadlineExceededError is raised if there is no token yet, nor one in
            `output`.
        namespace: cached prefixes are shared with requests of the same namespace only, except
            for the system prompt's.
        tenant: the user or client whose turn the request takes. Tenants share the engine equally in
            tokens, and they share cached prefixes. Inside a tenant, namespaces share equally.
        trace_headers: the W3C Trace Context headers of the trace that the request belongs to; {}
            for none. By default those of OpenTelemetry's current span, if there is one.
        output: token ids that were already generated for this prompt. The new tokens are the same
            that an undisturbed run would have sampled after them (with the same `seed` when
            sampling). Only the new tokens are returned and counted, and their text begins where a
            stream of the given tokens would have been; `max_tokens` and `min_tokens` count both.
            Allowed for one output only (`n` = 1). If the given tokens end the output, the
            completion is returned at once, without a new token.
        prompt_logprobs: True fills `Completion.prompt_logprobs` with the log-probability of each
            token of the prompt, by one more request that shares its KV. A number k also fills
            `prompt_top_logprobs` with the k likeliest tokens at each position, as `logprobs=k`
            does. `max_tokens` may then be 0: no token is sampled.

        Cancelling the task that awaits cancels the request. Raises InvalidRequestError,
        RequestTooLongError, QueueFullError, DeadlineExceededError, EngineFailedError,
        BatcherClosedError.
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
            raise InvalidRequestError(
                "output goes with one prompt, and there is a list of them", field="output"
            )
        calls = [prompt_call(one, params, own, CompleteOptions) for one in prompts]
        return await map_bounded(retry_beside_others(complete), calls, _MOST_AT_ONCE)

    @overload
    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedGenerateOptions],
    ) -> Stream[T]: ...

    @overload
    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream: ...

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """Continue `prompt` in pieces as they come: `async for piece in batcher.stream(prompt)`.

        Arguments and errors are those of `generate`, without `prompt_logprobs`. An unknown keyword
        raises at once; all other errors are raised by the first piece.
        """
        return self._stream(prompt_call(prompt, params, options))

    @overload
    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedChatOptions],
    ) -> Completion[T]: ...

    @overload
    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion: ...

    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion:
        """Return the assistant's next turn, formatted with the model's own chat template.

            answer = await batcher.chat(messages, tools=[weather])
            for call in answer.tool_calls:
                print(call.name, call.arguments)

        messages: [{"role": "user", "content": "..."}, ...], or the token ids that `tokenize`
            returned for them. An assistant's message may have `tool_calls`; their results are
            messages of role "tool", with `tool_call_id`.
        tools: functions that the model may call: Python functions with type hints and docstrings,
            or dicts as in OpenAI's API. The calls are in `Completion.tool_calls`; nothing is
            executed. Calls of a tool with `strict: True` are guaranteed to follow its schema.
        tool_choice: "auto": the model decides; "none": no call; "required": at least one call;
            `{"name": ...}`: a call of that tool. Required calls follow their schemas.
        parallel_tool_calls: False ends the response with its first call.
        enable_thinking, reasoning_effort: variables of the chat template, if it has them.
        max_reasoning_tokens: the reasoning ends after this number of tokens at the latest, and the
            answer begins. `max_tokens` counts both.
        chat_template_kwargs: further variables of the chat template.

        `Completion.reasoning` has the reasoning. A structured output (`json_schema`, ...) applies
        to the text: reasoning may come before it, and tool calls in its place. Other arguments and
        errors are those of `generate`.
        """
        return await self._complete(chat_call(messages, params, options))

    @overload
    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        json_schema: type[T],
        **options: Unpack[TypedChatOptions],
    ) -> Stream[T]: ...

    @overload
    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Stream: ...

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
        """Return the token ids that `generate` would continue, or `chat` for messages.

        They include the special tokens and the system prompt that come first;
        `add_special_tokens=False` returns the tokens of a text alone. There may be more than a
        sequence has positions. options: the options of a chat that its template sees. Raises
        InvalidRequestError, BatcherClosedError.
        """
        return await self._ask(Tokenize.of(content, options))

    @overload
    async def detokenize(self, token_ids: Sequence[int]) -> str: ...

    @overload
    async def detokenize(self, token_ids: Sequence[Sequence[int]]) -> list[str]: ...

    async def detokenize(self, token_ids: Any) -> str | list[str]:
        """Return the text of token ids with special tokens, or a list of texts for lists of token
        ids.

        One call takes as many ids as the model has positions, or 2**17 if that is more. Raises
        InvalidRequestError, RequestTooLongError.
        """
        if are_lists(token_ids):
            return await self._ask(DetokenizeEach(token_ids=token_ids))
        return await self._ask(Detokenize(token_ids=token_ids))

    async def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """Return the bytes that each token adds to a text, after another token.

            tokens = [one.token_id for one in completion.logprobs]
            b"".join(await batcher.token_bytes(tokens)).decode()

        A token can be a part of a character, which has no text; its bytes are those of the part.
        The joined bytes are the text of the tokens with special tokens. A tokenizer that drops
        the space of a text's first token does not drop it here. Raises InvalidRequestError.
        """
        return await self._ask(TokenBytes(token_ids=token_ids))

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
        continuations: texts, or token ids, at least one, any number. A text is tokenised by itself,
            without special tokens: where a tokenizer would merge it with the prompt's end in
            another way, pass token ids.
        top_logprobs: the number of likeliest tokens in `Score.top_logprobs` for each token, up to
            32.
        priority, timeout, namespace, tenant: as in `generate`. Raises DeadlineExceededError after
            the timeout.

        Each continuation is a request of its own in the queue; they share the KV of the prompt. If
        one fails, all do. A score has the same bits as a completion's `logprobs`. Cancelling
        cancels all. Raises the errors of `generate`.
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
        """Return each text as one vector: the pooled states of the model after its last norm.

            cat, dog = await batcher.embed(["a cat", "a dog"], pooling="mean")
            float(cat.vector @ dog.vector)

        texts: texts, or token ids, at least one, any number; or one str, which returns one
            Embedding. No system prompt comes before them.
        pooling: None takes the pooling of the model's own files (those of sentence-transformers,
            which may also normalise vectors to length 1 or apply dense layers); without such files
            it is "last", or "mean" for an encoder.
            "last": the state of the last token; a long text may take several steps.
            "mean": the mean of the states of all tokens; "cls": the state of the first token. The
            text is then computed in one step, as every text of an encoder is, whatever
            `max_prefill_tokens` and `itl_target` are, so it may have at most `n_batch` tokens. Up
            to `n_batch - n_parallel` tokens fit into a step with generating requests; a longer text
            waits until enough of these have ended, and later requests do not overtake it.
        truncate: True cuts a text that has more tokens than the model's files allow
            (max_seq_length) or than fit; a number cuts a text of more tokens than that. The special
            tokens around a text stay. By default such a text raises RequestTooLongError.
        priority, timeout, namespace, tenant: as in `generate`. Raises DeadlineExceededError after
            the timeout.

        Each text is a request of its own in the queue. If one fails, all do. Cancelling cancels
        all. Raises the errors of `generate`, and RequestTooLongError for a text that is too long
        for its pooling.
        """
        check_names(options, EmbedOptions)
        is_one = issubclass(type(texts), str)  # isinstance would call methods of a hostile object
        asked: Any = [texts] if is_one else texts
        made = await self._ask(EmbedTexts(texts=asked, **options))
        return made[0] if is_one else made

    async def add_prefix(self, prefix: Prompt, **options: Unpack[PrefixOptions]) -> PrefixInfo:
        """Compute the KV of a beginning that many prompts will have, and keep it.

            await batcher.add_prefix(manual, name="manual")
            await batcher.generate(manual + question)      # only `question` is computed

        Returns when the KV is computed. From then on, prompts of the namespace that begin with
        these tokens use it, whatever the cache evicts; its blocks are taken from `n_ctx` until the
        prefix is removed.

        prefix: a text, or token ids. A text is tokenised like the beginning of a prompt, with
            special tokens and the system prompt before it. A prompt shares the leading tokens that
            are equal: a tokenizer may merge `prefix + rest` in another way around the seam, and
            then the last token or two of the prefix are computed with the rest. Chats go through a
            template: for their beginnings, pass token ids.
        name: for `remove_prefix`, unique in its namespace. None generates a name. The same tokens
            under another name share the KV; the same name and tokens again add one more holder, and
            need one more removal.
        namespace: None is the common namespace.
        timeout: seconds from the call. If the KV is not computed then, the call is undone.

        Cancelling undoes the call. Raises InvalidRequestError, also for a name that other tokens
        have, RequestTooLongError if KV has no room for the prefix, NoFreeSequenceError beyond
        `max_prefixes`, DeadlineExceededError after `timeout`, EngineFailedError,
        BatcherClosedError.
        """
        check_names(options, PrefixOptions)
        return await self._ask(AddPrefix(prefix=prefix, **options))

    async def remove_prefix(self, name: str, namespace: str | None = None) -> None:
        """Undo one `add_prefix`. With the last removal, KV that no request uses is freed.

        Raises InvalidRequestError if no prefix has this name.
        """
        await self._ask(RemovePrefix(name=name, namespace=namespace))

    def prefixes(self) -> Awaitable[tuple[PrefixInfo, ...]]:
        """Return all prefixes that are kept: the system prompt (without a name), then in order of
        addition.
        """
        return self._ask(ListPrefixes())

    def statistics(self) -> Awaitable[BatcherStatistics]:
        """Return the counts since the start; a `Batcher` returns the last ones after `close`.

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

        Events are a `StepEvent` after each step and a `RequestEvent` at the end of each request.
        There may be several handlers, attached and detached before the start, after it, and from
        any thread. They run on the batcher's event loop and block it, so each must be quick. A
        handler that raises is detached, with a line in the log "pybatcher"; nothing else is
        affected. A handler is kept as long as the batcher runs: one that refers to the batcher
        keeps it from closing itself when it is dropped. Raises ConfigError for an object that
        cannot be called with one event.
        """

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The name of the model, for display. Raises BatcherClosedError before `start`."""

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
        """Make a stream. It refers to the batcher, which closes itself when it is
        garbage-collected.
        """

        async def submit(reply: Reply) -> range:
            with only_typed_errors("this call"):
                return await self._running_service().submit(
                    with_structured_output(call, reply), reply
                )

        return Stream(submit, lambda ids: self._running_service().cancel(ids))

    async def _ask(self, question: Question[T]) -> T:
        service = self._running_service()
        with only_typed_errors("this call"):
            answer = await service.ask(question)
        if (counts := CURRENT_COUNTS.get()) is not None:
            counts.add_prompts_of(answer)
        return answer
