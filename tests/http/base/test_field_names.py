"""Errors of calls name the fields of a request, which have other names than arguments."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from http_served import served

from pybatcher import InvalidRequestError
from pybatcher.http import application
from pybatcher.http.base.field_names import fields_named, renamed, text_names
from pybatcher.http.base.http_error import HttpError
from pybatcher.testing import fake_batcher

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_a_field_has_the_name_of_the_request() -> None:
    with pytest.raises(HttpError) as raised, fields_named(lambda: {"max_tokens": "most"}):
        raise InvalidRequestError("max_tokens is -1; it must be more", field="max_tokens")
    assert (raised.value.status, raised.value.param) == (400, "most")
    assert raised.value.message == "most is -1; it must be more"


@pytest.mark.parametrize(
    ("param", "told"),
    [
        ("texts[3]", "documents[2]"),
        ("texts[3][1]", "documents[2][1]"),
        ("texts[30]", "input[30]"),
        ("texts", "input"),
        ("texting", "texting"),
        (None, None),
    ],
)
def test_an_item_may_have_a_name_of_its_own(param: str | None, told: str | None) -> None:
    names = {"texts[3]": "documents[2]", "texts": "input"}
    error = renamed(HttpError(400, f"{param} is x", param=param, headers={"a": "b"}), names)
    assert (error.param, error.message, error.headers) == (told, f"{told} is x", {"a": "b"})


def test_the_place_of_a_message_may_be_within_the_field() -> None:
    names = {"tools[0]": "tools[2]", "tools[0].parameters": "tools[2].input_schema"}
    for message, told in (
        ("tools[0].parameters.a is x", "tools[2].input_schema.a is x"),
        ("tools[0].name is x", "tools[2].name is x"),
        ("it is x", "it is x"),
    ):
        error = renamed(HttpError(400, message, param="tools[0]"), names)
        assert (error.param, error.message) == ("tools[2]", told)


def test_texts_are_those_of_the_fields_one_after_another() -> None:
    names = text_names({"query": "a", "ids": [5, 6], "documents": ["b", [7]]})
    assert list(names) == [f"texts[{i}]" for i in range(4)]
    assert list(names.values()) == ["query", "ids", "documents[0]", "documents[1]"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "max_completion_tokens": -1},
         "max_completion_tokens"),
        ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 99},
         "top_logprobs"),
        ("/v1/chat/completions", {"messages": MESSAGES, "thinking_token_budget": 0},
         "thinking_token_budget"),
        ("/v1/completions", {"prompt": "Hi", "guided_regex": "("}, "guided_regex"),
        ("/v1/completions", {"prompt": "Hi", "response_format": {"type": "json_schema",
         "json_schema": {"schema": {"type": 5}}}}, "response_format.json_schema.schema"),
        ("/v1/completions", {"prompt": "Hi", "stream_options": {"include_usage": "yes"}},
         "stream_options.include_usage"),
        ("/v1/embeddings", {"input": ["a", ""]}, "input[1]"),
        ("/v1/embeddings", {"input": [5, 10**9]}, "input[1]"),
        ("/v1/score", {"text_1": ["a"], "text_2": ["b", ""]}, "text_2[1]"),
        ("/v1/score", {"queries": ["a"], "documents": ["b", ""]}, "documents[1]"),
        ("/v1/rerank", {"query": "a", "documents": ["b", ""]}, "documents[1]"),
        ("/tokenize", {"prompt": "\ud800"}, "prompt"),
        ("/detokenize", {"tokens": [5, -1]}, "tokens[1]"),
    ],
)  # fmt: skip
async def test_errors_name_fields_of_the_request(
    path: str, body: dict[str, Any], param: str
) -> None:
    template = "{{ messages[0].content }}"
    async with (
        fake_batcher(chat_template=template) as batcher,
        served(application(batcher)) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        found = await http.post(path, content=json.dumps(body))
        error = found.json()["error"]
        assert (found.status_code, error["param"]) == (400, param), error
        assert error["message"].startswith(param)
