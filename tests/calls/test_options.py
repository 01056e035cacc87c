"""The keywords of calls are the fields of what is made of them.

What a type checker makes of them is in `test_typed_options.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest

from pybatcher import SamplingParams
from pybatcher.calls.call import Call, CallOptions
from pybatcher.calls.chat_settings import CHAT_OPTIONS
from pybatcher.calls.options import (
    ChatOptions,
    EmbedOptions,
    GenerateOptions,
    PrefixOptions,
    RequestOptions,
    SamplingOptions,
    ScoreOptions,
    TemplateOptions,
)
from pybatcher.calls.questions import AddPrefix, EmbedTexts, ScoreContinuations


def test_keywords_of_sampling_are_the_fields_of_sampling_params() -> None:
    fields = SamplingParams.__dataclass_fields__
    assert SamplingOptions.__optional_keys__ == set(fields)


@pytest.mark.parametrize(
    ("options", "question", "besides"),
    [
        (RequestOptions, CallOptions, set()),
        (ScoreOptions, ScoreContinuations, {"prompt", "continuations"}),
        (EmbedOptions, EmbedTexts, {"texts"}),
        (PrefixOptions, AddPrefix, {"prefix"}),
    ],
)
def test_keywords_fit_what_is_asked_with_them(
    options: Any, question: Any, besides: set[str]
) -> None:
    keywords = get_type_hints(options)
    fields = set(question.__dataclass_fields__)
    assert set(keywords) == fields - besides
    assert not options.__required_keys__


def test_keywords_of_a_call_are_its_options_and_those_of_sampling() -> None:
    of_sampling: Mapping[str, Any] = SamplingOptions.__annotations__
    of_any: Mapping[str, Any] = RequestOptions.__annotations__
    assert set(get_type_hints(ChatOptions)) == {*of_any, *of_sampling, *CHAT_OPTIONS}
    assert set(get_type_hints(TemplateOptions)) < set(CHAT_OPTIONS)
    assert set(get_type_hints(GenerateOptions)) == {*of_any, *of_sampling, "output"}
    own = set(Call.__dataclass_fields__) - {"content", "chat", "params", "sampling"}
    assert own == {*of_any, "output"}
