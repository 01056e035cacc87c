"""Images over HTTP, by OpenAI's and Anthropic's own clients: what the batcher gets, and errors."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest
from http_served import served

from pybatcher import Batcher, InvalidRequestError
from pybatcher.http import application
from pybatcher.testing import fake_batcher

LARGE = os.urandom(3 * 2**18)
SMALL = b"\x89PNG small"
KEY = "a-key"
SHOWS = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{% if part.type == 'image' %}"
    "<|image|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}<assistant>"
)


class Seen:
    """The messages that a batcher has got, which it answers without their images."""

    def __init__(self, batcher: Batcher) -> None:
        self.messages: list[Any] = []
        self.error: InvalidRequestError | None = None
        self._batcher = batcher
        for name in ("chat", "stream_chat", "tokenize"):
            setattr(batcher, name, self._recording(name, getattr(batcher, name)))

    def images(self) -> list[Any]:
        """Return the images of the last call, each with its place."""
        return [
            (i, j, part["image"], part.get("detail"))
            for i, message in enumerate(self.messages[-1])
            if isinstance(message["content"], list)
            for j, part in enumerate(message["content"])
            if part["type"] == "image"
        ]

    def _recording(self, name: str, method: Any) -> Any:
        def call(messages: Any, *args: Any, **options: Any) -> Any:
            self.messages.append(messages)
            if self.error is not None and (name != "tokenize" or "stream" not in options):
                raise self.error
            return method([{"role": "user", "content": "Hi"}], *args, **options)

        return call


@pytest.fixture
async def batcher() -> AsyncIterator[Batcher]:
    async with fake_batcher(answers=lambda _: "A cat.") as one:
        yield one


@pytest.fixture
def seen(batcher: Batcher) -> Seen:
    return Seen(batcher)


@pytest.fixture
async def url(seen: Seen, batcher: Batcher) -> AsyncIterator[str]:
    async with served(application(batcher)) as one:
        yield one


@pytest.fixture
async def of_openai(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as one:
        yield one


@pytest.fixture
async def of_anthropic(url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as one:
        yield one


def uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def block(data: bytes) -> Any:
    source = {"type": "base64", "media_type": "image/png"}
    return {"type": "image", "source": {**source, "data": base64.b64encode(data).decode()}}


CHAT: Any = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Compare."},
            {"type": "image_url", "image_url": {"url": uri(LARGE), "detail": "high"}},
            {"type": "image_url", "image_url": {"url": uri(SMALL)}},
        ],
    },
]


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_completions(of_openai: openai.AsyncOpenAI, seen: Seen, stream: bool) -> None:
    made: Any = await of_openai.chat.completions.create(
        model="fake", messages=CHAT, stream=stream, extra_body={"max_tokens": 9}
    )
    if stream:
        chunks = [chunk async for chunk in made]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
        text = made.choices[0].message.content
    assert text == "A cat."
    assert seen.images() == [(1, 1, LARGE, "high"), (1, 2, SMALL, None)]
    assert seen.messages[-1][1]["content"][0] == {"type": "text", "text": "Compare."}


@pytest.mark.parametrize("stream", [False, True])
async def test_responses(of_openai: openai.AsyncOpenAI, seen: Seen, stream: bool) -> None:
    parts: Any = [
        {"type": "input_text", "text": "Compare."},
        {"type": "input_image", "image_url": uri(LARGE), "detail": "low"},
    ]
    items: Any = [{"role": "user", "content": parts}]
    made: Any = await of_openai.responses.create(model="fake", input=items, stream=stream)
    if stream:
        events = [event async for event in made]
        made = events[-1].response
    assert made.output_text == "A cat."
    assert seen.images() == [(0, 1, LARGE, "low")]
    await of_openai.post("/responses/input_tokens", cast_to=dict, body={"input": items})
    assert seen.images() == [(0, 1, LARGE, "low")]


@pytest.mark.parametrize("stream", [False, True])
async def test_messages(of_anthropic: anthropic.AsyncAnthropic, seen: Seen, stream: bool) -> None:
    call: Any = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result: Any = {"type": "tool_result", "tool_use_id": "t", "content": [block(SMALL)]}
    turns: Any = [
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, block(LARGE)]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    asked: Any = {"model": "fake", "max_tokens": 9, "messages": turns}
    if stream:
        async with of_anthropic.messages.stream(**asked) as events:
            text = await events.get_final_text()
    else:
        text = (await of_anthropic.messages.create(**asked)).content[0].text
    assert text == "A cat."
    expected = [(0, 1, LARGE, None), (2, 0, SMALL, None)]
    assert seen.images() == expected
    assert seen.messages[-1][2]["role"] == "tool"
    counted = await of_anthropic.messages.count_tokens(model="fake", messages=turns)
    assert counted.input_tokens > 0
    assert seen.images() == expected


async def test_tokenize(url: str, seen: Seen) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        told = (await client.post("/tokenize", json={"messages": CHAT})).json()
    assert told["count"] == len(told["tokens"]) > 0
    assert seen.images() == [(1, 1, LARGE, "high"), (1, 2, SMALL, None)]


async def test_errors_of_an_image_name_its_field(
    of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic, seen: Seen
) -> None:
    def fail(place: str) -> None:
        seen.error = InvalidRequestError(f"{place} is 40000 x 40000 pixels", field=place)

    fail("messages[1].content[2].image")
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as of_chat:
            await of_openai.chat.completions.create(model="fake", messages=CHAT, stream=stream)
        assert of_chat.value.param == "messages[1].content[2].image_url.url"
        assert of_chat.value.body["message"].startswith(f"{of_chat.value.param} is 40000")  # type: ignore[index]
    # Items and messages have other places, where several items are one message.
    fail("messages[1].content[0].image")
    items: Any = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        {"role": "user", "content": [{"type": "input_image", "image_url": uri(SMALL)}]},
    ]
    with pytest.raises(openai.BadRequestError) as of_response:
        await of_openai.responses.create(model="fake", input=items)
    assert of_response.value.param == "input[2].content[0].image_url"
    assert of_response.value.body["message"].startswith("input[2].content[0].image_url is 4")  # type: ignore[index]
    fail("messages[0].content[1].image")
    turns: Any = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [block(SMALL)]},
    ]
    with pytest.raises(anthropic.BadRequestError) as of_message:
        await of_anthropic.messages.create(model="fake", max_tokens=9, messages=turns)
    assert "messages[1].content[0].source.data is 40000" in str(of_message.value)
    with pytest.raises(anthropic.BadRequestError) as of_count:
        await of_anthropic.messages.count_tokens(model="fake", messages=turns)
    assert "messages[1].content[0].source.data is 40000" in str(of_count.value)


async def test_tokens_and_usage_are_those_in_process(tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image")
    path = tmp_path / "a.png"
    pil.fromarray(np.random.default_rng(1).integers(0, 256, (96, 64, 3), np.uint8)).save(path)
    parts: Any = [{"type": "text", "text": "What is it?"}, {"type": "image", "image": path}]
    by_url: Any = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": uri(path.read_bytes())}},
    ]
    async with fake_batcher(chat_template=SHOWS) as batcher:
        expected = await batcher.chat(
            [{"role": "user", "content": parts}], seed=1, max_tokens=9, temperature=1
        )
        assert expected.usage.image_tokens > 0
        async with (
            served(application(batcher)) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client,
            anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as other,
        ):
            messages: Any = [{"role": "user", "content": by_url}]
            asked: Any = {"model": "fake", "max_tokens": 9, "seed": 1, "temperature": 1}
            made = await client.chat.completions.create(messages=messages, **asked)
            assert made.choices[0].message.content == expected.text
            assert made.usage is not None
            assert made.usage.prompt_tokens == expected.usage.prompt_tokens
            details: Any = made.usage.prompt_tokens_details
            assert details.image_tokens == expected.usage.image_tokens
            text, image = {"type": "text", "text": "What is it?"}, block(path.read_bytes())
            turns: Any = [{"role": "user", "content": [text, image]}]
            counted = await other.messages.count_tokens(model="fake", messages=turns)
            assert counted.input_tokens == expected.usage.prompt_tokens
            async with other.messages.stream(
                model="fake", max_tokens=9, messages=turns, extra_body={"seed": 1, "temperature": 1}
            ) as stream:
                assert await stream.get_final_text() == expected.text
            damaged: Any = [{**image, "source": {**image["source"], "data": "AAAA"}}]
            with pytest.raises(anthropic.BadRequestError) as raised:
                await other.messages.create(
                    model="fake", max_tokens=9, messages=[{"role": "user", "content": damaged}]
                )
            assert "messages[0].content[0].source.data begins with" in str(raised.value)


HOSTILE: list[tuple[Any, str]] = [
    ("data:image/png;base64,!!!!", "image_url.url"),
    ("data:image/svg+xml;base64,AAAA", "image_url.url"),
    ("data:text/html;base64,AAAA", "image_url.url"),
    ("data:image/png;base64;charset=x,AAAA", "image_url.url"),
    ("data:image/png;base64,data:image/png;base64,AAAA", "image_url.url"),
    ("file:///etc/passwd", "image_url.url"),
    ("http://example.org/a.png", "image_url.url"),
    ("ftp://example.org/a.png", "image_url.url"),
    ("https://example.org/a.png", "image_url.url"),
    ({"url": uri(SMALL)}, "image_url.url"),
    ([uri(SMALL)], "image_url.url"),
    (2**70, "image_url.url"),
]


async def test_hostile_parts_fail_alone(of_openai: openai.AsyncOpenAI, seen: Seen) -> None:
    async def chat(part: Any) -> Any:
        content: Any = [{"type": "text", "text": "a"}, part]
        return await of_openai.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": content}]
        )

    hostile: list[Any] = [{"type": "image_url", "image_url": {"url": one}} for one, _ in HOSTILE]
    fields = [field for _, field in HOSTILE]
    hostile.append({"type": "image_url", "image_url": {"url": uri(SMALL), "detail": "x" * 10**5}})
    hostile.append({"type": "image_url", "image_url": [[[[{"url": 1}]]]]})
    fields += ["image_url.detail", "image_url"]
    honest = [{"type": "image_url", "image_url": {"url": uri(LARGE)}}] * len(hostile)
    mixed = [one for pair in zip(hostile, honest, strict=True) for one in pair]
    results = await asyncio.gather(*map(chat, mixed), return_exceptions=True)
    for error, field in zip(results[::2], fields, strict=True):
        assert isinstance(error, openai.BadRequestError)
        assert error.param == f"messages[0].content[1].{field}"
        assert len(str(error)) < 1000
    assert all(made.choices[0].message.content == "A cat." for made in results[1::2])


async def test_many_parts_and_many_urls(seen: Seen, batcher: Batcher) -> None:
    part = {"type": "image_url", "image_url": {"url": uri(SMALL)}}
    by_url = {"type": "image_url", "image_url": {"url": "https://images.example.org/a.png"}}
    app = application(batcher, allow_image_hosts=["images.example.org"])
    async with served(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def chat(parts: Any) -> Any:
            body = {"messages": [{"role": "user", "content": parts}]}
            return await client.post("/v1/chat/completions", json=body)

        assert (await chat([part] * 10_000)).status_code == 200
        assert len(seen.images()) == 10_000
        told = (await chat([part] * 40_000)).json()["error"]
        assert told["param"] == "messages"
        told = (await chat([by_url] * 17)).json()["error"]
        assert told["param"] == "messages[0].content[16].image_url.url"
        assert "at most 16 may be" in told["message"]
