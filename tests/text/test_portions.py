"""A text that is tokenised by portions has the tokens that it has as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_words import GPT4O, QWEN35, TEKKEN
from sample_tokenizers import KINDS, build
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pybatcher.testing.checkpoints import make_tokenizer
from pybatcher.text import Tokenizer, tokenizer
from pybatcher.text.portions import Portions

_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
EXPRESSIONS = {
    "qwen": _WORDS + r"\p{N}" + _REST,
    "llama 3": _WORDS + r"\p{N}{1,3}" + _REST,
    "qwen 3.5": QWEN35,
    "mistral": TEKKEN,
    "gpt-oss": GPT4O,
}
PIECES = st.sampled_from(
    [
        *("a", "fox ", "the", " ", "  ", "\n", "\n\n ", "\t", "'s", "'LL", "12", "3", "日本", "。"),
        *("é", "e\u0301", "\u0301", "!?", "<|end|>", "<|im_start|>", "\u3000", "\u00a0", "\r\n"),
        "Zażółć ",
        *("aB ", "/\n", "//", "x'Re"),
    ]
)
TEXTS = st.lists(PIECES, max_size=150).map("".join)


def made(name: str) -> Backend:
    backend = make_tokenizer()
    if name in EXPRESSIONS:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(EXPRESSIONS[name]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    if name.startswith("qwen"):
        backend.normalizer = normalizers.NFC()
    return backend


BACKENDS = {name: made(name) for name in ("gpt-2", *EXPRESSIONS)}


@pytest.fixture(autouse=True)
def short_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "_PORTION", 10)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(BACKENDS)), TEXTS, st.booleans())
def test_portions_give_the_tokens_of_the_whole(name: str, text: str, special: bool) -> None:
    backend = BACKENDS[name]
    tokenizer._PORTION = 10
    expected = backend.encode(text, add_special_tokens=special).ids
    assert Tokenizer(backend).encode_long(text, add_special_tokens=special) == expected


@pytest.mark.parametrize("name", BACKENDS)
def test_long_texts_are_cut(name: str) -> None:
    portions = Portions(BACKENDS[name])
    assert portions.is_exact
    text = "the fox and the river " * 20
    parts = list(portions.of(text, 50))
    assert "".join(parts) == text
    assert len(parts) > 5
    assert all(part.startswith(" ") for part in parts[1:])
    assert list(portions.of("日本語。" * 100, 50)) == ["日本語。" * 100]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "byte level"])
def test_other_tokenizers_take_a_text_as_a_whole(kind: str) -> None:
    assert not Portions(build(kind)).is_exact


def _spaced(backend: Backend) -> None:
    backend.add_tokens(["fox and"])


def _stripping(backend: Backend) -> None:
    backend.add_tokens([AddedToken("<|x|>", rstrip=True)])


def _prefixed(backend: Backend) -> None:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def _lowered(backend: Backend) -> None:
    backend.normalizer = normalizers.Lowercase()


@pytest.mark.parametrize("change", [_spaced, _stripping, _prefixed, _lowered])
def test_what_depends_on_the_whole_text_is_not_cut(change: Callable[[Backend], None]) -> None:
    backend = make_tokenizer()
    change(backend)
    assert not Portions(backend).is_exact


def test_it_stops_when_it_is_told_to() -> None:
    asked: list[int] = []

    def goes_on(n_tokens: int) -> bool:
        asked.append(n_tokens)
        return len(asked) < 3

    whole = BACKENDS["gpt-2"].encode("the fox " * 100).ids
    some = Tokenizer(BACKENDS["gpt-2"]).encode_long("the fox " * 100, goes_on=goes_on)
    assert len(asked) == 3
    assert some == whole[: len(some)]
    assert asked[-1] == len(some) < len(whole)
