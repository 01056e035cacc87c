"""Measure how long streams pause while their worker is killed, stopped and made to abort.

    .venv/bin/python -m bench.chaos llama-3.2-1b

Greedy and sampled streams are requested repeatedly through a `Client`; faults come at random
moments: SIGKILL, SIGSTOP (the worker hangs), SIGABRT sent to a computing thread. Each stream has to
equal, token by token, the one of a batcher in this process, or the run ends with exit status 1. A
fault's pause is the longest gap between two pieces of a stream that it fell into, over all streams.
The next fault comes when all streams have had a token again (--relentless: one stream), so that a
pause belongs to one fault. Its parts are the time until the front notices, until the next worker
has started and loaded the model (from the log), and the rest, which is replay. Results go to
bench/results/chaos-*.json and docs/plots/.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.common.machine import describe_run
from bench.common.options import parse
from bench.common.progress import Bar, bar
from bench.common.results import write_result
from bench.convert.shapes import SHAPES
from bench.report.draw import draw_result
from bench.serving.faults import (
    Fault,
    inject_and_wait,
    record_pauses,
    unexpected_ends,
    worker_start,
)
from bench.serving.sidecar import SHIPPED, model_of
from bench.serving.sidecar_process import Sidecar, open_sidecar
from bench.serving.streams import read_stream
from pybatcher import AnyBatcher, Batcher, Client, Completion, Piece, PybatcherError

__all__ = ["BIN", "Callers", "reproducible_part", "stream_request"]

BIN = 0.1  # seconds per point of the plot
_MAX_WRONG = 100  # descriptions of wrong streams, after which the callers end


def stream_request(i: int, n_tokens: int) -> tuple[Any, dict[str, Any]]:
    """Return prompt and parameters of the i-th stream: greedy and sampled, texts and ids."""
    prompt: Any = f"Once upon a time there were {i} little"
    params: dict[str, Any] = {"max_tokens": n_tokens, "ignore_eos": True}
    if i % 4 == 1:
        params |= {"temperature": 1.0, "seed": i, "top_p": 0.95}
    if i % 4 == 2:
        params |= {"temperature": 0.8, "seed": i, "repetition_penalty": 1.2, "logprobs": 2}
    if i % 4 == 3:
        params |= {"stop": ["zzz", " and they"], "presence_penalty": 0.5}
    if i % 8 == 4:
        prompt = [1 + i, 17, 100 + i, 5]
    return prompt, params


def reproducible_part(completion: Completion) -> tuple[Any, ...]:
    """Return the fields of a completion that must not depend on faults."""
    return (
        completion.text,
        completion.token_ids,
        completion.finish_reason,
        completion.logprobs,
        completion.usage.prompt_tokens,
        completion.usage.completion_tokens,
    )


class Callers:
    """Request the same streams repeatedly and compare them with the expected ones.

    bins: tokens received in each interval of `BIN` seconds from the start. tokens, rounds: tokens
    received and streams ended. wrong: descriptions of streams that differed or failed. gaps:
    (begin, end) of every gap longer than BIN / 2.
    """

    def __init__(self, batcher: AnyBatcher, expected: Sequence[tuple[Any, ...]], n_tokens: int):
        self._batcher, self._expected, self._n_tokens = batcher, expected, n_tokens
        self.begin = time.monotonic()
        self.bins: list[int] = []
        self.tokens = 0
        self.rounds = 0
        self.wrong: list[str] = []
        self.gaps: list[tuple[float, float]] = []  # begin, end; longer than BIN / 2
        self._last_token = [0.0] * len(expected)
        self.is_over = False

    async def run(self) -> None:
        """Run all streams until `is_over` is set, and read the last ones to their end."""
        await asyncio.gather(*map(self._keep_calling, range(len(self._expected))))

    async def _keep_calling(self, i: int) -> None:
        while not self.is_over and len(self.wrong) < _MAX_WRONG:
            await self.call(i)

    async def call(self, i: int) -> None:
        """Request the i-th stream, read it and compare it."""
        prompt, params = stream_request(i, self._n_tokens)
        before = time.monotonic()

        def note(piece: Piece) -> None:
            nonlocal before
            now = time.monotonic()
            if now - before > BIN / 2:
                self.gaps.append((before, now))
            before = self._last_token[i] = now
            self._count(now, len(piece.token_ids))

        try:
            received = await read_stream(self._batcher, prompt, note, **params)
            if reproducible_part(received.completion) != self._expected[i]:
                self.wrong.append(f"stream {i} is not what it would have been")
        except (PybatcherError, RuntimeError) as error:
            self.wrong.append(f"stream {i} failed: {error!r}")
        self.rounds += 1

    def _count(self, now: float, n: int) -> None:
        place = int((now - self.begin) / BIN)
        self.bins += [0] * (place + 1 - len(self.bins))
        self.bins[place] += n
        self.tokens += n

    async def resume(self, *, all_of_them: bool) -> None:
        """Wait until one stream, or all of them, have had a token after this call."""
        now = time.monotonic()
        enough = all if all_of_them else any
        while not enough(at > now for at in self._last_token):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def inject_faults(
    sidecar: Sidecar, callers: Callers, kinds: Sequence[str], lulls: Sequence[float],
    relentless: bool, on_fault: Callable[[Fault], None],
) -> list[Fault]:  # fmt: skip
    """Inject a fault of each kind; return them with their pauses.

    lulls: seconds before each fault, from when all streams have had a token again (relentless: from
    when one has). on_fault: called after each.
    """
    calling = asyncio.ensure_future(callers.run())
    faults: list[Fault] = []
    try:
        for kind, lull in zip(kinds, lulls, strict=True):
            await _unless_callers_end(calling, callers.resume(all_of_them=not relentless))
            await _unless_callers_end(calling, asyncio.sleep(lull))
            fault = await _unless_callers_end(calling, inject_and_wait(kind, sidecar))
            faults.append(fault)
            on_fault(fault)
    finally:
        callers.is_over = True
        await asyncio.wait([calling])
    calling.result()
    record_pauses(faults, callers.gaps)
    return faults


async def _unless_callers_end(calling: asyncio.Future[None], wanted: Any) -> Any:
    """Await `wanted`. Raises RuntimeError if the callers end first."""
    waiting = asyncio.ensure_future(wanted)
    await asyncio.wait({calling, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        raise RuntimeError("the callers gave up")
    return waiting.result()


async def measure(a: argparse.Namespace, options: dict[str, Any], shown: Bar) -> dict[str, Any]:
    model = model_of(a.shape)
    rng = random.Random(a.seed)
    kinds = ["SIGKILL"] * a.kills + ["SIGSTOP"] * a.stops + ["SIGABRT"] * a.aborts
    rng.shuffle(kinds)
    lulls = [rng.uniform(0.0, a.lull) for _ in kinds]
    shown.now("undisturbed")
    async with Batcher(model, **options) as batcher:
        questions = (stream_request(i, a.tokens) for i in range(a.streams))
        expected = await asyncio.gather(*(batcher.generate(p, **more) for p, more in questions))
    shown.now("starting workers")
    starts = [await worker_start() for _ in range(3)]
    start = statistics.median(starts)

    def on_fault(fault: Fault) -> None:
        shown.say(
            f"{fault.kind}: noticed after {fault.noticed:.3f} s, ready in {fault.ready:.2f} s"
        )
        shown.advance()

    given: dict[str, Any] = {} if model is None else {"model": str(model)}
    own = {"hang_timeout": a.hang_timeout, "max_worker_restarts": 1_000_000}
    with open_sidecar(**given, **options, **own) as sidecar:
        await sidecar.ready()
        async with Client(sidecar.socket) as client:
            shown.now("faults")
            callers = Callers(client, list(map(reproducible_part, expected)), a.tokens)
            faults = await inject_faults(sidecar, callers, kinds, lulls, a.relentless, on_fault)
        wrong = callers.wrong + unexpected_ends(sidecar, faults)
        sidecar.close()
    return {
        "streams": a.streams,
        "rounds": callers.rounds,
        "tokens": callers.tokens,
        "worker_start_s": start,
        "hang_timeout": a.hang_timeout,
        "blows": [fault.split(start, callers.begin) for fault in faults],
        "bin_s": BIN,
        "tokens_by_bin": callers.bins,
        "wrong": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", nargs="?", choices=[*sorted(SHAPES), SHIPPED], default=SHIPPED)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96, help="of each stream")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stops", type=int, default=2)
    parser.add_argument("--aborts", type=int, default=1)
    parser.add_argument("--lull", type=float, default=2.0, help="most seconds until the next fault")
    parser.add_argument(
        "--relentless", action="store_true", help="do not wait until all streams have gone on"
    )
    parser.add_argument("--hang-timeout", type=float, default=5.0, help="seconds; of the sidecar")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    a = parser.parse_args()
    room = {"n_ctx": a.streams * (a.tokens + 96), "n_parallel": a.streams}
    options = {"dtype": a.dtype} | room | parse(a.option)
    run = describe_run()
    with bar(a.kills + a.stops + a.aborts) as shown:
        found = asyncio.run(measure(a, options, shown))
    result = {"run": run, "shape": a.shape, "options": options, **found}
    for kind in dict.fromkeys(fault["kind"] for fault in result["blows"]):
        faults = [fault for fault in result["blows"] if fault["kind"] == kind]
        parts = ("pause", "noticed", "start", "load", "replay")
        medians = {part: statistics.median(fault[part] for fault in faults) for part in parts}
        told = ", ".join(f"{part} {seconds:.3f}" for part, seconds in medians.items())
        print(
            f"{len(faults)} {kind}: p50 of {told}; "
            f"longest pause {max(fault['pause'] for fault in faults):.3f} s"
        )
    print(
        f"{result['rounds']} streams, {result['tokens']} tokens, all as undisturbed: "
        f"{'no' if result['wrong'] else 'yes'}"
    )
    print(f"wrote {write_result(f'chaos-{a.shape}', result)}")
    draw_result("chaos", result)
    if result["wrong"]:
        sys.exit("not as undisturbed:\n  " + "\n  ".join(dict.fromkeys(result["wrong"])))


if __name__ == "__main__":
    main()
