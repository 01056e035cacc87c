"""Drafts change when tokens come, and how many at once; never which."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest
from alone import tokens_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_driver import Driver, numbers, split

from pybatcher.scheduling import Failed, SampledToken, StepResult
from pybatcher.scheduling.drafter import Drafter, Terms
from pybatcher.scheduling.step_time import StepCost


class Oracle:
    """Stands in for what drafters would draft: true tokens, spoilt here and there."""

    def __init__(self, lengths: Iterator[int], spoilt: Iterator[bool]) -> None:
        self._lengths, self._spoilt = lengths, spoilt
        self.texts: dict[tuple[int, ...], list[int]] = {}  # by prompt: the output it will have

    def install(self, patch: pytest.MonkeyPatch) -> None:
        oracle = self

        def init(
            self: Drafter,
            prompt: tuple[int, ...],
            end_token_ids: frozenset[int],
            output: tuple[int, ...],
        ) -> None:
            self.rest = 0
            self.future = oracle.texts[prompt]  # type: ignore[attr-defined]

        def draft(self: Drafter, output: list[int], n_most: int, terms: Terms) -> tuple[int, ...]:
            future = self.future[len(output) :]  # type: ignore[attr-defined]
            true = future[: min(n_most, next(oracle._lengths))]
            return tuple(token ^ next(oracle._spoilt) for token in true)

        patch.setattr(Drafter, "__init__", init)
        patch.setattr(Drafter, "draft", draft)
        patch.setattr(Drafter, "has_read", True)
        patch.setattr(Drafter, "read", lambda self, count: 0)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_every_request_gets_the_tokens_it_would_get_without(data: st.DataObject) -> None:
    """With any drafts: right, half right, wrong; at the end of positions, KV and output."""
    # Hypothesis would choose each draft on its own, which takes most of the time.
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    longest = data.draw(st.integers(0, 12))
    share = data.draw(st.sampled_from([0.0, 0.25, 0.25, 1.0]))
    oracle = Oracle(
        iter(lambda: rng.randint(0, longest), None), iter(lambda: rng.random() < share, None)
    )
    driver = Driver(
        n_ctx=data.draw(st.integers(3, 12)) * 16,
        n_parallel=3,
        max_positions=data.draw(st.none() | st.integers(12, 60)),
        n_batch=data.draw(st.sampled_from([4, 7, 30, 512])),
        max_draft_tokens=data.draw(st.integers(1, 8)),
    )
    end_token_ids = frozenset(range(0, 258, data.draw(st.sampled_from([9, 31]))))
    requests = []
    with pytest.MonkeyPatch.context() as patch:
        oracle.install(patch)
        for request_id in range(data.draw(st.integers(1, 5))):
            prompt = numbers(data.draw(st.integers(1, 11)), request_id)
            max_tokens = data.draw(st.integers(1, 36))
            oracle.texts.setdefault(prompt, [])
            request = driver.submit(
                request_id,
                prompt,
                max_tokens=max_tokens,
                min_tokens=data.draw(st.integers(0, max_tokens)),
                temperature=data.draw(st.sampled_from([0.0, 1.0])),
                seed=request_id,
                end_token_ids=end_token_ids,
                logprobs=data.draw(st.sampled_from([None, 2])),
            )
            expected = tokens_alone(request, driver.engine.max_sequence_length)
            oracle.texts[prompt] = [*expected, 1, 2, 3, 4, 5, 6]  # it may draft past the end
            requests.append((request, expected))
        driver.run()
    for request, expected in requests:
        assert driver.output(request.request_id) == expected
        last = expected[-1] in end_token_ids
        assert driver.endings(request.request_id) == ["stop" if last else "length"]
    counts, engine_counts = driver.scheduler.statistics(), driver.engine.statistics()
    for name in ("computed_tokens", "proposed_tokens", "accepted_tokens"):
        assert getattr(counts, name) == engine_counts[name]
    assert counts.accepted_tokens <= counts.proposed_tokens
    driver.check_nothing_held()


def repetitive(**config: int) -> Driver:
    """A model of two tokens, whose texts repeat themselves by chance all the time."""
    return Driver(vocab_size=2, n_ctx=4096, **config)


def test_what_repeats_itself_takes_fewer_steps() -> None:
    steps, outputs = [], []
    for max_draft_tokens in (0, 8):
        driver = repetitive(max_draft_tokens=max_draft_tokens)
        driver.submit(0, (0, 1) * 10, max_tokens=200)
        driver.run()
        steps.append(len(driver.plans))
        outputs.append(driver.output(0))
        counts = driver.scheduler.statistics()
        assert counts.accepted_tokens == 200 - len(driver.plans)
    assert outputs[0] == outputs[1]
    assert steps[0] == 200
    assert steps[1] < 160


def test_off_means_off() -> None:
    driver = repetitive(max_draft_tokens=0)
    driver.submit(0, (0, 1) * 10, max_tokens=50)
    driver.run()
    assert all(plan.draft_rows == 0 for plan in driver.plans)
    assert driver.scheduler.statistics().proposed_tokens == 0


def test_drafts_take_only_rows_that_prompts_leave() -> None:
    driver = repetitive(n_batch=12, max_draft_tokens=8)
    driver.submit(0, (0, 1) * 5, max_tokens=100)
    for _ in range(20):
        driver.step()
    drafting = driver.plans[-10:]
    assert any(plan.draft_rows for plan in drafting)
    driver.submit(1, (1, 0) * 30, max_tokens=1)
    for _ in range(5):
        driver.step()
        assert (driver.plans[-1].prefill_rows, driver.plans[-1].draft_rows) == (11, 0)
    driver.step()
    assert driver.plans[-1].prefill_rows == 5
    assert driver.plans[-1].draft_rows <= 6


def test_a_prompt_under_a_cap_leaves_rows_for_drafts() -> None:
    driver = repetitive(n_batch=64, max_prefill_tokens=4, max_draft_tokens=8)
    driver.submit(0, (0, 1) * 10, max_tokens=200)
    driver.step()
    driver.submit(1, (1, 0) * 30, max_tokens=1)
    for _ in range(10):
        driver.step()
        assert driver.plans[-1].prefill_rows == 4
    assert any(plan.draft_rows for plan in driver.plans[-10:])


def test_what_rows_cost_is_learnt_from_steps_without_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = []
    monkeypatch.setattr(StepCost, "note", lambda self, rows, seconds: noted.append((rows, seconds)))
    driver = repetitive(max_draft_tokens=8, n_batch=16)
    driver.submit(0, (0, 1) * 20, max_tokens=30)
    driver.submit(1, (0, 1, 1) * 5, max_tokens=60)
    driver.run()
    without = [plan for plan in driver.plans if not plan.prefill_rows]
    those = iter(p.decode_rows + p.draft_rows for p in without)
    assert all(rows in those for rows, _ in noted), "in their order, some left out"
    assert len(noted) >= sum(p.draft_rows > 0 for p in without)
    assert [seconds for _, seconds in noted] == pytest.approx([0.01] * len(noted))
    assert 0 < len(without) < len(driver.plans)


SHORT, LONG = {"step_seconds": 2e-4, "row_seconds": 1e-5}, {"step_seconds": 8e-3}


def searched(
    monkeypatch: pytest.MonkeyPatch, n_requests: int, circle_from: int, **config: float
) -> tuple[Driver, list[int]]:
    """Requests whose texts never repeat themselves before they are so long; steps with searches."""
    driver = Driver(n_ctx=65536, vocab_size=10**6, max_draft_tokens=8, **config)
    monkeypatch.setattr(
        driver.engine._model,
        "draw",
        lambda tokens, sampling, chosen: SampledToken(
            tokens[-5] if len(tokens) >= circle_from else 1000 + len(tokens)
        ),
    )
    steps: list[int] = []
    draft = Drafter.draft

    def noted(self: Drafter, output: list[int], n_most: int, terms: Terms) -> tuple[int, ...]:
        steps.append(len(driver.plans))
        return draft(self, output, n_most, terms)

    monkeypatch.setattr(Drafter, "draft", noted)
    for i in range(n_requests):
        driver.submit(i, (i, 10 + i, 20 + i), max_tokens=1200)
    return driver, steps


@pytest.mark.parametrize("n_requests", [1, 4])
def test_short_steps_are_not_made_longer_by_searches_in_vain(
    monkeypatch: pytest.MonkeyPatch, n_requests: int
) -> None:
    driver, steps = searched(monkeypatch, n_requests, 10**9, **SHORT)
    driver.run()
    assert len(driver.plans) > 1100
    assert 10 < len(set(steps)) < len(driver.plans) / 14
    assert driver.scheduler.statistics().proposed_tokens == 0


def test_long_steps_are_searched_as_often_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, steps = searched(monkeypatch, 4, 10**9, **LONG)
    driver.run()
    assert len(set(steps)) == pytest.approx(len(driver.plans) / 8, abs=5)


@pytest.mark.parametrize(("times", "soon"), [(SHORT, 40), (LONG, 16)], ids=["short", "long"])
def test_a_text_that_begins_to_go_in_circles_is_noticed(
    monkeypatch: pytest.MonkeyPatch, times: dict[str, float], soon: int
) -> None:
    driver, _ = searched(monkeypatch, 1, 600, **times)
    driver.run()
    first = next(i for i, plan in enumerate(driver.plans) if plan.draft_rows)
    assert 590 < first < 600 + soon
    assert len(driver.plans) < 600 + soon + 600 / 8


def test_staggered_requests_are_searched_in_the_same_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, steps = searched(monkeypatch, 0, 10**9, **SHORT)
    for i in range(4):
        driver.submit(i, (i, 10 + i, 20 + i), max_tokens=1200)
        for _ in range(5):
            driver.step()
    driver.run()
    settled = {step for step in steps if 100 < step < 1100}
    assert len(settled) <= 1000 / 8


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_a_request_that_can_use_no_draft_has_no_drafter(max_tokens: int) -> None:
    driver = repetitive(max_draft_tokens=8)
    driver.submit(0, (0, 1) * 10, max_tokens=max_tokens)
    (live,) = driver.scheduler._table.waiting
    driver.step()
    assert (live.drafter is None) == (max_tokens == 1)


def test_cancelled_in_a_step_that_verifies() -> None:
    driver = repetitive(max_draft_tokens=8)
    driver.submit(0, (0, 1) * 10, max_tokens=200)
    while not (driver.plans and driver.plans[-1].draft_rows):
        driver.step()
    n_before = len(driver.output(0))
    driver.step(during=lambda: driver.scheduler.cancel(0))
    assert len(driver.output(0)) == n_before
    driver.check_nothing_held()


def drawn(*tokens: int) -> tuple[SampledToken, ...]:
    return tuple(map(SampledToken, tokens))


@pytest.mark.parametrize(
    ("sampled", "failed", "outputs", "ending"),
    [
        ({0: drawn(5, 6, 7)}, {}, [5, 6, 7], []),
        ({0: drawn(5, 6)}, {0: "not finite"}, [5, 6], ["failed"]),
        ({}, {0: "not finite"}, [], ["failed"]),
        ({}, {}, [], ["failed"]),
        ({0: drawn(5, 99, 7)}, {}, [5, 99], ["stop"]),
        ({0: drawn(5, 99)}, {0: "not finite"}, [5, 99], ["stop"]),
        ({0: drawn(1, 2, 3, 4, 5)}, {}, [1, 2, 3, 4], ["length"]),
    ],
    ids=["all", "a failure after two", "a failure", "none", "end", "end before failure", "length"],
)
def test_several_tokens_are_taken_as_one_after_the_other(
    sampled: Mapping[int, tuple[SampledToken, ...]],
    failed: Mapping[int, str],
    outputs: list[int],
    ending: list[str],
) -> None:
    driver = Driver()
    driver.submit(0, numbers(5), max_tokens=5, end_token_ids=frozenset({99}))
    driver.step()
    first = driver.output(0)
    assert driver.scheduler.plan(0.0) is not None
    driver.events += driver.scheduler.apply(StepResult(sampled, failed), 0.0)
    assert driver.output(0) == first + outputs
    assert driver.endings(0) == ending
    errors = [str(event.error) for event in driver.events if isinstance(event, Failed)]
    assert all("not finite" in error for error in errors if failed)
    driver.scheduler.cancel(0)
    assert driver.scheduler.is_idle


def test_decode_entries_say_how_much_of_them_is_a_draft() -> None:
    driver = repetitive(max_draft_tokens=3)
    driver.submit(0, (0, 1) * 10, max_tokens=60)
    driver.run()
    lengths = {entry.n_draft for plan in driver.plans for entry in split(plan)[0]}
    assert lengths <= {0, 1, 2, 3}
    assert max(lengths) == 3
