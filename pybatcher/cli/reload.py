"""`pybatcher reload`: another model, or other options, for a running sidecar."""

from __future__ import annotations

import asyncio
from typing import Any

from ..config import EngineConfig, SchedulerConfig, SupervisionConfig
from ..sidecar.client.client import Client
from .options import ModelOption, SystemPromptOption, takes_options
from .over_socket import SidecarOption, connect, socket_path
from .status import Status, ask_status, show_status

__all__ = ["reload"]


@takes_options(EngineConfig, SchedulerConfig, SupervisionConfig)
def reload(
    socket: SidecarOption = "",
    model: ModelOption = None,
    system_prompt: SystemPromptOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Have a running `pybatcher serve` open another model, or use other options.

    What is not given stays as it is. New requests go to the new model when it is open, those in
    flight end where they are. Where it cannot be opened, all is as before.
    """
    changes = dict(options)
    if model is not None:
        changes["model"] = str(model.absolute())  # the sidecar may run elsewhere
    if system_prompt is not None:
        changes["system_prompt"] = system_prompt
    show_status(asyncio.run(_reload(socket_path(socket), changes)))


async def _reload(path: str, changes: dict[str, Any]) -> Status:
    (await connect(path)).close()
    async with Client(path) as client:
        await client.reload(**changes)
    return await ask_status(path)
