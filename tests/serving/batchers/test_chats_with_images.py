"""Chats with images: every call takes them, a bad one harms its call only, and ids never show."""

from __future__ import annotations

import asyncio
import base64
import gc
import threading
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from batcher_helpers import until
from odd_values import odd_value
from PIL import Image

from pybatcher import (
    Batcher,
    BlockingBatcher,
    ConfigError,
    DeadlineExceededError,
    InvalidRequestError,
    PybatcherError,
    RequestTooLongError,
)
from pybatcher.scheduling import FIRST_IMAGE_ID
from pybatcher.serving import image_ids, image_room, request_state
from pybatcher.testing import FakeEngine, byte_tokenizer, fake_batcher
from pybatcher.testing.fake_images import FakeImageProcessor

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|image|>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
IMAGE_TOKEN = 258  # of `byte_tokenizer("<|image|>")`


def pixels(value: int, side: int = 96) -> Any:
    return np.full((side, side, 3), value, np.uint8)


def png(value: int, side: int = 96) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels(value, side)).save(file, "PNG")
    return file.getvalue()


def chat(*images: Any, text: str = "What is it?") -> list[dict[str, Any]]:
    parts: list[Any] = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def batcher(**options: Any) -> Batcher:
    return fake_batcher(**{"chat_template": TEMPLATE, "n_ctx": 2048, **options})


async def answer(one: Any, messages: Any, **options: Any) -> tuple[int, ...]:
    made = await one.chat(messages, max_tokens=5, temperature=0, **options)
    return tuple(made.token_ids)


async def test_answers_depend_on_the_images_and_on_nothing_else() -> None:
    async with batcher() as one:
        first = await answer(one, chat(pixels(1)))
        other = await answer(one, chat(pixels(2)))
        small = await answer(one, chat(pixels(1, 64)))
        assert len({first, other, small}) == 3
        crowd = [chat(pixels(i % 3)) for i in range(24)]
        together = await asyncio.gather(*(answer(one, messages) for messages in crowd))
    assert together[1] == first
    assert together[2] == other
    assert len(set(together)) == 3
    async with batcher(n_batch=7, n_parallel=1) as another:
        await answer(another, chat(pixels(5), pixels(6)))
        assert await answer(another, chat(pixels(2))) == other


async def test_images_of_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(png(7))
    uri = "data:image/png;base64," + base64.b64encode(png(7)).decode()
    values = [pixels(7), png(7), bytearray(png(7)), memoryview(png(7)), file]
    async with batcher() as one:
        expected = await answer(one, chat(pixels(7)))
        for value in (*values, Image.fromarray(pixels(7)), uri):
            assert await answer(one, chat(value)) == expected
        messages = chat(b"")
        messages[0]["content"][0] = {"type": "image_url", "image_url": {"url": uri}}
        assert await answer(one, messages) == expected


async def test_usage_statistics_and_tokens_show_the_models_image_token() -> None:
    engine = FakeEngine(vocab_size=300, tower_rows=64, n_ctx=2048)
    tokenizer = byte_tokenizer("<|image|>")
    async with batcher(engine=engine, tokenizer=tokenizer) as one:
        made = await one.chat(chat(png(1), png(2)), max_tokens=3)
        assert made.usage.image_tokens == 18
        again = await one.chat(chat(png(1), png(2)), max_tokens=3, n=2)
        assert (again.usage.image_tokens, len(again.choices)) == (18, 2)
        assert again.usage.cached_tokens == 32, "one block"
        tokens = await one.tokenize(chat(png(1), png(2)))
        assert tokens.count(IMAGE_TOKEN) == 18
        assert len(tokens) == made.usage.prompt_tokens
        assert max(tokens) < 300
        assert (await one.detokenize(tokens)).count("<|image|>") == 18
        assert one.statistics().image_tokens == 54
        with pytest.raises(InvalidRequestError, match="token ids of this model are"):
            await one.chat([FIRST_IMAGE_ID, 5], max_tokens=3)
        assert len(await answer(one, tokens)) == 5, "tokens alone have no image"
    computed = {token for plan in engine.plans for entry in plan.entries for token in entry.tokens}
    assert len({token for token in computed if token >= FIRST_IMAGE_ID}) == 18


async def test_a_later_turn_finds_the_image_in_the_cache() -> None:
    async with batcher() as one:
        first = await one.chat(chat(png(1, 256)), max_tokens=40, temperature=0)
        turns = [*chat(png(1, 256)), first.message, {"role": "user", "content": "And now?"}]
        second = await one.chat(turns, max_tokens=3, temperature=0)
        assert second.usage.cached_tokens >= 64
        changed = [*chat(png(2, 256)), first.message, {"role": "user", "content": "And now?"}]
        third = await one.chat(changed, max_tokens=3, temperature=0)
        assert third.usage.cached_tokens == 0


