"""What prompts may be, what is refused, and that reading them never holds up the loop."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from array import array
from collections import UserList, deque
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
from batcher_helpers import PATIENCE, acquire, until
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers

from pybatcher import (
    Batcher,
    ConfigError,
    DeadlineExceededError,
    InvalidRequestError,
    RequestTooLongError,
)
from pybatcher.calls.questions import DetokenizeEach, TokenBytes
from pybatcher.loading.tokenizers.growth import growth_of
from pybatcher.serving import prompts
from pybatcher.testing import FakeEngine, byte_tokenizer, fake_batcher
from pybatcher.text import Tokenizer

PROMPT = "Once upon a time"


@pytest.mark.parametrize(
    "prompt",
    [(65, 66, 67), range(65, 68), np.arange(65, 68), list(np.arange(65, 68, dtype=np.uint8))],
    ids=["tuple", "range", "array", "numpy ints"],
)
async def test_prompts_of_token_ids(prompt: object) -> None:
    async with fake_batcher() as batcher:
        expected = await batcher.generate([65, 66, 67], max_tokens=5)
        completion = await batcher.generate(prompt, max_tokens=5)
    assert completion.token_ids == expected.token_ids
    assert completion.usage.prompt_tokens == 3


MESSAGE = {"role": "user", "content": "Hello!"}


@pytest.mark.parametrize("prompt", [MESSAGE, [MESSAGE], [[MESSAGE], [MESSAGE]]])
async def test_messages_in_the_place_of_a_prompt(prompt: object) -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match="messages are for `chat`"):
            await batcher.generate(prompt)
        with pytest.raises(InvalidRequestError, match="messages are for `chat`"):
            await batcher.embed([MESSAGE])
        with pytest.raises(InvalidRequestError, match="messages are for `chat`"):
            await batcher.score("x", [MESSAGE])


@pytest.mark.parametrize(
    ("messages", "field", "said"),
    [
        ("Hello!", "messages", "a text to continue is for `generate`"),
        (MESSAGE, "messages", "also for one message"),
        (["Hello!", "Bye!"], "messages[0]", "several texts to continue are for `generate`"),
        ([[MESSAGE], [MESSAGE]], "messages[0]", "a call takes one conversation"),
    ],
)
async def test_other_lists_in_the_place_of_messages(
    messages: object, field: str, said: str
) -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match=said) as error:
            await batcher.chat(messages)
    assert error.value.field == field


BAD_PROMPTS = [
    ("", "at least one character"),
    ([], "at least one token id"),
    (np.array([], dtype=int), "at least one token id"),
    ("a lone \ud800 surrogate", "surrogate"),
    (b"bytes", "of type bytes"),
    (bytearray(b"bytes"), "of type bytearray"),
    (None, "of type NoneType"),
    (7, "of type int"),
    ({"a": 1}, "of type dict"),
    ({1, 2}, "of type set"),
    ([1, 2.0], r"prompt\[1\] is 2.0, of type float"),
    (np.array([1.0]), r"prompt\[0\] is 1.0, of type float"),
    (np.array([[1, 2]]), r"prompt\[0\] is \[1, 2\], of type list"),
    ([65, "b"], r"prompt\[1\] is 'b', of type str"),
    ([1, True], r"prompt\[1\] is True, of type bool"),
    ([1, np.bool_(True)], r"prompt\[1\] is .*True.*, of type bool"),
    ([1, None], r"prompt\[1\] is None"),
    ([5, -1], r"prompt\[1\] is -1; .* from 0 to 257"),
    ([5, 258], r"prompt\[1\] is 258; .* from 0 to 257"),
    ([2**70], r"prompt\[0\] is 1180591620717411303424"),
]


@pytest.mark.parametrize(("prompt", "message"), BAD_PROMPTS)
async def test_bad_prompts(prompt: object, message: str) -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match=message):
            await batcher.generate(prompt)
        with pytest.raises(InvalidRequestError, match=message):
            async for _ in batcher.stream(prompt):
                pass
        assert (await batcher.generate(PROMPT, max_tokens=1)).token_ids
        assert batcher.statistics().submitted == 1


async def test_a_prompt_that_is_too_long() -> None:
    async with fake_batcher(n_ctx=64) as batcher:
        with pytest.raises(RequestTooLongError, match="has 64 tokens; a sequence has 64 positions"):
            await batcher.generate([1] * 64)
        completion = await batcher.generate([1] * 60, max_tokens=50, ignore_eos=True)
        assert len(completion.token_ids) == 4
        assert batcher.statistics().rejected == 1


async def test_a_tokenizer_that_knows_more_tokens_than_the_model() -> None:
    async with fake_batcher(FakeEngine(vocab_size=230)) as batcher:
        with pytest.raises(InvalidRequestError, match="token 256, which the tokenizer knows and"):
            await batcher.generate("short")
        with pytest.raises(InvalidRequestError, match="token ids are from 0 to 229"):
            await batcher.generate("long " * 1000)
        completion = await batcher.generate([65, 66], max_tokens=5)
        assert completion.finish_reason == "length"
        assert batcher.statistics().failed == 0


def encoding_threads(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> list[threading.Thread]:
    """Return a list that gets the thread of each call of `encode`."""
    threads: list[threading.Thread] = []
    encode = tokenizer.encode

    def recording(text: str, **options: bool) -> list[int]:
        threads.append(threading.current_thread())
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", recording)
    return threads


async def test_a_long_text_is_tokenised_on_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = byte_tokenizer()
    threads = encoding_threads(tokenizer, monkeypatch)
    async with fake_batcher(tokenizer=tokenizer) as batcher:
        await batcher.generate("short", max_tokens=1)
        await batcher.generate("long " * 1000, max_tokens=1)
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


def growing_tokenizer() -> Tokenizer:
    """A byte-level tokenizer whose normalizer makes 50 characters of each "e"."""
    backend = Backend.from_str(str(byte_tokenizer().definition))
    backend.normalizer = normalizers.Replace("e", "e" * 50)
    return Tokenizer(backend, growth=growth_of(backend))


async def test_a_short_text_that_does_not_stay_short_is_tokenised_on_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = growing_tokenizer()
    threads = encoding_threads(tokenizer, monkeypatch)
    async with fake_batcher(tokenizer=tokenizer, n_ctx=65_536) as batcher:
        await batcher.generate("e" * 100, max_tokens=1)
        assert len(await batcher.tokenize("e" * 1000)) == 50_001
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


async def test_a_text_that_grows_far_too_much_is_refused_before_it_is_tokenised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = growing_tokenizer()
    async with fake_batcher(tokenizer=tokenizer, n_ctx=65_536) as batcher:
        assert len(await batcher.tokenize("a" * 30_000)) == 30_001
        monkeypatch.setattr(tokenizer, "encode", None)
        for asked in (
            batcher.tokenize("e" * 30_000),
            batcher.generate("e" * 30_000),
            batcher.embed(["e" * 30_000]),
        ):
            with pytest.raises(
                RequestTooLongError, match="has 30000 characters, of which the normalizer"
            ) as caught:
                await asked
            assert caught.value.field in ("prompt", "texts[0]")


async def test_token_ids_of_far_too_much_text_are_refused() -> None:
    backend = Backend.from_str(str(byte_tokenizer().definition))
    backend.decoder = decoders.Replace("e", "e" * 60)
    tokenizer = Tokenizer(backend, growth=growth_of(backend))
    async with fake_batcher(tokenizer=tokenizer, n_ctx=2**20) as batcher:
        (e,) = await batcher.tokenize("e", add_special_tokens=False)
        assert await batcher.detokenize([e] * 2000) == "e" * 120_000
        for asked in (
            batcher.detokenize([e] * 2**20),
            batcher._ask(TokenBytes(token_ids=[e] * 2**20)),
            batcher._ask(DetokenizeEach(token_ids=[[e] * 2**19] * 2)),
        ):
            with pytest.raises(RequestTooLongError, match=r"may be a text of .* divide the ids"):
                await asked


async def test_many_token_ids_are_checked_with_pauses() -> None:
    async with fake_batcher(n_ctx=262_144) as batcher:
        pauses = 0
        task = asyncio.create_task(batcher.generate([1] * 100_000 + [999], max_tokens=1))
        while not task.done():
            await asyncio.sleep(0)
            pauses += 1
        with pytest.raises(InvalidRequestError, match=r"prompt\[100000\] is 999"):
            await task
        assert pauses > 100_000 // 8192


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the texts that were tokenised."""
    lengths: list[int] = []
    encode = Tokenizer.encode

    def recording(self: Tokenizer, text: str, **options: bool) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", recording)
    return lengths


