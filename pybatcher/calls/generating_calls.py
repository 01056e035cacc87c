"""`GeneratingCalls`: the part of a batcher's interface that continues texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..params import SamplingParams
from .arguments import is_chat
from .call import Call, Messages, Prompt, service_of
from .completion import Completion
from .stream import Reply, Stream

__all__ = ["GeneratingCalls"]


class GeneratingCalls(Protocol):
    """Prompts and chats that are continued, at once or in pieces, and their tokens."""

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109
        namespace: str | None = None,
        output: Sequence[int] = (),
        **sampling: Any,
    ) -> Completion:
        """Continue `prompt`.

        prompt: a text, or token ids.
        params, sampling: how to draw: `SamplingParams`, or its fields as
            keywords, or both; keywords win.
        priority: the lower, the sooner it is served; waiting makes up for it
            (`priority_aging`). From -1000 to 1000.
        timeout: seconds from now. When they are over, what there is of the
            output is returned (finish_reason "deadline"), or, without a token
            yet (nor one in `output`), DeadlineExceededError raised.
        namespace: cached prefixes are shared with requests of the same one only.
        output: token ids that were drawn for this prompt already. It goes on after
            them with what an undisturbed run would have drawn next (one that is
            sampled: with the same `seed`), and only that is returned and counted,
            its text from where a stream of those tokens would have been;
            `max_tokens` and `min_tokens` count both. For one output only (`n` = 1).
            Where they have ended the output, there is a completion at once,
            without a new token.

        Cancelling the task that awaits cancels the request. Raises
        InvalidRequestError, RequestTooLongError, QueueFullError,
        DeadlineExceededError, EngineFailedError, BatcherClosedError.
        """
        return await _complete(
            self,
            Call(
                content=prompt,
                params=params,
                priority=priority,
                timeout=timeout,
                namespace=namespace,
                output=output,
                sampling=sampling,
            ),
        )

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        namespace: str | None = None,
        output: Sequence[int] = (),
        **sampling: Any,
    ) -> Stream:
        """As `generate`, in pieces as they come: `async for piece in batcher.stream(prompt)`."""
        return _stream(
            self,
            Call(
                content=prompt,
                params=params,
                priority=priority,
                timeout=timeout,
                namespace=namespace,
                output=output,
                sampling=sampling,
            ),
        )

    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109
        namespace: str | None = None,
        **sampling: Any,
    ) -> Completion:
        """The assistant's next turn, by the model's own chat template. Else as `generate`.

        messages: [{"role": "user", "content": "..."}, ...].
        """
        return await _complete(
            self,
            Call(
                content=messages,
                is_chat=True,
                params=params,
                priority=priority,
                timeout=timeout,
                namespace=namespace,
                sampling=sampling,
            ),
        )

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        namespace: str | None = None,
        **sampling: Any,
    ) -> Stream:
        """As `chat`, in pieces as they come."""
        return _stream(
            self,
            Call(
                content=messages,
                is_chat=True,
                params=params,
                priority=priority,
                timeout=timeout,
                namespace=namespace,
                sampling=sampling,
            ),
        )

    async def tokenize(self, content: Prompt | Messages) -> tuple[int, ...]:
        """The token ids that `generate` would go on from, or `chat` for messages.

        With the special tokens and the system prompt that come before. Raises
        InvalidRequestError, BatcherClosedError.
        """
        return await service_of(self).tokenize(content, is_chat(content))

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included. Raises InvalidRequestError."""
        return await service_of(self).detokenize(token_ids)


async def _complete(batcher: GeneratingCalls, call: Call) -> Completion:
    service, reply = service_of(batcher), Reply(streams=False)
    request_ids = await service.submit(call, reply)
    try:
        while not reply.ended:
            await reply.wait()
    except BaseException:  # cancelled: nobody waits for it any more
        service.cancel(request_ids)
        raise
    return reply.result()


def _stream(batcher: GeneratingCalls, call: Call) -> Stream:
    """It holds the batcher, which would close itself if nobody did."""
    return Stream(
        lambda reply: service_of(batcher).submit(call, reply),
        lambda request_ids: service_of(batcher).cancel(request_ids),
    )
