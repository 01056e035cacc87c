"""What commands share of a terminal: errors, warnings, streamed text."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from ..errors import PybatcherError

__all__ = ["errors_reported", "report_error", "write"]

REFUSED = 2


@contextlib.contextmanager
def errors_reported() -> Iterator[None]:
    """Turn what a command may raise into one line on stderr and an exit status.

    Typer does so for wrong arguments, Ctrl-C and a reader of stdout that leaves.
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
        except OSError as error:  # stdout on a full disk, say
            report_error(str(error))
            sys.exit(REFUSED)


def report_error(message: str) -> None:
    """One line on stderr, red where there is colour."""
    _print_line("error: " + " ".join(message.split()), "red")


def write(text: str) -> None:
    """Put streamed text on stdout now."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _print_line(f"warning: {message}", "yellow")


def _print_line(line: str, style: str) -> None:
    Console(stderr=True).print(Text(line, style=style), soft_wrap=True)
