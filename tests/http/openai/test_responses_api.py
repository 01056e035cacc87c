"""`read_response`: what a body asks for, with values of every type for every field."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from pybatcher.http.base.http_error import HttpError
from pybatcher.http.base.sampling_fields import ANY_LENGTH
from pybatcher.http.openai.responses_api import ResponseAsked, read_response, told_error
from pybatcher.params import CHAT_SAMPLING, OF_MODELS

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD = {"type": "function", "name": "add", "description": "Adds.", "parameters": PARAMETERS}
FUNCTION = {**ADD, "strict": False}
DEEP: list[Any] = []
for _ in range(5000):  # deeper than `repr` can go
    DEEP = [DEEP]
ODD = (
    *(None, True, False, 0, 1, -1, 2**31, 10**400, 0.5, -0.0, math.nan, math.inf, "", "x", "auto"),
    *("none", "function", "\ud800", "x" * 70_000, [], [None], [[]], ["x"], [{}], [ADD], {}, DEEP),
    *({"type": None}, {"type": "function"}, {"type": []}, {"type": "json_schema", "schema": 5}),
    *({"format": {}}, {"format": {"type": {}}}, {"effort": 5}, {"effort": "\ud800"}, {"": ""}),
    *({"x": 5}, {"x": "\ud800"}, {"x": DEEP}, {"format": {"type": "json_schema", "schema": {}}}),
    {"type": "allowed_tools", "tools": [{"type": "function", "name": "add"}]},
    {"role": "user", "content": "hi"},
)
FIELDS = (
    *("background", "conversation", "include", "input", "instructions"),
    *("max_output_tokens", "max_tool_calls", "metadata", "model"),
    *("parallel_tool_calls", "previous_response_id", "prompt"),
    *("prompt_cache_key", "reasoning", "safety_identifier", "service_tier"),
    *("store", "stream", "stream_options", "temperature", "text", "tool_choice"),
    *("tools", "top_logprobs", "top_p", "truncation", "user", "n", "response_format"),
    *("stop", "seed", "logit_bias", "unknown"),
)


def read(**body: Any) -> ResponseAsked:
    return read_response({"input": "Hi", **body})


def read_or_refuse(body: dict[str, Any]) -> ResponseAsked | HttpError:
    try:
        return read(**body)
    except HttpError as error:
        return error


def refused(**body: Any) -> HttpError:
    with pytest.raises(HttpError) as raised:
        read(**body)
    assert raised.value.status == 400
    assert raised.value.type == "invalid_request_error"
    raised.value.message.encode()
    return raised.value


def test_an_input_alone() -> None:
    asked = read()
    assert asked.messages == [{"role": "user", "content": "Hi"}]
    assert asked.options == {**CHAT_SAMPLING, "max_tokens": ANY_LENGTH, "of_model": OF_MODELS}
    assert not asked.stream
    assert asked.told == {
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": None,
    }


def test_null_is_as_if_nothing_were_said() -> None:
    nothing = dict.fromkeys(set(FIELDS) - {"input"})
    assert read(**nothing) == read()


def test_drawing() -> None:
    asked = read(temperature=0, top_p=0.5, max_output_tokens=7, seed=3, stop=["x"], top_k=5)
    assert asked.options == {
        **{"temperature": 0, "top_p": 0.5, "max_tokens": 7, "seed": 3, "stop": ["x"], "top_k": 5},
        "of_model": ("min_p", "repetition_penalty"),
    }
    assert [asked.told[name] for name in ("temperature", "top_p", "max_output_tokens")] == [
        0,
        0.5,
        7,
    ]


def test_fields_of_the_other_apis_are_unknown_here() -> None:
    assert read(n=3, max_tokens=3, logprobs="x", x={}) == read()


def test_fields_that_change_nothing() -> None:
    told = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "service_tier": "flex"}
    asked = read(
        **told,
        store=True,
        background=False,
        truncation="disabled",
        max_tool_calls=3,
        include=["reasoning.encrypted_content"],
        text={"verbosity": "low"},
        stream_options={"include_obfuscation": False},
    )
    assert asked == read()
    assert read(stream=True).stream


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, 3),
        ({"top_logprobs": 20}, 20),
        ({"top_logprobs": 0}, None),
        ({"include": ["file_search_call.results"]}, None),
    ],
)
def test_log_probabilities(fields: dict[str, Any], logprobs: int | None) -> None:
    asked = read(**fields)
    assert asked.options.get("logprobs") == logprobs
    assert asked.told["top_logprobs"] == (logprobs or 0)


def test_forms_of_the_text() -> None:
    assert read(text={"format": {"type": "text"}}) == read()
    asked = read(text={"format": {"type": "json_object"}})
    assert asked.options["json_object"] is True
    assert asked.told["text"] == {"format": {"type": "json_object"}}
    form = {"type": "json_schema", "name": "sum", "schema": PARAMETERS, "strict": True}
    asked = read(text={"format": form, "verbosity": "high"})
    assert asked.options["json_schema"] == PARAMETERS
    assert asked.told["text"] == {"format": form}


def test_reasoning() -> None:
    asked = read(reasoning={"effort": "low", "summary": "auto", "context": "auto"})
    assert asked.options["reasoning_effort"] == "low"
    assert asked.told["reasoning"] == {"effort": "low", "summary": "auto"}
    asked = read(max_reasoning_tokens=5, enable_thinking=True, chat_template_kwargs={"a": 1})
    assert asked.options["max_reasoning_tokens"] == 5
    assert asked.options["enable_thinking"] is True
    assert asked.options["chat_template_kwargs"] == {"a": 1}


def test_functions_are_tools_and_others_are_skipped() -> None:
    others = [
        {"type": "web_search", "external_web_access": False},
        {"type": "namespace", "name": "agents", "tools": [ADD]},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
    ]
    asked = read(tools=[others[0], {**ADD, "x": math.nan}, *others[1:]], parallel_tool_calls=False)
    assert asked.options["tools"] == asked.told["tools"] == [FUNCTION]
    assert asked.options["parallel_tool_calls"] is False
    assert read(tools=others, tool_choice="auto", parallel_tool_calls=True) == read()
    assert read(tools=[], tool_choice="none").options == read().options
    bare = {"type": "function", "name": "ping"}
    assert read(tools=[{**bare, "strict": True}]).told["tools"] == [
        {**bare, "description": None, "parameters": None, "strict": True}
    ]


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "add"}, {"type": "function", "name": "add"}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "web_search"}, {"type": "function", "name": "add", "x": DEEP}],
            },
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "add"}],
            },
        ),
    ],
)
def test_choices_of_tools(given: Any, choice: Any) -> None:
    asked = read(tools=[ADD], tool_choice=given)
    assert asked.options["tool_choice"] == asked.told["tool_choice"] == choice


def test_a_choice_that_needs_tools_is_left_to_the_call() -> None:
    assert read(tool_choice="required").options["tool_choice"] == "required"


@pytest.mark.parametrize(
    "field", ["previous_response_id", "conversation", "prompt"], ids=lambda field: str(field)
)
def test_state_is_refused_by_name(field: str) -> None:
    error = refused(**{field: "resp_1"})
    assert (error.param, error.code) == (field, "unsupported_parameter")
    assert error.message.startswith(f"{field} is not supported")


def test_background_is_refused_by_name() -> None:
    assert refused(background=True).param == "background"


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("store", "no", "store"),
        ("stream", 1, "stream"),
        ("background", "x", "background"),
        ("parallel_tool_calls", 1, "parallel_tool_calls"),
        ("truncation", "middle", "truncation"),
        ("truncation", ["auto"], "truncation"),
        ("stream_options", [], "stream_options"),
        ("max_output_tokens", 0, "max_output_tokens"),
        ("max_output_tokens", True, "max_output_tokens"),
        ("max_output_tokens", 5.0, "max_output_tokens"),
        ("max_output_tokens", 2**31, "max_output_tokens"),
        ("top_logprobs", 21, "top_logprobs"),
        ("top_logprobs", "5", "top_logprobs"),
        ("include", "reasoning.encrypted_content", "include"),
        ("instructions", ["x"], "instructions"),
        ("text", "json", "text"),
        ("text", {"format": "json"}, "text.format"),
        ("text", {"format": {"type": "xml"}}, "text.format"),
        ("text", {"format": {"type": "json_schema"}}, "text.format.schema"),
        (
            "text",
            {"format": {"type": "json_schema", "schema": {}, "strict": 1}},
            "text.format.strict",
        ),
        ("text", {"format": {"type": "json_schema", "schema": {}, "name": 5}}, "text.format.name"),
        ("reasoning", "high", "reasoning"),
        ("reasoning", {"effort": 5}, "reasoning.effort"),
        ("reasoning", {"summary": {}}, "reasoning.summary"),
        ("tools", {"add": {}}, "tools"),
        ("tools", ["add"], "tools[0]"),
        ("tools", [{"name": "add"}], "tools[0]"),
        ("tools", [{"type": "web_search"}, {"type": "function"}], "tools[1].name"),
        ("tools", [{**ADD, "description": 5}], "tools[0].description"),
        ("tools", [{**ADD, "parameters": "{}"}], "tools[0].parameters"),
        ("tools", [{**ADD, "strict": "yes"}], "tools[0].strict"),
        ("tool_choice", 5, "tool_choice"),
        ("tool_choice", {"type": "web_search"}, "tool_choice"),
        ("tool_choice", {"type": "function"}, "tool_choice.name"),
        ("tool_choice", {"type": "allowed_tools", "mode": 5}, "tool_choice.mode"),
        ("metadata", ["x"], "metadata"),
        ("metadata", {"x": 5}, "metadata"),
        ("metadata", {"x": "\ud800"}, "metadata"),
        ("metadata", {"\ud800": "x"}, "metadata"),
        ("metadata", {str(i): "x" for i in range(17)}, "metadata"),
        ("logit_bias", {"x": 1}, "logit_bias"),
    ],
)
def test_values_that_are_refused_by_name(field: str, value: Any, param: str) -> None:
    error = refused(**{field: value})
    assert (error.param, error.code) == (param, "invalid_value")
    assert error.message.startswith(f"{param} is ")


@pytest.mark.parametrize("field", FIELDS)
def test_any_value_of_any_field_is_read_or_refused(field: str) -> None:
    """Also inside of each other, and nested deeply."""
    random = Random(field)
    values = [*ODD, *({"type": one, "name": other} for one in ODD[:24] for other in ODD[:24])]
    values += [[random.choice(ODD), {"type": "function", "name": random.choice(ODD)}]]
    for value in values:
        found = read_or_refuse({field: value})
        if isinstance(found, HttpError):
            assert found.status == 400
            found.message.encode()
        else:
            assert set(found.told) == set(read().told)


@pytest.mark.parametrize(
    ("message", "param", "told"),
    [
        ("max_tokens is 5", "max_tokens", "max_output_tokens is 5"),
        ("messages has no end", "messages", "input has no end"),
        ("messages[3].content is 5", "messages[3].content", "input: messages[3].content is 5"),
        ("reasoning_effort is 5", "reasoning_effort", "reasoning.effort is 5"),
        ("json_schema: no", "json_schema", "text.format: no"),
        ("logprobs is 5", "logprobs", "top_logprobs is 5"),
        ("temperature is 5", "temperature", "temperature is 5"),
        ("something else", None, "something else"),
    ],
)
def test_errors_of_calls_name_the_fields_of_this_api(
    message: str, param: str | None, told: str
) -> None:
    names = read(text={"format": {"type": "json_schema", "schema": {}}}).names
    error = told_error(HttpError(400, message, code="x", param=param, headers={"a": "b"}), names)
    assert (error.status, error.message, error.code, error.headers) == (400, told, "x", {"a": "b"})
    assert error.param == (None if param is None else told.split()[0].rstrip(":"))


@pytest.mark.parametrize(
    ("sent", "argument", "param"),
    [
        ({"text": {"format": {"type": "json_object"}}}, "json_object", "text.format"),
        ({"guided_regex": "("}, "regex", "guided_regex"),
        ({"guided_json": 5}, "json_schema", "guided_json"),
        ({"json_schema": 5}, "json_schema", "json_schema"),
        ({"json_object": 5, "response_format": {}}, "json_object", "json_object"),
    ],
)
def test_errors_of_forms_name_the_field_that_was_sent(
    sent: dict[str, Any], argument: str, param: str
) -> None:
    error = told_error(HttpError(400, f"{argument} is 5", param=argument), read(**sent).names)
    assert (error.message, error.param) == (f"{param} is 5", param)


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        (5, "tool_choice.tools"),
        ([5], "tool_choice.tools[0]"),
        ([{"type": "function"}], "tool_choice.tools[0].name"),
    ],
)
def test_tools_of_a_choice_are_named_as_such(tools: Any, param: str) -> None:
    assert refused(tool_choice={"type": "allowed_tools", "tools": tools}).param == param
