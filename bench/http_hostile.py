"""Measure whether a streaming client notices attacks of others on the HTTP front.

    .venv/bin/python -m bench.http_hostile

As `bench.hostile` does for the socket: for each kind of attack (bench/http_attackers.py) the gaps
between a client's tokens (ITL) undisturbed and beside an attacker, the front's memory and its
descriptors before and after. Exits with 1 and a description if a gap's p99 grew by more than a
quarter (and by more than beside the control), a text was another one, or anything leaked. Each
row has the p99 beside its control, too: a process that only computes; for readers that stop, as
many that read; for those that go with a key, as many that go without. Results go to
bench/results/http-hostile.json.
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
from typing_extensions import override

from .engine_list import ROOT
from .engines.interface import random_tokens
from .hostile import (
    CONTROL,
    HostileLimits,
    RepeatedStreams,
    parser_of,
    rows_of,
    run,
    what_is_wrong,
)
from .http_attackers import GONE, HTTP_KINDS, READERS
from .process_watch import rss_mib
from .progress import Bar
from .sidecar import model_of
from .sidecar_process import Sidecar, open_sidecar

__all__ = ["HttpVictim", "tell_controls"]

_PROMPT = 8  # tokens; few, so that a new stream does not disturb
_SETTLE = 1.0  # seconds until what was left behind is gone
_ROOM = 12_000  # connections
_CONTROLS = {"stopped readers": READERS, "gone with keys": GONE}


class HttpVictim(RepeatedStreams):
    """One whose streams are completions over HTTP, of texts and log-probabilities.

    With these each token is told, also of models of random weights, most of whose tokens have no
    text.
    """

    def __init__(self, http: httpx.AsyncClient, n_streams: int, n_tokens: int) -> None:
        super().__init__(n_streams)
        self._http, self._n_tokens = http, n_tokens

    @override
    async def _read(self, i: int) -> tuple[Any, list[float]]:
        asked = {"prompt": random_tokens(_PROMPT, i), "max_tokens": self._n_tokens, "seed": i}
        asked |= {"ignore_eos": True, "temperature": float(i % 2), "stream": True}
        asked["logprobs"] = 0
        text = ""
        logprobs: list[float] = []
        arrivals: list[float] = []
        async with self._http.stream("POST", "/v1/completions", json=asked) as answer:
            if answer.status_code != 200:
                self.wrong.append(f"stream {i} has the status {answer.status_code}")
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    arrivals.append(time.monotonic())
                    told = json.loads(line[6:])
                    if "choices" not in told:
                        self.wrong.append(f"stream {i} ended with {line[6:200]}")
                        continue
                    choice = told["choices"][0]
                    text += choice["text"]
                    logprobs += (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
        return (text, logprobs), [later - sooner for sooner, later in pairwise(arrivals)]


async def measure(a: argparse.Namespace, options: dict[str, Any], shown: Bar) -> dict[str, Any]:
    model = model_of(a.shape)
    given: dict[str, Any] = {} if model is None else {"model": str(model)}
    own = {"http": "127.0.0.1:0", "max_connections": _ROOM}  # none of a crowd is cut
    with open_sidecar(watched=True, **own, **given, **options) as sidecar:
        shown.now("loading")
        await sidecar.ready()
        url = url_of(sidecar)
        async with httpx.AsyncClient(base_url=url, timeout=120.0) as http:
            victim = HttpVictim(http, a.streams, a.tokens)
            commands = {kind: command_of(url, kind, a) for kind in a.kinds}
            rows = await rows_of(sidecar, commands, a.seconds, victim, a.settle, shown, a.lead)
            rss = [await _rss_after_a_crowd(sidecar, url, a.seconds) for _ in range(a.crowds)]
        lag = sidecar.close()
    limits = HostileLimits(itl_ratio=a.itl_limit, rss_mib=a.rss_limit)
    tell_controls(rows)
    wrong = what_is_wrong(
        [row for row in rows if row["kind"] not in (READERS, GONE)], victim.wrong, limits
    )
    result = {"rows": rows, "front_lag_s": lag, "wrong": wrong}
    return {**result, "rss_mib_after_crowds": rss} if rss else result


def tell_controls(rows: list[dict[str, Any]]) -> None:
    """Add to each row the ITL's p99 beside its control, and the name of that; if it was measured.

    p99s are each relative to the one undisturbed just before.
    """
    ratios = {row["kind"]: row["itl_p99_ratio"] for row in rows}
    for row in rows:
        control = _CONTROLS.get(row["kind"], CONTROL)
        if control in ratios and row["kind"] != control:
            row["control"] = control
            row["itl_p99_ratio_to_control"] = row["itl_p99_ratio"] / ratios[control]


async def _rss_after_a_crowd(sidecar: Sidecar, url: str, seconds: float) -> float:
    """Have a crowd come and go; return the memory of the front after it, in MiB."""
    command = ["-m", "bench.http_attackers", url.removeprefix("http://"), "crowds"]
    told = [*command, str(seconds), str(4 * HTTP_KINDS["crowds"][1])]
    crowd = await asyncio.create_subprocess_exec(
        sys.executable, *told, cwd=ROOT, stdout=asyncio.subprocess.DEVNULL
    )
    await crowd.wait()
    await asyncio.sleep(_SETTLE)
    return rss_mib(sidecar.pid)


def url_of(sidecar: Sidecar) -> str:
    """Return where a sidecar serves HTTP, as its log says."""
    return str(re.findall(r"listening on (http://\S+)", sidecar.said())[0])


def command_of(url: str, kind: str, a: argparse.Namespace) -> list[str]:
    """Return the arguments of Python for an attacker."""
    told = [url.removeprefix("http://"), kind, str(a.seconds + 2 * a.settle + a.lead)]
    return ["-m", "bench.http_attackers", *told, str(HTTP_KINDS[kind][1] * a.rate)]


def main() -> None:
    parser = parser_of(__doc__.split("\n")[0], HTTP_KINDS, itl_limit=1.25)
    parser.add_argument("--rss-limit", type=float, default=64.0, help="growth of the front, MiB")
    parser.add_argument("--settle", type=float, default=_SETTLE, help="seconds after an attack")
    parser.add_argument("--lead", type=float, default=0.0, help="seconds of it before measuring")
    parser.add_argument("--crowds", type=int, default=0, help="crowds in a row, for the memory")
    run("http-hostile", parser.parse_args(), measure)


if __name__ == "__main__":
    main()
