"""Sampling parameters are checked where they are made: field, value and range are said."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from pybatcher import InvalidRequestError, SamplingParams
from pybatcher.params import CHAT_SAMPLING, OF_MODELS
from pybatcher.params.sampling_params import with_valid

TAKEN: list[dict[str, Any]] = [
    {"max_tokens": 1},
    {"max_tokens": 2**31 - 1},
    {"temperature": 0},
    {"temperature": 100.0},
    {"top_p": 1},
    {"top_p": 1e-9},
    {"top_p": 0.0},
    {"min_p": 1.0},
    {"seed": 0},
    {"seed": 2**64 - 1},
    {"repetition_penalty": 1e-9},
    {"presence_penalty": -100},
    {"logit_bias": {0: -1000.0, 5: 1000}},
    {"logprobs": 32},
    {"min_tokens": 256},
    {"n": 128},
    {"stop": ["x"] * 64},
    {"of_model": list(OF_MODELS)},
    {"of_model": ["top_k"] * 5},
]
REFUSED: list[tuple[str, Any, str]] = [
    ("max_tokens", 0, "a whole number from 1"),
    ("max_tokens", 2**31, "a whole number from 1"),
    ("max_tokens", True, "a whole number"),
    ("n", 129, "from 1 to 128"),
    ("top_k", -2, "from -1"),
    ("min_tokens", 257, "from 0 to 256"),
    ("temperature", -0.1, "a number from 0 to 100"),
    ("temperature", float("nan"), "a number from 0 to 100"),
    ("temperature", "hot", "a number from 0 to 100"),
    ("top_p", -0.1, "a number from 0 to 1"),
    ("min_p", 1.1, "a number from 0 to 1"),
    ("repetition_penalty", 0, "a number above 0"),
    ("frequency_penalty", 101, "from -100 to 100"),
    ("seed", -(2**63) - 1, "from -"),
    ("seed", 2**64, "from -"),
    ("logprobs", 33, "from 0 to 32"),
    ("ignore_eos", 1, "True or False"),
    ("stop", "", "none of them empty"),
    ("stop", ["x"] * 65, "at most 64 texts"),
    ("stop", [5], "at most 64 texts"),
    ("stop_token_ids", "12", "token ids"),
    ("stop_token_ids", [-1], "token ids"),
    ("stop_token_ids", [True], "token ids"),
    ("logit_bias", [(1, 2.0)], "a mapping"),
    ("logit_bias", {-1: 0.0}, "a mapping"),
    ("logit_bias", {1: float("nan")}, "from -1000 to 1000"),
    ("logit_bias", {1: 1001.0}, "from -1000 to 1000"),
    ("of_model", "temperature", "a sequence of names of fields, of temperature, top_k"),
    ("of_model", ["seed"], "a sequence of names"),
    ("of_model", [5], "a sequence of names"),
    ("of_model", ["top_k"] * 6, "a sequence of names"),
]


def test_stop_token_ids_are_kept_once_in_their_order() -> None:
    assert SamplingParams(stop_token_ids=[7, 5, 7, 5, 3] * 50_000).stop_token_ids == (7, 5, 3)
    assert SamplingParams(stop_token_ids=list(np.array([7, 5, 7]))).stop_token_ids == (7, 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_token_ids", range(10_000)),
        ("logit_bias", dict.fromkeys(range(5000), 1.0)),
        ("choices", [f"choice {i}" for i in range(10_000)]),
        ("json_schema", {"description": "x" * 70_000}),
        ("regex", "x" * 2**16),
        ("grammar", "x" * 70_000),
    ],
)
def test_an_argument_is_counted_for_each_sample(name: str, value: Any) -> None:
    SamplingParams(**{name: value}, n=4)
    with pytest.raises(InvalidRequestError, match=rf"^{name} has .* n = 64 .* lower n") as raised:
        SamplingParams(**{name: value}, n=64, stop=["x" * 100])
    assert raised.value.field == name


@pytest.mark.parametrize("fields", TAKEN, ids=str)
def test_the_ends_of_each_range_belong_to_it(fields: dict[str, Any]) -> None:
    made = SamplingParams(**fields)
    for name, value in fields.items():
        found = getattr(made, name)
        assert (list(found) if isinstance(value, list) else found) == value


@pytest.mark.parametrize(("name", "value", "wanted"), REFUSED, ids=str)
def test_what_is_refused_is_named_with_its_value_and_the_range(
    name: str, value: object, wanted: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} is ")
    assert wanted in message


def test_other_forms_of_all_tokens_and_of_a_seed() -> None:
    """vLLM takes -1 for all tokens; OpenAI's seeds are signed numbers of 64 bits."""
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)
    for seed in (-1, -5, -(2**63)):
        assert SamplingParams(seed=seed).seed == seed + 2**64


