"""Measure whether a streaming client notices attacks of others on the HTTP front.

    .venv/bin/python -m bench.http_hostile

As `bench.hostile` does for the socket: for each kind of attack (http_attackers.py) the gaps
between a client's tokens (ITL) undisturbed and beside an attacker, the front's memory and its
descriptors before, at the end of the attack and after. Exits with 1 and a description if a gap's
p99 grew by more than a quarter (and by more than beside the control), a text was another one, or
anything leaked. Each row has the p99 beside its control, too: a process that only computes; for
readers that stop, as many that read; for clients that go away, with a key or without, as many that
ask for no more than those were given, and read it: these may cost others as much as they do.

--crowds N: after the kinds, 10,000 connections come, stay and go, N times in a row. The gaps are
measured when all have come; memory after the last is to be what it was after the first.

--name: of the result, which goes to bench/results/http-hostile.json by default.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from itertools import pairwise
from math import inf
from typing import Any

import httpx
from typing_extensions import override

from bench.common.progress import Bar
from bench.engines.interface import random_tokens
from bench.hostile.http_attackers import CROWD, GONE, HTTP_KINDS, READERS, SHORT
from bench.hostile.socket_hostile import (
    CONTROL,
    HostileLimits,
    RepeatedStreams,
    attacked,
    line_of,
    parser_of,
    rows_of,
    run,
    what_is_wrong,
)
from bench.serving.sidecar import model_of
from bench.serving.sidecar_process import Sidecar, open_sidecar

__all__ = ["HttpVictim", "tell_controls", "what_crowds_left"]

_PROMPT = 8  # tokens; few, so that a new stream does not disturb
_SETTLE = 1.0  # seconds until what was left behind is gone
_ROOM = 12_000  # connections: none of a crowd is cut
_ARRIVALS = 1000.0  # connections a second of a crowd
_CONTROLS = {"stopped readers": READERS, GONE: SHORT, "gone with keys": SHORT}
_LOAD = (GONE, "gone with keys")  # which may cost what their control costs
_LONGEST = 3.0  # seconds of a stream that ends after the time: the crowd is still there
_GROWTH = 4.0  # MiB of the front from crowd to crowd, after the first


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
    own = {"http": "127.0.0.1:0", "max_connections": a.max_connections}
    with open_sidecar(watched=True, **own, **given, **options) as sidecar:
        shown.now("loading")
        await sidecar.ready()
        url = url_of(sidecar)
        async with httpx.AsyncClient(base_url=url, timeout=120.0) as http:
            victim = HttpVictim(http, a.streams, a.tokens)
            commands = {kind: command_of(url, kind, a) for kind in a.kinds}
            rows = await rows_of(sidecar, commands, a.seconds, victim, a.settle, shown, a.lead)
            crowds = [
                await _crowd(number, sidecar, url, victim, a, shown)
                for number in range(1, a.crowds + 1)
            ]
        lag = sidecar.close()
    limits = HostileLimits(itl_ratio=a.itl_limit, rss_mib=a.rss_limit)
    tell_controls(rows)
    attacks = [row for row in rows if row["kind"] not in (READERS, SHORT)]
    wrong = what_is_wrong(attacks, victim.wrong, limits) + what_crowds_left(crowds)
    of_crowds = [row for row in rows if row["kind"] == CONTROL] + crowds
    limits = HostileLimits(itl_ratio=a.itl_limit, rss_mib=inf)  # that of a crowd is kept
    wrong += [one for one in what_is_wrong(of_crowds, [], limits) if one not in wrong]
    result = {"rows": rows, "front_lag_s": lag, "wrong": wrong}
    return {**result, "crowds": crowds} if crowds else result


async def _crowd(
    number: int,
    sidecar: Sidecar,
    url: str,
    victim: HttpVictim,
    a: argparse.Namespace,
    shown: Bar,
) -> dict[str, Any]:
    """Have a crowd come, stay and go; return its row."""
    lead = CROWD / (_ARRIVALS * a.rate)
    length = a.seconds + 2 * a.settle + lead + _LONGEST
    told = [url.removeprefix("http://"), "crowds", str(length)]
    command = ["-m", "bench.hostile.http_attackers", *told, str(_ARRIVALS * a.rate)]
    row = await attacked(
        sidecar, f"crowd {number}", command, a.seconds, victim, a.settle, lead=lead
    )
    shown.say(line_of(row))
    return row


def what_crowds_left(crowds: list[dict[str, Any]]) -> list[str]:
    """Describe memory that each crowd after the first one took; [] where there is none."""
    after = [row["rss_mib"][1] for row in crowds]
    grown = after[-1] - after[0] if after else 0.0
    if grown <= _GROWTH:
        return []
    return [f"crowds: the front's memory grew by {grown:.1f} MiB after the first one"]


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
            if row["kind"] in _LOAD:
                row["honest_ratio"] = ratios[control]


def url_of(sidecar: Sidecar) -> str:
    """Return where a sidecar serves HTTP, as its log says."""
    return str(re.findall(r"listening on (http://\S+)", sidecar.said())[0])


def command_of(url: str, kind: str, a: argparse.Namespace) -> list[str]:
    """Return the arguments of Python for an attacker."""
    told = [url.removeprefix("http://"), kind, str(a.seconds + 2 * a.settle + a.lead)]
    return ["-m", "bench.hostile.http_attackers", *told, str(HTTP_KINDS[kind][1] * a.rate)]


def main() -> None:
    parser = parser_of(__doc__.split("\n")[0], HTTP_KINDS, itl_limit=1.25)
    parser.add_argument("--rss-limit", type=float, default=64.0, help="growth of the front, MiB")
    parser.add_argument("--settle", type=float, default=_SETTLE, help="seconds after an attack")
    parser.add_argument("--lead", type=float, default=0.0, help="seconds of it before measuring")
    parser.add_argument("--crowds", type=int, default=0, help="crowds in a row, after the kinds")
    connections_help = "of the server"
    parser.add_argument("--max-connections", type=int, default=_ROOM, help=connections_help)
    parser.add_argument("--name", default="http-hostile", help="of the result")
    a = parser.parse_args()
    run(a.name, a, measure)


if __name__ == "__main__":
    main()
