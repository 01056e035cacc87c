from __future__ import annotations

from typing import Any

import pytest

from pybatcher.text.tool_call import ToolCall


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", {}),
        ('{"a": 1, "b": [2, "c', {"a": 1, "b": [2, "c"]}),
        ('{"a": 12', {}),
        ('{"a": "\\ud800", "b', {}),
        ("[1, 2", {}),
        ("oh", {}),
    ],
)
def test_a_call_that_was_cut_has_the_complete_part(text: str, arguments: dict[str, Any]) -> None:
    call = ToolCall.cut("id", "f", "raw", text)
    assert call == ToolCall("id", "f", arguments, "raw", text, is_cut=True)
    assert call.json_arguments == text


def test_the_json_text_is_as_written_or_made_of_the_value() -> None:
    assert ToolCall("id", "f", {"a": "é"}, "raw").json_arguments == '{"a": "é"}'
    assert ToolCall("id", "f", {"a": 1}, "raw", '{"a":1}').json_arguments == '{"a":1}'
