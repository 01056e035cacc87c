"""Streams go on while their worker is killed, stopped and made to abort. How long do they pause?

    .venv/bin/python -m bench.chaos llama-3.2-1b

Greedy and sampled streams, asked for again and again through a `Client`; blows at random moments:
SIGKILL, SIGSTOP (the worker hangs), SIGABRT sent to a thread that computes. Each stream has to be
what a batcher in this process gave, token by token, or the run ends with 1. A blow's pause is the
longest gap between two pieces of a stream that it fell into, over all streams; so that it is one
blow's, the next comes when all streams have gone on (--relentless: one). In it: how long the front
took to notice, the next worker to start and to load the model (the log says how long), and the
rest, which is replaying what the streams had. Results land in bench/results/chaos-*.json and
docs/plots/.
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

from pybatcher import AnyBatcher, Batcher, Client, Completion, Piece, PybatcherError

from .blows import Blow, deal, ends_of_their_own, note_pauses, worker_start
from .draw import draw_result
from .machine import describe_run
from .options import parse
from .progress import Bar, bar
from .results import write_result
from .shapes import SHAPES
from .sidecar import SHIPPED, model_of
from .sidecar_process import Sidecar, open_sidecar
from .streams import listen

__all__ = ["BIN", "Callers", "asked", "gist"]

BIN = 0.1  # seconds of a point of the picture
_ENOUGH = 100  # that is wrong: nobody needs to see more


def asked(i: int, n_tokens: int) -> tuple[Any, dict[str, Any]]:
    """The i-th stream's prompt and parameters: greedy and sampled, texts and ids, penalties."""
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


def gist(completion: Completion) -> tuple[Any, ...]:
    """What must not depend on what happens on the way."""
    return (
        completion.text,
        completion.token_ids,
        completion.finish_reason,
        completion.logprobs,
        completion.usage.prompt_tokens,
        completion.usage.completion_tokens,
    )


class Callers:
    """Ask for the same streams over and over, and compare what comes with what is expected.

    tokens: when they came, in bins of `BIN` seconds from the start. wrong: what was not as it
    should be, in words.
    """

    def __init__(self, batcher: AnyBatcher, expected: Sequence[tuple[Any, ...]], n_tokens: int):
        self._batcher, self._expected, self._n_tokens = batcher, expected, n_tokens
        self.begin = time.monotonic()
        self.bins: list[int] = []
        self.tokens = 0
        self.rounds = 0
        self.wrong: list[str] = []
        self.gaps: list[tuple[float, float]] = []  # those long enough to be a pause: from, to
        self._heard_last = [0.0] * len(expected)
        self.is_over = False

    async def run(self) -> None:
        """Until `is_over`, and all have read their streams to the end."""
        await asyncio.gather(*map(self._keep_calling, range(len(self._expected))))

    async def _keep_calling(self, i: int) -> None:
        while not self.is_over and len(self.wrong) < _ENOUGH:
            await self.call(i)

    async def call(self, i: int) -> None:
        """Ask for the i-th stream and read it."""
        prompt, params = asked(i, self._n_tokens)
        before = time.monotonic()

        def note(piece: Piece) -> None:
            nonlocal before
            now = time.monotonic()
            if now - before > BIN / 2:
                self.gaps.append((before, now))
            before = self._heard_last[i] = now
            self._count(now, len(piece.token_ids))

        try:
            heard = await listen(self._batcher, prompt, note, **params)
            if gist(heard.completion) != self._expected[i]:
                self.wrong.append(f"stream {i} is not what it would have been")
        except (PybatcherError, RuntimeError) as error:
            self.wrong.append(f"stream {i} failed: {error!r}")
        self.rounds += 1

    def _count(self, now: float, n: int) -> None:
        place = int((now - self.begin) / BIN)
        self.bins += [0] * (place + 1 - len(self.bins))
        self.bins[place] += n
        self.tokens += n

    async def go_on(self, *, all_of_them: bool) -> None:
        """Wait until one stream, or all of them, have had a token from now on."""
        now = time.monotonic()
        enough = all if all_of_them else any
        while not enough(heard > now for heard in self._heard_last):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def rain(
    sidecar: Sidecar, callers: Callers, kinds: Sequence[str], lulls: Sequence[float],
    relentless: bool, on_blow: Callable[[Blow], None],
) -> list[Blow]:  # fmt: skip
    """A blow of each kind, each so many seconds after all streams have gone on.

    relentless: after one of them has.
    """
    calling = asyncio.ensure_future(callers.run())
    blows: list[Blow] = []
    try:
        for kind, lull in zip(kinds, lulls, strict=True):
            await _or_done(calling, callers.go_on(all_of_them=not relentless))
            await _or_done(calling, asyncio.sleep(lull))
            blow = await _or_done(calling, deal(kind, sidecar))
            blows.append(blow)
            on_blow(blow)
    finally:
        callers.is_over = True
        await asyncio.wait([calling])
    calling.result()
    note_pauses(blows, callers.gaps)
    return blows


async def _or_done(calling: asyncio.Future[None], wanted: Any) -> Any:
    """What is wanted; RuntimeError if the callers give up before."""
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
        questions = (asked(i, a.tokens) for i in range(a.streams))
        expected = await asyncio.gather(*(batcher.generate(p, **more) for p, more in questions))
    shown.now("starting workers")
    starts = [await worker_start() for _ in range(3)]
    start = statistics.median(starts)

    def on_blow(blow: Blow) -> None:
        shown.say(f"{blow.kind}: noticed after {blow.noticed:.3f} s, ready in {blow.ready:.2f} s")
        shown.advance()

    given: dict[str, Any] = {} if model is None else {"model": str(model)}
    own = {"hang_timeout": a.hang_timeout, "max_worker_restarts": 1_000_000}
    with open_sidecar(**given, **options, **own) as sidecar:
        await sidecar.ready()
        async with Client(sidecar.socket) as client:
            shown.now("blows")
            callers = Callers(client, list(map(gist, expected)), a.tokens)
            blows = await rain(sidecar, callers, kinds, lulls, a.relentless, on_blow)
        wrong = callers.wrong + ends_of_their_own(sidecar, blows)
        sidecar.close()
    return {
        "streams": a.streams,
        "rounds": callers.rounds,
        "tokens": callers.tokens,
        "worker_start_s": start,
        "hang_timeout": a.hang_timeout,
        "blows": [blow.split(start, callers.begin) for blow in blows],
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
    parser.add_argument("--lull", type=float, default=2.0, help="most seconds until the next blow")
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
    for kind in dict.fromkeys(blow["kind"] for blow in result["blows"]):
        blows = [blow for blow in result["blows"] if blow["kind"] == kind]
        parts = ("pause", "noticed", "start", "load", "replay")
        medians = {part: statistics.median(blow[part] for blow in blows) for part in parts}
        told = ", ".join(f"{part} {seconds:.3f}" for part, seconds in medians.items())
        print(
            f"{len(blows)} {kind}: p50 of {told}; "
            f"longest pause {max(blow['pause'] for blow in blows):.3f} s"
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
