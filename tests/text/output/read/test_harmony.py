"""What a header may be; responses as models write them are tested with the parser."""

from __future__ import annotations

import pytest

from pybatcher.text.output.formats.formats import FORMATS
from pybatcher.text.output.read.deltas import ParsedResponse
from pybatcher.text.output.read.parser import ResponseParser, parse_response


def parsed(text: str) -> ParsedResponse:
    return parse_response(text, FORMATS["harmony"])


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.f <|constrain|>json",
        "<|channel|>commentary to=functions.f",
        "<|start|>assistant to=functions.f<|channel|>commentary json",
        "<|start|>assistant<|channel|>analysis to=f",
        "to=functions.f<|channel|>commentary",
    ],
)
def test_a_recipient_is_a_call_wherever_it_stands(header: str) -> None:
    response = parsed(header + '<|message|> {"a": 1}\n<|call|>')
    assert [(call.name, call.arguments) for call in response.tool_calls] == [("f", {"a": 1})]
    assert response.content == ""


def test_a_call_without_arguments() -> None:
    (call,) = parsed("<|channel|>commentary to=functions.f<|message|><|call|>").tool_calls
    assert call.arguments == {}


def test_a_message_to_another_that_is_no_json_is_content() -> None:
    text = "<|channel|>commentary to=python<|message|>print(1)<|call|>"
    response = parsed(text + "<|start|>assistant<|channel|>final<|message|>ok")
    assert response.content == text.removesuffix("<|call|>") + "ok"
    assert response.notes == ("its arguments are not a JSON object",)


def test_a_channel_that_is_not_known_is_content() -> None:
    assert parsed("<|channel|>other<|message|>text<|end|>").content == "text"


@pytest.mark.parametrize("piece", ["<|start|>", "<|channel|>x", "<|start|>" + "x" * 200])
def test_a_header_is_not_held_for_ever(piece: str) -> None:
    parser = ResponseParser(FORMATS["harmony"])
    assert any(parser.feed(piece) for _ in range(20))


@pytest.mark.parametrize("text", ["<|channel|>" + "x" * 2000, "to=" + " y" * 2000])
def test_a_header_without_an_end_is_passed_on(text: str) -> None:
    assert parsed(text + "<|message|>z").content.startswith(text)
