"""Values that no argument was made for: of every type, empty, endless, hostile."""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import fractions
import math
from collections import OrderedDict, UserDict, UserList, UserString, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from pybatcher import SamplingParams

__all__ = ["ClassTrap", "LyingMapping", "odd_value"]


class TrapError(Exception):
    """What the methods of hostile objects raise."""


def _raise(*_: object, **__: object) -> Any:
    raise TrapError("\ud800 raised by a caller's object")


_DUNDERS = (
    *("__eq__", "__hash__", "__repr__", "__str__", "__len__", "__iter__", "__getitem__"),
    *("__bool__", "__index__", "__int__", "__float__", "__lt__", "__contains__", "__format__"),
    *("__call__", "__getattr__", "__fspath__", "__array__", "__copy__", "__deepcopy__"),
)


def _raising(random: Random, base: type = object) -> Any:
    """An instance of a class some or all of whose methods raise."""
    names = _DUNDERS if random.random() < 0.5 else random.sample(_DUNDERS, 3)
    if base is not object:
        names = [name for name in names if name not in ("__getattr__", "__fspath__")]
    kind = type("Raising", (base,), dict.fromkeys(names, _raise))
    arguments: dict[type, tuple[Any, ...]] = {
        str: ("text",),
        int: (5,),
        float: (0.5,),
        bytes: (b"bytes",),
        list: ([1, 2],),
        tuple: ((1, 2),),
        dict: ({"role": "user", "content": "hi"},),
    }
    return kind(*arguments.get(base, ()))


class ClassTrap:
    """Not even `isinstance` works with it."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise TrapError


class Liar(Sequence[Any]):
    """Has as many items as it likes to say, and others when it is read."""

    def __init__(self, length: int, items: Callable[[], Iterator[Any]]) -> None:
        self._length, self._items = length, items

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return next(self._items())

    def __iter__(self) -> Iterator[Any]:
        return self._items()


class LyingMapping(Mapping[Any, Any]):
    """Has endlessly many keys, and says it has one."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: Any) -> Any:
        return key

    def __iter__(self) -> Iterator[Any]:
        return _endless(5)


def _endless(value: Any) -> Iterator[Any]:
    while True:
        yield value


class TextEnum(enum.StrEnum):
    ONE = "one"


class WholeEnum(enum.IntEnum):
    TWO = 2


def _deep(n_levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(n_levels):
        value = [value]
    return value


def _wide(n_levels: int) -> list[Any]:
    """Few objects, and endlessly many when they are counted one by one."""
    value: list[Any] = ["x"]
    for _ in range(n_levels):
        value = [value, value]
    return value


def _recursive_list() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def _recursive_dict() -> dict[str, Any]:
    value: dict[str, Any] = {"role": "user"}
    value["content"] = value
    return value


class _LongRepr:
    def __repr__(self) -> str:
        return "r" * 1_000_000 + "\ud800"


_BASES = (object, str, int, float, bytes, list, tuple, dict)

_PLAIN: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 65, 255, 258, 2**31, 2**32, 2**63, 2**64, -(2**63) - 1),
    *(10**400, -(10**400), 10**5000, 0.0, -0.0, 0.5, 1.0, 2.5, 1e308, 5e-324, 1e-9, -1.5),
    *(math.nan, math.inf, -math.inf, 1j, fractions.Fraction(1, 3), fractions.Fraction(10**400, 3)),
    *(
        decimal.Decimal("0.5"),
        decimal.Decimal("NaN"),
        Ellipsis,
        NotImplemented,
        object,
        TrapError("x"),
    ),
    *(
        "",
        "\0",
        "\ud800",
        "a\udfffb",
        "x",
        "é",
        "日本",
        " ",
        "\n",
        "last",
        "mean",
        "<|end|>",
        "\u202e",
    ),
    *("cls", "q4_k_m", "int4_zp", "auto", "required", "none", "low", "object", "#", "#/a/~1"),
    *(
        "(?=a)",
        "a{1,9999}",
        "[",
        "(a|b){50}{50}",
        "\\p{Lu}+",
        'root ::= "a" | root',
        "root ::= root",
    ),
    *(b"", b"\xff", b"text", datetime.datetime(2026, 1, 1), Path("x"), TextEnum.ONE, WholeEnum.TWO),
    *((), (1, 2), ("x", None), frozenset(), frozenset({1, "x"}), range(0), range(5), range(10**9)),
    *(range(-5, 10**18), print, len, SamplingParams(max_tokens=2), SimpleNamespace(role="user")),
)

