"""The oracles are the tokenizer.json that a GGUF was made from, and transformers' reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import merge_lines, tokens_and_kinds, write_gguf
from hostile_texts import hostile_texts
from published_words import LLAMA3, QWEN2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split
from tokenizers.processors import TemplateProcessing

from pybatcher.errors import ModelFormatError
from pybatcher.loading import TokenizerParts
from pybatcher.loading.fields import Fields
from pybatcher.loading.gguf_file import map_gguf
from pybatcher.loading.gguf_tokenizer import read_tokenizer
from pybatcher.testing.checkpoints import make_checkpoint
from pybatcher.text import Detokenizer
from pybatcher.text import Tokenizer as TextTokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
WORDS = [" the fox looked at the river and don't it's 2024 1234", "日本語 naïve é\n\n  x", "// a_b"]


def read(keys: dict[str, Any], vocab_size: int = 600) -> TokenizerParts:
    fields = {f"tokenizer.{key}": value for key, value in keys.items() if value is not None}
    return read_tokenizer(Fields(fields, "model.gguf"), vocab_size)


# -- byte-level ------------------------------------------------------------------------------


def trained(name: str) -> Tokenizer:
    """Return a byte-level tokenizer as those models have it, with added tokens of both kinds."""
    bytes_only = ByteLevel(add_prefix_space=False, use_regex=False)
    of_gpt2 = ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = {
        "llama-bpe": Sequence([Split(Regex(LLAMA3), "isolated"), bytes_only]),
        "qwen2": Sequence([Split(Regex(QWEN2), "isolated"), bytes_only]),
        "gpt-2": of_gpt2,
        "smollm": Sequence([Digits(individual_digits=True), of_gpt2]),
    }[name]
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(WORDS * 3, trainer)
    tokenizer.add_special_tokens(["<|begin|>", "<|im_end|>", "<|im_start|>"])
    tokenizer.add_tokens(
        [AddedToken("<think>", normalized=False), AddedToken("日本 語", normalized=False)]
    )
    return tokenizer


def as_keys(tokenizer: Tokenizer, name: str, vocab_size: int = 600) -> dict[str, Any]:
    described = json.loads(tokenizer.to_str())
    tokens, kinds = tokens_and_kinds(described, vocab_size)
    return {
        "ggml.model": "gpt2",
        "ggml.pre": name,
        "ggml.tokens": tokens,
        "ggml.token_type": np.array(kinds, np.int32),
        "ggml.merges": merge_lines(described),
        "ggml.bos_token_id": tokens.index("<|begin|>"),
        "ggml.eos_token_id": tokens.index("<|im_end|>"),
    }


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "gpt-2", "smollm"])
def test_byte_level(name: str) -> None:
    known = trained(name)
    made = read({**as_keys(known, name), "ggml.add_bos_token": False}).backend
    assert made is not None
    for text in hostile_texts():
        ids = known.encode(text).ids
        assert made.encode(text).ids == ids, text
        for skip in (True, False):
            decoded = known.decode(ids, skip_special_tokens=skip)
            assert made.decode(ids, skip_special_tokens=skip) == decoded


@pytest.mark.parametrize(("name", "n_tokens"), [("llama-bpe", 1), ("qwen2", 6)])
def test_a_token_that_no_merges_make(name: str, n_tokens: int) -> None:
    keys = as_keys(trained(name), name)
    keys["ggml.tokens"][-1], keys["ggml.token_type"][-1] = "Ġxyzzyx", NORMAL
    made = read({**keys, "ggml.add_bos_token": False}).backend
    assert made is not None
    assert len(made.encode(" xyzzyx").ids) == n_tokens


def test_unused_ids_have_no_token() -> None:
    keys = as_keys(trained("gpt-2"), "gpt-2")
    assert keys["ggml.tokens"][-1] == "[PAD599]"
    made = read(keys).backend
    assert made is not None
    assert made.id_to_token(599) is None
    assert made.token_to_id("[PAD599]") is None


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "gpt-2"])
def test_of_transformers_own_reader(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    directory = make_checkpoint(tmp_path / "hf", "llama")
    path = write_gguf(directory, tmp_path / "model.gguf", pre=name)
    try:
        known = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    except (ImportError, ValueError) as error:  # an older one, or one that wants more installed
        pytest.skip(f"transformers cannot read it: {error}")
    file = map_gguf(path)
    made = read_tokenizer(file.metadata, 384).backend
    assert made is not None
    for text in hostile_texts():
        if name == "qwen2" and normalizers.NFC().normalize_str(text) != text:
            continue  # the models' own tokenizer.json says NFC, and theirs from a GGUF does not
        assert made.encode(text, add_special_tokens=False).ids == known.encode(
            text, add_special_tokens=False
        ), text


def test_pieces_as_they_come() -> None:
    parts = read(as_keys(trained("qwen2"), "qwen2"))
    tokenizer = TextTokenizer(parts.backend, eos_token_ids=parts.eos_token_ids)
    for text in hostile_texts(100):
        ids = tokenizer.encode(text)
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
        pieces = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
        assert pieces == tokenizer.decode(ids, skip_special_tokens=False)


# -- SentencePiece ---------------------------------------------------------------------------


def pieces_and_scores() -> tuple[list[str], list[float], list[int]]:
    """Return a vocabulary like Llama 2's: unknown, BOS, EOS, bytes, pieces by rank, characters."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    trainer = trainers.BpeTrainer(vocab_size=150, show_progress=False)
    trainee = Tokenizer(models.BPE())
    texts = [" ".join(WORDS).replace(" ", "\u2581")] * 3
    trainee.train_from_iterator(texts, trainer)
    described = json.loads(trainee.to_str())["model"]
    merged = ["".join(pair) for pair in described["merges"]]
    pieces = list(dict.fromkeys(["\u2581\u2581", *merged]))
    characters = sorted(token for token in described["vocab"] if len(token) == 1)
    tokens += pieces + characters
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces) + len(characters))]
    kinds += [NORMAL] * (len(pieces) + len(characters))
    return [*tokens, "<think>"], [*scores, -1000.0], [*kinds, USER_DEFINED]


