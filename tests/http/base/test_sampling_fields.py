from __future__ import annotations

from typing import Any

import pytest

from pybatcher.http.base.http_error import HttpError
from pybatcher.http.base.sampling_fields import read_flag, read_sampling, read_text


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({}, {}),
        ({"temperature": 0, "stop": None, "unknown": 1, "user": "me"}, {"temperature": 0}),
        ({"top_k": 5, "min_p": 0.1, "ignore_eos": True, "priority": 3}, None),
        ({"logit_bias": {"5": -1.5}}, {"logit_bias": {5: -1.5}}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a"]}, {"choices": ["a"]}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}},
            {"json_schema": {"a": 1}},
        ),
        ({"max_tokens": 5, "logprobs": True}, {}),  # each API has its own
    ],
)
def test_fields_become_keywords(body: dict[str, Any], options: dict[str, Any] | None) -> None:
    assert read_sampling(body) == (body if options is None else options)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"logit_bias": 5}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"response_format": 5}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ],
)
def test_shapes_that_only_http_has(body: dict[str, Any], param: str) -> None:
    with pytest.raises(HttpError) as raised:
        read_sampling(body)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_texts() -> None:
    assert read_text("é", "x") == "é"
    with pytest.raises(HttpError, match="x is ''; it must be a text that is not empty"):
        read_text("", "x", may_be_empty=False)
    with pytest.raises(HttpError, match="halves of surrogate pairs"):
        read_text("a\ud800", "x")


def test_flags() -> None:
    assert read_flag({}, "echo", True)
    assert not read_flag({"echo": None}, "echo", False)
    assert read_flag({"echo": True}, "echo", False)
    for odd in (0, 1, "true", [], 1.0):
        with pytest.raises(HttpError, match=r"a\.echo is .*; it must be true or false"):
            read_flag({"echo": odd}, "echo", False, "a.")


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_too_many_token_ids_are_refused_by_their_number(field: str) -> None:
    ids = [str(i) for i in range(2**14 + 1)]
    given = dict.fromkeys(ids, 1) if field == "logit_bias" else ids
    with pytest.raises(HttpError, match=f"{field} has 16385 token ids; it must have at most 16384"):
        read_sampling({field: given})
