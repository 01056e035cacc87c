"""Hold many connections with many requests each for minutes; watch the front's latency and memory.

    .venv/bin/python -m bench.hold --minutes 10

Every connection has a fixed number of requests in flight: when one ends the next is sent. The lag
of the front's event loop is measured in the front itself, and for comparison that of an idle
process: on a busy machine both are late. Once a second the front's memory, its descriptors and the
tokens in flight (prompts and generated tokens of unfinished requests) are recorded. Exits with 1
and a description if anything failed, grew or was late. Results go to bench/results/hold.json and
docs/plots/.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

from bench.common.machine import describe_run
from bench.common.options import parse
from bench.common.progress import Bar, bar
from bench.common.results import write_result
from bench.convert.shapes import SHAPES
from bench.engines.interface import random_tokens
from bench.report.draw import draw_result
from bench.serving.process_watch import IdleProcess, rss_mib
from bench.serving.sidecar import SHIPPED, model_of
from bench.serving.sidecar_process import Sidecar, open_sidecar
from bench.serving.soak import grows
from bench.serving.streams import read_stream
from pybatcher import Client, Piece, PybatcherError

__all__ = ["HoldLimits", "Holders", "Sample", "what_is_wrong"]

_TIMEOUT = 120.0  # seconds until all requests are in flight


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """Limits of a clean run.

    lag_s: how much the front's p99 lag may exceed that of an idle process. rss_mib: growth of its
    memory after warm-up, from the first half of the time to the second.
    """

    lag_s: float = 0.002
    rss_mib: float = 8.0


@dataclass(frozen=True, slots=True)
class Sample:
    """State `at` seconds: the front's memory, files and requests in flight; all tokens."""

    at: float
    rss_mib: float
    files: int
    in_flight: int
    tokens_in_flight: int
    tokens: int


class Holders:
    """Connections that keep `each` requests in flight until cancelled.

    tokens: received so far. ended: number of ended requests. errors: counts by message.
    """

    def __init__(self, n_connections: int, each: int, seed: int) -> None:
        self._n, self._each = n_connections, each
        self._random = random.Random(seed)
        self._in_flight: dict[int, int] = {}  # tokens, by the request's number
        self._numbers = count()
        self.tokens = 0
        self.ended = 0
        self.errors: Counter[str] = Counter()

    @property
    def wanted(self) -> int:
        """Number of requests to keep in flight."""
        return self._n * self._each

    def sample(self, front: Sidecar, at: float) -> Sample:
        """Return the current state."""
        in_flight = len(self._in_flight)
        tokens = sum(self._in_flight.values())
        return Sample(at, rss_mib(front.pid), front.n_files, in_flight, tokens, self.tokens)

    async def run(self, socket: Path) -> NoReturn:
        """Connect and keep the requests in flight until cancelled."""
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(socket)) for _ in range(self._n)]
            async with asyncio.TaskGroup() as group:
                for client in clients:
                    for _ in range(self._each):
                        group.create_task(self._hold(client))
        raise AssertionError("a held connection ended")

    async def _hold(self, client: Client) -> NoReturn:
        while True:
            prompt = random_tokens(self._random.randint(8, 64), self._random.randrange(2**31))
            number = next(self._numbers)
            self._in_flight[number] = len(prompt)

            def note(piece: Piece, number: int = number) -> None:
                self.tokens += len(piece.token_ids)
                self._in_flight[number] += len(piece.token_ids)

            try:
                await read_stream(
                    client,
                    prompt,
                    note,
                    max_tokens=self._random.randint(16, 128),
                    temperature=self._random.choice([0.0, 1.0]),
                    ignore_eos=True,
                )
                self.ended += 1
            except (PybatcherError, RuntimeError) as error:
                self.errors[repr(error)[:200]] += 1
                await asyncio.sleep(0.1)
            finally:
                del self._in_flight[number]


