"""Measure whether a streaming client notices attacks of others on the HTTP front.

    .venv/bin/python -m bench.http_hostile

For each kind of attack (http_attackers.py), as in `bench.hostile`, it measures the gaps between a
client's tokens (ITL) alone and beside an attacker, and the front's memory and descriptors before
the attack, at its end and afterwards. It exits with 1 and a description if a gap's p99 grew by more
than a quarter (and by more than beside the control), if a text changed, or if anything leaked. Each
row also has the p99 beside its control. The control of most attacks is a process that only
computes. Clients that stop reading are compared with as many that read. Clients that disconnect,
with a key or without, are compared with as many that ask for no more tokens and read them, and may
cost others as much.

--crowds N: after the kinds, 10,000 connections come, stay and leave, N times in a row. The gaps are
    measured when all are connected. The memory after the last crowd must be that after the first.

--name: the name of the result, by default bench/results/http-hostile.json.
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
_SETTLE = 1.0  # seconds until an attacker's leftovers are gone
_ROOM = 12_000  # connections, so that none of a crowd is cut
_ARRIVALS = 1000.0  # connections a second of a crowd
_CONTROLS = {"stopped readers": READERS, GONE: SHORT, "gone with keys": SHORT}
_LOAD = (GONE, "gone with keys")  # these may cost as much as their control
_LONGEST = 3.0  # seconds; a stream can end after the time, while the crowd is still there
_GROWTH = 4.0  # MiB by which the front may grow from crowd to crowd, after the first


class HttpVictim(RepeatedStreams):
    """A victim whose streams are completions over HTTP, with texts and log-probabilities.

    With log-probabilities every token has an event, also with random weights, whose tokens mostly
    have no text.
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
    limits = HostileLimits(itl_ratio=a.itl_limit, rss_mib=inf)  # the memory of a crowd remains
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
    """Let a crowd come, stay and leave; return its row."""
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
    """Describe the memory that each crowd after the first one took; [] if there is none."""
    after = [row["rss_mib"][1] for row in crowds]
    grown = after[-1] - after[0] if after else 0.0
    if grown <= _GROWTH:
        return []
    return [f"crowds: the front's memory grew by {grown:.1f} MiB after the first one"]


def tell_controls(rows: list[dict[str, Any]]) -> None:
    """Add the ITL's p99 beside its control, and the control's name, to each row with one.

    Each p99 is relative to the one undisturbed just before.
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
    """Return the URL of a sidecar's HTTP server, which its log contains."""
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
