"""`pybatcher generate`: one prompt, its continuation streamed to stdout."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..batcher import Batcher
from ..config import EngineConfig, SchedulerConfig, SupervisionConfig
from ..errors import InvalidRequestError
from ..params import SamplingParams
from .console import write
from .loading_bar import loading_bar
from .options import ModelOption, SystemPromptOption, takes_options

__all__ = ["generate"]

PromptArgument = Annotated[
    str, typer.Argument(help="The text to continue; - reads it from stdin.", show_default=False)
]


@takes_options(SamplingParams, EngineConfig, SchedulerConfig, SupervisionConfig)
def generate(
    prompt: PromptArgument,
    model: ModelOption = None,
    system_prompt: SystemPromptOption = None,
    *,
    sampling: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Continue a text, streaming to stdout."""
    params = SamplingParams(**sampling)
    text = _read_stdin() if prompt == "-" else prompt
    asyncio.run(_generate(text, params, model, system_prompt, options))


async def _generate(
    prompt: str,
    params: SamplingParams,
    model: Path | None,
    system_prompt: str | None,
    options: dict[str, Any],
) -> None:
    with loading_bar() as progress:
        batcher = Batcher(model, system_prompt=system_prompt, progress=progress, **options)
        await batcher.start()
    async with batcher, batcher.stream(prompt, params) as pieces:
        async for piece in pieces:
            write(piece.text)
    write("\n")


def _read_stdin() -> str:
    """All of stdin but for one newline at its end, which `echo` adds."""
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the prompt on stdin is not UTF-8: {error}") from error
