"""What clients of the Messages API are told when something is wrong."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest
from messages_server import WEATHER, MessagesServer, ask, sdk

from pybatcher import Batcher, EngineFailedError, QueueFullError
from pybatcher.calls.stream import Stream


@pytest.mark.parametrize(
    ("more", "kind", "name"),
    [
        ({"model": "other"}, anthropic.NotFoundError, "not_found_error"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error"),
        ({"temperature": -1}, anthropic.BadRequestError, "invalid_request_error"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
        (
            {"messages": [{"role": "user", "content": "a " * 9000}]},
            anthropic.BadRequestError,
            "invalid_request_error",
        ),
        (
            {"tool_choice": {"type": "tool", "name": "b"}, "tools": [WEATHER]},
            anthropic.BadRequestError,
            "invalid_request_error",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_their_classes(
    client: Any, more: dict[str, Any], kind: type[anthropic.APIStatusError], name: str, stream: bool
) -> None:
    with pytest.raises(kind) as caught:
        await client.messages.create(**sdk(**more), stream=stream)
    error = caught.value
    body: Any = error.body
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == name
    assert error.request_id == body["request_id"]
    assert error.request_id


async def test_a_wrong_key(server: MessagesServer) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=server.url, api_key="wrong", max_retries=0
    ) as client:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await client.messages.create(**sdk())
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
    assert caught.value.request_id == body["request_id"]


async def test_a_full_queue_and_a_broken_engine(
    client: Any, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [QueueFullError("full", retry_after=2.5), EngineFailedError("dead")]

    async def fail(*_: Any, **__: Any) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(batcher, "chat", fail)
    with pytest.raises(anthropic.RateLimitError) as full:
        await client.messages.create(**sdk())
    assert full.value.response.headers["retry-after-ms"] == "2500"
    assert full.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]
    with pytest.raises(anthropic.InternalServerError) as dead:
        await client.messages.create(**sdk())
    assert dead.value.body["error"]["type"] == "api_error"  # type: ignore[index]


async def test_an_error_after_the_first_byte_is_an_event(
    client: Any, plain: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = Stream.__anext__
    n_read = 0

    async def breaking(self: Stream) -> Any:
        nonlocal n_read
        n_read += 1
        if n_read == 3:
            raise EngineFailedError("the engine is gone")
        return await following(self)

    monkeypatch.setattr(Stream, "__anext__", breaking)
    text = (await plain.post("/v1/messages", json=ask(stream=True))).text
    *_, last = text.strip().split("\n\n")
    name, _, data = last.partition("\n")
    assert name == "event: error"
    told = json.loads(data.removeprefix("data: "))
    assert told["type"] == "error"
    assert told["error"] == {"type": "api_error", "message": "the engine is gone"}
    n_read = 0
    with pytest.raises(anthropic.APIStatusError, match="the engine is gone"):
        async with client.messages.stream(**sdk()) as stream:
            await stream.get_final_message()


ODD: list[Any] = [None, True, 0, -1, 1.5, 10**400, float("nan"), "", "x", "\ud800", [], {}, [[]]]
ODD += [{"type": "text"}, [{"type": "text", "text": "\ud800"}], [None], {"a": {}}, "x" * 300]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_odd_values_are_never_errors_of_the_server(
    plain: httpx.AsyncClient, path: str
) -> None:
    fields = ["model", "max_tokens", "messages", "system", "temperature", "top_p", "top_k", "tools"]
    fields += ["stop_sequences", "tool_choice", "thinking", "output_config", "stream", "metadata"]
    fields += ["seed", "min_p", "repetition_penalty", "output_format"]
    bodies = [ask(max_tokens=2) | {field: value} for field in fields for value in ODD]
    bodies += [ask(messages=[{"role": "user", "content": value}]) for value in ODD]
    bodies += [ask(tools=[{**WEATHER, key: value}]) for key in WEATHER for value in ODD]
    for data in map(json.dumps, bodies):
        answer = await plain.post(path, content=data)
        assert answer.status_code in (200, 400, 404), (data[:500], answer.text)
        if answer.status_code != 200:
            told = answer.json()
            assert told["type"] == "error", data
            assert told["error"]["message"], data


@pytest.mark.parametrize("pad", ["", " " * 70_000], ids=["small", "large"])
async def test_bodies_that_are_no_requests(plain: httpx.AsyncClient, pad: str) -> None:
    bodies = [b"", b"[", b"[]", b"null", b"\xff\xfe", b'{"a": 1', b'{"a": ' + b"1" * 5000 + b"}"]
    for n in (400, 900, 950, 970, 980, 985, 990, 995, 2000, 20_000):
        deep = b"[" * n + b"]" * n
        bodies += [b'{"max_tokens": 2, "messages": ' + deep + b"}"]
        bodies += [json.dumps(ask(system="?")).encode().replace(b'"?"', deep)]
        bodies += [
            json.dumps(ask(tools=[{**WEATHER, "input_schema": "?"}]))
            .encode()
            .replace(b'"?"', b'{"a": ' + deep + b"}")
        ]
    for data in bodies:
        answer = await plain.post("/v1/messages", content=pad.encode() + data)
        assert answer.status_code == 400, (data[:200], len(data), answer.text)
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_path_and_a_method_that_are_not_there(plain: httpx.AsyncClient) -> None:
    answer = await plain.get("/v1/messages")
    assert (answer.status_code, answer.json()["error"]["type"]) == (405, "invalid_request_error")
    assert "type" not in (await plain.get("/v1/nothing")).json()


async def test_the_error_of_a_schema_names_the_tool_of_the_request(client: Any) -> None:
    """Tools of Anthropic's servers are skipped, and counted."""
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    odd = {"name": "odd", "input_schema": schema, "strict": True}
    tools = [{"type": "web_search_20250305", "name": "web_search"}, WEATHER, odd]
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.messages.create(**sdk(tools=tools))
    body: Any = caught.value.body
    where = "tools[2].input_schema.properties.a has uniqueItems"
    assert body["error"]["message"].startswith(where)
    odd["strict"] = False
    await client.messages.create(**sdk(tools=tools, tool_choice={"type": "any"}))


@pytest.mark.parametrize(
    ("schema", "place"),
    [({"type": "array"}, ".type"), ({"properties": []}, ".properties"), ({"a": 1e999}, "")],
)
async def test_errors_of_a_schema_have_the_name_of_its_field(
    plain: httpx.AsyncClient, schema: dict[str, Any], place: str
) -> None:
    """Whole, streamed and counted."""
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {**WEATHER}]
    tools[1]["input_schema"] = schema
    for path, body in (
        ("/v1/messages", ask(tools=tools)),
        ("/v1/messages", ask(tools=tools, stream=True)),
        ("/v1/messages/count_tokens", ask(tools=tools)),
    ):
        answer = await plain.post(path, content=json.dumps(body))
        message = answer.json()["error"]["message"]
        assert answer.status_code == 400
        assert message.startswith(f"tools[1].input_schema{place} "), message
