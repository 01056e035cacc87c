"""Measure whether a streaming client notices attacks of others on the HTTP front.

    .venv/bin/python -m bench.http_hostile

As `bench.hostile` does for the socket: for each kind of attack (bench/http_attackers.py) the gaps
between a client's tokens (ITL) undisturbed and beside an attacker, the front's memory and its
descriptors before and after. Exits with 1 and a description if a gap's p99 grew by more than a
quarter (and by more than beside the control), a text was another one, or anything leaked. Results
go to bench/results/http-hostile.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from itertools import pairwise
from typing import Any

import httpx
import numpy as np

from .engines.interface import random_tokens
from .hostile import CONTROL, HostileLimits, attacked, line_of, what_is_wrong
from .http_attackers import HTTP_KINDS
from .machine import describe_run
from .options import parse
from .progress import Bar, bar
from .results import write_result
from .shapes import SHAPES
from .sidecar import SHIPPED, model_of
from .sidecar_process import Sidecar, open_sidecar

__all__ = ["HttpVictim"]

_PROMPT = 8  # tokens; few, so that a new stream does not disturb
_SETTLE = 1.0  # seconds until what was left behind is gone


class HttpVictim:
    """A well-behaved client with a few streams at a time, the same ones repeatedly.

    expected: the text of each stream when it first ran. wrong: descriptions of later differences.
    """

    def __init__(self, http: httpx.AsyncClient, n_streams: int, n_tokens: int) -> None:
        self._http, self._n, self._n_tokens = http, n_streams, n_tokens
        self.expected: dict[int, str] = {}
        self.wrong: list[str] = []

    async def stream(self, seconds: float) -> np.ndarray:
        """Stream for `seconds`; return the gaps between tokens, in seconds."""
        end = time.monotonic() + seconds
        gaps = await asyncio.gather(*(self._stream(i, end) for i in range(self._n)))
        return np.array([gap for of_one in gaps for gap in of_one])

    async def _stream(self, i: int, end: float) -> list[float]:
        gaps: list[float] = []
        while time.monotonic() < end:
            text, arrivals = await self._read(i)
            if self.expected.setdefault(i, text) != text:
                self.wrong.append(f"stream {i} is not what it was at first")
            gaps += [later - sooner for sooner, later in pairwise(arrivals)]
        return gaps

    async def _read(self, i: int) -> tuple[str, list[float]]:
        asked = {"prompt": random_tokens(_PROMPT, i), "max_tokens": self._n_tokens, "seed": i}
        asked |= {"ignore_eos": True, "temperature": float(i % 2), "stream": True}
        text, arrivals = "", []
        async with self._http.stream("POST", "/v1/completions", json=asked) as answer:
            if answer.status_code != 200:
                self.wrong.append(f"stream {i} has the status {answer.status_code}")
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    arrivals.append(time.monotonic())
                    told = json.loads(line[6:])
                    text += told["choices"][0]["text"] if "choices" in told else line
        return text, arrivals


async def measure(a: argparse.Namespace, options: dict[str, Any], shown: Bar) -> dict[str, Any]:
    model = model_of(a.shape)
    given: dict[str, Any] = {} if model is None else {"model": str(model)}
    rows = []
    with open_sidecar(watched=True, http="127.0.0.1:0", **given, **options) as sidecar:
        shown.now("loading")
        await sidecar.ready()
        url = url_of(sidecar)
        async with httpx.AsyncClient(base_url=url, timeout=120.0) as http:
            victim = HttpVictim(http, a.streams, a.tokens)
            await victim.stream(1.0)
            for kind in (CONTROL, *a.kinds):
                shown.now(kind)
                command = None if kind == CONTROL else command_of(url, kind, a)
                rows.append(await attacked(sidecar, kind, command, a.seconds, victim, _SETTLE))
                shown.say(line_of(rows[-1]))
                shown.advance()
        lag = sidecar.close()
    limits = HostileLimits(itl_ratio=a.itl_limit, rss_mib=a.rss_limit)
    return {"rows": rows, "front_lag_s": lag, "wrong": what_is_wrong(rows, victim.wrong, limits)}


def url_of(sidecar: Sidecar) -> str:
    """Return where a sidecar serves HTTP, as its log says."""
    return str(re.findall(r"listening on (http://\S+)", sidecar.said())[0])


def command_of(url: str, kind: str, a: argparse.Namespace) -> list[str]:
    """Return the arguments of Python for an attacker."""
    told = [url.removeprefix("http://"), kind, str(a.seconds + 2 * _SETTLE)]
    return ["-m", "bench.http_attackers", *told, str(HTTP_KINDS[kind][1] * a.rate)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "shape", nargs="?", choices=[*sorted(SHAPES), SHIPPED], default="smollm2-135m"
    )
    kinds = list(HTTP_KINDS)
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, metavar="KIND")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each, undisturbed and not")
    parser.add_argument("--itl-limit", type=float, default=1.25, help="attacked to not, p99")
    parser.add_argument("--rss-limit", type=float, default=64.0, help="growth of the front, MiB")
    parser.add_argument("--rate", type=float, default=1.0, help="times the rates of the kinds")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="of a stream")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    a = parser.parse_args()
    # Drafts make steps of several lengths; one thread less leaves the front a core.
    room = {"n_ctx": 16_384, "n_parallel": 32, "n_threads": 1, "max_draft_tokens": 0}
    options = {"dtype": a.dtype} | room | parse(a.option)
    run = describe_run()
    with bar(1 + len(a.kinds)) as shown:
        result = {"run": run, "shape": a.shape, "options": options, "streams": a.streams}
        result |= asyncio.run(measure(a, options, shown))
    print(f"wrote {write_result('http-hostile', result)}")
    if result["wrong"]:
        sys.exit("not clean:\n  " + "\n  ".join(result["wrong"]))


if __name__ == "__main__":
    main()
