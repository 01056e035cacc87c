"""Terminal output of all commands: errors, warnings, streamed text."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator

from ..errors import PybatcherError

__all__ = ["remark", "report_error", "report_errors", "visible", "write", "write_foreign"]

REFUSED = 2
# A terminal acts on control characters: C0 except tab and newline, DEL and C1.
_CONTROLS = (*range(9), *range(11, 32), *range(127, 160))
_VISIBLE = {code: f"\\x{code:02x}" for code in _CONTROLS}


@contextlib.contextmanager
def report_errors() -> Iterator[None]:
    """Turn an exception of a command into one line on stderr and exit status 2.

    Also prints warnings as one line each. Typer handles wrong arguments, Ctrl-C and a closed
    stdout.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            yield
        except PybatcherError as error:
            report_error(str(error))
            sys.exit(REFUSED)
        except MemoryError:
            report_error("not enough memory for this model with these options; lower --n-ctx")
            sys.exit(REFUSED)
        except OSError as error:  # for example, stdout on a full disk
            report_error(str(error))
            _drop_unwritten()
            sys.exit(REFUSED)


def report_error(message: str) -> None:
    """Print the message as one line on stderr, red if the terminal has colours."""
    _print_line("error: " + " ".join(message.split()), "red")


def _drop_unwritten() -> None:
    """Drop output that stdout cannot take, which Python would retry at its end (status 120)."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def visible(text: str) -> str:
    """Return a text that may come from anywhere with its control characters as escapes.

    The text of a model, of a tool or of a server could otherwise move the cursor, change the title
    or the clipboard of the terminal, or send it input.
    """
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def write_foreign(text: str) -> None:
    """Write a text of a model to stdout and flush; on a terminal as `visible`, else unchanged."""
    write(visible(text) if sys.stdout.isatty() else text)


def write(text: str) -> None:
    """Write the text to stdout and flush."""
    sys.stdout.write(text)
    sys.stdout.flush()


def remark(text: str) -> None:
    """Write text beside the output to stderr, dim if the terminal has colours."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    shown = visible(text) if console.is_terminal else text
    console.print(Text(shown, style="dim"), soft_wrap=True, end="")


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _print_line(f"warning: {message}", "yellow")


def _print_line(line: str, style: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    shown = visible(line) if console.is_terminal else line
    console.print(Text(shown, style=style), soft_wrap=True)
