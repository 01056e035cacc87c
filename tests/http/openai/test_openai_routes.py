"""OpenAI's own client against the application: chats, completions, tools, forms, embeddings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from http_served import served
from pydantic import BaseModel

from pybatcher import Batcher, SamplingParams
from pybatcher.http import application

ASK: Any = [{"role": "user", "content": "What is 2 plus 3?"}]
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}, "b": {"enum": [3, 4]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
MODEL = "chat-model"


class Answer(BaseModel, extra="forbid"):
    """A value to be parsed."""

    sum: Literal[3, 4, 5]
    sure: bool


@pytest.fixture
async def batcher(model: Path) -> AsyncIterator[Batcher]:
    async with Batcher(model, n_threads=1) as one:
        yield one


@pytest.fixture
async def client(batcher: Batcher) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        served(application(batcher)) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as one,
    ):
        yield one


@pytest.fixture
async def http(client: openai.AsyncOpenAI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the same server without OpenAI's package."""
    url = str(client.base_url).removesuffix("/v1/")
    async with httpx.AsyncClient(base_url=url, timeout=60) as one:
        yield one


async def test_chats_whole_and_in_pieces(client: openai.AsyncOpenAI, batcher: Batcher) -> None:
    params = SamplingParams.for_chat(max_tokens=60, logprobs=2, seed=5, n=2)
    expected = await batcher.chat(ASK, params)
    asked: Any = {"model": MODEL, "messages": ASK, "max_completion_tokens": 60, "seed": 5, "n": 2}
    asked |= {"logprobs": True, "top_logprobs": 2}
    made = await client.chat.completions.create(**asked)
    assert [choice.message.content for choice in made.choices] == [
        choice.text for choice in expected.choices
    ]
    assert made.object == "chat.completion"
    assert made.usage is not None
    assert made.usage.completion_tokens == expected.usage.completion_tokens
    for choice, own in zip(made.choices, expected.choices, strict=True):
        assert choice.finish_reason == own.finish_reason
        assert choice.logprobs is not None
        told = choice.logprobs.content or []
        drawn = [one.logprob for one in own.logprobs or () if not one.is_end]
        assert [one.logprob for one in told] == drawn
        assert all(len(one.top_logprobs) == 2 for one in told)
        assert "".join(one.token for one in told).startswith(own.text)
    stream = await client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    *pieces, last = chunks
    assert last.choices == []
    assert last.usage == made.usage
    for index, own in enumerate(expected.choices):
        mine = [chunk.choices[0] for chunk in pieces if chunk.choices[0].index == index]
        assert "".join(one.delta.content or "" for one in mine) == own.text
        assert [one.delta.role for one in mine if one.delta.role] == ["assistant"]
        assert mine[0].delta.role == "assistant"
        assert mine[0].delta.content, "a chunk with a role only falsifies times to first tokens"
        reasons = [one.finish_reason for one in mine if one.finish_reason]
        assert reasons == [own.finish_reason]
        assert mine[-1].finish_reason


