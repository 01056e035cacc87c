"""Images in the scheduler: encoded before their rows, once, in parts of steps, with any company."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scheduler_driver import TOWER_ROWS, Driver, FakeTile, numbers, prompt_with_images

from pybatcher.errors import EngineError, InvalidRequestError
from pybatcher.params import SamplingParams
from pybatcher.params.config import SchedulerConfig
from pybatcher.scheduling import Failed, PlacedTile, PromptImages, Request, Scheduler, StepPlan
from pybatcher.scheduling.request import LiveRequest
from pybatcher.scheduling.tower import Tower
from pybatcher.testing import FakeEngine

CAT, DOG, BIRD = FakeTile(b"cat", 5), FakeTile(b"dog", 4), FakeTile(b"bird", 2)


def ask(driver: Driver, request_id: int, *parts: Any, max_tokens: int = 6, **fields: Any) -> None:
    prompt, images = prompt_with_images(*parts)
    driver.submit(request_id, prompt, images=images, max_tokens=max_tokens, **fields)


def answer(*parts: Any, max_tokens: int = 6) -> list[int]:
    """Return the tokens of a request that is alone."""
    driver = Driver()
    ask(driver, 1, *parts, max_tokens=max_tokens)
    driver.run()
    return driver.output(1)


def begun(driver: Driver) -> list[tuple[bytes, ...]]:
    """Return the digests of the tiles that were encoded together."""
    works = [plan.encode for plan in driver.plans if plan.encode is not None]
    return [tuple(tile.digest for tile in work.begin) for work in works if work.begin]


def test_an_image_changes_the_answer() -> None:
    assert len(answer((1, 2), CAT, (3,))) == 6
    assert answer((1, 2), CAT, (3,)) != answer((1, 2), FakeTile(b"cow", 5), (3,))


@pytest.mark.parametrize("n_batch", [4, 7, 64])
def test_the_same_tokens_in_company(n_batch: int) -> None:
    asked = [((1, 2), CAT, (3,)), (CAT, DOG), ((9,), BIRD, (4,), CAT, (5, 6)), ((7, 7, 7),)]
    driver = Driver(n_batch=n_batch, n_ctx=160, block_size=4)
    for request_id, parts in enumerate(asked):
        ask(driver, request_id, *parts)
    driver.run()
    driver.check_nothing_held()
    assert [driver.output(i) for i in range(len(asked))] == [answer(*parts) for parts in asked]


def test_tiles_of_several_requests_are_encoded_together_as_far_as_they_fit() -> None:
    driver = Driver()
    ask(driver, 1, CAT, (1,))
    ask(driver, 2, (2,), FakeTile(b"small", 1))
    ask(driver, 3, DOG, (3,))
    driver.run()
    assert 4 * (CAT.n_tokens + 1) == TOWER_ROWS
    assert begun(driver) == [(b"cat", b"small"), (b"dog",)]


def test_a_tile_is_encoded_once() -> None:
    driver = Driver()
    ask(driver, 1, CAT, (1,), CAT, (2,))
    ask(driver, 2, (3,), CAT)
    driver.run()
    ask(driver, 3, (4,), CAT)  # no prefix in common
    driver.run()
    assert begun(driver) == [(b"cat",)]


def test_a_second_turn_computes_only_what_is_new() -> None:
    driver = Driver(block_size=4)
    ask(driver, 1, (1, 2, 3), CAT, numbers(8), max_tokens=4)
    driver.run()
    driver.plans.clear()
    ask(driver, 2, (1, 2, 3), CAT, numbers(8), (5, 6), DOG, (7,), max_tokens=4)
    driver.run()
    assert driver.cached_tokens(2) == 16
    assert begun(driver) == [(b"dog",)]


def test_other_prompts_go_on_while_images_are_encoded() -> None:
    driver = Driver(n_batch=8)
    driver.submit(1, numbers(4), max_tokens=30, min_tokens=30)
    driver.step()
    ask(driver, 2, CAT, (1,))
    driver.submit(3, numbers(6, 20), max_tokens=3)
    driver.run()
    with_work = [plan for plan in driver.plans if plan.encode is not None]
    assert len(with_work) > 1
    assert all(plan.decode_rows for plan in with_work)
    n_patch_layers = len(CAT.pixels) * driver.engine.tower_layers
    for plan in with_work:
        rows = plan.encode.row_layers * driver.engine.tower_row_cost
        assert rows + plan.decode_rows + plan.prefill_rows <= driver.config.n_batch + 1
    assert sum(plan.encode.row_layers for plan in with_work) >= n_patch_layers


def test_some_work_is_done_beside_a_load_that_fills_every_step() -> None:
    driver = Driver(n_batch=4)
    for i in range(3):
        driver.submit(i, numbers(2), max_tokens=60, min_tokens=60)
    while driver.scheduler.n_waiting:
        driver.step()
    ask(driver, 9, BIRD, (1,))
    driver.run()
    assert driver.endings(9)
    assert driver.output(9) == answer(BIRD, (1,))


def test_cancelled_while_it_is_encoded() -> None:
    driver = Driver(n_batch=2)
    ask(driver, 1, CAT, (1,))
    driver.step()
    assert driver.scheduler.cancel(1)
    ask(driver, 2, DOG, (2,))
    driver.run()
    assert begun(driver) == [(b"cat",), (b"dog",)]
    assert driver.output(2) == answer(DOG, (2,))
    driver.check_nothing_held()


def test_a_companion_of_a_cancelled_request_goes_on() -> None:
    driver = Driver(n_batch=2)
    ask(driver, 1, BIRD, (1,))
    ask(driver, 2, DOG, (2,))
    driver.step()
    driver.step()
    driver.scheduler.cancel(1)
    driver.run()
    assert driver.output(2) == answer(DOG, (2,))


def test_a_crash_in_the_tower_is_a_pause() -> None:
    driver = Driver(n_batch=4)
    ask(driver, 1, CAT, (1,))
    driver.step()
    assert driver.step(fails=lambda plan: plan.encode is not None and not plan.entries)
    assert driver.n_failures == 1
    driver.run()
    assert driver.output(1) == answer(CAT, (1,))


def test_an_image_that_breaks_the_engine_ends_its_own_request() -> None:
    driver = Driver(n_batch=16)
    ask(driver, 1, CAT, (1,))
    ask(driver, 2, DOG, (2,))
    driver.submit(3, numbers(5), max_tokens=20, min_tokens=20)
    inside: list[bytes] = []

    def fails(plan: StepPlan) -> bool:
        if plan.encode is not None and plan.encode.begin:
            inside[:] = [tile.digest for tile in plan.encode.begin]
        return plan.encode is not None and b"cat" in inside

    while driver.step(fails=fails):
        pass
    assert driver.endings(1) == ["failed"]
    assert driver.output(2) == answer(DOG, (2,))
    assert len(driver.output(3)) == 20
    driver.check_nothing_held()


def test_a_tile_without_rows_ends_the_requests_that_need_it() -> None:
    driver = Driver()
    encode = driver.engine._encode

    def spoil(work: Any) -> Any:
        done = encode(work)
        return done and tuple(
            "not finite" if tile.digest == b"cat" else rows
            for tile, rows in zip(work.begin, done, strict=True)
        )

    driver.engine._encode = spoil  # type: ignore[method-assign]
    ask(driver, 1, CAT, (1,))
    ask(driver, 2, DOG, (2,))
    ask(driver, 3, (8,), CAT)
    driver.run()
    failed = [event for event in driver.events if isinstance(event, Failed)]
    assert [event.request_id for event in failed] == [1, 3]
    assert all(isinstance(event.error, EngineError) for event in failed)
    assert all("not finite" in str(event.error) for event in failed)
    assert driver.output(2) == answer(DOG, (2,))


def test_preempted_requests_with_images() -> None:
    driver = Driver(n_ctx=48, block_size=4, output_reserve=0, n_batch=12)
    asked = [((i,), CAT, (3,), DOG) for i in range(3)]
    for i, parts in enumerate(asked):
        ask(driver, i, *parts, max_tokens=20, min_tokens=20)
    driver.run()
    assert driver.scheduler.statistics().preemptions
    expected = [answer(*parts, max_tokens=20) for parts in asked]
    assert [driver.output(i) for i in range(3)] == expected


def test_rows_that_nobody_needs_are_dropped() -> None:
    engine = FakeEngine(tower_rows=TOWER_ROWS)
    tower = Tower(engine, kept_bytes=30)
    kept = {}
    for digest in (b"a", b"b", b"c"):
        prompt, images = prompt_with_images(FakeTile(digest, 5))
        request = Request(request_id=1, prompt=prompt, images=images)
        live = LiveRequest(request, 0.0, 0.0, 1, 10)
        tower.begin_step()
        assert tower.ready(live, 5) == 0
        assert tower.plan(budget(100)) is not None
        tower.take([np.zeros((5, 1), np.float32)], [live])
        kept[digest] = live
    tower.begin_step()
    assert tower.ready(kept[b"c"], 5) == 5
    assert tower.ready(kept[b"b"], 5) == 5
    assert tower.ready(kept[b"a"], 5) == 0


def budget(rows: int) -> Any:
    return SimpleNamespace(offer=lambda _, wanted: min(wanted, rows), take=lambda *_: None)


def test_a_tile_in_several_runs() -> None:
    first = 1 << 24
    tile = FakeTile(b"rows", 6)
    runs = tuple(PlacedTile(1 + 3 * i, 2, first + 2 * i, tile, 2 * i) for i in range(3))
    prompt = (5, first, first + 1, 6, first + 2, first + 3, 6, first + 4, first + 5, 7)
    driver = Driver(n_batch=4)
    images = PromptImages(runs, None, 0)
    driver.submit(1, prompt, images=images, max_tokens=4)
    driver.run()
    assert begun(driver) == [(b"rows",)]
    assert len(driver.output(1)) == 4


def test_refused_at_once() -> None:
    driver = Driver()
    with pytest.raises(InvalidRequestError, match="28 patches; the vision tower takes 24"):
        ask(driver, 1, FakeTile(b"large", 7))
    blind = Scheduler(SchedulerConfig(max_prefixes=0), FakeEngine())
    prompt, images = prompt_with_images(BIRD)
    request = Request(request_id=1, prompt=prompt, images=images, params=SamplingParams())
    with pytest.raises(InvalidRequestError, match="takes no images"):
        blind.submit(request, 0.0)
