"""Checks of the arguments of calls, except their prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ..errors import InvalidRequestError, RequestTooLongError
from ..errors.checks import LONGEST_NAME, REQUEST, plain_int, short, type_name
from ..params import MAX_LOGPROBS, SamplingParams
from ..scheduling import Pooling
from .options import check_known

__all__ = [
    "MOST_IDS",
    "are_lists",
    "are_token_ids",
    "check_drain",
    "check_ids",
    "check_name",
    "check_pooling",
    "check_priority",
    "check_several",
    "check_timeout",
    "check_top_logprobs",
    "check_truncate",
    "is_chat",
    "merge_params",
    "number_of_ids",
    "several_prompts",
]

MOST_IDS = 2**17
"""Token ids that a list of a call may have with any model; more only with a longer context."""

# priorities range from -1000; one level is worth `priority_aging` seconds of waiting
_HIGHEST_PRIORITY = 1000
_MOST_TEXTS = 2**20
_TEXTS = (str, bytes, bytearray, memoryview)
_SAMPLING = frozenset(field.name for field in fields(SamplingParams))


def merge_params(
    params: SamplingParams | None, sampling: Mapping[str, Any], *, vocab_size: int
) -> SamplingParams:
    """Return `params` with its fields replaced by the keywords of `sampling`.

    Raises InvalidRequestError for an unknown keyword, for a value out of range, and for token ids
    that the model does not have.
    """
    if params is not None and not issubclass(type(params), SamplingParams):
        raise InvalidRequestError(
            f"params is {short(params)}, of type {type_name(params)}; it must be "
            "SamplingParams or None",
            field="params",
        )
    check_known(sampling, _SAMPLING)
    if params is None:
        params = SamplingParams(**sampling)
    elif sampling:
        params = replace(params, **sampling)
    _check_known("stop_token_ids", params.stop_token_ids, vocab_size)
    _check_known("logit_bias", params.logit_bias or (), vocab_size)
    return params


def _check_known(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    if (highest := max(token_ids, default=0)) >= vocab_size:
        raise InvalidRequestError(
            f"{name} names token {highest}; token ids of this model are from 0 to {vocab_size - 1}",
            field=name,
        )


def check_timeout(timeout: object) -> float | None:
    """Return seconds, above 0, or None. Raises InvalidRequestError."""
    if timeout is None:
        return None
    wanted = "seconds above 0, or None"
    return REQUEST.number("timeout", timeout, 0.0, math.inf, above=True, wanted=wanted)


def check_priority(priority: object) -> int:
    """Return a whole number; lower numbers are served sooner. Raises InvalidRequestError."""
    low, high = -_HIGHEST_PRIORITY, _HIGHEST_PRIORITY
    wanted = f"a whole number from {low} (served first) to {high}"
    return REQUEST.whole("priority", priority, low, high, wanted)


def check_pooling(pooling: object) -> Pooling | None:
    """Return "last", "mean", "cls", or None. Raises InvalidRequestError."""
    if pooling is None:
        return None
    wanted = "'last', 'mean' or 'cls'"
    found: Pooling = REQUEST.choice("pooling", pooling, ("last", "mean", "cls"), wanted)
    return found


def check_truncate(truncate: object) -> bool | int:
    """Return True, False, or the most tokens of a text. Raises InvalidRequestError."""
    if truncate is True or truncate is False:
        return truncate
    return REQUEST.whole(
        "truncate", truncate, 1, 2**31 - 1, "True, False, or the most tokens of a text"
    )


def check_top_logprobs(field: str, count: object) -> int:
    """Return the number of likeliest tokens to report per position. Raises InvalidRequestError."""
    return REQUEST.whole(field, count, 0, MAX_LOGPROBS)


def check_drain(drain: object) -> bool:
    """Return the truth value of `drain`. Raises InvalidRequestError if it has none."""
    with REQUEST.reading("drain", drain, "True or False"):
        return bool(drain)


def check_several(field: str, texts: object) -> tuple[Any, ...]:
    """Return a list of at least one text, or of lists of token ids. Raises InvalidRequestError."""
    wanted = "a list of at least one text"
    found = REQUEST.items(field, texts, _MOST_TEXTS, f"{wanted} and at most {_MOST_TEXTS}")
    if not found:
        raise REQUEST.bad(field, texts, wanted)
    return found


def check_name(field: str, name: object) -> str:
    """Return the name of a namespace or tenant, "" for None (the common one).

    field: the name of the argument. Raises InvalidRequestError.
    """
    if name is None:
        return ""
    return REQUEST.text(field, name, "a str, or None", most=LONGEST_NAME)


def is_chat(content: object) -> bool:
    """True for messages, False for a prompt. Raises InvalidRequestError."""
    with REQUEST.reading("content", content, "a text, a list of token ids, or messages"):
        if isinstance(content, str) or not isinstance(content, Sequence) or not len(content):
            return False
        return isinstance(content[0], Mapping)


def are_token_ids(content: object) -> bool:
    """True for token ids, False for messages and for a text. Raises InvalidRequestError."""
    with REQUEST.reading("content", content, "messages, or a list of token ids"):
        if isinstance(content, (list, tuple)):
            return len(content) > 0 and plain_int(content[0]) is not None
        return hasattr(content, "tolist")


def are_lists(value: object) -> bool:
    """True for a list or tuple that begins with a list or tuple, as lists of token ids do."""
    if type(value) is list or type(value) is tuple:
        return len(value) > 0 and type(value[0]) in (list, tuple)
    return False


def number_of_ids(ids: Any) -> int | None:
    """Return the length of a sequence, an array or a tensor; None for anything else."""
    if hasattr(ids, "tolist"):  # numpy arrays and torch tensors
        shape = getattr(ids, "shape", None)
        return math.prod(shape) if isinstance(shape, tuple) else len(ids)
    return len(ids) if isinstance(ids, Sequence) and not isinstance(ids, _TEXTS) else None


def check_ids(field: str, ids: Any, n_positions: int) -> None:
    """Check the number of token ids of an argument: one list or array of ids, or several of them.

    n_positions: most tokens of a sequence. Several lists of `token_ids` count together, since they
    make one answer. Raises RequestTooLongError; an argument of another kind is not checked.
    """
    most = max(n_positions, MOST_IDS)
    is_together = field == "token_ids"
    way_out = "divide them among several calls" if is_together else "shorten it"
    with REQUEST.reading(field, ids, "token ids"):
        sizes = {field: number_of_ids(ids) or 0}
        if isinstance(ids, (list, tuple)) and ids and type(ids[0]) is not int:
            each = [number_of_ids(one) or 0 for one in ids]
            if is_together:
                sizes[field] = max(len(ids), sum(each))
            else:
                sizes = {f"{field}[{i}]": size for i, size in enumerate(each)}
    for where, n_ids in sizes.items():
        if n_ids > most:
            raise RequestTooLongError(
                f"{where} has {n_ids} token ids; one call takes at most {most}: {way_out}",
                field=where,
            )


def several_prompts(prompt: object) -> tuple[Any, ...] | None:
    """Return the prompts of a list of prompts; None for a single prompt. Raises
    InvalidRequestError.

    A list is a list of prompts if its first item is a text or a list; token ids are numbers.
    """
    with REQUEST.reading("prompt", prompt, "a prompt, or a list of prompts"):
        if isinstance(prompt, str) or not isinstance(prompt, Sequence) or not len(prompt):
            return None
        if not isinstance(prompt[0], (str, list, tuple)):
            return None
    return REQUEST.items("prompt", prompt, _MOST_TEXTS, f"at most {_MOST_TEXTS} prompts")
