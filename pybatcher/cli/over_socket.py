"""`--socket`: connect a command to a running `pybatcher serve`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typing_extensions import override

from ..batcher import Batcher
from ..errors import ConfigError, ConnectionLostError
from ..sidecar.client.client import Client
from ..sidecar.protocol.address import default_socket_path
from ..sidecar.replay.link import Link
from .loading_bar import loading_bar
from .options import LongHelpCommand

if TYPE_CHECKING:
    from ..calls.any_batcher import AnyBatcher

__all__ = [
    "SidecarOption",
    "SocketCommand",
    "SocketOption",
    "connect",
    "open_batcher",
    "socket_path",
]

SocketOption = Annotated[
    str | None,
    typer.Option(
        "--socket",
        metavar="[PATH]",
        help="Ask the running `pybatcher serve` at this socket; without a path (then last, or "
        "before another option) at the default one, $PYBATCHER_SOCKET.",
        show_default=False,
    ),
]
SidecarOption = Annotated[
    str,
    typer.Option(
        "--socket",
        metavar="[PATH]",
        help="Socket of the running `pybatcher serve`; without it, the one of $PYBATCHER_SOCKET.",
        show_default=False,
    ),
]

_ANSWER_TIMEOUT = 5.0  # seconds for the sidecar to answer


class SocketCommand(LongHelpCommand):
    """A command that accepts `--socket` without a value, which typer does not support."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # --socket has no value if it is the last argument or the next one is an option.
        end = args.index("--") if "--" in args else len(args)
        following = [*args[1:end], "-"]
        spelled = [
            "--socket=" if (arg, next_arg[:1]) == ("--socket", "-") else arg
            for arg, next_arg in zip(args[:end], following, strict=False)
        ]
        return super().parse_args(ctx, spelled + args[end:])


def socket_path(given: str) -> str:
    """Return the path given with `--socket`, or the default. Raises ConfigError without one."""
    return given or str(default_socket_path(os.environ))


async def connect(path: str) -> Link:
    """Connect to the sidecar at `path`, without retries.

    Raises ConnectionLostError if no process listens there, or the one that does refuses the
    connection or does not answer within 5 seconds.
    """
    refusals: list[str] = []

    def take(method: str, params: list[Any]) -> None:
        if method == "refused":
            refusals.extend(map(str, params))

    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT):
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
            f"the process that listens at {path} does not answer within {_ANSWER_TIMEOUT:g} s"
        ) from error
    except OSError as error:
        raise ConnectionLostError(
            f"no process listens at {path} ({error.strerror or error}); "
            "start `pybatcher serve` there, or name another socket with --socket"
        ) from error


async def open_batcher(
    socket: str | None,
    model: str | None,
    system_prompt: str | None,
    options: Mapping[str, Any],
) -> AnyBatcher:
    """Start a batcher in this process, or a client of the sidecar at `socket`.

    The caller closes it. Raises ConfigError for options that only the sidecar can change, and
    the errors of `start`.
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
        await link.request("hello", [{}])  # the sidecar answers once its model is open
    finally:
        link.close()
    client = Client(path)
    await client.start()
    return client
