"""Bodies of any kind end in a result or a 4xx that says what is wrong, beside an honest stream."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from http_served import served

from pybatcher import ToolCall
from pybatcher.calls.telemetry import RequestEvent
from pybatcher.http import application
from pybatcher.http.openai.chat_completions import tool_call_body
from pybatcher.testing import fake_batcher

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
ODD: list[Any] = [None, True, -1, 0, 1.5, 1e400, 10**30, "", "x", "\ud800", [], [None], [[]], {}]
ODD += ["cls", "auto", {"type": "json_schema", "json_schema": {"schema": [{}]}}]
ODD += [
    {"type": {"\ud800": 1}},
    {"type": "object", "properties": []},
    ["a", "\ud800"],
    [{"type": []}],
]
ODD += [{"": None}, {"type": "text"}, [{"role": 5}], [{"role": "user", "content": [{}]}]]
DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]
ODD.append(DEEP)
MESSAGES = [{"role": "user", "content": "Hi"}]
FLAGS = ("stream", "echo", "add_special_tokens", "parallel_tool_calls", "store", "background")
FIELDS = {
    "/v1/chat/completions": (
        {"messages": MESSAGES, "max_tokens": 2},
        "messages model max_tokens max_completion_tokens temperature top_p top_k min_p n seed stop "
        "logit_bias logprobs top_logprobs response_format tools tool_choice parallel_tool_calls "
        "reasoning_effort chat_template_kwargs max_reasoning_tokens stream stream_options priority "
        "presence_penalty frequency_penalty repetition_penalty json_schema regex choices grammar "
        "json_object guided_json guided_choice guided_grammar min_tokens unknown user",
    ),
    "/v1/completions": (
        {"prompt": "Hi", "max_tokens": 2},
        "prompt model max_tokens temperature n stop logit_bias logprobs echo suffix best_of stream "
        "stream_options seed ignore_eos min_tokens add_special_tokens json_schema guided_regex "
        "response_format prompt_logprobs",
    ),
    "/v1/responses": (
        {"input": "Hi", "max_output_tokens": 2},
        "input model max_output_tokens instructions temperature top_p tools tool_choice text "
        "parallel_tool_calls reasoning include store stream metadata truncation top_logprobs "
        "previous_response_id conversation background stream_options chat_template_kwargs",
    ),
    "/v1/messages": (
        {"messages": MESSAGES, "max_tokens": 2},
        "messages model max_tokens system temperature top_p top_k stop_sequences stream tools "
        "tool_choice thinking output_config output_format",
    ),
    "/v1/messages/count_tokens": (
        {"messages": MESSAGES},
        "messages model system tools tool_choice thinking output_config",
    ),
    "/v1/embeddings": ({"input": "Hi"}, "input model encoding_format dimensions pooling"),
    "/v1/score": ({"text_1": "a", "text_2": "b"}, "text_1 text_2 queries documents model"),
    "/v1/rerank": (
        {"query": "a", "documents": ["b"]},
        "query documents top_n max_tokens_per_doc return_documents model",
    ),
    "/tokenize": ({"prompt": "Hi"}, "prompt messages model add_special_tokens"),
    "/detokenize": ({"tokens": [72]}, "tokens model"),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", FIELDS)
async def test_odd_values_of_every_field(path: str) -> None:
    right, names = FIELDS[path]
    async with fake_batcher(chat_template=TEMPLATE) as batcher, served(application(batcher)) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            for name in names.split():
                for value in ODD:
                    body = json.dumps({**right, name: value})
                    found = await http.post(path, content=body)
                    about = (name, str(value)[:60], found.text[:300])
                    assert found.status_code in (200, 400, 404), about
                    if found.status_code != 200:
                        error = found.json()["error"]
                        told = error["message"] if "messages" in path else error["param"]
                        assert told is not None, about
                        assert re.match(rf"{name.replace('_1', '_[12]')}\b", told), about
                    elif name in FLAGS:
                        assert value is None or value is True, about
        assert (await batcher.health()).ok


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"5", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"a": [' + b"[],[]," * 400_000 + b'"prompt"]}', 413),
        (b'{"prompt": "Hi", "max_tokens": 2, "a": "' + b",[" * 400_000 + b'"}', 200),
        (b'{"prompt": "' + b"x" * 70_000 + b'"}', 413),
        (b'{"prompt": "Hi", "max_tokens": 2}', 200),
    ],
)
async def test_bodies_that_are_none(content: bytes, status: int) -> None:
    async with fake_batcher() as batcher:
        app = application(batcher, max_body=65_536 if b"xxx" in content else 2**24)
        async with served(app) as url, httpx.AsyncClient(base_url=url) as http:
            for given in (content, _parts(content)):
                found = await http.post("/v1/completions", content=given)
                assert found.status_code == status


async def _parts(content: bytes) -> Any:
    """Give a body without saying its length."""
    for i in range(0, len(content), 30_000):
        yield content[i : i + 30_000]


async def test_methods_and_paths() -> None:
    async with (
        fake_batcher() as batcher,
        served(application(batcher)) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        assert (await http.head("/")).status_code == 200
        for method, path, allowed in (("GET", "/v1/score", "POST"), ("PUT", "/", "GET, HEAD")):
            refused = await http.request(method, path)
            assert refused.status_code == 405
            assert sorted(refused.headers["allow"].split(", ")) == sorted(allowed.split(", "))
        assert (await http.get("/v2")).status_code == 404
        assert (await http.get("/health")).json()["status"] == "ok"
        named = await http.get("/health", headers={"x-request-id": "mine-1"})
        assert named.headers["x-request-id"] == "mine-1"
        odd = await http.get("/health", headers={"x-request-id": "a b"})
        assert odd.headers["x-request-id"].startswith("req-")


async def test_a_request_has_its_priority_and_the_namespace_of_its_key() -> None:
    events: list[Any] = []
    async with (
        fake_batcher() as batcher,
        served(application(batcher, api_keys=["one", "two"])) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        batcher.attach(events.append)
        for key, priority, status in (("one", "3", 200), ("two", "-1", 200), ("one", "x", 400)):
            headers = {"x-api-key": key, "x-priority": priority}
            body = {"prompt": "Hi", "max_tokens": 1}
            found = await http.post("/v1/completions", json=body, headers=headers)
            assert found.status_code == status, found.text
        assert found.json()["error"]["param"] == "x-priority"
    ends = [event for event in events if isinstance(event, RequestEvent)]
    assert [event.priority for event in ends] == [3, -1]
    assert len({event.namespace for event in ends}) == 2


def test_arguments_that_no_utf_8_can_say_are_escaped() -> None:
    for value, text in (("\ud800", '{"x": "\\ud800"}'), ("ä", '{"x": "ä"}')):
        call = tool_call_body(ToolCall("call_0", "f", {"x": value}, ""))
        assert call["function"]["arguments"] == text


@pytest.mark.slow
async def test_many_prompts_wait_for_each_other_and_not_for_a_retry() -> None:
    """A list longer than the queue is one request, as a list of `generate` is."""
    async with (
        fake_batcher(max_queue_requests=2, n_parallel=2) as batcher,
        served(application(batcher)) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        body = {"prompt": [f"number {i}" for i in range(40)], "max_tokens": 3, "echo": True}
        found = await http.post("/v1/completions", json=body)
        assert found.status_code == 200, found.text
        told = found.json()["choices"]
        assert [one["text"].startswith(f"number {i}") for i, one in enumerate(told)] == [True] * 40
