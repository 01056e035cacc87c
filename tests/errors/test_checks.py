"""What counts as a number, a flag or a text, and that no value makes a check fail otherwise."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from odd_values import odd_value

from pybatcher import ConfigError, InvalidRequestError, PybatcherError, SamplingParams
from pybatcher.errors.checks import OPTION, REQUEST, plain_float, plain_int, plain_text, short
from pybatcher.params.config import EngineConfig, SchedulerConfig


class Level(enum.IntEnum):
    HIGH = 3


class OddText(str):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = str.__hash__

    def __len__(self) -> int:
        raise RuntimeError


class ClassTrap:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError


@pytest.mark.parametrize("value", [5, np.int64(5), np.uint8(5), np.array(5)])
def test_whole_numbers_become_int(value: object) -> None:
    assert plain_int(value) == 5
    assert type(plain_int(value)) is int


@pytest.mark.parametrize(
    "value", [True, np.bool_(True), 5.0, np.float32(5), "5", None, np.array([5, 6])]
)
def test_what_is_no_whole_number(value: object) -> None:
    assert plain_int(value) is None


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.float16(2), np.int8(2)])
def test_numbers_become_float(value: object) -> None:
    assert plain_float(value) == 2.0
    assert type(plain_float(value)) is float


@pytest.mark.parametrize("value", [True, np.bool_(True), 10**400, "2", 2j])
def test_what_is_no_number(value: object) -> None:
    assert plain_float(value) is None


def test_texts_become_str() -> None:
    assert type(plain_text(OddText("text"))) is str
    assert plain_text(np.str_("text")) == "text"
    assert plain_text(b"text") is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("\ud800", r"'\ud800'"),
        (b"x" * 10**6, "... (1000000 bytes)"),
        ([[[[[1]]]]], "[[[...]]]"),
    ],
)
def test_any_value_can_be_shown(value: object, shown: str) -> None:
    assert shown in short(value)
    assert len(short(value)) <= 300


def test_a_number_that_python_does_not_write_out_can_be_shown() -> None:
    assert short(10**5000) == "a whole number of 16610 bits"


def test_a_value_whose_type_cannot_be_asked() -> None:
    trap = ClassTrap()
    assert plain_int(trap) is plain_float(trap) is plain_text(trap) is None
    assert "ClassTrap" in short(trap)
    with pytest.raises(InvalidRequestError, match="params is"):
        REQUEST.items("params", trap, 5, "a list")
    with pytest.raises(ConfigError, match="batch_timeout is"):
        SchedulerConfig(batch_timeout=trap)  # type: ignore[arg-type]


CHECKS: list[Callable[[Any], object]] = [
    lambda value: REQUEST.whole("x", value, 0, 9),
    lambda value: REQUEST.number("x", value, 0.0, 9.0),
    lambda value: REQUEST.flag("x", value),
    lambda value: REQUEST.text("x", value),
    lambda value: REQUEST.choice("x", value, ("last", 3)),
    lambda value: REQUEST.items("x", value, 100, "a list"),
    lambda value: REQUEST.pairs("x", value, 100, "a mapping"),
]


@pytest.mark.parametrize("check", CHECKS)
def test_every_check_ends_with_a_plain_value_or_its_own_error(
    check: Callable[[Any], object],
) -> None:
    random = Random(3)
    for _ in range(1000):
        try:
            found = check(odd_value(random))
        except InvalidRequestError as error:
            said = str(error)
            said.encode()
            assert said.startswith("x ")
        else:
            assert type(found) in (int, float, bool, str, tuple, list)


def test_sampling_parameters_are_stored_plain() -> None:
    params = SamplingParams(
        max_tokens=np.int64(5),
        temperature=np.float32(0.5),
        ignore_eos=np.bool_(True),
        top_k=Level.HIGH,
        stop=[OddText("end")],
        stop_token_ids=[np.int32(7)],
        logit_bias={np.int64(3): np.float64(1.5)},
    )
    assert (params.max_tokens, params.temperature, params.ignore_eos) == (5, 0.5, True)
    for name in ("max_tokens", "temperature", "ignore_eos", "top_k"):
        assert type(getattr(params, name)) in (int, float, bool)
    assert type(params.stop[0]) is str
    assert params.logit_bias == {3: 1.5}


TOO_LARGE = 10**400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": TOO_LARGE}, "temperature is a whole number of 1329 bits"),
        ({"top_p": TOO_LARGE}, "top_p is"),
        ({"min_p": -TOO_LARGE}, "min_p is"),
        ({"repetition_penalty": TOO_LARGE}, "repetition_penalty is"),
        ({"presence_penalty": TOO_LARGE}, "presence_penalty is"),
        ({"frequency_penalty": math.nan}, "frequency_penalty is nan"),
        ({"logit_bias": {1: TOO_LARGE}}, "logit_bias is"),
        ({"stop": "\ud800"}, r"stop is '\\ud800', with a lone surrogate at index 0"),
        ({"stop": ["a", "b\udfff"]}, r"stop\[1\] is .* at index 1"),
        ({"stop": ["x" * 20_000]}, "stop has 20000 characters"),
        ({"stop_token_ids": range(10**9)}, "stop_token_ids is range"),
        ({"ignore_eos": 1}, "ignore_eos is 1"),
    ],
)
def test_sampling_parameters_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        SamplingParams(**options)


def test_options_are_stored_plain() -> None:
    engine, scheduler = EngineConfig(n_ctx=np.int64(64)), SchedulerConfig(watermark=np.float32(0.5))
    assert type(engine.n_ctx) is int
    assert type(scheduler.watermark) is float


@pytest.mark.parametrize("value", [TOO_LARGE, math.nan, True, "1", None])
def test_options_that_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="restart_window is"):
        OPTION.number("restart_window", value, 0.0, 1.0)
    with pytest.raises(ConfigError, match="batch_timeout is"):
        SchedulerConfig(batch_timeout=value)  # type: ignore[arg-type]


def test_reading_names_what_raised() -> None:
    error = pytest.raises(PybatcherError, match="x is 5, which raises KeyError when it is read")
    with error, REQUEST.reading("x", 5, "readable"):
        raise KeyError
