"""An error whose message begins with the name of a field has that name as its `field`."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pybatcher
from pybatcher import InvalidRequestError, SamplingParams
from pybatcher.errors.checks import REQUEST, field_error
from pybatcher.scheduling import own_copy
from pybatcher.testing import fake_batcher

ROOT = Path(pybatcher.__file__).parent
KINDS = {"InvalidRequestError", "RequestTooLongError"}
# Rooms whose errors are about files, and doubles of the engine.
NO_REQUESTS = ("loading", "models", "testing", "cli")
NAMED = re.compile(r"(?:[a-z_]+|\0)(?:\.\w+|\[\0\])*(?: is | has | cannot be used|: )")


def nameless(source: str) -> Iterator[int]:
    """Yield the lines of errors whose message begins with a field that is not passed as `field`."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) in KINDS and node.args):
            continue
        message = node.args[0]
        parts = message.values if isinstance(message, ast.JoinedStr) else [message]
        text = "".join(str(one.value) if isinstance(one, ast.Constant) else "\0" for one in parts)
        if NAMED.match(text) and not any(one.arg == "field" for one in node.keywords):
            yield node.lineno


def test_every_error_that_begins_with_a_field_names_it() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] not in NO_REQUESTS
        for line in nameless(path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_a_missing_field_is_found() -> None:
    assert list(nameless('raise InvalidRequestError(f"{name}[{i}] is {value}")')) == [1]
    assert list(nameless('raise InvalidRequestError(f"{name} is 5", field=name)')) == []
    assert list(nameless('raise InvalidRequestError("the batcher was started")')) == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": -1}, "temperature"),
        ({"stop": ["a", "\ud800"]}, "stop[1]"),
        ({"choices": ["a", ""]}, "choices[1]"),
        ({"regex": "a", "grammar": "b"}, None),
    ],
)
def test_sampling_parameters(options: dict[str, Any], field: str | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ("", {}, "prompt"),
        ([5, 10**9], {}, "prompt[1]"),
        ("a", {"stop_token_ids": [10**9]}, "stop_token_ids"),
        ("a", {"timeout": -1}, "timeout"),
        ("a" * 10**6, {}, "prompt"),
    ],
)
async def test_calls(prompt: Any, options: dict[str, Any], field: str) -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError) as caught:
            await batcher.generate(prompt, **options)
        assert caught.value.field == field


def test_descriptions_are_no_fields() -> None:
    assert REQUEST.bad("SamplingParams", 5, "plain").field is None
    assert field_error(InvalidRequestError, "a key of logit_bias", "is 5").field is None


def test_copies_have_the_field() -> None:
    error = InvalidRequestError("stop is 5", field="stop")
    for copied in (copy.copy(error), pickle.loads(pickle.dumps(error)), own_copy(error)):
        assert (str(copied), copied.field) == ("stop is 5", "stop")
        assert copied is not error
    assert InvalidRequestError("no").field is None
