"""What a batcher says of its model, and how a text becomes tokens without anything beside it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybatcher import Batcher, BlockingBatcher, InvalidRequestError
from pybatcher.testing import fake_batcher

CHAT = [{"role": "user", "content": "hi"}]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


async def test_the_shipped_models() -> None:
    async with Batcher(n_threads=1, n_ctx=512) as batcher:
        info = await batcher.model_info()
        assert info.name == batcher.model_name
        assert len(info.fingerprint) > 8
        assert info.max_sequence_length == 512
        assert info.vocab_size > 1000
        assert info.kv_block_size == 32
        assert info.chat_template
        assert info.takes_tools
        assert not info.takes_thinking
        (eos,) = await batcher.tokenize(info.special_tokens["eos_token"], add_special_tokens=False)
        assert eos < info.vocab_size


async def test_a_text_alone() -> None:
    async with fake_batcher(system_prompt="Be kind. ", chat_template=TEMPLATE) as batcher:
        whole = await batcher.tokenize("abc")
        alone = await batcher.tokenize("abc", add_special_tokens=False)
        assert len(alone) == 3
        assert whole[-3:] == alone
        assert len(whole) == 1 + len("Be kind. abc")
        assert await batcher.tokenize("abc", add_special_tokens=True) == whole
        asked: Any = {"add_special_tokens": False}
        with pytest.raises(InvalidRequestError, match="template writes its own"):
            await batcher.tokenize(CHAT, **asked)
        with pytest.raises(InvalidRequestError, match="add_special_tokens is 0"):
            await batcher.tokenize("abc", add_special_tokens=0)  # type: ignore[arg-type]


def test_without_asyncio() -> None:
    with BlockingBatcher.over(fake_batcher(chat_template=TEMPLATE)) as batcher:
        assert batcher.model_info().chat_template == TEMPLATE


@pytest.mark.parametrize(
    ("template", "takes"),
    [
        (None, (False, False)),
        (TEMPLATE, (False, False)),
        (TEMPLATE + "{{ tools }}", (True, False)),
        (TEMPLATE + "{{ reasoning_effort }}", (False, True)),
        (TEMPLATE + "{{ tools }}{% if enable_thinking %}<think>{% endif %}", (True, True)),
    ],
)
async def test_what_the_template_takes(template: str | None, takes: tuple[bool, bool]) -> None:
    batcher = fake_batcher(chat_template=template)
    async with batcher:
        info = await batcher.model_info()
        assert (info.takes_tools, info.takes_thinking) == takes
        remote = await asyncio.wrap_future(batcher.threadsafe.model_info())
        assert (remote.takes_tools, remote.takes_thinking) == takes
    with BlockingBatcher.over(fake_batcher(chat_template=template)) as blocking:
        same = blocking.model_info()
        assert (same.takes_tools, same.takes_thinking) == takes
