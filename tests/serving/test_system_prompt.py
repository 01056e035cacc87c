"""The shared system prompt: computed once, in front of everything, the same output as unshared."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from batcher_helpers import PATIENCE, until

from pybatcher import ConfigError, DeadlineExceededError, InvalidRequestError, ModelFormatError
from pybatcher.testing import FakeEngine, byte_tokenizer, fake_batcher
from pybatcher.text import ChatTemplate

SYSTEM = "You are a helpful assistant, and this is a rather long description of it. "
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT_START = f"<system>{SYSTEM}</><user>"


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_only_the_users_tokens_are_computed() -> None:
    engine = FakeEngine(n_parallel=6)
    prompts = [f"{i}. question" for i in range(12)]
    async with fake_batcher(engine, system_prompt=SYSTEM) as batcher:
        shared = await asyncio.gather(*(batcher.generate(p, max_tokens=1) for p in prompts))
    n_system = 1 + len(SYSTEM)
    computed = engine.statistics()["computed_tokens"]
    assert computed == n_system + sum(len(prompt) for prompt in prompts)
    for prompt, completion in zip(prompts, shared, strict=True):
        assert completion.usage.cached_tokens == n_system
        assert completion.usage.prompt_tokens == n_system + len(prompt)
        async with fake_batcher() as unshared:
            alone = await unshared.generate(SYSTEM + prompt, max_tokens=1)
        assert completion.token_ids == alone.token_ids


async def test_it_does_not_cost_the_callers_a_sequence() -> None:
    async with fake_batcher(n_parallel=3, system_prompt=SYSTEM) as batcher:
        assert batcher.runtime.engine.n_parallel == 3 + 16
        streams = [batcher.stream(f"{i}", max_tokens=500, ignore_eos=True) for i in range(4)]
        first = [asyncio.create_task(anext(stream)) for stream in streams[:3]]
        await asyncio.gather(*first)
        last = asyncio.create_task(anext(streams[3]))
        await until(lambda: batcher.statistics().queued == 1)
        assert batcher.statistics().running == 3
        streams[0].close()
        await last


async def test_chats_share_how_they_begin() -> None:
    engine = FakeEngine(n_parallel=6)
    questions = [f"{i} is what?" for i in range(7)]
    async with fake_batcher(engine, system_prompt=SYSTEM, chat_template=TEMPLATE) as batcher:
        await batcher.generate("x", max_tokens=1)
        before = engine.statistics()["computed_tokens"]
        chats = await asyncio.gather(*(batcher.chat(user(q), max_tokens=1) for q in questions))
        computed = engine.statistics()["computed_tokens"] - before
        stream = batcher.stream_chat(user(questions[0]), max_tokens=1)
        pieces = [piece async for piece in stream]
    tails = [f"{question}</><assistant>" for question in questions]
    assert computed == len(CHAT_START) + sum(map(len, tails))
    assert pieces[0].token_ids == chats[0].token_ids
    for tail, chat in zip(tails, chats, strict=True):
        assert chat.usage.cached_tokens == len(CHAT_START)
        async with fake_batcher() as unshared:
            ids = byte_tokenizer().encode(CHAT_START + tail, add_special_tokens=False)
            alone = await unshared.generate(ids, max_tokens=1)
        assert chat.token_ids == alone.token_ids


async def test_how_chats_begin_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[object] = []
    render = ChatTemplate.render

    def counting(self: ChatTemplate, messages: object, **options: bool) -> str:
        rendered.append(messages)
        return render(self, messages, **options)

    monkeypatch.setattr(ChatTemplate, "render", counting)
    async with fake_batcher(system_prompt=SYSTEM, chat_template=TEMPLATE) as batcher:
        await asyncio.gather(*(batcher.chat(user(f"{i}"), max_tokens=1) for i in range(5)))
        await batcher.chat(user("Hi"), max_tokens=1)
    assert len(rendered) == 1 + 2 + 6  # one asks for the place of the text


async def test_a_chat_with_a_system_message_of_its_own_keeps_it() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *user("Hi")]
    async with fake_batcher(system_prompt=SYSTEM, chat_template=TEMPLATE) as batcher:
        chat = await batcher.chat(messages, max_tokens=5)
    async with fake_batcher(chat_template=TEMPLATE) as plain:
        alone = await plain.chat(messages, max_tokens=5)
    assert chat.token_ids == alone.token_ids
    assert chat.usage.prompt_tokens == alone.usage.prompt_tokens


async def test_token_ids_are_taken_as_they_are() -> None:
    async with fake_batcher(system_prompt=SYSTEM) as batcher:
        completion = await batcher.generate([65, 66, 67], max_tokens=5)
    async with fake_batcher() as plain:
        alone = await plain.generate([65, 66, 67], max_tokens=5)
    assert completion.token_ids == alone.token_ids


async def test_it_is_computed_once_for_all_namespaces() -> None:
    engine = FakeEngine(n_parallel=6)
    async with fake_batcher(engine, system_prompt=SYSTEM, chat_template=TEMPLATE) as batcher:
        completions = [
            await batcher.generate("Hi", max_tokens=1, namespace=namespace)
            for namespace in ("a", "b", "a", None, "")
        ]
        assert engine.statistics()["computed_tokens"] == 1 + len(SYSTEM) + len("Hi") * 5
        chats = await asyncio.gather(
            *(batcher.chat(user("Hi"), max_tokens=1, namespace=f"user {i}") for i in range(7))
        )
    assert {one.usage.cached_tokens for one in completions} == {1 + len(SYSTEM)}
    assert {one.usage.cached_tokens for one in chats} == {len(CHAT_START)}
    assert len({one.token_ids for one in completions}) == len({c.token_ids for c in chats}) == 1


async def test_only_its_own_blocks_are_found_in_another_namespace() -> None:
    secret = "x" * 100
    system_ids = byte_tokenizer().encode(SYSTEM)
    async with fake_batcher(system_prompt=SYSTEM) as batcher:
        cached = {}
        for namespace in ("a", "a", "b", None):
            completion = await batcher.generate(secret, max_tokens=1, namespace=namespace)
            cached.setdefault(namespace, []).append(completion.usage.cached_tokens)
        begins_so = await batcher.generate([*system_ids, 5, 6], max_tokens=1, namespace="c")
        other = await batcher.generate([*system_ids[:70], *range(9)], max_tokens=1, namespace="c")
    n_system = len(system_ids)
    n_blocks = (n_system + len(secret) - 1) // 32
    assert cached == {"a": [n_system, 32 * n_blocks], "b": [n_system], None: [n_system]}
    assert begins_so.usage.cached_tokens == n_system
    assert other.usage.cached_tokens == 70


async def test_a_prefix_of_a_caller_stays_in_its_namespace() -> None:
    ids = byte_tokenizer().encode(SYSTEM + "and more than that, for the caller's own eyes.")
    async with fake_batcher(system_prompt=SYSTEM) as batcher:
        for namespace in (None, "a"):
            await batcher.add_prefix(ids, name="own", namespace=namespace)
        cached = {
            namespace: (await batcher.generate([*ids, 5], max_tokens=1, namespace=namespace)).usage
            for namespace in (None, "a", "b")
        }
    n_system = 1 + len(SYSTEM)
    assert [usage.cached_tokens for usage in cached.values()] == [len(ids), len(ids), n_system]


async def test_a_system_prompt_without_room() -> None:
    engine = FakeEngine(n_ctx=64, n_parallel=4)
    batcher = fake_batcher(engine, system_prompt="x" * 64)
    with pytest.raises(ConfigError, match="system_prompt: the shared prefix has 65 tokens"):
        await batcher.start()
    assert engine.closed


async def test_chat_without_system_prompt() -> None:
    async with fake_batcher(chat_template=TEMPLATE) as batcher:
        chat = await batcher.chat(user("Hi"), max_tokens=5)
        raw = byte_tokenizer().encode("<user>Hi</><assistant>", add_special_tokens=False)
        assert chat.token_ids == (await batcher.generate(raw, max_tokens=5)).token_ids


@pytest.mark.parametrize("with_system_prompt", [False, True])
@pytest.mark.parametrize(
    "messages",
    [[], None, "Hi", 5, [5.5], ["Hi"], [{"role": 5, "content": "Hi"}]],
)
async def test_bad_messages(messages: object, with_system_prompt: bool) -> None:
    system_prompt = SYSTEM if with_system_prompt else None
    async with fake_batcher(chat_template=TEMPLATE, system_prompt=system_prompt) as batcher:
        with pytest.raises(InvalidRequestError, match="messages"):
            await batcher.chat(messages)
        assert (await batcher.chat(user("Hi"), max_tokens=1)).token_ids


async def test_chat_with_a_model_that_has_no_template() -> None:
    async with fake_batcher(system_prompt=SYSTEM) as batcher:
        with pytest.raises(InvalidRequestError, match="no chat template"):
            await batcher.chat(user("Hi"))


LIKE_GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + TEMPLATE
)
LEAVES_OUT = "{% set messages = messages | rejectattr('role', 'equalto', 'system') %}" + TEMPLATE


@pytest.mark.parametrize("template", [LIKE_GEMMA, LEAVES_OUT])
@pytest.mark.parametrize("in_parts", [False, True])
async def test_a_template_without_system_messages_shows_it_in_the_users_message(
    template: str, in_parts: bool
) -> None:
    def content(text: str) -> object:
        return [{"type": "text", "text": text}] if in_parts else text

    async with fake_batcher(system_prompt=SYSTEM, chat_template=template) as batcher:
        chat = await batcher.chat([{"role": "user", "content": content("Hi")}], max_tokens=5)
        again = [*user("Hi"), {"role": "assistant", "content": "a"}, *user("b")]
        longer = await batcher.chat(again, max_tokens=1)
    async with fake_batcher(chat_template=TEMPLATE) as plain:
        one = [{"role": "user", "content": content(f"{SYSTEM}\nHi")}]
        merged = user(f"{SYSTEM}\nHi")
        assert chat.token_ids == (await plain.chat(one, max_tokens=5)).token_ids
        alone = await plain.chat([*merged, *again[1:]], max_tokens=1)
    assert longer.usage.prompt_tokens == alone.usage.prompt_tokens
    assert longer.token_ids == alone.token_ids
    if not in_parts:
        assert chat.usage.cached_tokens == len(f"<user>{SYSTEM}\n")


async def test_a_system_prompt_that_the_template_never_shows() -> None:
    template = "{% for message in messages %}<{{ message.role }}>{% endfor %}"
    with pytest.raises(ConfigError, match="system_prompt: the chat template shows neither a sys"):
        await fake_batcher(system_prompt=SYSTEM, chat_template=template).start()


async def test_a_broken_template_affects_chats_only() -> None:
    async with fake_batcher(system_prompt=SYSTEM, chat_template="{% broken %}") as batcher:
        assert (await batcher.generate("a", max_tokens=1)).token_ids
        with pytest.raises(ModelFormatError, match="chat_template"):
            await batcher.chat(user("Hi"))


async def test_how_chats_begin_is_not_searched_for_when_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()
    render = ChatTemplate.render

    def endless(*args: Any, goes_on: Callable[[], bool] | None = None, **options: Any) -> str:
        if goes_on is not None and not ended.is_set():
            while goes_on():
                time.sleep(0.001)
            ended.set()
        return render(*args, goes_on=goes_on, **options)

    async with fake_batcher(system_prompt=SYSTEM, chat_template=TEMPLATE) as batcher:
        monkeypatch.setattr(ChatTemplate, "render", endless)
        with pytest.raises(DeadlineExceededError):
            await batcher.chat(user("hi"), timeout=0.05)
        assert await asyncio.to_thread(ended.wait, PATIENCE)
        assert (await batcher.chat(user("hi"), max_tokens=1)).token_ids
