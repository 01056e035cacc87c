"""Events of OpenAI's Responses API, checked against its types and against each other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

__all__ = ["check_events", "events_of", "without_ids"]

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_LAST = ("response.completed", "response.incomplete", "response.failed")


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream as it came over HTTP, with their names checked."""
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def check_events(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Check a whole stream and return its last response.

    Each event is of a type that openai's package has; items open and close one after another,
    their deltas add up, and what is done is what the response has, but for calls that are none.
    """
    for number, event in enumerate(events):
        _EVENT.validate_python(event)
        assert event["sequence_number"] == number
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"] == events[1]["response"]
    assert events[0]["response"]["output"] == []
    assert [event["type"] in _LAST for event in events] == [False] * (len(events) - 1) + [True]
    output = _items(events[2:-1])
    response: dict[str, Any] = events[-1]["response"]
    Response.model_validate(response)
    assert response["output"] == output
    assert f"response.{response['status']}" == events[-1]["type"]
    same = ("id", "created_at", "model", "tools", "metadata")
    assert [response[key] for key in same] == [events[0]["response"][key] for key in same]
    return response


def _items(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items that are part of the answer."""
    output: list[dict[str, Any]] = []
    item: dict[str, Any] | None = None
    n_items, text, logprobs, part = 0, "", [], None
    done: dict[str, Any] | None = None
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert item is None
            assert event["output_index"] == n_items
            item, n_items, text, logprobs, part, done = (
                event["item"],
                n_items + 1,
                "",
                [],
                None,
                None,
            )
            assert item["status"] == "in_progress"
            continue
        assert item is not None
        assert event["output_index"] == n_items - 1
        assert event.get("item_id", item["id"]) == item["id"]
        if kind == "output_item.done":
            whole = event["item"]
            assert {**whole, **dict.fromkeys(("status", "content", "arguments"))} == {
                **item,
                **dict.fromkeys(("status", "content", "arguments")),
            }
            if item["type"] == "function_call":
                assert whole["arguments"] == text
                assert whole["status"] == "incomplete" or done is not None
            else:
                assert whole["content"] == [part]
                assert done is not None
            if item["type"] != "function_call" or done is not None:
                output.append(whole)
            item = None
        elif kind == "content_part.added":
            assert part is None
            part = event["part"]
            assert part["text"] == ""
        elif kind == "content_part.done":
            part = event["part"]
            assert (part["text"], part.get("logprobs", [])) == (text, logprobs)
        elif kind.endswith(".delta"):
            assert event["delta"]
            assert done is None
            text += event["delta"]
            logprobs = [*logprobs, *event.get("logprobs", [])]
        else:
            assert kind.endswith(".done")
            done = event
            assert event.get("text", event.get("arguments")) == text
            assert event.get("logprobs", []) == logprobs
    assert item is None
    return output


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response without what is different each time."""
    output = [{**item, "id": "", "call_id": ""} for item in response["output"]]
    usage = {**(response["usage"] or {}), "input_tokens_details": None}
    return {
        **response,
        "id": "",
        "created_at": 0,
        "completed_at": 0,
        "output": output,
        "usage": usage,
    }
