"""The kinds of questions: values that nobody changes, each with a handler."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from pybatcher.calls import questions
from pybatcher.calls.call import CallOptions, Question
from pybatcher.calls.questions import (
    AddPrefix,
    Describe,
    DescribeModel,
    Detokenize,
    DetokenizeEach,
    EmbedTexts,
    ListPrefixes,
    ReadHealth,
    ReadStatistics,
    Reload,
    RemovePrefix,
    ScoreContinuations,
    TokenBytes,
    Tokenize,
)
from pybatcher.testing import fake_batcher

EXAMPLES: list[Question[Any]] = [
    ScoreContinuations(prompt="a", continuations=["b"]),
    EmbedTexts(texts=["a"]),
    AddPrefix(prefix="a"),
    RemovePrefix(name="a"),
    ListPrefixes(),
    Tokenize(content="a"),
    Detokenize(token_ids=[1]),
    DetokenizeEach(token_ids=[[1], [2, 3]]),
    TokenBytes(token_ids=[1, 2]),
    ReadStatistics(),
    ReadHealth(),
    Describe(),
    DescribeModel(),
    Reload({}),
]
KINDS = {getattr(questions, name) for name in questions.__all__}


def test_there_is_an_example_of_every_kind() -> None:
    assert {type(question) for question in EXAMPLES} == KINDS
    assert all(issubclass(kind, Question) for kind in KINDS)


@pytest.mark.parametrize("question", EXAMPLES, ids=lambda question: type(question).__name__)
def test_nobody_changes_a_question(question: Any) -> None:
    for field in fields(question):
        with pytest.raises(FrozenInstanceError):
            setattr(question, field.name, None)
    assert not hasattr(question, "__dict__")


def test_only_what_queues_has_a_priority_and_a_timeout() -> None:
    assert {kind for kind in KINDS if issubclass(kind, CallOptions)} == {
        ScoreContinuations,
        EmbedTexts,
    }


async def test_every_kind_has_a_handler() -> None:
    async with fake_batcher() as batcher:
        assert set(batcher._running_service()._handlers) == KINDS


async def test_a_question_of_no_kind_is_not_answered() -> None:
    class Other(Question[int]):
        pass

    async with fake_batcher() as batcher:
        with pytest.raises(KeyError):
            await batcher._running_service().ask(Other())
