"""Oracle: SentencePiece's own normaliser, with the maps of the rules that its trainer knows."""

from __future__ import annotations

import io
import random
import unicodedata
from functools import cache

import pytest
import sentencepiece
from tokenizers import NormalizedString

from pybatcher.loading.tokenizers.character_map import CharacterMap
from pybatcher.loading.tokenizers.sentencepiece_model import read_sentencepiece

RULES = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")
LETTERS = "abeEoOuAÅêアカｶﾊｴ가ᄀᄂＥ①ﬁ½ 1/"  # noqa: RUF001
JOINERS = "ﾞﾟᅡᅢᆨᆩ\u0301\u0302\u0323\t\n\u200d\u200b\r\x01"
CHARACTERS = [chr(code) for code in range(32, 0x30000) if unicodedata.category(chr(code))[0] != "C"]
MARKS = [character for character in CHARACTERS if unicodedata.combining(character)]


@cache
def trained(rule: str) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the fox jumps over the lazy dog"] * 20),
        model_writer=model,
        vocab_size=40,
        normalization_rule_name=rule,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def map_of(rule: str, kept: tuple[str, ...] = ()) -> CharacterMap:
    return CharacterMap(read_sentencepiece(trained(rule), "x").charsmap, kept)


@pytest.mark.parametrize("rule", RULES)
def test_random_texts_are_normalised_as_by_sentencepiece(rule: str) -> None:
    theirs = sentencepiece.SentencePieceNormalizer(
        model_proto=trained(rule),
        add_dummy_prefix=False,
        escape_whitespaces=False,
        remove_extra_whitespaces=False,
    )
    ours, rng = map_of(rule), random.Random(3)
    kinds = (LETTERS, MARKS, MARKS[:60], CHARACTERS, JOINERS)
    for _ in range(2000):
        text = "".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randrange(12)))
        assert ours.normalize_str(text) == theirs.normalize(text), ascii(text)


def test_the_end_of_one_text_has_no_effect_on_another() -> None:
    ours = map_of("nfkc")
    assert ours.normalize_str("a\u0323") == "\u1ea1"
    assert ours.normalize_str("a\u0323\u0302") == "\u1ead"


def test_texts_that_are_kept() -> None:
    assert map_of("nfkc", ("ﬁ", "ﬁ①")).normalize_str("ﬁ①ﬁ②①") == "ﬁ①ﬁ21"


@pytest.mark.parametrize("before", ["\u2460\u0301x", "x", "\u00bd\u00bd", "ab\x01\x01", "\x01"])
def test_a_text_of_the_library_is_changed_in_place(before: str) -> None:
    """The library adds a space at the beginning of a text only if that is its beginning still."""
    ours, text = map_of("nmt_nfkc"), NormalizedString(before)
    ours.normalize(text)
    assert text.normalized == ours.normalize_str(before)


@pytest.mark.parametrize("n_bytes", [0, 4, 8, 5000])
def test_damaged_maps_are_harmless(n_bytes: int) -> None:
    whole, rng = read_sentencepiece(trained("nfkc"), "x").charsmap, random.Random(4)
    data = bytearray(whole[:n_bytes] or whole)
    for _ in range(100):
        data[rng.randrange(4, len(data) + 4) % len(data)] = rng.randrange(256)
    assert isinstance(CharacterMap(bytes(data)).normalize_str(LETTERS + JOINERS), str)
