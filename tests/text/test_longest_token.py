"""The bytes that a token stands for are never more than was said."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable

import pytest
from sample_tokenizers import KINDS, build
from tokenizers import AddedToken, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pybatcher.testing.checkpoints import make_tokenizer
from pybatcher.text import Tokenizer
from pybatcher.text.longest_token import ANY_LENGTH, longest_token

TEXTS = [
    "the fox and the river",
    "<|im_start|>" * 50,
    "日本 plain" * 20,
    "caf\u00e9 \u20ac" * 20,
    "\u212b\u1fef\u212a" * 30,
    "e\u0301\u0323" * 40,
    "\u1100\u1161\u11a8" * 40,
    "a" * 500,
    "\U0001f98a" * 30,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_text_has_fewer_tokens_than_it_says(kind: str, text: str) -> None:
    backend = build(kind)
    n_tokens = len(backend.encode(text, add_special_tokens=False).ids)
    assert n_tokens * longest_token(backend) >= len(text.encode())


def test_where_nothing_is_dropped_it_is_that_of_the_vocabulary() -> None:
    backend = make_tokenizer()
    assert longest_token(backend) == max(len(token.encode()) for token in backend.get_vocab())
    assert longest_token(build("llama")) < 20


def _normalized(backend: Backend) -> None:
    backend.normalizer = normalizers.Strip()


def _cut(backend: Backend) -> None:
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _added(backend: Backend) -> None:
    backend.add_special_tokens([AddedToken("<|pad|>", rstrip=True)])


@pytest.mark.parametrize("change", [_normalized, _cut, _added])
def test_where_characters_may_be_dropped_it_is_large(change: Callable[[Backend], None]) -> None:
    backend = make_tokenizer()
    change(backend)
    assert longest_token(backend) >= ANY_LENGTH


@pytest.mark.slow
@pytest.mark.parametrize(("form", "factor"), [("NFC", 9), ("NFD", 3), ("NFKC", 12), ("NFKD", 4)])
def test_normal_forms_shorten_a_character_by_less_than_their_factor(form: str, factor: int) -> None:
    for code in range(sys.maxunicode + 1):
        if not 0xD800 <= code < 0xE000:
            text = chr(code)
            normal = unicodedata.normalize(form, text)  # type: ignore[arg-type]
            assert len(text.encode()) <= factor * len(normal.encode())


def test_a_tokenizer_says_it_once() -> None:
    tokenizer = Tokenizer(make_tokenizer())
    assert tokenizer.longest_token == longest_token(make_tokenizer())
    assert Tokenizer(None).longest_token == 1
