"""The tokenizer of the fakes: one token per byte."""

from __future__ import annotations

from pybatcher.testing import byte_tokenizer
from pybatcher.testing.byte_tokenizer import BOS_TOKEN_ID, EOS_TOKEN_ID


def test_there_and_back() -> None:
    tokenizer = byte_tokenizer()
    text = "Straße, 東京 🙂\n\x00"
    ids = tokenizer.encode(text)
    assert ids[0] == BOS_TOKEN_ID
    assert len(ids) == 1 + len(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text, add_special_tokens=False) == ids[1:]
    assert tokenizer.decode([*ids, EOS_TOKEN_ID], skip_special_tokens=False) == f"<bos>{text}<eos>"
    assert tokenizer.vocab_size == 258
    assert tokenizer.eos_token_ids == {EOS_TOKEN_ID}
