"""`CallReader`: checks the arguments of calls and turns them into the fields of a `Request`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from ..calls.arguments import (
    are_token_ids,
    check_name,
    check_priority,
    check_timeout,
    merge_params,
)
from ..calls.call import Call, CallOptions
from ..calls.chat_settings import ChatSettings
from ..calls.trace_headers import check_trace_headers
from ..errors import ConfigError, InvalidRequestError, RequestTooLongError
from ..params import SamplingParams, StructuredOutput
from ..params.config import SchedulerConfig
from ..scheduling import Request, way_out
from ..text import StopTexts
from ..text.chat_images import take_images
from ..text.grammars import OutputMatcher
from .chat_response import ChatResponse
from .chats import Chat, ChatReader
from .prompts import ChatPrompt, PromptReader, check_messages
from .runtime import Runtime
from .structured_outputs import StructuredOutputs
from .system_prompt import SystemPrompt

__all__ = ["CallReader", "ReadCall", "check_samples"]

T = TypeVar("T")


ReadCall = tuple[
    ChatPrompt, StructuredOutput | None, frozenset[int], Callable[[int], ChatResponse] | None
]
"""A checked call: prompt with its images, structured output of the whole text (None: any text), end
tokens, and a function that makes the response reader of a chat from its sample's seed (None for a
prompt).
"""


class CallReader:
    """Reads the arguments of calls, for one model. For one event loop.

    system_prompt: the text that comes before every text prompt.
    share: called once with the token ids that all chats begin with, if there are any.
    start_over: called before ids of images are used again, as in `ImageIds`.

    Raises ConfigError for a system prompt that the model cannot read.
    """

    def __init__(
        self,
        runtime: Runtime,
        system_prompt: str | None,
        share: Callable[[tuple[int, ...]], object],
        start_over: Callable[[], object],
    ) -> None:
        self._vocab_size = runtime.engine.vocab_size
        self._engine = runtime.engine
        self._n_positions = runtime.engine.max_sequence_length
        self._eos_token_ids = runtime.tokenizer.eos_token_ids
        self._recommended = runtime.sampling
        self._share = share
        self._stops: WeakValueDictionary[tuple[str, ...], StopTexts] = WeakValueDictionary()
        self._making_stops = asyncio.Lock()
        self._first_chat = asyncio.Lock()
        self._chats_share_beginning = False
        self.prompts = PromptReader(
            runtime.tokenizer,
            runtime.chat_template,
            vocab_size=self._vocab_size,
            n_positions=self._n_positions,
            advice=runtime.way_out_of_length(),
            images=runtime.image_reader(start_over),
        )
        self._chats = ChatReader(
            runtime.tokenizer,
            runtime.response_format,
            runtime.chat_template.text,
            runtime.chat_template.takes_several_calls,
        )
        self._forms = StructuredOutputs(
            runtime.tokenizer, self._vocab_size, self._chats.markers.values()
        )
        self._system_prompt: SystemPrompt | None = None
        self.before_texts: tuple[int, ...] = ()
        """The tokens that come before every text prompt."""
        if system_prompt is not None:
            try:
                runtime.check_prefixes()
                self._system_prompt = SystemPrompt(
                    system_prompt, self.prompts, runtime.chat_template
                )
            except InvalidRequestError as error:
                raise ConfigError(f"system_prompt: {error}") from error
            self.before_texts = self._system_prompt.tokens

    def common(self, call: CallOptions, submitted: float) -> dict[str, Any]:
        """Return the fields of `Request` that all requests of a call have in common.

        submitted: when the call was made, in seconds of the coordinator's clock. Raises
        InvalidRequestError.
        """
        timeout = check_timeout(call.timeout)
        return {
            "namespace": check_name("namespace", call.namespace),
            "tenant": check_name("tenant", call.tenant),
            "priority": check_priority(call.priority),
            "deadline": None if timeout is None else submitted + timeout,
            "trace_headers": {}
            if call.trace_headers is None
            else check_trace_headers(call.trace_headers),
        }

    def params(self, call: Call) -> SamplingParams:
        """Return the sampling parameters of a call. Raises InvalidRequestError."""
        params = merge_params(call.params, call.sampling, vocab_size=self._vocab_size)
        return params.with_recommended(self._recommended) if params.of_model else params

    async def output(self, call: Call, params: SamplingParams) -> tuple[int, ...]:
        """Return the token ids that a call came with as its output. Raises InvalidRequestError."""
        output = await self.prompts.read_ids(call.output, field="output", may_be_empty=True)
        if output and params.n > 1:
            raise InvalidRequestError(
                f"n is {params.n}; with output, which one sample has drawn, it must be 1", field="n"
            )
        return output

    async def matchers(
        self, form: StructuredOutput | None, n: int, output: tuple[int, ...], tenant: str
    ) -> list[OutputMatcher] | list[None]:
        """Return new matchers of a structured output, one for each of `n` samples; None: any text.

        output: the tokens that were already generated. tenant: the name under which the call takes
        turns with others. Raises InvalidRequestError.
        """
        if form is None:
            return [None] * n
        return [await self._forms.matcher(form, output, tenant) for _ in range(n)]

    async def stops(self, params: SamplingParams) -> StopTexts | None:
        """Return the automaton of the stop texts; None without any.

        Calls with the same long texts share one, as the samples of a call do that a sidecar's front
        sends one by one. It is made on another thread, one at a time.
        """
        stops = tuple(params.stop)
        if not stops or sum(map(len, stops)) <= _SHORT_STOPS:
            return StopTexts(stops) if stops else None
        async with self._making_stops:
            found = self._stops.get(stops)
            if found is None:
                found = self._stops[stops] = await asyncio.to_thread(StopTexts, stops)
        return found

    async def prompt_tokens(
        self, content: object, settings: ChatSettings | None
    ) -> tuple[int, ...]:
        """Return the token ids of a prompt, or of a chat's messages if `settings` are given.

        There may be more than a sequence has positions. Each token of an image is the model's image
        token.
        """
        if settings is None:
            return await self.prompts.read(content, before=self.before_texts, any_length=True)
        tokens, images = await self._chat_prompt(
            content, await self._chat(settings), any_length=True
        )
        return tokens if images is None else images.plain(tokens)

    async def read(self, call: Call, params: SamplingParams, tenant: str = "") -> ReadCall:
        """Return the prompt of a call, its structured output, its end tokens and its response
        reader. tenant: the name under which the call takes turns with others.
        """
        if call.chat is None:
            prompt = await self.prompts.read(call.content, before=self.before_texts, tenant=tenant)
            return (prompt, None), params.form, self._end_token_ids(params, params.form), None
        chat = await self._chat(call.chat)
        prompt, images = await self._chat_prompt(call.content, chat, tenant)
        plain = prompt if images is None else images.plain(prompt)
        in_reasoning = self._chats.begins_inside_reasoning(plain)
        read_form = partial(self._chats.form, chat, params.form, in_reasoning)
        form = await self._aside(read_form, bool(chat.tools) or params.form is not None)
        ends = self._end_token_ids(params, form)
        if chat.tools and not params.ignore_eos:
            ends |= self._chats.end_token_ids
        respond = partial(self._chats.response, chat, plain, in_reasoning=in_reasoning)
        return (prompt, images), form, ends, respond

    async def _chat(self, settings: ChatSettings) -> Chat:
        return await self._aside(partial(self._chats.read, settings), settings.tools is not None)

    async def _aside(self, function: Callable[[], T], is_slow: bool) -> T:
        """Call a function: with tools or a form it may take long, and runs on another thread."""
        return await asyncio.to_thread(function) if is_slow else function()

    async def _chat_prompt(
        self, content: object, chat: Chat, tenant: str = "", *, any_length: bool = False
    ) -> ChatPrompt:
        if are_token_ids(content):  # the chat was rendered before
            ids = await self.prompts.read_ids(content, field="messages", any_length=any_length)
            return ids, None
        content, images = take_images(check_messages(content))
        if self._system_prompt is not None:
            content = self._system_prompt.before_messages(content)
            await self._share_beginning_of_chats(self._system_prompt)
        return await self.prompts.read_chat(
            content,
            images,
            tools=chat.rendered_tools(),
            tenant=tenant,
            variables=chat.variables,
            any_length=any_length,
        )

    def _end_token_ids(
        self, params: SamplingParams, form: StructuredOutput | None
    ) -> frozenset[int]:
        """Return the token ids that end an output: the model's end tokens, and the caller's.

        A structured output always has the model's own end tokens, which end the structure.
        """
        own = () if params.ignore_eos and form is None else self._eos_token_ids
        known = (token for token in own if token < self._vocab_size)
        return frozenset(params.stop_token_ids).union(known)

    def most_output(self, request: Request) -> int:
        """Return the most tokens of the output.

        Raises RequestTooLongError if the output that the request came with has more.
        """
        n_prompt, n_output = len(request.prompt), len(request.output)
        if n_prompt + n_output > self._n_positions:
            raise RequestTooLongError(
                f"prompt ({n_prompt} tokens) and output ({n_output}) have {n_prompt + n_output} "
                f"tokens; a sequence has {self._n_positions} positions: "
                + way_out(self._engine, "shorten them")
            )
        return request.max_output(self._n_positions)

    async def _share_beginning_of_chats(self, system_prompt: SystemPrompt) -> None:
        """Share the tokens that all chats begin with: once, at the first chat; other chats wait."""
        async with self._first_chat:
            if not self._chats_share_beginning:
                tokens = await self.prompts.on_thread(system_prompt.chat_tokens)
                if tokens:
                    self._share(tokens)
                self._chats_share_beginning = True


_SHORT_STOPS = 256
"""Characters of stop texts whose automaton is made on the loop, in about a millisecond."""


def check_samples(n: int, n_prompt: int, config: SchedulerConfig) -> None:
    """Raise InvalidRequestError if the queue can never hold all samples of a call together.

    Samples are queued together, so no retry would help.
    """
    if n > config.max_queue_requests or (n > 1 and n * n_prompt > config.max_queue_tokens):
        raise InvalidRequestError(
            f"n is {n}, of a prompt of {n_prompt} tokens: more than can ever wait with "
            f"max_queue_requests = {config.max_queue_requests} and max_queue_tokens = "
            f"{config.max_queue_tokens}; lower n, or raise these",
            field="n",
        )
