"""`Batcher`: await an answer; everybody who awaits one shares the forward passes."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .calls.arguments import check_timeout
from .calls.call import HasCallService
from .calls.generating_calls import GeneratingCalls
from .calls.prefix_calls import PrefixCalls
from .calls.prefix_info import PrefixInfo
from .calls.scoring_calls import ScoringCalls
from .calls.statistics import BatcherStatistics, Health
from .calls.telemetry import Handler, Telemetry
from .config import split_options
from .errors import BatcherClosedError, EngineFailedError
from .serving.runtime import Opener, Runtime, open_checkpoint, open_torch_module
from .serving.service import Service
from .serving.system_prompt import check_system_prompt
from .threads.blocking_calls import BlockingCalls
from .threads.threadsafe import ThreadsafeBatcher

if TYPE_CHECKING:
    from typing import Self

    from .calls.any_batcher import AnyBatcher
    from .engine import Progress

__all__ = ["Batcher", "BlockingBatcher"]


class Batcher(HasCallService, GeneratingCalls, PrefixCalls, ScoringCalls):
    """A model inside this process that answers many callers at once.

        async with Batcher("path/to/model") as batcher:
            answer = await batcher.generate("Once upon a time", max_tokens=64)

    model: a Hugging Face directory or a .gguf file; None: the small model that
        ships inside.
    system_prompt: comes before every prompt that is a text, and is the system
        message of every chat without one. Its KV is computed once. Prompts of
        token ids are taken as they are.
    progress: called while the model is opened, on the thread that opens it, with
        the bytes of weights that are loaded and all of them.
    on_failure: called on the event loop with the EngineFailedError when the engine has
        failed too often, or hangs, before any caller hears of it: the place to end the
        process, where another will be started.
    options: the fields of EngineConfig, SchedulerConfig and SupervisionConfig, by name.

    Belongs to the event loop and to the process it was started in; `threadsafe`
    has the way in from other threads and loops. Sets no signal handlers and
    keeps nothing global: there can be several.

    Raises ConfigError for options that cannot work.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        system_prompt: str | None = None,
        progress: Progress | None = None,
        on_failure: Callable[[EngineFailedError], object] | None = None,
        **options: Any,
    ) -> None:
        opener = partial(open_checkpoint, model, progress)
        self._configure(opener, system_prompt, options, on_failure=on_failure)

    @classmethod
    def from_torch(
        cls, module: Any, tokenizer: Any, *, system_prompt: str | None = None, **options: Any
    ) -> Self:
        """A batcher over a transformers module that is alive in this process.

        tokenizer: of transformers or tokenizers; None: prompts are token ids.
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
    ) -> Self:
        """A batcher over whatever `opener` opens. `pybatcher.testing.fake_batcher` uses it too."""
        self = cls.__new__(cls)
        self._configure(opener, system_prompt, options, clock, on_failure)
        return self

    def _configure(
        self,
        opener: Opener,
        system_prompt: str | None,
        options: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
        on_failure: Callable[[EngineFailedError], object] | None = None,
    ) -> None:
        self._engine_config, self._scheduler_config, self._supervision = split_options(
            dict(options)
        )
        self._system_prompt = check_system_prompt(system_prompt)
        self._opener = opener
        self._clock = clock
        self._telemetry = Telemetry(clock, on_failure)
        self._starting = asyncio.Lock()
        self._closed = False
        self._service: Service | None = None
        self._abandon: weakref.finalize[..., Batcher] | None = None

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the model (on a thread) and begin to serve. Started already, it does nothing.

        Raises ModelFormatError, ConfigError, EngineError; BatcherClosedError after `close`.
        """
        async with self._starting:
            if self._closed:
                raise BatcherClosedError("the batcher was closed; make another")
            if self._service is not None:
                return
            runtime = await self._open()
            try:
                self._service = Service(
                    runtime,
                    self._scheduler_config,
                    self._supervision,
                    self._system_prompt,
                    self._clock,
                    self._telemetry,
                )
            except BaseException:
                runtime.engine.close()
                raise
            self._abandon = weakref.finalize(self, self._service.abandon)

    async def _open(self) -> Runtime:
        config = self._engine_config
        n_sequences = config.n_parallel + self._scheduler_config.max_prefixes
        config = replace(config, n_parallel=n_sequences)
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, self._opener, config)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_what_was_opened)
            raise

    async def close(self, drain: bool = True, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Take no more requests, finish the ones there are, free everything.

        drain: False fails what is in flight with BatcherClosedError instead.
        timeout: seconds to drain; what is not finished then fails so too. So long
            again, and at least 5 s, it waits for the step under way. A step that
            takes longer, or that is hung, is left alone with its thread, which
            frees the engine when it ends.
        Closing again, or while another task closes, waits for the same end.
        """
        timeout = check_timeout(timeout)
        async with self._starting:
            self._closed = True
        if self._service is not None and self._abandon is not None:
            await self._service.close(drain, timeout)
            self._abandon.detach()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Drains; after an exception it does not."""
        await self.close(drain=exc_type is None)

    # -- requests ---------------------------------------------------------------------------

    @property
    def threadsafe(self) -> ThreadsafeBatcher:
        """The same calls for other threads and other event loops."""
        return ThreadsafeBatcher(self, lambda: self._running_service().remote_calls())

    # -- questions --------------------------------------------------------------------------

    def attach(self, handler: Handler) -> Callable[[], None]:
        """Have `handler` called with every event from now on. Call what is returned to detach it.

        Events are a `StepEvent` after each step, and a `RequestEvent` at the end of each
        request. There may be several handlers, attached and detached before the start, after
        it, and from any thread. They run on the batcher's event loop and hold it up: each must
        be quick and must not block. One that raises is detached, with a line in the log
        "pybatcher", and harms nobody. It is kept as long as the batcher runs: one that holds
        the batcher keeps it from closing itself when it is dropped.

        Raises ConfigError for what cannot be called so.
        """
        return self._telemetry.attach(handler)

    def prefixes(self) -> tuple[PrefixInfo, ...]:
        """All that are kept: the system prompt (no name), then as they were added."""
        return self._running_service().prefixes()

    def statistics(self) -> BatcherStatistics:
        """Counts since the start; after `close` the last ones.

        Raises BatcherClosedError before `start`.
        """
        return self._running_service().statistics()

    def check_idle(self) -> None:
        """Raise EngineError that names what is left: requests, KV blocks that no prefix holds.

        For tests of what is built on a batcher: when every caller has its answer, nothing is
        left. What was cancelled is left until the step under way has ended. After `close`: what
        was left then. Raises BatcherClosedError before `start`.
        """
        self._running_service().check_idle()

    def health(self) -> Health:
        """Whether requests are served, and if not, why."""
        if self._service is not None:
            return self._service.health()
        if self._closed:
            return Health("closed", "the batcher was closed before it was started")
        return Health("new", "the batcher was not started")

    @property
    def model_name(self) -> str:
        """Of the model, for people. Raises BatcherClosedError before `start`."""
        return self.runtime.name

    @property
    def runtime(self) -> Runtime:
        """Engine, tokenizer and chat template, once started. The engine is not to be called."""
        return self._running_service().runtime

    def _running_service(self) -> Service:
        if self._service is None:
            raise BatcherClosedError(
                "the batcher was not started; use `async with batcher` or `await batcher.start()`"
            )
        return self._service


def _close_what_was_opened(opening: asyncio.Future[Runtime]) -> None:
    """Nobody waits for the model any more."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().engine.close()


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


if TYPE_CHECKING:
    # A method that differs makes this wrong, and `make check` says so.
    _a_batcher: type[AnyBatcher] = Batcher
