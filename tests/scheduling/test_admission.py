"""Rows of the capability list: long prompts, dedup, who waits for whom, KV that runs out."""

from __future__ import annotations

import pytest
from alone import tokens_alone
from scheduler_driver import Driver, numbers, split

from pybatcher.scheduling import Admitted, Preempted, Resumed


def chunks(driver: Driver, seq_id: int) -> list[int]:
    """How many tokens of a sequence each step computed that computed any."""
    return [
        len(entry.tokens)
        for plan in driver.plans
        for entry in split(plan)[1]
        if entry.seq_id == seq_id
    ]


def test_chunk_size_zero_is_off() -> None:
    driver = Driver(n_ctx=2048, n_batch=1024, long_prefill_token_threshold=0)
    driver.submit(0, numbers(900), max_tokens=1)
    driver.run()
    assert chunks(driver, 0) == [900]


def test_long_prefill_token_threshold() -> None:
    driver = Driver(n_ctx=2048, n_batch=512, long_prefill_token_threshold=100)
    driver.submit(0, numbers(330), max_tokens=1)
    driver.run()
    assert chunks(driver, 0) == [100, 100, 100, 30]


def test_four_percent_rule() -> None:
    driver = Driver(n_ctx=8192, n_batch=4096, max_num_partial_prefills=2)
    driver.submit(0, numbers(1000), max_tokens=1)
    driver.run()
    assert chunks(driver, 0) == [327, 327, 327, 19]
    alone = Driver(n_ctx=8192, n_batch=4096, max_num_partial_prefills=1)
    alone.submit(0, numbers(1000), max_tokens=1)
    alone.run()
    assert chunks(alone, 0) == [1000]


def test_one_partial_prefill_at_a_time() -> None:
    driver = Driver(n_ctx=2048, n_batch=64, long_prefill_token_threshold=40)
    for request_id in range(3):
        driver.submit(request_id, numbers(100, request_id), max_tokens=1)
    driver.step()
    assert driver.admitted() == [0], "a second one would be computed in part too"
    driver.run()
    half = [
        sum(0 < count < 100 for count in done)
        for done in _computed_after_each_step(driver, n_tokens=100)
    ]
    assert max(half) == 1


def test_short_prompts_pass_a_long_one() -> None:
    steps_to_first_token = {}
    for most in (1, 3):
        driver = Driver(n_ctx=8192, n_batch=512, max_num_partial_prefills=most)
        driver.submit(0, numbers(4000), max_tokens=1)
        driver.step()
        driver.submit(1, numbers(50, 1), max_tokens=1)
        while not driver.output(1):
            driver.step()
        steps_to_first_token[most] = len(driver.plans)
        driver.run()
        assert driver.endings(0) == driver.endings(1) == ["length"]
    assert steps_to_first_token[3] == 2
    assert steps_to_first_token[1] == 8


@pytest.mark.parametrize("limit", [{"max_prefill_tokens": 40}, {"itl_target": 0.035}], ids=str)
def test_short_prompts_pass_a_long_one_where_few_rows_are_left(limit: dict[str, object]) -> None:
    """The long one has its share all the while, and the rest goes to who is nearest to its end."""
    driver = Driver(n_ctx=8192, n_parallel=8, n_batch=512, max_num_partial_prefills=4, **limit)
    driver.submit(0, numbers(9), max_tokens=2000)
    driver.submit(1, numbers(3000, 1), max_tokens=1)
    for _ in range(20):
        _timed_step(driver)
    assert not driver.output(1)
    for request_id in range(2, 5):
        driver.submit(request_id, numbers(50, request_id), max_tokens=1)
    before = len(driver.plans)
    while not all(driver.output(request_id) for request_id in range(2, 5)):
        _timed_step(driver)
        assert len(driver.plans) < before + 12
    long = [
        len(entry.tokens)
        for plan in driver.plans[before:]
        for entry in split(plan)[1]
        if entry.seq_id == 1
    ]
    assert len(long) == len(driver.plans) - before, "it never stands still"
    driver.run()


def test_a_short_prompt_passes_where_it_is_computed_whole() -> None:
    driver = Driver(n_ctx=8192, n_batch=128, long_prefill_token_threshold=64)
    driver.submit(0, numbers(1000), max_tokens=1)
    driver.step()
    driver.submit(1, numbers(50, 1), max_tokens=1)
    driver.step()
    assert driver.output(1), "it is never half computed, so it may"


def test_dynamic_chunk_size() -> None:
    """Steps take equal time on a machine where attention costs; without it they grow."""
    spread = {}
    for dynamic in (False, True):
        driver = Driver(n_ctx=16384, n_batch=256, dynamic_chunking=dynamic)
        seconds: list[float] = []
        for request_id in range(2):  # the first is what the machine is learnt from
            driver.submit(request_id, numbers(8000, request_id), max_tokens=1)
            seconds.clear()
            while (done := _timed_step(driver)) is not None:
                seconds.append(done)
        full = seconds[:-1]
        spread[dynamic] = max(full) / min(full)
        sizes = chunks(driver, 0)[32:]
        assert (sizes[0] > 2 * sizes[-2]) == dynamic
    assert spread[False] > 2.5
    assert spread[True] < 1.3


