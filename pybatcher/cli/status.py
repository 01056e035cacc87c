"""`pybatcher status`: health and statistics of a running sidecar."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .console import visible, write
from .over_socket import SidecarOption, connect, socket_path

__all__ = ["Status", "ask_status", "show_status", "status"]

NOT_READY = 1  # exit status
JsonOption = Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")]


def status(socket: SidecarOption = "", as_json: JsonOption = False) -> None:
    """Show how a running `pybatcher serve` is doing.

    Exit status: 0 ready, 1 not ready (the model is being opened, or it failed), 2 no server at
    this socket.
    """
    found = asyncio.run(ask_status(socket_path(socket)))
    if as_json:
        write(json.dumps(found.as_map()) + "\n")
    else:
        show_status(found)
    if not found.is_ready:
        raise typer.Exit(NOT_READY)


@dataclass(frozen=True, slots=True)
class Status:
    """A sidecar's answers to health, statistics and hello.

    hello: None until the model is open.
    """

    socket: str
    health: Mapping[str, Any]
    statistics: Mapping[str, Any]
    hello: Mapping[str, Any] | None

    @property
    def is_ready(self) -> bool:
        """True if the sidecar serves requests."""
        return self.health.get("status") == "ready"

    def as_map(self) -> dict[str, Any]:
        """Return the JSON object of `--json`."""
        hello = self.hello or {}
        return {
            "socket": self.socket,
            "ready": self.is_ready,
            "model": hello.get("model"),
            "version": hello.get("version"),
            "health": dict(self.health),
            "limits": dict(hello.get("limits", {})),
            "statistics": dict(self.statistics),
        }


async def ask_status(path: str) -> Status:
    """Ask the sidecar at `path`. Raises ConnectionLostError if no process listens there."""
    link = await connect(path)
    try:
        health = await link.request("health", [])
        statistics = await link.request("statistics", [])
        # The answer to hello comes only when the model is open; status does not wait for it.
        hello = await link.request("hello", [{}]) if health["status"] == "ready" else None
    finally:
        link.close()
    return Status(path, health, statistics, hello)


def show_status(found: Status) -> None:
    """Print the status on stdout, one line per property."""
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2))
    for name, value in _facts(found).items():
        value = visible(value) if console.is_terminal else value
        style = "" if name != "state" else "green" if found.is_ready else "bold red"
        table.add_row(Text(name, style="dim"), Text(value, style=style))
    console.print(table)


def _facts(found: Status) -> dict[str, str]:
    counts = found.statistics
    total = counts["kv_total_blocks"]
    in_use = total - counts["kv_free_blocks"] - counts["kv_cached_blocks"]
    hello = found.hello or {}
    cached = counts["kv_cached_blocks"]
    return {
        "socket": found.socket,
        "state": f"{found.health['status']}: {found.health['reason']}",
        "model": hello.get("model", "not open"),
        "version": hello.get("version", "not known yet"),
        "workers": ", ".join(map(str, counts["worker_pids"])) or "none",
        "restarts": f"{counts['worker_restarts']} of the worker, {counts['restarts']} of the "
        f"engine in it; {counts['replayed_requests']} requests went on",
        "connections": f"{counts['connections']}",
        "in flight": f"{counts['in_flight']} requests: {counts['running']} run, "
        f"{counts['queued']} wait",
        "ended": f"{counts['completed']:,} completed, {counts['cancelled']:,} cancelled, "
        f"{counts['expired']:,} expired, {counts['failed']:,} failed",
        "tokens": f"{counts['generated_tokens']:,} generated; {counts['prompt_tokens']:,} of "
        f"prompts, {counts['cached_tokens']:,} of these cached",
        "KV": f"{total:,} blocks: {_share(in_use, total)} in use, {_share(cached, total)} cached",
    }


def _share(part: int, total: int) -> str:
    return f"{part / total if total else 0.0:.0%}"
