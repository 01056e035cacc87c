"""What has come of a call, and what is asked so that somebody else goes on with it."""

from __future__ import annotations

import pytest
from odd_values import LyingMapping

from pybatcher.calls.call import Call
from pybatcher.calls.chat_settings import ChatSettings
from pybatcher.calls.completion import Completion, Piece, Timeline, TokenLogprob, Usage
from pybatcher.calls.reply import Reply
from pybatcher.params import SamplingParams
from pybatcher.sidecar.replay.journal import PendingGeneration, bytes_of


def a_generation(
    *, logprobs: int | None = None, deadline: float | None = None, content: object = "Once"
) -> PendingGeneration:
    call = Call(
        priority=3,
        timeout=None,
        namespace="ours",
        content=content,  # type: ignore[arg-type]
        params=SamplingParams(seed=7, logprobs=logprobs),
        sampling={},
    )
    return PendingGeneration(
        number=1, call=call, reply=Reply(streams=True), submitted=10.0, deadline=deadline, starts=1
    )


def a_completion(text: str, token_ids: tuple[int, ...], *, at: float) -> Completion:
    times = tuple(at + i for i in range(len(token_ids)))
    return Completion(
        text=text,
        token_ids=token_ids,
        finish_reason="length",
        usage=Usage(4, 1, len(token_ids)),
        timeline=Timeline(at - 2, at - 1, at, at + 9, times, 1, 5),
    )


@pytest.mark.slow
def test_every_byte_of_a_call_counts() -> None:
    params = SamplingParams(
        json_schema="{" + '"a": 1,' * 1000 + '"b": 2}',
        stop=["x" * 1000],
        stop_token_ids=range(1000),
        logit_bias=dict.fromkeys(range(1000), 1.0),
    )
    tools = [{"x" * 1000: [1, {"y": "z" * 1000}]}]
    call = Call(
        content="p" * 1000,
        namespace="n" * 1000,
        trace_headers={"traceparent": "t" * 1000},
        output=tuple(range(1000)),
        chat=ChatSettings(tools=tools),
    )
    assert bytes_of(params) > 7000 + 1000 + 36_000 + 72_000
    assert bytes_of(call) > 5 * 1000 + 36_000
    assert bytes_of([1, "x" * 1000]) > 1000
    endless: list[object] = []
    endless.append(endless)
    assert bytes_of(endless) > 2**20


def test_a_map_that_lies_about_its_length_ends() -> None:
    assert bytes_of(LyingMapping()) < 10_000
    assert bytes_of(ChatSettings(reasoning_effort=LyingMapping())) < 10_000  # type: ignore[arg-type]


def test_what_is_asked_first_is_what_was_asked_for() -> None:
    entry = a_generation()
    assert entry.next_call(11.0) == entry.call


def test_what_is_asked_later_goes_on_after_the_tokens_there_are() -> None:
    entry = a_generation(deadline=20.0)
    entry.take(Piece(" upon", (5,), None), 12.0)
    entry.take(Piece(" a time", (6, 7), None), 13.0)
    assert entry.num_tokens == 3
    again = entry.next_call(14.0)
    assert (again.output, again.timeout) == ((5, 6, 7), 6.0)
    assert (again.content, again.params, again.priority, again.namespace) == (
        "Once",
        entry.call.params,
        3,
        "ours",
    )


def test_the_tokens_that_a_caller_brought_come_before_those_that_were_drawn() -> None:
    entry = a_generation()
    object.__setattr__(entry.call, "output", (1, 2))
    entry.take(Piece(" upon", (5,), None), 12.0)
    assert entry.next_call(13.0).output == (1, 2, 5)


def test_an_output_that_was_never_interrupted_is_the_workers_own() -> None:
    entry = a_generation()
    entry.take(Piece(" upon", (5,), None), 12.0)
    last = a_completion(" upon", (5,), at=12.5)
    whole = entry.whole(last, 13.0)
    assert whole.timeline.submitted == 10.0  # when the front got it, which may be long before
    assert whole.timeline.token_times == last.timeline.token_times
    assert (whole.text, whole.token_ids, whole.usage) == (last.text, last.token_ids, last.usage)


def test_an_interrupted_output_is_whole_again() -> None:
    entry = a_generation(logprobs=0)
    first, second = TokenLogprob(5, -0.5), TokenLogprob(6, -0.25)
    entry.take(Piece(" upon", (5,), (first,)), 12.0)
    entry.starts += 1
    entry.take(Piece(" a", (6,), (second,), "length"), 17.0)
    whole = entry.whole(a_completion(" a", (6,), at=17.0), 18.0)
    assert (whole.text, whole.token_ids, whole.finish_reason) == (" upon a", (5, 6), "length")
    assert whole.logprobs == (first, second)
    assert whole.usage == Usage(4, 1, 2)
    times = whole.timeline
    assert (times.submitted, times.first_token, times.finished) == (10.0, 12.0, 18.0)
    assert times.token_times == (12.0, 17.0)
    assert times.submitted <= times.admitted <= times.first_token
    assert (times.preemptions, times.recomputed_tokens) == (1, 5)


def test_what_there_is_when_the_time_is_over_is_a_completion() -> None:
    entry = a_generation(deadline=15.0, content=[1, 2, 3])
    entry.take(Piece(" upon", (5,), None), 12.0)
    whole = entry.expired(15.0)
    assert (whole.text, whole.token_ids, whole.finish_reason) == (" upon", (5,), "deadline")
    assert whole.usage == Usage(3, 0, 1)
    assert whole.logprobs is None


def test_the_tokens_and_log_probabilities_of_an_output_count() -> None:
    entry = a_generation(logprobs=5)
    few = entry.take(Piece("a", (1,), None, None), 1.0)
    top = tuple((i, -1.0) for i in range(32))
    many = entry.take(Piece("a", (1,), (TokenLogprob(1, -1.0, top),), None), 1.0)
    assert many > few + 32 * 100
    assert entry.n_bytes == few + many
