"""The command line: `pybatcher generate`, `chat`, `serve`, `status`, `info`, `demo` and more.

A thin client of `Batcher`, or of `Client` where `--socket` names a sidecar. Each command has a
file, which is imported when the command is called. options.py makes the options from the fields of
`SamplingParams` and of the configuration classes in params/config.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer

from .console import report_errors, write

__all__ = ["COMMANDS", "main", "make_app"]

_OVER_SOCKET = ("generate", "chat", "status", "reload", "top")
_WITH_OPTIONS = ("generate", "chat", "reload", "serve", "info", "demo")
COMMANDS = (*_OVER_SOCKET, "serve", "info", "demo", "pull", "models", "cache")
"""The commands, in the order of the help. Each is the function of its name in its module."""


def make_app(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """Make an application with the given commands, and import no others."""
    app = typer.Typer(
        name="pybatcher",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in commands:
        command = getattr(import_module(f".{name}", __name__), name)
        app.command(**_kind_of(name))(command)
    return app


def _kind_of(name: str) -> dict[str, Any]:
    """Return the class of a command and the last line of its help."""
    if name not in _WITH_OPTIONS and name not in _OVER_SOCKET:
        return {}
    from .options import HELP_ALL, LongHelpCommand
    from .over_socket import SocketCommand

    more = f"{HELP_ALL} shows all options." if name in _WITH_OPTIONS else None
    return {"cls": SocketCommand if name in _OVER_SOCKET else LongHelpCommand, "epilog": more}


def _show_version(asked: bool) -> None:
    if asked:
        from .. import __version__  # computed on access, from the package's metadata

        write(f"pybatcher {__version__}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """An LLM inference engine you await."""


def main() -> None:
    """Run the command in `sys.argv`, and exit.

    Exit status: 0 success, 1 the command's own negative result, 2 refused (one line on stderr
    that begins with `error:`), 130 interrupted.
    """
    asked = sys.argv[1:2]
    with report_errors():
        make_app(asked if asked and asked[0] in COMMANDS else COMMANDS)()