def what_is_wrong(
    lag: Mapping[str, float],
    beside: Mapping[str, float],
    samples: Sequence[Sample],
    errors: Mapping[str, int],
    limits: HoldLimits,
    wanted_in_flight: int,
) -> list[str]:
    """Describe every limit that was exceeded; [] for a clean run.

    lag, beside: percentiles of the front's lag and of an idle process's, in seconds.
    """
    found = [f"{n} times {error}" for error, n in errors.items()]
    if lag["p99"] > beside["p99"] + limits.lag_s:
        found.append(
            f"p99 of the front's lag is {lag['p99'] * 1e3:.2f} ms, and {beside['p99'] * 1e3:.2f} "
            "that of a process that does nothing"
        )
    rss = [sample.rss_mib for sample in samples]
    after = rss[len(rss) // 4 :]
    half = len(after) // 2
    before, later = (median(part) if part else 0.0 for part in (after[:half], after[half:]))
    if half and later > before + limits.rss_mib:
        found.append(f"the front's memory grew from {before:.1f} to {later:.1f} MiB")
    files = [sample.files for sample in samples]
    if grows(files):
        found.append(f"the front's descriptors grew from {files[len(files) // 4]} to {files[-1]}")
    fewest = min((sample.in_flight for sample in samples), default=0)
    if fewest < wanted_in_flight:
        found.append(f"only {fewest} of {wanted_in_flight} requests were in flight at a time")
    return found


async def hold(
    holders: Holders, front: Sidecar, seconds: float, on_sample: Callable[[Sample], None]
) -> list[Sample]:
    """Hold the requests for `seconds`, from when all are in flight; return a sample per second."""
    holding = asyncio.ensure_future(holders.run(front.socket))
    begin, samples = time.monotonic(), list[Sample]()
    try:
        while holders.sample(front, 0.0).in_flight < holders.wanted:
            if holding.done() or time.monotonic() - begin > _TIMEOUT:
                raise RuntimeError(f"the requests do not get in flight: {dict(holders.errors)}")
            await asyncio.sleep(0.05)
        begin = time.monotonic()
        while (at := time.monotonic() - begin) < seconds and not holding.done():
            samples.append(holders.sample(front, at))
            on_sample(samples[-1])
            await asyncio.sleep(min(1.0, seconds - at))
    finally:
        holding.cancel()
        await asyncio.wait([holding])
    return samples


async def measure(a: argparse.Namespace, options: dict[str, Any], shown: Bar) -> dict[str, Any]:
    model = model_of(a.shape)
    given: dict[str, Any] = {} if model is None else {"model": str(model)}
    holders = Holders(a.connections, a.each, a.seed)

    def on_sample(sample: Sample) -> None:
        shown.now(f"{sample.rss_mib:.1f} MiB, {sample.in_flight} requests, {sample.tokens} tokens")
        shown.advance()

    limit = a.connections + 8
    with open_sidecar(
        watched=True, max_connections=limit, log_level="warning", **given, **options
    ) as sidecar:
        shown.now("loading")
        await sidecar.ready()
        samples = await hold(holders, sidecar, a.minutes * 60, on_sample)
        lag = sidecar.close()
    first, last = samples[0], samples[-1]
    return {
        "seconds": last.at,
        "ended": holders.ended,
        "errors": dict(holders.errors),
        "tokens_per_s": (last.tokens - first.tokens) / max(last.at - first.at, 1e-9),
        "front_lag_s": lag,
        "samples": [asdict(sample) for sample in samples],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "shape", nargs="?", choices=[*sorted(SHAPES), SHIPPED], default="smollm2-135m"
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--each", type=int, default=4, help="requests in flight of a connection")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--lag-limit", type=float, default=2.0, help="ms, p99; inf: any")
    parser.add_argument("--rss-limit", type=float, default=8.0, help="MiB that the front may grow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    a = parser.parse_args()
    options = {"dtype": a.dtype, "n_ctx": 8192, "n_parallel": 32} | parse(a.option)
    run = describe_run()
    bystander = IdleProcess()
    try:
        with bar(round(a.minutes * 60)) as shown:
            result = asyncio.run(measure(a, options, shown))
    finally:
        beside = bystander.close()
    subject = {"shape": a.shape, "connections": a.connections, "each": a.each, "options": options}
    result = {"run": run, **subject, "bystander_lag_s": beside, **result}
    result["wrong"] = what_is_wrong(
        result["front_lag_s"],
        beside,
        [Sample(**sample) for sample in result["samples"]],
        result["errors"],
        HoldLimits(a.lag_limit / 1e3, a.rss_limit),
        a.connections * a.each,
    )
    lag, rss = result["front_lag_s"], [sample["rss_mib"] for sample in result["samples"]]
    print(
        f"{result['seconds']:.0f} s, {a.connections} connections with {a.each} requests each; "
        f"{result['ended']} ended, {result['tokens_per_s']:.0f} tokens a second; "
        f"the front: memory {rss[0]:.1f} to {rss[-1]:.1f} MiB, at most {max(rss):.1f}; "
        f"lag p50 {lag['p50'] * 1e3:.2f}, p99 {lag['p99'] * 1e3:.2f}, "
        f"max {lag['max'] * 1e3:.1f} ms "
        f"(of a process that does nothing: {beside['p50'] * 1e3:.2f}, {beside['p99'] * 1e3:.2f}, "
        f"{beside['max'] * 1e3:.1f})"
    )
    print(f"wrote {write_result('hold', result)}")
    draw_result("hold", result)
    if result["wrong"]:
        sys.exit("not clean:\n  " + "\n  ".join(result["wrong"]))


if __name__ == "__main__":
    main()
