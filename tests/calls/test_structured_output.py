from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, field_validator

from pybatcher import InvalidRequestError, SamplingParams
from pybatcher.calls.call import Call
from pybatcher.calls.reply import Reply
from pybatcher.calls.structured_output import with_structured_output
from pybatcher.params import JsonSchema


class Even(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def _is_even(cls, n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n


def parsed(text: str, params: SamplingParams | None = None, **sampling: object) -> object:
    reply = Reply()
    call = with_structured_output(Call(content="x", params=params, sampling=sampling), reply)
    if sampling.get("json_schema") is not None:
        assert isinstance(call.sampling["json_schema"], JsonSchema)
    return "nothing" if reply.parse is None else reply.parse(text)


def test_the_value_is_that_of_the_form() -> None:
    assert parsed("[1]", json_schema={"type": "array"}) == [1]
    assert parsed('{"a": 1}', json_object=True) == {"a": 1}
    assert parsed("yes", choices=["yes"]) == "yes"
    assert parsed("yes", regex="yes") == "nothing"
    assert parsed("yes") == "nothing"
    assert parsed("yes", json_object=False) == "nothing"
    assert parsed('{"n": 2}', json_schema=Even) == Even(n=2)


def test_keywords_win_over_params() -> None:
    params = SamplingParams(json_schema=Even)
    assert parsed('{"n": 2}', params) == Even(n=2)
    assert parsed('{"n": 2}', params, json_schema={}) == {"n": 2}
    assert parsed("yes", params, json_schema=None, choices=["yes"]) == "yes"


def test_json_that_was_cut_has_no_value() -> None:
    assert parsed('{"n"', json_schema=Even) is None
    assert parsed('{"n"', json_object=True) is None


def test_what_validators_raise_is_the_callers() -> None:
    with pytest.raises(ValidationError, match="odd"):
        parsed('{"n": 1}', json_schema=Even)


def test_a_continuation_has_no_value_and_no_schema_is_an_error() -> None:
    reply = Reply()
    with_structured_output(Call(content="x", sampling={"json_object": True}, output=(1,)), reply)
    assert reply.parse is None
    with pytest.raises(InvalidRequestError, match="json_schema is 5"):
        with_structured_output(Call(content="x", sampling={"json_schema": 5}), reply)


class Trap:
    """Not even `isinstance` works with it."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise ZeroDivisionError


def test_what_raises_when_it_is_asked_is_left_to_the_checks_of_the_service() -> None:
    """It was logged as a fault of the program, and the caller got an EngineError."""
    for odd in ({"params": Trap()}, {"output": Trap()}):
        reply = Reply()
        with_structured_output(Call(content="x", **{"sampling": {}, "output": (), **odd}), reply)  # type: ignore[arg-type]
        assert reply.parse is None