def test_without_asyncio_and_from_other_threads() -> None:
    with BlockingBatcher.over(batcher()) as blocking:
        info = blocking.model_info()
        assert (info.takes_images, info.max_images) == (True, 16)
        made = blocking.chat(chat(png(1)), max_tokens=3)
        assert made.usage.image_tokens == 9
        assert blocking.tokenize(chat(png(1))).count(IMAGE_TOKEN) == 9


async def test_from_a_thread_beside_the_loop() -> None:
    async with batcher() as one:
        expected = await answer(one, chat(png(1)))
        made = await asyncio.wrap_future(
            one.threadsafe.chat(chat(png(1)), max_tokens=5, temperature=0)
        )
        assert tuple(made.token_ids) == expected


async def test_streams_maps_and_trims_take_images() -> None:
    async with batcher(n_ctx=256) as one:
        stream = one.stream_chat(chat(png(1)), max_tokens=4)
        async for _ in stream:
            pass
        assert stream.completion is not None
        assert stream.completion.usage.image_tokens == 9
        results = [done async for done in one.map([chat(png(i)) for i in range(5)], max_tokens=2)]
        assert len(results) == 5
        turns = [one for i in range(6) for one in chat(png(i, 256))]
        kept = await one.trim(turns, room=16)
        assert 0 < len(kept) < 6
        assert kept == turns[-len(kept) :]
        with pytest.raises(RequestTooLongError, match="images of 320 tokens or more"):
            await one.chat(chat(*(png(i, 256) for i in range(5))), max_tokens=1)


async def test_tools_may_answer_with_images() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    parts = [{"type": "image", "image": png(3)}]
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": parts},
    ]
    async with batcher() as one:
        assert (await one.tokenize(messages)).count(IMAGE_TOKEN) == 9
        made = await one.chat(messages, max_tokens=3, tools=[look], tool_choice="required")
        assert made.usage.image_tokens == 9


def look() -> str:
    """Look out of the window."""
    return "rain"


async def test_ids_of_calls_and_texts_do_not_depend_on_the_numbers_of_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before: list[int] = []
    make = request_state.Detokenizer

    def making(*args: Any, prompt_ids: Any, **kwargs: Any) -> Any:
        before.extend(prompt_ids)
        return make(*args, prompt_ids=prompt_ids, **kwargs)

    monkeypatch.setattr(request_state, "Detokenizer", making)
    found = []
    for earlier in (0, 2):
        async with batcher() as one:
            for i in range(earlier):
                await answer(one, chat(png(100 + i)))
            options: dict[str, Any] = {"tools": [look], "tool_choice": "required", "seed": 1}
            made = await one.chat(chat(png(1)), max_tokens=100, **options)
            found.append([call.id for call in made.tool_calls])
    assert found[0] == found[1] != []
    assert before.count(IMAGE_TOKEN) == 4 * 9
    assert max(before) < FIRST_IMAGE_ID


async def test_answers_of_tests_take_images() -> None:
    async with fake_batcher(answers=["A cat.", "Two."]) as one:
        assert (await one.model_info()).takes_images
        first = await one.chat(chat(png(1)))
        assert first.text == "A cat."
        assert (await one.chat([*chat(png(1)), first.message, *chat(png(1))])).text == "Two."


