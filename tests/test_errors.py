"""Errors are what a caller of the standard library would expect too, and say when to come back."""

from __future__ import annotations

import pytest

import pybatcher
from pybatcher import errors

BUILT_IN = {
    "BatcherClosedError": RuntimeError,
    "ConfigError": ValueError,
    "ConnectionLostError": ConnectionError,
    "DeadlineExceededError": TimeoutError,
    "EngineError": RuntimeError,
    "EngineFailedError": RuntimeError,
    "InvalidRequestError": ValueError,
    "KvCacheFullError": RuntimeError,
    "ModelFormatError": ValueError,
    "NoFreeSequenceError": RuntimeError,
    "ProtocolError": Exception,
    "PybatcherError": Exception,
    "QueueFullError": Exception,
    "RequestTooLongError": ValueError,
}


@pytest.mark.parametrize("name", errors.__all__)
def test_each_is_public_of_one_family_and_of_a_built_in_type(name: str) -> None:
    error = getattr(errors, name)
    assert getattr(pybatcher, name) is error
    assert issubclass(error, errors.PybatcherError)
    assert issubclass(error, BUILT_IN[name])


def test_the_docstring_draws_them_all_where_they_belong() -> None:
    depths = {}
    for line in (errors.__doc__ or "").splitlines():
        if "Error" in line and (line.lstrip(" │├└─") != line.lstrip() or "PybatcherError" in line):
            name = line.lstrip(" │├└─").split()[0]
            depths[name] = (len(line) - len(line.lstrip(" │├└─")) - 4) // 4
    assert set(depths) == set(errors.__all__)
    for name, depth in depths.items():
        assert getattr(errors, name).__mro__.index(errors.PybatcherError) == depth, name


def test_a_full_queue_says_when_to_come_back() -> None:
    error = errors.QueueFullError("8 requests wait", 0.25)
    assert (str(error), error.retry_after) == ("8 requests wait", 0.25)
