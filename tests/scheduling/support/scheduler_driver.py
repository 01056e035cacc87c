"""Runs a `Scheduler` over a `FakeEngine`, step by step, and checks each step on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pybatcher.params import SamplingParams
from pybatcher.params.config import SchedulerConfig
from pybatcher.scheduling import (
    FIRST_IMAGE_ID,
    Admitted,
    Answered,
    Expired,
    Failed,
    Generated,
    KvAllocator,
    PlacedTile,
    PromptImages,
    Request,
    Scheduler,
    SchedulerEvent,
    StepEntry,
    StepPlan,
)
from pybatcher.testing import FakeClock, FakeEngine

TOWER_ROWS = 24  # patches


@dataclass(frozen=True)
class FakeTile:
    """A tile of `n_tokens` tokens with four patches each; its content is its digest."""

    digest: bytes
    n_tokens: int

    @property
    def pixels(self) -> range:
        return range(4 * self.n_tokens)


def prompt_with_images(*parts: tuple[int, ...] | FakeTile) -> tuple[tuple[int, ...], PromptImages]:
    """Return a prompt of these tokens and tiles, and its images; equal tiles get equal ids."""
    tokens: list[int] = []
    placed: list[PlacedTile] = []
    for part in parts:
        if isinstance(part, FakeTile):
            content = int.from_bytes(hashlib.sha256(part.digest).digest()[:3])
            first = FIRST_IMAGE_ID + content * 64
            placed.append(PlacedTile(len(tokens), part.n_tokens, first, part))
            tokens += range(first, first + part.n_tokens)
        else:
            tokens += part
    positions = np.repeat(np.arange(len(tokens), dtype=np.int32)[None], 3, axis=0)
    return tuple(tokens), PromptImages(tuple(placed), positions, 0)


class Driver:
    """One scheduler with its engine and clock; what happened is in `events` and `plans`.

    kv: makes what the scheduler asks about KV of the engine.
    """

    def __init__(
        self,
        *,
        n_ctx: int = 1024,
        n_parallel: int = 4,
        block_size: int = 16,
        max_positions: int | None = None,
        max_prefixes: int = 0,
        vocab_size: int = 258,
        max_draft_tokens: int = 0,
        step_seconds: float = 0.01,
        row_seconds: float = 0.0,
        kv: Callable[[FakeEngine], KvAllocator] = lambda engine: engine,
        **config: object,
    ) -> None:
        self.engine = FakeEngine(
            n_ctx=n_ctx,
            n_parallel=n_parallel,
            block_size=block_size,
            max_positions=max_positions,
            vocab_size=vocab_size,
            tower_rows=TOWER_ROWS,
        )
        self.config = SchedulerConfig(
            max_draft_tokens=max_draft_tokens, max_prefixes=max_prefixes, **config
        )
        self.scheduler = Scheduler(self.config, kv(self.engine))
        self.clock = FakeClock()
        self.step_seconds, self.row_seconds = step_seconds, row_seconds
        self.events: list[SchedulerEvent] = []
        self.plans: list[StepPlan] = []
        self.n_failures = 0
        self._prompt_lengths: dict[int, int] = {}

    def submit(self, request_id: int, prompt: tuple[int, ...], **fields: object) -> Request:
        """Submit a request; fields of SamplingParams and of Request by name."""
        of_request = {"seed", "end_token_ids", "namespace", "deadline", "priority"}
        of_request |= {"targets", "pooling", "output", "matcher", "takes_whole", "images"}
        params = {name: value for name, value in fields.items() if name not in of_request}
        others = {name: value for name, value in fields.items() if name in of_request}
        request = Request(
            request_id=request_id, prompt=prompt, params=SamplingParams(**params), **others
        )
        self.scheduler.submit(request, self.clock())
        return request

    def step(
        self,
        during: Callable[[], None] | None = None,
        fails: Callable[[StepPlan], bool] | None = None,
    ) -> bool:
        """Plan, compute, apply; False when there was nothing to do.

        during: called meanwhile. fails: whether the engine breaks in this step.
        """
        plan = self.scheduler.plan(self.clock())
        self.events += self.scheduler.take_events()
        if plan is None:
            self._check_nothing_lost()
            return False
        self._check(plan)
        broken = fails is not None and fails(plan)
        if not broken:
            result = self.engine.step(plan)
        if during is not None:
            during()
        if broken:
            self.n_failures += 1
            self.events += self.scheduler.step_failed(RuntimeError("injected"))
            self.engine.restart()
            return True
        rows = sum(len(entry.tokens) for entry in plan.entries)
        self.clock.advance(self.step_seconds + self.row_seconds * rows)
        self.events += self.scheduler.apply(result, self.clock())
        self.plans.append(plan)
        self.engine.check_integrity()
        return True

    def run(self) -> None:
        """Step until nothing is left to do, and check that nothing is left at all."""
        while self.step():
            pass
        assert self.scheduler.is_idle
        assert self.scheduler.n_waiting == 0

    def check_nothing_held(self) -> None:
        """All sequences and blocks are back."""
        engine = self.engine
        engine.check_integrity()
        assert engine.used_sequences == 0
        assert engine.kv_free_blocks + engine.kv_cached_blocks == engine.kv_total_blocks

    def output(self, request_id: int) -> list[int]:
        """The tokens that a request was given."""
        return [
            event.token.token_id
            for event in self.events
            if isinstance(event, Generated) and event.request_id == request_id
        ]

    def endings(self, request_id: int) -> list[str]:
        """How a request ended: finish reasons, "answered", "expired", "failed"."""
        found = []
        for event in self.events:
            if event.request_id != request_id:
                continue
            if isinstance(event, Generated) and event.finish_reason is not None:
                found.append(event.finish_reason)
            elif isinstance(event, (Answered, Expired, Failed)):
                found.append(type(event).__name__.lower())
        return found

    def answer(self, request_id: int) -> Answered:
        """What a request was told."""
        return next(
            event
            for event in self.events
            if isinstance(event, Answered) and event.request_id == request_id
        )

    def admitted(self) -> list[int]:
        """Request ids in the order of their admission."""
        return [event.request_id for event in self.events if isinstance(event, Admitted)]

    def cached_tokens(self, request_id: int) -> int:
        """What the request was spared, as told at admission."""
        return next(
            event.cached_tokens
            for event in self.events
            if isinstance(event, Admitted) and event.request_id == request_id
        )

    def _check(self, plan: StepPlan) -> None:
        """What holds in every step, whatever is asked of the scheduler."""
        decode, prefill = split(plan)
        assert len(decode) == plan.decode_rows
        assert sum(len(entry.tokens) for entry in prefill) == plan.prefill_rows
        assert sum(entry.n_draft for entry in plan.entries) == plan.draft_rows
        n_rows = plan.decode_rows + plan.prefill_rows + plan.draft_rows
        assert plan.encode is not None or n_rows
        assert n_rows <= self.config.n_batch
        if decode and self.config.max_prefill_tokens:
            whole = sum(len(entry.tokens) for entry in prefill if entry.pooling in ("mean", "cls"))
            assert plan.prefill_rows - whole <= self.config.max_prefill_tokens
        assert all(len(entry.tokens) == 1 + entry.n_draft and entry.sample for entry in decode)
        assert all(entry.n_draft <= self.config.max_draft_tokens for entry in decode)
        assert not any(entry.n_draft for entry in prefill)
        generating = {
            live.seq_id: live.request
            for live in self.scheduler._table.running.values()
            if live.output and self.engine.seq_length(live.seq_id) == live.num_tokens - 1
        }
        suspects = {prefix.seq_id for prefix in self.scheduler.prefixes if prefix.is_suspect}
        if suspects & {entry.seq_id for entry in plan.entries}:
            assert len(plan.entries) == 1, "a suspect runs alone"
        elif self.scheduler._poison.current is None:
            drawing = {entry.seq_id for entry in plan.entries if entry.sample}
            assert {entry.seq_id for entry in decode} <= set(generating) <= drawing, "skipped"
        else:
            n_alone = len(plan.entries) + (plan.encode is not None and not plan.entries)
            assert n_alone == 1, "a candidate for poison runs alone"
        for entry in decode:
            needed = generating[entry.seq_id].positions_needed(self.engine.max_sequence_length)
            assert self.engine.seq_length(entry.seq_id) + len(entry.tokens) <= needed
        needed = 0
        for entry in plan.entries:
            length, size = self.engine.seq_length(entry.seq_id), self.engine.block_size
            needed += -(-(length + len(entry.tokens)) // size) - -(-length // size)
        assert needed <= self.engine.kv_free_blocks + self.engine.kv_cached_blocks

    def _check_nothing_lost(self) -> None:
        """Who has not ended waits or runs, and not both."""
        table = self.scheduler._table
        waiting = [live.request.request_id for live in table.waiting]
        assert len(waiting) == len(set(waiting)) == len(table.waiting)
        assert sorted([*waiting, *table.parked, *table.running]) == sorted(table.live)


def split(plan: StepPlan) -> tuple[tuple[StepEntry, ...], tuple[StepEntry, ...]]:
    """Decode and prefill entries of a plan."""
    return plan.entries[: plan.decode_rows], plan.entries[plan.decode_rows :]


def numbers(count: int, start: int = 0) -> tuple[int, ...]:
    """A prompt of `count` tokens."""
    return tuple((start + i * 7) % 250 for i in range(count))
