from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pybatcher.http.base.list_response import list_json, list_response, text_json


@pytest.mark.parametrize("items", [[], [{"text": 'é"\n'}, {"n": [1.5, None]}]])
def test_the_json_is_that_of_the_whole_body(items: list[Any]) -> None:
    head = {"id": 'a "data":[ b', "data": [], "usage": {"data": []}}
    told = json.loads(list_json(head, "data", iter(items)))
    assert told == {**head, "data": items}
    assert list(told) == list(head)


@pytest.mark.parametrize("text", ["", 'é"\n\x00', "\U0001f600" * 2**17, "ab" * 2**16 + "c"])
def test_the_json_of_a_text_is_the_same_in_parts(text: str) -> None:
    assert json.loads(text_json({"a": text, "b": "x"})) == {"a": text, "b": "x"}


async def test_many_values_are_made_and_written_beside_the_loop() -> None:
    threads: list[threading.Thread] = []

    def items() -> Iterator[int]:
        threads.append(threading.current_thread())
        yield 1

    for n_values in (10, 100_000):
        response = await list_response({"data": []}, "data", items(), n_values=n_values)
        assert (response.body, response.headers["content-type"]) == (
            b'{"data":[1]}',
            "application/json",
        )
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()
