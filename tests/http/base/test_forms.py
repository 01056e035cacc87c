from __future__ import annotations

from typing import Any

import pytest

from pybatcher.http.anthropic.messages_input import read_request
from pybatcher.http.base.forms import read_forms, refuse_unknown_forms
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.openai.chat_completions import read_chat
from pybatcher.http.openai.completions import read_completion
from pybatcher.http.openai.responses_api import read_response

SCHEMA = {"type": "object"}
MESSAGES = [{"role": "user", "content": "Hi"}]

KNOWN: list[tuple[dict[str, Any], str, Any, str]] = [
    ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA, "structured_outputs.json"),
    ({"structured_outputs": {"json": "{}"}}, "json_schema", "{}", "structured_outputs.json"),
    ({"structured_outputs": {"regex": "a+"}}, "regex", "a+", "structured_outputs.regex"),
    ({"structured_outputs": {"choice": ["a"]}}, "choices", ["a"], "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": "a"}}, "grammar", "a", "structured_outputs.grammar"),
    (
        {"structured_outputs": {"json_object": True, "regex": None, "disable_fallback": True}},
        "json_object",
        True,
        "structured_outputs.json_object",
    ),
    ({"guided_json": SCHEMA, "guided_decoding_backend": "x"}, "json_schema", SCHEMA, "guided_json"),
    ({"guided_grammar": "a", "guided_whitespace_pattern": " "}, "grammar", "a", "guided_grammar"),
    ({"guided_json_object": True, "regex": None}, "json_object", True, "guided_json_object"),
    ({"json_schema": SCHEMA}, "json_schema", SCHEMA, "json_schema"),
    ({"format": "json"}, "json_object", True, "format"),
    ({"format": SCHEMA}, "json_schema", SCHEMA, "format"),
]
FORMATS: list[tuple[dict[str, Any], str, Any, str]] = [
    ({"type": "json_object"}, "json_object", True, "response_format"),
    (
        {"type": "json_object", "schema": SCHEMA},
        "json_schema",
        SCHEMA,
        "response_format.schema",
    ),
    (
        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        "json_schema",
        SCHEMA,
        "response_format.json_schema.schema",
    ),
]
UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"ebnf": "root ::= a"}, "ebnf"),
    ({"structural_tag": "{}"}, "structural_tag"),
    ({"jsonSchema": SCHEMA}, "jsonSchema"),
    ({"response_schema": SCHEMA}, "response_schema"),
    ({"responseSchema": SCHEMA}, "responseSchema"),
    ({"response_mime_type": "application/json"}, "response_mime_type"),
    ({"output_schema": SCHEMA}, "output_schema"),
    ({"schema": SCHEMA}, "schema"),
    ({"json_mode": True}, "json_mode"),
    ({"choice": ["a"]}, "choice"),
    ({"guided_decoding": {"json": SCHEMA}}, "guided_decoding"),
    ({"guided_patch": "a"}, "guided_patch"),
    ({"nvext": {"guided_json": SCHEMA}}, "nvext.guided_json"),
    ({"extra_body": {"structured_outputs": {"regex": "a"}}}, "extra_body.structured_outputs"),
    ({"generationConfig": {"responseSchema": SCHEMA}}, "generationConfig.responseSchema"),
    ({"sampling_params": {"json_schema": "{}"}}, "sampling_params.json_schema"),
    ({"options": {"grammar": "a"}}, "options.grammar"),
]
IDLE: list[dict[str, Any]] = [
    {"structured_outputs": None},
    {"structured_outputs": False},
    {"structured_outputs": {"json": None, "json_object": False}},
    {"json_mode": False, "ebnf": "", "nvext": {}, "format": ""},
    {"format": "text", "response_mime_type": "text/plain"},
    {"result_format": "message", "reasoning_format": "parsed", "guidance_scale": 2},
    {"metadata": {"schema": "a"}, "audio": {"format": "wav"}, "options": {"num_ctx": 5}},
]
OPENAI = [
    lambda sent: read_chat({"messages": MESSAGES, **sent}),
    lambda sent: read_completion({"prompt": "a", **sent}),
    lambda sent: read_response({"input": "a", **sent}),
]


@pytest.mark.parametrize(("sent", "option", "value", "name"), KNOWN)
@pytest.mark.parametrize("read", OPENAI)
def test_forms_of_other_servers_are_read(
    read: Any, sent: dict[str, Any], option: str, value: object, name: str
) -> None:
    asked = read(sent)
    assert asked.options[option] == value
    assert asked.names.get(option, option) == name


@pytest.mark.parametrize(("format", "option", "value", "name"), FORMATS)
@pytest.mark.parametrize("read", OPENAI[:2])
def test_response_formats(
    read: Any, format: dict[str, Any], option: str, value: object, name: str
) -> None:
    asked = read({"response_format": format})
    assert asked.options[option] == value
    assert asked.names[option] == name


def refused(read: Any, sent: dict[str, Any]) -> HttpError:
    with pytest.raises(HttpError) as raised:
        read(sent)
    assert raised.value.status == 400
    assert raised.value.message.startswith(str(raised.value.param))
    return raised.value


@pytest.mark.parametrize(("sent", "param"), UNKNOWN)
def test_a_form_under_an_unknown_name_is_refused(sent: dict[str, Any], param: str) -> None:
    for read in (*OPENAI, messages):
        assert refused(read, sent).param == param


def messages(sent: dict[str, Any]) -> Any:
    return read_request({"messages": MESSAGES, "max_tokens": 3, **sent})


@pytest.mark.parametrize("sent", IDLE)
def test_other_fields_are_ignored(sent: dict[str, Any]) -> None:
    for read in OPENAI:
        assert read(sent).options == read({}).options
    if "structured_outputs" not in sent:
        assert messages(sent).options == messages({}).options


@pytest.mark.parametrize(("sent", "_", "__", "name"), KNOWN)
def test_messages_have_their_own_form_only(
    sent: dict[str, Any], _: str, __: object, name: str
) -> None:
    param = refused(messages, sent).param
    assert param is not None
    assert name.startswith(param)
    own = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert messages({"output_config": own}).options["json_schema"] == SCHEMA


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn"),
        (
            {"structured_outputs": {"disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
        ),
        ({"structured_outputs": True}, "structured_outputs"),
        ({"structured_outputs": [SCHEMA]}, "structured_outputs"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"format": "xml"}, "format"),
        ({"response_format": {"type": "json_object", "schema": 5}}, "response_format.schema"),
        ({"response_format": {"type": "regex", "pattern": "a"}}, "response_format"),
        ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, "output_format"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
    ],
)
def test_what_cannot_be_honoured_is_refused(sent: dict[str, Any], param: str) -> None:
    for read in OPENAI[:2]:
        assert refused(read, sent).param == param


def test_responses_have_their_own_format() -> None:
    response = OPENAI[2]
    assert refused(response, {"response_format": FORMATS[0][0]}).param == "response_format"
    schema = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert refused(response, {"text": schema, "guided_json": {}}).param == "text.format"
    with_schema = {"format": {"type": "json_object", "schema": SCHEMA}}
    assert refused(response, {"text": with_schema}).param == "text.format.type"
    assert refused(response, {"text": schema, "output_format": SCHEMA}).param == "output_format"
    response({"response_format": {"type": "text"}})


def test_the_error_names_the_field_to_use() -> None:
    with pytest.raises(HttpError, match="use a, or leave ebnf out"):
        refuse_unknown_forms({"ebnf": "a"}, (), "a")
    assert read_forms({"x": 5}) == ({}, {})
