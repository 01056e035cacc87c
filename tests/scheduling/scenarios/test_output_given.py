"""Requests that come with tokens of their output: they go on as if they had drawn them here."""

from __future__ import annotations

import pytest
from alone import tokens_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_driver import Driver, numbers

from pybatcher.errors import QueueFullError, RequestTooLongError
from pybatcher.params import SamplingParams
from pybatcher.scheduling import Admitted, Preempted, Request, Resumed
from pybatcher.scheduling.drafter import Drafter, Terms

PROMPT = numbers(20)
CIRCLE = (1, 2, 3, 4, 5)


def whole(prompt: tuple[int, ...] = PROMPT, max_tokens: int = 24, **fields: object) -> list[int]:
    """The output that a request has when nothing disturbs it."""
    request = Request(
        request_id=0, prompt=prompt, params=SamplingParams(max_tokens=max_tokens), **fields
    )
    return tokens_alone(request, 10_000)


@pytest.mark.parametrize("max_draft_tokens", [0, 8])
@pytest.mark.parametrize("n_batch", [7, 512])
def test_from_every_token_on(n_batch: int, max_draft_tokens: int) -> None:
    """All at once, each with one token more of the same output."""
    output = whole()
    driver = Driver(n_batch=n_batch, max_draft_tokens=max_draft_tokens)
    for k in range(len(output)):
        driver.submit(k, PROMPT, max_tokens=24, output=tuple(output[:k]))
    driver.run()
    for k in range(len(output)):
        assert driver.output(k) == output[k:]
        assert driver.endings(k) == ["length"]
    driver.check_nothing_held()


def test_max_tokens_and_positions_count_what_it_came_with() -> None:
    driver = Driver(max_positions=30)
    request = driver.submit(0, PROMPT, max_tokens=100, output=CIRCLE)
    assert request.max_output(30) == 10
    assert request.positions_needed(30) == 29
    driver.run()
    assert len(driver.output(0)) == 5
    assert driver.endings(0) == ["length"]


def test_the_end_of_an_output() -> None:
    request = Request(request_id=0, prompt=PROMPT, end_token_ids=frozenset({7}))
    assert request.finish_reason(7, 3, 3) == "stop"
    assert request.finish_reason(8, 3, 3) == "length"
    assert request.finish_reason(8, 2, 3) is None


def test_it_is_admitted_not_resumed_and_what_is_computed_again_is_counted() -> None:
    driver = Driver()
    output = whole(max_tokens=15)
    driver.submit(0, PROMPT, max_tokens=15, output=tuple(output[:12]))
    driver.run()
    assert driver.admitted() == [0]
    assert not any(isinstance(event, Resumed) for event in driver.events)
    counts = driver.scheduler.statistics()
    assert counts.replayed_tokens == 20 + 12 - 1, "the last one had not been computed"
    assert counts.prompt_tokens == 20
    assert len(driver.output(0)) == 3
    assert counts.computed_tokens == 20 + 14


def test_without_output_nothing_is_replayed() -> None:
    driver = Driver()
    driver.submit(0, PROMPT, max_tokens=3)
    driver.run()
    assert driver.scheduler.statistics().replayed_tokens == 0


def test_cached_kv_of_its_output_is_found_and_is_none_of_its_prompts() -> None:
    driver = Driver()
    output = whole(max_tokens=40)
    driver.submit(0, PROMPT, max_tokens=40)
    driver.run()
    before = driver.scheduler.statistics().computed_tokens
    driver.submit(1, PROMPT, max_tokens=40, output=tuple(output[:30]))
    driver.run()
    assert driver.output(1) == output[30:]
    assert driver.cached_tokens(1) == 20
    counts = driver.scheduler.statistics()
    assert counts.cached_tokens == 20
    assert counts.replayed_tokens == 49 - 48
    assert counts.computed_tokens - before == 50 - 48 + 9


def test_its_output_is_computed_once_for_two_that_have_the_same() -> None:
    output = tuple(whole(max_tokens=60)[:50])
    driver = Driver()
    driver.submit(0, PROMPT, max_tokens=53, output=output)
    driver.submit(1, PROMPT, max_tokens=53, output=output)
    driver.run()
    assert driver.output(0) == driver.output(1)
    assert driver.scheduler.statistics().computed_tokens == 70 + 1 + 2 * 2


def test_one_may_follow_another_whose_output_is_part_of_its_prompt() -> None:
    output = tuple(whole(max_tokens=60)[:50])
    driver = Driver()
    driver.submit(0, PROMPT, max_tokens=53, output=output)
    driver.submit(1, PROMPT + output, max_tokens=3)
    driver.run()
    assert driver.output(0) == driver.output(1)
    assert driver.cached_tokens(1) == 69


