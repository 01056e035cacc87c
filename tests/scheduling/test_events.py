"""Errors of several callers are objects of their own."""

from __future__ import annotations

import pytest

from pybatcher.errors import EngineFailedError
from pybatcher.scheduling import own_copy


def test_a_copy_says_the_same_and_collects_its_own_tracebacks() -> None:
    error = EngineFailedError("it broke")
    error.__cause__ = OSError("a cable")
    own = own_copy(error)
    assert own is not error
    assert (type(own), own.args, str(own)) == (type(error), error.args, str(error))
    assert own.__cause__ is error.__cause__
    with pytest.raises(EngineFailedError):
        raise own
    assert own.__traceback__ is not None
    assert error.__traceback__ is None
