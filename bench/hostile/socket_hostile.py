"""Measure whether a streaming client notices attacks of others on its sidecar.

    .venv/bin/python -m bench.hostile

For each kind of attack (attackers.py) the client streams undisturbed for a while, then with
an attacker beside it, in one run; the result is how much the p99 of the gaps between its tokens
(ITL) changes. The server's handling is measured, not the attackers' use of the machine: the engine
computes on one thread, which leaves a core free, and attackers run at the lowest priority and no
faster than their kind's rate. The first one is a control: a process of the same priority that only
computes. The front's memory and descriptors are recorded before and after. Exits with 1 and a
description if a gap grew by more than a fifth (and by more than beside the control), a stream was
wrong, or anything leaked. Results go to bench/results/hostile.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from bench.common.machine import describe_run
from bench.common.options import parse
from bench.common.progress import Bar, bar
from bench.common.results import write_result
from bench.common.slo import percentiles
from bench.convert.shapes import SHAPES
from bench.engines.engine_list import ROOT
from bench.engines.interface import random_tokens
from bench.hostile.attackers import KINDS
from bench.serving.process_watch import rss_mib
from bench.serving.sidecar import SHIPPED, model_of
from bench.serving.sidecar_process import Sidecar, open_sidecar
from bench.serving.streams import read_stream
from pybatcher import AnyBatcher, Client

__all__ = [
    "CONTROL",
    "HostileLimits",
    "RepeatedStreams",
    "Victim",
    "attacked",
    "line_of",
    "parser_of",
    "rows_of",
    "run",
    "what_is_wrong",
]

_SETTLE = 0.5  # seconds until an attacker's leftovers are gone
CONTROL = "only computes"
_BURN = "import os\nos.nice(19)\nwhile True: pass"
_PROMPT = 8  # tokens; few, so that a new stream does not disturb


@dataclass(frozen=True, slots=True)
class HostileLimits:
    """itl_ratio: p99 attacked / undisturbed. rss_mib: growth of the front over the whole run."""

    itl_ratio: float = 1.2
    rss_mib: float = 64.0


class RepeatedStreams(ABC):
    """A well-behaved client with a few streams at a time, the same ones repeatedly.

    expected: the content of each stream when it first ran. wrong: descriptions of later
    differences.
    """

    def __init__(self, n_streams: int) -> None:
        self._n = n_streams
        self.expected: dict[int, Any] = {}
        self.wrong: list[str] = []

    async def stream(self, seconds: float) -> np.ndarray:
        """Stream for `seconds`; return the gaps between tokens, in seconds."""
        end = time.monotonic() + seconds
        gaps = await asyncio.gather(*(self._stream(i, end) for i in range(self._n)))
        return np.array([gap for of_one in gaps for gap in of_one])

    async def _stream(self, i: int, end: float) -> list[float]:
        gaps: list[float] = []
        while time.monotonic() < end:
            found, its_gaps = await self._read(i)
            if self.expected.setdefault(i, found) != found:
                self.wrong.append(f"stream {i} is not what it was at first")
            gaps += its_gaps
        return gaps

    @abstractmethod
    async def _read(self, i: int) -> tuple[Any, list[float]]:
        """Read stream `i` to its end; return its content, and the gaps between its tokens."""


class Victim(RepeatedStreams):
    """A victim whose streams are a batcher's. Their content is their tokens."""

    def __init__(self, batcher: AnyBatcher, n_streams: int, n_tokens: int) -> None:
        super().__init__(n_streams)
        self._batcher, self._n_tokens = batcher, n_tokens

    @override
    async def _read(self, i: int) -> tuple[Any, list[float]]:
        received = await read_stream(
            self._batcher,
            random_tokens(_PROMPT, i),
            max_tokens=self._n_tokens,
            ignore_eos=True,
            temperature=float(i % 2),
            seed=i,
        )
        return received.completion.token_ids, received.gaps