def of_llama_2(tokens: list[str], scores: list[float], prefix: bool) -> Tokenizer:
    """Return a tokenizer like Llama 2's tokenizer.json, with merges in SentencePiece's order."""
    by_score = sorted(range(259, len(tokens) - 1), key=lambda i: -scores[i])
    merges = []
    for i in by_score:
        cuts = range(len(tokens[i]) - 1, 0, -1)
        pairs = [(tokens[i][:cut], tokens[i][cut:]) for cut in cuts]
        merges += [pair for pair in pairs if set(pair) <= set(tokens[259:-1])]
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    replace = normalizers.Replace(" ", "\u2581")
    stages = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.normalizer = replace
    if prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace])
        stages.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(stages)
    names = ("<unk>", "<s>", "</s>")
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def spm_keys(**changes: Any) -> dict[str, Any]:
    tokens, scores, kinds = pieces_and_scores()
    return {
        "ggml.model": "llama",
        "ggml.pre": "default",
        "ggml.tokens": tokens,
        "ggml.scores": np.array(scores, np.float32),
        "ggml.token_type": np.array(kinds, np.int32),
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.unknown_token_id": 0,
        **{f"ggml.{name}": value for name, value in changes.items()},
    }


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(prefix: bool) -> None:
    tokens, scores, _ = pieces_and_scores()
    known = of_llama_2(tokens, scores, prefix)
    made = read(spm_keys(add_space_prefix=prefix)).backend
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
    made, known = read(keys).backend, read(spm_keys()).backend
    assert made is not None
    assert known is not None
    for text in hostile_texts(50):
        assert made.encode(text).ids == known.encode(text).ids


def test_sentencepiece_comes_back() -> None:
    made = read(spm_keys()).backend
    assert made is not None
    for text in hostile_texts():
        if not any(name in text for name in ("<unk>", "<s>", "</s>", "<think>", "\u2581")):
            assert made.decode(made.encode(text).ids) == text


# -- tokens around a text --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "before", "after"),
    [
        ({}, [1], []),
        ({"add_bos_token": False}, [], []),
        ({"add_bos_token": True, "add_eos_token": True}, [1], [2]),
        ({"add_eos_token": True, "add_bos_token": False}, [], [2]),
        ({"bos_token_id": None}, [], []),
        ({"bos_token_id": -1}, [], []),
        ({"bos_token_id": 2**32 - 1}, [], []),
    ],
)
def test_bos_and_eos(keys: dict[str, Any], before: list[int], after: list[int]) -> None:
    parts = read(spm_keys(**keys))
    assert parts.backend is not None
    bare = parts.backend.encode("the fox", add_special_tokens=False).ids
    assert parts.backend.encode("the fox").ids == [*before, *bare, *after]
    assert parts.bos_token_id == (None if "bos_token_id" in keys else 1)


@pytest.mark.parametrize(("name", "adds"), [("llama-bpe", True), ("qwen2", False)])
def test_bos_where_only_the_kind_tells(name: str, adds: bool) -> None:
    parts = read(as_keys(trained(name), name))
    assert parts.backend is not None
    assert (parts.backend.encode("x").ids[0] == parts.bos_token_id) == adds


def test_ends() -> None:
    """EOS, the ends of turn and message that the file names, and well-known end tokens."""
    keys = as_keys(trained("qwen2"), "qwen2")
    tokens: list[str] = keys["ggml.tokens"]
    parts = read({**keys, "ggml.eos_token_id": 7, "ggml.eot_token_id": 8, "ggml.eom_token_id": 9})
    assert parts.eos_token_ids == {7, 8, 9, tokens.index("<|im_end|>")}
    keys["ggml.token_type"][tokens.index("<|im_end|>")] = NORMAL
    assert read({**keys, "ggml.eos_token_id": 7}).eos_token_ids == {7}


