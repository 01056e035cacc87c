"""`BlockingBatcher`: the same batcher for code without asyncio, from any number of threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .batcher import Batcher
from .blocking_calls import BlockingCalls
from .prefix_info import PrefixInfo
from .statistics import BatcherStatistics, Health

if TYPE_CHECKING:
    from typing import Self

    from .engine import Progress

__all__ = ["BlockingBatcher"]


class BlockingBatcher(BlockingCalls[Batcher]):
    """A `Batcher` on an event loop and a thread of its own. Its methods wait and return.

        with BlockingBatcher("path/to/model") as batcher:
            answer = batcher.generate("Once upon a time", max_tokens=64)

    Threads that call it at the same time share forward passes. A call that is
    interrupted (Ctrl-C) cancels its request. What is not closed is closed,
    without draining, when it is collected or the interpreter exits. Arguments
    and errors are those of `Batcher`.
    """

    _own_name = "batcher"

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        system_prompt: str | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        self._configure(Batcher(model, system_prompt=system_prompt, progress=progress, **options))

    @classmethod
    def from_torch(
        cls, module: Any, tokenizer: Any, *, system_prompt: str | None = None, **options: Any
    ) -> Self:
        """Over a live transformers module. See `Batcher.from_torch`."""
        return cls.over(
            Batcher.from_torch(module, tokenizer, system_prompt=system_prompt, **options)
        )

    def prefixes(self) -> tuple[PrefixInfo, ...]:
        """All that are kept. See `Batcher.prefixes`."""
        return self._batcher.prefixes()

    def statistics(self) -> BatcherStatistics:
        """Counts since the start. See `Batcher.statistics`."""
        return self._batcher.statistics()

    def health(self) -> Health:
        """Whether requests are served, and if not, why."""
        return self._batcher.health()
