"""`pybatcher reload`: another model, or other options, for a running sidecar."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from ..models.hub import absolute_model
from ..params.config import EngineConfig, SchedulerConfig, SupervisionConfig
from ..sidecar.client.client import Client
from .options import takes_options
from .over_socket import SidecarOption, connect, socket_path
from .status import Status, ask_status, show_status

__all__ = ["reload"]


OtherModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A Hugging Face directory, a .gguf file, or a name on the hub.",
        show_default=False,
    ),
]
OtherSystemPromptOption = Annotated[
    str | None,
    typer.Option(
        "--system-prompt",
        "-s",
        help="Text before every prompt, computed once.",
        show_default=False,
    ),
]


@takes_options(EngineConfig, SchedulerConfig, SupervisionConfig, defaults=False)
def reload(
    socket: SidecarOption = "",
    model: OtherModelOption = None,
    system_prompt: OtherSystemPromptOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Have a running `pybatcher serve` open another model, or use other options.

    An option that is not given keeps the value that the server uses now, whether it came from
    the command line, the config file or an earlier reload. New requests go to the new model once
    it is open; those in flight end with the model they began with. If the new model cannot be
    opened, the error is shown here and the server goes on as before.
    """
    changes = dict(options)
    if model is not None:
        changes["model"] = absolute_model(model, Path.cwd())  # the sidecar may run elsewhere
    if "mmproj" in changes:
        changes["mmproj"] = absolute_model(changes["mmproj"], Path.cwd())
    if system_prompt is not None:
        changes["system_prompt"] = system_prompt
    show_status(asyncio.run(_reload(socket_path(socket), changes)))


async def _reload(path: str, changes: dict[str, Any]) -> Status:
    (await connect(path)).close()
    async with Client(path) as client:
        await client.reload(**changes)
    return await ask_status(path)
