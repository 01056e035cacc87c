"""Outputs with a form, by the shipped model: valid at any temperature, the same in any company."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from batcher_helpers import until
from pydantic import BaseModel
from serving_doubles import serving
from small_sidecar import sidecar

import pybatcher.text.grammars.probe as probe
from pybatcher import Batcher, Client, DeadlineExceededError, InvalidRequestError

PROMPT = "Once upon a time"
WARM = {"temperature": 1.5, "max_tokens": 400}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "friends": {"type": "array", "items": {"enum": ["dog", "cat"]}, "maxItems": 3},
    },
    "required": ["name", "age", "friends"],
    "additionalProperties": False,
}
FORMS: list[dict[str, Any]] = [
    {"json_schema": SCHEMA},
    {"regex": r"[A-Z][a-z]{2,8}( [a-z]{1,6}){1,3}\."},
    {"grammar": 'start: "<" /[a-z]{3}/ ("," /[a-z]{3}/){0,4} ">"'},
    {"choices": ["yes", "no", 'may"be\n', "yesterday"]},
]


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
async def batcher() -> AsyncIterator[Batcher]:
    async with Batcher(n_threads=1, n_parallel=16) as one:
        yield one
        await until(lambda: one.statistics().running == 0)
        one.check_idle()


def check(form: dict[str, Any], text: str) -> None:
    """Fail where the text has not the form."""
    if "json_schema" in form:
        jsonschema.validate(json.loads(text), form["json_schema"])
    elif "regex" in form:
        assert re.fullmatch(form["regex"], text)
    elif "choices" in form:
        assert text in form["choices"]
    else:
        assert re.fullmatch("<[a-z]{3}(,[a-z]{3})*>", text)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
async def test_every_output_has_its_form(batcher: Batcher, form: dict[str, Any]) -> None:
    made = await asyncio.gather(
        *(batcher.generate(PROMPT, seed=seed, **WARM, **form) for seed in range(6)),
        batcher.generate(PROMPT, max_tokens=400, **form),
    )
    for one in made:
        if one.finish_reason == "stop":
            check(form, one.text)
    assert sum(one.finish_reason == "stop" for one in made) >= 5


@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
async def test_the_same_bits_alone_in_a_crowd_and_with_drafts(form: dict[str, Any]) -> None:
    def calls(batcher: Batcher) -> list[Any]:
        asked = {**WARM, **form, "max_tokens": 60, "logprobs": 2}
        return [batcher.generate(PROMPT, seed=seed, **asked) for seed in range(5)]

    async with Batcher(n_threads=1, max_draft_tokens=0) as batcher:
        alone = [await call for call in calls(batcher)]
    async with Batcher(n_threads=2, max_draft_tokens=8, n_parallel=9, n_ctx=512) as batcher:
        beside = [
            asyncio.ensure_future(batcher.generate(f"{i} {PROMPT}", max_tokens=80, ignore_eos=True))
            for i in range(4)
        ]
        crowd = await asyncio.gather(*calls(batcher))
        await asyncio.gather(*beside)
    for one, other in zip(alone, crowd, strict=True):
        assert one.token_ids == other.token_ids
        assert one.text == other.text
        assert one.logprobs == other.logprobs
        assert one.finish_reason == other.finish_reason


async def test_forced_tokens_are_accepted_drafts(batcher: Batcher) -> None:
    fixed = {
        "type": "object",
        "properties": {f"a long name of property {i}": {"const": i} for i in range(6)},
        "required": [f"a long name of property {i}" for i in range(6)],
        "additionalProperties": False,
    }
    before = batcher.statistics()
    made = await batcher.generate(PROMPT, json_schema=fixed, max_tokens=400)
    assert made.parsed == {f"a long name of property {i}": i for i in range(6)}
    after = batcher.statistics()
    assert after.steps - before.steps < len(made.token_ids) / 2


@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
async def test_a_continuation_goes_on_from_every_cut(
    batcher: Batcher, form: dict[str, Any]
) -> None:
    options = {**WARM, **form, "seed": 3}
    whole = await batcher.generate(PROMPT, **options)
    ids = whole.token_ids
    for cut in range(len(ids) + 1):
        rest = await batcher.generate(PROMPT, output=ids[:cut], **options)
        assert ids[:cut] + rest.token_ids == ids
        assert rest.finish_reason == whole.finish_reason
        assert rest.parsed is None or not cut


async def test_values_of_types_and_of_samples(batcher: Batcher) -> None:
    schema = Person.model_json_schema()
    made = await batcher.generate(PROMPT, json_schema=Person, n=2, seed=1, **WARM)
    for one in made.choices:
        if one.finish_reason == "stop":
            assert isinstance(one.parsed, Person)
            jsonschema.validate(json.loads(one.text), schema)
    numbers = await batcher.generate(PROMPT, json_schema=list[int], seed=2, **WARM)
    assert isinstance(numbers.parsed, list) or numbers.finish_reason == "length"
    word = await batcher.generate(PROMPT, choices=["up", "down"])
    assert word.parsed == word.text
    assert word.finish_reason == "stop"
    stream = batcher.stream(PROMPT, json_schema=SCHEMA, seed=4, **WARM)
    text = "".join([str(piece) async for piece in stream])
    assert stream.completion is not None
    assert stream.completion.text == text
    assert stream.completion.parsed == json.loads(text)


async def test_what_cuts_an_output_has_no_value(batcher: Batcher) -> None:
    cut = await batcher.generate(PROMPT, json_schema=SCHEMA, max_tokens=3)
    assert (cut.finish_reason, cut.parsed) == ("length", None)
    stopped = await batcher.generate(PROMPT, json_schema=SCHEMA, stop='"age"', max_tokens=99)
    assert (stopped.finish_reason, stopped.parsed) == ("stop", None)


async def test_least_tokens_and_ignored_ends_give_way(batcher: Batcher) -> None:
    made = await batcher.generate(PROMPT, choices=["yes"], min_tokens=20, ignore_eos=True)
    assert (made.text, made.finish_reason) == ("yes", "stop")


BAD = [
    ({"regex": "(("}, "regex cannot be used"),
    ({"grammar": "start: nothing"}, "grammar cannot be used"),
    ({"json_schema": {"type": "nonsense"}}, "json_schema has type, which cannot be enforced"),
    ({"regex": "a{1000000000}"}, "regex cannot be used: to compile it takes more than"),
    ({"regex": "((((a{99}){99}){99}){99}){99}"}, "regex cannot be used: to compile it takes"),
    (
        {"json_schema": {"properties": {f"p{i}": {"pattern": f"^a{i}.*b$"} for i in range(9000)}}},
        "json_schema cannot be",
    ),
]


@pytest.mark.parametrize(("form", "said"), BAD, ids=range(len(BAD)))
async def test_a_form_that_cannot_be_had_fails_alone(
    batcher: Batcher, form: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_SECONDS", 3)
    alone = await batcher.generate(PROMPT, max_tokens=60, ignore_eos=True)
    beside = asyncio.ensure_future(batcher.generate(PROMPT, max_tokens=60, ignore_eos=True))
    with pytest.raises(InvalidRequestError, match=said):
        await batcher.generate(PROMPT, **form)
    assert (await beside).token_ids == alone.token_ids
    assert batcher.health().ok


async def test_an_output_without_the_form_is_refused(batcher: Batcher) -> None:
    ids = await batcher.tokenize("zzz")
    with pytest.raises(InvalidRequestError, match="output has a token that choices does not allow"):
        await batcher.generate(PROMPT, choices=["yes"], output=ids)


async def test_over_the_socket(tmp_path: Path, batcher: Batcher) -> None:
    path = tmp_path / "batcher.sock"
    async with sidecar(path, batcher) as _, Client(path) as client:
        for form in [*FORMS, {"json_object": True}]:
            options = {**WARM, **form, "seed": 5, "max_tokens": 90}
            here, there = await batcher.generate(PROMPT, **options), None
            there = await client.generate(PROMPT, **options)
            assert there.token_ids == here.token_ids
            assert there.parsed == here.parsed
        person = await client.generate(PROMPT, json_schema=Person, seed=6, **WARM)
        assert isinstance(person.parsed, Person)


async def test_a_worker_that_is_killed_is_a_pause_for_outputs_with_a_form(
    tmp_path: Path, batcher: Batcher
) -> None:
    """Its tokens, the stream's pieces and the value are those of an undisturbed run."""
    long = {"regex": "([a-z]{2,7} ){60}[a-z]{3}[.]", "max_tokens": 400}
    calls = [{**long, **WARM, "seed": seed} for seed in range(4)]
    expected = await asyncio.gather(*(batcher.generate(PROMPT, **call) for call in calls))
    with serving(tmp_path) as running:
        async with Client(running.socket) as client:
            streams = [client.stream(PROMPT, **call) for call in calls]
            pieces = [await anext(stream) for stream in streams]
            (pid,) = running.worker_pids()
            os.kill(pid, signal.SIGKILL)
            texts = []
            for stream, first in zip(streams, pieces, strict=True):
                texts.append(first.text + "".join([piece.text async for piece in stream]))
            assert (await client.statistics()).worker_restarts == 1
    assert texts == [one.text for one in expected]
    for stream, one in zip(streams, expected, strict=True):
        assert stream.completion is not None
        assert stream.completion.token_ids == one.token_ids
        assert one.finish_reason == stream.completion.finish_reason


@pytest.mark.slow
async def test_slow_forms_keep_deadlines_and_harm_no_others(batcher: Batcher) -> None:
    """The processes that try them end with their callers, so that their slots are free again."""
    async with asyncio.timeout(probe._SECONDS):
        for i in range(6):
            several = [
                batcher.generate(
                    PROMPT, regex=f"a{{{10**9 + 10 * i + k}}}", timeout=0.3, namespace="a"
                )
                for k in range(4)
            ]
            for one in await asyncio.gather(*several, return_exceptions=True):
                assert isinstance(one, DeadlineExceededError)
        slow = [
            asyncio.ensure_future(
                batcher.generate(PROMPT, regex=f"b{{{10**9 + k}}}", namespace="a")
            )
            for k in range(4)
        ]
        await asyncio.sleep(0.3)
        made = await batcher.generate(
            PROMPT, regex="x{20001}", max_tokens=3, namespace="b", timeout=8.0
        )
        assert made.text.startswith("x")
        for one in slow:
            one.cancel()
        await asyncio.wait(slow)
