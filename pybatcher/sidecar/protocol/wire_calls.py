"""Codecs of `generate` and `chat`: writes and reads the params of their Requests.

    generate [prompt, opts?]      chat [messages, opts?]

`opts` are the fields of SamplingParams by their names, and those of `_OF_CALLS`. A missing field
has its default. Every error names the wrong field.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...calls.arguments import (
    are_token_ids,
    check_name,
    check_priority,
    check_timeout,
    merge_params,
)
from ...calls.call import Call, CallOptions
from ...calls.chat_settings import CHAT_OPTIONS, ChatSettings
from ...calls.options import check_known
from ...calls.trace_headers import check_trace_headers
from ...errors import InvalidRequestError
from ...params import SamplingParams
from .tenant import read_tenant
from .wire_fields import ASKED

__all__ = [
    "RequestId",
    "WireCall",
    "read_call",
    "read_content",
    "read_opts",
    "read_params",
    "read_settings",
    "read_timeout",
    "write_call",
    "write_options",
    "write_settings",
    "write_timeout",
]

RequestId = str | int
"""The id that a client gives one of its requests."""

_SAMPLING = {field.name: field.default for field in fields(SamplingParams)}
_OPTIONS = ("priority", "timeout_ms", "namespace", "tenant", "trace_headers")
_OF_CALLS = ("id", "stream", "window", "output", *_OPTIONS)
_CHAT_DEFAULTS = ChatSettings()
_LONGEST_ID = 1024  # each delta repeats the id
_MOST_TOKEN_IDS = 2**31  # ids of any model are 32 bits wide


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCall:
    """One `generate` or `chat`. id, window: None if the opts have none."""

    call: Call
    id: RequestId | None
    stream: bool
    window: int | None


def read_call(params: Sequence[object], *, is_chat: bool) -> WireCall:
    """Return the call of the params of `generate` or `chat`. Raises InvalidRequestError."""
    name = "messages" if is_chat else "prompt"
    content, opts = read_params(params, (name,))
    check_known(opts, (*_SAMPLING, *_OF_CALLS, *(CHAT_OPTIONS if is_chat else ())))
    window = opts.get("window")
    return WireCall(
        call=Call(
            content=read_content(content, is_chat),
            chat=read_settings(opts) if is_chat else None,
            params=SamplingParams(
                **{key: _read_sampling(key, opts[key]) for key in opts if key in _SAMPLING}
            ),
            sampling={},
            output=tuple(ASKED.token_ids(opts["output"], "output")) if "output" in opts else (),
            **_read_options(opts),
        ),
        id=_read_id(opts),
        stream=ASKED.flag(opts.get("stream", False), "stream"),
        window=None if window is None else ASKED.whole(window, "window", 1),
    )


def write_call(
    call: Call, *, id: RequestId | None, stream: bool, window: int | None = None
) -> list[Any]:
    """Return the params of a call, without defaults. Raises InvalidRequestError."""
    params = merge_params(call.params, call.sampling, vocab_size=_MOST_TOKEN_IDS)
    opts: dict[str, Any] = {}
    for name, default in _SAMPLING.items():
        value = getattr(params, name)
        if value != default:
            opts[name] = _write_sampling(name, value)
    opts |= write_options(call)
    if call.chat is not None:
        opts |= write_settings(call.chat)
    if len(call.output):
        opts["output"] = ASKED.token_ids(call.output, "output")
    if id is not None:
        opts["id"] = id
    if stream:
        opts["stream"] = True
    if window is not None:
        opts["window"] = window
    content = read_content(call.content, call.chat is not None)
    return [content, opts] if opts else [content]


def read_params(params: Sequence[object], names: tuple[str, ...]) -> tuple[Any, ...]:
    """Return one param for each name, and then the opts, {} if they are missing or nil."""
    n_given = len(params)
    if not len(names) <= n_given <= len(names) + 1:
        wanted = ", ".join((*names, "opts?"))
        raise InvalidRequestError(f"there are {n_given} params; they must be [{wanted}]")
    opts = params[len(names)] if n_given > len(names) else None
    said = {} if opts is None else ASKED.map(opts, "opts")
    return (*params[: len(names)], {key: one for key, one in said.items() if one is not None})


def read_opts(
    opts: Mapping[str, Any], known: tuple[str, ...]
) -> tuple[RequestId | None, dict[str, Any]]:
    """Return the `id`, and the fields of `CallOptions`. known: names of further opts."""
    check_known(opts, (*known, "id", *_OPTIONS))
    return _read_id(opts), _read_options(opts)


def _read_id(opts: Mapping[str, Any]) -> RequestId | None:
    """Return the id that the client gives its request; None without one."""
    value = opts.get("id")
    if isinstance(value, (str, bytes)) and len(value) <= _LONGEST_ID:
        return ASKED.text(value, "id")
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    wanted = f"a text of at most {_LONGEST_ID} characters, or a whole number"
    raise ASKED.bad("id", value, wanted)


def _read_options(opts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `CallOptions`, checked."""
    namespace = opts.get("namespace")
    return {
        "priority": check_priority(opts.get("priority", 0)),
        "timeout": read_timeout(opts),
        "namespace": None if namespace is None else ASKED.text(namespace, "namespace"),
        "tenant": read_tenant(opts),
        "trace_headers": check_trace_headers(opts["trace_headers"])
        if "trace_headers" in opts
        else None,
    }