HUGE = "word " * 1_000_000
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    tokenized: list[int],
) -> None:
    async with fake_batcher(n_ctx=4096, chat_template=TEMPLATE) as batcher:
        message = "has 5000000 characters, and no token stands for more than .* 4096 positions"
        for asked in (
            batcher.generate(HUGE),
            batcher.chat([{"role": "user", "content": HUGE}]),
            batcher.score("a", ["b", HUGE]),
            batcher.embed([HUGE]),
            batcher.add_prefix(HUGE),
        ):
            with pytest.raises(RequestTooLongError, match=message):
                await asked
        assert max(tokenized, default=0) < 10


async def test_token_ids_that_cannot_fit_are_refused_before_they_are_looked_at() -> None:
    class Unread(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError

    async with fake_batcher(n_ctx=4096) as batcher:
        for ids in (Unread([1] * 9000), range(10**9), np.broadcast_to(np.int64(1), 10**12)):
            with pytest.raises(RequestTooLongError, match="token ids; a sequence has 4096 pos"):
                await batcher.generate(ids)
        with pytest.raises(
            RequestTooLongError, match=r"1000000000 token ids; one call takes .* 131"
        ):
            await batcher.detokenize(range(10**9))
        with pytest.raises(
            RequestTooLongError, match=r"1000000000 token ids; one call takes .* 131"
        ):
            await batcher.tokenize(range(10**9))


async def test_tokens_are_counted_beyond_the_context() -> None:
    """Clients ask for the number of tokens just when a conversation has become too long."""
    text = "word " * 10_000
    ids = tuple(byte_tokenizer().encode(text, add_special_tokens=False))
    async with fake_batcher(n_ctx=4096, chat_template=TEMPLATE) as batcher:
        assert await batcher.tokenize(text, add_special_tokens=False) == ids
        assert len(await batcher.tokenize(text)) >= len(ids)
        assert await batcher.tokenize([{"role": "user", "content": text}]) == ids
        for own in (ids, list(ids)):
            assert await batcher.tokenize(own) == ids
        for content in (text, ids):
            with pytest.raises(RequestTooLongError):
                await batcher.generate(content)
        chat = await batcher.tokenize([{"role": "user", "content": text}])
        with pytest.raises(RequestTooLongError, match="messages"):
            await batcher.chat(chat)


async def test_the_counted_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "_MOST_COUNTED", 20_000)
    async with fake_batcher(n_ctx=4096, chat_template=TEMPLATE) as batcher:
        for n_characters in (19_000, 21_000, 30_000_000):
            text = "a" * n_characters
            for content in (text, [{"role": "user", "content": text}]):
                if n_characters < 20_000:
                    assert len(await batcher.tokenize(content)) >= n_characters
                    continue
                with pytest.raises(RequestTooLongError, match="one call counts at most 20000 tok"):
                    await batcher.tokenize(content)


