"""The values that callers get."""

from __future__ import annotations

import dataclasses

import pytest

from pybatcher import Completion, Piece, Timeline, Usage


def timeline(*token_times: float) -> Timeline:
    return Timeline(
        submitted=1.0,
        admitted=1.5,
        first_token=token_times[0],
        finished=token_times[-1],
        token_times=token_times,
    )


def test_figures_of_a_timeline() -> None:
    times = timeline(2.0, 2.25, 4.0)
    assert times.queued == 0.5
    assert times.ttft == 1.0
    assert times.tpot == 1.0
    assert times.itl == (0.25, 1.75)


def test_figures_of_a_single_token() -> None:
    times = timeline(2.0)
    assert times.ttft == 1.0
    assert times.tpot == 0.0
    assert times.itl == ()


def test_their_text_is_what_they_print() -> None:
    completion = Completion("a text", (1,), "stop", Usage(1, 0, 1), timeline(2.0))
    assert f"{completion}" == "a text"
    assert f"{Piece('a piece', (1,), None)}" == "a piece"
    with pytest.raises(dataclasses.FrozenInstanceError):
        completion.text = "another"
