"""Requests that draw nothing: what is asked of steps for them, and that they get it."""

from __future__ import annotations

import random

import pytest
from scheduler_driver import Driver, numbers, split

from pybatcher.errors import RequestTooLongError
from pybatcher.scheduling import Preempted
from pybatcher.testing.fake_model import FakeModel

PROMPT = numbers(70)
TARGETS = (5, 6, 7, 8)


def expected_logprobs(prompt: tuple[int, ...], targets: tuple[int, ...]) -> tuple[float, ...]:
    model = FakeModel(258, 8)
    first = len(prompt) - len(targets) + 1
    return tuple(model.logprob(prompt[: first + i], t) for i, t in enumerate(targets))


def expected_vector(prompt: tuple[int, ...], pooling: str) -> list[float]:
    first = len(prompt) - 1 if pooling == "last" else 0
    return FakeModel(258, 8).pooled(prompt[: 1 if pooling == "cls" else None], first).tolist()


def computed(driver: Driver) -> int:
    return driver.engine.statistics()["computed_tokens"]


@pytest.mark.parametrize("n_batch", [1, 3, 16, 512])
def test_scores_however_the_prompt_is_cut(n_batch: int) -> None:
    driver = Driver(n_batch=n_batch)
    driver.submit(1, PROMPT, targets=TARGETS)
    driver.run()
    assert driver.endings(1) == ["answered"]
    assert driver.answer(1).logprobs == expected_logprobs(PROMPT, TARGETS)
    assert driver.answer(1).vector is None
    assert computed(driver) == len(PROMPT)
    assert driver.scheduler.statistics().completed == 1
    assert driver.output(1) == []
    driver.check_nothing_held()


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_poolings(pooling: str) -> None:
    driver = Driver(n_batch=80)
    driver.submit(1, PROMPT, pooling=pooling)
    driver.run()
    assert driver.endings(1) == ["answered"]
    answer = driver.answer(1)
    assert answer.logprobs == ()
    assert answer.vector is not None
    assert answer.vector.tolist() == expected_vector(PROMPT, pooling)
    driver.check_nothing_held()


def test_the_last_state_of_a_prompt_in_many_steps() -> None:
    driver = Driver(n_batch=9)
    driver.submit(1, PROMPT, pooling="last")
    driver.run()
    assert len(driver.plans) == 8
    vector = driver.answer(1).vector
    assert vector is not None
    assert vector.tolist() == expected_vector(PROMPT, "last")


def test_what_the_cache_may_give_them() -> None:
    """Not the rows that are asked about."""
    for fields, n_cached in [
        ({"targets": (9,)}, 64),
        ({"targets": TARGETS}, 64),
        ({"targets": (9,) * 7}, 48),
        ({"targets": (9,) * 70}, 0),
        ({"pooling": "last"}, 64),
        ({"pooling": "mean"}, 0),
        ({"pooling": "cls"}, 0),
        ({"pooling": "last", "takes_whole": True}, 0),
    ]:
        driver = Driver(block_size=16)
        driver.submit(1, PROMPT, max_tokens=1)
        driver.run()
        driver.submit(2, PROMPT, **fields)
        driver.run()
        assert driver.cached_tokens(2) == n_cached, fields
        assert computed(driver) == 2 * len(PROMPT) - n_cached
        targets = tuple(fields.get("targets", ()))
        assert driver.answer(2).logprobs == expected_logprobs(PROMPT, targets)


@pytest.mark.parametrize("shared", [False, True], ids=["neighbours", "a shared prefix"])
def test_continuations_share_the_prompt(shared: bool) -> None:
    driver = Driver(n_parallel=8, max_prefixes=1 if shared else 0)
    if shared:
        driver.scheduler.add_prefix(PROMPT[:60])
    endings = {i: (i, 9, 10 + i) for i in range(1, 6)}
    for i, targets in endings.items():
        driver.submit(i, PROMPT + targets[:-1], targets=targets)
    driver.run()
    for i, targets in endings.items():
        assert driver.answer(i).logprobs == expected_logprobs(PROMPT + targets[:-1], targets)
    # The prompt but for its last token once; that one, which is asked about, and two more for each
    # (after a shared prefix each computes the rest of the prompt).
    once, each = (60, 10) if shared else (69, 1)
    assert computed(driver) == once + 5 * (each + 2)


