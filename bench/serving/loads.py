"""Named loads, and the command-line arguments that choose one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.serving.traces import Lengths, Load, TraceRequest, draw, read_trace

__all__ = ["LOADS", "NamedLoad", "add_load_arguments", "trace_from"]


@dataclass(frozen=True, slots=True)
class NamedLoad:
    """A load, and batcher options that suit it."""

    load: Load
    options: Mapping[str, Any] = field(default_factory=dict)


_ROOMY = {"n_ctx": 65_536, "n_parallel": 32}

LOADS = {
    # Turns of different conversations, with lengths as people write them.
    "chat": NamedLoad(
        Load(own_tokens=Lengths(200, 1.0, 4096), new_tokens=Lengths(100, 0.8, 1024)), _ROOMY
    ),
    # Chats with one system prompt. Most questions and answers are short, some are long.
    "mixed": NamedLoad(
        Load(
            own_tokens=Lengths(100, 1.2, 1536), new_tokens=Lengths(32, 0.8, 192),
            groups=1, shared_tokens=256,
        ),
        _ROOMY,
    ),
    # Questions with short answers: a million of them can be simulated in minutes.
    "short": NamedLoad(
        Load(own_tokens=Lengths(60, 0.8, 1024), new_tokens=Lengths(12, 0.7, 128)), _ROOMY
    ),
    # Applications with a long prompt of their own and a short new part.
    "agents": NamedLoad(
        Load(
            own_tokens=Lengths(80, 0.7, 1024), new_tokens=Lengths(60, 0.6, 512),
            groups=16, shared_tokens=768, in_group=0.9,
        ),
        _ROOMY,
    ),
    # Many applications, whose common prompts do not all fit into one replica's KV cache.
    "fleet": NamedLoad(
        Load(
            own_tokens=Lengths(60, 0.7, 512), new_tokens=Lengths(12, 0.6, 64),
            groups=1000, shared_tokens=512, in_group=0.9,
        ),
        _ROOMY,
    ),
    # Eight customers with three priorities.
    "tenants": NamedLoad(
        Load(
            own_tokens=Lengths(200, 1.0, 4096), new_tokens=Lengths(60, 0.8, 512),
            priorities=3, namespaces=8,
        ),
        _ROOMY,
    ),
    # Memory for a handful of sequences. Every request asks for far more output than it gets. Half
    # of them have a common beginning, so that the cost of preemption differs between requests.
    "starved": NamedLoad(
        Load(
            own_tokens=Lengths(150, 0.8, 768), new_tokens=Lengths(120, 0.9, 768), max_tokens=768,
            groups=8, shared_tokens=512, in_group=0.5,
        ),
        {"n_ctx": 8192, "n_parallel": 32},
    ),
}  # fmt: skip


def add_load_arguments(parser: argparse.ArgumentParser, *, requests: int) -> None:
    parser.add_argument("--load", choices=LOADS, default="chat")
    parser.add_argument("--requests", type=int, default=requests, help="how many come")
    parser.add_argument("--trace", type=Path, help="JSON lines, instead of a load that is drawn")
    parser.add_argument("--seed", type=int, default=0)


def trace_from(arguments: argparse.Namespace, rate: float) -> list[TraceRequest]:
    """Return the requests that the arguments name. rate: of generated ones, per second."""
    if arguments.trace is not None:
        return read_trace(arguments.trace)
    load = LOADS[arguments.load].load
    return draw(load, arguments.requests, rate, arguments.seed)