def test_special_tokens_and_template() -> None:
    parts = read({**spm_keys(padding_token_id=5), "chat_template": "{{ bos_token }}"})
    assert parts.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<0x02>",
    }
    assert parts.chat_template == "{{ bos_token }}"


@pytest.mark.parametrize("model", [None, "none", "no_vocab"])
def test_no_tokenizer(model: str | None) -> None:
    parts = read({"ggml.model": model, "ggml.eos_token_id": 3, "ggml.bos_token_id": 599})
    assert parts.backend is None
    assert parts.eos_token_ids == {3}
    assert parts.bos_token_id == 599
    assert parts.special_tokens == {}


def test_no_name_for_the_words() -> None:
    keys = as_keys(trained("gpt-2"), "gpt-2")
    with pytest.warns(UserWarning, match=r"model\.gguf: tokenizer\.ggml\.pre is missing"):
        made = read({**keys, "ggml.pre": None}).backend
    assert made is not None
    assert made.decode(made.encode("a 1234567 b").ids) == "a 1234567 b"


# -- damage ----------------------------------------------------------------------------------

GPT2 = as_keys(trained("gpt-2"), "gpt-2")
TOKENS: list[str] = GPT2["ggml.tokens"]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"model": "bert"}, "ggml.model is 'bert'; expected 'gpt2', 'llama' or 'none'"),
    "a kind that is no text": ({"model": 3}, "ggml.model is 3; expected a text"),
    "no tokens": ({"tokens": None}, "ggml.tokens is missing; expected an array of texts"),
    "tokens of numbers": ({"tokens": np.arange(3)}, "expected an array of texts"),
    "empty": ({"tokens": []}, "has 0 elements; expected 1 to 600"),
    "too many": ({"tokens": ["a"] * 601}, "has 601 elements; expected 1 to 600"),
    "a token twice": ({"tokens": [*TOKENS[:-1], TOKENS[5]]}, "at 5 and at 599"),
    "too few kinds": ({"token_type": np.ones(5)}, "expected an array of 600 numbers"),
    "kinds of texts": ({"token_type": ["a"] * 600}, "expected an array of 600 numbers"),
    "unknown words": ({"pre": "martian"}, "ggml.pre is 'martian'; expected one of 'llama3', "),
    "no merges": ({"merges": None}, "ggml.merges is missing"),
    "a merge of one": ({"merges": ["ab"]}, "ggml.merges, element 0, is 'ab'"),
    "a merge of strangers": ({"merges": ["\u4e00 \u4e01"]}, "not a valid tokenizer: .*vocabulary"),
    "BOS out of range": ({"bos_token_id": 600}, "bos_token_id is 600; expected a whole number fr"),
    "a text for EOS": ({"eos_token_id": "x"}, "eos_token_id is 'x'; expected a whole number"),
    "BOS that is not there": (
        {"bos_token_id": None, "add_bos_token": True},
        "add_bos_token is True; expected false, as there is no tokenizer.ggml.bos_token_id",
    ),
    "a number for a truth value": ({"add_bos_token": 1}, "add_bos_token is 1; expected true or"),
    "megabytes of special tokens": (
        {
            "tokens": ["x" * 2**23],
            "token_type": np.array([3]),
            "merges": [],
            "add_bos_token": False,
        },
        "has 8388608 characters in special and user-defined tokens; expected at most 4194304",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    changes, message = REFUSED[name]
    keys = {**GPT2, **{f"ggml.{key}": value for key, value in changes.items()}}
    if name == "a token twice":
        keys["ggml.token_type"] = np.ones(600)
    with pytest.raises(ModelFormatError, match=message) as caught:
        read(keys)
    assert str(caught.value).startswith("model.gguf: tokenizer.")
    assert len(str(caught.value)) < 1000


SPM_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no scores": ({"scores": None}, "ggml.scores is missing; expected an array of"),
    "too few scores": ({"scores": np.zeros(3, np.float32)}, "ggml.scores is array"),
    "scores that are none": (
        {"scores": np.full(len(pieces_and_scores()[0]), np.nan)},
        r"(?s)ggml\.scores is array.*; expected numbers",
    ),
    "a piece without end": (
        {"tokens": ["a" * 300, "b"], "scores": np.zeros(2), "token_type": np.ones(2)},
        "has one of 300 characters; expected at most 256",
    ),
    "a space prefix of 2": ({"add_space_prefix": 2}, "add_space_prefix is 2; expected true or fal"),
}


@pytest.mark.parametrize("name", SPM_REFUSED)
def test_refused_of_sentencepiece(name: str) -> None:
    changes, message = SPM_REFUSED[name]
    with pytest.raises(ModelFormatError, match=message):
        read(spm_keys(**changes))


def test_a_template_without_end() -> None:
    with pytest.raises(ModelFormatError, match="chat_template has 1048577 characters"):
        read({"ggml.model": "none", "chat_template": "x" * (2**20 + 1)})
