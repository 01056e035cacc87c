"""Vocabularies in the keys of a GGUF file, with the tokenizers that they were made from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from gguf_files import merge_lines, tokens_and_kinds
from published_words import LLAMA3, QWEN2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split
from tokenizers.processors import TemplateProcessing

from pybatcher.loading import TokenizerParts
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.tokenizers.gguf_tokenizer import read_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
WORDS = [" the fox looked at the river and don't it's 2024 1234", "日本語 naïve é\n\n  x", "// a_b"]


def read(keys: dict[str, Any], vocab_size: int = 600) -> TokenizerParts:
    fields = {f"tokenizer.{key}": value for key, value in keys.items() if value is not None}
    return read_tokenizer(Fields(fields, "model.gguf"), vocab_size)


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
