"""The codecs of questions: each kind as the params of a Request, and its answer as the result.

    score [prompt, continuations, opts?]      embed [inputs, opts?]
    add_prefix [prefix, opts?]                remove_prefix [name, opts?]
    tokenize [text or messages, opts?]        detokenize [ids]    detokenize_each [[ids, ...]]
    token_bytes [ids]
    prefixes []    statistics []    health []    model_info []    reload [changes?]

Functions that read params raise only InvalidRequestError, functions that read answers only
ProtocolError; both name the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

from ...calls import questions as q
from ...calls.arguments import (
    check_name,
    check_pooling,
    check_several,
    check_top_logprobs,
    check_truncate,
)
from ...calls.call import CallOptions, Question
from ...calls.chat_settings import CHAT_OPTIONS
from ...calls.options import check_known
from ...calls.prefix_info import Prefixes, PrefixInfo, check_prefix_name
from ...errors import InvalidRequestError
from .wire_calls import (
    RequestId,
    read_content,
    read_opts,
    read_params,
    read_settings,
    read_timeout,
    write_options,
    write_settings,
    write_timeout,
)
from .wire_fields import ANSWERED, ASKED
from .wire_model_info import model_info_from_wire, model_info_to_wire
from .wire_results import (
    embeddings_from_wire,
    embeddings_to_wire,
    prefix_info_from_wire,
    prefix_info_to_wire,
    scores_from_wire,
    scores_to_wire,
)
from .wire_statistics import (
    health_from_wire,
    health_to_wire,
    statistics_from_wire,
    statistics_to_wire,
)

__all__ = ["CODECS", "METHODS", "Codec", "codec_of"]

Q = TypeVar("Q", bound=Question[Any])
Params = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Codec(Generic[Q]):
    """The wire format of one kind of question.

    method: the method of the Request.
    question: the class of the question.
    read: turns params into the question and the id that the client gave it (None: none).
    write: turns the question into params.
    answer_to_wire, answer_from_wire: turn the answer into the result, and back.
    """

    method: str
    question: type[Q]
    read: Callable[[Params], tuple[Q, RequestId | None]]
    write: Callable[[Q], list[Any]]
    answer_to_wire: Callable[[Any], object]
    answer_from_wire: Callable[[Any], Any]


def _read_score(params: Params) -> tuple[q.ScoreContinuations, RequestId | None]:
    prompt, continuations, opts = read_params(params, ("prompt", "continuations"))
    id, options = read_opts(opts, ("top_logprobs",))
    question = q.ScoreContinuations(
        prompt=ASKED.prompt(prompt, "prompt"),
        continuations=_prompts(continuations, "continuations"),
        top_logprobs=check_top_logprobs("top_logprobs", opts.get("top_logprobs", 0)),
        **options,
    )
    return question, id


def _write_score(question: q.ScoreContinuations) -> list[Any]:
    params = [
        ASKED.prompt(question.prompt, "prompt"),
        _prompts(question.continuations, "continuations"),
    ]
    n_top = check_top_logprobs("top_logprobs", question.top_logprobs)
    return _with_options(params, question, {"top_logprobs": n_top} if n_top else {})


def _read_embed(params: Params) -> tuple[q.EmbedTexts, RequestId | None]:
    texts, opts = read_params(params, ("inputs",))
    id, options = read_opts(opts, ("pooling", "truncate"))
    pooling = opts.get("pooling")
    if pooling is not None:
        pooling = check_pooling(ASKED.text(pooling, "pooling"))
    question = q.EmbedTexts(
        texts=_prompts(texts, "inputs"),
        pooling=pooling,
        truncate=check_truncate(opts.get("truncate", False)),
        **options,
    )
    return question, id


def _write_embed(question: q.EmbedTexts) -> list[Any]:
    pooling = check_pooling(question.pooling)
    truncate = check_truncate(question.truncate)
    own: dict[str, Any] = {} if pooling is None else {"pooling": pooling}
    if truncate is not False:
        own["truncate"] = truncate
    return _with_options([_prompts(question.texts, "texts")], question, own)


def _read_add_prefix(params: Params) -> tuple[q.AddPrefix, None]:
    prefix, opts = read_params(params, ("prefix",))
    check_known(opts, ("name", "namespace", "timeout_ms"))
    name = opts.get("name")
    question = q.AddPrefix(
        prefix=ASKED.prompt(prefix, "prefix"),
        name=None if name is None else check_prefix_name(ASKED.text(name, "name")),
        namespace=_namespace(opts),
        timeout=read_timeout(opts),
    )
    return question, None


def _write_add_prefix(question: q.AddPrefix) -> list[Any]:
    opts = {**_in_namespace(question.namespace), **write_timeout(question.timeout)}
    if question.name is not None:
        opts["name"] = ASKED.text(check_prefix_name(question.name), "name")
    return _with_opts([ASKED.prompt(question.prefix, "prefix")], opts)


def _read_remove_prefix(params: Params) -> tuple[q.RemovePrefix, None]:
    name, opts = read_params(params, ("name",))
    check_known(opts, ("namespace",))
    name = check_prefix_name(ASKED.text(name, "name"))
    return q.RemovePrefix(name=name, namespace=_namespace(opts)), None


def _write_remove_prefix(question: q.RemovePrefix) -> list[Any]:
    name = ASKED.text(check_prefix_name(question.name), "name")
    return _with_opts([name], _in_namespace(question.namespace))


def _read_tokenize(params: Params) -> tuple[q.Tokenize, None]:
    content, opts = read_params(params, ("text or messages",))
    is_chat = isinstance(content, list) and bool(content) and isinstance(content[0], Mapping)
    check_known(opts, CHAT_OPTIONS if is_chat else ("add_special_tokens",))
    chat = read_settings(opts) if is_chat else None
    with_special = ASKED.flag(opts.get("add_special_tokens", True), "add_special_tokens")
    content = read_content(content, is_chat)
    return q.Tokenize(content=content, chat=chat, add_special_tokens=with_special), None


def _write_tokenize(question: q.Tokenize) -> list[Any]:
    opts = {} if question.chat is None else write_settings(question.chat)
    if not question.add_special_tokens:
        opts["add_special_tokens"] = False
    return _with_opts([read_content(question.content, question.chat is not None)], opts)


def _read_detokenize(params: Params) -> tuple[q.Detokenize, None]:
    ids, opts = read_params(params, ("ids",))
    check_known(opts, ())
    return q.Detokenize(token_ids=ASKED.token_ids(ids, "token_ids")), None


def _read_detokenize_each(params: Params) -> tuple[q.DetokenizeEach, None]:
    lists, opts = read_params(params, ("ids",))
    check_known(opts, ())
    return q.DetokenizeEach(token_ids=_lists_of_ids(lists)), None


def _lists_of_ids(lists: object) -> list[list[int]]:
    several = ASKED.items(lists, "token_ids")
    return [ASKED.token_ids(one, f"token_ids[{i}]") for i, one in enumerate(several)]


def _read_token_bytes(params: Params) -> tuple[q.TokenBytes, None]:
    ids, opts = read_params(params, ("ids",))
    check_known(opts, ())
    return q.TokenBytes(token_ids=ASKED.token_ids(ids, "token_ids")), None


def _bytes_from_wire(answer: Any) -> list[bytes]:
    several = ANSWERED.items(answer, "token_bytes")
    for i, one in enumerate(several):
        if not isinstance(one, bytes):
            raise ANSWERED.bad(f"token_bytes[{i}]", one, "bytes")
    return list(several)


def _read_reload(params: Params) -> tuple[q.Reload, None]:
    if len(params) > 1:
        raise InvalidRequestError(f"there are {len(params)} params; they must be [changes?]")
    changes = ASKED.plain(ASKED.map(params[0] if params else {}, "changes"), "changes")
    return q.Reload(changes), None


def _nothing_more(question: type[Q]) -> Callable[[Params], tuple[Q, None]]:
    """Return the `read` of a question without params; params of a newer client are ignored."""
    return lambda _params: (question(), None)


def _prefixes_from_wire(infos: Any) -> Prefixes:
    return Prefixes(map(prefix_info_from_wire, infos))


def _prefixes_to_wire(infos: Sequence[PrefixInfo]) -> list[Any]:
    return [prefix_info_to_wire(info) for info in infos]


def _same(value: Any) -> Any:
    return value


CODECS: tuple[Codec[Any], ...] = (
    Codec(
        "score", q.ScoreContinuations, _read_score, _write_score, scores_to_wire, scores_from_wire
    ),
    Codec(
        "embed", q.EmbedTexts, _read_embed, _write_embed, embeddings_to_wire, embeddings_from_wire
    ),
    Codec(
        "add_prefix",
        q.AddPrefix,
        _read_add_prefix,
        _write_add_prefix,
        prefix_info_to_wire,
        prefix_info_from_wire,
    ),
    Codec("remove_prefix", q.RemovePrefix, _read_remove_prefix, _write_remove_prefix, _same, _same),
    Codec(
        "prefixes",
        q.ListPrefixes,
        _nothing_more(q.ListPrefixes),
        lambda _: [],
        _prefixes_to_wire,
        _prefixes_from_wire,
    ),
    Codec(
        "tokenize",
        q.Tokenize,
        _read_tokenize,
        _write_tokenize,
        _same,
        tuple,
    ),
    Codec(
        "detokenize",
        q.Detokenize,
        _read_detokenize,
        lambda question: [ASKED.token_ids(question.token_ids, "token_ids")],
        _same,
        str,
    ),
    Codec(
        "detokenize_each",
        q.DetokenizeEach,
        _read_detokenize_each,
        lambda question: [_lists_of_ids(question.token_ids)],
        _same,
        lambda texts: [ANSWERED.text(one, "a text") for one in ANSWERED.items(texts, "texts")],
    ),
    Codec(
        "token_bytes",
        q.TokenBytes,
        _read_token_bytes,
        lambda question: [ASKED.token_ids(question.token_ids, "token_ids")],
        _same,
        _bytes_from_wire,
    ),
    Codec(
        "statistics",
        q.ReadStatistics,
        _nothing_more(q.ReadStatistics),
        lambda _: [],
        statistics_to_wire,
        statistics_from_wire,
    ),
    Codec(
        "health",
        q.ReadHealth,
        _nothing_more(q.ReadHealth),
        lambda _: [],
        health_to_wire,
        health_from_wire,
    ),
    Codec(
        "model_info",
        q.DescribeModel,
        _nothing_more(q.DescribeModel),
        lambda _: [],
        model_info_to_wire,
        model_info_from_wire,
    ),
    Codec("hello", q.Describe, _nothing_more(q.Describe), lambda _: [{}], _same, _same),
    Codec(
        "reload",
        q.Reload,
        _read_reload,
        lambda question: [dict(question.changes)],
        _same,
        _same,
    ),
)
"""One codec for each kind of question."""

METHODS: Mapping[str, Codec[Any]] = {codec.method: codec for codec in CODECS}
"""The codecs by the name of their method."""

_OF_KIND = {codec.question: codec for codec in CODECS}


def codec_of(question: Question[Any]) -> Codec[Any]:
    """Return the codec of a question's kind."""
    return _OF_KIND[type(question)]


def _prompts(several: object, name: str) -> list[Any]:
    prompts = check_several(name, several)
    if set(map(type, prompts)) == {list}:  # tens of thousands of lists, checked as one
        flat = list(chain.from_iterable(prompts))
        if set(map(type, flat)) == {int} and min(flat) >= 0 and max(flat) < 2**31:
            return list(prompts)
    return [ASKED.prompt(one, f"{name}[{i}]") for i, one in enumerate(prompts)]


def _namespace(opts: Mapping[str, Any]) -> str | None:
    value = opts.get("namespace")
    return None if value is None else ASKED.text(value, "namespace")


def _in_namespace(namespace: object) -> dict[str, Any]:
    check_name("namespace", namespace)
    return {} if namespace is None else {"namespace": ASKED.text(namespace, "namespace")}


def _with_options(
    params: list[Any], options: CallOptions, own: Mapping[str, Any] | None = None
) -> list[Any]:
    return _with_opts(params, {**write_options(options), **(own or {})})


def _with_opts(params: list[Any], opts: Mapping[str, Any]) -> list[Any]:
    return [*params, dict(opts)] if opts else params
