"""What a client asks for besides outputs, as the params of a Request: to write and to read.

score [prompt, continuations, opts?]      embed [inputs, opts?]
add_prefix [prefix, opts?]                remove_prefix [name, opts?]
tokenize [text or messages]               detokenize [ids]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...calls.arguments import check_namespace, check_pooling, check_several
from ...calls.call import CallOptions
from ...calls.prefix_info import check_prefix_name
from .wire_calls import RequestId, check_known, read_opts, read_params, write_beside
from .wire_fields import ASKED

__all__ = [
    "WireEmbed",
    "WirePrefix",
    "WireScore",
    "read_add_prefix",
    "read_detokenize",
    "read_embed",
    "read_remove_prefix",
    "read_score",
    "read_tokenize",
    "write_add_prefix",
    "write_detokenize",
    "write_embed",
    "write_remove_prefix",
    "write_score",
    "write_tokenize",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireScore:
    """One `score`."""

    prompt: Any
    continuations: list[Any]
    beside: CallOptions
    id: RequestId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WireEmbed:
    """One `embed`."""

    texts: list[Any]
    pooling: str
    beside: CallOptions
    id: RequestId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WirePrefix:
    """One `add_prefix`, or (then there is no `prefix`) `remove_prefix`."""

    prefix: Any = None
    name: str | None
    namespace: str | None


def read_score(params: Sequence[object]) -> WireScore:
    """Raises InvalidRequestError, as all that read here do."""
    prompt, continuations, opts = read_params(params, ("prompt", "continuations"))
    id, beside = read_opts(opts, ())
    return WireScore(
        prompt=ASKED.prompt(prompt, "prompt"),
        continuations=_prompts(continuations, "continuations"),
        beside=beside,
        id=id,
    )


def write_score(
    prompt: object, continuations: object, beside: CallOptions, *, id: RequestId | None = None
) -> list[Any]:
    """The params that ask for it. Raises InvalidRequestError, as all that write here do."""
    asked = [ASKED.prompt(prompt, "prompt"), _prompts(continuations, "continuations")]
    return _with_opts(asked, write_beside(beside), id)


def read_embed(params: Sequence[object]) -> WireEmbed:
    """See `read_score`."""
    texts, opts = read_params(params, ("inputs",))
    id, beside = read_opts(opts, ("pooling",))
    return WireEmbed(
        texts=_prompts(texts, "inputs"),
        pooling=check_pooling(ASKED.text(opts.get("pooling", "last"), "pooling")),
        beside=beside,
        id=id,
    )


def write_embed(
    texts: object, pooling: object, beside: CallOptions, *, id: RequestId | None = None
) -> list[Any]:
    """See `write_score`."""
    opts = write_beside(beside)
    if check_pooling(pooling) != "last":
        opts["pooling"] = pooling
    return _with_opts([_prompts(texts, "texts")], opts, id)


def read_add_prefix(params: Sequence[object]) -> WirePrefix:
    """See `read_score`."""
    prefix, opts = read_params(params, ("prefix",))
    check_known(opts, ("name", "namespace"))
    name = opts.get("name")
    return WirePrefix(
        prefix=ASKED.prompt(prefix, "prefix"),
        name=None if name is None else check_prefix_name(ASKED.text(name, "name")),
        namespace=_namespace(opts.get("namespace")),
    )


def write_add_prefix(prefix: object, name: object, namespace: object) -> list[Any]:
    """See `write_score`."""
    opts: dict[str, Any] = {}
    if name is not None:
        opts["name"] = ASKED.text(check_prefix_name(name), "name")
    return _with_opts([ASKED.prompt(prefix, "prefix")], opts | _in_namespace(namespace), None)


def read_remove_prefix(params: Sequence[object]) -> WirePrefix:
    """See `read_score`."""
    name, opts = read_params(params, ("name",))
    check_known(opts, ("namespace",))
    return WirePrefix(
        name=check_prefix_name(ASKED.text(name, "name")),
        namespace=_namespace(opts.get("namespace")),
    )


def write_remove_prefix(name: object, namespace: object) -> list[Any]:
    """See `write_score`."""
    own_name = ASKED.text(check_prefix_name(name), "name")
    return _with_opts([own_name], _in_namespace(namespace), None)


def read_tokenize(params: Sequence[object]) -> tuple[Any, bool]:
    """What is to be tokenised, and whether it is a chat. See `read_score`."""
    content, opts = read_params(params, ("text or messages",))
    check_known(opts, ())
    is_chat = isinstance(content, list) and bool(content) and isinstance(content[0], Mapping)
    return write_tokenize(content, is_chat)[0], is_chat


def write_tokenize(content: object, is_chat: bool) -> list[Any]:
    """See `write_score`."""
    return [ASKED.plain(content, "messages") if is_chat else ASKED.prompt(content, "prompt")]


def read_detokenize(params: Sequence[object]) -> list[Any]:
    """The token ids. See `read_score`."""
    ids, opts = read_params(params, ("ids",))
    check_known(opts, ())
    return ASKED.token_ids(ids, "token_ids")


def write_detokenize(token_ids: object) -> list[Any]:
    """See `write_score`."""
    return [ASKED.token_ids(token_ids, "token_ids")]


def _prompts(several: object, name: str) -> list[Any]:
    return [ASKED.prompt(one, f"{name}[{i}]") for i, one in enumerate(check_several(name, several))]


def _namespace(value: object) -> str | None:
    return None if value is None else ASKED.text(value, "namespace")


def _in_namespace(namespace: object) -> dict[str, Any]:
    check_namespace(namespace)
    return {} if namespace is None else {"namespace": ASKED.text(namespace, "namespace")}


def _with_opts(params: list[Any], opts: dict[str, Any], id: RequestId | None) -> list[Any]:
    if id is not None:
        opts["id"] = id
    return [*params, opts] if opts else params