def test_others_may_follow_one_that_is_asked_about() -> None:
    driver = Driver(n_batch=512)
    driver.submit(1, PROMPT, pooling="mean")
    driver.submit(2, PROMPT, max_tokens=3)
    driver.run()
    assert computed(driver) == len(PROMPT) + 1 + 2
    alone = Driver()
    alone.submit(2, PROMPT, max_tokens=3)
    alone.run()
    assert driver.output(2) == alone.output(2)


def test_single_pass_work_is_never_chunked() -> None:
    """It waits for a step with rows enough, beside those who generate, and is in one entry."""
    driver = Driver(n_batch=64, n_parallel=4, max_prefill_tokens=8)
    for i in (1, 2):
        driver.submit(i, numbers(20, i), max_tokens=60)
    for _ in range(8):
        driver.step()
    driver.submit(3, numbers(100, 3), max_tokens=1)
    driver.submit(4, numbers(61, 4), pooling="mean")
    driver.run()
    (entry,) = [e for plan in driver.plans for e in plan.entries if e.pooling]
    assert len(entry.tokens) == 61
    (plan,) = [plan for plan in driver.plans if entry in plan.entries]
    decode, _ = split(plan)
    assert len(decode) == 2, "beside both who generate, whatever the cap"


def test_more_rows_than_those_who_generate_leave() -> None:
    """It waits until enough of them have ended; who comes later waits behind it."""
    driver = Driver(n_batch=16, n_parallel=8, batch_size=1)
    for i in range(6):
        driver.submit(i, numbers(2, i), max_tokens=5 + i)
    for _ in range(4):
        driver.step()
    driver.submit(10, numbers(14, 10), pooling="mean")
    for i in range(20, 40):
        driver.submit(i, numbers(2, i), max_tokens=5)
    driver.run()
    assert driver.admitted()[:7] == [0, 1, 2, 3, 4, 5, 10]
    assert driver.endings(10) == ["answered"]
    told = [(type(event).__name__, event.request_id) for event in driver.events]
    assert told.index(("Answered", 10)) < told.index(("Admitted", 20))


def test_input_too_large_for_one_step() -> None:
    driver = Driver(n_batch=32, n_ctx=1024, max_positions=100)
    with pytest.raises(RequestTooLongError, match=r"input too large: .* 33 tokens.* n_batch = 32"):
        driver.submit(1, numbers(33), pooling="mean")
    driver.submit(2, numbers(32), pooling="mean")
    driver.submit(3, numbers(100), pooling="last")
    driver.submit(4, numbers(100), targets=(1,))
    with pytest.raises(RequestTooLongError, match="101 tokens; a sequence has 100 positions: "):
        driver.submit(5, numbers(101), pooling="last")
    driver.run()
    assert [driver.endings(i) for i in (2, 3, 4)] == [["answered"]] * 3


def test_a_text_for_an_encoder_is_never_chunked() -> None:
    driver = Driver(n_batch=32, n_ctx=1024, max_positions=100)
    said = r"has 33 tokens, and 32 fit: .*raise n_batch, n_ubatch or n_ctx"
    with pytest.raises(RequestTooLongError, match=said):
        driver.submit(1, numbers(33), pooling="last", takes_whole=True)
    for i in (2, 3):
        driver.submit(i, numbers(32), pooling="last", takes_whole=True)
    driver.run()
    assert [len(entry.tokens) for plan in driver.plans for entry in plan.entries] == [32, 32]
    assert driver.cached_tokens(3) == 0
    narrow = Driver(n_batch=64, n_ctx=1024, max_positions=20)
    with pytest.raises(RequestTooLongError, match="has 21 tokens, and 20 fit"):
        narrow.submit(1, numbers(21), pooling="cls", takes_whole=True)