async def test_tools_there_and_back(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": ASK, "tools": [ADD], "temperature": 0, "seed": 1}
    asked["parallel_tool_calls"] = False
    made = await client.chat.completions.create(**asked, tool_choice="required", max_tokens=99)
    (choice,) = made.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    calls: Any = choice.message.tool_calls or []
    arguments = json.loads(calls[0].function.arguments)
    assert arguments["a"] in (1, 2)
    assert arguments["b"] in (3, 4)
    stream = await client.chat.completions.create(
        **asked, tool_choice="required", max_tokens=99, stream=True
    )
    names, texts = {}, {}
    async for chunk in stream:
        for delta in chunk.choices[0].delta.tool_calls or []:
            assert delta.function is not None
            if delta.id:
                names[delta.index] = (delta.id, delta.function.name)
            texts[delta.index] = texts.get(delta.index, "") + (delta.function.arguments or "")
    assert [names[i] for i in sorted(names)] == [(one.id, one.function.name) for one in calls]
    assert [json.loads(texts[i]) for i in sorted(texts)] == [
        json.loads(one.function.arguments) for one in calls
    ]
    more = [*ASK, choice.message.to_dict()]
    more += [{"role": "tool", "tool_call_id": call.id, "content": "5"} for call in calls]
    after = await client.chat.completions.create(
        model=MODEL, messages=more, tools=[ADD], tool_choice="none", max_tokens=20
    )
    assert after.choices[0].message.tool_calls is None


async def test_a_call_that_is_cut_is_the_same_whole_and_in_pieces(
    client: openai.AsyncOpenAI, batcher: Batcher
) -> None:
    """Its arguments grow with the limit, and neither has markup."""
    asked: Any = {"model": MODEL, "messages": ASK, "tools": [ADD], "temperature": 0, "seed": 1}
    asked |= {"tool_choice": "required", "parallel_tool_calls": False}
    full = await client.chat.completions.create(**asked, max_tokens=99)
    text = full.choices[0].message.tool_calls[0].function.arguments  # type: ignore
    assert full.usage is not None
    grown = []
    for most in range(1, full.usage.completion_tokens, 3):
        made = await client.chat.completions.create(**asked, max_tokens=most)
        (choice,) = made.choices
        calls: Any = choice.message.tool_calls or []
        assert choice.finish_reason == "length"
        assert not choice.message.content
        told = [(call.id, call.function.name, call.function.arguments) for call in calls]
        grown.append("".join(arguments for _, _, arguments in told))
        assert text.startswith(grown[-1])
        pieces: dict[int, list[str]] = {}
        stream = await client.chat.completions.create(**asked, max_tokens=most, stream=True)
        async for chunk in stream:
            assert not chunk.choices[0].delta.content
            for delta in chunk.choices[0].delta.tool_calls or []:
                assert delta.function is not None
                if delta.id:
                    pieces[delta.index] = [delta.id, delta.function.name or "", ""]
                pieces[delta.index][2] += delta.function.arguments or ""
        assert chunk.choices[0].finish_reason == "length"
        assert [tuple(one) for one in pieces.values()] == told
        back = [*ASK, choice.message.to_dict(), *ASK]
        again = await client.chat.completions.create(model=MODEL, messages=back, max_tokens=1)
        assert again.usage is not None
    assert grown[0] == ""
    assert len(set(grown)) > 3
    cut = await batcher.chat(ASK, tools=[ADD], tool_choice="required", max_tokens=most, seed=1)
    (call,) = cut.tool_calls
    assert (call.is_cut, cut.text, cut.finish_reason) == (True, "", "length")


async def test_a_stop_text_inside_a_call_cuts_it(batcher: Batcher) -> None:
    made = await batcher.chat(
        ASK, tools=[ADD], tool_choice="required", max_tokens=99, stop=', "b"', temperature=0
    )
    (call,) = made.tool_calls
    assert (call.is_cut, made.text, made.finish_reason) == (True, "", "stop")
    assert call.arguments_text.startswith('{"a": ')
    assert '"b"' not in call.arguments_text


async def test_values_are_parsed(client: openai.AsyncOpenAI) -> None:
    made = await client.chat.completions.parse(
        model=MODEL,
        messages=ASK,
        response_format=Answer,
        max_tokens=99,
        extra_body={"enable_thinking": False},
    )
    assert isinstance(made.choices[0].message.parsed, Answer)
    thought = await client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=60,
        extra_body={"chat_template_kwargs": {"enable_thinking": True}, "max_reasoning_tokens": 8},
    )
    message: Any = thought.choices[0].message
    assert message.reasoning_content
    assert message.content is not None


async def test_an_end_token_has_no_log_probability(
    http: httpx.AsyncClient, batcher: Batcher
) -> None:
    """It is no part of the text, in contrast to the last token of a stop text."""
    body: dict[str, Any] = {"max_tokens": 9, "temperature": 0}
    chat, whole = await batcher.chat(ASK, **body), await batcher.generate("A fox", **body)
    for path, asked, own in (
        ("/v1/chat/completions", {"messages": ASK, "logprobs": True}, chat),
        ("/v1/completions", {"prompt": "A fox", "logprobs": 0}, whole),
        ("/v1/completions", {"prompt": "A fox", "logprobs": 0, "echo": True}, whole),
        ("/v1/responses", {"input": ASK, "include": ["message.output_text.logprobs"]}, chat),
    ):
        end = next(i for i in range(3, 9) if own.token_ids[i] not in own.token_ids[:i])
        asked = {**body, **asked, "stop_token_ids": [own.token_ids[end]]}
        found = (await http.post(path, json=asked)).json()
        streamed = (await http.post(path, json={**asked, "stream": True})).text
        read = [
            json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")
        ]
        if "responses" in path:
            (item,) = found["output"]
            (part,) = item["content"]
            deltas = [one for one in read if one["type"] == "response.output_text.delta"]
            told = part["logprobs"]
            assert [entry for one in deltas for entry in one["logprobs"]] == told
            assert "".join(entry["token"] for entry in told) == part["text"]
        elif "chat" in path:
            (choice,) = found["choices"]
            told = choice["logprobs"]["content"]
            parts = [one["choices"][0]["logprobs"] for one in read]
            assert [entry for part in parts if part for entry in part["content"]] == told
            assert "".join(entry["token"] for entry in told) == choice["message"]["content"]
        else:
            (choice,) = found["choices"]
            told = choice["logprobs"]["tokens"]
            parts = [one["choices"][0]["logprobs"] for one in read]
            assert [token for part in parts for token in part["tokens"]] == told
            assert len(choice["logprobs"]["text_offset"]) == len(told)
            if "echo" in asked:  # clients that score prompts cut one entry per generated token
                told = told[len(await batcher.tokenize("A fox")) : -1]
                assert "A fox" + "".join(told) == choice["text"]
            else:
                assert "".join(told) == choice["text"]
        assert len(told) == end, path
    stop = await batcher.generate("A fox", **body, stop=whole.text[3:6], logprobs=0)
    assert stop.finish_reason == "stop"
    asked = {**body, "prompt": "A fox", "logprobs": 0, "stop": whole.text[3:6]}
    (choice,) = (await http.post("/v1/completions", json=asked)).json()["choices"]
    assert len(choice["logprobs"]["tokens"]) == len(stop.token_ids)


