from __future__ import annotations

from typing import Any

import pytest

from pybatcher.calls.questions import ListPrefixes, ReadHealth, RemovePrefix
from pybatcher.errors import EngineFailedError, InvalidRequestError
from pybatcher.ray.merged_answers import merged
from pybatcher.sidecar.protocol.codecs import codec_of
from pybatcher.sidecar.protocol.wire import error_to_wire

ERROR = ("error", error_to_wire(InvalidRequestError("there is no such prefix")))


def answer(question: Any, *messages: tuple[str, Any]) -> Any:
    return merged(question, codec_of(question), messages)


def health(status: str) -> tuple[str, Any]:
    return "end", {"status": status, "reason": "as it is"}


def test_one_replica_that_serves_is_healthy_enough() -> None:
    found = answer(ReadHealth(), health("failed"), ERROR, health("ready"))
    assert (found.status, found.reason) == ("ready", "1 of 2 replicas are ready: as it is")
    assert answer(ReadHealth(), health("hung")).status == "hung"
    assert answer(ReadHealth()).status == "failed"


def test_an_error_of_all_is_raised_and_of_some_is_not() -> None:
    question = RemovePrefix(name="one")
    assert answer(question, ERROR, ("end", None)) is None
    with pytest.raises(InvalidRequestError, match="there is no such prefix"):
        answer(question, ERROR, ERROR)
    with pytest.raises(EngineFailedError, match="no replica has answered"):
        answer(ListPrefixes())
