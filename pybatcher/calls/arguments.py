"""What a caller hands in beside its prompt, checked."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ..errors import InvalidRequestError
from ..params import SamplingParams
from ..scheduling import Pooling

__all__ = [
    "check_namespace",
    "check_pooling",
    "check_priority",
    "check_several",
    "check_timeout",
    "merge_params",
]

_HIGHEST_PRIORITY = 1000  # either way: each level is worth `priority_aging` seconds of waiting


def merge_params(
    params: SamplingParams | None, sampling: Mapping[str, Any], *, vocab_size: int
) -> SamplingParams:
    """`params` with the keywords of `sampling` put over it.

    Raises InvalidRequestError for an unknown keyword, a value out of range,
    and for token ids in them that the model does not have.
    """
    if params is None:
        params = SamplingParams()
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(
            f"params is {reprlib.repr(params)}, of type {type(params).__name__}; it must be "
            "SamplingParams or None"
        )
    known = {field.name for field in fields(SamplingParams)}
    for name in sampling:
        if name not in known:
            raise InvalidRequestError(
                f"unknown sampling parameter {name!r}; there are: {', '.join(sorted(known))}"
            )
    if sampling:
        params = replace(params, **sampling)
    _check_known("stop_token_ids", params.stop_token_ids, vocab_size)
    _check_known("logit_bias", params.logit_bias or (), vocab_size)
    return params


def _check_known(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise InvalidRequestError(
                f"{name} names token {token_id}; token ids of this model are "
                f"from 0 to {vocab_size - 1}"
            )


def check_timeout(timeout: object) -> float | None:
    """Seconds, above 0, or None. Raises InvalidRequestError."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise InvalidRequestError(f"timeout is {timeout!r}; it must be seconds above 0, or None")
    if math.isnan(timeout) or timeout <= 0:
        raise InvalidRequestError(f"timeout is {timeout!r}; it must be seconds above 0, or None")
    return float(timeout)


def check_priority(priority: object) -> int:
    """A whole number; the lower, the sooner. Raises InvalidRequestError."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise _bad_priority(priority)
    if not -_HIGHEST_PRIORITY <= priority <= _HIGHEST_PRIORITY:
        raise _bad_priority(priority)
    return priority


def _bad_priority(priority: object) -> InvalidRequestError:
    return InvalidRequestError(
        f"priority is {reprlib.repr(priority)}; it must be a whole number from "
        f"{-_HIGHEST_PRIORITY} (served first) to {_HIGHEST_PRIORITY}"
    )


def check_pooling(pooling: object) -> Pooling:
    """A known one. Raises InvalidRequestError."""
    if pooling == "mean" or pooling == "last":
        return pooling
    raise InvalidRequestError(f"pooling is {reprlib.repr(pooling)}; it must be 'last' or 'mean'")


def check_several(field: str, texts: object) -> Sequence[Any]:
    """A list of at least one text, or of lists of token ids. Raises InvalidRequestError."""
    if isinstance(texts, Sequence) and not isinstance(texts, (str, bytes, bytearray)) and texts:
        return texts
    raise InvalidRequestError(
        f"{field} is {reprlib.repr(texts)}; it must be a list of at least one text"
    )


def check_namespace(namespace: object) -> str:
    """A name, or None for the common one. Raises InvalidRequestError."""
    if namespace is None:
        return ""
    if not isinstance(namespace, str):
        raise InvalidRequestError(
            f"namespace is {reprlib.repr(namespace)}; it must be a str, or None"
        )
    return namespace
