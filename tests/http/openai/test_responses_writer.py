"""`ResponseWriter`: pieces of an output as events, and as the response that these add up to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from response_events import check_events, without_ids
from response_texts import CASES, Case, parser_of

from pybatcher.calls.completion import (
    Completion,
    FinishReason,
    Piece,
    Timeline,
    TokenLogprob,
    Usage,
)
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.base.token_texts import TokenTexts
from pybatcher.http.openai.responses_writer import ResponseWriter
from pybatcher.serving.chat_response import ChatResponse
from pybatcher.text.tool_call import ToolCall, ToolCallDelta

HEAD = {
    "id": "resp_abc",
    "created_at": 1,
    "model": "m",
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "metadata": {},
}


class Texts(TokenTexts):
    """The text of a token is its number."""

    def __init__(self) -> None:
        pass

    def __getitem__(self, token_id: int) -> str:
        return str(token_id)

    def bytes_of(self, token_id: int) -> bytes:
        return str(token_id).encode()


def made(reason: FinishReason = "stop") -> Completion:
    return Completion("", (), reason, Usage(10, 4, 6), Timeline(0.0, 0.0, 0.0, 0.0, ()))


def piece(text: str = "", **fields: Any) -> Piece:
    return Piece(text, (1,), fields.pop("logprobs", None), **fields)


def write(
    steps: Sequence[Sequence[Piece]], reason: FinishReason = "stop"
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the response of pieces that come in steps, and the events, which are checked."""
    writer = ResponseWriter(HEAD, Texts())
    events = writer.begin()
    for step in steps:
        events += writer.add(step)
    response, last = writer.end(made(reason), 2)
    events += last
    assert check_events(events) == response
    return response, events


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text() -> None:
    response, events = write([[piece("3 plus")], [piece(" 4"), piece(" is 7."), piece()]])
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]
    assert events[5]["delta"] == " 4 is 7."
    assert response["status"] == "completed"
    assert (response["completed_at"], response["incomplete_details"]) == (2, None)
    assert response["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 16,
    }


def test_reasoning_text_and_calls_follow_each_other() -> None:
    call = ToolCall("c1", "add", {"a": 1}, "raw")
    steps = [
        [piece(reasoning="Hm"), piece()],
        [piece("I ", reasoning=".")],
        [piece("add.", tool_calls=(ToolCallDelta(0, "c1", "add"),))],
        [piece(tool_calls=(ToolCallDelta(0, arguments='{"a":'),))],
        [
            piece(tool_calls=(ToolCallDelta(0, arguments="1}"), ToolCallDelta(0, call=call))),
            piece(tool_calls=(ToolCallDelta(1, "c2", "ping"),)),
        ],
        [piece(tool_calls=(ToolCallDelta(1, call=ToolCall("c2", "ping", {}, "raw")),))],
    ]
    response, events = write(steps, "tool_calls")
    told = [
        (item["type"], item.get("arguments") or item["content"][0]["text"])
        for item in response["output"]
    ]
    assert told == [
        *(("reasoning", "Hm."), ("message", "I add.")),
        *(("function_call", '{"a":1}'), ("function_call", "{}")),
    ]
    assert [item["call_id"] for item in response["output"][2:]] == ["c1", "c2"]
    assert len({item["id"] for item in response["output"]}) == 4
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    assert kinds(events).count("function_call_arguments.delta") == 3


def test_an_output_of_nothing_is_an_empty_message() -> None:
    response, _ = write([[piece()]])
    (item,) = response["output"]
    assert item["content"][0]["text"] == ""
    assert write([[]], "length")[0]["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("reason", ["length", "deadline"])
def test_an_output_that_was_cut_is_incomplete(reason: FinishReason) -> None:
    response, events = write([[piece(reasoning="Hm")], [piece("I")]], reason)
    assert events[-1]["type"] == "response.incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["completed_at"] is None
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    response, _ = write([[piece(reasoning="Hm")]], reason)
    assert [item["type"] for item in response["output"]] == ["reasoning"]


def test_a_call_that_is_none_after_all_is_done_and_no_part_of_the_answer() -> None:
    steps = [
        [piece(tool_calls=(ToolCallDelta(0, "c1", "add"),))],
        [piece(tool_calls=(ToolCallDelta(0, arguments='{"a":'),))],
        [piece("<call> {a: oh", tool_calls=(ToolCallDelta(0, note="it is no JSON"),))],
        [piece(".")],
    ]
    response, events = write(steps)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["type"], item["status"]) for item in done] == [
        *(("function_call", "incomplete"), ("message", "completed"))
    ]
    assert response["output"] == done[1:]
    assert response["output"][0]["content"][0]["text"] == "<call> {a: oh."
    assert "response.function_call_arguments.done" not in kinds(events)