def test_same_prompt_dedup() -> None:
    driver = Driver(n_parallel=8, n_batch=512)
    for request_id in range(5):
        driver.submit(request_id, numbers(100), max_tokens=3, temperature=1.0, seed=request_id)
    driver.submit(9, numbers(30, 5), max_tokens=3)
    driver.step()
    assert driver.plans[0].prefill_rows == 100 + 30, "equal prompts once, the other beside it"
    driver.step()
    assert [len(entry.tokens) for entry in split(driver.plans[1])[1]] == [1, 1, 1, 1]
    driver.run()
    assert [driver.cached_tokens(request_id) for request_id in range(5)] == [0, 99, 99, 99, 99]
    prompts = driver.scheduler.statistics()
    assert prompts.computed_tokens == 100 + 4 + 30 + 6 * 2
    assert len({tuple(driver.output(request_id)) for request_id in range(5)}) == 5


def test_prompts_that_begin_alike_share_the_beginning() -> None:
    driver = Driver(n_parallel=8, n_batch=512)
    for request_id in range(4):
        driver.submit(request_id, numbers(100) + (request_id,) * 20, max_tokens=1)
    driver.run()
    assert [driver.cached_tokens(request_id) for request_id in range(4)] == [0, 100, 100, 100]
    assert driver.scheduler.statistics().computed_tokens == 120 + 3 * 20


@pytest.mark.parametrize("during_step", [False, True])
def test_followers_of_a_leader_that_is_cancelled_compute_for_themselves(during_step: bool) -> None:
    driver = Driver(n_parallel=8, n_batch=40)
    requests = [driver.submit(i, numbers(100), max_tokens=4) for i in range(3)]
    driver.step()
    driver.step(during=lambda: driver.scheduler.cancel(0) if during_step else None)
    if not during_step:
        driver.scheduler.cancel(0)
    driver.run()
    for request in requests[1:]:
        assert driver.output(request.request_id) == tokens_alone(request, 1024)
    assert driver.cached_tokens(1) == 80, "what was computed of it stays"


def starved(victim_policy: str, n_ctx: int = 128, **options: object) -> Driver:
    """Three requests that each would fit, and together do not."""
    driver = Driver(
        n_ctx=n_ctx, block_size=16, output_reserve=0, victim_policy=victim_policy, **options
    )
    for request_id, priority in enumerate([0, 5, 0]):
        driver.submit(request_id, numbers(20, request_id), max_tokens=70, priority=priority)
    return driver


POLICIES = ["youngest", "priority", "cheapest"]


@pytest.mark.parametrize("victim_policy", POLICIES)
def test_preempt_by_recompute(victim_policy: str) -> None:
    driver, roomy = starved(victim_policy), starved(victim_policy, n_ctx=4096)
    driver.run()
    roomy.run()
    assert driver.scheduler.statistics().preemptions > 0
    assert roomy.scheduler.statistics().preemptions == 0
    for request_id in range(3):
        assert driver.output(request_id) == roomy.output(request_id)
        assert driver.endings(request_id) == ["length"]
    driver.check_nothing_held()


@pytest.mark.parametrize(
    ("victim_policy", "victim"), [("youngest", 6), ("priority", 1), ("cheapest", 5)]
)
def test_victim_policies(victim_policy: str, victim: int) -> None:
    """1 has the highest value of priority, but is older; 6 has one block of its own, 5 two."""
    driver = Driver(
        n_ctx=320,
        n_parallel=9,
        block_size=16,
        output_reserve=0,
        victim_policy=victim_policy,
        max_prefixes=1,
        priority_aging=0.001,
    )
    driver.scheduler.add_prefix(numbers(32, 2))
    driver.run()
    for request_id in range(6):
        driver.submit(
            request_id, numbers(30, 10 + request_id), max_tokens=80, priority=request_id == 1
        )
        driver.clock.advance(0.01)
    driver.submit(6, (*numbers(32, 2), 1, 2), max_tokens=80)
    while not (found := [e.request_id for e in driver.events if isinstance(e, Preempted)]):
        assert driver.step()
    assert found == [victim]
    driver.run()


def test_the_victim_goes_to_the_front_of_the_queue() -> None:
    driver = starved("youngest")
    while not any(isinstance(event, Preempted) for event in driver.events):
        driver.step()
    driver.submit(7, numbers(3, 9), max_tokens=1)
    driver.run()
    newcomer = driver.events.index(Admitted(7, 0))
    before = [type(event) for event in driver.events[:newcomer]]
    assert before.count(Preempted) == before.count(Resumed) > 0, "all are back before it"


def test_a_lone_request_is_never_preempted() -> None:
    driver = Driver(n_ctx=64, block_size=16, output_reserve=0, watermark=0.5)
    driver.submit(0, numbers(20), max_tokens=45)
    driver.run()
    assert driver.endings(0) == ["length"]
    assert driver.scheduler.statistics().preemptions == 0