async def beside(
    command: list[str] | None,
    seconds: float,
    victim: RepeatedStreams,
    settle: float,
    look: Callable[[], None],
) -> tuple[np.ndarray, int]:
    """Measure the victim's gaps beside another process; also return its number of acts.

    command: arguments of Python; None: one that only computes. look: called when the gaps are
    measured, and the other process still acts.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, *(command or ["-c", _BURN]), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        await asyncio.sleep(settle)  # the attacker starts
        gaps = await victim.stream(seconds)
        look()
        if command is None:
            process.kill()
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return gaps, json.loads(output)["acts"] if output else 0


async def attacked(
    sidecar: Sidecar,
    kind: str,
    command: list[str] | None,
    seconds: float,
    victim: RepeatedStreams,
    settle: float,
    lead: float = 0.0,
) -> dict[str, Any]:
    """Measure the victim alone, then beside an attacker; return a row of the result.

    rss_mib, files: of the front before and after; "meanwhile" has them at the end of the attack.
    settle: seconds until the attacker's leftovers are gone. lead: how long it has attacked before.
    """
    rss, files = [], []

    def look() -> None:
        rss.append(rss_mib(sidecar.pid))
        files.append(sidecar.n_files)

    undisturbed = await victim.stream(seconds)
    look()
    wait = settle + (lead if command else 0.0)
    gaps, acts = await beside(command, seconds, victim, wait, look)
    await asyncio.sleep(settle)
    look()
    row: dict[str, Any] = {
        "kind": kind,
        "acts": acts,
        "undisturbed_itl_s": percentiles(undisturbed),
        "itl_s": percentiles(gaps),
        "rss_mib": [rss[0], rss[-1]],
        "files": [files[0], files[-1]],
        "meanwhile": {"rss_mib": rss[1], "files": files[1]},
    }
    row["itl_p99_ratio"] = row["itl_s"]["p99"] / row["undisturbed_itl_s"]["p99"]
    return row


async def rows_of(
    sidecar: Sidecar,
    commands: Mapping[str, list[str]],
    seconds: float,
    victim: RepeatedStreams,
    settle: float,
    shown: Bar,
    lead: float = 0.0,
) -> list[dict[str, Any]]:
    """Measure the victim beside the control and each attacker. commands: by kind, of Python.

    settle, lead: of `attacked`.
    """
    rows = []
    await victim.stream(1.0)
    for kind, command in {CONTROL: None, **commands}.items():
        shown.now(kind)
        rows.append(await attacked(sidecar, kind, command, seconds, victim, settle, lead))
        shown.say(line_of(rows[-1]))
        shown.advance()
    return rows


def what_is_wrong(
    rows: Sequence[Mapping[str, Any]], wrong: Sequence[str], limits: HostileLimits
) -> list[str]:
    """Describe every limit that was exceeded; [] for a clean run.

    "honest_ratio" of a row: the p99 beside whoever asks for as much and does no harm. What costs
    others no more than that is load.
    """
    found = list(dict.fromkeys(wrong))
    control = max((row["itl_p99_ratio"] for row in rows if row["kind"] == CONTROL), default=0.0)
    for row in rows:
        limit = max(limits.itl_ratio, control, limits.itl_ratio * row.get("honest_ratio", 0.0))
        if not row["itl_p99_ratio"] <= limit:  # nan: no token arrived
            found.append(f"{row['kind']}: ITL p99 is {row['itl_p99_ratio']:.2f} of undisturbed")
        if row["files"][1] > row["files"][0]:
            found.append(f"{row['kind']}: descriptors went from {row['files'][0]} to "
                         f"{row['files'][1]}")  # fmt: skip
    grown = rows[-1]["rss_mib"][1] - rows[0]["rss_mib"][0] if rows else 0.0
    if grown > limits.rss_mib:
        found.append(f"the front's memory grew by {grown:.1f} MiB")
    return found


async def measure(a: argparse.Namespace, options: dict[str, Any], shown: Bar) -> dict[str, Any]:
    model = model_of(a.shape)
    given: dict[str, Any] = {} if model is None else {"model": str(model)}
    with open_sidecar(watched=True, log_level="error", **given, **options) as sidecar:
        shown.now("loading")
        await sidecar.ready()
        async with Client(sidecar.socket) as client:
            victim = Victim(client, a.streams, a.tokens)
            commands = {kind: command_of(sidecar, kind, a) for kind in a.kinds}
            rows = await rows_of(sidecar, commands, a.seconds, victim, _SETTLE, shown)
        lag = sidecar.close()
    wrong = what_is_wrong(rows, victim.wrong, HostileLimits(itl_ratio=a.itl_limit))
    return {"rows": rows, "front_lag_s": lag, "wrong": wrong}


def command_of(sidecar: Sidecar, kind: str, a: argparse.Namespace) -> list[str]:
    """Return the arguments of Python for an attacker."""
    told = [str(sidecar.socket), kind, str(a.seconds + 2 * _SETTLE)]
    return ["-m", "bench.hostile.attackers", *told, str(KINDS[kind][1] * a.rate)]


def line_of(row: Mapping[str, Any]) -> str:
    """Return a row of the result in words."""
    p99 = [row[name]["p99"] * 1e3 for name in ("undisturbed_itl_s", "itl_s")]
    return (
        f"{row['kind']:>16}: {row['acts']:6} acts; ITL p99 {p99[0]:.2f} -> {p99[1]:.2f} ms, "
        f"{row['itl_p99_ratio']:.2f}; "
        f"memory {row['rss_mib'][0]:.1f} -> {row['rss_mib'][1]:.1f} MiB, "
        f"descriptors {row['files'][0]} -> {row['files'][1]}"
    )


def parser_of(
    description: str, kinds: Collection[str], *, itl_limit: float
) -> argparse.ArgumentParser:
    """Return the command-line parser of an attack measurement."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "shape", nargs="?", choices=[*sorted(SHAPES), SHIPPED], default="smollm2-135m"
    )
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=list(kinds), metavar="KIND")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each, undisturbed and not")
    limit_help = "attacked to undisturbed, p99"
    parser.add_argument("--itl-limit", type=float, default=itl_limit, help=limit_help)
    parser.add_argument("--rate", type=float, default=1.0, help="times the rates of the kinds")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="of a stream")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    return parser


def run(
    name: str,
    a: argparse.Namespace,
    measured: Callable[
        [argparse.Namespace, dict[str, Any], Bar], Coroutine[Any, Any, dict[str, Any]]
    ],
) -> None:
    """Measure, write the result by its name, and exit with a description if anything is wrong."""
    # Drafts make steps of several lengths. One thread less leaves a core to the front.
    room = {"n_ctx": 16_384, "n_parallel": 32, "n_threads": 1, "max_draft_tokens": 0}
    options = {"dtype": a.dtype} | room | parse(a.option)
    described = describe_run()
    with bar(1 + len(a.kinds)) as shown:
        result = {"run": described, "shape": a.shape, "options": options, "streams": a.streams}
        result |= asyncio.run(measured(a, options, shown))
    print(f"wrote {write_result(name, result)}")
    if result["wrong"]:
        sys.exit("not clean:\n  " + "\n  ".join(result["wrong"]))


def main() -> None:
    run("hostile", parser_of(__doc__.split("\n")[0], KINDS, itl_limit=1.2).parse_args(), measure)


if __name__ == "__main__":
    main()