def read_timeout(opts: Mapping[str, Any]) -> float | None:
    """Return the seconds of `timeout_ms`; None without it. Raises InvalidRequestError."""
    timeout_ms = opts.get("timeout_ms")
    if timeout_ms is None:
        return None
    timeout_ms = ASKED.number(timeout_ms, "timeout_ms")
    if math.isnan(timeout_ms) or timeout_ms <= 0:
        raise ASKED.bad("timeout_ms", timeout_ms, "milliseconds above 0")
    # Dividing the smallest float would give 0, which is no timeout, so it is raised.
    return max(timeout_ms / 1000, sys.float_info.min)


def write_timeout(timeout: object) -> dict[str, Any]:
    """Return the opts with `timeout_ms`; none for None. Raises InvalidRequestError."""
    checked = check_timeout(timeout)
    return {} if checked is None else {"timeout_ms": checked * 1000}


def write_options(options: CallOptions) -> dict[str, Any]:
    """Return the opts of a call, without defaults. Raises InvalidRequestError."""
    opts: dict[str, Any] = {}
    timeout = write_timeout(options.timeout)
    check_name("namespace", options.namespace)
    if check_priority(options.priority) != 0:
        opts["priority"] = options.priority
    opts |= timeout
    if options.namespace is not None:
        opts["namespace"] = ASKED.text(options.namespace, "namespace")
    if tenant := check_name("tenant", options.tenant):
        opts["tenant"] = tenant
    if options.trace_headers is not None:
        opts["trace_headers"] = check_trace_headers(options.trace_headers)
    return opts


def read_content(content: object, is_chat: bool) -> Any:
    """Return a prompt, messages, or the token ids of rendered messages."""
    if not is_chat:
        return ASKED.prompt(content, "prompt")
    if are_token_ids(content):
        return ASKED.token_ids(content, "messages")
    return ASKED.plain(content, "messages")


def read_settings(opts: Mapping[str, Any]) -> ChatSettings:
    """Return the settings of a chat, checked as far as possible without a model."""
    return ChatSettings(
        **{name: ASKED.plain(opts[name], name) for name in CHAT_OPTIONS if name in opts}
    )


def write_settings(settings: ChatSettings) -> dict[str, Any]:
    """Return the opts of a chat, without defaults. Raises InvalidRequestError."""
    opts: dict[str, Any] = {}
    for name in CHAT_OPTIONS:
        value = getattr(settings, name)
        if name == "tools" and value is not None:
            from ...text.output import plain_tools

            value = plain_tools(value)
        plain = ASKED.plain(value, name)
        if plain != getattr(_CHAT_DEFAULTS, name):
            opts[name] = plain
    return opts


def _read_sampling(name: str, value: object) -> Any:
    """Return a field of SamplingParams in its own type; SamplingParams checks the value itself.

    Errors of SamplingParams show the value, so values of unlimited size are refused here.
    """
    if name in ("choices", "of_model") or (name == "stop" and not isinstance(value, (str, bytes))):
        texts = ASKED.items(value, name)
        return [ASKED.text(one, f"{name}[{i}]") for i, one in enumerate(texts)]
    if name == "json_schema" and isinstance(value, Mapping):
        return ASKED.plain(value, name)
    if name == "stop_token_ids":
        return ASKED.wholes(value, name)
    if name == "logit_bias" and isinstance(value, Mapping):
        return {_read_token_id(key): one for key, one in value.items()}
    if isinstance(value, (bool, int, float)):
        return value
    return ASKED.text(value, name)


def _read_token_id(key: object) -> object:
    """Return the token id of a key, which may be a text, as JSON has no other keys."""
    if isinstance(key, (str, bytes)):
        text = ASKED.text(key, "logit_bias")
        if not text.isascii() or not text.isdecimal() or len(text) > 10:
            raise ASKED.bad("logit_bias", text, "a token id")
        return int(text)
    return key


def _write_sampling(name: str, value: Any) -> Any:
    if name == "stop":
        return [ASKED.text(one, f"stop[{i}]") for i, one in enumerate(value)]
    if name in ("stop_token_ids", "choices", "of_model"):
        return list(value)
    return str(value) if name == "json_schema" else value
