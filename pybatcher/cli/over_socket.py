"""Commands that ask a running `pybatcher serve`: where it is, and what cannot be asked of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ..batcher import Batcher
from ..errors import ConfigError, ConnectionLostError
from ..sidecar.client.client import Client
from ..sidecar.protocol.address import default_socket_path
from ..sidecar.replay.link import Link
from .loading_bar import loading_bar

if TYPE_CHECKING:
    from ..calls.any_batcher import AnyBatcher

__all__ = ["SidecarOption", "SocketCommand", "SocketOption", "connect", "opened", "socket_path"]

SocketOption = Annotated[
    str | None,
    typer.Option(
        "--socket",
        metavar="[PATH]",
        help="Ask the running `pybatcher serve` at this socket; without a path (then last, or "
        "before another option) at the default one.",
        show_default=False,
    ),
]
SidecarOption = Annotated[
    str,
    typer.Option(
        "--socket",
        metavar="[PATH]",
        help="Socket of the running `pybatcher serve`; without it, the default one.",
        show_default=False,
    ),
]

_PATIENCE = 5.0  # seconds for who listens to answer


class SocketCommand(TyperCommand):
    """A command whose `--socket` may be given without a value, which typer does not know."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As it is, but for a `--socket` that is the last, or before an option."""
        end = args.index("--") if "--" in args else len(args)
        following = [*args[1:end], "-"]
        spelled = [
            "--socket=" if (arg, next_arg[:1]) == ("--socket", "-") else arg
            for arg, next_arg in zip(args[:end], following, strict=False)
        ]
        return super().parse_args(ctx, spelled + args[end:])


def socket_path(given: str) -> str:
    """What `--socket` stands for. Raises ConfigError where there is no default."""
    return given or str(default_socket_path(os.environ))


async def connect(path: str) -> Link:
    """A connection to who listens there, now: there is no waiting for somebody to come.

    Raises ConnectionLostError where nobody does, or who does says nothing, or turns us away.
    """
    refusals: list[str] = []

    def take(method: str, params: list[Any]) -> None:
        if method == "refused":
            refusals.extend(map(str, params))

    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_PATIENCE):
            link = Link(peer=str(path), on_notification=take)
            await loop.create_unix_connection(lambda: link, path)
            try:
                await link.request("health", [])
            except BaseException:
                link.close()
                raise
            return link
    except ConnectionLostError as error:
        why = f"{path}: {refusals[0]}" if refusals else str(error)
        raise ConnectionLostError(why) from error
    except TimeoutError as error:
        raise ConnectionLostError(
            f"who listens at {path} does not answer within {_PATIENCE:g} s"
        ) from error
    except OSError as error:
        raise ConnectionLostError(
            f"nobody listens at {path} ({error.strerror or error}); start `pybatcher serve` there, "
            "or name another socket with --socket"
        ) from error


async def opened(
    socket: str | None,
    model: Path | None,
    system_prompt: str | None,
    options: Mapping[str, Any],
) -> AnyBatcher:
    """A batcher of this process, or the client of a sidecar; started, to be closed.

    Raises ConfigError for options that are the sidecar's own, and what `start` does.
    """
    if socket is None:
        with loading_bar() as progress:
            batcher = Batcher(model, system_prompt=system_prompt, progress=progress, **options)
            await batcher.start()
        return batcher
    given = {"model": model, "system_prompt": system_prompt, **options}
    refused = [name for name, value in given.items() if value is not None]
    if refused:
        raise ConfigError(
            f"--{refused[0].replace('_', '-')} is for the process that has the model, which with "
            "--socket is another; leave it out, or have `pybatcher reload` tell it there"
        )
    path = socket_path(socket)
    link = await connect(path)
    try:
        await link.request("hello", [{}])  # there is an answer when the model is open
    finally:
        link.close()
    client = Client(path)
    await client.start()
    return client