_MADE: tuple[Callable[[Random], Any], ...] = (
    lambda r: _raising(r, r.choice(_BASES)),
    lambda r: _raising(r),
    lambda _: ClassTrap(),
    lambda _: _LongRepr(),
    lambda _: object(),
    lambda r: Liar(r.choice([-1, 0, 1, 3, 10**18]), lambda: _endless(65)),
    lambda r: Liar(r.choice([0, 1, 3]), lambda: _endless("x")),
    lambda _: Liar(2, lambda: iter(())),
    lambda _: Liar(2, _raise),
    lambda _: LyingMapping(),
    lambda r: _deep(r.choice([5, 40, 100_000])),
    lambda _: _wide(40),
    lambda _: _recursive_list(),
    lambda _: _recursive_dict(),
    lambda _: [],
    lambda _: [[]],
    lambda _: {},
    lambda _: {5: 1},
    lambda _: {"a": object()},
    lambda _: {None: None, b"x": b"\xff", "\ud800": "\ud800"},
    lambda _: {1, 2},
    lambda _: (value for value in (1, 2)),
    lambda _: iter([1, 2]),
    lambda _: bytearray(b"text"),
    lambda _: memoryview(b"text"),
    lambda _: array.array("i", [65, 66]),
    lambda _: array.array("d", [0.5]),
    lambda _: deque([65, 66]),
    lambda _: UserList([65, 66]),
    lambda _: UserDict({"role": "user", "content": "hi"}),
    lambda _: UserString("text"),
    lambda _: MappingProxyType({1: 1.0}),
    lambda _: OrderedDict({1: 1.0}),
    lambda _: lambda: None,
    lambda r: np.array([[1, 2], [3, 4]][: r.randrange(3)]),
    lambda _: np.array([1, 2]),
    lambda _: np.array(5),
    lambda _: np.array(0.5),
    lambda _: np.array([0.5, math.nan]),
    lambda _: np.array(["a", "b"]),
    lambda _: np.array([None, object()], dtype=object),
    lambda _: np.broadcast_to(np.int64(1), (10**6, 10**6)),
    lambda _: np.zeros(3, dtype=[("x", "i4")]),
    lambda r: np.int64(r.choice([-1, 0, 2, 2**62])),
    lambda _: np.uint8(3),
    lambda r: np.float32(r.choice([0.0, 0.5, math.nan, math.inf])),
    lambda _: np.float16(1.5),
    lambda _: np.longdouble("1e4000"),
    lambda r: np.bool_(r.random() < 0.5),
    lambda _: np.str_("text"),
    lambda _: np.datetime64("2026-01-01"),
    lambda r: "é" * r.choice([100, 10_000, 2_000_000]),
    lambda _: "word " * 500_000,
    lambda r: [65] * r.choice([10, 300, 100_000]),
    lambda _: b"x" * 1_000_000,
    lambda _: ["x"] * 10_000,
)

_ROUND: tuple[Callable[[Any], Any], ...] = (
    lambda value: [value],
    lambda value: (value, value),
    lambda value: [65, value],
    lambda value: ["x", value],
    lambda value: {"a": value},
    lambda value: {1: value},
    lambda value: {value: 1.0},
    lambda value: [{"role": value, "content": "hi"}],
    lambda value: [{"role": "user", "content": value}],
    lambda value: [{"role": "assistant", "content": value}],
    lambda value: [{"role": "user", "content": [{"type": "text", "text": value}]}],
    lambda value: [{"role": "user", "content": [value]}],
    lambda value: [{"role": "user", "content": "hi", "tool_calls": value}],
    lambda value: [{"role": "user", "content": "hi"}, value],
    lambda value: [{value: "hi"}],
    lambda value: {"type": value},
    lambda value: {"type": "object", "properties": {"a": value}, "required": ["a"]},
    lambda value: {"type": "array", "items": value, "minItems": 1},
    lambda value: {"enum": value},
    lambda value: {"anyOf": [value, {"type": "integer", "minimum": value}]},
    lambda value: {"$ref": value, "$defs": {"a": value}},
    lambda value: {"type": "string", "pattern": value, "maxLength": value},
    lambda value: [{"type": "function", "function": {"name": "f", "parameters": value}}],
    lambda value: [{"type": "function", "function": {"name": value, "description": value}}],
    lambda value: {"type": "function", "function": {"name": value}},
)


def odd_value(random: Random) -> Any:
    """A value of any kind, now and then inside a list, a mapping or a message."""
    value = random.choice(_PLAIN) if random.random() < 0.4 else random.choice(_MADE)(random)
    while random.random() < 0.3:
        try:
            value = random.choice(_ROUND)(value)
        except Exception:  # it cannot be a key
            continue
    return value