async def test_completions_of_several_prompts(client: openai.AsyncOpenAI, batcher: Batcher) -> None:
    prompts = ["Once upon a time", "The old fox"]
    own = await batcher.generate(prompts, max_tokens=9, logprobs=1)
    asked: Any = {"model": MODEL, "max_tokens": 9, "temperature": 0, "logprobs": 1}
    made = await client.completions.create(prompt=prompts, echo=True, **asked)
    assert made.object == "text_completion"
    for i, (choice, one, prompt) in enumerate(zip(made.choices, own, prompts, strict=True)):
        assert (choice.index, choice.text) == (i, prompt + one.text)
        assert choice.logprobs is not None
        ids = await batcher.tokenize(prompt)
        told = choice.logprobs.token_logprobs or []
        assert told[0] is None
        assert told[len(ids) :] == [one.logprob for one in one.logprobs or ()]
    stream = await client.completions.create(
        prompt=[list(await batcher.tokenize(prompt)) for prompt in prompts],
        stream=True,
        stream_options={"include_usage": True},
        **asked,
    )
    texts = {0: "", 1: ""}
    usage = None
    async for chunk in stream:
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert [texts[0], texts[1]] == [one.text for one in own]
    assert usage == made.usage
    exact = await client.completions.create(
        model=MODEL, prompt="Hi", max_tokens=30, extra_body={"ignore_eos": True}
    )
    assert exact.usage is not None
    assert exact.usage.completion_tokens == 30


async def test_vectors_scores_and_ranks(client: openai.AsyncOpenAI, batcher: Batcher) -> None:
    texts = ["the old man", "a little fox", "the old man"]
    made = await client.embeddings.create(model=MODEL, input=texts)
    plain = await client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    for one, other in zip(made.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding)
        assert sum(x * x for x in one.embedding) == pytest.approx(1.0, abs=1e-5)
    short = await client.embeddings.create(model=MODEL, input=texts[0], dimensions=8)
    assert len(short.data[0].embedding) == 8
    http = httpx.AsyncClient(base_url=str(client.base_url).removesuffix("/v1/"))
    score = await http.post("/v1/score", json={"text_1": texts[0], "text_2": texts[1:]})
    first, second = (one["score"] for one in score.json()["data"])
    assert second == pytest.approx(1.0, abs=1e-5)
    assert first < second
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        rank = await http.post(path, json={"query": texts[0], "documents": texts[1:], "top_n": 1})
        assert [one["index"] for one in rank.json()["results"]] == [1]
    tokens = (await http.post("/tokenize", json={"prompt": texts[0]})).json()["tokens"]
    assert tuple(tokens) == await batcher.tokenize(texts[0])
    asked = {"messages": ASK, "tools": [ADD]}
    tokens = (await http.post("/tokenize", json=asked)).json()["tokens"]
    assert tuple(tokens) == await batcher.tokenize(ASK, tools=[ADD])
    long = {"messages": [{"role": "user", "content": "word " * 50_000}]}
    for asked in (long, {"prompt": "word " * 50_000}):
        assert (await http.post("/tokenize", json=asked)).json()["count"] > 50_000
    counted = await http.post("/v1/messages/count_tokens", json=long)
    assert counted.json()["input_tokens"] > 50_000
    text = (await http.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
    assert text == await batcher.detokenize(tokens)
    for most in (2**17, 2**17 + 1, 2**18):
        found = await http.post("/detokenize", json={"tokens": [70] * most})
        if most == 2**17:
            assert len(found.json()["prompt"]) == most
            continue
        assert (found.status_code, found.json()["error"]["param"]) == (400, "tokens")
        assert "one call takes at most 131072: divide" in found.json()["error"]["message"]
    metrics = await http.get("/metrics")
    assert "pybatcher:" in metrics.text
    await http.aclose()


ODD: Any = {
    "type": "function",
    "function": {
        "name": "odd",
        "strict": True,
        "parameters": {"properties": {"a": {"type": "array", "uniqueItems": True}}},
    },
}


async def test_errors_are_of_the_clients_own_classes(client: openai.AsyncOpenAI) -> None:
    create = client.chat.completions.create
    for changes, kind, param in (
        ({"model": "gpt-9"}, openai.NotFoundError, "model"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "tools[0].name"),
        ({"tools": [{**ADD, "type": "x"}]}, openai.BadRequestError, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": 5}}}]},
         openai.BadRequestError, "tools[0].function.parameters.type"),
        ({"response_format": {"type": "xml"}}, openai.BadRequestError, "response_format"),
        ({"tools": [ADD, ODD], "tool_choice": "required"}, openai.BadRequestError,
         "tools[1].function"),
        ({"messages": [{"role": "user", "content": "x" * 10**6}]}, openai.BadRequestError, None),
        ({"extra_body": {"timeout": 1e-9}}, None, None),  # no field of the API
    ):  # fmt: skip
        asked: Any = {"model": MODEL, "messages": ASK, "max_tokens": 2} | changes
        for stream in (False, True):
            if kind is None:
                await create(**asked, stream=stream)
                continue
            with pytest.raises(kind) as raised:
                await create(**asked, stream=stream)
            body: Any = raised.value.body
            assert body["message"]
            assert param is None or body["param"] == param
    with pytest.raises(openai.NotFoundError):
        await client.get("/nothing", cast_to=object)


async def test_keys_and_models(model: Path) -> None:
    async with Batcher(model, n_threads=1) as one, Batcher(n_threads=1) as two:
        app = application({"small": one, "other": two}, api_keys=["secret", "second"])
        async with served(app) as url:
            for key, status in (("secret", 200), ("second", 200), ("wrong", 401), ("secretx", 401)):
                async with httpx.AsyncClient(base_url=url) as http:
                    for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                        found = await http.get("/v1/models", headers=headers)
                        assert found.status_code == status
                        assert found.headers["x-request-id"].startswith("req-")
                    assert (await http.get("/health")).status_code == 200
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="second") as client:
                assert [one.id async for one in client.models.list()] == ["small", "other"]
                assert (await client.models.retrieve("other")).id == "other"
                made = await client.completions.create(model="other", prompt="Hi", max_tokens=3)
                assert made.model == "other"


