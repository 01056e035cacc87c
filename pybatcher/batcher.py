"""`Batcher`: serves the calls of many callers with shared forward passes, on asyncio.

`BlockingBatcher`: the same for code without asyncio, from any number of threads.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack, override

from .calls.any_batcher import AnyBatcher
from .calls.prefix_info import Prefixes
from .calls.statistics import BatcherStatistics, Health
from .calls.telemetry import Handler, Telemetry
from .calls.threads.calls import BlockingCalls, ThreadsafeBatcher
from .errors import EngineFailedError
from .errors.checks import OPTION, short
from .params.batcher_options import BatcherOptions
from .params.config import check_path, lists_options, split_options
from .serving.call_reader import CallReader
from .serving.runtime import CheckpointOpener, Opener, Runtime, open_torch_module
from .serving.service import Service
from .serving.system_prompt import check_system_prompt

if TYPE_CHECKING:
    from typing import Self

    from .engine import Progress

__all__ = ["Batcher", "BlockingBatcher"]


class Batcher(AnyBatcher):
    """A model inside this process that answers many callers at once.

        async with Batcher("path/to/model") as batcher:
            answer = await batcher.generate("Once upon a time", max_tokens=64)

    model: a Hugging Face directory, a .gguf file or a name on the Hugging Face hub, such as
        "Qwen/Qwen3-0.6B"; None: the small model that ships with the package.
    system_prompt: comes before every text prompt, and is the system message of every chat without
        one. Its KV is computed once. Prompts of token ids are not changed.
    progress: called while the model is downloaded and opened, on the thread that does it, with the
        bytes done so far and the total.
    on_failure: called on the event loop with the EngineFailedError when the engine has failed too
        often, or hangs, before any caller gets an error. A supervised process can exit here, so
        that it is restarted.
    options: the fields of EngineConfig, SchedulerConfig and SupervisionConfig, by name.

    A batcher belongs to the event loop and to the process that started it; `threadsafe` has the
    calls for other threads and loops. It sets no signal handlers and keeps no global state, so a
    process may have several.

    Raises ConfigError for options that cannot work.
    """

    _own_name = "batcher"
    _name = "an open module"

    @lists_options
    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        system_prompt: str | None = None,
        progress: Progress | None = None,
        on_failure: Callable[[EngineFailedError], object] | None = None,
        **options: Unpack[BatcherOptions],
    ) -> None:
        path = None if model is None else check_path("model", model, "a path or a name, or None")
        self._name = "the shipped model" if path is None else short(path)
        if path is not None and not isinstance(model, str):
            path = os.path.join(os.curdir, path)  # a path is no name on the hub
        opener = CheckpointOpener(path, OPTION.function("progress", progress))
        self._configure(opener, system_prompt, options, on_failure=on_failure)

    @classmethod
    @lists_options
    def from_torch(
        cls,
        module: Any,
        tokenizer: Any = None,
        *,
        system_prompt: str | None = None,
        **options: Unpack[BatcherOptions],
    ) -> Self:
        """Make a batcher over a transformers module that is loaded in this process.

        tokenizer: a tokenizer of transformers or tokenizers; None: prompts are token ids.
        """
        return cls._over(partial(open_torch_module, module, tokenizer), system_prompt, options)

    @classmethod
    def _over(
        cls,
        opener: Opener,
        system_prompt: str | None,
        options: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
        on_failure: Callable[[EngineFailedError], object] | None = None,
        reader: Callable[..., CallReader] = CallReader,
    ) -> Self:
        """Make a batcher over a runtime that `opener` opens. `fake_batcher` uses it too.

        reader: as in `Service`.
        """
        self = cls.__new__(cls)
        self._configure(opener, system_prompt, options, clock, on_failure, reader)
        return self

    def _configure(
        self,
        opener: Opener,
        system_prompt: str | None,
        options: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
        on_failure: Callable[[EngineFailedError], object] | None = None,
        reader: Callable[..., CallReader] = CallReader,
    ) -> None:
        super().__init__()
        self._engine_config, self._scheduler_config, self._supervision = split_options(options)
        self._system_prompt = check_system_prompt(system_prompt)
        self._opener = opener
        self._reader = reader
        self._clock = clock
        self._telemetry = Telemetry(clock, OPTION.function("on_failure", on_failure))

    # -- life -------------------------------------------------------------------------------

    @override
    async def _start_service(self) -> Service:
        runtime = await self._open()
        engine, scheduler = runtime.engine, self._scheduler_config
        try:
            return Service(
                runtime,
                scheduler,
                self._supervision,
                self._system_prompt,
                self._clock,
                self._telemetry,
                limits={
                    "n_ctx": engine.kv_total_blocks * engine.block_size,
                    "n_parallel": engine.n_parallel - scheduler.max_prefixes,
                    "max_prefixes": scheduler.max_prefixes,
                    "max_queue_requests": scheduler.max_queue_requests,
                    "max_queue_tokens": scheduler.max_queue_tokens,
                },
                reader=self._reader,
            )
        except BaseException:
            runtime.engine.close()
            raise

    async def _open(self) -> Runtime:
        loop = asyncio.get_running_loop()
        n_prefixes = self._scheduler_config.max_prefixes
        opening = loop.run_in_executor(None, self._opener, self._engine_config, n_prefixes)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_what_was_opened)
            raise

    # -- values without waiting -------------------------------------------------------------

    @property
    def threadsafe(self) -> ThreadsafeBatcher:
        """The same calls for other threads and other event loops."""
        return ThreadsafeBatcher(self, lambda: self._running_service().remote_calls())

    @override
    def attach(self, handler: Handler) -> Callable[[], None]:
        return self._telemetry.attach(handler)

    @override
    def prefixes(self) -> Prefixes:
        return self._running_service().prefixes()

    @override
    def statistics(self) -> BatcherStatistics:
        return self._running_service().statistics()

    @property
    def _n_parallel(self) -> int:
        """The most requests that run at once, once started."""
        return self.runtime.engine.n_parallel - self._scheduler_config.max_prefixes

    def check_idle(self) -> None:
        """Raise an EngineError that names leftovers: requests, and KV blocks that no prefix holds.

        For tests of code that uses a batcher: when every caller has its answer, nothing is left
            over. Cancelled requests remain until the step under way has ended. After `close`, it
            reports the leftovers of that time. Raises BatcherClosedError before `start`.
        """
        self._running_service().check_idle()

    @override
    def health(self) -> Health:
        if isinstance(self._service, Service):
            return self._service.health()
        if self._closed:
            return Health("closed", "the batcher was closed before it was started")
        return Health("new", "the batcher was not started")

    @property
    @override
    def model_name(self) -> str:
        return self.runtime.name

    @property
    def runtime(self) -> Runtime:
        """Engine, tokenizer and chat template, once started. Do not call the engine."""
        return self._running_service().runtime

    def __repr__(self) -> str:
        return f"<Batcher of {self._name}: {self.health().status}>"

    @override
    def _running_service(self) -> Service:
        service = super()._running_service()
        assert isinstance(service, Service)
        return service


def _close_what_was_opened(opening: asyncio.Future[Runtime]) -> None:
    """Close the engine of a model whose `start` was cancelled while it was opened."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().engine.close()