async def test_tokenising_stops_where_the_tokens_are_too_many(tokenized: list[int]) -> None:
    async with fake_batcher(n_ctx=100_000) as batcher:
        with pytest.raises(RequestTooLongError, match="tokens or more; a sequence has 100000"):
            await batcher.generate("the fox " * 20_000)
        assert sum(tokenized) < 160_000


@pytest.mark.parametrize(
    ("n_ctx", "max_positions", "advice"),
    [
        (4096, 4096, "shorten it or raise n_ctx"),
        (4096, 100, "shorten it, as the model has no more positions"),
    ],
)
async def test_raising_n_ctx_is_advised_where_it_helps(
    n_ctx: int, max_positions: int, advice: str
) -> None:
    engine = FakeEngine(n_ctx=n_ctx, max_positions=max_positions)
    async with fake_batcher(engine) as batcher:
        with pytest.raises(RequestTooLongError) as caught:
            await batcher.generate([1] * 9000)
        assert str(caught.value).endswith(f": {advice}")


async def test_few_long_texts_at_a_time_and_none_that_nobody_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    going_on, most, released = 0, 0, threading.Event()
    lock, started = threading.Lock(), threading.Semaphore(0)
    portions: list[int] = []
    encode = Tokenizer.encode

    def waiting(self: Tokenizer, text: str, **options: bool) -> list[int]:
        nonlocal going_on, most
        if len(text) > 100:
            with lock:
                going_on += 1
                most = max(most, going_on)
                portions.append(len(text))
            started.release()
            assert released.wait(PATIENCE)
            with lock:
                going_on -= 1
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", waiting)
    async with fake_batcher(n_ctx=1_000_000) as batcher:
        text = "the fox " * 20_000  # of three portions
        tasks = [asyncio.create_task(batcher.tokenize(text)) for _ in range(6)]
        for _ in range(2):
            await asyncio.to_thread(acquire, started)
        for task in tasks:
            task.cancel()
        assert await asyncio.gather(*tasks, return_exceptions=True) == [ANY] * 6
        assert len(portions) == 2
        assert (await batcher.generate("short", max_tokens=1)).token_ids
        released.set()
        await until(lambda: going_on == 0)
        assert len(await batcher.tokenize(text)) == 160_001
    assert most == 2
    assert len(portions) == 2 + 3


