"""Whatever is asked of the scheduler, in whatever order, and whatever breaks: its promises hold."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
from alone import tokens_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_driver import TOWER_ROWS, Driver, FakeTile, prompt_with_images

from pybatcher.errors import QueueFullError, RequestTooLongError
from pybatcher.params import SamplingParams
from pybatcher.scheduling import Failed, Preempted, Request, Resumed, StepPlan
from pybatcher.testing import FakeEngine

_SHARED = tuple(range(40))  # what many prompts begin with, so that they share blocks


@dataclass(frozen=True)
class Asked:
    """A request, when it comes, and when its caller gives up (steps after it came)."""

    prompt: tuple[int, ...]
    max_tokens: int
    min_tokens: int
    temperature: float
    seed: int
    at_step: int
    cancelled_after: int | None
    cancelled_during_step: bool
    timeout: float | None
    namespace: str
    priority: int
    n_given: int
    is_poison: bool
    image: FakeTile | None


def _seldom(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    nothing = st.none()
    return st.integers(0, 4).flatmap(lambda i: strategy if i == 4 else nothing)


# Made once: a composite would make, and check, each of them anew for every request.
_ASKED = st.builds(
    lambda head, tail, min_is_max, **others: Asked(
        prompt=_SHARED[:head] + tuple(tail),
        min_tokens=others["max_tokens"] if min_is_max else 0,
        **others,
    ),
    head=st.integers(0, len(_SHARED)),
    tail=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    max_tokens=st.integers(1, 40),
    min_is_max=st.booleans(),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 3),
    at_step=st.integers(0, 30),
    cancelled_after=_seldom(st.integers(0, 10)),
    cancelled_during_step=st.booleans(),
    timeout=_seldom(st.floats(0.001, 0.3)),
    namespace=st.sampled_from(["", "other"]),
    priority=st.integers(-1, 1),
    n_given=st.sampled_from([0, 0, 1, 2, 17, 40]),
    is_poison=st.sampled_from([False] * 9 + [True]),
    image=st.sampled_from([None, None, FakeTile(b"a", 1), FakeTile(b"b", 3), FakeTile(b"c", 6)]),
)


@st.composite
def drivers(draw: st.DrawFn) -> Driver:
    return Driver(
        n_ctx=draw(st.integers(6, 32)) * 4,
        block_size=4,
        n_parallel=draw(st.integers(1, 5)) + 1,
        max_positions=draw(st.none() | st.integers(10, 80)),
        max_prefixes=1,
        n_batch=draw(st.integers(1, 40)),
        max_prefill_tokens=draw(st.integers(0, 10)),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3, 12])),
        max_num_partial_prefills=draw(st.sampled_from([1, 1, 2, 4])),
        itl_target=draw(st.sampled_from([None, None, 0.001, 0.05])),
        dynamic_chunking=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.01, 0.3])),
        output_reserve=draw(st.sampled_from([0, 0, 0, 3, 256])),
        victim_policy=draw(st.sampled_from(["youngest", "priority", "cheapest"])),
        priority_aging=draw(st.sampled_from([0.001, 0.1, 1000.0])),
        max_queue_requests=draw(st.sampled_from([3, 1000])),
        max_queue_tokens=draw(st.sampled_from([100, 100_000])),
        vocab_size=draw(st.sampled_from([258, 3])),  # with three tokens, drafts are often right
        max_draft_tokens=draw(st.sampled_from([0, 1, 8])),
    )


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    driver=drivers(),
    plan=st.lists(_ASKED, min_size=1, max_size=25),
    n_shared=st.integers(1, len(_SHARED)),
    shared_at_step=st.integers(0, 30),
    broken_steps=st.sets(st.integers(0, 60), max_size=4),
)
def test_promises_hold_for_random_requests(
    driver: Driver,
    plan: list[Asked],
    n_shared: int,
    shared_at_step: int,
    broken_steps: set[int],
) -> None:
    requests: dict[int, Request] = {}
    cancelled: set[int] = set()
    submitted: list[int] = []
    refused: set[int] = set()

    expected: dict[int, list[int]] = {}

    def ask(request_id: int, what: Asked) -> None:
        prompt, images = prompt_with_images(
            tuple(token % driver.engine.vocab_size for token in what.prompt),
            *([what.image, (1,)] if what.image is not None else []),
        )
        request = Request(
            request_id=request_id,
            prompt=prompt,
            images=images if what.image is not None else None,
            params=SamplingParams(
                max_tokens=what.max_tokens,
                min_tokens=what.min_tokens,
                temperature=what.temperature,
            ),
            seed=what.seed,
            end_token_ids=frozenset(range(0, driver.engine.vocab_size, 9)),
            namespace=what.namespace,
            priority=what.priority,
            deadline=None if what.timeout is None else driver.clock() + what.timeout,
        )
        alone = FakeEngine(
            n_ctx=4096, n_parallel=1, vocab_size=driver.engine.vocab_size, tower_rows=TOWER_ROWS
        )
        tokens = tokens_alone(request, driver.engine.max_sequence_length, alone)
        n_given = max(0, min(what.n_given, len(tokens) - 1))  # the last one ends it
        expected[request_id] = tokens[n_given:]
        request = replace(request, output=tuple(tokens[:n_given]))
        try:
            driver.scheduler.submit(request, driver.clock())
            requests[request_id] = request
            submitted.append(request_id)
        except (QueueFullError, RequestTooLongError):
            refused.add(request_id)

    def give_up(step: int, during: bool) -> None:
        for request_id, what in enumerate(plan):
            if what.cancelled_after is None or what.cancelled_during_step != during:
                continue
            is_time = what.at_step + what.cancelled_after == step
            if is_time and request_id in requests and driver.scheduler.cancel(request_id):
                cancelled.add(request_id)

    def fails(step: int, step_plan: StepPlan) -> bool:
        running = driver.scheduler._table.running
        poison = {running[i].seq_id for i in running if plan[i].is_poison}
        return step in broken_steps or any(e.seq_id in poison for e in step_plan.entries)

    n_steps, work = 0, sum(len(what.prompt) + what.max_tokens for what in plan) + len(_SHARED)
    most_steps = 20 * work + 100
    for step in range(most_steps):
        for request_id, what in enumerate(plan):
            if what.at_step == step:
                ask(request_id, what)
        if step == shared_at_step:
            with suppress(RequestTooLongError):
                shared = tuple(token % driver.engine.vocab_size for token in _SHARED[:n_shared])
                driver.scheduler.add_prefix(shared)
        give_up(step, during=False)
        n_steps += driver.step(
            during=lambda step=step: give_up(step, during=True),
            fails=lambda step_plan, step=step: fails(step, step_plan),
        )
        if step > 60 and driver.scheduler.is_idle and not driver.scheduler.n_waiting:
            break
    assert driver.scheduler.is_idle, "starved"
    assert driver.scheduler.n_waiting == 0, "starved"

    for request_id in requests:
        endings = driver.endings(request_id)
        output = driver.output(request_id)
        assert output == expected[request_id][: len(output)]
        if request_id in cancelled:
            assert endings == []
        else:
            assert len(endings) == 1
            if endings[0] in ("stop", "length"):
                assert output == expected[request_id]
                assert not plan[request_id].is_poison
            if endings[0] == "failed":
                # On a broken step of its own that comes when it is alone, one is taken for poison.
                assert (
                    plan[request_id].is_poison
                    or broken_steps
                    or request_id in refused_later(driver)
                )

    counts = driver.scheduler.statistics()
    assert counts.submitted == len(submitted)
    assert counts.cancelled == len(cancelled)
    ended = counts.completed + counts.cancelled + counts.expired + counts.failed
    assert ended == counts.submitted
    assert counts.preemptions == sum(isinstance(e, Preempted) for e in driver.events)
    again = sum(e.recomputed_tokens for e in driver.events if isinstance(e, Resumed))
    came_with = {i: r for i, r in requests.items() if r.output and i in driver.admitted()}
    carried = sum(len(r.prompt) + len(r.output) - 1 for r in came_with.values())
    assert again <= counts.recomputed_tokens + counts.replayed_tokens <= again + carried
    assert counts.steps == n_steps - driver.n_failures
    assert counts.steps == driver.engine.statistics()["forward_passes"]
    for name in ("computed_tokens", "proposed_tokens", "accepted_tokens"):
        assert getattr(counts, name) == driver.engine.statistics()[name]
    driver.scheduler.drop_prefixes()
    driver.check_nothing_held()


def refused_later(driver: Driver) -> set[int]:
    """Who waited, and fitted no more when a shared prefix took KV for good."""
    return {
        event.request_id
        for event in driver.events
        if isinstance(event, Failed) and isinstance(event.error, RequestTooLongError)
    }
