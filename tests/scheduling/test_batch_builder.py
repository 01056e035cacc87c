"""The rows of the capability list that the scheduler alone answers for, each under its name."""

from __future__ import annotations

import pytest
from alone import tokens_alone
from scheduler_driver import Driver, numbers, split

from pybatcher.errors import RequestTooLongError
from pybatcher.scheduling import Generated


def test_decode_first() -> None:
    driver = Driver(n_batch=16)
    for request_id in range(3):
        driver.submit(request_id, numbers(4, request_id), max_tokens=50)
    driver.step()
    driver.submit(3, numbers(200), max_tokens=1)
    for _ in range(10):
        driver.step()
        decode, prefill = split(driver.plans[-1])
        assert len(decode) == 3
        assert driver.plans[-1].entries[:3] == decode
        assert [len(entry.tokens) for entry in prefill] == [13]


def test_prefill_fills_the_rest() -> None:
    driver = Driver(n_ctx=16384, n_batch=64)
    driver.submit(0, numbers(2), max_tokens=500)
    driver.step()
    driver.submit(1, numbers(8000), max_tokens=1)
    steps_before = len(driver.plans)
    while not driver.output(1):
        driver.step()
        assert driver.plans[-1].decode_rows + driver.plans[-1].prefill_rows <= 64
    assert len(driver.plans) - steps_before == -(-8000 // (64 - 1))


def test_one_shared_pass() -> None:
    driver = Driver(n_batch=32)
    for request_id in range(6):
        driver.submit(request_id, numbers(5 + 9 * request_id, request_id), max_tokens=12)
    driver.run()
    mixed = [plan for plan in driver.plans if plan.decode_rows and plan.prefill_rows]
    assert mixed
    assert driver.engine.statistics()["forward_passes"] == driver.scheduler.statistics().steps


def test_logits_where_needed() -> None:
    driver = Driver(n_batch=16)
    for request_id in range(5):
        driver.submit(request_id, numbers(30, request_id), max_tokens=7)
    driver.run()
    assert driver.engine.statistics()["logits_rows"] == 5 * 7


def test_decode_headroom() -> None:
    driver = Driver(n_batch=64, max_prefill_tokens=5)
    driver.submit(0, numbers(100), max_tokens=20)
    driver.step()
    assert driver.plans[-1].prefill_rows == 64, "nobody decodes: no cap"
    driver.step()
    driver.submit(1, numbers(60, 1), max_tokens=1)
    driver.step()
    assert (driver.plans[-1].decode_rows, driver.plans[-1].prefill_rows) == (1, 5)
    uncapped = Driver(n_batch=64, max_prefill_tokens=0)
    uncapped.submit(0, numbers(10), max_tokens=20)
    uncapped.step()
    uncapped.submit(1, numbers(60, 1), max_tokens=1)
    uncapped.step()
    assert uncapped.plans[-1].prefill_rows == 60


def test_token_identical_under_mixed_load() -> None:
    outputs = []
    for with_long_prompt in (False, True):
        driver = Driver(n_ctx=16384, n_parallel=20, n_batch=128)
        for request_id in range(16):
            temperature = 1.0 if request_id % 2 else 0.0
            driver.submit(
                request_id, numbers(9, request_id), max_tokens=40, temperature=temperature, seed=5
            )
        driver.step()
        if with_long_prompt:
            driver.submit(99, numbers(8000), max_tokens=1)
        driver.run()
        outputs.append([driver.output(request_id) for request_id in range(16)])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("n_batch", [1, 7, 64, 512])
def test_absolute_positions(n_batch: int) -> None:
    driver = Driver(n_batch=n_batch)
    request = driver.submit(0, numbers(150), max_tokens=30)
    driver.run()
    assert driver.output(0) == tokens_alone(request, driver.engine.max_sequence_length)


def test_sequence_pool() -> None:
    driver = Driver(n_parallel=2, n_batch=64)
    for request_id in range(7):
        driver.submit(request_id, numbers(10, request_id), max_tokens=3)
    driver.step()
    assert driver.engine.used_sequences == 2
    driver.run()
    assert driver.admitted() == list(range(7))
    driver.check_nothing_held()


@pytest.mark.parametrize("n_user_tokens", [1, 5, 40])
def test_shared_system_prompt(n_user_tokens: int) -> None:
    system = numbers(50, 3)
    driver = Driver(n_parallel=5, max_prefixes=1)
    driver.scheduler.add_prefix(system)
    requests = [
        driver.submit(i, system + numbers(n_user_tokens, 10 + i), max_tokens=1) for i in range(6)
    ]
    driver.run()
    computed = driver.engine.statistics()["computed_tokens"]
    assert computed == len(system) + sum(n_user_tokens for _ in range(6))
    for request in requests:
        assert driver.cached_tokens(request.request_id) == len(system)
        assert driver.output(request.request_id) == tokens_alone(request, 10_000)
    driver.scheduler.drop_prefixes()
    driver.check_nothing_held()


def test_per_sequence_limit() -> None:
    driver = Driver(max_positions=40)
    request = driver.submit(0, numbers(30), max_tokens=500)
    driver.run()
    assert driver.endings(0) == ["length"]
    assert driver.output(0) == tokens_alone(request, 40)
    assert len(driver.output(0)) == 10
    driver.submit(1, numbers(39), max_tokens=500)
    driver.run()
    assert len(driver.output(1)) == 1
    with pytest.raises(RequestTooLongError, match=r"prompt has 40 tokens.*40 positions"):
        driver.submit(2, numbers(40), max_tokens=1)


def test_goes_on_with_an_empty_queue() -> None:
    driver = Driver(n_batch=16)
    driver.submit(0, numbers(100), max_tokens=1)
    driver.step()
    assert driver.scheduler.n_waiting == 0
    driver.run()
    assert driver.endings(0) == ["length"]


def test_admission_counts_future_output() -> None:
    driver = Driver(n_ctx=128, block_size=16, output_reserve=256)
    driver.submit(0, numbers(16), max_tokens=81)  # 96 positions of 128
    driver.submit(1, numbers(16, 1), max_tokens=33)  # 48 positions: over-commit, so it waits
    for _ in range(10):
        driver.step()
    assert driver.admitted() == [0]
    driver.run()
    assert driver.admitted() == [0, 1]
    assert driver.endings(0) == driver.endings(1) == ["length"]


@pytest.mark.parametrize("logprobs", [None, 3])
def test_mixed_chunk_also_with_logprobs(logprobs: int | None) -> None:
    driver = Driver(n_batch=16)
    driver.submit(0, numbers(5), max_tokens=20, logprobs=logprobs)
    driver.step()
    driver.submit(1, numbers(40, 1), max_tokens=4, logprobs=logprobs)
    driver.run()
    shape = [(plan.decode_rows, plan.prefill_rows) for plan in driver.plans]
    assert shape[:4] == [(0, 5), (1, 15), (1, 15), (1, 10)]
    tokens = [event.token for event in driver.events if isinstance(event, Generated)]
    for token in tokens:
        assert (token.logprob is None) == (logprobs is None)
        assert len(token.top_logprobs) == (logprobs or 0)


def test_prefix_match_keeps_one_token() -> None:
    driver = Driver(block_size=16)
    driver.submit(0, numbers(64), max_tokens=1)
    driver.run()
    computed = driver.engine.statistics()["computed_tokens"]
    driver.submit(1, numbers(64), max_tokens=1)
    driver.run()
    assert driver.cached_tokens(1) == 48
    driver.submit(2, numbers(65), max_tokens=1)
    driver.run()
    assert driver.cached_tokens(2) == 64
    assert driver.engine.statistics()["computed_tokens"] == computed + 16 + 1


def test_cache_namespaces() -> None:
    driver = Driver()
    for request_id, namespace in enumerate(["a", "b", "a", ""]):
        driver.submit(request_id, numbers(64), max_tokens=1, namespace=namespace)
        driver.run()
    assert [driver.cached_tokens(request_id) for request_id in range(4)] == [0, 0, 48, 0]


def test_aborted_prefill_leaves_a_reusable_prefix() -> None:
    driver = Driver(n_batch=40, block_size=16)
    driver.submit(0, numbers(100), max_tokens=5)
    driver.step()
    assert driver.scheduler.cancel(0)
    driver.check_nothing_held()
    driver.submit(1, numbers(100), max_tokens=5)
    driver.run()
    assert driver.cached_tokens(1) == 32


def test_unified_budget() -> None:
    driver = Driver(n_batch=10)
    driver.submit(0, numbers(4), max_tokens=9)
    driver.submit(1, numbers(25, 1), max_tokens=9)
    driver.submit(2, numbers(3, 2), max_tokens=9)
    for _ in range(4):
        driver.step()
    rows = [[len(entry.tokens) for entry in plan.entries] for plan in driver.plans]
    assert rows == [[4, 6], [1, 9], [1, 9], [1, 1, 3]]


def test_full_sequence_admission() -> None:
    driver = Driver(n_ctx=128, block_size=16, n_batch=8)
    driver.submit(0, numbers(70), max_tokens=10)
    driver.submit(1, numbers(70, 1), max_tokens=10)
    driver.step()
    assert driver.admitted() == [0], "its first chunk would fit, all of it would not"
    driver.run()
    assert driver.endings(1) == ["length"]


def test_full_sequence_admission_refuses_what_can_never_fit() -> None:
    driver = Driver(n_ctx=64, block_size=16, max_prefixes=1)
    driver.scheduler.add_prefix(numbers(20, 100))
    driver.run()
    driver.submit(0, numbers(20), max_tokens=13)
    with pytest.raises(RequestTooLongError, match=r"20 tokens.*\(14\).*3 KV blocks of 16.*are 2"):
        driver.submit(1, numbers(20), max_tokens=14)
    driver.run()
    assert driver.endings(0) == ["length"]
    assert driver.scheduler.statistics().submitted == 1


def test_hits_and_misses_in_one_admission() -> None:
    driver = Driver()
    driver.submit(0, numbers(64), max_tokens=1)
    driver.run()
    passes = driver.engine.statistics()["forward_passes"]
    driver.submit(1, (*numbers(64), 1), max_tokens=1)
    driver.submit(2, numbers(30, 9), max_tokens=1)
    driver.submit(3, numbers(20, 11), max_tokens=1)
    driver.run()
    assert driver.cached_tokens(1) == 64
    assert driver.cached_tokens(2) == driver.cached_tokens(3) == 0
    assert driver.engine.statistics()["forward_passes"] == passes + 1


def test_sampling_order() -> None:
    outputs = []
    for warm in (False, True):
        driver = Driver()
        if warm:
            driver.submit(0, numbers(64), max_tokens=1)
            driver.run()
        driver.submit(1, numbers(64), max_tokens=20, temperature=1.0, seed=7)
        driver.submit(2, numbers(33, 5), max_tokens=20, temperature=1.0, seed=8)
        driver.run()
        outputs.append((driver.output(1), driver.output(2)))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("by", ["max_tokens", "end token"])
def test_freed_at_prefills_end(by: str) -> None:
    driver = Driver()
    if by == "max_tokens":
        driver.submit(0, numbers(50), max_tokens=1)
    else:
        driver.submit(0, numbers(50), max_tokens=9, end_token_ids=frozenset(range(258)))
    driver.step()
    assert driver.endings(0) == ["length" if by == "max_tokens" else "stop"]
    driver.check_nothing_held()