@pytest.mark.parametrize("victim_policy", POLICIES)
def test_partial_preemption(victim_policy: str) -> None:
    """Only the tail that others need is lost: the rest of it is found again."""
    driver = Driver(n_ctx=256, block_size=16, output_reserve=0, victim_policy=victim_policy)
    driver.submit(0, numbers(16, 0), max_tokens=60)
    driver.submit(1, numbers(150, 1), max_tokens=60)
    driver.run()
    counts = driver.scheduler.statistics()
    assert counts.preemptions > 0
    resumed = [event for event in driver.events if isinstance(event, Resumed)]
    assert all(event.recomputed_tokens < 100 for event in resumed), "150 and more were computed"


def test_watermark() -> None:
    preemptions = {}
    for watermark in (0.0, 0.3):
        driver = Driver(
            n_ctx=512, block_size=16, n_parallel=16, output_reserve=0, watermark=watermark
        )
        for request_id in range(12):
            driver.submit(request_id, numbers(40, request_id), max_tokens=40)
        driver.run()
        preemptions[watermark] = driver.scheduler.statistics().preemptions
    assert preemptions[0.3] < preemptions[0.0]
    lone = Driver(n_ctx=64, block_size=16, watermark=0.9)
    lone.submit(0, numbers(50), max_tokens=2)
    lone.run()
    assert lone.endings(0) == ["length"]


def test_num_preemptions() -> None:
    driver = starved("cheapest")
    driver.run()
    told = [event.request_id for event in driver.events if isinstance(event, Preempted)]
    again = [e.recomputed_tokens for e in driver.events if isinstance(e, Resumed)]
    counts = driver.scheduler.statistics()
    assert counts.preemptions == len(told) == len(again) > 0
    assert counts.recomputed_tokens == sum(again) > 0


def test_priorities_and_aging() -> None:
    driver = Driver(n_parallel=1, priority_aging=1.0)
    driver.submit(0, numbers(4), max_tokens=200)
    driver.step()
    driver.submit(1, numbers(4, 1), max_tokens=1, priority=3)
    driver.submit(2, numbers(4, 2), max_tokens=1)
    driver.submit(3, numbers(4, 3), max_tokens=1, priority=-1)
    driver.clock.advance(3.5)
    driver.submit(4, numbers(4, 4), max_tokens=1)
    driver.submit(5, numbers(4, 5), max_tokens=1, priority=-10)
    driver.run()
    assert driver.admitted() == [0, 5, 3, 2, 1, 4], "1 has waited longer than its priority costs"


def test_itl_target() -> None:
    """Prefill gets what the decode rows leave of the target, once the machine is known."""
    driver = Driver(n_ctx=16384, n_parallel=8, n_batch=512, itl_target=0.08)
    for request_id in range(4):
        driver.submit(request_id, numbers(10, request_id), max_tokens=400)
    for request_id in range(10, 13):
        driver.submit(request_id, numbers(3000, request_id), max_tokens=1)
    mixed = []
    while (seconds := _timed_step(driver)) is not None:
        if driver.plans[-1].decode_rows and driver.plans[-1].prefill_rows:
            mixed.append(seconds)
    settled = mixed[len(mixed) // 2 :]
    assert max(settled) <= 0.08 * 1.05
    assert sorted(settled)[len(settled) // 2] >= 0.08 * 0.8, "and what there is is used"


def test_an_itl_target_that_cannot_be_met_does_not_starve_prefill() -> None:
    driver = Driver(n_ctx=4096, n_parallel=4, n_batch=512, itl_target=0.0001)
    driver.submit(0, numbers(10), max_tokens=300)
    driver.submit(1, numbers(1000, 1), max_tokens=1)
    while not driver.output(1):
        assert _timed_step(driver) is not None
    assert min(chunks(driver, 1)[:-1]) == 16


def _timed_step(driver: Driver) -> float | None:
    """A step on a machine whose times follow a law; its seconds."""
    lengths = dict(_lengths(driver))
    before = driver.clock()
    n_plans = len(driver.plans)

    def compute() -> None:
        seconds = 0.02
        for entry in driver.engine.plans[-1].entries:
            rows, length = len(entry.tokens), lengths.get(entry.seq_id, 0)
            seconds += rows * 2e-4 + rows * (length + rows / 2) * 2e-7
        driver.clock.advance(seconds - 0.01)

    driver.step(during=compute)
    return driver.clock() - before if len(driver.plans) > n_plans else None


def _lengths(driver: Driver) -> list[tuple[int, int]]:
    running = driver.scheduler._table.running.values()
    return [(live.seq_id, live.num_computed_tokens) for live in running]


def _computed_after_each_step(driver: Driver, n_tokens: int) -> list[list[int]]:
    """Of prompts of `n_tokens`, by the step that began them: tokens computed after each step."""
    counts: dict[tuple[int, int], int] = {}
    current: dict[int, tuple[int, int]] = {}
    after = []
    for step, plan in enumerate(driver.plans):
        for entry in split(plan)[1]:
            key = current.get(entry.seq_id)
            if key is None or counts[key] >= n_tokens:
                key = current[entry.seq_id] = (entry.seq_id, step)
                counts[key] = 0
            counts[key] += len(entry.tokens)
        after.append(list(counts.values()))
    return after
