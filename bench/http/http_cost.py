"""Measure the cost of HTTP: streams over `pybatcher serve --http`, against a batcher in process.

    .venv/bin/python -m bench.http_cost smollm2-135m

Both have the model loaded and take turns, as in `bench.sidecar`: a number of streams at once, each
a request of its own on a connection that is kept, read by one process. Throughput counts tokens, of
which the usage at the end of each stream tells; events are counted beside them: one step should be
one event. Results go to bench/results/http-*.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from bench.common.machine import describe_run
from bench.common.options import parse
from bench.common.progress import Bar, bar
from bench.common.results import write_result
from bench.convert.shapes import SHAPES
from bench.engines.interface import random_tokens
from bench.serving.process_watch import cpu_seconds
from bench.serving.sidecar import PROMPT, SHIPPED, model_of, take_turn
from bench.serving.sidecar_process import open_sidecar
from pybatcher import Batcher

__all__ = ["Connection", "HttpTurn", "compare", "read_events"]


# With its log-probability every token has an event, including tokens without text, which random
# weights mostly sample.
DRAWN = {"temperature": 0.0, "logprobs": 0}


@dataclass(frozen=True, slots=True)
class HttpTurn:
    """One turn of all streams. first: seconds to the first token of each; cpu_s: CPU by process."""

    seconds: float
    n_tokens: int
    n_events: int
    first: Sequence[float]
    cpu_s: Mapping[str, float]

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of all streams together."""
        return self.n_tokens / self.seconds


class Connection:
    """A keep-alive connection, for one request after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def stream(self, body: Mapping[str, Any]) -> tuple[int, int, float]:
        """Ask for a streamed completion; return tokens, events with text, seconds to the first.

        Raises RuntimeError for an answer that is not a stream.
        """
        sent = json.dumps(body).encode()
        begin = time.monotonic()
        self._writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: "
            + str(len(sent)).encode()
            + b"\r\n\r\n"
            + sent
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode(errors="replace"))
        return await read_events(self._reader, begin)

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        await self._writer.wait_closed()


async def read_events(reader: asyncio.StreamReader, begin: float) -> tuple[int, int, float]:
    """Read a chunked body to its end; return tokens, events with a choice, seconds to the first.

    begin: `time.monotonic` of the request.
    """
    n_tokens, n_events, first, data = 0, 0, 0.0, b""
    while size := int(await reader.readline(), 16):
        data += (await reader.readexactly(size + 2))[:-2]
        *events, data = data.split(b"\n\n")
        for event in events:
            if b'"choices":[{' in event:
                n_events += 1
                first = first or time.monotonic() - begin
            elif b'"usage":{' in event:
                n_tokens = json.loads(event.removeprefix(b"data: "))["usage"]["completion_tokens"]
    await reader.readline()
    return n_tokens, n_events, first


async def take_http_turn(
    connections: Sequence[Connection], n_tokens: int, seed: int, pids: Mapping[str, int | None]
) -> HttpTurn:
    """Run a stream on every connection, once. pids: processes whose CPU time is counted."""
    n_streams = len(connections)
    prompts = [random_tokens(PROMPT, seed * n_streams + i) for i in range(n_streams)]
    more = {
        "max_tokens": n_tokens,
        "ignore_eos": True,
        **DRAWN,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    begin = time.monotonic()
    done = await asyncio.gather(
        *(
            one.stream({"prompt": prompt, **more})
            for one, prompt in zip(connections, prompts, strict=True)
        )
    )
    seconds = time.monotonic() - begin
    return HttpTurn(
        seconds,
        sum(n for n, _, _ in done),
        sum(n for _, n, _ in done),
        [first for _, _, first in done],
        {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()},
    )


def compare(in_process: Sequence[float], over_http: Sequence[HttpTurn]) -> dict[str, Any]:
    """Compare rounds. in_process: tokens a second of each."""
    ratios = [turn.tokens_per_s / own for own, turn in zip(in_process, over_http, strict=True)]
    n_tokens = sum(turn.n_tokens for turn in over_http)
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "tokens_per_s": {
            "in_process": statistics.median(in_process),
            "http": statistics.median(turn.tokens_per_s for turn in over_http),
        },
        "events_per_token": sum(turn.n_events for turn in over_http) / n_tokens,
        "ttft_s": statistics.median(first for turn in over_http for first in turn.first),
        "cpu_s_per_token": {
            name: sum(turn.cpu_s[name] for turn in over_http) / n_tokens
            for name in over_http[0].cpu_s
        },
    }


async def measure(
    shape: str, options: dict[str, Any], n_streams: int, tokens: int, rounds: int, shown: Bar
) -> dict[str, Any]:
    model = model_of(shape)
    options = {"n_ctx": n_streams * (tokens + PROMPT + 16), "n_parallel": n_streams} | options
    given: dict[str, Any] = {} if model is None else {"model": str(model)}
    address = f"127.0.0.1:{_free_port()}"
    shown.now(f"{shape}: loading")
    with open_sidecar(**given, **options, http=address, log_level="warning") as server:
        async with AsyncExitStack() as stack, Batcher(model, **options) as local:
            await server.ready()
            connections = []
            for _ in range(n_streams):
                host, port = address.split(":")
                connections.append(Connection(*await asyncio.open_connection(host, int(port))))
                stack.push_async_callback(connections[-1].close)
            pids = {"caller": None, "front": server.pid, "worker": server.worker_pids[0]}
            own: list[float] = []
            turns: list[HttpTurn] = []
            for number in range(rounds + 1):  # the first round warms up
                turn = await take_turn(local, n_streams, tokens, number, {"caller": None}, **DRAWN)
                shown.advance()
                remote = await take_http_turn(connections, tokens, number, pids)
                shown.advance()
                if number:
                    own.append(turn.tokens_per_s)
                    turns.append(remote)
        server.close()
    row = {"streams": n_streams, "tokens": tokens, "rounds": rounds, **compare(own, turns)}
    return {"shape": shape, "options": options, **row}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shapes", nargs="+", choices=[*sorted(SHAPES), SHIPPED])
    parser.add_argument("--streams", type=int, default=32, help="at once")
    parser.add_argument("--tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--rounds", type=int, default=5, help="that count; one before warms up")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of both batchers"
    )
    a = parser.parse_args()
    # Drafts depend on the moment at which a request arrives, so that rounds would differ.
    options = {"dtype": a.dtype, "max_draft_tokens": 0} | parse(a.option)
    run = describe_run()
    with bar(len(a.shapes) * 2 * (a.rounds + 1)) as shown:
        for shape in a.shapes:
            found = asyncio.run(measure(shape, options, a.streams, a.tokens, a.rounds, shown))
            cpu = ", ".join(f"{k} {v * 1e6:.0f}" for k, v in found["cpu_s_per_token"].items())
            shown.say(
                f"{shape}, {a.streams} streams: {found['tokens_per_s']['http']:.0f} tokens/s "
                f"over HTTP, {found['ratio']:.3f} of those in process; "
                f"{found['events_per_token']:.3f} events a token; CPU a token, us: {cpu}"
            )
            shown.say(f"wrote {write_result(f'http-{shape}', {'run': run, **found})}")


if __name__ == "__main__":
    main()
