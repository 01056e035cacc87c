"""What may come beside a prompt, and what is refused."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from pybatcher import (
    Batcher,
    ConfigError,
    InvalidRequestError,
    SamplingParams,
)
from pybatcher.testing import fake_batcher

PROMPT = "Once upon a time"


async def test_keywords_win_over_params() -> None:
    params = SamplingParams(max_tokens=3, temperature=1.0, seed=1, ignore_eos=True)
    async with fake_batcher() as batcher:
        by_params = await batcher.generate(PROMPT, params)
        both = await batcher.generate(PROMPT, params, max_tokens=7)
    assert len(by_params.token_ids) == 3
    assert both.token_ids[:3] == by_params.token_ids
    assert len(both.token_ids) == 7


BAD_ARGUMENTS = [
    ({"max_tokens": -1}, "max_tokens is -1"),
    ({"max_tokens": True}, "max_tokens is True"),
    ({"temperature": math.nan}, "temperature is nan"),
    (
        {"max_token": 5},
        r"unknown option 'max_token': did you mean max_tokens\? There are: .*output, .*timeout",
    ),
    ({"params": {"max_tokens": 5}}, "params is .*of type dict"),
    ({"stop_token_ids": [258]}, "stop_token_ids names token 258; .* from 0 to 257"),
    ({"logit_bias": {300: 1.0}}, "logit_bias names token 300"),
    ({"timeout": 0}, "timeout is 0; it must be seconds above 0"),
    ({"timeout": math.nan}, "timeout is nan"),
    ({"timeout": True}, "timeout is True"),
    ({"timeout": "1"}, "timeout is '1'"),
    ({"priority": 1001}, "priority is 1001; it must be a whole number from -1000 .* to 1000"),
    ({"priority": -1001}, "priority is -1001"),
    ({"priority": True}, "priority is True"),
    ({"priority": 1.0}, "priority is 1.0"),
    ({"namespace": 5}, "namespace is 5; it must be a str, or None"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
async def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match=message):
            await batcher.generate(PROMPT, **arguments)
        assert batcher.statistics().submitted == 0


MISSPELT = {
    "generate": (lambda b, o: b.generate(PROMPT, **o), "prompt_logprobs, .*trace_headers$"),
    "stream": (lambda b, o: b.stream(PROMPT, **o), "output, presence_penalty, priority, "),
    "chat": (lambda b, o: b.chat([], **o), "tool_choice, tools, "),
    "stream_chat": (lambda b, o: b.stream_chat([], **o), "tool_choice, tools, "),
    "score": (
        lambda b, o: b.score(PROMPT, [PROMPT], **o),
        "namespace, priority, tenant, timeout, top_logprobs, trace_headers$",
    ),
    "embed": (
        lambda b, o: b.embed(PROMPT, **o),
        "namespace, pooling, priority, tenant, timeout, trace_headers, truncate$",
    ),
    "add_prefix": (lambda b, o: b.add_prefix(PROMPT, **o), "name, namespace, timeout$"),
}


@pytest.mark.parametrize("call", MISSPELT)
async def test_a_misspelt_keyword_is_told_with_those_that_there_are(call: str) -> None:
    ask, listed = MISSPELT[call]
    message = rf"unknown option 'poling'.*here are: .*{listed}"
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match=message):
            await ask(batcher, {"poling": 1})
        with pytest.raises(InvalidRequestError, match=message):
            await asyncio.wrap_future(ask(batcher.threadsafe, {"poling": 1}))


@pytest.mark.parametrize("value", [10**400, -(10**400), np.array([1, 2]), np.bool_(True), 1j])
async def test_values_that_compare_and_convert_badly(value: object) -> None:
    async with fake_batcher() as batcher:
        for asked in (
            batcher.generate(PROMPT, timeout=value),
            batcher.generate(PROMPT, priority=value),
            batcher.embed([PROMPT], pooling=value),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidRequestError):
                await asked
        assert batcher.statistics().submitted == 0


async def test_numbers_of_numpy_are_numbers() -> None:
    async with fake_batcher() as batcher:
        plain = await batcher.generate(PROMPT, max_tokens=5, temperature=0.5, seed=3)
        numpy = await batcher.generate(
            PROMPT,
            max_tokens=np.int64(5),
            temperature=np.float32(0.5),
            seed=np.uint64(3),
            timeout=np.float64(60),
            priority=np.int8(1),
        )
    assert numpy.token_ids == plain.token_ids


@pytest.mark.parametrize("value", [5, b"\xff", ["x"], "", "a\0b", "\ud800"])
def test_bad_models(value: object) -> None:
    with pytest.raises(ConfigError, match=r"model is .* a path or a name, or None"):
        Batcher(value)


@pytest.mark.parametrize("name", ["progress", "on_failure"])
def test_what_cannot_be_called(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 5; it must be a function, or None"):
        Batcher(**{name: 5})


@pytest.mark.parametrize("value", ["", 5, b"x"])
def test_bad_system_prompts(value: object) -> None:
    with pytest.raises(ConfigError, match="system_prompt is"):
        Batcher(system_prompt=value)


def test_unknown_options() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'n_contexts'.*n_ctx"):
        Batcher(n_contexts=5)
