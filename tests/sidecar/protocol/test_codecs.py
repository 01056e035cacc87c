"""Questions over the wire: read as they were written, or refused; and their answers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_values import (
    ANYTHING,
    BESIDES,
    IDS,
    OPTION_NAMES,
    PROMPTS,
    TEXTS,
    over_the_wire,
)

from pybatcher.calls import questions
from pybatcher.calls.call import CallOptions, Question
from pybatcher.calls.chat_settings import ChatSettings
from pybatcher.calls.prefix_info import Prefixes, PrefixInfo
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
from pybatcher.errors import InvalidRequestError, ProtocolError
from pybatcher.sidecar.protocol.codecs import CODECS, METHODS, codec_of


def crossed(question: Question[Any], id: str | int | None = None) -> object:
    """What comes of a question at the other end, asked for under a name."""
    codec = codec_of(question)
    params = codec.write(question)
    if id is not None:
        *texts, last = params
        params = [*texts, {**last, "id": id}] if isinstance(last, dict) else [*params, {"id": id}]
    read, got = codec.read(over_the_wire(params))
    assert got == id
    return read


@given(TEXTS | PROMPTS, st.lists(PROMPTS, min_size=1, max_size=3), BESIDES, IDS)
def test_scores_and_vectors_are_asked_for_as_they_were_written(
    prompt: Any, several: list[Any], beside: CallOptions, id: str | int | None
) -> None:
    options = asdict(beside)
    score = ScoreContinuations(prompt=prompt, continuations=several, **options)
    assert crossed(score, id) == score
    likelier = replace(score, top_logprobs=5)
    assert crossed(likelier, id) == likelier
    for pooling in ("mean", "last"):
        embed = EmbedTexts(texts=several, pooling=pooling, **options)
        assert crossed(embed, id) == embed


@given(PROMPTS, TEXTS.filter(bool), st.none() | TEXTS)
def test_prefixes_are_asked_for_as_they_were_written(
    prefix: Any, name: str, namespace: str | None
) -> None:
    for own, timeout in ((name, None), (None, None), (name, 0.25), (None, 1e6)):
        add = AddPrefix(prefix=prefix, name=own, namespace=namespace, timeout=timeout)
        assert crossed(add) == add
    remove = RemovePrefix(name=name, namespace=namespace)
    assert crossed(remove) == remove


def test_tokens_are_asked_for_as_they_were_written() -> None:
    messages = [{"role": "user"}]
    thinks = ChatSettings(enable_thinking=True, chat_template_kwargs={"date": "today"})
    for content, chat in (
        ("hi", None),
        ([1, 2], None),
        (messages, ChatSettings()),
        (messages, thinks),
    ):
        tokenize = Tokenize(content=content, chat=chat)
        assert crossed(tokenize) == tokenize
    alone = Tokenize(content="hi", add_special_tokens=False)
    assert crossed(alone) == alone
    assert crossed(Detokenize(token_ids=(1, 2))) == Detokenize(token_ids=[1, 2])
    several = DetokenizeEach(token_ids=[[1, 2], [3]])
    assert crossed(several) == several
    assert crossed(TokenBytes(token_ids=(1, 2))) == TokenBytes(token_ids=[1, 2])


def test_what_has_no_params_is_read_whatever_there_is() -> None:
    for question in (ReadHealth(), ReadStatistics(), ListPrefixes(), Describe(), DescribeModel()):
        assert crossed(question) == question
        assert codec_of(question).read([1, "more"]) == (question, None)
    assert crossed(Reload({"n_batch": 7})) == Reload({"n_batch": 7})


def test_every_kind_of_question_has_a_codec() -> None:
    kinds = {getattr(questions, name) for name in questions.__all__}
    assert kinds == {codec.question for codec in CODECS}
    assert len(METHODS) == len(CODECS)


@given(
    st.sampled_from(CODECS),
    st.lists(ANYTHING, max_size=3),
    st.none() | st.dictionaries(OPTION_NAMES, ANYTHING, max_size=4),
)
def test_whatever_is_asked_for_is_read_or_refused(
    codec: Any, params: list[object], opts: dict[str, object] | None
) -> None:
    with suppress(InvalidRequestError):
        codec.read(params if opts is None else [*params, opts])


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("score", ["a"], r"must be \[prompt, continuations, opts\?\]"),
        ("score", ["a", []], r"continuations is \[\]"),
        ("score", ["a", ["b", 5]], r"continuations\[1\] is 5"),
        ("score", ["a", ["b"], {"top_logprobs": -1}], "top_logprobs is -1"),
        ("embed", ["a"], "inputs is 'a'"),
        ("embed", [["a"], {"pooling": "max"}], "pooling is 'max'"),
        ("embed", [["a"], {"max_tokens": 5}], "unknown option 'max_tokens'"),
        ("add_prefix", ["a", {"name": ""}], "name is ''"),
        ("add_prefix", ["a", {"priority": 5}], "unknown option 'priority'"),
        ("add_prefix", ["a", {"timeout_ms": 0}], "timeout_ms is 0"),
        ("add_prefix", ["a", {"timeout_ms": "1"}], "timeout_ms is '1'"),
        ("remove_prefix", [5], "name is 5"),
        ("tokenize", [5], "prompt is 5"),
        ("detokenize", ["ab"], "token_ids is 'ab'"),
        ("detokenize_each", ["ab"], "token_ids is 'ab'"),
        ("detokenize_each", [[[1], 5]], r"token_ids\[1\] is 5"),
        ("token_bytes", ["ab"], "token_ids is 'ab'"),
        ("token_bytes", [[1], {"n": 1}], "unknown option 'n'"),
        ("reload", [{}, {}], r"must be \[changes\?\]"),
        ("reload", [5], "changes is 5"),
    ],
)
def test_params_that_are_wrong_are_named(method: str, params: list[Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        METHODS[method].read(params)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (ScoreContinuations(prompt="\ud800", continuations=["a"]), "prompt is"),
        (ScoreContinuations(prompt="a", continuations=["a", "\ud800"]), r"continuations\[1\] is"),
        (EmbedTexts(texts=["a"], pooling="max"), "pooling is 'max'"),
        (EmbedTexts(texts=["a"], timeout=0), "timeout is 0"),
        (AddPrefix(prefix="a", name=""), "name is ''"),
        (AddPrefix(prefix="a", timeout=-1), "timeout is -1"),
        (RemovePrefix(name="a", namespace="\ud800"), "namespace is"),
        (Tokenize(content=5), "prompt is 5"),  # type: ignore[arg-type]
        (Detokenize(token_ids=[1, True]), r"token_ids\[1\] is True"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_it_is(question: Question[Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        codec_of(question).write(question)


def test_only_what_is_not_the_default_is_written() -> None:
    assert METHODS["embed"].write(EmbedTexts(texts=["a"])) == [["a"]]
    named = [["a"], {"pooling": "last"}]  # which the model may not have said itself
    assert METHODS["embed"].write(EmbedTexts(texts=["a"], pooling="last")) == named
    assert METHODS["embed"].write(EmbedTexts(texts=["a"], pooling="mean")) == [
        ["a"],
        {"pooling": "mean"},
    ]
    assert METHODS["add_prefix"].write(AddPrefix(prefix="a")) == ["a"]


def test_prefixes_come_back_as_they_were() -> None:
    prefixes = Prefixes([PrefixInfo("a", None, 5, 4, 1), PrefixInfo(None, "b", 3, 3, 2)])
    codec = METHODS["prefixes"]
    got = codec.answer_from_wire(over_the_wire(codec.answer_to_wire(prefixes)))
    assert got == prefixes
    assert isinstance(got, Prefixes)


def test_token_ids_come_back_as_a_tuple() -> None:
    codec = METHODS["tokenize"]
    assert codec.answer_from_wire(over_the_wire(codec.answer_to_wire((1, 2)))) == (1, 2)


def test_bytes_of_tokens_come_back_as_they_were() -> None:
    codec = METHODS["token_bytes"]
    parts = [b"", b"a", b"\xf0\x9f"]
    assert codec.answer_from_wire(over_the_wire(codec.answer_to_wire(parts))) == parts
    for odd, message in ((5, "token_bytes is 5"), (["a"], r"token_bytes\[0\] is 'a'")):
        with pytest.raises(ProtocolError, match=message):
            codec.answer_from_wire(odd)
