"""`pybatcher generate`: stream the continuation of one prompt to stdout."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import typer

from ..errors import ConfigError, InvalidRequestError
from ..params import SamplingParams
from ..params.config import EngineConfig, SchedulerConfig, SupervisionConfig
from .console import write, write_foreign
from .options import ModelOption, SystemPromptOption, chosen_model, takes_options
from .over_socket import SocketOption, open_batcher

__all__ = ["generate"]

WordsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="[MODEL] PROMPT",
        help="The model, or --model instead; the text to continue, or - to read it from stdin.",
        show_default=False,
    ),
]


PriorityOption = Annotated[
    int, typer.Option(help="The lower, the sooner it is served.", rich_help_panel="Sampling")
]
ImageOption = Annotated[list[str] | None, typer.Option("--image", hidden=True)]


@takes_options(SamplingParams, EngineConfig, SchedulerConfig, SupervisionConfig)
def generate(
    words: WordsArgument,
    model: ModelOption = None,
    system_prompt: SystemPromptOption = None,
    socket: SocketOption = None,
    priority: PriorityOption = 0,
    image: ImageOption = None,
    *,
    sampling: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Continue a text, streaming to stdout.

    With --n above 1, all continuations are printed at the end, each below its number.
    """
    if image:
        raise ConfigError(
            "image is an option of chats, whose template has a place for it: pybatcher chat "
            "--image FILE"
        )
    *first, prompt = words
    if len(first) > 1:
        raise ConfigError(
            f"{len(words)} words are given; expected a prompt, or a model and a prompt: put the "
            "prompt in quotation marks"
        )
    path = chosen_model(first[0] if first else None, model)
    params = SamplingParams(**sampling)
    text = _read_stdin() if prompt == "-" else prompt
    asyncio.run(_generate(text, params, priority, socket, path, system_prompt, options))


async def _generate(
    prompt: str,
    params: SamplingParams,
    priority: int,
    socket: str | None,
    model: str | None,
    system_prompt: str | None,
    options: dict[str, Any],
) -> None:
    async with await open_batcher(socket, model, system_prompt, options) as batcher:
        if params.n > 1:  # the pieces of several outputs would interleave
            completion = await batcher.generate(prompt, params, priority=priority)
            for number, choice in enumerate(completion.choices, 1):
                write_foreign(f"-- {number}\n{choice.text}\n")
            return
        async with batcher.stream(prompt, params, priority=priority) as pieces:
            async for piece in pieces:
                write_foreign(piece.text)
    write("\n")


def _read_stdin() -> str:
    """Read stdin without the last newline, which `echo` adds. Raises InvalidRequestError."""
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the prompt on stdin is not UTF-8: {error}") from error
