"""POST /v1/responses, as openai's package and plain HTTP clients use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from batcher_helpers import until
from chat_model import chat_model
from faulty_engine import FaultyEngine
from http_served import served
from pydantic import BaseModel
from response_events import check_events, events_of, without_ids

from pybatcher import AnyBatcher, Batcher
from pybatcher.http import application
from pybatcher.testing import fake_batcher

QUESTION = "What is 2 plus 3?"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [3, 5]}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
ADD = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}
ODD = {**ADD, "name": "odd", "parameters": {"properties": {"a": {"not": {"type": "null"}}}}}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


class Sum(BaseModel):
    """What is asked for as a type."""

    kind: Literal["sum", "product"]
    is_right: bool


class add(BaseModel):  # noqa: N801 - the tool's name
    """Arguments of a tool."""

    a: Literal[3, 5]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def serving(model: Path) -> AsyncIterator[tuple[Batcher, openai.AsyncOpenAI]]:
    async with (
        Batcher(model, n_threads=1) as batcher,
        served(application(batcher)) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        yield batcher, client


@asynccontextmanager
async def plain(batcher: AnyBatcher) -> AsyncIterator[httpx.AsyncClient]:
    """A client in this process, which sees bytes as they are."""
    transport = httpx.ASGITransport(app=application(batcher), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        yield client


async def ask(client: httpx.AsyncClient, **body: Any) -> Any:
    answer = await client.post("/v1/responses", json={"input": QUESTION, "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        assert answer.headers["content-type"] == "application/json"
        return answer.json()
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events_of(answer.text)


async def test_an_answer_is_that_of_the_chat(model: Path) -> None:
    async with serving(model) as (batcher, client):
        made = await client.responses.create(
            model="chat-model", input=QUESTION, temperature=0, metadata={"a": "b"}, store=False
        )
        chat = await batcher.chat([{"role": "user", "content": QUESTION}])
        assert made.output_text == chat.text == "2 plus 3 is 5."
        assert (made.status, made.object, made.model) == ("completed", "response", "chat-model")
        assert made.metadata == {"a": "b"}
        assert made.id.startswith("resp_")
        assert made.usage is not None
        assert made.usage.input_tokens == chat.usage.prompt_tokens
        assert made.usage.output_tokens == chat.usage.completion_tokens
        again = await client.responses.create(model="", input=QUESTION, temperature=0)
        assert again.id != made.id
        assert again.usage is not None
        assert again.usage.total_tokens == made.usage.total_tokens


async def test_instructions_and_items(model: Path) -> None:
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {"role": "assistant", "content": "Hi."},
        {"type": "message", "role": "user", "content": QUESTION},
    ]
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "Hello"}]
    messages += [
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": QUESTION},
    ]
    async with serving(model) as (batcher, client):
        made = await client.responses.create(input=items, instructions="Add.", temperature=0)
        chat = await batcher.chat(messages)
        assert made.output_text == chat.text
        assert made.usage is not None
        assert made.usage.input_tokens == chat.usage.prompt_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_output_tokens": 3},
        {"top_logprobs": 2},
        {"temperature": 1.5, "seed": 7, "include": ["message.output_text.logprobs"]},
        {"enable_thinking": True, "chat_template_kwargs": {}, "max_reasoning_tokens": 5},
        {"enable_thinking": True, "max_output_tokens": 3},
        {"tools": [ADD], "tool_choice": "required"},
        {"tools": [ADD], "tool_choice": "required", "max_output_tokens": 20},  # half a call
        {"tools": [ADD], "tool_choice": "required", "seed": 1, "temperature": 1.0},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        {"regex": "é{5}"},
    ],
    ids=json.dumps,
)
async def test_a_stream_has_the_whole_answer(model: Path, fields: dict[str, Any]) -> None:
    async with Batcher(model, n_threads=1) as batcher, plain(batcher) as client:
        whole = await ask(client, **fields)
        stream = check_events(await ask(client, **fields, stream=True))
        calls = [[item.get("call_id") for item in one["output"]] for one in (whole, stream)]
        assert without_ids(stream) == without_ids(whole)
        if "seed" in fields:  # the ids of calls are made of it
            assert calls[0] == calls[1]
        if "max_output_tokens" in fields:
            assert whole["status"] == "incomplete"
            assert whole["usage"]["output_tokens"] == fields["max_output_tokens"]


@pytest.mark.slow
async def test_half_a_call_is_an_incomplete_item(model: Path) -> None:
    asked: dict[str, Any] = {"tools": [ADD], "tool_choice": "required", "stream": True}
    asked |= {"parallel_tool_calls": False}
    async with Batcher(model, n_threads=1) as batcher, plain(batcher) as client:
        whole = await ask(client, **asked)
        n = whole[-1]["response"]["usage"]["output_tokens"]
        text = whole[-1]["response"]["output"][0]["arguments"]
        seen = set()
        for most in range(1, n):
            events = await ask(client, **asked, max_output_tokens=most)
            response = check_events(events)
            (item,) = response["output"]
            if item["type"] == "function_call":
                assert text.startswith(item["arguments"])
                assert item["status"] in ("incomplete", "completed")
            else:  # before the name
                assert item["content"][0]["text"] == ""
            assert without_ids(response) == without_ids(
                await ask(client, **asked | {"stream": False}, max_output_tokens=most)
            )
            seen |= {
                (event["item"]["type"], event["item"]["status"])
                for event in events
                if event["type"] == "response.output_item.done"
            }
        assert ("function_call", "incomplete") in seen
        assert ("message", "incomplete") in seen


async def test_the_stream_of_the_package(model: Path) -> None:
    async with serving(model) as (_, client):
        async with client.responses.stream(
            model="chat-model", input=QUESTION, temperature=0
        ) as stream:
            text, kinds = "", set()
            async for event in stream:
                kinds.add(event.type)
                if event.type == "response.output_text.delta":
                    text += event.delta
                    assert event.snapshot == text
            final = await stream.get_final_response()
        assert final.output_text == text == "2 plus 3 is 5."
        assert "response.completed" in kinds


async def test_a_type_of_pydantic(model: Path) -> None:
    async with serving(model) as (_, client):
        made = await client.responses.parse(
            model="chat-model", input=QUESTION, text_format=Sum, temperature=0
        )
        assert isinstance(made.output_parsed, Sum)
        async with client.responses.stream(
            model="chat-model", input=QUESTION, text_format=Sum, temperature=0
        ) as stream:
            final = await stream.get_final_response()
        assert final.output_parsed == made.output_parsed


async def test_a_tool_is_called_and_its_result_is_read(model: Path) -> None:
    tool = openai.pydantic_function_tool(add)
    flat: Any = {"type": "function", **tool["function"]}
    others: list[Any] = [{"type": "web_search"}, {"type": "namespace", "name": "x", "tools": []}]
    async with serving(model) as (batcher, client):
        async with client.responses.stream(
            model="chat-model",
            input=QUESTION,
            tools=[others[0], flat, others[1]],
            tool_choice={"type": "function", "name": "add"},
            parallel_tool_calls=False,
            temperature=0,
        ) as stream:
            made = await stream.get_final_response()
        (call,) = made.output
        assert call.type == "function_call"
        arguments = add.model_validate_json(call.arguments)
        items: list[Any] = [{"role": "user", "content": QUESTION}, call.to_dict()]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "7"})
        answer = await client.responses.create(
            model="chat-model", input=items, tools=[flat], temperature=0
        )
        function = {"name": "add", "arguments": arguments.model_dump()}
        chat = await batcher.chat(
            [
                {"role": "user", "content": QUESTION},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": call.call_id, "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": call.call_id, "content": "7"},
            ],
            tools=[tool],
        )
        assert answer.output_text == chat.text
        assert answer.usage is not None
        assert answer.usage.input_tokens == chat.usage.prompt_tokens


async def test_the_first_request_of_codex(model: Path) -> None:
    """Its shape as codex 0.169 sends it: developers' messages, odd tools, keys of its own."""
    body = {
        "model": "chat-model",
        "stream": True,
        "input": [
            {
                "type": "message",
                "id": f"msg_{index}",
                "role": role,
                "content": [{"type": "input_text", "text": text}],
            }
            for index, (role, text) in enumerate(
                [("developer", "Be brief."), ("developer", "Use tools."), ("user", "I am here.")]
            )
        ]
        + [{"type": "message", "role": "user", "content": QUESTION}],
        "tools": [
            {**ADD, "strict": False},
            {"type": "namespace", "name": "agents", "tools": [ADD]},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a20495",
        "client_metadata": {"session_id": "01a20495"},
        "max_output_tokens": 30,
    }
    messages = [
        {"role": "system", "content": "Be brief.\n\nUse tools."},
        {"role": "user", "content": "I am here."},
        {"role": "user", "content": QUESTION},
    ]
    async with Batcher(model, n_threads=1) as batcher, plain(batcher) as client:
        response = check_events(await ask(client, **body))
        chat = await batcher.chat(messages, tools=[{**ADD, "strict": False}], max_tokens=30)
        assert response["output"][0]["content"][0]["text"] == chat.text
        assert response["usage"]["input_tokens"] == chat.usage.prompt_tokens


async def test_reasoning_is_an_item_and_can_be_sent_back(model: Path) -> None:
    async with serving(model) as (batcher, client):
        made = await client.responses.create(
            input=QUESTION,
            temperature=0,
            reasoning={"effort": "low", "summary": "auto"},
            extra_body={"enable_thinking": True, "max_reasoning_tokens": 5},
        )
        reasoning, message = made.output
        assert reasoning.type == "reasoning"
        assert message.type == "message"
        assert reasoning.content
        assert made.usage is not None
        assert 5 <= made.usage.output_tokens_details.reasoning_tokens < made.usage.output_tokens
        assert made.reasoning is not None
        assert made.reasoning.effort == "low"
        chat = await batcher.chat(
            [{"role": "user", "content": QUESTION}], enable_thinking=True, max_reasoning_tokens=5
        )
        assert (reasoning.content[0].text, made.output_text) == (chat.reasoning, chat.text)
        items: list[Any] = [{"role": "user", "content": QUESTION}]
        items += [item.to_dict() for item in made.output]
        items.append({"role": "user", "content": "Sure?"})
        assert (await client.responses.create(input=items)).status in ("completed", "incomplete")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"previous_response_id": "resp_1"}, 400, "previous_response_id"),
        ({"background": True}, 400, "background"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "input[0].type"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 1.5}, 400, "top_p"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"reasoning": {"effort": "x" * 65}}, 400, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": 5}}}}, 400, "text.format"),
        ({"extra_body": {"guided_regex": "("}}, 400, "guided_regex"),
        ({"tools": [{**ADD, "name": "a b"}]}, 400, "tools[0].name"),
        ({"tools": [{"type": "web_search"}, {**ADD, "name": "a b"}]}, 400, "tools[1].name"),
        ({"tools": [{"type": "web_search"}, ADD, ODD]}, 400, "tools[2]"),
        ({"tools": [{**ADD, "parameters": {"type": "array"}}]}, 400, "tools[0].parameters.type"),
        ({"input": "word " * 20_000}, 400, "input"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_statuses_before_the_first_byte(
    model: Path, fields: dict[str, Any], status: int, param: str | None, stream: bool
) -> None:
    async with serving(model) as (_, client):
        with pytest.raises(openai.APIStatusError) as raised:
            await client.responses.create(**{"input": QUESTION, **fields, "stream": stream})
        assert raised.value.status_code == status
        assert raised.value.param == param


async def test_odd_values_for_any_field_never_fail_the_server(model: Path) -> None:
    odd = (5, -1, 1e999, float("nan"), True, "x", "\ud800", [], {}, [5], {"x": [{}]}, [[[]]])
    deep = json.loads("[" * 200 + "]" * 200)
    fields = "input instructions max_output_tokens metadata model reasoning stop stream text tools"
    fields += " temperature tool_choice top_logprobs top_p truncation include seed top_k regex"
    fields += " chat_template_kwargs enable_thinking max_reasoning_tokens priority json_schema"
    forms = [{"format": {"type": "json_schema", "schema": {"x": one}}} for one in (*odd, deep)]
    tools = [[{**ADD, "parameters": {"x": one}, "strict": False}] for one in (*odd, deep)]
    bodies = [{name: value} for name in fields.split() for value in (*odd, deep)]
    bodies += [{"text": form} for form in forms] + [{"tools": tool} for tool in tools]
    bodies += [{"reasoning": {"effort": one}} for one in odd]
    async with Batcher(model, n_threads=1) as batcher, plain(batcher) as client:
        for body in bodies:
            data = json.dumps({"input": QUESTION, "max_output_tokens": 2, **body})
            answer = await client.post("/v1/responses", content=data.encode())
            assert answer.status_code in (200, 400, 404), (body, answer.text)
            if answer.status_code == 200 and body != {"stream": True}:
                json.loads(answer.text, parse_constant=pytest.fail)


async def test_a_failure_after_the_first_byte_is_an_event() -> None:
    def broken() -> None:
        raise RuntimeError("it does not come back")

    steps = 0

    def fails(_: Any) -> BaseException | None:
        nonlocal steps
        steps += 1
        return OSError("broken") if steps > 5 else None

    engine = FaultyEngine(fails, broken)
    async with fake_batcher(engine, chat_template=TEMPLATE) as batcher, plain(batcher) as client:
        events = await ask(client, stream=True, max_output_tokens=100, ignore_eos=True)
        response = check_events(events)
        assert response["status"] == "failed"
        assert response["error"]["code"] == "server_error"
        assert response["output"][0]["status"] == "incomplete"
        answer = await client.post("/v1/responses", json={"input": QUESTION})
        assert answer.status_code in (500, 503)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_frees_its_request(model: Path, stream: bool) -> None:
    async with Batcher(model, n_threads=1) as batcher, served(application(batcher)) as url:
        body = {"input": QUESTION, "ignore_eos": True, "stream": stream}
        async with httpx.AsyncClient(base_url=url) as client:
            sending = asyncio.ensure_future(_begin(client, body))
            await until(lambda: batcher.statistics().running > 0)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        await until(lambda: batcher.statistics().running == 0)
        assert batcher.statistics().cancelled == 1


async def _begin(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    async with client.stream("POST", "/v1/responses", json=body) as answer:
        async for _ in answer.aiter_bytes():
            pass


async def test_the_tokens_of_an_input_are_counted(model: Path) -> None:
    """They are those of the response's usage, and can be more than the context has."""
    async with serving(model) as (_, client):
        asked: Any = {"model": "chat-model", "input": QUESTION, "instructions": "Be short."}
        for more in ({}, {"tools": [ADD]}, {"input": [{"role": "user", "content": "Hi"}]}):
            counted = await client.responses.input_tokens.count(**(asked | more))
            made = await client.responses.create(**(asked | more), max_output_tokens=1)
            assert counted.object == "response.input_tokens"
            assert made.usage is not None
            assert counted.input_tokens == made.usage.input_tokens
        long = await client.responses.input_tokens.count(input="word " * 50_000)
        assert long.input_tokens > 50_000
        with pytest.raises(openai.BadRequestError, match=r"input\[0\].type is 'odd'"):
            await client.responses.input_tokens.count(input=[{"type": "odd"}])  # type: ignore[list-item]
