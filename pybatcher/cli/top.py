"""`pybatcher top`: a live view of a batcher at work, under a load of its own making."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from ..batcher import Batcher
from ..config import EngineConfig, SchedulerConfig
from ..errors import ConfigError
from ..params import SamplingParams
from .loading_bar import loading_bar
from .options import ModelOption, takes_options
from .random_load import RandomLoad
from .top_view import TopView

__all__ = ["top"]

FRAMES_PER_SECOND = 4
LINES_PER_SECOND = 1  # where stdout is no terminal
MOST_CALLERS = 10_000

LoadOption = Annotated[int, typer.Option(help="How many callers ask, at random.")]
SecondsOption = Annotated[
    float | None, typer.Option(help="End after so long.", show_default="at Ctrl-C")
]
MaxTokensOption = Annotated[int, typer.Option(help="Most tokens of an answer.")]


@takes_options(EngineConfig, SchedulerConfig)
def top(
    model: ModelOption = None,
    demo_load: LoadOption = 12,
    seconds: SecondsOption = None,
    max_tokens: MaxTokensOption = 128,
    *,
    options: dict[str, Any],
) -> None:
    """Watch a batcher at work: throughput, batches, queue, KV, latencies.

    It opens the model in this process. Callers ask it at random; some leave
    early, some have a deadline. Ctrl-C ends it. Where stdout is no terminal
    there is a line a second.
    """
    if not 1 <= demo_load <= MOST_CALLERS:
        raise ConfigError(f"demo_load is {demo_load}; it must be from 1 to {MOST_CALLERS}")
    if seconds is not None and not 0 < seconds < math.inf:
        raise ConfigError(f"seconds is {seconds}; it must be above 0, and not infinite")
    SamplingParams(max_tokens=max_tokens)
    with loading_bar() as progress:
        batcher = Batcher(model, progress=progress, **options)
        asyncio.run(_run(batcher, RandomLoad(batcher, demo_load, max_tokens), seconds))


async def _run(batcher: Batcher, load: RandomLoad, seconds: float | None) -> None:
    async with batcher:
        view = TopView(batcher.model_name)
        batcher.attach(view.take)
        loading = asyncio.create_task(load.run())
        try:
            with _ended_by_signals():
                await _watch(batcher, view, loading, seconds)
        finally:
            loading.cancel()
            await asyncio.wait({loading})


async def _watch(
    batcher: Batcher, view: TopView, loading: asyncio.Task[None], seconds: float | None
) -> None:
    """Show the view until the time is over, or the load has failed: that error is raised."""
    console = Console(highlight=False)
    end = math.inf if seconds is None else time.monotonic() + seconds
    view.update(batcher.statistics(), batcher.health(), time.monotonic())
    with _shown(console, view) as show:
        period = 1 / (FRAMES_PER_SECOND if console.is_terminal else LINES_PER_SECOND)
        while (left := end - time.monotonic()) > 0:
            await asyncio.wait({loading}, timeout=min(period, left))
            view.update(batcher.statistics(), batcher.health(), time.monotonic())
            show()
            if loading.done():
                loading.result()


@contextmanager
def _shown(console: Console, view: TopView) -> Iterator[Callable[[], None]]:
    """What draws the view as it is now. On a terminal the last picture stays."""
    if not console.is_terminal:
        yield lambda: console.print(view.line(), soft_wrap=True)
        return
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            yield lambda: live.update(view.render(*console.size), refresh=True)
    finally:
        console.print(view.render(console.width, console.height - 1))  # a line for the prompt


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and Ctrl-C end what is inside, and nothing more: a terminal is put in order."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        with suppress(asyncio.CancelledError):
            yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
