"""`PrefixCalls`: the part of a batcher's interface that is about prefixes."""

from __future__ import annotations

from typing import Protocol

from .call import Prompt, service_of
from .prefix_info import PrefixInfo

__all__ = ["PrefixCalls"]


class PrefixCalls(Protocol):
    """Prefixes that are named, computed once and kept until they are removed."""

    async def add_prefix(
        self, prefix: Prompt, *, name: str | None = None, namespace: str | None = None
    ) -> PrefixInfo:
        """Compute the KV of a beginning that many prompts will have, and keep it.

            await batcher.add_prefix(manual, name="manual")
            await batcher.generate(manual + question)      # only `question` is computed

        Returns when it is there. Prompts of the namespace that begin so take it from then on,
        whatever the cache has had to give up meanwhile; its KV is taken from `n_ctx` for good.

        prefix: a text, or token ids. A text becomes tokens as the beginning of a prompt does,
            special tokens and the system prompt before it. What a prompt shares are the first
            tokens that are the same: around the seam a tokenizer may join `prefix + rest` in
            another way, and the last token or two of the prefix are then computed with the
            rest. Chats go through a template: for theirs, hand in token ids.
        name: for `remove_prefix`, one in each namespace. None: one is made up. The same tokens
            under another name share the KV; the same name and tokens again count one more
            holder, and it takes one more removal.

        Cancelled, it leaves nothing. Raises InvalidRequestError, also where the name is that
        of other tokens, RequestTooLongError where KV has no room for it, NoFreeSequenceError
        past `max_prefixes`, EngineFailedError, BatcherClosedError.
        """
        return await service_of(self).add_prefix(prefix, name, namespace)

    async def remove_prefix(self, name: str, namespace: str | None = None) -> None:
        """Undo one `add_prefix`. With the last, the KV is free, but for what is in use of it.

        Raises InvalidRequestError where there is no such name.
        """
        await service_of(self).remove_prefix(name, namespace)
