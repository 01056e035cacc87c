"""`pybatcher chat`: a conversation in the terminal, with streamed answers."""

from __future__ import annotations

import asyncio
import importlib
import sys
from contextlib import suppress
from typing import Any

from ..calls.any_batcher import AnyBatcher
from ..config import EngineConfig, SchedulerConfig, SupervisionConfig
from ..errors import ConnectionLostError, InvalidRequestError
from ..params import SamplingParams
from .console import report_error, write
from .options import ModelOption, SystemPromptOption, takes_options
from .over_socket import SocketOption, open_batcher

__all__ = ["chat"]

HINT = "Ctrl-C stops an answer, Ctrl-D leaves, /reset starts over.\n"
Message = dict[str, str]


@takes_options(SamplingParams, EngineConfig, SchedulerConfig, SupervisionConfig)
def chat(
    model: ModelOption = None,
    system_prompt: SystemPromptOption = None,
    socket: SocketOption = None,
    *,
    sampling: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Talk with the model. Ctrl-C stops an answer, Ctrl-D leaves."""
    params = SamplingParams(**sampling)
    # The loop runs only while an answer streams, not while the user types: reading a line needs
    # no thread, and the runner turns Ctrl-C into the cancellation of that answer.
    with asyncio.Runner() as runner:
        batcher = runner.run(open_batcher(socket, model, system_prompt, options))
        try:
            _converse(runner, batcher, params)
        finally:
            runner.run(batcher.close())


def _converse(runner: asyncio.Runner, batcher: AnyBatcher, params: SamplingParams) -> None:
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):  # some builds of Python lack it
            importlib.import_module("readline")  # gives input() line editing and a history
        write(HINT)
    messages: list[Message] = []
    while (line := _read_line(interactive)) is not None:
        if line == "/reset":
            messages.clear()
        elif line:
            messages.append({"role": "user", "content": line})
            answer = _answer(runner, batcher, messages, params)
            if answer is None:
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})


def _read_line(interactive: bool) -> str | None:
    """Read a line; "" where Ctrl-C interrupts it, None at the end of input."""
    try:
        return input("> " if interactive else "").strip()
    except EOFError:
        if interactive:
            write("\n")
        return None
    except KeyboardInterrupt:
        write("\n")
        return ""


def _answer(
    runner: asyncio.Runner, batcher: AnyBatcher, messages: list[Message], params: SamplingParams
) -> str | None:
    """Stream the answer to stdout and return it; None if the request failed.

    Ctrl-C ends the answer early; the text so far is returned. Reports the error of a failure.
    """
    parts: list[str] = []

    async def stream() -> None:
        async with batcher.stream_chat(messages, params) as pieces:
            async for piece in pieces:
                write(piece.text)
                parts.append(piece.text)

    try:
        runner.run(stream())
    except KeyboardInterrupt:
        pass
    except InvalidRequestError as error:
        report_error(f"{error} (/reset starts the conversation over)")
        return None
    except ConnectionLostError as error:
        report_error(f"{error} (ask again to have it made anew)")
        return None
    write("\n")
    return "".join(parts)
