"""The oracle is the tokenizer of XLM-RoBERTa as transformers makes it of a vocabulary."""

from __future__ import annotations

import io
import math
import struct
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hostile_texts import hostile_texts
from tokenizers import Tokenizer

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.tokenizers.gguf_tokenizer import read_tokenizer
from pybatcher.loading.tokenizers.sentencepiece_model import read_sentencepiece
from pybatcher.text import Tokenizer as TextTokenizer

PIECES = [
    *(
        "\u2581",
        "\u2581the",
        "the",
        "\u2581fox",
        "fo",
        "x",
        "\u2581river",
        "\u2581once",
        "\u2581upon",
    ),
    *("\u2581a", "\u2581time", "ti", "me", "camel", "Case", "don", "'", "t", "日本", "語", "é"),
    *"abcdefghijklmnopqrstuvwxyz0123456789.,:!?",
]
TOKENS = ["<s>", "<pad>", "</s>", "<unk>", *dict.fromkeys(PIECES), "<mask>"]
SCORES = [0.0] * 4 + [-1.5 - 0.37 * (i % 11) - i / 40 for i in range(len(TOKENS) - 5)] + [0.0]
KINDS = [3, 3, 3, 2] + [1] * (len(TOKENS) - 5) + [3]


def read(**changes: Any) -> Tokenizer:
    keys = {
        "model": "t5",
        "tokens": TOKENS,
        "scores": np.array(SCORES, np.float32),
        "token_type": np.array(KINDS, np.int32),
        "bos_token_id": 0,
        "eos_token_id": 2,
        "unknown_token_id": 3,
        "add_bos_token": True,
        "add_eos_token": True,
        "remove_extra_whitespaces": True,
        **changes,
    }
    fields = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    backend = read_tokenizer(Fields(fields, "model.gguf"), 1000).backend
    assert backend is not None
    return backend


def test_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    scores = np.array(SCORES, np.float32).astype(float).tolist()
    known = transformers.XLMRobertaTokenizer(vocab=list(zip(TOKENS, scores, strict=True)))
    made = read()
    several = 0
    for text in hostile_texts():
        if "<mask>" in text:
            continue
        ids = known(text).input_ids
        assert made.encode(text).ids == ids, text
        assert made.decode(ids) == known.decode(ids, skip_special_tokens=True)
        several += len(set(ids)) > 6
    assert several > 50


def test_greatest_sum_of_scores() -> None:
    """Of all ways to cut a text, by definition."""
    score = dict(zip(TOKENS, np.array(SCORES, np.float32).astype(float), strict=True))

    def best(text: str) -> float:
        found = [0.0] + [-math.inf] * len(text)
        for end in range(1, len(text) + 1):
            for begin in range(end):
                if text[begin:end] in score:
                    found[end] = max(found[end], found[begin] + score[text[begin:end]])
        return found[-1]

    made = read()
    for word in ("the", "thefoxtime", "camelonce", "donttimea", "xfotheme"):
        tokens = made.encode(word, add_special_tokens=False).tokens
        assert sum(score[token] for token in tokens) == pytest.approx(best(f"\u2581{word}"))


def test_spaces_by_the_file() -> None:
    def tokens(text: str, **changes: Any) -> list[str]:
        return read(**changes).encode(text, add_special_tokens=False).tokens

    assert tokens("the  fox") == ["\u2581the", "\u2581fox"]
    kept = tokens("the  fox", remove_extra_whitespaces=False)
    assert kept == ["\u2581the", "\u2581", "\u2581fox"]
    assert tokens("the fox", add_space_prefix=False)[0] == "the"


def test_ends_where_only_the_kind_tells() -> None:
    made = read(add_bos_token=None, add_eos_token=None)
    assert made.encode("the").tokens == ["\u2581the", "</s>"]


def charsmap(*replacements: bytes) -> np.ndarray[Any, Any]:
    """Return a map without a trie's nodes: it replaces nothing, or is damaged."""
    return np.frombuffer(
        struct.pack("<I", 4 * 256) + bytes(4 * 256) + b"".join(replacements), np.uint8
    )


def test_a_map_of_characters() -> None:
    assert read(precompiled_charsmap=charsmap(b"x\0")).encode("the").tokens[1] == "\u2581the"


@pytest.mark.parametrize("value", [[1, 2], np.zeros(3, np.float32), "x", np.zeros(2, np.uint8)])
def test_refused_maps(value: Any) -> None:
    with pytest.raises(ModelFormatError, match=r"model\.gguf: tokenizer\.ggml"):
        read(precompiled_charsmap=value)


def test_a_damaged_map_replaces_nothing() -> None:
    backend = read(precompiled_charsmap=np.frombuffer(b"\4\0\0\0\xff\xff\xff\x7fx\0", np.uint8))
    assert TextTokenizer(backend).encode("the") == TextTokenizer(read()).encode("the")


def test_a_map_keeps_combining_marks_as_sentencepiece_does() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the fox jumps over the lazy dog"] * 20),
        model_writer=model,
        vocab_size=40,
        normalization_rule_name="nmt_nfkc",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceNormalizer(
        model_proto=model.getvalue(),
        add_dummy_prefix=False,
        escape_whitespaces=False,
        remove_extra_whitespaces=False,
    )
    charsmap = read_sentencepiece(model.getvalue(), "x").charsmap
    normalizer = read(precompiled_charsmap=np.frombuffer(charsmap, np.uint8)).normalizer
    for text in ("x\u0301\u0323", "\ufb01\u0302", "A\u030a\u0301 \u30ab\u3099"):
        assert normalizer.normalize_str(text) == theirs.normalize(text)


def test_refused_scores() -> None:
    with pytest.raises(ModelFormatError, match=r"ggml\.scores is array.*; expected finite numbers"):
        read(scores=np.full(len(TOKENS), np.inf))
