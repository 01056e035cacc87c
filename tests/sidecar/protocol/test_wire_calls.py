"""Requests over the wire: read as they were written, or refused with the field's name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_values import (
    ANYTHING,
    IDS,
    OPTION_NAMES,
    calls,
    over_the_wire,
    sampling_params,
)

from pybatcher.calls.call import Call
from pybatcher.calls.chat_settings import ChatSettings
from pybatcher.errors import InvalidRequestError
from pybatcher.params import SamplingParams
from pybatcher.sidecar.protocol.wire import WireCall, read_call, write_call

PLAIN = {"priority": 0, "timeout": None, "namespace": None}


def call_of(content: Any = "hi", **fields: Any) -> Call:
    return Call(**{**PLAIN, "content": content, "params": None, "sampling": {}, **fields})


def read(opts: object, content: object = "hi", *, is_chat: bool = False) -> WireCall:
    return read_call([content, opts], is_chat=is_chat)


@pytest.mark.slow
@given(calls(), IDS, st.booleans(), st.none() | st.integers(1, 2**40))
def test_a_call_is_read_as_it_was_written(
    call: Call, id: str | int | None, stream: bool, window: int | None
) -> None:
    params = write_call(call, id=id, stream=stream, window=window)
    got = read_call(over_the_wire(params), is_chat=call.chat is not None)
    assert got == WireCall(call=call, id=id, stream=stream, window=window)


@given(sampling_params())
def test_numbers_of_a_call_keep_every_bit(params: SamplingParams) -> None:
    got = read_call(
        over_the_wire(write_call(call_of(params=params), id=None, stream=False)), is_chat=False
    )
    assert got.call.params is not None
    for name in SamplingParams.__dataclass_fields__:
        sent, come = getattr(params, name), getattr(got.call.params, name)
        if sent:  # -0.0 and 0.0 are the same to everybody who uses them
            assert repr(come) == repr(sent)


@given(st.floats(min_value=0.0, exclude_min=True))
def test_a_timeout_that_is_one_stays_one(timeout: float) -> None:
    params = write_call(call_of(timeout=timeout), id=None, stream=False)
    got = read_call(over_the_wire(params), is_chat=False).call.timeout
    assert got is not None
    assert got > 0
    if 1e-300 < timeout < 1e300:
        assert got == pytest.approx(timeout, rel=2**-51)


def test_only_what_is_not_the_default_is_written() -> None:
    assert write_call(call_of(), id=None, stream=False) == ["hi"]
    assert write_call(
        call_of(params=SamplingParams(seed=3), sampling={"max_tokens": 4}), id="a", stream=True
    ) == ["hi", {"max_tokens": 4, "seed": 3, "id": "a", "stream": True}]


def test_token_ids_of_any_kind_are_written_as_a_list() -> None:
    for ids in ([1, 2], (1, 2), np.array([1, 2]), [np.int64(1), 2], range(1, 3)):
        params = write_call(call_of(ids, output=ids), id=None, stream=False)
        assert params == [[1, 2], {"output": [1, 2]}]
        assert all(type(one) is int for one in params[0])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"content": "\ud800"}, "prompt is"),
        ({"content": [1, True]}, "prompt[1] is True"),
        ({"content": [1, 2**31]}, "prompt[1] is 2147483648"),
        ({"content": 5}, "prompt is 5"),
        ({"content": [{"role": "\udc80"}], "chat": ChatSettings()}, "messages[0].role is"),
        ({"content": [{"role": object}], "chat": ChatSettings()}, "messages[0].role is"),
        ({"content": [{"n": 2**64}], "chat": ChatSettings()}, "messages[0].n is"),
        ({"sampling": {"stop": "\udc80"}}, "stop is"),
        ({"sampling": {"tempo": 1}}, "unknown option 'tempo'"),
        ({"params": 3}, "params is 3"),
        ({"priority": 2**70}, "priority is"),
        ({"timeout": 0}, "timeout is 0"),
        ({"namespace": "\udc80"}, "namespace is"),
        ({"output": [-(2**40)]}, "output[0] is"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_it_is(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        write_call(call_of(**fields), id=None, stream=False)
    assert str(refused.value).startswith(field)


def test_messages_that_hold_themselves_are_refused() -> None:
    messages: list[Any] = [{}]
    messages[0]["content"] = messages
    with pytest.raises(InvalidRequestError, match="deeper than 32"):
        write_call(call_of(messages, chat=ChatSettings()), id=None, stream=False)


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (5, "opts is 5"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be a whole number from 1"),
        ({"max_tokens": "many"}, "max_tokens is 'many'"),
        ({"temperature": [0]}, "temperature is"),
        ({"stop": ["a", 5]}, r"stop\[1\] is 5"),
        ({"stop": b"\xff"}, "stop is .* not valid UTF-8"),
        ({"stop_token_ids": ["a"]}, r"stop_token_ids\[0\] is 'a'"),
        ({"logit_bias": {"x": 1}}, "logit_bias is 'x'"),
        ({"logit_bias": {"5": "x"}}, "logit_bias is"),
        ({"logit_bias": 5}, "logit_bias is"),
        ({"timeout_ms": 0}, "timeout_ms is 0.0; it must be milliseconds above 0"),
        ({"timeout_ms": float("nan")}, "timeout_ms is nan"),
        ({"timeout_ms": "5"}, "timeout_ms is '5'"),
        ({"priority": 1.5}, "priority is 1.5"),
        ({"namespace": 5}, "namespace is 5"),
        ({"id": 1.5}, "id is 1.5"),
        ({"id": True}, "id is True"),
        ({"id": "x" * 1025}, "id is 'xxx.*at most 1024 characters"),
        ({"id": "\udcff"}, "id is .* not valid UTF-8"),
        ({"stream": 1}, "stream is 1; it must be true or false"),
        ({"window": 0}, "window is 0; it must be a whole number, 1 or more"),
        ({"output": "ab"}, "output is 'ab'"),
        (
            {"tempo": 5},
            "unknown option 'tempo'; there are: choices, frequency_penalty, grammar, id,",
        ),
        ({5: 5}, "a key of opts is 5"),
    ],
)
def test_options_that_are_wrong_are_named(opts: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read(opts)


@pytest.mark.parametrize("params", [[], ["a", {}, 5]])
def test_as_many_params_as_there_are(params: list[object]) -> None:
    with pytest.raises(InvalidRequestError, match=r"must be \[prompt, opts\?\]"):
        read_call(params, is_chat=False)


def test_a_text_that_is_no_utf_8_is_refused() -> None:
    prompt = over_the_wire("a\udcff")
    for is_chat, content, field in (
        (False, prompt, "prompt"),
        (True, [{"role": "user", "content": prompt}], "messages[0].content"),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            read({}, content, is_chat=is_chat)
        assert str(refused.value) == f"{field} is 'a\\udcff', which is not valid UTF-8"


def test_bytes_are_taken_where_a_text_is_wanted() -> None:
    got = read(
        {b"stop": [b"x"], b"id": b"i", b"namespace": b"n", b"logit_bias": {b"5": 1}}, "hé".encode()
    )
    assert got.call.content == "hé"
    assert got.call.params == SamplingParams(stop=("x",), logit_bias={5: 1})
    assert (got.id, got.call.namespace) == ("i", "n")
    chat = read({}, [{b"role": b"user", "content": b"hi"}], is_chat=True)
    assert chat.call.content == [{"role": "user", "content": "hi"}]


def test_nil_is_not_said() -> None:
    nothing = dict.fromkeys((*SamplingParams.__dataclass_fields__, "id", "stream", "window"))
    assert read(nothing) == read_call(["hi"], is_chat=False)
    assert read(None) == read_call(["hi"], is_chat=False)


@given(
    st.booleans(),
    st.lists(ANYTHING, max_size=3),
    st.none() | st.dictionaries(OPTION_NAMES, ANYTHING, max_size=4),
)
def test_whatever_is_asked_for_is_read_or_refused(
    is_chat: bool, params: list[object], opts: dict[str, object] | None
) -> None:
    with suppress(InvalidRequestError):
        read_call(params if opts is None else [*params, opts], is_chat=is_chat)