def test_the_queue_counts_the_tokens_it_came_with() -> None:
    driver = Driver(max_queue_tokens=50)
    driver.submit(0, PROMPT, max_tokens=30, output=numbers(20))
    assert driver.scheduler.statistics().queued_tokens == 40
    with pytest.raises(QueueFullError, match=r"max_queue_tokens is 50 .* make it 51"):
        driver.submit(1, numbers(1), max_tokens=30, output=numbers(10))
    driver.submit(2, numbers(1), max_tokens=30, output=numbers(9))
    assert driver.scheduler.cancel(2)
    assert driver.scheduler.statistics().queued_tokens == 40
    driver.run()
    assert driver.scheduler.statistics().queued_tokens == 0


def test_a_namespace_is_charged_with_them() -> None:
    """ "loud" comes with 40 tokens a request, "quiet" with 20: it has two turns for one."""
    driver = Driver(n_parallel=1, output_reserve=0)
    for i in range(3):
        driver.submit(i, numbers(20, i), max_tokens=21, output=numbers(20, i), namespace="loud")
    for i in range(3, 9):
        driver.submit(i, numbers(20, i), max_tokens=1, namespace="quiet")
    driver.run()
    first = driver.admitted()[:6]
    assert sum(request_id < 3 for request_id in first) == 2


def test_too_long_as_without_output() -> None:
    driver = Driver(n_ctx=64, max_positions=40, max_prefixes=1)
    with pytest.raises(RequestTooLongError, match="prompt has 40 tokens"):
        driver.submit(0, numbers(40), output=(1,))
    driver.scheduler.add_prefix(numbers(30))
    with pytest.raises(RequestTooLongError, match="3 KV blocks"):
        driver.submit(0, numbers(20, 3), max_tokens=20, output=(1,))


def test_preempted_and_restarted_it_goes_on_again() -> None:
    outputs = [whole(numbers(20, i), max_tokens=60) for i in range(3)]
    driver = Driver(n_ctx=128, output_reserve=0, watermark=0.0)
    for i, output in enumerate(outputs):
        driver.submit(i, numbers(20, i), max_tokens=60, output=tuple(output[: 5 * i]))
    for step in range(200):
        if not driver.step(fails=lambda plan, step=step: step % 17 == 16):
            break
    assert driver.n_failures > 2
    assert any(isinstance(event, Preempted) for event in driver.events)
    for i, output in enumerate(outputs):
        assert driver.output(i) == output[5 * i :]
    assert sorted(driver.admitted()) == [0, 1, 2], "admitted once each"


def test_the_drafter_knows_what_it_came_with() -> None:
    """From the first step on, and without reading more of it in a step than of a prompt."""
    terms = Terms(row=0.01, search=0.01, longest_rest=7)
    drafter = Drafter((9, 8), frozenset(), CIRCLE * 3)
    assert not drafter.has_read
    assert drafter.read(100) == 15
    assert drafter.draft(list(CIRCLE * 3), 3, terms) == (1, 2, 3)
    assert drafter.draft([*CIRCLE * 3, 1, 2], 3, terms) == (3, 4, 5)
    drafter = Drafter((9, 8), frozenset(), CIRCLE)
    drafter.read(100)
    assert drafter.draft(list(CIRCLE), 3, terms) == (), "it stands there once"


def test_a_long_output_is_read_by_the_drafter_in_parts() -> None:
    driver = Driver(n_ctx=8192, n_batch=8192, max_draft_tokens=4)
    driver.submit(0, PROMPT, max_tokens=8000, output=numbers(5000))
    driver.step()
    driver.step()
    drafter = driver.scheduler._table.running[0].drafter
    assert drafter is not None
    assert not drafter.has_read
    driver.step()
    driver.step()
    assert drafter.has_read


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    k=st.integers(0, 23),
    chunk=st.integers(1, 50),
    vocab_size=st.sampled_from([3, 258]),
    temperature=st.sampled_from([0.0, 1.0]),
    max_draft_tokens=st.sampled_from([0, 4]),
)
def test_beside_others_and_in_any_chunks(
    k: int, chunk: int, vocab_size: int, temperature: float, max_draft_tokens: int
) -> None:
    def driver() -> Driver:
        made = Driver(n_batch=chunk, vocab_size=vocab_size, max_draft_tokens=max_draft_tokens)
        made.submit(1, (1, 2, 0), max_tokens=30)
        return made

    fields = {"max_tokens": 24, "min_tokens": 24, "temperature": temperature, "seed": 5}
    fields |= {"end_token_ids": frozenset({0}), "logprobs": 2}
    prompt = tuple(token % vocab_size for token in PROMPT)
    undisturbed, resumed = driver(), driver()
    undisturbed.submit(0, prompt, **fields)
    undisturbed.run()
    drawn = [e.token for e in undisturbed.events if getattr(e, "token", None) and not e.request_id]
    resumed.submit(0, prompt, output=tuple(t.token_id for t in drawn[:k]), **fields)
    resumed.run()
    assert [
        e.token for e in resumed.events if getattr(e, "token", None) and not e.request_id
    ] == drawn[k:]
    assert sum(isinstance(e, Admitted) for e in resumed.events) == 2