def test_with_a_target_of_seconds_it_is_not_starved() -> None:
    driver = Driver(n_batch=64, itl_target=0.0001)
    driver.submit(1, numbers(5), max_tokens=80)
    for _ in range(10):
        driver.step()
    driver.submit(2, numbers(50, 2), pooling="mean")
    driver.step()
    assert driver.endings(2) == ["answered"]


def test_an_engine_that_cannot_say_fails_one() -> None:
    driver = Driver()
    driver.submit(1, PROMPT, targets=TARGETS)
    driver.submit(2, numbers(9, 3), pooling="mean")
    driver.engine.fail_sequences = lambda plan: {plan.entries[0].seq_id: "it is not finite"}
    driver.run()
    assert (driver.endings(1), driver.endings(2)) == (["failed"], ["answered"])
    driver.check_nothing_held()


def test_cancelled_during_its_last_step_it_says_nothing() -> None:
    driver = Driver()
    driver.submit(1, PROMPT, pooling="last")
    driver.step(during=lambda: driver.scheduler.cancel(1))
    assert driver.endings(1) == []
    driver.run()
    driver.check_nothing_held()


@pytest.mark.parametrize("seed", range(12))
def test_under_preemption_failures_and_neighbours(seed: int) -> None:
    rng = random.Random(seed)
    driver = Driver(
        n_ctx=rng.choice([192, 256, 512]),
        n_parallel=5,
        n_batch=rng.choice([64, 80]),
        output_reserve=0,
        watermark=0.0,
        max_prefill_tokens=rng.choice([0, 7]),
        victim_policy=rng.choice(["youngest", "priority", "cheapest"]),
    )
    asked: dict[int, tuple[tuple[int, ...], dict[str, object]]] = {}
    for i in range(30):
        prompt = numbers(rng.randint(8, 60), rng.randint(0, 3))
        kind = rng.choice(["targets", "mean", "last", "draw"])
        fields: dict[str, object] = {"pooling": kind}
        if kind == "targets":
            fields = {"targets": tuple(rng.randrange(258) for _ in range(rng.randint(1, 8)))}
        elif kind == "draw":
            fields = {"max_tokens": rng.randint(1, 90)}
        asked[i] = prompt, fields
        driver.submit(i, prompt, **fields)
        for _ in range(rng.randint(0, 3)):
            driver.step(fails=lambda plan: len(plan.entries) > 1 and rng.random() < 0.1)
    driver.run()
    for i, (prompt, fields) in asked.items():
        if "max_tokens" in fields:
            assert driver.endings(i) == ["length"]
            continue
        assert driver.endings(i) == ["answered"]
        answer = driver.answer(i)
        assert answer.logprobs == expected_logprobs(prompt, tuple(fields.get("targets", ())))
        if "pooling" in fields:
            assert answer.vector is not None
            assert answer.vector.tolist() == expected_vector(prompt, str(fields["pooling"]))
    driver.check_nothing_held()


def test_known_log_probabilities_are_not_asked_for_again() -> None:
    driver = Driver(n_batch=10)
    driver.submit(1, numbers(40), targets=tuple(range(40)))
    for _ in range(2):
        driver.step()
    failed = iter([True])
    driver.step(fails=lambda plan: next(failed, False))
    driver.run()
    n_targets = [len(e.targets) for plan in driver.plans for e in plan.entries]
    assert n_targets == [10, 10, 0, 0, 10, 10]
    assert driver.answer(1).logprobs == expected_logprobs(numbers(40), tuple(range(40)))


def test_preempted_it_keeps_what_it_knows() -> None:
    driver = Driver(n_ctx=96, n_batch=4, output_reserve=0, watermark=0.0, victim_policy="youngest")
    driver.submit(1, numbers(20), max_tokens=70)
    for _ in range(6):
        driver.step()
    targets = tuple(range(40))
    driver.submit(2, numbers(60, 5), targets=targets)
    driver.run()
    assert [e.request_id for e in driver.events if isinstance(e, Preempted)] == [2]
    assert driver.answer(2).logprobs == expected_logprobs(numbers(60, 5), targets)
    asked = [len(entry.targets) for plan in driver.plans for entry in plan.entries]
    assert sum(asked) == len(targets), "each of them once"
    driver.check_nothing_held()
