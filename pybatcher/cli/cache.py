"""`pybatcher cache`: list or remove the packed weights of earlier starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import ConfigError
from .console import write

if TYPE_CHECKING:
    from ..loading.weights_cache import CachedWeights

__all__ = ["cache"]

DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory", help="Where to look; without it, where --weights-cache auto puts them."
    ),
]
ClearOption = Annotated[bool, typer.Option("--clear", help="Remove them all.")]


def cache(directory: DirectoryOption = None, clear: ClearOption = False) -> None:
    """List the packed weights that earlier starts have left, or remove them.

    A process that uses them while they are removed goes on as before.
    """
    from ..loading.weights_cache import default_directory, list_cached

    try:
        place = directory or default_directory()
    except RuntimeError as error:
        raise ConfigError(f"there is no home directory; use --directory ({error})") from error
    found = list_cached(place)
    megabytes = sum(cached.bytes for cached in found) / 1e6
    files = f"{len(found)} {'file' if len(found) == 1 else 'files'}, {megabytes:,.1f} MB"
    if clear:
        for cached in found:
            cached.path.unlink(missing_ok=True)
        write(f"{place}: removed {files}\n")
        return
    if found:
        Console(highlight=False).print(_table(found))
    write(f"{place}: {files}\n")


def _table(found: list[CachedWeights]) -> Table:
    table = Table.grid(padding=(0, 2))
    for cached in found:
        used = time.strftime("%Y-%m-%d", time.localtime(cached.last_used))
        size = f"{cached.bytes / 1e6:,.1f} MB"
        table.add_row(Text(cached.path.name), Text(size), Text(f"used {used}", style="dim"))
    return table
