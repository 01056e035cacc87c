"""The oracle is BERT's tokenizer as transformers makes it of a vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hostile_texts import hostile_texts
from tokenizers import Tokenizer

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.tokenizers.gguf_tokenizer import read_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghilnoprstuvxyz0123456789.,:;!?'/<>|$_-日本語한국ωß"
WORDS = ["the", "fox", "river", "upon", "once", "##ver", "##ox", "##pon", "camel", "##case", "don"]
VOCABULARY = [*SPECIAL, "[unused0]", *LETTERS, *(f"##{c}" for c in LETTERS if c.isalnum()), *WORDS]


def gguf_spelling(token: str) -> str:
    """Return a token as llama.cpp's converter writes it."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[2:] if token.startswith("##") else f"\u2581{token}"


def keys(**changes: Any) -> dict[str, Any]:
    return {
        "model": "bert",
        "tokens": [gguf_spelling(token) for token in VOCABULARY],
        "token_type": np.array([3] * 5 + [1] * (len(VOCABULARY) - 5), np.int32),
        "unknown_token_id": 1,
        "cls_token_id": 2,
        "seperator_token_id": 3,
        **changes,
    }


def read(**changes: Any) -> Tokenizer:
    fields = {f"tokenizer.ggml.{key}": value for key, value in keys(**changes).items()}
    backend = read_tokenizer(Fields(fields, "model.gguf"), 1000).backend
    assert backend is not None
    return backend


@pytest.mark.parametrize("lowercase", [True, False])
def test_of_transformers(lowercase: bool) -> None:
    transformers = pytest.importorskip("transformers")
    known = transformers.BertTokenizer(
        vocab={token: index for index, token in enumerate(VOCABULARY)}, do_lower_case=lowercase
    )
    made = read(**({} if lowercase else {"normalizer.lowercase": False}))
    several = 0
    for text in hostile_texts():
        ids = known(text).input_ids
        assert made.encode(text).ids == ids, text
        several += len(set(ids)) > 6
    assert several > 50


def test_tokens_around_a_text_whatever_the_file_says() -> None:
    made = read(add_bos_token=False, add_eos_token=False)
    assert made.encode("fox").tokens == ["[CLS]", "fox", "[SEP]"]
    assert read(cls_token_id=None, seperator_token_id=None).encode("fox").tokens == [
        *("[CLS]", "fox", "[SEP]")
    ]


def test_a_text_comes_back() -> None:
    made = read()
    assert (
        made.decode(made.encode("The camelcase river, once.").ids) == "the camelcase river, once."
    )


def test_names_in_brackets_are_spelt_alike() -> None:
    assert read().token_to_id("[unused0]") == VOCABULARY.index("[unused0]")


def test_accents_by_the_file() -> None:
    assert read().encode("t\u0301he", add_special_tokens=False).tokens == ["the"]
    kept = read(**{"normalizer.strip_accents": False})
    assert kept.encode("t\u0301he", add_special_tokens=False).tokens == ["[UNK]"]


def test_refused() -> None:
    with pytest.raises(ModelFormatError, match=r"normalizer\.lowercase is 3; expected true or f"):
        read(**{"normalizer.lowercase": 3})