async def test_who_hangs_up_frees_what_was_asked_for(batcher: Batcher) -> None:
    long = {"messages": ASK, "max_tokens": 1500, "ignore_eos": True}
    async with served(application(batcher)) as url:
        for stream in (False, True):
            async with httpx.AsyncClient(base_url=url) as http:
                asking = asyncio.ensure_future(
                    http.post("/v1/chat/completions", json={**long, "stream": stream})
                )
                while batcher.statistics().running == 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            async with asyncio.timeout(20):
                while batcher.statistics().running:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        assert batcher.statistics().cancelled == 2
    batcher.check_idle()


async def test_sampling_values_that_clients_send(client: openai.AsyncOpenAI) -> None:
    """Edges that OpenAI's or vLLM's API has: greedy, all tokens, signed seeds, many choices."""
    asked: Any = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8}
    greedy = (await client.completions.create(**asked, temperature=0)).choices[0].text
    none = await client.completions.create(**asked, temperature=1.5, top_p=0, seed=-5)
    assert none.choices[0].text == greedy
    texts = set()
    for seed, extra in ((-5, {"top_k": -1}), (2**64 - 5, {"top_k": 0}), (-5, {})):
        made = await client.completions.create(**asked, seed=seed, extra_body=extra)
        texts.add(made.choices[0].text)
    assert len(texts) == 1
    many = await client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1, n=128)
    assert [one.index for one in many.choices] == list(range(128))


async def test_token_ids_beyond_the_limit_on_prompts(http: httpx.AsyncClient) -> None:
    for path, field in (("/v1/completions", "prompt"), ("/v1/embeddings", "input")):
        found = await http.post(path, json={field: [5] * 100_000, "max_tokens": 1})
        error = found.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", field)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_token_is_named_with_its_field(
    path: str, stream: bool, http: httpx.AsyncClient
) -> None:
    asked = {"prompt": "Hi", "messages": ASK, "max_tokens": 1, "stream": stream}
    for key in ("9999999", "99999999999999999999", "-1", "x"):
        found = await http.post(path, json={**asked, "logit_bias": {key: 1}})
        assert (found.status_code, found.json()["error"]["param"]) == (400, "logit_bias")
    found = await http.post(path, json={**asked, "stop_token_ids": [9999999]})
    assert (found.status_code, found.json()["error"]["param"]) == (400, "stop_token_ids")
