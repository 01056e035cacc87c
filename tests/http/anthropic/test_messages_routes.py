"""The Messages API as Anthropic's own SDK uses it, and as other clients may misuse it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from batcher_helpers import until
from chat_model import chat_model
from http_served import served
from messages_server import HI, WEATHER, ask, sdk
from small_sidecar import sidecar

from pybatcher import Batcher, Client, InvalidRequestError
from pybatcher.calls.telemetry import RequestEvent
from pybatcher.http import application
from pybatcher.models import tiny_path

LONG = "You are an agent. " * 20
THINK = {"type": "enabled", "budget_tokens": 9}
CALLED = {"tools": [WEATHER], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
ASKED: dict[str, dict[str, Any]] = {
    "text": {},
    "hot": {"temperature": 1.2, "top_k": 50, "seed": 5},
    "thinking": {"thinking": THINK},
    "tools": CALLED,
    "thinking and tools": {"thinking": THINK, **CALLED},
    "eager tools": {**CALLED, "tools": [{**WEATHER, "eager_input_streaming": True}]},
    "a format": {
        "output_config": {
            "format": {"type": "json_schema", "schema": WEATHER["input_schema"]},
            "effort": "low",
        }
    },
}


def told(message: Any) -> dict[str, Any]:
    """Return what two answers to the same question have in common."""
    kept = message.to_dict()
    del kept["id"], kept["usage"]
    for block in kept["content"]:
        block.pop("parsed_output", None)
    kept.pop("parsed_output", None)
    return {key: value for key, value in kept.items() if value is not None}


def sum_of(usage: Any) -> int:
    return usage.input_tokens + usage.cache_read_input_tokens  # type: ignore[no-any-return]


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
async def test_a_stream_comes_to_what_the_whole_answer_is(
    client: Any, asked: dict[str, Any]
) -> None:
    asked = {"seed": 1, "system": LONG, **asked}  # ids of calls are made of the seed
    whole = await client.messages.create(**sdk(**asked))
    async with client.messages.stream(**sdk(**asked)) as stream:
        kinds = [one.type async for one in stream]
        final = await stream.get_final_message()
    assert told(final) == told(whole)
    assert whole.id.startswith("msg_")
    assert whole.id != final.id
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    for usage in (whole.usage, final.usage):
        assert usage.output_tokens == final.usage.output_tokens > 0
        assert sum_of(usage) == sum_of(whole.usage) > 0
    assert final.usage.cache_read_input_tokens > 0  # of the whole answer's prompt


async def test_text_is_what_the_batcher_writes(client: Any, batcher: Batcher) -> None:
    (block,) = (await client.messages.create(**sdk())).content
    answer = await batcher.chat(HI, max_tokens=60)
    assert (block.type, block.text) == ("text", answer.text)


async def test_thinking_and_tools_there_and_back(client: Any, batcher: Batcher) -> None:
    asked = sdk(**ASKED["thinking and tools"])
    answer = await client.messages.create(**asked)
    thought, used = answer.content
    assert (thought.type, used.type, answer.stop_reason) == ("thinking", "tool_use", "tool_use")
    assert thought.thinking
    assert thought.signature
    assert used.name == "weather"
    assert used.input["city"] in ("Rome", "Oslo")
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "Sun."}
    history = [
        *HI,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]},
    ]
    own = [
        *HI,
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": thought.thinking,
            "tool_calls": [
                {"id": used.id, "function": {"name": "weather", "arguments": used.input}}
            ],
        },
        {"role": "tool", "tool_call_id": used.id, "content": "Sun."},
        {"role": "user", "content": "Well?"},
    ]
    tool = {**WEATHER, "parameters": WEATHER["input_schema"]}
    del tool["input_schema"]
    last = await client.messages.create(
        **{**asked, "messages": history, "tool_choice": {"type": "none"}}
    )
    wanted = await batcher.chat(
        own,
        tools=[tool],
        tool_choice="none",
        enable_thinking=True,
        max_reasoning_tokens=9,
        max_tokens=60,
    )
    assert sum_of(last.usage) == wanted.usage.prompt_tokens
    assert "".join(one.text for one in last.content if one.type == "text") == wanted.text


async def test_a_budget_where_thinking_cannot_be_limited_is_left_out(tmp_path: Path) -> None:
    model = chat_model(tmp_path)
    shutil.copy(tiny_path() / "tokenizer.json", model)  # the markers are no tokens now
    thinking = {"enable_thinking": True, "max_reasoning_tokens": 9}
    async with Batcher(model, n_threads=1) as batcher:
        with pytest.raises(InvalidRequestError, match="max_reasoning_tokens"):
            await batcher.chat(HI, **thinking)
        async with (
            served(application({"m": batcher})) as url,
            anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client,
        ):
            whole = await client.messages.create(**sdk(thinking=THINK))
            async with client.messages.stream(**sdk(thinking=THINK)) as stream:
                final = await stream.get_final_message()
            with pytest.raises(anthropic.BadRequestError, match="top_p"):
                await client.messages.create(**sdk(thinking=THINK, top_p=5))
    assert whole.content[0].type == "thinking"
    assert told(final) == told(whole)


async def test_counted_tokens_are_those_of_the_prompt(client: Any) -> None:
    body = {"system": "Be brief.", "tools": [WEATHER], "thinking": {"type": "adaptive"}}
    count = await client.messages.count_tokens(model="m", messages=HI, **body)
    made = await client.messages.create(**sdk(**body))
    assert count.input_tokens == sum_of(made.usage)
    fewer = await client.messages.count_tokens(model="m", messages=HI)
    assert fewer.input_tokens < count.input_tokens


async def test_the_header_of_the_bill_leaves_the_cache_alone(client: Any) -> None:
    def system(bill: str) -> list[dict[str, Any]]:
        texts = (f"x-anthropic-billing-header: cch={bill};", LONG)
        return [{"type": "text", "text": text} for text in texts]

    first = await client.messages.create(**sdk(system=system("1a")))
    again = await client.messages.create(**sdk(system=system("2b")))
    assert again.usage.cache_read_input_tokens > 20
    assert told(first) == told(again)


@pytest.mark.parametrize("streams", [False, True])
async def test_the_stop_text_that_ended_an_answer_is_told(client: Any, streams: bool) -> None:
    text = (await client.messages.create(**sdk())).content[0].text
    stop = text[10:14]
    assert stop
    asked = sdk(stop_sequences=["\u2603", stop])
    if streams:
        async with client.messages.stream(**asked) as stream:
            made = await stream.get_final_message()
    else:
        made = await client.messages.create(**asked)
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", stop)
    assert made.content[0].text == text[: text.index(stop)]
    short = await client.messages.create(**sdk(stop_sequences=["\u2603"], max_tokens=3))
    assert (short.stop_reason, short.stop_sequence) == ("max_tokens", None)


async def test_all_that_an_agent_sends(plain: httpx.AsyncClient) -> None:
    tools = [{**WEATHER, "name": f"mcp__tool_{i}", "description": "x" * 900} for i in range(24)]
    body = ask(
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {}}]},
            {"role": "system", "content": "Be quick."},
        ],
        system=[{"type": "text", "text": "You are an agent."}],
        tools=[*tools, {"type": "web_search_20250305", "name": "web_search"}],
        thinking={"type": "adaptive"},
        max_tokens=5,
        stream=True,
        context_management={"edits": []},
        metadata={"user_id": "u"},
    )
    assert (await plain.head("/")).status_code == 200
    answer = await plain.post("/v1/messages?beta=true", json=body)
    # The shipped model has no room for so much.
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].count("positions")
    body["tools"] = body["tools"][-3:]
    for tool in body["tools"][:-1]:
        tool["description"] = "Tell the weather."
    answer = await plain.post("/v1/messages?beta=true", json=body)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert "event: message_stop\n" in answer.text


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_goes_away_frees_its_request(
    plain: httpx.AsyncClient, batcher: Batcher, streams: bool
) -> None:
    ends: list[str] = []
    batcher.attach(lambda one: isinstance(one, RequestEvent) and ends.append(one.finish_reason))
    long = {"type": "array", "items": {"enum": [1]}, "minItems": 1500}
    form = {"type": "json_schema", "schema": long}
    body = ask(max_tokens=4000, stream=streams, output_format=form)
    if streams:
        async with plain.stream("POST", "/v1/messages", json=body) as answer:
            await anext(answer.aiter_bytes())
    else:
        asking = asyncio.ensure_future(plain.post("/v1/messages", json=body))
        await until(lambda: batcher.statistics().running > 0)
        asking.cancel()
    await until(lambda: bool(ends))
    assert ends == ["cancelled"]
    assert batcher.statistics().running == 0


async def test_answers_through_a_sidecar_are_the_same(
    client: Any, batcher: Batcher, tmp_path: Path
) -> None:
    asked = sdk(**ASKED["thinking and tools"], seed=1)
    here = await client.messages.create(**asked)
    path = tmp_path / "batcher.sock"
    async with (
        sidecar(path, batcher),
        Client(path) as remote,
        served(application({"m": remote})) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key="any") as other,
    ):
        assert told(await other.messages.create(**asked)) == told(here)
        async with other.messages.stream(**asked) as stream:
            assert told(await stream.get_final_message()) == told(here)


@pytest.mark.slow
@pytest.mark.parametrize("eager", [True, False])
async def test_a_call_that_is_cut_is_the_same_whole_and_in_pieces(client: Any, eager: bool) -> None:
    tool = {**WEATHER, "eager_input_streaming": eager}
    asked = sdk(**CALLED, seed=1, thinking={"type": "disabled"}) | {"tools": [tool]}
    full = await client.messages.create(**asked)
    inputs = []
    for most in range(1, full.usage.output_tokens, 3):
        whole = await client.messages.create(**asked | {"max_tokens": most})
        assert whole.stop_reason == "max_tokens"
        assert {block.type for block in whole.content} <= {"thinking", "tool_use"}
        async with client.messages.stream(**asked | {"max_tokens": most}) as stream:
            streamed = await stream.get_final_message()
        assert streamed.stop_reason == "max_tokens"
        assert [one.type for one in streamed.content] == [one.type for one in whole.content]
        if not eager:  # otherwise the package reads no text that is not complete
            assert told(streamed) == told(whole)
        inputs += [block.input for block in whole.content if block.type == "tool_use"]
    assert {} in inputs
    assert all(set(one) <= set(full.content[-1].input) for one in inputs)


async def test_no_tools_are_in_the_prompt_where_none_may_be_called(client: Any) -> None:
    with_none = {"tools": [WEATHER], "tool_choice": {"type": "none"}}
    bare = await client.messages.count_tokens(model="m", messages=HI)
    counted = await client.messages.count_tokens(model="m", messages=HI, **with_none)
    assert counted == bare
    whole = await client.messages.create(**sdk(**with_none, max_tokens=9))
    assert sum_of(whole.usage) == bare.input_tokens
    async with client.messages.stream(**sdk(**with_none, max_tokens=9)) as stream:
        assert told(await stream.get_final_message()) == told(whole)
