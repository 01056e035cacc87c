from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pybatcher.calls.completion import TokenLogprob
from pybatcher.http.openai.text_offsets import TextOffsets, offsets_of


class Texts(dict[int, str]):
    """The texts of tokens that are some bytes each, and how often several are asked for."""

    def __init__(self, *tokens: bytes) -> None:
        super().__init__((i, one.decode("utf-8", "replace")) for i, one in enumerate(tokens))
        self.tokens = tokens
        self.n_asked = 0

    async def joined(self, token_ids: Sequence[int]) -> str:
        self.n_asked += 1
        return b"".join(self.tokens[one] for one in token_ids).decode("utf-8", "replace")


def split(text: str) -> list[bytes]:
    return [bytes([one]) for one in text.encode()]


async def places(*tokens: bytes, start: int = 0) -> list[int]:
    texts: Any = Texts(*tokens)
    whole = await TextOffsets(texts, start).add(range(len(tokens)))
    one = TextOffsets(texts, start)
    assert [place for i in range(len(tokens)) for place in await one.add([i])] == whole
    return whole


async def test_whole_texts_are_counted_without_asking() -> None:
    texts: Any = Texts(b"ab", "é".encode(), b"", b"c")
    assert await TextOffsets(texts, 5).add(range(4)) == [5, 7, 8, 8]
    assert texts.n_asked == 0


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([*split("😀"), b" a"], [0, 0, 0, 0, 1]),
        ([b"x", *split("日本"), b"c", b"d"], [0, 1, 1, 1, 2, 2, 2, 3, 4]),
        (["é".encode() + b"\xf0\x9f", b"\x98\x80b", b"c"], [0, 1, 3]),
        ([b"\xf0\x9f", b"a", b"b"], [0, 1, 2]),  # never a character: one U+FFFD
        ([b"\x80"] * 10 + [b"a"], [0] * 8 + [8, 8, 10]),
        ([b"\x80", *split("é"), b"a"], [0, 0, 0, 2]),
    ],
)
async def test_tokens_that_are_one_character_count_as_one(
    tokens: list[bytes], expected: list[int]
) -> None:
    assert await places(*tokens) == expected
    assert await places(*tokens, start=3) == [3 + one for one in expected]


async def test_an_echoed_prompt_begins_with_the_answer() -> None:
    texts: Any = Texts(b"<s>", b" the", *split("é"), b" fox", b"es")
    logprobs = [TokenLogprob(i, -1.0, ()) for i in (4, 5)]
    before = ("theé", range(4))
    assert await offsets_of(texts, logprobs, None, False) == [0, 4]
    assert await offsets_of(texts, logprobs, before, False) == [4, 8]
    assert await offsets_of(texts, logprobs, before, True) == [0, 0, 3, 3, 4, 8]
