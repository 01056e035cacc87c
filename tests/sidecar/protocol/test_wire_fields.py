"""Whatever a peer has sent, it is read as what it was to be, or refused by its name."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from pybatcher.errors import InvalidRequestError, ProtocolError
from pybatcher.sidecar.protocol.wire_fields import ANSWERED, ASKED, Fields, short

READ: list[tuple[str, Any, Any]] = [
    ("text", "é", "é"),
    ("text", "é".encode(), "é"),
    ("flag", False, False),
    ("whole", 0, 0),
    ("whole", 2**70, 2**70),
    ("number", 3, 3.0),
    ("number", 0.5, 0.5),
    ("items", (1, "x"), (1, "x")),
    ("wholes", [0, 5], (0, 5)),
    ("numbers", [1, 0.5], (1.0, 0.5)),
    ("map", {b"a": 1}, {"a": 1}),
    ("plain", {"a": [None, True, 1.5, b"x"]}, {"a": [None, True, 1.5, "x"]}),
    ("prompt", "text", "text"),
    ("prompt", (1, 2), [1, 2]),
    ("token_ids", array("q", [7]), [7]),
]
REFUSED: list[tuple[str, Any, str]] = [
    ("text", 5, "a text"),
    ("text", b"\xff", "not valid UTF-8"),
    ("text", "\ud800", "not valid UTF-8"),
    ("flag", 1, "true or false"),
    ("whole", True, "a whole number"),
    ("whole", -1, "0 or more"),
    ("number", True, "a number"),
    ("number", 10**400, "a number"),
    ("items", "ab", "a list"),
    ("wholes", [1, True], r"it\[1\] is True"),
    ("wholes", [-1], r"it\[0\] is -1"),
    ("numbers", [1, "2"], r"it\[1\] is '2'"),
    ("map", [1], "a map"),
    ("map", {5: 1}, "a key of it is 5"),
    ("plain", {"a": [object()]}, r"it\.a\[0\] is"),
    ("plain", 2**64, "64 bits"),
    ("plain", [2**64], r"it\[0\] is"),
    ("plain", ["\ud800"], r"it\[0\] is .* not valid UTF-8"),
    ("plain", {"a": {"b\ud800": 1}}, r"it\.a has the key .* not valid UTF-8"),
    ("prompt", {"a": 1}, "a text or a list of token ids"),
    ("token_ids", [2**31], r"it\[0\]"),
    ("token_ids", [1, True], r"it\[1\] is True"),
]


@pytest.mark.parametrize(("kind", "value", "read"), READ, ids=str)
def test_what_is_of_the_kind_is_read(kind: str, value: object, read: object) -> None:
    found = getattr(ASKED, kind)(value, "it")
    assert (type(found), found) == (type(read), read)


@pytest.mark.parametrize(
    ("fields", "error"), [(ASKED, InvalidRequestError), (ANSWERED, ProtocolError)]
)
@pytest.mark.parametrize(("kind", "value", "said"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_is_refused_by_its_name(
    kind: str, value: object, said: str, fields: Fields, error: type[Exception]
) -> None:
    with pytest.raises(error, match=said) as caught:
        getattr(fields, kind)(value, "it")
    assert len(str(caught.value)) < 400


def test_too_deep_is_refused_before_it_is_too_deep_for_python() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="deeper than 32"):
        ASKED.plain(deep, "it")
    while deep:
        deep = deep[0]


def test_an_error_has_room_for_any_number() -> None:
    assert short(1 << 20_000) == "a whole number of 20001 bits"


class Counted(list[Any]):
    """A list that counts the items which are read."""

    n_read = 0

    def __iter__(self) -> Any:
        for one in super().__iter__():
            Counted.n_read += 1
            yield one


def test_too_many_values_are_refused_before_they_are_read() -> None:
    """Whoever reads them delays all others."""
    many = Counted([{}] * (2**17 + 1))
    with pytest.raises(InvalidRequestError, match=r"it\.a has 131073 values"):
        ASKED.plain({"a": many}, "it")
    assert Counted.n_read == 0
    few = Counted([1, "a", None] * 2**14)
    assert ASKED.plain([few, few], "it") == [few, few]
    Counted.n_read = 0
    with pytest.raises(InvalidRequestError, match=r"it\[2\] has 49152 values"):
        ASKED.plain([few, few, few], "it")
    assert Counted.n_read == 2 * len(few)


@pytest.mark.parametrize("value", [5, "a", [5], (5,)])
def test_what_is_no_array_costs_nothing(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked of each of a million token ids."""
    monkeypatch.setattr("pybatcher.sidecar.protocol.wire_fields.Checks", None)
    assert ASKED.listed(value, "it") is value