async def test_sequences_of_any_kind_are_taken() -> None:
    async with fake_batcher() as batcher:
        expected = (await batcher.generate([65, 66], max_tokens=3)).token_ids
        for prompt in (deque([65, 66]), UserList([65, 66]), array("i", [65, 66])):
            assert (await batcher.generate(prompt, max_tokens=3)).token_ids == expected


async def test_lone_surrogates_are_refused_by_field() -> None:
    async with fake_batcher() as batcher:
        for asked, field in (
            (batcher.generate("\ud800"), "prompt"),
            (batcher.generate("long " * 1000 + "\ud800"), "prompt"),
            (batcher.generate("x", namespace="\ud800"), "namespace"),
            (batcher.generate("x", stop="\ud800"), "stop"),
            (batcher.add_prefix("x", name="\ud800"), "name"),
            (batcher.add_prefix("\ud800"), "prefix"),
            (batcher.embed(["x", "\ud800"]), r"texts\[1\]"),
            (batcher.remove_prefix("x", "\ud800"), "namespace"),
        ):
            with pytest.raises(InvalidRequestError, match=f"{field} is .*lone surrogate"):
                await asked
        assert batcher.statistics().restarts == 0
        with pytest.raises(ConfigError, match=r"system_prompt is .*lone surrogate"):
            fake_batcher(system_prompt="\ud800")


async def test_a_chat_that_nobody_waits_for_leaves_its_slot_to_others() -> None:
    """A template that renders for long ends with its caller, and the deadline holds for it."""
    endless = (
        "{% if messages[0].content | length > 9 %}{% for a in range(99999) %}"
        "{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}"
    )
    long = [{"role": "user", "content": "word " * 400_000}]
    async with fake_batcher(chat_template=endless, n_ctx=2**22) as batcher:
        for _ in range(6):
            with pytest.raises(DeadlineExceededError):
                await batcher.chat(long, timeout=0.05)
        honest = await asyncio.wait_for(
            batcher.chat([{"role": "user", "content": "hi"}], max_tokens=1), PATIENCE
        )
    assert honest.token_ids


async def test_the_growth_of_a_models_tokenizer_is_known(checkpoint: Path, tmp_path: Path) -> None:
    """From the file to the reader of prompts."""
    copy = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    file = copy / "tokenizer.json"
    edited = json.loads(file.read_text())
    edited["normalizer"] = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 50}
    file.write_text(json.dumps(edited))
    async with Batcher(copy, n_ctx=64) as batcher:
        with pytest.raises(RequestTooLongError, match="of which the normalizer"):
            await batcher.tokenize("e" * 30_000)
