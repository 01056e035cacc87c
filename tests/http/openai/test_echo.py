"""Prompts that are echoed with their log-probabilities, as evaluation harnesses ask for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from http_served import served

from pybatcher import Batcher
from pybatcher.http import application

PROMPT = "Once upon a time there was a little fox who lived by the lake"
ASK: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}


@pytest.fixture
async def batcher() -> AsyncIterator[Batcher]:
    async with Batcher(n_threads=1, n_ctx=2048) as one:
        yield one


@pytest.fixture
async def http(batcher: Batcher) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        served(application(batcher)) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as one,
    ):
        yield one


async def asked(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    found = await http.post("/v1/completions", json=body)
    assert found.status_code == 200, found.text
    told: dict[str, Any] = found.json()
    return told


async def test_of_texts_and_token_ids_with_the_very_numbers_of_a_score(
    http: httpx.AsyncClient, batcher: Batcher
) -> None:
    ids = await batcher.tokenize(PROMPT)
    (score,) = await batcher.score(ids[:1], [ids[1:]], top_logprobs=1)
    drawn = await batcher.generate(PROMPT, max_tokens=1, logprobs=1)
    assert drawn.logprobs is not None
    (new,) = drawn.logprobs
    whole = await batcher.detokenize(ids)  # with the special token before it
    for prompt, text in ((PROMPT, PROMPT), (list(ids), whole), ([list(ids)], whole)):
        made = await asked(http, prompt=prompt, **ASK)
        (choice,) = made["choices"]
        assert choice["text"] == text + drawn.text
        told = choice["logprobs"]
        assert told["token_logprobs"] == [None, *score.token_logprobs, new.logprob]
        first, *others = told["top_logprobs"]
        assert first is None
        tops = [*score.top_logprobs, new.top]
        assert [max(one.values()) for one in others] == [top[0][1] for top in tops]
        for logprob, token, one in zip(
            told["token_logprobs"][1:], told["tokens"][1:], others, strict=True
        ):
            assert one[token] == logprob
            assert len(one) == (1 if logprob == max(one.values()) else 2)
        assert "".join(told["tokens"]) == whole + drawn.text
        for token, offset in list(zip(told["tokens"], told["text_offset"], strict=True))[1:]:
            assert choice["text"][offset:].startswith(token)
        assert told["text_offset"][0] == 0
        assert made["usage"]["prompt_tokens"] == len(ids)


async def test_without_an_output(http: httpx.AsyncClient, batcher: Batcher) -> None:
    ids = await batcher.tokenize(PROMPT)
    (score,) = await batcher.score(ids[:1], [ids[1:]], top_logprobs=5)
    (choice,) = (await asked(http, prompt=PROMPT, **ASK | {"max_tokens": 0, "logprobs": 5}))[
        "choices"
    ]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert choice["logprobs"]["token_logprobs"] == [None, *score.token_logprobs]
    assert all(len(one) in (5, 6) for one in choice["logprobs"]["top_logprobs"][1:])
    (plain,) = (await asked(http, prompt=PROMPT, max_tokens=0, echo=True))["choices"]
    assert (plain["text"], plain["logprobs"]) == (PROMPT, None)
    refused = await http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 0})
    assert refused.status_code == 400


async def streamed(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """What a stream tells, joined as it is told without one."""
    asking = {**body, "stream": True, "stream_options": {"include_usage": True}}
    found = await http.post("/v1/completions", json=asking)
    assert found.status_code == 200, found.text
    *events, done = found.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    *chunks, last = (json.loads(one.removeprefix("data: ")) for one in events)
    assert last["choices"] == []
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        joined = choices.setdefault(choice["index"], choice)
        if joined is not choice:
            assert joined["finish_reason"] is None
            joined["text"] += choice["text"]
            joined["finish_reason"] = choice["finish_reason"]
            for name, column in (choice["logprobs"] or {}).items():
                joined["logprobs"][name] += column
    return {"choices": [choices[i] for i in sorted(choices)], "usage": last["usage"]}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"logprobs": None},
        {"max_tokens": 0},
        {"max_tokens": 0, "logprobs": None},
        {"prompt": [PROMPT, "The old fox"], "n": 2},
        {"prompt": [PROMPT, "The old fox"], "max_tokens": 0, "n": 2},
        {"prompt": [9, 8, 7], "logprobs": 3},
        {"add_special_tokens": False},
    ],
)
async def test_a_stream_tells_what_the_whole_answer_does(
    http: httpx.AsyncClient, more: dict[str, Any]
) -> None:
    body = {"prompt": PROMPT, **ASK, "max_tokens": 5, **more}
    whole = await asked(http, **body)
    found = await streamed(http, **body)
    assert found["choices"] == whole["choices"]
    for name in ("prompt_tokens", "completion_tokens"):
        assert found["usage"][name] == whole["usage"][name]


async def test_what_is_wrong_with_an_echoed_stream_is_a_status(http: httpx.AsyncClient) -> None:
    for more in ({"max_tokens": ""}, {"max_tokens": -1}, {"n": "x"}, {"prompt": ["Hi", []]}):
        body = {"prompt": PROMPT, **ASK, "stream": True, **more}
        assert (await http.post("/v1/completions", json=body)).status_code == 400


async def test_the_same_in_a_crowd_in_chunks_and_on_a_prefix_hit() -> None:
    prompts = [PROMPT * 3, PROMPT * 3 + " and", "The old fox"]
    body = {"prompt": prompts, **ASK, "logprobs": 3}
    made = []
    small: dict[str, Any] = {"n_batch": 24, "n_parallel": 4}
    for options in ({}, small):
        async with (
            Batcher(n_threads=1, n_ctx=2048, **options) as batcher,
            served(application(batcher)) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            made.append((await asked(http, **body))["choices"])
            crowd = [
                asyncio.ensure_future(batcher.generate(f"{i}" * 9, max_tokens=40, temperature=1.0))
                for i in range(3)
            ]
            together = await asyncio.gather(*(asked(http, **body) for _ in range(3)))
            made += [one["choices"] for one in together]
            await asyncio.gather(*crowd)
            assert batcher.statistics().cached_tokens > 0
    assert all(one == made[0] for one in made)


async def test_special_tokens_are_left_out_where_they_are_not_wanted(
    http: httpx.AsyncClient, batcher: Batcher
) -> None:
    alone = await batcher.tokenize(PROMPT, add_special_tokens=False)
    told = (
        await http.post("/tokenize", json={"prompt": PROMPT, "add_special_tokens": False})
    ).json()
    assert tuple(told["tokens"]) == alone
    made = await asked(http, prompt=PROMPT, add_special_tokens=False, **ASK)
    assert made["usage"]["prompt_tokens"] == len(alone)
    same = await asked(http, prompt=list(alone), **ASK)
    assert made["choices"] == same["choices"]


async def test_what_a_remote_tokenizer_asks_for(http: httpx.AsyncClient, batcher: Batcher) -> None:
    info = (await http.get("/tokenizer_info")).json()
    own = await batcher.model_info()
    assert info["eos_token"] == own.special_tokens["eos_token"]
    assert info["chat_template"] == own.chat_template
    assert "bos_token" in info
    body = {"prompt": info["eos_token"], "add_special_tokens": False}
    (eos,) = (await http.post("/tokenize", json=body)).json()["tokens"]
    back = (await http.post("/detokenize", json={"tokens": [eos]})).json()["prompt"]
    assert back == info["eos_token"]
    named = await http.get("/tokenizer_info", params={"model": batcher.model_name})
    assert named.json() == info
    assert (await http.get("/tokenizer_info", params={"model": "other"})).status_code == 404
    (model,) = (await http.get("/v1/models")).json()["data"]
    assert model["max_model_len"] == own.max_sequence_length == 2048
    assert (await http.get(f"/v1/models/{model['id']}")).json() == model


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_are_named_by_their_ids(
    http: httpx.AsyncClient, batcher: Batcher, stream: bool
) -> None:
    ids = await batcher.tokenize(PROMPT)
    body = {"prompt": PROMPT, **ASK, "return_tokens_as_token_ids": True, "stream": stream}
    found = await http.post("/v1/completions", json=body)
    assert found.status_code == 200, found.text
    lines = [line[6:] for line in found.text.split("\n") if line.startswith("data: {")]
    told = [json.loads(line) for line in (lines if stream else [found.text])]
    logprobs = [one["choices"][0]["logprobs"] for one in told if one["choices"]]
    named = [token for one in logprobs if one is not None for token in one["tokens"]]
    assert named[: len(ids)] == [f"token_id:{one}" for one in ids]
    tops = [top for one in logprobs if one is not None for top in one["top_logprobs"] if top]
    assert tops
    assert all(name.startswith("token_id:") for top in tops for name in top)
    for field in ("return_token_ids", "return_tokens_as_token_ids"):
        found = await http.post("/v1/completions", json={"prompt": "a", field: "yes"})
        assert (found.status_code, found.json()["error"]["param"]) == (400, field)
    messages = [{"role": "user", "content": "a"}]
    for path, own in (
        ("completions", {"prompt": "a"}),
        ("chat/completions", {"messages": messages}),
    ):
        found = await http.post(f"/v1/{path}", json={**own, "return_token_ids": True})
        assert found.json()["error"]["param"] == "return_token_ids"
