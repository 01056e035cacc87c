"""Items of a response that are being written."""

from __future__ import annotations

from typing import Any

import pytest

from pybatcher.http.openai.responses_items import CallItem, MessageItem, OpenItem, ReasoningItem

LOGPROB = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}


def kinds(events: Any) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def call() -> CallItem:
    return CallItem("abc", 3, number=0, call_id="call_1", name="add")


@pytest.mark.parametrize(
    ("item", "id", "stem"),
    [
        (ReasoningItem("abc", 3), "rs_abc0003", "reasoning_text"),
        (MessageItem("abc", 3), "msg_abc0003", "output_text"),
    ],
)
def test_an_item_with_a_part(item: OpenItem, id: str, stem: str) -> None:
    begun = list(item.begun())
    assert kinds(begun) == ["output_item.added", "content_part.added"]
    assert begun[0]["item"]["content"] == []
    at = {"item_id": id, "output_index": 3, "content_index": 0}
    assert begun[1] | at == begun[1]
    assert list(item.fresh()) == []
    item.add("a")
    item.add("")
    item.add("b")
    assert [event | at == event and event["delta"] for event in item.fresh()] == ["ab"]
    item.add("c")
    assert kinds(item.fresh()) == [f"{stem}.delta"]
    assert list(item.fresh()) == []
    done = list(item.done("completed"))
    assert kinds(done) == [f"{stem}.done", "content_part.done", "output_item.done"]
    assert done[0]["text"] == done[1]["part"]["text"] == item.text == "abc"
    assert done[2]["item"] == item.body("completed")
    assert done[2]["item"]["content"] == [done[1]["part"]]
    assert item.body("incomplete")["status"] == "incomplete"


def test_log_probabilities_come_with_their_text() -> None:
    item = MessageItem("abc", 0)
    item.add("a", [LOGPROB])
    assert [event["logprobs"] for event in item.fresh()] == [[LOGPROB]]
    item.add("b", [LOGPROB, LOGPROB])
    assert [event["logprobs"] for event in item.fresh()] == [[LOGPROB, LOGPROB]]
    done = list(item.done("completed"))
    assert done[0]["logprobs"] == done[1]["part"]["logprobs"] == [LOGPROB] * 3


def test_a_call() -> None:
    item = call()
    assert [event["item"]["arguments"] for event in item.begun()] == [""]
    item.add('{"a":')
    assert [event["delta"] for event in item.fresh()] == ['{"a":']
    item.add("1}")
    assert kinds(item.fresh()) == ["function_call_arguments.delta"]
    done = list(item.done("completed"))
    assert kinds(done) == ["function_call_arguments.done", "output_item.done"]
    assert (done[0]["name"], done[0]["arguments"]) == ("add", '{"a":1}')
    assert done[1]["item"] == {
        "id": "fc_abc0003",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "add",
        "arguments": '{"a":1}',
    }


def test_a_call_that_is_none_is_not_complete() -> None:
    item = call()
    item.add('{"a":')
    assert kinds(item.fresh()) == ["function_call_arguments.delta"]
    (event,) = item.void()
    assert event["type"] == "response.output_item.done"
    assert (event["item"]["status"], event["item"]["arguments"]) == ("incomplete", '{"a":')
