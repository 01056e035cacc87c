from __future__ import annotations

from typing import Any

import pytest

from pybatcher import Piece, TokenLogprob, ToolCall, ToolCallDelta
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.base.image_sources import ImageSource
from pybatcher.http.openai.chat_completions import chunks_of, read_chat, read_messages
from pybatcher.params import CHAT_SAMPLING, OF_MODELS

MESSAGES = [{"role": "user", "content": "Hi"}]
HEAD = {"id": "x"}


def test_what_a_body_asks_for() -> None:
    asked = read_chat({"messages": MESSAGES})
    assert (asked.stream, asked.include_usage, asked.continuous_usage) == (False,) * 3
    assert asked.options == {**CHAT_SAMPLING, "max_tokens": 2**31 - 1, "of_model": OF_MODELS}
    body = {
        "messages": MESSAGES,
        "max_tokens": 5,
        "max_completion_tokens": 7,
        "logprobs": True,
        "top_logprobs": 3,
        "tools": [],
        "tool_choice": "auto",
        "thinking_token_budget": 9,
        "stream": True,
        "stream_options": {"include_usage": True, "other": 1},
    }
    asked = read_chat(body)
    assert (asked.stream, asked.include_usage) == (True, True)
    assert asked.options == {
        **CHAT_SAMPLING,
        "of_model": OF_MODELS,
        "max_tokens": 7,
        "logprobs": 3,
        "max_reasoning_tokens": 9,
    }
    with pytest.raises(HttpError, match="top_logprobs"):
        read_chat({"messages": MESSAGES, "top_logprobs": 3})


def test_messages_as_templates_know_them() -> None:
    read = read_messages(
        [
            {"role": "developer", "content": [{"type": "text", "text": "a"}], "name": None},
            {
                "role": "user",
                "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}],
            },
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": None, "tool_call_id": "1"},
            {"role": "system", "content": ""},
        ]
    )
    assert read == [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": one} for one in "bc"]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "", "tool_call_id": "1"},
        {"role": "system", "content": ""},
    ]
    bad: tuple[Any, ...] = (None, [], [5], [{"role": "user", "content": [{"type": "image_url"}]}])
    for messages in bad:
        with pytest.raises(HttpError, match="messages"):
            read_messages(messages)


def test_a_part_is_a_text_also_an_empty_one() -> None:
    def content(*parts: Any) -> Any:
        return read_messages([{"role": "user", "content": list(parts)}])[0]["content"]

    assert content() == ""
    assert content({"type": "text", "text": ""}) == ""
    assert content({"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}) == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    assert content({"type": "refusal", "refusal": "no"}) == "no"
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({"type": "text"}, "text"),
        ({"type": "text", "text": 0}, "text"),
        ({"type": "text", "text": {"a": 1}}, "text"),
        ({"type": "text", "text": "\ud800"}, "text"),
        ({"type": "text", "refusal": "no"}, "text"),
        ({"type": "refusal", "refusal": None}, "refusal"),
        ({"type": ["text"], "text": "a"}, "type"),
    )
    for part, field in bad:
        with pytest.raises(HttpError) as raised:
            content({"type": "text", "text": "a"}, part)
        assert raised.value.param == f"messages[0].content[1].{field}"


def test_images_are_parts_of_their_own() -> None:
    url = "data:image/png;base64,AAAA"

    def content(*parts: Any, role: str = "user") -> Any:
        message = {"role": role, "content": list(parts), "tool_call_id": "1"}
        return read_messages([message])[0]["content"]

    def source(where: str, text: str = url, start: int = 22) -> ImageSource:
        return ImageSource(f"messages[0].content[{where}", text, start)

    low = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    text = {"type": "text", "text": "a"}
    assert content(low) == [{"type": "image", "image": source("0].image_url.url"), "detail": "low"}]
    assert content(text, {"type": "image_url", "image_url": {"url": "https://a.example"}}) == [
        text,
        {"type": "image", "image": source("1].image_url.url", "https://a.example", -1)},
    ]
    of_responses = {"type": "input_image", "image_url": url, "detail": "high"}
    assert content(of_responses, text, role="tool") == [
        {"type": "image", "image": source("0].image_url"), "detail": "high"},
        text,
    ]
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({"type": "image_url"}, "image_url"),
        ({"type": "image_url", "image_url": None}, "image_url"),
        ({"type": "image_url", "image_url": []}, "image_url"),
        ({"type": "image_url", "image_url": {}}, "image_url.url"),
        ({"type": "image_url", "image_url": {"url": {"url": url}}}, "image_url.url"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "image_url.url"),
        ({"type": "image_url", "image_url": {"url": url, "detail": "max"}}, "image_url.detail"),
        ({"type": "input_image", "image_url": url, "detail": 5}, "detail"),
        ({"type": "input_image", "file_id": "file-1"}, "file_id"),
        ({"type": "image", "image": url}, "type"),
        ({"type": "video_url", "video_url": {"url": url}}, "type"),
    )
    for part, field in bad:
        with pytest.raises(HttpError) as raised:
            content(text, part)
        assert raised.value.param == f"messages[0].content[1].{field}"
        assert raised.value.message.startswith(raised.value.param)
    for role in ("system", "developer", "assistant"):
        with pytest.raises(HttpError, match=r"content\[0\].type .*'text', in a message of this"):
            content(low, role=role)


