"""Requests of the Messages API: what `chat` is asked for, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybatcher.http.anthropic.messages_input import read_conversation, read_request
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.base.image_sources import ImageSource
from pybatcher.params import CHAT_SAMPLING, OF_MODELS

TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
HI = [{"role": "user", "content": "Hi"}]
BODY: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": HI}
BILL = "x-anthropic-billing-header: cc_version=2.1; cch=1a2b3;"
FULL: dict[str, Any] = {
    "model": "m",
    "max_tokens": 90,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is 3 plus 4?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "A sum.", "signature": "s"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "I add."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 3, "b": 4}},
                {"type": "tool_use", "id": "t2", "name": "add", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "7"}],
                },
                {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
                {"type": "text", "text": "Well?"},
            ],
        },
    ],
    "tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 20},
    "stop_sequences": ["END"],
    "stream": True,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "metadata": {"user_id": "u"},
    "output_config": {
        "effort": "max",
        "format": {"type": "json_schema", "schema": {"type": "object"}},
    },
    "context_management": {"edits": []},
}


def turns(*messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return read_conversation({"messages": list(messages), **more}).messages


def options(**more: Any) -> dict[str, Any]:
    return read_request({**BODY, **more}).options


def refused(**more: Any) -> HttpError:
    with pytest.raises(HttpError) as caught:
        read_request({**BODY, **more})
    assert caught.value.status == 400
    return caught.value


def test_all_that_a_request_may_say() -> None:
    asked = read_request(FULL)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 3, "b": 4}}}
    other = {"type": "function", "function": {"name": "add", "arguments": {}}}
    assert asked.conversation.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 3 plus 4?"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "A sum.",
            "tool_calls": [{"id": "t1", **call}, {"id": "t2", **other}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "7", "name": "add"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no", "name": "add"},
        {"role": "user", "content": "Well?"},
    ]
    tool = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    template = {"tools": [tool], "enable_thinking": True, "reasoning_effort": "high"}
    assert asked.conversation.template == template
    assert asked.options == {
        **template,
        "max_tokens": 90,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "of_model": ("min_p", "repetition_penalty"),
        "stop": ("END",),
        "json_schema": {"type": "object"},
        "max_reasoning_tokens": 20,
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    assert (asked.stream, asked.stops, asked.eager) == (True, ("END",), frozenset())


def test_what_is_not_said() -> None:
    asked = read_request({**BODY, "temperature": None, "tools": None, "stop_sequences": None})
    assert asked.options == {**CHAT_SAMPLING, "max_tokens": 9, "of_model": OF_MODELS}
    assert not asked.stream
    assert asked.conversation.template == {}


def test_a_system_prompt_is_one_message_without_the_header_of_the_bill() -> None:
    blocks = [{"type": "text", "text": text} for text in (BILL, "You are an agent.", "Be kind.")]
    system = {"role": "system", "content": "You are an agent.\nBe kind."}
    assert turns(*HI, system=blocks) == [system, *HI]
    assert turns({"role": "system", "content": blocks}, *HI) == [system, *HI]
    assert turns({"role": "system", "content": "Be kind."}, *HI, system=blocks[:2])[0] == system
    assert turns(*HI, system=f"{BILL}\nYou are an agent.\nBe kind.") == [system, *HI]
    assert turns(*HI, system=[blocks[0]]) == HI
    assert turns(*HI, system="") == HI


def test_a_later_system_message_is_of_the_users_turn() -> None:
    late = {"role": "system", "content": [{"type": "text", "text": "Be quick."}]}
    tagged = "<system-reminder>\nBe quick.\n</system-reminder>"
    assert turns(*HI, late) == [{"role": "user", "content": f"Hi\n{tagged}"}]
    answer = {"role": "assistant", "content": "Yes?"}
    assert turns(*HI, answer, late, *HI) == [
        *HI,
        answer,
        {"role": "user", "content": f"{tagged}\nHi"},
    ]


def test_neighbours_of_one_role_are_one_turn() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said = {"role": "assistant", "content": parts}
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}
    used = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
    calling = {"role": "assistant", "content": [used]}
    made = turns({"role": "user", "content": parts}, *HI, said, thought, calling, calling)
    assert made[0] == {"role": "user", "content": "a\nb\nHi"}
    assert len(made) == 2
    assert (made[1]["content"], made[1]["reasoning_content"]) == ("ab", "x")
    assert len(made[1]["tool_calls"]) == 2
    results = [{"type": "tool_result", "tool_use_id": "?"}] * 2
    assert [turn["role"] for turn in turns({"role": "user", "content": results})] == ["tool"] * 2


@pytest.mark.parametrize(
    ("said", "options_of_it"),
    [
        ({"type": "enabled", "budget_tokens": 8}, {True: 8}),
        ({"type": "enabled", "budget_tokens": 9}, {True: None}),
        ({"type": "enabled"}, {True: None}),
        ({"type": "adaptive"}, {True: None}),
        ({"type": "disabled"}, {False: None}),
        (None, {None: None}),
    ],
)
def test_thinking(said: Any, options_of_it: dict[Any, Any]) -> None:
    found = options(thinking=said)
    assert {found.get("enable_thinking"): found.get("max_reasoning_tokens")} == options_of_it


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "tool", "name": "add"}, {"tool_choice": {"name": "add"}}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_choices_of_tools(choice: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = options(tools=[TOOL], tool_choice=choice)
    assert {key: found[key] for key in found if key in wanted or "tool_c" in key} == wanted
    without = options(tools=[], tool_choice=choice)
    if choice["type"] in ("auto", "none"):
        assert "tool_choice" not in without


@pytest.mark.parametrize(
    ("effort", "known"),
    [("low", "low"), ("medium", None), ("high", "high"), ("xhigh", "high"), (None, None)],
)
def test_efforts_are_those_that_templates_know(effort: str | None, known: str | None) -> None:
    assert options(output_config={"effort": effort}).get("reasoning_effort") == known


def test_input_is_streamed_early_where_that_is_asked_for() -> None:
    early = {**TOOL, "eager_input_streaming": True}
    late = {**TOOL, "name": "late", "eager_input_streaming": False}
    plain = {**TOOL, "name": "plain"}
    body = {**BODY, "tools": [early, late, plain]}
    assert read_request(body).eager == {"add"}
    beta = "files-api-2025-04-14,fine-grained-tool-streaming-2025-05-14"
    assert read_request(body, beta).eager == {"add", "plain"}


def test_an_older_name_of_the_format() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "schema": schema}
    assert options(output_format=form)["json_schema"] == schema


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"messages": [*HI, {"role": "assistant", "content": list(blocks)}, *HI]}


RESULT = {"type": "tool_result", "tool_use_id": "t"}


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source}


IMAGE = image(type="base64", media_type="image/png", data="AAAA")
SVG = image(type="base64", media_type="image/svg+xml", data="AAAA")


def test_images_keep_their_places_among_texts() -> None:
    by_url = image(type="url", url="https://a.example/b")
    text = {"type": "text", "text": "a"}
    result = {**RESULT, "content": [text, IMAGE], "is_error": True}
    plain = {**RESULT, "content": [text, text]}
    read = read_conversation(user(text, IMAGE, text, by_url, result, plain)).messages
    source = ImageSource("messages[0].content[1].source.data", "AAAA")
    fetched = ImageSource("messages[0].content[3].source.url", "https://a.example/b", -1)
    assert read[0] == {
        "role": "user",
        "content": [
            text,
            {"type": "image", "image": source},
            text,
            {"type": "image", "image": fetched},
        ],
    }
    told = ImageSource("messages[0].content[4].content[1].source.data", "AAAA")
    assert read[1]["content"] == [
        {"type": "text", "text": "Error:"},
        text,
        {"type": "image", "image": told},
    ]
    assert read[2]["content"] == "a\na"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"role": "system", "content": BILL}]}, "messages"),
    ({"messages": [*HI, {"role": "assistant", "content": "{"}]}, "messages"),
    ({"messages": [7]}, "messages[0]"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": {"type": "text"}}]}, "messages[0].content"),
    (user("Hi"), "messages[0].content[0]"),
    (user({"text": "Hi"}), "messages[0].content[0].type"),
    (user({"type": "text"}), "messages[0].content[0].text"),
    (user({"type": "image"}), "messages[0].content[0].source"),
    (user({"type": "image", "source": "x"}), "messages[0].content[0].source"),
    (user(image()), "messages[0].content[0].source.type"),
    (user(image(type=["base64"])), "messages[0].content[0].source.type"),
    (user(image(type="file", file_id="f")), "messages[0].content[0].source.type"),
    (user(image(type="base64", data="AA==")), "messages[0].content[0].source.media_type"),
    (user({"type": "text", "text": "a"}, SVG), "messages[0].content[1].source.media_type"),
    (user(image(type="base64", media_type="image/png")), "messages[0].content[0].source.data"),
    (user(image(type="url", url="file:///a")), "messages[0].content[0].source.url"),
    (user(image(type="url", url=5)), "messages[0].content[0].source.url"),
    (user({"type": "tool_result"}), "messages[0].content[0].tool_use_id"),
    (user({**RESULT, "content": 5}), "messages[0].content[0].content"),
    (user({**RESULT, "content": [SVG]}), "messages[0].content[0].content[0].source.media_type"),
    (user({**RESULT, "content": [IMAGE, RESULT]}), "messages[0].content[0].content[1].type"),
    (assistant(IMAGE), "messages[1].content[0].type"),
    (user({**RESULT, "is_error": "no"}), "messages[0].content[0].is_error"),
    (assistant(RESULT), "messages[1].content[0].type"),
    (assistant({"type": "thinking"}), "messages[1].content[0].thinking"),
    (assistant({"type": "tool_use", "name": "a", "input": {}}), "messages[1].content[0].id"),
    (assistant({"type": "tool_use", "id": "a", "input": {}}), "messages[1].content[0].name"),
    (
        assistant({"type": "tool_use", "id": "a", "name": "b", "input": "{}"}),
        "messages[1].content[0].input",
    ),
    ({"system": 5}, "system"),
    ({"system": [IMAGE]}, "system[0].type"),
    ({"tools": {}}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"name": "add"}]}, "tools[0].input_schema"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "eager_input_streaming": 1}]}, "tools[0].eager_input_streaming"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    (
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": "no"}},
        "tool_choice.disable_parallel_tool_use",
    ),
    ({"thinking": "yes"}, "thinking"),
    ({"thinking": {"type": "some"}}, "thinking"),
    ({"thinking": {"type": ["enabled"]}}, "thinking"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
    ({"stop_sequences": "END"}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stream": "yes"}, "stream"),
    ({"output_config": 5}, "output_config"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_format": 5}, "output_format"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=[param for _, param in REFUSED])
def test_what_is_refused_is_named(body: dict[str, Any], param: str) -> None:
    error = refused(**body)
    assert error.param == param
    assert error.message.startswith(param)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "name", "content", "role", "input"])
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values of a body."""
    found = [path] if path else []
    items: Any = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, one in items:
        found += places(one, (*path, key))
    return found


def error_of(body: dict[str, Any]) -> HttpError | None:
    try:
        read_request(body)
    except HttpError as error:
        return error
    return None


@given(st.sampled_from(places(FULL)), JSON)
def test_odd_values_anywhere_are_read_or_refused(path: tuple[Any, ...], value: Any) -> None:
    body = json.loads(json.dumps(FULL))
    place = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    error = error_of(body)
    if error is not None:
        assert error.status == 400
        assert error.param
        assert error.message.encode()
