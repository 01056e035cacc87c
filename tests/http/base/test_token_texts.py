from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_served import served
from sample_tokenizers import build
from small_sidecar import sidecar

from pybatcher import Batcher, Client
from pybatcher.calls.completion import TokenLogprob
from pybatcher.http import application
from pybatcher.http.base import token_texts
from pybatcher.http.base.token_texts import TokenTexts
from pybatcher.testing import fake_batcher
from pybatcher.testing.fake_engine import FakeEngine
from pybatcher.text import Tokenizer


async def test_each_text_is_fetched_once() -> None:
    async with fake_batcher() as batcher:
        texts, asked = TokenTexts(batcher), []
        token_bytes = batcher.token_bytes

        async def counted(ids: Any) -> Any:
            asked.extend(ids)
            return await token_bytes(ids)

        batcher.token_bytes = counted  # type: ignore[method-assign]
        made = await batcher.generate("Hi", max_tokens=3, logprobs=2, n=2, seed=1, temperature=1.0)
        await texts.learn_of(made)
        await texts.learn_of(made)
        assert len(set(asked)) == len(asked)
        for choice in made.choices:
            for one in choice.logprobs or ():
                assert texts[one.token_id] == await batcher.detokenize([one.token_id])
                assert all(texts[token] is not None for token, _ in one.top)


async def test_the_texts_of_a_response_take_one_frame(tmp_path: Path) -> None:
    async with (
        fake_batcher() as batcher,
        sidecar(tmp_path / "socket", batcher) as one,
        Client(tmp_path / "socket") as client,
    ):
        made = await client.generate("Hi", max_tokens=30, logprobs=5, seed=1, temperature=1.0)
        texts = TokenTexts(client)
        n_before = one.n_questions
        await texts.learn_of(made)
        assert one.n_questions == n_before + 1
        for logprob in made.logprobs or ():
            for token in (logprob.token_id, *(token for token, _ in logprob.top)):
                assert texts[token] == await client.detokenize([token])


async def test_tokens_are_named_by_id_without_a_second_lookup() -> None:
    async with fake_batcher() as batcher:
        texts = TokenTexts(batcher)
        by_id = texts.named_by_id()
        await by_id.learn([70])
        assert (texts.name(70), by_id.name(70), by_id.bytes_of(70)) == ("g", "token_id:70", b"g")
        one = TokenLogprob(70, -1.0, ())
        assert texts.described(one)["token"] == "g"
        assert by_id.described(one)["token"] == "token_id:70"
        assert by_id.described(one)["bytes"] == list(b"g")


async def test_very_many_bytes_are_fetched_in_several_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_texts, "_AT_ONCE", 10)
    async with fake_batcher() as batcher:
        texts = TokenTexts(batcher)
        await texts.learn(range(25))
        assert [texts.bytes_of(i) for i in range(25)] == await batcher.token_bytes(range(25))


@pytest.mark.parametrize("kind", ["llama", "metaspace"])
async def test_a_token_keeps_the_space_that_it_loses_alone(kind: str) -> None:
    backend = build(kind)
    tokenizer = Tokenizer(backend)
    ids = [backend.token_to_id(token) for token in ("▁the", "▁fox", "s")]
    assert tokenizer.decode(ids[:1]) == "the"
    async with fake_batcher(FakeEngine(vocab_size=400), tokenizer=tokenizer) as batcher:
        texts = TokenTexts(batcher)
        await texts.learn(ids)
        assert [texts[one] for one in ids] == [" the", " fox", "s"]


TEXT = "日本 🦊, é 👩‍🚀."


def chat_logprobs(body: dict[str, Any]) -> list[Any]:
    (choice,) = body["choices"]
    return (choice["logprobs"] or {}).get("content") or []


def response_logprobs(body: dict[str, Any]) -> list[Any]:
    if body.get("type") == "response.output_text.delta":
        return list(body["logprobs"])
    return [one for item in body.get("output", ()) for one in item["content"][0]["logprobs"]]


APIS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 2},
        chat_logprobs,
    ),
    "responses": (
        "/v1/responses",
        {
            "input": "Hi",
            "top_logprobs": 2,
            "include": ["message.output_text.logprobs"],
        },
        response_logprobs,
    ),
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("streams", [False, True])
async def test_joined_bytes_are_the_text(model: Path, api: str, streams: bool) -> None:
    path, asked, logprobs_of = APIS[api]
    asked = {**asked, "structured_outputs": {"choice": [TEXT]}, "stream": streams}
    asked["enable_thinking"] = False
    async with (
        Batcher(model, n_threads=1) as batcher,
        served(application(batcher)) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        answer = await http.post(path, json=asked)
    assert answer.status_code == 200, answer.text
    bodies = [answer.json()] if not streams else events_of(answer.text)
    told = [one for body in bodies for one in logprobs_of(body)]
    parts = [bytes(one["bytes"]) for one in told]
    assert b"".join(parts).decode().removesuffix("<|im_end|>") == TEXT
    assert any("\ufffd" in one["token"] for one in told), "a token is a part of a character"
    tops = [top for one in told for top in one["top_logprobs"]]
    for one in (*told, *tops):
        assert bytes(one["bytes"]).decode("utf-8", "replace") == one["token"]


def events_of(stream: str) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in stream.splitlines() if "data: {" in line)
    events = [json.loads(line) for line in lines]
    return [one for one in events if one.get("choices") or one.get("type", "").endswith("delta")]


@pytest.mark.parametrize("streams", [False, True])
async def test_completions_have_the_bytes_of_parts_of_characters(
    model: Path, streams: bool
) -> None:
    asked = {"prompt": TEXT, "echo": True, "logprobs": 3, "max_tokens": 1, "stream": streams}
    asked["structured_outputs"] = {"choice": ["🦊"]}
    async with (
        Batcher(model, n_threads=1) as batcher,
        served(application(batcher)) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        answer = await http.post("/v1/completions", json={**asked, "max_tokens": 9})
    assert answer.status_code == 200, answer.text
    bodies = [answer.json()] if not streams else events_of(answer.text)
    told = [one for body in bodies if (one := body["choices"][0]["logprobs"])]
    names = [name for one in told for name in one["tokens"]]
    tops = [top for one in told for top in one["top_logprobs"]]
    joined = b"".join(map(spelled, names)).removesuffix(b"<|im_end|>")
    assert joined.decode().endswith(TEXT + "🦊")
    assert all(name in top for name, top in zip(names, tops, strict=True) if top)
    assert all(len(top) in (3, 4) for top in tops if top)


def spelled(name: str) -> bytes:
    """The bytes that a token of a completion has, as clients of OpenAI's API read them."""
    if not name.startswith("bytes:"):
        return name.encode()
    return name.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1")
