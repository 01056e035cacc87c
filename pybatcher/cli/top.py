"""`pybatcher top`: a live view of a batcher at work.

The batcher is one in this process, under a random load, or a running `pybatcher serve`, at its
socket or its URL.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from ..batcher import Batcher
from ..calls.any_batcher import AnyBatcher
from ..errors import ConfigError
from ..params import SamplingParams
from ..params.config import EngineConfig, SchedulerConfig
from .options import ModelOption, takes_options
from .over_socket import SocketOption, open_batcher
from .random_load import RandomLoad
from .top_over_http import KEY_VARIABLE, check_url, feed_into, key_of
from .top_view import TopView

__all__ = ["top"]

FRAMES_PER_SECOND = 4
LINES_PER_SECOND = 1  # if stdout is no terminal
N_CALLERS, MOST_CALLERS = 12, 10_000
MAX_TOKENS = 128

LoadOption = Annotated[
    int | None, typer.Option(help="Number of made-up callers.", show_default=str(N_CALLERS))
]
SecondsOption = Annotated[
    float | None, typer.Option(help="End after so long.", show_default="at Ctrl-C")
]
MaxTokensOption = Annotated[
    int | None, typer.Option(help="Most tokens of an answer.", show_default=str(MAX_TOKENS))
]

UrlArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[URL]",
        help="Watch the server at this address, as http://127.0.0.1:8000.",
        show_default=False,
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        help=f"File whose first key the server at the URL gets; without it, ${KEY_VARIABLE}.",
        show_default=False,
    ),
]


@takes_options(EngineConfig, SchedulerConfig)
def top(
    url: UrlArgument = None,
    model: ModelOption = None,
    socket: SocketOption = None,
    demo_load: LoadOption = None,
    seconds: SecondsOption = None,
    max_tokens: MaxTokensOption = None,
    api_key_file: KeyFileOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Watch a batcher at work: throughput, batches, queue, KV, latencies.

    It opens the model in this process, with made-up callers that ask at random; some
    leave early, some have a deadline. With --socket or a URL it watches a running
    `pybatcher serve` instead and sends it no requests; --model then is a name of
    the server at the URL. Ctrl-C ends it. Where stdout is no terminal, it prints one
    line a second.
    """
    if demo_load is not None and not 1 <= demo_load <= MOST_CALLERS:
        raise ConfigError(f"demo_load is {demo_load}; it must be from 1 to {MOST_CALLERS}")
    if seconds is not None and not 0 < seconds < math.inf:
        raise ConfigError(f"seconds is {seconds}; it must be above 0, and not infinite")
    if url is not None:
        of_model = [name for name, value in options.items() if value is not None]
        given = {"socket": socket, "demo_load": demo_load, "max_tokens": max_tokens}
        refused = of_model + [name for name, value in given.items() if value is not None]
        if refused:
            raise ConfigError(
                f"--{refused[0].replace('_', '-')} goes with a batcher of this process, and a URL "
                "is given"
            )
        _watch_url(check_url(url), model, key_of(api_key_file), seconds)
        return
    if api_key_file is not None:
        raise ConfigError("--api-key-file goes with the URL of a server; give one as well")
    if socket is not None and (demo_load, max_tokens) != (None, None):
        raise ConfigError("--demo-load and --max-tokens are of a load, and with --socket is none")
    max_tokens = MAX_TOKENS if max_tokens is None else max_tokens
    SamplingParams(max_tokens=max_tokens)
    asyncio.run(_top(socket, model, options, demo_load or N_CALLERS, max_tokens, seconds))


def _watch_url(url: str, model: str | None, key: str | None, seconds: float | None) -> None:
    console, view = Console(highlight=False), TopView("")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as with Ctrl-C
    try:
        with closing(feed_into(view, url, model, key, seconds)) as frames:
            next(frames, None)  # a refusal is an error before anything is shown
            with _shown(console, view) as show:
                shown = -math.inf
                for _ in frames:
                    if console.is_terminal or time.monotonic() >= shown + 1 / LINES_PER_SECOND:
                        shown = time.monotonic()
                        show()
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


async def _top(
    socket: str | None,
    model: str | None,
    options: dict[str, Any],
    n_callers: int,
    max_tokens: int,
    seconds: float | None,
) -> None:
    batcher = await open_batcher(socket, model, None, options)
    load = RandomLoad(batcher, n_callers, max_tokens) if isinstance(batcher, Batcher) else None
    await _run(batcher, load, seconds)


async def _run(batcher: AnyBatcher, load: RandomLoad | None, seconds: float | None) -> None:
    async with batcher:
        view = TopView(batcher.model_name)
        batcher.attach(view.take)
        loading = asyncio.create_task(load.run() if load is not None else _watch_only())
        try:
            with _ended_by_signals():
                await _watch(batcher, view, loading, seconds)
        finally:
            loading.cancel()
            await asyncio.wait({loading})


async def _watch_only() -> None:
    await asyncio.Event().wait()


async def _watch(
    batcher: AnyBatcher, view: TopView, loading: asyncio.Task[None], seconds: float | None
) -> None:
    """Show the view for `seconds`. Raises the error of a load that failed."""
    console = Console(highlight=False)
    end = math.inf if seconds is None else time.monotonic() + seconds
    await _update(view, batcher)
    with _shown(console, view) as show:
        period = 1 / (FRAMES_PER_SECOND if console.is_terminal else LINES_PER_SECOND)
        while (left := end - time.monotonic()) > 0:
            await asyncio.wait({loading}, timeout=min(period, left))
            await _update(view, batcher)
            show()
            if loading.done():
                loading.result()


async def _update(view: TopView, batcher: AnyBatcher) -> None:
    statistics, health = await batcher.statistics(), await batcher.health()
    view.update(statistics, health, time.monotonic())


@contextmanager
def _shown(console: Console, view: TopView) -> Iterator[Callable[[], None]]:
    """Yield a function that draws the view now. On a terminal the last frame stays."""
    if not console.is_terminal:
        yield lambda: console.print(view.line(), soft_wrap=True)
        return
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            yield lambda: live.update(view.render(*console.size), refresh=True)
    finally:
        # minus one line for the prompt
        console.print(view.render(console.width, console.height - 1))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End the block, not the process, on SIGTERM and Ctrl-C, so that the terminal is restored."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        with suppress(asyncio.CancelledError):
            yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