def test_a_step_is_one_chunk_a_sample() -> None:
    begun: set[int] = set()
    texts: Any = {}
    pieces = [
        Piece("a", (1,), None),
        Piece("x", (2,), None, index=1),
        Piece("b", (3,), None, reasoning="r"),
    ]
    first = chunks_of(pieces, texts, begun, HEAD)
    assert [one["choices"][0]["index"] for one in first] == [0, 1]
    assert first[0]["choices"][0]["delta"] == {
        "role": "assistant",
        "content": "ab",
        "reasoning_content": "r",
    }
    assert chunks_of([Piece("", (4,), None)], texts, begun, HEAD) == []  # half a character
    (last,) = chunks_of([Piece("", (), None, "deadline")], texts, begun, HEAD)
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["choices"][0]["delta"] == {}


def test_log_probabilities_come_without_a_text_too() -> None:
    """A token that is half a character has a log-probability, and no text yet."""

    class Texts:
        def described(self, one: TokenLogprob) -> int:
            return one.token_id

    pieces = [Piece("", (4,), (TokenLogprob(4, -1.0, ()),))]
    (chunk,) = chunks_of(pieces, Texts(), {0}, HEAD)  # type: ignore[arg-type]
    (choice,) = chunk["choices"]
    assert choice["delta"] == {}
    assert choice["logprobs"]["content"] == [4]
    end = Piece("", (5,), (TokenLogprob(5, -1.0, (), is_end=True),), "stop")
    (chunk,) = chunks_of([end], Texts(), {0}, HEAD)  # type: ignore[arg-type]
    assert chunk["choices"][0]["logprobs"] is None
    assert chunks_of([Piece("", (), ())], Texts(), {0}, HEAD) == []  # type: ignore[arg-type]


def test_calls_come_as_deltas() -> None:
    call = ToolCall("id", "f", {}, "")
    deltas = (
        ToolCallDelta(0, "id", "f"),
        ToolCallDelta(0, arguments='{"a'),
        ToolCallDelta(0, arguments='": 1}'),
        ToolCallDelta(0, call=call),
        ToolCallDelta(1, note="none after all"),
    )
    (chunk,) = chunks_of([Piece("", (1,), None, tool_calls=deltas)], {}, {0}, HEAD)  # type: ignore[arg-type]
    assert chunk["choices"][0]["delta"] == {
        "tool_calls": [
            {
                "index": 0,
                "id": "id",
                "type": "function",
                "function": {"name": "f", "arguments": '{"a": 1}'},
            }
        ]
    }
    later = [Piece("", (1,), None, tool_calls=(ToolCallDelta(2, arguments="x"),))]
    (chunk,) = chunks_of(later, {}, {0}, HEAD)  # type: ignore[arg-type]
    assert chunk["choices"][0]["delta"] == {
        "tool_calls": [{"index": 2, "function": {"arguments": "x"}}]
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "f", "parameters": {}}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        (
            {"continue_final_message": True, "add_generation_prompt": False},
            "continue_final_message",
        ),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        (
            {"messages": [*MESSAGES, {"role": "assistant", "function_call": {"name": "f"}}]},
            "messages[1].function_call",
        ),
    ],
)
def test_fields_that_would_change_the_answer_are_not_ignored(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(HttpError) as raised:
        read_chat({"messages": MESSAGES, **fields})
    assert (raised.value.status, raised.value.param) == (400, param)


def test_fields_that_change_nothing_are_taken() -> None:
    read_chat(
        {
            "messages": [*MESSAGES, {"role": "assistant", "content": "a", "function_call": None}],
            "functions": [],
            "function_call": "none",
            "continue_final_message": False,
            "add_generation_prompt": True,
        }
    )
