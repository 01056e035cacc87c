"""`CallReader`: what callers hand in, checked, as parts of a request."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from pybatcher import ConfigError, InvalidRequestError, RequestTooLongError, SamplingParams
from pybatcher.calls.call import Call
from pybatcher.calls.chat_settings import ChatSettings
from pybatcher.params.config import SchedulerConfig
from pybatcher.scheduling import Request
from pybatcher.serving.call_reader import CallReader, check_samples
from pybatcher.serving.runtime import Runtime
from pybatcher.testing import FakeEngine, byte_tokenizer
from pybatcher.text import ChatTemplate, StopTexts

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
USER = [{"role": "user", "content": "Hi"}]


def ids(text: str, *, begins: bool = True) -> tuple[int, ...]:
    return tuple(byte_tokenizer().encode(text, add_special_tokens=begins))


def reader(
    system_prompt: str | None = None, shared: list[tuple[int, ...]] | None = None, **options: Any
) -> CallReader:
    runtime = Runtime(FakeEngine(**options), byte_tokenizer(), ChatTemplate(TEMPLATE), "fake")
    return CallReader(
        runtime, system_prompt, ([] if shared is None else shared).append, lambda: None
    )


def call(**fields: Any) -> Call:
    return Call(content="Once", **fields)


def test_what_all_requests_of_a_call_have_in_common() -> None:
    common = reader().common(
        call(priority=-3, timeout=2.5, namespace="books", tenant="connection 4"), 100.0
    )
    assert (common["priority"], common["deadline"]) == (-3, 102.5)
    assert (common["namespace"], common["tenant"]) == ("books", "connection 4")
    plain = reader().common(call(), 100.0)
    assert (plain["priority"], plain["deadline"], plain["namespace"], plain["tenant"]) == (
        0,
        None,
        "",
        "",
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"priority": 1.5}, "priority is 1.5"),
        ({"priority": 1001}, "priority is 1001"),
        ({"timeout": 0}, "timeout is 0"),
        ({"namespace": 3}, "namespace is 3"),
    ],
)
def test_options_that_are_none_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        reader().common(call(**fields), 0.0)


def test_keywords_win_over_params() -> None:
    params = SamplingParams(max_tokens=5, top_k=3)
    assert reader().params(call(params=params, sampling={"max_tokens": 9})) == SamplingParams(
        max_tokens=9, top_k=3
    )
    with pytest.raises(
        InvalidRequestError, match="unknown option 'max_tokes': did you mean max_tokens"
    ):
        reader().params(call(sampling={"max_tokes": 3}))
    with pytest.raises(InvalidRequestError, match="stop_token_ids names token 9999"):
        reader().params(call(sampling={"stop_token_ids": [9999]}))


async def test_output_is_token_ids_of_one_sample() -> None:
    one, two = SamplingParams(), SamplingParams(n=2)
    assert await reader().output(call(output=[5, 6]), one) == (5, 6)
    assert await reader().output(call(), two) == ()
    with pytest.raises(InvalidRequestError, match=r"n is 2; with output, .* it must be 1"):
        await reader().output(call(output=[5, 6]), two)
    with pytest.raises(InvalidRequestError, match=r"output\[1\] is 9999"):
        await reader().output(call(output=[5, 9999]), one)


async def test_prompts_come_after_the_system_prompt_and_chats_have_it_as_a_message() -> None:
    own = reader("Be kind. ")
    assert own.before_texts == ids("Be kind. ")
    assert await own.prompt_tokens("Hi", None) == ids("Be kind. Hi")
    assert await own.prompt_tokens([5, 6], None) == (5, 6)
    chat = ids("<system>Be kind. <user>Hi", begins=False)
    assert await own.prompt_tokens(USER, ChatSettings()) == chat
    without = reader()
    assert without.before_texts == ()
    assert await without.prompt_tokens("Hi", None) == ids("Hi")
    assert await without.prompt_tokens(USER, ChatSettings()) == ids("<user>Hi", begins=False)


async def test_the_beginning_of_chats_is_shared_once() -> None:
    shared: list[tuple[int, ...]] = []
    own = reader("Be kind. ", shared)
    await own.prompt_tokens("Hi", None)
    assert shared == []
    await asyncio.gather(*(own.prompt_tokens(USER, ChatSettings()) for _ in range(3)))
    await own.prompt_tokens(USER, ChatSettings())
    assert shared == [ids("<system>Be kind. <user>", begins=False)]
    without: list[tuple[int, ...]] = []
    await reader(None, without).prompt_tokens(USER, ChatSettings())
    assert without == []


def test_a_system_prompt_that_cannot_be_read_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"^system_prompt: ") as raised:
        reader("\ud800")
    assert isinstance(raised.value.__cause__, InvalidRequestError)


def test_what_ends_an_output() -> None:
    (end,) = byte_tokenizer().eos_token_ids
    own = reader()
    assert own._end_token_ids(SamplingParams(), None) == {end}
    assert own._end_token_ids(SamplingParams(stop_token_ids=[5]), None) == {end, 5}
    assert own._end_token_ids(SamplingParams(stop_token_ids=[5], ignore_eos=True), None) == {5}
    assert reader(vocab_size=end)._end_token_ids(SamplingParams(), None) == frozenset()


def test_how_long_an_output_may_become() -> None:
    own = reader(n_ctx=64)
    positions = FakeEngine(n_ctx=64).max_sequence_length

    def request(n_prompt: int, n_output: int, max_tokens: int) -> Request:
        return Request(
            request_id=1,
            prompt=(1,) * n_prompt,
            output=(2,) * n_output,
            params=SamplingParams(max_tokens=max_tokens),
        )

    assert own.most_output(request(10, 5, 7)) == 7
    assert own.most_output(request(10, 5, 10**6)) == positions - 10
    assert own.most_output(request(positions - 5, 5, 9)) == 5
    with pytest.raises(RequestTooLongError, match=r"prompt .* and output \(6\) have"):
        own.most_output(request(positions - 5, 6, 9))


def test_samples_that_can_never_wait_at_one_time() -> None:
    config = SchedulerConfig(max_queue_requests=8, max_queue_tokens=100)
    check_samples(8, 12, config)
    check_samples(1, 1000, config)  # one may wait, however long it is
    for n, n_prompt in ((9, 1), (2, 51)):
        with pytest.raises(InvalidRequestError, match=f"n is {n}, of a prompt of {n_prompt} "):
            check_samples(n, n_prompt, config)


async def test_long_stop_texts_have_one_automaton_made_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []
    make = StopTexts.__init__

    def making(self: StopTexts, stops: Any) -> None:
        threads.append(threading.current_thread())
        make(self, stops)

    monkeypatch.setattr(StopTexts, "__init__", making)
    own = reader()
    long = own.params(call(sampling={"stop": ["ab" * 1000]}))

    async def n_made() -> int:
        made = await asyncio.gather(*(own.stops(long) for _ in range(64)))
        return len(set(map(id, made)))

    assert await n_made() == 1
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    gc.collect()  # the futures of `gather` refer to each other
    assert await n_made() == 1
    assert len(threads) == 2  # it is kept no longer than calls use it
    short = await own.stops(own.params(call(sampling={"stop": ["ab"]})))
    assert short is not None
    assert threads[2] is threading.main_thread()
    assert await own.stops(own.params(call())) is None
