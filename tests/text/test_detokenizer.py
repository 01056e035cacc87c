from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_tokenizers import KINDS, build

from pybatcher.testing.checkpoints import make_tokenizer
from pybatcher.text import Detokenizer, Tokenizer

TOKENIZERS = {kind: Tokenizer(build(kind)) for kind in KINDS}
ids = st.lists(st.integers(-1, 420), max_size=30)


def pieces(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KINDS), ids, st.booleans())
def test_the_pieces_are_what_decode_gives(kind: str, token_ids: list[int], skip: bool) -> None:
    tokenizer = TOKENIZERS[kind]
    text = "".join(pieces(Detokenizer(tokenizer, skip_special_tokens=skip), token_ids))
    assert text == tokenizer.decode(token_ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_whole_characters_only(text: str) -> None:
    tokenizer = TOKENIZERS["byte level"]
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    parts = pieces(Detokenizer(tokenizer), token_ids)
    assert "".join(parts) == text
    assert text.count("\ufffd") == "".join(parts).count("\ufffd")
    assert parts[-1] == ""  # nothing is held back once its character is whole


@settings(deadline=None)
@given(st.sampled_from([k for k in KINDS if k != "unknown"]), ids, ids)
def test_going_on_from_a_prompt(kind: str, prompt: list[int], token_ids: list[int]) -> None:
    tokenizer = TOKENIZERS[kind]
    plain = "s"  # so that no character of the prompt is cut where the ids go on
    prompt = [*prompt, tokenizer.encode(plain, add_special_tokens=False)[-1]]
    text = "".join(pieces(Detokenizer(tokenizer, prompt_ids=prompt), token_ids))
    assert tokenizer.decode(prompt) + text == tokenizer.decode(prompt + token_ids)


def test_a_prompt_of_special_tokens_holds_no_text() -> None:
    tokenizer = TOKENIZERS["llama"]
    begin, fox = tokenizer.encode("<s>", add_special_tokens=False)[-1], 260
    assert tokenizer.token(fox) == "▁fox"
    assert Detokenizer(tokenizer, prompt_ids=[begin]).push(fox) == "fox"
    assert Detokenizer(tokenizer, prompt_ids=[fox]).push(fox) == " fox"


def test_a_character_comes_with_its_last_token() -> None:
    tokenizer = TOKENIZERS["byte level"]
    token_ids = tokenizer.encode("🦊", add_special_tokens=False)
    assert len(token_ids) == 4
    assert pieces(Detokenizer(tokenizer), token_ids) == ["", "", "", "🦊", ""]


def test_bytes_that_are_no_character_are_replaced_as_soon_as_that_is_known() -> None:
    tokenizer = TOKENIZERS["byte level"]
    first, *_ = tokenizer.encode("🦊", add_special_tokens=False)
    letter = tokenizer.encode("s", add_special_tokens=False)
    assert pieces(Detokenizer(tokenizer), [first, *letter, first]) == ["", "\ufffds", "", "\ufffd"]


def test_a_run_of_byte_tokens_is_text_only_as_a_whole() -> None:
    tokenizer = TOKENIZERS["llama"]
    names = ["<0xC3>", "<0xA9>", "s", "<0xC3>", "<0xA9>", "<0xFF>"]
    backend = build("llama")
    token_ids = [backend.token_to_id(name) for name in names]
    assert pieces(Detokenizer(tokenizer), token_ids) == ["", "", "és", "", "", "", "\ufffd" * 3]


def test_an_unknown_decoder_gives_its_text_at_the_end() -> None:
    tokenizer = TOKENIZERS["unknown"]
    fox = 260
    assert pieces(Detokenizer(tokenizer), [fox, fox]) == ["", "", "_fox_fox"]


def test_flush_ends_the_text() -> None:
    detokenizer = Detokenizer(TOKENIZERS["byte level"])
    (token_id,) = TOKENIZERS["byte level"].encode("s", add_special_tokens=False)
    assert detokenizer.push(token_id) + detokenizer.flush() + detokenizer.flush() == "s"


def test_the_work_of_a_token_does_not_grow_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_tokenizer()
    tokenizer = Tokenizer(backend)
    monkeypatch.setattr(tokenizer, "decode", None)  # whoever decodes anew all of it fails
    detokenizer = Detokenizer(tokenizer)
    token_ids = random.Random(0).choices(range(4, 384), k=20_000)
    text = "".join(map(detokenizer.push, token_ids)) + detokenizer.flush()
    assert text == backend.decode(token_ids)