def test_a_call_without_an_end_is_none() -> None:
    """Whatever the reader of the model's syntax does, nobody runs half a call."""
    for after in ([], [piece("x")]):
        response, _ = write([[piece(tool_calls=(ToolCallDelta(0, "c1", "add"),))], after])
        assert [item["type"] for item in response["output"]] == ["message"]


def logprob(token_id: int) -> tuple[TokenLogprob, ...]:
    return (TokenLogprob(token_id, -0.5, ((token_id, -0.5), (7, -1.0))),)


def test_log_probabilities_are_those_of_the_texts_tokens() -> None:
    steps = [
        [piece(reasoning="Hm", logprobs=logprob(1)), piece(logprobs=logprob(2))],  # and a marker
        [piece(logprobs=logprob(3))],
        [piece("é", logprobs=logprob(4))],
        [piece(logprobs=logprob(5)), piece("ü", logprobs=logprob(6))],  # the halves of a character
        [piece(logprobs=logprob(8))],  # the end
    ]
    response, _ = write(steps)
    told = response["output"][1]["content"][0]["logprobs"]
    assert [one["token"] for one in told] == ["4", "5", "6"]
    assert told[0] == {
        "token": "4",
        "logprob": -0.5,
        "bytes": [52],
        "top_logprobs": [
            {"token": "4", "logprob": -0.5, "bytes": [52]},
            {"token": "7", "logprob": -1.0, "bytes": [55]},
        ],
    }
    held = (TokenLogprob(9, -0.5, is_end=True),)  # it comes with text that was held back
    last = [piece(logprobs=logprob(1)), piece("xy", logprobs=held)]
    assert [one["token"] for one in write([last])[0]["output"][0]["content"][0]["logprobs"]] == [
        "1"
    ]
    first = [piece(logprobs=logprob(1)), piece("x", logprobs=logprob(2))]
    assert [one["token"] for one in write([first])[0]["output"][0]["content"][0]["logprobs"]] == [
        *("1", "2")
    ]


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "invalid_prompt"), (429, "rate_limit_exceeded"), (503, "server_error")],
)
def test_a_failure_ends_the_stream(status: int, code: str) -> None:
    writer = ResponseWriter(HEAD, Texts())
    events = [*writer.begin(), *writer.add([piece("I")]), *writer.fail(HttpError(status, "no"))]
    response = check_events(events)
    assert response["status"] == "failed"
    assert response["error"] == {"code": code, "message": "no"}
    assert response["output"][0]["status"] == "incomplete"


def pieces_of(case: Case, random: Random) -> Iterator[Piece]:
    """Return a model's text in pieces, cut anywhere."""
    parser = parser_of(case)
    response = ChatResponse(parser, frozenset(), is_parallel=True)
    at = 0
    while at < len(case.text):
        end = at + random.choice([1, 1, 2, 5, 20])
        part = response.feed(case.text[at:end], is_last=end >= len(case.text))
        yield piece(part.text, reasoning=part.reasoning, tool_calls=part.tool_calls)
        at = end


def summary(response: dict[str, Any]) -> tuple[str, str, list[Any]]:
    text, reasoning, calls = "", "", []
    for item in response["output"]:
        if item["type"] == "function_call":
            calls.append((item["name"], json.loads(item["arguments"])))
        elif item["type"] == "reasoning":
            reasoning += item["content"][0]["text"]
        else:
            text += item["content"][0]["text"]
    return text, reasoning, calls


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_what_models_write_in_any_pieces(case: Case) -> None:
    """The whole answer is that of one step; a stream has the same, however it was cut."""
    random = Random(case.text)
    for _ in range(4):
        pieces = list(pieces_of(case, random))
        whole, _ = write([pieces])
        steps, at = [], 0
        while at < len(pieces):
            n = random.choice([1, 1, 2, 5])
            steps.append(pieces[at : at + n])
            at += n
        stream, _ = write(steps)
        assert without_ids(stream) == without_ids(whole)
        assert summary(whole) == (case.content, case.reasoning, list(case.calls))


def test_half_of_what_models_write_ends_in_a_consistent_stream() -> None:
    random = Random(1)
    for case in CASES:
        for _ in range(3):
            end = random.randrange(len(case.text))
            half = Case(case.format, case.text[:end], in_reasoning=case.in_reasoning)
            write([[one] for one in pieces_of(half, random)], "length")