HOSTILE: list[Any] = [
    {"type": "image", "image": b"no image"},
    {"type": "image", "image": png(1)[:60]},
    {"type": "image", "image": "cat.png"},
    {"type": "image", "image": np.zeros((2, 2, 3), np.float32)},
    {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
    {"type": "image", "image": png(1), "detail": "all"},
    {"type": "image", "image": Path("/nowhere/cat.png")},
    {"type": "image"},
]


async def test_broken_parts_harm_their_own_call_only() -> None:
    async with batcher() as one:
        expected = await answer(one, chat(png(1)))
        calls: list[Any] = [answer(one, chat(png(1)))]
        for part in HOSTILE:
            calls.append(answer(one, [{"role": "user", "content": [part]}]))
        calls.append(answer(one, chat(png(1))))
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert found[0] == found[-1] == expected
        for error in found[1:-1]:
            assert isinstance(error, InvalidRequestError)
            assert (error.field or "").startswith("messages[0].content[0].")
        one.check_idle()


@pytest.mark.parametrize("seed", range(60))
async def test_odd_values_of_every_type(seed: int) -> None:
    random = Random(seed)
    async with batcher() as one:
        for _ in range(4):
            odd = odd_value(random)
            part = random.choice(
                [
                    {"type": "image", "image": odd},
                    {"type": "image", "image": png(1), "detail": odd},
                    {"type": odd, "image": png(1)},
                    {"type": "image_url", "image_url": {"url": odd}},
                    {odd if isinstance(odd, str) else "type": "image", "image": odd},
                ]
            )
            messages = [{"role": "user", "content": [{"type": "image", "image": png(1)}, part]}]
            try:
                made = await one.chat(messages, max_tokens=1)
            except PybatcherError as error:
                assert str(error)  # noqa: PT017
            else:
                assert made.usage.image_tokens >= 9
        assert len(await answer(one, chat(png(1)))) == 5


@pytest.mark.parametrize("says", ["<|image|>", "<|image|><|image|>", "a <|image|> b"])
async def test_a_text_like_an_image_is_a_text(says: str) -> None:
    async with batcher() as one:
        tokens = await one.tokenize(chat(png(1), text=says))
        assert tokens.count(IMAGE_TOKEN) == 9 + says.count("<|image|>")
        made = await one.chat(chat(png(1), text=says), max_tokens=3)
        assert made.usage.image_tokens == 9
        split = chat(png(1), text=says[:4])
        split[0]["content"].append({"type": "text", "text": says[4:]})
        if says[0] == "<":
            with pytest.raises(InvalidRequestError, match="the chat template shows"):
                await one.chat(split, max_tokens=3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vision": False}, "this model takes no images"),
        ({"chat_template": "{{ messages[0].content }}"}, "this model takes no images"),
        ({"max_images": 0}, "at most 0"),
        ({"max_images": 1}, "at most 1"),
        ({"max_image_pixels": 100}, "max_image_pixels"),
        ({"max_image_bytes": 10}, "max_image_bytes"),
        (
            {"chat_template": TEMPLATE.replace("part.type == 'image'", "'<|image|>' == 7")},
            "shows 0",
        ),
    ],
)
async def test_images_that_are_not_taken(options: dict[str, Any], said: str) -> None:
    async with batcher(**options) as one:
        with pytest.raises(InvalidRequestError, match=said):
            await one.chat(chat(png(1), png(2)), max_tokens=1)
        info = await one.model_info()
        takes = "max_image" in next(iter(options))
        assert info.takes_images is takes
        assert bool(info.max_image_bytes) is takes
        text = [{"role": "user", "content": "No image."}]
        assert len(await answer(one, text)) == 5


async def test_a_tokenizer_without_the_image_token_is_named() -> None:
    template = {"chat_template": TEMPLATE, "tokenizer": byte_tokenizer()}
    async with fake_batcher(**template) as one:
        assert not (await one.model_info()).takes_images
    with pytest.raises(ConfigError, match="max_images is -1"):
        fake_batcher(max_images=-1)


async def test_a_call_that_is_cancelled_while_its_images_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, goes_on = threading.Event(), threading.Event()
    prepare = FakeImageProcessor.prepare
    prepared: list[Any] = []

    def slow(self: Any, image: Any, detail: str = "auto") -> Any:
        began.set()
        assert goes_on.wait(60)
        prepared.append(image)
        return prepare(self, image, detail)

    monkeypatch.setattr(FakeImageProcessor, "prepare", slow)
    async with batcher() as one:
        call = asyncio.ensure_future(one.chat(chat(pixels(1), pixels(2)), max_tokens=1))
        await until(began.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(DeadlineExceededError):
            await one.chat(chat(pixels(3)), max_tokens=1, timeout=0.01)
        goes_on.set()
        assert len(await answer(one, chat(pixels(4)))) == 5
        one.check_idle()
    assert len(prepared) <= 3, "the second image of the cancelled call is not read"


async def test_ids_that_are_used_up_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with batcher() as alone:
        expected = [await answer(alone, chat(png(i))) for i in range(12)]
    few = {"most_known": 4, "first": FIRST_IMAGE_ID, "last": FIRST_IMAGE_ID + 100}
    monkeypatch.setattr(image_ids.ImageIds.__init__, "__kwdefaults__", few)
    async with batcher(max_restarts=100) as one:
        for i in range(12):
            assert await answer(one, chat(png(i))) == expected[i]
        assert one.statistics().restarts > 0
        crowd = [answer(one, chat(png(i % 3))) for i in range(9)]
        assert await asyncio.gather(*crowd) == expected[:3] * 3
        one.check_idle()


async def test_waiting_chats_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_room.ImageRoom.__init__, "__defaults__", (400,))
    async with batcher(n_parallel=1) as one:
        room = one._running_service()._reader.prompts._image_room
        most = []
        crowd = [asyncio.ensure_future(answer(one, chat(png(i, 256)))) for i in range(20)]
        while not all(call.done() for call in crowd):
            most.append(room.n_bytes)
            await asyncio.sleep(0)
        assert len(set(await asyncio.gather(*crowd))) > 10
        gc.collect()
        await until(lambda: room.n_bytes == 0)
    per_image = 64 * (3 + 8)
    assert per_image < max(most) <= 400 + 4 * per_image


async def test_errors_name_the_callers_message_beside_a_system_prompt() -> None:
    async with batcher(system_prompt="Be kind.") as one:
        assert (await one.tokenize(chat(png(1)))).count(IMAGE_TOKEN) == 9
        with pytest.raises(InvalidRequestError) as error:
            await one.chat(chat(b"no image"))
        assert error.value.field == "messages[0].content[0].image"