def test_what_the_model_recommends_counts_for_the_fields_that_are_named() -> None:
    params = SamplingParams(temperature=0.3, top_k=7, top_p=0.4, of_model=["top_k", "top_p"])
    recommended = {"temperature": 0.6, "top_k": 20, "min_p": 0.1}
    assert params.with_recommended(recommended) == SamplingParams(
        temperature=0.3, top_k=20, top_p=0.4
    )
    plain = SamplingParams(temperature=0.3)
    assert plain.with_recommended(recommended) == plain


def test_the_defaults_of_chats_are_the_models_or_mild_ones() -> None:
    unsaid = SamplingParams.for_chat(max_tokens=5)
    usual = {"max_tokens": 5, **CHAT_SAMPLING}
    assert unsaid.with_recommended({}) == SamplingParams(**usual)
    assert unsaid.with_recommended({"repetition_penalty": 1.1}) == SamplingParams(
        **usual, repetition_penalty=1.1
    )
    for recommended in ({"temperature": 0.6, "top_k": 20}, {"min_p": 0.1}, {"top_p": 0.9}):
        expected = {**usual, "min_p": 0.0, **recommended}
        assert unsaid.with_recommended(recommended) == SamplingParams(**expected)


def test_a_temperature_that_a_chat_states_is_the_plain_one() -> None:
    stated = SamplingParams.for_chat(temperature=1.0)
    assert stated.with_recommended({}) == SamplingParams(temperature=1.0)
    assert stated.with_recommended({"temperature": 0.6, "top_k": 20}) == SamplingParams(
        temperature=1.0, top_k=20
    )
    cut = SamplingParams.for_chat(min_p=0.2)
    assert cut.with_recommended({}) == SamplingParams(temperature=0.7, min_p=0.2)
    assert cut.with_recommended({"temperature": 0.6}).min_p == 0.2
    with pytest.raises(InvalidRequestError, match="temperature is -1"):
        SamplingParams.for_chat(temperature=-1)


def test_what_was_made_does_not_change_with_what_it_was_made_of() -> None:
    stops, ids, bias = ["a"], [1], {2: 3.0}
    made = SamplingParams(stop=stops, stop_token_ids=ids, logit_bias=bias)
    for changed in (stops, ids, bias):
        changed.clear()
    assert (made.stop, made.stop_token_ids, made.logit_bias) == (("a",), (1,), {2: 3.0})
    assert SamplingParams(stop="a").stop == ("a",)
    with pytest.raises(FrozenInstanceError):
        made.max_tokens = 5  # type: ignore[misc]


def test_a_copy_has_all_fields_and_validates_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SamplingParams(**{name: value for fields in TAKEN for name, value in fields.items()})
    expected = replace(made, n=1, seed=5)

    def refuse(self: SamplingParams) -> None:
        raise AssertionError("validated again")

    monkeypatch.setattr(SamplingParams, "__post_init__", refuse)
    copy = with_valid(made, n=1, seed=5)
    assert copy == expected
    assert copy is not made