class BlockingBatcher(BlockingCalls[Batcher]):
    """A `Batcher` on an event loop and a thread of its own. Its methods wait and return.

        with BlockingBatcher("path/to/model") as batcher:
            answer = batcher.generate("Once upon a time", max_tokens=64)

    The first call starts it, if it was not started by `with` or `start`. Threads that call it at
    the same time share forward passes. A call that is interrupted (Ctrl-C) cancels its request.
    Without a `close`, the batcher is closed, without draining, when it is garbage-collected or the
    interpreter exits. Arguments and errors are those of `Batcher`.
    """

    _own_name = "batcher"

    @lists_options
    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        system_prompt: str | None = None,
        progress: Progress | None = None,
        on_failure: Callable[[EngineFailedError], object] | None = None,
        **options: Unpack[BatcherOptions],
    ) -> None:
        self._configure(
            Batcher(
                model,
                system_prompt=system_prompt,
                progress=progress,
                on_failure=on_failure,
                **options,
            )
        )

    @classmethod
    @lists_options
    def from_torch(
        cls,
        module: Any,
        tokenizer: Any = None,
        *,
        system_prompt: str | None = None,
        **options: Unpack[BatcherOptions],
    ) -> Self:
        """Make a batcher over a transformers module that is loaded in this process.

        tokenizer: a tokenizer of transformers or tokenizers; None: prompts are token ids.
        """
        return cls.over(
            Batcher.from_torch(module, tokenizer, system_prompt=system_prompt, **options)
        )

    @override
    def prefixes(self) -> Prefixes:
        return self._batcher.prefixes()

    @override
    def statistics(self) -> BatcherStatistics:
        return self._batcher.statistics()

    @override
    def health(self) -> Health:
        return self._batcher.health()
