"""The values that callers get."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pybatcher import Completion, Piece, Timeline, TokenLogprob, ToolCall, Usage


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


def test_a_completion_as_a_dict_is_json() -> None:
    call = ToolCall("call_0", "add", {"a": [1, {"b": None}]}, "<raw>", '{"a": [1, {"b": null}]}')
    likely = TokenLogprob(1, -0.5, ((1, -0.5), (2, -1.5)))
    other = Completion("other", (2,), "length", Usage(1, 0, 1), timeline(2.0))
    whole = Completion(
        "a text",
        (1, 7),
        "tool_calls",
        Usage(3, 2, 2),
        timeline(2.0, 2.5),
        (likely,),
        (other,),
        (None, -0.25),
        reasoning="because",
        tool_calls=(call,),
        notes=("a note",),
        prompt_top_logprobs=((), ((1, -0.5),)),
        parse=str.upper,
    )
    made = whole.to_dict()
    assert json.loads(json.dumps(made)) == made
    assert set(made) == {field.name for field in dataclasses.fields(Completion)} - {"parse"}
    assert made["token_ids"] == [1, 7]
    counts = {"prompt_tokens": 3, "cached_tokens": 2, "completion_tokens": 2, "image_tokens": 0}
    assert made["usage"] == counts
    assert made["timeline"]["token_times"] == [2.0, 2.5]
    assert made["logprobs"][0]["top"] == [[1, -0.5], [2, -1.5]]
    assert made["tool_calls"][0]["arguments"] == {"a": [1, {"b": None}]}
    assert made["prompt_top_logprobs"] == [[], [[1, -0.5]]]
    assert made["other_choices"] == [other.to_dict()]
    made["tool_calls"][0]["arguments"]["a"][1]["b"] = 5
    assert call.arguments == {"a": [1, {"b": None}]}, "the dict shares no value with it"


def test_a_dict_leaves_out_what_was_not_asked_for() -> None:
    made = Completion("", (), "length", Usage(1, 0, 0), timeline(2.0)).to_dict()
    assert set(made) == {"text", "token_ids", "finish_reason", "usage", "timeline"}
    asked = Completion("", (), "length", Usage(1, 0, 0), timeline(2.0), logprobs=()).to_dict()
    assert asked["logprobs"] == []
