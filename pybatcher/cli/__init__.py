"""The command line: `pybatcher generate`, `chat`, `serve`, `status`, `info`, `demo` and more.

A thin client of `Batcher`, or of `Client` where `--socket` names a sidecar. Each command has a
file. options.py makes the options from the fields of `SamplingParams` and of the configuration
classes in config.py.
"""

from __future__ import annotations

from typing import Annotated

import typer

from . import cache, chat, demo, generate, info, reload, serve, status, top
from .console import report_errors, write
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
        from .. import __version__  # computed on access, from the package's metadata

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
    """Run the command in `sys.argv`, and exit.

    Exit status: 0 success, 1 the command's own negative result, 2 refused (one line on stderr
    that begins with `error:`), 130 interrupted.
    """
    with report_errors():
        app()
