"""The oracles: Llama 2's tokenizer.json, and Gemma's tokenizer as transformers makes it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gguf_tokenizers import (
    BYTE,
    CONTROL,
    NORMAL,
    USER_DEFINED,
    of_llama_2,
    pieces_and_scores,
    spm_keys,
)
from gguf_tokenizers import read as read_parts
from hostile_texts import hostile_texts
from tokenizers import Tokenizer, models, trainers

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.tokenizers.gguf_tokenizer import read_tokenizer

TEXTS = [" the fox  looked at\n\nthe river\n\n\nand don't it's 2024 1234", "日本語 naïve é\n\n  x"]


def trained() -> tuple[list[str], list[str], list[int]]:
    """Return tokens, merges and kinds of a vocabulary like Gemma 4's."""
    trainee = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=160, show_progress=False)
    trainee.train_from_iterator([text.replace(" ", "\u2581") for text in TEXTS] * 3, trainer)
    described = json.loads(trainee.to_str())["model"]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<think>"]
    kinds = [CONTROL] * 6 + [USER_DEFINED]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    kinds += [BYTE] * 256
    pieces = sorted(described["vocab"], key=described["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in described["merges"]]
    return [*tokens, *pieces], merges, [*kinds, *[NORMAL] * len(pieces)]


TOKENS, MERGES, KINDS = trained()


def read(**changes: Any) -> tuple[Tokenizer, frozenset[int]]:
    keys = {
        "model": "gemma4",
        "tokens": TOKENS,
        "merges": MERGES,
        "token_type": np.array(KINDS, np.int32),
        "bos_token_id": 2,
        "eos_token_id": 1,
        "unknown_token_id": 3,
        "add_space_prefix": False,
        **changes,
    }
    fields = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    parts = read_tokenizer(Fields(fields, "model.gguf"), 1000)
    assert parts.backend is not None
    return parts.backend, parts.eos_token_ids


def test_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    known = transformers.GemmaTokenizer(
        vocab={token: index for index, token in enumerate(TOKENS)},
        merges=[tuple(merge.split(" ")) for merge in MERGES],
    )
    made, _ = read()
    longest = 0
    for text in hostile_texts():
        if any(token in text for token in ("<turn", "<|turn", "<think>", "<mask>")):
            continue
        ids = known(text, add_special_tokens=False).input_ids
        assert made.encode(text, add_special_tokens=False).ids == ids, text
        assert made.decode(ids) == known.decode(ids, skip_special_tokens=True)
        longest = max([longest, *(len(TOKENS[i]) for i in ids if i > 263)])
    assert longest > 3


def test_lines_are_tokens() -> None:
    made, _ = read()
    assert "\n\n" in made.encode("the\n\nfox", add_special_tokens=False).tokens


@pytest.mark.parametrize("says", [True, False, None])
def test_bos_whatever_the_file_says(says: bool | None) -> None:
    """Early files of Gemma 4 say false."""
    made, _ = read(add_bos_token=says)
    assert made.encode("the").ids[0] == 2


@pytest.mark.parametrize("says", [True, False, None])
def test_eos_as_the_file_says(says: bool | None) -> None:
    made, _ = read(add_eos_token=says)
    ids = made.encode("the").ids
    assert (ids[0], ids[-1] == 1) == (2, bool(says))


@pytest.mark.parametrize(
    ("pre", "begins"), [("granite-embed-multi-311m", True), ("sarvam-moe", False)]
)
def test_other_names_of_it(pre: str, begins: bool) -> None:
    made, _ = read(model="gpt2", pre=pre)
    ids = read()[0].encode("the fox", add_special_tokens=False).ids
    assert made.encode("the fox").ids == ([2, *ids] if begins else ids)


def test_ends() -> None:
    _, ends = read()
    assert ends == {TOKENS.index("<eos>"), TOKENS.index("<turn|>")}


# -- merges of scores ---


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(prefix: bool) -> None:
    tokens, scores, _ = pieces_and_scores()
    known = of_llama_2(tokens, scores, prefix)
    made = read_parts(spm_keys(add_space_prefix=prefix)).backend
    assert made is not None
    longest = 0
    for text in hostile_texts():
        ids = known.encode(text).ids
        longest = max(longest, *(len(tokens[i]) for i in ids))
        assert made.encode(text).ids == ids, text
        assert made.decode(ids) == known.decode(ids)
    assert longest > 3


def test_unknown_token_types_are_normal() -> None:
    keys = spm_keys()
    kinds = keys["ggml.token_type"]
    kinds[kinds == NORMAL] = 0
    made, known = read_parts(keys).backend, read_parts(spm_keys()).backend
    assert made is not None
    assert known is not None
    for text in hostile_texts(50):
        assert made.encode(text).ids == known.encode(text).ids


def test_sentencepiece_comes_back() -> None:
    made = read_parts(spm_keys()).backend
    assert made is not None
    for text in hostile_texts():
        if not any(name in text for name in ("<unk>", "<s>", "</s>", "<think>", "\u2581")):
            assert made.decode(made.encode(text).ids) == text


SPM_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no scores": ({"scores": None}, "ggml.scores is missing; expected an array of"),
    "too few scores": ({"scores": np.zeros(3, np.float32)}, "ggml.scores is array"),
    "scores that are none": (
        {"scores": np.full(len(pieces_and_scores()[0]), np.nan)},
        r"(?s)ggml\.scores is array.*; expected numbers",
    ),
    "a piece without end": (
        {"tokens": ["a" * 300, "b"], "scores": np.zeros(2), "token_type": np.ones(2, np.int32)},
        "has one of 300 characters; expected at most 256",
    ),
    "a space prefix of 2": ({"add_space_prefix": 2}, "add_space_prefix is 2; expected true or fal"),
}


@pytest.mark.parametrize("name", SPM_REFUSED)
def test_refused_of_sentencepiece(name: str) -> None:
    changes, message = SPM_REFUSED[name]
    with pytest.raises(ModelFormatError, match=message):
        read_parts(spm_keys(**changes))
