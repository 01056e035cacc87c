"""The command line: `pybatcher generate`, `chat`, `serve`, `status`, `info`, `demo` and more.

A thin client of `Batcher`; of `Client`, where `--socket` names a sidecar. Each command has a file;
their options are the fields of `SamplingParams` and of the configurations (config.py), by name
(see options.py).
"""

from __future__ import annotations

from typing import Annotated

import typer

from . import cache, chat, demo, generate, info, reload, serve, status, top
from .console import errors_reported, write
from .over_socket import SocketCommand

__all__ = ["app", "main"]

app = typer.Typer(
    name="pybatcher",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        from .. import __version__  # looked up when it is asked for

        write(f"pybatcher {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """An LLM inference engine you await."""


for _command in (generate.generate, chat.chat, status.status, reload.reload, top.top):
    app.command(cls=SocketCommand)(_command)
for _command in (serve.serve, info.info, demo.demo, cache.cache):
    app.command()(_command)


def main() -> None:
    """Run the command that the process was started with, and exit.

    Exit status: 0 done, 1 what was asked for came out wrong, 2 refused (one line on stderr that
    begins with `error:`), 130 interrupted.
    """
    with errors_reported():
        app()
