"""Objects that msgpack can have and that are no frames of the protocol."""

from __future__ import annotations

from typing import Any

# Requests with the msgid 9.
BROKEN_REQUESTS: list[Any] = [
    [0, 9],
    [0, 9, "a"],
    [0, 9, "a", [], None],
    [0, 9, None, []],
    [0, 9, 5, []],
    [0, 9, b"\xff", []],
    [0, 9, ["a"], []],
    [0, 9, "a", None],
    [0, 9, "a", {}],
    [0, 9, "a", "b"],
]

# Nothing that could be answered.
BROKEN_FRAMES: list[Any] = [
    [],
    [0],
    [0, -1, "a", []],
    [0, 2**32, "a", []],
    [0, None, "a", []],
    [0, True, "a", []],
    [0, 1.0, "a", []],
    [0, "1", "a", []],
    [3, 9, "a", []],
    [-1, 9, "a", []],
    [False, 9, "a", []],
    [0.0, 9, "a", []],
    [None, 9, "a", []],
    ["0", 9, "a", []],
    [[0], 9, "a", []],
    [1],
    [1, 9],
    [1, 9, None, None, None],
    [2],
    [2, "a"],
    [2, "a", [], 1],
    [2, 1, []],
    [2, b"\xff", []],
    [2, "a", {}],
    {0: 0},
    "hello",
    0,
    None,
]
