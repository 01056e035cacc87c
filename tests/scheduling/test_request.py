"""Requests: what they can come to need, why they end, and what is left to compute."""

from __future__ import annotations

import pytest
from live_requests import live_request

from pybatcher import SamplingParams
from pybatcher.scheduling import Request


def request(n_prompt: int = 4, max_tokens: int = 6, **fields: object) -> Request:
    params = SamplingParams(max_tokens=max_tokens)
    return Request(request_id=1, prompt=tuple(range(n_prompt)), params=params, **fields)


def test_how_long_it_can_become() -> None:
    assert (request().max_output(100), request().positions_needed(100)) == (6, 9)
    assert (request().max_output(7), request().positions_needed(7)) == (3, 6)
    scored = request(targets=(1, 2))
    assert (scored.max_output(100), scored.positions_needed(100)) == (1, 4)


def test_why_an_output_ends() -> None:
    ends = request(end_token_ids=frozenset({9}))
    assert ends.finish_reason(9, 6, 6) == "stop", "an end token counts more than the length"
    assert ends.finish_reason(8, 6, 6) == "length"
    assert ends.finish_reason(8, 5, 6) is None


@pytest.mark.parametrize(
    ("fields", "draws", "whole"),
    [
        ({}, True, False),
        ({"targets": (1,)}, False, False),
        ({"pooling": "last"}, False, False),
        ({"pooling": "mean"}, False, True),
        ({"pooling": "cls"}, False, True),
        ({"pooling": "last", "takes_whole": True}, False, True),
    ],
)
def test_what_is_asked_of_it(fields: dict[str, object], draws: bool, whole: bool) -> None:
    assert (request(**fields).samples, request(**fields).is_whole) == (draws, whole)


def test_tokens_to_compute_go_from_the_prompt_into_the_output() -> None:
    live = live_request(1, 4, max_tokens=6)
    live.output = [7, 8]
    live.num_computed_tokens = 3
    assert (live.num_tokens, live.num_tokens_to_compute) == (6, 3)
    assert live.next_tokens(2) == (0, 7)
    assert live.next_tokens(3) == (0, 7, 8)
    assert not live.is_generating
    assert (live.samples_after(2), live.samples_after(3)) == (False, True)
    live.num_computed_tokens = 5
    assert live.next_tokens(1) == (8,)
    assert live.is_generating
    live.lose_kv()
    assert (live.num_computed_tokens, live.num_lost_tokens, live.seq_id) == (0, 5, -1)
    assert live.next_tokens(6) == live.tokens == (0, 0, 0, 0, 7, 8)


def test_admission_wants_room_for_some_of_the_output() -> None:
    live = live_request(1, 4, max_tokens=6)
    assert [live.promised_tokens(reserve) for reserve in (0, 1, 3, 100)] == [4, 4, 6, 9]
    live.output = [7] * 5
    assert live.promised_tokens(100) == 9
